//! Changes to the flow tables.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use openflow::monitor::FlowEvent;
use openflow::{
    Action, Cookie, FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, GroupId, Instructions, Match, OfError,
    OfPort, TableId,
};
use packet::Time;
use parking_lot::RwLockWriteGuard;
use tunnel::fields::FieldTable;

use super::Bridge;
use super::check::{Known, check_instructions};
use crate::events::SubscriptionId;
use crate::model::config::{FailMode, N_TABLES};
use crate::model::flow_changes::{FlowChanges, FlowWatcher, Requester, RuleChange};
use crate::model::forwarding::{BridgeId, BridgeState, Forwarding, TABLES};
use crate::model::group::{outputs_to, uses_group};
use crate::model::tlv;
use crate::model::transaction::{Changes, Transaction};
use crate::switch::Switch;
use crate::table::{Pattern, Rule, RuleInstructions, RuleStats, Within};
use crate::xlate::LearntFlow;

/// What it costs to modify a rule, which stays in memory until the transaction ends, in rules that are looked at.
const MODIFICATION: usize = 32;

impl Bridge {
    /// Changes the flow tables. Packets may see the old flows until a [`barrier`](Bridge::barrier). Where very many flows have been
    /// learnt that go with removed ones, the revalidator removes the last of them.
    /// A buffer id is ignored: Weir buffers no packets.
    pub fn flow_mod(&self, change: &FlowMod) -> Result<(), OfError> {
        self.transact(|transaction| apply(transaction, change))
    }

    /// Makes changes that take effect together, or where one fails not at all.
    pub(super) fn transact<E>(&self, change: impl FnOnce(&mut Transaction) -> Result<(), E>) -> Result<(), E> {
        self.transact_in_part(change).map(drop)
    }

    /// The same, and whether flows are left that removed rules had learnt. The revalidator removes them soon, unless further
    /// transactions do.
    pub(super) fn transact_in_part<E>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.switch.transact_at(self.id, self.now(), self.requester, change)
    }

    /// Removes all flows, groups and meters, without flow-removed messages, and adds the NORMAL flow of a standalone
    /// bridge without controllers. Flow monitors are told.
    pub fn flush_flows(&self) {
        let now = self.switch.clock.now();
        let mut forwarding = self.switch.forwarding.write();
        let generation = forwarding.next_generation();
        let Some(bridge) = forwarding.bridges.get_mut(&self.id) else { return };
        let tlv = bridge.tlv.clone();
        let mut changes = if bridge.watchers.is_empty() { Vec::new() } else { removal_of_all(bridge) };
        let tables = bridge.tables.iter_mut().filter(|table| !table.rules.is_empty());
        let gone: Vec<_> = tables.map(|table| table.clear(generation)).collect();
        bridge.learners.clear();
        bridge.orphaned.clear();
        let gone_too = (take(&mut bridge.groups), take(&mut bridge.meters));
        bridge.users.clear();
        bridge.group_changes.note_all(generation);
        if bridge.config.fail_mode == FailMode::Standalone && !bridge.controllers.configured {
            let table = &mut bridge.tables[0];
            let any = Match::any();
            let pattern = table.rules.pattern(&any.key, &any.mask);
            let normal = bridge.instructions.share(&Instructions::apply(vec![Action::output(OfPort::NORMAL)]));
            let normal = Arc::new(Rule::new(TableId(0), 0, pattern, normal, now));
            table.insert(normal.clone(), generation);
            changes.push(RuleChange { old: None, new: Some(normal), event: Some(FlowEvent::Added) });
        }
        let watchers = tell_watchers(bridge, &changes, &tlv, None);
        forwarding.note_affecting(generation);
        drop(forwarding);
        watchers.iter().for_each(|watcher| watcher.settle());
        self.switch.notify();
        // To free them takes time, in which packets do not wait.
        drop((gone, gone_too));
    }
}

impl Switch {
    /// Adds a flow that was learnt, or modifies the one that is there.
    ///
    /// The translation has looked at the limit, but others may have learnt since.
    pub(crate) fn learn_flow(&self, learnt: &LearntFlow, now: Time) -> Result<(), OfError> {
        self.transact_at(learnt.bridge, now, None, |transaction| {
            if !learnt.is_within_limit(transaction.bridge) {
                return Ok(());
            }
            apply(transaction, &learnt.change)
        })
        .map(drop)
    }

    /// Makes changes that take effect together, or where one fails not at all.
    pub(crate) fn transact<E>(
        &self,
        id: BridgeId,
        change: impl FnOnce(&mut Transaction) -> Result<(), E>,
    ) -> Result<(), E> {
        self.transact_at(id, self.clock.now(), None, change).map(drop)
    }

