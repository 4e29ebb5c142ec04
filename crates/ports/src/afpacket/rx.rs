//! Receive queue of an AF_PACKET port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use packet::buffer::heap::HEADROOM;
use packet::{Batch, Memory, Packet, Time};

use super::plain::Plain;
use super::reception::{Reception, Reserved};
use super::socket::{RxSocket, Slot};
use crate::RxQueue;
use crate::kind::Env;
use crate::stats::RxCounters;
use crate::virtual_port::{MAX_FRAME, copy};
use crate::vnet;

pub struct Rx {
    reception: Arc<Reception>,
    /// The socket without a ring: at first, and for a moment beside the ring.
    plain: Option<Plain>,
    ring: Option<RxSocket>,
    /// The slot that is filled next.
    next: usize,
    /// What a ring that has grown takes.
    reserved: Option<Reserved>,
    counters: Arc<RxCounters>,
    memory: &'static Memory,
    large: &'static Memory,
    checked: Time,
}

/// How often an idle queue looks for an error at its socket (interface down or deleted): a waiting
/// error keeps the descriptor readable, and so its worker awake.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Rx {
    /// A queue that begins with a plain socket.
    pub fn plain(reception: Arc<Reception>, plain: Plain, counters: Arc<RxCounters>, env: &Env) -> Rx {
        Rx { plain: Some(plain), ..Rx::new(reception, None, counters, env) }
    }

    /// A queue that has a ring.
    pub fn with_ring(reception: Arc<Reception>, ring: RxSocket, counters: Arc<RxCounters>, env: &Env) -> Rx {
        Rx::new(reception, Some(ring), counters, env)
    }

    fn new(reception: Arc<Reception>, ring: Option<RxSocket>, counters: Arc<RxCounters>, env: &Env) -> Rx {
        let (memory, large) = (env.memory, env.large);
        Rx { reception, plain: None, ring, next: 0, reserved: None, counters, memory, large, checked: Time(0) }
    }

    /// Takes frames out of the ring. Returns how many, and their bytes.
    #[inline]
    fn receive_from_ring(&mut self, batch: &mut Batch) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        let Some(ring) = &self.ring else { return (0, 0) };
        while !batch.is_full() {
            let Some(slot) = ring.slot(self.next) else { break };
            self.next = if self.next + 1 == ring.slots() { 0 } else { self.next + 1 };
            if let Some(packet) = self.take(ring, &slot) {
                count += 1;
                bytes += packet.len();
                batch.push(packet);
            }
            slot.release();
        }
        (count, bytes)
    }

    /// Takes frames from the socket without a ring. Returns how many, and their bytes.
    #[cold]
    fn receive_plain(&mut self, batch: &mut Batch, now: Time) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        let Some(plain) = &mut self.plain else { return (0, 0) };
        while !batch.is_full() {
            match plain.receive(self.memory, self.large) {
                Ok(Some((mut packet, vlan))) if packet.len() >= 14 => {
                    if vlan.is_some_and(|(tpid, tci)| !restore_vlan(&mut packet, tpid, tci)) {
                        self.counters.dropped.add(1);
                        continue;
                    }
                    count += 1;
                    bytes += packet.len();
                    batch.push(packet);
                }
                Ok(Some(_)) => {
                    self.counters.frame_err.add(1);
                    self.counters.errors.add(1);
                }
                Ok(None) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::OutOfMemory => self.counters.dropped.add(1),
                // The interface is down, or was deleted: the socket says so once.
                Err(e) => {
                    tracing::debug!("packet socket: {e}");
                    self.counters.errors.add(1);
                    break;
                }
            }
        }
        if self.ring.is_some() {
            if count == 0 && plain.is_over(now) {
                self.plain = None;
                self.reception.give_up_first();
            }
        } else if plain.becomes_busy(count, now) {
            self.reception.grow();
        }
        (count, bytes)
    }

    /// Takes the frame out of a slot. What can't be taken is counted.
    #[inline]
    fn take(&self, ring: &RxSocket, slot: &Slot) -> Option<Packet> {
        let mut packet = if slot.is_copied() {
            self.take_large(ring, slot.len())?
        } else {
            let Some((header, frame)) = slot.frame().filter(|(_, frame)| frame.len() == slot.len()) else {
                // Longer than its slot, and the socket's buffer is full.
                self.counters.over_err.add(1);
                self.counters.dropped.add(1);
                return None;
            };
            if slot.is_outgoing() {
                return None;
            }
            let memory = if frame.len() > SMALL { self.large } else { self.memory };
            let Some(mut packet) = copy(memory, frame) else {
                self.counters.dropped.add(1);
                return None;
            };
            *packet.offload_mut() = vnet::decode(header);
            packet
        };
        if packet.len() < 14 {
            self.counters.frame_err.add(1);
            self.counters.errors.add(1);
            return None;
        }
        if slot.vlan().is_some_and(|(tpid, tci)| !restore_vlan(&mut packet, tpid, tci)) {
            self.counters.dropped.add(1);
            return None;
        }
        Some(packet)
    }

    /// Takes the frame of `len` bytes that waits at the socket.
    #[cold]
    fn take_large(&self, ring: &RxSocket, len: usize) -> Option<Packet> {
        let mut packet = (self.large.allocate)(self.large, HEADROOM, MAX_FRAME);
        let (mut nowhere, mut header) = ([0u8; 64], [0; vnet::LEN]);
        let room = match &mut packet {
            Some(packet) => packet.push_back(MAX_FRAME)?,
            // The frame has to be taken off the queue all the same.
            None => &mut nowhere[..],
        };
        // An error of the interface (ENETDOWN) is reported once, in front of the frame.
        let mut receive = || ring.socket().receive(&mut header, [&mut *room, &mut []]);
        let received = receive().or_else(|_| receive());
        match (received, packet) {
            (Ok(Some(received)), Some(mut packet)) if received.len == len && !received.cut => {
                packet.truncate(len);
                *packet.offload_mut() = vnet::decode(&header);
                Some(packet)
            }
            (Ok(_), None) => {
                self.counters.dropped.add(1);
                None
            }
            _ => {
                self.counters.errors.add(1);
                self.counters.frame_err.add(1);
                None
            }
        }
    }

    #[cold]
    fn check(&mut self, now: Time) {
        self.checked = now;
        let Some(ring) = &self.ring else { return };
        if let Some(error) = ring.socket().take_error() {
            tracing::debug!("packet socket: {error}");
            self.counters.errors.add(1);
        }
    }
}

