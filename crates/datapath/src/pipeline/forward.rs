//! A packet's way, in the order in which it happens. The numbers are those of the design.
//!
//! Everything here is on the fast path: no allocation, no lock, no system call, unless a packet misses. (A cache that has
//! grown gives memory back.)

use std::collections::VecDeque;

use packet::flow::extract::{Layers, extract};
use packet::{BATCH_SIZE, Batch, Key, Packet};

use crate::action::PortNo;
use crate::actions::execute::{Executor, Metadata, Recirculated, connection_hash};
use crate::actions::runs::{act_on_run, rewrite_runs};
use crate::classify::batch::{BatchMeta, Hits, LookupContext, all, classify, classify_keys, end_of_run};
use crate::classify::cpu::level::{Leveled, at_best};
use crate::classify::cpu::simd::Simd;
use crate::classify::{FastAction, FastActionKind, FlowRef, Found, bits};
use crate::drop::DropReason;
use crate::pipeline::passes::{MAX_WAITING, Pass};
use crate::worker::Worker;

/// Recirculated packets that are handled in one go, before other ports have their turn: more than a batch becomes that does
/// not multiply.
pub const SLICE: u64 = 8 * BATCH_SIZE as u64;

/// A batch, and what is found out about it: metadata lies in arrays beside the frames.
pub struct Frames {
    /// The frames.
    pub packets: Batch,
    /// What is known about them.
    pub meta: BatchMeta,
    /// Times that they were recirculated.
    pub depths: [u8; BATCH_SIZE],
    /// The shares of those that were (`passes.rs`).
    pub shares: [u16; BATCH_SIZE],
}

impl Frames {
    /// An empty batch.
    pub fn new() -> Frames {
        Frames { packets: Batch::new(), meta: BatchMeta::default(), depths: [0; BATCH_SIZE], shares: [0; BATCH_SIZE] }
    }
}

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

impl Worker {
    /// Polls one receive queue once and takes what it has all the way. Returns how many packets.
    pub fn forward(&mut self, queue: usize) -> usize {
        at_best(Poll { worker: self, queue })
    }

    #[inline(always)]
    fn poll<S: Simd>(&mut self, simd: S, queue: usize) -> usize {
        let Worker { number, reader, table, caches, rx, frames, executor, .. } = self;
        let rx = &mut rx[queue];

        // 1. Receive.
        let received = rx.queue.receive(&mut frames.packets, executor.now);
        if received == 0 {
            return 0;
        }
        executor.counters.received.add(received as u64);
        if !rx.port.is_up() {
            executor.outputs.drop_all(&mut frames.packets, DropReason::InPortDown, rx.port.no);
            return received;
        }

        table.arena.flow_counters(*number).turn(executor.now);

        // 2. Ingress hook: sits here, between the raw frame and anything that parses it.

        // 3. and 4. Extract and classify. What is not needed of a key is not extracted.
        let in_port = rx.port.no;
        let guard = reader.pin();
        frames.depths[..received].fill(0);
        match table.list(in_port, guard) {
            Some(list) => {
                let Frames { packets, meta, .. } = frames;
                // What is still up there must not be overtaken: then, what is known of a packet is not yet what is done.
                let count_at = (!executor.misses.has_outstanding(in_port)).then_some(executor.now);
                let at = LookupContext { in_port, list, table, worker: *number, guard, count_at };
                let hits = classify(simd, at, packets, caches, meta, &mut rx.recent);
                count(executor, hits);
            }
            None => {
                frames.meta.extracted = 0;
                (frames.meta.counted, frames.meta.alike, frames.meta.divided) = (0, false, false);
                frames.meta.starts = all(received);
                frames.meta.found[..received].fill(Found::MISS);
            }
        }

        // 5. and 6.
        self.act(in_port);
        if !self.executor.recirculated.is_empty() {
            self.recirculate_slice(received);
        }

        // 7. Output.
        self.executor.outputs.end_of_batch(self.executor.now);
        received
    }