    fn transact_at<E>(
        &self,
        id: BridgeId,
        now: Time,
        requester: Option<Requester>,
        change: impl FnOnce(&mut Transaction) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut forwarding = self.forwarding.write();
        let generation = forwarding.next_generation();
        let Some(bridge) = forwarding.bridges.get_mut(&id) else { return Ok(false) };
        let mut transaction = Transaction::new(bridge, generation, now);
        let result = change(&mut transaction);
        let changes = transaction.suspend();
        let leaves_some = self.end_transaction(forwarding, id, (generation, now), changes, requester, result.is_ok());
        result.map(|()| leaves_some)
    }

    /// Brings the changes of a transaction into force, or undoes them, and tells those who want to know. Returns whether flows are left
    /// that removed rules had learnt.
    pub(super) fn end_transaction(
        &self,
        mut forwarding: RwLockWriteGuard<'_, Forwarding>,
        id: BridgeId,
        (generation, now): (u64, Time),
        changes: Changes,
        requester: Option<Requester>,
        succeeded: bool,
    ) -> bool {
        let Some(bridge) = forwarding.bridges.get_mut(&id) else { return false };
        let tlv = bridge.tlv.clone();
        let transaction = Transaction::resume(bridge, generation, now, changes);
        let affects_everything = transaction.affects_everything;
        let (mut watchers, mut statuses, mut removes, mut leaves_some) = (Vec::new(), Vec::new(), false, false);
        let (changes, affects_flows) = if succeeded {
            let (changes, affects_flows) = transaction.commit();
            leaves_some = forwarding.bridges.get(&id).is_some_and(|bridge| !bridge.orphaned.is_empty());
            watchers = forwarding
                .bridges
                .get(&id)
                .map(|bridge| tell_watchers(bridge, &changes, &tlv, requester))
                .unwrap_or_default();
            // Their counters are final when the change is in force.
            let final_at = if affects_flows { generation } else { 0 };
            for (rule, reason) in changes.iter().filter_map(RuleChange::removed) {
                removes = true;
                self.rule_removed((id, &tlv), rule, reason, now, final_at);
            }
            statuses = forwarding.bridges.get_mut(&id).map(BridgeState::vacancy_events).unwrap_or_default();
            (changes, affects_flows)
        } else {
            transaction.rollback()
        };
        if affects_flows {
            forwarding.note_affecting(generation);
        }
        if affects_everything {
            forwarding.touch();
        }
        drop(forwarding);
        watchers.iter().for_each(|watcher| watcher.settle());
        if !statuses.is_empty() {
            let subscribers = self.subscribers(id);
            statuses.iter().for_each(|status| subscribers.iter().for_each(|each| each.table_status(status)));
        }
        // Where no datapath flow is out of date and nobody is to be told, the revalidators have nothing to do.
        if affects_flows || affects_everything || removes {
            self.notify();
        }
        // To free the rules that went takes time, in which packets do not wait.
        drop(changes);
        leaves_some
    }
}

/// What those who watch a bridge's flows are told where all are removed.
fn removal_of_all(bridge: &BridgeState) -> Vec<RuleChange> {
    let event = Some(FlowEvent::Removed(FlowRemovedReason::Delete));
    let rules = bridge.tables.iter().flat_map(|table| table.rules.iter());
    rules.map(|rule| RuleChange { old: Some(rule.clone()), new: None, event }).collect()
}

/// Has those who watch a bridge's flows take note of changes. They are to settle when the tables are not locked any more.
fn tell_watchers(
    bridge: &BridgeState,
    changes: &[RuleChange],
    tlv: &Arc<FieldTable>,
    requester: Option<Requester>,
) -> Vec<Arc<dyn FlowWatcher>> {
    if changes.is_empty() {
        return Vec::new();
    }
    let tell = |(subscription, watcher): &(SubscriptionId, Arc<dyn FlowWatcher>)| {
        let own = requester.filter(|requester| requester.subscription == *subscription);
        watcher.note(&FlowChanges { changes, tlv, own: own.map(|requester| requester.xid) });
        watcher.clone()
    };
    bridge.watchers.iter().map(tell).collect()
}

/// Applies a flow-mod.
pub(super) fn apply(transaction: &mut Transaction, change: &FlowMod) -> Result<(), OfError> {
    // The table that is not announced is the switch's own.
    if change.table == Some(TableId(N_TABLES)) {
        return Err(OfError::OFPBRC_EPERM);
    }
    let change = &*tlv::placed_flow_mod(change, &transaction.bridge.tlv)?;
    match change.command {
        FlowModCommand::Add => add(transaction, change),
        FlowModCommand::Modify | FlowModCommand::ModifyStrict => modify(transaction, change, usize::MAX).map(drop),
        FlowModCommand::Delete | FlowModCommand::DeleteStrict => {
            delete(transaction, change);
            Ok(())
        }
    }
}

