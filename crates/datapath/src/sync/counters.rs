//! Counters that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::drop::DropReason;
use crate::stats::{Drops, WorkerStats};

/// A counter with one writer.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only for the owner: two at once would lose counts.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Drops by reason.
pub struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> DropCounters {
        DropCounters(std::array::from_fn(|_| Counter::default()))
    }
}

impl DropCounters {
    /// Counts packets.
    pub fn add(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].add(packets);
    }

    /// The present values.
    pub fn read(&self) -> Drops {
        Drops(std::array::from_fn(|i| self.0[i].get()))
    }
}

macro_rules! counters {
    ($($name:ident,)*) => {
        /// What a worker counts. Fields as in [`WorkerStats`].
        #[derive(Default)]
        #[allow(missing_docs)]
        pub struct WorkerCounters {
            $(pub $name: Counter,)*
            pub slept_nanos: Counter,
            pub drops: DropCounters,
        }

        impl WorkerCounters {
            /// The present values.
            pub fn read(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.get(),)*
                    slept: Duration::from_nanos(self.slept_nanos.get()),
                    drops: self.drops.read(),
                    number: 0,
                    core: None,
                    node: 0,
                    counted_for: Duration::ZERO,
                }
            }
        }

        impl std::ops::AddAssign<&WorkerStats> for WorkerStats {
            /// Adds what another worker has counted.
            fn add_assign(&mut self, other: &WorkerStats) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
                self.slept += other.slept;
                self.drops += &other.drops;
            }
        }

        impl WorkerStats {
            /// What was counted since `base` was read.
            pub(crate) fn since(self, base: &WorkerStats) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.wrapping_sub(base.$name),)*
                    slept: self.slept.saturating_sub(base.slept),
                    drops: self.drops.since(&base.drops),
                    ..self
                }
            }
        }
    };
}

counters! {
    received, injected, copied, recirculated, simple_hits, exact_hits, megaflow_hits, subtables_visited, misses, lost,
    batches_sent, sent, refused, punted, joined, busy_cycles, idle_cycles, busy_turns, turns, sleeps,
}
