//! Batches whose packets are of many flows: every packet is a run of its own.
//!
//! [`scan`](super::scan()) looks for runs, and look-up and counting go from run to run. Where there are hardly any,
//! that is in vain. Here, each step is done with all packets of the batch, one after the other, with nothing between;
//! what is found is the same.
//!
//! Mostly, all packets have the same pattern, that of the batch before: then nothing of it changes from packet to
//! packet. Where they have not, each packet's pattern is found anew, without a branch that depends on what it is:
//! packets of different protocols take turns by chance.

use std::hint::cold_path;

use packet::flow::template::{Layout, Template};
use packet::{BATCH_SIZE, Packet, Time};

use super::plan::{Aligned, Core, Origin, Pattern, Plan};
use super::scan::{AHEAD, MaskedHeaders, copied, fitting};
use super::{bits, prefetch};
use crate::classify::cache::headers::{CacheReader, CachedFlow, Found, HeaderCache, Probes};
use crate::classify::cpu::Leveled;
use crate::classify::cpu::simd::Simd;
use crate::classify::table::flow_counters::FlowCounters;
use crate::classify::table::flow_ref::FlowRef;
use crate::pipeline::batch::all;

/// What the last batches of a receive queue were like.
pub struct RunHistory {
    /// So many batches are taken to be mixed.
    pub mixed: u8,
    /// In so many of them, packets are taken to have different patterns.
    several_patterns: u8,
    /// The line of a packet of the last batch where they had: those of the next batches are likely to have its pattern.
    line: Aligned,
}

impl Default for RunHistory {
    fn default() -> RunHistory {
        RunHistory { mixed: 0, several_patterns: 0, line: Aligned([0; 8]) }
    }
}

/// Batches whose packets are taken to have different patterns, after one where they had.
const MIXED_PATTERN_BATCHES: u8 = 63;

/// A batch, and where it is looked up.
pub struct MixedBatch<'a> {
    /// The packets.
    pub packets: &'a [Packet],
    /// Of their port.
    pub plan: &'a Plan,
    /// The worker's.
    pub cache: &'a HeaderCache,
    /// The worker's counters.
    pub flow_counters: FlowCounters<'a>,
    /// What time it is.
    pub now: Time,
    /// To what was found out about the frames.
    pub headers: &'a mut MaskedHeaders,
    /// To what they are looked up by.
    pub probes: &'a mut Probes,
    /// To what was found, for each packet.
    pub found: &'a mut [Found],
}

/// What was found of a batch.
#[derive(Clone, Copy)]
pub struct Mixed {
    /// The packets that are known.
    pub known: u32,
    /// Packets that have none of the templates, or one that the port has no pattern for: each is to be looked at by
    /// itself.
    pub unusual: u32,
    /// All are known, and the same is to be done with them.
    pub uniform: bool,
}

/// Looks at the headers of a batch, looks for its packets, and counts those that are known for their flows.
#[inline(always)]
pub fn find<S: Simd>(simd: S, work: MixedBatch<'_>, recent: &mut RunHistory) -> Mixed {
    if recent.several_patterns > 0 {
        recent.several_patterns -= 1;
    } else if let Some(expected) = ExpectedPattern::of_line(simd, work.plan, &recent.line) {
        let (view, headers, probes) = (work.cache.view(simd), &mut *work.headers, &mut *work.probes);
        let (are_alike, cores) = match expected.core_mask {
            Some(mask) => (
                expected.hash_lines::<S, true>(simd, view, work.packets, mask, headers, probes),
                all(work.packets.len()),
            ),
            None => (expected.hash_lines::<S, false>(simd, view, work.packets, [0; 2], headers, probes), 0),
        };
        if are_alike {
            // The borrows one by one: behind a reference to all of them, each write might change any of them.
            let MixedBatch { cache, headers, probes, found, flow_counters, now, .. } = work;
            return look_up::<S, true>(
                simd,
                cache,
                Lines { unusual: 0, cores },
                headers,
                probes,
                found,
                (flow_counters, now),
            );
        }
        recent.several_patterns = MIXED_PATTERN_BATCHES;
    }
    simd.apart(WithoutExpectedPattern { work, line: &mut recent.line })
}

/// What was found out about the headers of a batch.
#[derive(Clone, Copy)]
struct Lines {
    unusual: u32,
    /// Packets whose origin has a core.
    cores: u32,
}

