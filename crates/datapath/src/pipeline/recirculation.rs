//! Packets that go round again.
//!
//! What one program recirculates with one id stays a batch: packets wait in batches of one *stage*, which is an input port
//! and a recirculation id, with their metadata in arrays beside them. No key is kept and nothing is allocated for each
//! packet: batches that have been through are used again.
//!
//! A program can recirculate several copies of a packet, and what it does with each can recirculate several again. So
//! each packet has a *share* of those that the one that was received may become, and its copies share it. What is left of
//! a share when it is too small for all is lost: it needs no counter that all the copies would have to find. Nothing of
//! this is looked at until a packet recirculates.

use std::collections::VecDeque;

use packet::{Batch, Key, Packet};

use crate::action::PortNo;
use crate::actions::program::Program;
use crate::drop::DropReason;
use crate::pipeline::metadata::{Metadata, OwnMetadata};

/// How many packets one that was received may become, at each depth of recirculation.
pub const MAX_PACKETS: u16 = 1024;

/// How many packets of a worker may wait to be classified again, which is a bound of memory.
pub const MAX_WAITING: usize = 8192;

/// Batches that are kept for others when they have been through: more than a batch becomes that does not multiply.
const SPARE: usize = 16;

/// Where packets are classified: those of one stage look at the same flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecircStage {
    /// The port that they have come in on.
    pub in_port: PortNo,
    /// Zero where that is all.
    pub recirc_id: u32,
}

/// Which pass of a packet through classification it is, and its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Times that the packet has been recirculated.
    pub depth: u8,
    /// How many packets it may become.
    pub budget: u16,
}

impl Pass {
    /// That of a packet as it was received.
    pub const FIRST: Pass = Pass { depth: 0, budget: MAX_PACKETS };

    /// The pass to which a program, which runs in this one, recirculates.
    #[inline(always)]
    pub fn of(self, program: &Program) -> Pass {
        // Most programs do not, and it does not matter then.
        if program.recirculations() == 0 { self } else { self.next(program.recirculations()) }
    }

    /// The pass of each of so many copies.
    fn next(self, copies: u16) -> Pass {
        Pass { depth: self.depth.saturating_add(1), budget: self.budget / copies }
    }

    /// Why no packet may come to this pass, behind `waiting` others, if that is so.
    pub fn refusal(self, max_depth: u8, waiting: usize) -> Option<DropReason> {
        if self.depth > max_depth {
            Some(DropReason::RecursionTooDeep)
        } else {
            (self.budget == 0 || waiting >= MAX_WAITING).then_some(DropReason::RecirculationStorm)
        }
    }
}

/// Packets of one stage that are to be classified together.
pub struct RecirculatedBatch {
    /// Where.
    pub stage: RecircStage,
    /// Which pass they come to.
    pub pass: Pass,
    /// The packets.
    pub packets: Batch,
    /// What travels beside them.
    pub metadata: Metadata,
    /// Those that a flow has counted already.
    pub counted: u32,
}

impl RecirculatedBatch {
    fn new() -> Box<RecirculatedBatch> {
        let stage = RecircStage { in_port: PortNo(0), recirc_id: 0 };
        let (packets, metadata) = (Batch::new(), Metadata::default());
        Box::new(RecirculatedBatch { stage, pass: Pass::FIRST, packets, metadata, counted: 0 })
    }

    /// Whether another packet may join.
    #[inline(always)]
    fn takes(&self, stage: RecircStage, pass: Pass) -> bool {
        !self.packets.is_full() && self.stage == stage && self.pass == pass
    }

    /// Takes a packet, for which there must be room, with the metadata of its key.
    #[inline(always)]
    pub fn push(&mut self, packet: Packet, key: &Key, counted: bool) {
        let i = self.packets.len();
        self.metadata.take(i, key, self.stage.recirc_id);
        self.counted |= u32::from(counted) << i;
        self.packets.push(packet);
    }
}

/// A packet by itself that is to be classified again.
pub struct RecirculatedPacket {
    /// The frame.
    pub packet: Packet,
    /// What travels beside it.
    pub metadata: OwnMetadata,
    /// Which pass it comes to.
    pub pass: Pass,
    /// A flow has counted it already.
    pub counted: bool,
}

/// The packets of a worker that are to be classified again, in their order.
#[derive(Default)]
pub struct Recirculation {
    queue: VecDeque<Box<RecirculatedBatch>>,
    #[allow(clippy::vec_box, reason = "a batch of several KiB is moved by its box")]
    spare: Vec<Box<RecirculatedBatch>>,
    /// Packets in the queue.
    waiting: usize,
    /// A key to take metadata from.
    key: Box<Key>,
}

impl Recirculation {
    /// Packets that wait.
    #[inline(always)]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Has a packet classified again behind the others, with the metadata of its key but for the stage.
    #[inline(always)]
    pub fn push(&mut self, stage: RecircStage, pass: Pass, packet: Packet, key: &Key) {
        self.waiting += 1;
        // Only the last batch takes more: packets of a connection must not overtake each other, also where they go to
        // different stages.
        match self.queue.back_mut() {
            Some(last) if last.takes(stage, pass) => last.push(packet, key, false),
            _ => self.open(stage, pass).push(packet, key, false),
        }
    }

    /// As [`push`](Recirculation::push), for packets of a run, which have all their metadata in common.
    pub fn push_run(&mut self, stage: RecircStage, pass: Pass, packets: impl Iterator<Item = Packet>, key: &Key) {
        for packet in packets {
            self.push(stage, pass, packet, key);
        }
    }

    /// As [`push`](Recirculation::push), for a packet that has waited by itself. Returns the key that it had, if any.
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

    /// A batch for packets of a stage, at the end of the queue.
    fn open(&mut self, stage: RecircStage, pass: Pass) -> &mut RecirculatedBatch {
        let batch = self.empty(stage, pass);
        self.queue.push_back(batch);
        self.queue.back_mut().expect("it was put there")
    }

    /// A batch without packets.
    pub fn empty(&mut self, stage: RecircStage, pass: Pass) -> Box<RecirculatedBatch> {
        let mut batch = self.spare.pop().unwrap_or_else(RecirculatedBatch::new);
        (batch.stage, batch.pass, batch.counted) = (stage, pass, 0);
        batch
    }

    /// Has a batch classified before all others.
    pub fn put_first(&mut self, batch: Box<RecirculatedBatch>) {
        self.waiting += batch.packets.len();
        self.queue.push_front(batch);
    }

    /// Has a batch classified behind the others.
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

    /// Takes a batch that has been through, for others.
    #[inline(always)]
    pub fn reuse(&mut self, batch: Box<RecirculatedBatch>) {
        debug_assert!(batch.packets.is_empty());
        if self.spare.len() < SPARE {
            self.spare.push(batch);
        }
    }
}

/// What is to be recirculated in later turns, of one input port.
pub struct Deferred {
    /// The port. While it has some, it is not polled.
    pub in_port: PortNo,
    /// Them, in their order.
    pub batches: VecDeque<Box<RecirculatedBatch>>,
    /// How many there are.
    pub packets: usize,
}

impl Deferred {
    /// None yet.
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
        // One that does not fan out keeps all of it.
        let straight = (0..6).fold(Pass::FIRST, |pass, _| pass.next(1));
        assert_eq!(straight, Pass { depth: 6, budget: MAX_PACKETS });
        assert_eq!(straight.refusal(6, 0), None);
        assert_eq!(straight.next(1).refusal(6, 0), Some(DropReason::RecursionTooDeep));
        assert_eq!(straight.refusal(6, MAX_WAITING), Some(DropReason::RecirculationStorm));
    }
}
