//! Memory for large tables.

pub mod chunks;
pub mod region;
