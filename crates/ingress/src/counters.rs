//! What the rules have counted.
//!
//! Sharing between threads: each receive queue has counters of its own, which only its worker writes. Others read them
//! at any time; a reader may see packets of a batch that is under way, and some counters of it before others. They say
//! nothing about other memory, so their accesses need no order.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a rule has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Frames whose first match it was.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them were dropped.
    pub dropped: u64,
}

impl RuleCounts {
    /// Adds others.
    pub fn add(&mut self, other: RuleCounts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
    }
}

/// The counters of the rules for one receive queue.
#[derive(Debug)]
pub struct QueueCounters(Box<[RuleCounters]>);

/// The counters of a rule.
#[derive(Debug, Default)]
struct RuleCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl QueueCounters {
    /// Counters for so many rules.
    pub fn new(rules: usize) -> QueueCounters {
        QueueCounters((0..rules).map(|_| RuleCounters::default()).collect())
    }

    /// Adds to what a rule has counted. One thread at a time may call this: the queue's worker, where there is one.
    #[inline]
    pub fn add(&self, rule: usize, counts: RuleCounts) {
        let counters = &self.0[rule];
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        add(&counters.packets, counts.packets);
        add(&counters.bytes, counts.bytes);
        add(&counters.dropped, counts.dropped);
    }

    /// What there is.
    pub fn read(&self) -> impl Iterator<Item = RuleCounts> {
        self.0.iter().map(|counters| RuleCounts {
            packets: counters.packets.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
        })
    }
}
