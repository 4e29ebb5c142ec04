//! From a hash to the slots that may have it: a shard's hash table that grows by one bucket at a time (linear hashing,
//! Litwin 1980), so that no insertion ever waits for a table to be copied.
//!
//! A bucket is a line of the cache: seven entries, and the number of a bucket that it overflows to. An entry is 32 bits of the
//! hash and the number of a slot, and one.
//!
//! Who may touch what: entries, links and the number of buckets are written by the holder of the shard's lock, and read by
//! everybody. When a bucket is split, its entries are first copied to the new bucket, then the new number of buckets is published, then
//! they are taken from the old bucket. So a reader that misses an entry that was moved sees the new number of buckets after that,
//! and looks again. Memory of buckets is not returned while the table lives.

use std::sync::OnceLock;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Entries of a bucket.
const ENTRIES: usize = 7;
/// Where the overflow is linked.
const LINK: usize = 7;
/// Entries for each bucket, at which the table grows.
pub(super) const LOAD: usize = 4;
/// Buckets that one overflows to, at most. With a keyed hash, an eighth of them would be needed once in ages.
const MAX_CHAIN: usize = 8;
/// Buckets of an empty shard.
#[cfg(not(loom))]
const BASE: u32 = 16;
#[cfg(loom)]
const BASE: u32 = 1;
/// Segments, of which each but the first has as many buckets as all before.
#[cfg(not(loom))]
const SEGMENTS: usize = 24;
#[cfg(loom)]
const SEGMENTS: usize = 3;

#[repr(align(64))]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
pub(super) struct Bucket([AtomicU64; 8]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64);

/// Buckets by number. Memory is made when it is needed.
struct Segments([OnceLock<Box<[Bucket]>>; SEGMENTS]);

impl Segments {
    fn place(number: u32) -> (usize, usize) {
        if number < BASE {
            return (0, number as usize);
        }
        let segment = (number / BASE).ilog2() as usize + 1;
        (segment, (number - (BASE << (segment - 1))) as usize)
    }

    #[inline(always)]
    fn get(&self, number: u32) -> &Bucket {
        let (segment, at) = Segments::place(number);
        &self.0[segment].get().expect("a bucket that is counted has memory")[at]
    }

    /// The bucket, with memory; `None` where there can be no more.
    fn make(&self, number: u32) -> Option<&Bucket> {
        let (segment, at) = Segments::place(number);
        let buckets = if segment == 0 { BASE } else { BASE << (segment - 1) };
        Some(&self.0.get(segment)?.get_or_init(|| new_buckets(buckets as usize))[at])
    }
}

#[cfg(not(loom))]
fn new_buckets(number: usize) -> Box<[Bucket]> {
    use zerocopy::FromZeros;
    <[Bucket]>::new_box_zeroed_with_elems(number).unwrap_or_else(|_| {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<[Bucket; 1 << 10]>());
    })
}

