//! Weir: an OpenFlow virtual switch in user space.
//!
//! Configuration sources ([`config`]) make a desired state, [`reconfigure`] brings the switch to it;
//! [`daemon`] runs it, [`unixctl`] and [`report`] tell about it, [`vlog`] logs,
//! [`doctor`] examines the machine, [`cli`] is the command line.

pub mod cli;
pub mod config;
pub mod connections;
pub mod daemon;
pub mod doctor;
pub mod flow_text;
pub mod reconfigure;
pub mod report;
pub mod rundir;
pub mod source;
pub mod timer;
pub mod unixctl;
pub mod vlog;
