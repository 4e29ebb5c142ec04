//! A packet's way, in the order in which it happens. The numbers are those of the design.
//!
//! Everything here is on the fast path: no allocation, no lock, no system call, unless a packet misses.

use packet::flow::Blocks;
use packet::flow::extract::{Layers, extract};
use packet::{BATCH_SIZE, Batch, Key};

use crate::act::{Actor, View, connection_hash};
use crate::action::PortNo;
use crate::classify::{FlowRef, Work, prefetch};
use crate::drop::DropReason;
use crate::worker::Worker;

/// How many packets ahead the frame's first line is asked for.
const AHEAD: usize = 4;

/// A batch, and what is found out about it: metadata lies in arrays beside the frames.
pub struct Frames {
    /// The frames.
    pub packets: Batch,
    /// Their keys.
    pub keys: Box<[Key]>,
    /// Where their headers are.
    pub layers: [Layers; BATCH_SIZE],
    /// Times that they were recirculated.
    pub depths: [u8; BATCH_SIZE],
    /// Their flows.
    flows: [FlowRef; BATCH_SIZE],
}

impl Frames {
    /// An empty batch.
    pub fn new() -> Frames {
        Frames {
            packets: Batch::new(),
            keys: vec![Key::new(); BATCH_SIZE].into(),
            layers: [Layers::EMPTY; BATCH_SIZE],
            depths: [0; BATCH_SIZE],
            flows: [FlowRef::NONE; BATCH_SIZE],
        }
    }
}

impl Worker {
    /// Polls one receive queue once and takes what it has all the way. Returns how many packets.
    pub fn forward(&mut self, queue: usize) -> usize {
        let Worker { rx, frames, actor, .. } = self;
        let rx = &mut rx[queue];

        // 1. Receive.
        let received = rx.queue.receive(&mut frames.packets, actor.now);
        if received == 0 {
            return 0;
        }
        actor.counters.received.add(received as u64);
        if !rx.port.is_up() {
            for packet in frames.packets.drain(..) {
                actor.outputs.drop(packet, DropReason::InPortDown, rx.port.no);
            }
            return received;
        }

        // 2. Ingress hook: sits here, between the raw frame and anything that parses it.

        // 3. Extract.
        let in_port = rx.port.no;
        for i in 0..received {
            if let Some(next) = frames.packets.get(i + AHEAD) {
                prefetch(next.data().as_ptr());
            }
            let key = &mut frames.keys[i];
            start_key(key, in_port);
            frames.layers[i] = extract(frames.packets[i].data(), key);
        }
        frames.depths[..received].fill(0);

        // 4. to 6.
        self.classify_and_act(in_port);
        self.recirculate();

        // 7. Output.
        self.actor.outputs.end_of_batch(self.actor.now);
        received
    }

