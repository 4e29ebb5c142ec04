//! NXT_CT_FLUSH: a protocol, and properties for a zone and for parts of both directions.

use std::net::{IpAddr, Ipv6Addr};

use super::prop;
use super::wire::{Put, Reader};
use crate::ct::{CtFlush, CtTuple};
use crate::error::OfError::{self, *};

/// `enum nx_ct_flush_tlv_type`.
mod outer {
    pub const ORIG: u16 = 0;
    pub const REPLY: u16 = 1;
    pub const ZONE: u16 = 2;
}

/// `enum nx_ct_flush_tuple_tlv_type`.
mod inner {
    pub const SRC: u16 = 0;
    pub const DST: u16 = 1;
    pub const SRC_PORT: u16 = 2;
    pub const DST_PORT: u16 = 3;
    pub const ICMP_ID: u16 = 4;
    pub const ICMP_TYPE: u16 = 5;
    pub const ICMP_CODE: u16 = 6;
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Reads the body. As in OVS, properties of other types mean nothing.
pub(super) fn pull_flush(r: &mut Reader) -> Result<CtFlush, OfError> {
    let mut flush = CtFlush { ip_proto: r.u8()?, ..CtFlush::default() };
    r.zeros(7, NXBRC_MUST_BE_ZERO)?;
    while !r.is_empty() {
        let (kind, mut value) = prop::pull(r)?;
        match kind {
            outer::ORIG => pull_tuple(value, &mut flush.orig)?,
            outer::REPLY => pull_tuple(value, &mut flush.reply)?,
            outer::ZONE => flush.zone = Some(value.u16()?),
            _ => {}
        }
    }
    let mut addresses = [&flush.orig, &flush.reply].into_iter().flat_map(|tuple| [tuple.src, tuple.dst]).flatten();
    let first = addresses.next();
    if first.is_some_and(|first| addresses.any(|address| address.is_ipv4() != first.is_ipv4())) {
        return Err(OFPBPC_BAD_VALUE);
    }
    Ok(flush)
}

/// Properties within a property begin at a multiple of 8 bytes.
fn pull_tuple(mut r: Reader, tuple: &mut CtTuple) -> Result<(), OfError> {
    r.skip(4)?;
    while !r.is_empty() {
        let (kind, mut value) = prop::pull(&mut r)?;
        match kind {
            inner::SRC => tuple.src = address(value.u128()?),
            inner::DST => tuple.dst = address(value.u128()?),
            inner::SRC_PORT => tuple.src_port = value.u16()?,
            inner::DST_PORT => tuple.dst_port = value.u16()?,
            inner::ICMP_ID => tuple.icmp.0 = value.u16()?,
            inner::ICMP_TYPE => tuple.icmp.1 = value.u8()?,
            inner::ICMP_CODE => tuple.icmp.2 = value.u8()?,
            _ => {}
        }
    }
    Ok(())
}

/// An address of IPv4 is mapped to IPv6 (RFC 4291 section 2.5.5.2).
fn address(bits: u128) -> Option<IpAddr> {
    (bits != 0).then(|| Ipv6Addr::from(bits).to_canonical())
}

/// Writes the body.
pub(super) fn put_flush(out: &mut Vec<u8>, flush: &CtFlush) {
    out.put(&[flush.ip_proto, 0, 0, 0, 0, 0, 0, 0]);
    for (kind, tuple) in [(outer::ORIG, &flush.orig), (outer::REPLY, &flush.reply)] {
        let mut properties = vec![0; 4];
        put_tuple(&mut properties, flush.ip_proto, tuple);
        if properties.len() > 4 {
            prop::put(out, kind, &properties);
        }
    }
    if let Some(zone) = flush.zone {
        prop::put(out, outer::ZONE, &zone.to_be_bytes());
    }
}

/// `out` has the padding before the first of the properties.
fn put_tuple(out: &mut Vec<u8>, ip_proto: u8, tuple: &CtTuple) {
    let mut properties = Vec::new();
    for (kind, address) in [(inner::SRC, tuple.src), (inner::DST, tuple.dst)] {
        let mapped = match address {
            None => continue,
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped(),
            Some(IpAddr::V6(address)) => address,
        };
        prop::put(&mut properties, kind, &mapped.octets());
    }
    if matches!(ip_proto, ICMP | ICMPV6) {
        let (id, kind, code) = tuple.icmp;
        prop::put(&mut properties, inner::ICMP_ID, &id.to_be_bytes());
        prop::put(&mut properties, inner::ICMP_TYPE, &[kind]);
        prop::put(&mut properties, inner::ICMP_CODE, &[code]);
    } else {
        for (kind, port) in [(inner::SRC_PORT, tuple.src_port), (inner::DST_PORT, tuple.dst_port)] {
            if port != 0 {
                prop::put(&mut properties, kind, &port.to_be_bytes());
            }
        }
    }
    out.put(&properties);
}
