//! Whole packets, from the inside out: each function takes what it encloses.
//!
//! Lengths and checksums come out right; a packet too long for a length field gets the field's low bits.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use super::checksum::{self, Sum};
use super::{arp, crc32c, ethernet, ethertype, icmp, icmpv6, ip_proto, ipv4, ipv6, mpls, nd, tcp, udp, vlan};

/// A TCP segment without options; its checksum is filled in by the IP packet around it.
pub fn tcp(src: u16, dst: u16, flags: u16, data: &[u8]) -> Vec<u8> {
    let header = tcp::Header {
        src: src.into(),
        dst: dst.into(),
        seq: 0.into(),
        ack: 0.into(),
        offset_flags: (5 << 12 | flags & 0xfff).into(),
        window: 0.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    [header.as_bytes(), data].concat()
}

/// A UDP datagram; its checksum is filled in by the IP packet around it.
pub fn udp(src: u16, dst: u16, data: &[u8]) -> Vec<u8> {
    let len = size_of::<udp::Header>() + data.len();
    let header = udp::Header { src: src.into(), dst: dst.into(), len: (len as u16).into(), checksum: 0.into() };
    [header.as_bytes(), data].concat()
}

/// An SCTP packet with its checksum.
pub fn sctp(src: u16, dst: u16, tag: u32, chunks: &[u8]) -> Vec<u8> {
    let mut packet = [&src.to_be_bytes()[..], &dst.to_be_bytes(), &tag.to_be_bytes(), &[0; 4], chunks].concat();
    let crc = crc32c::crc32c(&packet);
    packet[8..12].copy_from_slice(&crc.to_le_bytes());
    packet
}

/// An ICMP message with its checksum. IGMP messages have the same form, with the group in `rest`.
pub fn icmp(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut header = icmp::Header { kind, code, checksum: 0.into(), rest };
    header.checksum = Sum::ZERO.add_bytes(header.as_bytes()).add_bytes(data).finish().into();
    [header.as_bytes(), data].concat()
}

/// An ICMPv6 message; its checksum is filled in by the IPv6 packet around it.
pub fn icmpv6(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    let header = icmpv6::Header { kind, code, checksum: 0.into(), rest };
    [header.as_bytes(), data].concat()
}

/// A neighbour solicitation (135) or advertisement (136) with the link-layer address options that are given.
pub fn neighbor(
    kind: u8,
    reserved: u32,
    target: Ipv6Addr,
    source: Option<[u8; 6]>,
    target_mac: Option<[u8; 6]>,
) -> Vec<u8> {
    let mut body = target.octets().to_vec();
    body.extend(source.iter().flat_map(|&mac| nd::link_layer_option(nd::SOURCE_LINK_LAYER, mac)));
    body.extend(target_mac.iter().flat_map(|&mac| nd::link_layer_option(nd::TARGET_LINK_LAYER, mac)));
    icmpv6(kind, 0, reserved.to_be_bytes(), &body)
}

/// An ARP or RARP message.
pub fn arp(opcode: u16, sha: [u8; 6], spa: Ipv4Addr, tha: [u8; 6], tpa: Ipv4Addr) -> Vec<u8> {
    arp::Header::new(opcode, sha, spa, tha, tpa).as_bytes().to_vec()
}

/// What [`Ipv4::packet`] puts into the header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub proto: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Flags and fragment offset.
    pub flags_offset: u16,
    /// Options, a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

impl Default for Ipv4<'_> {
    fn default() -> Self {
        let unspecified = Ipv4Addr::UNSPECIFIED;
        Ipv4 { src: unspecified, dst: unspecified, proto: 0, tos: 0, ttl: 64, flags_offset: 0, options: &[] }
    }
}

impl Ipv4<'_> {
    /// The packet around `payload`, whose L4 checksum is filled in unless this is a later fragment.
    pub fn packet(&self, mut payload: Vec<u8>) -> Vec<u8> {
        let header_len = size_of::<ipv4::Header>() + self.options.len();
        if self.flags_offset & 0x1fff == 0 {
            let pseudo = checksum::pseudo_v4(self.src, self.dst, self.proto, payload.len() as u16);
            fill_checksum(self.proto, pseudo, &mut payload);
        }
        let mut header = ipv4::Header {
            version_ihl: 0x40 | (header_len / 4) as u8,
            tos: self.tos,
            total_len: ((header_len + payload.len()) as u16).into(),
            id: 0.into(),
            flags_offset: self.flags_offset.into(),
            ttl: self.ttl,
            proto: self.proto,
            checksum: 0.into(),
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        header.checksum = Sum::ZERO.add_bytes(header.as_bytes()).add_bytes(self.options).finish().into();
        [header.as_bytes(), self.options, &payload].concat()
    }
}

/// What [`Ipv6::packet`] puts into the header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// Protocol of the upper layer.
    pub proto: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Extension headers: protocol and bytes, a multiple of 8. The first byte of each is overwritten with
    /// the protocol of the next.
    pub extensions: &'a [(u8, &'a [u8])],
}

impl Default for Ipv6<'_> {
    fn default() -> Self {
        let unspecified = Ipv6Addr::UNSPECIFIED;
        Ipv6 {
            src: unspecified,
            dst: unspecified,
            proto: ip_proto::NO_NEXT,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            extensions: &[],
        }
    }
}

