//! Deletes of many flows, groups or meters, and modifications of many flows, in pieces: between two of them, packets are forwarded and others
//! have their turn.
//!
//! A change that can be about few flows takes effect at once. Where it removes flows that have learnt others, with `delete_learned`, most of these
//! may be left: they go in pieces, too. A group or a meter goes when no flow uses it any more. What is wrong
//! with a modification is found before its first piece; where others take away meanwhile what it needs, as a group, it ends there.

use openflow::group::GroupCommand;
use openflow::meter::MeterCommand;
use openflow::{
    Cookie, FlowMod, FlowModCommand, FlowRemovedReason, FlowStatsRequest, GroupId, GroupMod, MeterMod, OfError, OfPort,
    TableId,
};

use super::flows::{apply, modify_at_most, modify_rules, range_of};
use super::walk::FlowWalk;
use super::{Bridge, groups, meters};
use crate::model::config::N_TABLES;
use crate::model::forwarding::BridgeState;
use crate::model::transaction::Transaction;
use crate::model::users::Used;
use crate::table::{Table, Within};

/// Most flows that a change can be about to take effect at once.
const AT_ONCE: usize = 4096;

/// Most flows, groups and meters that are removed or modified with the tables locked, which takes a millisecond or two.
const PIECE: usize = 256;

/// A change under way. Dropped, it comes to its end.
pub struct Piecewise {
    bridge: Bridge,
    /// `None` at the end.
    left: Option<Left>,
}

/// What is left of a change.
enum Left {
    /// Flows that are deleted.
    Flows(Box<FlowWalk>),
    /// Flows that are modified.
    Modified(Box<FlowWalk>, Box<FlowMod>),
    /// Groups or meters and the flows that use them, the next one last.
    Shared(Vec<Used>),
    /// Flows that removed ones had learnt.
    Learnt,
}

impl Bridge {
    /// As [`flow_mod`](Bridge::flow_mod), but for a change that can be about many flows: what is left of it is returned.
    pub fn begin_flow_mod(&self, change: &FlowMod) -> Result<Option<Piecewise>, OfError> {
        self.begin(change, AT_ONCE)
    }

    fn begin(&self, change: &FlowMod, at_once: usize) -> Result<Option<Piecewise>, OfError> {
        if !self.changes_more_than(at_once, change) {
            let leaves_some = self.transact_in_part(|transaction| apply(transaction, change))?;
            return Ok(leaves_some.then(|| self.rest(Left::Learnt)));
        }
        let modifies = change.command == FlowModCommand::Modify;
        if modifies {
            // Only by a look at them is it known how many there are, and whether one is to be added instead.
            let mut is_done = true;
            let modify = |transaction: &mut Transaction| {
                is_done = modify_at_most(transaction, change, at_once)?;
                Ok(())
            };
            let leaves_some = self.transact_in_part(modify)?;
            if is_done {
                return Ok(leaves_some.then(|| self.rest(Left::Learnt)));
            }
        }
        // Where the flows send to matters to deletes only.
        let walk = self.walk_rules(FlowStatsRequest {
            matching: change.matching.clone(),
            table: change.table.unwrap_or(TableId::ALL),
            out_port: if modifies { OfPort::ANY } else { change.out_port },
            out_group: if modifies { GroupId::ANY } else { change.out_group },
            cookie: change.cookie,
        });
        let walk = Box::new(walk);
        let left = if modifies { Left::Modified(walk, Box::new(change.clone())) } else { Left::Flows(walk) };
        Ok(Some(self.rest(left)))
    }

    fn rest(&self, left: Left) -> Piecewise {
        Piecewise { bridge: self.clone(), left: Some(left) }
    }

    /// As [`group_mod`](Bridge::group_mod), but for a delete of many groups, or of those that many flows use: what is left of
    /// it is returned.
    pub fn begin_group_mod(&self, change: &GroupMod) -> Result<Option<Piecewise>, OfError> {
        let wanted = |state: &BridgeState| groups::wanted(state, change.group).map(Used::Group).collect();
        let deletion = if change.command == GroupCommand::Delete { self.begin_shared(wanted) } else { None };
        if deletion.is_some() {
            return Ok(deletion);
        }
        self.group_mod(change)?;
        Ok(self.rest_of_learnt())
    }

    /// As [`meter_mod`](Bridge::meter_mod), likewise.
    pub fn begin_meter_mod(&self, change: &MeterMod) -> Result<Option<Piecewise>, OfError> {
        let wanted = |state: &BridgeState| meters::wanted(state, change.config.meter).map(Used::Meter).collect();
        let deletion = if change.command == MeterCommand::Delete { self.begin_shared(wanted) } else { None };
        if deletion.is_some() {
            return Ok(deletion);
        }
        self.meter_mod(change)?;
        Ok(self.rest_of_learnt())
    }

