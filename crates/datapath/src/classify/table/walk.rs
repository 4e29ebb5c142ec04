//! Walks over all flows, a chunk of numbers at a time: what they have counted, and which of them are to be looked at.
//!
//! A walk takes the mutex for a few flows at a time, allocates nothing for a flow, and reads no more of it than it
//! needs: of an unused flow its record and its counters, which lie in arrays.

use std::collections::BTreeSet;
use std::sync::Arc;

use packet::{Key, Mask, Time};

use super::megaflow::{LOCKED, Table, Writer};
use crate::action::PortNo;
use crate::upcall::{FlowId, FlowStats, FlowTag, FlowUses};

/// Numbers in a chunk.
pub const FLOW_CHUNK: usize = 4 * LOCKED;

impl Table {
    /// The numbers of all flows are below this one.
    pub fn flow_numbers(&self) -> usize {
        self.writer.lock().records.end()
    }

    /// Takes what the flows of the chunk from number `from` on have counted since the last walk, and finds those that
    /// no packet has used since `idle_since`. Those of the management are never idle.
    pub fn take_uses(&self, from: usize, idle_since: Option<Time>, uses: &mut FlowUses) {
        uses.flows = 0;
        uses.used.clear();
        uses.idle.clear();
        for from in (from..from + FLOW_CHUNK).step_by(LOCKED) {
            let Writer { records, .. } = &mut *self.writer.lock();
            records.visit(from..from + LOCKED, |flow, record, taken| {
                uses.flows += 1;
                let stats = self.stats_of(flow, record);
                let new = taken.take(&stats);
                if new.packets > 0 {
                    match uses.used.last_mut().filter(|(tag, _)| Arc::ptr_eq(tag, &record.tag)) {
                        Some((_, sum)) => sum.add(&new),
                        None => uses.used.push((record.tag.clone(), new)),
                    }
                }
                if !record.managed && idle_since.is_some_and(|since| stats.used.max(record.created) <= since) {
                    uses.idle.push(self.arena.id(flow));
                }
            });
        }
    }

    /// Calls `visit` for the flows of the chunk from number `from` on, with their input port, what they have counted in all, and their tag. Takes
    /// nothing of it. The mutex is held.
    pub fn visit_flows(&self, from: usize, mut visit: impl FnMut(FlowId, PortNo, &FlowStats, &FlowTag)) {
        for from in (from..from + FLOW_CHUNK).step_by(LOCKED) {
            let Writer { records, lists, .. } = &mut *self.writer.lock();
            records.visit(from..from + LOCKED, |flow, record, _| {
                if let Some(list) = lists.get(&record.list) {
                    visit(self.arena.id(flow), list.stage.in_port, &self.stats_of(flow, record), &record.tag);
                }
            });
        }
    }

    /// The input ports with a list that is asked for more masks than it may have, so that some of its flows match more than they would.
    pub fn ports_under_mask_pressure(&self) -> BTreeSet<PortNo> {
        let writer = self.writer.lock();
        let pressed = writer.lists.values().filter(|list| list.pressure.is_some());
        pressed.map(|list| list.stage.in_port).collect()
    }

    /// Takes what a flow has counted since the last walk.
    pub fn take_use(&self, id: FlowId) -> Option<FlowStats> {
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id)?;
        let (record, taken) = writer.records.get_with_taken(flow)?;
        Some(taken.take(&self.stats_of(flow, record)))
    }

    /// Appends those flows of the chunk from number `from` on that `is_wanted` by tag, mask and masked key, which it can
    /// have written to a key of its own. Returns how many flows there were.
    pub fn find_flows(
        &self,
        from: usize,
        mut is_wanted: impl FnMut(&FlowTag, &Arc<Mask>, &dyn Fn(&mut Key) -> bool) -> bool,
        found: &mut Vec<(FlowId, FlowTag)>,
    ) -> usize {
        let mut flows = 0;
        for from in (from..from + FLOW_CHUNK).step_by(LOCKED) {
            let Writer { records, .. } = &mut *self.writer.lock();
            records.visit(from..from + LOCKED, |flow, record, _| {
                flows += 1;
                if is_wanted(&record.tag, &record.subtable.mask, &|key| self.arena.read_key_for_writer(flow, key)) {
                    found.push((self.arena.id(flow), record.tag.clone()));
                }
            });
        }
        flows
    }
}
