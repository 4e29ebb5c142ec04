//! Tunnels in actions: `tnl_push(tnl_port(4),header(...),out_port(1))`, `tnl_pop(4)`.
//!
//! They are printed as OVS does, and not parsed: what a flow that an operator adds would need of a tunnel's port, only the
//! translation of the OpenFlow tables knows.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::flow::text::{flags, number};
use packet::flow::tun_flags;
use packet::put;
use tunnel::metadata::Metadata;

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
    /// LISP.
    pub const LISP: u32 = 105;
    /// ERSPAN.
    pub const ERSPAN: u32 = 107;
    /// ERSPAN over IPv6.
    pub const IP6ERSPAN: u32 = 108;
    /// GRE over IPv6.
    pub const IP6GRE: u32 = 109;
    /// GTP-U.
    pub const GTPU: u32 = 110;
    /// Packets in UDP without a header.
    pub const BAREUDP: u32 = 111;
    /// Segment routing over IPv6.
    pub const SRV6: u32 = 112;
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
        // That of GTP-U always is, which OVS does not say.
        let is_said = push.kind != kinds::GTPU || be16(12) != 0x0800;
        let checksum = if push.headers.sums_payload() && is_said { 0xffff } else { 0 };
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
        // OVS sends these two from the kernel only, so it has no text for them.
        kinds::LISP => {
            let at = after_udp(out);
            put!(out, "lisp(flags=0x{:x},instance_id=0x{:x})", byte(at), be32(at + 4) >> 8);
        }
        kinds::BAREUDP => {
            after_udp(out);
            out.push_str("bareudp()");
        }
        kinds::SRV6 => {
            // The last segment is the first one there.
            let count = if byte(20) == 43 { usize::from(byte(l4 + 4)) + 1 } else { 0 };
            put!(out, "srv6(segments_left={},segs(", if count > 0 { byte(l4 + 3) } else { 0 });
            for (i, segment) in (0..count).rev().enumerate() {
                let at = l4 + 8 + 16 * segment;
                let address = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| byte(at + i)));
                put!(out, "{}{address}", if i > 0 { "," } else { "" });
            }
            out.push_str("))");
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

