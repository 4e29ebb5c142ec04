//! From flow key to frame: a packet that a flow is about, for tracing and for tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::key::Key;
use super::{DL_TYPE_NONE, VLAN_PRESENT, frag};
use crate::wire::{build, ethertype, icmp, icmpv6, ip_proto, ipv4, mpls, nsh, tcp};
use zerocopy::IntoBytes;

/// A frame from which [`extract`](super::extract()) gets the packet's part of `key` back, as far as the key
/// is one that a packet can have: members whose prerequisites are not met are not in the frame, nor are
/// extension headers other than the fragment header.
///
/// `payload` becomes the data of UDP, of TCP segments without SYN, FIN and RST, and of ICMP and ICMPv6
/// echo messages.
pub fn compose(key: &Key, payload: &[u8]) -> Vec<u8> {
    padded(key, payload, 0)
}

/// As [`compose`], without a payload and with zeros at the end, so that the frame has `len` bytes. They
/// belong to the innermost packet: lengths and checksums include them. `None` where the headers alone are
/// longer.
pub fn compose_sized(key: &Key, len: usize) -> Option<Vec<u8>> {
    let padding = len.checked_sub(compose(key, &[]).len())?;
    Some(padded(key, &[], padding))
}

fn padded(key: &Key, payload: &[u8], padding: usize) -> Vec<u8> {
    let common = key.common();
    let dl_type = common.dl_type.get();
    let mut body = match dl_type {
        ethertype::IPV4 => ipv4(key, payload, padding),
        ethertype::IPV6 => ipv6(key, payload, padding),
        ethertype::ARP | ethertype::RARP => arp(key),
        ethertype::MPLS | ethertype::MPLS_MULTICAST => mpls(key),
        ethertype::NSH => nsh(key),
        ethertype::PBB => pbb(key),
        _ => Vec::new(),
    };
    if !matches!(dl_type, ethertype::IPV4 | ethertype::IPV6) {
        body.resize(body.len() + padding, 0);
    }
    let present = common.vlan.iter().take_while(|tag| tag.tci.get() & VLAN_PRESENT != 0);
    // A tag set through vlan_tci alone has no TPID of its own. The present bit is not the DEI bit.
    let tpid = |tpid: u16| if tpid == 0 { ethertype::VLAN } else { tpid };
    let tags: Vec<_> = present.map(|tag| (tpid(tag.tpid.get()), tag.tci.get() & !VLAN_PRESENT)).collect();
    // An 802.3 frame without LLC: the length field is that of the payload.
    let dl_type = if dl_type == DL_TYPE_NONE { body.len() as u16 } else { dl_type };
    build::ethernet(common.dl_dst, common.dl_src, &tags, dl_type, &body)
}

fn ipv4(key: &Key, payload: &[u8], padding: usize) -> Vec<u8> {
    let common = key.common();
    let later = common.nw_frag & frag::LATER != 0;
    let more = if common.nw_frag & frag::ANY != 0 { ipv4::MORE_FRAGMENTS } else { 0 };
    let header = build::Ipv4 {
        src: Ipv4Addr::from_bits(common.nw_src.get()),
        dst: Ipv4Addr::from_bits(common.nw_dst.get()),
        proto: common.nw_proto,
        tos: common.nw_tos,
        ttl: common.nw_ttl,
        // Any offset makes a later fragment; Open vSwitch uses this one.
        flags_offset: more | if later { 100 } else { 0 },
        options: &[],
    };
    header.packet(if later { vec![0; padding] } else { l4(key, payload, padding) })
}

fn ipv6(key: &Key, payload: &[u8], padding: usize) -> Vec<u8> {
    let (common, l3) = (key.common(), key.l3());
    let later = common.nw_frag & frag::LATER != 0;
    let fragment: [u8; 8] = [0, 0, if later { 3 } else { 0 }, if later { 0x21 } else { 1 }, 0, 0, 0, 0];
    let extensions: &[(u8, &[u8])] = if common.nw_frag & frag::ANY != 0 { &[(44, &fragment)] } else { &[] };
    let header = build::Ipv6 {
        src: Ipv6Addr::from(l3.ipv6_src),
        dst: Ipv6Addr::from(l3.ipv6_dst),
        // The key of a later fragment holds the number of the fragment header itself.
        proto: if later { ip_proto::NO_NEXT } else { common.nw_proto },
        traffic_class: common.nw_tos,
        flow_label: l3.ipv6_label.get(),
        hop_limit: common.nw_ttl,
        extensions,
    };
    header.packet(if later { vec![0; padding] } else { l4(key, payload, padding) })
}

