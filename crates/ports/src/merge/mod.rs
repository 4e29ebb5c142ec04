//! Puts together again what a stack's segmentation has cut.
//!
//! A veth with a program in its driver has the other end cut its 64 KiB frames before they come here, and
//! AF_XDP could not carry them. But the segments of one frame follow each other in the ring and differ in
//! what segmentation makes of a header alone: lengths, sequence number, IPv4 identification, FIN and PSH.
//! Such frames of one burst become one super-frame again, whose segments, should it have to be cut, are the
//! same as before. So it is with frames that come out of a tunnel. Classification, actions and the next port then have one frame to handle in
//! place of up to 45.
//!
//! [`Merger`] merges only TCP whose checksum is unfinished: the stack has left it so, or [`unfinish_tcp`](crate::offload::unfinish_tcp) has verified it.
//! [`Joiner`] is for segments that are finished, as a NIC receives them.

mod finished;
pub mod fuzz;

pub use finished::Joiner;

use packet::buffer::heap::HEADROOM;
use packet::{Batch, Memory, Offload, Packet};

use crate::virtual_port::MAX_FRAME;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;
/// ECE.
const ECE: u8 = 0x40;

/// Longest IP packet.
const MAX_IP: usize = 65535;

/// Where in a TCP header the checksum is: what an unfinished one says of itself.
const TCP_CHECKSUM: u16 = 16;

/// Merges the frames of one burst.
pub struct Merger {
    large: &'static Memory,
    /// What the last packet of the batch is made of, while it can grow.
    run: Option<Run>,
}

/// One frame, or several that have become one.
struct Run {
    headers: Headers,
    segments: usize,
    /// Bytes of payload, of all segments.
    payload: usize,
    flags: u8,
}

/// The headers of a segment with payload.
#[derive(Clone, Copy)]
struct Headers {
    l3: usize,
    l4: usize,
    end: usize,
    ipv6: bool,
    /// Bytes of payload.
    payload: usize,
    seq: u32,
    flags: u8,
    /// IPv4 identification.
    id: u16,
}

impl Merger {
    /// Makes super-frames in `large`.
    pub fn new(large: &'static Memory) -> Merger {
        Merger { large, run: None }
    }

    /// Appends a frame to the batch, which has room, or to its last packet.
    #[inline]
    pub fn add(&mut self, packet: Packet, batch: &mut Batch) {
        let offload = packet.offload();
        if !(offload.needs_csum() && offload.csum_offset == TCP_CHECKSUM) {
            self.finish(batch);
            return batch.push(packet);
        }
        self.add_tcp(packet, batch);
    }

    fn add_tcp(&mut self, packet: Packet, batch: &mut Batch) {
        let headers = Headers::of(&packet);
        if let (Some(run), Some(next), Some(last)) = (&mut self.run, &headers, batch.last_mut())
            && run.is_followed_by(last, &packet, next)
            && run.append(last, &packet, next, self.large)
        {
            return;
        }
        self.finish(batch);
        batch.push(packet);
        self.run = headers.map(Run::new);
    }

    /// Completes the last packet of the batch. To be called at the end of the burst.
    #[inline]
    pub fn finish(&mut self, batch: &mut Batch) {
        if let (Some(run), Some(last)) = (self.run.take(), batch.last_mut())
            && run.segments > 1
        {
            run.finish(last);
        }
    }
}

impl Headers {
    /// Of a segment whose checksum is unfinished. `None` for what is not to be merged with anything.
    fn of(packet: &Packet) -> Option<Headers> {
        let frame = packet.data();
        let mut l3 = 14;
        while matches!(word(frame, l3 - 2)?, 0x8100 | 0x88a8) {
            l3 += 4;
        }
        let ipv6 = word(frame, l3 - 2)? == 0x86dd;
        Headers::at(frame, l3, usize::from(packet.offload().csum_start), ipv6)
    }

