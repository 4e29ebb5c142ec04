//! The contract between the fast path and the slow path.
//!
//! The datapath knows nothing of OpenFlow. It passes packets up that it cannot classify, and gets masks and actions
//! back.

use std::any::Any;
use std::sync::Arc;

use packet::flow::{Mask, extract::Layers};
use packet::{Key, Packet, Time};

use crate::action::{Action, PortNo, Punt};
use crate::actions::encap::MADE_UP;
use crate::drop::DropReason;

/// The slow path.
///
/// Called from the datapath's handler threads, or from the caller that drives a datapath without threads; several
/// calls at once. Must not block on anything that waits for the datapath.
pub trait Upcall: Send + Sync + 'static {
    /// Decides what to do with packets that no flow matches: fills in every [`Miss::verdict`].
    ///
    /// The datapath then installs the flows that were asked for and runs the actions on the packets.
    /// The misses of one call are of one worker, in the order of their arrival. None of them matches a flow that was
    /// asked for before: a packet that does is not passed up.
    fn misses(&self, misses: &mut [Miss], now: Time);

    /// Takes a packet that [`Action::Punt`] sent up. The variant of `punt` says why.
    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, now: Time);

    /// The version of the upper layer's state for which a flow is right that the verdict on a miss asked for. It is for
    /// the packets that equal `key` under `mask`. `None` where something has changed since the verdict that may be
    /// about them: then the flow is not installed, and the next of its packets misses again.
    fn version_of(&self, tag: &FlowTag, key: &Key, mask: &Mask) -> Option<u64> {
        let _ = (tag, key, mask);
        Some(0)
    }

    /// Whether this is the present version. Asked with the flows' lock held, when a flow is about to be installed. So
    /// where the upper layer changes something and then walks over the flows, the flow is refused, or the walk meets it.
    fn is_current(&self, version: u64) -> bool {
        let _ = version;
        true
    }

    /// The flows that the verdicts on some misses asked for are in the table now, under these numbers. Changes between the
    /// verdicts and this call are not in the flows.
    fn installed(&self, flows: &[(FlowId, FlowTag)]) {
        let _ = flows;
    }

    /// These flows were evicted. Their statistics are final.
    fn evicted(&self, flows: Vec<RemovedFlow>) {
        drop(flows);
    }
}

/// A packet that no flow matches, with everything that the fast path has found out about it: nothing needs to be
/// parsed or hashed again.
pub struct Miss {
    /// The frame.
    pub packet: Packet,
    /// Its key, extracted. `in_port` is the datapath port.
    pub key: Box<Key>,
    /// Where its headers are.
    pub layers: Layers,
    /// Hash of the whole key.
    pub hash: u64,
    /// A flow that is gone by now has counted the packet, which has waited for others since. It is not to be counted
    /// again.
    pub counted: bool,
    /// What the slow path decided.
    pub verdict: Verdict,
}

/// The slow path's answer to a [`Miss`].
#[derive(Default)]
pub enum Verdict {
    /// Not answered: counted as [`DropReason::UpcallError`].
    #[default]
    Pending,
    /// Install a flow for all packets that equal this one under `mask`, and run its actions. The flow
    /// counts the packets after this one, as in OVS; this one is the slow path's to count.
    Install {
        /// What the translation depended on. The datapath adds in_port, recirc_id and packet_type. Flows with equal masks
        /// had better share one.
        mask: Arc<Mask>,
        /// What to do. The same holds for these.
        actions: Arc<[Action]>,
        /// Handed back with the flow in dumps and removals: the upper layer's record of it.
        tag: FlowTag,
    },
    /// Run these actions on this packet only.
    Execute(Vec<Action>),
    /// Drop this packet.
    Drop(DropReason),
}

/// The upper layer's own data about a flow.
pub type FlowTag = Arc<dyn Any + Send + Sync>;

/// Identity of an installed flow, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Counters of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FlowStats {
    /// Packets.
    pub packets: u64,
    /// Bytes of frame, without FCS.
    pub bytes: u64,
    /// Time of the last packet, to 2 ms; zero where there was none.
    pub used: Time,
    /// TCP flags seen, or-ed.
    pub tcp_flags: u16,
}

impl FlowStats {
    /// Adds what was counted elsewhere for the same flow.
    pub fn add(&mut self, other: &FlowStats) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.used = self.used.max(other.used);
        self.tcp_flags |= other.tcp_flags;
    }

    /// The counters as they are shown: the made-up header of Ethernet of packets without one is no part of them.
    #[must_use]
    pub(crate) fn without_made_up(self, is_bare: bool) -> FlowStats {
        let made_up = if is_bare { self.packets * MADE_UP as u64 } else { 0 };
        FlowStats { bytes: self.bytes.saturating_sub(made_up), ..self }
    }
}

impl Miss {
    /// Bytes of the packet, without a header of Ethernet that is made up.
    pub fn bytes(&self) -> u64 {
        let made_up = if self.key.common().packet_type.get() == 0 { 0 } else { MADE_UP };
        self.packet.len().saturating_sub(made_up) as u64
    }
}

/// What a walk over flows has found out about how they are used ([`Datapath::take_uses`](crate::Datapath::take_uses)).
#[derive(Default)]
pub struct FlowUses {
    /// Flows that it has met.
    pub flows: usize,
    /// What they have counted since the last walk, for each tag: neighbours with one tag share an element.
    pub used: Vec<(FlowTag, FlowStats)>,
    /// Flows that no packet has used for too long.
    pub idle: Vec<FlowId>,
}

/// An installed flow as dumps show it.
#[derive(Clone)]
pub struct FlowDump {
    /// Identity.
    pub id: FlowId,
    /// The key of the packet that it was made for. Zero in those blocks that `mask` does not match at all.
    pub key: Box<Key>,
    /// What is matched.
    pub mask: Arc<Mask>,
    /// What is done.
    pub actions: Arc<[Action]>,
    /// Counters, summed over the workers.
    pub stats: FlowStats,
    /// When it was installed.
    pub created: Time,
    /// The upper layer's record.
    pub tag: FlowTag,
}

/// The tag of a flow that an operator has added: key and mask as they were given, with values also where they are not matched, and without
/// what the datapath adds.
pub struct Given(pub Key, pub Mask);

/// A flow that is gone, with its final statistics.
#[derive(Clone)]
pub struct RemovedFlow {
    /// Its identity.
    pub id: FlowId,
    /// Final statistics: nothing is counted any more.
    pub stats: FlowStats,
    /// The part of the packets and bytes that no walk has taken.
    pub rest: FlowStats,
    /// The upper layer's record of it.
    pub tag: FlowTag,
}

/// A flow to be installed other than by a miss.
pub struct FlowSpec {
    /// Values.
    pub key: Box<Key>,
    /// What is matched.
    pub mask: Box<Mask>,
    /// What is done.
    pub actions: Vec<Action>,
    /// The upper layer's record.
    pub tag: FlowTag,
}

/// Which datapath port a key came in on.
pub fn in_port(key: &Key) -> PortNo {
    PortNo(key.common().in_port.get())
}
