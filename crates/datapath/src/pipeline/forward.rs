//! A packet's way through the stages, in order. The numbers are those of the table in `ARCHITECTURE.md`.
//!
//! Everything here is on the fast path: no allocation, no lock, no system call, except where a packet misses, and
//! where a cache that has grown gives its old memory back.

use packet::{BATCH_SIZE, Batch, Packet};

use crate::action::PortNo;
use crate::actions::execute::Executor;
use crate::actions::flow_hash::connection_hash;
use crate::actions::runs::{act_on_run, flood_of, rewrite_runs, send_copies};
use crate::classify::batch::{Hits, classify, classify_recirculated};
use crate::classify::bits;
use crate::classify::cache::headers::Found;
use crate::classify::cpu::simd::Simd;
use crate::classify::cpu::{Leveled, at_best};
use crate::classify::table::arena::FastActionKind;
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::table::megaflow::LookupContext;
use crate::classify::{Caches, CompiledAction, FastAction};
use crate::conntrack::ends::Ends;
use crate::conntrack::fused;
use crate::conntrack::stage::{self, TrackedRun};
use crate::conntrack::stepped::Steps;
use crate::drop::DropReason;
use crate::pipeline::batch::{BatchMeta, InFlight};
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::recirculation::{RecirculatedBatch, RecirculatedPacket};
use crate::sync::tsc;
use crate::worker::Worker;

/// One poll of a receive queue.
struct Poll<'a> {
    worker: &'a mut Worker,
    queue: usize,
}

impl Leveled for Poll<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        self.worker.poll(simd, self.queue)
    }
}

/// One pass of a recirculated batch.
struct RecirculatedRound<'a> {
    worker: &'a mut Worker,
}

impl Leveled for RecirculatedRound<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.worker.classify_recirculated(simd);
        self.worker.act();
    }
}

impl Worker {
    /// Polls one receive queue once and takes its packets through all stages. Returns how many packets were received.
    pub fn forward(&mut self, queue: usize) -> usize {
        at_best(Poll { worker: self, queue })
    }

    #[inline(always)]
    fn poll<S: Simd>(&mut self, simd: S, queue: usize) -> usize {
        let received = self.receive(queue);
        if received == 0 {
            return 0;
        }
        if self.in_flight.packets.is_empty() {
            return received;
        }
        self.classify(simd, queue);
        self.act();
        if !self.executor.recirculation.is_empty() {
            self.recirculate_slice(received);
        }
        // 7. Output: bursts that may not wait longer leave.
        self.executor.outputs.end_of_batch(self.executor.now);
        received
    }

    /// 1. Receive. Returns how many packets were received.
    #[inline(always)]
    fn receive(&mut self, queue: usize) -> usize {
        let Worker { rx, in_flight, executor, .. } = self;
        let (rx, packets) = (&mut rx[queue], &mut in_flight.packets);
        let received = rx.queue.receive(packets, executor.now);
        if received == 0 {
            return 0;
        }
        executor.counters.received.add(received as u64);
        if !rx.port.is_up() {
            executor.outputs.retire_batch(packets, DropReason::InPortDown, rx.port.no);
        } else if let Some(ingress) = &mut rx.ingress {
            ingress.apply(packets, &executor.outputs, rx.port.no, executor.now);
        }
        received
    }

    /// 2. Classify, for packets that a port has received. Extracts only those keys that the look-up needs.
    #[inline(always)]
    fn classify<S: Simd>(&mut self, simd: S, queue: usize) {
        let Worker { number, reader, table, caches, rx, in_flight, executor, .. } = self;
        let InFlight { packets, meta } = in_flight;
        let (rx, guard) = (&mut rx[queue], reader.pin());
        let in_port = rx.port.no;
        table.arena.flow_counters(*number).set_latest(executor.now);
        meta.begin(in_port);
        let Some(list) = table.list_of_port(in_port, guard) else { return meta.all_miss(packets.len()) };
        // While packets of the port have missed and are in the slow path, later ones of their connections may have to wait for them.
        // So the look-up must not count its packets as forwarded yet.
        let count_at = (!executor.misses.has_guarded(in_port)).then_some(executor.now);
        let at = LookupContext { list, table, worker: *number, guard, count_at };
        count(executor, classify(simd, at, packets, caches, meta, &mut rx.recent));
    }

