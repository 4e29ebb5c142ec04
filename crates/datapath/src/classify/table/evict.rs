//! Eviction: which flow makes room for a new one when the table is full, and how subtables are phased out.
//!
//! An eviction is constant work: it looks at a bounded number of ports and lists, at the masks of one list, and at a
//! few flows. The input port that needs room gives a flow, unless it has less than its fair share; then a port with more
//! than its share does. Of a port's lists, one with many flows is chosen; within the list, the subtable with the most
//! flows, whose flows are considered in the order of their age. A flow that had packets since it was considered last is spared once (second chance, Corbató 1968).
//! Flows of the management are never evicted.
//!
//! An evicted flow is unlinked at once. Its entry is reused, and its counters are final, when no worker can be using
//! it any more. Nothing waits for that. The evictions for several new flows are made together, so that they wait for memory
//! only once, and share a grace period.

use std::ops::Bound;

use packet::BATCH_SIZE;
use smallvec::SmallVec;

use super::flow_ref::FlowRef;
use super::masks::PortFlows;
use super::megaflow::{Detached, LOCKED, Table, UnlinkedFlow, Writer};
use super::stages::list_index;
use crate::pipeline::recirculation::RecircStage;
use crate::upcall::RemovedFlow;

/// How many lists are looked at for one with more than its share.
const PORTS: usize = 16;
/// How many flows can be spared before one is evicted in any case.
const MAX_CONSIDERED: usize = 8;
/// How many flows [`Table::enforce_limits`] evicts in one call.
const MAX_EVICTED_AT_ONCE: usize = 8192;
/// How many evicted flows may wait for a grace period before no more are evicted.
pub(in crate::classify) const MAX_UNLINKED: usize = 1 << 16;

impl Table {
    /// Evicts a flow so that the stage's list, which has this number, can have another one. Returns whether a flow was
    /// evicted.
    pub(in crate::classify) fn make_room(&self, writer: &mut Writer, list: u16, stage: RecircStage) -> bool {
        if writer.unlinked.len() >= MAX_UNLINKED {
            self.reap(writer);
            if writer.unlinked.len() >= MAX_UNLINKED {
                return false;
            }
        }
        let Some(flow) = self.choose_for(writer, list, stage) else { return false };
        self.evict(writer, flow);
        true
    }

    /// Evicts flows so that there is room for one of each of these stages, up to the first whose port has less than its
    /// share: the flows that would go one by one. From there on, room is found when the flows are installed.
    pub(in crate::classify) fn make_room_for(&self, writer: &mut Writer, stages: impl Iterator<Item = RecircStage>) {
        // All are chosen before the first is unlinked: meanwhile the memory that this needs is on its way.
        let mut evicted: SmallVec<[Detached; BATCH_SIZE]> = SmallVec::new();
        // How many flows of each port come before.
        let mut before: SmallVec<[(u16, usize); 4]> = SmallVec::new();
        for (number, stage) in stages.enumerate() {
            let port = list_index(stage.in_port);
            let at = before.iter().position(|(other, _)| *other == port).unwrap_or_else(|| {
                before.push((port, 0));
                before.len() - 1
            });
            let of_port = before[at].1;
            before[at].1 += 1;
            if !self.is_full_with(writer, number) {
                continue;
            }
            if writer.unlinked.len() + evicted.len() >= MAX_UNLINKED {
                break;
            }
            // As it is when those that come before are there.
            let share = ((writer.count + number) / writer.ports.len().max(1)).saturating_sub(of_port);
            if !has_share(writer, port, share) {
                break;
            }
            let asking = self.list_now(writer, stage);
            let Some(flow) = choose_list(writer, port, asking).and_then(|list| self.choose(writer, list)) else {
                break;
            };
            let detached = self.detach(writer, flow);
            detached.record.subtable.prefetch_for_writer(detached.hash);
            evicted.push(detached);
        }
        if evicted.is_empty() {
            return;
        }
        evicted.iter().for_each(|detached| self.make_dead(writer, detached));
        let epoch = self.domain.begin();
        evicted.into_iter().for_each(|detached| self.let_wait(writer, detached, epoch));
    }

    /// The flow to be evicted for one of this stage, whose list has this number. Shares are of input ports: a port does
    /// not get more by having flows in many stages.
    fn choose_for(&self, writer: &mut Writer, list: u16, stage: RecircStage) -> Option<FlowRef> {
        let share = writer.count / writer.ports.len().max(1);
        let port = list_index(stage.in_port);
        let own = writer.ports.get(&port).filter(|port| port.evictable > 0).map(|_| port);
        let from = if has_share(writer, port, share) { own } else { find_fullest(writer, share).or(own) };
        let from = choose_list(writer, from?, list)?;
        self.choose(writer, from)
    }

