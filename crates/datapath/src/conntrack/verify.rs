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
        let own = usize::from(word(head, IPV4 + 4));
        let Some(all) = packet_bytes.get(..usize::from(word(head, 2))) else { return false };
        if own < UDP || own + IPV4 > all.len() {
            return false;
        }
        let verify = to_verify(packet.offload());
        let unchecked = word(head, IPV4 + 6) == 0 || !verify.transport;
        return (!verify.ip || is_right_header(head)) && (unchecked || is_right_above_ipv4(head, ip_proto::UDP, all));
    }
    is_right_udp_over_ipv6(packet, packet_bytes)
}

#[inline(never)]
fn is_right_udp_over_ipv6(packet: &Packet, packet_bytes: &[u8]) -> bool {
    let Some((head, all)) = ipv6(packet_bytes) else { return false };
    let Some(udp) = all[IPV6..].first_chunk::<UDP>() else { return false };
    let own = usize::from(word(udp, 4));
    own >= UDP
        && own + IPV6 <= all.len()
        && (!to_verify(packet.offload()).transport || is_right_above_ipv6(head, ip_proto::UDP, all))
}

/// What was found where a TCP segment over IPv4 is expected.
pub enum Expected {
    /// One whose lengths and checksums are right.
    Right(Segment),
    /// One with a wrong length or checksum.
    Wrong,
    /// No IPv4 header that is followed by one of TCP.
    Other,
}

/// The TCP segment of a packet whose IPv4 header begins at `ip`, without options.
#[inline(always)]
pub fn tcp_segment_over_ipv4(packet: &Packet, ip: usize) -> Expected {
    let Some(packet_bytes) = packet.data().get(ip..) else { return Expected::Wrong };
    let Some(head) = packet_bytes.first_chunk::<{ IPV4 + TCP }>() else { return Expected::Other };
    if head[0] >> 4 != 4 {
        return Expected::Other;
    }
    let Some(all) = packet_bytes.get(..usize::from(word(head, 2))) else { return Expected::Wrong };
    let verify = to_verify(packet.offload());
    if all.len() < IPV4 + TCP
        || verify.ip && !is_right_header(head)
        || verify.transport && !is_right_above_ipv4(head, ip_proto::TCP, all)
    {
        return Expected::Wrong;
    }
    match head[IPV4..].first_chunk().and_then(|tcp| segment(tcp, all.len() - IPV4)) {
        Some(segment) => Expected::Right(segment),
        None => Expected::Wrong,
    }
}

/// The same over IPv6, without extensions; `None` where it is not one, or a length or the checksum is wrong.
pub fn tcp_segment_over_ipv6(packet: &Packet, ip: usize) -> Option<Segment> {
    let (head, all) = ipv6(packet.data().get(ip..)?)?;
    let tcp = all[IPV6..].first_chunk::<TCP>()?;
    if to_verify(packet.offload()).transport && !is_right_above_ipv6(head, ip_proto::TCP, all) {
        return None;
    }
    segment(tcp, all.len() - IPV6)
}

/// The segment over either, where it is one, and right.
#[inline(always)]
pub fn tcp_segment(packet: &Packet, ip: usize) -> Option<Segment> {
    match tcp_segment_over_ipv4(packet, ip) {
        Expected::Right(segment) => Some(segment),
        Expected::Wrong => None,
        Expected::Other => tcp_segment_over_ipv6(packet, ip),
    }
}

