//! Finding the flows that can match a packet which a rule matches, by an [index](super::index).

use std::sync::Arc;

use packet::{Key, Mask, Time};

use super::index::{Cursor, indexed_bits};
use super::megaflow::{LOCKED, Table, Writer};
use crate::upcall::{FlowId, FlowTag};

/// Where more than one in so many flows is looked at, a walk over all of them takes no longer.
const WALK_SHARE: usize = 16;

/// After so many parts, of which each takes the mutex once, whoever waits for the processor gets it.
const PARTS_AT_ONCE: usize = 32;

/// So many flows are looked at in any case.
const ALWAYS: usize = 1024;

impl Table {
    /// Finds the flows that agree with one of `values` in all bits that both `mask` and their own mask have, and appends
    /// those of them that `is_wanted`, as [`find_flows`](Table::find_flows) does. Others may be among them.
    ///
    /// Returns false where a walk over all flows would take no longer, or where there is no index, and appends none then.
    /// Flows that are installed meanwhile may be missed.
    pub fn find_agreeing(
        &self,
        mask: &Mask,
        values: &[Key],
        now: Time,
        is_wanted: impl FnMut(&FlowTag, &Arc<Mask>, &dyn Fn(&mut Key) -> bool) -> bool,
        found: &mut Vec<(FlowId, FlowTag)>,
    ) -> bool {
        let Some(bits) = indexed_bits(mask) else { return false };
        let before = found.len();
        let all = self
            .index(&bits, values.len(), now)
            .and_then(|(index, most)| self.find_by_index(index, most, values, is_wanted, found));
        if all.is_none() {
            found.truncate(before);
        }
        all.is_some()
    }

    /// The index for these bits, with all flows in it, and how many of them may be looked at. `None` where a look-up of
    /// so many values takes too long, or where there is no index.
    fn index(&self, bits: &Mask, values: usize, now: Time) -> Option<(u64, usize)> {
        let (number, is_complete, end) = {
            let mut writer = self.writer.lock();
            if writer.count < self.indexed_from() || self.is_walk_shorter(writer.subtables.len() * values, &writer) {
                return None;
            }
            let Writer { indexes, count, records, .. } = &mut *writer;
            let number = indexes.get_or_make(bits, *count, now)?;
            (number, indexes.get(number)?.is_complete, records.end())
        };
        // What is installed from here on gets into the index at once.
        if !is_complete {
            let mut key = Box::<Key>::default();
            for (from, part) in (0..end).step_by(LOCKED).zip(1usize..) {
                self.fill(number, from, &mut key)?;
                if part.is_multiple_of(PARTS_AT_ONCE) {
                    std::thread::yield_now();
                }
            }
        }
        let mut writer = self.writer.lock();
        let most = (writer.count / WALK_SHARE).max(ALWAYS);
        let index = writer.indexes.get(number)?;
        index.is_complete = true;
        Some((number, most))
    }

    /// Adds the flows of a few numbers, from one on, to an index. `None` where the index has gone.
    fn fill(&self, number: u64, from: usize, key: &mut Key) -> Option<()> {
        let Writer { records, indexes, .. } = &mut *self.writer.lock();
        let index = indexes.get(number)?;
        records.visit(from..from + LOCKED, |flow, record, _| {
            if !index.has(flow) && self.arena.read_key_for_writer(flow, key) {
                index.insert(flow, &record.subtable, key, &self.hasher);
            }
        });
        Some(())
    }

    fn is_walk_shorter(&self, steps: usize, writer: &Writer) -> bool {
        steps > (writer.count / WALK_SHARE).max(ALWAYS)
    }

    /// `None` where there are more steps than `most`, or the index has gone.
    fn find_by_index(
        &self,
        index: u64,
        most: usize,
        values: &[Key],
        mut is_wanted: impl FnMut(&FlowTag, &Arc<Mask>, &dyn Fn(&mut Key) -> bool) -> bool,
        found: &mut Vec<(FlowId, FlowTag)>,
    ) -> Option<()> {
        let (mut values, mut chains, mut steps) = (values.iter(), Vec::<Cursor>::new(), 0);
        while steps <= most {
            let Writer { records, indexes, .. } = &mut *self.writer.lock();
            let index = indexes.get(index)?;
            let pause = steps + LOCKED;
            while steps < pause {
                let Some(at) = chains.pop() else {
                    let Some(value) = values.next() else { return Some(()) };
                    index.look_up(value, &self.hasher, &mut chains);
                    steps += index.subtables();
                    continue;
                };
                let (flow, next) = index.follow(at)?;
                chains.extend(next);
                steps += 1;
                let Some((flow, record)) = flow.and_then(|flow| Some((flow, records.get(flow)?))) else { continue };
                if is_wanted(&record.tag, &record.subtable.mask, &|key| self.arena.read_key_for_writer(flow, key)) {
                    found.push((self.arena.id(flow), record.tag.clone()));
                }
            }
        }
        None
    }
}
