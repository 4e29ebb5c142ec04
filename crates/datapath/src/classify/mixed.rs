//! Mixed batches: their packets belong to many flows, and every packet is a run of its own.
//!
//! [`scan`](super::scan::scan) looks for runs, and look-up and counting go from run to run. Where there are hardly any
//! runs, that does not pay. Here, each step is done for all packets of the batch, one after the other. The results
//! are the same.
//!
//! Mostly, all packets have the pattern of the batch before. Then nothing of the pattern has to be read again from
//! packet to packet. Otherwise the pattern of each packet is looked up, without a branch that depends on it, because
//! packets of different protocols alternate unpredictably.

use std::hint::cold_path;

use packet::flow::outline::{Envelope, Outline};
use packet::flow::template::{Layout, Template};
use packet::{BATCH_SIZE, Packet, Time};

use super::plan::{Aligned, Core, Origin, Pattern, Plan};
use super::scan::{AHEAD, MaskedHeaders, copied, fits_with_flags, fitting};
use super::{bits, prefetch};
use crate::classify::cache::headers::{CacheReader, CachedFlow, Found, HeaderCache, Probes};
use crate::classify::cpu::Leveled;
use crate::classify::cpu::simd::Simd;
use crate::classify::table::flow_counters::FlowCounters;
use crate::classify::table::flow_ref::FlowRef;
use crate::pipeline::batch::{KeyExtractor, all, differences};

/// What the last batches of a receive queue were like, from which those of the next ones are predicted.
pub struct RunHistory {
    /// How many of the next batches are treated as mixed.
    pub mixed: u8,
    /// In how many of those the packets are expected to have different patterns.
    several_patterns: u8,
    /// The line of a packet of the last batch with different patterns. Packets of the next batches are expected to
    /// have its pattern.
    line: Aligned,
}

impl Default for RunHistory {
    fn default() -> RunHistory {
        RunHistory { mixed: 0, several_patterns: 0, line: Aligned([0; 8]) }
    }
}

/// How many batches are expected to have different patterns after one that had.
const MIXED_PATTERN_BATCHES: u8 = 63;

/// A batch, and everything that its look-up reads and writes.
pub struct MixedBatch<'a> {
    /// The packets.
    pub packets: &'a [Packet],
    /// The plan of their port.
    pub plan: &'a Plan,
    /// The worker's header cache.
    pub cache: &'a HeaderCache,
    /// The worker's counters.
    pub flow_counters: FlowCounters<'a>,
    /// The present time.
    pub now: Time,
    /// Extracts the keys of packets with unusual headers.
    pub extractor: KeyExtractor<'a>,
    /// Where masked headers, lengths and flags are written.
    pub headers: &'a mut MaskedHeaders,
    /// Where hashes and candidates are written.
    pub probes: &'a mut Probes,
    /// Where the result for each packet is written.
    pub found: &'a mut [Found],
}

/// The result for a batch.
#[derive(Clone, Copy)]
pub struct Mixed {
    /// Hits.
    pub known: u32,
    /// Packets without a line, which are looked up by their keys.
    pub unusual: u32,
    /// Whether all are hits with the same action.
    pub uniform: bool,
}

/// Masks the headers of a batch, looks the packets up, and counts the hits for their flows.
#[inline(always)]
pub fn find<S: Simd>(simd: S, work: MixedBatch<'_>, recent: &mut RunHistory) -> Mixed {
    if recent.several_patterns > 0 {
        recent.several_patterns -= 1;
    } else if let Some(expected) = ExpectedPattern::of_line(simd, work.plan, &recent.line)
        && expected.layout.tags <= work.extractor.vlan_limit().tags() as u32
    {
        let (view, headers, probes) = (work.cache.view(simd), &mut *work.headers, &mut *work.probes);
        let (have_pattern, cores) = match expected.core_mask {
            Some(mask) => (
                expected.hash_lines::<S, true>(simd, view, work.packets, mask, headers, probes),
                all(work.packets.len()),
            ),
            None => (expected.hash_lines::<S, false>(simd, view, work.packets, [0; 2], headers, probes), 0),
        };
        if have_pattern {
            // Each member is borrowed by itself: behind one reference to all of them, the compiler would assume that
            // each write may change any of them.
            let MixedBatch { plan, cache, headers, probes, found, flow_counters, now, .. } = work;
            return look_up::<S, true>(
                simd,
                cache,
                Lines { unusual: 0, cores },
                headers,
                probes,
                found,
                (flow_counters, now, plan.tracked.is_some()),
            );
        }
        recent.several_patterns = MIXED_PATTERN_BATCHES;
    }
    simd.apart(WithoutExpectedPattern { work, line: &mut recent.line })
}

/// What was found out about the lines of a batch: sets of packets.
#[derive(Clone, Copy)]
struct Lines {
    unusual: u32,
    /// Packets whose origin has a core.
    cores: u32,
}

