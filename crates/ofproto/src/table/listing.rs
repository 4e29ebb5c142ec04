//! The rules of a table in an order that survives changes, so that they can be listed in pieces.
//!
//! A rule gets a number when it enters its table, and passes it on to the rule that replaces it. So a walk that
//! remembers the place where it stopped meets every rule that stays exactly once. It leaves out rules whose numbers
//! were given after its start: it ends, however fast rules are added, and a rule that is removed and added again is
//! not listed twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
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
    /// Where a rule stands that is in a table.
    pub fn of(rule: &Rule) -> Place {
        Place::new(rule.priority, rule.number())
    }

    /// The place with this number.
    pub fn new(priority: u16, number: u64) -> Place {
        Place { priority: Reverse(priority), number }
    }

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
/// The rules of one priority lie in chunks, in a list. A new rule comes at the end of the last chunk, so chunks are mostly full, and
/// what one rule takes is its pointer and four bytes of its number.
#[derive(Default)]
pub struct Listing {
    /// By priority: chunks in their order, at least one.
    chunks: BTreeMap<Reverse<u16>, VecDeque<Chunk>>,
    /// The highest number that was given.
    last: u64,
    len: usize,
}

/// Most rules of a chunk.
const ROOM: usize = 64;

/// Neighbours of one priority, at least one: each by how much its number is above `first`, ascending.
struct Chunk {
    first: u64,
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
        let chunks = self.chunks.entry(Reverse(rule.priority)).or_insert_with(|| VecDeque::with_capacity(1));
        self.len += usize::from(put(chunks, rule));
    }

    /// Takes a rule out that has left the table.
    pub fn remove(&mut self, rule: &Rule) {
        let Some(chunks) = self.chunks.get_mut(&Reverse(rule.priority)) else { return };
        let Some(which) = chunk_of(chunks, rule.number()) else { return };
        let chunk = &mut chunks[which];
        let Ok(at) = chunk.position(rule.number()) else { return };
        self.len -= 1;
        if chunk.rules.len() > 1 {
            return chunk.remove(at);
        }
        // Of a list, the shorter side moves.
        chunks.remove(which);
        if chunks.is_empty() {
            self.chunks.remove(&Reverse(rule.priority));
        } else if chunks.len() < chunks.capacity() / 4 {
            chunks.shrink_to(chunks.capacity() / 2);
        }
    }

    /// Takes all rules out.
    pub fn clear(&mut self) -> impl Sized + use<> {
        self.len = 0;
        std::mem::take(&mut self.chunks)
    }

    /// The highest number that was given.
    pub fn last_number(&self) -> u64 {
        self.last
    }

    /// The rules behind a place, or all.
    pub fn after(&self, place: Option<Place>) -> impl Iterator<Item = (Place, &Arc<Rule>)> {
        let same = place.and_then(|place| Some((place, self.chunks.get(&place.priority)?)));
        let same = same.into_iter().flat_map(|(Place { priority, number }, chunks)| {
            let first = chunk_of(chunks, number).unwrap_or(0);
            let of = move |chunk: &Chunk| chunk.position(number).map_or_else(|at| at, |at| at + 1);
            chunks.range(first..).flat_map(move |chunk| chunk.iter(priority, of(chunk)))
        });
        let later = (place.map_or(Bound::Unbounded, |place| Bound::Excluded(place.priority)), Bound::Unbounded);
        let later = self.chunks.range(later);
        same.chain(later.flat_map(|(&priority, chunks)| chunks.iter().flat_map(move |chunk| chunk.iter(priority, 0))))
    }

    /// The rule at a place.
    pub fn get(&self, place: Place) -> Option<&Arc<Rule>> {
        let before = Place { number: place.number.checked_sub(1)?, ..place };
        self.after(Some(before)).next().filter(|(found, _)| *found == place).map(|(_, rule)| rule)
    }

    /// How many rules are listed.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.len
    }
}

/// The chunk that a number belongs to; `None` where it is before all of them.
fn chunk_of(chunks: &VecDeque<Chunk>, number: u64) -> Option<usize> {
    match chunks.back() {
        // Mostly the last one.
        Some(last) if last.first <= number => Some(chunks.len() - 1),
        _ => chunks.partition_point(|chunk| chunk.first <= number).checked_sub(1),
    }
}

