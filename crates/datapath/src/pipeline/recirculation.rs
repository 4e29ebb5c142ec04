//! Recirculated packets, on their way back to classification.
//!
//! They stay together: packets wait in batches of one *recirculation stage*, which is an input port and a
//! recirculation id, with their metadata in arrays beside them. No key is stored and nothing is allocated for a
//! packet: batches are reused.
//!
//! A program can recirculate several copies of a packet, and each copy can be recirculated several times again. To
//! bound that, each received packet has a *budget* of packets that it may become at each depth, which is divided
//! among its copies. The remainder of the division is lost. So no counter has to be shared among copies. Packets that
//! are never recirculated do not pay for any of this.

use std::collections::VecDeque;

use packet::{Batch, Key, Packet};
use ports::merge::Merger;
use ports::pools;

use crate::action::PortNo;
use crate::actions::program::Program;
use crate::conntrack::trail::{Trail, Trails};
use crate::drop::DropReason;
use crate::pipeline::metadata::{Metadata, OwnMetadata, Tunnelled};

/// How many packets one received packet may become, at each depth of recirculation.
pub const MAX_PACKETS: u16 = 1024;

/// How many recirculated packets of a worker may wait. Bounds memory.
pub const MAX_WAITING: usize = 8192;

/// Empty batches that are kept for reuse: more than a batch without multiplying packets needs.
const SPARE: usize = 16;

/// A recirculation stage: packets of one stage are looked up among the same flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecircStage {
    /// The input port.
    pub in_port: PortNo,
    /// The recirculation id; zero for packets as they were received.
    pub recirc_id: u32,
}

/// A packet's pass through classification, and its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Times that the packet has been recirculated.
    pub depth: u8,
    /// How many packets it may become at the next depth.
    pub budget: u16,
}

impl Pass {
    /// The pass of a packet as it was received.
    pub const FIRST: Pass = Pass { depth: 0, budget: MAX_PACKETS };

    /// The pass of packets that a program recirculates from this pass.
    #[inline(always)]
    pub fn of(self, program: &Program) -> Pass {
        // Most programs do not recirculate, and then the result is not used.
        if program.recirculations() == 0 { self } else { self.next(program.recirculations()) }
    }

    /// The pass of each of several copies.
    fn next(self, copies: u16) -> Pass {
        Pass { depth: self.depth.saturating_add(1), budget: self.budget / copies }
    }

    /// Why no packet may enter this pass while `waiting` others wait, if so.
    pub fn refusal(self, max_depth: u8, waiting: usize) -> Option<DropReason> {
        if self.depth > max_depth {
            Some(DropReason::RecursionTooDeep)
        } else {
            (self.budget == 0 || waiting >= MAX_WAITING).then_some(DropReason::RecirculationStorm)
        }
    }
}

/// Recirculated packets of one stage and pass.
pub struct RecirculatedBatch {
    /// Their stage.
    pub stage: RecircStage,
    /// Their pass.
    pub pass: Pass,
    /// The packets.
    pub packets: Batch,
    /// Their metadata.
    pub metadata: Metadata,
    /// Those that a flow has counted already, as a set.
    pub counted: u32,
    /// What is known of their ways.
    pub trails: Trails,
}

impl RecirculatedBatch {
    fn new() -> Box<RecirculatedBatch> {
        let stage = RecircStage { in_port: PortNo(0), recirc_id: 0 };
        let (packets, metadata, trails) = (Batch::new(), Metadata::default(), Trails::default());
        Box::new(RecirculatedBatch { stage, pass: Pass::FIRST, packets, metadata, counted: 0, trails })
    }

    /// Whether a packet of this stage and pass can be added.
    #[inline(always)]
    fn takes(&self, stage: RecircStage, pass: Pass) -> bool {
        !self.packets.is_full() && self.stage == stage && self.pass == pass
    }

    /// Adds a packet with the metadata of its key. There must be room for it.
    #[inline(always)]
    pub fn push(&mut self, packet: Packet, key: &Key, counted: bool) {
        let i = self.packets.len();
        self.metadata.take(i, key, self.stage.recirc_id);
        self.counted |= u32::from(counted) << i;
        self.packets.push(packet);
    }
}

