//! Fused connections: the whole way of a packet of an established connection in one look-up.
//!
//! | step | function |
//! |---|---|
//! | packets whose entry of the header cache is fused take the short way: the connection is looked over, every flow of the way counts them, they are translated, and their result is that of the last pass | [`resolve`] |
//! | a packet that comes to the end of its way with a [`Trail`] leaves a fused connection for the next one | [`fuse`], [`fuse_ends`] |
//!
//! The short way does what the long way does, or nothing. What does not pass goes the long way: a segment that opens or
//! closes a connection, or lies outside of the windows, a wrong checksum, and whatever comes after a change of the
//! connection's state, mark or label.

use ::conntrack::nat::ShortTranslation;
use ::conntrack::table::Table;
use ::conntrack::table::remembered::{Deadlines, Moment, Place};
use packet::{BATCH_SIZE, Offload, Packet, Time};

use super::Conntrack;
use super::ends::Ends;
use super::stepped;
use super::trail::Trail;
use super::verify::{self, Expected};
use crate::actions::compact::CompactRewrite;
use crate::actions::program::Program;
use crate::actions::sample::Sampler;
use crate::classify::bits;
use crate::classify::cache::fused::{FlowAt, Fused, FusedKind, FusedTable, LATER, More, Translated, in_words};
use crate::classify::cache::headers::Found;
use crate::classify::cpu::simd::Simd;
use crate::classify::cpu::{Leveled, at_best};
use crate::classify::scan::MaskedHeaders;
use crate::classify::table::arena::{CompiledAction, FastAction, FastActionKind};
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::{Caches, prefetch};
use crate::pipeline::batch::BatchMeta;

/// Takes the packets of a batch the short way whose result is a fused connection, and gives those for which it is not the
/// result of their first flow. Afterwards, only packets have a fused connection as their result that are to go [in steps](super::stepped).
/// Returns the programs that packets have left to run.
#[inline(always)]
pub fn resolve<'t>(
    (conntrack, sampler): (&Conntrack, &mut Sampler),
    fused: &FusedTable,
    ends: &Ends<'t>,
    packets: &mut [Packet],
    meta: &mut BatchMeta,
    now: Time,
) -> ShortPrograms<'t> {
    at_best(Resolve { conntrack, sampler, fused, ends, packets, meta, now })
}

/// The programs that packets which took the short way have left to run: those of the flows that they have come to, as they were when they were found to need
/// nothing that only the long way knows. A flow may get another program in the meantime, which may need it.
pub struct ShortPrograms<'a> {
    /// Which packets have one.
    set: u32,
    programs: [Option<&'a Program>; BATCH_SIZE],
    /// Packets of which the program of their first flow is still to send copies, with nothing done to them yet.
    pub copied: Option<(u32, FlowRef, &'a Program)>,
}

impl<'a> ShortPrograms<'a> {
    const NONE: ShortPrograms<'static> = ShortPrograms { set: 0, programs: [None; BATCH_SIZE], copied: None };

    /// That of packet `i`.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<&'a Program> {
        if self.set >> i & 1 != 0 { self.programs[i] } else { None }
    }
}

/// The arguments of [`resolve`], which is compiled for each level of the processor: what is read of connections is many parts of
/// words, which take half of the instructions where shifts need no particular register.
struct Resolve<'a, 't> {
    conntrack: &'a Conntrack,
    sampler: &'a mut Sampler,
    fused: &'a FusedTable,
    ends: &'a Ends<'t>,
    packets: &'a mut [Packet],
    meta: &'a mut BatchMeta,
    now: Time,
}

