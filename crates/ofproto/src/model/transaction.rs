//! Changes of a bridge's flows and groups that take effect together, or not at all.
//!
//! A transaction makes each change at once, under the write lock that its caller holds, so no packet sees the tables
//! between two of them. It keeps what it replaces, so that [`rollback`](Transaction::rollback) can put it back.

use std::sync::Arc;

use hashbrown::HashMap;
use openflow::action::Action;
use openflow::monitor::FlowEvent;
use openflow::{FlowRemovedReason, GroupId, Instructions};
use packet::Time;

use crate::model::flow_changes::RuleChange;
use crate::model::forwarding::{BridgeState, Learned};
use crate::model::group::Group;
use crate::table::Rule;

/// Most flows that removed rules had learnt that go with one transaction.
pub(crate) const ORPHANS: usize = 1024;

/// Changes to a bridge. See the [module](self).
pub(crate) struct Transaction<'a> {
    pub bridge: &'a mut BridgeState,
    pub generation: u64,
    pub now: Time,
    /// Whether a datapath flow may depend on one of the changes.
    affects_flows: bool,
    /// Whether every datapath flow has to be looked at.
    pub affects_everything: bool,
    /// What messages were so far that cost more than others of their length: in rules that were looked at.
    pub effort: usize,
    /// See [`Changes::whole`].
    whole: bool,
    /// How many of the bridge's `orphaned` were there before.
    orphaned_before: usize,
    rule_changes: Vec<RuleChange>,
    /// Each group that has changed, as it was before the transaction. What it was in between is not kept: a bundle can change a
    /// large group many times.
    group_changes: HashMap<GroupId, Option<Arc<Group>>>,
}

/// The changes of a transaction while nobody makes further ones.
#[derive(Default)]
pub(crate) struct Changes {
    affects_flows: bool,
    affects_everything: bool,
    /// See [`Transaction::effort`].
    pub effort: usize,
    /// All flows that removed rules had learnt go with them, however many. Otherwise the rest goes with later transactions.
    whole: bool,
    /// `None` before the first change.
    orphaned_before: Option<usize>,
    rule_changes: Vec<RuleChange>,
    group_changes: HashMap<GroupId, Option<Arc<Group>>>,
}

impl Changes {
    /// No changes of a transaction that leaves nothing to later ones.
    pub fn whole() -> Changes {
        Changes { whole: true, ..Changes::default() }
    }
}

