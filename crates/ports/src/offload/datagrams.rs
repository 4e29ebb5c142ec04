//! Super-frames in a tunnel over UDP as super-frames of UDP: each datagram is a segment in the tunnel, with all its headers.
//!
//! A kernel that cuts UDP for a port, but knows no tunnels there, gets a long frame in place of forty short ones. What is inside is
//! finished, as no second checksum can be left to the port; the outer one is, so that datagrams have one even where the tunnel would have
//! none (RFC 7348 section 5 and RFC 8926 section 3.3 have receivers take both).

use arrayvec::ArrayVec;
use packet::{Memory, Offload, Packet};

use super::{GsoHeaders, OffloadError, empty, finish_ip, fold, nonzero, pseudo_sum, sum};

/// The most datagrams in a super-frame, as all versions of Linux take them (UDP_MAX_SEGMENTS).
const MOST: usize = 64;

/// The most super-frames that one becomes.
const FRAMES: usize = 4;

/// The longest super-frame.
const LONGEST: usize = 65535;

const UDP_HEADER: usize = 8;
const UDP: u8 = 17;

/// How a super-frame becomes super-frames of UDP.
pub struct Datagrams<'a> {
    headers: &'a GsoHeaders,
    /// Bytes before the first datagram's payload: outer headers.
    outer_len: usize,
    /// The headers of a segment, counted from the begin of the payload of its datagram.
    inner: GsoHeaders,
    /// Bytes before a segment's payload, likewise.
    inner_len: usize,
    /// Bytes of payload of a segment.
    size: usize,
    /// Segments.
    count: usize,
    /// Segments of each super-frame but the last.
    each: usize,
}

impl<'a> Datagrams<'a> {
    /// `None`: it is in no tunnel over UDP, or has so large or so many segments that it is cut in the other way.
    pub fn of(packet: &Packet, headers: &'a GsoHeaders) -> Option<Datagrams<'a>> {
        let outer = headers.outer.as_ref().filter(|outer| outer.is_udp())?;
        let outer_len = outer.l4 + UDP_HEADER;
        let place = |at: usize| at.checked_sub(outer_len);
        let inner_len = place(headers.payload)?;
        let inner = GsoHeaders {
            l3: place(headers.l3)?,
            l4: place(headers.l4)?,
            payload: inner_len,
            end: place(headers.end)?,
            outer: None,
            ..*headers
        };
        let size = usize::from(packet.offload().gso_size);
        let count = (headers.end - headers.payload).div_ceil(size);
        let fit = LONGEST.saturating_sub(outer_len) / (inner_len + size);
        let most = fit.min(MOST);
        // What is cut into fine segments gains nothing: their headers are most of them.
        if most < 2 || !(2..=super::MAX_DATAGRAMS).contains(&count) || count > FRAMES * most {
            return None;
        }
        let each = count.div_ceil(count.div_ceil(most));
        Some(Datagrams { headers, outer_len, inner, inner_len, size, count, each })
    }

    /// Makes the super-frames. Without buffers for all of them, there are none.
    pub fn make(
        &self,
        packet: &Packet,
        memory: &'static Memory,
        emit: &mut dyn FnMut(Packet),
    ) -> Result<(), OffloadError> {
        let payload = &packet.data()[self.headers.payload..self.headers.end];
        let parts = || payload.chunks(self.each * self.size).map(|part| (part, part.len().div_ceil(self.size)));
        let len = |(part, datagrams): (&[u8], usize)| self.outer_len + datagrams * self.inner_len + part.len();
        let mut buffers = ArrayVec::<Packet, FRAMES>::new();
        for part in parts() {
            buffers.push(empty(memory, len(part)).ok_or(OffloadError::NoBuffer)?);
        }
        for (number, (part, mut whole)) in parts().zip(buffers).enumerate() {
            whole.set_queue(packet.queue());
            let frame = whole.push_back(len(part)).expect("allocated with this size");
            self.write(frame, packet.data(), number * self.each, part.0);
            *whole.offload_mut() = self.rest(part.1);
            emit(whole);
        }
        Ok(())
    }

    /// Writes the super-frame whose first segment has the number `first`, from the headers of all of them, and payload.
    fn write(&self, frame: &mut [u8], all: &[u8], first: usize, payload: &[u8]) {
        let (outer, inner) = all[..self.headers.payload].split_at(self.outer_len);
        frame[..self.outer_len].copy_from_slice(outer);
        let mut rest = &mut frame[self.outer_len..];
        for (at, part) in payload.chunks(self.size).enumerate() {
            let (segment, others) = rest.split_at_mut(self.inner_len + part.len());
            rest = others;
            segment[..self.inner_len].copy_from_slice(inner);
            segment[self.inner_len..].copy_from_slice(part);
            let index = first + at;
            self.inner.finish(segment, index, index * self.size, index + 1 == self.count);
            if self.inner.checksum {
                let sum = self.inner.pseudo_sum(segment) + sum(&segment[self.inner.l4..]);
                self.inner.store_checksum(segment, nonzero(fold(sum)));
            }
        }
        if let Some(outer) = &self.headers.outer {
            finish_ip(frame, outer.l3, outer.l4, outer.ipv6, first);
            let length = (frame.len() - outer.l4) as u16;
            frame[outer.l4 + 4..outer.l4 + 6].copy_from_slice(&length.to_be_bytes());
            let sum = !fold(pseudo_sum(frame, outer.l3, outer.l4, outer.ipv6, UDP));
            frame[outer.l4 + 6..outer.l4 + 8].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// What is left to do to a super-frame of so many datagrams.
    fn rest(&self, datagrams: usize) -> Offload {
        let is_one = datagrams == 1;
        Offload {
            flags: Offload::NEEDS_CSUM,
            csum_start: (self.outer_len - UDP_HEADER) as u16,
            csum_offset: 6,
            gso_type: if is_one { Offload::GSO_NONE } else { Offload::GSO_UDP_L4 },
            gso_size: if is_one { 0 } else { (self.inner_len + self.size) as u16 },
            hdr_len: if is_one { 0 } else { self.outer_len as u16 },
        }
    }
}
