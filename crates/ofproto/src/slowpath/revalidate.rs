//! Keeping the datapath's flows in step with the tables.
//!
//! Every walk over the datapath's flows does four things with each: it credits its packets to the rules
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

use datapath::{Action, Datapath, FlowBrief, FlowId, FlowTag, RemovedFlow};
use hashbrown::HashMap;
use packet::{Mask, Time};

use crate::model::forwarding::BridgeId;
use crate::slowpath::control::Walks;
use crate::slowpath::record::{Pushed, Record};
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
    /// How much of each flow's counters has been credited.
    pushed: HashMap<FlowId, Pushed>,
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
        let max_idle = self.settings().max_idle;
        let (mut gone, mut modified) = (Vec::new(), Vec::new());
        let (mut seen, began) = (0, self.clock.now());
        for flow in datapath.flow_briefs() {
            seen += 1;
            let Ok(record) = flow.tag.clone().downcast::<Record>() else { continue };
            let pushed = state.pushed.entry(flow.id).or_default();
            match self.judge(datapath, &flow, &record, pushed, now, max_idle, purge) {
                Fate::Keep => {}
                Fate::Refresh(tag) => modified.push((flow.id, None, tag)),
                Fate::Modify(actions, tag) => modified.push((flow.id, Some(actions), tag)),
                Fate::Remove => gone.push(flow.id),
            }
        }
        self.apply(datapath, &mut state, gone, modified);
        // Flows that were evicted before the walk came to them, or since: what they have counted, too, is
        // from before its end.
        datapath.hand_over_evicted();
        self.credit_evicted(&mut state);
        state.walks.note(seen, self.clock.now().since(began));
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

    #[allow(clippy::too_many_arguments, reason = "what a walk knows")]
    fn judge(
        &self,
        datapath: &Datapath,
        flow: &FlowBrief,
        record: &Record,
        pushed: &mut Pushed,
        now: Time,
        max_idle: Duration,
        purge: bool,
    ) -> Fate {
        let forwarding = self.forwarding.read();
        record.push(&forwarding, &flow.stats, pushed);
        if purge || now.since(flow.stats.used.max(flow.created)) >= max_idle {
            return Fate::Remove;
        }
        if !record.is_stale(&forwarding) {
            return Fate::Keep;
        }
        // A flow that has gone meanwhile needs nothing.
        let Some(flow) = datapath.flow(flow.id) else { return Fate::Keep };
        let Some(new) = self.translate_dp(&forwarding, &flow.key, false, now) else { return Fate::Remove };
        if new.record.volatile || new.slow || !covers(&flow.mask, &new.mask) {
            return Fate::Remove;
        }
        let tag: FlowTag = Arc::new(new.record);
        if new.actions[..] == flow.actions[..] { Fate::Refresh(tag) } else { Fate::Modify(new.actions, tag) }
    }

    fn apply(
        &self,
        datapath: &Datapath,
        state: &mut Revalidation,
        gone: Vec<FlowId>,
        modified: Vec<(FlowId, Option<Vec<Action>>, FlowTag)>,
    ) {
        let mut acted = false;
        for (id, actions, tag) in modified {
            if let Some(actions) = actions {
                acted = true;
                // A flow that has gone meanwhile needs nothing.
                let _ = datapath.modify(id, actions);
            }
            let _ = datapath.set_tag(id, tag);
        }
        if !gone.is_empty() {
            self.credit_last(state, datapath.remove_all(&gone));
        }
        if acted {
            datapath.barrier();
        }
    }

    /// Credits the last packets of flows that are gone.
    pub(crate) fn credit_removed(&self, flows: Vec<RemovedFlow>) {
        self.credit_last(&mut self.revalidation.lock(), flows);
    }

    /// Credits the packets of flows that had to make room for others.
    pub(crate) fn credit_evicted(&self, state: &mut Revalidation) {
        let evicted = std::mem::take(&mut *self.evicted.lock());
        if !evicted.is_empty() {
            self.credit_last(state, evicted);
        }
    }

    fn credit_last(&self, state: &mut Revalidation, flows: Vec<RemovedFlow>) {
        let forwarding = self.forwarding.read();
        for flow in flows {
            let mut pushed = state.pushed.remove(&flow.id).unwrap_or_default();
            if let Ok(record) = flow.tag.downcast::<Record>() {
                record.push(&forwarding, &flow.stats, &mut pushed);
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