/// A pattern that packets are likely to have.
#[derive(Clone, Copy)]
struct ExpectedPattern<R> {
    /// Where the line begins in the frame.
    at: usize,
    layout: Layout,
    mask: R,
    parse: R,
    salt: R,
    /// The line of a packet that has it.
    first: R,
    origin: Origin,
    /// What it leaves of the core, if its lines have one.
    core_mask: Option<Core>,
}

impl<R: Copy> ExpectedPattern<R> {
    /// The one that the packet of this line had, if it is still one of the plan's.
    #[inline(always)]
    fn of_line<S: Simd<Reg = R>>(simd: S, plan: &Plan, line: &Aligned) -> Option<ExpectedPattern<R>> {
        let origin = Origin::of(&line.0);
        let pattern = plan.pattern_of(origin)?;
        let core_mask = origin.core(&pattern.mask.0);
        let Pattern { mask, parse, salt, at, layout, .. } = pattern;
        Some(ExpectedPattern {
            at: *at as usize,
            layout: *layout,
            // Not in a closure, which would not be compiled for the level.
            mask: simd.load(&mask.0),
            parse: simd.load(&parse.0),
            salt: simd.load(&salt.0),
            first: simd.load(&line.0),
            origin,
            core_mask,
        })
    }

    /// Looks at the headers of a batch, and hashes them. Returns false, and nothing of use, if a packet has not the
    /// pattern. `CORE`: its lines have a core, of which the mask leaves this.
    #[inline(always)]
    fn hash_lines<S: Simd<Reg = R>, const CORE: bool>(
        &self,
        simd: S,
        view: CacheReader<'_, R>,
        packets: &[Packet],
        [a, b]: Core,
        headers: &mut MaskedHeaders,
        probes: &mut Probes,
    ) -> bool {
        let count = packets.len().min(BATCH_SIZE);
        for i in 0..count {
            if let Some(later) = packets.get(i + AHEAD) {
                prefetch(later.data().as_ptr());
            }
            let packet = &packets[i];
            let Some(bytes) = packet.line(self.at) else { return false };
            let line = simd.select(simd.load_bytes(bytes), self.mask, self.salt);
            if simd.differs(line, self.first, self.parse) {
                return false;
            }
            let Some(flags) = fitting::<false>(&self.layout, packet) else { return false };
            (headers.bytes[i], headers.flags[i]) = (packet.len() as u32, flags);
            simd.store(line, &mut headers.lines[i].0);
            probes.hashes[i] = if CORE {
                // From the frame: to read a part of what was just stored would take as long as to store it.
                let Some(core) = self.origin.core_in(bytes) else { return false };
                view.hash_core([core[0] & a, core[1] & b], self.origin)
            } else {
                view.hash_whole(simd, line)
            };
            view.prefetch_set(probes.hashes[i]);
        }
        headers.longest = longest(&headers.bytes[..count]);
        true
    }
}

fn longest(bytes: &[u32]) -> u32 {
    bytes.iter().fold(0, |longest, &bytes| longest.max(bytes))
}

/// [`find`] where nothing is known of the packets' patterns.
struct WithoutExpectedPattern<'a> {
    work: MixedBatch<'a>,
    /// To the line of the last one that has a pattern.
    line: &'a mut Aligned,
}

impl Leveled for WithoutExpectedPattern<'_> {
    type Output = Mixed;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Mixed {
        let MixedBatch { packets, plan, cache, flow_counters, now, headers, probes, found } = self.work;
        let lines = mask_and_hash(simd, plan, packets, cache.view(simd), headers, &mut probes.hashes);
        if let Some(last) = (all(packets.len()) & !lines.unusual).checked_ilog2() {
            *self.line = headers.lines[last as usize];
        }
        look_up::<S, false>(simd, cache, lines, headers, probes, found, (flow_counters, now))
    }
}

