//! Receiving what a guest sends.

#![allow(unsafe_code)]

use std::sync::Arc;

use packet::{BATCH_SIZE, Batch, Memory, Time};

use super::guest::Guest;
use super::presence::Presence;
use crate::RxQueue;
use crate::dpdk::{mbuf, thread};
use crate::stats::RxCounters;

/// One of a guest's queues. It is polled: a guest that has to say when it sends pays for that with a system
/// call, and with virtual machines an exit.
pub struct Rx {
    guest: Arc<Guest>,
    presence: Arc<Presence>,
    counters: Arc<RxCounters>,
    /// For frames in several segments, of which librte_vhost makes none.
    large: &'static Memory,
    index: usize,
}

impl Rx {
    /// The guest's queue `index`.
    pub fn new(guest: &Arc<Guest>, index: usize, large: &'static Memory) -> Rx {
        let presence = guest.new_presence();
        Rx { presence, counters: guest.counts.port.rx(index), guest: guest.clone(), large, index }
    }
}

impl RxQueue for Rx {
    fn receive(&mut self, batch: &mut Batch, _now: Time) -> usize {
        if !self.guest.receives(self.index) {
            return 0;
        }
        let room = batch.remaining_capacity();
        let mut mbufs = [std::ptr::null_mut(); BATCH_SIZE];
        let pool = self.guest.pool();
        let count = {
            let Some((vid, _inside)) = self.guest.enter(&self.presence) else { return 0 };
            thread::attach();
            let ring = self.ring();
            // SAFETY: the guest is there until `_inside` is dropped, the pool as long as the port, and
            // `mbufs` has room for as many as are asked for.
            let count =
                unsafe { dpdk_sys::rte_vhost_dequeue_burst(vid, ring, pool.raw(), mbufs.as_mut_ptr(), room as u16) };
            usize::from(count).min(room)
        };
        if count == 0 {
            thread::flush();
            return 0;
        }
        let before = batch.len();
        // SAFETY: the library has filled so many and given them up.
        let received = unsafe { mbuf::to_packets(pool, self.large, &mbufs[..count], batch) };
        let mut bytes = received.bytes;
        if batch[before..].iter().any(|packet| packet.len() < 14) {
            bytes -= self.drop_runts(batch);
        }
        if received.dropped > 0 {
            self.counters.dropped.add(received.dropped as u64);
        }
        let packets = batch.len() - before;
        self.counters.passed(packets, bytes);
        packets
    }

    fn guest_waiting(&self) -> Option<usize> {
        // The library reads the index of a split ring, whatever the ring is.
        if !self.guest.receives(self.index) || self.guest.has_packed_rings() {
            return None;
        }
        let (vid, _inside) = self.guest.enter(&self.presence)?;
        // SAFETY: the guest is there until `_inside` is dropped.
        let count = unsafe { dpdk_sys::rte_vhost_rx_queue_count(vid, self.ring()) };
        // The difference of two indices of 16 bits, where the guest's may have wrapped.
        Some(usize::from(count as u16))
    }
}

impl Rx {
    /// The ring that the guest sends by: those have odd numbers (virtio 1.2 section 5.1.2).
    fn ring(&self) -> u16 {
        (self.index * 2 + 1) as u16
    }

    /// Drops what has no whole Ethernet header. Returns the bytes of these frames.
    #[cold]
    fn drop_runts(&self, batch: &mut Batch) -> usize {
        let (before, mut bytes) = (batch.len(), 0);
        batch.retain(|packet| {
            let whole = packet.len() >= 14;
            bytes += if whole { 0 } else { packet.len() };
            whole
        });
        let runts = (before - batch.len()) as u64;
        self.counters.errors.add(runts);
        self.counters.frame_err.add(runts);
        bytes
    }
}
