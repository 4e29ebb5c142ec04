//! Keeping the datapath's flows in step with the tables.
//!
//! There are two kinds of rounds over the flows, in chunks that several threads share:
//!
//! - A round for statistics, at each interval: it credits what flows have counted since the last one to the rules that
//!   their records name, and removes flows that no packet has used for too long. It translates nothing.
//! - A round for changes, when there are some that flows depend on: it finds the flows that they can be about
//!   ([`ChangeSet`]), by an index where they are few, translates these again, and removes or modifies those whose outcome
//!   differs. All changes before its beginning are in force at its end.
//!
//! Whoever runs [`Switch::run`] does both, and interrupts the first for the second when somebody waits for it.
//!
//! No flow escapes that was translated before a change: it is installed before the round, which meets it then, or it is
//! refused ([`Upcall::version_of`](datapath::Upcall::version_of)). A change that no flow depends on, as of a table that no
//! packet has reached, needs no round. Generations tell which flows are newer than a change.
//!
//! Changes of MAC tables and of multicast groups have no rounds: they find the flows that depend on them (`mac_changes`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use datapath::{Action, Datapath, FlowDump, FlowId, FlowTag, FlowUses, RemovedFlow};
use packet::{Key, Mask, Time};

use crate::events::Waker;
use crate::model::forwarding::Forwarding;
use crate::slowpath::change_set::ChangeSet;
use crate::slowpath::control::Revalidation;
use crate::slowpath::flow_dump_log;
use crate::slowpath::record::FlowRecord;
use crate::slowpath::revalidators::{Findings, FlowRound, Purpose};
use crate::slowpath::round::Round;
use crate::slowpath::upcall::slow_path;
use crate::switch::Switch;

/// How often recirculation ids and punts that no flow uses are released.
const COLLECT_INTERVAL: Duration = Duration::from_secs(5);
/// The same where there are many more of them than before. No packet is on its way for as long.
const COLLECT_EARLIER: Duration = Duration::from_secs(1);

/// Rounds for statistics take no more than this part of the time: one in so many.
const ROUND_SHARE: u32 = 10;

/// Up to so many flows, whoever asks for statistics gets them to the last packet, by a round of a few milliseconds. Where
/// there are more, they are as of the last round.
const COUNTED_AT_ONCE: usize = 20_000;

/// After so many chunks of a round for statistics, whoever waits for the processor gets it: a chunk takes some 20 µs.
const CHUNKS_AT_ONCE: usize = 4;

/// How many flows are removed at a time: the flows' lock is held for each part.
const REMOVED_AT_ONCE: usize = 4096;

/// What a round for changes does with a flow.
pub(super) enum Fate {
    Keep,
    Refresh(Arc<FlowRecord>),
    Modify(Vec<Action>, Arc<FlowRecord>),
    Remove,
}

impl Switch {
    /// Does what is due: rounds for changes and statistics, timeouts, MAC ageing. Returns when it wants to run next, at
    /// the latest; changes make it due at once ([`wait`](Switch::wait)). Not to be called from an upcall.
    pub fn run(&self, now: Time) -> Time {
        self.serve_requests();
        self.follow_underlay(now);
        let settings = self.settings();
        if self.waiting.is_any() {
            self.apply_changes(now);
        }
        if self.is_paused() {
            return now + settings.revalidate_interval;
        }
        let next_for_changes = self.next_for_changes(now);
        if next_for_changes == Some(now) {
            self.apply_changes(now);
        }
        // A round over very many flows takes long, and there is other work, too.
        let interval = settings.revalidate_interval.max(self.round_stats.lock().duration * ROUND_SHARE);
        let last = self.statistics.lock().last;
        if last == Time(0) || now.since(last) >= interval {
            self.take_statistics(now, false);
            self.underlay.keep_used(now);
            self.note_egress();
            if self.expire(now) {
                self.apply_changes(now);
            }
        }
        if self.next_for_macs(now) == Some(now) {
            self.follow_macs(now);
        }
        let next = [next_for_changes, self.next_for_macs(now), self.underlay.next_refresh(now)];
        next.into_iter().flatten().filter(|&at| at > now).fold(now + interval, Time::min)
    }

    /// When a round for changes is due that nobody waits for; `None` where there are no changes. Rounds for a stream of
    /// changes take half of the time.
    fn next_for_changes(&self, now: Time) -> Option<Time> {
        let state = self.revalidation.lock();
        let changed = self.forwarding.read().generation() != state.generation;
        changed.then(|| now.max(state.ended + state.duration))
    }

