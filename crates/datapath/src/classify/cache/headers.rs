//! Tier 1: each worker's cache from the first bytes of a frame to a flow.
//!
//! What a packet is looked up by is the line that [`scan`](crate::classify::scan) leaves of it: the bits of its
//! headers that any flow of its port can look at, as they lie in the frame, with the port and the template.
//! An entry is one cache line: the 48 bytes of header, and what is known of the flow; or half of one, where the
//! bits that tell packets apart lie within 16 bytes, the line's core. It holds as long as the flow's epoch is
//! the one that it was made in, so removing or changing a flow is a constant amount of work, and no entry is
//! ever searched for.
//!
//! A set is one line of sixteen words: the number of an entry, and its tag. A hit reads the set, the entry, and
//! the worker's counters of the flow, which are about to be written anyway. All three are asked for ahead
//! of their use. Entries lie in the order in which they were made, so that those of flows that live at the
//! same time share lines and pages, and none is left empty between them.
//!
//! The cache starts small, so that few flows stay within the processor's caches, and doubles when it
//! evicts too often, up to its configured size. To grow is constant work, too: the sets of each size have their own place,
//! which nothing has touched before. Memory that was never used is not there.

use packet::BATCH_SIZE;
use packet::flow::hash::Hasher;

use crate::classify::bits;
use crate::classify::cache::insertion::InsertionPolicy;
use crate::classify::cpu::simd::{KEY, Line, Portable, Simd, Ways};
use crate::classify::mem::region::{Region, Zero};
use crate::classify::plan::{Aligned, Core, Origin};
use crate::classify::prefetch;
use crate::classify::scan::MaskedHeaders;
use crate::classify::table::arena::FastAction;
use crate::classify::table::flow_counters::FlowCounters;
use crate::classify::table::flow_ref::FlowRef;

const WAYS: usize = 16;

/// Bytes of an entry, with its word in a set, where entries of both shapes have had its number.
pub const ENTRY_BYTES: usize = size_of::<CachedLine>() + size_of::<CachedCore>() + size_of::<u32>();

/// Most entries: 25 bits of a word are then their number, and 7 their tag.
pub const MAX_ENTRIES: usize = 1 << 24;

/// Entries of a new cache: 144 KiB with their sets where all have a core, 272 KiB where none has.
const INITIAL_ENTRIES: usize = 1 << 12;

/// Evictions, as a share of the entries, that make the cache grow.
const GROWTH_SHARE: usize = 16;

/// A flow, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Found {
    /// The flow.
    pub flow: FlowRef,
    /// What to do with its packets.
    pub action: FastAction,
}

impl Found {
    /// No flow is known.
    pub const MISS: Found = Found { flow: FlowRef::NONE, action: FastAction::MISS };
}

/// What a worker knows of the flow of a line.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::classify) struct CachedFlow {
    pub found: Found,
    /// Of the flow, when the entry was made.
    pub epoch: u32,
    /// Of the line. Zero where the entry was never used.
    origin: Origin,
}

/// What a worker knows of one line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CachedLine {
    header: [u64; 6],
    cached: CachedFlow,
}

/// The same of a line that has a core: everything else is the same in all lines of its origin.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct CachedCore {
    core: Core,
    cached: CachedFlow,
}

const _: () = assert!(size_of::<CachedLine>() == 64 && size_of::<CachedCore>() == 32);
const _: () = assert!(size_of::<Ways>() == 64 && size_of::<Found>() == 8);

// Of an entry, header and origin are compared with a line.
const _: () = {
    let key: [u8; 64] = zerocopy::transmute!(KEY);
    let (cached, origin) = (std::mem::offset_of!(CachedLine, cached), std::mem::offset_of!(CachedLine, cached.origin));
    let mut at = 0;
    while at < key.len() {
        let is_compared = at < cached || at >= origin && at < origin + size_of::<Origin>();
        assert!(key[at] == if is_compared { 0xff } else { 0 });
        at += 1;
    }
};

// SAFETY: zeros are an entry that was never used: no flow, and the origin zero.
unsafe impl Zero for CachedLine {}
// SAFETY: as above.
unsafe impl Zero for CachedCore {}
// SAFETY: zeros are ways that were never used.
unsafe impl Zero for Ways {}

