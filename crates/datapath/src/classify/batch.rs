//! The tiers of a look-up, for a batch of packets of one input port or recirculation stage.
//!
//! 1. Consecutive packets that no flow of the list tells apart are a run. Only the first one, the leader, is looked
//!    up, and the others get its flow. While batches have hardly any runs, none are looked for
//!    ([`mixed`]).
//! 2. Tier 1, the worker's header cache, takes frames as they are. Where all flows of the port qualify for the simple
//!    match, this counts as tier 0: few entries are enough, and a miss is looked up by the packet's mark.
//!    A frame with unusual headers is looked up there by those of its words that matter, found by its outline, or of
//!    its key, which is extracted.
//! 3. For packets that miss there the key is extracted and looked up in tier 2, the megaflow table. Where a line has no
//!    room for what flows look at in unusual headers, and in later stages, packets with such headers are looked up in
//!    the worker's key cache before.

use packet::flow::extract::{VlanLimit, extract, simple_mark};
use packet::{BATCH_SIZE, Key, Packet};

use super::bits;
use super::mixed::{self, MixedBatch, RunHistory};
use super::plan::{Aligned, Origin, set_mark};
use super::rescan::rescan;
use super::scan::scan;
use crate::actions::compact::RewriteTable;
use crate::classify::cache::headers::{Found, HeaderCache};
use crate::classify::cache::keys::KeyCache;
use crate::classify::cpu::simd::Simd;
use crate::classify::table::arena::{CompiledAction, FastAction, Live};
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::table::megaflow::{FlowList, LookupContext, Table};
use crate::pipeline::batch::{BatchMeta, all, end_of_run};

/// A worker's caches.
pub struct Caches {
    /// The header cache.
    pub headers: HeaderCache,
    /// The key cache.
    pub exact: KeyCache,
    /// The compact rewrites that entries of the header cache have the numbers of.
    pub rewrites: RewriteTable,
    seed: [u64; 2],
    one_in: u32,
}

/// Most entries of the key cache. It is small, since unusual headers are rare.
const KEY_CACHE_ENTRIES: usize = 1 << 14;

impl Caches {
    /// Caches that grow to about `entries` entries. `seed` is the secret of their hashes.
    pub fn new(entries: usize, seed: [u64; 2]) -> Caches {
        let (headers, exact) = (HeaderCache::new(entries, seed), KeyCache::new(entries.min(KEY_CACHE_ENTRIES)));
        Caches { headers, exact, rewrites: RewriteTable::default(), seed, one_in: 1 }
    }

    /// Empties the caches, and changes their size.
    pub fn resize(&mut self, entries: usize) {
        let one_in = self.one_in;
        *self = Caches::new(entries, self.seed);
        self.set_one_in(one_in);
    }

    /// Changes the insertion policy: one in so many of the flows that tier 2 finds is inserted; zero: none, and the
    /// caches are emptied.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.one_in = one_in;
        self.headers.set_one_in(one_in);
        self.exact.set_one_in(one_in);
    }
}

impl Caches {
    /// What is done with the packets of a flow that tier 2 has found.
    pub fn fast_action(&mut self, action: CompiledAction<'_>) -> FastAction {
        match action {
            CompiledAction::Program(program) => {
                let number = program.compact().and_then(|rewrite| self.rewrites.number(rewrite));
                number.map_or(FastAction::PROGRAM, FastAction::of_rewrite)
            }
            other => FastAction::of(other),
        }
    }

    /// Empties the table of compact rewrites, and the header cache with it, which has their numbers.
    #[cold]
    fn forget_rewrites(&mut self) {
        self.headers.set_one_in(0);
        self.headers.set_one_in(self.one_in);
        self.rewrites.clear();
    }
}

/// Hits of each tier in packets, all packets of a run included.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Hits {
    /// Tier 0.
    pub simple: u32,
    /// Tier 1.
    pub exact: u32,
    /// Tier 2.
    pub megaflow: u32,
    /// Subtables that were visited in tier 2, summed over the leaders.
    pub visited: u32,
}

/// How many batches are treated as mixed after a mixed one.
const MIXED_BATCHES: u8 = 63;

/// Fewest packets of a batch that can count as mixed.
const MIN_MIXED_PACKETS: usize = 4;