    /// Stages 5 and 6 for packets of one input port that are classified.
    #[inline(always)]
    fn act(&mut self, in_port: PortNo) {
        let Worker { number, reader, table, frames, executor, .. } = self;
        let guard = reader.pin();
        let Frames { packets, meta, depths, shares } = frames;
        let pass = |i: usize| match depths[i] {
            0 => Pass::FIRST,
            depth => Pass { depth, share: shares[i] },
        };
        let count = packets.len();
        // What is still up there must not be overtaken (see `miss.rs`), nor what goes up before others of its batch.
        let mut waiting = 0;
        if meta.divided || executor.misses.has_outstanding(in_port) {
            waiting = hold_back(executor, packets, meta, in_port);
        }

        // 8. Account for what has a flow, each run at once, unless the look-up has done so.
        let flow_counters = table.arena.flow_counters(*number);
        let action = meta.found[0].action;
        let (mut alike, mut programs) = (true, meta.alike && action == FastAction::PROGRAM);
        if !meta.alike {
            for at in bits(meta.starts) {
                let found = meta.found[at];
                alike &= found.action == action;
                programs |= found.action == FastAction::PROGRAM;
                if found.flow != FlowRef::NONE && meta.counted >> at & 1 == 0 {
                    let run = end_of_run(meta.starts, at, count) - at;
                    let (bytes, flags) = (meta.headers.bytes[at], meta.headers.flags[at]);
                    flow_counters.add(found.flow, run as u16, bytes, flags, executor.now);
                }
            }
        }
        if programs {
            alike = rewrite_runs(table, guard, packets, meta, in_port);
        }
        // Most batches are handed over as they are.
        if alike {
            match meta.found[0].action.kind() {
                FastActionKind::Output(port) => {
                    let longest = meta.headers.longest;
                    return executor.outputs.push_batch(port, packets, longest, in_port, executor.now);
                }
                FastActionKind::Drop(reason) => return executor.outputs.drop_all(packets, reason, in_port),
                FastActionKind::Program | FastActionKind::Miss => {}
            }
        }

        let mut drain = packets.drain(..);
        let (mut at, mut again) = (0, 0);
        while at < count {
            let Found { flow, action } = meta.found[at];
            let run = at..end_of_run(meta.starts, at, count);
            let packets = drain.by_ref().take(run.len());
            at = run.end;
            match action.kind() {
                // 5. Miss.
                FastActionKind::Miss => packets.zip(run).for_each(|(packet, i)| {
                    meta.extract(i, &packet, in_port);
                    if waiting >> i & 1 != 0 {
                        let counted = meta.counted >> i & 1 != 0;
                        again += usize::from(wait(executor, packet, &meta.keys[i], pass(i), counted, again));
                    } else {
                        miss(executor, packet, &meta.keys[i], meta.layers[i], pass(i));
                    }
                }),
                // 6. Act.
                FastActionKind::Output(port) => executor.outputs.push_all(port, packets, in_port, executor.now),
                FastActionKind::Drop(reason) => {
                    packets.for_each(|packet| executor.outputs.drop(packet, reason, in_port))
                }
                FastActionKind::Program => {
                    let work = table.arena.action(flow, guard);
                    act_on_run(executor, work, meta, packets, run.start, pass(run.start), in_port);
                }
            }
        }
        drop(drain);
        executor.misses.notify();
    }

    /// Takes recirculated packets, which `received` packets of one port have become, through stages 4 to 6: all of them,
    /// or if they are a storm, a slice.
    #[inline(never)]
    fn recirculate_slice(&mut self, received: usize) {
        let done = self.recirculate_until(SLICE);
        // Packets that do not multiply are not more than that.
        self.storms += u64::from(done > received as u64 * u64::from(self.executor.max_depth));
    }

    /// Recirculates this many packets, or little more, and parks the others. Returns how many.
    fn recirculate_until(&mut self, limit: u64) -> u64 {
        let before = self.executor.counters.recirculated.get();
        loop {
            let done = self.executor.counters.recirculated.get() - before;
            if done >= limit || self.recirculate_some().is_none() {
                self.park();
                return done;
            }
        }
    }

    /// Leaves what is still to be recirculated for later turns, each port's for itself. As with the way up (`miss.rs`), a
    /// port may have half as many packets there as there is room for.
    #[cold]
    pub fn park(&mut self) {
        let Worker { executor, parked, .. } = self;
        let mut free = MAX_WAITING - parked.iter().map(|(_, packets)| packets.len()).sum::<usize>().min(MAX_WAITING);
        for recirculated in executor.recirculated.drain(..) {
            let in_port = recirculated.metadata.in_port();
            let at = parked.iter().position(|(port, _)| *port == in_port).unwrap_or_else(|| {
                parked.push((in_port, VecDeque::new()));
                parked.len() - 1
            });
            if parked[at].1.len() < free.div_ceil(2) {
                free -= 1;
                parked[at].1.push_back(recirculated);
            } else {
                executor.outputs.drop(recirculated.packet, DropReason::RecirculationStorm, in_port);
            }
        }
    }

    /// Goes on with a slice of what is parked of a port, if anything is.
    #[inline(never)]
    pub fn unpark(&mut self, in_port: PortNo) -> bool {
        let Some(at) = self.parked.iter().position(|(port, _)| *port == in_port) else { return false };
        self.executor.recirculated.append(&mut self.parked.swap_remove(at).1);
        self.recirculate_until(SLICE);
        self.executor.misses.notify();
        true
    }

    /// Takes all recirculated packets through stages 4 to 6, parked ones as well.
    pub fn recirculate(&mut self) {
        loop {
            while self.recirculate_some().is_some() {}
            let Some((_, mut packets)) = self.parked.pop() else { return };
            self.executor.recirculated.append(&mut packets);
        }
    }

    /// Takes those through that came in on ports which are not polled here any more.
    #[cold]
    pub fn recirculate_strays(&mut self) {
        let Worker { parked, rx, idle_queues, executor, .. } = self;
        // Those of a port that is only idle wait for its turns.
        for (port, _) in parked.iter() {
            if !rx.iter().any(|rx| rx.port.no == *port) {
                idle_queues.recall(*port, rx, executor.now);
            }
        }
        let strays = parked.extract_if(.., |(port, _)| !rx.iter().any(|rx| rx.port.no == *port)).collect::<Vec<_>>();
        for (_, mut packets) in strays {
            self.executor.recirculated.append(&mut packets);
            while self.recirculate_some().is_some() {}
        }
        self.executor.misses.notify();
    }

