//! OpenFlow over the datapath: bridges, tables, translation and revalidation.

pub mod bridge;
pub mod error;
pub mod events;
pub mod mac;
pub mod port;
pub mod switch;
pub mod table;
pub mod vlan;

pub use bridge::{Bridge, BridgeConfig, Controllers, FailMode, N_TABLES};
pub use error::Error;
pub use events::{PacketInEvent, Subscriber, SubscriptionId};
pub use port::{Device, PortInfo, PortSpec};
pub use switch::{Switch, SwitchSettings};
pub use vlan::{PortVlan, PriorityTags, VlanMode, VlanSet};
