//! Where samples wait for the exporter. It is bounded: what does not fit is lost, and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::{ipfix, sflow};

/// How many samples may wait: at a few hundred bytes each, less than a megabyte.
pub const MAX_WAITING: usize = 1024;

/// A packet that was sampled.
#[derive(Debug)]
pub enum Sample {
    /// For sFlow.
    Sflow(Box<sflow::Sample>),
    /// For IPFIX.
    Ipfix(Box<ipfix::Sample>),
}

/// The queue.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    samples: VecDeque<Sample>,
    /// The exporter has something else to do.
    woken: bool,
}

impl Queue {
    /// Adds a sample. False where there are too many: then it is lost.
    pub fn push(&self, sample: Sample) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.samples.len() >= MAX_WAITING {
            self.lost.fetch_add(1, Relaxed);
            return false;
        }
        waiting.samples.push_back(sample);
        let first = waiting.samples.len() == 1;
        drop(waiting);
        if first {
            self.changed.notify_one();
        }
        true
    }

    /// Takes all samples.
    pub fn take(&self) -> VecDeque<Sample> {
        let mut waiting = self.waiting.lock();
        waiting.woken = false;
        std::mem::take(&mut waiting.samples)
    }

    /// Waits until there is a sample, somebody wakes the exporter, or the time is over.
    pub fn wait(&self, at_most: Duration) {
        let mut waiting = self.waiting.lock();
        if waiting.samples.is_empty() && !waiting.woken {
            self.changed.wait_for(&mut waiting, at_most);
        }
    }

    /// Ends a [`wait`](Queue::wait).
    pub fn wake(&self) {
        self.waiting.lock().woken = true;
        self.changed.notify_one();
    }

    /// Samples that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}