impl CachedLine {
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: an entry is 64 bytes without padding, all of them plain numbers.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// A worker's cache.
pub struct HeaderCache {
    /// Of each way, the number of its entry, and above it the tag. Zero: there is none. As many sets are in use as lie
    /// before them.
    sets: Region<Ways>,
    /// By number, from 1 on. The first one is nobody's.
    entries: Region<CachedLine>,
    /// Those of lines with a core.
    cores: Region<CachedCore>,
    /// Number of the last set in use, counted from the first one in use: a power of two less one.
    last: usize,
    /// The last entry's number that was given to a way.
    used: u32,
    /// The line that was a batch's only one last.
    last_line: Aligned,
    last_found: Found,
    last_epoch: u32,
    secret: Aligned,
    hasher: Hasher,
    /// Evictions since it grew.
    evicted: usize,
    /// Which flows are remembered, and which way is overwritten.
    insertion: InsertionPolicy,
}

/// What a look-up needs of the cache, to be read once: as far as the compiler knows, what is stored meanwhile might
/// change it.
#[derive(Clone, Copy)]
pub(in crate::classify) struct CacheReader<'a, R> {
    sets: &'a [Ways],
    entries: &'a [CachedLine],
    cores: &'a [CachedCore],
    last: usize,
    /// The bits of a way that are its entry's number.
    number: u32,
    secret: R,
    hasher: &'a Hasher,
}

impl<'a, R: Copy> CacheReader<'a, R> {
    /// Hash of a line: of its core, if it has one.
    #[inline(always)]
    pub fn hash<S: Simd<Reg = R>>(self, simd: S, line: &Line, origin: Origin) -> u64 {
        match origin.core(line) {
            Some(core) => self.hash_core(core, origin),
            None => self.hash_whole(simd, simd.load(line)),
        }
    }

    /// Hash of a line with this core.
    #[inline(always)]
    pub fn hash_core(self, core: Core, origin: Origin) -> u64 {
        self.hasher.pair(core, origin.0)
    }

    /// Hash of a line that has no core.
    #[inline(always)]
    pub fn hash_whole<S: Simd<Reg = R>>(self, simd: S, line: R) -> u64 {
        self.hasher.finish(simd.nh(line, self.secret))
    }

    #[inline(always)]
    fn set_number(self, hash: u64) -> usize {
        (hash >> 8) as usize & self.last
    }

    #[inline(always)]
    fn set(self, hash: u64) -> &'a Ways {
        // SAFETY: `last` is the number of the last set.
        unsafe { self.sets.get_unchecked(self.set_number(hash)) }
    }

    /// The bits of a hash that choose no set, as a way has them.
    #[inline(always)]
    fn tag(self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.number
    }

    /// Asks for the set of a hash.
    #[inline(always)]
    pub fn prefetch_set(self, hash: u64) {
        prefetch(self.set(hash));
    }

    /// The number of the first entry that may be of the hash; where there is none, any.
    #[inline(always)]
    pub fn candidate<S: Simd>(self, simd: S, hash: u64) -> u32 {
        let set = self.set(hash);
        let candidates = simd.equal_tags(set, self.tag(hash), !self.number);
        set.0[candidates.trailing_zeros() as usize % WAYS] & self.number
    }

    /// Asks for the entry of this number of a line whose origin has a core, or has none.
    #[inline(always)]
    pub fn prefetch(self, number: u32, has_core: bool) {
        if has_core {
            prefetch(self.cores.as_ptr().wrapping_add(number as usize));
        } else {
            prefetch(self.entries.as_ptr().wrapping_add(number as usize));
        }
    }

    /// What the entry of this number knows, and whether that is about this line, of this origin. The number is one
    /// that a way has.
    #[inline(always)]
    pub fn read<S: Simd>(self, simd: S, number: u32, line: &Line, origin: Origin) -> (&'a CachedFlow, bool) {
        match origin.core(line) {
            Some(core) => self.read_core(number, core, origin),
            None => self.read_whole(simd, number, line),
        }
    }

    /// As [`read`](CacheReader::read), of a line that has no core.
    #[inline(always)]
    pub fn read_whole<S: Simd>(self, simd: S, number: u32, line: &Line) -> (&'a CachedFlow, bool) {
        let number = number as usize;
        debug_assert!(number < self.entries.len());
        // SAFETY: the region has an entry for each way that there can be, and the first one.
        let entry = unsafe { self.entries.get_unchecked(number) };
        (&entry.cached, !simd.differs_in_key(simd.load(line), simd.load(entry.line())))
    }

    /// As [`read`](CacheReader::read), of a line with this core.
    #[inline(always)]
    pub fn read_core(self, number: u32, core: Core, origin: Origin) -> (&'a CachedFlow, bool) {
        debug_assert!((number as usize) < self.cores.len());
        // SAFETY: the region has an entry for each way that there can be, and the first one.
        let entry = unsafe { self.cores.get_unchecked(number as usize) };
        (&entry.cached, entry.core == core && entry.cached.origin == origin)
    }

    /// What is known of a line, if the entry of this number is about it.
    #[inline(always)]
    fn get<S: Simd>(self, simd: S, number: u32, line: &Line, origin: Origin) -> Option<&'a CachedFlow> {
        let (cached, same) = self.read(simd, number, line, origin);
        same.then_some(cached)
    }

    /// Looks at all of a set, for lines that the first candidate is not about.
    #[cold]
    #[inline(never)]
    pub fn other(self, hash: u64, line: &Line) -> Option<&'a CachedFlow> {
        let (set, origin) = (self.set(hash), Origin::of(line));
        let mut ways = bits(Portable.equal_tags(set, self.tag(hash), !self.number));
        ways.find_map(|way| self.get(Portable, set.0[way] & self.number, line, origin))
    }
}

