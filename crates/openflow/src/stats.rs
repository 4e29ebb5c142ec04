//! Multipart requests and replies ("stats" in OpenFlow 1.0).

use std::time::Duration;

use packet::flow::field::Oxm;

use crate::group::{GroupDesc, GroupStats};
use crate::instruction::Instructions;
use crate::matching::Match;
use crate::meter::{MeterConfig, MeterStats};
use crate::monitor::{FlowMonitorRequest, FlowUpdate};
use crate::port::{PortDesc, PortStats, QueueStats};
use crate::queue::QueueConfig;
use crate::table::{TableDesc, TableMiss};
use crate::types::{Cookie, CookieFilter, FlowModFlags, GroupId, OfPort, TableId};

/// A multipart request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultipartRequest {
    /// Description of the switch.
    Desc,
    /// Flows.
    Flow(FlowStatsRequest),
    /// Sums over flows.
    Aggregate(FlowStatsRequest),
    /// Tables.
    Table,
    /// Counters of a port; ANY for all.
    Port(OfPort),
    /// Descriptions of a port; ANY for all. Before OpenFlow 1.5 always ANY.
    PortDesc(OfPort),
    /// Counters of queues.
    Queue {
        /// Port; ANY for all.
        port: OfPort,
        /// Queue; 0xffffffff for all.
        queue: u32,
    },
    /// Counters of a group; ALL for all.
    Group(GroupId),
    /// Descriptions of a group; ALL for all. Before OpenFlow 1.5 always ALL.
    GroupDesc(GroupId),
    /// What groups can do.
    GroupFeatures,
    /// Counters of a meter; 0xffffffff for all.
    Meter(u32),
    /// Configuration of a meter; 0xffffffff for all.
    MeterConfig(u32),
    /// What meters can do.
    MeterFeatures,
    /// What tables can do; with elements, a request to change it.
    TableFeatures(Vec<TableFeatures>),
    /// Descriptions of tables (OpenFlow 1.4).
    TableDesc,
    /// Configuration of queues (OpenFlow 1.4).
    QueueDesc {
        /// Port; ANY for all.
        port: OfPort,
        /// Queue; [`QueueConfig::ALL`] for all.
        queue: u32,
    },
    /// Changes of flow monitors (OpenFlow 1.4, and extensions).
    FlowMonitor(Vec<FlowMonitorRequest>),
    /// What the bridge's exporter of IPFIX has done (an extension).
    IpfixBridge,
    /// What its exporters for collector sets have done (an extension).
    IpfixFlow,
}

/// A multipart reply, or one of several with the same xid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultipartReply {
    /// Description of the switch.
    Desc(Box<SwitchDesc>),
    /// Flows.
    Flow(Vec<FlowStats>),
    /// Sums over flows.
    Aggregate(AggregateStats),
    /// Tables.
    Table(Vec<TableStats>),
    /// Counters of ports.
    Port(Vec<PortStats>),
    /// Descriptions of ports.
    PortDesc(Vec<PortDesc>),
    /// Counters of queues.
    Queue(Vec<QueueStats>),
    /// What groups can do.
    GroupFeatures(GroupFeatures),
    /// What meters can do.
    MeterFeatures(MeterFeatures),
    /// What tables can do.
    TableFeatures(Vec<TableFeatures>),
    /// Descriptions of tables.
    TableDesc(Vec<TableDesc>),
    /// Configuration of queues.
    QueueDesc(Vec<QueueConfig>),
    /// Counters of groups.
    Group(Vec<GroupStats>),
    /// Descriptions of groups.
    GroupDesc(Vec<GroupDesc>),
    /// Counters of meters.
    Meter(Vec<MeterStats>),
    /// Configuration of meters.
    MeterConfig(Vec<MeterConfig>),
    /// What flow monitors are told, also unasked (OpenFlow 1.4, and extensions).
    FlowMonitor(Vec<FlowUpdate>),
    /// What the bridge's exporter of IPFIX has done.
    IpfixBridge(IpfixStats),
    /// What its exporters for collector sets have done.
    IpfixFlow(Vec<IpfixStats>),
}

/// What an exporter of IPFIX has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IpfixStats {
    /// Flows so far.
    pub flows: u64,
    /// Flows in its cache.
    pub current_flows: u64,
    /// Packets that were sampled.
    pub packets: u64,
    /// Those of IPv4 with a known protocol.
    pub ipv4: u64,
    /// Those of IPv6 with a known protocol.
    pub ipv6: u64,
    /// Those that records do not tell in full.
    pub errors: u64,
    /// Of these, IPv4.
    pub ipv4_errors: u64,
    /// Of these, IPv6.
    pub ipv6_errors: u64,
    /// Messages that were sent, for each collector.
    pub sent: u64,
    /// Messages that could not be sent.
    pub not_sent: u64,
    /// The collector set; zero for the bridge's exporter.
    pub collector_set: u32,
}

/// Description of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SwitchDesc {
    /// Manufacturer; at most 255 bytes on the wire.
    pub manufacturer: String,
    /// Hardware; at most 255 bytes.
    pub hardware: String,
    /// Software; at most 255 bytes.
    pub software: String,
    /// Serial number; at most 31 bytes.
    pub serial: String,
    /// Description of the datapath; at most 255 bytes.
    pub datapath: String,
}

