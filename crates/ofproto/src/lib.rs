//! OpenFlow over the datapath: bridges, tables, translation and revalidation.
//!
//! [`Switch`] holds all bridges of a daemon and is the slow path of one datapath. Controllers and the configuration
//! talk to a [`Bridge`].
//!
//! The way of a packet that no datapath flow matches:
//!
//! 1. The datapath hands it to `slowpath::upcall`.
//! 2. [`xlate`] translates it over the tables of `model::forwarding`, into a mask and datapath actions.
//! 3. The datapath installs a flow with these. The flow carries a record (`slowpath::record`) of the rules that it
//!    stands for and of what the translation depended on.
//! 4. `slowpath::revalidate` credits the flow's packets to the rules, and translates it again when something that it
//!    depends on has changed.
//!
//! | module | what it is |
//! |---|---|
//! | [`switch`] | The switch: all bridges over one datapath |
//! | [`bridge`] | What controllers and the configuration ask of a bridge |
//! | [`model`] | The state of bridges: ports, addresses, groups, meters, mirrors |
//! | [`table`] | The flow tables and their classifier |
//! | [`xlate`] | Translation of a packet into datapath actions |
//! | `slowpath` | Misses, punts and revalidation |
//! | [`connection`] | An OpenFlow connection: bytes in, bytes out |
//! | [`events`] | What a bridge tells its controllers unasked |
//! | [`snapshot`] | What survives a restart, in a serialised form |
//! | [`trace`] | `ofproto/trace` |
//! | [`explain`] | What decides what becomes of a packet, and what would decide otherwise |
//! | [`verify`] | Packets that are judged a second time by the tables, so that a cache that is wrong is found |
//! | [`whatif`] | What changes of flows would do, before they are made |
//! | [`error`] | Why a change of bridges and ports is refused |
//! | `reference` | A simple switch that tests compare this one with |

pub mod bridge;
pub mod connection;
pub mod error;
pub mod events;
pub mod explain;
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
pub mod verify;
pub mod whatif;
pub mod xlate;

pub use bridge::Bridge;
pub use bridge::bonds::{BondError, BondInfo};
pub use bridge::counters::{NoRuleId, RuleCounters, RuleId};
pub use bridge::spanning_tree::{TreePortStatus, TreeStatus};
pub use bridge::tunnels::CarrierInfo;
pub use error::Error;
pub use events::{PacketInEvent, Subscriber, SubscriptionId};
#[cfg(fuzzing)]
pub use reference::fuzz;
pub use slowpath::control::RevalidationStats;
pub use slowpath::decision::Decision;
pub use slowpath::drop_sites::{DropSite, TableDrop, TableDropRule};
pub use slowpath::lldp::LldpReport;
pub use slowpath::requests::{Done, FlowRequest};

pub use model::bond::{BondMode, BondSettings, LacpConfig};
pub use model::config::{BridgeConfig, Controllers, DatapathType, FailMode, N_TABLES};
pub use model::hidden::{InBand, Remote};
pub use model::mirror::{Mirror, MirrorOutput, PortSelection};
pub use model::path_check::PathCheckConfig;
pub use model::port::{Device, PortInfo, PortProtocols, PortSpec};
pub use model::spanning_tree::{SpanningTreeConfig, SpanningTreePort};
pub use model::tunnels::TunnelPort;
pub use model::vlan::{PortVlan, PriorityTags, VlanMode, VlanSet};
pub use switch::{Explanation, Switch, SwitchSettings};
pub use table::TableSettings;
pub use verify::report::{Disagreement, NotComparable, VerifyCounts, VerifyReport, Wrong};