    /// As [`recirculate`](Worker::recirculate), with one batch. Returns the input port that its packets have come in on.
    #[inline(never)]
    pub fn recirculate_some(&mut self) -> Option<PortNo> {
        let in_port = self.executor.recirculated.front()?.metadata.in_port();
        let Worker { number, reader, table, caches, frames, executor, .. } = self;
        let Frames { packets, meta, depths, shares } = frames;
        (meta.headers.longest, meta.counted) = (0, 0);
        while !packets.is_full()
            && let Some(next) = executor.recirculated.pop_front_if(|r| r.metadata.in_port() == in_port)
        {
            let i = packets.len();
            next.metadata.start(&mut meta.keys[i]);
            meta.layers[i] = extract(next.packet.data(), &mut meta.keys[i], meta.vlan_limit);
            meta.headers.bytes[i] = next.packet.len() as u32;
            meta.headers.longest = meta.headers.longest.max(meta.headers.bytes[i]);
            meta.headers.flags[i] = meta.keys[i].common().tcp_flags.get();
            meta.counted |= u32::from(next.counted) << i;
            (depths[i], shares[i]) = (next.pass.depth, next.pass.share);
            packets.push(next.packet);
        }
        let received = packets.len();
        executor.counters.recirculated.add(received as u64);
        meta.extracted = all(received);
        (meta.alike, meta.divided) = (false, false);
        meta.starts = all(received);
        meta.found[..received].fill(Found::MISS);
        let guard = reader.pin();
        if let Some(list) = table.list(in_port, guard) {
            let at = LookupContext { in_port, list, table, worker: *number, guard, count_at: None };
            count(executor, classify_keys(at, received, &mut caches.exact, meta));
        }
        self.act(in_port);
        Some(in_port)
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

/// Finds the packets that have to wait for others of their connection, which are up or go up before them. Nothing but
/// counting has been done by their flows. All keys are extracted, and each packet is a run.
#[inline(never)]
fn hold_back(executor: &Executor, packets: &[Packet], meta: &mut BatchMeta, in_port: PortNo) -> u32 {
    for (i, packet) in packets.iter().enumerate() {
        meta.extract(i, packet, in_port);
    }
    meta.split_runs(packets);
    // The connections in this batch that later packets may not overtake, and whether any of theirs waits.
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

/// Lets a packet wait for others of its connection that are up. It is classified again when they are through; and at once,
/// behind the `again` packets of its batch before it that are, where there was no room for those. Returns whether that is so.
#[cold]
fn wait(executor: &mut Executor, packet: Packet, key: &Key, pass: Pass, counted: bool, again: usize) -> bool {
    let in_port = crate::upcall::in_port(key);
    let connection = connection_hash(&executor.hasher, key);
    let recirculated = Recirculated { packet, metadata: Metadata::of(key), pass, counted };
    let is_up = executor.misses.has_to_wait(connection, true);
    if !is_up {
        // Before those that came later.
        executor.recirculated.insert(again, recirculated);
    } else if executor.misses.has_room(in_port) {
        executor.misses.wait(connection, recirculated);
    } else {
        executor.counters.lost.add(1);
        executor.outputs.drop(recirculated.packet, DropReason::UpcallQueueFull, in_port);
    }
    !is_up
}

/// Sends a packet up. The fast path ends here.
#[cold]
pub fn miss(executor: &mut Executor, packet: Packet, key: &Key, layers: Layers, pass: Pass) {
    executor.misses.missed += 1;
    if !executor.misses.has_room(crate::upcall::in_port(key)) {
        executor.counters.lost.add(1);
        return executor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
    let hash = executor.hasher.hash_key(key);
    let connection = connection_hash(&executor.hasher, key);
    if let Err(packet) = executor.misses.miss(packet, key, layers, hash, pass, connection) {
        executor.counters.lost.add(1);
        executor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packet::{Field, Mask, Time};
    use ports::registry::{Env, PortSpec, open};

    use super::*;
    use crate::action::Action;
    use crate::classify::table::flow_counters::WRITES;
    use crate::config::Config;
    use crate::datapath::Datapath;
    use crate::sync::clock::ManualClock;
    use crate::upcall::FlowSpec;

    /// Packets of one flow that follow each other leave one line of statistics, whatever is done with them.
    #[test]
    fn a_run_is_counted_once() {
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
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
            // Found in the megaflows, then in the cache.
            for _ in 0..3 {
                WRITES.with(|work| work.added.set(0));
                assert_eq!(dp.poll(), BATCH_SIZE);
                assert_eq!(WRITES.with(|work| work.added.get()), 1);
            }
            assert_eq!(dp.remove(id).unwrap().stats.packets, 3 * BATCH_SIZE as u64);
        }
    }
}
