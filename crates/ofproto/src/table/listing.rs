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
///
/// They lie in chunks of neighbours of one priority. A new rule comes at the end of the last chunk of its priority, so chunks are
/// mostly full, and what one rule takes is its pointer and four bytes of its number.
#[derive(Default)]
pub struct Listing {
    /// By the place from which on a chunk has rules.
    chunks: BTreeMap<Place, Chunk>,
    /// The highest number that was given.
    last: u64,
    len: usize,
}

/// Most rules of a chunk.
const ROOM: usize = 64;

/// Neighbours of one priority: each by how much its number is above that of the chunk's place, ascending.
#[derive(Default)]
struct Chunk {
    above: Vec<u32>,
    rules: Vec<Arc<Rule>>,
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
        self.put(place(rule), rule);
    }

    /// Takes a rule out that has left the table.
    pub fn remove(&mut self, rule: &Rule) {
        let place = place(rule);
        let Some((&from, chunk)) = self.chunks.range_mut(..=place).next_back() else { return };
        let Ok(at) = chunk.position(from, place) else { return };
        chunk.above.remove(at);
        chunk.rules.remove(at);
        self.len -= 1;
        if chunk.rules.is_empty() {
            self.chunks.remove(&from);
        } else if chunk.rules.len() < chunk.rules.capacity() / 4 {
            chunk.above.shrink_to(chunk.above.capacity() / 2);
            chunk.rules.shrink_to(chunk.rules.capacity() / 2);
        }
    }

    /// Takes all rules out.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }

    /// The highest number that was given.
    pub fn last_number(&self) -> u64 {
        self.last
    }

    /// The rules behind a place, or all.
    pub fn after(&self, place: Option<Place>) -> impl Iterator<Item = (Place, &Arc<Rule>)> {
        let first = place.and_then(|place| self.chunks.range(..=place).next_back());
        let behind = first.map(|(&from, chunk)| {
            let at = place.map_or(0, |place| chunk.position(from, place).map_or_else(|at| at, |at| at + 1));
            chunk.iter(from, at)
        });
        let later = self.chunks.range((place.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        behind.into_iter().flatten().chain(later.flat_map(|(&from, chunk)| chunk.iter(from, 0)))
    }

    /// How many rules are listed.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.len
    }

    /// Puts a rule into its place, in place of what is there.
    fn put(&mut self, place: Place, rule: &Arc<Rule>) {
        let Some((&from, chunk)) = self.chunks.range_mut(..=place).next_back().filter(|(from, _)| from.reaches(place))
        else {
            self.len += 1;
            self.chunks.insert(place, Chunk::of(rule));
            return;
        };
        let at = match chunk.position(from, place) {
            Ok(at) => return chunk.rules[at] = rule.clone(),
            Err(at) => at,
        };
        self.len += 1;
        if chunk.rules.len() < ROOM {
            return chunk.insert(at, from, place, rule);
        }
        if at == ROOM {
            self.chunks.insert(place, Chunk::of(rule));
            return;
        }
        // A rule that comes back, where others have come meanwhile.
        let (middle, upper) = chunk.split(from, ROOM / 2);
        if place < middle {
            chunk.insert(at, from, place, rule);
            self.chunks.insert(middle, upper);
        } else {
            self.chunks.insert(middle, upper);
            self.len -= 1;
            self.put(place, rule);
        }
    }
}

impl Chunk {
    fn of(rule: &Arc<Rule>) -> Chunk {
        Chunk { above: vec![0], rules: vec![rule.clone()] }
    }

    /// Where the rule of a place is, or would have to be inserted, in the chunk that begins at or before it.
    fn position(&self, from: Place, place: Place) -> Result<usize, usize> {
        if from.priority != place.priority {
            return Err(self.rules.len());
        }
        let above = place.number - from.number;
        // Mostly behind all others.
        match self.above.last() {
            Some(&last) if u64::from(last) < above => Err(self.above.len()),
            _ => self.above.binary_search_by(|&each| u64::from(each).cmp(&above)),
        }
    }