/// Puts a rule into its place, in place of what is there. Whether nothing was.
fn put(chunks: &mut VecDeque<Chunk>, rule: &Arc<Rule>) -> bool {
    let number = rule.number();
    let which = chunk_of(chunks, number).filter(|&which| chunks[which].reaches(number));
    let Some(which) = which else {
        let behind = chunks.partition_point(|chunk| chunk.first <= number);
        chunks.insert(behind, Chunk::of(rule));
        return true;
    };
    let chunk = &mut chunks[which];
    match chunk.position(number) {
        Ok(at) => {
            chunk.rules[at] = rule.clone();
            return false;
        }
        Err(at) if chunk.rules.len() < ROOM => chunk.insert(at, rule),
        Err(ROOM) => chunks.insert(which + 1, Chunk::of(rule)),
        Err(at) => {
            // A rule that comes back, where others have come meanwhile.
            let mut upper = chunk.split(ROOM / 2);
            if at <= ROOM / 2 {
                chunk.insert(at, rule)
            } else {
                upper.insert(at - ROOM / 2, rule)
            }
            chunks.insert(which + 1, upper);
        }
    }
    true
}

impl Chunk {
    fn of(rule: &Arc<Rule>) -> Chunk {
        Chunk { first: rule.number(), above: vec![0], rules: vec![rule.clone()] }
    }

    /// Whether the rule with a number can be in the chunk that begins at or before it.
    fn reaches(&self, number: u64) -> bool {
        number - self.first <= u32::MAX.into()
    }

    /// Where the rule with a number is, or would have to be inserted.
    fn position(&self, number: u64) -> Result<usize, usize> {
        let Some(above) = number.checked_sub(self.first) else { return Err(0) };
        // Mostly behind all others.
        match self.above.last() {
            Some(&last) if u64::from(last) < above => Err(self.above.len()),
            _ => self.above.binary_search_by(|&each| u64::from(each).cmp(&above)),
        }
    }

    fn insert(&mut self, at: usize, rule: &Arc<Rule>) {
        self.above.insert(at, (rule.number() - self.first) as u32);
        self.rules.insert(at, rule.clone());
    }

    /// Takes a rule out, which is not the only one.
    fn remove(&mut self, at: usize) {
        self.above.remove(at);
        self.rules.remove(at);
        if self.rules.len() < self.rules.capacity() / 4 {
            self.above.shrink_to(self.above.capacity() / 2);
            self.rules.shrink_to(self.rules.capacity() / 2);
        }
    }

    /// Takes the rules from `at` on out, to a chunk of their own.
    fn split(&mut self, at: usize) -> Chunk {
        let (above, rules) = (self.above.split_off(at), self.rules.split_off(at));
        let least = above[0];
        let above = above.into_iter().map(|each| each - least).collect();
        Chunk { first: self.first + u64::from(least), above, rules }
    }

    fn iter(&self, priority: Reverse<u16>, at: usize) -> impl Iterator<Item = (Place, &Arc<Rule>)> {
        let place = move |&above: &u32| Place { priority, number: self.first + u64::from(above) };
        self.above[at..].iter().map(place).zip(&self.rules[at..])
    }
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
                        prop_assert_eq!(Place::of(&new), Place::of(&old));
                        map.insert(Place::of(&new), new);
                    }
                    (1 | 2, Some(old)) => {
                        listing.remove(&old);
                        listing.remove(&old);
                        map.remove(&Place::of(&old));
                        gone.push(old);
                    }
                    (3, _) if !gone.is_empty() => {
                        let back = gone.swap_remove(which % gone.len());
                        listing.insert(&back, None);
                        map.insert(Place::of(&back), back);
                    }
                    _ => {
                        let new = rule(priority);
                        listing.insert(&new, None);
                        map.insert(Place::of(&new), new);
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
                    prop_assert_eq!(listing.get(at).map(Arc::as_ptr), map.get(&at).map(Arc::as_ptr));
                }
            }
        }
    }
}
