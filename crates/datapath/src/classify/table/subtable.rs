//! The flows with one mask: a bucketed hash table that readers probe while a writer changes it.
//!
//! A bucket is one cache line: eight 16-bit tags and eight flow numbers. A flow lies in the bucket that
//! its hash names, or, where that was full, in a second one; the first bucket counts how many were sent
//! on, so that a look-up almost never reads the second line. At most two lines are read, whatever the
//! keys are, and which keys share a bucket nobody can know without the secret of the hash.
//!
//! Who touches what: one writer at a time stores; readers load. A reader that meets a half-made change
//! follows a flow number to some entry of the arena, which decides.

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
    /// The mask, laid out for comparing.
    pub shape: Shape,
    buckets: Protected<Buckets>,
    /// Packets found here, by each worker.
    hits: Box<[CachePadded<AtomicU64>]>,
    /// Sum of `hits` when the subtables were ranked last.
    ranked: AtomicU64,
    /// Flows. The writer's.
    count: AtomicUsize,
}

impl Subtable {
    /// A table without flows.
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

    /// The buckets as they are now.
    #[inline(always)]
    pub fn buckets<'a>(&self, guard: Guard<'a>) -> Option<&'a Buckets> {
        self.buckets.load(guard)
    }

    /// Counts packets that a worker has found here.
    #[inline(always)]
    pub fn count_hits(&self, worker: usize, packets: u32) {
        let hits = &self.hits[worker];
        hits.store(hits.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// Packets found here since this was asked last.
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
        let wanted = key.masked(&self.mask);
        let mut hints = self.buckets_for_writer().hints(hash);
        hints.find(|&flow| arena.key_for_writer(flow).is_some_and(|k| arena.hash(flow) == hash && k == wanted))
    }

    /// Adds a live flow.
    pub(in crate::classify) fn insert(&self, flow: FlowRef, hash: u64, arena: &Arena, domain: &Domain) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let buckets = self.buckets_for_writer();
        let full = count > buckets.capacity() / 4 * 3;
        if full || !buckets.insert(flow, hash) {
            // Doubled until all fit: once, unless more than sixteen of the hashes are nearly equal.
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

    /// Takes a flow out. Its hash has to be known still.
    pub(in crate::classify) fn remove(&self, flow: FlowRef, hash: u64) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.buckets_for_writer().remove(flow, hash);
    }

    fn buckets_for_writer(&self) -> &Buckets {
        // SAFETY: only the table's writer calls this, and only it replaces the buckets, in `insert`,
        // behind its last use of them.
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
    /// Flows of this bucket that lie in their second one.
    spilled: AtomicU32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// A power of two of buckets.
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

    /// Asks for the line that [`find`](Buckets::find) reads first.
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

    /// The first flow that the line of [`prefetch`](Buckets::prefetch) hints at: what to prefetch next.
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
        hints(self.first(hash)).into_iter().chain(hints(self.second(hash))).filter(|&f| f != FlowRef::NONE)
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

/// The bits of a hash that choose no bucket of any but the largest tables.
#[inline(always)]
pub(in crate::classify) fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}
