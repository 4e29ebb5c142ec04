//! Spanning trees: what becomes of frames whose port does not forward, and which ports are not sent to.

use datapath::{DropReason, Punt};
use packet::Field;
use packet::flow::{DL_TYPE_NONE, frag};
use packet::wire::{ethertype, ip_proto};
use protocols::bfd::control::PORT as BFD_PORT;
use protocols::cfm::ccm::ETHERTYPE as CFM;
use protocols::spanning_tree::{Protocol, State};

use super::Ctx;
use super::trace::Event;
use crate::model::forwarding::PortState;

/// The group address of bridges (IEEE 802.1D-2004 Table 7-10).
pub(crate) const BRIDGES: ports::Mac = [0x01, 0x80, 0xc2, 0, 0, 0];

impl Ctx<'_, '_> {
    /// Whether a frame is a BPDU and the bridge has a spanning tree, in which case it ends here: it goes to the tree, or nowhere if its port
    /// takes no part.
    pub(super) fn is_taken_by_spanning_tree(&mut self, port: &PortState) -> bool {
        // The type is matched by all flows: others need not match the address.
        if self.protocol() == Protocol::Off || self.flow.common().dl_type.get() != DL_TYPE_NONE {
            return false;
        }
        self.wc.set_exact(Field::DlDst);
        if self.flow.common().dl_dst != BRIDGES {
            return false;
        }
        if port.spanning_tree.state.is_none() {
            self.not_sent(DropReason::ReservedAddress);
            self.detail(|| "the port takes no part in the bridge's spanning tree, dropping BPDU".into());
            return true;
        }
        self.take(
            Punt::Bpdu { bridge: self.bridge.id.0, port: port.port.0 },
            "the spanning tree of the bridge takes the frame",
        )
    }

    /// Has a packet that came in by a port go through the tables, as far as its state allows: not at all where nothing is learnt, and
    /// only to learn from it where the port does not forward yet.
    pub(super) fn as_spanning_tree_allows(&mut self, port: Option<&PortState>, pipeline: impl FnOnce(&mut Self)) {
        match port.and_then(|port| port.spanning_tree.state) {
            Some(state) if !state.learns() => self.forwarding_is_disabled(state),
            Some(state) if !state.forwards() => {
                self.only_learning(pipeline);
                self.forwarding_is_disabled(state);
            }
            _ => pipeline(self),
        }
    }

    fn forwarding_is_disabled(&mut self, state: State) {
        let protocol = state.protocol().name();
        self.detail(|| format!("{protocol} does not let the input port forward, dropping"));
        self.not_sent(DropReason::SpanningTree);
    }

    /// Goes through the tables, and takes back all but what was learnt.
    fn only_learning(&mut self, pipeline: impl FnOnce(&mut Self)) {
        let (sent, patches, mirrors) = (self.out.len(), self.record.patches.len(), self.record.mirrors.len());
        let (tunnels, destinations) = (self.record.tunnels.len(), self.destinations.clone());
        let buckets = self.record.buckets.len();
        let (base, pending) = (Box::new(self.base.clone()), self.pending.clone());
        let (undoable, unsent, mirrored) = (self.undoable, self.unsent, self.mirrored);
        pipeline(self);
        self.out.truncate(sent);
        self.record.patches.truncate(patches);
        self.record.mirrors.truncate(mirrors);
        self.record.tunnels.truncate(tunnels);
        self.record.buckets.truncate(buckets);
        (self.base, self.pending, self.destinations) = (*base, pending, destinations);
        (self.undoable, self.unsent, self.mirrored) = (undoable, unsent, mirrored);
        (self.freezing, self.pausing, self.hashing) = (false, None, None);
        self.frozen_steps.clear();
        self.action_set.clear();
    }

    /// Whether a packet may leave by a port, as far as the spanning tree is concerned. BPDUs of others may leave by nearly all, and
    /// what checks links by all.
    pub(super) fn spanning_tree_lets_out(&mut self, to: &PortState) -> bool {
        let Some(state) = to.spanning_tree.state.filter(|state| !state.forwards()) else { return true };
        let protocol = state.protocol();
        let common = self.base.common();
        if common.dl_type.get() == DL_TYPE_NONE && common.dl_dst == BRIDGES {
            self.wc.set_exact(Field::DlDst);
            return state.passes_bpdus() || {
                self.event(|| Event::Warning("STP not in listening state, skipping bpdu output"));
                false
            };
        }
        if self.is_link_check(to) {
            return true;
        }
        self.event(|| {
            Event::Warning(match protocol {
                Protocol::Rstp => "RSTP not in forwarding state, skipping output",
                _ => "STP not in forwarding state, skipping output",
            })
        });
        false
    }

    /// Whether a packet is of a protocol that checks the link behind a port.
    fn is_link_check(&mut self, to: &PortState) -> bool {
        let common = self.flow.common();
        if to.path_checks.cfm.is_some() && common.dl_type.get() == CFM {
            return true;
        }
        if to.path_checks.bfd.is_none() || common.dl_type.get() != ethertype::IPV4 {
            return false;
        }
        let is_udp = common.nw_proto == ip_proto::UDP && common.nw_frag & frag::LATER == 0;
        self.wc.set_exact(Field::NwProto);
        is_udp && self.is_tp_dst(BFD_PORT)
    }

    /// Whether the packet is for the group address of bridges. Matches the address, or of another one as much of its beginning as tells.
    pub(super) fn is_for_bridges(&mut self) -> bool {
        let number = |mac: ports::Mac| mac.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let different = number(self.flow.common().dl_dst) ^ number(BRIDGES);
        self.wc.add(Field::DlDst, u128::MAX << different.checked_ilog2().unwrap_or(0) & Field::DlDst.info().max());
        different == 0
    }

    /// Whether the packet is a BPDU, and the bridge has a spanning tree that it ends at.
    pub(super) fn is_for_spanning_tree(&self) -> bool {
        let common = self.flow.common();
        self.protocol() != Protocol::Off && common.dl_type.get() == DL_TYPE_NONE && common.dl_dst == BRIDGES
    }

    fn protocol(&self) -> Protocol {
        self.bridge.config.spanning_tree.protocol
    }
}
