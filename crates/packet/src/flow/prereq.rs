//! What must be matched before a field can be: the meaning of [`Prereq`] (ovs-fields(7)).
//!
//! The same prerequisite is asked for in three ways: of a packet's key ([`Prereq::satisfied`]), of a match
//! ([`Prereq::check`]), and by a translation, which has to note which fields told it that the prerequisite
//! holds or not ([`Prereq::required_mask`]).

use super::field::{Field, Prereq};
use super::key::{Key, Mask};
use super::{VLAN_PRESENT, frag};

/// Fields and values that are matched together.
pub type Pairs = &'static [(Field, u128)];

/// Bits of `ct_state` (ovs-fields(7)).
mod ct {
    pub const NEW: u128 = 1;
    pub const EST: u128 = 1 << 1;
    pub const REL: u128 = 1 << 2;
    pub const RPL: u128 = 1 << 3;
    pub const INV: u128 = 1 << 4;
    pub const TRK: u128 = 1 << 5;
    pub const SNAT: u128 = 1 << 6;
    pub const DNAT: u128 = 1 << 7;
}

/// One of these is set for every packet with a valid connection.
const CT_VALID: u128 = ct::NEW | ct::EST | ct::RPL;

use Field::{DlType, Icmpv6Type, NwProto};

impl Prereq {
    /// The alternatives, each a list of exact values to be matched; one of the lists has to be matched
    /// whole. `&[&[]]` where nothing has to be matched by value: [`Prereq::None`], and those that
    /// [`check`](Prereq::check) decides by bits.
    pub const fn implied(self) -> &'static [Pairs] {
        match self {
            Prereq::None | Prereq::Ethernet | Prereq::VlanVid | Prereq::Ct | Prereq::CtPorts => &[&[]],
            Prereq::Mpls => &[&[(DlType, 0x8847)], &[(DlType, 0x8848)]],
            Prereq::Ipv4 | Prereq::CtIpv4 => &[&[(DlType, 0x0800)]],
            Prereq::Ipv6 | Prereq::CtIpv6 => &[&[(DlType, 0x86dd)]],
            Prereq::Ip => &[&[(DlType, 0x0800)], &[(DlType, 0x86dd)]],
            Prereq::Arp => &[&[(DlType, 0x0806)], &[(DlType, 0x8035)]],
            Prereq::Tcp => &[&[(DlType, 0x0800), (NwProto, 6)], &[(DlType, 0x86dd), (NwProto, 6)]],
            Prereq::Udp => &[&[(DlType, 0x0800), (NwProto, 17)], &[(DlType, 0x86dd), (NwProto, 17)]],
            Prereq::Sctp => &[&[(DlType, 0x0800), (NwProto, 132)], &[(DlType, 0x86dd), (NwProto, 132)]],
            Prereq::Icmp => &[&[(DlType, 0x0800), (NwProto, 1)]],
            Prereq::Icmpv6 => &[&[(DlType, 0x86dd), (NwProto, 58)]],
            Prereq::Nd => &[SOLICIT, ADVERT],
            Prereq::NdSolicit => &[SOLICIT],
            Prereq::NdAdvert => &[ADVERT],
            Prereq::Nsh => &[&[(DlType, 0x894f)]],
            Prereq::Pbb => &[&[(DlType, 0x88e7)]],
        }
    }
}

const SOLICIT: Pairs = &[(DlType, 0x86dd), (NwProto, 58), (Icmpv6Type, 135)];
const ADVERT: Pairs = &[(DlType, 0x86dd), (NwProto, 58), (Icmpv6Type, 136)];

impl Prereq {
    /// Whether a packet has what this asks for. `key` is that of a packet: nothing is wildcarded.
    pub fn satisfied(self, key: &Key) -> bool {
        match self {
            Prereq::Ethernet => is_ethernet(key),
            Prereq::VlanVid => is_ethernet(key) && has_tag(key),
            _ => {
                self.implied().iter().any(|pairs| pairs.iter().all(|&(field, value)| key.get(field) == value))
                    && !(self.is_l4() && is_later_fragment(key))
                    && !(self.is_nd() && key.get(Field::Icmpv6Code) != 0)
                    && !(self.is_ct() && key.get(Field::CtState) & CT_VALID == 0)
            }
        }
    }

