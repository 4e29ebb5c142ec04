//! Rules, addresses and members of groups whose time is over.
//!
//! The tables are not locked for longer than it takes to look at some hundreds of them, or to remove as many, however many there are: packets
//! of new flows wait as long as somebody waits to change the tables.

use std::convert::Infallible;
use std::sync::Arc;

use openflow::FlowRemovedReason;
use packet::Time;

use crate::model::forwarding::BridgeId;
use crate::switch::Switch;
use crate::table::{Place, Rule};

/// So many rules are looked at before others get the lock of the tables.
const LOOKED_AT: usize = 1024;
/// So many rules are removed at a time.
const RULES_AT_ONCE: usize = 256;
/// So many addresses expire at a time.
const MACS_AT_ONCE: usize = 1024;

/// A part of the rules of a table.
#[derive(Default)]
struct Piece {
    expired: Vec<(Arc<Rule>, FlowRemovedReason)>,
    /// How many were looked at.
    looked_at: usize,
    /// The last of these; `None` if the table ends before.
    last: Option<Place>,
}

impl Switch {
    /// Removes rules, addresses and members of groups that have expired. Returns whether there were any rules.
    pub(super) fn expire(&self, now: Time) -> bool {
        let mut any = false;
        let ids: Vec<BridgeId> = self.forwarding.read().bridges.keys().copied().collect();
        for id in ids {
            any |= self.expire_rules(id, now);
            any |= self.remove_orphans(id);
            while self.expire_macs(id, now) > 0 {}
            self.expire_groups(id, now);
        }
        any
    }

    /// Removes what transactions have left of the flows that removed rules had learnt, in pieces. Returns whether there were any.
    fn remove_orphans(&self, id: BridgeId) -> bool {
        let mut any = false;
        while self.forwarding.read().bridges.get(&id).is_some_and(|bridge| !bridge.orphaned.is_empty()) {
            let _: Result<(), Infallible> = self.transact(id, |_| Ok(()));
            any = true;
        }
        any
    }

    /// Removes some addresses that have expired. Returns how many.
    fn expire_macs(&self, id: BridgeId, now: Time) -> usize {
        let forwarding = self.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&id) else { return 0 };
        let due = bridge.macs.read().next_expiry().is_some_and(|at| at <= now);
        if due { self.change_macs(bridge, |macs| macs.expire(now, MACS_AT_ONCE)) } else { 0 }
    }

    fn expire_rules(&self, id: BridgeId, now: Time) -> bool {
        let tables: Vec<(usize, usize)> = {
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { return false };
            let tables = bridge.tables.iter().enumerate().filter(|(_, table)| table.expiring > 0);
            tables.map(|(number, table)| (number, table.rules.len())).collect()
        };
        let mut any = false;
        for (table, mut left) in tables {
            let mut after = None;
            // Not more than there were at first, however fast others come.
            while left > 0 {
                let Piece { expired, looked_at, last } = self.look_at_rules(id, table, after, left.min(LOOKED_AT), now);
                any |= !expired.is_empty();
                if !expired.is_empty() {
                    let _: Result<(), Infallible> = self.transact(id, |transaction| {
                        expired.iter().for_each(|(rule, reason)| transaction.remove(rule, *reason));
                        Ok(())
                    });
                }
                (after, left) = (last, left - looked_at);
                if last.is_none() {
                    break;
                }
            }
        }
        any
    }

    /// Looks at the rules of a table behind a place: at most so many, and up to the last one that is removed at once.
    fn look_at_rules(&self, id: BridgeId, table: usize, after: Option<Place>, most: usize, now: Time) -> Piece {
        let (forwarding, mut piece) = (self.forwarding.read(), Piece::default());
        let Some(bridge) = forwarding.bridges.get(&id) else { return piece };
        for (place, rule) in bridge.tables[table].listing.after(after).take(most) {
            piece.expired.extend(rule.expired(now).map(|reason| (rule.clone(), reason)));
            (piece.looked_at, piece.last) = (piece.looked_at + 1, Some(place));
            if piece.expired.len() == RULES_AT_ONCE {
                break;
            }
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openflow::text::parse_flow_mod;
    use openflow::{FlowModCommand, Match};
    use packet::Clock;
    use packet::flow::text::NoNames;

    use super::*;
    use crate::reference::tests::Bed;

    fn add(bed: &Bed, flow: &str) {
        bed.bridge
            .flow_mod(&parse_flow_mod(FlowModCommand::Add, &format!("{flow},actions=drop"), &NoNames).unwrap())
            .unwrap();
    }

    #[test]
    fn rules_expire_in_pieces_and_no_other_goes() {
        let bed = Bed::new(1);
        let rules = 3 * LOOKED_AT + 100;
        for n in 0..rules {
            // Of one priority and several; every third one stays, and some pieces have none that goes.
            let (priority, timeout) =
                (if n % 2 == 0 { 7 } else { n % 50 }, if n % 3 == 0 || n > 2000 { 50 } else { 5 });
            add(&bed, &format!("table={},priority={priority},reg0={n},hard_timeout={timeout}", n % 2));
        }
        add(&bed, "table=3");
        let going = (0..rules).filter(|n| n % 3 != 0 && *n <= 2000).count();
        assert!(going > 2 * RULES_AT_ONCE);
        let left = || bed.bridge.rules();
        bed.clock.advance(Duration::from_secs(6));
        bed.switch.run(bed.clock.now());
        assert_eq!(left().len(), rules + 1 - going);
        assert!(left().iter().all(|rule| rule.hard_timeout != 5));
        bed.clock.advance(Duration::from_secs(50));
        bed.switch.run(bed.clock.now());
        assert_eq!(left().len(), 1);
    }

    #[test]
    fn a_piece_is_bounded_by_what_is_looked_at_and_what_is_removed() {
        let bed = Bed::new(1);
        let id = bed.bridge.id();
        for n in 0..2 * LOOKED_AT {
            let timeout = if n < RULES_AT_ONCE + 10 { 5 } else { 50 };
            add(&bed, &format!("reg0={n},hard_timeout={timeout}"));
        }
        bed.add_flow(0, 0, Match::any(), vec![]);
        bed.clock.advance(Duration::from_secs(6));
        let piece = |after, most| bed.switch.look_at_rules(id, 0, after, most, bed.clock.now());
        let first = piece(None, LOOKED_AT);
        assert_eq!((first.expired.len(), first.looked_at), (RULES_AT_ONCE, RULES_AT_ONCE));
        let second = piece(first.last, LOOKED_AT);
        assert_eq!((second.expired.len(), second.looked_at), (10, LOOKED_AT));
        let third = piece(second.last, LOOKED_AT);
        assert_eq!((third.expired.len(), third.looked_at), (0, LOOKED_AT + 1 - RULES_AT_ONCE));
        assert!(piece(third.last, LOOKED_AT).last.is_none());
    }
}
