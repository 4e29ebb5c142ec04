//! Sending to a guest.
//!
//! librte_vhost copies frames into the guest's buffers while it is called, and keeps nothing of them. It
//! takes mbufs; so a queue has a few of its own whose frame is, for the time of the call, that of a packet of
//! any memory. Nothing is copied but by the library.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use dpdk_sys::mbuf::{TX_IP_CKSUM, TX_UDP_SEG, rte_mbuf};
use packet::{BATCH_SIZE, Batch, Memory, Offload, Packet, Time};

use super::guest::Guest;
use super::presence::Presence;
use crate::dpdk::mbuf::sent_offload;
use crate::stats::{Counter, TxCounters};
use crate::virtual_port::fits;
use crate::{Offloads, TxDrop, TxQueue, offload};

/// The most bytes that one mbuf describes.
const MAX_SEGMENT: usize = u16::MAX as usize;

/// A queue of ours, which sends by one of the guest's.
pub struct Tx {
    guest: Arc<Guest>,
    presence: Arc<Presence>,
    counters: Arc<TxCounters>,
    /// Bursts tried again.
    retries: Arc<Counter>,
    /// Where segments are made.
    memory: &'static Memory,
    index: usize,
    /// What the library is given; for a frame that is too long for one, the second half is described by
    /// the one of the same place in `rests`.
    mbufs: Box<[rte_mbuf; BATCH_SIZE]>,
    rests: Box<[rte_mbuf; BATCH_SIZE]>,
}

// SAFETY: the mbufs point to frames only within `transmit`, and to each other.
unsafe impl Send for Tx {}

impl Tx {
    /// Our queue `index`.
    pub fn new(guest: &Arc<Guest>, index: usize, memory: &'static Memory) -> Tx {
        let (counters, retries) = (guest.counts.port.tx(index), guest.counts.retries(index));
        let presence = guest.new_presence();
        Tx { guest: guest.clone(), presence, counters, retries, memory, index, mbufs: empty(), rests: empty() }
    }
}

pub(super) fn empty() -> Box<[rte_mbuf; BATCH_SIZE]> {
    // SAFETY: zeros are a valid mbuf, of no bytes and without a pool.
    let mut mbufs: Box<[rte_mbuf; BATCH_SIZE]> = Box::new(std::array::from_fn(|_| unsafe { std::mem::zeroed() }));
    for mbuf in mbufs.iter_mut() {
        (mbuf.refcnt, mbuf.nb_segs, mbuf.buf_len) = (1, 1, u16::MAX);
    }
    mbufs
}

impl TxQueue for Tx {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let mtu = self.guest.state.mtu() as usize;
        let simple = |packet: &Packet| {
            let offload = packet.offload();
            !offload.needs_csum() && !offload.is_gso() && packet.len() <= mtu + 14 && packet.len() >= 14
        };
        let taken = match batch.iter().all(simple) {
            true => self.send(batch),
            false => self.send_unfinished(batch, mtu),
        };
        packet::buffer::release(batch);
        taken
    }
}

impl Tx {
    /// Sends frames of which each is either finished or can be finished by the guest. Returns how many the
    /// guest's ring took.
    #[inline]
    fn send(&mut self, packets: &mut ArrayVec<Packet, BATCH_SIZE>) -> usize {
        let Tx { guest, presence, counters, retries: retried, index, mbufs, rests, .. } = self;
        let count = packets.len();
        let (Some((vid, _inside)), Some(queue)) = (guest.enter(presence), guest.sends_to(*index)) else {
            counters.dropped(TxDrop::NotConnected, count);
            return 0;
        };
        let mut pointers = [std::ptr::null_mut(); BATCH_SIZE];
        let descriptors = mbufs.iter_mut().zip(rests.iter_mut()).zip(&mut pointers);
        for (packet, ((mbuf, rest), pointer)) in packets.iter_mut().zip(descriptors) {
            describe(packet, mbuf, rest);
            *pointer = mbuf;
        }
        let (mut done, mut retries) = (0, 0);
        let most = guest.retries.load(Ordering::Relaxed);
        loop {
            let rest = &mut pointers[done..count];
            // SAFETY: the guest is there until `_inside` is dropped. The mbufs describe the packets' frames,
            // which stay until the call is over.
            let taken =
                unsafe { dpdk_sys::rte_vhost_enqueue_burst(vid, queue * 2, rest.as_mut_ptr(), rest.len() as u16) };
            done += usize::from(taken);
            // Once more while there is progress: a ring that takes nothing is full.
            if done >= count || taken == 0 || retries >= most {
                break;
            }
            retries += 1;
        }
        let bytes = packets[..done].iter().map(Packet::len).sum();
        counters.passed(done, bytes);
        if retries > 0 {
            retried.add(u64::from(retries));
        }
        if done < count {
            counters.dropped(TxDrop::QueueFull, count - done);
        }
        done
    }

