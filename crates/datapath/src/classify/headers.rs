//! Tier 1: each worker's cache from the first bytes of a frame to a flow.
//!
//! What a packet is looked up by is the line that [`scan`](super::scan) leaves of it: the bits of its
//! headers that any flow of its port can look at, as they lie in the frame, with the port and the template.
//! An entry is one cache line: the 48 bytes of header, and what is known of the flow. It holds as long as the
//! flow's epoch is the one that it was made in, so removing or changing a flow is a constant amount of work, and no
//! entry is ever searched for.
//!
//! Sixteen entries are a set, whose tags lie together in half a line. A hit reads the tags, the entry, and
//! the worker's counters of the flow, which are about to be written anyway. All three are asked for ahead
//! of their use.
//!
//! The cache starts small, so that few flows stay within the processor's caches, and doubles when it
//! evicts too often, up to its configured size. Memory that was never used is not there.

use packet::BATCH_SIZE;
use packet::flow::hash::Hasher;

use super::arena::{Deed, FlowRef, Tally};
use super::plan::Aligned;
use super::prefetch;
use super::region::{Region, Zero};
use super::sample::Sampler;
use super::simd::{Line, Simd, Tags};
use super::{bits, scan::Heads};

const WAYS: usize = 16;

/// Bytes of an entry, with its tag.
pub const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<u16>();

/// Entries of a new cache: 256 KiB.
const FIRST: usize = 1 << 12;

/// Evictions, as a share of the entries, that make the cache grow.
const PRESSURE: usize = 16;

/// A flow, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Found {
    /// The flow.
    pub flow: FlowRef,
    /// What to do with its packets.
    pub deed: Deed,
}

impl Found {
    /// No flow is known.
    pub const MISS: Found = Found { flow: FlowRef::NONE, deed: Deed::MISS };
}

/// What a worker knows of one line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    header: [u64; 6],
    flow: FlowRef,
    /// Of the flow, when the entry was made.
    epoch: u32,
    deed: Deed,
    /// See [`Origin`](super::plan::Origin). Zero where the entry was never used.
    origin: u32,
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Tags>() == 32 && size_of::<Found>() == 8);

// SAFETY: zeros are an entry that was never used: no flow, and the origin zero.
unsafe impl Zero for Entry {}
// SAFETY: zeros are tags of entries that were never used.
unsafe impl Zero for Tags {}

impl Entry {
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: an entry is 64 bytes without padding, all of them plain numbers.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// A worker's cache.
pub struct HeaderCache {
    tags: Region<Tags>,
    entries: Region<Entry>,
    /// Number of the last set in use: a power of two less one.
    last: usize,
    /// The line that was a batch's only one last.
    last_line: Aligned,
    last_found: Found,
    last_epoch: u32,
    secret: Aligned,
    hasher: Hasher,
    /// Evictions since it grew.
    evicted: usize,
    /// Which flows are remembered, and which way is overwritten.
    sampler: Sampler,
}

/// What a batch is looked up by, beside its lines.
#[derive(Default)]
pub struct Probes {
    hashes: [u64; BATCH_SIZE],
    /// The first candidate of each.
    at: [u32; BATCH_SIZE],
}

impl HeaderCache {
    /// A cache that grows to about `entries` entries of 66 bytes. `seed` is the secret of its hash.
    pub fn new(entries: usize, seed: [u64; 2]) -> HeaderCache {
        let sets = entries.div_ceil(WAYS).next_power_of_two();
        let hasher = Hasher::new([seed[0] ^ 0x6865_6164, seed[1]]);
        let secret = Aligned(std::array::from_fn(|i| hasher.finish(i as u64 + 1)));
        HeaderCache {
            tags: Region::new(sets),
            entries: Region::new(sets * WAYS),
            last: sets.min(FIRST / WAYS) - 1,
            last_line: Aligned([0; 8]),
            last_found: Found::MISS,
            last_epoch: 0,
            secret,
            hasher,
            evicted: 0,
            sampler: Sampler::new(),
        }
    }

    /// Changes how many of the flows that other tiers have found are remembered: one in so many; zero:
    /// none, and what was remembered is forgotten.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.sampler.set_one_in(one_in);
        if one_in == 0 {
            self.clear();
        }
    }

