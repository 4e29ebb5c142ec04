//! Memory for large tables.

pub mod region;
