//! Changes to the flow tables, and what they hold.

use std::sync::Arc;

use openflow::stats::{AggregateStats, TableStats};
use openflow::{
    Action, FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, FlowStats, FlowStatsRequest, GroupId,
    Instructions, Match, OfError, OfPort, TableId,
};
use packet::Time;

use super::check::check_instructions;
use super::{Bridge, FailMode, N_TABLES};
use crate::forwarding::{BridgeId, BridgeState, TABLES};
use crate::revalidate::remove_rule;
use crate::switch::Switch;
use crate::table::Rule;

impl Bridge {
    /// Changes the flow tables. Packets may see the old flows until a [`barrier`](Bridge::barrier).
    /// A buffer id is ignored: Weir buffers no packets.
    pub fn flow_mod(&self, change: &FlowMod) -> Result<(), OfError> {
        self.switch.change_flows(self.id, change, self.switch.clock.now())
    }

    /// Removes all flows, without flow-removed messages, and adds the NORMAL flow of a standalone
    /// bridge without controllers.
    pub fn flush_flows(&self) {
        let now = self.switch.clock.now();
        let mut forwarding = self.switch.forwarding.write();
        let generation = forwarding.next_generation();
        let Some(bridge) = forwarding.bridges.get_mut(&self.id) else { return };
        for table in bridge.tables.iter_mut().filter(|table| !table.rules.is_empty()) {
            table.rules = Default::default();
            (table.mortal, table.changed) = (0, generation);
        }
        if bridge.config.fail_mode == FailMode::Standalone && !bridge.controllers.configured {
            let table = &mut bridge.tables[0];
            let any = Match::any();
            let pattern = table.rules.pattern(&any.key, &any.mask);
            let normal = Instructions::apply(vec![Action::output(OfPort::NORMAL)]);
            table.insert(Rule::new(TableId(0), 0, pattern, normal, now), generation);
        }
        drop(forwarding);
        self.switch.notify();
    }

    /// Flows with counters that include every packet forwarded before the call.
    pub fn flow_stats(&self, request: &FlowStatsRequest) -> Result<Vec<FlowStats>, OfError> {
        let now = self.switch.clock.now();
        let seconds = |since: Time| Some(now.since(since).as_secs().min(u16::MAX.into()) as u16);
        self.selected(request, |rule| FlowStats {
            matching: rule.matching(),
            cookie: rule.cookie,
            table: rule.table,
            priority: rule.priority,
            idle_timeout: rule.idle_timeout,
            hard_timeout: rule.hard_timeout,
            duration: now.since(rule.created),
            idle_age: seconds(rule.stats.used()),
            hard_age: seconds(rule.modified),
            packet_count: rule.stats.packets(),
            byte_count: rule.stats.bytes(),
            flags: rule.flags & !FlowModFlags::CHECK_OVERLAP,
            importance: rule.importance,
            instructions: rule.instructions.clone(),
        })
    }

    /// Sums over flows, up to date as [`flow_stats`](Bridge::flow_stats).
    pub fn aggregate_stats(&self, request: &FlowStatsRequest) -> Result<AggregateStats, OfError> {
        let rules = self.selected(request, |rule| (rule.stats.packets(), rule.stats.bytes()))?;
        Ok(rules.iter().fold(AggregateStats::default(), |sum, (packets, bytes)| AggregateStats {
            packet_count: sum.packet_count.wrapping_add(*packets),
            byte_count: sum.byte_count.wrapping_add(*bytes),
            flow_count: sum.flow_count + 1,
        }))
    }

    /// Counters of the announced tables.
    pub fn table_stats(&self) -> Vec<TableStats> {
        self.switch.revalidate();
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Vec::new() };
        let tables = bridge.tables.iter().take(N_TABLES.into()).enumerate();
        let stats = tables.map(|(n, table)| TableStats {
            table: TableId(n as u8),
            name: if n == 0 { "classifier".into() } else { format!("table{n}") },
            // Every wildcard of OpenFlow 1.0.
            wildcards: (1 << 22) - 1,
            max_entries: bridge.config.max_flows.unwrap_or(1_000_000),
            active_count: table.rules.len() as u32,
            lookup_count: table.counters.lookups(),
            matched_count: table.counters.matched(),
            early: None,
        });
        stats.collect()
    }

    fn selected<T>(&self, request: &FlowStatsRequest, shown: impl Fn(&Rule) -> T) -> Result<Vec<T>, OfError> {
        self.switch.revalidate();
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Ok(Vec::new()) };
        let table = (request.table != TableId::ALL).then_some(request.table);
        let filter = Filter { out_port: request.out_port, out_group: request.out_group };
        let rules = loose(bridge, table, &request.matching);
        Ok(rules.filter(|rule| request.cookie.accepts(rule.cookie) && filter.accepts(rule)).map(|r| shown(r)).collect())
    }
}

impl Switch {
    /// Applies a flow-mod.
    pub(crate) fn change_flows(&self, id: BridgeId, change: &FlowMod, now: Time) -> Result<(), OfError> {
        let mut forwarding = self.forwarding.write();
        let generation = forwarding.next_generation();
        let Some(bridge) = forwarding.bridges.get_mut(&id) else { return Ok(()) };
        let result = match change.command {
            FlowModCommand::Add => add(bridge, change, generation, now),
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => modify(bridge, change, generation, now),
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => delete(self, bridge, change, generation, now),
        };
        drop(forwarding);
        self.notify();
        result
    }
}

