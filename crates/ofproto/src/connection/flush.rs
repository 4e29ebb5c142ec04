//! Ending connections (NXT_CT_FLUSH, NXT_CT_FLUSH_ZONE).
//!
//! To end many connections, all of them have to be looked at. That is done in steps, as long answers are: other peers are
//! served in between, and what the same peer sends next waits.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use conntrack::filter::{Filter, TupleFilter};
use datapath::Datapath;
use datapath::conntrack::flush::{Flush, FlushOne};
use openflow::{CtFlush, CtTuple};
use packet::Time;

use super::reply::{Pieces, Step};

/// Portions of connections that one step looks at.
const PORTIONS: usize = 4;

/// Ends connections. What is returned does the work, where it has not been done at once.
pub(super) fn flush_connections(datapath: Arc<Datapath>, wanted: &CtFlush, now: Time) -> Option<Pieces> {
    tracing::debug!(target: "ct_dpif", "ovs-netdev: ct_flush: {}", Described(wanted));
    let filter = filter(wanted);
    if datapath.conntrack().flush_one(&filter, now) != FlushOne::Many {
        return None;
    }
    let mut flush = Flush::new(filter);
    Some(Box::new(move || {
        let more = (0..PORTIONS).all(|_| flush.step(datapath.conntrack()));
        more.then_some(Step::Working)
    }))
}

/// A flush as `ovs-vswitchd` logs it.
struct Described<'a>(&'a CtFlush);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CtFlush { zone, ip_proto, orig, reply } = self.0;
        if *ip_proto == 0 && [orig, reply].into_iter().all(|tuple| *tuple == CtTuple::default()) {
            return match zone {
                Some(zone) => write!(f, "zone {zone}"),
                None => f.write_str("<all>"),
            };
        }
        let v4 =
            [orig, reply].iter().flat_map(|tuple| [tuple.src, tuple.dst]).flatten().any(|address| address.is_ipv4());
        let side = |tuple: &CtTuple| {
            let name = if v4 { "nw" } else { "ipv6" };
            let address = |address: Option<IpAddr>| address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
            let addresses = format!("ct_{name}_src={},ct_{name}_dst={}", address(tuple.src), address(tuple.dst));
            match (ip_proto, tuple.icmp) {
                (1 | 58, (id, kind, code)) => format!("{addresses},icmp_id={id},icmp_type={kind},icmp_code={code}"),
                _ => format!("{addresses},ct_tp_src={},ct_tp_dst={}", tuple.src_port, tuple.dst_port),
            }
        };
        write!(f, "zone={} '{},ct_nw_proto={ip_proto}' '{}'", zone.unwrap_or(0), side(orig), side(reply))
    }
}

fn filter(wanted: &CtFlush) -> Filter {
    let mut addresses = [&wanted.orig, &wanted.reply].into_iter().flat_map(|tuple| [tuple.src, tuple.dst]).flatten();
    Filter {
        zone: wanted.zone,
        v6: addresses.next().map(|address| address.is_ipv6()),
        proto: (wanted.ip_proto != 0).then_some(wanted.ip_proto),
        orig: tuple(&wanted.orig, wanted.ip_proto),
        reply: tuple(&wanted.reply, wanted.ip_proto),
        ..Filter::default()
    }
}

fn tuple(wanted: &CtTuple, ip_proto: u8) -> TupleFilter {
    let mut filter = TupleFilter { src: wanted.src, dst: wanted.dst, ..TupleFilter::default() };
    let is_icmp = matches!(ip_proto, 1 | 58);
    if is_icmp && wanted.icmp != (0, 0, 0) {
        let (id, kind, code) = wanted.icmp;
        (filter.icmp_id, filter.icmp_type, filter.icmp_code) = (Some(id), Some(kind), Some(code));
    } else if !is_icmp {
        let port = |port: u16| (port != 0).then_some(port);
        (filter.src_port, filter.dst_port) = (port(wanted.src_port), port(wanted.dst_port));
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_logged_as_by_open_vswitch() {
        let said = |flush: CtFlush| Described(&flush).to_string();
        assert_eq!(said(CtFlush::default()), "<all>");
        assert_eq!(said(CtFlush { zone: Some(7), ..CtFlush::default() }), "zone 7");
        let orig = CtTuple { src: Some([10, 0, 0, 1].into()), src_port: 5, ..CtTuple::default() };
        let flush = CtFlush { ip_proto: 17, orig, ..CtFlush::default() };
        let tuples = "zone=0 'ct_nw_src=10.0.0.1,ct_nw_dst=::,ct_tp_src=5,ct_tp_dst=0,ct_nw_proto=17' \
            'ct_nw_src=::,ct_nw_dst=::,ct_tp_src=0,ct_tp_dst=0'";
        assert_eq!(said(flush), tuples);
    }

    #[test]
    fn what_is_zero_may_be_anything() {
        assert_eq!(filter(&CtFlush::default()), Filter::default());
        let src = Some([10, 0, 0, 1].into());
        let v6 = Some(std::net::Ipv6Addr::LOCALHOST.into());
        let icmp = CtTuple { src, icmp: (7, 8, 0), src_port: 5, ..CtTuple::default() };
        let flush = CtFlush { zone: Some(0), ip_proto: 1, orig: icmp, reply: CtTuple::default() };
        let none = TupleFilter::default();
        let orig = TupleFilter { src, icmp_id: Some(7), icmp_type: Some(8), icmp_code: Some(0), ..none };
        let expected = Filter { zone: Some(0), v6: Some(false), proto: Some(1), orig, ..Filter::default() };
        assert_eq!(filter(&flush), expected);
        let tcp = CtTuple { dst: v6, dst_port: 80, icmp: (7, 8, 0), ..CtTuple::default() };
        let flush = CtFlush { ip_proto: 6, reply: tcp, ..CtFlush::default() };
        let reply = TupleFilter { dst: v6, dst_port: Some(80), ..none };
        assert_eq!(filter(&flush), Filter { v6: Some(true), proto: Some(6), reply, ..Filter::default() });
    }
}
