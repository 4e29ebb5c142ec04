//! Tier 1: the header cache, which each worker has, from the first bytes of a frame to a flow.
//!
//! A packet is looked up by its *line*, which [`scan`](crate::classify::scan) makes: the header bits that some flow
//! of its port matches, as they lie in the frame, with the port and the template. An entry is one cache line: 48
//! bytes of header, and the flow with its action. It is half of that where the bits that differ from packet to packet
//! lie within 16 bytes, the line's *core*. An entry holds as long as the flow has the epoch that is recorded in it.
//! So to remove or change a flow is a constant amount of work, and no entry is searched for.
//!
//! A set is one cache line of sixteen words, each with the number of an entry and its tag. A hit reads the set, the
//! entry, and the worker's counters of the flow, which are about to be written anyway. All three are prefetched.
//! Entries are allocated in the order of their insertion, without gaps, so that those of flows that live at the same
//! time share cache lines and pages.
//!
//! The cache starts small, so that few flows fit into the processor's caches. It doubles when it evicts too often, up
//! to its configured size. To grow is constant work, too: the sets of each size lie in memory of their own, which is
//! untouched before. Untouched memory is not allocated by the kernel.

use packet::BATCH_SIZE;
use packet::flow::hash::Hasher;
use zerocopy::{Immutable, IntoBytes};

use crate::classify::bits;
use crate::classify::cache::fused::{FlowAt, Fused, FusedTable, More};
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

/// Bytes of an entry with its word in a set, where its number has been used for entries of both sizes.
pub const ENTRY_BYTES: usize = size_of::<CachedLine>() + size_of::<CachedCore>() + size_of::<u32>();

/// Most entries: a word then has 25 bits of number and 7 bits of tag.
pub const MAX_ENTRIES: usize = 1 << 24;

/// Entries of a new cache: 144 KiB with their sets where all have a core, 272 KiB where none has.
const INITIAL_ENTRIES: usize = 1 << 12;

/// The cache grows after evictions of one in so many of its entries.
const GROWTH_SHARE: usize = 16;

/// A flow, and its action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Found {
    /// The flow.
    pub flow: FlowRef,
    /// What is done with its packets.
    pub action: FastAction,
}

impl Found {
    /// No flow was found.
    pub const MISS: Found = Found { flow: FlowRef::NONE, action: FastAction::MISS };
}

/// The part of an entry that says which flow its line belongs to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::classify) struct CachedFlow {
    pub found: Found,
    /// The flow's epoch when the entry was inserted.
    pub epoch: u32,
    /// The line's origin. Zero where the entry was never used.
    origin: Origin,
}

/// An entry for a line without a core.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CachedLine {
    header: [u64; 6],
    cached: CachedFlow,
}

/// An entry for a line with a core: the rest of the line is the same in all lines of its origin.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct CachedCore {
    core: Core,
    cached: CachedFlow,
}

const _: () = assert!(size_of::<CachedLine>() == 64 && size_of::<CachedCore>() == 32);
const _: () = assert!(size_of::<Ways>() == 64 && size_of::<Found>() == 8);

// Header and origin of an entry are compared with a line.
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

// SAFETY: all-zero bytes are a valid `CachedLine`: its members are integers. It has no drop code.
unsafe impl Zero for CachedLine {}
// SAFETY: all-zero bytes are a valid `CachedCore`: its members are integers. It has no drop code.
unsafe impl Zero for CachedCore {}
// SAFETY: all-zero bytes are valid `Ways`: its members are integers. It has no drop code.
unsafe impl Zero for Ways {}

