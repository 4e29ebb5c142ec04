//! What only the writer needs to know of a flow: for dumps, removal and eviction.

use std::sync::Arc;

use packet::Time;

use super::flow_ref::FlowRef;
use super::subtable::Subtable;
use crate::action::Action;
use crate::upcall::{FlowStats, FlowTag};

/// Records in a block. Few, so that a kind of flow of which there are few costs little.
const BLOCK: usize = 1 << 10;

/// A live flow's record.
pub(in crate::classify) struct Record {
    pub tag: FlowTag,
    pub actions: Arc<[Action]>,
    pub created: Time,
    pub subtable: Arc<Subtable>,
    /// What was counted for packets that the slow path has answered by this flow.
    pub slow_path_stats: Option<Box<FlowStats>>,
    /// The neighbours among the flows of the same input port and mask that may be evicted.
    pub newer: FlowRef,
    pub older: FlowRef,
    /// Packets, truncated, when the eviction looked at it last.
    pub seen: u32,
    /// Which mask its translation asked for, as a number; zero where it has got that one.
    pub requested: u32,
    /// Index of the input port's list.
    pub list: u16,
    /// Whether it came from the management, which alone removes it again.
    pub managed: bool,
}

const _: () = assert!(size_of::<Option<Record>>() <= 80);

/// Records by flow number.
#[derive(Default)]
pub(in crate::classify) struct Records(Vec<Option<Box<[Option<Record>]>>>);

impl Records {
    pub fn get(&self, flow: FlowRef) -> Option<&Record> {
        let at = flow.index();
        self.0.get(at / BLOCK)?.as_ref()?[at % BLOCK].as_ref()
    }

    pub fn get_mut(&mut self, flow: FlowRef) -> Option<&mut Record> {
        let at = flow.index();
        self.0.get_mut(at / BLOCK)?.as_mut()?[at % BLOCK].as_mut()
    }

    pub fn insert(&mut self, flow: FlowRef, record: Record) {
        let at = flow.index();
        if self.0.len() <= at / BLOCK {
            self.0.resize_with(at / BLOCK + 1, || None);
        }
        let block = self.0[at / BLOCK].get_or_insert_with(|| (0..BLOCK).map(|_| None).collect());
        block[at % BLOCK] = Some(record);
    }

    pub fn remove(&mut self, flow: FlowRef) -> Option<Record> {
        let at = flow.index();
        self.0.get_mut(at / BLOCK)?.as_mut()?[at % BLOCK].take()
    }

    /// The flows from number `from` on, at most `count`, and the number to go on with; `None` at the end.
    pub fn some(&self, mut from: usize, count: usize) -> (Vec<FlowRef>, Option<usize>) {
        let mut found = Vec::with_capacity(count);
        while let Some(block) = self.0.get(from / BLOCK) {
            let end = (from / BLOCK + 1) * BLOCK;
            let Some(block) = block else {
                from = end;
                continue;
            };
            while from < end {
                if found.len() == count {
                    return (found, Some(from));
                }
                if block[from % BLOCK].is_some() {
                    found.push(FlowRef::at(from));
                }
                from += 1;
            }
        }
        (found, None)
    }
}