/// What a batch is looked up by, beside its lines.
#[derive(Default)]
pub struct Probes {
    pub(in crate::classify) hashes: [u64; BATCH_SIZE],
    /// The first candidate of each; then the epoch of its entry.
    pub(in crate::classify) at: [u32; BATCH_SIZE],
}

impl HeaderCache {
    /// A cache that grows to about `entries` entries, of 36 or 68 bytes. `seed` is the secret of its hash.
    pub fn new(entries: usize, seed: [u64; 2]) -> HeaderCache {
        let sets = entries.min(MAX_ENTRIES).div_ceil(WAYS).next_power_of_two();
        let hasher = Hasher::new([seed[0] ^ 0x6865_6164, seed[1]]);
        let secret = Aligned(std::array::from_fn(|i| hasher.finish(i as u64 + 1)));
        HeaderCache {
            sets: Region::new(2 * sets),
            entries: Region::new(sets * WAYS + 1),
            cores: Region::new(sets * WAYS + 1),
            last: sets.min(INITIAL_ENTRIES / WAYS) - 1,
            used: 0,
            last_line: Aligned([0; 8]),
            last_found: Found::MISS,
            last_epoch: 0,
            secret,
            hasher,
            evicted: 0,
            insertion: InsertionPolicy::new(),
        }
    }