/// Which flows a delete or a request is about, apart from match and cookie.
pub(crate) struct Filter {
    pub out_port: OfPort,
    pub out_group: GroupId,
}

impl Filter {
    pub fn accepts(&self, rule: &Rule) -> bool {
        self.accepts_port_of(rule) && self.accepts_group_of(rule)
    }

    /// Whether a rule outputs to the port.
    pub fn accepts_port_of(&self, rule: &Rule) -> bool {
        let (i, port) = (&rule.instructions, self.out_port);
        port == OfPort::ANY || outputs_to(&i.apply, port) || outputs_to(&i.write, port)
    }

    /// Whether a rule uses the group.
    pub fn accepts_group_of(&self, rule: &Rule) -> bool {
        let (i, group) = (&rule.instructions, self.out_group);
        group == GroupId::ANY || uses_group(&i.apply, group) || uses_group(&i.write, group)
    }
}

/// The numbers of one table or of all.
pub(super) fn range_of(table: Option<TableId>) -> Range<usize> {
    match table {
        Some(TableId(n)) => usize::from(n)..(usize::from(n) + 1).min(TABLES),
        None => 0..TABLES,
    }
}

/// Some rules as narrow as the match of a change or narrower, with a cookie that it accepts.
fn loose(transaction: &mut Transaction, table: Option<TableId>, change: &FlowMod, most: usize) -> Vec<Arc<Rule>> {
    let FlowMod { matching, cookie, .. } = change;
    let (mut within, mut found) = (Within::new(&matching.key, &matching.mask), Vec::new());
    let tables = transaction.bridge.tables.get_mut(range_of(table)).unwrap_or_default();
    for table in tables.iter_mut().filter(|table| !table.rules.is_empty()) {
        let room = most - found.len();
        let (wanted, may_be) = (Cookie(cookie.value), table.rules.len_within(&within));
        let of_cookie = if cookie.mask == u64::MAX { table.count_of(wanted) as usize } else { usize::MAX };
        transaction.effort += may_be.min(of_cookie);
        if of_cookie < may_be {
            let rules = table.rules_of(wanted, usize::MAX);
            found.extend(rules.into_iter().filter(|rule| within.contains(&rule.pattern)).take(room));
        } else {
            let rules = table.rules.iter_within(&matching.key, &matching.mask);
            found.extend(rules.filter(|rule| cookie.accepts(rule.cookie)).take(room).cloned());
        }
    }
    found
}

/// The rules with exactly this match and priority.
fn strict<'a>(bridge: &'a BridgeState, change: &'a FlowMod) -> impl Iterator<Item = &'a Arc<Rule>> {
    let tables = bridge.tables.iter().enumerate();
    let tables = tables.filter(|(n, _)| change.table.is_none_or(|table| usize::from(table.0) == *n));
    tables.filter(|(_, table)| !table.rules.is_empty()).filter_map(|(_, table)| {
        let pattern = table.rules.pattern(&change.matching.key, &change.matching.mask);
        table.rules.find(&pattern, change.priority)
    })
}

fn add(transaction: &mut Transaction, change: &FlowMod) -> Result<(), OfError> {
    let (id, now) = (change.table.unwrap_or(TableId(0)), transaction.now);
    if id == TableId::ALL {
        return Err(OfError::OFPFMFC_BAD_TABLE_ID);
    }
    let known = Known::leniently(transaction.bridge, change.lenient);
    check_instructions(&change.instructions, &change.matching, Some(id), &known)?;
    let table = &transaction.bridge.tables[usize::from(id.0)];
    let pattern = table.rules.pattern(&change.matching.key, &change.matching.mask);
    let old = table.rules.find(&pattern, change.priority).cloned();
    if old.is_none() {
        if change.flags.contains(FlowModFlags::CHECK_OVERLAP) {
            transaction.effort += table.rules.len_to_compare(&change.matching.mask, change.priority);
        }
        if change.flags.contains(FlowModFlags::CHECK_OVERLAP)
            && table.rules.overlaps(&change.matching.key, &change.matching.mask, change.priority)
        {
            return Err(OfError::OFPFMFC_OVERLAP);
        }
        if table.is_full() {
            let victim = transaction.bridge.tables[usize::from(id.0)].victim(now).ok_or(OfError::OFPFMFC_TABLE_FULL)?;
            transaction.remove(&victim, FlowRemovedReason::Eviction);
        }
    }
    let instructions = transaction.bridge.instructions.share(&change.instructions);
    let mut rule = added_rule(change, id, (pattern, instructions), now);
    if let Some(old) = old {
        // When packets were last seen is known of either: an idle age goes on.
        rule.stats = match change.flags.contains(FlowModFlags::RESET_COUNTS) {
            true => Arc::new(RuleStats::new(old.stats.used())),
            false => old.stats.clone(),
        };
    }
    transaction.insert(rule);
    Ok(())
}

