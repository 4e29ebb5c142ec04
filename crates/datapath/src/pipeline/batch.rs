//! What is known of a batch: arrays beside the frames, and the sets that say which of them mean anything.
//!
//! A *run* is packets that follow each other and that no flow of their stage tells apart. What is known of a run is kept
//! for its first packet. A set is a number with a bit for each packet.

use packet::flow::extract::{Layers, VlanLimit, extract};
use packet::{BATCH_SIZE, Batch, Key, Packet};

use crate::action::PortNo;
use crate::classify::bits;
use crate::classify::cache::headers::{Found, Probes};
use crate::classify::scan::MaskedHeaders;
use crate::classify::table::arena::FastAction;
use crate::classify::table::flow_ref::FlowRef;
use crate::pipeline::metadata::Metadata;
use crate::pipeline::recirculation::{Pass, RecircStage, RecirculatedBatch};

/// A batch on its way through the stages.
pub struct InFlight {
    /// The packets.
    pub packets: Batch,
    /// What is known of them.
    pub meta: BatchMeta,
}

impl InFlight {
    /// No packets. Of those that come, so many VLAN tags are parsed.
    pub fn new(vlan_limit: VlanLimit) -> InFlight {
        InFlight { packets: Batch::new(), meta: BatchMeta { vlan_limit, ..BatchMeta::default() } }
    }
}

/// What is known of a batch of one stage.
pub struct BatchMeta {
    /// The keys of the packets in `extracted`.
    pub keys: Box<[Key]>,
    /// Where the headers of the packets in `extracted` are.
    pub layers: [Layers; BATCH_SIZE],
    /// Lengths and TCP flags of runs, and the bytes that they are looked up by.
    pub headers: MaskedHeaders,
    /// What was found, for the first packet of each run.
    pub found: [Found; BATCH_SIZE],
    /// For the header cache.
    pub probes: Probes,
    /// How many VLAN tags are parsed: the worker's setting, for all batches until it changes.
    pub vlan_limit: VlanLimit,
    stage: RecircStage,
    pass: Pass,
    /// What travels beside packets that go round again: see `again`.
    metadata: Metadata,
    /// They do.
    recirculated: bool,
    extracted: u32,
    starts: u32,
    /// The first packets of the runs that have been counted for their flows.
    counted: u32,
    /// All have been counted, and the same is to be done with all packets.
    uniform: bool,
    /// Some have a flow, and others have none.
    partly_missed: bool,
}

const _: () = assert!(size_of::<Layers>() == 8 && size_of::<Key>() == 768);

impl Default for BatchMeta {
    fn default() -> BatchMeta {
        BatchMeta {
            keys: vec![Key::new(); BATCH_SIZE].into(),
            layers: [Layers::EMPTY; BATCH_SIZE],
            headers: MaskedHeaders::default(),
            found: [Found::MISS; BATCH_SIZE],
            probes: Probes::default(),
            vlan_limit: VlanLimit::default(),
            stage: RecircStage { in_port: PortNo(0), recirc_id: 0 },
            pass: Pass::FIRST,
            metadata: Metadata::default(),
            recirculated: false,
            extracted: 0,
            starts: 0,
            counted: 0,
            uniform: false,
            partly_missed: false,
        }
    }
}

/// A batch begins.
impl BatchMeta {
    /// Nothing is known of packets that a port has received.
    #[inline(always)]
    pub fn begin(&mut self, in_port: PortNo) {
        (self.stage, self.pass, self.recirculated) = (RecircStage { in_port, recirc_id: 0 }, Pass::FIRST, false);
        self.reset(0);
    }

    /// As [`begin`](BatchMeta::begin), for packets that go round again, whose metadata is taken. Some have been counted
    /// already.
    #[inline(always)]
    pub fn begin_recirculated(&mut self, batch: &mut RecirculatedBatch) {
        (self.stage, self.pass, self.recirculated) = (batch.stage, batch.pass, true);
        std::mem::swap(&mut self.metadata, &mut batch.metadata);
        self.reset(batch.counted);
    }

    #[inline(always)]
    fn reset(&mut self, counted: u32) {
        (self.extracted, self.counted, self.uniform, self.partly_missed) = (0, counted, false, false);
    }

    /// No packet has a flow: nobody has looked for one.
    #[cold]
    pub fn all_miss(&mut self, count: usize) {
        self.starts = all(count);
        self.found[..count].fill(Found::MISS);
    }
}

/// Where the batch is.
impl BatchMeta {
    /// The stage that its packets are in.
    #[inline(always)]
    pub fn stage(&self) -> RecircStage {
        self.stage
    }

    /// The port that they have come in on.
    #[inline(always)]
    pub fn in_port(&self) -> PortNo {
        self.stage.in_port
    }

    /// Which pass it is for them.
    #[inline(always)]
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// What travels beside them, if they go round again.
    #[inline(always)]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.recirculated.then_some(&self.metadata)
    }

    /// For a scan of packets that go round again: their metadata, what they are looked up by, and who has been counted.
    #[inline(always)]
    pub fn parts_for_scan(&mut self) -> (&Metadata, &mut MaskedHeaders, u32) {
        (&self.metadata, &mut self.headers, self.counted)
    }
}

/// Keys.
impl BatchMeta {
    /// Starts the key of packet `i` with its metadata, to be completed by an extraction, or a mark.
    #[inline(always)]
    pub fn start_key(&mut self, i: usize) -> &mut Key {
        let key = &mut self.keys[i];
        if self.recirculated {
            self.metadata.start(i, key);
        } else {
            start_key(key, self.stage.in_port);
        }
        key
    }

