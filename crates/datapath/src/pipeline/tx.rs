//! Stage 7: packets gathered for each output port, and sent as one burst.
//!
//! A burst leaves when it is full, at the end of the batch, or, with a flush interval, before its first
//! packet has waited longer than that. Time is read once in a turn, so a packet that would be due within
//! another turn as long as the last one leaves now. No packet is ever stuck:
//!
//! - a worker stays awake for what is due soon, and sends everything before it sleeps or ends;
//! - what waits for a port is sent before the port, or its queue, is taken away, and before the interval
//!   changes;
//! - a clock that stands still (`time/stop`) cannot say when a packet is due: meanwhile, nothing waits.

use std::sync::Arc;
use std::time::Duration;

use packet::{Batch, Packet, Time};

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::port::{PortShared, Queue, SharedQueue};
use crate::sync::counters::WorkerCounters;

/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// A worker with nothing else to do sends rather than poll for longer than this.
const LONG: Duration = Duration::from_millis(1);

/// The ports, as one worker sends to them.
pub struct Outputs {
    /// By port number.
    slots: Vec<Option<Box<Slot>>>,
    /// Ports with packets that wait.
    waiting: Vec<PortNo>,
    /// Ports whose queues want to be reaped: those of sockets do not, and there may be a thousand.
    reaped: Vec<PortNo>,
    /// How long a packet may wait. Zero: until the end of the batch.
    interval: Duration,
    /// How long the last turn took. Zero: the clock stands still.
    turn: Duration,
    worker: usize,
    counters: Arc<WorkerCounters>,
    /// Whether anything was sent since the last [`housekeep`](Outputs::housekeep).
    pub sent_lately: bool,
}

struct Slot {
    shared: Arc<PortShared>,
    queue: Queue,
    batch: Batch,
    /// When the first packet of `batch` came.
    since: Time,
}

impl Outputs {
    /// No ports yet.
    pub fn new(worker: usize, interval: Duration, counters: Arc<WorkerCounters>) -> Outputs {
        let turn = Duration::ZERO;
        Outputs {
            slots: Vec::new(),
            waiting: Vec::new(),
            reaped: Vec::new(),
            interval,
            turn,
            worker,
            counters,
            sent_lately: false,
        }
    }

    /// Changes how long a packet may wait. What waits by the old interval is sent.
    pub fn set_interval(&mut self, interval: Duration, now: Time) {
        self.flush(now);
        self.interval = interval;
    }

    /// A turn begins, `after` the one before.
    #[inline(always)]
    pub fn turn(&mut self, after: Duration) {
        self.turn = after;
    }

    /// Whether the clock has not moved since the last turn.
    pub fn stands_still(&self) -> bool {
        self.turn.is_zero()
    }

    /// Whether packets wait that are worth staying awake for.
    pub fn is_due_soon(&self) -> bool {
        !self.waiting.is_empty() && self.interval <= LONG
    }

    /// Adds a port.
    pub fn add(&mut self, shared: Arc<PortShared>, queue: Queue) {
        let at = shared.no.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.waiting.reserve(self.slots.len());
        if queue.needs_housekeeping() {
            self.reaped.push(shared.no);
        }
        self.slots[at] = Some(Box::new(Slot { shared, queue, batch: Batch::new(), since: Time(0) }));
    }

    /// Sends what waits for a port, and takes it away.
    pub fn remove(&mut self, port: PortNo, now: Time) -> Option<Queue> {
        self.flush_port(port, now);
        self.waiting.retain(|&p| p != port);
        self.reaped.retain(|&p| p != port);
        self.slots.get_mut(port.0 as usize)?.take().map(|slot| slot.queue)
    }

    /// Has another worker share the queue to a port.
    pub fn share(&mut self, port: PortNo) -> Option<SharedQueue> {
        let mut shared = None;
        self.change_queue(port, |queue| {
            let (queue, other) = queue.share();
            shared = Some(other);
            queue
        });
        shared
    }

    /// Sends to a port by another queue.
    pub fn replace(&mut self, port: PortNo, queue: Queue, now: Time) {
        self.flush_port(port, now);
        self.change_queue(port, |_| queue);
    }

    /// Forgets the locks of queues that no other worker shares any more.
    pub fn reclaim(&mut self) {
        for port in 0..self.slots.len() {
            self.change_queue(PortNo(port as u32), Queue::reclaim);
        }
    }

    fn change_queue(&mut self, port: PortNo, change: impl FnOnce(Queue) -> Queue) {
        let Some(place) = self.slots.get_mut(port.0 as usize) else { return };
        if let Some(slot) = place.take() {
            let Slot { shared, queue, batch, since } = *slot;
            *place = Some(Box::new(Slot { shared, queue: change(queue), batch, since }));
        }
    }

    /// Takes all queues away, once everything is sent: the worker ends.
    pub fn dismantle(&mut self, now: Time) -> Vec<(PortNo, Queue)> {
        self.flush(now);
        self.reaped.clear();
        self.slots.drain(..).flatten().map(|slot| (slot.shared.no, slot.queue)).collect()
    }

    /// A port's shared part.
    #[inline(always)]
    pub fn port(&self, port: PortNo) -> Option<&Arc<PortShared>> {
        Some(&self.slots.get(port.0 as usize)?.as_ref()?.shared)
    }