impl<'t> Leveled for Resolve<'_, 't> {
    type Output = ShortPrograms<'t>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> ShortPrograms<'t> {
        let Resolve { conntrack, sampler, fused, ends, packets, meta, now } = self;
        let counters = ends.counters;
        let table = &conntrack.tracker.table;
        if !conntrack.is_fusing() {
            for i in bits(meta.starts()) {
                let action = &mut meta.found[i].action;
                if action.is_fused() {
                    *action = FastAction::PROGRAM;
                }
            }
            return ShortPrograms::NONE;
        }
        // 1. Prefetch the connections. What the entries lead to has been prefetched by the look-up.
        let (mut those, mut tcp, mut pushed, mut double) = (0u32, 0u32, 0u32, 0u32);
        let (mut stepped, mut sampled, mut copied) = (0u32, 0u32, 0u32);
        let mut connections = [fused.get(0); BATCH_SIZE];
        let mut places = [None; BATCH_SIZE];
        for i in bits(meta.starts()) {
            let Some(number) = meta.found[i].action.fused() else { continue };
            connections[i] = fused.get(number);
            places[i] = table.prefetch_slot(&connections[i].remembered);
            those |= 1 << i;
            tcp |= u32::from(connections[i].kind.is_tcp()) << i;
            double |= u32::from(connections[i].kind.is_double()) << i;
            stepped |= u32::from(connections[i].kind.is_in_steps()) << i;
            sampled |= u32::from(connections[i].kind.is_sampled()) << i;
            copied |= u32::from(connections[i].kind.is_copied()) << i;
            pushed |= u32::from(connections[i].action.is_any_program()) << i;
        }
        if those == 0 {
            return ShortPrograms::NONE;
        }
        if stepped != 0 {
            prefetch_ways(ends, fused, stepped, meta);
        }
        if pushed != 0 {
            ends.prefetch_pushes(pushed, &connections);
        }
        if double != 0 {
            prefetch_seconds(table, fused, double, meta);
        }
        // 2. Count the packets for the flows of the first pass, whichever way they go.
        let count = packets.len();
        for i in bits(those & !meta.counted()) {
            let (bytes, flags) = (meta.headers.bytes[i], meta.headers.flags[i]);
            counters.add(meta.found[i].flow, (meta.end_of_run(i, count) - i) as u16, bytes, flags, now);
        }
        // 3. Each packet of a run may go another way.
        let runs = those & !(meta.starts() >> 1 | 1 << (count - 1));
        for i in bits(runs) {
            let run = i..meta.end_of_run(i, count);
            meta.split_run(i, &packets[run.clone()]);
            for at in run {
                (connections[at], places[at]) = (connections[i], places[i]);
                those |= 1 << at;
                tcp |= (tcp >> i & 1) << at;
                double |= (double >> i & 1) << at;
                stepped |= (stepped >> i & 1) << at;
                sampled |= (sampled >> i & 1) << at;
                copied |= (copied >> i & 1) << at;
            }
        }
        // Where one of them is a sample, all go their way in steps.
        let mut sampling = None;
        if sampled != 0 {
            let count = sampled.count_ones() as usize;
            sampling = ends.sampling_of(sampled, meta).filter(|sampling| sampler.takes_none(*sampling, count));
            stepped |= if sampling.is_none() { sampled } else { 0 };
        }
        let copying = if copied != 0 { ends.copying_of(copied, meta) } else { None };
        stepped |= if copying.is_none() { copied } else { 0 };
        // 4. Take the packets. Protocols one after the other, since each is read by other code.
        let connections = Connections { connections: &connections, places: &places, double };
        let mut work = ShortWay {
            table,
            fused,
            ends,
            liberal: conntrack.tracker.is_liberal(),
            now: Deadlines::new(Moment::of(now)),
            time: now,
            sum: Sum::NONE,
            grown: 0,
            long: 0,
            short: ShortPrograms::NONE,
        };
        let mut steps = 0;
        if stepped != 0 {
            steps = work.choose_steps(&connections, stepped, packets, meta);
        }
        let taken = those & !stepped;
        let (udp, tcp) = (taken & !tcp, taken & tcp);
        let passed = if pushed | double == 0 {
            work.take::<false, false>(&connections, udp, packets, meta)
                | work.take::<true, false>(&connections, tcp, packets, meta)
        } else {
            work.take::<false, true>(&connections, udp, packets, meta)
                | work.take::<true, true>(&connections, tcp, packets, meta)
        };
        work.flush(&meta.headers);
        meta.headers.longest += work.grown;
        if let Some(sampling) = sampling {
            sampler.pass(sampling, (passed & sampled).count_ones() as usize);
        }
        work.short.copied = copying.map(|(flow, program)| (passed & copied, flow, program));
        if steps != 0 && work.long != 0 {
            steps = bits(steps).filter(|&i| !connections.has_one_of(i, work.long)).fold(0, |set, i| set | 1 << i);
        }
        bits(those & !passed & !steps).for_each(|i| meta.found[i].action = FastAction::PROGRAM);
        meta.add_counted(those);
        work.short
    }
}

