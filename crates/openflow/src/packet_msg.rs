//! Packets to and from controllers.

use crate::action::Action;
use crate::matching::Match;
use crate::types::{Cookie, OfPort, PacketInReason, TableId};

/// How packet-ins are encoded (NXT_SET_PACKET_IN_FORMAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum PacketInFormat {
    /// The version's own OFPT_PACKET_IN.
    #[default]
    Standard = 0,
    /// NXT_PACKET_IN.
    Nxt = 1,
    /// NXT_PACKET_IN2.
    Nxt2 = 2,
}

/// A packet for the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Encoding to use, or that was used.
    pub format: PacketInFormat,
    /// Where the switch keeps the packet, if it does.
    pub buffer_id: Option<u32>,
    /// Length of the whole packet; `data` may have less.
    pub total_len: u32,
    /// Why.
    pub reason: PacketInReason,
    /// Table of the flow.
    pub table: TableId,
    /// Cookie of the flow; `None` where there is none, or the encoding has no room for it.
    pub cookie: Option<Cookie>,
    /// in_port and the other metadata of the packet.
    pub metadata: Match,
    /// The frame, or its beginning.
    pub data: Vec<u8>,
    /// Userdata of the `controller` action.
    pub userdata: Vec<u8>,
    /// State of the pipeline, opaque to the controller, for NXT_RESUME; empty for none.
    pub continuation: Vec<u8>,
}

impl PacketIn {
    /// The port that the packet came in on.
    pub fn in_port(&self) -> OfPort {
        self.metadata.in_port().unwrap_or(OfPort::ANY)
    }
}

/// A packet from the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// Buffered packet to send; `None`: the one in `data`.
    pub buffer_id: Option<u32>,
    /// The port that the packet is taken to have come in on.
    pub in_port: OfPort,
    /// Further metadata (OpenFlow 1.5).
    pub metadata: Match,
    /// What to do with it.
    pub actions: Vec<Action>,
    /// The frame.
    pub data: Vec<u8>,
}
