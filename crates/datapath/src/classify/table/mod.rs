//! The megaflow table: the flows, and how the flow that a packet matches is found.

mod agreeing;
pub mod arena;
mod evict;
pub mod flow_counters;
pub mod flow_ref;
mod index;
pub mod install;
mod masks;
pub mod megaflow;
mod record;
pub mod shape;
pub mod stages;
pub mod subtable;
pub mod walk;