/// Prefetches what packets need that go their way in steps, up to four dependent loads away.
#[inline(never)]
fn prefetch_ways(ends: &Ends<'_>, fused: &FusedTable, those: u32, meta: &BatchMeta) {
    let numbers = || bits(those).filter_map(|i| meta.found[i].action.fused());
    let ways = || numbers().filter_map(|number| Some((number, fused.way(number)?)));
    for (_, way) in ways() {
        let start = std::ptr::from_ref(way).cast::<u8>();
        [0, 64].into_iter().for_each(|at| prefetch(start.wrapping_add(at)));
    }
    let (arena, mut last) = (&ends.table.arena, None);
    for (number, way) in ways() {
        if way.translated != [0; _]
            && let Some(translations) = fused.translations(number)
        {
            prefetch(translations);
        }
        // Mostly, all connections come to the same flows.
        if last != Some(way.flows) {
            last = Some(way.flows);
            way.flows().iter().for_each(|flow| arena.prefetch_header(flow.flow));
            way.flows().iter().for_each(|flow| prefetch(ends.counters.of(flow.flow)));
        }
    }
}

/// Prefetches the second connections of those packets, two dependent loads away.
#[inline(never)]
fn prefetch_seconds(table: &Table, fused: &FusedTable, those: u32, meta: &BatchMeta) {
    let numbers = || bits(those).filter_map(|i| meta.found[i].action.fused());
    numbers().for_each(|number| prefetch(fused.second(number)));
    numbers().for_each(|number| {
        table.prefetch_slot(fused.second(number));
    });
}

/// Translates a packet by the translation of its own that its connection has.
#[inline(never)]
fn translate(fused: &FusedTable, connection: &Fused, action: FastAction, packet: &mut Packet) {
    let Some(number) = action.fused() else { return };
    let place = verify::place(packet, connection.ip.into(), connection.transport.into(), connection.kind.is_tcp());
    fused.translation(number).apply(packet.data_mut(), &place);
}

/// The connections of those packets whose entries are fused, and where they are.
struct Connections<'a> {
    connections: &'a [&'a Fused; BATCH_SIZE],
    places: &'a [Option<Place<'a>>; BATCH_SIZE],
    /// Those packets that belong to a second connection, too.
    double: u32,
}

impl Connections<'_> {
    /// Whether one of these packets is of the same direction of a connection as packet `i`.
    #[cold]
    fn has_one_of(&self, i: usize, those: u32) -> bool {
        let own = &self.connections[i].remembered;
        bits(those).any(|other| self.connections[other].remembered == *own)
    }
}

/// Packets that are counted together: consecutive ones with the same later flows.
struct Sum {
    flows: [FlowAt; LATER],
    flows_in_words: [u64; LATER],
    packets: u32,
}

impl Sum {
    const NONE: Sum = Sum { flows: [FlowAt::NONE; LATER], flows_in_words: [0; LATER], packets: 0 };
}

/// What the short way needs.
struct ShortWay<'a, 't> {
    table: &'a Table,
    fused: &'a FusedTable,
    liberal: bool,
    ends: &'a Ends<'t>,
    now: Deadlines,
    time: Time,
    /// What is not counted yet.
    sum: Sum,
    /// By how many bytes a packet has grown at most.
    grown: u32,
    /// The packets that go the long way.
    long: u32,
    short: ShortPrograms<'t>,
}

impl Fused {
    /// The result of the last pass.
    #[inline(always)]
    fn result(&self) -> Found {
        Found { flow: self.later[0].flow, action: self.action }
    }
}

impl ShortWay<'_, '_> {
    /// Whether the flows of the way are what they were. Afterwards, the sum is for them.
    #[inline(always)]
    fn holds(&mut self, later: &[FlowAt; LATER], headers: &MaskedHeaders) -> bool {
        if self.sum.flows_in_words == in_words(later) {
            return true;
        }
        let holds = later.iter().all(|later| self.ends.counters.of(later.flow).epoch() == later.epoch);
        if holds {
            self.flush(headers);
            (self.sum.flows, self.sum.flows_in_words) = (*later, in_words(later));
        }
        holds
    }