/// Which flows a delete or a request is about, apart from match and cookie.
struct Filter {
    out_port: OfPort,
    out_group: GroupId,
}

impl Filter {
    fn accepts(&self, rule: &Rule) -> bool {
        let actions = || rule.instructions.apply.iter().chain(&rule.instructions.write);
        (self.out_port == OfPort::ANY || actions().any(|action| outputs_to(action, self.out_port)))
            && (self.out_group == GroupId::ANY || actions().any(|action| *action == Action::Group(self.out_group)))
    }
}

fn outputs_to(action: &Action, to: OfPort) -> bool {
    match action {
        Action::Output { port, .. } | Action::Enqueue { port, .. } | Action::OutputTrunc { port, .. } => *port == to,
        Action::Controller(_) => to == OfPort::CONTROLLER,
        Action::Clone(actions) => actions.iter().any(|action| outputs_to(action, to)),
        _ => false,
    }
}

/// The rules as narrow as `matching` or narrower.
fn loose<'a>(
    bridge: &'a BridgeState,
    table: Option<TableId>,
    matching: &'a Match,
) -> impl Iterator<Item = &'a Arc<Rule>> {
    let range = match table {
        Some(TableId(n)) => usize::from(n)..(usize::from(n) + 1).min(TABLES),
        None => 0..TABLES,
    };
    let tables = bridge.tables.get(range).unwrap_or_default();
    tables
        .iter()
        .filter(|table| !table.rules.is_empty())
        .flat_map(|table| table.rules.iter_within(&matching.key, &matching.mask))
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

fn add(bridge: &mut BridgeState, change: &FlowMod, generation: u64, now: Time) -> Result<(), OfError> {
    let id = change.table.unwrap_or(TableId(0));
    if id == TableId::ALL {
        return Err(OfError::OFPFMFC_BAD_TABLE_ID);
    }
    check_instructions(&change.instructions, &change.matching, Some(id))?;
    let (max_flows, table) = (bridge.config.max_flows, &mut bridge.tables[usize::from(id.0)]);
    let pattern = table.rules.pattern(&change.matching.key, &change.matching.mask);
    let old = table.rules.find(&pattern, change.priority).cloned();
    if old.is_none() {
        if change.flags.contains(FlowModFlags::CHECK_OVERLAP)
            && table.rules.overlaps(&change.matching.key, &change.matching.mask, change.priority)
        {
            return Err(OfError::OFPFMFC_OVERLAP);
        }
        if max_flows.is_some_and(|max| table.rules.len() >= max as usize) {
            return Err(OfError::OFPFMFC_TABLE_FULL);
        }
    }
    let mut rule = Rule::new(id, change.priority, pattern, change.instructions.clone(), now);
    rule.cookie = change.new_cookie.unwrap_or_default();
    (rule.idle_timeout, rule.hard_timeout) = (change.idle_timeout, change.hard_timeout);
    (rule.importance, rule.flags) = (change.importance, change.flags);
    if let Some(old) = old
        && !change.flags.contains(FlowModFlags::RESET_COUNTS)
    {
        rule.stats = old.stats.clone();
        rule.stats.add(0, 0, now);
    }
    table.insert(rule, generation);
    Ok(())
}

fn modify(bridge: &mut BridgeState, change: &FlowMod, generation: u64, now: Time) -> Result<(), OfError> {
    check_instructions(&change.instructions, &change.matching, change.table.filter(|table| *table != TableId::ALL))?;
    let found: Vec<Arc<Rule>> = if change.command == FlowModCommand::ModifyStrict {
        strict(bridge, change).cloned().collect()
    } else {
        loose(bridge, change.table, &change.matching).cloned().collect()
    };
    let found: Vec<_> = found.into_iter().filter(|rule| change.cookie.accepts(rule.cookie)).collect();
    if found.is_empty() {
        // OpenFlow 1.0 section 4.6: a modify that finds nothing adds; later versions give no cookie.
        let adds = change.new_cookie.is_some() && change.cookie.mask == 0;
        return if adds { add(bridge, change, generation, now) } else { Ok(()) };
    }
    for rule in found {
        let mut new = rule.successor();
        new.set_instructions(change.instructions.clone());
        new.cookie = change.new_cookie.unwrap_or(rule.cookie);
        new.modified = now;
        if change.flags.contains(FlowModFlags::RESET_COUNTS) {
            new.stats.reset();
        }
        bridge.tables[usize::from(rule.table.0)].insert(new, generation);
    }
    Ok(())
}

fn delete(
    switch: &Switch,
    bridge: &mut BridgeState,
    change: &FlowMod,
    generation: u64,
    now: Time,
) -> Result<(), OfError> {
    let table = change.table.filter(|table| *table != TableId::ALL);
    let filter = Filter { out_port: change.out_port, out_group: change.out_group };
    let found: Vec<Arc<Rule>> = if change.command == FlowModCommand::DeleteStrict {
        strict(bridge, &FlowMod { table, ..change.clone() }).cloned().collect()
    } else {
        loose(bridge, table, &change.matching).cloned().collect()
    };
    for rule in found.into_iter().filter(|rule| change.cookie.accepts(rule.cookie) && filter.accepts(rule)) {
        remove_rule(switch, bridge, &rule, FlowRemovedReason::Delete, generation, now);
    }
    Ok(())
}