/// The rule that a flow-mod adds to a table.
pub(crate) fn added_rule(
    change: &FlowMod,
    table: TableId,
    (pattern, instructions): (Pattern, Arc<RuleInstructions>),
    now: Time,
) -> Rule {
    let mut rule = Rule::new(table, change.priority, pattern, instructions, now);
    rule.cookie = change.new_cookie.unwrap_or_default();
    (rule.idle_timeout, rule.hard_timeout) = (change.idle_timeout, change.hard_timeout);
    (rule.importance, rule.flags) = (change.importance, change.flags);
    rule
}

/// What a flow-mod makes of a rule that it modifies.
pub(crate) fn modified_rule(change: &FlowMod, rule: &Rule, instructions: Arc<RuleInstructions>, now: Time) -> Rule {
    let mut new = rule.successor();
    new.set_instructions(instructions);
    new.cookie = change.new_cookie.filter(|_| !change.keep_cookie).unwrap_or(rule.cookie);
    new.modified = now;
    new
}

/// Whether a modify that finds no flow adds one: OpenFlow 1.0 section 4.6 and 1.1 section 4.5; later versions give no cookie to
/// add with.
pub(crate) fn modify_adds(change: &FlowMod) -> bool {
    change.new_cookie.is_some() && change.cookie.mask == 0
}

/// Does what a modify asks for, unless it is about more flows than `most`: then nothing, and the answer is false.
pub(super) fn modify_at_most(transaction: &mut Transaction, change: &FlowMod, most: usize) -> Result<bool, OfError> {
    let change = &*tlv::placed_flow_mod(change, &transaction.bridge.tlv)?;
    modify(transaction, change, most)
}

fn modify(transaction: &mut Transaction, change: &FlowMod, most: usize) -> Result<bool, OfError> {
    check_modify(transaction.bridge, change)?;
    let found: Vec<Arc<Rule>> = if change.command == FlowModCommand::ModifyStrict {
        strict(transaction.bridge, change).cloned().collect()
    } else {
        loose(transaction, change.table, change, most.saturating_add(1))
    };
    let found: Vec<_> = found.into_iter().filter(|rule| change.cookie.accepts(rule.cookie)).collect();
    if found.is_empty() {
        return if modify_adds(change) { add(transaction, change).map(|()| true) } else { Ok(true) };
    }
    if found.len() > most {
        return Ok(false);
    }
    transaction.effort += MODIFICATION * found.len();
    replace_rules(transaction, change, found);
    Ok(true)
}

/// Gives some of the rules that a modify is about its instructions, as long as there is nothing wrong with these.
pub(super) fn modify_rules(
    transaction: &mut Transaction,
    change: &FlowMod,
    rules: Vec<Arc<Rule>>,
) -> Result<(), OfError> {
    let change = &*tlv::placed_flow_mod(change, &transaction.bridge.tlv)?;
    check_modify(transaction.bridge, change)?;
    replace_rules(transaction, change, rules);
    Ok(())
}

/// What is wrong with the instructions of a modify.
fn check_modify(bridge: &BridgeState, change: &FlowMod) -> Result<(), OfError> {
    let table = change.table.filter(|table| *table != TableId::ALL);
    check_instructions(&change.instructions, &change.matching, table, &Known::leniently(bridge, change.lenient))
}

/// Gives rules the instructions of a modify.
fn replace_rules(transaction: &mut Transaction, change: &FlowMod, rules: Vec<Arc<Rule>>) {
    let now = transaction.now;
    let instructions = transaction.bridge.instructions.share(&change.instructions);
    for rule in rules {
        let mut new = modified_rule(change, &rule, instructions.clone(), now);
        if change.flags.contains(FlowModFlags::RESET_COUNTS) {
            // The old counters stay with the old rule, which a rollback may restore.
            new.stats = Arc::new(RuleStats::new(rule.stats.used()));
        }
        transaction.replace(new);
    }
}

fn delete(transaction: &mut Transaction, change: &FlowMod) {
    let table = change.table.filter(|table| *table != TableId::ALL);
    let filter = Filter { out_port: change.out_port, out_group: change.out_group };
    let found: Vec<Arc<Rule>> = if change.command == FlowModCommand::DeleteStrict {
        strict(transaction.bridge, &FlowMod { table, ..change.clone() }).cloned().collect()
    } else {
        loose(transaction, table, change, usize::MAX)
    };
    for rule in found.into_iter().filter(|rule| change.cookie.accepts(rule.cookie) && filter.accepts(rule)) {
        transaction.remove(&rule, FlowRemovedReason::Delete);
    }
}