#[cfg(loom)]
fn new_buckets(number: usize) -> Box<[Bucket]> {
    (0..number).map(|_| Bucket(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
}

/// A shard's index, for everybody.
pub(super) struct Index {
    buckets: AtomicU32,
    home: Segments,
    overflow: Segments,
}

/// What belongs to the holder of the shard's lock.
#[derive(Default)]
pub(super) struct Growth {
    entries: usize,
    overflows: u32,
}

/// There is no place: a bucket has as many overflows as it may.
#[derive(Debug)]
pub(super) struct NoPlace;

impl Index {
    pub(super) fn new() -> Index {
        let index = Index {
            buckets: AtomicU32::new(BASE),
            home: Segments(std::array::from_fn(|_| OnceLock::new())),
            overflow: Segments(std::array::from_fn(|_| OnceLock::new())),
        };
        index.home.make(0);
        if cfg!(loom) {
            // loom does not know that a `OnceLock` orders what is in it.
            (1..BASE << (SEGMENTS - 1)).for_each(|at| assert!(index.home.make(at).is_some()));
            (0..BASE << (SEGMENTS - 1)).for_each(|at| assert!(index.overflow.make(at).is_some()));
        }
        index
    }

    /// The first of `check`'s results, called with each slot whose entry has this hash.
    #[inline]
    pub(super) fn find<T>(&self, hash: u32, mut check: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let mut buckets = self.buckets.load(Ordering::Acquire);
        loop {
            let at = address(hash, buckets);
            let mut bucket = self.home.get(at);
            loop {
                for entry in &bucket.0[..ENTRIES] {
                    let entry = entry.load(Ordering::Acquire);
                    if (entry >> 32) as u32 == hash
                        && let Some(slot) = (entry as u32).checked_sub(1)
                        && let Some(found) = check(slot)
                    {
                        return Some(found);
                    }
                }
                match (bucket.0[LINK].load(Ordering::Acquire) as u32).checked_sub(1) {
                    Some(link) => bucket = self.overflow.get(link),
                    None => break,
                }
            }
            // The entry may have been moved meanwhile.
            let now = self.buckets.load(Ordering::Acquire);
            if address(hash, now) == at {
                return None;
            }
            buckets = now;
        }
    }

    /// The line in which a look-up begins, to have it fetched.
    #[inline]
    pub(super) fn line(&self, hash: u32) -> &Bucket {
        self.home.get(address(hash, self.buckets.load(Ordering::Acquire)))
    }

    /// A slot that is likely the first of [`find`](Index::find): from the line in which it begins, without following a link.
    #[inline]
    pub(super) fn peek(&self, hash: u32) -> Option<u32> {
        let bucket = self.line(hash);
        let is = |at: usize| u32::from((bucket.0[at].load(Ordering::Relaxed) >> 32) as u32 == hash) << at;
        // All are compared, as nobody could predict which it is.
        let same = (0..ENTRIES).fold(0, |same, at| same | is(at));
        let entry = bucket.0.get(same.trailing_zeros() as usize)?.load(Ordering::Relaxed);
        (entry as u32).checked_sub(1)
    }

    /// Adds an entry. The caller holds the shard's lock.
    pub(super) fn insert(&self, growth: &mut Growth, hash: u32, slot: u32) -> Result<(), NoPlace> {
        let buckets = self.buckets.load(Ordering::Relaxed);
        self.place(growth, address(hash, buckets), entry(hash, slot))?;
        growth.entries += 1;
        if growth.entries > buckets as usize * LOAD {
            self.split(growth, buckets);
        }
        Ok(())
    }

    /// Removes an entry. The caller holds the shard's lock.
    pub(super) fn remove(&self, growth: &mut Growth, hash: u32, slot: u32) {
        let wanted = entry(hash, slot);
        let at = address(hash, self.buckets.load(Ordering::Relaxed));
        let entry = self.chain(at).flat_map(|b| &b.0[..ENTRIES]).find(|e| e.load(Ordering::Relaxed) == wanted);
        if let Some(entry) = entry {
            entry.store(0, Ordering::Release);
            growth.entries -= 1;
        }
        debug_assert!(entry.is_some(), "every connection has its entries");
    }

    /// A bucket and those that it overflows to.
    fn chain(&self, at: u32) -> impl Iterator<Item = &Bucket> {
        std::iter::successors(Some(self.home.get(at)), |bucket| {
            let link = (bucket.0[LINK].load(Ordering::Acquire) as u32).checked_sub(1)?;
            Some(self.overflow.get(link))
        })
    }

    fn place(&self, growth: &mut Growth, at: u32, entry: u64) -> Result<(), NoPlace> {
        let free = |bucket: &&AtomicU64| bucket.load(Ordering::Relaxed) == 0;
        if let Some(place) = self.chain(at).flat_map(|b| &b.0[..ENTRIES]).find(free) {
            place.store(entry, Ordering::Release);
            return Ok(());
        }
        let (length, last) = self.chain(at).enumerate().last().expect("a chain has its first bucket");
        if length >= MAX_CHAIN {
            return Err(NoPlace);
        }
        let link = growth.overflows;
        let bucket = self.overflow.make(link).ok_or(NoPlace)?;
        growth.overflows += 1;
        bucket.0[0].store(entry, Ordering::Relaxed);
        last.0[LINK].store(u64::from(link) + 1, Ordering::Release);
        Ok(())
    }

    /// Adds one bucket, and moves what belongs there.
    fn split(&self, growth: &mut Growth, buckets: u32) {
        let Some(_) = self.home.make(buckets) else { return };
        let old = buckets - (1 << buckets.ilog2());
        let moves = |entry: &&AtomicU64| {
            let entry = entry.load(Ordering::Relaxed);
            entry != 0 && address((entry >> 32) as u32, buckets + 1) == buckets
        };
        for entry in self.chain(old).flat_map(|b| &b.0[..ENTRIES]).filter(moves) {
            // The new bucket gets no more than the old one had.
            if self.place(growth, buckets, entry.load(Ordering::Relaxed)).is_err() {
                // Nobody looks at the new bucket yet.
                self.chain(buckets).flat_map(|b| &b.0[..ENTRIES]).for_each(|e| e.store(0, Ordering::Relaxed));
                return;
            }
        }
        self.buckets.store(buckets + 1, Ordering::Release);
        self.chain(old).flat_map(|b| &b.0[..ENTRIES]).filter(moves).for_each(|e| e.store(0, Ordering::Release));
    }
}

fn entry(hash: u32, slot: u32) -> u64 {
    (u64::from(hash) << 32) | (u64::from(slot) + 1)
}

/// The bucket of a hash among so many.
#[inline(always)]
fn address(hash: u32, buckets: u32) -> u32 {
    let all = buckets.next_power_of_two();
    let at = hash & (all - 1);
    if at < buckets { at } else { at & (all / 2 - 1) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is inserted and removed, while the table grows and buckets overflow: each entry is found once.
        #[test]
        fn finds_what_a_set_has(steps in proptest::collection::vec((any::<bool>(), 0u32..64, 0u32..4000), 0..2000)) {
            let (index, mut growth) = (Index::new(), Growth::default());
            let mut set = HashSet::new();
            for (add, high, slot) in steps {
                // A few hashes that are equal in their low bits, and many that are not.
                let hash = if high == 0 { (slot % 8) << 20 } else { slot.wrapping_mul(0x9e37_79b9) };
                let entry = (hash, slot);
                if !add {
                    if set.remove(&entry) {
                        index.remove(&mut growth, hash, slot);
                    }
                } else if !set.contains(&entry) && index.insert(&mut growth, hash, slot).is_ok() {
                    set.insert(entry);
                }
            }
            prop_assert_eq!(growth.entries, set.len());
            for &(hash, slot) in &set {
                let mut times = 0;
                let _: Option<()> = index.find(hash, |found| { times += usize::from(found == slot); None });
                prop_assert_eq!(times, 1);
            }
            let all: usize = (0..index.buckets.load(Ordering::Relaxed))
                .flat_map(|at| index.chain(at))
                .flat_map(|bucket| &bucket.0[..ENTRIES])
                .filter(|entry| entry.load(Ordering::Relaxed) != 0)
                .count();
            prop_assert_eq!(all, set.len());
        }
    }

    #[test]
    fn grows_by_one_bucket_at_a_time() {
        let (index, mut growth) = (Index::new(), Growth::default());
        let mut before = BASE;
        for slot in 0..100_000u32 {
            index.insert(&mut growth, slot.wrapping_mul(0x9e37_79b9).swap_bytes(), slot).unwrap();
            let now = index.buckets.load(Ordering::Relaxed);
            assert!(now - before <= 1);
            before = now;
        }
        assert_eq!(before as usize, 100_000 / LOAD);
        assert!(growth.overflows < before / 4, "{} of {before} overflow", growth.overflows);
    }

    #[test]
    fn refuses_hashes_that_are_all_the_same() {
        let (index, mut growth) = (Index::new(), Growth::default());
        let inserted = (0..200).take_while(|&slot| index.insert(&mut growth, 7, slot).is_ok()).count();
        assert_eq!(inserted, ENTRIES * (MAX_CHAIN + 1));
    }
}
