//! The configuration: one desired state ([`desired`]), whatever the source ([`crate::source`]).

pub mod check;
pub mod desired;
pub mod error;
pub mod origins;
pub mod target;

pub use desired::{Bridge, Desired, FailMode, Interface, Port, VlanMode, Vlans, Workers};
pub use error::{ConfigError, ConfigErrors};
pub use target::Target;
