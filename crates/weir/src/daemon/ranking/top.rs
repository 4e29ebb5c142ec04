//! The first N of very many, and how much a counter has risen since the walk before.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use super::question::Measure;
use crate::report::ranking::Traffic;

/// The highest ones of what it is given, `most` at most; of equal ones, any.
pub struct Highest<T> {
    most: usize,
    /// The lowest of them on top.
    heap: BinaryHeap<Reverse<T>>,
}

impl<T: Ord> Highest<T> {
    /// None yet.
    pub fn new(most: usize) -> Highest<T> {
        Highest { most, heap: BinaryHeap::new() }
    }

    /// Takes one of many into account.
    pub fn offer(&mut self, item: T) {
        if self.heap.len() < self.most {
            self.heap.push(Reverse(item));
        } else if let Some(mut lowest) = self.heap.peek_mut()
            && item > lowest.0
        {
            *lowest = Reverse(item);
        }
    }

    /// The highest first.
    pub fn into_sorted(self) -> Vec<T> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(item)| item).collect()
    }
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What one of many is ranked by: the rise of what is measured, then what it has counted in all.
pub type Rank = (u64, u64);

/// The rank of what has risen and counted so much.
pub fn rank(by: Measure, risen: Count, all: Count) -> Rank {
    match by {
        Measure::Packets => (risen.packets, all.packets),
        Measure::Bytes => (risen.bytes, all.bytes),
    }
}

/// What was counted, with its rates.
pub fn by_second(risen: Count, all: Count, time: Duration) -> Traffic {
    let per_second = |n: u64| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
    Traffic {
        packets_per_s: per_second(risen.packets),
        bytes_per_s: per_second(risen.bytes),
        packets: all.packets,
        bytes: all.bytes,
    }
}

/// What was counted up to the walk before.
pub struct Baseline<K> {
    counts: HashMap<K, (Count, u32)>,
    /// The number of the walk.
    walk: u32,
}

impl<K> Default for Baseline<K> {
    fn default() -> Baseline<K> {
        Baseline { counts: HashMap::new(), walk: 0 }
    }
}

impl<K: Eq + Hash> Baseline<K> {
    /// Begins a walk.
    pub fn begin(&mut self) {
        self.walk = self.walk.wrapping_add(1);
    }

    /// How much a counter has risen, which is `now` at this walk. One that was not there before has risen from zero, and so has one that is lower
    /// than before: it was set to zero meanwhile.
    pub fn take(&mut self, key: K, now: Count) -> Count {
        let before = self.replace(key, now);
        let risen = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Count { packets: risen(now.packets, before.packets), bytes: risen(now.bytes, before.bytes) }
    }

    /// The same where what was counted may move to another counter: one that is lower than before has not risen.
    pub fn take_rest(&mut self, key: K, now: Count) -> Count {
        let before = self.replace(key, now);
        let (packets, bytes) = (now.packets.saturating_sub(before.packets), now.bytes.saturating_sub(before.bytes));
        Count { packets, bytes }
    }

    fn replace(&mut self, key: K, now: Count) -> Count {
        self.counts.insert(key, (now, self.walk)).unwrap_or_default().0
    }

    /// Ends a walk: forgets what it has not met.
    pub fn end(&mut self) {
        let walk = self.walk;
        self.counts.retain(|_, (_, met)| *met == walk);
        if self.counts.capacity() > 4 * self.counts.len() {
            self.counts.shrink_to(2 * self.counts.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_highest_are_those_that_sorting_finds(mut items in prop::collection::vec(0u8..50, 0..200), most in 0usize..30) {
            let mut highest = Highest::new(most);
            items.iter().for_each(|&item| highest.offer(item));
            items.sort_unstable_by(|a, b| b.cmp(a));
            items.truncate(most);
            prop_assert_eq!(highest.into_sorted(), items);
        }
    }

    #[test]
    fn counters_rise_from_the_walk_before() {
        let mut baseline = Baseline::default();
        let count = |packets| Count { packets, bytes: packets * 60 };
        let mut walk = |counts: &[(char, u64)]| {
            baseline.begin();
            let risen: Vec<_> = counts.iter().map(|&(key, n)| baseline.take(key, count(n)).packets).collect();
            baseline.end();
            (risen, baseline.counts.len())
        };
        assert_eq!(walk(&[('a', 5), ('b', 7)]), (vec![5, 7], 2));
        assert_eq!(walk(&[('a', 6), ('c', 9)]), (vec![1, 9], 2), "b has gone");
        assert_eq!(walk(&[('b', 8), ('c', 2)]), (vec![8, 2], 2), "c was set to zero");
        assert_eq!(baseline.take_rest('b', count(3)).packets, 0, "some of it has another counter now");
    }
}