    /// Brings the changes so far into force. When this returns, no flow forwards a packet by the state of before the
    /// call. Statistics may be older. Not to be called from an upcall.
    pub(crate) fn apply_changes(&self, now: Time) {
        let Some(datapath) = self.datapath.get() else { return };
        let mut state = self.revalidation.lock();
        // A port that is removed from here on is left to the next round.
        self.ports_removed.store(false, Ordering::SeqCst);
        let changes = ChangeSet::since(&self.forwarding.read(), state.generation);
        let generation = changes.generation;
        if changes.is_empty() {
            // Packets may be with a worker.
            datapath.barrier();
        } else {
            self.round_for_changes(datapath, &mut state, changes, now);
        }
        self.follow_macs_now(datapath, &mut state, now);
        state.generation = generation;
        self.in_force.store(generation, Ordering::SeqCst);
        drop(state);
        self.send_removed(generation);
        self.waiting.wake(generation);
    }

    /// Calls `waker` when the changes up to a generation are in force. False where they are.
    pub(crate) fn wait_for_changes(&self, generation: u64, waker: Waker) -> bool {
        if self.is_in_force(generation) {
            return false;
        }
        self.waiting.add(generation, waker);
        self.notify();
        true
    }

    /// Whether the changes up to a generation are in force.
    pub(crate) fn is_in_force(&self, generation: u64) -> bool {
        self.in_force.load(Ordering::SeqCst) >= generation
    }

    /// Brings every datapath flow and all statistics up to date. When this returns, no flow forwards a packet by the state
    /// of before the call. Not to be called from an upcall.
    pub fn revalidate(&self) {
        let now = self.clock.now();
        self.apply_changes(now);
        self.take_statistics(now, false);
        self.follow_macs(now);
    }

    /// Removes every datapath flow, after their statistics have been counted.
    pub fn purge(&self) {
        let now = self.clock.now();
        self.take_statistics(now, true);
        self.apply_changes(now);
    }

    /// Brings statistics up to date for whoever is about to read them, unless there are so many flows that this takes
    /// long.
    pub fn refresh_statistics(&self) {
        if self.datapath.get().is_some_and(|datapath| datapath.flow_count() <= COUNTED_AT_ONCE) {
            self.take_statistics(self.clock.now(), false);
        }
    }

    /// A round for statistics. Removes idle flows, or all.
    fn take_statistics(&self, now: Time, purge: bool) {
        let Some(datapath) = self.datapath.get() else { return };
        let mut rounds = self.statistics.lock();
        let began = self.clock.now();
        let max_idle = self.settings().max_idle.as_nanos() as u64;
        let idle_since = if purge { Some(Time(u64::MAX)) } else { now.0.checked_sub(max_idle).map(Time) };
        flow_dump_log::log(datapath, now, !self.has_whole_dumps());
        let (findings, by_thread, interrupted) = self.go_round(datapath, Purpose::Statistics(idle_since), now);
        self.remove(datapath, &findings);
        if purge {
            self.records.clear();
            self.interners.frozen.retire();
            self.interners.packet_ins.retire();
        }
        // Some flows were evicted before the round came to them, or since. Their packets came before its end, too.
        datapath.hand_over_evicted();
        let took = self.clock.now().since(began).saturating_sub(interrupted);
        self.round_stats.lock().note(by_thread, took);
        rounds.last = now;
        let has_grown = self.interners.frozen.has_grown() || self.interners.packet_ins.has_grown();
        let interval = if has_grown { COLLECT_EARLIER } else { COLLECT_INTERVAL };
        if now.since(rounds.last_collect) >= interval {
            rounds.last_collect = now;
            self.records.clear();
            self.interners.frozen.collect();
            self.interners.packet_ins.collect();
            self.interners.questions.collect();
        }
    }

    /// A round for changes.
    fn round_for_changes(&self, datapath: &Datapath, state: &mut Revalidation, changes: ChangeSet, now: Time) {
        let began = self.clock.now();
        let found = changes.find(datapath);
        let indexed = found.is_some();
        let findings = match found {
            Some(flows) => vec![self.bring_up_to_date(datapath, &flows, now)],
            None => self.go_round(datapath, Purpose::Changes(changes), now).0,
        };
        self.finish(datapath, &findings);
        state.ended = self.clock.now();
        state.duration = state.ended.since(began);
        let mut stats = self.round_stats.lock();
        stats.count += 1;
        stats.indexed += u64::from(indexed);
        stats.translated += findings.iter().map(|part| part.translated as u64).sum::<u64>();
    }