/// Frames of up to this length have room in a chunk of 2 KiB.
const SMALL: usize = 1700;

/// Puts a VLAN tag that the kernel had taken out back behind the addresses. `false`: there is no buffer for it, and
/// without its tag the frame must not go on.
fn restore_vlan(packet: &mut Packet, tpid: u16, tci: u16) -> bool {
    if !packet.make_headroom(4) || packet.push_front(4).is_none() {
        return false;
    }
    let frame = packet.data_mut();
    frame.copy_within(4..16, 0);
    frame[12..14].copy_from_slice(&tpid.to_be_bytes());
    frame[14..16].copy_from_slice(&tci.to_be_bytes());
    let offload = packet.offload_mut();
    if offload.needs_csum() {
        offload.csum_start += 4;
    }
    if offload.hdr_len > 0 {
        offload.hdr_len += 4;
    }
    true
}

impl RxQueue for Rx {
    fn receive(&mut self, batch: &mut Batch, now: Time) -> usize {
        let (mut count, mut bytes) = (0, 0);
        if self.plain.is_some() {
            // What it still has came before what is in the ring.
            (count, bytes) = self.receive_plain(batch, now);
        }
        if count == 0 {
            (count, bytes) = self.receive_from_ring(batch);
        }
        if count == 0 {
            if now.since(self.checked) >= CHECK_INTERVAL {
                self.check(now);
            }
        } else {
            self.counters.passed(count, bytes);
        }
        count
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match (&self.plain, &self.ring) {
            (Some(plain), None) => Some(plain.socket().as_fd()),
            (None, Some(ring)) => Some(ring.socket().as_fd()),
            // Either may have frames.
            _ => None,
        }
    }

    fn can_park(&self) -> bool {
        self.wait_fd().is_some()
    }

    fn renew(&mut self, now: Time) {
        let (Some(plain), None) = (&mut self.plain, &self.ring) else { return };
        if let Some((ring, reserved)) = self.reception.grown() {
            plain.end(now);
            (self.ring, self.reserved) = (Some(ring), Some(reserved));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Offload;

    #[test]
    fn restored_tag_moves_the_checksum_along() {
        let frame: Vec<u8> = (0..60).collect();
        let mut packet = Packet::from_slice(&frame);
        *packet.offload_mut() =
            Offload { flags: Offload::NEEDS_CSUM, hdr_len: 54, csum_start: 34, csum_offset: 16, ..Offload::NONE };
        assert!(restore_vlan(&mut packet, 0x88a8, 0x6064));
        assert_eq!(packet.data()[..12], frame[..12]);
        assert_eq!(packet.data()[12..16], [0x88, 0xa8, 0x60, 0x64]);
        assert_eq!(packet.data()[16..], frame[12..]);
        assert_eq!((packet.offload().csum_start, packet.offload().hdr_len), (38, 58));
    }
}
