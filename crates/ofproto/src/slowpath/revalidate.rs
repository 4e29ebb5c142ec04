//! Keeping the datapath's flows in step with the tables.
//!
//! A round looks at every flow of the datapath:
//!
//! 1. it credits the flow's packets to the rules that its record names;
//! 2. it removes the flow if it was idle for too long;
//! 3. it translates the flow again if something that it depends on has changed;
//! 4. it removes or modifies the flow if the outcome differs.
//!
//! There is a round at each interval, and at once after a change that flows depend on. Such a change is in force when a
//! round that began after it has ended and the workers have passed a barrier. A change that no flow depends on, as of a
//! table that no packet has reached, takes only the barrier ([`Forwarding::affects_flows`]). Generations tell which flows a change affects
//! ([`FlowRecord::is_stale`]). So the next round also finds a flow that was translated before a change and installed
//! after it.
//!
//! Changes of MAC tables have no rounds: they find the flows that depend on them (`mac_changes`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use datapath::{Action, Datapath, FlowBrief, FlowDump, FlowId, RemovedFlow};
use packet::{Mask, Time};

use crate::model::forwarding::{BridgeId, Forwarding};
use crate::slowpath::control::Revalidation;
use crate::slowpath::record::FlowRecord;
use crate::slowpath::revalidators::{Findings, FlowRound};
use crate::slowpath::round::Round;
use crate::switch::Switch;

/// How often recirculation ids and punts that no flow uses are released.
const COLLECT_INTERVAL: Duration = Duration::from_secs(5);

/// Rounds at intervals take no more than this part of the time: one in so many.
const ROUND_SHARE: u32 = 5;

/// What a round does with a flow.
pub(super) enum Fate {
    Keep,
    Refresh(Arc<FlowRecord>),
    Modify(Vec<Action>, Arc<FlowRecord>),
    Remove,
}

impl Findings {
    /// Adds what is to be done with a flow.
    pub(super) fn add(&mut self, flow: FlowId, fate: Fate) {
        match fate {
            Fate::Keep => {}
            Fate::Refresh(record) => self.modified.push((flow, None, record)),
            Fate::Modify(actions, record) => self.modified.push((flow, Some(actions), record)),
            Fate::Remove => self.gone.push(flow),
        }
    }
}

impl Switch {
    /// Does what is due: revalidation after changes, statistics, timeouts, MAC ageing, idle datapath
    /// flows. Returns when it wants to run next, at the latest; changes make it due at once
    /// ([`wait`](Switch::wait)). Not to be called from an upcall.
    pub fn run(&self, now: Time) -> Time {
        let settings = self.settings();
        if self.is_paused() {
            return now + settings.revalidate_interval;
        }
        let (due, interval) = {
            let state = self.revalidation.lock();
            // A round over very many flows takes long, and this thread has other work, too.
            let interval = settings.revalidate_interval.max(state.stats.duration * ROUND_SHARE);
            let again = self.round_again.load(Ordering::SeqCst);
            let changed = again || self.forwarding.read().generation() != state.generation;
            ((changed, now.since(state.last_round) >= interval || state.last_round == Time(0)), interval)
        };
        if due.1 {
            self.run_round(now, false);
        } else if due.0 {
            self.apply_changes(now);
        }
        if due.1 && self.expire(now) {
            self.apply_changes(now);
        }
        self.follow_macs(now);
        now + interval
    }

    /// Brings the changes so far into force. When this returns, no packet is forwarded by the state of before the call.
    /// Statistics may be older. Not to be called from an upcall.
    pub(crate) fn apply_changes(&self, now: Time) {
        let Some(datapath) = self.datapath.get() else { return };
        let mut state = self.revalidation.lock();
        let removed = self.take_removed();
        let (generation, affected) = {
            let forwarding = self.forwarding.read();
            (forwarding.generation(), forwarding.affects_flows(state.generation))
        };
        if self.round_again.swap(false, Ordering::SeqCst) || affected {
            self.round(datapath, &mut state, now, false);
        } else {
            // Packets may be with a worker, or in the slow path.
            datapath.barrier();
            state.generation = generation;
        }
        self.follow_macs_now(datapath, &mut state, now);
        drop(state);
        self.send_removed(removed);
    }

