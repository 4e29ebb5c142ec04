//! Walks over the flows that a request is about, in pieces: between two of them, the tables are free for changes.
//!
//! A flow that stays from the start of the walk to its end is met exactly once, as it is when its piece is made. One
//! that is removed before is left out, and so is one that is added after the start. Beside its place, a walk holds
//! nothing: neither rules nor a copy of them.

use std::sync::Arc;

use openflow::stats::AggregateStats;
use openflow::{CookieFilter, FlowStats, FlowStatsRequest, GroupId, Match, OfError, OfPort, TableId};
use tunnel::fields::FieldTable;

use super::Bridge;
use super::counters::RuleId;
use super::flows::{Filter, range_of};
use crate::model::forwarding::BridgeState;
use crate::model::tlv;
use crate::table::{Place, Rule, Within};

/// Most rules that are looked at for one piece, with the tables' lock held.
const LOOKED_AT: usize = 1024;

/// A walk over flows. See the [module](self).
pub struct FlowWalk {
    bridge: Bridge,
    request: FlowStatsRequest,
    within: Within,
    /// The tables that are to be walked, the next one last.
    tables: Vec<TableToWalk>,
    /// The place in the next table that was looked at last.
    after: Option<Place>,
}

/// A table that is to be walked.
struct TableToWalk {
    table: usize,
    /// The highest number that a rule had at the start of the walk.
    last_number: u64,
}

impl Bridge {
    /// Begins a walk over the flows that a request is about. Their counters are as up to date as
    /// [`macs`](Bridge::macs).
    pub fn walk_flows(&self, request: &FlowStatsRequest) -> Result<FlowWalk, OfError> {
        let mut request = request.clone();
        self.read(|state| tlv::place(&mut request.matching, &state.tlv)).unwrap_or(Ok(()))?;
        Ok(self.walk(request))
    }

    /// Begins a walk over the rules that a request is about, whose match has been placed. Their counters are as they stand.
    pub(crate) fn walk_rules(&self, request: FlowStatsRequest) -> FlowWalk {
        let within = Within::new(&request.matching.key, &request.matching.mask);
        let tables = self.read(|state| tables_to_walk(state, &request, &within)).unwrap_or_default();
        FlowWalk { bridge: self.clone(), request, within, tables, after: None }
    }

    /// Begins a walk over all flows of a table, or of all tables.
    pub fn walk_table(&self, table: TableId) -> FlowWalk {
        self.walk(every_flow(table))
    }

    /// Begins a walk over all flows of all tables, whose counters are as they stand. For who walks over several bridges, and calls
    /// [`refresh_statistics`](crate::Switch::refresh_statistics) before.
    pub fn walk_as_counted(&self) -> FlowWalk {
        self.walk_rules(every_flow(TableId::ALL))
    }

    /// The same over the flows of a table, or of all tables, that come after a rule: for who has stopped there. Whether that rule is still
    /// there does not matter.
    pub fn walk_after(&self, table: TableId, after: Option<RuleId>) -> FlowWalk {
        let mut walk = self.walk_rules(every_flow(table));
        if let Some((table, place)) = after.map(RuleId::place) {
            walk.tables.retain(|walk| walk.table >= table);
            walk.after = walk.tables.last().is_some_and(|walk| walk.table == table).then_some(place);
        }
        walk
    }

    fn walk(&self, request: FlowStatsRequest) -> FlowWalk {
        let within = Within::new(&request.matching.key, &request.matching.mask);
        let counts_later = |state: &BridgeState| {
            tables_to_walk(state, &request, &within).iter().any(|walk| has_dependents(state, walk.table))
        };
        if self.read(counts_later) == Some(true) {
            self.switch.refresh_statistics();
        }
        self.walk_rules(request)
    }

    /// Every rule.
    #[cfg(test)]
    pub(crate) fn rules(&self) -> Vec<Arc<Rule>> {
        self.read(|state| state.tables.iter().flat_map(|t| t.rules.iter().cloned()).collect()).unwrap_or_default()
    }

