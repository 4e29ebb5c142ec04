//! Entry for fuzzing: frames whose descriptions lie, as taps, packet sockets and guests can hand them over.

use std::ops::Range;

use packet::buffer::heap::HEAP;
use packet::{Offload, Packet};

use super::{MAX_SEGMENTS, complete, complete_checksum};
use crate::{Offloads, vnet};

/// Reads what the port that a frame leaves by can do (a byte), how much longer than written the frame is (two
/// bytes), a `struct virtio_net_hdr`, and the frame; see [`finish`].
pub fn run(bytes: &[u8]) {
    let Some((&[can, low, high], rest)) = bytes.split_first_chunk() else { return };
    let Some((header, frame)) = rest.split_first_chunk() else { return };
    let offload = vnet::decode(header);
    let known = Offload { flags: offload.flags & Offload::NEEDS_CSUM, ..offload };
    assert_eq!(vnet::decode(&vnet::encode(&offload)), known);
    let mut frame = frame.to_vec();
    frame.resize(frame.len() + usize::from(u16::from_le_bytes([low, high])), low);
    finish(&frame, offload, offloads(can));
}

/// What a port can do, a bit for each.
pub fn offloads(bits: u8) -> Offloads {
    let [csum, tso4, tso6, uso, tunnels, datagrams] = [1, 2, 4, 8, 16, 32].map(|bit| bits & bit != 0);
    Offloads { csum, tso4, tso6, uso, tunnels, datagrams }
}

/// Completes a frame and returns what came of it.
///
/// # Panics
/// Where something came of a frame that was refused, and where what came of it is not what a plain
/// calculation has.
pub fn finish(frame: &[u8], offload: Offload, can: Offloads) -> Vec<Packet> {
    let mut packet = Packet::from_slice(frame);
    *packet.offload_mut() = offload;
    let mut out = Vec::new();
    if complete(packet, can, &HEAP, &mut |packet| out.push(packet)).is_err() {
        assert!(out.is_empty(), "a part of a frame that was refused");
        return out;
    }
    assert!(!out.is_empty() && out.len() <= MAX_SEGMENTS);
    if can.datagrams && out.iter().any(|packet| packet.offload().is_gso() && packet.data() != frame) {
        check_datagrams(frame, offload, &out);
        return out;
    }
    for packet in &out {
        let offload = packet.offload();
        let checksum = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
        assert!(!offload.needs_csum() || can.csum && checksum + 2 <= packet.len(), "{offload:?} left to the port");
        assert!(!offload.is_gso() || can.csum && out.len() == 1 && packet.data() == frame, "{offload:?} left to it");
    }
    match offload.is_gso() {
        true if out[0].offload().is_gso() => {}
        true => check_segments(frame, offload, &out),
        false => check_checksum(frame, offload, &out),
    }
    out
}

/// Super-frames of UDP: cut as such, they are the segments that the frame is cut into otherwise, but for the outer checksum, which they have.
fn check_datagrams(frame: &[u8], offload: Offload, out: &[Packet]) {
    let outer = HeaderOffsets::find(frame).expect("headers of what was cut");
    let segments = finish(frame, offload, Offloads::default());
    let mut datagrams = Vec::new();
    for packet in out {
        assert!(packet.len() <= 65535, "too long");
        datagrams.extend(finish(packet.data(), *packet.offload(), Offloads::default()));
    }
    assert_eq!(datagrams.len(), segments.len());
    for (datagram, segment) in datagrams.iter_mut().zip(&segments) {
        assert_ne!(word(datagram.data(), outer.l4 + 6), 0, "no outer checksum");
        let checksum = outer.l4 + 6..outer.l4 + 8;
        datagram.data_mut()[checksum.clone()].copy_from_slice(&segment.data()[checksum]);
        assert_eq!(datagram.data(), segment.data());
    }
}