    /// Extracts the key of packet `i`, unless that was done.
    #[inline(always)]
    pub fn extract(&mut self, i: usize, packet: &Packet) {
        if self.extracted >> i & 1 == 0 {
            self.extracted |= 1 << i;
            let vlan_limit = self.vlan_limit;
            let key = self.start_key(i);
            let layers = extract(packet.data(), key, vlan_limit);
            self.layers[i] = layers;
        }
    }

    /// Whether the key of packet `i` is there.
    #[inline(always)]
    pub fn is_extracted(&self, i: usize) -> bool {
        self.extracted >> i & 1 != 0
    }

    /// The packets whose keys are there.
    #[cfg(test)]
    pub fn extracted(&self) -> u32 {
        self.extracted
    }
}

/// Runs.
impl BatchMeta {
    /// The first packets of runs.
    #[inline(always)]
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Takes note of the first packets of runs.
    #[inline(always)]
    pub fn set_starts(&mut self, starts: u32) {
        self.starts = starts;
    }

    /// Where the run of packet `at` ends, in a batch of this many.
    #[inline(always)]
    pub fn end_of_run(&self, at: usize, count: usize) -> usize {
        end_of_run(self.starts, at, count)
    }

    /// The runs of these first packets are counted for their flows; if `uniform`, they are all that there are, and the same
    /// is to be done with all.
    #[inline(always)]
    pub fn set_counted(&mut self, counted: u32, uniform: bool) {
        (self.counted, self.uniform) = (counted, uniform);
    }

    /// Whether the run that starts with packet `at` has been counted.
    #[inline(always)]
    pub fn is_counted(&self, at: usize) -> bool {
        self.counted >> at & 1 != 0
    }

    /// All have been counted, and the same is to be done with all packets.
    #[inline(always)]
    pub fn is_uniform(&self) -> bool {
        self.uniform
    }

    /// Takes note of the runs that have no flow.
    #[inline(always)]
    pub fn set_missed(&mut self, missed: u32) {
        self.partly_missed = missed != 0 && missed != self.starts;
    }

    /// Some packets have a flow, and others have none.
    #[inline(always)]
    pub fn is_partly_missed(&self) -> bool {
        self.partly_missed
    }

    /// The same is to be done with all runs.
    #[inline(always)]
    pub fn has_one_action(&self) -> bool {
        bits(self.starts).all(|at| self.found[at].action == self.found[0].action)
    }

    /// Makes every packet the first of its run, as which it may find something else, with a key of its own.
    #[cold]
    pub fn split_runs(&mut self, packets: &[Packet]) {
        for (i, packet) in packets.iter().enumerate() {
            self.extract(i, packet);
            if self.starts >> i & 1 == 0 {
                self.found[i] = self.found[i - 1];
            }
            self.headers.bytes[i] = packet.len() as u32;
            self.headers.flags[i] = self.keys[i].common().tcp_flags.get();
        }
        self.starts = all(packets.len());
    }

    /// Makes every packet the first of its run, before anything is looked up. All keys are there.
    pub fn start_with_keys(&mut self, packets: &[Packet]) {
        self.headers.longest = 0;
        for (i, packet) in packets.iter().enumerate() {
            self.extract(i, packet);
            self.headers.bytes[i] = packet.len() as u32;
            self.headers.longest = self.headers.longest.max(self.headers.bytes[i]);
            self.headers.flags[i] = self.keys[i].common().tcp_flags.get();
        }
        self.starts = all(packets.len());
    }
}

/// What a run is to do, as far as it is known.
impl Found {
    /// Whether a flow was found.
    #[inline(always)]
    pub fn has_flow(self) -> bool {
        self.flow != FlowRef::NONE
    }

    /// Whether there is a program to run.
    #[inline(always)]
    pub fn is_program(self) -> bool {
        self.action == FastAction::PROGRAM
    }
}

/// Starts the key of a packet that a port has received.
#[inline(always)]
pub fn start_key(key: &mut Key, in_port: PortNo) {
    key.reset();
    let common = key.common_mut();
    common.in_port.set(in_port.0);
    common.recirc_id.set(0);
    common.packet_type.set(0);
    common.dp_hash.set(0);
    common.pkt_mark.set(0);
    common.skb_priority.set(0);
}

/// The numbers below `count`, as a set.
#[inline(always)]
pub fn all(count: usize) -> u32 {
    ((1u64 << count) - 1) as u32
}

/// Where the run of packet `at` ends.
#[inline(always)]
pub fn end_of_run(starts: u32, at: usize, count: usize) -> usize {
    let behind = u64::from(starts) >> 1 >> at;
    if behind == 0 { count } else { at + 1 + behind.trailing_zeros() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_next_start_or_with_the_batch() {
        let starts = 0b1000_0000_0000_0000_0000_0000_0001_0101;
        assert_eq!(end_of_run(starts, 0, 32), 2);
        assert_eq!(end_of_run(starts, 2, 32), 4);
        assert_eq!(end_of_run(starts, 4, 32), 31);
        assert_eq!(end_of_run(starts, 31, 32), 32);
        assert_eq!(end_of_run(0b1, 0, 7), 7);
        assert_eq!(end_of_run(0b10_0001, 5, 6), 6);
        assert_eq!((all(0), all(1), all(32)), (0, 1, u32::MAX));
    }
}
