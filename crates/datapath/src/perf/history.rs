//! The latest turns or milliseconds of a worker.
//!
//! Shared memory: the worker writes a slot, then the number of entries. A reader reads entries from the latest to older ones, then the number
//! again: what the worker may have written over meanwhile is left out. No one waits.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::counters::Counter;

/// Slots. One is being written.
const SLOTS: usize = 1024;

/// How many entries can be shown.
pub const LENGTH: usize = 1000;

macro_rules! iteration {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a turn, or all turns of a millisecond, have done.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Iteration {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// An iteration that one thread writes and any thread reads.
        #[derive(Default)]
        pub struct SharedIteration {
            $($name: Counter,)*
        }

        impl Iteration {
            /// How many numbers it has.
            pub const WORDS: usize = [$(stringify!($name)),*].len();

            /// Its numbers.
            pub fn words(&self) -> [u64; Iteration::WORDS] {
                [$(self.$name),*]
            }

            /// What has these numbers.
            pub fn from_words([$($name),*]: [u64; Iteration::WORDS]) -> Iteration {
                Iteration { $($name),* }
            }
        }

        impl SharedIteration {
            /// Adds to each number. Only for the owner.
            pub fn add(&self, more: &Iteration) {
                $(self.$name.add(more.$name);)*
            }

            /// Replaces all numbers. Only for the owner.
            fn set(&self, new: &Iteration) {
                $(self.$name.add(new.$name.wrapping_sub(self.$name.get()));)*
            }

            /// The present numbers.
            pub fn read(&self) -> Iteration {
                Iteration { $($name: self.$name.get()),* }
            }
        }
    };
}

iteration! {
    /// The number of the turn, from one; or the millisecond, since some start.
    timestamp,
    /// Turns: one, or those of a millisecond.
    iterations,
    /// Cycles of the turns.
    cycles,
    /// Cycles of those that had packets.
    busy_cycles,
    /// Packets received.
    packets,
    /// Batches in which they were received.
    batches,
    /// Frames that the fullest queue of a guest had when it was polled; of several turns, their sum.
    guest_queue,
    /// Upcalls whose answers came back.
    upcalls,
    /// How long these took altogether, in cycles.
    upcall_cycles,
}

impl Iteration {
    /// Adds what another has done.
    pub fn add(&mut self, more: &Iteration) {
        let mut sum = self.words();
        sum.iter_mut().zip(more.words()).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
        *self = Iteration { timestamp: self.timestamp, ..Iteration::from_words(sum) };
    }
}

/// A history.
pub struct History {
    slots: Box<[SharedIteration]>,
    /// How many entries were written.
    written: AtomicU64,
}

impl Default for History {
    fn default() -> History {
        History { slots: (0..SLOTS).map(|_| SharedIteration::default()).collect(), written: AtomicU64::new(0) }
    }
}

impl History {
    /// Appends an entry, and forgets the oldest. Only for the owner.
    pub fn push(&self, entry: &Iteration) {
        let written = self.written.load(Ordering::Relaxed);
        // Who sees a number of this entry sees that the one before it is complete.
        fence(Ordering::Release);
        self.slots[written as usize % SLOTS].set(entry);
        self.written.store(written + 1, Ordering::Release);
    }

    /// At most so many of the latest entries, the latest one first. Only for the owner, and without memory for them.
    pub fn own(&self, most: usize) -> impl Iterator<Item = Iteration> + '_ {
        let written = self.written.load(Ordering::Relaxed);
        (0..written).rev().take(most.min(LENGTH)).map(|n| self.slots[n as usize % SLOTS].read())
    }

    /// The same for anybody.
    pub fn latest(&self, most: usize) -> Vec<Iteration> {
        let written = self.written.load(Ordering::Acquire);
        let most = most.min(LENGTH).min(written as usize);
        let numbers = || (0..written).rev().take(most);
        let mut entries: Vec<_> = numbers().map(|n| self.slots[n as usize % SLOTS].read()).collect();
        fence(Ordering::Acquire);
        let now = self.written.load(Ordering::Relaxed);
        entries.truncate(numbers().take_while(|n| n + SLOTS as u64 > now).count());
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u64) -> Iteration {
        Iteration::from_words(std::array::from_fn(|word| n * 10 + word as u64))
    }

    #[test]
    fn the_latest_come_first() {
        let history = History::default();
        assert!(history.latest(5).is_empty());
        (0..3).for_each(|n| history.push(&entry(n)));
        assert_eq!(history.latest(5), [entry(2), entry(1), entry(0)]);
        (3..5000).for_each(|n| history.push(&entry(n)));
        assert_eq!(history.latest(2), [entry(4999), entry(4998)]);
        let all = history.latest(usize::MAX);
        assert_eq!((all.len(), all[LENGTH - 1]), (LENGTH, entry(5000 - LENGTH as u64)));
    }

    #[test]
    fn what_is_written_over_is_not_shown() {
        let history = History::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..300_000).for_each(|n| history.push(&entry(n))));
            while !writer.is_finished() {
                for (i, found) in history.latest(LENGTH).windows(2).enumerate() {
                    assert_eq!(found[0], entry(found[0].timestamp / 10), "entry {i} is of two");
                    assert_eq!(found[0].timestamp, found[1].timestamp + 10, "entry {i} is out of order");
                }
            }
        });
    }

    #[test]
    fn sums_keep_their_time() {
        let mut sum = Iteration { timestamp: 7, ..Iteration::default() };
        sum.add(&entry(1));
        sum.add(&entry(2));
        assert_eq!((sum.timestamp, sum.iterations, sum.upcall_cycles), (7, 32, 46));
    }
}