    /// Removes what is gone. When this returns, no packet gets the old actions.
    pub(super) fn finish(&self, datapath: &Datapath, findings: &[Findings]) {
        self.remove(datapath, findings);
        if findings.iter().any(|part| part.acted) {
            datapath.barrier();
        }
    }

    /// Goes over every flow, with all revalidators. Returns what is to be done, how many flows each one had, and how long
    /// the round was interrupted.
    fn go_round(&self, datapath: &Datapath, purpose: Purpose, now: Time) -> (Vec<Findings>, Vec<usize>, Duration) {
        let threads = 1 + self.helpers.count();
        let interruptible = matches!(purpose, Purpose::Statistics(_));
        let round = Arc::new(FlowRound { chunks: Round::new(threads, datapath.flow_numbers()), now, purpose });
        let mut interrupted = Duration::ZERO;
        // One chunk is not worth waking the helpers.
        self.work(datapath, &round, 0, |done| {
            if done == 1 && threads > 1 && round.chunks.has_more() {
                self.helpers.call(&round);
            }
            if interruptible && self.waiting.is_any() {
                let began = self.clock.now();
                round.chunks.interrupt(|| self.apply_changes(began));
                interrupted += self.clock.now().since(began);
            }
        });
        let (findings, by_thread) = round.chunks.finish();
        (findings, by_thread, interrupted)
    }

    /// Works on a round that another thread has started.
    pub(super) fn take_part(&self, round: &FlowRound, thread: usize) {
        let Some(datapath) = self.datapath.get() else { return };
        self.work(datapath, round, thread, |_| {});
    }

    /// Works on chunks as long as there are some. Between them, calls `between` with the number of chunks so far.
    fn work(&self, datapath: &Datapath, round: &FlowRound, thread: usize, mut between: impl FnMut(usize)) {
        let (mut done, size) = (0, Datapath::FLOW_CHUNK);
        // A chunk of a round for changes may translate many flows.
        let at_once = if matches!(round.purpose, Purpose::Statistics(_)) { CHUNKS_AT_ONCE } else { 1 };
        let mut next = |work: &mut dyn FnMut(usize) -> (Findings, usize)| {
            let more = round.chunks.work_on_chunk(thread, size, work);
            if more {
                done += 1;
                between(done);
                if done.is_multiple_of(at_once) {
                    // Requests are answered by threads that sleep until then, maybe on this processor.
                    std::thread::yield_now();
                }
            }
            more
        };
        match &round.purpose {
            Purpose::Statistics(idle_since) => {
                let mut uses = FlowUses::default();
                while next(&mut |from| self.count(datapath, from, *idle_since, &mut uses)) {}
            }
            Purpose::Changes(changes) => {
                let (mut sorter, mut found) = (changes.sorter(), Vec::new());
                let mut judge = |from| {
                    found.clear();
                    let wanted =
                        |tag: &FlowTag, mask: &_, read: &dyn Fn(&mut Key) -> bool| sorter.is_about(tag, mask, read);
                    let flows = datapath.find_flows(from, wanted, &mut found);
                    (self.bring_up_to_date(datapath, &found, round.now), flows)
                };
                while next(&mut judge) {}
            }
        }
    }

    /// Credits what the flows of a chunk have counted.
    fn count(
        &self,
        datapath: &Datapath,
        from: usize,
        idle_since: Option<Time>,
        uses: &mut FlowUses,
    ) -> (Findings, usize) {
        datapath.take_uses(from, idle_since, uses);
        let forwarding = self.forwarding.read();
        for (tag, stats) in uses.used.drain(..) {
            if let Some(record) = tag.downcast_ref::<FlowRecord>() {
                record.credit_stats(&forwarding, &stats, true);
            }
        }
        self.apply_mac_uses(&forwarding);
        (Findings { gone: std::mem::take(&mut uses.idle), ..Findings::default() }, uses.flows)
    }

    /// Brings these flows up to date, but for removing them.
    pub(super) fn bring_up_to_date(&self, datapath: &Datapath, flows: &[(FlowId, FlowTag)], now: Time) -> Findings {
        let mut findings = Findings::default();
        for (id, tag) in flows {
            let id = *id;
            let fate = self.judge(datapath, id, tag, now);
            findings.translated += usize::from(!matches!(fate, Fate::Keep));
            match fate {
                Fate::Keep => {}
                Fate::Remove => findings.gone.push(id),
                Fate::Refresh(record) => self.set_record(datapath, id, record),
                Fate::Modify(actions, record) => {
                    findings.acted = true;
                    let _ = datapath.modify(id, actions);
                    self.set_record(datapath, id, record);
                }
            }
        }
        findings
    }

