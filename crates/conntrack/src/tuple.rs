//! What names a direction of a connection: addresses, ports, protocol and zone.
//!
//! IPv4 needs the first 16 bytes of a [`Tuple`] only; the other 32, the addresses of IPv6, are then zero. The words are
//! numbers in host byte order, so that reversing and hashing are a few instructions.
//!
//! | bytes | IPv4 | IPv6 |
//! |---|---|---|
//! | 0-7 | source and destination address | zero |
//! | 8-11 | source and destination port; ICMP: identifier and type | the same |
//! | 12-15 | zone, protocol, family | the same |
//! | 16-47 | zero | source and destination address |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::flow::Hasher;
use packet::wire::{icmp, icmpv6, ip_proto};

/// One direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C, align(16))]
pub struct Tuple {
    /// IPv4 source in the high half, destination in the low half; zero for IPv6.
    pub(crate) v4: u64,
    /// Source port in the high half, destination port in the low half; identifier and type of ICMP.
    pub(crate) ports: u32,
    /// Zone (16 bits), protocol (8), family (8: 4 or 6).
    pub(crate) class: u32,
    /// IPv6 source and destination, two words each; zero for IPv4.
    pub(crate) v6: [u64; 4],
}

const _: () = assert!(size_of::<Tuple>() == 48);

/// Which address or port of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Side {
    /// The sender's.
    Src,
    /// The receiver's.
    Dst,
}

/// ICMP types beside echo that ask and are answered (RFC 792).
mod query {
    pub const TIMESTAMP: u8 = 13;
    pub const TIMESTAMP_REPLY: u8 = 14;
    pub const INFO_REQUEST: u8 = 15;
    pub const INFO_REPLY: u8 = 16;
}

/// The type that answers an ICMP query, and the other way round; `None` for a type that is neither.
pub fn reverse_icmp(kind: u8) -> Option<u8> {
    Some(match kind {
        icmp::ECHO_REQUEST => icmp::ECHO_REPLY,
        icmp::ECHO_REPLY => icmp::ECHO_REQUEST,
        query::TIMESTAMP => query::TIMESTAMP_REPLY,
        query::TIMESTAMP_REPLY => query::TIMESTAMP,
        query::INFO_REQUEST => query::INFO_REPLY,
        query::INFO_REPLY => query::INFO_REQUEST,
        _ => return None,
    })
}

/// As [`reverse_icmp`], for ICMPv6.
pub fn reverse_icmpv6(kind: u8) -> Option<u8> {
    match kind {
        icmpv6::ECHO_REQUEST => Some(icmpv6::ECHO_REPLY),
        icmpv6::ECHO_REPLY => Some(icmpv6::ECHO_REQUEST),
        _ => None,
    }
}

/// Whether an ICMP type may begin a connection.
pub fn is_icmp_request(proto: u8, kind: u8) -> bool {
    if proto == ip_proto::ICMPV6 {
        kind == icmpv6::ECHO_REQUEST
    } else {
        matches!(kind, icmp::ECHO_REQUEST | query::TIMESTAMP | query::INFO_REQUEST)
    }
}