    /// Whether a match on `key` under `mask` lets only packets pass that have what this asks for.
    ///
    /// As in Open vSwitch, what a match leaves open is taken in its favour where few packets differ: it
    /// need not exclude later fragments, nor say icmp_code=0 for neighbour discovery, nor give a
    /// packet_type; but it must not ask for the contrary.
    pub fn check(self, key: &Key, mask: &Mask) -> bool {
        let key = &key.masked(mask);
        match self {
            Prereq::Ethernet => is_ethernet(key),
            Prereq::VlanVid => is_ethernet(key) && has_tag(key),
            _ => {
                self.implied().iter().any(|pairs| pairs.iter().all(|&(field, value)| matched(key, mask, field, value)))
                    && !(self.is_l4() && is_later_fragment(key))
                    && !(self.is_nd() && key.get(Field::Icmpv6Code) != 0)
                    && (!self.is_ct() || ct_valid(key, mask))
            }
        }
    }

    /// Adds to `mask` the bits that decide for the packet `key` whether [`satisfied`](Self::satisfied) is
    /// true, stopping at the first that says no.
    pub fn required_mask(self, key: &Key, mask: &mut Mask) {
        if self == Prereq::None {
            return;
        }
        mask.set_exact(Field::PacketType);
        if self == Prereq::Ethernet || self == Prereq::VlanVid {
            if self == Prereq::VlanVid && is_ethernet(key) {
                mask.add(Field::VlanTci, VLAN_PRESENT.into());
            }
            return;
        }
        if self.is_ct() {
            mask.add(Field::CtState, CT_VALID);
        }
        // The alternatives ask for the same fields, in the same order.
        let (alternatives, mut matched) = (self.implied(), 0);
        let agrees = |pairs: &Pairs, depth: usize| pairs[..depth].iter().all(|&(field, value)| key.get(field) == value);
        while let Some(pairs) = alternatives.iter().find(|pairs| agrees(pairs, matched)) {
            let Some(&(field, _)) = pairs.get(matched) else { break };
            mask.set_exact(field);
            matched += 1;
        }
        if !alternatives.iter().any(|pairs| agrees(pairs, matched)) {
            return;
        }
        if self.is_l4() {
            mask.add(Field::NwFrag, frag::LATER.into());
        }
        if self.is_nd() {
            mask.set_exact(Field::Icmpv6Code);
        }
    }

    fn is_nd(self) -> bool {
        matches!(self, Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert)
    }

    fn is_l4(self) -> bool {
        self.is_nd() || matches!(self, Prereq::Tcp | Prereq::Udp | Prereq::Sctp | Prereq::Icmp | Prereq::Icmpv6)
    }

    fn is_ct(self) -> bool {
        matches!(self, Prereq::Ct | Prereq::CtIpv4 | Prereq::CtIpv6 | Prereq::CtPorts)
    }
}

/// Whether a match on `key` under `mask` meets the prerequisites of `field`.
pub fn check(key: &Key, mask: &Mask, field: Field) -> bool {
    field.info().prereq.check(key, mask)
}

fn is_ethernet(key: &Key) -> bool {
    key.common().packet_type.get() == 0
}

fn has_tag(key: &Key) -> bool {
    key.common().vlan[0].tci.get() & VLAN_PRESENT != 0
}

fn is_later_fragment(key: &Key) -> bool {
    key.common().nw_frag & frag::LATER != 0
}

/// Whether the match says `field` = `value`. A packet_type in the Ethernet type namespace says dl_type too.
fn matched(key: &Key, mask: &Mask, field: Field, value: u128) -> bool {
    let packet_type = u128::from(key.common().packet_type.get());
    if field == DlType && packet_type >> 16 == 1 {
        return packet_type & 0xffff == value;
    }
    mask.is_exact(field) && key.get(field) == value
}