/// Looks up packets that a port has received. `recent`: the history of their receive queue.
#[inline(always)]
pub fn classify<S: Simd>(
    simd: S,
    at: LookupContext<'_>,
    packets: &[Packet],
    caches: &mut Caches,
    meta: &mut BatchMeta,
    recent: &mut RunHistory,
) -> Hits {
    let LookupContext { list, table, worker, count_at, .. } = at;
    let count = packets.len();
    let flow_counters = table.arena.flow_counters(worker);
    if caches.rewrites.is_worn_out() {
        caches.forget_rewrites();
    }
    let cache = &mut caches.headers;
    let is_on = list.plan.simple || cache.is_on();
    let (known, leaders, unusual);
    if recent.mixed > 0
        && is_on
        && let Some(now) = count_at
    {
        recent.mixed -= 1;
        let (extractor, headers, probes, found) = meta.parts_for_look_up();
        let (plan, found) = (&list.plan, &mut found[..count]);
        let batch = MixedBatch { packets, plan, cache, flow_counters, now, extractor, headers, probes, found };
        let mixed = mixed::find(simd, batch, recent);
        (known, leaders, unusual) = (mixed.known, all(count) & !mixed.unusual, mixed.unusual);
        meta.set_counted(mixed.known, mixed.uniform);
    } else {
        let (mut extractor, headers, probes, found) = meta.parts_for_look_up();
        let scan = scan(simd, &list.plan, packets, extractor.vlan_limit(), headers);
        let mut without_line = scan.unusual;
        if scan.unusual != 0 && is_on && list.plan.has_lines_of_unusual() {
            without_line = mixed::lines_of_unusual(&list.plan, packets, scan.unusual, &mut extractor, headers);
        }
        (leaders, unusual) = (scan.leaders | scan.unusual & !without_line, without_line);
        known = if is_on {
            cache.find(simd, (headers, 0), leaders, probes, (flow_counters, list.plan.tracked.is_some()), found)
        } else {
            0
        };
        // A batch is mixed if more than three of four packets start a run. If every other one does, both ways cost
        // the same, and runs cost less where one rule matches everything and two protocols alternate
        // (docs/performance.md). A few packets are not representative.
        let (starts, unusual) = ((leaders | unusual).count_ones() as usize, unusual.count_ones() as usize);
        let is_mixed = starts * 4 > count * 3 && unusual * 2 <= count && count >= MIN_MIXED_PACKETS;
        recent.mixed = if is_mixed { MIXED_BATCHES } else { 0 };
    }
    meta.set_tracked(list.plan.tracked.is_some(), leaders);
    finish(at, packets, FirstLookup { known, leaders, unusual }, caches, meta)
}

/// Looks up recirculated packets. If their stage has no list of its own, only their keys are looked up, since masked
/// headers do not say which stage a packet is in.
#[inline(always)]
pub fn classify_recirculated<S: Simd>(
    simd: S,
    at: LookupContext<'_>,
    packets: &[Packet],
    caches: &mut Caches,
    meta: &mut BatchMeta,
) -> Hits {
    if !at.list.is_of_later_stage {
        meta.start_with_keys(packets);
        return classify_keys(at, packets.len(), &mut caches.exact, meta);
    }
    let LookupContext { list, table, worker, .. } = at;
    let vlan_limit = meta.vlan_limit;
    let (metadata, headers, counted) = meta.parts_for_scan();
    let scan = rescan(simd, &list.plan, packets, metadata, counted, vlan_limit, headers);
    let (cache, is_tracked) = (&mut caches.headers, list.plan.tracked.is_some());
    meta.set_tracked(is_tracked, scan.leaders);
    let known = if list.plan.simple || cache.is_on() {
        let BatchMeta { headers, probes, found, .. } = meta;
        let (salt, flow_counters) = (list.plan.metadata_salt, table.arena.flow_counters(worker));
        cache.find(simd, (headers, salt), scan.leaders, probes, (flow_counters, is_tracked), found)
    } else {
        0
    };
    finish(at, packets, FirstLookup { known, leaders: scan.leaders, unusual: scan.unusual }, caches, meta)
}

/// What the header cache has found for a batch: sets of packets.
#[derive(Clone, Copy)]
struct FirstLookup {
    /// Hits.
    known: u32,
    /// Leaders with usual headers, hit or not.
    leaders: u32,
    /// Those with unusual headers.
    unusual: u32,
}

/// Counts the hits of the header cache, and looks up its misses in the further tiers.
#[inline(always)]
fn finish(
    at: LookupContext<'_>,
    packets: &[Packet],
    first: FirstLookup,
    caches: &mut Caches,
    meta: &mut BatchMeta,
) -> Hits {
    let FirstLookup { known, leaders, unusual } = first;
    let starts = leaders | unusual;
    meta.set_starts(starts);
    let mut hits = Hits::default();
    let of_cache = self::packets(known, starts, packets.len());
    if at.list.plan.simple {
        hits.simple = of_cache;
    } else {
        hits.exact = of_cache;
    }
    if known != starts {
        look_up_unresolved(at, packets, Unresolved { leaders: leaders & !known, unusual }, caches, meta, &mut hits);
    }
    hits
}

/// The packets that the header cache has not found.
#[derive(Clone, Copy)]
struct Unresolved {
    leaders: u32,
    unusual: u32,
}