    /// All flows that a request is about, as a [walk](Bridge::walk_flows) meets them.
    pub fn flow_stats(&self, request: &FlowStatsRequest) -> Result<Vec<FlowStats>, OfError> {
        let mut walk = self.walk_flows(request)?;
        Ok(std::iter::from_fn(|| walk.next_flows(LOOKED_AT)).flatten().collect())
    }
}

impl FlowWalk {
    /// The next flows, `most` at most. They may be none although more follow: a piece is bounded by the rules that are
    /// looked at, too. `None` at the end.
    pub fn next_flows(&mut self, most: usize) -> Option<Vec<FlowStats>> {
        let (rules, tlv) = self.next_rules(most)?;
        let now = self.now();
        Some(rules.iter().map(|rule| rule.describe(now, &tlv)).collect())
    }

    pub(super) fn now(&self) -> packet::Time {
        self.bridge.now()
    }

    /// Adds the counters of the next flows to a sum. False at the end.
    pub(crate) fn add_next(&mut self, sum: &mut AggregateStats) -> bool {
        let Some((rules, _)) = self.next_rules(LOOKED_AT) else { return false };
        for rule in &rules {
            sum.packet_count = sum.packet_count.wrapping_add(rule.stats.packets());
            sum.byte_count = sum.byte_count.wrapping_add(rule.stats.bytes());
            sum.flow_count += 1;
        }
        true
    }

    /// The next rules, and what the tun_metadata fields stand for. They are described without the tables' lock.
    pub(crate) fn next_rules(&mut self, most: usize) -> Option<(Vec<Arc<Rule>>, Arc<FieldTable>)> {
        if self.tables.is_empty() {
            return None;
        }
        let bridge = self.bridge.clone();
        let rules = bridge.read(|state| (self.collect(state, most), state.tlv.clone()));
        if rules.is_none() {
            // The bridge was removed.
            self.tables.clear();
        }
        rules
    }

    /// The next rules, for who has locked the tables. They may be none although more follow.
    pub(crate) fn next_of(&mut self, state: &BridgeState, most: usize) -> Option<Vec<Arc<Rule>>> {
        (!self.tables.is_empty()).then(|| self.collect(state, most))
    }

    fn collect(&mut self, state: &BridgeState, most: usize) -> Vec<Arc<Rule>> {
        let filter = Filter { out_port: self.request.out_port, out_group: self.request.out_group };
        let (mut rules, mut left) = (Vec::new(), LOOKED_AT);
        'tables: while let Some(&TableToWalk { table, last_number }) = self.tables.last() {
            for (place, rule) in state.tables[table].listing.after(self.after) {
                if rules.len() == most || left == 0 {
                    return rules;
                }
                left -= 1;
                if place.number() > last_number {
                    // So are all that follow with this priority.
                    self.after = Some(place.end_of_priority());
                    continue 'tables;
                }
                self.after = Some(place);
                if self.within.contains(&rule.pattern)
                    && self.request.cookie.accepts(rule.cookie)
                    && filter.accepts(rule)
                {
                    rules.push(rule.clone());
                }
            }
            self.tables.pop();
            self.after = None;
        }
        rules
    }
}

fn every_flow(table: TableId) -> FlowStatsRequest {
    let (out_port, out_group) = (OfPort::ANY, GroupId::ANY);
    FlowStatsRequest { matching: Match::any(), table, out_port, out_group, cookie: CookieFilter::default() }
}

/// Whether packets may have been forwarded by the flows of a table since they were counted last: a record of a datapath
/// flow holds the counters of each table that it depends on, until its last packets are counted.
fn has_dependents(state: &BridgeState, table: usize) -> bool {
    state.tables[table].has_dependents()
}

