//! Which flow goes when a table is full.
//!
//! The flows of a table form groups by the configured subfields; the largest group loses a flow, the one of least
//! importance and among these the one that expires first. A flow that never expires only goes when a controller
//! has asked for eviction. The whole table is looked through: only an addition to a full table pays for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use openflow::Subfield;
use packet::Time;

use super::{Rule, Table};

impl Table {
    /// Whether one more flow does not fit.
    pub fn is_full(&self) -> bool {
        self.settings.max_flows.is_some_and(|max| self.rules.len() >= max as usize)
    }

    /// How many flows there are above the limit.
    pub fn excess(&self) -> usize {
        self.settings.max_flows.map_or(0, |max| self.rules.len().saturating_sub(max as usize))
    }

    /// The flow to evict, if there is one that may be.
    pub fn victim(&self) -> Option<Arc<Rule>> {
        if !self.settings.evict && !self.state.evict {
            return None;
        }
        let groups: &[Subfield] = if self.settings.evict { &self.settings.groups } else { &[] };
        let mut members: HashMap<Vec<u128>, (usize, &Arc<Rule>)> = HashMap::new();
        for rule in self.rules.iter().filter(|rule| self.state.evict || rule.timeouts() != (0, 0)) {
            let entry = members.entry(group(rule, groups)).or_insert((0, rule));
            entry.0 += 1;
            if rank(rule) < rank(entry.1) {
                entry.1 = rule;
            }
        }
        members.into_values().max_by_key(|(size, _)| *size).map(|(_, rule)| rule.clone())
    }
}

/// What distinguishes a rule's group: the values of the subfields in its match.
fn group(rule: &Rule, subfields: &[Subfield]) -> Vec<u128> {
    if subfields.is_empty() {
        return Vec::new();
    }
    let key = rule.pattern.key();
    subfields.iter().map(|subfield| subfield.get(&key)).collect()
}

/// The lowest goes first. What never expires goes last.
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