    /// Brings every datapath flow and all statistics up to date. When this returns, no packet is
    /// forwarded by the state of before the call. Not to be called from an upcall.
    pub fn revalidate(&self) {
        self.run_round(self.clock.now(), false);
    }

    /// Removes every datapath flow, after their statistics have been counted.
    pub fn purge(&self) {
        self.run_round(self.clock.now(), true);
    }

    fn run_round(&self, now: Time, purge: bool) {
        let Some(datapath) = self.datapath.get() else { return };
        let mut state = self.revalidation.lock();
        let removed = self.take_removed();
        self.round_again.store(false, Ordering::SeqCst);
        self.follow_macs_now(datapath, &mut state, now);
        self.round(datapath, &mut state, now, purge);
        self.follow_macs_now(datapath, &mut state, now);
        drop(state);
        self.send_removed(removed);
    }

    fn round(&self, datapath: &Datapath, state: &mut Revalidation, now: Time, purge: bool) {
        // A port that is removed from here on is left to the next round.
        self.ports_removed.store(false, Ordering::SeqCst);
        let generation = self.forwarding.read().generation();
        if generation != state.generation {
            // After it, whatever was translated before the change is installed.
            datapath.barrier();
        }
        let began = self.clock.now();
        let (findings, by_thread) = self.revalidate_flows(datapath, now, purge);
        self.apply(datapath, findings);
        // Some flows were evicted before the round came to them, or since. Their packets came before its end, too.
        datapath.hand_over_evicted();
        self.credit_evicted();
        self.apply_mac_uses(&self.forwarding.read());
        state.stats.note(by_thread, self.clock.now().since(began));
        state.generation = generation;
        state.last_round = now;
        if now.since(state.last_collect) >= COLLECT_INTERVAL {
            state.last_collect = now;
            self.records.clear();
            self.interners.frozen.collect();
            self.interners.packet_ins.collect();
        }
    }

    /// Looks at every flow, with all revalidators. Returns what is to be done, and how many flows each one had.
    fn revalidate_flows(&self, datapath: &Datapath, now: Time, purge: bool) -> (Vec<Findings>, Vec<usize>) {
        let (threads, max_idle) = (1 + self.helpers.count(), self.settings().max_idle);
        let round = Arc::new(FlowRound { chunks: Round::new(threads), now, max_idle, purge });
        // One chunk is not worth waking the helpers.
        self.judge_chunk(datapath, &round, 0);
        if threads > 1 && round.chunks.has_more() {
            self.helpers.call(&round);
        }
        while self.judge_chunk(datapath, &round, 0) {}
        round.chunks.finish()
    }

    /// Works on a round that another thread has started.
    pub(super) fn take_part(&self, round: &FlowRound, thread: usize) {
        let Some(datapath) = self.datapath.get() else { return };
        while self.judge_chunk(datapath, round, thread) {}
    }

    fn judge_chunk(&self, datapath: &Datapath, round: &FlowRound, thread: usize) -> bool {
        let judge_all = |flows: Vec<FlowBrief>| {
            let mut findings = Findings::default();
            for flow in flows {
                let Ok(record) = flow.tag.clone().downcast::<FlowRecord>() else { continue };
                findings.add(flow.id, self.judge(datapath, &flow, &record, round));
            }
            self.apply_mac_uses(&self.forwarding.read());
            findings
        };
        round.chunks.work_on_chunk(thread, |from| datapath.flow_briefs_from(from), judge_all)
    }