    /// Stages 4 to 6 for packets of one input port whose keys are complete.
    fn classify_and_act(&mut self, in_port: PortNo) {
        let Worker { number, reader, table, exact, frames, actor, .. } = self;
        let guard = reader.pin();
        let count = frames.packets.len();
        let all = u32::MAX >> (BATCH_SIZE - count);
        frames.flows[..count].fill(FlowRef::NONE);

        // 4. Classify. Tier 0, the simple match, will come first here.
        if let Some(list) = table.list(in_port, guard) {
            let keys = &frames.keys[..count];
            let (found, exact_hits, visited) = if list.subtables.len() > 1 {
                // Tier 1: the exact-match cache, which asks tier 2 about what it does not know.
                exact.classify(keys, list, table, *number, guard)
            } else {
                // Tier 2: megaflows. With a single subtable, tier 1 could only repeat it.
                let mut found = [FlowRef::NONE; BATCH_SIZE];
                let (_, visited) = table.lookup(list, keys, all, &mut found, *number, guard);
                (found, 0, visited)
            };
            frames.flows = found;
            let hits = found[..count].iter().filter(|&&flow| flow != FlowRef::NONE).count() as u64;
            actor.counters.exact_hits.add(u64::from(exact_hits));
            actor.counters.megaflow_hits.add(hits - u64::from(exact_hits));
            actor.counters.subtables_visited.add(u64::from(visited));
            for &flow in &frames.flows[..count] {
                table.arena.prefetch_counters(flow, *number);
            }
        }
        // What is still up there must not be overtaken (see `miss.rs`).
        if actor.misses.has_outstanding(in_port) {
            for i in 0..count {
                if actor.misses.is_up(connection_hash(&actor.hasher, &frames.keys[i])) {
                    frames.flows[i] = FlowRef::NONE;
                }
            }
        }

        let Frames { packets, keys, layers, depths, flows, .. } = frames;
        let mut drain = packets.drain(..);
        let mut at = 0;
        while at < count {
            // Packets of the same flow that follow each other are one run.
            let flow = flows[at];
            let end = (at + 1..count).find(|&i| flows[i] != flow).unwrap_or(count);
            let run = drain.by_ref().take(end - at).zip(at..end);
            at = end;
            // A flow may have been removed since it was found.
            match table.arena.live(flow, guard) {
                // 5. Miss.
                None => run.for_each(|(packet, i)| {
                    miss(actor, packet, &keys[i], layers[i], depths[i]);
                }),
                // 6. Act. 8. Account.
                Some(live) => {
                    let (mut total, mut bytes, mut flags) = (0, 0, 0);
                    let mut count = |packet: &packet::Packet, key: &Key| {
                        total += 1;
                        bytes += packet.len() as u64;
                        flags |= key.common().tcp_flags.get();
                    };
                    match live.work() {
                        Work::Output(port) => run.for_each(|(packet, i)| {
                            count(&packet, &keys[i]);
                            actor.outputs.push(port, packet, in_port, actor.now);
                        }),
                        Work::Program(program) => run.for_each(|(packet, i)| {
                            count(&packet, &keys[i]);
                            actor.run(program, packet, &mut View::new(&mut keys[i], layers[i]), depths[i]);
                        }),
                    }
                    table.arena.counters(flow, *number).add(total, bytes, flags, actor.now);
                }
            }
        }
        drop(drain);
        actor.misses.ring();
    }

    /// Takes recirculated packets through stages 4 to 6 until none is left; each has a bounded number of
    /// passes.
    pub fn recirculate(&mut self) {
        while let Some(first) = self.actor.recirculated.front() {
            let in_port = first.metadata.in_port();
            let Worker { frames, actor, .. } = self;
            while !frames.packets.is_full()
                && let Some(next) = actor.recirculated.pop_front_if(|r| r.metadata.in_port() == in_port)
            {
                let i = frames.packets.len();
                next.metadata.start(&mut frames.keys[i]);
                frames.layers[i] = extract(next.packet.data(), &mut frames.keys[i]);
                frames.depths[i] = next.depth;
                frames.packets.push(next.packet);
            }
            actor.counters.recirculated.add(frames.packets.len() as u64);
            self.classify_and_act(in_port);
        }
    }
}

/// Starts the key of a packet that a port has received.
#[inline(always)]
pub fn start_key(key: &mut Key, in_port: PortNo) {
    if key.present() != Blocks::COMMON {
        key.reset();
    }
    let common = key.common_mut();
    common.in_port.set(in_port.0);
    common.recirc_id.set(0);
    common.packet_type.set(0);
    common.dp_hash.set(0);
    common.pkt_mark.set(0);
    common.skb_priority.set(0);
}

/// Sends a packet up. The fast path ends here.
#[cold]
fn miss(actor: &mut Actor, packet: packet::Packet, key: &Key, layers: Layers, depth: u8) {
    let hash = actor.hasher.hash_key(key);
    let connection = connection_hash(&actor.hasher, key);
    if let Err(packet) = actor.misses.miss(packet, key, layers, hash, depth, connection) {
        actor.counters.lost.add(1);
        actor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
}
