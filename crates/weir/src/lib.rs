//! Weir: an OpenFlow virtual switch in user space.

pub mod config;
pub mod reconfigure;
pub mod unixctl;
