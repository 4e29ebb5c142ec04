//! A packet's way, in the order in which it happens. The numbers are those of the design.
//!
//! Everything here is on the fast path: no allocation, no lock, no system call, unless a packet misses. (A cache that has
//! grown gives memory back.)

use std::collections::VecDeque;

use packet::flow::extract::{Layers, extract};
use packet::{BATCH_SIZE, Batch, Key, Packet};

use crate::action::PortNo;
use crate::actions::execute::{Actor, Metadata, Recirculated, connection_hash};
use crate::actions::runs::{act_on_run, rewrite_runs};
use crate::classify::batch::{Hits, Notes, Place, all, classify, classify_keys, end_of_run};
use crate::classify::cpu::level::{Leveled, at_best};
use crate::classify::cpu::simd::Simd;
use crate::classify::{Deed, DeedKind, FlowRef, Found, bits};
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
    pub notes: Notes,
    /// Times that they were recirculated.
    pub depths: [u8; BATCH_SIZE],
    /// The shares of those that were (`passes.rs`).
    pub shares: [u16; BATCH_SIZE],
}

impl Frames {
    /// An empty batch.
    pub fn new() -> Frames {
        Frames { packets: Batch::new(), notes: Notes::default(), depths: [0; BATCH_SIZE], shares: [0; BATCH_SIZE] }
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
        let Worker { number, reader, table, caches, rx, frames, actor, .. } = self;
        let rx = &mut rx[queue];

        // 1. Receive.
        let received = rx.queue.receive(&mut frames.packets, actor.now);
        if received == 0 {
            return 0;
        }
        actor.counters.received.add(received as u64);
        if !rx.port.is_up() {
            actor.outputs.drop_all(&mut frames.packets, DropReason::InPortDown, rx.port.no);
            return received;
        }

        table.arena.tally(*number).turn(actor.now);

        // 2. Ingress hook: sits here, between the raw frame and anything that parses it.

        // 3. and 4. Extract and classify. What is not needed of a key is not extracted.
        let in_port = rx.port.no;
        let guard = reader.pin();
        frames.depths[..received].fill(0);
        match table.list(in_port, guard) {
            Some(list) => {
                let Frames { packets, notes, .. } = frames;
                // What is still up there must not be overtaken: then, what is known of a packet is not yet what is done.
                let count_at = (!actor.misses.has_outstanding(in_port)).then_some(actor.now);
                let at = Place { in_port, list, table, worker: *number, guard, count_at };
                let hits = classify(simd, at, packets, caches, notes, &mut rx.recent);
                count(actor, hits);
            }
            None => {
                frames.notes.extracted = 0;
                (frames.notes.counted, frames.notes.alike, frames.notes.divided) = (0, false, false);
                frames.notes.starts = all(received);
                frames.notes.found[..received].fill(Found::MISS);
            }
        }

        // 5. and 6.
        self.act(in_port);
        if !self.actor.recirculated.is_empty() {
            self.recirculate_slice(received);
        }

        // 7. Output.
        self.actor.outputs.end_of_batch(self.actor.now);
        received
    }

    /// Stages 5 and 6 for packets of one input port that are classified.
    #[inline(always)]
    fn act(&mut self, in_port: PortNo) {
        let Worker { number, reader, table, frames, actor, .. } = self;
        let guard = reader.pin();
        let Frames { packets, notes, depths, shares } = frames;
        let pass = |i: usize| match depths[i] {
            0 => Pass::FIRST,
            depth => Pass { depth, share: shares[i] },
        };
        let count = packets.len();
        // What is still up there must not be overtaken (see `miss.rs`), nor what goes up before others of its batch.
        let mut waiting = 0;
        if notes.divided || actor.misses.has_outstanding(in_port) {
            waiting = hold_back(actor, packets, notes, in_port);
        }

        // 8. Account for what has a flow, each run at once, unless the look-up has done so.
        let tally = table.arena.tally(*number);
        let deed = notes.found[0].deed;
        let (mut alike, mut programs) = (true, notes.alike && deed == Deed::PROGRAM);
        if !notes.alike {
            for at in bits(notes.starts) {
                let found = notes.found[at];
                alike &= found.deed == deed;
                programs |= found.deed == Deed::PROGRAM;
                if found.flow != FlowRef::NONE && notes.counted >> at & 1 == 0 {
                    let run = end_of_run(notes.starts, at, count) - at;
                    let (bytes, flags) = (notes.heads.bytes[at], notes.heads.flags[at]);
                    tally.add(found.flow, run as u16, bytes, flags, actor.now);
                }
            }
        }
        if programs {
            alike = rewrite_runs(table, guard, packets, notes, in_port);
        }
        // Most batches are handed over as they are.
        if alike {
            match notes.found[0].deed.kind() {
                DeedKind::Output(port) => {
                    let longest = notes.heads.longest;
                    return actor.outputs.push_batch(port, packets, longest, in_port, actor.now);
                }
                DeedKind::Drop(reason) => return actor.outputs.drop_all(packets, reason, in_port),
                DeedKind::Program | DeedKind::Miss => {}
            }
        }

        let mut drain = packets.drain(..);
        let (mut at, mut again) = (0, 0);
        while at < count {
            let Found { flow, deed } = notes.found[at];
            let run = at..end_of_run(notes.starts, at, count);
            let packets = drain.by_ref().take(run.len());
            at = run.end;
            match deed.kind() {
                // 5. Miss.
                DeedKind::Miss => packets.zip(run).for_each(|(packet, i)| {
                    notes.extract(i, &packet, in_port);
                    if waiting >> i & 1 != 0 {
                        let counted = notes.counted >> i & 1 != 0;
                        again += usize::from(wait(actor, packet, &notes.keys[i], pass(i), counted, again));
                    } else {
                        miss(actor, packet, &notes.keys[i], notes.layers[i], pass(i));
                    }
                }),
                // 6. Act.
                DeedKind::Output(port) => actor.outputs.push_all(port, packets, in_port, actor.now),
                DeedKind::Drop(reason) => packets.for_each(|packet| actor.outputs.drop(packet, reason, in_port)),
                DeedKind::Program => {
                    let work = table.arena.work(flow, guard);
                    act_on_run(actor, work, notes, packets, run.start, pass(run.start), in_port);
                }
            }
        }
        drop(drain);
        actor.misses.ring();
    }