    /// The flow of a list that is evicted.
    fn choose(&self, writer: &mut Writer, list: u16) -> Option<FlowRef> {
        let Writer { lists, records, .. } = writer;
        let members = lists.get_mut(&list)?.members.iter_mut().filter(|m| m.evictable > 0);
        let member = members.max_by_key(|m| (m.phased_out, m.evictable))?;
        for considered in 0..=MAX_CONSIDERED {
            let flow = member.oldest;
            let record = records.get_mut(flow)?;
            let packets = self.arena.stats(flow).packets + record.slow_path_stats.as_ref().map_or(0, |c| c.packets);
            let used = std::mem::replace(&mut record.seen, packets as u32) != packets as u32;
            // The next one to be asked, perhaps at the next eviction.
            let next = record.newer;
            records.prefetch(next);
            self.arena.prefetch_for_writer(next);
            if !used || member.phased_out || considered == MAX_CONSIDERED {
                return Some(flow);
            }
            member.spare_oldest(records);
        }
        None
    }

    fn evict(&self, writer: &mut Writer, flow: FlowRef) {
        let detached = self.detach(writer, flow);
        self.make_dead(writer, &detached);
        let epoch = self.domain.begin();
        self.let_wait(writer, detached, epoch);
    }

    /// Has an unlinked flow wait until this epoch has passed.
    fn let_wait(&self, writer: &mut Writer, detached: Detached, epoch: u64) {
        let Detached { flow, record, taken, .. } = detached;
        writer.unlinked.push_back(UnlinkedFlow { epoch, flow, id: self.arena.id(flow), record, taken });
        writer.evictions += 1;
    }

    /// Finishes those evictions whose flow no worker can use any more.
    pub(in crate::classify) fn reap(&self, writer: &mut Writer) {
        // Flows that were evicted together have one epoch.
        let mut passed = 0;
        let mut has_passed = |epoch| {
            let has = epoch == passed || self.domain.passed(epoch);
            passed = if has { epoch } else { passed };
            has
        };
        while writer.unlinked.front().is_some_and(|unlinked| has_passed(unlinked.epoch)) {
            let UnlinkedFlow { flow, id, record, mut taken, .. } = writer.unlinked.pop_front().expect("there is one");
            let stats = self.stats_of(flow, &record);
            self.arena.free(&mut writer.free, flow);
            writer.evicted.push(RemovedFlow { id, rest: taken.take(&stats), stats, tag: record.tag });
        }
    }

    /// The flows whose eviction is finished: each is returned once.
    pub fn take_evicted(&self) -> Vec<RemovedFlow> {
        let mut writer = self.writer.lock();
        self.reap(&mut writer);
        std::mem::take(&mut writer.evicted)
    }

    /// As [`take_evicted`](Table::take_evicted), for all flows that are unlinked by now. Must not be called by an
    /// online reader.
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

    /// Evicts flows of subtables that are phased out, and flows above the limits, a bounded number in each call.
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
                // The flows that are left are the management's. They stay, and so does their subtable.
                member.phased_out = false;
                continue;
            }
            writer.phased_out.remove(&list);
        }
        if self.is_over(writer) {
            let port = find_fullest(writer, 0)?;
            let from = choose_list(writer, port, 0)?;
            return self.choose(writer, from);
        }
        None
    }
}

/// Whether a port has at least `share` flows that may be evicted.
fn has_share(writer: &Writer, port: u16, share: usize) -> bool {
    writer.ports.get(&port).is_some_and(|port| port.evictable > 0 && port.evictable >= share)
}

/// A port with more than `share` flows that may be evicted, or else the one with the most. Looks at a few ports, starting
/// behind the last one of the previous call.
fn find_fullest(writer: &mut Writer, share: usize) -> Option<u16> {
    let Writer { ports, clock_hand, .. } = writer;
    let behind = ports.range((Bound::Excluded(*clock_hand), Bound::Unbounded));
    let mut best = None;
    for (&number, port) in behind.chain(ports.range(..=*clock_hand)).take(PORTS) {
        *clock_hand = number;
        best = best.max((port.evictable > 0).then_some((port.evictable, number)));
        if share > 0 && port.evictable > share {
            break;
        }
    }
    best.map(|(_, number)| number)
}

/// The list of a port that a flow is evicted from: of `asking` and a few others, starting behind the last one of the
/// previous call, the one with the most flows that may be evicted.
fn choose_list(writer: &mut Writer, port: u16, asking: u16) -> Option<u16> {
    let Writer { ports, lists, .. } = writer;
    let PortFlows { lists: own, clock_hand, .. } = ports.get_mut(&port)?;
    let evictable = |list: u16| lists.get(&list).map_or(0, |list| list.evictable);
    let mut best = own.contains(&asking).then(|| (evictable(asking), asking));
    let behind = own.range((Bound::Excluded(*clock_hand), Bound::Unbounded));
    for &list in behind.chain(own.range(..=*clock_hand)).take(PORTS) {
        *clock_hand = list;
        best = best.max(Some((evictable(list), list)));
    }
    best.filter(|&(evictable, _)| evictable > 0).map(|(_, list)| list)
}