    /// Sends frames that are possibly unfinished, or too long: what the guest does not take as it is is
    /// finished first, and cut. Returns how many of the packets were sent wholly.
    #[cold]
    fn send_unfinished(&mut self, batch: &mut Batch, mtu: usize) -> usize {
        let (can, memory) = (self.guest.offloads(), self.memory);
        let mut ready: ArrayVec<Packet, BATCH_SIZE> = ArrayVec::new();
        let mut lost = 0;
        let count = batch.len();
        for packet in batch.drain(..) {
            if !packet.offload().is_gso() && !fits(packet.data(), mtu) {
                self.counters.dropped(TxDrop::of_length(packet.data()), 1);
                lost += 1;
                continue;
            }
            let can = if expressible(&packet) { can } else { Offloads::default() };
            let finished = offload::complete(packet, can, memory, &mut |packet| {
                if ready.is_full() {
                    lost += ready.len() - self.send(&mut ready);
                    ready.clear();
                }
                ready.push(packet);
            });
            if let Err(error) = finished {
                self.counters.dropped(error.into(), 1);
                lost += 1;
            }
        }
        lost += ready.len() - self.send(&mut ready);
        // Segments that are lost may be more than the frames that they were cut from.
        count.saturating_sub(lost)
    }
}

/// Whether the library can tell a guest what is left to do. It does not know the bit for ECN: a guest that
/// forwards such a frame would repeat its CWR flag in each segment.
pub(super) fn expressible(packet: &Packet) -> bool {
    let offload = packet.offload();
    let unfinished = offload.needs_csum() || offload.is_gso();
    !unfinished
        || offload.gso_type & Offload::GSO_ECN == 0
            && sent_offload(offload, packet.data()).is_some_and(|(flags, _)| flags & TX_UDP_SEG == 0)
}

/// Has `mbuf`, and `rest` where that is not enough, describe a packet.
#[inline(always)]
pub(super) fn describe(packet: &mut Packet, mbuf: &mut rte_mbuf, rest: &mut rte_mbuf) {
    let offload = *packet.offload();
    // For writing: the library puts the pseudo header's sum where a checksum is to be.
    let data = packet.data_mut();
    mbuf.buf_addr = data.as_mut_ptr().cast();
    mbuf.pkt_len = data.len() as u32;
    mbuf.data_len = data.len().min(MAX_SEGMENT) as u16;
    (mbuf.ol_flags, mbuf.tx_offload) = match offload.needs_csum() || offload.is_gso() {
        false => (0, 0),
        // The header's own checksum is right as it is.
        true => sent_offload(&offload, data).map_or((0, 0), |(flags, lengths)| (flags & !TX_IP_CKSUM, lengths)),
    };
    (mbuf.nb_segs, mbuf.next) = (1, std::ptr::null_mut());
    if data.len() > MAX_SEGMENT {
        let rest_of = &mut data[MAX_SEGMENT..];
        rest.buf_addr = rest_of.as_mut_ptr().cast();
        rest.data_len = rest_of.len() as u16;
        (mbuf.nb_segs, mbuf.next) = (2, rest);
    }
}