impl Tuple {
    /// The direction between two addresses of one family. `ports` are source and destination port, identifier and type
    /// of an ICMP query, and zero for other protocols.
    ///
    /// `None` where the families differ, where a port of TCP, UDP or SCTP is zero, or where the ICMP type is no query.
    pub fn new(src: IpAddr, dst: IpAddr, proto: u8, ports: (u16, u16), zone: u16) -> Option<Tuple> {
        let (v4, v6, family) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                (u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()), [0; 4], 4)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (src, dst) = (src.to_bits(), dst.to_bits());
                (0, [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64], 6)
            }
            _ => return None,
        };
        let class = u32::from(zone) << 16 | u32::from(proto) << 8 | family;
        let mut tuple = Tuple { v4, ports: u32::from(ports.0) << 16 | u32::from(ports.1), class, v6 };
        if tuple.is_icmp() {
            tuple.icmp_reply_type()?;
        } else if !tuple.has_ports() {
            tuple.ports = 0;
        } else if ports.0 == 0 || ports.1 == 0 {
            return None;
        }
        Some(tuple)
    }

    /// The tuple of these 16 bytes and those addresses of IPv6.
    pub(crate) fn from_words(v4: u64, ports: u32, class: u32, v6: [u64; 4]) -> Tuple {
        Tuple { v4, ports, class, v6 }
    }

    /// The direction back: addresses and ports change places, an ICMP query becomes its answer.
    #[must_use]
    #[inline]
    pub fn reverse(&self) -> Tuple {
        let ports = match self.icmp_reply_type() {
            None => self.ports.rotate_left(16),
            Some(kind) => self.ports & 0xffff_0000 | u32::from(kind),
        };
        let [a, b, c, d] = self.v6;
        Tuple { v4: self.v4.rotate_left(32), ports, class: self.class, v6: [c, d, a, b] }
    }

    /// A hash that is the same for both directions as long as nothing is translated, so that one entry finds both.
    #[inline]
    pub fn hash(&self, hasher: &Hasher) -> u64 {
        let (src_port, dst_port) =
            if self.is_icmp() { (self.ports >> 16, self.ports >> 16) } else { (self.ports >> 16, self.ports & 0xffff) };
        if self.is_v6() {
            return self.hash_v6(hasher, src_port, dst_port);
        }
        let src = (self.v4 >> 32) << 16 | u64::from(src_port);
        let dst = (self.v4 & 0xffff_ffff) << 16 | u64::from(dst_port);
        hasher.pair([src.min(dst), src.max(dst)], self.class)
    }

    fn hash_v6(&self, hasher: &Hasher, src_port: u32, dst_port: u32) -> u64 {
        let [a, b, c, d] = self.v6;
        let (mut low, mut high) = ((a, b, src_port), (c, d, dst_port));
        if low > high {
            std::mem::swap(&mut low, &mut high);
        }
        let ports = u64::from(low.2) << 32 | u64::from(high.2);
        hasher.finish(hasher.block(&[low.0, low.1, high.0, high.1, ports, self.class.into(), 0, 0]))
    }

    /// Whether the addresses are of IPv6.
    #[inline(always)]
    pub fn is_v6(&self) -> bool {
        self.class & 0xff == 6
    }

    /// The protocol (IANA).
    #[inline(always)]
    pub fn proto(&self) -> u8 {
        (self.class >> 8) as u8
    }

    /// The zone.
    #[inline(always)]
    pub fn zone(&self) -> u16 {
        (self.class >> 16) as u16
    }

    /// The same direction in another zone.
    #[must_use]
    pub fn in_zone(self, zone: u16) -> Tuple {
        Tuple { class: self.class & 0xffff | u32::from(zone) << 16, ..self }
    }

    /// Whether it is ICMP over IPv4 or ICMPv6 over IPv6; the other way round, they are protocols like any other.
    #[inline(always)]
    pub fn is_icmp(&self) -> bool {
        matches!((self.proto(), self.is_v6()), (ip_proto::ICMP, false) | (ip_proto::ICMPV6, true))
    }

    /// Whether the protocol has ports: TCP, UDP, SCTP.
    #[inline(always)]
    pub fn has_ports(&self) -> bool {
        matches!(self.proto(), ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP)
    }

    fn icmp_reply_type(&self) -> Option<u8> {
        match self.is_icmp() {
            true if self.is_v6() => reverse_icmpv6(self.ports as u8),
            true => reverse_icmp(self.ports as u8),
            false => None,
        }
    }

    /// The type of an ICMP query or its answer.
    pub fn icmp_type(&self) -> Option<u8> {
        self.is_icmp().then_some(self.ports as u8)
    }

    /// The sender.
    pub fn src(&self) -> IpAddr {
        self.address(Side::Src)
    }

    /// The receiver.
    pub fn dst(&self) -> IpAddr {
        self.address(Side::Dst)
    }

    /// An address.
    pub fn address(&self, side: Side) -> IpAddr {
        let [a, b, c, d] = self.v6;
        match (self.is_v6(), side) {
            (false, Side::Src) => Ipv4Addr::from_bits((self.v4 >> 32) as u32).into(),
            (false, Side::Dst) => Ipv4Addr::from_bits(self.v4 as u32).into(),
            (true, Side::Src) => Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b)).into(),
            (true, Side::Dst) => Ipv6Addr::from_bits(u128::from(c) << 64 | u128::from(d)).into(),
        }
    }

    /// Replaces an address. One of the other family changes nothing.
    pub fn set_address(&mut self, side: Side, address: IpAddr) {
        match (address, self.is_v6()) {
            (IpAddr::V4(address), false) => {
                let shift = if side == Side::Src { 32 } else { 0 };
                self.v4 = self.v4 & !(0xffff_ffff << shift) | u64::from(address.to_bits()) << shift;
            }
            (IpAddr::V6(address), true) => {
                let at = if side == Side::Src { 0 } else { 2 };
                let bits = address.to_bits();
                (self.v6[at], self.v6[at + 1]) = ((bits >> 64) as u64, bits as u64);
            }
            _ => {}
        }
    }

    /// A port. For ICMP the identifier, whichever side; zero for protocols without ports.
    pub fn port(&self, side: Side) -> u16 {
        if side == Side::Src || self.is_icmp() { (self.ports >> 16) as u16 } else { self.ports as u16 }
    }

    /// Replaces a port, or ICMP's identifier. A protocol that has neither stays as it is.
    pub fn set_port(&mut self, side: Side, port: u16) {
        if side == Side::Src || self.is_icmp() {
            if self.has_ports() || self.is_icmp() {
                self.ports = self.ports & 0xffff | u32::from(port) << 16;
            }
        } else if self.has_ports() {
            self.ports = self.ports & 0xffff_0000 | u32::from(port);
        }
    }

    /// What ct_tp_src and ct_tp_dst hold for this direction: the ports, or type and code of ICMP.
    pub fn key_ports(&self) -> (u16, u16) {
        if self.is_icmp() { (self.ports as u16, 0) } else { ((self.ports >> 16) as u16, self.ports as u16) }
    }
}

