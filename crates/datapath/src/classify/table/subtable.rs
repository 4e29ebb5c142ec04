//! A subtable: the flows with one mask, in a bucketed hash table that readers probe while a writer changes it.
//!
//! A bucket is one cache line: eight 16-bit tags and eight flow numbers. A flow is in the bucket that its hash
//! selects, or, if that was full, in a second one. The first bucket counts its flows that are in their second one, so
//! that a look-up almost never reads the second line. A look-up reads at most two lines, whatever the keys are. Which
//! keys share a bucket cannot be predicted without the secret of the hash.
//!
//! Shared memory: one writer at a time stores; readers load. A reader that sees a half-made change follows a flow
//! number to some entry of the arena, and the comparison there decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use packet::{Key, Mask};

use super::arena::{Arena, Live};
use super::flow_ref::{AtomicFlowRef, FlowRef};
use super::shape::Shape;
use crate::classify::cpu::simd::equal_tags;
use crate::classify::{bits, prefetch};
use crate::sync::rcu::{Domain, Guard, Protected};

const WAYS: usize = 8;

/// The flows with one mask.
pub struct Subtable {
    /// The mask.
    pub mask: Arc<Mask>,
    /// The mask, laid out for comparisons.
    pub shape: Shape,
    buckets: Protected<Buckets>,
    /// Hits in packets, by worker.
    hits: Box<[CachePadded<AtomicU64>]>,
    /// Sum of `hits` at the last ranking.
    ranked: AtomicU64,
    /// Number of flows. Changed by the writer alone.
    count: AtomicUsize,
}

impl Subtable {
    /// A subtable without flows.
    pub fn new(mask: Arc<Mask>, workers: usize) -> Subtable {
        Subtable {
            shape: Shape::new(&mask),
            mask,
            buckets: Protected::new(Some(Box::new(Buckets::new(1)))),
            hits: (0..workers).map(|_| CachePadded::default()).collect(),
            ranked: AtomicU64::new(0),
            count: AtomicUsize::new(0),
        }
    }

    /// The present buckets.
    #[inline(always)]
    pub fn buckets<'a>(&self, guard: Guard<'a>) -> Option<&'a Buckets> {
        self.buckets.load(guard)
    }

    /// Counts hits of a worker.
    #[inline(always)]
    pub fn count_hits(&self, worker: usize, packets: u32) {
        let hits = &self.hits[worker];
        hits.store(hits.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// Hits since the last call.
    pub(in crate::classify) fn take_hits(&self) -> u64 {
        let sum = self.hits.iter().map(|h| h.load(Ordering::Relaxed)).sum();
        sum - self.ranked.swap(sum, Ordering::Relaxed)
    }

    /// Number of flows.
    pub(in crate::classify) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The flow with this key, for the writer.
    pub(in crate::classify) fn find_for_writer(&self, key: &Key, hash: u64, arena: &Arena) -> Option<FlowRef> {
        let equals = |flow: FlowRef| arena.key_for_writer(flow).is_some_and(|k| k == key.masked(&self.mask));
        let mut hints = self.buckets_for_writer().hints(hash);
        hints.find(|&flow| arena.hash(flow) == hash && equals(flow))
    }

    /// Adds a live flow.
    pub(in crate::classify) fn insert(&self, flow: FlowRef, hash: u64, arena: &Arena, domain: &Domain) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let buckets = self.buckets_for_writer();
        let full = count > buckets.capacity() / 4 * 3;
        if full || !buckets.insert(flow, hash) {
            // Doubled until all flows fit: once, unless more than sixteen hashes are nearly equal.
            let mut size = buckets.lines.len() * 2;
            let grown = loop {
                let grown = Buckets::new(size);
                let all = buckets.all().all(|old| grown.insert(old, arena.hash(old)));
                if all && grown.insert(flow, hash) {
                    break grown;
                }
                size *= 2;
            };
            self.buckets.replace(Some(Box::new(grown)), domain);
        }
    }

    /// Removes a flow with this hash.
    pub(in crate::classify) fn remove(&self, flow: FlowRef, hash: u64) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.buckets_for_writer().remove(flow, hash);
    }

    /// Prefetches what the insertion or the removal of a flow with this hash reads first.
    pub(in crate::classify) fn prefetch_for_writer(&self, hash: u64) {
        self.buckets_for_writer().prefetch(hash);
    }

    fn buckets_for_writer(&self) -> &Buckets {
        // SAFETY: only the table's writer calls this, and only the writer replaces the buckets, in `insert`, after
        // its last use of the reference.
        let buckets = unsafe { self.buckets.for_writer() };
        buckets.expect("a subtable always has buckets")
    }
}

