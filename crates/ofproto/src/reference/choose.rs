//! Choices by a hash, made anew for each packet: select groups, `bundle`, `multipath`.
//!
//! The hashes, and the places that weights come to, are the real switch's, which have tests of their own: so both choose alike.
//! What is hashed, when, and among which candidates is the reference's.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};

use datapath::HashAlgorithm;
use foldhash::quality::FixedState;
use openflow::action::{Bundle, BundleAlgorithm, HashFields, Multipath};
use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::{GroupId, OfPort};

use super::{PacketInFlight, Pass, Reference};
use crate::model::selector::Selector;
use crate::xlate::choose::{choose_link, hash_fields, second_hash};
use crate::xlate::group::score;

impl Reference {
    /// The buckets that get a copy of the packet.
    pub(super) fn buckets(&self, in_flight: &PacketInFlight, id: GroupId) -> Vec<Bucket> {
        let Some(group) = self.groups.get(&id) else { return Vec::new() };
        let live = |bucket: &&Bucket| self.is_live_bucket(group, bucket, &mut BTreeSet::new());
        let one = match group.kind {
            GroupType::All | GroupType::Indirect => return group.buckets.clone(),
            GroupType::FastFailover => group.buckets.iter().find(live),
            GroupType::Select => match Selector::of(id, group) {
                Selector::DpHash(places) => {
                    places.buckets(in_flight.dp_hash).map(|n| &group.buckets[n]).find(|bucket| live(bucket))
                }
                Selector::Fields => highest(self.hash_of_fields(in_flight, group), group.buckets.iter().filter(live)),
                Selector::Default => {
                    let hash = hash_fields(&in_flight.key(), HashFields::SymmetricL4, 0);
                    highest(hash, group.buckets.iter().filter(live))
                }
            },
        };
        one.into_iter().cloned().collect()
    }

    /// Whether what a bucket watches is live, if it watches anything.
    fn is_live_bucket(&self, group: &GroupSpec, bucket: &Bucket, seen: &mut BTreeSet<GroupId>) -> bool {
        let (port, id) = (bucket.watch_port, bucket.watch_group);
        let watched = || self.groups.get(&id).map(|group| (group, &group.buckets));
        let mut any = |(group, buckets): (&GroupSpec, &Vec<Bucket>)| {
            seen.insert(id) && buckets.iter().any(|bucket| self.is_live_bucket(group, bucket, seen))
        };
        (group.kind != GroupType::Select || bucket.weight > 0)
            && (port == OfPort::ANY && id == GroupId::ANY
                || port != OfPort::ANY && self.is_live(port)
                || id != GroupId::ANY && watched().is_some_and(&mut any))
    }

    /// Whether what is sent there can arrive.
    fn is_live(&self, port: OfPort) -> bool {
        self.ports.contains_key(&port) || matches!(port, OfPort::NORMAL | OfPort::FLOOD | OfPort::ALL | OfPort::IN_PORT)
    }

    fn hash_of_fields(&self, in_flight: &PacketInFlight, group: &GroupSpec) -> u64 {
        let key = in_flight.key();
        let mut hasher = FixedState::with_seed(group.selection.param).build_hasher();
        let has = |field: packet::Field| field.info().prereq.satisfied(&key);
        for &(field, mask) in group.selection.fields.iter().filter(|(field, _)| has(*field)) {
            hasher.write_u128(key.get(field) & mask);
        }
        hasher.finish()
    }

    /// What the datapath has to hash before this group can choose.
    pub(super) fn dp_hash_of(&self, id: GroupId) -> Option<(HashAlgorithm, u32)> {
        match Selector::of(id, self.groups.get(&id)?) {
            Selector::DpHash(places) => Some((places.algorithm, places.basis)),
            Selector::Fields | Selector::Default => None,
        }
    }

    /// The datapath's hash of the packet, as its bytes are.
    pub(super) fn dp_hash(&self, in_flight: &PacketInFlight, (algorithm, basis): (HashAlgorithm, u32)) -> u32 {
        datapath::flow_hash(algorithm, &in_flight.frame.come_again().key().0, basis)
    }

    pub(super) fn bundle(&mut self, in_flight: &mut PacketInFlight, bundle: &Bundle, pass: &mut Pass) {
        let mut live = bundle.members.iter().enumerate().filter(|(_, port)| self.is_live(**port));
        let chosen = match bundle.algorithm {
            BundleAlgorithm::ActiveBackup => live.next(),
            BundleAlgorithm::Hrw => {
                let hash = hash_fields(&in_flight.key(), bundle.fields, bundle.basis);
                live.max_by_key(|(n, _)| second_hash(hash, *n as u64))
            }
        };
        match (&bundle.dst, chosen) {
            (Some(dst), chosen) => {
                let number = chosen.and_then(|(_, port)| port.to_u16()).unwrap_or(0xffff);
                in_flight.write(dst, number.into());
            }
            (None, Some((_, &port))) => self.output(in_flight, port, &mut pass.sent),
            (None, None) => {}
        }
    }

    pub(super) fn multipath(&self, in_flight: &mut PacketInFlight, multipath: &Multipath) {
        let hash = hash_fields(&in_flight.key(), multipath.fields, multipath.basis);
        let links = u64::from(multipath.max_link) + 1;
        let link = choose_link(hash, multipath.algorithm, links, multipath.arg);
        in_flight.write(&multipath.dst, link.into());
    }
}

/// The bucket with the highest score.
fn highest<'a>(hash: u64, buckets: impl Iterator<Item = &'a Bucket>) -> Option<&'a Bucket> {
    buckets.max_by(|a, b| score(hash, a).total_cmp(&score(hash, b)))
}