fn l4(key: &Key, payload: &[u8], padding: usize) -> Vec<u8> {
    let zeros = vec![0; padding];
    match key.common().nw_proto {
        // These cover their data with a length or a checksum of their own.
        ip_proto::UDP => message(key, &[payload, &zeros].concat()),
        ip_proto::SCTP => message(key, &zeros),
        _ => [message(key, payload), zeros].concat(),
    }
}

fn message(key: &Key, payload: &[u8]) -> Vec<u8> {
    let common = key.common();
    let (src, dst) = (common.tp_src.get(), common.tp_dst.get());
    let (kind, code) = (src as u8, dst as u8);
    let only_if = |wanted: bool| if wanted { payload } else { &[] };
    match common.nw_proto {
        ip_proto::TCP => {
            let flags = common.tcp_flags.get();
            build::tcp(src, dst, flags, only_if(flags & (tcp::flags::SYN | tcp::flags::FIN | tcp::flags::RST) == 0))
        }
        ip_proto::UDP => build::udp(src, dst, payload),
        ip_proto::SCTP => build::sctp(src, dst, 0, payload),
        ip_proto::ICMP => {
            let echo = matches!(kind, icmp::ECHO_REQUEST | icmp::ECHO_REPLY) && code == 0;
            build::icmp(kind, code, [0; 4], only_if(echo))
        }
        ip_proto::IGMP => build::icmp(kind, code, [0; 4], &[]),
        ip_proto::ICMPV6 => icmpv6(key, kind, code, payload),
        _ => Vec::new(),
    }
}

fn icmpv6(key: &Key, kind: u8, code: u8, payload: &[u8]) -> Vec<u8> {
    match (kind, code) {
        (icmpv6::NEIGHBOR_SOLICIT | icmpv6::NEIGHBOR_ADVERT, 0) => {
            let l3 = key.l3();
            let option = |mac: [u8; 6]| (mac != [0; 6]).then_some(mac);
            let target = Ipv6Addr::from(l3.nd_target);
            build::neighbor(kind, key.encap().nd_reserved.get(), target, option(l3.arp_sha), option(l3.arp_tha))
        }
        (icmpv6::ECHO_REQUEST | icmpv6::ECHO_REPLY, 0) => build::icmpv6(kind, code, [0; 4], payload),
        _ => build::icmpv6(kind, code, [0; 4], &[]),
    }
}

fn arp(key: &Key) -> Vec<u8> {
    let (common, l3) = (key.common(), key.l3());
    let (spa, tpa) = (Ipv4Addr::from_bits(common.nw_src.get()), Ipv4Addr::from_bits(common.nw_dst.get()));
    build::arp(common.nw_proto.into(), l3.arp_sha, spa, l3.arp_tha, tpa)
}

/// The labels up to the bottom of the stack; all of them where none is the bottom.
fn mpls(key: &Key) -> Vec<u8> {
    let stack = key.encap().mpls_lse.map(|lse| mpls::LabelStackEntry(lse.get()));
    let depth = stack.iter().position(|lse| lse.bottom()).map_or(stack.len(), |at| at + 1);
    build::mpls(&stack[..depth], &[])
}

fn nsh(key: &Key) -> Vec<u8> {
    let encap = key.encap();
    let words = if encap.nsh_mdtype == 1 { 6 } else { 2 };
    let word = u16::from(encap.nsh_flags & 3) << 12 | u16::from(encap.nsh_ttl & 0x3f) << 6 | words;
    let header = nsh::Header {
        version_ttl_len: word.into(),
        md_type: encap.nsh_mdtype,
        next: encap.nsh_np,
        path: encap.nsh_path,
    };
    let context: &[u8] = if encap.nsh_mdtype == 1 { encap.nsh_c.as_bytes() } else { &[] };
    [header.as_bytes(), context].concat()
}

fn pbb(key: &Key) -> Vec<u8> {
    let encap = key.encap();
    (u32::from(encap.pbb_uca & 1) << 27 | encap.pbb_isid.get() & 0xff_ffff).to_be_bytes().to_vec()
}