    /// Counts the packets of the sum.
    #[inline(always)]
    fn flush(&mut self, headers: &MaskedHeaders) {
        let Sum { flows, packets, .. } = std::mem::replace(&mut self.sum, Sum::NONE);
        if packets == 0 {
            return;
        }
        let (bytes, flags) = headers.sums(packets);
        for later in flows.iter().filter(|later| later.flow != FlowRef::NONE) {
            self.ends.counters.add(later.flow, packets.count_ones() as u16, bytes, flags, self.time);
        }
    }

    /// Takes those packets the short way, all of TCP or all of UDP: verifies them, looks their connections over, counts them for the
    /// later flows, translates them, and gives them their result. Returns those that have passed; with the others, nothing
    /// was done. Packets must not overtake an earlier one of their connection that goes the long way. Only where there are `SPECIAL` packets,
    /// some have a second connection, or a program that is run in the end.
    #[inline(always)]
    fn take<const TCP: bool, const SPECIAL: bool>(
        &mut self,
        connections: &Connections<'_>,
        those: u32,
        packets: &mut [Packet],
        meta: &mut BatchMeta,
    ) -> u32 {
        let (mut passed, mut long) = (0u32, self.long);
        for i in bits(those) {
            let connection = connections.connections[i];
            let mut goes =
                (long == 0 || !connections.has_one_of(i, long)) && self.holds(&connection.later, &meta.headers);
            // A flow whose program has changed since may do something else than what is done here.
            let mut push = None;
            if SPECIAL && connection.action.is_any_program() && goes {
                push = self.ends.push_of(connection).filter(|push| push.takes(&packets[i]));
                goes = push.is_some() || self.ends_by_program(i, connection);
            }
            let is_double = SPECIAL && connections.double >> i & 1 != 0;
            if is_double && goes {
                goes = self.second_passes::<TCP, false>(&packets[i], connection, meta.found[i].action);
            }
            // Not in closures, which would not be compiled for the processor's level.
            let passes = match connections.places[i] {
                Some(place) if goes && TCP => self.passes_tcp(&packets[i], place, connection),
                Some(place) if goes => {
                    verify::is_right_udp(&packets[i], connection.ip.into())
                        && self.table.pass_simple_at::<true>(place, &connection.remembered, &mut self.now)
                }
                _ => false,
            };
            // Where another thread has changed the second connection in the meantime, the first one has let the packet pass, and does once more.
            if !passes || is_double && !self.second_passes::<TCP, true>(&packets[i], connection, meta.found[i].action) {
                long |= 1 << i;
                continue;
            }
            passed |= 1 << i;
            self.sum.packets |= 1 << i;
            if connection.translated != Translated::No {
                self.translate::<TCP>(connection, meta.found[i].action, &mut packets[i]);
                meta.forget_key(i);
            }
            meta.found[i] = connection.result();
            if let Some(push) = push {
                push.apply(&mut packets[i..=i], &mut meta.keys[i], meta.vlan_limit);
                meta.found[i].action = FastAction::of(CompiledAction::Output(push.push.port()));
                self.grown = self.grown.max(push.growth());
            } else if SPECIAL && connection.action.is_any_program() {
                self.short.set |= 1 << i;
            }
        }
        self.long = long;
        passed
    }

    /// The packets that can go their way in steps, of those that may.
    #[inline(never)]
    fn choose_steps(&mut self, connections: &Connections<'_>, those: u32, packets: &[Packet], meta: &BatchMeta) -> u32 {
        let (mut chosen, mut held) = (0, None);
        for i in bits(those) {
            let Some(way) = meta.found[i].action.fused().and_then(|number| self.fused.way(number)) else {
                self.long |= 1 << i;
                continue;
            };
            let connection = connections.connections[i];
            if held != Some(way.flows) {
                held = way.holds(self.ends).then_some(way.flows);
            }
            let goes = (self.long == 0 || !connections.has_one_of(i, self.long))
                && held.is_some()
                && stepped::passes(self.table, (connection, way), &packets[i], self.liberal, &mut self.now);
            *if goes { &mut chosen } else { &mut self.long } |= 1 << i;
        }
        chosen
    }