/// A frame that was not cut: only its checksum has changed, and covers what it was said to cover.
fn check_checksum(frame: &[u8], offload: Offload, out: &[Packet]) {
    let [packet] = out else { panic!("{} frames of one", out.len()) };
    let start = usize::from(offload.csum_start);
    let at = start + usize::from(offload.csum_offset);
    if !offload.needs_csum() || packet.offload().needs_csum() {
        assert_eq!(packet.data(), frame);
        return;
    }
    let is_crc =
        offload.csum_offset == 8 && HeaderOffsets::find(frame).is_some_and(|p| (p.l4, p.protocol) == (start, 132));
    let end = at + if is_crc { 4 } else { 2 };
    assert_eq!((&packet.data()[..at], &packet.data()[end..]), (&frame[..at], &frame[end..]));
    if !is_crc && (at - start).is_multiple_of(2) {
        // What stood in its place was the pseudo header's sum.
        assert_eq!(plain_sum(&[&frame[at..end], &packet.data()[start..]].concat()), 0xffff, "checksum");
    }
}

/// Segments: each is a packet with lengths and checksums of its own, and together they have the payload.
fn check_segments(frame: &[u8], offload: Offload, out: &[Packet]) {
    let whole = HeaderOffsets::find(frame).expect("headers of what was cut");
    if offload.needs_csum() && usize::from(offload.csum_start) > whole.l4 {
        return check_tunnel_segments(frame, &whole, offload, out);
    }
    let mut payload = Vec::new();
    for (index, segment) in out.iter().enumerate() {
        let mut packet = Packet::from_slice(segment.data());
        *packet.offload_mut() = *segment.offload();
        complete_checksum(&mut packet).expect("a checksum within the segment");
        let segment = packet.data();
        let place = HeaderOffsets::find(segment).expect("headers of a segment");
        assert_eq!((place.l3, place.l4, place.payload), (whole.l3, whole.l4, whole.payload));
        place.check(segment);
        let part = &segment[place.payload..];
        let size = usize::from(offload.gso_size);
        assert!(part.len() == size || index + 1 == out.len() && part.len() < size, "{} of {size}", part.len());
        if place.protocol == 6 {
            let number = |frame: &[u8]| u32::from_be_bytes(frame[place.l4 + 4..place.l4 + 8].try_into().expect("four"));
            assert_eq!(number(segment), number(frame).wrapping_add(payload.len() as u32));
        }
        if !place.ipv6 {
            let id = |frame: &[u8]| word(frame, place.l3 + 4) as u16;
            assert_eq!(id(segment), id(frame).wrapping_add(index as u16));
        }
        payload.extend_from_slice(part);
    }
    assert_eq!(payload, frame[whole.payload..whole.end], "payload");
}

/// Segments in a tunnel: each has a tunnel header with lengths and checksums of its own, and together they have the
/// payload.
fn check_tunnel_segments(frame: &[u8], whole: &HeaderOffsets, offload: Offload, out: &[Packet]) {
    let l4 = usize::from(offload.csum_start);
    let is_udp = offload.gso_type & !Offload::GSO_ECN == Offload::GSO_UDP_L4;
    let payload = l4 + if is_udp { 8 } else { usize::from(frame[l4 + 12] / 16) * 4 };
    let mut at = payload;
    for (index, packet) in out.iter().enumerate() {
        let segment = packet.data();
        let is_covered = word(frame, whole.l4 + 6) != 0 && whole.protocol == 17;
        assert!(!packet.offload().needs_csum() || !is_covered, "left, though the outer checksum covers it");
        let place = HeaderOffsets::find(segment).expect("headers of a segment");
        assert_eq!((place.l3, place.l4), (whole.l3, whole.l4));
        let addresses = place.check_ip(segment);
        if place.protocol == 17 {
            assert_eq!(word(segment, place.l4 + 4), segment.len() - place.l4, "UDP length");
            assert_eq!(word(segment, place.l4 + 6) == 0, word(frame, place.l4 + 6) == 0, "checksum or none");
            if word(segment, place.l4 + 6) != 0 {
                place.check_l4(segment, addresses);
            }
        }
        let part = &segment[payload..];
        let size = usize::from(offload.gso_size);
        assert!(part.len() == size || index + 1 == out.len() && part.len() < size, "{} of {size}", part.len());
        assert_eq!(part, &frame[at..at + part.len()]);
        at += part.len();
    }
}

