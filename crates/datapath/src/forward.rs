//! A packet's way, in the order in which it happens. The numbers are those of the design.
//!
//! Everything here is on the fast path: no allocation, no lock, no system call, unless a packet misses.

use packet::flow::Blocks;
use packet::flow::extract::{Layers, extract};
use packet::{BATCH_SIZE, Batch, Key};

use crate::act::{Actor, View, connection_hash};
use crate::action::PortNo;
use crate::classify::level::{Leveled, at_best};
use crate::classify::{FlowRef, Work, classify, prefetch};
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
    /// Their lengths in bytes.
    pub lengths: [u32; BATCH_SIZE],
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
            lengths: [0; BATCH_SIZE],
            depths: [0; BATCH_SIZE],
            flows: [FlowRef::NONE; BATCH_SIZE],
        }
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
    fn run(self) -> usize {
        self.worker.poll(self.queue)
    }
}

impl Worker {
    /// Polls one receive queue once and takes what it has all the way. Returns how many packets.
    pub fn forward(&mut self, queue: usize) -> usize {
        at_best(Poll { worker: self, queue })
    }

    #[inline(always)]
    fn poll(&mut self, queue: usize) -> usize {
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
            let frame = frames.packets[i].data();
            frames.lengths[i] = frame.len() as u32;
            frames.layers[i] = extract(frame, key);
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
    #[inline(always)]
    fn classify_and_act(&mut self, in_port: PortNo) {
        let Worker { number, reader, table, exact, frames, actor, .. } = self;
        let guard = reader.pin();
        let count = frames.packets.len();
        frames.flows[..count].fill(FlowRef::NONE);

        // 4. Classify. Tier 0, the simple match, will come first here.
        if let Some(list) = table.list(in_port, guard) {
            let classified = classify(&frames.keys[..count], list, table, exact, *number, guard);
            frames.flows = classified.flows;
            actor.counters.exact_hits.add(u64::from(classified.exact_hits));
            actor.counters.megaflow_hits.add(u64::from(classified.megaflow_hits));
            actor.counters.subtables_visited.add(u64::from(classified.subtables_visited));
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

        let Frames { packets, keys, layers, lengths, depths, flows } = frames;
        let mut drain = packets.drain(..);
        let mut at = 0;
        while at < count {
            // Packets of the same flow that follow each other are one run.
            let flow = flows[at];
            let mut end = at + 1;
            while end < count && flows[end] == flow {
                end += 1;
            }
            let run = at..end;
            let packets = drain.by_ref().take(run.len());
            at = end;
            // A flow may have been removed since it was found.
            match table.arena.live(flow, guard) {
                // 5. Miss.
                None => packets.zip(run).for_each(|(packet, i)| {
                    miss(actor, packet, &keys[i], layers[i], depths[i]);
                }),
                // 6. Act, and 8. account for it.
                Some(live) => {
                    let bytes = lengths[run.clone()].iter().map(|&n| u64::from(n)).sum();
                    let flags = keys[run.clone()].iter().fold(0, |flags, key| flags | key.common().tcp_flags.get());
                    table.arena.counters(flow, *number).add(run.len() as u64, bytes, flags, actor.now);
                    match live.work() {
                        Work::Output(port) => actor.outputs.push_all(port, packets, in_port, actor.now),
                        Work::Program(program) => packets.zip(run).for_each(|(packet, i)| {
                            actor.run(program, packet, &mut View::new(&mut keys[i], layers[i]), depths[i]);
                        }),
                    }
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
                frames.lengths[i] = next.packet.len() as u32;
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
    actor.misses.missed += 1;
    if !actor.misses.has_room(crate::upcall::in_port(key)) {
        actor.counters.lost.add(1);
        return actor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
    let hash = actor.hasher.hash_key(key);
    let connection = connection_hash(&actor.hasher, key);
    if let Err(packet) = actor.misses.miss(packet, key, layers, hash, depth, connection) {
        actor.counters.lost.add(1);
        actor.outputs.drop(packet, DropReason::UpcallQueueFull, crate::upcall::in_port(key));
    }
}