    /// Whether the way of packet `i` ends with a program that can be run after the short way. Notes it.
    #[inline(never)]
    fn ends_by_program(&mut self, i: usize, connection: &Fused) -> bool {
        let program = match self.ends.last_action(connection) {
            Some(CompiledAction::Program(program)) if connection.action == FastAction::PROGRAM => program,
            _ => return false,
        };
        self.short.programs[i] = Some(program);
        program.is_plain_end()
    }

    /// Whether a packet is a right segment that passes. IPv6 has code of its own, so that what is read over IPv4 stays in registers.
    #[inline(always)]
    fn passes_tcp(&mut self, packet: &Packet, place: Place<'_>, connection: &Fused) -> bool {
        match verify::tcp_segment_over_ipv4(packet, connection.ip.into()) {
            Expected::Right(segment) => {
                self.table.pass_tcp_at::<true>(place, &connection.remembered, &segment, self.liberal, &mut self.now)
            }
            Expected::Wrong => false,
            Expected::Other => self.passes_tcp_over_ipv6(packet, place, connection),
        }
    }

    #[inline(never)]
    fn passes_tcp_over_ipv6(&mut self, packet: &Packet, place: Place<'_>, connection: &Fused) -> bool {
        verify::tcp_segment_over_ipv6(packet, connection.ip.into()).is_some_and(|segment| {
            self.table.pass_tcp_at::<true>(place, &connection.remembered, &segment, self.liberal, &mut self.now)
        })
    }

    /// Whether a packet passes for its second connection, whose entry has this action. Nothing is noted but if it `PASSES`. The packet was verified, or will be.
    #[inline(never)]
    fn second_passes<const TCP: bool, const PASSES: bool>(
        &mut self,
        packet: &Packet,
        connection: &Fused,
        action: FastAction,
    ) -> bool {
        let Some(number) = action.fused() else { return false };
        let second = self.fused.second(number);
        let Some(place) = self.table.prefetch_slot(second) else { return false };
        if !TCP {
            return self.table.pass_simple_at::<PASSES>(place, second, &mut self.now);
        }
        verify::tcp_segment(packet, connection.ip.into()).is_some_and(|segment| {
            self.table.pass_tcp_at::<PASSES>(place, second, &segment, self.liberal, &mut self.now)
        })
    }

    /// Translates a packet of a connection, whose entry has this action.
    #[inline(always)]
    fn translate<const TCP: bool>(&self, connection: &Fused, action: FastAction, packet: &mut Packet) {
        if connection.translated == Translated::Long {
            return translate(self.fused, connection, action, packet);
        }
        let partial = packet.offload().flags & Offload::NEEDS_CSUM != 0;
        let (ip, transport) = (connection.ip.into(), connection.transport.into());
        connection.translation.apply(packet.data_mut(), ip, transport, TCP, partial);
    }
}

