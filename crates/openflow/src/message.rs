//! A message: version, transaction id, body.

use crate::bundle::{BundleAdd, BundleControl};
use crate::ct::CtFlush;
use crate::error::ErrorMsg;
use crate::flow_mod::{FlowMod, FlowRemoved};
use crate::group::GroupMod;
use crate::meter::MeterMod;
use crate::packet_msg::{PacketIn, PacketInFormat, PacketOut};
use crate::port::{PortMod, PortStatus};
use crate::queue::QueueConfig;
use crate::stats::{MultipartReply, MultipartRequest};
use crate::switch::{AsyncChange, AsyncConfig, FlowFormat, Hello, RoleMsg, RoleStatus, SwitchConfig, SwitchFeatures};
use crate::table::{TableMod, TableStatus};
use crate::tlv::{TlvTable, TlvTableMod};
use crate::types::{OfPort, Version};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Version of the encoding.
    pub version: Version,
    /// Transaction id; an answer has that of its request.
    pub xid: u32,
    /// Encoding, where the version has two.
    pub dialect: Dialect,
    /// What it says.
    pub body: Body,
}

impl Message {
    /// A message in the version's standard encoding.
    pub fn new(version: Version, xid: u32, body: Body) -> Message {
        Message { version, xid, dialect: Dialect::Standard, body }
    }
}