/// The tables that can have flows that a request is about.
fn tables_to_walk(state: &BridgeState, request: &FlowStatsRequest, within: &Within) -> Vec<TableToWalk> {
    let range = range_of((request.table != TableId::ALL).then_some(request.table));
    let wanted = range.rev().filter_map(|table| Some((table, state.tables.get(table)?)));
    let wanted = wanted.filter(|(_, table)| table.rules.may_be_within(within));
    wanted.map(|(table, state)| TableToWalk { table, last_number: state.listing.last_number() }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use openflow::{Action, CookieFilter, FlowMod, FlowModCommand, GroupId, Instructions, Match, OfPort};
    use packet::Field;
    use packet::wire::build;
    use proptest::prelude::*;

    use super::*;
    use crate::bridge::tests::bridge;
    use crate::reference::tests::Bed;

    /// A flow-mod for the flow with this number: the number says its match, its priority and its table.
    fn flow_mod(command: FlowModCommand, number: u8, port: u32) -> FlowMod {
        let mut matching = Match::any();
        // Two masks.
        matching.set(if number.is_multiple_of(2) { Field::Reg0 } else { Field::Reg1 }, number.into());
        let actions = Instructions::apply(vec![Action::output(OfPort(port))]);
        let mut change = FlowMod::new(command, matching, actions);
        (change.table, change.priority) = (Some(TableId(number % 3 * 7)), u16::from(number % 5));
        change
    }

    fn number(flow: &FlowStats) -> u8 {
        (flow.matching.key.get(Field::Reg0) | flow.matching.key.get(Field::Reg1)) as u8
    }

    fn all() -> FlowStatsRequest {
        FlowStatsRequest {
            matching: Match::any(),
            table: TableId::ALL,
            out_port: OfPort::ANY,
            out_group: GroupId::ANY,
            cookie: CookieFilter::default(),
        }
    }

    proptest! {
        #[test]
        fn what_stays_is_met_once_whatever_changes_meanwhile(
            at_first in prop::collection::btree_set(1u8..60, 0..50),
            pieces in prop::collection::vec((1usize..6, prop::collection::vec((0u8..5, 1u8..60), 0..6)), 1..30),
        ) {
            let bridge = bridge();
            for &n in &at_first {
                bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap();
            }
            let (mut walk, mut stays, mut met) = (bridge.walk_flows(&all()).unwrap(), at_first.clone(), BTreeMap::new());
            let mut last = None;
            for (most, changes) in pieces.iter().chain(std::iter::repeat(&(5, Vec::new()))) {
                let Some(flows) = walk.next_flows(*most) else { break };
                prop_assert!(flows.len() <= *most);
                for flow in &flows {
                    let place = (flow.table, std::cmp::Reverse(flow.priority));
                    prop_assert!(last <= Some(place), "by table, the highest priority first");
                    last = Some(place);
                    *met.entry(number(flow)).or_insert(0) += 1;
                }
                for &(kind, n) in changes {
                    let command = match kind {
                        0 => FlowModCommand::Add,
                        1 => FlowModCommand::ModifyStrict,
                        _ => FlowModCommand::DeleteStrict,
                    };
                    if command == FlowModCommand::DeleteStrict {
                        stays.remove(&n);
                    }
                    bridge.flow_mod(&flow_mod(command, n, 2)).unwrap();
                }
            }
            prop_assert!(met.values().all(|&times| times == 1), "{met:?}");
            prop_assert!(stays.iter().all(|n| met.contains_key(n)), "{stays:?} {met:?}");
            prop_assert!(met.keys().all(|n| at_first.contains(n)), "what came later is not met");
            bridge.read(|state| state.tables.iter().for_each(|t| assert_eq!(t.listing.count(), t.rules.len())));
        }
    }

    #[test]
    fn what_a_failed_transaction_puts_back_is_met_once() {
        let bridge = bridge();
        (1..=9).for_each(|n| bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap());
        let mut walk = bridge.walk_flows(&all()).unwrap();
        let mut met: Vec<_> = walk.next_flows(4).unwrap().iter().map(number).collect();
        let mut wrong = flow_mod(FlowModCommand::Add, 5, 3);
        wrong.table = Some(TableId::ALL);
        let mut messages: Vec<_> = (1..=9).map(|n| flow_mod(FlowModCommand::DeleteStrict, n, 0)).collect();
        messages.extend((1..=9).map(|n| flow_mod(FlowModCommand::Add, n, 2)));
        messages.push(wrong);
        let messages: Vec<_> =
            messages.into_iter().map(|change| crate::bridge::Bundled::Flow(Box::new(change))).collect();
        bridge.commit(&messages, |message| Ok(message.clone())).unwrap_err();
        while let Some(flows) = walk.next_flows(4) {
            met.extend(flows.iter().map(number));
        }
        met.sort_unstable();
        assert_eq!(met, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn only_flows_within_the_match_are_met_and_other_masks_are_not_looked_at() {
        let bridge = bridge();
        (1..=40).for_each(|n| bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap());
        let walk = |field, n: u8| {
            let mut request = all();
            request.matching.set(field, n.into());
            let mut walk = bridge.walk_flows(&request).unwrap();
            let tables = walk.tables.len();
            let met: Vec<_> = std::iter::from_fn(|| walk.next_flows(3)).flatten().map(|f| number(&f)).collect();
            (tables, met)
        };
        assert_eq!(walk(Field::Reg0, 6), (3, vec![6]));
        assert_eq!(walk(Field::Reg1, 6), (3, vec![]));
        assert_eq!(walk(Field::Reg2, 6), (0, vec![]));
    }

    #[test]
    fn flows_that_no_packet_has_reached_are_shown_without_a_look_at_the_datapath() {
        let bed = Bed::new(2);
        let to_port = || vec![Action::output(OfPort(2))];
        bed.add_flow(0, 1, Match::any(), to_port());
        bed.add_flow(1, 1, Match::any(), to_port());
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x1234, &[0; 46]);
        (0..3).for_each(|_| assert_eq!(bed.receive(OfPort(1), &frame).len(), 1));
        let shown = |table| {
            let rounds = bed.switch.revalidation_stats().count;
            let flows = bed.bridge.flow_stats(&FlowStatsRequest { table: TableId(table), ..all() }).unwrap();
            let packets: Vec<_> = flows.iter().map(|flow| flow.packet_count).collect();
            (packets, bed.switch.revalidation_stats().count - rounds)
        };
        assert_eq!(shown(1), (vec![0], 0));
        assert_eq!(shown(0), (vec![3], 1));
    }

    #[test]
    fn a_walk_goes_on_after_any_rule() {
        let bridge = bridge();
        (1..=40).for_each(|n| bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap());
        for table in [TableId::ALL, TableId(7)] {
            let all: Vec<_> = std::iter::from_fn({
                let mut walk = bridge.walk_after(table, None);
                move || walk.next_known(7)
            })
            .flatten()
            .collect();
            assert_eq!(all.len(), if table == TableId::ALL { 40 } else { 14 });
            for (at, (id, flow)) in all.iter().enumerate() {
                if at % 3 == 0 {
                    // One that has gone meanwhile has a place, too.
                    bridge.flow_mod(&flow_mod(FlowModCommand::DeleteStrict, number(flow), 0)).unwrap();
                }
                let mut walk = bridge.walk_after(table, Some(*id));
                let rest: Vec<_> = std::iter::from_fn(|| walk.next_known(5)).flatten().map(|(id, _)| id).collect();
                let expected: Vec<_> = all[at + 1..].iter().map(|(id, _)| *id).collect();
                assert_eq!(rest, expected, "after {id}");
            }
            (1..=40).for_each(|n| bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap());
        }
    }

    #[test]
    fn a_walk_of_a_bridge_that_is_removed_ends() {
        let bridge = bridge();
        (1..=9).for_each(|n| bridge.flow_mod(&flow_mod(FlowModCommand::Add, n, 1)).unwrap());
        let mut walk = bridge.walk_flows(&all()).unwrap();
        assert_eq!(walk.next_flows(2).map(|flows| flows.len()), Some(2));
        bridge.switch.remove_bridge(bridge.name()).unwrap();
        assert!(walk.next_flows(2).is_none());
    }
}
