//! Keeping the datapath's flows in step with the tables.
//!
//! Every round over the datapath's flows does four things with each: it credits its packets to the rules
//! that the record names; it removes the flow when it was idle for too long; it translates it again
//! when something that it depends on has changed; and it removes or modifies it when the outcome
//! differs. Walks happen at an interval, and at once after changes.
//!
//! A change is in force when a walk that began after it has ended and the workers have passed a
//! barrier. Which flows a change affects is told by generations ([`Record::is_stale`]), so a flow that
//! was translated before a change and installed after it is found, too, by the next walk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use datapath::{Action, Datapath, FlowBrief, FlowTag, RemovedFlow};
use packet::{Mask, Time};

use crate::model::forwarding::BridgeId;
use crate::slowpath::control::Walks;
use crate::slowpath::record::Record;
use crate::slowpath::revalidators::{Findings, FlowRound};
use crate::slowpath::round::Round;
use crate::switch::Switch;

/// What revalidation remembers between walks.
#[derive(Default)]
pub(crate) struct Revalidation {
    /// Generation that the last walk brought into force.
    generation: u64,
    last_walk: Time,
    last_collect: Time,
    /// What the walks have seen.
    pub(crate) walks: Walks,
}

/// How often unused recirculation ids are looked for.
const COLLECT_INTERVAL: Duration = Duration::from_secs(5);

/// Walks without a change take no more than one part in so many of the time.
const WALK_SHARE: u32 = 5;