impl<'a> Transaction<'a> {
    /// Goes on with a transaction of the same bridge and generation.
    pub fn resume(bridge: &'a mut BridgeState, generation: u64, now: Time, changes: Changes) -> Transaction<'a> {
        let Changes { affects_flows, affects_everything, effort, whole, orphaned_before, rule_changes, group_changes } =
            changes;
        let orphaned_before = orphaned_before.unwrap_or(bridge.orphaned.len());
        Transaction {
            bridge,
            generation,
            now,
            affects_flows,
            affects_everything,
            effort,
            whole,
            orphaned_before,
            rule_changes,
            group_changes,
        }
    }

    /// Leaves the bridge to others for a while, who see the changes.
    pub fn suspend(self) -> Changes {
        let Transaction { affects_flows, affects_everything, effort, whole, rule_changes, group_changes, .. } = self;
        let orphaned_before = Some(self.orphaned_before);
        Changes { affects_flows, affects_everything, effort, whole, orphaned_before, rule_changes, group_changes }
    }

    pub fn new(bridge: &'a mut BridgeState, generation: u64, now: Time) -> Transaction<'a> {
        Transaction::resume(bridge, generation, now, Changes::default())
    }

    /// Adds a rule, in place of one with equal match and priority.
    pub fn insert(&mut self, rule: Rule) {
        self.change(rule, FlowEvent::Added);
    }

    /// Puts a modified rule in the place of the one that it was made of.
    pub fn replace(&mut self, rule: Rule) {
        self.change(rule, FlowEvent::Modified);
    }

    fn change(&mut self, rule: Rule, event: FlowEvent) {
        let new = Arc::new(rule);
        let old = self.put(new.clone());
        self.rule_changes.push(RuleChange { old, new: Some(new), event: Some(event) });
    }

    /// Removes a rule, unless another has replaced it.
    pub fn remove(&mut self, rule: &Arc<Rule>, reason: FlowRemovedReason) {
        if let Some(old) = self.take(rule) {
            self.rule_changes.push(RuleChange { old: Some(old), new: None, event: Some(FlowEvent::Removed(reason)) });
        }
    }

    /// Removes all rules and groups, to be replaced by others. No flow-removed is sent.
    pub fn clear(&mut self) {
        let rules: Vec<_> = self.bridge.tables.iter().flat_map(|table| table.rules.iter().cloned()).collect();
        for rule in rules {
            if let Some(old) = self.take(&rule) {
                self.rule_changes.push(RuleChange { old: Some(old), new: None, event: None });
            }
        }
        let groups: Vec<_> = self.bridge.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.set_group(id, None));
        // The flows that they had learnt are removed already.
        self.bridge.orphaned.clear();
    }

    /// Replaces the group with this number, or removes it.
    pub fn set_group(&mut self, id: GroupId, group: Option<Arc<Group>>) {
        self.affects_flows |= self.bridge.groups_have_dependents();
        self.bridge.group_changes.note(id.0, self.generation);
        let old = self.bridge.set_group(id, group);
        self.group_changes.entry(id).or_insert(old);
    }

    fn put(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        count_learners(self.bridge, &rule.instructions, true);
        self.bridge.users.add_rule(&rule);
        let table = &mut self.bridge.tables[usize::from(rule.table.0)];
        self.affects_flows |= table.has_dependents();
        let old = table.insert(rule, self.generation);
        if let Some(old) = &old {
            self.forget(old);
        }
        old
    }

    fn take(&mut self, rule: &Arc<Rule>) -> Option<Arc<Rule>> {
        let table = &mut self.bridge.tables[usize::from(rule.table.0)];
        let present = table.rules.find(&rule.pattern, rule.priority).is_some_and(|found| Arc::ptr_eq(found, rule));
        if !present {
            return None;
        }
        self.affects_flows |= table.has_dependents();
        let old = table.remove(rule, self.generation)?;
        self.forget(&old);
        Some(old)
    }

    /// Removes a rule from the indexes beside the tables.
    fn forget(&mut self, rule: &Arc<Rule>) {
        self.bridge.users.remove_rule(rule);
        count_learners(self.bridge, &rule.instructions, false);
    }

    /// Undoes everything. Returns what was undone, and whether a datapath flow may depend on what was there in between.
    pub fn rollback(mut self) -> (Vec<RuleChange>, bool) {
        let undone = std::mem::take(&mut self.rule_changes);
        for change in undone.iter().rev() {
            match (&change.old, &change.new) {
                (Some(old), _) => drop(self.put(old.clone())),
                (None, Some(new)) => drop(self.take(new)),
                (None, None) => {}
            }
        }
        for (id, group) in std::mem::take(&mut self.group_changes) {
            self.bridge.set_group(id, group);
        }
        self.bridge.orphaned.truncate(self.orphaned_before);
        (undone, self.affects_flows)
    }

    /// Ends the transaction. Flows that removed rules had learnt are removed, too (`delete_learned`), but for those that are left
    /// to later transactions. Returns the
    /// changes of rules, for those who are told, and whether a datapath flow may depend on the changes.
    pub fn commit(mut self) -> (Vec<RuleChange>, bool) {
        self.remove_orphans(0);
        (self.rule_changes, self.affects_flows)
    }

    /// Ends one message of a transaction of several. As in OVS, what its removed rules had learnt goes before the next message, which may add a
    /// rule that learns the same: OVN replaces rules so.
    pub fn end_message(&mut self) {
        if self.whole {
            self.remove_orphans(self.orphaned_before);
        }
    }

    /// Removes the flows that removed rules had learnt, but for the first `left` kinds of them. These may have learnt others, which are
    /// removed as well.
    fn remove_orphans(&mut self, left: usize) {
        let mut room = if self.whole { usize::MAX } else { ORPHANS };
        while room > 0
            && self.bridge.orphaned.len() > left
            && let Some((table, cookie)) = self.bridge.orphaned.pop()
        {
            if self.bridge.learners.contains_key(&(table, cookie)) {
                continue;
            }
            let rules = self.bridge.tables[usize::from(table.0)].rules_of(cookie, room);
            room -= rules.len();
            if room == 0 {
                // There may be more. What these have learnt comes first.
                self.bridge.orphaned.push((table, cookie));
            }
            rules.iter().for_each(|rule| self.remove(rule, FlowRemovedReason::Delete));
        }
    }
}

/// Counts the `learn(delete_learned)` actions of a rule that was added or removed.
fn count_learners(bridge: &mut BridgeState, instructions: &Instructions, added: bool) {
    let mut found = Vec::new();
    collect_learners(&instructions.apply, &mut found);
    collect_learners(&instructions.write, &mut found);
    for learned in found {
        let count = bridge.learners.entry(learned).or_insert(0);
        *count = if added { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            bridge.learners.remove(&learned);
            bridge.orphaned.push(learned);
        }
    }
}

fn collect_learners(actions: &[Action], found: &mut Vec<Learned>) {
    for action in actions {
        match action {
            Action::Learn(learn) if learn.delete_learned => found.push((learn.table, learn.cookie)),
            Action::Clone(inner) => collect_learners(inner, found),
            _ => {}
        }
    }
}
