//! What workers call: one burst of a queue, with one call into the driver.
//!
//! Workers call the driver's functions by DPDK's table of them, as DPDK's inline functions do; while a
//! device is stopped, the table has functions there that do nothing.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use dpdk_sys::{rte_eth_fp_ops, rte_mbuf};
use packet::{BATCH_SIZE, Batch, Packet, Time};

use super::device::Device;
use super::mbuf::{self, Mbufs};
use super::thread;
use crate::stats::{RxCounters, TxCounters};
use crate::{RxQueue, TxDrop, TxQueue, offload};

/// A driver's function that moves mbufs.
type Burst = unsafe extern "C" fn(queue: *mut c_void, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;

/// The functions of a device.
fn functions(id: u16) -> *const rte_eth_fp_ops {
    // SAFETY: DPDK gives out numbers below the table's length.
    unsafe { dpdk_sys::weir_eth_fp_ops(id) }
}

/// A receive queue.
pub struct Receiver {
    device: Arc<Device>,
    functions: *const rte_eth_fp_ops,
    index: usize,
    counters: Arc<RxCounters>,
}

// SAFETY: the table that `functions` points into belongs to the process. The queue it leads to may be used
// by any thread, one at a time.
unsafe impl Send for Receiver {}

impl Receiver {
    /// Receives from queue `index`, which has no other receiver.
    pub fn new(device: Arc<Device>, index: usize, counters: Arc<RxCounters>) -> Receiver {
        Receiver { functions: functions(device.id), device, index, counters }
    }
}

impl RxQueue for Receiver {
    #[inline]
    fn receive(&mut self, batch: &mut Batch, _now: Time) -> usize {
        thread::attach();
        thread::flush();
        let mut mbufs = [MaybeUninit::<*mut rte_mbuf>::uninit(); BATCH_SIZE];
        let room = batch.remaining_capacity().min(BATCH_SIZE);
        // SAFETY: the device is there while `self.device` is, and this is the only user of the queue. The
        // driver fills at most `room` places with mbufs that are then ours.
        let received = unsafe {
            let functions = &*self.functions;
            let Some(burst): Option<Burst> = functions.rx_pkt_burst else { return 0 };
            let count = burst(*functions.rxq.data.add(self.index), mbufs.as_mut_ptr().cast(), room as u16);
            if count == 0 {
                return 0;
            }
            let mbufs = std::slice::from_raw_parts(mbufs.as_ptr().cast(), usize::from(count).min(room));
            mbuf::to_packets(self.device.pool.leak(), self.device.large, mbufs, batch)
        };
        if received.dropped > 0 {
            self.counters.dropped.add(received.dropped as u64);
        }
        received.packets
    }
}

/// A transmit queue.
pub struct Sender {
    device: Arc<Device>,
    functions: *const rte_eth_fp_ops,
    index: usize,
    counters: Arc<TxCounters>,
    /// To be sent next.
    mbufs: Mbufs,
    /// Some of them ask for an offload.
    prepares: bool,
}

// SAFETY: the table that `functions` points into belongs to the process, the queue it leads to may be used by
// any one thread at a time, and the mbufs are owned by this value.
unsafe impl Send for Sender {}

impl Sender {
    /// Sends by queue `index`, which has no other sender.
    pub fn new(device: Arc<Device>, index: usize, counters: Arc<TxCounters>) -> Sender {
        Sender { functions: functions(device.id), device, index, counters, mbufs: Mbufs::new(), prepares: false }
    }

    /// Adds a packet, and sends what was gathered when that is a burst.
    fn add(&mut self, packet: Packet) -> usize {
        let offload = packet.offload();
        if !offload.needs_csum() && !offload.is_gso() {
            return self.add_completed(packet);
        }
        let mut sent = 0;
        let (can, memory) = (self.device.offloads, self.device.pool.leak().memory());
        let outcome = offload::complete(packet, can, memory, &mut |packet| sent += self.add_completed(packet));
        if let Err(error) = outcome {
            self.counters.dropped(error.into(), 1);
        }
        sent
    }

    fn add_completed(&mut self, packet: Packet) -> usize {
        self.prepares |= packet.offload().needs_csum() || packet.offload().is_gso();
        match mbuf::from_packet(&self.device.pool, self.device.chains, packet) {
            Ok(mbuf) => self.mbufs.push(mbuf),
            Err(reason) => self.counters.dropped(reason, 1),
        }
        if self.mbufs.is_full() { self.send() } else { 0 }
    }

    /// Has the driver check and complete what it was told to do. What it refuses is dropped.
    #[cold]
    fn prepare(&mut self) {
        self.prepares = false;
        let mut at = 0;
        while at < self.mbufs.len() {
            // SAFETY: the device is there while `self.device` is, this is the only user of the queue, and the
            // mbufs are owned here.
            let good = unsafe {
                let functions = &*self.functions;
                let Some(prepare): Option<Burst> = functions.tx_pkt_prepare else { return };
                let queue = *functions.txq.data.add(self.index);
                prepare(queue, self.mbufs.as_mut_ptr().add(at), (self.mbufs.len() - at) as u16)
            };
            at += usize::from(good);
            if at < self.mbufs.len() {
                self.counters.dropped(TxDrop::Malformed, 1);
                // SAFETY: the driver has not taken it.
                unsafe { thread::give_back(self.mbufs.remove(at)) };
            }
        }
    }

    /// Sends what was gathered. Returns how many of the mbufs were sent.
    fn send(&mut self) -> usize {
        if self.prepares {
            self.prepare();
        }
        let mut mbufs = std::mem::take(&mut self.mbufs);
        self.burst(&mut mbufs)
    }

    /// Sends mbufs that are ours; what the driver does not take is dropped. Returns how many were sent.
    #[inline(always)]
    fn burst(&self, mbufs: &mut [*mut rte_mbuf]) -> usize {
        let mut sent = 0;
        while sent < mbufs.len() {
            // SAFETY: the device is there while `self.device` is, and this is the only user of the queue.
            // The mbufs are ours, and the driver's once it has taken them.
            let taken = unsafe {
                let functions = &*self.functions;
                let Some(burst): Option<Burst> = functions.tx_pkt_burst else { break };
                let queue = *functions.txq.data.add(self.index);
                usize::from(burst(queue, mbufs.as_mut_ptr().add(sent), (mbufs.len() - sent) as u16))
            };
            if taken == 0 {
                break;
            }
            sent += taken;
        }
        if sent < mbufs.len() {
            self.give_up(&mbufs[sent..]);
        }
        sent
    }

    #[cold]
    fn give_up(&self, mbufs: &[*mut rte_mbuf]) {
        self.counters.dropped(TxDrop::QueueFull, mbufs.len());
        // SAFETY: the driver has not taken them.
        mbufs.iter().for_each(|&mbuf| unsafe { thread::give_back(mbuf) });
    }

    /// Sends packets of which some are more than a frame in an mbuf: those that came in by a port of the kernel, say.
    #[inline(never)]
    fn send_others(&mut self, batch: &mut Batch) -> usize {
        let sent: usize = batch.drain(..).map(|packet| self.add(packet)).sum();
        sent + if self.mbufs.is_empty() { 0 } else { self.send() }
    }
}

impl TxQueue for Sender {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        thread::attach();
        let mut mbufs = [MaybeUninit::uninit(); BATCH_SIZE];
        match mbuf::all_in_place(batch, &mut mbufs) {
            Some(mbufs) => self.burst(mbufs),
            None => self.send_others(batch),
        }
    }

    fn housekeep(&mut self, _now: Time) {
        thread::flush();
    }
}
