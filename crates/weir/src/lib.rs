//! Weir: an OpenFlow virtual switch in user space.

pub mod unixctl;