/// A single packet that is to be classified again.
pub struct RecirculatedPacket {
    /// The frame.
    pub packet: Packet,
    /// Its metadata.
    pub metadata: OwnMetadata,
    /// Its pass.
    pub pass: Pass,
    /// A flow has counted it already.
    pub counted: bool,
}

/// The recirculated packets of a worker, in order.
#[derive(Default)]
pub struct Recirculation {
    queue: VecDeque<Box<RecirculatedBatch>>,
    #[allow(clippy::vec_box, reason = "a batch of several KiB is moved by its box")]
    spare: Vec<Box<RecirculatedBatch>>,
    /// Packets in the queue.
    waiting: usize,
    /// Scratch space for a key.
    key: Box<Key>,
    /// Joins segments that have left a tunnel. Made when the first one comes.
    merger: Option<Merger>,
    /// How many packets the last batch had when the last one was pushed that others may become part of; zero where there is none.
    joining: usize,
}

impl Recirculation {
    /// How many packets wait.
    #[inline(always)]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether no packet waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a packet, with the metadata of its key, but for the recirculation id.
    #[inline(always)]
    pub fn push(&mut self, stage: RecircStage, pass: Pass, packet: Packet, key: &Key) {
        self.waiting += 1;
        // Only the last batch is appended to: packets of a connection must not overtake each other, also where they
        // go to different stages.
        match self.queue.back_mut() {
            Some(last) if last.takes(stage, pass) => last.push(packet, key, false),
            _ => self.open(stage, pass).push(packet, key, false),
        }
    }

    /// As [`push`](Recirculation::push), for a packet that was tracked.
    pub fn push_tracked(&mut self, stage: RecircStage, pass: Pass, packet: Packet, key: &Key, trail: Option<&Trail>) {
        self.push(stage, pass, packet, key);
        if let (Some(trail), Some(last)) = (trail, self.queue.back_mut()) {
            last.trails.set(last.packets.len() - 1, trail);
        }
    }

    /// As [`push`](Recirculation::push), for packets of a run, which have all their metadata in common.
    pub fn push_run(&mut self, stage: RecircStage, pass: Pass, packets: impl Iterator<Item = Packet>, key: &Key) {
        for packet in packets {
            self.push(stage, pass, packet, key);
        }
    }

    /// As [`push`](Recirculation::push), for a packet that has left a tunnel, as if that tunnel's port had received it.
    ///
    /// A segment of TCP may become part of the last packet; then `true` is returned.
    /// [`finish_joining`](Recirculation::finish_joining) has to be called before the batch is taken.
    #[inline(always)]
    pub fn push_tunnelled(&mut self, in_port: PortNo, pass: Pass, packet: Packet, tunnelled: &Tunnelled) -> bool {
        let stage = RecircStage { in_port, recirc_id: 0 };
        // A super-frame is whole already.
        if packet.offload().needs_csum() && !packet.offload().is_gso() {
            return self.join_tunnelled(stage, pass, packet, tunnelled);
        }
        self.finish_joining();
        self.waiting += 1;
        let last = match self.queue.back_mut() {
            Some(last) if last.takes(stage, pass) => last,
            _ => self.open(stage, pass),
        };
        last.metadata.take_tunnelled(last.packets.len(), in_port, tunnelled);
        last.packets.push(packet);
        false
    }

    /// As [`push_tunnelled`](Recirculation::push_tunnelled), for a packet whose checksum is unfinished: a local stack has sent it, or it was verified.
    #[inline(never)]
    fn join_tunnelled(&mut self, stage: RecircStage, pass: Pass, packet: Packet, tunnelled: &Tunnelled) -> bool {
        if !self.queue.back().is_some_and(|last| last.takes(stage, pass)) {
            self.finish_joining();
            self.open(stage, pass);
        }
        let Some(last) = self.queue.back_mut() else { return false };
        let at = last.packets.len();
        // The pool that frames of ports are merged in, too.
        let merger = self.merger.get_or_insert_with(|| Merger::new(pools::for_super_frames()));
        if self.joining != at || at == 0 || !last.metadata.is_tunnelled_by(at - 1, tunnelled) {
            // What comes now is of another tunnel.
            merger.finish(&mut last.packets);
        }
        merger.add(packet, &mut last.packets);
        let is_joined = last.packets.len() == at;
        if !is_joined {
            last.metadata.take_tunnelled(at, stage.in_port, tunnelled);
            self.waiting += 1;
            self.joining = at + 1;
        }
        is_joined
    }

