//! Room for new flows: who has to go when the table is full, or a subtable is condemned.
//!
//! An eviction is constant work: a look at no more than a few ports, the masks of one port, and a few
//! flows. The port that wants the room gives it, unless it has less than its fair share; then one that has
//! more gives it. Of a port's flows, those of the mask with the most flows are asked in the order of their
//! age, and one that had packets since it was asked last is spared once (second chance, Corbató 1968). The management's
//! flows are not asked: only the management removes them.
//!
//! An evicted flow is out of sight at once. Its entry is used again, and its counters are final, when no
//! worker can be using it any more; nobody waits for that.

use std::ops::Bound;

use super::flow_ref::FlowRef;
use super::megaflow::{LOCKED, Table, UnlinkedFlow, Writer};
use crate::upcall::RemovedFlow;

/// Ports that are looked at for one that has more than its share.
const PORTS: usize = 16;
/// Flows that are asked before one has to go in any case.
const MAX_CONSIDERED: usize = 8;
/// Flows that [`Table::thin`] evicts in one call.
const MAX_EVICTED_AT_ONCE: usize = 8192;
/// Evicted flows that may wait for the workers before no more are installed.
pub(in crate::classify) const MAX_UNLINKED: usize = 1 << 16;

impl Table {
    /// Evicts a flow so that port list `list` can have another. Returns whether one could go.
    pub(in crate::classify) fn make_room(&self, writer: &mut Writer, list: u16) -> bool {
        if writer.unlinked.len() >= MAX_UNLINKED {
            self.reap(writer);
            if writer.unlinked.len() >= MAX_UNLINKED {
                return false;
            }
        }
        let share = writer.count / writer.lists.len().max(1);
        let own = writer.lists.get(&list).map_or(0, |port| port.evictable);
        let own_list = (own > 0).then_some(list);
        let from = if own > 0 && own >= share { own_list } else { find_fullest(writer, share).or(own_list) };
        let Some(flow) = from.and_then(|from| self.choose(writer, from)) else { return false };
        self.evict(writer, flow);
        true
    }

    /// The flow of a port that has to go.
    fn choose(&self, writer: &mut Writer, list: u16) -> Option<FlowRef> {
        let Writer { lists, records, .. } = writer;
        let members = lists.get_mut(&list)?.members.iter_mut().filter(|m| m.evictable > 0);
        let member = members.max_by_key(|m| (m.phased_out, m.evictable))?;
        for considered in 0..=MAX_CONSIDERED {
            let flow = member.oldest;
            let record = records.get_mut(flow)?;
            let packets = self.arena.stats(flow).packets + record.slow_path_stats.as_ref().map_or(0, |c| c.packets);
            let used = std::mem::replace(&mut record.seen, packets as u32) != packets as u32;
            if !used || member.phased_out || considered == MAX_CONSIDERED {
                return Some(flow);
            }
            member.spare_oldest(records);
        }
        None
    }

    fn evict(&self, writer: &mut Writer, flow: FlowRef) {
        let id = self.arena.id(flow);
        let record = self.unlink(writer, flow);
        let epoch = self.domain.begin();
        writer.unlinked.push_back(UnlinkedFlow {
            epoch,
            flow,
            id,
            tag: record.tag,
            slow_path_stats: record.slow_path_stats,
        });
        writer.evictions += 1;
    }

    /// Finishes those evictions that no worker can know of any more.
    pub(in crate::classify) fn reap(&self, writer: &mut Writer) {
        while writer.unlinked.front().is_some_and(|unlinked| self.domain.passed(unlinked.epoch)) {
            let UnlinkedFlow { flow, id, tag, slow_path_stats, .. } =
                writer.unlinked.pop_front().expect("there is one");
            let mut stats = self.arena.stats(flow);
            if let Some(slow_path_stats) = slow_path_stats {
                stats.add(&slow_path_stats);
            }
            self.arena.free(&mut writer.free, flow, &self.domain);
            writer.evicted.push(RemovedFlow { id, stats, tag });
        }
    }

    /// The flows whose eviction is finished: each is returned once.
    pub fn take_evicted(&self) -> Vec<RemovedFlow> {
        let mut writer = self.writer.lock();
        self.reap(&mut writer);
        std::mem::take(&mut writer.evicted)
    }

    /// As [`take_evicted`](Table::take_evicted), for all flows that are out of sight by now. Must not be
    /// called by an online reader.
    pub fn take_all_evicted(&self) -> Vec<RemovedFlow> {
        if !self.writer.lock().unlinked.is_empty() {
            self.domain.synchronize();
        }
        self.take_evicted()
    }

    /// Whether evicted flows can be taken.
    pub fn has_evicted(&self) -> bool {
        let writer = self.writer.lock();
        !writer.evicted.is_empty() || !writer.unlinked.is_empty()
    }

    /// Evicts flows of condemned subtables, and those above the limits, a bounded number in each call.
    pub fn enforce_limits(&self) {
        let mut left = MAX_EVICTED_AT_ONCE;
        while left > 0 {
            let mut writer = self.writer.lock();
            let before = left;
            for _ in 0..LOCKED.min(left) {
                let flow = self.find_superfluous(&mut writer);
                let Some(flow) = flow else { break };
                self.evict(&mut writer, flow);
                left -= 1;
            }
            self.reap(&mut writer);
            if left == before {
                return;
            }
        }
    }

    fn find_superfluous(&self, writer: &mut Writer) -> Option<FlowRef> {
        if writer.unlinked.len() >= MAX_UNLINKED {
            return None;
        }
        while let Some(&list) = writer.phased_out.first() {
            let port = writer.lists.get_mut(&list);
            let members = port.map(|port| &mut port.members);
            let phased_out = members.and_then(|m| m.iter_mut().find(|m| m.phased_out));
            if let Some(member) = phased_out {
                if member.evictable > 0 {
                    return Some(member.oldest);
                }
                // The management's flows stay, and with them their subtable.
                member.phased_out = false;
                continue;
            }
            writer.phased_out.remove(&list);
        }
        if self.is_over(writer) {
            let from = find_fullest(writer, 0)?;
            return self.choose(writer, from);
        }
        None
    }
}

/// A port with more than `share` flows that may be evicted, or else the one with the most: of a few that are looked at in
/// turn.
fn find_fullest(writer: &mut Writer, share: usize) -> Option<u16> {
    let Writer { lists, clock_hand, .. } = writer;
    let behind = lists.range((Bound::Excluded(*clock_hand), Bound::Unbounded));
    let mut best = None;
    for (&list, port) in behind.chain(lists.range(..=*clock_hand)).take(PORTS) {
        *clock_hand = list;
        best = best.max((port.evictable > 0).then_some((port.evictable, list)));
        if share > 0 && port.evictable > share {
            break;
        }
    }
    best.map(|(_, list)| list)
}
