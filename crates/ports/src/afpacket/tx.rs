//! Transmit queue of an AF_PACKET port.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use packet::buffer::heap::HEAP;
use packet::{BATCH_SIZE, Batch, Packet, Time};

use super::{Netdev, socket};
use crate::stats::Counters;
use crate::virtual_port::fits;
use crate::{Offloads, TxQueue, offload, vnet};

pub struct Tx {
    socket: socket::Socket,
    shared: Arc<Netdev>,
    offloads: Offloads,
    counters: Arc<Counters>,
    /// Frames for the next system call.
    pending: Batch,
}

impl Tx {
    pub fn new(socket: socket::Socket, shared: Arc<Netdev>, offloads: Offloads, counters: Arc<Counters>) -> Tx {
        Tx { socket, shared, offloads, counters, pending: Batch::new() }
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
                Err(e) => match e.raw_os_error() {
                    // The socket's buffer is full, or there is no interface: the rest would fare no
                    // better.
                    Some(libc::EAGAIN | libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                        self.counters.dropped.add(rest.len() as u64);
                        break;
                    }
                    // The queueing discipline or the other end of a veth refuses this one.
                    Some(libc::ENOBUFS) => {
                        self.counters.dropped.add(1);
                        rest = &rest[1..];
                    }
                    _ => {
                        self.counters.errors.add(1);
                        rest = &rest[1..];
                    }
                },
            }
        }
        drop(messages);
        self.pending.clear();
        sent
    }

    fn push(&mut self, packet: Packet, mtu: usize) -> usize {
        // With a vnet header the kernel does not compare the length with the MTU.
        if !packet.offload().is_gso() && !fits(packet.data(), mtu) {
            self.counters.dropped.add(1);
            return 0;
        }
        self.pending.push(packet);
        if self.pending.is_full() { self.flush() } else { 0 }
    }
}

impl TxQueue for Tx {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let mtu = self.shared.mtu.load(Relaxed) as usize;
        let offloads = self.offloads;
        let (count, mut taken) = (batch.len(), 0);
        for packet in batch.drain(..) {
            if *packet.offload() == packet::Offload::NONE {
                taken += self.push(packet, mtu);
            } else if offload::complete(packet, offloads, &HEAP, &mut |p| taken += self.push(p, mtu)).is_err() {
                self.counters.errors.add(1);
            }
        }
        // Frames that were cut count once.
        (taken + self.flush()).min(count)
    }

    fn needs_housekeeping(&self) -> bool {
        false
    }
}