/// Looks at the headers of a batch, and hashes them.
#[inline(always)]
fn mask_and_hash<S: Simd>(
    simd: S,
    plan: &Plan,
    packets: &[Packet],
    view: CacheReader<'_, S::Reg>,
    headers: &mut MaskedHeaders,
    hashes: &mut [u64; BATCH_SIZE],
) -> Lines {
    let count = packets.len().min(BATCH_SIZE);
    let (mut unusual, mut cores) = (0u32, 0u32);
    for i in 0..count {
        if let Some(later) = packets.get(i + AHEAD) {
            prefetch(later.data().as_ptr());
        }
        let packet = &packets[i];
        headers.bytes[i] = packet.len() as u32;
        let pattern = Template::of(packet.data()).and_then(|template| plan.pattern(template));
        let Some((pattern, flags)) = pattern.and_then(|p| Some((p, fitting::<true>(&p.layout, packet)?))) else {
            cold_path();
            unusual |= 1 << i;
            // What is done with all lines must not see an older one.
            (headers.flags[i], headers.lines[i]) = (0, Aligned([0; 8]));
            continue;
        };
        let bytes = match packet.line(pattern.at as usize) {
            Some(bytes) => simd.load_bytes(bytes),
            None => simd.load_bytes(&copied(packet.data(), pattern.at as usize)),
        };
        let line = simd.select(bytes, simd.load(&pattern.mask.0), simd.load(&pattern.salt.0));
        simd.store(line, &mut headers.lines[i].0);
        headers.flags[i] = flags;
        cores |= u32::from(Origin::of(&pattern.salt.0).has_core()) << i;
    }
    headers.longest = longest(&headers.bytes[..count]);
    // 1. Hash all; ask for the sets.
    for i in bits(cores) {
        let line = &headers.lines[i].0;
        let origin = Origin::of(line);
        hashes[i] = view.hash_core(origin.core_at().of(line), origin);
        view.prefetch_set(hashes[i]);
    }
    for i in bits(all(count) & !cores) {
        hashes[i] = view.hash_whole(simd, simd.load(&headers.lines[i].0));
        view.prefetch_set(hashes[i]);
    }
    Lines { unusual, cores }
}

/// Looks for packets by their lines, which are hashed, and counts those that are found for their flows. `SAME_ORIGIN`: they
/// have the same origin.
#[inline(always)]
fn look_up<S: Simd, const SAME_ORIGIN: bool>(
    simd: S,
    cache: &HeaderCache,
    lines: Lines,
    headers: &MaskedHeaders,
    probes: &mut Probes,
    found: &mut [Found],
    (flow_counters, now): (FlowCounters<'_>, Time),
) -> Mixed {
    let Probes { hashes, at } = probes;
    let (view, Lines { unusual, cores }) = (cache.view(simd), lines);
    let count = found.len().min(BATCH_SIZE);
    let one = Origin::of(&headers.lines[0].0);
    // 2. Compare the tags; ask for the entries.
    for i in 0..count {
        at[i] = view.candidate(simd, hashes[i]);
        view.prefetch(at[i], if SAME_ORIGIN { cores != 0 } else { cores >> i & 1 != 0 });
    }
    // 3. Compare the lines; ask for the counters.
    let (mut other, core_at) = (0, one.core_at());
    let mut note = |at: &mut [u32; BATCH_SIZE], i: usize, (cached, same): (&CachedFlow, bool)| {
        if !same {
            cold_path();
            other |= 1 << i;
        }
        found[i] = cached.found;
        at[i] = cached.epoch;
        prefetch(flow_counters.of(cached.found.flow));
    };
    if SAME_ORIGIN && cores != 0 {
        for i in 0..count {
            note(at, i, view.read_core(at[i], core_at.of(&headers.lines[i].0), one));
        }
    } else if SAME_ORIGIN {
        for i in 0..count {
            note(at, i, view.read_whole(simd, at[i], &headers.lines[i].0));
        }
    } else {
        for i in bits(cores) {
            let line = &headers.lines[i].0;
            let origin = Origin::of(line);
            note(at, i, view.read_core(at[i], origin.core_at().of(line), origin));
        }
        for i in bits(all(count) & !cores) {
            note(at, i, view.read_whole(simd, at[i], &headers.lines[i].0));
        }
    }
    let mut none = unusual;
    for i in bits(other & !unusual) {
        match view.other(hashes[i], &headers.lines[i].0) {
            Some(cached) => (found[i], at[i]) = (cached.found, cached.epoch),
            None => none |= 1 << i,
        }
    }
    for i in bits(none) {
        // Another epoch than that of no flow, so that they count as stale.
        (found[i], at[i]) = (Found::MISS, !flow_counters.of(FlowRef::NONE).epoch());
    }
    // 4. Ask the flows whether that still holds, and count.
    let (mut stale, mut differ) = (0, 0);
    for i in 0..count {
        let counters = flow_counters.of(found[i].flow);
        if counters.epoch() != at[i] {
            stale |= 1 << i;
            continue;
        }
        flow_counters.add(found[i].flow, 1, headers.bytes[i], headers.flags[i], now);
        differ |= found[i].action.differs(found[0].action);
    }
    for i in bits(stale) {
        found[i] = Found::MISS;
    }
    Mixed { known: all(count) & !stale, unusual, uniform: stale == 0 && differ == 0 }
}
