//! What the short way reads of a packet: its checksums, where no port has verified them, and the TCP segment.
//!
//! It accepts what [`Headers::of`](::conntrack::Headers::of) accepts, of packets of TCP and UDP whose headers are where they
//! are expected.

use ::conntrack::headers::Verify;
use ::conntrack::nat::Place;
use ::conntrack::protocol::tcp::Segment;
use packet::wire::ip_proto;
use packet::{Offload, Packet};

/// Bytes of an IPv4 header without options.
const IPV4: usize = 20;
/// Bytes of an IPv6 header.
const IPV6: usize = 40;
/// Bytes of a TCP header without options.
const TCP: usize = 20;
/// Bytes of a UDP header.
const UDP: usize = 8;

/// The checksums that nobody has verified. A packet with one that is still to be completed was never on a wire; ports verify
/// that of the transport protocol only.
#[inline(always)]
pub fn to_verify(offload: &Offload) -> Verify {
    let local = offload.needs_csum() || offload.is_gso();
    Verify { ip: !local, transport: !local && offload.flags & Offload::DATA_VALID == 0 }
}

/// Whether the lengths and checksums of a UDP packet are right whose IP header begins at `ip`, without options or extensions.
#[inline(always)]
pub fn is_right_udp(packet: &Packet, ip: usize) -> bool {
    let Some(packet_bytes) = packet.data().get(ip..) else { return false };
    if let Some(head) = packet_bytes.first_chunk::<{ IPV4 + UDP }>()
        && head[0] >> 4 == 4
    {
        let all = usize::from(word(head, 2));
        let own = usize::from(word(head, IPV4 + 4));
        if own < UDP || own + IPV4 > all || all > packet_bytes.len() {
            return false;
        }
        let verify = to_verify(packet.offload());
        let unchecked = word(head, IPV4 + 6) == 0 || !verify.transport;
        return (!verify.ip || is_right_header(head))
            && (unchecked || is_right_above_ipv4(head, ip_proto::UDP, &packet_bytes[IPV4..all]));
    }
    is_right_udp_over_ipv6(packet, packet_bytes)
}

#[inline(never)]
fn is_right_udp_over_ipv6(packet: &Packet, packet_bytes: &[u8]) -> bool {
    let Some((head, above)) = above_ipv6(packet_bytes) else { return false };
    let Some(udp) = above.first_chunk::<UDP>() else { return false };
    let own = usize::from(word(udp, 4));
    own >= UDP
        && own <= above.len()
        && (!to_verify(packet.offload()).transport || is_right_above_ipv6(head, ip_proto::UDP, above))
}

/// The TCP segment of a packet whose IP header begins at `ip`, without options or extensions; `None` where a length or a
/// checksum is wrong.
#[inline(always)]
pub fn tcp_segment(packet: &Packet, ip: usize) -> Option<Segment> {
    let packet_bytes = packet.data().get(ip..)?;
    if let Some(head) = packet_bytes.first_chunk::<{ IPV4 + TCP }>()
        && head[0] >> 4 == 4
    {
        let above = packet_bytes.get(IPV4..usize::from(word(head, 2)))?;
        let verify = to_verify(packet.offload());
        if verify.ip && !is_right_header(head) || verify.transport && !is_right_above_ipv4(head, ip_proto::TCP, above) {
            return None;
        }
        return segment(head[IPV4..].first_chunk()?, above.len());
    }
    tcp_segment_over_ipv6(packet, packet_bytes)
}

#[inline(never)]
fn tcp_segment_over_ipv6(packet: &Packet, packet_bytes: &[u8]) -> Option<Segment> {
    let (head, above) = above_ipv6(packet_bytes)?;
    if to_verify(packet.offload()).transport && !is_right_above_ipv6(head, ip_proto::TCP, above) {
        return None;
    }
    segment(above.first_chunk()?, above.len())
}

/// The segment with this header, and so many bytes with it.
#[inline(always)]
fn segment(head: &[u8; TCP], all: usize) -> Option<Segment> {
    let long = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let data = usize::from(head[12] >> 4) * 4;
    if data < TCP {
        return None;
    }
    let len = all.checked_sub(data)? as u32;
    let flags = u16::from(head[13] & 0x3f);
    Some(Segment { seq: long(4), ack: long(8), flags, window: word(head, 14), len, scale: None })
}

/// The header of an IPv6 packet, and what is above it, without padding of the frame.
#[inline(always)]
fn above_ipv6(packet: &[u8]) -> Option<(&[u8; IPV6], &[u8])> {
    let head = packet.first_chunk::<IPV6>()?;
    let above = packet.get(IPV6..IPV6 + usize::from(word(head, 4)))?;
    (head[0] >> 4 == 6).then_some((head, above))
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Whether the checksum of TCP or UDP over IPv4 is right (RFC 1071). Sums are multiples of 0xffff then, and zero only where all
/// is zero, which no pseudo header is.
#[inline(always)]
fn is_right_above_ipv4(head: &[u8], proto: u8, above: &[u8]) -> bool {
    let pseudo = u64::from(u16::from(proto).to_be()) + u64::from((above.len() as u16).to_be());
    add(add(sum(&head[12..IPV4]), sum(above)), pseudo).is_multiple_of(0xffff)
}

/// The same over IPv6.
fn is_right_above_ipv6(head: &[u8; IPV6], proto: u8, above: &[u8]) -> bool {
    let pseudo = u64::from(u16::from(proto).to_be()) + u64::from((above.len() as u16).to_be());
    add(add(sum(&head[8..]), sum(above)), pseudo).is_multiple_of(0xffff)
}

/// Whether the checksum of an IPv4 header without options is right. A sum is zero only where all is zero, which no header
/// is.
#[inline(always)]
fn is_right_header(head: &[u8]) -> bool {
    sum(&head[..IPV4]).is_multiple_of(0xffff)
}

/// The sum of 16-bit words as they lie in memory, in no particular form: the order of bytes within a word does not matter
/// to whether it is a multiple of 0xffff.
#[inline(always)]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = 0;
    for word in words {
        sum = add(sum, u64::from_ne_bytes(*word));
    }
    // The rest is read as it lies: bytes that were just copied together could not be read at once.
    let (halves, rest) = rest.as_chunks::<4>();
    if let [half] = halves {
        sum = add(sum, u64::from(u32::from_ne_bytes(*half)));
    }
    match rest {
        [a, b, c] => add(sum, u64::from(u32::from_ne_bytes([*a, *b, *c, 0]))),
        [a, b] => add(sum, u64::from(u16::from_ne_bytes([*a, *b]))),
        [a] => add(sum, u64::from(u16::from_ne_bytes([*a, 0]))),
        _ => sum,
    }
}

/// One's complement addition of 64 bits, which keeps the remainder by 0xffff, since that divides 2^64 - 1. A chain of these is a
/// chain of additions with carry; wider registers do not pay for frames as short as most.
#[inline(always)]
fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Where the headers of a TCP or UDP packet are.
pub fn place(packet: &Packet, ip: usize, transport: usize, tcp: bool) -> Place {
    let proto = if tcp { ip_proto::TCP } else { ip_proto::UDP };
    Place { ip, transport: Some(transport), end: packet.len(), proto, partial: packet.offload().needs_csum() }
}
