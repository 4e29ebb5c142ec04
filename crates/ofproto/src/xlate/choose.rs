//! Choosing by a hash of headers: `bundle`, `bundle_load` and `multipath` (ovs-actions(7)).

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use openflow::OfPort;
use openflow::action::{Bundle, BundleAlgorithm, HashFields, Multipath, MultipathAlgorithm};
use packet::flow::VLAN_PRESENT;
use packet::{Field, Key, Mask};

use super::{Ctx, is_ip};

impl Ctx<'_, '_> {
    /// `bundle` and `bundle_load`.
    pub(super) fn bundle(&mut self, bundle: &Bundle) {
        let chosen = match bundle.algorithm {
            BundleAlgorithm::ActiveBackup => bundle.members.iter().copied().find(|&port| self.is_live(port)),
            BundleAlgorithm::Hrw => {
                if bundle.members.len() > 1 {
                    match_hashed(&self.flow, bundle.fields, &mut self.wc);
                }
                let hash = hash_fields(&self.flow, bundle.fields, bundle.basis);
                let members = bundle.members.iter().enumerate();
                let live = members.filter(|(_, port)| self.is_live(**port));
                live.max_by_key(|(n, _)| second_hash(hash, *n as u64)).map(|(_, &port)| port)
            }
        };
        match (&bundle.dst, chosen) {
            (Some(dst), chosen) => {
                let number = chosen.and_then(OfPort::to_u16).unwrap_or(u16::MAX);
                self.write_part(dst, &u128::from(number).into());
                self.written(dst);
            }
            (None, Some(port)) => self.output_action(port, 0),
            (None, None) => {}
        }
    }

    /// `multipath`.
    pub(super) fn multipath(&mut self, multipath: &Multipath) {
        let hash = hash_fields(&self.flow, multipath.fields, multipath.basis);
        match_hashed(&self.flow, multipath.fields, &mut self.wc);
        let links = u64::from(multipath.max_link) + 1;
        if multipath.algorithm == MultipathAlgorithm::Hrw {
            // Each link is looked at.
            self.charge(links as usize / 16);
        }
        let link = choose_link(hash, multipath.algorithm, links, multipath.arg);
        let dst = &multipath.dst;
        self.write_part(dst, &u128::from(link).into());
        self.written(dst);
    }

    /// Whether what is sent to a port can arrive. Reserved ports are no devices.
    pub(super) fn is_live(&mut self, port: OfPort) -> bool {
        match self.port(port) {
            Some(state) => state.is_live(),
            None => port.is_reserved() && !matches!(port, OfPort::CONTROLLER | OfPort::LOCAL),
        }
    }
}

/// One of so many links, by a hash.
pub(crate) fn choose_link(hash: u64, algorithm: MultipathAlgorithm, links: u64, arg: u32) -> u64 {
    match algorithm {
        MultipathAlgorithm::ModuloN => hash % links,
        // The upper half as a fraction of all values.
        MultipathAlgorithm::HashThreshold => ((hash >> 32) * links) >> 32,
        MultipathAlgorithm::Hrw => (0..links).max_by_key(|&link| second_hash(hash, link)).unwrap_or(0),
        MultipathAlgorithm::IterHash => {
            let arg = u64::from(arg);
            let modulo = if arg < links || arg / 2 > links { links.next_power_of_two() } else { arg };
            // Half of the attempts succeed, at least.
            (0..64).map(|n| second_hash(hash, n) % modulo).find(|&link| link < links).unwrap_or(0)
        }
    }
}

/// The hash of one of several candidates.
pub(crate) fn second_hash(hash: u64, candidate: u64) -> u64 {
    let mut hasher = FixedState::with_seed(hash).build_hasher();
    hasher.write_u64(candidate);
    hasher.finish()
}

/// Hash of the headers. Symmetric ones are equal in both directions of a connection.
pub(crate) fn hash_fields(key: &Key, fields: HashFields, basis: u16) -> u64 {
    let mut hasher = FixedState::with_seed(basis.into()).build_hasher();
    for (a, b) in hashed(key, fields) {
        let value = match b {
            Some(b) => key.get(a) ^ key.get(b),
            None => key.get(a),
        };
        hasher.write_u128(value);
    }
    if fields == HashFields::SymmetricL4 {
        let tags = key.common().vlan.iter().filter(|tag| tag.tci.get() & VLAN_PRESENT != 0);
        hasher.write_u16(tags.fold(0, |sum, tag| sum ^ tag.tci.get() & 0xfff));
    }
    hasher.finish()
}