    /// Changes how many of the flows that other tiers have found are remembered: one in so many; zero:
    /// none, and what was remembered is forgotten.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.insertion.set_one_in(one_in);
        if one_in == 0 {
            self.clear();
        }
    }

    /// Whether it may know anything.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.insertion.is_on()
    }

    /// How many entries there can be before it grows.
    pub fn ways(&self) -> usize {
        (self.last + 1) * WAYS
    }

    /// Entries that hold something.
    #[cfg(test)]
    pub fn numbers(&self) -> usize {
        self.used as usize
    }

    /// The set of a line.
    #[cfg(test)]
    pub fn set_of(&self, line: &Line) -> usize {
        let view = self.view(Portable);
        view.set_number(view.hash(Portable, line, Origin::of(line)))
    }

    fn sets_mut(&mut self) -> &mut [Ways] {
        let count = self.last + 1;
        &mut self.sets.slice_mut()[count..2 * count]
    }

    fn clear(&mut self) {
        self.sets_mut().fill(Ways::default());
        self.reset();
    }

    /// Forgets what does not lie in the sets, which are empty.
    fn reset(&mut self) {
        (self.used, self.evicted) = (0, 0);
        // No line is all zeros.
        self.last_line = Aligned([0; 8]);
    }

    /// Looks for the packets of `want` by their lines. Returns the bits of those that are known.
    #[inline(always)]
    pub fn find<S: Simd>(
        &mut self,
        simd: S,
        headers: &MaskedHeaders,
        want: u32,
        probes: &mut Probes,
        flow_counters: FlowCounters<'_>,
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        // A batch that is one run is often of the flow that the batch before was of.
        if want.is_power_of_two() {
            let i = want.trailing_zeros() as usize;
            let same = !simd.differs_at_all(simd.load(&headers.lines[i].0), simd.load(&self.last_line.0));
            if same && flow_counters.of(self.last_found.flow).epoch() == self.last_epoch {
                found[i] = self.last_found;
                return want;
            }
        }
        let holds = self.find_any(simd, headers, want, probes, flow_counters, found);
        if holds.is_power_of_two() && holds == want {
            let i = want.trailing_zeros() as usize;
            (self.last_line, self.last_found, self.last_epoch) = (headers.lines[i], found[i], probes.at[i]);
        }
        holds
    }

    /// As [`find`](HeaderCache::find), in the cache.
    #[inline(always)]
    fn find_any<S: Simd>(
        &self,
        simd: S,
        headers: &MaskedHeaders,
        want: u32,
        probes: &mut Probes,
        flow_counters: FlowCounters<'_>,
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        let Probes { hashes, at } = probes;
        let view = self.view(simd);
        // 1. Hash all; ask for the sets.
        for i in bits(want) {
            let line = &headers.lines[i].0;
            hashes[i] = view.hash(simd, line, Origin::of(line));
            view.prefetch_set(hashes[i]);
        }
        // 2. Compare the tags; ask for the entries.
        for i in bits(want) {
            at[i] = view.candidate(simd, hashes[i]);
            view.prefetch(at[i], Origin::of(&headers.lines[i].0).has_core());
        }
        // 3. Compare the lines; ask for the counters.
        let mut known = 0;
        let mut counters = [flow_counters.of(FlowRef::NONE); BATCH_SIZE];
        for i in bits(want) {
            let line = &headers.lines[i].0;
            let first = view.get(simd, at[i], line, Origin::of(line));
            let Some(cached) = first.or_else(|| view.other(hashes[i], line)) else { continue };
            found[i] = cached.found;
            at[i] = cached.epoch;
            counters[i] = flow_counters.of(cached.found.flow);
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

    /// What a look-up needs.
    #[inline(always)]
    pub(in crate::classify) fn view<S: Simd>(&self, simd: S) -> CacheReader<'_, S::Reg> {
        let sets = &self.sets.slice()[self.last + 1..];
        let (entries, cores) = (self.entries.slice(), self.cores.slice());
        // There are as many numbers as ways, and zero.
        let (last, number) = (self.last, (self.ways() * 2 - 1) as u32);
        CacheReader { sets, entries, cores, last, number, secret: simd.load(&self.secret.0), hasher: &self.hasher }
    }

    /// Remembers what packet `i` belongs to. `epoch` was read before the flow was last seen alive. It must have
    /// been looked for before, in this batch. Only some are remembered, unless `always`.
    pub fn insert(
        &mut self,
        headers: &MaskedHeaders,
        probes: &Probes,
        i: usize,
        found: Found,
        epoch: u32,
        always: bool,
    ) {
        if !(always || self.insertion.should_insert()) {
            return;
        }
        let (hash, line) = (probes.hashes[i], &headers.lines[i].0);
        let origin = Origin::of(line);
        let cached = CachedFlow { found, epoch, origin };
        let view = self.view(Portable);
        let (set, tag, number) = (view.set_number(hash), view.tag(hash), view.number);
        let ways = view.sets[set].0;
        let same =
            |&way: &usize| ways[way] & !number == tag && view.get(Portable, ways[way] & number, line, origin).is_some();
        let way = (0..WAYS).find(same).or_else(|| (0..WAYS).find(|&way| ways[way] == 0));
        let way = way.unwrap_or_else(|| {
            self.evicted += 1;
            self.insertion.next() as usize >> 16 & (WAYS - 1)
        });
        let at = match ways[way] & number {
            0 => {
                self.used += 1;
                self.used
            }
            at => at,
        };
        self.sets_mut()[set].0[way] = tag | at;
        match origin.core(line) {
            Some(core) => self.cores.slice_mut()[at as usize] = CachedCore { core, cached },
            None => {
                let [header @ .., _, _] = *line;
                self.entries.slice_mut()[at as usize] = CachedLine { header, cached };
            }
        }
        if self.evicted > self.ways() / GROWTH_SHARE && 2 * (self.last + 1) < self.sets.slice().len() {
            self.grow();
        }
    }

    /// Uses twice as many sets. What was remembered is found again by tier 2: most of it would lie in other sets.
    #[cold]
    fn grow(&mut self) {
        let count = self.last + 1;
        self.sets.release(count..2 * count);
        self.last = 2 * count - 1;
        self.reset();
    }
}
