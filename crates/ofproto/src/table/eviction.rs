//! Which flow is evicted when a table is full.
//!
//! The flows of a table form groups by the configured subfields, and the largest group loses a flow: the one of least
//! importance, and among these the one that expires first. A flow that never expires is evicted only where a controller
//! has asked for eviction. The whole table is searched, but only when a flow is added to a full one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use openflow::Subfield;
use packet::Time;

use super::{Rule, Table};

impl Table {
    /// Whether there is no room for one more flow.
    pub fn is_full(&self) -> bool {
        self.settings.max_flows.is_some_and(|max| self.rules.len() >= max as usize)
    }

    /// How many flows there are above the limit.
    pub fn excess(&self) -> usize {
        self.settings.max_flows.map_or(0, |max| self.rules.len().saturating_sub(max as usize))
    }

    /// The flow to evict, if there is one that may be.
    pub fn victim(&self) -> Option<Arc<Rule>> {
        let groups = self.groups();
        let mut members: HashMap<Vec<u128>, (usize, &Arc<Rule>)> = HashMap::new();
        for rule in self.evictable() {
            let entry = members.entry(group(rule, groups)).or_insert((0, rule));
            entry.0 += 1;
            if rank(rule) < rank(entry.1) {
                entry.1 = rule;
            }
        }
        members.into_values().max_by_key(|(size, _)| *size).map(|(_, rule)| rule.clone())
    }

    /// The flows to evict one after the other, `n` of them or as many as may be. The table is searched once.
    pub fn victims(&self, n: usize) -> Vec<Arc<Rule>> {
        let groups = self.groups();
        let mut members: HashMap<Vec<u128>, Vec<&Arc<Rule>>> = HashMap::new();
        self.evictable().for_each(|rule| members.entry(group(rule, groups)).or_default().push(rule));
        let mut members: Vec<_> = members.into_values().collect();
        // Those that are evicted first are at the end.
        members.iter_mut().for_each(|group| group.sort_by_cached_key(|rule| Reverse(rank(rule))));
        let mut largest: BinaryHeap<_> = members.iter().enumerate().map(|(i, group)| (group.len(), i)).collect();
        let mut victims = Vec::new();
        while victims.len() < n
            && let Some((size, i)) = largest.pop()
        {
            victims.extend(members[i].pop().cloned());
            if size > 1 {
                largest.push((size - 1, i));
            }
        }
        victims
    }

    /// The flows that may be evicted.
    fn evictable(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let evicts = self.settings.evict || self.state.evict;
        self.rules.iter().filter(move |rule| evicts && (self.state.evict || rule.timeouts() != (0, 0)))
    }

    /// The subfields by which flows form groups.
    fn groups(&self) -> &[Subfield] {
        if self.settings.evict { &self.settings.groups } else { &[] }
    }
}

/// What distinguishes a rule's group: the values of the subfields in its match.
fn group(rule: &Rule, subfields: &[Subfield]) -> Vec<u128> {
    if subfields.is_empty() {
        return Vec::new();
    }
    let key = rule.pattern.key();
    // Groups by options of tunnels are not made.
    subfields.iter().map(|subfield| subfield.in_key().map_or(0, |part| part.get(&key))).collect()
}

/// The flow of the lowest rank is evicted first, one that never expires last.
fn rank(rule: &Rule) -> (bool, u16, Time) {
    let after = |since: Time, seconds: u16| (seconds != 0).then(|| since + Duration::from_secs(seconds.into()));
    let (idle_timeout, hard_timeout) = rule.timeouts();
    let hard = after(rule.modified, hard_timeout);
    let idle = after(rule.stats.used(), idle_timeout);
    match [hard, idle].into_iter().flatten().min() {
        Some(expiry) => (false, rule.importance, expiry),
        None => (true, rule.importance, rule.created),
    }
}