/// Leaves a fused connection for the next packet of a trail that ends with this action; or with one that only the flows of the way know.
fn fuse(caches: &mut Caches, trail: &Trail, action: Option<FastAction>) {
    if !caches.headers.is_on() {
        return;
    }
    let line = (&trail.line.0, trail.hash);
    let (few, later) = (trail.tracked.few(), trail.later());
    // Copies are sent when packets have taken the short way, but for what a rewrite does in the end.
    let is_changed = few.is_none_or(|(.., translation)| translation.is_some())
        || action.is_none_or(|action| action.is_any_program());
    let action = action.filter(|_| !(trail.in_steps || trail.is_copied && is_changed));
    let (Some(action), Some((first, second, translation)), Some(later)) = (action, few, later) else {
        let fused = Fused {
            later: [FlowAt::NONE; LATER],
            remembered: trail.tracked.first(),
            translation: ShortTranslation::default(),
            action: FastAction::MISS,
            ip: trail.ip,
            transport: trail.transport,
            kind: FusedKind::in_steps(trail.is_tcp),
            translated: Translated::No,
        };
        let more = More { way: Some((&trail.way(), trail.tracked.translations())), ..More::default() };
        return caches.headers.insert_fused(line, trail.flows[0], &fused, more);
    };
    let short = translation.and_then(|translation| translation.short());
    let translated = match (translation, short) {
        (None, _) => Translated::No,
        (Some(_), Some(_)) => Translated::Short,
        (Some(_), None) => Translated::Long,
    };
    let mut kind = FusedKind::new(trail.is_tcp, second.is_some());
    if trail.is_sampled {
        kind = kind.with_samples();
    }
    if trail.is_copied {
        kind = kind.with_copies();
    }
    let fused = Fused {
        later,
        remembered: first,
        translation: short.unwrap_or_default(),
        action,
        ip: trail.ip,
        transport: trail.transport,
        kind,
        translated,
    };
    let translation = translation.filter(|_| translated == Translated::Long);
    let way = (trail.is_sampled || trail.is_copied).then(|| trail.way());
    let way = way.as_ref().map(|way| (way, trail.tracked.translations()));
    let more = More { translation, second: second.as_ref(), way };
    caches.headers.insert_fused(line, trail.flows[0], &fused, more);
}

/// The action that does what a trail has rewritten, and then this rewrite, which sends packets.
fn rewritten(caches: &mut Caches, trail: &Trail, last: &CompactRewrite) -> Option<FastAction> {
    let all = trail.rewrite.map_or(*last, |before| before.then(last));
    if all == CompactRewrite::to(last.port()) {
        return Some(FastAction::of(CompiledAction::Output(last.port())));
    }
    caches.rewrites.number(&all).map(FastAction::of_rewrite)
}

/// Leaves a fused connection for the next packet of a trail that ends with a program which tracks packets, and then sends or drops them.
pub fn fuse_behind(caches: &mut Caches, program: &Program, trail: &Trail) {
    let action = match program.rewrite() {
        _ if program.course().is_in_steps() => None,
        Some(rewrite) => rewritten(caches, trail, rewrite),
        // It puts packets into a tunnel, which is read of the flow of a later pass.
        None => (trail.passes > 1 && trail.rewrite.is_none()).then_some(FastAction::REST),
    };
    fuse(caches, trail, action);
}

/// The action that does what a trail has rewritten, and then another one.
fn behind(caches: &mut Caches, trail: &Trail, last: FastAction) -> Option<FastAction> {
    if trail.rewrite.is_none() {
        return Some(last);
    }
    match last.kind() {
        FastActionKind::Output(port) => rewritten(caches, trail, &CompactRewrite::to(port)),
        FastActionKind::Drop(_) => Some(last),
        FastActionKind::Program => {
            let last = *caches.rewrites.rewrites().get(last.rewrite()? as usize)?;
            if last.copies().is_empty() { rewritten(caches, trail, &last) } else { None }
        }
        FastActionKind::Miss => None,
    }
}

/// Ends the trails of those packets of a batch whose flow only sends or drops them in the end, whatever it does to them before. To be called before anything is
/// done with the packets.
#[inline(never)]
pub fn fuse_ends(ends: &Ends<'_>, caches: &mut Caches, count: usize, meta: &BatchMeta) {
    let mut leader = 0;
    for i in 0..count {
        if meta.starts() >> i & 1 != 0 {
            leader = i;
        }
        let (Some(trail), found) = (meta.trails().get(i), meta.found[leader]) else { continue };
        if !found.has_flow() {
            continue;
        }
        // The action is read again after the epoch, since the flow may have changed in between.
        let Some(flow) = ends.flow_at(found.flow) else { continue };
        let Some(live) = ends.table.arena.live(found.flow, ends.guard) else { continue };
        if let (FastAction::PROGRAM, CompiledAction::Program(program)) = (found.action, live.action())
            && program.compact_push().is_none()
            && !program.is_plain_end()
        {
            continue;
        }
        if caches.fast_action(live.action()) == found.action
            && let Some(trail) = ends.goes_on(trail.clone(), meta.stage(), flow)
        {
            let action = behind(caches, &trail, found.action);
            fuse(caches, &trail, action);
        }
    }
}
