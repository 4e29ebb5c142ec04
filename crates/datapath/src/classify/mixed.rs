//! Batches whose packets are of many flows: every packet is a run of its own.
//!
//! [`scan`](super::scan()) looks for runs, and look-up and counting go from run to run. Where there are hardly any, that is
//! in vain. Here, each step is done with all packets of the batch, one after the other, with nothing between; what is
//! found is the same.

use packet::{BATCH_SIZE, Packet, Time};

use super::arena::FlowRef;
use super::batch::all;
use super::headers::{Found, HeaderCache, Probes};
use super::plan::{Core, Origin, Pattern, Plan};
use super::scan::{AHEAD, Heads, fitting, pattern_of};
use super::simd::{Line, Simd};
use super::tally::Tally;
use super::{bits, prefetch};

/// What was found out about the headers of a batch.
#[derive(Clone, Copy)]
pub struct Lines {
    /// Packets that have none of the templates, or one that the port has no pattern for: each is to be looked at by
    /// itself.
    pub odd: u32,
    /// All have the same pattern.
    pub alike: bool,
}

/// A pattern that packets are likely to have.
#[derive(Clone, Copy)]
struct Likely<'a, R> {
    pattern: &'a Pattern,
    mask: R,
    parse: R,
    salt: R,
    /// The line of the first packet that had it.
    first: R,
    origin: Origin,
    core_mask: Option<Core>,
}

impl<'a, R: Copy> Likely<'a, R> {
    /// One that no packet has.
    #[inline(always)]
    fn never<S: Simd<Reg = R>>(simd: S) -> Likely<'a, R> {
        Likely::new(simd, &Pattern::NEVER, &[0; 64])
    }

    #[inline(always)]
    fn new<S: Simd<Reg = R>>(simd: S, pattern: &'a Pattern, bytes: &[u8; 64]) -> Likely<'a, R> {
        let [mask, parse, salt] = [&pattern.mask, &pattern.parse, &pattern.salt].map(|line| simd.load(&line.0));
        let (first, origin) = (simd.select(simd.load_bytes(bytes), mask, salt), Origin::of(&pattern.salt.0));
        Likely { pattern, mask, parse, salt, first, origin, core_mask: origin.core(&pattern.mask.0) }
    }

    /// The line of a packet that has it, the bytes that it was made from, and the TCP flags.
    #[inline(always)]
    fn line<'p, S: Simd<Reg = R>>(&self, simd: S, packet: &'p Packet) -> Option<(R, &'p [u8; 64], u16)> {
        let bytes = packet.line(self.pattern.at as usize)?;
        let line = simd.select(simd.load_bytes(bytes), self.mask, self.salt);
        if simd.differs(line, self.first, self.parse) {
            return None;
        }
        Some((line, bytes, fitting(self.pattern, packet)?))
    }
}

/// Looks at the headers of a batch, and hashes them.
#[inline(always)]
pub fn scan<S: Simd>(
    simd: S,
    plan: &Plan,
    packets: &[Packet],
    cache: &HeaderCache,
    heads: &mut Heads,
    probes: &mut Probes,
) -> Lines {
    let view = cache.view(simd);
    // Packets of two protocols may take turns.
    let (mut likely, mut second) = (Likely::never(simd), Likely::never(simd));
    let (mut longest, mut patterns, mut odd) = (0, 0, 0);
    // In step, so that nothing is checked for its bounds.
    let Heads { lines, bytes: lengths, flags: all_flags, .. } = heads;
    let with_heads = packets.iter().zip(lines).zip(lengths).zip(all_flags);
    for (i, ((((packet, to), length), flags), hash)) in with_heads.zip(&mut probes.hashes).enumerate() {
        if let Some(later) = packets.get(i + AHEAD) {
            prefetch(later.data().as_ptr());
        }
        *length = packet.len() as u32;
        longest = longest.max(*length);
        let mut copy = [0; 64];
        let (line, bytes);
        if let Some(found) = likely.line(simd, packet) {
            (line, bytes, *flags) = found;
        } else if let Some(found) = second.line(simd, packet) {
            std::mem::swap(&mut likely, &mut second);
            (line, bytes, *flags) = found;
        } else if let Some((pattern, fitting)) = pattern_of(plan, packet, &mut copy) {
            (second, likely) = (likely, Likely::new(simd, pattern, &copy));
            patterns += 1;
            (line, bytes, *flags) = (likely.first, &copy, fitting);
        } else {
            odd |= 1 << i;
            *flags = 0;
            continue;
        }
        let Likely { origin, core_mask, .. } = likely;
        simd.store(line, &mut to.0);
        *hash = match (core_mask, origin.core_in(bytes)) {
            // From the frame: to read a part of what was just stored would take as long as to store it.
            (Some([a, b]), Some(core)) => view.hash_core([core[0] & a, core[1] & b], origin),
            _ => view.hash_whole(simd, line),
        };
        view.prefetch_tags(*hash);
    }
    heads.longest = longest;
    Lines { odd, alike: patterns == 1 && odd == 0 }
}

/// What was found of a batch.
#[derive(Clone, Copy)]
pub struct Mixed {
    /// The packets that are known.
    pub known: u32,
    /// All are, and the same is to be done with them.
    pub alike: bool,
}

/// Looks for packets by their lines, which are hashed, and counts those that are found for their flows. `CORES`: they
/// have the same pattern, whose origin has a core.
#[inline(always)]
pub fn find<S: Simd, const CORES: bool>(
    simd: S,
    cache: &HeaderCache,
    heads: &Heads,
    probes: &mut Probes,
    tally: Tally<'_>,
    now: Time,
    found: &mut [Found],
) -> Mixed {
    let Probes { hashes, at } = probes;
    let view = cache.view(simd);
    let count = found.len().min(BATCH_SIZE);
    let one = Origin::of(&heads.lines[0].0);
    let origin = |line: &Line| if CORES { one } else { Origin::of(line) };
    // 2. Compare the tags; ask for the entries.
    for i in 0..count {
        at[i] = view.candidate(simd, hashes[i]);
        view.prefetch(at[i], CORES || origin(&heads.lines[i].0).has_core());
    }
    // 3. Compare the lines; ask for the counters.
    let mut other = 0;
    for i in 0..count {
        let line = &heads.lines[i].0;
        let (fact, same) = view.read(simd, at[i], line, origin(line));
        other |= u32::from(!same) << i;
        found[i] = fact.found;
        at[i] = fact.epoch;
        prefetch(tally.of(fact.found.flow));
    }
    for i in bits(other) {
        match view.other(hashes[i], &heads.lines[i].0) {
            Some(fact) => (found[i], at[i]) = (fact.found, fact.epoch),
            None => (found[i], at[i]) = (Found::MISS, !tally.of(FlowRef::NONE).epoch()),
        }
    }
    // 4. Ask the flows whether that still holds, and count.
    let (mut stale, mut differ) = (0, 0);
    for i in 0..count {
        let counters = tally.of(found[i].flow);
        if counters.epoch() != at[i] {
            stale |= 1 << i;
            continue;
        }
        tally.add(found[i].flow, 1, heads.bytes[i], heads.flags[i], now);
        differ |= found[i].deed.differs(found[0].deed);
    }
    for i in bits(stale) {
        found[i] = Found::MISS;
    }
    Mixed { known: all(count) & !stale, alike: stale == 0 && differ == 0 }
}
