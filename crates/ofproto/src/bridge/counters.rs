//! The counters of rules, for who compares them again and again: which rules have most traffic, and which datapath flows have it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use datapath::FlowTag;
use openflow::FlowStats;

use super::{Bridge, FlowWalk};
use crate::slowpath::record::FlowRecord;
use crate::table::{Place, Rule, RuleStats};

/// Which rule of a bridge is meant. It stays the same when the rule is modified, and is not given to another one.
///
/// As text: table, priority and number with colons between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    table: u8,
    priority: u16,
    number: u64,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.table, self.priority, self.number)
    }
}

/// Why a text names no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: not a rule; TABLE:PRIORITY:NUMBER names one")]
pub struct NoRuleId(String);

impl FromStr for RuleId {
    type Err = NoRuleId;

    fn from_str(text: &str) -> Result<RuleId, NoRuleId> {
        let mut parts = text.split(':');
        let mut next = || parts.next();
        let id = (|| {
            let (table, priority, number) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
            Some(RuleId { table, priority, number })
        })();
        id.filter(|_| parts.next().is_none()).ok_or_else(|| NoRuleId(text.to_owned()))
    }
}

impl RuleId {
    /// The table, and where in it the rule stands.
    pub(super) fn place(self) -> (usize, Place) {
        (self.table.into(), Place::new(self.priority, self.number))
    }
}

impl FlowWalk {
    /// As [`next_flows`](FlowWalk::next_flows), with which rule each flow is.
    pub fn next_known(&mut self, most: usize) -> Option<Vec<(RuleId, FlowStats)>> {
        let (rules, tlv) = self.next_rules(most)?;
        let now = self.now();
        Some(rules.iter().map(|rule| (id_of(rule), rule.describe(now, &tlv))).collect())
    }

    /// Calls `visit` with the packets and bytes that each of the next rules has counted. False at the end.
    pub fn visit_next(&mut self, mut visit: impl FnMut(RuleId, u64, u64)) -> bool {
        let Some((rules, _)) = self.next_rules(usize::MAX) else { return false };
        for rule in &rules {
            visit(id_of(rule), rule.stats.packets(), rule.stats.bytes());
        }
        true
    }
}

fn id_of(rule: &Rule) -> RuleId {
    RuleId { table: rule.table.0, priority: rule.priority, number: Place::of(rule).number() }
}

/// The counters of a rule, as datapath flows have them in their records.
pub struct RuleCounters(Arc<RuleStats>);

impl RuleCounters {
    /// Whether the packets of a datapath flow, by its tag, pass the rule.
    pub fn is_of(&self, tag: &FlowTag) -> bool {
        let record = tag.downcast_ref::<FlowRecord>();
        record.is_some_and(|record| record.rules.iter().any(|stats| Arc::ptr_eq(stats, &self.0)))
    }
}

impl Bridge {
    /// A rule with its counters. `None` where it has gone.
    pub fn rule(&self, id: RuleId) -> Option<FlowStats> {
        let (rule, tlv) = self.read(|state| {
            let rule = state.tables.get(usize::from(id.table))?.listing.get(Place::new(id.priority, id.number))?;
            Some((rule.clone(), state.tlv.clone()))
        })??;
        Some(rule.describe(self.now(), &tlv))
    }

    /// The counters of a rule. `None` where it has gone.
    pub fn rule_counters(&self, id: RuleId) -> Option<RuleCounters> {
        let place = Place::new(id.priority, id.number);
        self.read(|state| {
            let rule = state.tables.get(usize::from(id.table))?.listing.get(place)?;
            Some(RuleCounters(rule.stats.clone()))
        })?
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Action, Match, OfPort, TableId};
    use packet::Field;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    fn rules(bed: &Bed) -> Vec<(RuleId, u64)> {
        let (mut walk, mut rules) = (bed.bridge.walk_table(TableId::ALL), Vec::new());
        while walk.visit_next(|id, packets, _| rules.push((id, packets))) {}
        rules
    }

    #[test]
    fn rules_are_found_by_their_ids_and_lead_to_their_datapath_flows() {
        let bed = Bed::new(3);
        let mut to_3 = Match::any();
        to_3.set(Field::DlType, 0x1235);
        bed.add_flow(0, 9, to_3.clone(), vec![Action::output(OfPort(3))]);
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort(2))]);
        let frame = |kind| build::ethernet([2; 6], [4; 6], &[], kind, &[0; 46]);
        (0..2).for_each(|_| drop(bed.receive(OfPort(1), &frame(0x1234))));
        drop(bed.receive(OfPort(1), &frame(0x1235)));
        let counted = rules(&bed);
        assert_eq!(counted.iter().map(|(_, packets)| *packets).collect::<Vec<_>>(), [1, 2]);
        let (high, _) = counted[0];
        assert_eq!(bed.bridge.rule(high).unwrap().matching, to_3);
        assert_eq!(high.to_string().parse::<RuleId>(), Ok(high));
        let passed = bed.bridge.rule_counters(high).unwrap();
        let flows: Vec<_> = bed.datapath.flows().map(|flow| (flow.stats.packets, passed.is_of(&flow.tag))).collect();
        assert_eq!((flows.len(), flows.iter().filter(|(_, is_passed)| *is_passed).count()), (2, 1), "{flows:?}");
        // Another rule in its place is another one.
        bed.bridge.flush_flows();
        bed.add_flow(0, 9, to_3, vec![]);
        assert!(bed.bridge.rule(high).is_none() && bed.bridge.rule_counters(high).is_none());
    }

    #[test]
    fn what_names_no_rule_is_refused() {
        for text in ["", "1", "1:2", "1:2:3:4", "256:1:1", "1:65536:1", "a:b:c", "1:2:-3"] {
            assert_eq!(text.parse::<RuleId>(), Err(NoRuleId(text.into())));
        }
    }
}
