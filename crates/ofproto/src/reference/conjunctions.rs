//! Conjunctive matches (ovs-fields(7)), by trying all rules, and their properties.

use std::collections::{BTreeMap, BTreeSet};

use openflow::Action;
use packet::{Field, Key};

use super::{RefRule, Reference};

/// The conjunctions that a rule is a part of: id, clause, and how many clauses there are.
fn parts(rule: &RefRule) -> impl Iterator<Item = (u32, u8, u8)> {
    rule.instructions.apply.iter().filter_map(|action| match *action {
        Action::Conjunction { id, clause, n_clauses } => Some((id, clause, n_clauses)),
        _ => None,
    })
}

impl Reference {
    /// The number of the rule that acts on a packet.
    pub(super) fn find(&self, table: u8, mut key: Key) -> Option<usize> {
        let here = |key: &Key| {
            let matches =
                |(n, rule): (usize, &RefRule)| (rule.table == table && rule.matching.matches(key)).then_some(n);
            self.rules.iter().enumerate().filter_map(matches).collect::<Vec<_>>()
        };
        let is_part = |n: &usize| parts(&self.rules[*n]).next().is_some();
        let best = |found: &[usize]| {
            let whole = found.iter().copied().filter(|n| !is_part(n));
            whole.max_by_key(|&n| self.rules[n].priority)
        };
        let all = here(&key);
        let alone = best(&all);
        // Of each priority above that of the best rule which acts alone: the clauses that the packet has of each conjunction.
        let mut had: BTreeMap<u16, BTreeMap<(u32, u8), BTreeSet<u8>>> = BTreeMap::new();
        for rule in all.iter().map(|&n| &self.rules[n]) {
            if alone.is_none_or(|alone| rule.priority > self.rules[alone].priority) {
                for (id, clause, n_clauses) in parts(rule) {
                    had.entry(rule.priority).or_default().entry((id, n_clauses)).or_default().insert(clause);
                }
            }
        }
        let complete = had.values().rev().flatten().filter(|((_, n), clauses)| clauses.len() == usize::from(*n));
        for ((id, _), _) in complete {
            key.set(Field::ConjId, (*id).into());
            // As in OVS, a rule is not seen then if a part of a conjunction with the very same match is above it.
            let hidden = |n: &usize| {
                let rule = &self.rules[*n];
                let above = |part: &&usize| is_part(part) && self.rules[**part].priority > rule.priority;
                all.iter().filter(above).any(|&part| self.rules[part].matching == rule.matching)
            };
            let seen: Vec<_> = here(&key).into_iter().filter(|n| !hidden(n)).collect();
            if let Some(rule) = best(&seen) {
                return Some(rule);
            }
        }
        alone
    }
}

#[cfg(test)]
mod tests {
    use datapath::Config;
    use openflow::{Instructions, Match, OfPort};
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;
    use crate::model::vlan::PortVlan;
    use crate::reference::tests::{Change, MACS, PORTS, Pair, change, frame, rule, tiny};

    /// Above all other rules of its thousand.
    const PRIORITY: u16 = 500;

    /// A conjunction: the values of each dimension, and what its rule does.
    #[derive(Clone, Debug)]
    struct Conjunction {
        table: u8,
        priority: u16,
        clauses: Vec<Vec<Match>>,
        rule: (u16, Match, OfPort),
    }

    fn value(field: Field, values: Vec<u128>) -> BoxedStrategy<Match> {
        let max = field.info().max();
        (select(values), select(vec![max, max, max & !1]))
            .prop_map(move |(value, mask)| {
                let mut matching = Match::any();
                matching.set_masked(field, value, mask);
                matching
            })
            .boxed()
    }

    fn conjunction() -> impl Strategy<Value = Conjunction> {
        let macs: Vec<u128> = MACS.iter().map(|mac| openflow::EthAddr(*mac).to_value()).collect();
        let dimension = move |n: usize| {
            let value = match n {
                0 => value(Field::DlSrc, macs.clone()),
                1 => value(Field::DlDst, macs.clone()),
                2 => value(Field::Reg0, vec![0, 1]),
                _ => value(Field::DlType, vec![0x0800, 0x0806]),
            };
            proptest::collection::vec(value, 1..4)
        };
        let clauses = (0usize..4, 2usize..4)
            .prop_flat_map(move |(first, n)| (0..n).map(|at| dimension((first + at) % 4)).collect::<Vec<_>>());
        let more = prop_oneof![2 => Just(Match::any()), 1 => value(Field::DlType, vec![0x0800, 0x86dd])];
        (0u8..2, 1u16..8, clauses, (0u16..8, more, (1..=PORTS).prop_map(OfPort))).prop_map(
            |(table, priority, clauses, rule)| Conjunction {
                table,
                priority: 1000 * priority + PRIORITY,
                clauses,
                rule,
            },
        )
    }

    fn add(pair: &mut Pair, conjunctions: &[Conjunction]) {
        for (id, conjunction) in (1..).zip(conjunctions) {
            // A priority of its own, so that there is one right answer.
            let priority = conjunction.priority + id as u16;
            let n_clauses = conjunction.clauses.len() as u8;
            for (clause, matches) in (0..).zip(&conjunction.clauses) {
                let part = Instructions::apply(vec![Action::Conjunction { id, clause, n_clauses }]);
                matches.iter().for_each(|matching| pair.put(conjunction.table, priority, matching, &part));
            }
            let (priority, mut matching, port) = conjunction.rule.clone();
            matching.set(Field::ConjId, id.into());
            let acts = Instructions::apply(vec![Action::set_field(Field::Reg0, 1), Action::output(port)]);
            pair.put(conjunction.table, 1000 * priority + 2 * PRIORITY - 1 - id as u16, &matching, &acts);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

        #[test]
        fn conjunctions_equal_reference(
            conjunctions in proptest::collection::vec(conjunction(), 1..4),
            rules in proptest::collection::vec(rule(), 1..8),
            frames in proptest::collection::vec((1..=PORTS, frame()), 2..8),
            rounds in proptest::collection::vec(
                (
                    // A part that acts would be one of two rules of the same priority.
                    proptest::option::of(change().prop_filter("stays a part", |c| !matches!(c, Change::Replace(..)))),
                    proptest::collection::vec(any::<Index>(), 1..8),
                ),
                1..8,
            ),
            limited in any::<bool>(),
        ) {
            let config = if limited { tiny() } else { Config::default() };
            let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], config);
            rules.iter().for_each(|rule| pair.add(rule));
            add(&mut pair, &conjunctions);
            pair.play(&rounds, &frames)?;
            pair.check_counters()?;
        }
    }
}
