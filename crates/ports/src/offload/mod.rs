//! Software completion of what a port cannot take over: checksums, and the cutting of TCP and UDP
//! super-frames into segments.
//!
//! A local stack or guest hands over frames of up to 64 KiB with an unfinished checksum
//! ([`packet::Offload`]). Between two ports that understand these, they pass as they are. Where one
//! leaves through a port that does not, its transmit queue calls [`complete`]. A port that completes
//! checksums but does not cut gets segments whose checksums are left to it.
//!
//! Headers are looked for behind VLAN tags and MPLS labels. What the kernel understands in a vnet header
//! knows no labels, so a super-frame with labels is always cut here. Of tunnels, only the long form of that header knows
//! ([`tunnel_of`]): for other ports, super-frames in a [tunnel](outer) are cut here, too, or made such that the kernel
//! [cuts them as UDP](datagrams).

mod datagrams;
pub mod fragment;
pub mod fuzz;
mod outer;

use std::cell::Cell;

use packet::buffer::heap::HEADROOM;
use packet::wire::crc32c::crc32c;
use packet::{Memory, Offload, Packet};

use crate::{Offloads, pools};
use datagrams::Datagrams;
use outer::Outer;

/// Why a frame cannot be completed. Such a frame is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffloadError {
    /// The checksum lies outside the frame.
    #[error("checksum at {at} in a frame of {len} bytes")]
    Checksum {
        /// Where the checksum was said to be, from the first byte of the frame.
        at: usize,
        /// Bytes of frame.
        len: usize,
    },
    /// The headers are not those of the segmentation that is asked for.
    #[error("segmentation: {0}")]
    Segmentation(&'static str),
    /// There is no buffer for a segment. Those before it have been made.
    #[error("no buffer for a segment")]
    NoBuffer,
}

/// The most segments that one frame is cut into: a frame of 64 KiB with the smallest segments that
/// Linux makes for TCP (TCP_MIN_SND_MSS, 48 bytes). It bounds what one frame of a hostile guest costs; who sends many
/// such frames is charged for them ([`fine_frames`]).
pub const MAX_SEGMENTS: usize = 65536 / 48 + 1;

/// The most datagrams that one frame of UDP is cut into, as in Linux (UDP_MAX_SEGMENTS).
const MAX_DATAGRAMS: usize = 128;

/// Who sends frames with smaller segments than this asks for more work than for bytes: every host takes segments
/// of 536 bytes (RFC 9293 section 3.7.1).
const FINE: u16 = 512;

thread_local! {
    /// Frames with fine segments that this thread has received.
    static FINE_FRAMES: Cell<u64> = const { Cell::new(0) };
}

/// Takes note of a super-frame that was received.
#[inline]
pub fn note_received(offload: &Offload) {
    if offload.is_gso() && offload.gso_size < FINE {
        FINE_FRAMES.set(FINE_FRAMES.get() + 1);
    }
}

/// How many frames this thread has received that are to be cut into fine segments: what that costs is the
/// business of whoever sends them.
#[inline]
pub fn fine_frames() -> u64 {
    FINE_FRAMES.get()
}

/// Does what `can` cannot, and calls `emit` with each resulting packet, in order. Segments are made in
/// `memory`, or in the [pool of large frames](pools::large_frames) where they don't fit or `memory` has no buffer.
pub fn complete(
    mut packet: Packet,
    can: Offloads,
    memory: &'static Memory,
    emit: &mut dyn FnMut(Packet),
) -> Result<(), OffloadError> {
    let offload = *packet.offload();
    if offload.is_gso() {
        let taken = match offload.gso_type & !Offload::GSO_ECN {
            Offload::GSO_TCPV4 => can.tso4,
            Offload::GSO_TCPV6 => can.tso6,
            Offload::GSO_UDP_L4 => can.uso,
            _ => false,
        };
        if !(taken && can.csum) || is_labelled(packet.data()) {
            return cut(&packet, memory, can.csum, emit).map(|_| ());
        }
        // What is left to a port, which may be a device or another guest, is what could be cut here.
        let headers = GsoHeaders::parse(&packet)?;
        if headers.outer.as_ref().is_some_and(|outer| !(can.tunnels && outer.is_plain_udp())) {
            let datagrams = Datagrams::of(&packet, &headers).filter(|_| can.datagrams);
            return match datagrams.map(|datagrams| datagrams.make(&packet, memory, emit)) {
                None | Some(Err(OffloadError::NoBuffer)) => cut(&packet, memory, can.csum, emit).map(|_| ()),
                Some(result) => result,
            };
        }
        check_csum_place(&packet)?;
    } else if offload.needs_csum() {
        // The kernel would complete SCTP's CRC as an internet checksum: the header has no word for it.
        if !can.csum || is_sctp(&packet) {
            complete_checksum(&mut packet)?;
        } else {
            check_csum_place(&packet)?;
        }
    }
    emit(packet);
    Ok(())
}

