//! Tunnels in actions: `tnl_push(tnl_port(4),header(...),out_port(1))`, `tnl_pop(4)`.
//!
//! They are printed as OVS does, and not parsed: what a flow that an operator adds would need of a tunnel's port, only the
//! translation of the OpenFlow tables knows.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::flow::text::number;
use packet::put;

use super::options;
use crate::action::Encapsulation;

/// Numbers of tunnel types in OVS's text.
pub mod kinds {
    /// GRE.
    pub const GRE: u32 = 3;
    /// VXLAN.
    pub const VXLAN: u32 = 4;
    /// Geneve.
    pub const GENEVE: u32 = 5;
    /// ERSPAN.
    pub const ERSPAN: u32 = 107;
    /// ERSPAN over IPv6.
    pub const IP6ERSPAN: u32 = 108;
    /// GRE over IPv6.
    pub const IP6GRE: u32 = 109;
    /// GTP-U.
    pub const GTPU: u32 = 110;
}

/// Formats `header(...)`.
pub fn format_header(out: &mut String, push: &Encapsulation) {
    let bytes = push.headers.bytes();
    // The headers are whole: `Prepared` has made them.
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let be16 = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
    let be32 = |at: usize| u32::from(be16(at)) << 16 | u32::from(be16(at + 2));
    let mac = |out: &mut String, at: usize| {
        for i in 0..6 {
            put!(out, "{}{:02x}", if i > 0 { ":" } else { "" }, byte(at + i));
        }
    };
    put!(out, "header(size={},type={},eth(dst=", bytes.len(), push.kind);
    mac(out, 0);
    out.push_str(",src=");
    mac(out, 6);
    put!(out, ",dl_type=0x{:04x}),", be16(12));
    let l4 = if be16(12) == 0x0800 {
        let address = |at: usize| Ipv4Addr::from(be32(at));
        put!(out, "ipv4(src={},dst={},proto={},tos=", address(26), address(30), byte(23));
        number::hex(out, byte(15).into());
        put!(out, ",ttl={},frag=0x{:x}),", byte(22), be16(20));
        34
    } else {
        let address = |at: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| byte(at + i)));
        let first = be32(14);
        put!(out, "ipv6(src={},dst={},label={},", address(22), address(38), first & 0xf_ffff);
        put!(out, "proto={},tclass=0x{:x},hlimit={}),", byte(20), first >> 20 & 0xff, byte(21));
        54
    };
    let after_udp = |out: &mut String| {
        // A checksum that is to be computed has all bits set.
        let checksum = if push.headers.sums_payload() { 0xffff } else { 0 };
        put!(out, "udp(src={},dst={},csum=0x{checksum:x}),", be16(l4), be16(l4 + 2));
        l4 + 8
    };
    match push.kind {
        kinds::VXLAN => {
            let at = after_udp(out);
            put!(out, "vxlan(flags=0x{:x},vni=0x{:x})", be32(at), be32(at + 4) >> 8);
        }
        kinds::GENEVE => {
            let at = after_udp(out);
            let oam = if byte(at + 1) & 0x80 != 0 { "oam," } else { "" };
            let critical = if byte(at + 1) & 0x40 != 0 { "crit," } else { "" };
            put!(out, "geneve({oam}{critical}vni=0x{:x}", be32(at + 4) >> 8);
            if bytes.len() > at + 8 {
                out.push_str(",options(");
                options::format(out, &bytes[at + 8..], None, false);
                out.push(')');
            }
            out.push(')');
        }
        kinds::GTPU => {
            let at = after_udp(out);
            put!(out, "gtpu(flags=0x{:x},msgtype={},teid=0x{:x})", byte(at), byte(at + 1), be32(at + 4));
        }
        kinds::ERSPAN | kinds::IP6ERSPAN => {
            let at = l4 + 8;
            let session = be16(at + 2) & 0x3ff;
            if byte(at) >> 4 == 1 {
                put!(out, "erspan(ver=1,sid=0x{session:x},idx=0x{:x})", be32(at + 4));
            } else {
                let more = be16(at + 10);
                put!(out, "erspan(ver=2,sid=0x{session:x},dir={},hwid=0x{:x})", more >> 3 & 1, more >> 4 & 0x3f);
            }
        }
        _ => {
            put!(out, "gre((flags=0x{:x},proto=0x{:x})", be16(l4), be16(l4 + 2));
            let mut at = l4 + 4;
            if be16(l4) & 0x8000 != 0 {
                put!(out, ",csum=0x{:x}", be16(at));
                at += 4;
            }
            for (flag, name) in [(0x2000, "key"), (0x1000, "seq")] {
                if be16(l4) & flag != 0 {
                    put!(out, ",{name}=0x{:x}", be32(at));
                    at += 4;
                }
            }
            out.push(')');
        }
    }
    out.push(')');
}