/// Whether a match asks for a state that only a packet with a valid connection can have, or for tracked and not
/// invalid, as the connection's tuple demands.
pub fn ct_valid(key: &Key, mask: &Mask) -> bool {
    let (state, bits) = (key.get(Field::CtState), mask.get(Field::CtState));
    state & (CT_VALID | ct::REL | ct::SNAT | ct::DNAT) != 0
        || state & ct::TRK != 0 && bits & ct::INV != 0 && state & ct::INV == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::field::FIELDS;
    use super::*;

    fn with(fields: &[(Field, u128)]) -> (Key, Mask) {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        for &(field, value) in fields {
            key.set(field, value);
            mask.set_exact(field);
        }
        (key, mask)
    }

    #[test]
    fn every_implied_alternative_suffices() {
        for info in FIELDS.iter().filter(|i| !i.prereq.is_ct() && i.prereq != Prereq::VlanVid) {
            for pairs in info.prereq.implied() {
                let (key, mask) = with(pairs);
                assert!(info.prereq.satisfied(&key) && check(&key, &mask, info.field), "{}", info.name);
                // With any of its values another, it does not.
                for &(field, value) in *pairs {
                    let mut other = key.clone();
                    other.set(field, value ^ 0x40);
                    assert!(!info.prereq.satisfied(&other) && !check(&other, &mask, info.field), "{}", info.name);
                    let mut open = mask.clone();
                    open.clear(field);
                    assert!(!check(&key, &open, info.field), "{} without {field:?}", info.name);
                }
            }
        }
    }

    #[test]
    fn fragments_tags_and_packet_types() {
        let tcp = [(DlType, 0x0800), (NwProto, 6)];
        for (bits, first) in [(0, true), (1, true), (3, false)] {
            let (mut key, mut mask) = with(&tcp);
            key.set(Field::NwFrag, bits);
            assert_eq!(Prereq::Tcp.satisfied(&key), first);
            assert!(Prereq::Tcp.check(&key, &mask));
            mask.set_exact(Field::NwFrag);
            assert_eq!(Prereq::Tcp.check(&key, &mask), first);
        }
        let (key, mask) = with(&[(Field::VlanVid, 0x1005)]);
        assert!(Prereq::VlanVid.satisfied(&key) && Prereq::VlanVid.check(&key, &mask));
        let (key, mask) = with(&[(Field::VlanVid, 5)]);
        assert!(!Prereq::VlanVid.satisfied(&key) && !Prereq::VlanVid.check(&key, &mask));
        let (key, mask) = with(&[(Field::PacketType, 0x1_0800)]);
        assert!(!Prereq::Ethernet.check(&key, &mask) && Prereq::Ipv4.check(&key, &mask));
        assert!(!Prereq::Ipv6.check(&key, &mask));
    }

    #[test]
    fn connections_have_to_be_valid() {
        let check = |state: u128, bits: u128| {
            let (mut key, mut mask) = with(&[(DlType, 0x0800)]);
            key.set(Field::CtState, state);
            mask.add(Field::CtState, bits);
            (Prereq::CtIpv4.satisfied(&key), Prereq::CtIpv4.check(&key, &mask), Prereq::CtIpv6.check(&key, &mask))
        };
        assert_eq!(check(ct::TRK | ct::EST, ct::TRK | ct::EST), (true, true, false));
        assert_eq!(check(ct::TRK, ct::TRK | ct::INV), (false, true, false));
        assert_eq!(check(ct::TRK, ct::TRK), (false, false, false));
        assert_eq!(check(0, ct::NEW), (false, false, false));
    }

    #[test]
    fn required_mask_stops_at_the_first_no() {
        let required = |fields: &[(Field, u128)], prereq: Prereq| {
            let (key, mut mask) = (with(fields).0, Mask::wildcard());
            prereq.required_mask(&key, &mut mask);
            [DlType, NwProto, Field::NwFrag, Field::Icmpv6Code].map(|field| mask.get(field))
        };
        assert_eq!(required(&[(DlType, 0x0800), (NwProto, 6)], Prereq::Tcp), [0xffff, 0xff, 2, 0]);
        assert_eq!(required(&[(DlType, 0x0800), (NwProto, 17)], Prereq::Tcp), [0xffff, 0xff, 0, 0]);
        assert_eq!(required(&[(DlType, 0x0806)], Prereq::Tcp), [0xffff, 0, 0, 0]);
        assert_eq!(required(SOLICIT, Prereq::Nd), [0xffff, 0xff, 2, 0xff]);
    }

    proptest! {
        /// Two packets that are equal in the bits of `required_mask` either both have what is asked for or
        /// both lack it.
        #[test]
        fn required_mask_decides(
            field in 0..FIELDS.len(),
            fields in proptest::collection::vec((select(vec![
                (DlType, 0x0800), (DlType, 0x86dd), (DlType, 0x0806), (DlType, 0x8847), (DlType, 0x894f),
                (NwProto, 6), (NwProto, 17), (NwProto, 58), (NwProto, 1), (Field::NwFrag, 1), (Field::NwFrag, 3),
                (Icmpv6Type, 135), (Icmpv6Type, 136), (Field::Icmpv6Code, 1), (Field::VlanTci, 0x1000),
                (Field::PacketType, 0x1_0800), (Field::CtState, 0x21), (Field::CtState, 0x20),
            ]), any::<bool>()), 0..9),
        ) {
            let prereq = FIELDS[field].prereq;
            let (mut key, mut other) = (Key::new(), Key::new());
            for ((field, value), second) in fields {
                if second { other.set(field, value) } else { key.set(field, value) }
            }
            let mut mask = Mask::wildcard();
            prereq.required_mask(&key, &mut mask);
            // `other`, with the bits of the mask taken from `key`.
            let mut same = other.clone();
            for info in FIELDS {
                let bits = mask.get(info.field);
                same.set(info.field, same.get(info.field) & !bits | key.get(info.field) & bits);
            }
            prop_assert!(key.matches(&same, &mask));
            prop_assert_eq!(prereq.satisfied(&same), prereq.satisfied(&key));
        }
    }
}
