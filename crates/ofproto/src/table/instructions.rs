//! The instructions of rules, of which equal ones are kept once.
//!
//! Of many rules, most do one of a few things. A rule holds a reference to what it does, and a bridge knows what its rules do.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{Equivalent, HashSet};
use openflow::{Action, Instructions};

use super::classifier::Conjunction;

/// The instructions of rules, and what follows from them.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleInstructions {
    list: Instructions,
    /// The parts of conjunctive matches that the rules are.
    pub conjunctions: Box<[Conjunction]>,
}

impl From<Instructions> for RuleInstructions {
    fn from(list: Instructions) -> RuleInstructions {
        let parts = list.apply.iter().filter_map(|action| match *action {
            Action::Conjunction { id, clause, n_clauses } => Some(Conjunction { id, clause, n_clauses }),
            _ => None,
        });
        RuleInstructions { conjunctions: parts.collect(), list }
    }
}

impl Deref for RuleInstructions {
    type Target = Instructions;

    fn deref(&self) -> &Instructions {
        &self.list
    }
}

impl Hash for RuleInstructions {
    /// As the list: the rest follows from it.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

/// A list that is looked up.
#[derive(Hash)]
struct ByList<'a>(&'a Instructions);

impl Equivalent<Arc<RuleInstructions>> for ByList<'_> {
    fn equivalent(&self, known: &Arc<RuleInstructions>) -> bool {
        *self.0 == known.list
    }
}

/// What the rules of a bridge do.
#[derive(Default)]
pub struct InstructionSet {
    known: HashSet<Arc<RuleInstructions>>,
    /// How many were in use when that was looked at last.
    in_use: usize,
}

/// Most that are kept although no rule has them, beside as many as rules have.
const UNUSED: usize = 256;

impl InstructionSet {
    /// The shared form of a list.
    pub fn share(&mut self, list: &Instructions) -> Arc<RuleInstructions> {
        if let Some(known) = self.known.get(&ByList(list)) {
            return known.clone();
        }
        if self.known.len() >= 2 * self.in_use + UNUSED {
            // Each time there are twice as many, so that a rule pays for a bounded part of it.
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.in_use = self.known.len();
        }
        let shared = Arc::new(RuleInstructions::from(list.clone()));
        self.known.insert(shared.clone());
        shared
    }

    /// How many lists are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use openflow::OfPort;

    use super::*;

    fn output(port: u32) -> Instructions {
        Instructions::apply(vec![Action::output(OfPort(port))])
    }

    #[test]
    fn equal_lists_are_one() {
        let mut set = InstructionSet::default();
        let [first, again, other] = [1, 1, 2].map(|port| set.share(&output(port)));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert_eq!((&first.list, &other.list), (&output(1), &output(2)));
    }

    #[test]
    fn what_no_rule_has_is_forgotten() {
        let mut set = InstructionSet::default();
        let kept: Vec<_> = (0..1000).map(|port| set.share(&output(port))).collect();
        (1000..50_000).for_each(|port| drop(set.share(&output(port))));
        assert!(set.len() <= 2 * kept.len() + UNUSED, "{}", set.len());
        assert!(kept.iter().enumerate().all(|(port, held)| Arc::ptr_eq(held, &set.share(&output(port as u32)))));
    }
}
