//! Batches whose packets are of many flows: every packet is a run of its own.
//!
//! [`scan`](super::scan()) looks for runs, and look-up and counting go from run to run. Where there are hardly any, that is
//! in vain. Here, each step is done with all packets of the batch, one after the other, with nothing between; what is
//! found is the same.

use std::hint::cold_path;

use packet::flow::template::Layout;
use packet::{BATCH_SIZE, Packet, Time};

use super::arena::FlowRef;
use super::batch::all;
use super::headers::{Found, HeaderCache, Probes, View};
use super::plan::{Aligned, Core, Origin, Pattern, Plan};
use super::scan::{AHEAD, Heads, fitting, pattern_of};
use super::simd::{Line, Simd};
use super::tally::Tally;
use super::{bits, prefetch};

/// What the last batches of a receive queue were like.
pub struct Recent {
    /// So many batches are taken to be mixed.
    pub mixed: u8,
    /// The line of a packet of the last mixed batch: others are likely to have its pattern.
    line: Aligned,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { mixed: 0, line: Aligned([0; 8]) }
    }
}

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
struct Likely<R> {
    /// Where the line begins in the frame.
    at: usize,
    layout: Layout,
    mask: R,
    parse: R,
    salt: R,
    /// The line of the first packet that had it.
    first: R,
    origin: Origin,
    core_mask: Option<Core>,
}

impl<R: Copy> Likely<R> {
    /// One that no packet has.
    #[inline(always)]
    fn never<S: Simd<Reg = R>>(simd: S) -> Likely<R> {
        Likely::new(simd, &Pattern::NEVER, simd.load(&[0; 8]))
    }

    /// The one that the packet of this line had, if it is still one of the plan's.
    #[inline(always)]
    fn again<S: Simd<Reg = R>>(simd: S, plan: &Plan, line: &Line) -> Option<Likely<R>> {
        let pattern = plan.pattern_of(Origin::of(line))?;
        Some(Likely::new(simd, pattern, simd.load(line)))
    }

    /// That of packets that equal this line in what makes them ones of the template.
    #[inline(always)]
    fn new<S: Simd<Reg = R>>(simd: S, pattern: &Pattern, first: R) -> Likely<R> {
        let [mask, parse, salt] = [&pattern.mask, &pattern.parse, &pattern.salt].map(|line| simd.load(&line.0));
        let origin = Origin::of(&pattern.salt.0);
        let core_mask = origin.core(&pattern.mask.0);
        Likely { at: pattern.at as usize, layout: pattern.layout, mask, parse, salt, first, origin, core_mask }
    }

    /// The bytes of a packet that has it, their line, and the TCP flags.
    #[inline(always)]
    fn line<'p, S: Simd<Reg = R>>(&self, simd: S, packet: &'p Packet) -> Option<(&'p [u8; 64], R, u16)> {
        let bytes = packet.line(self.at)?;
        let line = simd.select(simd.load_bytes(bytes), self.mask, self.salt);
        if simd.differs(line, self.first, self.parse) {
            return None;
        }
        Some((bytes, line, fitting(&self.layout, packet)?))
    }

    /// Hash of the line of these bytes. `CORE`: it has a core.
    #[inline(always)]
    fn hash<S: Simd<Reg = R>, const CORE: bool>(&self, simd: S, view: View<'_, R>, bytes: &[u8; 64], line: R) -> u64 {
        match (self.core_mask, self.origin.core_in(bytes)) {
            // From the frame: to read a part of what was just stored would take as long as to store it.
            (Some([a, b]), Some(core)) if CORE => view.hash_core([core[0] & a, core[1] & b], self.origin),
            _ => view.hash_whole(simd, line),
        }
    }

    /// Looks at packets, from number `i` on, as long as they have it. Returns the first one that has not.
    #[inline(always)]
    fn scan<S: Simd<Reg = R>, const CORE: bool>(
        &self,
        simd: S,
        view: View<'_, R>,
        packets: &[Packet],
        mut i: usize,
        heads: &mut Heads,
        hashes: &mut [u64; BATCH_SIZE],
    ) -> usize {
        while i < packets.len().min(BATCH_SIZE) {
            if let Some(later) = packets.get(i + AHEAD) {
                prefetch(later.data().as_ptr());
            }
            let Some((bytes, line, flags)) = self.line(simd, &packets[i]) else { break };
            (heads.bytes[i], heads.flags[i]) = (packets[i].len() as u32, flags);
            simd.store(line, &mut heads.lines[i].0);
            hashes[i] = self.hash::<S, CORE>(simd, view, bytes, line);
            view.prefetch_set(hashes[i]);
            i += 1;
        }
        i
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
    recent: &mut Recent,
) -> Lines {
    let view = cache.view(simd);
    let (hashes, count) = (&mut probes.hashes, packets.len().min(BATCH_SIZE));
    // Packets of two protocols may take turns.
    let mut second = Likely::never(simd);
    let mut likely = Likely::again(simd, plan, &recent.line.0).unwrap_or(second);
    let (mut others, mut odd) = (0, 0);
    let mut i = 0;
    loop {
        i = if likely.core_mask.is_some() {
            likely.scan::<S, true>(simd, view, packets, i, heads, hashes)
        } else {
            likely.scan::<S, false>(simd, view, packets, i, heads, hashes)
        };
        if i == count {
            break;
        }
        let (packet, mut copy) = (&packets[i], [0; 64]);
        let (bytes, line, flags);
        others |= 1u32 << i;
        (likely, second) = (second, likely);
        if let Some(found) = likely.line(simd, packet) {
            (bytes, line, flags) = found;
        } else if let Some((pattern, fitting)) = pattern_of(plan, packet, &mut copy) {
            // The one before is still likely.
            line = simd.select(simd.load_bytes(&copy), simd.load(&pattern.mask.0), simd.load(&pattern.salt.0));
            likely = Likely::new(simd, pattern, line);
            (bytes, flags) = (&copy, fitting);
        } else {
            (likely, second) = (second, likely);
            odd |= 1 << i;
            (heads.bytes[i], heads.flags[i]) = (packet.len() as u32, 0);
            i += 1;
            continue;
        }
        (heads.bytes[i], heads.flags[i]) = (packet.len() as u32, flags);
        simd.store(line, &mut heads.lines[i].0);
        hashes[i] = likely.hash::<S, true>(simd, view, bytes, line);
        view.prefetch_set(hashes[i]);
        i += 1;
    }
    heads.longest = heads.bytes[..count].iter().fold(0, |longest, &bytes| longest.max(bytes));
    if others != 0 {
        simd.store(likely.first, &mut recent.line.0);
    }
    Lines { odd, alike: others & !1 == 0 && odd == 0 }
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
    let (mut other, core_at) = (0, one.core_at());
    for i in 0..count {
        let line = &heads.lines[i].0;
        let (fact, same) = if CORES {
            view.read_core(at[i], core_at.of(line), one)
        } else {
            view.read(simd, at[i], line, origin(line))
        };
        if !same {
            cold_path();
            other |= 1 << i;
        }
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
