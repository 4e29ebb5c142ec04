//! What the bridges are: ports, tables' surroundings, addresses, groups, meters, mirrors. Translation reads it,
//! bridges change it.

pub(crate) mod forwarding;
pub mod group;
pub mod mac;
pub mod meter;
pub mod mirror;
pub(crate) mod port;
pub(crate) mod transaction;
pub(crate) mod users;
pub mod vlan;