/// Where the headers of a TCP, UDP or SCTP packet are: a plain walk over them.
struct HeaderOffsets {
    l3: usize,
    l4: usize,
    payload: usize,
    /// End of the packet by IP's length, where that says one.
    end: usize,
    ipv6: bool,
    protocol: u8,
}

impl HeaderOffsets {
    fn find(frame: &[u8]) -> Option<HeaderOffsets> {
        let mut l3 = 14;
        let mut kind = word_at(frame, 12)?;
        while kind == 0x8100 || kind == 0x88a8 {
            kind = word_at(frame, l3 + 2)?;
            l3 += 4;
        }
        if kind == 0x8847 || kind == 0x8848 {
            let mut bottom = false;
            while !bottom {
                bottom = frame.get(l3 + 2)? & 1 != 0;
                l3 += 4;
            }
            kind = if frame.get(l3)? >> 4 == 6 { 0x86dd } else { 0x0800 };
        }
        let (mut protocol, mut l4) = match kind {
            0x0800 => (*frame.get(l3 + 9)?, l3 + usize::from(frame[l3] % 16) * 4),
            0x86dd => (*frame.get(l3 + 6)?, l3 + 40),
            _ => return None,
        };
        while kind == 0x86dd && [0, 43, 60].contains(&protocol) {
            protocol = *frame.get(l4)?;
            l4 += 8 * (1 + usize::from(*frame.get(l4 + 1)?));
        }
        let length = match kind {
            0x0800 => word_at(frame, l3 + 2)?,
            _ => Some(word_at(frame, l3 + 4)?).filter(|&n| n > 0).map_or(0, |n| n + 40),
        };
        let end = if length == 0 { frame.len() } else { frame.len().min(l3 + length) };
        let payload = match protocol {
            6 => l4 + usize::from(frame.get(l4 + 12)? / 16) * 4,
            _ => l4 + 8,
        };
        Some(HeaderOffsets { l3, l4, payload, end, ipv6: kind == 0x86dd, protocol })
    }

    /// Lengths and checksums of a finished packet.
    fn check(&self, frame: &[u8]) {
        let addresses = self.check_ip(frame);
        if self.protocol == 17 {
            assert_eq!(word(frame, self.l4 + 4), frame.len() - self.l4, "UDP length");
            if !self.ipv6 && word(frame, self.l4 + 6) == 0 {
                return;
            }
        }
        self.check_l4(frame, addresses);
    }

    /// Length and checksum of IP. Returns where the addresses are.
    fn check_ip(&self, frame: &[u8]) -> Range<usize> {
        let HeaderOffsets { l3, l4, .. } = *self;
        match self.ipv6 {
            true => {
                assert_eq!(word(frame, l3 + 4), frame.len() - l3 - 40, "IPv6 length");
                l3 + 8..l3 + 40
            }
            false => {
                assert_eq!(word(frame, l3 + 2), frame.len() - l3, "IPv4 length");
                assert_eq!(plain_sum(&frame[l3..l4]), 0xffff, "IPv4 checksum");
                l3 + 12..l3 + 20
            }
        }
    }

    fn check_l4(&self, frame: &[u8], addresses: Range<usize>) {
        let length = ((frame.len() - self.l4) as u16).to_be_bytes();
        let pseudo = [&frame[addresses], &[0, self.protocol], &length, &frame[self.l4..]].concat();
        assert_eq!(plain_sum(&pseudo), 0xffff, "L4 checksum");
    }
}

fn word_at(frame: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(*frame.get(at)?) * 256 + usize::from(*frame.get(at + 1)?))
}

fn word(frame: &[u8], at: usize) -> usize {
    word_at(frame, at).expect("within the frame")
}

/// The internet checksum's sum in its plainest form, byte by byte: independent of the code under test. Of
/// the two forms of zero it gives the second.
fn plain_sum(bytes: &[u8]) -> u32 {
    let mut total = 0u32;
    for (i, &byte) in bytes.iter().enumerate() {
        total += if i % 2 == 0 { u32::from(byte) * 256 } else { u32::from(byte) };
        if total > 0xffff {
            total -= 0xffff;
        }
    }
    if total == 0 { 0xffff } else { total }
}
