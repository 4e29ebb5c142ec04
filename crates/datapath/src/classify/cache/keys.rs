//! Tier 1 for unusual headers: the key cache, which each worker has, from keys to flows.
//!
//! It is looked up by the hash of a packet's key under the union of all masks of the list, so that fields that no
//! flow matches make no further entries. An entry is a tag and a flow number, six bytes; the flow's own key and mask
//! decide whether it is a hit. Insertion and eviction touch one cache line.

use packet::{BATCH_SIZE, Key};

use crate::classify::cache::insertion::InsertionPolicy;
use crate::classify::cpu::simd::equal_tags;
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::table::megaflow::LookupContext;
use crate::classify::table::megaflow::Table;
use crate::classify::table::subtable::tag;
use crate::classify::{bits, prefetch};

const WAYS: usize = 8;

/// One cache line.
#[derive(Clone)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u64; 2],
    flows: [FlowRef; WAYS],
    /// The way that is evicted next.
    victim: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// A worker's key cache.
pub struct KeyCache {
    lines: Box<[Bucket]>,
    /// Which of the flows that tier 2 finds are inserted.
    insertion: InsertionPolicy,
}

impl KeyCache {
    /// A cache with room for about `entries` flows.
    pub fn new(entries: usize) -> KeyCache {
        let lines = entries.div_ceil(WAYS).next_power_of_two();
        let empty = Bucket { tags: [0; 2], flows: [FlowRef::NONE; WAYS], victim: 0 };
        KeyCache { lines: vec![empty; lines].into(), insertion: InsertionPolicy::new() }
    }

    /// Changes the insertion policy: one in so many of the flows that tier 2 finds is inserted; zero: none, and the
    /// cache is emptied.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.insertion.set_one_in(one_in);
        if one_in == 0 {
            for line in &mut self.lines {
                line.flows = [FlowRef::NONE; WAYS];
                line.tags = [0; 2];
            }
        }
    }

    #[inline(always)]
    fn at(&self, hash: u64) -> usize {
        (hash >> 16) as usize & (self.lines.len() - 1)
    }

    /// Prefetches the bucket of a hash.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&raw const self.lines[self.at(hash)]);
    }

    /// The first flow whose tag equals the hash's, or [`FlowRef::NONE`].
    #[inline(always)]
    pub fn hint(&self, hash: u64) -> FlowRef {
        let bucket = &self.lines[self.at(hash)];
        let set = equal_tags(bucket.tags, tag(hash));
        if set == 0 { FlowRef::NONE } else { bucket.flows[set.trailing_zeros() as usize] }
    }

    /// Whether it has the flow of a key, for who only wants to know.
    pub fn has(&self, at: LookupContext<'_>, key: &Key) -> bool {
        let hash = at.list.union.hash(&at.table.hasher, key);
        let bucket = &self.lines[self.at(hash)];
        let mut flows = bits(equal_tags(bucket.tags, tag(hash))).map(|way| bucket.flows[way]);
        flows.any(|flow| at.table.arena.live(flow, at.guard).is_some_and(|live| live.matches(key)))
    }

    /// All flows whose tags equal the hash's.
    #[cfg(test)]
    pub fn hints(&self, hash: u64) -> impl Iterator<Item = FlowRef> {
        let bucket = &self.lines[self.at(hash)];
        bits(equal_tags(bucket.tags, tag(hash))).map(|way| bucket.flows[way])
    }

    /// Looks up the `keys` whose bit in `want` is set, first here, and then in tier 2, whose hits are inserted here.
    /// Writes the results to `flows`. Returns the set of hits here, the set of hits in tier 2, and the number of
    /// subtables that it visited.
    #[inline(always)]
    pub fn classify(
        &mut self,
        at: LookupContext<'_>,
        keys: &[Key],
        want: u32,
        flows: &mut [FlowRef; BATCH_SIZE],
    ) -> (u32, u32, u32) {
        let LookupContext { list, table, guard, .. } = at;
        let mut hashes = [0; BATCH_SIZE];
        for i in bits(want) {
            hashes[i] = list.union.hash(&table.hasher, &keys[i]);
            self.prefetch(hashes[i]);
        }
        for i in bits(want) {
            table.arena.prefetch(self.hint(hashes[i]));
        }
        let mut known = 0;
        for i in bits(want) {
            let bucket = &self.lines[self.at(hashes[i])];
            // A plain loop: iterator adaptors would not be compiled for the processor's level
            // (`classify/cpu/mod.rs`).
            for way in bits(equal_tags(bucket.tags, tag(hashes[i]))) {
                let flow = bucket.flows[way];
                if let Some(live) = table.arena.live(flow, guard)
                    && live.matches(&keys[i])
                {
                    flows[i] = flow;
                    known |= 1 << i;
                    break;
                }
            }
        }
        if known == want {
            return (known, 0, 0);
        }
        let (found, visited) = Table::lookup(at, keys, want & !known, flows);
        for i in bits(found) {
            if self.insertion.should_insert() {
                self.insert(hashes[i], flows[i]);
            }
        }
        (known, found, visited)
    }

    /// Inserts a flow.
    pub fn insert(&mut self, hash: u64, flow: FlowRef) {
        let at = self.at(hash);
        let bucket = &mut self.lines[at];
        if bits(equal_tags(bucket.tags, tag(hash))).any(|way| bucket.flows[way] == flow) {
            return;
        }
        let way = bucket.flows.iter().position(|&f| f == FlowRef::NONE).unwrap_or_else(|| {
            bucket.victim = (bucket.victim + 1) % WAYS as u8;
            bucket.victim as usize
        });
        let (word, shift) = (&mut bucket.tags[way / 4], way % 4 * 16);
        *word = *word & !(0xffff << shift) | u64::from(tag(hash)) << shift;
        bucket.flows[way] = flow;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::table::arena::Arena;

    #[test]
    fn nothing_is_remembered_where_none_is_to_be() {
        let mut cache = KeyCache::new(8);
        let (arena, mut free) = Arena::new(100, 1);
        let flow = arena.allocate(&mut free, 1).unwrap();
        cache.insert(7 << 48, flow);
        cache.set_one_in(0);
        assert_eq!(cache.hint(7 << 48), FlowRef::NONE);
    }

    #[test]
    fn full_buckets_evict_the_oldest() {
        let (arena, mut free) = Arena::new(100, 1);
        let mut cache = KeyCache::new(8);
        let flows: Vec<FlowRef> = (0..20).map(|_| arena.allocate(&mut free, 1).unwrap()).collect();
        let hash = |n: usize| (n as u64) << 48;
        for (n, &flow) in flows.iter().enumerate() {
            cache.insert(hash(n), flow);
            assert_eq!(cache.hint(hash(n)), flow);
        }
        let kept = flows.iter().enumerate().filter(|&(n, &f)| cache.hint(hash(n)) == f).count();
        assert_eq!(kept, WAYS);
        assert_eq!(cache.hints(hash(0)).count(), 0);
    }
}