impl Ipv6<'_> {
    /// The packet around `upper`, whose checksum is filled in unless this is a later fragment.
    pub fn packet(&self, mut upper: Vec<u8>) -> Vec<u8> {
        let later = |&(proto, bytes): &(u8, &[u8])| {
            proto == ip_proto::FRAGMENT && matches!(bytes, [_, _, high, low, ..] if *high != 0 || low & 0xf8 != 0)
        };
        if !self.extensions.iter().any(later) {
            let pseudo = checksum::pseudo_v6(self.src, self.dst, self.proto, upper.len() as u32);
            fill_checksum(self.proto, pseudo, &mut upper);
        }
        let nexts = self.extensions.iter().map(|e| e.0).chain([self.proto]);
        let mut chain = Vec::new();
        for ((_, bytes), next) in self.extensions.iter().zip(nexts.clone().skip(1)) {
            chain.push(next);
            chain.extend(bytes.iter().skip(1));
        }
        let header = ipv6::Header {
            version_class_label: (6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff).into(),
            payload_len: ((chain.len() + upper.len()) as u16).into(),
            next: self.extensions.first().map_or(self.proto, |e| e.0),
            hop_limit: self.hop_limit,
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        [header.as_bytes(), &chain, &upper].concat()
    }
}

/// Puts the checksum of TCP, UDP or ICMPv6 into a message that is long enough to have one.
fn fill_checksum(proto: u8, pseudo: Sum, message: &mut [u8]) {
    let at = match proto {
        ip_proto::TCP => 16,
        ip_proto::UDP => 6,
        ip_proto::ICMPV6 => 2,
        _ => return,
    };
    if message.len() < at + 2 {
        return;
    }
    message[at..at + 2].fill(0);
    let sum = pseudo.add_bytes(message);
    let value = if proto == ip_proto::UDP { sum.finish_udp() } else { sum.finish() };
    message[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A label stack around `payload`. The bottom-of-stack bits are those of the entries.
pub fn mpls(stack: &[mpls::LabelStackEntry], payload: &[u8]) -> Vec<u8> {
    let mut packet: Vec<u8> = stack.iter().flat_map(|entry| entry.0.to_be_bytes()).collect();
    packet.extend(payload);
    packet
}

/// An Ethernet frame; each of `tags` is a TPID and a TCI, the outer one first.
pub fn ethernet(dst: [u8; 6], src: [u8; 6], tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let first = tags.first().map_or(ethertype, |tag| tag.0);
    let mut frame = ethernet::Header { dst, src, ethertype: first.into() }.as_bytes().to_vec();
    for (i, &(_, tci)) in tags.iter().enumerate() {
        let next = tags.get(i + 1).map_or(ethertype, |tag| tag.0);
        frame.extend(vlan::Header { tci: tci.into(), ethertype: next.into() }.as_bytes());
    }
    frame.extend(payload);
    frame
}

/// An 802.3 frame with a SNAP header for `ethertype`.
pub fn snap(dst: [u8; 6], src: [u8; 6], tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let body = [ethernet::Snap::new(ethertype).as_bytes(), payload].concat();
    let len = (body.len() as u16).min(ethertype::MIN - 1);
    ethernet(dst, src, tags, len, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn ipv4_packets_are_consistent() {
        let spec = Ipv4 { src: A, dst: B, proto: 17, options: &[1, 1, 1, 0], ..Ipv4::default() };
        let bytes = spec.packet(udp(1, 2, &[7; 5]));
        let packet = ipv4::Packet::new_checked(&bytes).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!((packet.total_len(), packet.options()), (bytes.len(), &[1, 1, 1, 0][..]));
        let sum = checksum::pseudo_v4(A, B, 17, packet.payload().len() as u16).add_bytes(packet.payload());
        assert_eq!(sum.finish(), 0);
        assert_eq!(udp::Datagram::new_checked(packet.payload()).unwrap().len(), 13);
    }

    #[test]
    fn later_fragments_keep_their_bytes() {
        let spec = Ipv4 { proto: 17, flags_offset: 1, ..Ipv4::default() };
        let bytes = spec.packet(vec![5; 16]);
        assert_eq!(ipv4::Packet::new_checked(&bytes).unwrap().payload(), [5; 16]);
    }

    #[test]
    fn ipv6_extension_headers_are_chained() {
        let extensions: [(u8, &[u8]); 2] = [(0, &[0; 8]), (44, &[0, 0, 0, 1, 0, 0, 0, 9])];
        let spec = Ipv6 { proto: 58, extensions: &extensions, ..Ipv6::default() };
        let bytes = spec.packet(icmpv6(128, 0, [0; 4], &[1, 2, 3]));
        let packet = ipv6::Packet::new_checked(&bytes).unwrap();
        let Some(Ok(ipv6::ChainedHeader::Upper(58, upper))) = packet.headers().last() else { panic!("no upper layer") };
        let message = icmpv6::Packet::new_checked(upper).unwrap();
        assert!(message.verify_checksum(packet.src(), packet.dst()));
    }

    #[test]
    fn tags_and_snap_are_chained() {
        let frame = snap([1; 6], [2; 6], &[(0x88a8, 5), (0x8100, 6)], 0x809b, &[9]);
        assert_eq!(frame[12..], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0, 9, 0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0x9b, 9]);
    }
}