#[inline(never)]
fn look_up_unresolved(
    at: LookupContext<'_>,
    packets: &[Packet],
    unresolved: Unresolved,
    caches: &mut Caches,
    meta: &mut BatchMeta,
    hits: &mut Hits,
) {
    let LookupContext { list, table, worker, guard, .. } = at;
    let (count, both, starts) = (packets.len(), unresolved.leaders | unresolved.unusual, meta.starts());
    let mut flows = [FlowRef::NONE; BATCH_SIZE];
    if list.plan.simple {
        // A mark is enough of a key here: the flows match nothing else.
        for i in bits(both & !meta.extracted()) {
            let frame = packets[i].data();
            let mark = simple_mark(frame, meta.vlan_limit);
            set_mark(meta.start_key(i), mark);
            if unresolved.unusual >> i & 1 != 0 {
                meta.headers.flags[i] = unusual_flags(mark.dl_type, frame, meta.vlan_limit);
            }
        }
        let (found, visited) = Table::lookup(at, &meta.keys[..count], both, &mut flows);
        hits.simple += self::packets(found, starts, count);
        hits.visited += visited;
    } else {
        for i in bits(both) {
            meta.extract(i, &packets[i]);
        }
        for i in bits(unresolved.unusual) {
            meta.headers.flags[i] = meta.keys[i].common().tcp_flags.get();
        }
        let keys = &meta.keys[..count];
        let (found, visited) = Table::lookup(at, keys, unresolved.leaders, &mut flows);
        let (known, of_unusual, visited_by_unusual) =
            look_up_keys(at, keys, unresolved.unusual, &mut flows, &mut caches.exact);
        hits.exact += self::packets(known, starts, count);
        hits.megaflow += self::packets(found | of_unusual, starts, count);
        hits.visited += visited + visited_by_unusual;
    }
    let mut missed = 0;
    for i in bits(both) {
        // The epoch is read before the flow: what is then read of the flow holds as long as the epoch is the same.
        let epoch = table.arena.flow_counters(worker).of(flows[i]).epoch();
        let live = table.arena.live(flows[i], guard);
        meta.found[i] =
            live.map_or(Found::MISS, |live| Found { flow: flows[i], action: caches.fast_action(live.action()) });
        // Packets of connections get an entry when these are established: those that only begin must not push them out.
        let waits = |live: Live<'_>| meta.is_tracked() && tells_connection(list, &meta.headers.lines[i], live);
        if unresolved.leaders >> i & 1 != 0 && live.is_some_and(|live| !waits(live)) {
            let always = list.plan.simple;
            caches.headers.insert(&meta.headers, &meta.probes, i, meta.found[i], epoch, always);
        }
        missed |= u32::from(live.is_none()) << i;
    }
    meta.set_missed(missed);
}

/// Whether a packet with this line is one of a connection that its flow tracks.
fn tells_connection(list: &FlowList, line: &Aligned, live: Live<'_>) -> bool {
    let tracks = matches!(live.action(), CompiledAction::Program(program) if program.course().tracks());
    tracks && list.plan.pattern_of(Origin::of(&line.0)).is_some_and(|pattern| pattern.tells_connections)
}

/// The TCP flags of a packet whose headers are unusual.
fn unusual_flags(dl_type: u16, frame: &[u8], vlan_limit: VlanLimit) -> u16 {
    if !matches!(dl_type, 0x0800 | 0x86dd) {
        return 0;
    }
    let mut key = Key::new();
    extract(frame, &mut key, vlan_limit);
    key.common().tcp_flags.get()
}

/// Looks up the `keys` of `want`, first in the key cache, unless there is a single subtable, which costs no more than
/// the cache. Returns the hits of the cache, the hits of tier 2, and the number of visited subtables.
#[inline(always)]
pub fn look_up_keys(
    at: LookupContext<'_>,
    keys: &[Key],
    want: u32,
    flows: &mut [FlowRef; BATCH_SIZE],
    exact: &mut KeyCache,
) -> (u32, u32, u32) {
    if want == 0 {
        return (0, 0, 0);
    }
    if at.list.subtables.len() > 1 {
        exact.classify(at, keys, want, flows)
    } else {
        let (found, visited) = Table::lookup(at, keys, want, flows);
        (0, found, visited)
    }
}

/// Looks up packets whose keys are extracted, each a run of its own.
pub fn classify_keys(at: LookupContext<'_>, count: usize, exact: &mut KeyCache, meta: &mut BatchMeta) -> Hits {
    let mut flows = [FlowRef::NONE; BATCH_SIZE];
    let starts = all(count);
    meta.set_starts(starts);
    let keys = &meta.keys[..count];
    let (known, found, visited) = look_up_keys(at, keys, starts, &mut flows, exact);
    let mut missed = 0;
    for (i, &flow) in flows.iter().enumerate().take(count) {
        let live = at.table.arena.live(flow, at.guard);
        meta.found[i] = live.map_or(Found::MISS, |live| Found { flow, action: FastAction::of(live.action()) });
        missed |= u32::from(live.is_none()) << i;
    }
    meta.set_missed(missed);
    Hits { simple: 0, exact: known.count_ones(), megaflow: found.count_ones(), visited }
}

/// The number of packets in the runs that start with the packets of `of`.
#[inline(always)]
fn packets(of: u32, starts: u32, count: usize) -> u32 {
    if of == starts {
        return count as u32;
    }
    let mut sum = 0;
    for i in bits(of) {
        sum += end_of_run(starts, i, count) - i;
    }
    sum as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_runs() {
        let starts = 0b1000_0000_0000_0000_0000_0000_0001_0101;
        assert_eq!((packets(0b101, starts, 32), packets(starts, starts, 9), packets(0, starts, 9)), (4, 9, 0));
    }
}