    fn insert(&mut self, at: usize, from: Place, place: Place, rule: &Arc<Rule>) {
        self.above.insert(at, (place.number - from.number) as u32);
        self.rules.insert(at, rule.clone());
    }

    /// Takes the rules from `at` on out, to a chunk of their own and its place.
    fn split(&mut self, from: Place, at: usize) -> (Place, Chunk) {
        let (above, rules) = (self.above.split_off(at), self.rules.split_off(at));
        let first = above[0];
        let place = Place { number: from.number + u64::from(first), ..from };
        (place, Chunk { above: above.into_iter().map(|each| each - first).collect(), rules })
    }

    fn iter(&self, from: Place, at: usize) -> impl Iterator<Item = (Place, &Arc<Rule>)> {
        let place = move |&above: &u32| Place { number: from.number + u64::from(above), ..from };
        self.above[at..].iter().map(place).zip(&self.rules[at..])
    }
}

impl Place {
    /// Whether a chunk from here on can have a rule at a place that is not before it.
    fn reaches(self, place: Place) -> bool {
        self.priority == place.priority && place.number - self.number <= u32::MAX.into()
    }
}

fn place(rule: &Rule) -> Place {
    Place { priority: Reverse(rule.priority), number: rule.number() }
}

#[cfg(test)]
mod tests {
    use openflow::{Instructions, Match, TableId};
    use packet::Time;
    use proptest::prelude::*;

    use super::*;
    use crate::table::{Classifier, RuleInstructions};

    proptest! {
        /// Rules come, go, are replaced and come back, and all are listed as in a map.
        #[test]
        fn chunks_list_what_a_map_would(
            steps in prop::collection::vec((0u8..8, 0usize..1000, 0u16..3), 0..900), cuts in prop::collection::vec(0usize..900, 5),
        ) {
            let any = Match::any();
            let pattern = Classifier::<Rule>::default().pattern(&any.key, &any.mask);
            let instructions = Arc::new(RuleInstructions::from(Instructions::default()));
            let rule = |priority| Arc::new(Rule::new(TableId(0), priority, pattern.clone(), instructions.clone(), Time(0)));
            let (mut listing, mut gone) = (Listing::default(), Vec::new());
            let mut map: BTreeMap<Place, Arc<Rule>> = BTreeMap::new();
            for (kind, which, priority) in steps {
                let chosen = map.values().nth(which % map.len().max(1)).cloned();
                match (kind, chosen) {
                    (0, Some(old)) => {
                        let new = rule(old.priority);
                        listing.insert(&new, Some(&*old));
                        prop_assert_eq!(place(&new), place(&old));
                        map.insert(place(&new), new);
                    }
                    (1 | 2, Some(old)) => {
                        listing.remove(&old);
                        listing.remove(&old);
                        map.remove(&place(&old));
                        gone.push(old);
                    }
                    (3, _) if !gone.is_empty() => {
                        let back = gone.swap_remove(which % gone.len());
                        listing.insert(&back, None);
                        map.insert(place(&back), back);
                    }
                    _ => {
                        let new = rule(priority);
                        listing.insert(&new, None);
                        map.insert(place(&new), new);
                    }
                }
                prop_assert_eq!(listing.count(), map.len());
            }
            let listed = |after| listing.after(after).map(|(place, rule)| (place, Arc::as_ptr(rule))).collect::<Vec<_>>();
            let mapped = |range| {
                let range = map.range::<Place, (Bound<Place>, Bound<Place>)>(range);
                range.map(|(place, rule)| (*place, Arc::as_ptr(rule))).collect::<Vec<_>>()
            };
            prop_assert_eq!(listed(None), mapped((Bound::Unbounded, Bound::Unbounded)));
            for cut in cuts {
                let Some(&at) = map.keys().nth(cut % map.len().max(1)) else { continue };
                for at in [at, at.end_of_priority(), Place { number: at.number - 1, ..at }] {
                    prop_assert_eq!(listed(Some(at)), mapped((Bound::Excluded(at), Bound::Unbounded)));
                }
            }
        }
    }
}