impl CachedLine {
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: a `CachedLine` is 64 bytes of integers without padding and has the alignment of a cache line, so
        // its bytes are a valid `Line`.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

/// A worker's header cache.
pub struct HeaderCache {
    /// The ways of all sets: the number of an entry, and above it the tag. Zero: the way is empty. The sets in use
    /// are preceded by as many unused ones.
    sets: Region<Ways>,
    /// Entries of lines without a core, by number, from 1 on. The first element is not used.
    entries: Region<CachedLine>,
    /// Entries of lines with a core, in the same way.
    cores: Region<CachedCore>,
    /// Fused connections, by the numbers of their entries.
    fused: FusedTable,
    /// Index of the last set among those in use: a power of two less one.
    last: usize,
    /// The number of the entry that was allocated last.
    used: u32,
    /// The line of the last batch that was a single run.
    last_line: Aligned,
    last_found: Found,
    last_epoch: u32,
    last_salt: u64,
    secret: Aligned,
    hasher: Hasher,
    /// Evictions since the cache has grown.
    evicted: usize,
    /// Which flows are inserted. Its random numbers also choose the way that is evicted.
    insertion: InsertionPolicy,
}

/// The members of the cache that a look-up needs, read once. The compiler would otherwise have to read them again
/// after each store of the look-up.
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
    /// The hash of a line: that of its core, if it has one.
    #[inline(always)]
    pub fn hash<S: Simd<Reg = R>>(self, simd: S, line: &Line, origin: Origin) -> u64 {
        match origin.core(line) {
            Some(core) => self.hash_core(core, origin),
            None => self.hash_whole(simd, simd.load(line)),
        }
    }

    /// The hash of a line with this core.
    #[inline(always)]
    pub fn hash_core(self, core: Core, origin: Origin) -> u64 {
        self.hasher.pair(core, origin.0)
    }

    /// The hash of a line without a core.
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
        // SAFETY: `set_number` masks the hash with `last`, the index of the last element of `sets`, so the index is
        // in bounds.
        unsafe { self.sets.get_unchecked(self.set_number(hash)) }
    }

    /// The tag of a hash: bits that do not select the set, in their place in a way.
    #[inline(always)]
    fn tag(self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.number
    }

    /// Prefetches the set of a hash.
    #[inline(always)]
    pub fn prefetch_set(self, hash: u64) {
        prefetch(self.set(hash));
    }

    /// The number of the first entry whose tag equals the hash's, or any number where there is none.
    #[inline(always)]
    pub fn candidate<S: Simd>(self, simd: S, hash: u64) -> u32 {
        let set = self.set(hash);
        let candidates = simd.equal_tags(set, self.tag(hash), !self.number);
        set.0[candidates.trailing_zeros() as usize % WAYS] & self.number
    }

    /// Prefetches the entry with this number, of a line whose origin has a core or has none.
    #[inline(always)]
    pub fn prefetch(self, number: u32, has_core: bool) {
        if has_core {
            prefetch(self.cores.as_ptr().wrapping_add(number as usize));
        } else {
            prefetch(self.entries.as_ptr().wrapping_add(number as usize));
        }
    }

    /// Reads the entry with this number. Also returns whether it is of this line, which has this origin. The number
    /// is one that a way has.
    #[inline(always)]
    pub fn read<S: Simd>(self, simd: S, number: u32, line: &Line, origin: Origin) -> (&'a CachedFlow, bool) {
        match origin.core(line) {
            Some(core) => self.read_core(number, core, origin),
            None => self.read_whole(simd, number, line),
        }
    }

    /// As [`read`](CacheReader::read), for a line without a core.
    #[inline(always)]
    pub fn read_whole<S: Simd>(self, simd: S, number: u32, line: &Line) -> (&'a CachedFlow, bool) {
        let number = number as usize;
        debug_assert!(number < self.entries.len());
        // SAFETY: `number` comes from a way (see `candidate`), masked to the numbers that a way can have. The region
        // has one element more than there can be ways, so the index is in bounds.
        let entry = unsafe { self.entries.get_unchecked(number) };
        (&entry.cached, !simd.differs_in_key(simd.load(line), simd.load(entry.line())))
    }

    /// As [`read`](CacheReader::read), for a line with this core.
    #[inline(always)]
    pub fn read_core(self, number: u32, core: Core, origin: Origin) -> (&'a CachedFlow, bool) {
        debug_assert!((number as usize) < self.cores.len());
        // SAFETY: `number` comes from a way (see `candidate`), masked to the numbers that a way can have. The region
        // has one element more than there can be ways, so the index is in bounds.
        let entry = unsafe { self.cores.get_unchecked(number as usize) };
        (&entry.cached, entry.core == core && entry.cached.origin == origin)
    }

    /// The flow of a line, if the entry with this number is of this line.
    #[inline(always)]
    fn get<S: Simd>(self, simd: S, number: u32, line: &Line, origin: Origin) -> Option<&'a CachedFlow> {
        let (cached, same) = self.read(simd, number, line, origin);
        same.then_some(cached)
    }

    /// Searches the whole set, for lines that are not that of the first candidate.
    #[cold]
    #[inline(never)]
    pub fn other(self, hash: u64, line: &Line) -> Option<&'a CachedFlow> {
        let (set, origin) = (self.set(hash), Origin::of(line));
        let mut ways = bits(Portable.equal_tags(set, self.tag(hash), !self.number));
        ways.find_map(|way| self.get(Portable, set.0[way] & self.number, line, origin))
    }
}

