//! The configuration: one desired state, whatever the source ([`crate::source`]).
//!
//! - [`check`]: what a configuration needs of the machine
//! - [`conntrack`]: settings of connection tracking
//! - [`desired`]: the desired state
//! - [`error`]: what is wrong with a configuration
//! - [`http`]: the HTTP server
//! - [`origins`]: where in its source each part stands
//! - [`policing`]: what ports may receive and be sent in a second
//! - [`target`]: addresses of controllers

pub mod check;
pub mod conntrack;
pub mod desired;
pub mod error;
pub mod http;
pub mod origins;
pub mod policing;
pub mod shaping;
pub mod target;

pub use desired::{Bridge, Desired, FailMode, Interface, Port, VlanMode, Vlans, Workers};
pub use error::{ConfigError, ConfigErrors};
pub use target::Target;
