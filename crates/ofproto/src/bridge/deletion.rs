//! Deletes of many flows, in pieces: between two of them, packets are forwarded and others have their turn.
//!
//! A delete that can be about few flows takes effect at once. So does one where flows are learnt whose end depends on others',
//! because these are searched for at the end of each change.

use openflow::{FlowMod, FlowModCommand, FlowRemovedReason, FlowStatsRequest, OfError, TableId};

use super::Bridge;
use super::flows::range_of;
use super::walk::FlowWalk;
use crate::model::config::N_TABLES;
use crate::table::Within;

/// Most flows that a delete can be about to take effect at once.
const AT_ONCE: usize = 4096;

/// Most flows that are removed with the tables locked, which takes a millisecond or two.
const PIECE: usize = 256;

/// A delete under way. Dropped, it comes to its end.
pub struct Deletion {
    bridge: Bridge,
    /// `None` at the end.
    walk: Option<FlowWalk>,
}

impl Bridge {
    /// As [`flow_mod`](Bridge::flow_mod), but for a delete that can be about many flows: what is left of it is returned.
    pub fn begin_flow_mod(&self, change: &FlowMod) -> Result<Option<Deletion>, OfError> {
        self.begin(change, AT_ONCE)
    }

    fn begin(&self, change: &FlowMod, at_once: usize) -> Result<Option<Deletion>, OfError> {
        if !self.deletes_more_than(at_once, change) {
            return self.flow_mod(change).map(|()| None);
        }
        let walk = self.walk_rules(FlowStatsRequest {
            matching: change.matching.clone(),
            table: change.table.unwrap_or(TableId::ALL),
            out_port: change.out_port,
            out_group: change.out_group,
            cookie: change.cookie,
        });
        Ok(Some(Deletion { bridge: self.clone(), walk: Some(walk) }))
    }

    fn deletes_more_than(&self, at_once: usize, change: &FlowMod) -> bool {
        if change.command != FlowModCommand::Delete
            || change.table == Some(TableId(N_TABLES))
            || !change.matching.tun_metadata.is_empty()
        {
            return false;
        }
        let within = Within::new(&change.matching.key, &change.matching.mask);
        let tables = range_of(change.table.filter(|table| *table != TableId::ALL));
        self.read(|state| {
            let tables = state.tables.get(tables).unwrap_or_default();
            let flows: usize = tables.iter().map(|table| table.rules.len_within(&within)).sum();
            state.learners.is_empty() && flows > at_once
        })
        .unwrap_or(false)
    }
}

impl Deletion {
    /// Removes the next flows. False at the end.
    pub fn remove_next(&mut self) -> bool {
        let Some(walk) = &mut self.walk else { return false };
        let mut more = false;
        let _: Result<(), OfError> = self.bridge.transact(|transaction| {
            let rules = walk.next_of(transaction.bridge, PIECE);
            more = rules.is_some();
            rules.iter().flatten().for_each(|rule| transaction.remove(rule, FlowRemovedReason::Delete));
            Ok(())
        });
        if !more {
            // Nothing is left, or the bridge was removed.
            self.walk = None;
        }
        more
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        while self.remove_next() {}
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Action, CookieFilter, GroupId, Instructions, Match, OfPort};
    use packet::Field;
    use proptest::prelude::*;

    use super::*;
    use crate::bridge::tests::bridge;

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
        fn pieces_come_to_what_one_delete_does(
            parity: Option<bool>, table in prop::option::of(0u8..5), cookie in prop::option::of(0u64..4),
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
            let mut change = FlowMod::new(FlowModCommand::Delete, matching, Instructions::default());
            change.table = table.map(TableId);
            change.cookie = cookie.map_or(CookieFilter::default(), |cookie| CookieFilter { value: cookie, mask: !0 });
            change.out_port = port.map_or(OfPort::ANY, OfPort);
            at_once.flow_mod(&change).unwrap();
            let mut deletion = in_pieces.begin(&change, FLOWS as usize / 2).unwrap();
            prop_assert_eq!(deletion.is_some(), parity.is_none() && table.is_none());
            if let Some(deletion) = &mut deletion {
                let before = left(&in_pieces).len();
                deletion.remove_next();
                prop_assert!(left(&in_pieces).len() + PIECE >= before, "a piece is short");
            }
            // What is left of it is not given up.
            drop(deletion);
            prop_assert_eq!(left(&in_pieces), left(&at_once));
        }
    }

    #[test]
    fn a_delete_of_a_bridge_that_is_removed_ends() {
        let bridge = bridge();
        (0..FLOWS).for_each(|number| bridge.flow_mod(&flow(number)).unwrap());
        let change = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
        let mut deletion = bridge.begin(&change, 0).unwrap().unwrap();
        assert!(deletion.remove_next());
        bridge.switch.remove_bridge(bridge.name()).unwrap();
        assert!(!deletion.remove_next());
    }
}