/// Formats the metadata of a packet that enters a tunnel: what is not zero, but for the TTL and the flags, which are always there.
pub fn format_metadata(out: &mut String, metadata: &Metadata) {
    if metadata.flags & tun_flags::KEY != 0 {
        put!(out, "tun_id=0x{:x},", metadata.tun_id);
    }
    for (address, [v4, v6]) in [(metadata.src, ["src", "ipv6_src"]), (metadata.dst, ["dst", "ipv6_dst"])] {
        if let Some(address) = address {
            put!(out, "{}={address},", if address.is_ipv4() { v4 } else { v6 });
        }
    }
    if metadata.tos != 0 {
        put!(out, "tos=0x{:x},", metadata.tos);
    }
    put!(out, "ttl={},", metadata.ttl);
    for (name, port) in [("tp_src", metadata.ports.0), ("tp_dst", metadata.ports.1)] {
        if port != 0 {
            put!(out, "{name}={port},");
        }
    }
    if (metadata.gbp_id, metadata.gbp_flags) != (0, 0) {
        put!(out, "vxlan(gbp(id={},flags=0x{:x})),", metadata.gbp_id, metadata.gbp_flags);
    }
    if !metadata.options.as_bytes().is_empty() {
        out.push_str("geneve(");
        options::format(out, metadata.options.as_bytes(), None, false);
        out.push_str("),");
    }
    match metadata.erspan_ver {
        1 => put!(out, "erspan(ver=1,idx=0x{:x}),", metadata.erspan_idx),
        2 => put!(out, "erspan(ver=2,dir={},hwid=0x{:x}),", metadata.erspan_dir, metadata.erspan_hwid),
        _ => {}
    }
    if metadata.gtpu_flags != 0 && metadata.gtpu_msgtype != 0 {
        put!(out, "gtpu(flags=0x{:x},msgtype={}),", metadata.gtpu_flags, metadata.gtpu_msgtype);
    }
    out.push_str("flags(");
    flags::TUN.format(out, metadata.flags.into());
    out.push(')');
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use packet::wire::ethertype;
    use tunnel::config::{BarePayload, FlowLabel};
    use tunnel::header::{Header, Payload, Protocol};
    use tunnel::outer::{Outer, Prepared};
    use tunnel::send::SourcePorts;
    use tunnel::srv6::Segments;

    use super::*;
    use crate::PortNo;

    fn text(outer: &Outer, protocol: Protocol, header: &Header<'_>, kind: u32) -> String {
        let ethertype: [u8; 2] = if outer.src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let ethernet = [&[0xf8, 0xbc, 0x12, 0x44, 0x34, 0xb6, 0xf8, 0xbc, 0x12, 0x46, 0x58, 0xe0][..], &ethertype];
        let headers = Prepared::new(&ethernet.concat(), outer, protocol, header).unwrap();
        let push = Encapsulation::new(PortNo(6), PortNo(1), kind, headers, SourcePorts::default(), None);
        let mut out = String::new();
        format_header(&mut out, &push);
        out
    }

    const ETHERNET: &str = "eth(dst=f8:bc:12:44:34:b6,src=f8:bc:12:46:58:e0,dl_type=0x";

    #[test]
    fn segment_routing_as_in_ovs() {
        let segments = [0x90, 0x91, 0x92].map(|last| Ipv6Addr::new(0x2001, 0xcafe, 0, 0, 0, 0, 0, last));
        let src = IpAddr::from(Ipv6Addr::new(0x2001, 0xcafe, 0, 0, 0, 0, 0, 0x88));
        let protocol = Protocol::Srv6 { flow_label: FlowLabel::Copy };
        let payload = Payload::Packet(ethertype::IPV4);
        for (count, proto, rest) in [
            (3, 43, "srv6(segments_left=2,segs(2001:cafe::90,2001:cafe::91,2001:cafe::92)))"),
            (1, 43, "srv6(segments_left=0,segs(2001:cafe::90)))"),
            (0, 4, "srv6(segments_left=0,segs()))"),
        ] {
            let outer = Outer {
                src,
                dst: segments[0].into(),
                tos: 0,
                ttl: 64,
                dont_fragment: false,
                ports: (0, 0),
                checksum: false,
            };
            let header = Header::Srv6 { segments: Segments::Path(&segments[..count]), payload };
            let size = 54 + if count > 0 { 8 + 16 * count } else { 0 };
            assert_eq!(
                text(&outer, protocol, &header, kinds::SRV6),
                format!(
                    "header(size={size},type=112,{ETHERNET}86dd),ipv6(src=2001:cafe::88,dst=2001:cafe::90,label=0,\
                     proto={proto},tclass=0x0,hlimit=64),{rest}"
                )
            );
        }
    }

    #[test]
    fn metadata_of_packets_that_enter_tunnels() {
        let text = |metadata: &Metadata| {
            let mut out = String::new();
            format_metadata(&mut out, metadata);
            out
        };
        let plain = Metadata { dst: Some([192, 0, 2, 2].into()), ttl: 64, ..Metadata::EMPTY };
        assert_eq!(text(&plain), "dst=192.0.2.2,ttl=64,flags(0)");
        let full = Metadata {
            tun_id: 0,
            src: Some(IpAddr::from(Ipv6Addr::LOCALHOST)),
            dst: Some(IpAddr::from(Ipv6Addr::LOCALHOST)),
            tos: 4,
            flags: tun_flags::KEY | tun_flags::DF | tun_flags::CSUM,
            ports: (0, 6081),
            options: tunnel::metadata::RawOptions::new(&[0xff, 0xff, 0x80, 1, 0, 0, 0, 0xa]).unwrap(),
            ..plain
        };
        assert_eq!(
            text(&full),
            "tun_id=0x0,ipv6_src=::1,ipv6_dst=::1,tos=0x4,ttl=64,tp_dst=6081,\
             geneve({class=0xffff,type=0x80,len=4,0xa}),flags(df|csum|key)"
        );
        let erspan = Metadata { erspan_ver: 2, erspan_dir: 1, erspan_hwid: 7, ..plain };
        assert_eq!(text(&erspan), "dst=192.0.2.2,ttl=64,erspan(ver=2,dir=1,hwid=0x7),flags(0)");
        let gtpu = Metadata { gtpu_flags: 0x30, gtpu_msgtype: 255, gbp_id: 5, ..plain };
        let shown = "dst=192.0.2.2,ttl=64,vxlan(gbp(id=5,flags=0x0)),gtpu(flags=0x30,msgtype=255),flags(0)";
        assert_eq!(text(&gtpu), shown);
    }

    #[test]
    fn headers_that_ovs_has_no_text_for() {
        let outer = Outer {
            src: [192, 0, 2, 1].into(),
            dst: [192, 0, 2, 2].into(),
            tos: 0,
            ttl: 64,
            dont_fragment: true,
            ports: (0, 4341),
            checksum: false,
        };
        let payload = Payload::Packet(ethertype::IPV4);
        let bare = BarePayload { ethertype: ethertype::IPV4, with_relative: true };
        for (protocol, header, kind, size, rest) in [
            (
                Protocol::Lisp,
                Header::Lisp { instance: Some(0x123), payload },
                kinds::LISP,
                50,
                "lisp(flags=0x48,instance_id=0x123)",
            ),
            (Protocol::Bareudp(bare), Header::Bareudp { payload }, kinds::BAREUDP, 42, "bareudp()"),
        ] {
            assert_eq!(
                text(&outer, protocol, &header, kind),
                format!(
                    "header(size={size},type={kind},{ETHERNET}0800),ipv4(src=192.0.2.1,dst=192.0.2.2,proto=17,tos=0,\
                     ttl=64,frag=0x4000),udp(src=0,dst=4341,csum=0x0),{rest})"
                )
            );
        }
    }
}
