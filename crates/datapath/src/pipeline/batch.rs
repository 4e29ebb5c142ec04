//! Batch metadata: what is known of the packets of a batch, in arrays beside the frames, and the sets that say which
//! elements are valid.
//!
//! A *run* is a sequence of packets that no flow of their stage tells apart. What is known of a run is stored at the
//! index of its first packet. A set is an integer with one bit for each packet.

use packet::flow::extract::{Layers, VlanLimit, extract, extract_unusual};
use packet::flow::template::Template;
use packet::{BATCH_SIZE, Batch, Key, Packet};

use crate::action::PortNo;
use crate::classify::bits;
use crate::classify::cache::headers::{Found, Probes};
use crate::classify::scan::{MaskedHeaders, fitting};
use crate::classify::table::arena::FastAction;
use crate::classify::table::flow_ref::FlowRef;
use crate::conntrack::trail::Trails;
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
    /// An empty batch. `vlan_limit`: how many VLAN tags of a frame are parsed.
    pub fn new(vlan_limit: VlanLimit) -> InFlight {
        InFlight { packets: Batch::new(), meta: BatchMeta { vlan_limit, ..BatchMeta::default() } }
    }
}

/// The metadata of a batch, whose packets are all in one recirculation stage.
pub struct BatchMeta {
    /// The keys of the packets in `extracted`.
    pub keys: Box<[Key]>,
    /// The header offsets of the packets in `extracted`.
    pub layers: [Layers; BATCH_SIZE],
    /// Lengths and TCP flags of the runs, and the masked headers that they are looked up by.
    pub headers: MaskedHeaders,
    /// The result of the look-up, for the first packet of each run.
    pub found: [Found; BATCH_SIZE],
    /// Hashes and candidates of a look-up in the header cache.
    pub probes: Probes,
    /// How many VLAN tags are parsed: the worker's setting, for all batches until it changes.
    pub vlan_limit: VlanLimit,
    stage: RecircStage,
    pass: Pass,
    /// Metadata of recirculated packets. Valid where `recirculated` is set.
    metadata: Metadata,
    /// What is known of the ways of recirculated packets.
    trails: Trails,
    /// Packets of the port are tracked: some results may be fused connections.
    tracked: bool,
    /// Packets that were looked up by their lines.
    lined: u32,
    /// Whether the packets have been recirculated.
    recirculated: bool,
    extracted: u32,
    starts: u32,
    /// The first packets of those runs that are counted already in the statistics of their flows.
    counted: u32,
    /// All runs are counted, and all have the same fast action.
    uniform: bool,
    /// Whether some packets have a flow and others have none.
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
            trails: Trails::default(),
            tracked: false,
            lined: 0,
            recirculated: false,
            extracted: 0,
            starts: 0,
            counted: 0,
            uniform: false,
            partly_missed: false,
        }
    }
}

/// Start of a batch.
impl BatchMeta {
    /// Starts the metadata of packets that a port has received. Nothing is known of them yet.
    #[inline(always)]
    pub fn begin(&mut self, in_port: PortNo) {
        (self.stage, self.pass, self.recirculated) = (RecircStage { in_port, recirc_id: 0 }, Pass::FIRST, false);
        self.trails.clear();
        self.reset(0);
    }

    /// As [`begin`](BatchMeta::begin), for recirculated packets. Takes over their metadata, and which of them are
    /// counted already.
    #[inline(always)]
    pub fn begin_recirculated(&mut self, batch: &mut RecirculatedBatch) {
        (self.stage, self.pass, self.recirculated) = (batch.stage, batch.pass, true);
        std::mem::swap(&mut self.metadata, &mut batch.metadata);
        std::mem::swap(&mut self.trails, &mut batch.trails);
        self.reset(batch.counted);
    }

    #[inline(always)]
    fn reset(&mut self, counted: u32) {
        (self.extracted, self.counted, self.uniform, self.partly_missed) = (0, counted, false, false);
        (self.tracked, self.lined) = (false, 0);
    }

    /// Marks every packet as a miss, without a look-up.
    #[cold]
    pub fn all_miss(&mut self, count: usize) {
        self.starts = all(count);
        self.found[..count].fill(Found::MISS);
    }
}