/// The pattern that packets are expected to have.
#[derive(Clone, Copy)]
struct ExpectedPattern<R> {
    /// Where the line begins in the frame.
    at: usize,
    layout: Layout,
    mask: R,
    parse: R,
    salt: R,
    /// A line with this pattern.
    first: R,
    origin: Origin,
    /// The mask of the core, if its lines have one.
    core_mask: Option<Core>,
}

impl<R: Copy> ExpectedPattern<R> {
    /// The pattern of this line, if the plan still has it.
    #[inline(always)]
    fn of_line<S: Simd<Reg = R>>(simd: S, plan: &Plan, line: &Aligned) -> Option<ExpectedPattern<R>> {
        let origin = Origin::of(&line.0);
        let pattern = plan.pattern_of(origin)?;
        let core_mask = origin.core(&pattern.mask.0);
        let Pattern { mask, parse, salt, at, layout, .. } = pattern;
        Some(ExpectedPattern {
            at: *at as usize,
            layout: *layout,
            // Not in a closure, which would not be compiled for the processor's level.
            mask: simd.load(&mask.0),
            parse: simd.load(&parse.0),
            salt: simd.load(&salt.0),
            first: simd.load(&line.0),
            origin,
            core_mask,
        })
    }

    /// Masks and hashes the headers of a batch. Returns false, and no usable result, if a packet has another pattern.
    /// `CORE`: the lines have a core, of which `[a, b]` is the mask.
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
                // The core is read from the frame: to read a part of a line that was just stored would stall until
                // the store is complete.
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

/// [`find`] without an expected pattern.
struct WithoutExpectedPattern<'a> {
    work: MixedBatch<'a>,
    /// Where the line of the last packet with a pattern is written.
    line: &'a mut Aligned,
}

impl Leveled for WithoutExpectedPattern<'_> {
    type Output = Mixed;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Mixed {
        let MixedBatch { packets, plan, cache, flow_counters, now, extractor, headers, probes, found } = self.work;
        let (lines, last) =
            mask_and_hash(simd, plan, packets, cache.view(simd), extractor, headers, &mut probes.hashes);
        if let Some(last) = last {
            *self.line = headers.lines[last as usize];
        }
        look_up::<S, false>(simd, cache, lines, headers, probes, found, (flow_counters, now, plan.tracked.is_some()))
    }
}

/// Masks and hashes the headers of a batch. Also returns the number of the last packet with a pattern.
#[inline(always)]
fn mask_and_hash<S: Simd>(
    simd: S,
    plan: &Plan,
    packets: &[Packet],
    view: CacheReader<'_, S::Reg>,
    mut extractor: KeyExtractor<'_>,
    headers: &mut MaskedHeaders,
    hashes: &mut [u64; BATCH_SIZE],
) -> (Lines, Option<u32>) {
    let count = packets.len().min(BATCH_SIZE);
    let (mut unusual, mut cores) = (0u32, 0u32);
    for i in 0..count {
        if let Some(later) = packets.get(i + AHEAD) {
            prefetch(later.data().as_ptr());
        }
        let packet = &packets[i];
        headers.bytes[i] = packet.len() as u32;
        // Packets without a template go the same way as the others, with a pattern that they do not fit.
        let pattern = plan.pattern_or_none(Template::number_of(packet.data(), extractor.vlan_limit()));
        let (fits, flags) = fits_with_flags::<true>(&pattern.layout, packet);
        unusual |= u32::from(!fits) << i;
        let bytes = match packet.line(pattern.at as usize) {
            Some(bytes) => simd.load_bytes(bytes),
            None => simd.load_bytes(&copied(packet.data(), pattern.at as usize)),
        };
        let line = simd.select(bytes, simd.load(&pattern.mask.0), simd.load(&pattern.salt.0));
        simd.store(line, &mut headers.lines[i].0);
        headers.flags[i] = flags;
        cores |= u32::from(fits & Origin::of(&pattern.salt.0).has_core()) << i;
    }
    headers.longest = longest(&headers.bytes[..count]);
    let last = (all(count) & !unusual).checked_ilog2();
    if unusual != 0 && plan.has_lines_of_unusual() {
        unusual = lines_of_unusual(plan, packets, unusual, &mut extractor, headers);
    }
    // 1. Hash all lines; prefetch the sets.
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
    (Lines { unusual, cores }, last)
}