    /// What a change has left of the flows that removed ones had learnt.
    fn rest_of_learnt(&self) -> Option<Piecewise> {
        let leaves_some = self.read(|state| !state.orphaned.is_empty()).unwrap_or(false);
        leaves_some.then(|| self.rest(Left::Learnt))
    }

    fn changes_more_than(&self, at_once: usize, change: &FlowMod) -> bool {
        if !matches!(change.command, FlowModCommand::Delete | FlowModCommand::Modify)
            || change.table == Some(TableId(N_TABLES))
            || !change.matching.tun_metadata.is_empty()
        {
            return false;
        }
        let within = Within::new(&change.matching.key, &change.matching.mask);
        let tables = range_of(change.table.filter(|table| *table != TableId::ALL));
        self.read(|state| {
            let tables = state.tables.get(tables).unwrap_or_default();
            let of_cookie = |table: &Table| match change.cookie.mask {
                u64::MAX => table.count_of(Cookie(change.cookie.value)) as usize,
                _ => usize::MAX,
            };
            let flows: usize = tables.iter().map(|table| table.rules.len_within(&within).min(of_cookie(table))).sum();
            flows > at_once
        })
        .unwrap_or(false)
    }

    /// Begins to delete groups or meters, if that is more than a piece.
    fn begin_shared(&self, wanted: impl FnOnce(&BridgeState) -> Vec<Used>) -> Option<Piecewise> {
        let shared = |state: &BridgeState| {
            let mut shared = wanted(state);
            let flows = |&used: &Used| state.users.rule_count(used) as usize;
            let many = shared.len() > PIECE || shared.iter().map(flows).sum::<usize>() > PIECE;
            // In their order.
            shared.reverse();
            many.then_some(shared)
        };
        let shared = self.read(shared).flatten()?;
        Some(self.rest(Left::Shared(shared)))
    }
}

impl Piecewise {
    /// Removes or modifies the next flows. False at the end.
    pub fn go_on(&mut self) -> bool {
        let Some(left) = &mut self.left else { return false };
        let mut more = false;
        let made: Result<bool, OfError> = self.bridge.transact_in_part(|transaction| {
            more = match left {
                Left::Flows(walk) => {
                    let rules = walk.next_of(transaction.bridge, PIECE);
                    rules.iter().flatten().for_each(|rule| transaction.remove(rule, FlowRemovedReason::Delete));
                    rules.is_some()
                }
                Left::Modified(walk, change) => {
                    let rules = walk.next_of(transaction.bridge, PIECE);
                    let more = rules.is_some();
                    // What it needs may have gone since the last piece.
                    modify_rules(transaction, change, rules.unwrap_or_default())?;
                    more
                }
                Left::Shared(shared) => remove_shared(transaction, shared),
                // They go at the end of each transaction.
                Left::Learnt => false,
            };
            Ok(())
        });
        if !more {
            // Nothing is left but what has been learnt, or the bridge was removed.
            self.left = made.is_ok_and(|leaves_some| leaves_some).then_some(Left::Learnt);
        }
        self.left.is_some()
    }
}

/// Removes the last of the groups and meters, and the flows that use them. Whether some are left.
fn remove_shared(transaction: &mut Transaction, shared: &mut Vec<Used>) -> bool {
    let mut room = PIECE;
    while let Some(&used) = shared.last() {
        let users: Vec<_> = transaction.bridge.users.rules(used).take(room).cloned().collect();
        let reason = match used {
            Used::Meter(_) => FlowRemovedReason::MeterDelete,
            _ => FlowRemovedReason::GroupDelete,
        };
        users.iter().for_each(|rule| transaction.remove(rule, reason));
        room -= users.len();
        if room == 0 {
            return true;
        }
        room -= 1;
        match used {
            Used::Group(id) => groups::delete(transaction, id),
            Used::Meter(id) => meters::delete(transaction, id),
            Used::PacketInMeter(_) | Used::TunMetadata(_) => {}
        }
        shared.pop();
    }
    false
}