/// Hashes and candidates of a batch's look-up.
#[derive(Default)]
pub struct Probes {
    pub(in crate::classify) hashes: [u64; BATCH_SIZE],
    /// The number of the first candidate; after the look-up, the epoch of the entry that was found.
    pub(in crate::classify) at: [u32; BATCH_SIZE],
}

impl Probes {
    /// The hash of the line of packet `i`, which was looked up.
    #[inline(always)]
    pub fn hash_of(&self, i: usize) -> u64 {
        self.hashes[i]
    }
}

impl HeaderCache {
    /// A cache that grows to about `entries` entries of 36 or 68 bytes. `seed` is the secret of its hash.
    pub fn new(entries: usize, seed: [u64; 2]) -> HeaderCache {
        let sets = entries.min(MAX_ENTRIES).div_ceil(WAYS).next_power_of_two();
        let hasher = Hasher::new([seed[0] ^ 0x6865_6164, seed[1]]);
        let secret = Aligned(std::array::from_fn(|i| hasher.finish(i as u64 + 1)));
        HeaderCache {
            sets: Region::new(2 * sets),
            entries: Region::new(sets * WAYS + 1),
            cores: Region::new(sets * WAYS + 1),
            fused: FusedTable::new(sets * WAYS + 1),
            last: sets.min(INITIAL_ENTRIES / WAYS) - 1,
            used: 0,
            last_line: Aligned([0; 8]),
            last_found: Found::MISS,
            last_epoch: 0,
            last_salt: 0,
            secret,
            hasher,
            evicted: 0,
            insertion: InsertionPolicy::new(),
        }
    }