    /// Of a segment with its headers there. `None` for what is not to be merged with anything.
    fn at(frame: &[u8], l3: usize, l4: usize, ipv6: bool) -> Option<Headers> {
        // Without options and extension headers, as TCP has them nearly always.
        let (header, length) = match ipv6 {
            true => (40, usize::from(word(frame, l3 + 4)?) + 40),
            false => (20, usize::from(word(frame, l3 + 2)?)),
        };
        let tcp = frame.get(l4..l4 + 20)?;
        let end = l4 + usize::from(tcp[12] >> 4) * 4;
        let flags = tcp[13];
        // Neither padding nor a part of a packet.
        if l4 != l3 + header || frame.len() != l3 + length || end < l4 + 20 || frame.len() <= end {
            return None;
        }
        if flags & !(FIN | PSH | CWR | ECE) != ACK {
            return None;
        }
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let id = if ipv6 { 0 } else { word(frame, l3 + 4)? };
        Some(Headers { l3, l4, end, ipv6, payload: frame.len() - end, seq, flags, id })
    }
}

/// Two bytes in network order.
fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

impl Run {
    /// Of one segment.
    fn new(headers: Headers) -> Run {
        Run { headers, segments: 1, payload: headers.payload, flags: headers.flags }
    }

    /// Whether `next`, with headers `h`, is the segment behind `last`, which is the run so far.
    fn is_followed_by(&self, last: &Packet, next: &Packet, h: &Headers) -> bool {
        let (first, a, b) = (&self.headers, last.data(), next.data());
        let full = self.payload == self.segments * first.payload;
        let place = (h.l3, h.l4, h.end, h.ipv6) == (first.l3, first.l4, first.end, first.ipv6);
        let same = |from: usize, to: usize| a[from..to] == b[from..to];
        let (l3, l4) = (h.l3, h.l4);
        full && place
            && self.flags & (FIN | PSH) == 0
            && h.flags & !(FIN | PSH) == first.flags & !CWR
            && h.payload <= first.payload
            && last.len() + h.payload <= l3 + MAX_IP
            && h.seq == first.seq.wrapping_add(self.payload as u32)
            && h.id == if h.ipv6 { 0 } else { first.id.wrapping_add(self.segments as u16) }
            // Ethernet, and the IP header but for length, identification and checksum.
            && if h.ipv6 { same(0, l3 + 4) && same(l3 + 6, l4) } else { same(0, l3 + 2) && same(l3 + 6, l3 + 10) && same(l3 + 12, l4) }
            // TCP but for sequence number, flags and checksum.
            && same(l4, l4 + 4)
            && same(l4 + 8, l4 + 13)
            && same(l4 + 14, l4 + 16)
            && same(l4 + 18, h.end)
    }

    /// Appends a segment's payload. `false`, and no change, without a buffer.
    fn append(&mut self, last: &mut Packet, next: &Packet, h: &Headers, large: &'static Memory) -> bool {
        if self.segments == 1 {
            let Some(mut packet) = (large.allocate)(large, HEADROOM, MAX_FRAME) else { return false };
            let Some(frame) = packet.push_back(last.len()) else { return false };
            frame.copy_from_slice(last.data());
            *packet.offload_mut() = *last.offload();
            packet.set_queue(last.queue());
            *last = packet;
        }
        let Some(room) = last.push_back(h.payload) else { return false };
        room.copy_from_slice(&next.data()[h.end..]);
        self.segments += 1;
        self.payload += h.payload;
        self.flags |= h.flags & (FIN | PSH);
        true
    }