/// Which encoding a message has where the version has two: NXT_FLOW_MOD, NXT_FLOW_REMOVED, NXST_FLOW and
/// NXST_AGGREGATE (with NXM) on OpenFlow 1.0, NXT_ROLE_* and NXT_SET_ASYNC_CONFIG on all. An answer has the
/// dialect of its request. (Packet-ins have [`PacketInFormat`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// The OpenFlow specification's.
    #[default]
    Standard,
    /// The Nicira extension's.
    Nicira,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// OFPT_HELLO.
    Hello(Hello),
    /// OFPT_ERROR.
    Error(ErrorMsg),
    /// OFPT_ECHO_REQUEST.
    EchoRequest(Vec<u8>),
    /// OFPT_ECHO_REPLY.
    EchoReply(Vec<u8>),
    /// OFPT_FEATURES_REQUEST.
    FeaturesRequest,
    /// OFPT_FEATURES_REPLY.
    FeaturesReply(SwitchFeatures),
    /// OFPT_GET_CONFIG_REQUEST.
    GetConfigRequest,
    /// OFPT_GET_CONFIG_REPLY.
    GetConfigReply(SwitchConfig),
    /// OFPT_SET_CONFIG.
    SetConfig(SwitchConfig),
    /// OFPT_PACKET_IN, NXT_PACKET_IN, NXT_PACKET_IN2.
    PacketIn(Box<PacketIn>),
    /// NXT_RESUME: a packet-in with its continuation comes back, for the pipeline to go on.
    Resume(Box<PacketIn>),
    /// OFPT_FLOW_REMOVED, NXT_FLOW_REMOVED.
    FlowRemoved(Box<FlowRemoved>),
    /// OFPT_PORT_STATUS.
    PortStatus(PortStatus),
    /// OFPT_PACKET_OUT.
    PacketOut(PacketOut),
    /// OFPT_FLOW_MOD, NXT_FLOW_MOD.
    FlowMod(Box<FlowMod>),
    /// OFPT_PORT_MOD.
    PortMod(PortMod),
    /// OFPT_TABLE_MOD (OpenFlow 1.1).
    TableMod(TableMod),
    /// OFPT_GROUP_MOD (OpenFlow 1.1), NXT_GROUP_MOD (1.0).
    GroupMod(Box<GroupMod>),
    /// OFPT_METER_MOD (OpenFlow 1.3).
    MeterMod(MeterMod),
    /// OFPT_QUEUE_GET_CONFIG_REQUEST (OpenFlow 1.0 to 1.3); ANY for all ports.
    QueueGetConfigRequest(OfPort),
    /// OFPT_QUEUE_GET_CONFIG_REPLY (OpenFlow 1.0 to 1.3).
    QueueGetConfigReply {
        /// The port that was asked about.
        port: OfPort,
        /// Its queues.
        queues: Vec<QueueConfig>,
    },
    /// OFPT_BUNDLE_CONTROL (OpenFlow 1.4), ONF's extension of 1.3.
    BundleControl(BundleControl),
    /// OFPT_BUNDLE_ADD_MESSAGE (OpenFlow 1.4), ONF's extension of 1.3.
    BundleAdd(BundleAdd),
    /// OFPT_ROLE_STATUS (OpenFlow 1.4), ONF's extension of 1.3.
    RoleStatus(RoleStatus),
    /// OFPT_TABLE_STATUS (OpenFlow 1.4).
    TableStatus(TableStatus),
    /// OFPT_REQUESTFORWARD (OpenFlow 1.4), ONF's extension of 1.3, NXT_REQUESTFORWARD (1.0 to 1.2).
    RequestForward(RequestForward),
    /// NXT_TLV_TABLE_MOD.
    TlvTableMod(TlvTableMod),
    /// NXT_TLV_TABLE_REQUEST.
    TlvTableRequest,
    /// NXT_TLV_TABLE_REPLY.
    TlvTableReply(TlvTable),
    /// NXT_CT_FLUSH_ZONE: the connections of a zone end.
    CtFlushZone(u16),
    /// NXT_CT_FLUSH: connections end.
    CtFlush(Box<CtFlush>),
    /// OFPT_BARRIER_REQUEST.
    BarrierRequest,
    /// OFPT_BARRIER_REPLY.
    BarrierReply,
    /// OFPT_ROLE_REQUEST, NXT_ROLE_REQUEST.
    RoleRequest(RoleMsg),
    /// OFPT_ROLE_REPLY, NXT_ROLE_REPLY.
    RoleReply(RoleMsg),
    /// OFPT_GET_ASYNC_REQUEST (OpenFlow 1.3).
    GetAsyncRequest,
    /// OFPT_GET_ASYNC_REPLY (OpenFlow 1.3).
    GetAsyncReply(AsyncConfig),
    /// OFPT_SET_ASYNC (OpenFlow 1.3), NXT_SET_ASYNC_CONFIG.
    SetAsync(AsyncChange),
    /// NXT_SET_ASYNC_CONFIG2 (OpenFlow 1.0 to 1.3): OpenFlow 1.4's form.
    SetAsync2(AsyncChange),
    /// OFPT_STATS_REQUEST, OFPT_MULTIPART_REQUEST.
    MultipartRequest {
        /// More messages with this xid follow.
        more: bool,
        /// What is asked.
        request: MultipartRequest,
    },
    /// OFPT_STATS_REPLY, OFPT_MULTIPART_REPLY.
    MultipartReply {
        /// More messages with this xid follow.
        more: bool,
        /// The answer, or part of it.
        reply: MultipartReply,
    },
    /// NXT_SET_FLOW_FORMAT.
    SetFlowFormat(FlowFormat),
    /// NXT_FLOW_MOD_TABLE_ID: whether the command of a flow-mod of OpenFlow 1.0 has the table in its high
    /// byte.
    FlowModTableId(bool),
    /// NXT_SET_PACKET_IN_FORMAT.
    SetPacketInFormat(PacketInFormat),
    /// NXT_FLOW_AGE: asks for ages of flows in replies, which have them in any case.
    FlowAge,
    /// NXT_SET_CONTROLLER_ID.
    SetControllerId(u16),
    /// NXT_FLOW_MONITOR_CANCEL (OpenFlow 1.0 to 1.2), ONFT_FLOW_MONITOR_CANCEL (1.3).
    FlowMonitorCancel(u32),
    /// NXT_FLOW_MONITOR_PAUSED and ONFT_FLOW_MONITOR_PAUSED; OpenFlow 1.4 has [`FlowUpdate::Paused`](crate::FlowUpdate).
    FlowMonitorPaused,
    /// NXT_FLOW_MONITOR_RESUMED and ONFT_FLOW_MONITOR_RESUMED.
    FlowMonitorResumed,
}

/// A request of another controller that changed the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestForward {
    /// A change of groups.
    Group(Box<GroupMod>),
    /// A change of meters (OpenFlow 1.3).
    Meter(MeterMod),
}