    /// Changes the insertion policy: one in so many of the flows that other tiers find is inserted; zero: none, and
    /// the cache is emptied.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.insertion.set_one_in(one_in);
        if one_in == 0 {
            self.clear();
        }
    }

    /// Whether anything is inserted.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.insertion.is_on()
    }

    /// How many entries there can be at the present size.
    pub fn ways(&self) -> usize {
        (self.last + 1) * WAYS
    }

    /// How many entries are used.
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

    /// Resets everything but the sets, which are empty.
    fn reset(&mut self) {
        (self.used, self.evicted) = (0, 0);
        self.forget_last();
    }

    /// Forgets the line of the last batch that was a single run.
    fn forget_last(&mut self) {
        // Equals no line, since lines are not all zeros.
        (self.last_line, self.last_found) = (Aligned([0; 8]), Found::MISS);
    }

    /// Looks up the packets of `want` by their lines, whose plan has this [`metadata_salt`](crate::classify::plan::Plan::metadata_salt). Returns the set of hits.
    /// `is_tracked`: entries may lead to fused connections.
    #[inline(always)]
    pub fn find<S: Simd>(
        &mut self,
        simd: S,
        (headers, salt): (&MaskedHeaders, u64),
        want: u32,
        probes: &mut Probes,
        (flow_counters, is_tracked): (FlowCounters<'_>, bool),
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        // A batch that is a single run often has the line of the batch before.
        if want.is_power_of_two() {
            let i = want.trailing_zeros() as usize;
            let same = !simd.differs_at_all(simd.load(&headers.lines[i].0), simd.load(&self.last_line.0));
            let same = same && salt == self.last_salt;
            if same && flow_counters.of(self.last_found.flow).epoch() == self.last_epoch {
                found[i] = self.last_found;
                return want;
            }
        }
        let holds = self.find_any(simd, (headers, salt), want, probes, (flow_counters, is_tracked), found);
        if holds.is_power_of_two() && holds == want {
            let i = want.trailing_zeros() as usize;
            (self.last_line, self.last_found, self.last_epoch) = (headers.lines[i], found[i], probes.at[i]);
            self.last_salt = salt;
        }
        holds
    }

    /// The look-up of [`find`](HeaderCache::find) in the sets.
    #[inline(always)]
    fn find_any<S: Simd>(
        &self,
        simd: S,
        (headers, salt): (&MaskedHeaders, u64),
        want: u32,
        probes: &mut Probes,
        (flow_counters, is_tracked): (FlowCounters<'_>, bool),
        found: &mut [Found; BATCH_SIZE],
    ) -> u32 {
        let Probes { hashes, at } = probes;
        let view = self.view(simd);
        // 1. Hash all lines; prefetch the sets.
        for i in bits(want) {
            let line = &headers.lines[i].0;
            hashes[i] = view.hash(simd, line, Origin::of(line)) ^ salt;
            view.prefetch_set(hashes[i]);
        }
        // 2. Compare the tags; prefetch the entries, and what they may lead to.
        for i in bits(want) {
            let has_core = Origin::of(&headers.lines[i].0).has_core();
            at[i] = view.candidate(simd, hashes[i]);
            view.prefetch(at[i], has_core);
            if is_tracked {
                self.fused.prefetch(at[i], has_core);
            }
        }
        // 3. Compare the lines; prefetch the counters.
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
        // 4. Compare the epochs: does the entry still hold?
        let mut holds = known;
        for i in bits(known) {
            if counters[i].epoch() != at[i] {
                found[i] = Found::MISS;
                holds &= !(1 << i);
            }
        }
        holds
    }

    /// Whether it has an entry for a line that still holds, for who only wants to know. The line is one without metadata.
    pub fn has(&self, line: &Line, flow_counters: FlowCounters<'_>) -> bool {
        let (view, origin) = (self.view(Portable), Origin::of(line));
        let hash = view.hash(Portable, line, origin);
        let first = view.get(Portable, view.candidate(Portable, hash), line, origin);
        let found = first.or_else(|| view.other(hash, line));
        found.is_some_and(|cached| flow_counters.of(cached.found.flow).epoch() == cached.epoch)
    }

    /// The members that a look-up needs.
    #[inline(always)]
    pub(in crate::classify) fn view<S: Simd>(&self, simd: S) -> CacheReader<'_, S::Reg> {
        let sets = &self.sets.slice()[self.last + 1..];
        let (entries, cores) = (self.entries.slice(), self.cores.slice());
        // Numbers are from zero to the number of ways, inclusive.
        let (last, number) = (self.last, (self.ways() * 2 - 1) as u32);
        CacheReader { sets, entries, cores, last, number, secret: simd.load(&self.secret.0), hasher: &self.hasher }
    }

    /// The fused connections.
    #[inline(always)]
    pub fn fused(&self) -> &FusedTable {
        &self.fused
    }

    /// Inserts a fused connection for a line, which had this hash when it was looked up, and belongs to this flow.
    pub fn insert_fused(&mut self, (line, hash): (&Line, u64), first: FlowAt, fused: &Fused, more: More<'_>) {
        let origin = Origin::of(line);
        let at = self.put(line, hash, Found { flow: first.flow, action: FastAction::PROGRAM }, first.epoch);
        let number = self.fused.number(at, origin.has_core());
        self.fused.set(number, fused, more);
        let action = FastAction::of_fused(number);
        if origin.has_core() {
            self.cores.slice_mut()[at as usize].cached.found.action = action;
        } else {
            self.entries.slice_mut()[at as usize].cached.found.action = action;
        }
    }

    /// Inserts the flow of packet `i`. The packet must have been looked up here in this batch. `epoch` was read
    /// before the flow was last seen live. Without `always`, the insertion policy decides.
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
        self.put(&headers.lines[i].0, probes.hashes[i], found, epoch);
    }

    /// Inserts a flow, and returns the number of its entry.
    fn put(&mut self, line: &Line, hash: u64, found: Found, epoch: u32) -> u32 {
        let origin = Origin::of(line);
        if self.last_found.action.fused().is_some() {
            // Its entry may go, and its number lead to another connection.
            self.forget_last();
        }
        self.make_room();
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
        at
    }

    /// Grows, where too many entries were evicted.
    fn make_room(&mut self) {
        if self.evicted > self.ways() / GROWTH_SHARE && 2 * (self.last + 1) < self.sets.slice().len() {
            self.grow();
        }
    }

    /// Doubles the number of sets. The new ones are empty, since most entries would belong to other sets. Tier 2
    /// finds their flows again.
    #[cold]
    fn grow(&mut self) {
        let count = self.last + 1;
        self.sets.release(count..2 * count);
        self.last = 2 * count - 1;
        self.reset();
    }
}
