//! What is kept of a pipeline for packets that the datapath recirculates, or sends to a controller.

use std::sync::Arc;

use openflow::{Action, Bits, TableId};
use packet::Key;
use packet::flow::BlockId;
use tunnel::fields::FieldTable;

use super::steps::FrozenStep;
use crate::model::forwarding::BridgeId;
use crate::model::mirror::MirrorSet;

/// A pipeline that waits for its packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frozen {
    pub bridge: BridgeId,
    /// The table to continue in when no steps are left.
    pub table: u8,
    /// What is not in the packet: ports, registers, metadata, tunnel.
    pub metadata: Key,
    /// What its tun_metadata fields stand for, where there are any.
    pub tlv: Option<Arc<FieldTable>>,
    pub stack: Vec<(Bits, u16)>,
    pub action_set: Vec<Action>,
    pub steps: Vec<FrozenStep>,
    /// Instead of steps: the name of the bond that the packet is sent by, and then the pipeline ends.
    pub bond: Option<Arc<str>>,
    /// How many bonds have had the packet recirculated.
    pub bonds: u8,
    /// The hash that the packet has, if any, was for a bond: no group chooses by it.
    pub bond_hash: bool,
    /// The mirrors that have got their copy.
    pub mirrored: MirrorSet,
    /// The pipeline sees what connection tracking has found out about the packet.
    pub conntracked: bool,
}

/// The parts of a packet-in that [`datapath::PacketInPunt`] does not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PacketInContext {
    pub bridge: BridgeId,
    pub table: TableId,
    pub userdata: Vec<u8>,
    pub metadata: Key,
    /// What its tun_metadata fields stand for, where there are any.
    pub tlv: Option<Arc<FieldTable>>,
    /// The controller gets what connection tracking has found out about the packet.
    pub conntracked: bool,
    /// See [`PacketInEvent`](crate::events::PacketInEvent).
    pub explicit_miss: bool,
    /// See [`PacketInEvent`](crate::events::PacketInEvent).
    pub implicit_miss: bool,
}

/// The part of a key that is not in the packet.
pub(crate) fn metadata(key: &Key) -> Key {
    let mut out = Key::new();
    let (from, to) = (key.common(), out.common_mut());
    (to.in_port, to.pkt_mark, to.skb_priority) = (from.in_port, from.pkt_mark, from.skb_priority);
    for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
        if !key.block(block).is_zero() {
            *out.block_mut(block) = *key.block(block);
        }
    }
    if key.present().has(BlockId::TunMeta0) {
        *out.tun_metadata_mut() = *key.tun_metadata();
    }
    out
}