/// Which flows a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatsRequest {
    /// Flows that are as narrow as this or narrower.
    pub matching: Match,
    /// Table; ALL for all.
    pub table: TableId,
    /// Flows that output to this port; ANY for all.
    pub out_port: OfPort,
    /// Flows that use this group; ANY for all.
    pub out_group: GroupId,
    /// Flows with such a cookie.
    pub cookie: CookieFilter,
}

/// A flow with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    /// Match.
    pub matching: Match,
    /// Cookie.
    pub cookie: Cookie,
    /// Table.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Seconds.
    pub idle_timeout: u16,
    /// Seconds.
    pub hard_timeout: u16,
    /// Age; nanosecond precision.
    pub duration: Duration,
    /// Seconds since the last packet; `None` where the encoding has no room (only Nicira's has).
    pub idle_age: Option<u16>,
    /// Seconds since the last modification; as `idle_age`.
    pub hard_age: Option<u16>,
    /// Packets; [`u64::MAX`] where unknown.
    pub packet_count: u64,
    /// Bytes; [`u64::MAX`] where unknown.
    pub byte_count: u64,
    /// Flags (OpenFlow 1.3).
    pub flags: FlowModFlags,
    /// Importance (OpenFlow 1.4).
    pub importance: u16,
    /// Instructions.
    pub instructions: Instructions,
}

/// Sums over flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AggregateStats {
    /// Packets; [`u64::MAX`] where unknown.
    pub packet_count: u64,
    /// Bytes; [`u64::MAX`] where unknown.
    pub byte_count: u64,
    /// Flows.
    pub flow_count: u32,
}

/// Counters of a table. What a version does not carry is zero or empty when decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStats {
    /// Table.
    pub table: TableId,
    /// Name (OpenFlow 1.0 to 1.2); at most 31 bytes.
    pub name: String,
    /// Wildcards, one bit for each OFPFW10_* (OpenFlow 1.0).
    pub wildcards: u32,
    /// Most flows (OpenFlow 1.0 to 1.2).
    pub max_entries: u32,
    /// Flows.
    pub active_count: u32,
    /// Packets looked up.
    pub lookup_count: u64,
    /// Packets matched.
    pub matched_count: u64,
    /// What the table can do and how it is configured (OpenFlow 1.1 and 1.2).
    pub early: Option<Box<TableAbilities>>,
}

/// What table statistics of OpenFlow 1.1 and 1.2 say besides counters.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TableAbilities {
    /// Fields that can be matched, by the bit numbers of the version: OFPFMF11_* or OFPXMT12_OFB_*.
    pub matches: u64,
    /// Fields that can be wildcarded, as `matches`.
    pub wildcards: u64,
    /// One bit for each OFPIT_*.
    pub instructions: u32,
    /// Actions in Write-Actions: one bit for each OFPAT_*.
    pub write_actions: u32,
    /// Actions in Apply-Actions.
    pub apply_actions: u32,
    /// Fields that Set-Field can write in Write-Actions (OpenFlow 1.2).
    pub write_setfields: u64,
    /// Fields that Set-Field can write in Apply-Actions (OpenFlow 1.2).
    pub apply_setfields: u64,
    /// Metadata bits that can be matched (OpenFlow 1.2).
    pub metadata_match: u64,
    /// Metadata bits that can be written (OpenFlow 1.2).
    pub metadata_write: u64,
    /// What becomes of packets that miss.
    pub miss: TableMiss,
}

/// What groups can do, by type: all, select, indirect, fast failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupFeatures {
    /// One bit for each supported type.
    pub types: u32,
    /// OFPGFC_*.
    pub capabilities: u32,
    /// Most groups, for each type.
    pub max_groups: [u32; 4],
    /// Actions, for each type: one bit for each OFPAT_*.
    pub actions: [u32; 4],
}

/// What meters can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MeterFeatures {
    /// Most meters.
    pub max_meters: u32,
    /// One bit for each OFPMBT_*.
    pub band_types: u32,
    /// OFPMF_*.
    pub capabilities: u32,
    /// Most bands of a meter.
    pub max_bands: u8,
    /// Most colours.
    pub max_color: u8,
}

/// What a table can do (OFPMP_TABLE_FEATURES).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFeatures {
    /// Table.
    pub table: TableId,
    /// Name; at most 31 bytes.
    pub name: String,
    /// Metadata bits that can be matched.
    pub metadata_match: u64,
    /// Metadata bits that can be written.
    pub metadata_write: u64,
    /// OFPTC_*.
    pub config: u32,
    /// Most flows.
    pub max_entries: u32,
    /// For flows other than the table-miss flow.
    pub normal: TableFeaturesSet,
    /// For the table-miss flow; `None` where it is the same.
    pub miss: Option<TableFeaturesSet>,
    /// Fields that can be matched; true where they can be masked.
    pub matches: Vec<(Oxm, bool)>,
    /// Fields that can be wildcarded.
    pub wildcards: Vec<Oxm>,
}

/// Instructions and actions of a table.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TableFeaturesSet {
    /// One bit for each OFPIT_* number.
    pub instructions: u32,
    /// Tables that can be gone to, in order.
    pub next_tables: Vec<TableId>,
    /// Actions in Write-Actions: one bit for each OFPAT_* number.
    pub write_actions: u32,
    /// Actions in Apply-Actions.
    pub apply_actions: u32,
    /// Fields that Set-Field can write in Write-Actions.
    pub write_setfield: Vec<Oxm>,
    /// Fields that Set-Field can write in Apply-Actions.
    pub apply_setfield: Vec<Oxm>,
}