/// Makes the lines of packets with unusual headers, from their outlines or from their keys. Returns the set of those that
/// have none.
#[inline(always)]
pub fn lines_of_unusual(
    plan: &Plan,
    packets: &[Packet],
    unusual: u32,
    extractor: &mut KeyExtractor<'_>,
    headers: &mut MaskedHeaders,
) -> u32 {
    let vlan_limit = extractor.vlan_limit();
    let (mut v4, mut v6, mut envelopes) = (0, 0, [Envelope::NONE; BATCH_SIZE]);
    for i in bits(unusual) {
        let envelope = Envelope::of(packets[i].data(), vlan_limit).unwrap_or(Envelope::NONE);
        envelopes[i] = envelope;
        v4 |= u32::from(envelope.is_ipv4) << i;
        v6 |= u32::from(envelope.is_ipv6) << i;
    }
    // Protocols one after the other, since each is read by other code.
    let mut rest = unusual;
    for i in bits(v4) {
        let frame = packets[i].data();
        let is_made = line_of_outline(plan, i, frame, Outline::of_ipv4(frame, envelopes[i]), headers);
        rest &= !(u32::from(is_made) << i);
    }
    for i in bits(v6) {
        let frame = packets[i].data();
        let is_made = line_of_outline(plan, i, frame, Outline::of_ipv6(frame, envelopes[i]), headers);
        rest &= !(u32::from(is_made) << i);
    }
    if rest != 0 && plan.has_lines_of_keys() {
        rest = lines_of_keys(plan, packets, rest, extractor, headers);
    }
    rest
}

/// Makes the line of packet `i`, if its outline has one. No closure, which the compiler may take for too long to be compiled in place.
#[inline(always)]
fn line_of_outline(plan: &Plan, i: usize, frame: &[u8], outline: Option<Outline>, headers: &mut MaskedHeaders) -> bool {
    let Some(outline) = outline else { return false };
    headers.flags[i] = outline.tcp_flags;
    plan.write_line_of_outline(&outline, frame, &mut headers.lines[i].0)
}

/// As [`lines_of_unusual`], from their keys.
#[cold]
#[inline(never)]
fn lines_of_keys(
    plan: &Plan,
    packets: &[Packet],
    unusual: u32,
    extractor: &mut KeyExtractor<'_>,
    headers: &mut MaskedHeaders,
) -> u32 {
    let mut without = 0;
    for i in bits(unusual) {
        let key = extractor.extract_unusual(i, &packets[i]);
        headers.flags[i] = key.common().tcp_flags.get();
        match plan.line_of_key(key) {
            Some(line) => headers.lines[i] = line,
            None => without |= 1 << i,
        }
    }
    without
}

/// Looks packets up by their lines, which are hashed, and counts the hits for their flows. `SAME_ORIGIN`: all lines
/// have the same origin. `is_tracked`: entries may lead to fused connections.
#[inline(always)]
fn look_up<S: Simd, const SAME_ORIGIN: bool>(
    simd: S,
    cache: &HeaderCache,
    lines: Lines,
    headers: &MaskedHeaders,
    probes: &mut Probes,
    found: &mut [Found],
    (flow_counters, now, is_tracked): (FlowCounters<'_>, Time, bool),
) -> Mixed {
    let Probes { hashes, at } = probes;
    let (view, Lines { unusual, cores }) = (cache.view(simd), lines);
    let count = found.len().min(BATCH_SIZE);
    let one = Origin::of(&headers.lines[0].0);
    let has_core = |i: usize| if SAME_ORIGIN { cores != 0 } else { cores >> i & 1 != 0 };
    // 2. Compare the tags; prefetch the entries, and what they may lead to.
    for i in 0..count {
        at[i] = view.candidate(simd, hashes[i]);
        view.prefetch(at[i], has_core(i));
    }
    if is_tracked {
        for (i, &number) in at[..count].iter().enumerate() {
            cache.fused().prefetch(number, has_core(i));
        }
    }
    // 3. Compare the lines; prefetch the counters.
    let (mut other, core_at) = (0, one.core_at());
    let mut record = |at: &mut [u32; BATCH_SIZE], i: usize, (cached, same): (&CachedFlow, bool)| {
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
            record(at, i, view.read_core(at[i], core_at.of(&headers.lines[i].0), one));
        }
    } else if SAME_ORIGIN {
        for i in 0..count {
            record(at, i, view.read_whole(simd, at[i], &headers.lines[i].0));
        }
    } else {
        for i in bits(cores) {
            let line = &headers.lines[i].0;
            let origin = Origin::of(line);
            record(at, i, view.read_core(at[i], origin.core_at().of(line), origin));
        }
        for i in bits(all(count) & !cores) {
            record(at, i, view.read_whole(simd, at[i], &headers.lines[i].0));
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
        // An epoch that differs from that of `FlowRef::NONE`, so that the packet counts as stale.
        (found[i], at[i]) = (Found::MISS, !flow_counters.of(FlowRef::NONE).epoch());
    }
    // 4. Compare the epochs: count where the entry still holds. Mostly, all packets have the same flow, or all have others: of one
    //    flow, they are counted once.
    if let [first, .., last] = &found[..count]
        && first.flow == last.flow
        && let (0, actions_differ) = differences(&found[..count])
    {
        let flow = first.flow;
        let epoch = flow_counters.of(flow).epoch();
        if at[..count].iter().fold(0, |differ, at| differ | at ^ epoch) == 0 {
            let (bytes, flags) = headers.sums(all(count));
            flow_counters.add(flow, count as u16, bytes, flags, now);
            return Mixed { known: all(count), unusual, uniform: actions_differ == 0 };
        }
    }
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