/// Completes the L4 checksum of a packet that asks for it: the internet checksum over everything from
/// `csum_start`, where the checksum field holds the pseudo header's sum; for SCTP the CRC32c of
/// RFC 9260 appendix A.
pub fn complete_checksum(packet: &mut Packet) -> Result<(), OffloadError> {
    if !packet.offload().needs_csum() {
        return Ok(());
    }
    let at = check_csum_place(packet)?;
    let start = usize::from(packet.offload().csum_start);
    if is_sctp(packet) {
        let frame = packet.data_mut();
        if frame.len() < start + 12 {
            return Err(OffloadError::Checksum { at, len: frame.len() });
        }
        frame[at..at + 4].fill(0);
        let crc = crc32c(&frame[start..]);
        frame[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    } else {
        let frame = packet.data_mut();
        let sum = nonzero(checksum(&frame[start..]));
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let offload = packet.offload_mut();
    offload.flags &= !Offload::NEEDS_CSUM;
    (offload.csum_start, offload.csum_offset) = (0, 0);
    Ok(())
}

/// Leaves the checksum of a packet of TCP unfinished, if it is right. Packets of a connection can be merged then.
pub fn unfinish_tcp(packet: &mut Packet) {
    if let Some(right) = RightTcp::verify(packet) {
        right.unfinish(packet);
    }
}

/// What a packet of TCP that is as it was sent would have been without its checksum.
pub(crate) struct RightTcp {
    l4: usize,
    /// The sum of the pseudo header.
    pseudo: u16,
}

impl RightTcp {
    /// `None` where the checksum is wrong, or that of the IP header, or it is no whole packet of TCP.
    pub fn verify(packet: &Packet) -> Option<RightTcp> {
        let frame = packet.data();
        let Headers { l3, l4, end, ipv6, protocol } = Headers::parse(frame).ok()?;
        if protocol != 6 || end != frame.len() || end < l4 + 20 || is_labelled(frame) {
            return None;
        }
        let pseudo = pseudo_sum(frame, l3, l4, ipv6, protocol);
        if !ipv6 && fold(sum(&frame[l3..l4])) != 0 || fold(pseudo + sum(&frame[l4..])) != 0 {
            return None;
        }
        Some(RightTcp { l4, pseudo: !fold(pseudo) })
    }

    /// Leaves the checksum unfinished. Payload may have been appended since.
    pub fn unfinish(&self, packet: &mut Packet) {
        packet.data_mut()[self.l4 + 16..self.l4 + 18].copy_from_slice(&self.pseudo.to_be_bytes());
        *packet.offload_mut() =
            Offload { flags: Offload::NEEDS_CSUM, csum_start: self.l4 as u16, csum_offset: 16, ..Offload::NONE };
    }
}

/// Where the checksum is stored, which is within the frame.
fn check_csum_place(packet: &Packet) -> Result<usize, OffloadError> {
    let offload = packet.offload();
    let at = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
    match offload.needs_csum() && at + 2 > packet.len() {
        true => Err(OffloadError::Checksum { at, len: packet.len() }),
        false => Ok(at),
    }
}

fn is_sctp(packet: &Packet) -> bool {
    let offload = packet.offload();
    offload.csum_offset == 8
        && Headers::parse(packet.data()).is_ok_and(|h| h.protocol == 132 && h.l4 == usize::from(offload.csum_start))
}

/// Cuts a super-frame into segments of `gso_size` bytes of payload with complete headers and
/// checksums, and calls `emit` with each. Returns how many there are.
///
/// As Linux does: IPv4 identifications count up; FIN and PSH stay on the last segment alone; CWR stays
/// on the first alone (RFC 3168 section 6.1.2).
pub fn segment(packet: &Packet, memory: &'static Memory, emit: &mut dyn FnMut(Packet)) -> Result<usize, OffloadError> {
    cut(packet, memory, false, emit)
}

/// As [`segment`]; with `unfinished`, the segments' checksums are left to the port, as one asks for that
/// completes them.
fn cut(
    packet: &Packet,
    memory: &'static Memory,
    unfinished: bool,
    emit: &mut dyn FnMut(Packet),
) -> Result<usize, OffloadError> {
    let headers = GsoHeaders::parse(packet)?;
    let (head, payload) = packet.data()[..headers.end].split_at(headers.payload);
    let size = usize::from(packet.offload().gso_size);
    let count = payload.len().div_ceil(size).max(1);
    let most = if headers.tcp { MAX_SEGMENTS } else { MAX_DATAGRAMS };
    if count > most {
        return Err(OffloadError::Segmentation("more segments than are allowed for one frame"));
    }
    let (l3, ipv6) = headers.outer.as_ref().map_or((headers.l3, headers.ipv6), |outer| (outer.l3, outer.ipv6));
    let fixed = if ipv6 { 40 } else { 0 };
    if head.len() - l3 - fixed + size.min(payload.len()) > usize::from(u16::MAX) {
        return Err(OffloadError::Segmentation("a segment is longer than IP's length field can say"));
    }
    for index in 0..count {
        let part = &payload[index * size..payload.len().min((index + 1) * size)];
        let mut segment = empty(memory, head.len() + part.len()).ok_or(OffloadError::NoBuffer)?;
        segment.set_queue(packet.queue());
        let frame = segment.push_back(head.len() + part.len()).expect("allocated with this size");
        frame[..head.len()].copy_from_slice(head);
        frame[head.len()..].copy_from_slice(part);
        headers.finish(frame, index, index * size, index + 1 == count);
        let sum = headers.pseudo_sum(frame);
        let is_left = unfinished && headers.checksum && headers.outer.as_ref().is_none_or(|outer| !outer.checksum);
        if is_left {
            headers.store_checksum(frame, !fold(sum));
        } else if headers.checksum {
            let sum = nonzero(fold(sum + self::sum(&frame[headers.l4..])));
            headers.store_checksum(frame, sum);
        }
        if let Some(outer) = &headers.outer {
            outer.finish(frame, index);
        }
        if is_left {
            *segment.offload_mut() = headers.rest();
        }
        emit(segment);
    }
    Ok(count)
}

/// Where the headers of a tunnel are around a super-frame that is to be cut by its inner ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelPlace {
    /// The header of UDP.
    pub outer_l4: u16,
    /// The inner header of IP.
    pub inner_l3: u16,
    /// Whether the outer header is of IPv6.
    pub outer_ipv6: bool,
}

/// The tunnel over UDP that a super-frame is in.
pub fn tunnel_of(packet: &Packet) -> Option<TunnelPlace> {
    let offload = packet.offload();
    if !offload.is_gso() || !offload.needs_csum() {
        return None;
    }
    let headers = GsoHeaders::parse(packet).ok()?;
    let outer = headers.outer.filter(Outer::is_plain_udp)?;
    let place = |at: usize| u16::try_from(at).ok();
    Some(TunnelPlace { outer_l4: place(outer.l4)?, inner_l3: place(headers.l3)?, outer_ipv6: outer.ipv6 })
}

/// An empty packet with room for `len` bytes.
fn empty(memory: &'static Memory, len: usize) -> Option<Packet> {
    let memory = pools::of_parts(memory);
    (memory.allocate)(memory, HEADROOM, len).or_else(|| {
        let large = pools::large_frames().ok()?.memory();
        (large.allocate)(large, HEADROOM, len)
    })
}

/// Where the headers of a frame are, as far as segmentation needs to know.
struct Headers {
    l3: usize,
    l4: usize,
    /// End of the IP packet; bytes behind it are padding.
    end: usize,
    ipv6: bool,
    protocol: u8,
}

const SHORT: OffloadError = OffloadError::Segmentation("headers are cut short");

fn be16(frame: &[u8], at: usize) -> Result<u16, OffloadError> {
    frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(SHORT)
}

impl Headers {
    fn parse(frame: &[u8]) -> Result<Headers, OffloadError> {
        Headers::behind_ethernet(frame, 0)
    }

    /// The headers behind the Ethernet header at `l2`.
    fn behind_ethernet(frame: &[u8], l2: usize) -> Result<Headers, OffloadError> {
        let be16 = |at| be16(frame, at);
        let mut l3 = l2 + 14;
        while matches!(be16(l3 - 2)?, 0x8100 | 0x88a8) {
            l3 += 4;
        }
        let mut ethertype = be16(l3 - 2)?;
        if is_mpls(ethertype) {
            // The bottom of the stack says so (RFC 3032 section 2.1), and not what comes behind it.
            while be16(l3 + 2)? & 0x100 == 0 {
                l3 += 4;
            }
            l3 += 4;
            ethertype = if frame.get(l3).ok_or(SHORT)? >> 4 == 6 { 0x86dd } else { 0x0800 };
        }
        Headers::of_ip(frame, l3, ethertype)
    }

    /// The IP header at `l3` and what follows.
    fn of_ip(frame: &[u8], l3: usize, ethertype: u16) -> Result<Headers, OffloadError> {
        let be16 = |at| be16(frame, at);
        match ethertype {
            0x0800 => {
                let ip = frame.get(l3..l3 + 20).ok_or(SHORT)?;
                let ihl = usize::from(ip[0] & 15) * 4;
                let end = frame.len().min(l3 + gso_length(usize::from(be16(l3 + 2)?), frame.len() - l3));
                if ip[0] >> 4 != 4 || ihl < 20 || l3 + ihl > end {
                    return Err(OffloadError::Segmentation("malformed IPv4 header"));
                }
                if be16(l3 + 6)? & 0x3fff != 0 {
                    return Err(OffloadError::Segmentation("IPv4 fragment"));
                }
                Ok(Headers { l3, l4: l3 + ihl, end, ipv6: false, protocol: ip[9] })
            }
            0x86dd => {
                let ip = frame.get(l3..l3 + 40).ok_or(SHORT)?;
                let length = usize::from(be16(l3 + 4)?);
                let end = frame.len().min(l3 + 40 + gso_length(length, frame.len() - l3 - 40));
                let (mut protocol, mut l4) = (ip[6], l3 + 40);
                // Hop-by-hop options, routing header, destination options (RFC 8200 section 4.1).
                while matches!(protocol, 0 | 43 | 60) {
                    let extension = frame.get(l4..l4 + 8).ok_or(SHORT)?;
                    protocol = extension[0];
                    l4 += 8 + usize::from(extension[1]) * 8;
                }
                if l4 > end {
                    return Err(SHORT);
                }
                Ok(Headers { l3, l4, end, ipv6: true, protocol })
            }
            _ => Err(OffloadError::Segmentation("neither IPv4 nor IPv6")),
        }
    }
}

fn is_mpls(ethertype: u16) -> bool {
    matches!(ethertype, 0x8847 | 0x8848)
}

/// Whether MPLS labels lie between the Ethernet header and the IP header.
fn is_labelled(frame: &[u8]) -> bool {
    let ethertype = |at: usize| frame.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let mut at = 12;
    while matches!(ethertype(at), 0x8100 | 0x88a8) {
        at += 4;
    }
    is_mpls(ethertype(at))
}

/// The length field of a super-frame may be zero (BIG TCP) or the true one; then padding is cut off.
fn gso_length(field: usize, available: usize) -> usize {
    if field == 0 { available } else { field }
}

/// The headers of a super-frame.
struct GsoHeaders {
    l3: usize,
    l4: usize,
    payload: usize,
    end: usize,
    ipv6: bool,
    tcp: bool,
    /// Whether segments get an L4 checksum: always, but for UDP over IPv4 without one.
    checksum: bool,
    /// The tunnel that the packet is in.
    outer: Option<Outer>,
}

impl GsoHeaders {
    fn parse(packet: &Packet) -> Result<GsoHeaders, OffloadError> {
        let offload = packet.offload();
        let frame = packet.data();
        let headers = Headers::parse(frame)?;
        let in_tunnel = match offload.needs_csum() && usize::from(offload.csum_start) > headers.l4 {
            true => Outer::find(packet, &headers),
            false => None,
        };
        let (outer, headers) = in_tunnel.map_or((None, headers), |(outer, inner)| (Some(outer), inner));
        let Headers { l3, l4, end, ipv6, protocol } = headers;
        let (tcp, wants_ipv6) = match offload.gso_type & !Offload::GSO_ECN {
            Offload::GSO_TCPV4 => (true, false),
            Offload::GSO_TCPV6 => (true, true),
            Offload::GSO_UDP_L4 => (false, ipv6),
            _ => return Err(OffloadError::Segmentation("unknown type")),
        };
        if ipv6 != wants_ipv6 || protocol != if tcp { 6 } else { 17 } {
            return Err(OffloadError::Segmentation("type does not agree with the headers"));
        }
        if offload.needs_csum() && usize::from(offload.csum_start) != l4 {
            return Err(OffloadError::Segmentation("checksum does not start at the transport header"));
        }
        if offload.gso_size == 0 {
            return Err(OffloadError::Segmentation("segment size is zero"));
        }
        let fixed = if tcp { 20 } else { 8 };
        let l4_header = frame[..end].get(l4..l4 + fixed).ok_or(OffloadError::Segmentation("headers are cut short"))?;
        let l4_len = if tcp { usize::from(l4_header[12] >> 4) * 4 } else { 8 };
        if l4_len < fixed || l4 + l4_len > end {
            return Err(OffloadError::Segmentation("malformed TCP header"));
        }
        let checksum = tcp || ipv6 || offload.needs_csum() || l4_header[6..8] != [0, 0];
        Ok(GsoHeaders { l3, l4, payload: l4 + l4_len, end, ipv6, tcp, checksum, outer })
    }

    /// Makes the headers of segment `index`, whose payload begins `offset` bytes into the payload of
    /// the super-frame. `frame` holds the super-frame's headers and the segment's payload.
    fn finish(&self, frame: &mut [u8], index: usize, offset: usize, last: bool) {
        let (l3, l4) = (self.l3, self.l4);
        finish_ip(frame, l3, l4, self.ipv6, index);
        if self.tcp {
            let seq = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().expect("four bytes"));
            frame[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add(offset as u32).to_be_bytes());
            const FIN_PSH: u8 = 0x09;
            const CWR: u8 = 0x80;
            let clear = if last { 0 } else { FIN_PSH } | if index == 0 { 0 } else { CWR };
            frame[l4 + 13] &= !clear;
        } else {
            let length = (frame.len() - l4) as u16;
            frame[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        }
        self.store_checksum(frame, 0);
    }

    /// Sum of the pseudo header of a segment with finished lengths.
    fn pseudo_sum(&self, frame: &[u8]) -> u64 {
        pseudo_sum(frame, self.l3, self.l4, self.ipv6, if self.tcp { 6 } else { 17 })
    }

    fn store_checksum(&self, frame: &mut [u8], value: u16) {
        let at = self.l4 + self.checksum_offset();
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    fn checksum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    /// What is left to do to a segment that holds the pseudo header's sum.
    fn rest(&self) -> Offload {
        Offload {
            flags: Offload::NEEDS_CSUM,
            csum_start: self.l4 as u16,
            csum_offset: self.checksum_offset() as u16,
            ..Offload::NONE
        }
    }
}

/// Makes the IP header of segment `index` from the super-frame's.
fn finish_ip(frame: &mut [u8], l3: usize, l4: usize, ipv6: bool, index: usize) {
    if ipv6 {
        let length = (frame.len() - l3 - 40) as u16;
        frame[l3 + 4..l3 + 6].copy_from_slice(&length.to_be_bytes());
    } else {
        let length = (frame.len() - l3) as u16;
        frame[l3 + 2..l3 + 4].copy_from_slice(&length.to_be_bytes());
        let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(index as u16);
        frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = checksum(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Sum of the pseudo header of a packet with finished lengths.
fn pseudo_sum(frame: &[u8], l3: usize, l4: usize, ipv6: bool, protocol: u8) -> u64 {
    let addresses = if ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    sum(&frame[addresses]) + u64::from(protocol) + (frame.len() - l4) as u64
}

/// The internet checksum of `data` (RFC 1071); zero over data that holds its correct checksum.
pub fn checksum(data: &[u8]) -> u16 {
    fold(sum(data))
}

/// Sum of the big-endian 16-bit words of `data`, the last padded with a zero, folded to 17 bits.
///
/// Summed in the machine's order and swapped at the end, which is the same (RFC 1071 section 2(B)).
fn sum(data: &[u8]) -> u64 {
    let mut total = 0u64;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_ne_bytes(word.try_into().expect("four bytes")));
    }
    let rest = words.remainder();
    let mut last = [0u8; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    u64::from(u16::from_be(!fold(total)))
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    !(total as u16)
}

/// Zero means "no checksum" in UDP; its other form means zero in every protocol (RFC 768).
fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[cfg(test)]
mod tests;