    /// 2. Classify, for recirculated packets.
    #[inline(always)]
    fn classify_recirculated<S: Simd>(&mut self, simd: S) {
        let Worker { number, reader, table, caches, in_flight, executor, .. } = self;
        let InFlight { packets, meta } = in_flight;
        let guard = reader.pin();
        let Some(list) = table.list(meta.stage(), guard) else { return meta.all_miss(packets.len()) };
        let at = LookupContext { list, table, worker: *number, guard, count_at: None };
        count(executor, classify_recirculated(simd, at, packets, caches, meta));
    }

    /// 3 to 5 for classified packets: those without a flow go to the slow path; the others are counted, and their
    /// flow's actions are executed.
    #[inline(always)]
    fn act(&mut self) {
        let Worker { number, reader, table, caches, in_flight, executor, .. } = self;
        let guard = reader.pin();
        let InFlight { packets, meta } = in_flight;
        let (count, in_port, pass) = (packets.len(), meta.in_port(), meta.pass());
        // Packets must not overtake earlier ones of their connection that are in the slow path (see
        // `slowpath/reorder.rs`), nor earlier ones of their batch that go there now.
        let mut waiting = 0;
        if meta.is_partly_missed() || executor.misses.has_guarded(in_port) {
            waiting = hold_back(executor, packets, meta);
        }

        // Without a tap, this is one look in a batch.
        if executor.outputs.is_tapped() {
            show(executor, packets, meta);
        }

        // Of a million packets, one is verified later. Mostly, this is a comparison in a batch.
        if let Some(first) = executor.verify.next(count) {
            executor.verify.sample(first, packets, meta, executor.now);
        }

        // Established connections take the short way; others leave it to the next packet.
        let ends = Ends { table, counters: table.arena.flow_counters(*number), guard };
        let mut short = None;
        if meta.is_tracked() {
            let fused = caches.headers.fused();
            let Executor { conntrack, sampler, now, .. } = &mut *executor;
            short = Some(fused::resolve((conntrack, sampler), fused, &ends, packets, meta, *now));
        } else if meta.trails().set_of() != 0 {
            fused::fuse_ends(&ends, caches, count, meta);
        }

        if let Some((copied, flow, program)) = short.as_ref().and_then(|short| short.copied) {
            executor.outputs.at_flow = flow;
            for i in bits(copied) {
                send_copies(executor, program.early_copies(), std::slice::from_ref(&packets[i]), in_port);
            }
        }

        // 5. Account, before the packets are rewritten: each run is counted once for its flow, unless the look-up did
        //    so.
        let flow_counters = table.arena.flow_counters(*number);
        let first = meta.found[0];
        let (mut uniform, mut programs) = (true, meta.is_uniform() && first.is_program());
        if !meta.is_uniform() && meta.are_all_counted() {
            // The step that looks at all actions says whether they are the same.
            programs = true;
        } else if !meta.is_uniform() {
            for at in bits(meta.starts()) {
                let found = meta.found[at];
                uniform &= found.action == first.action;
                programs |= found.is_program();
                if found.has_flow() && !meta.is_counted(at) {
                    let run = meta.end_of_run(at, count) - at;
                    let (bytes, flags) = (meta.headers.bytes[at], meta.headers.flags[at]);
                    flow_counters.add(found.flow, run as u16, bytes, flags, executor.now);
                }
            }
        }
        if programs {
            let Executor { outputs, sampler, .. } = &mut *executor;
            uniform = rewrite_runs(table, &caches.rewrites, guard, packets, meta, outputs, sampler);
        }
        // The frequent case: all packets have the same action, and the batch is passed on as a whole.
        if uniform {
            let action = meta.found[0].action;
            match action.kind() {
                FastActionKind::Output(port) => {
                    let longest = meta.headers.longest;
                    return executor.outputs.push_batch(port, packets, longest, in_port, executor.now);
                }
                FastActionKind::Drop(reason) => return executor.outputs.retire_batch_shown(packets, reason, in_port),
                FastActionKind::Program => {
                    if let Some(rewrite) = flood_of(&caches.rewrites, action) {
                        send_copies(executor, rewrite.copies().iter().copied(), packets, in_port);
                        let longest = meta.headers.longest;
                        return executor.outputs.push_batch(rewrite.port(), packets, longest, in_port, executor.now);
                    }
                    let first = meta.found[0];
                    if action == FastAction::PROGRAM
                        && bits(meta.starts()).all(|at| meta.found[at] == first)
                        && let CompiledAction::Program(program) = table.arena.action(first.flow, guard)
                        && let Some(pop) = program.only_pops_tunnel()
                    {
                        return executor.pop_batch(pop, packets, in_port, pass.of(program));
                    }
                }
                FastActionKind::Miss => {}
            }
        }

        if programs && meta.is_tracked() {
            stage::prefetch(&executor.conntrack.tracker, table, guard, packets, meta);
        }
        let mut drain = packets.drain(..);
        let (mut at, mut again, mut refused, mut steps) = (0, None, Batch::new(), None);
        while at < count {
            let Found { flow, action } = meta.found[at];
            let mut run = at..meta.end_of_run(at, count);
            let is_followed = |end: usize| end < count && meta.found[end] == meta.found[at];
            if action == FastAction::PROGRAM && is_followed(run.end) {
                // Packets that leave a tunnel differ in nothing that this depends on.
                let only_pops = match table.arena.action(flow, guard) {
                    CompiledAction::Program(program) => program.only_pops_tunnel().is_some(),
                    _ => false,
                };
                while only_pops && is_followed(run.end) {
                    run.end = meta.end_of_run(run.end, count);
                }
            }
            let packets = drain.by_ref().take(run.len());
            at = run.end;
            // For taps; without one, this is less than to ask for it.
            executor.outputs.at_flow = flow;
            match action.kind() {
                // 3. Miss.
                FastActionKind::Miss => packets.zip(run).for_each(|(packet, i)| {
                    let waits = waiting >> i & 1 != 0;
                    if !waits && !executor.misses.has_room(in_port, &packet) {
                        return refused.push(packet);
                    }
                    meta.extract(i, &packet);
                    if waits {
                        wait(executor, packet, meta, i, &mut again);
                    } else {
                        let hash = executor.hasher.hash_key(&meta.keys[i]);
                        miss(executor, packet, meta, i, hash);
                    }
                }),
                // 4. Act.
                FastActionKind::Output(port) => executor.outputs.push_all(port, packets, in_port, executor.now),
                FastActionKind::Drop(reason) => executor.outputs.retire_shown(packets, reason, in_port),
                FastActionKind::Program if let Some(rewrite) = flood_of(&caches.rewrites, action) => {
                    for packet in packets {
                        let copies = rewrite.copies().iter().copied();
                        send_copies(executor, copies, std::slice::from_ref(&packet), in_port);
                        executor.outputs.push(rewrite.port(), packet, in_port, executor.now);
                    }
                }
                FastActionKind::Program
                    if let Some(program) = short.as_ref().and_then(|short| short.get(run.start)) =>
                {
                    act_on_run(executor, CompiledAction::Program(program), meta, packets, run.start, pass);
                }
                FastActionKind::Program if let Some(number) = action.fused() => {
                    let ends = || Ends { table, counters: flow_counters, guard };
                    let (i, steps) = (run.start, steps.get_or_insert_with(|| Steps::new(executor.now)));
                    for packet in packets {
                        let fused = (&ends(), caches.headers.fused());
                        if let Err(packet) = executor.go_in_steps(steps, fused, number, packet, (i, meta)) {
                            let packets = std::iter::once(packet);
                            act_by_program(executor, (ends(), flow, i), packets, caches, meta);
                        }
                    }
                }
                FastActionKind::Program => {
                    let ends = Ends { table, counters: flow_counters, guard };
                    act_by_program(executor, (ends, flow, run.start), packets, caches, meta);
                }
            }
        }
        drop(drain);
        if let Some(again) = again {
            executor.recirculation.put_first(again);
        }
        if !refused.is_empty() {
            refuse(executor, &mut refused, in_port);
        }
        executor.misses.notify();
    }

