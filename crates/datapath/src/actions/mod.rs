//! A flow's actions: compiled into a program when the flow is installed, and executed on runs of packets.

pub mod compact;
pub mod compact_form;
pub mod encap;
pub mod execute;
pub mod flow_hash;
mod meter;
pub mod program;
mod rewrite;
pub mod runs;
pub mod sample;
pub mod tunnel;
mod tunnel_pop;