/// One cache line.
#[derive(Default)]
#[repr(C, align(64))]
struct Bucket {
    /// Four tags in each word.
    tags: [AtomicU64; 2],
    flows: [AtomicFlowRef; WAYS],
    /// How many flows of this bucket are in their second one.
    spilled: AtomicU32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The buckets of a subtable: their number is a power of two.
pub struct Buckets {
    lines: Box<[Bucket]>,
}

impl Buckets {
    fn new(lines: usize) -> Buckets {
        Buckets { lines: (0..lines).map(|_| Bucket::default()).collect() }
    }

    fn capacity(&self) -> usize {
        self.lines.len() * WAYS
    }

    #[inline(always)]
    fn first(&self, hash: u64) -> &Bucket {
        &self.lines[hash as usize & (self.lines.len() - 1)]
    }

    #[inline(always)]
    fn second(&self, hash: u64) -> &Bucket {
        &self.lines[(hash >> 32) as usize & (self.lines.len() - 1)]
    }

    /// Prefetches the cache line that [`find`](Buckets::find) reads first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.first(hash));
    }

    /// The live flow that `key`, whose masked hash is `hash`, belongs to.
    #[inline(always)]
    pub fn find<'a>(&self, key: &Key, hash: u64, arena: &'a Arena, guard: Guard<'a>) -> Option<(FlowRef, Live<'a>)> {
        let first = self.first(hash);
        let found = first.find(key, tag(hash), arena, guard);
        if found.is_some() || first.spilled.load(Ordering::Relaxed) == 0 {
            return found;
        }
        self.second(hash).find(key, tag(hash), arena, guard)
    }

    /// The first flow in the line of [`prefetch`](Buckets::prefetch) whose tag fits: what to prefetch next.
    #[inline(always)]
    pub fn hint(&self, hash: u64) -> FlowRef {
        let first = self.first(hash);
        let set = first.equal(tag(hash));
        if set == 0 { FlowRef::NONE } else { first.flows[set.trailing_zeros() as usize].load() }
    }

    fn hints(&self, hash: u64) -> impl Iterator<Item = FlowRef> {
        let hints = move |b: &Bucket| -> [FlowRef; WAYS] {
            let set = b.equal(tag(hash));
            std::array::from_fn(|way| if set >> way & 1 != 0 { b.flows[way].load() } else { FlowRef::NONE })
        };
        let first = self.first(hash);
        let has_second = first.spilled.load(Ordering::Relaxed) != 0;
        let second = has_second.then(|| hints(self.second(hash)));
        hints(first).into_iter().chain(second.into_iter().flatten()).filter(|&f| f != FlowRef::NONE)
    }

    fn all(&self) -> impl Iterator<Item = FlowRef> {
        let flows = self.lines.iter().flat_map(|b| b.flows.iter().map(AtomicFlowRef::load));
        flows.filter(|&f| f != FlowRef::NONE)
    }

    /// False where both buckets are full.
    fn insert(&self, flow: FlowRef, hash: u64) -> bool {
        let (first, second) = (self.first(hash), self.second(hash));
        if first.insert(flow, tag(hash)) {
            return true;
        }
        if std::ptr::eq(first, second) || !second.insert(flow, tag(hash)) {
            return false;
        }
        first.spilled.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn remove(&self, flow: FlowRef, hash: u64) {
        if !self.first(hash).remove(flow) && self.second(hash).remove(flow) {
            self.first(hash).spilled.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Bucket {
    #[inline(always)]
    fn equal(&self, tag: u16) -> u32 {
        equal_tags([self.tags[0].load(Ordering::Relaxed), self.tags[1].load(Ordering::Relaxed)], tag)
    }

    #[inline(always)]
    fn find<'a>(&self, key: &Key, tag: u16, arena: &'a Arena, guard: Guard<'a>) -> Option<(FlowRef, Live<'a>)> {
        for way in bits(self.equal(tag)) {
            let flow = self.flows[way].load();
            if let Some(live) = arena.live(flow, guard)
                && live.matches(key)
            {
                return Some((flow, live));
            }
        }
        None
    }

    fn insert(&self, flow: FlowRef, tag: u16) -> bool {
        let Some(way) = self.flows.iter().position(|f| f.load() == FlowRef::NONE) else { return false };
        let (word, shift) = (&self.tags[way / 4], way % 4 * 16);
        let others = word.load(Ordering::Relaxed) & !(0xffff << shift);
        word.store(others | u64::from(tag) << shift, Ordering::Relaxed);
        self.flows[way].store(flow);
        true
    }

    fn remove(&self, flow: FlowRef) -> bool {
        let way = self.flows.iter().find(|f| f.load() == flow);
        way.inspect(|way| way.store(FlowRef::NONE)).is_some()
    }
}

/// The tag of a hash: bits that do not select the bucket except in the largest tables.
#[inline(always)]
pub(in crate::classify) fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}