    fn judge(&self, datapath: &Datapath, flow: &FlowBrief, record: &FlowRecord, round: &FlowRound) -> Fate {
        let forwarding = self.forwarding.read();
        record.credit_stats(&forwarding, &self.credits.take(flow.id, &flow.stats), true);
        if round.purge || round.now.since(flow.stats.used.max(flow.created)) >= round.max_idle {
            return Fate::Remove;
        }
        if !record.is_stale(&forwarding) {
            return Fate::Keep;
        }
        // A flow that was removed meanwhile needs nothing.
        let Some(flow) = datapath.flow(flow.id) else { return Fate::Keep };
        self.translate_again(&forwarding, &flow, round.now)
    }

    /// Compares a flow with what it would be if it were installed now.
    pub(super) fn translate_again(&self, forwarding: &Forwarding, flow: &FlowDump, now: Time) -> Fate {
        let Some(new) = self.translate_dp(forwarding, &flow.key, None, now) else { return Fate::Remove };
        if new.record.volatile || new.slow || !covers(&flow.mask, &new.mask) {
            return Fate::Remove;
        }
        let tag = Arc::new(new.record.compact());
        if new.actions[..] == flow.actions[..] { Fate::Refresh(tag) } else { Fate::Modify(new.actions, tag) }
    }

    pub(super) fn apply(&self, datapath: &Datapath, findings: Vec<Findings>) {
        let (mut acted, mut gone) = (false, Vec::new());
        for mut part in findings {
            for (id, actions, tag) in part.modified {
                if let Some(actions) = actions {
                    acted = true;
                    // A flow that was removed meanwhile needs nothing.
                    let _ = datapath.modify(id, actions);
                }
                self.adopt(id, &tag, &self.forwarding.read());
                let _ = datapath.set_tag(id, tag);
            }
            gone.append(&mut part.gone);
        }
        if !gone.is_empty() {
            self.credit_last(datapath.remove_all(&gone));
        }
        if acted {
            datapath.barrier();
        }
    }

    /// Credits the last packets of removed flows. Waits for a round that is under way.
    pub(crate) fn credit_removed(&self, flows: Vec<RemovedFlow>) {
        let _round = self.revalidation.lock();
        self.credit_last(flows);
    }

    /// Credits the packets of evicted flows. To be called with `revalidation` held: a round that still works on such a
    /// flow would take it for a new one, and credit all of its packets again.
    pub(crate) fn credit_evicted(&self) {
        let evicted = std::mem::take(&mut *self.evicted.lock());
        if !evicted.is_empty() {
            self.credit_last(evicted);
        }
    }

    fn credit_last(&self, flows: Vec<RemovedFlow>) {
        let forwarding = self.forwarding.read();
        for flow in flows {
            let stats = self.credits.take_last(flow.id, &flow.stats);
            if let Ok(record) = flow.tag.downcast::<FlowRecord>() {
                record.credit_stats(&forwarding, &stats, false);
            }
        }
        self.apply_mac_uses(&forwarding);
    }

    /// Removes rules and addresses that have expired. Returns whether there were any rules.
    fn expire(&self, now: Time) -> bool {
        let mut any = false;
        let ids: Vec<BridgeId> = self.forwarding.read().bridges.keys().copied().collect();
        for id in ids {
            any |= self.expire_rules(id, now);
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { continue };
            let due = bridge.macs.read().next_expiry().is_some_and(|at| at <= now);
            if due {
                self.change_macs(bridge, |macs| macs.expire(now));
            }
        }
        any
    }

    fn expire_rules(&self, id: BridgeId, now: Time) -> bool {
        let expired = {
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { return false };
            let expiring = bridge.tables.iter().filter(|table| table.expiring > 0);
            let rules = expiring.flat_map(|table| table.rules.iter());
            rules.filter_map(|rule| rule.expired(now).map(|reason| (rule.clone(), reason))).collect::<Vec<_>>()
        };
        if expired.is_empty() {
            return false;
        }
        let removal: Result<(), std::convert::Infallible> = self.transact(id, |transaction| {
            expired.iter().for_each(|(rule, reason)| transaction.remove(rule, *reason));
            Ok(())
        });
        removal.is_ok()
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
}
