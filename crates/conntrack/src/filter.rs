//! Which connections somebody asks for: a zone, parts of the tuples, bits of mark and label.

use std::net::IpAddr;

use packet::wire::ip_proto;

use crate::table::slot::Contents;
use crate::tuple::{Side, Tuple};

/// What a connection has to be. The default leaves all connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Its zone.
    pub zone: Option<u16>,
    /// Whether it is of IPv6.
    pub v6: Option<bool>,
    /// Its protocol.
    pub proto: Option<u8>,
    /// The original direction.
    pub orig: TupleFilter,
    /// The direction of replies.
    pub reply: TupleFilter,
    /// Bits of the mark: value and mask.
    pub mark: Option<(u32, u32)>,
    /// Bits of the label: value and mask.
    pub label: Option<(u128, u128)>,
}

/// Parts of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TupleFilter {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// Identifier of an ICMP query.
    pub icmp_id: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code: that of all queries is zero.
    pub icmp_code: Option<u8>,
}

impl TupleFilter {
    /// Whether a direction is one of those.
    pub fn matches(&self, tuple: &Tuple) -> bool {
        let icmp = tuple.icmp_type();
        let port = |wanted: u16, side| tuple.has_ports() && wanted == tuple.port(side);
        self.src.is_none_or(|address| address == tuple.src())
            && self.dst.is_none_or(|address| address == tuple.dst())
            && self.src_port.is_none_or(|wanted| port(wanted, Side::Src))
            && self.dst_port.is_none_or(|wanted| port(wanted, Side::Dst))
            && self.icmp_id.is_none_or(|id| icmp.is_some() && id == tuple.port(Side::Src))
            && self.icmp_type.is_none_or(|kind| icmp == Some(kind))
            && self.icmp_code.is_none_or(|code| icmp.is_some() && code == 0)
    }
}

impl Filter {
    /// Whether a connection is one of those.
    pub fn matches(&self, connection: &Contents) -> bool {
        let bits = |(value, mask): (u128, u128), of: u128| (of ^ value) & mask == 0;
        let mark = |(value, mask): (u32, u32)| bits((value.into(), mask.into()), connection.mark.into());
        self.zone.is_none_or(|zone| zone == connection.orig.zone())
            && self.v6.is_none_or(|v6| v6 == connection.orig.is_v6())
            && self.proto.is_none_or(|proto| proto == connection.orig.proto())
            && self.orig.matches(&connection.orig)
            && self.reply.matches(&connection.reply)
            && self.mark.is_none_or(mark)
            && self.label.is_none_or(|wanted| bits(wanted, connection.label))
    }

    /// The original direction, where nothing is left open but perhaps the zone, which is zero then.
    pub fn whole(&self) -> Option<Tuple> {
        let Filter { zone, v6: _, proto, orig, reply, mark, label } = self;
        if *reply != TupleFilter::default() || mark.is_some() || label.is_some() {
            return None;
        }
        let proto = (*proto)?;
        let ports = match proto {
            ip_proto::ICMP | ip_proto::ICMPV6 => (orig.icmp_id?, orig.icmp_type?.into()),
            _ => (orig.src_port?, orig.dst_port?),
        };
        let tuple = Tuple::new(orig.src?, orig.dst?, proto, ports, zone.unwrap_or(0))?;
        (orig.matches(&tuple) && (tuple.has_ports() || tuple.is_icmp())).then_some(tuple)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::simple::Seen;
    use crate::table::slot::Protocol;
    use crate::tuple::tests::v4;

    fn connection(orig: Tuple, mark: u32, label: u128) -> Contents {
        Contents { mark, label, ..Contents::new(orig, Protocol::Simple(Seen::First)) }
    }

    #[test]
    fn every_part_counts() {
        let udp = connection(v4([10, 0, 0, 1], 5, [10, 0, 0, 2], 53, 17).in_zone(7), 0xf0, 1 << 100);
        let icmp = connection(v4([10, 0, 0, 1], 99, [10, 0, 0, 2], 8, 1), 0, 0);
        let orig = |orig| Filter { orig, ..Filter::default() };
        let reply = |reply| Filter { reply, ..Filter::default() };
        let none = TupleFilter::default();
        let cases = [
            (Filter::default(), true, true),
            (Filter { zone: Some(7), ..Filter::default() }, true, false),
            (Filter { zone: Some(0), ..Filter::default() }, false, true),
            (Filter { v6: Some(true), ..Filter::default() }, false, false),
            (Filter { proto: Some(17), ..Filter::default() }, true, false),
            (Filter { mark: Some((0x10, 0x10)), ..Filter::default() }, true, false),
            (Filter { mark: Some((0, u32::MAX)), ..Filter::default() }, false, true),
            (Filter { label: Some((1 << 100, u128::MAX)), ..Filter::default() }, true, false),
            (orig(TupleFilter { src: Some([10, 0, 0, 1].into()), ..none }), true, true),
            (reply(TupleFilter { src: Some([10, 0, 0, 1].into()), ..none }), false, false),
            (reply(TupleFilter { dst: Some([10, 0, 0, 1].into()), ..none }), true, true),
            (orig(TupleFilter { src_port: Some(5), ..none }), true, false),
            (orig(TupleFilter { dst_port: Some(8), ..none }), false, false),
            (reply(TupleFilter { src_port: Some(53), ..none }), true, false),
            (orig(TupleFilter { icmp_id: Some(99), icmp_code: Some(0), ..none }), false, true),
            (orig(TupleFilter { icmp_type: Some(0), ..none }), false, false),
            (reply(TupleFilter { icmp_type: Some(0), ..none }), false, true),
            (orig(TupleFilter { icmp_code: Some(1), ..none }), false, false),
        ];
        for (filter, has_udp, has_icmp) in cases {
            assert_eq!((filter.matches(&udp), filter.matches(&icmp)), (has_udp, has_icmp), "{filter:?}");
        }
    }

    #[test]
    fn a_whole_tuple_is_one() {
        let tuple = v4([10, 0, 0, 1], 5, [10, 0, 0, 2], 53, 17);
        let orig = TupleFilter {
            src: Some(tuple.src()),
            dst: Some(tuple.dst()),
            src_port: Some(5),
            dst_port: Some(53),
            ..TupleFilter::default()
        };
        let filter = Filter { proto: Some(17), orig, ..Filter::default() };
        assert_eq!(filter.whole(), Some(tuple));
        assert_eq!(Filter { zone: Some(3), ..filter }.whole(), Some(tuple.in_zone(3)));
        assert_eq!(Filter { proto: None, ..filter }.whole(), None);
        assert_eq!(Filter { mark: Some((0, 1)), ..filter }.whole(), None);
        assert_eq!(Filter { orig: TupleFilter { dst_port: None, ..orig }, ..filter }.whole(), None);
        // A protocol without ports has no such tuple: what is asked for are ports that it never has.
        assert_eq!(Filter { proto: Some(47), ..filter }.whole(), None);
    }
}