    /// Takes recirculated packets, which `received` packets of one port have become, through stages 4 to 6: all of them,
    /// or if they are a storm, a slice.
    #[inline(never)]
    fn recirculate_slice(&mut self, received: usize) {
        let done = self.recirculate_until(SLICE);
        // Packets that do not multiply are not more than that.
        self.storms += u64::from(done > received as u64 * u64::from(self.actor.max_depth));
    }

    /// Recirculates this many packets, or little more, and parks the others. Returns how many.
    fn recirculate_until(&mut self, limit: u64) -> u64 {
        let before = self.actor.counters.recirculated.get();
        loop {
            let done = self.actor.counters.recirculated.get() - before;
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
        let Worker { actor, parked, .. } = self;
        let mut free = MAX_WAITING - parked.iter().map(|(_, packets)| packets.len()).sum::<usize>().min(MAX_WAITING);
        for recirculated in actor.recirculated.drain(..) {
            let in_port = recirculated.metadata.in_port();
            let at = parked.iter().position(|(port, _)| *port == in_port).unwrap_or_else(|| {
                parked.push((in_port, VecDeque::new()));
                parked.len() - 1
            });
            if parked[at].1.len() < free.div_ceil(2) {
                free -= 1;
                parked[at].1.push_back(recirculated);
            } else {
                actor.outputs.drop(recirculated.packet, DropReason::RecirculationStorm, in_port);
            }
        }
    }

    /// Goes on with a slice of what is parked of a port, if anything is.
    #[inline(never)]
    pub fn unpark(&mut self, in_port: PortNo) -> bool {
        let Some(at) = self.parked.iter().position(|(port, _)| *port == in_port) else { return false };
        self.actor.recirculated.append(&mut self.parked.swap_remove(at).1);
        self.recirculate_until(SLICE);
        self.actor.misses.ring();
        true
    }

    /// Takes all recirculated packets through stages 4 to 6, parked ones as well.
    pub fn recirculate(&mut self) {
        loop {
            while self.recirculate_some().is_some() {}
            let Some((_, mut packets)) = self.parked.pop() else { return };
            self.actor.recirculated.append(&mut packets);
        }
    }

    /// Takes those through that came in on ports which are not polled here any more.
    #[cold]
    pub fn recirculate_strays(&mut self) {
        let Worker { parked, rx, parking, actor, .. } = self;
        // Those of a port that is only idle wait for its turns.
        for (port, _) in parked.iter() {
            if !rx.iter().any(|rx| rx.port.no == *port) {
                parking.recall(*port, rx, actor.now);
            }
        }
        let strays = parked.extract_if(.., |(port, _)| !rx.iter().any(|rx| rx.port.no == *port)).collect::<Vec<_>>();
        for (_, mut packets) in strays {
            self.actor.recirculated.append(&mut packets);
            while self.recirculate_some().is_some() {}
        }
        self.actor.misses.ring();
    }

    /// As [`recirculate`](Worker::recirculate), with one batch. Returns the input port that its packets have come in on.
    #[inline(never)]
    pub fn recirculate_some(&mut self) -> Option<PortNo> {
        let in_port = self.actor.recirculated.front()?.metadata.in_port();
        let Worker { number, reader, table, caches, frames, actor, .. } = self;
        let Frames { packets, notes, depths, shares } = frames;
        (notes.heads.longest, notes.counted) = (0, 0);
        while !packets.is_full()
            && let Some(next) = actor.recirculated.pop_front_if(|r| r.metadata.in_port() == in_port)
        {
            let i = packets.len();
            next.metadata.start(&mut notes.keys[i]);
            notes.layers[i] = extract(next.packet.data(), &mut notes.keys[i], notes.vlan_limit);
            notes.heads.bytes[i] = next.packet.len() as u32;
            notes.heads.longest = notes.heads.longest.max(notes.heads.bytes[i]);
            notes.heads.flags[i] = notes.keys[i].common().tcp_flags.get();
            notes.counted |= u32::from(next.counted) << i;
            (depths[i], shares[i]) = (next.pass.depth, next.pass.share);
            packets.push(next.packet);
        }
        let received = packets.len();
        actor.counters.recirculated.add(received as u64);
        notes.extracted = all(received);
        (notes.alike, notes.divided) = (false, false);
        notes.starts = all(received);
        notes.found[..received].fill(Found::MISS);
        let guard = reader.pin();
        if let Some(list) = table.list(in_port, guard) {
            let at = Place { in_port, list, table, worker: *number, guard, count_at: None };
            count(actor, classify_keys(at, received, &mut caches.exact, notes));
        }
        self.act(in_port);
        Some(in_port)
    }
}

#[inline(always)]
fn count(actor: &Actor, hits: Hits) {
    let counters = &actor.counters;
    counters.simple_hits.add(hits.simple.into());
    counters.exact_hits.add(hits.exact.into());
    counters.megaflow_hits.add(hits.megaflow.into());
    counters.subtables_visited.add(hits.visited.into());
}

/// Finds the packets that have to wait for others of their connection, which are up or go up before them. Nothing but
/// counting has been done by their flows. All keys are extracted, and each packet is a run.
#[inline(never)]
fn hold_back(actor: &Actor, packets: &[Packet], notes: &mut Notes, in_port: PortNo) -> u32 {
    for (i, packet) in packets.iter().enumerate() {
        notes.extract(i, packet, in_port);
    }
    notes.split_runs(packets);
    // The connections in this batch that later packets may not overtake, and whether any of theirs waits.
    let (mut ahead, mut waits, mut count) = ([0; BATCH_SIZE], [false; BATCH_SIZE], 0);
    let mut waiting = 0;
    for i in 0..packets.len() {
        let (connection, found) = (connection_hash(&actor.hasher, &notes.keys[i]), &mut notes.found[i]);
        let has_flow = *found != Found::MISS;
        let known = ahead[..count].iter().position(|&other| other == connection);
        let has_to_wait =
            actor.misses.has_to_wait(connection, has_flow) || known.is_some_and(|at| has_flow || waits[at]);
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
fn wait(actor: &mut Actor, packet: Packet, key: &Key, pass: Pass, counted: bool, again: usize) -> bool {
    let in_port = crate::upcall::in_port(key);
    let connection = connection_hash(&actor.hasher, key);
    let recirculated = Recirculated { packet, metadata: Metadata::of(key), pass, counted };
    let is_up = actor.misses.has_to_wait(connection, true);
    if !is_up {
        // Before those that came later.
        actor.recirculated.insert(again, recirculated);
    } else if actor.misses.has_room(in_port) {
        actor.misses.wait(connection, recirculated);
    } else {
        actor.counters.lost.add(1);
        actor.outputs.drop(recirculated.packet, DropReason::UpcallQueueFull, in_port);
    }
    !is_up
}

/// Sends a packet up. The fast path ends here.
#[cold]
pub fn miss(actor: &mut Actor, packet: Packet, key: &Key, layers: Layers, pass: Pass) {
    actor.misses.missed += 1;
    if !actor.misses.has_room(crate::upcall::in_port(key)) {
        actor.counters.lost.add(1);
        return actor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
    let hash = actor.hasher.hash_key(key);
    let connection = connection_hash(&actor.hasher, key);
    if let Err(packet) = actor.misses.miss(packet, key, layers, hash, pass, connection) {
        actor.counters.lost.add(1);
        actor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packet::{Field, Mask, Time};
    use ports::registry::{Env, PortSpec, open};

    use super::*;
    use crate::action::Action;
    use crate::classify::table::flow_counters::WORK;
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
                WORK.with(|work| work.added.set(0));
                assert_eq!(dp.poll(), BATCH_SIZE);
                assert_eq!(WORK.with(|work| work.added.get()), 1);
            }
            assert_eq!(dp.remove(id).unwrap().stats.packets, 3 * BATCH_SIZE as u64);
        }
    }
}
