//! Counters of a port.
//!
//! Sharing between threads: each queue's counters have one writer, the worker that owns the queue, which
//! uses plain loads and stores. Anybody may read at any time and sees each counter rise, but no
//! consistent cut through several of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::Stats;
use crate::drop::{TxDrop, TxDrops};

/// A counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owner may call this: two writers would lose counts.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one receive queue, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RxCounters {
    /// Frames received.
    pub packets: Counter,
    /// Bytes of these frames.
    pub bytes: Counter,
    /// Frames that found no room, no buffer, or a port that is down.
    pub dropped: Counter,
    /// Frames that are wrong, and system calls that failed.
    pub errors: Counter,
    /// Frames that are malformed or cut short (part of `errors`).
    pub frame_err: Counter,
    /// Frames that the ring had no room for (part of `dropped`).
    pub over_err: Counter,
}

impl RxCounters {
    /// Counts a burst that was received.
    #[inline(always)]
    pub fn passed(&self, packets: usize, bytes: usize) {
        self.packets.add(packets as u64);
        self.bytes.add(bytes as u64);
    }
}

/// Counters of one transmit queue, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TxCounters {
    /// Frames sent.
    pub packets: Counter,
    /// Bytes of these frames.
    pub bytes: Counter,
    /// Frames that were not, by reason.
    drops: [Counter; TxDrop::ALL.len()],
}

impl TxCounters {
    /// Counts frames that are not sent.
    #[cold]
    pub fn dropped(&self, reason: TxDrop, frames: usize) {
        self.drops[reason as usize].add(frames as u64);
    }

    /// The frames that were not sent.
    pub fn drops(&self) -> TxDrops {
        TxDrops(std::array::from_fn(|at| self.drops[at].get()))
    }

    /// Counts a burst that was sent.
    #[inline(always)]
    pub fn passed(&self, packets: usize, bytes: usize) {
        self.packets.add(packets as u64);
        self.bytes.add(bytes as u64);
    }
}

/// Counters of all queues of a port. They stay when a queue is dropped and serve its successor, so
/// that a port's statistics never decrease.
#[derive(Debug, Default)]
pub struct PortCounters {
    rx: Mutex<Vec<Arc<RxCounters>>>,
    tx: Mutex<Vec<Arc<TxCounters>>>,
}

impl PortCounters {
    /// The counters of receive queue `index`.
    pub fn rx(&self, index: usize) -> Arc<RxCounters> {
        nth(&mut self.rx.lock(), index)
    }

    /// The counters of transmit queue `index`.
    pub fn tx(&self, index: usize) -> Arc<TxCounters> {
        nth(&mut self.tx.lock(), index)
    }

    /// The sum over all queues.
    pub fn sum(&self) -> Stats {
        let mut stats = Stats::default();
        for c in self.rx.lock().iter() {
            stats.rx_packets += c.packets.get();
            stats.rx_bytes += c.bytes.get();
            stats.rx_dropped += c.dropped.get();
            stats.rx_errors += c.errors.get();
            stats.rx_frame_err += c.frame_err.get();
            stats.rx_over_err += c.over_err.get();
        }
        for c in self.tx.lock().iter() {
            stats.tx_packets += c.packets.get();
            stats.tx_bytes += c.bytes.get();
            let drops = c.drops();
            stats.tx_errors += drops.errors();
            stats.tx_dropped += drops.total() - drops.errors();
        }
        stats
    }

    /// What no transmit queue has taken.
    pub fn tx_drops(&self) -> TxDrops {
        let mut sum = TxDrops::default();
        self.tx_queue_drops().into_iter().for_each(|drops| sum += drops);
        sum
    }

    /// What each transmit queue has not taken.
    pub fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.tx.lock().iter().map(|counters| counters.drops()).collect()
    }
}

fn nth<T: Default>(queues: &mut Vec<Arc<T>>, index: usize) -> Arc<T> {
    if queues.len() <= index {
        queues.resize_with(index + 1, Arc::default);
    }
    queues[index].clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_survive_their_queue() {
        let port = PortCounters::default();
        port.rx(1).passed(2, 120);
        port.tx(0).passed(1, 60);
        port.tx(0).dropped(TxDrop::Down, 3);
        port.tx(1).dropped(TxDrop::Refused, 2);
        let queue = port.rx(1);
        queue.passed(1, 60);
        queue.over_err.add(4);
        let s = port.sum();
        assert_eq!((s.rx_packets, s.rx_bytes, s.rx_over_err), (3, 180, 4));
        assert_eq!((s.tx_packets, s.tx_bytes, s.tx_dropped, s.tx_errors), (1, 60, 3, 2));
        assert_eq!(port.tx_drops().named(), [("tx_down_drops", 3), ("tx_system_errors", 2)]);
        let queues: Vec<_> = port.tx_queue_drops().iter().map(|queue| queue.named()).collect();
        assert_eq!(queues, [[("tx_down_drops", 3)], [("tx_system_errors", 2)]]);
    }
}