impl Drop for Piecewise {
    fn drop(&mut self) {
        while self.go_on() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openflow::meter::{MeterFlags, meter_id};
    use openflow::text::parse_flow_mod;
    use openflow::{Action, CookieFilter, FlowModFlags, Instructions, Match, MeterConfig};
    use packet::Field;
    use packet::flow::text::NoNames;
    use proptest::prelude::*;

    use super::*;
    use crate::bridge::Bundled;
    use crate::bridge::tests::{bridge, group};
    use crate::model::transaction::ORPHANS;

    const FLOWS: u32 = 3 * PIECE as u32;

    /// A flow-mod for the flow with this number, which says its match, priority, table, cookie and action.
    fn flow(number: u32) -> FlowMod {
        let mut matching = Match::any();
        matching.set(if number.is_multiple_of(2) { Field::Reg0 } else { Field::Reg1 }, number.into());
        let actions = Instructions::apply(vec![Action::output(OfPort(number % 3 + 1))]);
        let mut change = FlowMod::new(FlowModCommand::Add, matching, actions);
        (change.table, change.priority) = (Some(TableId((number % 5) as u8)), (number % 7) as u16);
        change.new_cookie = Some(openflow::Cookie((number % 4).into()));
        change
    }

    /// What is left, by cookie, match and action.
    fn left(bridge: &Bridge) -> Vec<String> {
        let everything = FlowStatsRequest {
            matching: Match::any(),
            table: TableId::ALL,
            out_port: OfPort::ANY,
            out_group: GroupId::ANY,
            cookie: CookieFilter::default(),
        };
        let flows = bridge.flow_stats(&everything).unwrap();
        flows.iter().map(|flow| format!("{:?} {:?} {:?}", flow.cookie, flow.matching, flow.instructions)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pieces_come_to_what_one_change_does(
            modifies: bool, parity: Option<bool>, table in prop::option::of(0u8..5), cookie in prop::option::of(0u64..4),
            port in prop::option::of(1u32..4),
        ) {
            let (at_once, in_pieces) = (bridge(), bridge());
            for number in 0..FLOWS {
                for bridge in [&at_once, &in_pieces] {
                    bridge.flow_mod(&flow(number)).unwrap();
                }
            }
            let mut matching = Match::any();
            if let Some(even) = parity {
                matching.set_masked(if even { Field::Reg0 } else { Field::Reg1 }, 0, 1 << 8);
            }
            let command = if modifies { FlowModCommand::Modify } else { FlowModCommand::Delete };
            let mut change = FlowMod::new(command, matching, Instructions::apply(vec![Action::output(OfPort(9))]));
            change.table = table.map(TableId);
            change.flags = FlowModFlags::RESET_COUNTS;
            change.cookie = cookie.map_or(CookieFilter::default(), |cookie| CookieFilter { value: cookie, mask: 3 });
            change.out_port = port.map_or(OfPort::ANY, OfPort);
            at_once.flow_mod(&change).unwrap();
            let mut piecewise = in_pieces.begin(&change, FLOWS as usize / 2).unwrap();
            prop_assert_eq!(piecewise.is_some(), parity.is_none() && table.is_none() && !(modifies && cookie.is_some()));
            if let Some(piecewise) = &mut piecewise {
                let before = left(&in_pieces);
                piecewise.go_on();
                let after = left(&in_pieces);
                let changed = before.iter().filter(|flow| !after.contains(flow)).count();
                prop_assert!(changed <= PIECE, "a piece is short");
            }
            // What is left of it is not given up.
            drop(piecewise);
            prop_assert_eq!(left(&in_pieces), left(&at_once));
        }
    }

    /// A bridge with groups and meters, of which the one with the number 1 has as many flows as a few pieces remove, and the
    /// others one each.
    fn shared(number: u32) -> Bridge {
        let bridge = bridge();
        for n in 1..=number {
            bridge.group_mod(&group(GroupCommand::Add, n, &[0])).unwrap();
            bridge.meter_mod(&meter_mod(MeterCommand::Add, n)).unwrap();
        }
        for n in 0..FLOWS + number {
            let which = n.saturating_sub(FLOWS) + 1;
            let mut change = flow(n);
            change.instructions = match n % 2 {
                0 => Instructions::apply(vec![Action::Group(GroupId(which))]),
                _ => Instructions { meter: Some(which), ..Instructions::default() },
            };
            bridge.flow_mod(&change).unwrap();
        }
        bridge
    }

    fn meter_mod(command: MeterCommand, meter: u32) -> MeterMod {
        MeterMod { command, config: MeterConfig { meter, flags: MeterFlags::PKTPS, bands: Vec::new() } }
    }

    #[test]
    fn groups_and_meters_go_in_pieces_with_the_flows_that_use_them() {
        for (which, meter) in [(1, 1), (GroupId::ALL.0, meter_id::ALL)] {
            let (at_once, in_pieces) = (shared(2 * PIECE as u32), shared(2 * PIECE as u32));
            at_once.group_mod(&group(GroupCommand::Delete, which, &[])).unwrap();
            at_once.meter_mod(&meter_mod(MeterCommand::Delete, meter)).unwrap();
            let deletions = [
                in_pieces.begin_group_mod(&group(GroupCommand::Delete, which, &[])),
                in_pieces.begin_meter_mod(&meter_mod(MeterCommand::Delete, meter)),
            ];
            for deletion in deletions {
                let mut piecewise = deletion.unwrap().expect("it is more than a piece");
                let count = |bridge: &Bridge| {
                    left(bridge).len()
                        + bridge.group_descs(GroupId::ALL).len()
                        + bridge.meter_configs(meter_id::ALL).unwrap().len()
                };
                loop {
                    let before = count(&in_pieces);
                    let more = piecewise.go_on();
                    assert!(count(&in_pieces) + PIECE >= before, "a piece is short");
                    if !more {
                        break;
                    }
                }
            }
            assert_eq!(left(&in_pieces), left(&at_once));
            assert_eq!(in_pieces.group_descs(GroupId::ALL), at_once.group_descs(GroupId::ALL));
            assert_eq!(in_pieces.meter_configs(meter_id::ALL), at_once.meter_configs(meter_id::ALL));
        }
    }

    #[test]
    fn a_small_delete_of_groups_takes_effect_at_once() {
        let bridge = shared(20);
        assert!(bridge.begin_group_mod(&group(GroupCommand::Delete, 7, &[])).unwrap().is_none());
        assert!(bridge.begin_meter_mod(&meter_mod(MeterCommand::Delete, 7)).unwrap().is_none());
        assert_eq!(bridge.group_descs(GroupId(7)), []);
        assert_eq!(bridge.meter_configs(7), Err(OfError::OFPMMFC_UNKNOWN_METER));
        let wrong = GroupId::MAX.0 + 1;
        let refused =
            bridge.begin_group_mod(&group(GroupCommand::Delete, wrong, &[])).map(|deletion| deletion.is_some());
        assert_eq!(refused, Err(OfError::OFPGMFC_INVALID_GROUP));
    }

    #[test]
    fn a_modification_of_few_among_many_flows_is_done_at_once_and_one_of_none_adds() {
        let bridge = bridge();
        (0..FLOWS).for_each(|number| bridge.flow_mod(&flow(number)).unwrap());
        let modify = |number: u32| {
            let mut change = FlowMod { command: FlowModCommand::Modify, priority: 5, ..flow(number) };
            change.instructions = Instructions::apply(vec![Action::output(OfPort(9))]);
            change.table = Some(TableId(0));
            assert!(bridge.begin(&change, 8).unwrap().is_none());
            left(&bridge).iter().filter(|flow| flow.contains("OfPort(9)")).count()
        };
        assert_eq!((modify(10), left(&bridge).len()), (1, FLOWS as usize));
        assert_eq!(
            (modify(FLOWS), left(&bridge).len()),
            (2, FLOWS as usize + 1),
            "it has a cookie for the flow to add"
        );
    }

    #[test]
    fn a_modification_ends_where_what_it_needs_goes() {
        let bridge = bridge();
        (0..FLOWS).for_each(|number| bridge.flow_mod(&flow(number)).unwrap());
        let mut change = FlowMod::new(FlowModCommand::Modify, Match::any(), Instructions::default());
        change.instructions = Instructions::apply(vec![Action::Group(GroupId(7))]);
        assert_eq!(bridge.begin(&change, 0).map(|_| ()), Err(OfError::OFPBAC_BAD_OUT_GROUP), "before the first piece");
        bridge.group_mod(&group(GroupCommand::Add, 7, &[0])).unwrap();
        let mut piecewise = bridge.begin(&change, 0).unwrap().unwrap();
        assert!(piecewise.go_on());
        // With the flows that use it.
        bridge.group_mod(&group(GroupCommand::Delete, 7, &[])).unwrap();
        assert_eq!(left(&bridge).len(), FLOWS as usize - PIECE);
        assert!(!piecewise.go_on());
        drop(piecewise);
        assert!(
            left(&bridge).len() == FLOWS as usize - PIECE && !left(&bridge).iter().any(|flow| flow.contains("Group"))
        );
    }

    /// A flow that learns, into table 7 with this cookie, flows that go with it.
    fn learner(table: u8, cookie: u64) -> FlowMod {
        let text =
            format!("table={table},reg0=1,actions=learn(table=7,cookie={cookie},delete_learned,NXM_OF_ETH_SRC[])");
        parse_flow_mod(FlowModCommand::Add, &text, &NoNames).unwrap()
    }

    /// A bridge with so many flows in table 7, of the first cookie, of which the last is one that learns flows of the second.
    fn with_learnt(number: u32) -> Bridge {
        let bridge = bridge();
        bridge.flow_mod(&learner(6, 1)).unwrap();
        for n in 0..number {
            let mut learnt = FlowMod { table: Some(TableId(7)), new_cookie: Some(openflow::Cookie(1)), ..flow(0) };
            learnt.matching = Match::any();
            learnt.matching.set(Field::Reg1, n.into());
            if n + 1 == number {
                learnt.instructions = learner(7, 2).instructions;
            }
            bridge.flow_mod(&learnt).unwrap();
            let instructions = flow(0).instructions;
            let second = FlowMod { new_cookie: Some(openflow::Cookie(2)), priority: 9, instructions, ..learnt };
            bridge.flow_mod(&second).unwrap();
        }
        bridge
    }

    const LEARNT: u32 = 3 * ORPHANS as u32 / 2;

    #[test]
    fn what_was_learnt_goes_in_pieces_too() {
        let bridge = with_learnt(LEARNT);
        let delete = FlowMod { command: FlowModCommand::Delete, table: Some(TableId(6)), ..learner(6, 1) };
        let mut piecewise = bridge.begin(&delete, 8).unwrap().expect("it is more than a piece");
        let mut before = 2 * LEARNT as usize;
        loop {
            let now = left(&bridge).len();
            assert!(now + ORPHANS + 1 >= before, "a piece is short");
            before = now;
            if !piecewise.go_on() {
                break;
            }
        }
        assert_eq!(left(&bridge).len(), 0, "nor what had been learnt by what was learnt");
    }

    #[test]
    fn one_flow_that_learns_does_not_make_a_delete_of_others_one_piece() {
        let bridge = with_learnt(1);
        (0..FLOWS).for_each(|number| bridge.flow_mod(&flow(number)).unwrap());
        let delete = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
        let mut piecewise = bridge.begin(&delete, 8).unwrap().expect("it is more than a piece");
        assert!(piecewise.go_on());
        assert!(left(&bridge).len() >= FLOWS as usize - PIECE);
        drop(piecewise);
        assert_eq!(left(&bridge).len(), 0);
    }

    #[test]
    fn a_bundle_takes_all_that_was_learnt_and_one_that_fails_none() {
        let bridge = with_learnt(LEARNT);
        let all = left(&bridge).len();
        let delete = FlowMod { command: FlowModCommand::Delete, table: Some(TableId(6)), ..learner(6, 1) };
        let wrong = FlowMod { table: Some(TableId::ALL), ..flow(1) };
        assert_eq!(commit(&bridge, &[delete.clone(), wrong.clone()]), Err((1, OfError::OFPFMFC_BAD_TABLE_ID)));
        assert_eq!(left(&bridge).len(), all);
        // What another change has left stays to be removed, whatever becomes of a bundle.
        let piecewise = bridge.begin(&delete, 8).unwrap();
        assert_eq!(commit(&bridge, &[flow(1), wrong]), Err((1, OfError::OFPFMFC_BAD_TABLE_ID)));
        assert_eq!(left(&bridge).len(), all - 1 - ORPHANS);
        drop(piecewise);
        assert_eq!(left(&bridge).len(), 0);
        let bridge = with_learnt(LEARNT);
        assert_eq!(commit(&bridge, &[delete]), Ok(()));
        assert_eq!(left(&bridge).len(), 0);
    }

    fn commit(bridge: &Bridge, changes: &[FlowMod]) -> Result<(), (usize, OfError)> {
        bridge.commit(changes, |change| Ok(Bundled::Flow(Box::new(change.clone()))))
    }

    #[test]
    fn the_revalidator_removes_what_a_flow_had_learnt_that_has_expired() {
        let bridge = with_learnt(LEARNT);
        bridge.flow_mod(&FlowMod { hard_timeout: 5, ..learner(6, 1) }).unwrap();
        assert_eq!(left(&bridge).len(), 2 * LEARNT as usize + 1);
        bridge.switch.run(bridge.switch.clock.now() + Duration::from_secs(6));
        assert_eq!(left(&bridge).len(), 0);
    }

    #[test]
    fn a_delete_of_a_bridge_that_is_removed_ends() {
        let bridge = bridge();
        (0..FLOWS).for_each(|number| bridge.flow_mod(&flow(number)).unwrap());
        let change = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
        let mut piecewise = bridge.begin(&change, 0).unwrap().unwrap();
        assert!(piecewise.go_on());
        bridge.switch.remove_bridge(bridge.name()).unwrap();
        assert!(!piecewise.go_on());
    }
}
