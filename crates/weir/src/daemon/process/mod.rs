//! The daemon as a process of the system.
//!
//! - [`detach`]: goes to the background, and watches a daemon there
//! - [`exit`]: bounds how long the end takes
//! - [`limits`]: what the system allows a process
//! - [`panic`]: reports a panic, and ends the daemon in good order
//! - [`user`]: runs as another user than root

pub mod detach;
pub mod exit;
pub mod limits;
pub mod panic;
pub mod user;