    /// Writes the headers of the whole.
    #[cold]
    fn finish(&self, packet: &mut Packet) {
        let Headers { l3, l4, end, ipv6, payload, .. } = self.headers;
        let added = (self.payload - payload) as u16;
        let frame = packet.data_mut();
        let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let at = if ipv6 { l3 + 4 } else { l3 + 2 };
        let length = word(frame, at) + added;
        frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
        if !ipv6 {
            frame[l3 + 10..l3 + 12].fill(0);
            let sum = crate::offload::checksum(&frame[l3..l4]);
            frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        frame[l4 + 13] |= self.flags;
        // The pseudo header has the length, too.
        let sum = u32::from(word(frame, l4 + 16)) + u32::from(added);
        let sum = (sum & 0xffff) as u16 + (sum >> 16) as u16;
        frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        let ecn = if self.headers.flags & CWR != 0 { Offload::GSO_ECN } else { 0 };
        let offload = packet.offload_mut();
        offload.gso_type = ecn | if ipv6 { Offload::GSO_TCPV6 } else { Offload::GSO_TCPV4 };
        offload.gso_size = payload as u16;
        offload.hdr_len = end as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Offloads;
    use crate::afxdp::unfinished::recognise;
    use crate::offload::{complete, segment};
    use packet::buffer::heap::HEAP;
    use packet::buffer::pool::{Pool, PoolConfig};
    use proptest::prelude::*;

    /// A super-frame as a stack makes it.
    pub fn super_frame(ipv6: bool, tags: usize, flags: u8, size: u16, payload: &[u8]) -> Packet {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        (0..tags).for_each(|_| f.extend([0x81, 0, 0, 9]));
        let len = 32 + payload.len();
        if ipv6 {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend((len as u16).to_be_bytes());
            f.extend([6, 64]);
            f.extend([[0xfd; 16], [0xfe; 16]].concat());
        } else {
            f.extend([8, 0, 0x45, 0]);
            f.extend((len as u16 + 20).to_be_bytes());
            f.extend([0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let l4 = f.len();
        if !ipv6 {
            let sum = crate::offload::checksum(&f[l4 - 20..]);
            f[l4 - 10..l4 - 8].copy_from_slice(&sum.to_be_bytes());
        }
        f.extend([0x30, 0x39, 0, 80, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x80, flags, 1, 0, 0, 0, 0, 0]);
        f.extend([1; 12]);
        f.extend(payload);
        let addresses = if ipv6 { &f[l4 - 32..l4] } else { &f[l4 - 8..l4] };
        let covered = [addresses, &[0, 6], &(len as u16).to_be_bytes()].concat();
        let sum = !crate::offload::checksum(&covered);
        f[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = Packet::from_slice(&f);
        *packet.offload_mut() = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: if ipv6 { Offload::GSO_TCPV6 } else { Offload::GSO_TCPV4 }
                | if flags & CWR != 0 { Offload::GSO_ECN } else { 0 },
            hdr_len: (l4 + 32) as u16,
            gso_size: size,
            csum_start: l4 as u16,
            csum_offset: TCP_CHECKSUM,
        };
        packet
    }

    /// What the kernel makes of it, as it comes from the ring.
    fn cut(packet: Packet) -> Vec<Packet> {
        let can = Offloads { csum: true, ..Offloads::default() };
        let mut segments = Vec::new();
        complete(packet, can, &HEAP, &mut |mut segment| {
            *segment.offload_mut() = recognise(segment.data());
            segments.push(segment);
        })
        .unwrap();
        segments
    }

    fn merge(segments: impl IntoIterator<Item = Packet>) -> Vec<Packet> {
        let (mut merger, mut out) = (Merger::new(&HEAP), Vec::new());
        let mut segments = segments.into_iter().peekable();
        while segments.peek().is_some() {
            let mut batch = Batch::new();
            while !batch.is_full()
                && let Some(segment) = segments.next()
            {
                merger.add(segment, &mut batch);
            }
            merger.finish(&mut batch);
            out.extend(batch);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_was_cut_is_whole_again(
            ipv6: bool, tags in 0..3usize, flags in prop::sample::select(vec![0x10, 0x18, 0x19, 0x90, 0x98, 0xd1]),
            size in 1u16..1449, payload in prop::collection::vec(any::<u8>(), 1..20_000),
        ) {
            let size = size.max(payload.len() as u16 / 40 + 1);
            let whole = super_frame(ipv6, tags, flags, size, &payload);
            let want = (whole.data().to_vec(), *whole.offload());
            let cuts = payload.len() > size.into();
            let merged = merge(cut(whole));
            prop_assert_eq!(merged.len(), 1);
            prop_assert_eq!(merged[0].data(), &want.0[..]);
            if cuts {
                prop_assert_eq!(*merged[0].offload(), want.1);
            }
        }

        #[test]
        fn whatever_is_merged_is_cut_into_the_same(
            sizes in prop::collection::vec((1..4usize, 100u16..1449, any::<[bool; 3]>()), 1..12), losses: u64, swaps: u64,
        ) {
            let mut segments = Vec::new();
            for (parts, size, [push, ipv6, ece]) in sizes {
                let flags = ACK | if push { PSH } else { 0 } | if ece { ECE } else { 0 };
                segments.extend(cut(super_frame(ipv6, 0, flags, size, &vec![7; parts * usize::from(size) - 50])));
            }
            let mut n = 0;
            segments.retain(|_| { n += 1; losses >> (n % 64) & 3 != 0 });
            for i in 1..segments.len() {
                if swaps >> (i % 64) & 7 == 0 {
                    segments.swap(i - 1, i);
                }
            }
            let before: Vec<_> = segments.iter().map(|s| s.data().to_vec()).collect();
            let mut behind = Vec::new();
            for packet in merge(segments) {
                match packet.offload().is_gso() {
                    true => behind.extend(cut(packet).iter().map(|s| s.data().to_vec())),
                    false => behind.push(packet.data().to_vec()),
                }
            }
            prop_assert_eq!(before, behind);
        }
    }

    #[test]
    fn other_frames_and_other_connections_are_left_alone() {
        let one = |change: &dyn Fn(&mut Packet)| {
            let mut segments = cut(super_frame(false, 0, 0x10, 1000, &[7; 2000]));
            change(&mut segments[1]);
            *segments[1].offload_mut() = recognise(segments[1].data());
            merge(segments).len()
        };
        assert_eq!(one(&|_| {}), 1);
        // Address, TTL, TOS, port, acknowledgement, sequence number, window, options, SYN, checksum.
        for at in [5, 15, 22, 29, 35, 45, 41, 49, 56, 50] {
            assert_eq!(one(&|p| p.data_mut()[at] ^= 1), 2, "{at}");
        }
        assert_eq!(one(&|p| p.data_mut()[47] |= 2), 2, "SYN");
        assert_eq!(one(&|p| p.truncate(900)), 2, "cut short");
        let mut finished = Vec::new();
        segment(&super_frame(false, 0, 0x10, 1000, &[7; 2000]), &HEAP, &mut |p| finished.push(p)).unwrap();
        assert_eq!(merge(finished).len(), 2, "a checksum that is there would have to be verified");
    }

    #[test]
    fn segments_stay_alone_without_a_buffer_for_the_whole() {
        let pool = Pool::new(PoolConfig { chunks: 2, chunk_size: 1 << 17, headroom: HEADROOM }).unwrap();
        let (mut merger, mut out) = (Merger::new(pool.memory()), Batch::new());
        let sent: Vec<_> = (0..4).flat_map(|_| cut(super_frame(false, 0, ACK, 1000, &[7; 3000]))).collect();
        let expected: Vec<_> = sent.iter().map(|segment| segment.data().to_vec()).collect();
        sent.into_iter().for_each(|segment| merger.add(segment, &mut out));
        merger.finish(&mut out);
        assert_eq!(out.iter().filter(|packet| packet.offload().is_gso()).count(), 2);
        let behind = out.drain(..).flat_map(|packet| match packet.offload().is_gso() {
            true => cut(packet).iter().map(|segment| segment.data().to_vec()).collect(),
            false => vec![packet.data().to_vec()],
        });
        assert_eq!(behind.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_packet_is_not_longer_than_its_length_can_say() {
        let parts: Vec<_> = (0..3)
            .flat_map(|n| {
                let mut whole = super_frame(false, 0, 0x10, 1448, &vec![7; 1448 * 20]);
                let frame = whole.data_mut();
                frame[38..42].copy_from_slice(&(n * 1448 * 20u32).to_be_bytes());
                frame[18..20].copy_from_slice(&(n as u16 * 20).to_be_bytes());
                cut(whole)
            })
            .collect();
        let merged = merge(parts);
        assert_eq!(merged.iter().map(|p| p.len() / 1448).collect::<Vec<_>>(), [45, 15]);
    }
}