/// What becomes of a flow.
enum Fate {
    Keep,
    Refresh(FlowTag),
    Modify(Vec<Action>, FlowTag),
    Remove,
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
            // Walks over very many flows take their time; they are not all that this thread does.
            let interval = settings.revalidate_interval.max(state.walks.duration * WALK_SHARE);
            let again = self.walk_again.swap(false, Ordering::SeqCst);
            let changed = again || self.forwarding.read().generation() != state.generation;
            ((changed, now.since(state.last_walk) >= interval || state.last_walk == Time(0)), interval)
        };
        if due.0 || due.1 {
            self.walk(now, false);
        }
        if due.1 && self.expire(now) {
            self.walk(now, false);
        }
        now + interval
    }

    /// Brings every datapath flow and all statistics up to date. When this returns, no packet is
    /// forwarded by the state of before the call. Not to be called from an upcall.
    pub fn revalidate(&self) {
        self.walk(self.clock.now(), false);
    }

    /// Removes every datapath flow, after their statistics have been counted.
    pub fn purge(&self) {
        self.walk(self.clock.now(), true);
    }

    fn walk(&self, now: Time, purge: bool) {
        let Some(datapath) = self.datapath.get() else { return };
        let mut state = self.revalidation.lock();
        // One that is removed from here on is for the next walk.
        self.ports_removed.store(false, Ordering::SeqCst);
        let removed = self.take_removed();
        let generation = self.forwarding.read().generation();
        if generation != state.generation {
            // What was translated before the change is installed by now.
            datapath.barrier();
        }
        let began = self.clock.now();
        let (findings, by_thread) = self.revalidate_flows(datapath, now, purge);
        self.apply(datapath, findings);
        // Flows that were evicted before the walk came to them, or since: what they have counted, too, is
        // from before its end.
        datapath.hand_over_evicted();
        self.credit_evicted();
        state.walks.note(by_thread, self.clock.now().since(began));
        state.generation = generation;
        state.last_walk = now;
        if now.since(state.last_collect) >= COLLECT_INTERVAL {
            state.last_collect = now;
            self.records.clear();
            self.interners.frozen.collect();
            self.interners.packet_ins.collect();
        }
        drop(state);
        self.send_removed(removed);
    }

    /// Looks at every flow, with all revalidators. Returns what is to be done, and how many flows each one had.
    fn revalidate_flows(&self, datapath: &Datapath, now: Time, purge: bool) -> (Vec<Findings>, Vec<usize>) {
        let (threads, max_idle) = (1 + self.helpers.count(), self.settings().max_idle);
        let round = Arc::new(FlowRound { round: Round::new(threads), now, max_idle, purge });
        // Few flows are not worth waking anybody.
        self.step(datapath, &round, 0);
        if threads > 1 && round.round.has_more() {
            self.helpers.call(&round);
        }
        while self.step(datapath, &round, 0) {}
        round.round.finish()
    }

    /// Works on a round that another thread has started.
    pub(super) fn take_part(&self, round: &FlowRound, thread: usize) {
        let Some(datapath) = self.datapath.get() else { return };
        while self.step(datapath, round, thread) {}
    }

    fn step(&self, datapath: &Datapath, round: &FlowRound, thread: usize) -> bool {
        let judge_all = |flows: Vec<FlowBrief>| {
            let mut findings = Findings::default();
            for flow in flows {
                let Ok(record) = flow.tag.clone().downcast::<Record>() else { continue };
                match self.judge(datapath, &flow, &record, round) {
                    Fate::Keep => {}
                    Fate::Refresh(tag) => findings.modified.push((flow.id, None, tag)),
                    Fate::Modify(actions, tag) => findings.modified.push((flow.id, Some(actions), tag)),
                    Fate::Remove => findings.gone.push(flow.id),
                }
            }
            findings
        };
        round.round.step(thread, |from| datapath.flow_briefs_from(from), judge_all)
    }

    fn judge(&self, datapath: &Datapath, flow: &FlowBrief, record: &Record, round: &FlowRound) -> Fate {
        let forwarding = self.forwarding.read();
        record.credit_stats(&forwarding, &self.credits.take(flow.id, &flow.stats));
        if round.purge || round.now.since(flow.stats.used.max(flow.created)) >= round.max_idle {
            return Fate::Remove;
        }
        if !record.is_stale(&forwarding) {
            return Fate::Keep;
        }
        // A flow that has gone meanwhile needs nothing.
        let Some(flow) = datapath.flow(flow.id) else { return Fate::Keep };
        let Some(new) = self.translate_dp(&forwarding, &flow.key, false, round.now) else { return Fate::Remove };
        if new.record.volatile || new.slow || !covers(&flow.mask, &new.mask) {
            return Fate::Remove;
        }
        let tag: FlowTag = Arc::new(new.record);
        if new.actions[..] == flow.actions[..] { Fate::Refresh(tag) } else { Fate::Modify(new.actions, tag) }
    }

    fn apply(&self, datapath: &Datapath, findings: Vec<Findings>) {
        let (mut acted, mut gone) = (false, Vec::new());
        for mut part in findings {
            for (id, actions, tag) in part.modified {
                if let Some(actions) = actions {
                    acted = true;
                    // A flow that has gone meanwhile needs nothing.
                    let _ = datapath.modify(id, actions);
                }
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

    /// Credits the last packets of flows that are gone. Waits for a round that is under way.
    pub(crate) fn credit_removed(&self, flows: Vec<RemovedFlow>) {
        let _round = self.revalidation.lock();
        self.credit_last(flows);
    }

    /// Credits the packets of flows that had to make room for others. To be called with `revalidation` held: a
    /// round that still has such a flow in hand would take it for a new one.
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
            if let Ok(record) = flow.tag.downcast::<Record>() {
                record.credit_stats(&forwarding, &stats);
            }
        }
    }

    /// Removes rules and addresses whose time is over. Returns whether any was.
    fn expire(&self, now: Time) -> bool {
        let mut any = false;
        let ids: Vec<BridgeId> = self.forwarding.read().bridges.keys().copied().collect();
        for id in ids {
            any |= self.expire_rules(id, now);
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { continue };
            let due = bridge.macs.read().next_expiry().is_some_and(|at| at <= now);
            if due {
                let generation = forwarding.next_generation();
                any |= bridge.macs.write().expire(now, generation) > 0;
            }
        }
        any
    }

    fn expire_rules(&self, id: BridgeId, now: Time) -> bool {
        let expired = {
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { return false };
            let mortal = bridge.tables.iter().filter(|table| table.mortal > 0);
            let rules = mortal.flat_map(|table| table.rules.iter());
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
