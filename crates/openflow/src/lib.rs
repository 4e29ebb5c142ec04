//! OpenFlow 1.0 to 1.5: a model of its messages that is independent of version, their encodings with
//! the Nicira extensions, and the text syntax of flows.
//!
//! This crate does no I/O and reads no clock.
//!
//! | module | what it is |
//! |---|---|
//! | [`action`] | Actions |
//! | [`bundle`] | Bundles of messages |
//! | [`codec`] | Messages as bytes, and back |
//! | [`ct`] | Ending connections |
//! | [`error`] | Errors and their numbers |
//! | [`flow_mod`] | Changes of flow tables, and flow-removed |
//! | [`group`] | Groups |
//! | [`instruction`] | Instructions of a flow |
//! | [`matching`] | Matches, and parts of fields |
//! | [`message`] | A message: version, transaction, body |
//! | [`meter`] | Meters |
//! | [`monitor`] | Flow monitors |
//! | [`packet_msg`] | Packet-in and packet-out |
//! | [`port`] | Ports: description, changes, statistics |
//! | [`queue`] | Queues of ports |
//! | [`recycled`] | Keys and masks whose memory is used again |
//! | [`stats`] | Multipart requests and replies |
//! | [`switch`] | Features, configuration, roles |
//! | [`table`] | Flow tables: description and configuration |
//! | [`text`] | The syntax of ovs-ofctl, in both directions |
//! | [`tlv`] | Which tunnel options tun_metadata fields stand for |
//! | [`tun_metadata`] | These fields and their values |
//! | [`tun_use`] | Which of them an action names |
//! | [`types`] | Versions, identifiers, reserved numbers, flags |

pub mod action;
pub mod bundle;
pub mod codec;
pub mod ct;
pub mod error;
pub mod flow_mod;
pub mod group;
pub mod instruction;
pub mod matching;
pub mod message;
pub mod meter;
pub mod monitor;
pub mod packet_msg;
pub mod port;
pub mod queue;
pub mod recycled;
pub mod stats;
pub mod switch;
pub mod table;
pub mod text;
pub mod tlv;
pub mod tun_metadata;
pub mod tun_use;
pub mod types;

pub use action::Action;
pub use bundle::{BundleAdd, BundleControl};
pub use ct::{CtFlush, CtTuple};
pub use error::{ErrorCode, ErrorMsg, OfError};
pub use flow_mod::{FlowMod, FlowModCommand, FlowRemoved, FlowRemovedReason};
pub use group::{GroupDesc, GroupMod, GroupSpec, GroupStats, GroupType};
pub use instruction::{Instructions, WriteMetadata};
pub use matching::{AnyField, KeyPart, Match, Subfield};
pub use message::{Body, Dialect, Message, RequestForward};
pub use meter::{MeterConfig, MeterMod, MeterStats};
pub use monitor::{FlowMonitorRequest, FlowUpdate};
pub use packet_msg::{PacketIn, PacketInFormat, PacketOut};
pub use port::{PortConfig, PortDesc, PortFeatures, PortMod, PortReason, PortState, PortStats, PortStatus};
pub use queue::QueueConfig;
pub use stats::{FlowStats, FlowStatsRequest, MultipartReply, MultipartRequest};
pub use switch::{AsyncChange, AsyncConfig, FlowFormat, FragHandling, Hello, Role, SwitchConfig, SwitchFeatures};
pub use table::{TableDesc, TableMiss, TableMod, TableReason, TableStatus};
pub use tlv::{TlvCommand, TlvMap, TlvTable, TlvTableMod};
pub use tun_metadata::{Bits, TunField, TunMatch, TunValue};
pub use tun_use::{TunUse, TunUseMut, tun_fields};
pub use types::{
    Cookie, CookieFilter, EthAddr, FlowModFlags, GroupId, OfPort, PacketInReason, TableId, Version, Versions,
};
