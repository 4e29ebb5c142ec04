//! The daemon as a process of the system.

pub mod detach;
pub mod limits;
pub mod panic;
pub mod user;
