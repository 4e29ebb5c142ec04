//! OpenFlow over the datapath: bridges, tables, translation and revalidation.
//!
//! [`Switch`] holds all bridges of a daemon and is the slow path of one datapath; [`Bridge`] is what
//! controllers and the configuration talk to. A packet that the datapath does not know comes to
//! `upcall.rs`, is translated by [`xlate`] over the tables in `forwarding.rs`, and leaves a datapath
//! flow with a record (`record.rs`) behind; `revalidate.rs` keeps those flows in step with every change.

pub mod bridge;
mod budget;
pub mod connection;
mod control;
pub mod error;
pub mod events;
mod forwarding;
pub mod group;
mod intern;
pub mod mac;
pub mod meter;
pub mod mirror;
pub mod paused;
mod port;
mod record;
#[cfg(any(test, fuzzing))]
mod reference;
mod revalidate;
mod shared;
pub mod state;
pub mod switch;
pub mod table;
#[cfg(test)]
mod tests;
pub mod trace;
mod upcall;
mod users;
pub mod vlan;
pub mod xlate;

pub use bridge::{Bridge, BridgeConfig, Controllers, DatapathType, FailMode, N_TABLES};
pub use control::Walks;
pub use error::Error;
pub use events::{PacketInEvent, Subscriber, SubscriptionId};
#[cfg(fuzzing)]
pub use reference::fuzz;

pub use mirror::{Mirror, MirrorOutput, PortSelection};
pub use port::{Device, PortInfo, PortSpec};
pub use state::Snapshot;
pub use switch::{Explanation, Switch, SwitchSettings};
pub use table::TableSettings;
pub use vlan::{PortVlan, PriorityTags, VlanMode, VlanSet};
