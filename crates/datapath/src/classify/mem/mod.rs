//! Memory of tables.

pub mod region;
