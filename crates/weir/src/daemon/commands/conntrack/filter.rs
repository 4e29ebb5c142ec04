//! From text to the connections that are meant: `zone=N`, `mark=X[/M]`, `labels=X[/M]`, then up to two tuples, of the original
//! direction and of replies, whose words OVS's ovs-ofctl(8) has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::conntrack::filter::{Filter, TupleFilter};
use packet::wire::ip_proto;

use super::arguments::{fields, whole_number, zone_argument};

/// The filter of these arguments.
pub fn parse(arguments: &[&str]) -> Result<Filter, String> {
    let mut filter = Filter::default();
    let mut rest = arguments;
    let mut next = |prefix: &str| match rest {
        [first, others @ ..] if first.starts_with(prefix) => {
            rest = others;
            Some(*first)
        }
        _ => None,
    };
    if let Some(text) = next("zone=") {
        filter.zone = Some(zone_argument(text).ok_or("failed to parse zone")?);
    }
    if let Some(text) = next("mark=") {
        let (value, mask) = masked(&text["mark=".len()..], u32::MAX.into()).ok_or("failed to parse mark")?;
        filter.mark = Some((value as u32, mask as u32));
    }
    if let Some(text) = next("labels=") {
        filter.label = Some(masked(&text["labels=".len()..], u128::MAX).ok_or("failed to parse labels")?);
    }
    let (orig, reply) = (next(""), next(""));
    if next("").is_some() {
        return Err("invalid arguments".into());
    }
    for (text, reply) in [(orig, false), (reply, true)] {
        let tuple = tuple(text.unwrap_or_default(), &mut filter)?;
        *(if reply { &mut filter.reply } else { &mut filter.orig }) = tuple;
    }
    Ok(filter)
}

/// A value, and perhaps a mask behind a slash; all bits without one.
fn masked(text: &str, all: u128) -> Option<(u128, u128)> {
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (value, whole_number(mask)?),
        None => (text, all),
    };
    let value = whole_number(value)?;
    (value <= all && mask <= all).then_some((value, mask))
}

/// A tuple. What it says of protocol and family holds for the connection. As with OVS, an address or port of zero is any.
fn tuple(text: &str, filter: &mut Filter) -> Result<TupleFilter, String> {
    let mut tuple = TupleFilter::default();
    for (key, value) in fields(text) {
        if value.is_empty() {
            return Err(format!("field {key} missing value"));
        }
        let wrong = || format!("failed to parse field {key}");
        let number = |most: u16| -> Result<u16, String> {
            whole_number(value).filter(|n| *n <= most.into()).map(|n| n as u16).ok_or_else(wrong)
        };
        let port = || number(u16::MAX).map(|port| Some(port).filter(|port| *port != 0));
        let is_icmp = matches!(filter.proto, Some(ip_proto::ICMP | ip_proto::ICMPV6));
        match key {
            "ct_nw_src" | "ct_nw_dst" | "ct_ipv6_src" | "ct_ipv6_dst" => {
                let v6 = key.starts_with("ct_ipv6");
                let slot = if key.ends_with("src") { &mut tuple.src } else { &mut tuple.dst };
                if filter.v6.is_some_and(|other| other != v6) {
                    return Err(format!("the L3 protocol does not match {value}"));
                }
                if slot.is_some() {
                    return Err(format!("{key} is set multiple times"));
                }
                let address = match v6 {
                    false => value.parse().map(Ipv4Addr::into).map_err(|_| wrong()),
                    true => value.parse().map(Ipv6Addr::into).map_err(|_| wrong()),
                };
                filter.v6 = Some(v6);
                *slot = Some(address?).filter(|address: &IpAddr| !address.is_unspecified());
            }
            "ct_nw_proto" => {
                if filter.proto.is_some() {
                    return Err(format!("{key} is set multiple times"));
                }
                filter.proto = Some(number(u8::MAX.into())? as u8).filter(|proto| *proto != 0);
            }
            "ct_tp_src" => tuple.src_port = port()?,
            "ct_tp_dst" => tuple.dst_port = port()?,
            "icmp_type" | "icmp_code" | "icmp_id" if !is_icmp => return Err("invalid L4 fields".into()),
            "icmp_type" => tuple.icmp_type = Some(number(u8::MAX.into())? as u8),
            "icmp_code" => tuple.icmp_code = Some(number(u8::MAX.into())? as u8),
            "icmp_id" => tuple.icmp_id = Some(number(u16::MAX)?),
            _ => return Err(format!("invalid conntrack tuple field: {key}")),
        }
    }
    if filter.proto.is_none() && (tuple.src_port.is_some() || tuple.dst_port.is_some()) {
        return Err("port is set without protocol".into());
    }
    Ok(tuple)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts() {
        let orig = "ct_nw_src=10.0.0.1,ct_nw_proto=17,ct_tp_src=5";
        let filter =
            parse(&["zone=3", "mark=0x10/0xf0", "labels=0x1", orig, "ct_nw_src=10.0.0.2,ct_tp_dst=0x6"]).unwrap();
        let none = TupleFilter::default();
        assert_eq!(
            filter,
            Filter {
                zone: Some(3),
                v6: Some(false),
                proto: Some(17),
                orig: TupleFilter { src: Some([10, 0, 0, 1].into()), src_port: Some(5), ..none },
                reply: TupleFilter { src: Some([10, 0, 0, 2].into()), dst_port: Some(6), ..none },
                mark: Some((0x10, 0xf0)),
                label: Some((1, u128::MAX)),
            }
        );
        assert_eq!(parse(&[]), Ok(Filter::default()));
        // Only the direction of replies; zero is any.
        let reply = parse(&["", "ct_ipv6_dst=2001:db8::1,ct_nw_proto=6,ct_tp_dst=0,ct_ipv6_src=::"]).unwrap().reply;
        assert_eq!(reply, TupleFilter { dst: Some("2001:db8::1".parse().unwrap()), ..none });
        let icmp = parse(&["ct_nw_proto=1,icmp_type=8,icmp_code=0,icmp_id=10"]).unwrap().orig;
        assert_eq!(icmp, TupleFilter { icmp_type: Some(8), icmp_code: Some(0), icmp_id: Some(10), ..none });
    }

    #[test]
    fn errors_are_those_of_ovs() {
        for (arguments, expected) in [
            (vec!["zone=x"], "failed to parse zone"),
            (vec!["mark=x"], "failed to parse mark"),
            (vec!["mark=0x100000000"], "failed to parse mark"),
            (vec!["labels=1/"], "failed to parse labels"),
            (vec!["", "", ""], "invalid arguments"),
            (vec!["ct_nw_src"], "field ct_nw_src missing value"),
            (vec!["ct_nw_src=1.2.3"], "failed to parse field ct_nw_src"),
            (vec!["ct_nw_src=1.2.3.4,ct_ipv6_dst=::1"], "the L3 protocol does not match ::1"),
            (vec!["ct_nw_src=1.2.3.4,ct_nw_src=1.2.3.4"], "ct_nw_src is set multiple times"),
            (vec!["ct_nw_proto=6,ct_nw_proto=6"], "ct_nw_proto is set multiple times"),
            (vec!["ct_nw_proto=256"], "failed to parse field ct_nw_proto"),
            (vec!["ct_tp_src=5"], "port is set without protocol"),
            (vec!["ct_nw_proto=6,icmp_id=5"], "invalid L4 fields"),
            (vec!["nonsense=5"], "invalid conntrack tuple field: nonsense"),
        ] {
            assert_eq!(parse(&arguments), Err(expected.into()), "{arguments:?}");
        }
    }
}