    /// A flow that was removed meanwhile needs nothing.
    fn set_record(&self, datapath: &Datapath, flow: FlowId, record: Arc<FlowRecord>) {
        self.adopt(flow, &record, &self.forwarding.read());
        let _ = datapath.set_tag(flow, record);
    }

    fn judge(&self, datapath: &Datapath, id: FlowId, tag: &FlowTag, now: Time) -> Fate {
        let Some(record) = tag.downcast_ref::<FlowRecord>() else { return Fate::Keep };
        let forwarding = self.forwarding.read();
        if !record.is_stale(&forwarding) && !record.macs.is_stale(&forwarding) {
            return Fate::Keep;
        }
        drop(forwarding);
        // A flow that was removed meanwhile needs nothing.
        let Some(flow) = datapath.flow(id) else { return Fate::Keep };
        let counted = datapath.take_use(id);
        let forwarding = self.forwarding.read();
        if let Some(stats) = counted {
            record.credit_stats(&forwarding, &stats, false);
        }
        let fate = self.translate_again(&forwarding, &flow, now);
        if let Fate::Modify(actions, _) = &fate {
            flow_dump_log::modified(&forwarding, &flow, actions);
        }
        fate
    }

    /// Compares a flow with what it would be if it were installed now.
    pub(super) fn translate_again(&self, forwarding: &Forwarding, flow: &FlowDump, now: Time) -> Fate {
        let Some(mut new) = self.translate_dp(forwarding, &flow.key, None, now) else { return Fate::Remove };
        if new.record.volatile || new.too_long || !covers(&flow.mask, &new.mask) {
            return Fate::Remove;
        }
        if new.slow {
            // As when it was made: where a packet is dropped is found out when it is translated for itself.
            new.record.drop_site = None;
        }
        let record = self.records.share(forwarding, new.record);
        let actions = if new.slow { vec![slow_path(forwarding, &flow.key)] } else { new.actions };
        if actions[..] == flow.actions[..] { Fate::Refresh(record) } else { Fate::Modify(actions, record) }
    }

    /// Removes the flows that a round has found to be gone.
    fn remove(&self, datapath: &Datapath, findings: &[Findings]) {
        let mut part = Vec::with_capacity(REMOVED_AT_ONCE);
        let all = findings.iter().flat_map(|findings| &findings.gone);
        let mut all = all.peekable();
        while all.peek().is_some() {
            part.clear();
            part.extend(all.by_ref().take(REMOVED_AT_ONCE));
            self.credit_last(datapath.remove_all(&part));
        }
    }

    /// Credits the last packets of removed flows.
    pub(crate) fn credit_last(&self, flows: Vec<RemovedFlow>) {
        let forwarding = self.forwarding.read();
        for flow in flows {
            if let Some(record) = flow.tag.downcast_ref::<FlowRecord>() {
                record.credit_stats(&forwarding, &flow.rest, false);
                record.end_netflow();
            }
        }
        self.apply_mac_uses(&forwarding);
    }
}

/// Whether the flow looks at everything that the translation does.
fn covers(flow: &Mask, translation: &Mask) -> bool {
    translation.0.present().iter().all(|block| {
        let (a, b) = (flow.0.block(block).words(), translation.0.block(block).words());
        a.iter().zip(b).all(|(a, b)| a & b == *b)
    })
}

#[cfg(test)]
mod tests {
    use openflow::group::{Bucket, GroupCommand, GroupMod, GroupSpec, GroupType, Selection, bucket_id};
    use openflow::{Action, GroupId, Match, OfPort};
    use packet::wire::build;

    use crate::model::vlan::{PortVlan, VlanMode};
    use crate::reference::tests::Bed;

    fn resubmit(table: u8) -> Action {
        Action::Resubmit { in_port: OfPort::IN_PORT, table: openflow::TableId(table), with_ct: false }
    }

    fn all_group(port: u32) -> GroupSpec {
        let bucket = Bucket {
            id: 0,
            weight: 0,
            watch_port: OfPort::ANY,
            watch_group: GroupId::ANY,
            actions: vec![Action::output(OfPort(port))],
        };
        GroupSpec { kind: GroupType::All, buckets: vec![bucket], selection: Selection::default() }
    }

