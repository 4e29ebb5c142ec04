//! The channels between a worker and its handlers: what goes up, what comes down, and who is woken.
//!
//! A worker has several channels, each of which is served by one handler, so that several handlers can share its misses.
//! What goes up by one channel stays in order. Everything comes down by one queue, which all of a worker's channels
//! share. The queues take memory for what is in them only. The worker bounds that: it counts what is outstanding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use crossbeam_queue::SegQueue;
use packet::buffer::heap::HEAP;
use packet::flow::extract::Layers;
use packet::{Key, Packet};
use parking_lot::Mutex;

use crate::action::{PortNo, Punt};
use crate::actions::program::Program;
use crate::classify::table::stages::MAX_PORTS;
use crate::drop::DropReason;
use crate::pipeline::recirculation::Pass;
use crate::slowpath::return_queue::ReturnQueue;
use crate::worker::waker::Waker;

/// An item of the queue up to the handler.
pub enum ToHandler {
    Miss(Outstanding),
    Punt { packet: Packet, key: Box<Key>, punt: Arc<Punt> },
}

impl ToHandler {
    /// The input port that it is counted for.
    pub fn port(&self) -> usize {
        let (ToHandler::Miss(Outstanding { key, .. }) | ToHandler::Punt { key, .. }) = self;
        port_index(crate::upcall::in_port(key))
    }
}

/// A missed packet, with what its worker needs when the packet comes back.
pub struct Outstanding {
    pub packet: Packet,
    pub key: Box<Key>,
    pub layers: Layers,
    pub hash: u64,
    /// Its pass through classification.
    pub pass: Pass,
    /// Hash of its connection.
    pub connection: u32,
    /// Whether a flow has counted it.
    pub counted: bool,
    /// The cycle counter when it went up; zero where nobody wants to know.
    pub sent_at: u64,
}

/// What an outstanding packet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Bytes of its buffer.
    pub bytes: u32,
    /// Whether the buffer is one of a port's, and not of the heap.
    pub kept: bool,
}

impl Charge {
    /// What a packet takes.
    pub fn of(packet: &Packet) -> Charge {
        let bytes = (packet.headroom() + packet.len() + packet.tailroom()) as u32;
        Charge { bytes, kept: !std::ptr::eq(packet.memory(), &HEAP) }
    }

    /// Bytes of ports' buffers.
    pub fn kept_bytes(self) -> usize {
        if self.kept { self.bytes as usize } else { 0 }
    }
}

/// An item of the queue down to the worker.
pub struct Returned {
    /// The input port.
    pub in_port: PortNo,
    pub connection: Option<u32>,
    /// What the packet has taken.
    pub charge: Charge,
    /// The packet with its answer, or the key of a punted packet.
    pub what: ReturnedItem,
}

/// What comes down for a packet.
pub enum ReturnedItem {
    /// It missed, and has an answer.
    Answered(Answered),
    /// It was punted, and the slow path keeps it. Its key can be reused.
    Punted(Box<Key>),
}

/// A missed packet with its answer.
pub struct Answered {
    /// The frame.
    pub packet: Packet,
    /// Its key.
    pub key: Box<Key>,
    /// Its header offsets.
    pub layers: Layers,
    /// Its pass through classification.
    pub pass: Pass,
    /// What to do with the packet.
    pub answer: Answer,
    /// The cycle counter when it went up; zero where nobody wants to know.
    pub sent_at: u64,
}

/// What to do with a missed packet.
pub enum Answer {
    /// Run this program.
    Run(Arc<Program>),
    /// Drop it.
    Drop(DropReason),
}

/// How many channels a worker has, and so the most handlers that can share its misses.
pub const CHANNELS: usize = 8;

/// The queue by which packets come down to a worker.
pub type Down = ReturnQueue<Returned, CHANNELS>;

/// One of a worker's channels: the queue up, and the one down, which all of them share.
pub struct Channel {
    /// Its number.
    number: usize,
    pub up: SegQueue<ToHandler>,
    pub down: Arc<Down>,
    /// Wakes the worker.
    pub worker: Arc<Waker>,
}

/// A worker's channels.
pub type Channels = [Arc<Channel>; CHANNELS];

impl Channel {
    /// The channels of a worker.
    pub fn all(worker: &Arc<Waker>) -> Channels {
        let down = Arc::new(Down::new());
        std::array::from_fn(|number| {
            Arc::new(Channel { number, up: SegQueue::new(), down: down.clone(), worker: worker.clone() })
        })
    }

    /// Sends an item down to the worker. Only the handler that serves the channel may do so.
    pub fn send_down(&self, item: Returned) {
        self.down.push(self.number, item);
    }

    /// Whether the queue up to the handler has items.
    pub fn has_upcalls(&self) -> bool {
        !self.up.is_empty()
    }
}

/// The handlers that serve a worker's channels.
pub struct ServingHandlers {
    /// Wake them, by channel.
    pub notifiers: [Arc<Notifier>; CHANNELS],
    /// How many channels are used, the first ones: no more than there are handlers.
    pub used: usize,
}

/// Wakes a handler thread.
#[derive(Default)]
pub struct Notifier {
    sleeping: AtomicBool,
    /// The thread that sleeps now, or has slept last.
    thread: Mutex<Option<Thread>>,
}

impl Notifier {
    /// Wakes the thread if it sleeps.
    pub fn notify(&self) {
        if self.sleeping.load(Ordering::SeqCst)
            && self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Sleeps until [`notify`](Notifier::notify) or for `timeout`, unless `has_work`.
    pub fn wait(&self, timeout: std::time::Duration, has_work: impl Fn() -> bool) {
        *self.thread.lock() = Some(std::thread::current());
        self.sleeping.store(true, Ordering::SeqCst);
        if !has_work() {
            std::thread::park_timeout(timeout);
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Input ports that are not datapath ports (a controller's, none) share index zero.
pub fn port_index(in_port: PortNo) -> usize {
    if (in_port.0 as usize) < MAX_PORTS { in_port.0 as usize } else { 0 }
}