    /// Whether it may know anything.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.sampler.is_on()
    }

    /// Entries in use, known or not.
    pub fn entries(&self) -> usize {
        (self.last + 1) * WAYS
    }

    /// Where an entry for a line would lie.
    #[cfg(test)]
    pub fn set_of(&self, line: &Line) -> usize {
        use super::simd::Portable;
        self.number(self.hasher.finish(Portable.nh(*line, self.secret.0)))
    }

    fn clear(&mut self) {
        self.tags.slice_mut()[..=self.last].fill(Tags::default());
        // No line is all zeros.
        self.last_line = Aligned([0; 8]);
    }

    /// Looks for the packets of `want` by their lines. Returns the bits of those that are known.
    #[inline(always)]
    pub fn find<S: Simd>(
        &mut self,
        simd: S,
        heads: &Heads,
        want: u32,
        probes: &mut Probes,
        tally: Tally<'_>,
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        // A batch that is one run is often of the flow that the batch before was of.
        if want.is_power_of_two() {
            let i = want.trailing_zeros() as usize;
            let same = !simd.differs_at_all(simd.load(&heads.lines[i].0), simd.load(&self.last_line.0));
            if same && tally.of(self.last_found.flow).epoch() == self.last_epoch {
                found[i] = self.last_found;
                return want;
            }
        }
        let holds = self.find_any(simd, heads, want, probes, tally, found);
        if holds.is_power_of_two() && holds == want {
            let i = want.trailing_zeros() as usize;
            (self.last_line, self.last_found, self.last_epoch) = (heads.lines[i], found[i], probes.at[i]);
        }
        holds
    }

    /// As [`find`](HeaderCache::find), in the cache.
    #[inline(always)]
    fn find_any<S: Simd>(
        &self,
        simd: S,
        heads: &Heads,
        want: u32,
        probes: &mut Probes,
        tally: Tally<'_>,
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        let Probes { hashes, at } = probes;
        // What stays the same is read once: as far as the compiler knows, the stores below might change it.
        let (last, most) = (self.last, self.most());
        let (tags, entries) = (self.tags.slice(), self.entries.slice());
        // SAFETY: the region has more than `last` sets.
        let set = |hash: u64| unsafe { tags.get_unchecked((hash >> 16) as usize & last) };
        // SAFETY: the region has 16 times as many entries.
        let entry = |number: u32| unsafe { entries.get_unchecked(number as usize & most) };
        // 1. Hash all; ask for the tags.
        let secret = simd.load(&self.secret.0);
        for i in bits(want) {
            let hash = self.hasher.finish(simd.nh(simd.load(&heads.lines[i].0), secret));
            hashes[i] = hash;
            prefetch(set(hash));
        }
        // 2. Compare the tags; ask for the entries.
        for i in bits(want) {
            let candidates = simd.equal_tags(set(hashes[i]), tag(hashes[i]));
            let first = ((hashes[i] >> 16) as usize & last) * WAYS;
            at[i] = first as u32 + (candidates | 1 << WAYS).trailing_zeros();
            prefetch(entry(at[i]));
        }
        // 3. Compare the lines; ask for the counters.
        let mut known = 0;
        let mut counters = [tally.of(FlowRef::NONE); BATCH_SIZE];
        for i in bits(want) {
            let line = simd.load(&heads.lines[i].0);
            let mut entry = entry(at[i]);
            if simd.differs_in_key(line, simd.load(entry.line())) {
                match self.other(simd, line, hashes[i]) {
                    Some(other) => entry = other,
                    None => continue,
                }
            }
            found[i] = Found { flow: entry.flow, deed: entry.deed };
            at[i] = entry.epoch;
            counters[i] = tally.of(entry.flow);
            prefetch(counters[i]);
            known |= 1 << i;
        }
        // 4. Ask the flows whether that still holds.
        let mut holds = known;
        for i in bits(known) {
            if counters[i].epoch() != at[i] {
                found[i] = Found::MISS;
                holds &= !(1 << i);
            }
        }
        holds
    }

    /// Looks at all of a set, for lines that the first candidate differs from.
    #[cold]
    #[inline(never)]
    fn other<S: Simd>(&self, simd: S, line: S::Reg, hash: u64) -> Option<&Entry> {
        let first = self.number(hash) * WAYS;
        let mut found = None;
        for way in bits(simd.equal_tags(self.set(hash), tag(hash))) {
            let entry = self.entry(first + way);
            if !simd.differs_in_key(line, simd.load(entry.line())) {
                found = Some(entry);
            }
        }
        found
    }

    /// Remembers what packet `i` belongs to. `epoch` was read before the flow was last seen alive. It must have
    /// been looked for before, in this batch. Only some are remembered, unless `always`.
    pub fn insert(&mut self, heads: &Heads, probes: &Probes, i: usize, found: Found, epoch: u32, always: bool) {
        if !(always || self.sampler.draw()) {
            return;
        }
        let (hash, line) = (probes.hashes[i], &heads.lines[i].0);
        let (set, tag) = (self.number(hash), tag(hash));
        let mut entry = Entry { header: [0; 6], flow: found.flow, epoch, deed: found.deed, origin: 0 };
        entry.header.copy_from_slice(&line[..6]);
        let [.., a, b, c, d] = line[7].to_ne_bytes();
        entry.origin = u32::from_ne_bytes([a, b, c, d]);

        let first = set * WAYS;
        let entries = &mut self.entries.slice_mut()[first..first + WAYS];
        let tags = &mut self.tags.slice_mut()[set].0;
        let same = |way: &usize| {
            tags[*way] == tag && entries[*way].header == entry.header && entries[*way].origin == entry.origin
        };
        let way = (0..WAYS).find(same).or_else(|| (0..WAYS).find(|&way| tags[way] == 0));
        let way = way.unwrap_or_else(|| {
            self.evicted += 1;
            self.sampler.next() as usize >> 16 & (WAYS - 1)
        });
        tags[way] = tag;
        entries[way] = entry;
        if self.evicted > self.entries() / PRESSURE && self.last + 1 < self.tags.slice().len() {
            self.grow();
        }
    }

    /// Uses twice as many sets. What was remembered is found again by tier 2: most of it would lie in other sets.
    #[cold]
    fn grow(&mut self) {
        self.evicted = 0;
        self.clear();
        self.last = self.last * 2 + 1;
        self.clear();
    }

    #[inline(always)]
    fn number(&self, hash: u64) -> usize {
        (hash >> 16) as usize & self.last
    }

    #[inline(always)]
    fn set(&self, hash: u64) -> &Tags {
        // SAFETY: the region has more than `last` sets.
        unsafe { self.tags.get_unchecked(self.number(hash)) }
    }

    /// The number of the last entry in use.
    #[inline(always)]
    fn most(&self) -> usize {
        self.last * WAYS + WAYS - 1
    }

    #[inline(always)]
    fn entry(&self, number: usize) -> &Entry {
        debug_assert!(number <= self.most());
        // SAFETY: every caller has masked the number, or it is below 16 times the number of sets.
        unsafe { self.entries.get_unchecked(number) }
    }
}

/// The bits of a hash that choose no set. Never zero: that is the tag of an entry that is not used.
#[inline(always)]
fn tag(hash: u64) -> u16 {
    (hash as u16).max(1)
}