/// Stage and pass of the batch.
impl BatchMeta {
    /// The recirculation stage of its packets.
    #[inline(always)]
    pub fn stage(&self) -> RecircStage {
        self.stage
    }

    /// The input port of its packets.
    #[inline(always)]
    pub fn in_port(&self) -> PortNo {
        self.stage.in_port
    }

    /// The pass of its packets through classification.
    #[inline(always)]
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// The metadata of its packets, if they are recirculated.
    #[inline(always)]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.recirculated.then_some(&self.metadata)
    }

    /// For [`rescan`](crate::classify::rescan::rescan): the metadata of the packets, their masked headers, and the
    /// set of those that are counted.
    #[inline(always)]
    pub fn parts_for_scan(&mut self) -> (&Metadata, &mut MaskedHeaders, u32) {
        (&self.metadata, &mut self.headers, self.counted)
    }
}

/// Keys.
impl BatchMeta {
    /// Resets the key of packet `i` to its metadata. An extraction or a mark completes it.
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

    /// Extracts the key of packet `i`, unless that is done already.
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

    /// Extracts the key of packet `i` to another place, whatever the look-up knows of it already.
    pub fn extract_anew(&self, i: usize, packet: &Packet, key: &mut Key) {
        match self.metadata() {
            Some(metadata) => metadata.start(i, key),
            None => start_key(key, self.stage.in_port),
        }
        extract(packet.data(), key, self.vlan_limit);
    }

    /// Forgets the key of packet `i`, whose headers have changed.
    #[inline(always)]
    pub fn forget_key(&mut self, i: usize) {
        self.extracted &= !(1 << i);
    }

    /// Whether the key of packet `i` is extracted.
    #[inline(always)]
    pub fn is_extracted(&self, i: usize) -> bool {
        self.extracted >> i & 1 != 0
    }

    /// The packets whose keys are extracted.
    #[inline(always)]
    pub fn extracted(&self) -> u32 {
        self.extracted
    }
}

/// Extracts keys of received packets during their look-up, beside other parts of the metadata.
pub struct KeyExtractor<'a> {
    keys: &'a mut [Key],
    layers: &'a mut [Layers; BATCH_SIZE],
    extracted: &'a mut u32,
    in_port: PortNo,
    vlan_limit: VlanLimit,
}

impl KeyExtractor<'_> {
    /// Extracts the key of packet `i`, whose headers are unusual.
    #[inline(always)]
    pub fn extract_unusual(&mut self, i: usize, packet: &Packet) -> &Key {
        let key = &mut self.keys[i];
        start_key(key, self.in_port);
        self.layers[i] = extract_unusual(packet.data(), key, self.vlan_limit);
        *self.extracted |= 1 << i;
        key
    }

    /// How many VLAN tags are parsed.
    #[inline(always)]
    pub fn vlan_limit(&self) -> VlanLimit {
        self.vlan_limit
    }
}

/// Look-up.
impl BatchMeta {
    /// The parts of the metadata of received packets that their look-up writes.
    #[inline(always)]
    pub fn parts_for_look_up(
        &mut self,
    ) -> (KeyExtractor<'_>, &mut MaskedHeaders, &mut Probes, &mut [Found; BATCH_SIZE]) {
        debug_assert!(!self.recirculated);
        let BatchMeta { keys, layers, headers, found, probes, vlan_limit, stage, extracted, .. } = self;
        let extractor = KeyExtractor { keys, layers, extracted, in_port: stage.in_port, vlan_limit: *vlan_limit };
        (extractor, headers, probes, found)
    }
}

/// Tracked packets.
impl BatchMeta {
    /// Notes whether packets of the port are tracked, and which packets were looked up by their lines.
    #[inline(always)]
    pub fn set_tracked(&mut self, tracked: bool, lined: u32) {
        (self.tracked, self.lined) = (tracked, lined);
    }

    /// Whether packets of the port are tracked.
    #[inline(always)]
    pub fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Whether packet `i` was looked up by its line.
    #[inline(always)]
    pub fn has_line(&self, i: usize) -> bool {
        self.lined >> i & 1 != 0
    }

    /// What is known of the ways of recirculated packets.
    #[inline(always)]
    pub fn trails(&self) -> &Trails {
        &self.trails
    }

