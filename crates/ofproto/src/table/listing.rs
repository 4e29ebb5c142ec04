//! The rules of a table in an order that survives changes, so that they can be listed in pieces.
//!
//! A rule gets a number when it enters its table, and passes it on to the rule that replaces it. So a walk that
//! remembers the place where it stopped meets every rule that stays exactly once. It leaves out rules whose numbers
//! were given after its start: it ends, however fast rules are added, and a rule that is removed and added again is
//! not listed twice.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::rule::Rule;

/// Where a rule stands in its table: the highest priority first, of one priority the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: Reverse<u16>,
    number: u64,
}

impl Place {
    /// The number of the rule that stands here.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Behind every rule of the same priority.
    pub fn end_of_priority(self) -> Place {
        Place { number: u64::MAX, ..self }
    }
}

/// The rules of a table by their places.
#[derive(Default)]
pub struct Listing {
    rules: BTreeMap<Place, Arc<Rule>>,
    /// The highest number that was given.
    last: u64,
}

impl Listing {
    /// Lists a rule that has entered the table, in the place of the one that it `replaced`. A rule that comes back has
    /// the number that it had.
    pub fn insert(&mut self, rule: &Arc<Rule>, replaced: Option<&Rule>) {
        let inherited = replaced.map(Rule::number).filter(|_| rule.number() == 0);
        if let Some(number) = inherited {
            rule.set_number(number);
        } else {
            if let Some(replaced) = replaced {
                self.remove(replaced);
            }
            if rule.number() == 0 {
                self.last += 1;
                rule.set_number(self.last);
            }
        }
        self.rules.insert(place(rule), rule.clone());
    }

    /// Takes a rule out that has left the table.
    pub fn remove(&mut self, rule: &Rule) {
        self.rules.remove(&place(rule));
    }

    /// Takes all rules out.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// The highest number that was given.
    pub fn last_number(&self) -> u64 {
        self.last
    }

    /// The rules behind a place, or all.
    pub fn after(&self, place: Option<Place>) -> impl Iterator<Item = (Place, &Arc<Rule>)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.rules.range((from, Bound::Unbounded)).map(|(place, rule)| (*place, rule))
    }

    /// How many rules are listed.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.rules.len()
    }
}

fn place(rule: &Rule) -> Place {
    Place { priority: Reverse(rule.priority), number: rule.number() }
}
