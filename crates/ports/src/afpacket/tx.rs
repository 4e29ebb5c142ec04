//! Transmit queue of an AF_PACKET port.
//!
//! Packets of a queue with a class of its own in the interface's queueing discipline go through a socket of their own. So
//! what waits in one class fills the buffer of that socket, and nothing that other classes need. A socket is made when the
//! first packet is sent to its queue. Beyond [`CLASS_SOCKETS`] queues, the others share one socket, whose priority is set
//! for each run of packets.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use packet::{BATCH_SIZE, Batch, Memory, Packet, Time};

use super::{Netdev, socket};
use crate::link::qdisc::priority_of;
use crate::stats::TxCounters;
use crate::virtual_port::fits;
use crate::{Offloads, TxDrop, TxQueue, offload, vnet};

/// Most queues that have a socket of their own.
const CLASS_SOCKETS: usize = 64;

/// Sockets of queues that have a class.
#[derive(Default)]
struct ClassSockets {
    /// By the number of the queue.
    own: ArrayVec<(u32, socket::Socket), CLASS_SOCKETS>,
    /// Sends for the queues that have none of their own.
    others: Option<socket::Socket>,
}

pub struct Tx {
    socket: socket::Socket,
    classes: ClassSockets,
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
        let classes = ClassSockets::default();
        Tx { socket, classes, shared, offloads, memory, counters, pending: Batch::new() }
    }

    /// Sends the pending frames and counts them.
    fn flush(&mut self) -> usize {
        let sent = match self.shared.has_classes.load(Relaxed) {
            false => send(&self.socket, &self.pending, &self.counters),
            true => self.send_by_class(),
        };
        self.pending.clear();
        sent
    }

    /// Sends the pending frames, each run of one queue through the socket of its class.
    #[cold]
    fn send_by_class(&mut self) -> usize {
        let (mut begin, mut sent) = (0, 0);
        while let Some(first) = self.pending.get(begin) {
            let queue = first.queue();
            let run = self.pending[begin..].iter().take_while(|packet| packet.queue() == queue).count();
            let socket = self.classes.get(queue, &self.shared).unwrap_or(&self.socket);
            sent += send(socket, &self.pending[begin..begin + run], &self.counters);
            begin += run;
        }
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

impl ClassSockets {
    /// The socket for a queue. `None`: that for packets of no queue, where there is no class, or no socket can be had.
    fn get(&mut self, queue: u32, netdev: &Netdev) -> Option<&socket::Socket> {
        let priority = priority_of(queue).filter(|_| queue != 0)?;
        if let Some(at) = self.own.iter().position(|(number, _)| *number == queue) {
            return self.own.get(at).map(|(_, socket)| socket);
        }
        let open = || socket::open_tx(&netdev.name, netdev.ifindex, false).ok();
        if self.own.is_full() {
            if self.others.is_none() {
                self.others = open();
            }
            return self.others.as_ref().filter(|socket| socket::set_priority(socket, priority).is_ok());
        }
        let socket = open().filter(|socket| socket::set_priority(socket, priority).is_ok())?;
        self.own.push((queue, socket));
        self.own.last().map(|(_, socket)| socket)
    }
}

/// Sends frames through a socket and counts them.
fn send(socket: &socket::Socket, packets: &[Packet], counters: &TxCounters) -> usize {
    let headers: ArrayVec<_, BATCH_SIZE> = packets.iter().map(|p| vnet::encode(p.offload())).collect();
    let messages: ArrayVec<(&[u8; vnet::LEN], &[u8]), BATCH_SIZE> =
        headers.iter().zip(packets).map(|(header, p)| (header, p.data())).collect();
    let (mut rest, mut sent) = (&messages[..], 0);
    while !rest.is_empty() {
        match socket::send(socket, rest) {
            Ok(n) => {
                let (gone, left) = rest.split_at(n.clamp(1, rest.len()));
                counters.passed(gone.len(), gone.iter().map(|(_, frame)| frame.len()).sum());
                sent += gone.len();
                rest = left;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => {
                let (reason, of_all) = why(&e);
                let lost = if of_all { rest.len() } else { 1 };
                counters.dropped(reason, lost);
                rest = &rest[lost..];
            }
        }
    }
    sent
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