    /// The worker's counters.
    #[inline(always)]
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// The worker's number.
    #[inline(always)]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Queues a packet for a port. `in_port` is where it came from.
    #[inline(always)]
    pub fn push(&mut self, port: PortNo, packet: Packet, in_port: PortNo, now: Time) {
        let Some(Some(slot)) = self.slots.get_mut(port.0 as usize) else {
            return self.retire_one(packet, DropReason::NoSuchPort, in_port);
        };
        if packet.len() > slot.shared.max_frame() && is_too_big(&packet, slot.shared.max_frame()) {
            return self.retire_one(packet, DropReason::TooBig, port);
        }
        if !slot.shared.is_up() {
            return self.retire_one(packet, DropReason::PortDown, port);
        }
        if slot.batch.is_empty() {
            slot.since = now;
            self.waiting.push(port);
        }
        slot.batch.push(packet);
        if slot.batch.is_full() {
            send(&mut slot.queue, &mut slot.batch, &self.counters, now);
            self.sent_lately = true;
            self.waiting.retain(|&p| p != port);
        }
    }

    /// Queues packets that follow each other for a port: as [`push`](Outputs::push) for each of them.
    #[inline(always)]
    pub fn push_all(&mut self, port: PortNo, packets: impl Iterator<Item = Packet>, in_port: PortNo, now: Time) {
        let up = self.port(port).is_some_and(|shared| shared.is_up());
        let Some(Some(slot)) = self.slots.get_mut(port.0 as usize).filter(|_| up) else {
            return packets.for_each(|packet| self.push(port, packet, in_port, now));
        };
        let max_frame = slot.shared.max_frame();
        let waited = !slot.batch.is_empty();
        if !waited {
            slot.since = now;
        }
        let mut too_big = 0;
        for packet in packets {
            if packet.len() > max_frame && is_too_big(&packet, max_frame) {
                too_big += 1;
                continue;
            }
            slot.batch.push(packet);
            if slot.batch.is_full() {
                send(&mut slot.queue, &mut slot.batch, &self.counters, now);
                slot.since = now;
                self.sent_lately = true;
            }
        }
        match (waited, slot.batch.is_empty()) {
            (false, false) => self.waiting.push(port),
            (true, true) => self.waiting.retain(|&p| p != port),
            _ => {}
        }
        if too_big > 0 {
            self.retire_parts(too_big, DropReason::TooBig, port);
        }
    }

    /// Queues a whole batch for a port, whose longest frame has `longest` bytes: as [`push`](Outputs::push) for
    /// each packet. The batch is empty afterwards. Where nothing waits and nothing may, it is sent as it is.
    #[inline(always)]
    pub fn push_batch(&mut self, port: PortNo, batch: &mut Batch, longest: u32, in_port: PortNo, now: Time) {
        if let Some(Some(slot)) = self.slots.get_mut(port.0 as usize)
            && slot.shared.is_up()
            && longest as usize <= slot.shared.max_frame()
            && slot.batch.is_empty()
            && self.interval.is_zero()
        {
            send(&mut slot.queue, batch, &self.counters, now);
            self.sent_lately = true;
            return;
        }
        self.push_all(port, batch.drain(..), in_port, now);
    }

    /// At the end of a batch: sends what may not wait longer.
    #[inline]
    pub fn end_of_batch(&mut self, now: Time) {
        if self.waiting.is_empty() {
            return;
        }
        if self.interval.is_zero() || self.stands_still() { self.flush(now) } else { self.flush_due(now) }
    }

    /// Sends everything.
    pub fn flush(&mut self, now: Time) {
        while let Some(port) = self.waiting.pop() {
            self.flush_port(port, now);
        }
    }

    #[cold]
    fn flush_due(&mut self, now: Time) {
        let mut i = 0;
        while i < self.waiting.len() {
            let port = self.waiting[i];
            let since = self.slots[port.0 as usize].as_ref().map_or(Time(0), |s| s.since);
            if now.since(since) + self.turn >= self.interval {
                self.waiting.swap_remove(i);
                self.flush_port(port, now);
            } else {
                i += 1;
            }
        }
    }

    fn flush_port(&mut self, port: PortNo, now: Time) {
        if let Some(Some(slot)) = self.slots.get_mut(port.0 as usize)
            && !slot.batch.is_empty()
        {
            send(&mut slot.queue, &mut slot.batch, &self.counters, now);
            self.sent_lately = true;
        }
    }

    /// Lets queues reap.
    pub fn housekeep(&mut self, now: Time) {
        self.sent_lately = false;
        for port in &self.reaped {
            if let Some(Some(slot)) = self.slots.get_mut(port.0 as usize) {
                slot.queue.housekeep(now);
            }
        }
    }
}

#[inline]
fn send(queue: &mut Queue, batch: &mut Batch, counters: &WorkerCounters, now: Time) {
    let count = batch.len();
    let packets = queue.transmit(batch, now).min(count);
    debug_assert!(batch.is_empty(), "transmit leaves nothing (contract of TxQueue)");
    batch.clear();
    counters.batches_sent.add(1);
    counters.sent.add(packets as u64);
    if packets < count {
        counters.refused.add((count - packets) as u64);
    }
}

/// For a frame of more than `max_frame` bytes: unless it is only longer by its VLAN tags, or will be cut.
#[cold]
fn is_too_big(packet: &Packet, max_frame: usize) -> bool {
    let tag_at = |at: usize| matches!(packet.data().get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8]));
    let tags = if !tag_at(12) { 0 } else { 1 + usize::from(tag_at(16)) };
    !packet.offload().is_gso() && packet.len() > max_frame + tags * TAG
}
