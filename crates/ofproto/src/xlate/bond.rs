//! Bonds: which packets of members are taken, and by which member packets leave.
//!
//! | members | `active-backup`, `balance-slb` | `balance-tcp` |
//! |---|---|---|
//! | all are ports of the datapath | the datapath sends by a bucket of the bond's table | the datapath chooses the bucket, too |
//! | some are patch ports or tunnels | the translation chooses: what it looks at, NORMAL has matched | the datapath hashes the packet and recirculates it; the second pass looks at eight bits of the hash |
//!
//! So the flows of the first pass are as wide as without a bond, also in the last case; each has at most 256 in the second pass.

use std::sync::Arc;

use datapath::{Action as DpAction, Bucket, DropReason, HashAlgorithm, Punt, flow_hash};
use openflow::OfPort;
use packet::Field;
use packet::wire::ethertype;

use super::normal::is_gratuitous_arp;
use super::trace::Event;
use super::{Ctx, is_ip, mirror};
use crate::model::bond::{Admission, Bond, Leaves};
use crate::model::forwarding::PortState;
use crate::model::mac::{MacKey, is_multicast};
use crate::model::port::Device;
use crate::model::vlan::Tags;

/// Ethernet type of the slow protocols (IEEE 802.3 annex 57A), of which LACP is one.
const SLOW_PROTOCOLS: u16 = 0x8809;
/// Bonds that have one packet recirculated: half of its passes (decision 0014). Those behind them match what is hashed.
const MOST_RECIRCULATING: u8 = 3;

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
            Some(bond) => self.output_to_bond(bond, vid, None),
        }
    }

    /// Goes on with a packet that has come round with the hash by which a bond chooses its member.
    pub(super) fn output_to_chosen_member(&mut self, bond: &str) {
        let Some(bond) = self.bridge.bonds.get(bond) else {
            self.not_sent(DropReason::NoSuchPort);
            return self.event(|| Event::Warning("the bond does not exist any more"));
        };
        // Counts only if the bond has just become one of another mode.
        let vid = Tags::new(&self.flow.tags()).vid();
        self.output_to_bond(bond, vid, Some(self.packet.common().dp_hash.get()));
    }

    /// `hash`: what the packet has come round with for this bond.
    fn output_to_bond(&mut self, bond: &'a Bond, vid: u16, hash: Option<u32>) {
        self.record.depends_on_bond(&bond.way);
        let leaves = bond.leaves();
        let table_bucket = match leaves {
            Leaves::Nowhere => {
                self.not_sent(DropReason::PortDown);
                return self.event(|| Event::Warning("the bond has no partner that speaks LACP, skipping output"));
            }
            // All buckets are those of the active member.
            Leaves::Active => Bucket::Fixed(0),
            Leaves::BySource => {
                // NORMAL has looked at it anyway, a mirror has not.
                self.wc.set_exact(Field::DlSrc);
                Bucket::Fixed(bond.bucket_of_source(self.flow.common().dl_src, vid))
            }
            Leaves::ByConnection => Bucket::ByHash,
        };
        let by_bond = bond.action(table_bucket);
        let bucket = match (table_bucket, &by_bond) {
            (Bucket::Fixed(bucket), _) => bucket,
            (Bucket::ByHash, Some(_)) => 0,
            (Bucket::ByHash, None) => match hash {
                Some(hash) => {
                    let matched = &mut self.wc.0.common_mut().dp_hash;
                    *matched = (matched.get() | u32::from(u8::MAX)).into();
                    hash as u8
                }
                None if self.may_come_round(bond) => return self.come_round_to(bond),
                None => self.hash_of_connection(bond.settings().hash_basis) as u8,
            },
        };
        if by_bond.is_none() {
            self.record.depends_on_bond(&bond.version);
            self.detail(|| format!("bond {}: bucket {bucket}", bond.name));
        }
        // With a table, the way is the same by any member: it is a bucket that says which one.
        let member = bond.member_of(bucket).or_else(|| bond.first().filter(|_| by_bond.is_some()));
        let Some(member) = member.filter(|member| *member != OfPort::ANY) else {
            self.not_sent(DropReason::PortDown);
            return self.event(|| Event::Warning("no member of the bond is enabled, skipping output"));
        };
        if by_bond.is_none() {
            self.record.buckets.push((bond.counters.clone(), bucket));
        }
        self.by_bond = by_bond;
        self.output(member);
        // Where nothing was sent, nothing else is to be sent by the bond.
        self.by_bond = None;
    }

    /// Whether the datapath may recirculate a packet with its hash, so that the translation need not look at what is hashed. Not where the
    /// next pass could not do the same: a copy for a mirror that is cut short is, and that it was mirrored when it left by a member, only
    /// this pass knows. And not too often, because a packet comes round a few times at most.
    fn may_come_round(&self, bond: &Bond) -> bool {
        let bridge = self.bridge;
        let is_mirrored = |port: OfPort| {
            let state = bridge.ports.get(&port).filter(|state| !matches!(state.device, Device::Patch { .. }));
            state.is_some_and(|state| bridge.mirrors_to(state) & !self.mirrored != 0)
        };
        self.bonds < MOST_RECIRCULATING
            && self.mirror_max_len == mirror::WHOLE
            && !bond.members().any(|(port, _)| is_mirrored(port))
    }

    /// Has the datapath hash a copy of the packet and recirculate it, for the bond to choose a member by its hash.
    fn come_round_to(&mut self, bond: &'a Bond) {
        self.keep_copies();
        self.commit();
        let is_tunnel =
            |port: OfPort| self.bridge.ports.get(&port).is_some_and(|state| matches!(state.device, Device::Tunnel(_)));
        let has_tunnels = bond.members().any(|(port, _)| is_tunnel(port));
        let id = self.keep_output_to_bond(&bond.name, has_tunnels);
        let hash = DpAction::Hash { algorithm: HashAlgorithm::L4, basis: bond.settings().hash_basis };
        // What comes after that does not see the hash.
        self.out.push(DpAction::Clone(vec![hash, DpAction::Recirc(id)]));
        self.note_sent_later();
        self.usage.set_aside += 2;
        self.usage.copies = self.usage.copies.max(1);
        self.check_copies();
        self.detail(|| format!("bond {}: the member is chosen by the packet's hash after recirculation", bond.name));
        if let Some(sink) = &mut self.sink {
            let hash = flow_hash(HashAlgorithm::L4, &self.flow, bond.settings().hash_basis);
            sink.event(Event::Hashed { recirc_id: id, key: &self.flow, hash, bond: &bond.name });
        }
    }

    /// The hash that the datapath would give the packet, whose fields are matched for it.
    fn hash_of_connection(&mut self, basis: u32) -> u32 {
        let fields: &[Field] = match self.flow.common().dl_type.get() {
            ethertype::IPV4 => &[Field::NwProto, Field::NwSrc, Field::NwDst],
            ethertype::IPV6 => &[Field::NwProto, Field::Ipv6Src, Field::Ipv6Dst],
            ethertype::ARP | ethertype::RARP => &[Field::ArpOp, Field::DlSrc, Field::DlDst],
            _ => &[Field::DlSrc, Field::DlDst],
        };
        fields.iter().for_each(|field| self.wc.set_exact(*field));
        if is_ip(&self.flow) && self.flow.common().nw_frag == 0 {
            let matched = self.wc.0.common_mut();
            (matched.tp_src, matched.tp_dst) = (u16::MAX.into(), u16::MAX.into());
        }
        flow_hash(HashAlgorithm::L4, &self.flow, basis)
    }
}