/// As in the lists of `dpctl/dump-conntrack`.
impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src={},dst={}", self.src(), self.dst())?;
        match self.icmp_type() {
            Some(kind) => write!(f, ",id={},type={kind},code=0", self.port(Side::Src)),
            None => write!(f, ",sport={},dport={}", self.port(Side::Src), self.port(Side::Dst)),
        }
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self},proto={},zone={}", self.proto(), self.zone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn v4(src: [u8; 4], sport: u16, dst: [u8; 4], dport: u16, proto: u8) -> Tuple {
        Tuple::new(src.into(), dst.into(), proto, (sport, dport), 0).unwrap()
    }

    pub(crate) fn any_tuple() -> impl Strategy<Value = Tuple> {
        let addresses = prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        ];
        let proto = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), Just(58), any::<u8>()];
        (addresses, proto, 1u16.., 1u16.., any::<u16>(), any::<bool>()).prop_map(
            |((a, b), proto, p, q, zone, answer)| {
                let kind = match (proto, answer) {
                    (1, false) => 8,
                    (1, true) => 0,
                    (58, false) => 128,
                    (58, true) => 129,
                    _ => q,
                };
                // ICMP over the wrong family is a protocol without ports.
                let q = if matches!((proto, a.is_ipv4()), (1, true) | (58, false)) { kind } else { q };
                Tuple::new(a, b, proto, (p, q), zone).unwrap()
            },
        )
    }

    #[test]
    fn icmp_answers_are_the_reverse_of_queries() {
        let ask = v4([10, 0, 0, 1], 7, [10, 0, 0, 2], 8, 1);
        assert_eq!(ask.reverse(), v4([10, 0, 0, 2], 7, [10, 0, 0, 1], 0, 1));
        assert_eq!(ask.to_string(), "src=10.0.0.1,dst=10.0.0.2,id=7,type=8,code=0");
        assert!(Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1, (7, 3), 0).is_none(), "no query");
    }

    #[test]
    fn refuses_port_zero_and_mixed_families() {
        let v6 = IpAddr::from([0xfe; 16]);
        for proto in [6, 17, 132] {
            assert!(Tuple::new(v6, v6, proto, (0, 1), 0).is_none());
            assert!(Tuple::new(v6, v6, proto, (1, 0), 0).is_none());
        }
        assert!(Tuple::new(v6, [1, 2, 3, 4].into(), 6, (1, 1), 0).is_none());
        assert_eq!(Tuple::new(v6, v6, 47, (5, 6), 0).unwrap().key_ports(), (0, 0), "GRE has no ports");
    }

    proptest! {
        #[test]
        fn reversing_twice_is_nothing_and_keeps_the_hash(tuple in any_tuple()) {
            let hasher = Hasher::new([3, 4]);
            let back = tuple.reverse();
            prop_assert_eq!(back.reverse(), tuple);
            prop_assert_eq!((back.src(), back.dst()), (tuple.dst(), tuple.src()));
            prop_assert_eq!(back.hash(&hasher), tuple.hash(&hasher));
            prop_assert_eq!((back.zone(), back.proto()), (tuple.zone(), tuple.proto()));
        }

        #[test]
        fn members_come_back(tuple in any_tuple(), other in any_tuple(), port: u16) {
            let mut changed = tuple;
            for side in [Side::Src, Side::Dst] {
                changed.set_address(side, other.address(side));
                let same_family = tuple.is_v6() == other.is_v6();
                prop_assert_eq!(changed.address(side), if same_family { other.address(side) } else { tuple.address(side) });
            }
            changed.set_port(Side::Src, port);
            prop_assert_eq!(changed.port(Side::Src), if tuple.has_ports() || tuple.is_icmp() { port } else { 0 });
            prop_assert_eq!(changed.icmp_type(), tuple.icmp_type());
        }

        /// No two tuples that differ in one bit of the zone, or of an address, have the same hash, but by chance.
        #[test]
        fn every_member_counts(tuple in any_tuple(), bit in 0..32u32) {
            let hasher = Hasher::new([3, 4]);
            let zone = tuple.in_zone(tuple.zone() ^ 1 << (bit % 16));
            prop_assert_ne!(zone.hash(&hasher), tuple.hash(&hasher));
            let mut address = tuple;
            match tuple.dst() {
                IpAddr::V4(a) => address.set_address(Side::Dst, Ipv4Addr::from_bits(a.to_bits() ^ 1 << bit).into()),
                IpAddr::V6(a) => address.set_address(Side::Dst, Ipv6Addr::from_bits(a.to_bits() ^ 1 << bit).into()),
            }
            prop_assert_ne!(address.hash(&hasher), tuple.hash(&hasher));
        }
    }
}