/// The segment of TCP of a packet whose lengths and checksums were found to be right.
pub fn verified_segment(packet: &Packet, ip: usize, transport: usize) -> Option<Segment> {
    let all = packet.data().get(ip..)?;
    let head = all.first_chunk::<IPV4>()?;
    let len = if head[0] >> 4 == 4 { word(head, 2).into() } else { IPV6 + usize::from(word(head, 4)) };
    segment(packet.data().get(transport..)?.first_chunk()?, len.checked_sub(transport.checked_sub(ip)?)?)
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

/// The header of an IPv6 packet, and the packet, without padding of the frame.
#[inline(always)]
fn ipv6(packet: &[u8]) -> Option<(&[u8; IPV6], &[u8])> {
    let head = packet.first_chunk::<IPV6>()?;
    let all = packet.get(..IPV6 + usize::from(word(head, 4)))?;
    (head[0] >> 4 == 6).then_some((head, all))
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Whether the checksum of TCP or UDP over IPv4 is right (RFC 1071), of a packet that begins with these headers. Sums are multiples of
/// 0xffff then, and zero only where all is zero, which no pseudo header is.
#[inline(always)]
fn is_right_above_ipv4<const HEADERS: usize>(head: &[u8; HEADERS], proto: u8, all: &[u8]) -> bool {
    let Some((words, last)) = behind::<HEADERS>(all) else { return false };
    let addresses = long(head, 12);
    let rest = pseudo(proto, all.len() - IPV4);
    let sum = match HEADERS - IPV4 {
        UDP => chain([addresses, long(head, 20), words, last, rest]),
        _ => chain([addresses, long(head, 20), long(head, 28), half(head, 36), words, last, rest]),
    };
    sum.is_multiple_of(0xffff)
}

/// The same over IPv6.
fn is_right_above_ipv6(head: &[u8; IPV6], proto: u8, all: &[u8]) -> bool {
    let Some((words, last)) = behind::<IPV6>(all) else { return false };
    let rest = pseudo(proto, all.len() - IPV6);
    chain([long(head, 8), long(head, 16), long(head, 24), long(head, 32), words, last, rest]).is_multiple_of(0xffff)
}

/// The sum of what a pseudo header has beside the addresses.
#[inline(always)]
fn pseudo(proto: u8, len: usize) -> u64 {
    u64::from(u16::from(proto).swap_bytes()) + u64::from((len as u16).swap_bytes())
}

/// Whether the checksum of an IPv4 header without options is right. A sum is zero only where all is zero, which no header
/// is.
#[inline(always)]
fn is_right_header<const HEADERS: usize>(head: &[u8; HEADERS]) -> bool {
    chain([long(head, 0), long(head, 8), half(head, 16)]).is_multiple_of(0xffff)
}

/// Eight bytes of a header. All words have the bytes of 16 bits the other way round: to whether their sum is a multiple of 0xffff,
/// that does not matter.
#[inline(always)]
fn long<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Four bytes of a header.
#[inline(always)]
fn half<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

/// One's complement sum, in one chain of additions with carry; it keeps the remainder by 0xffff, since that divides 2^64 - 1. The
/// last word is less than 2^63, so that no carry is left.
#[inline(always)]
fn chain<const WORDS: usize>(words: [u64; WORDS]) -> u64 {
    debug_assert!(words[WORDS - 1] < 1 << 63);
    let (mut sum, mut carry) = (0u64, false);
    for word in words {
        (sum, carry) = sum.carrying_add(word, carry);
    }
    sum + u64::from(carry)
}

/// What is behind the headers of a packet, which are at least eight bytes: the sum of the words, and the rest.
#[inline(always)]
fn behind<const HEADERS: usize>(all: &[u8]) -> Option<(u64, u64)> {
    const { assert!(HEADERS >= 8 && HEADERS.is_multiple_of(2)) };
    let (words, rest) = all.get(HEADERS..)?.as_chunks::<8>();
    let sum = match words.len() {
        ..MANY => words.iter().fold(0, |sum, word| add(sum, u64::from_le_bytes(*word))),
        _ => sum_of_many(words),
    };
    // The rest without a branch for each length: the last eight bytes, without those before the rest.
    let before = 4 * (8 - rest.len());
    Some((sum, u64::from_le_bytes(*all.last_chunk()?) >> before >> before))
}

/// From so many words on, [`sum_of_many`] is faster.
const MANY: usize = 16;

/// The sum of many words. Halves are added in lanes that do not overflow, which the compiler makes vectors of.
#[inline(always)]
fn sum_of_many(words: &[[u8; 8]]) -> u64 {
    let mut lanes = [0u64; 8];
    let (groups, rest) = words.as_chunks::<8>();
    for group in groups {
        for (lane, word) in lanes.iter_mut().zip(group) {
            let word = u64::from_le_bytes(*word);
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    let rest = rest.iter().map(|word| u64::from_le_bytes(*word));
    lanes.into_iter().chain(rest).fold(0, add)
}

/// One's complement addition of 64 bits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use packet::wire::{build, checksum};

    /// A packet of TCP or UDP with so many bytes of data, none of which is zero.
    fn packet(v6: bool, proto: u8, len: usize) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|i| (i * 37 % 251) as u8 + 1).collect();
        let above = match proto {
            ip_proto::TCP => build::tcp(1000, 80, 0x18, &data),
            _ => build::udp(1000, 53, &data),
        };
        if v6 {
            build::Ipv6 { proto, ..build::Ipv6::default() }.packet(above)
        } else {
            build::Ipv4 { proto, ..build::Ipv4::default() }.packet(above)
        }
    }

    /// The segment, or one of no bytes for UDP, if the packet is right.
    fn read(bytes: &[u8], proto: u8) -> Option<Segment> {
        let packet = Packet::from_slice(bytes);
        match proto {
            ip_proto::TCP => match tcp_segment_over_ipv4(&packet, 0) {
                Expected::Right(segment) => Some(segment),
                Expected::Wrong => None,
                Expected::Other => tcp_segment_over_ipv6(&packet, 0),
            },
            _ => is_right_udp(&packet, 0).then(Segment::default),
        }
    }

    /// Whatever the length, behind or without padding; and not when a single bit has changed that the checksums cover.
    #[test]
    fn each_bit_of_a_packet_counts() {
        for (v6, proto) in [(false, 6), (false, 17), (true, 6), (true, 17)] {
            for len in (0..150).chain([1459, 1460]) {
                let mut bytes = packet(v6, proto, len);
                let whole = bytes.len();
                bytes.extend([0xee; 9]);
                let data = if proto == ip_proto::TCP { len as u32 } else { 0 };
                for part in [&bytes[..], &bytes[..whole]] {
                    assert_eq!(read(part, proto).map(|segment| segment.len), Some(data), "{v6} {proto} {len}");
                }
                assert_eq!(read(&bytes[..whole - 1], proto), None);
                let header = if v6 { IPV6 } else { IPV4 };
                let covered = if v6 { 8 } else { 0 }..whole;
                for at in covered.step_by(if len < 40 { 1 } else { 13 }) {
                    // What says where the headers are is known of the packets of an entry.
                    if at == 0 || proto == ip_proto::TCP && at == header + 12 {
                        continue;
                    }
                    bytes[at] ^= 1 << (at % 8);
                    assert_eq!(read(&bytes, proto), None, "{v6} {proto} {len} {at}");
                    bytes[at] ^= 1 << (at % 8);
                }
            }
        }
    }

    #[test]
    fn lengths_that_are_wrong() {
        for v6 in [false, true] {
            let header = if v6 { IPV6 } else { IPV4 };
            let tcp = packet(v6, 6, 0);
            assert!((0..tcp.len()).all(|len| read(&tcp[..len], 6).is_none()));
            // An offset of the data before the end of the header, and behind that of the packet; the checksum is made right.
            for offset in [0x40, 0x60] {
                let mut bytes = tcp.clone();
                bytes[header + 12] = offset;
                let sum = checksum::update16(word(&bytes, header + 16), 0x5018, u16::from_be_bytes([offset, 0x18]));
                bytes[header + 16..header + 18].copy_from_slice(&sum.to_be_bytes());
                assert_eq!(read(&bytes, 6), None, "{offset}");
            }
        }
    }
}
