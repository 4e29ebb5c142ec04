//! Transmit queue of an AF_PACKET port.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use packet::{BATCH_SIZE, Batch, Memory, Packet, Time};

use super::{Netdev, socket};
use crate::stats::TxCounters;
use crate::virtual_port::fits;
use crate::{Offloads, TxDrop, TxQueue, offload, vnet};

pub struct Tx {
    socket: socket::Socket,
    shared: Arc<Netdev>,
    offloads: Offloads,
    /// Where segments are made.
    memory: &'static Memory,
    counters: Arc<TxCounters>,
    /// Frames for the next system call.
    pending: Batch,
}

impl Tx {
    pub fn new(
        socket: socket::Socket,
        shared: Arc<Netdev>,
        offloads: Offloads,
        memory: &'static Memory,
        counters: Arc<TxCounters>,
    ) -> Tx {
        Tx { socket, shared, offloads, memory, counters, pending: Batch::new() }
    }

    /// Sends the pending frames and counts them.
    fn flush(&mut self) -> usize {
        let headers: ArrayVec<_, BATCH_SIZE> = self.pending.iter().map(|p| vnet::encode(p.offload())).collect();
        let messages: ArrayVec<(&[u8; vnet::LEN], &[u8]), BATCH_SIZE> =
            headers.iter().zip(&self.pending).map(|(header, p)| (header, p.data())).collect();
        let (mut rest, mut sent) = (&messages[..], 0);
        while !rest.is_empty() {
            match socket::send(&self.socket, rest) {
                Ok(n) => {
                    let (gone, left) = rest.split_at(n.clamp(1, rest.len()));
                    self.counters.passed(gone.len(), gone.iter().map(|(_, frame)| frame.len()).sum());
                    sent += gone.len();
                    rest = left;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let (reason, of_all) = why(&e);
                    let lost = if of_all { rest.len() } else { 1 };
                    self.counters.dropped(reason, lost);
                    rest = &rest[lost..];
                }
            }
        }
        drop(messages);
        self.pending.clear();
        sent
    }

    fn push(&mut self, packet: Packet, mtu: usize) -> usize {
        // With a vnet header the kernel does not compare the length with the MTU.
        if !packet.offload().is_gso() && !fits(packet.data(), mtu) {
            self.counters.dropped(TxDrop::of_length(packet.data()), 1);
            return 0;
        }
        self.pending.push(packet);
        if self.pending.is_full() { self.flush() } else { 0 }
    }
}

/// Why the kernel does not take a frame, and whether that holds for those behind it.
fn why(error: &std::io::Error) -> (TxDrop, bool) {
    match error.raw_os_error() {
        // The socket's buffer is full.
        Some(libc::EAGAIN) => (TxDrop::QueueFull, true),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => (TxDrop::Down, true),
        // The queueing discipline, or the other end of a veth, has no room for this one.
        Some(libc::ENOBUFS) => (TxDrop::QueueFull, false),
        _ => (TxDrop::Refused, false),
    }
}

impl TxQueue for Tx {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let mtu = self.shared.mtu.load(Relaxed) as usize;
        let (offloads, memory) = (self.offloads, self.memory);
        let (count, mut taken) = (batch.len(), 0);
        for packet in batch.drain(..) {
            if *packet.offload() == packet::Offload::NONE {
                taken += self.push(packet, mtu);
            } else if let Err(error) = offload::complete(packet, offloads, memory, &mut |p| taken += self.push(p, mtu))
            {
                self.counters.dropped(error.into(), 1);
            }
        }
        // Frames that were cut count once.
        (taken + self.flush()).min(count)
    }

    fn needs_housekeeping(&self) -> bool {
        false
    }
}