    /// Completes the last packet that others may have become part of.
    #[inline(always)]
    pub fn finish_joining(&mut self) {
        if self.joining != 0 {
            self.finish_joined();
        }
    }

    #[cold]
    fn finish_joined(&mut self) {
        self.joining = 0;
        if let (Some(merger), Some(last)) = (&mut self.merger, self.queue.back_mut()) {
            merger.finish(&mut last.packets);
        }
    }

    /// As [`push`](Recirculation::push), for a single packet that has waited. Returns its allocated key, if it had
    /// one.
    pub fn push_packet(&mut self, recirculated: RecirculatedPacket) -> Option<Box<Key>> {
        let RecirculatedPacket { packet, metadata, pass, counted } = recirculated;
        let stage = RecircStage { in_port: metadata.in_port(), recirc_id: metadata.recirc_id() };
        metadata.start(&mut self.key);
        self.waiting += 1;
        let key = std::mem::take(&mut self.key);
        let last = match self.queue.back_mut() {
            Some(last) if last.takes(stage, pass) => last,
            _ => self.open(stage, pass),
        };
        last.push(packet, &key, counted);
        self.key = key;
        metadata.into_spare()
    }

    /// Appends an empty batch for packets of a stage.
    fn open(&mut self, stage: RecircStage, pass: Pass) -> &mut RecirculatedBatch {
        let batch = self.empty(stage, pass);
        self.queue.push_back(batch);
        self.queue.back_mut().expect("it was put there")
    }

    /// An empty batch for packets of a stage.
    pub fn empty(&mut self, stage: RecircStage, pass: Pass) -> Box<RecirculatedBatch> {
        let mut batch = self.spare.pop().unwrap_or_else(RecirculatedBatch::new);
        (batch.stage, batch.pass, batch.counted) = (stage, pass, 0);
        batch.trails.clear();
        batch
    }

    /// Puts a batch at the head of the queue.
    pub fn put_first(&mut self, batch: Box<RecirculatedBatch>) {
        self.waiting += batch.packets.len();
        self.queue.push_front(batch);
    }

    /// Puts a batch at the end of the queue.
    pub fn put_last(&mut self, batch: Box<RecirculatedBatch>) {
        self.waiting += batch.packets.len();
        self.queue.push_back(batch);
    }

    /// Takes the first batch.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Box<RecirculatedBatch>> {
        let batch = self.queue.pop_front()?;
        self.waiting -= batch.packets.len();
        Some(batch)
    }

    /// Keeps a batch for reuse. It must be empty.
    #[inline(always)]
    pub fn reuse(&mut self, batch: Box<RecirculatedBatch>) {
        debug_assert!(batch.packets.is_empty());
        if self.spare.len() < SPARE {
            self.spare.push(batch);
        }
    }
}

/// Recirculated packets of one input port that are left for later turns.
pub struct Deferred {
    /// The input port, which is not polled meanwhile.
    pub in_port: PortNo,
    /// The packets, in order.
    pub batches: VecDeque<Box<RecirculatedBatch>>,
    /// How many packets there are.
    pub packets: usize,
}

impl Deferred {
    /// No packets yet.
    pub fn new(in_port: PortNo) -> Deferred {
        Deferred { in_port, batches: VecDeque::new(), packets: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_what_one_packet_may_become() {
        let mut pass = Pass::FIRST;
        let mut packets = 1u32;
        while pass.refusal(200, 0).is_none() {
            pass = pass.next(3);
            packets *= 3;
        }
        assert_eq!((pass.depth, pass.budget, packets / 3), (7, 0, 729));
        // A packet that is recirculated once at each depth keeps its whole budget.
        let straight = (0..6).fold(Pass::FIRST, |pass, _| pass.next(1));
        assert_eq!(straight, Pass { depth: 6, budget: MAX_PACKETS });
        assert_eq!(straight.refusal(6, 0), None);
        assert_eq!(straight.next(1).refusal(6, 0), Some(DropReason::RecursionTooDeep));
        assert_eq!(straight.refusal(6, MAX_WAITING), Some(DropReason::RecirculationStorm));
    }
}
