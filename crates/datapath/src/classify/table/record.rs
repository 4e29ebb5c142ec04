//! Records of flows: what only the writer needs, for dumps, removal and eviction.

use std::sync::Arc;

use packet::Time;

use super::flow_ref::FlowRef;
use super::subtable::Subtable;
use crate::action::Action;
use crate::upcall::{FlowStats, FlowTag};

/// Records in a block. Blocks are small, so that few flows take little memory.
const BLOCK: usize = 1 << 10;

/// Most records that are looked at for one list of flows.
const LOOKED_AT: usize = 16 * BLOCK;

/// A live flow's record.
pub(in crate::classify) struct Record {
    pub tag: FlowTag,
    pub actions: Arc<[Action]>,
    pub created: Time,
    pub subtable: Arc<Subtable>,
    /// Statistics of packets that the slow path has answered by this flow.
    pub slow_path_stats: Option<Box<FlowStats>>,
    /// The neighbours in the list of evictable flows with the same list and mask.
    pub newer: FlowRef,
    pub older: FlowRef,
    /// Packet count, truncated, when the eviction considered the flow last.
    pub seen: u32,
    /// The number of the mask that its translation asked for; zero if the flow has that mask.
    pub requested: u32,
    /// The number of its list.
    pub list: u16,
    /// Whether it was installed by the management, and is never evicted.
    pub managed: bool,
    /// Whether its packets have no Ethernet.
    pub is_bare: bool,
}

const _: () = assert!(size_of::<Option<Record>>() <= 80);

/// Packets and bytes of a flow that the upper layer has been told of.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::classify) struct Taken {
    packets: u64,
    bytes: u64,
}

impl Taken {
    /// The part of `stats` that the upper layer has not been told of. It counts as told from now on.
    pub fn take(&mut self, stats: &FlowStats) -> FlowStats {
        let packets = stats.packets.saturating_sub(self.packets);
        let bytes = stats.bytes.saturating_sub(self.bytes);
        *self = Taken { packets: self.packets.max(stats.packets), bytes: self.bytes.max(stats.bytes) };
        FlowStats { packets, bytes, ..*stats }
    }
}

/// The records of neighbouring numbers.
struct RecordBlock {
    records: Box<[Option<Record>]>,
    /// Beside the records, since a walk over all flows reads and writes these.
    taken: Box<[Taken]>,
}

impl RecordBlock {
    fn new() -> RecordBlock {
        RecordBlock { records: (0..BLOCK).map(|_| None).collect(), taken: vec![Taken::default(); BLOCK].into() }
    }
}

/// Records by flow number.
#[derive(Default)]
pub(in crate::classify) struct Records(Vec<Option<RecordBlock>>);

impl Records {
    pub fn get(&self, flow: FlowRef) -> Option<&Record> {
        let at = flow.index();
        self.0.get(at / BLOCK)?.as_ref()?.records[at % BLOCK].as_ref()
    }

    pub fn get_mut(&mut self, flow: FlowRef) -> Option<&mut Record> {
        let at = flow.index();
        self.0.get_mut(at / BLOCK)?.as_mut()?.records[at % BLOCK].as_mut()
    }

    /// The record of a flow, and what has been told of its counters.
    pub fn get_with_taken(&mut self, flow: FlowRef) -> Option<(&Record, &mut Taken)> {
        let at = flow.index();
        let RecordBlock { records, taken } = self.0.get_mut(at / BLOCK)?.as_mut()?;
        Some((records[at % BLOCK].as_ref()?, &mut taken[at % BLOCK]))
    }

    /// All numbers are below this one.
    pub fn end(&self) -> usize {
        self.0.len() * BLOCK
    }

    /// Calls `visit` for the flows of a range of numbers.
    pub fn visit(&mut self, range: std::ops::Range<usize>, mut visit: impl FnMut(FlowRef, &Record, &mut Taken)) {
        let mut from = range.start;
        while from < range.end {
            let end = range.end.min((from / BLOCK + 1) * BLOCK);
            let Some(block) = self.0.get_mut(from / BLOCK) else { return };
            if let Some(RecordBlock { records, taken }) = block {
                let within = from % BLOCK..from % BLOCK + (end - from);
                let both = records[within.clone()].iter().zip(&mut taken[within]);
                for (number, (record, taken)) in (from..).zip(both) {
                    if let Some(record) = record {
                        visit(FlowRef::at(number), record, taken);
                    }
                }
            }
            from = end;
        }
    }

    /// Prefetches a record.
    pub fn prefetch(&self, flow: FlowRef) {
        if let Some(record) = self.get(flow) {
            crate::classify::prefetch(record);
        }
    }

    /// Prefetches where the record of a new flow is going to be.
    pub fn prefetch_slot(&self, flow: FlowRef) {
        let at = flow.index();
        if let Some(Some(RecordBlock { records, taken })) = self.0.get(at / BLOCK) {
            crate::classify::prefetch(&records[at % BLOCK]);
            crate::classify::prefetch(&taken[at % BLOCK]);
        }
    }

    pub fn insert(&mut self, flow: FlowRef, record: Record) {
        let at = flow.index();
        if self.0.len() <= at / BLOCK {
            self.0.resize_with(at / BLOCK + 1, || None);
        }
        let block = self.0[at / BLOCK].get_or_insert_with(RecordBlock::new);
        (block.records[at % BLOCK], block.taken[at % BLOCK]) = (Some(record), Taken::default());
    }

    /// Removes the record of a flow. Returns it with what has been told of the flow's counters.
    pub fn remove(&mut self, flow: FlowRef) -> Option<(Record, Taken)> {
        let at = flow.index();
        let RecordBlock { records, taken } = self.0.get_mut(at / BLOCK)?.as_mut()?;
        Some((records[at % BLOCK].take()?, taken[at % BLOCK]))
    }

    /// At most `count` flows from number `from` on, and the number to continue from; `None` at the end. Where there are
    /// few flows among many numbers, it stops before so many: the caller holds a lock.
    pub fn some(&self, mut from: usize, count: usize) -> (Vec<FlowRef>, Option<usize>) {
        let mut found = Vec::with_capacity(count);
        let stop = from + LOOKED_AT;
        while let Some(block) = self.0.get(from / BLOCK) {
            let end = (from / BLOCK + 1) * BLOCK;
            let Some(block) = block else {
                from = end;
                continue;
            };
            while from < end {
                if found.len() == count || from >= stop {
                    return (found, Some(from));
                }
                if block.records[from % BLOCK].is_some() {
                    found.push(FlowRef::at(from));
                }
                from += 1;
            }
        }
        (found, None)
    }
}