    /// 6. Recirculate: takes the first waiting batch through stages 2 to 5. Returns the input port of its packets.
    #[inline(never)]
    pub fn recirculate_batch(&mut self) -> Option<PortNo> {
        let Worker { in_flight: InFlight { packets, meta }, executor, .. } = self;
        let mut batch = executor.recirculation.pop()?;
        let in_port = batch.stage.in_port;
        debug_assert!(packets.is_empty());
        std::mem::swap(packets, &mut batch.packets);
        meta.begin_recirculated(&mut batch);
        executor.counters.recirculated.add(packets.len() as u64);
        executor.recirculation.reuse(batch);
        at_best(RecirculatedRound { worker: self });
        Some(in_port)
    }
}

/// Runs the program of a flow on a run of packets, the first of which has this index in its batch.
fn act_by_program(
    executor: &mut Executor,
    (ends, flow, first): (Ends<'_>, FlowRef, usize),
    packets: impl Iterator<Item = Packet>,
    caches: &mut Caches,
    meta: &mut BatchMeta,
) {
    let (pass, flow_at, action) = (meta.pass(), ends.flow_at(flow), ends.table.arena.action(flow, ends.guard));
    let has_trails = meta.trails().set_of() != 0;
    match action {
        CompiledAction::Program(program) if program.course().tracks() || has_trails && program.course().passes_on() => {
            let run = TrackedRun { program, ends, flow: flow_at, first };
            let (unestablished, since) = (executor.unestablished, tsc::cycles());
            executor.track_run(&run, packets, caches, meta, pass.of(program));
            if executor.unestablished != unestablished {
                let cycles = &mut executor.unestablished_cycles;
                *cycles = cycles.wrapping_add(tsc::cycles().wrapping_sub(since));
            }
        }
        compiled => act_on_run(executor, compiled, meta, packets, first, pass),
    }
}

#[inline(always)]
fn count(executor: &Executor, hits: Hits) {
    let counters = &executor.counters;
    counters.simple_hits.add(hits.simple.into());
    counters.exact_hits.add(hits.exact.into());
    counters.megaflow_hits.add(hits.megaflow.into());
    counters.subtables_visited.add(hits.visited.into());
}

/// Shows the packets of a batch to taps.
#[cold]
fn show(executor: &mut Executor, packets: &[Packet], meta: &mut BatchMeta) {
    if let Some((taps, now)) = executor.outputs.taps() {
        executor.outputs.at_flow = taps.show_classified(packets, meta, now);
    }
}

/// Returns the set of packets that have to wait: an earlier packet of their connection is in the slow path, or goes
/// there before them. Their result becomes a miss. So far their flows have only counted them. Afterwards each packet
/// is a run of its own, with an extracted key.
#[inline(never)]
fn hold_back(executor: &Executor, packets: &[Packet], meta: &mut BatchMeta) -> u32 {
    meta.split_runs(packets);
    // The connections of this batch that later packets must not overtake, and whether a packet of theirs waits.
    let (mut ahead, mut waits, mut count) = ([0; BATCH_SIZE], [false; BATCH_SIZE], 0);
    let mut waiting = 0;
    for i in 0..packets.len() {
        let (connection, found) = (connection_hash(&executor.hasher, &meta.keys[i]), &mut meta.found[i]);
        let has_flow = *found != Found::MISS;
        let known = ahead[..count].iter().position(|&other| other == connection);
        let has_to_wait =
            executor.misses.has_to_wait(connection, has_flow) || known.is_some_and(|at| has_flow || waits[at]);
        if has_to_wait {
            *found = Found::MISS;
            waiting |= 1 << i;
        }
        if has_to_wait || !has_flow {
            let at = known.unwrap_or(count);
            (ahead[at], waits[at]) = (connection, has_to_wait);
            count = count.max(at + 1);
        }
    }
    waiting
}

/// Lets a packet wait for earlier ones of its connection that are in the slow path. When they are back, it is
/// classified again.
///
/// If none of them is in the slow path, because there was no room for them, the packet joins `again`: with others of
/// its batch it is classified again at once, before all other waiting batches.
#[cold]
fn wait(
    executor: &mut Executor,
    packet: Packet,
    meta: &BatchMeta,
    i: usize,
    again: &mut Option<Box<RecirculatedBatch>>,
) {
    let (key, pass, counted) = (&meta.keys[i], meta.pass(), meta.is_counted(i));
    let connection = connection_hash(&executor.hasher, key);
    if !executor.misses.has_to_wait(connection, true) {
        // Before packets that were received later.
        let batch = again.get_or_insert_with(|| executor.recirculation.empty(meta.stage(), pass));
        batch.push(packet, key, counted);
        return;
    }
    let metadata = OwnMetadata::of(key, executor.misses.spare_keys());
    if let Err(packet) = executor.misses.wait(connection, RecirculatedPacket { packet, metadata, pass, counted }) {
        executor.counters.lost.add(1);
        executor.outputs.retire_one(packet, DropReason::UpcallQueueFull, meta.in_port());
    }
}

/// Drops packets that have missed and for which the slow path has no room.
#[cold]
fn refuse(executor: &mut Executor, packets: &mut Batch, in_port: PortNo) {
    executor.misses.missed += packets.len() as u64;
    executor.counters.lost.add(packets.len() as u64);
    executor.outputs.retire_batch(packets, DropReason::UpcallQueueFull, in_port);
}

/// Sends a packet to the slow path. The fast path ends here.
#[cold]
fn miss(executor: &mut Executor, packet: Packet, meta: &BatchMeta, i: usize, hash: u64) {
    let (key, layers, in_port, counted) = (&meta.keys[i], meta.layers[i], meta.in_port(), meta.is_counted(i));
    executor.misses.missed += 1;
    let connection = connection_hash(&executor.hasher, key);
    if let Err(packet) = executor.misses.miss(packet, key, layers, hash, meta.pass(), connection, counted) {
        executor.counters.lost.add(1);
        executor.outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packet::{Field, Key, Mask, Time};
    use ports::registry::{Env, PortSpec, open};

    use super::*;
    use crate::action::Action;
    use crate::classify::table::flow_counters::WRITES;
    use crate::config::Config;
    use crate::datapath::Datapath;
    use crate::sync::clock::ManualClock;
    use crate::upcall::FlowSpec;

    /// A run adds to the statistics of its flow once, whatever its action.
    #[test]
    fn a_run_is_counted_once() {
        let small = Config { max_workers: 1, max_flows: 100, exact_entries: 64, upcall_queue: 64, ..Config::default() };
        let config = if cfg!(miri) { small } else { Config::default() };
        let dp = Datapath::new(config, Arc::new(ManualClock::new(Time(1))));
        let port = |name, options: &[(&str, &str)]| {
            dp.add_port(open(&PortSpec::new(name, "null").with(options), &Env::default()).unwrap()).unwrap()
        };
        let (source, sink) = (port("source", &[("n_rxq", "1"), ("size", "128")]), port("sink", &[]));
        let [to_sink, push] = [Action::Output(sink), Action::PushVlan { tpid: 0x8100, tci: 0x1007 }];
        let mut key = Box::new(Key::new());
        key.set(Field::InPortOxm, source.0.into());
        for actions in [vec![], vec![to_sink.clone()], vec![push.clone(), to_sink.clone()], vec![to_sink.clone(), push]]
        {
            let mut mask = Box::new(Mask::wildcard());
            mask.set_exact(Field::InPortOxm);
            let spec = FlowSpec { key: key.clone(), mask, actions, tag: Arc::new(()) };
            let id = dp.install(spec).unwrap();
            // Found in the megaflow table, then in the cache.
            for _ in 0..3 {
                WRITES.with(|work| work.added.set(0));
                assert_eq!(dp.poll(), BATCH_SIZE);
                assert_eq!(WRITES.with(|work| work.added.get()), 1);
            }
            assert_eq!(dp.remove(id).unwrap().stats.packets, 3 * BATCH_SIZE as u64);
        }
    }
}
