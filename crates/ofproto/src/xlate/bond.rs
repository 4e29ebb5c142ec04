//! Bonds: which packets of members are taken, and by which member packets leave.

use std::sync::Arc;

use datapath::{Action as DpAction, Bucket, DropReason, Punt};
use openflow::OfPort;
use openflow::action::HashFields;

use super::Ctx;
use super::choose::{hash_fields, match_hashed};
use super::normal::is_gratuitous_arp;
use super::trace::Event;
use crate::model::bond::{Admission, Bond, Leaves};
use crate::model::forwarding::PortState;
use crate::model::mac::{MacKey, is_multicast};

/// Ethernet type of the slow protocols (IEEE 802.3 annex 57A), of which LACP is one.
const SLOW_PROTOCOLS: u16 = 0x8809;

impl<'a> Ctx<'a, '_> {
    /// Has a frame of a slow protocol handled by the switch itself, where it came in by a port that speaks LACP.
    pub(super) fn is_taken_by_lacp(&mut self, port: &PortState) -> bool {
        // The type is matched by all flows.
        if self.flow.common().dl_type.get() != SLOW_PROTOCOLS || !self.bridge.speaks_lacp(port) {
            return false;
        }
        let punt = Punt::Lacp { bridge: self.bridge.id.0, port: port.port.0 };
        self.out.push(DpAction::Punt(Arc::new(punt)));
        self.detail(|| "LACP is spoken by this port, which takes the frame".into());
        true
    }

    /// Whether NORMAL takes a packet from this source that came in by a port: where that is a member of a bond, it may be a copy of another
    /// member's, or one that the bond has sent itself.
    pub(super) fn is_admitted(&mut self, port: &PortState, src: MacKey) -> bool {
        let bridge = self.bridge;
        let Some(bond) = bridge.bond_of(port) else { return true };
        self.record.depends_on_bond(&bond.version);
        let to_many = is_multicast(self.flow.common().dl_dst);
        let refusal = match bond.admits(port.port, to_many) {
            Admission::Accept => return true,
            Admission::Drop => "bonding refused admissibility, dropping",
            Admission::DropIfMoved if !self.has_moved(bond, port, src) => return true,
            Admission::DropIfMoved => "SLB bond thinks this packet looped back, dropping",
        };
        self.not_sent(DropReason::BondAdmission);
        self.detail(|| refusal.into());
        false
    }

    /// Whether a source address is known to be somewhere else than at a bond, unless the packet announces that it has moved here.
    fn has_moved(&mut self, bond: &Bond, port: &PortState, src: MacKey) -> bool {
        let bridge = self.bridge;
        let known = match self.learning {
            Some(batch) => batch.lookup(bridge, src),
            None => bridge.macs.read().lookup(src),
        };
        // A change of where the address is has the flow looked at again.
        self.record.macs.add_source(bridge.id, src, bridge.logical(port.port));
        let elsewhere = known.is_some_and(|known| bond.first() != Some(bridge.logical(known)));
        if !elsewhere || !is_gratuitous_arp(&self.flow, &mut self.wc) {
            return elsewhere;
        }
        let locked = bridge.macs.read().is_locked(src, self.now);
        // The next announcement is looked at for itself: the time for which the first one counts is short.
        self.record.volatile |= locked;
        locked
    }

    /// Sends to a port, or to the bond that it stands for. `vid` is the VLAN that the packet is in.
    pub(super) fn output_logical(&mut self, port: &PortState, vid: u16) {
        match self.bridge.bond_of(port) {
            None => self.output(port.port),
            Some(bond) => self.output_to_bond(bond, vid),
        }
    }

    fn output_to_bond(&mut self, bond: &'a Bond, vid: u16) {
        self.record.depends_on_bond(&bond.way);
        let leaves = bond.leaves();
        let by_source = bond.bucket_of_source(self.flow.common().dl_src, vid);
        let table_bucket = match leaves {
            Leaves::Nowhere => {
                self.not_sent(DropReason::PortDown);
                return self.event(|| Event::Warning("the bond has no partner that speaks LACP, skipping output"));
            }
            // All buckets are those of the active member.
            Leaves::Active => Bucket::Fixed(0),
            Leaves::BySource => Bucket::Fixed(by_source),
            Leaves::ByConnection => Bucket::ByHash,
        };
        let by_bond = bond.action(table_bucket);
        let bucket = match (leaves, &by_bond) {
            (Leaves::BySource, _) => by_source,
            (Leaves::ByConnection, None) => self.bucket_of_connection(bond),
            _ => 0,
        };
        if by_bond.is_none() {
            self.record.depends_on_bond(&bond.version);
        }
        // With a table, the way is the same by any member: it is a bucket that says which one.
        let member = bond.member_of(bucket).or_else(|| bond.first().filter(|_| by_bond.is_some()));
        let Some(member) = member.filter(|member| *member != OfPort::ANY) else {
            self.not_sent(DropReason::PortDown);
            return self.event(|| Event::Warning("no member of the bond is enabled, skipping output"));
        };
        self.by_bond = by_bond;
        self.output(member);
        // Where nothing was sent, nothing else is to be sent by the bond.
        self.by_bond = None;
    }

    /// The bucket of the packet's connection, by what is matched for it.
    fn bucket_of_connection(&mut self, bond: &Bond) -> u8 {
        let fields = HashFields::SymmetricL3L4Udp;
        match_hashed(&self.flow, fields, &mut self.wc);
        hash_fields(&self.flow, fields, bond.settings().hash_basis as u16) as u8
    }
}
