//! The flows, and how the one is found that a packet equals under its mask.

pub mod arena;
mod evict;
pub mod flow_counters;
pub mod flow_ref;
mod masks;
pub mod megaflow;
mod record;
pub mod shape;
pub mod stages;
pub mod subtable;