/// Has `wc` match what is hashed.
pub(super) fn match_hashed(key: &Key, fields: HashFields, wc: &mut Mask) {
    for (a, b) in hashed(key, fields) {
        wc.set_exact(a);
        b.into_iter().for_each(|b| wc.set_exact(b));
    }
    if is_ip(key) && symmetric_ports(fields) {
        wc.set_exact(Field::NwProto);
    }
    if fields == HashFields::SymmetricL4 {
        for bits in &mut wc.0.common_mut().vlan {
            bits.tci = (bits.tci.get() | VLAN_PRESENT | 0xfff).into();
        }
    }
}

/// Whether ports are hashed, of packets of some protocol.
fn symmetric_ports(fields: HashFields) -> bool {
    matches!(fields, HashFields::SymmetricL4 | HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp)
}

/// The fields that are hashed: alone, or in pairs whose order does not count.
fn hashed(key: &Key, fields: HashFields) -> Vec<(Field, Option<Field>)> {
    let (dl_type, proto) = (key.common().dl_type.get(), key.common().nw_proto);
    let (src, dst) = match dl_type {
        0x0800 => (Some(Field::NwSrc), Some(Field::NwDst)),
        // Of a packet without a whole header they count as zero, to the flow that is made for it as well.
        0x86dd => (Some(Field::Ipv6Src), Some(Field::Ipv6Dst)),
        _ => (None, None),
    };
    let mut out = Vec::new();
    match fields {
        HashFields::EthSrc => return vec![(Field::DlSrc, None)],
        HashFields::NwSrc => return src.map(|src| (src, None)).into_iter().collect(),
        HashFields::NwDst => return dst.map(|dst| (dst, None)).into_iter().collect(),
        HashFields::SymmetricL4 => out.push((Field::DlSrc, Some(Field::DlDst))),
        HashFields::SymmetricL3L4 | HashFields::SymmetricL3L4Udp | HashFields::SymmetricL3 => {}
    }
    out.extend(src.map(|src| (src, dst)));
    let with_ports = match proto {
        6 | 132 => symmetric_ports(fields),
        17 => fields == HashFields::SymmetricL3L4Udp,
        _ => false,
    };
    if src.is_some() && symmetric_ports(fields) {
        out.push((Field::NwProto, None));
        out.extend(with_ports.then_some((Field::TcpSrc, Some(Field::TcpDst))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_is_chosen_and_none_beyond() {
        use MultipathAlgorithm::*;
        for algorithm in [ModuloN, HashThreshold, Hrw, IterHash] {
            for links in [1u64, 3, 8, 65536] {
                let mut seen = std::collections::BTreeSet::new();
                for n in 0..200 {
                    let link = choose_link(second_hash(7, n), algorithm, links.min(100), 0);
                    assert!(link < links.min(100));
                    seen.insert(link);
                }
                assert!(seen.len() as u64 == links || links > 8, "{algorithm:?} {links} {seen:?}");
            }
        }
    }

    #[test]
    fn a_symmetric_hash_has_no_direction() {
        let key = |src: u128, dst: u128, a: u128, b: u128| {
            let mut key = Key::new();
            for (field, value) in [
                (Field::DlType, 0x0800),
                (Field::NwProto, 6),
                (Field::NwSrc, src),
                (Field::NwDst, dst),
                (Field::TcpSrc, a),
                (Field::TcpDst, b),
            ] {
                key.set(field, value);
            }
            key
        };
        for fields in [HashFields::SymmetricL4, HashFields::SymmetricL3L4, HashFields::SymmetricL3] {
            let hash = |key| hash_fields(&key, fields, 5);
            assert_eq!(hash(key(1, 2, 80, 90)), hash(key(2, 1, 90, 80)));
            assert_ne!(hash(key(1, 2, 80, 90)), hash(key(1, 4, 80, 90)));
        }
        assert_ne!(
            hash_fields(&key(1, 2, 0, 0), HashFields::NwSrc, 0),
            hash_fields(&key(2, 1, 0, 0), HashFields::NwSrc, 0)
        );
    }
}