    /// Records that these runs are counted, too, and have other results than before.
    #[inline(always)]
    pub fn add_counted(&mut self, counted: u32) {
        self.counted |= counted;
        let first = self.found[0].action;
        let count = self.starts.trailing_ones() as usize;
        let differ = if self.starts == all(count) {
            differences(&self.found[..count]).1
        } else {
            bits(self.starts).fold(0, |differ, at| differ | self.found[at].action.differs(first))
        };
        self.uniform = differ == 0 && self.are_all_counted();
    }
}

/// Runs.
impl BatchMeta {
    /// The first packets of runs.
    #[inline(always)]
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Sets the first packets of runs.
    #[inline(always)]
    pub fn set_starts(&mut self, starts: u32) {
        self.starts = starts;
    }

    /// The index behind the run that starts at `at`, in a batch of `count` packets.
    #[inline(always)]
    pub fn end_of_run(&self, at: usize, count: usize) -> usize {
        end_of_run(self.starts, at, count)
    }

    /// Records that the runs of these first packets are counted for their flows. `uniform`: these are all runs, and
    /// all have the same fast action.
    #[inline(always)]
    pub fn set_counted(&mut self, counted: u32, uniform: bool) {
        (self.counted, self.uniform) = (counted, uniform);
    }

    /// Whether the run that starts with packet `at` has been counted.
    #[inline(always)]
    pub fn is_counted(&self, at: usize) -> bool {
        self.counted >> at & 1 != 0
    }

    /// The first packets of the runs that have been counted.
    #[inline(always)]
    pub fn counted(&self) -> u32 {
        self.counted
    }

    /// Whether all runs have been counted.
    #[inline(always)]
    pub fn are_all_counted(&self) -> bool {
        self.starts & !self.counted == 0
    }

    /// All runs are counted, and all have the same fast action.
    #[inline(always)]
    pub fn is_uniform(&self) -> bool {
        self.uniform
    }

    /// Records which runs have no flow.
    #[inline(always)]
    pub fn set_missed(&mut self, missed: u32) {
        self.partly_missed = missed != 0 && missed != self.starts;
    }

    /// Whether some packets have a flow and others have none.
    #[inline(always)]
    pub fn is_partly_missed(&self) -> bool {
        self.partly_missed
    }

    /// Makes every packet a run of its own, with an extracted key, so that each can get another result than the rest
    /// of its former run.
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

    /// Makes every packet of the run that starts at `at` a run of its own, with the result of the run.
    pub fn split_run(&mut self, at: usize, run: &[Packet]) {
        let found = self.found[at];
        for (i, packet) in (at..).zip(run) {
            self.found[i] = found;
            self.headers.bytes[i] = packet.len() as u32;
            self.headers.flags[i] = Template::of(packet.data(), self.vlan_limit)
                .and_then(|template| fitting::<false>(&template.layout(), packet))
                .unwrap_or(0);
            self.starts |= 1 << i;
        }
    }

    /// Makes every packet a run of its own, with an extracted key, before the look-up.
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

/// The bits in which some result differs from the first one: of the flow, and of what is done.
#[inline(always)]
pub fn differences(found: &[Found]) -> (u32, u32) {
    // As words, so that several are compared at once.
    let words = found.iter().map(|found| -> u64 { zerocopy::transmute!(*found) });
    let first = words.clone().next().unwrap_or(0);
    let [flow, action]: [u32; 2] = zerocopy::transmute!(words.fold(0, |differ, word| differ | word ^ first));
    (flow, action)
}

/// The result for a run.
impl Found {
    /// Whether a flow was found.
    #[inline(always)]
    pub fn has_flow(self) -> bool {
        self.flow != FlowRef::NONE
    }

    /// Whether the flow's program has to run.
    #[inline(always)]
    pub fn is_program(self) -> bool {
        self.action == FastAction::PROGRAM || self.action.rewrite().is_some()
    }
}

/// Resets a key to the metadata of a packet that a port has received.
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

/// The set of all numbers below `count`.
#[inline(always)]
pub fn all(count: usize) -> u32 {
    ((1u64 << count) - 1) as u32
}

/// The index behind the run that starts at `at`.
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
