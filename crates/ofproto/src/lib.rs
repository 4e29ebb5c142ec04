//! OpenFlow over the datapath: bridges, tables, translation and revalidation.
//!
//! [`Switch`] holds all bridges of a daemon and is the slow path of one datapath; [`Bridge`] is what
//! controllers and the configuration talk to. A packet that the datapath does not know comes to
//! `slowpath/upcall.rs`, is translated by [`xlate`] over the tables in `model/forwarding.rs`, and leaves a datapath
//! flow with a record (`slowpath/record.rs`) behind; `slowpath/revalidate.rs` keeps those flows in step with every change.

pub mod bridge;
pub mod connection;
pub mod error;
pub mod events;
pub mod model;
#[cfg(any(test, fuzzing))]
mod reference;
mod slowpath;
pub mod snapshot;
pub mod switch;
pub mod table;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod xlate;

pub use bridge::{Bridge, BridgeConfig, Controllers, DatapathType, FailMode, N_TABLES};
pub use error::Error;
pub use events::{PacketInEvent, Subscriber, SubscriptionId};
#[cfg(fuzzing)]
pub use reference::fuzz;
pub use slowpath::control::Walks;

pub use model::mirror::{Mirror, MirrorOutput, PortSelection};
pub use model::port::{Device, PortInfo, PortSpec};
pub use model::vlan::{PortVlan, PriorityTags, VlanMode, VlanSet};
pub use switch::{Explanation, Switch, SwitchSettings};
pub use table::TableSettings;