    fn set_group(bed: &Bed, id: u32, port: u32) {
        let (command, command_bucket) = (GroupCommand::AddOrModify, bucket_id::ALL);
        let change = GroupMod { command, group: GroupId(id), command_bucket, spec: all_group(port) };
        bed.bridge.group_mod(&change).unwrap();
    }

    #[test]
    fn a_change_that_no_flow_depends_on_looks_at_no_flow() {
        let bed = Bed::new(4);
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x1234, &[0; 46]);
        let output = |port| vec![Action::output(OfPort(port))];
        let receive = || bed.receive(OfPort(1), &frame).iter().map(|&(port, _)| port.0).collect::<Vec<_>>();
        // Of what a barrier brings into force: whether the flows were looked at for it.
        let looked = || {
            let rounds = bed.switch.revalidation_stats().count;
            bed.bridge.barrier();
            bed.switch.revalidation_stats().count - rounds
        };
        bed.add_flow(0, 1, Match::any(), vec![resubmit(2)]);
        bed.add_flow(2, 1, Match::any(), output(2));
        set_group(&bed, 1, 3);
        looked();
        assert_eq!(receive(), [2]);

        bed.add_flow(1, 1, Match::any(), output(4));
        set_group(&bed, 1, 4);
        assert_eq!(looked(), 0, "neither table 1 nor the groups");
        bed.add_flow(2, 2, Match::any(), vec![Action::Group(GroupId(1))]);
        assert_eq!((looked(), receive()), (1, vec![4]), "table 2");
        set_group(&bed, 1, 3);
        assert_eq!((looked(), receive()), (1, vec![3]), "the groups");
        bed.add_flow(0, 2, Match::any(), vec![resubmit(1)]);
        assert_eq!((looked(), receive()), (1, vec![4]), "table 0");
        bed.add_flow(1, 2, Match::any(), output(2));
        assert_eq!((looked(), receive()), (1, vec![2]), "and now table 1");

        // Without flows, nothing is depended on.
        bed.switch.purge();
        bed.switch.records.clear();
        for table in 0..3 {
            bed.add_flow(table, 3, Match::any(), output(3));
        }
        assert_eq!((looked(), receive()), (0, vec![3]));
    }

    /// The type of a tag is not matched where it is left as it is. The flow's key has it all the same: without it, the tag would be taken for
    /// another one than what comes out.
    #[test]
    fn a_change_elsewhere_keeps_the_flows_of_tagged_packets() {
        let bed = Bed::new(4);
        for (port, qinq_ethertype) in [(3, 0x88a8), (4, 0x8100)] {
            let vlan = PortVlan { mode: VlanMode::Dot1qTunnel, tag: 9, qinq_ethertype, ..PortVlan::default() };
            bed.bridge.set_port_vlan(OfPort(port), vlan).unwrap();
        }
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort::NORMAL)]);
        let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let frame = |to, from, tags: &[(u16, u16)]| build::ethernet(to, from, tags, 0x1234, &[0; 46]);
        for tags in [&[(0x8100, 5)][..], &[(0x88a8, 6)], &[(0x88a8, 7), (0x8100, 8)]] {
            for ports in [(1, 2), (3, 4)] {
                bed.receive(OfPort(ports.0), &frame([0xff; 6], here, tags));
                for (port, to, from) in [(ports.1, here, there), (ports.0, there, here)] {
                    assert_eq!(bed.receive(OfPort(port), &frame(to, from, tags)).len(), 1);
                }
            }
        }
        // By the trunk, in the tunnels' VLAN.
        for tags in [&[(0x8100, 9)][..], &[(0x88a8, 9), (0x8100, 8)]] {
            bed.receive(OfPort(1), &frame(there, here, tags));
            bed.receive(OfPort(3), &frame(here, there, &tags[1..]));
        }
        bed.bridge.barrier();
        let flows = || bed.datapath.flows().map(|flow| (flow.id, flow.actions)).collect::<Vec<_>>();
        let before = flows();
        bed.add_flow(0, 2, Match::any(), vec![Action::output(OfPort::NORMAL)]);
        let translated = bed.switch.revalidation_stats().translated;
        bed.bridge.barrier();
        assert_eq!(bed.switch.revalidation_stats().translated - translated, before.len() as u64);
        assert_eq!(flows(), before);
    }
}
