//! The channel between a worker and its handler: what goes up, what comes down, and who is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;
use packet::flow::extract::Layers;
use packet::{Key, Packet};
use parking_lot::Mutex;

use crate::action::{PortNo, Punt};
use crate::actions::program::Program;
use crate::classify::table::stages::MAX_PORTS;
use crate::drop::DropReason;
use crate::pipeline::recirculation::Pass;
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
}

/// An item of the queue down to the worker.
pub struct Returned {
    /// The input port.
    pub in_port: PortNo,
    pub connection: Option<u32>,
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
}

/// What to do with a missed packet.
pub enum Answer {
    /// Run this program.
    Run(Arc<Program>),
    /// Drop it.
    Drop(DropReason),
}

/// A worker's queues to and from its handler.
pub struct Channel {
    pub up: ArrayQueue<ToHandler>,
    pub down: ArrayQueue<Returned>,
    /// Wakes the worker.
    pub worker: Arc<Waker>,
}

impl Channel {
    /// Queues of this many packets.
    pub fn new(size: usize, worker: Arc<Waker>) -> Channel {
        let size = size.max(2);
        Channel { up: ArrayQueue::new(size), down: ArrayQueue::new(size), worker }
    }

    /// Whether the queue down to the worker has items.
    #[inline(always)]
    pub fn has_returned(&self) -> bool {
        !self.down.is_empty()
    }

    /// Whether the queue up to the handler has items.
    pub fn has_upcalls(&self) -> bool {
        !self.up.is_empty()
    }
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
