//! The search for the best rule, in a table as it is, or as it would be without some of its rules and with others beside
//! them.
//!
//! A changed table costs no copy of the table: the rules that are gone are passed over where they are met, and those that
//! have come are in a classifier of their own. What a search takes does not depend on how many rules there are.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use packet::{Field, Key, Mask};

use super::{Classified, Classifier, Conjunction, Layout, Pattern, Prefixes, Row, Subtable, ethertype};

/// Rules that a search passes over.
pub trait Except<R> {
    /// Whether a rule is one of them.
    fn has(&self, rule: &R) -> bool;
}

/// No rule is passed over.
pub struct Nothing;

impl<R> Except<R> for Nothing {
    #[inline(always)]
    fn has(&self, _: &R) -> bool {
        false
    }
}

/// One rule is passed over.
pub struct One<'a, R>(pub &'a R);

impl<R> Except<R> for One<'_, R> {
    fn has(&self, rule: &R) -> bool {
        std::ptr::eq(self.0, rule)
    }
}

/// What is searched.
pub struct Search<'a, R, E> {
    /// The table.
    pub rules: &'a Classifier<R>,
    /// Which of its rules are passed over.
    pub except: E,
    /// Rules that count as if they were in the table, too. Of two rules with one priority, the table's own wins. A part of a
    /// conjunctive match hides rules below it that match the same, as in OVS, but only those on its own side.
    pub beside: Option<&'a Classifier<R>>,
}

/// Most effort on the conjunctive matches of one search. Beyond it, nothing is found.
pub const MAX_EFFORT: usize = 1 << 18;

/// What a search has found so far.
struct Candidates<'a, R> {
    /// The best ordinary rule.
    best: Option<&'a Arc<R>>,
    /// Parts of conjunctive matches.
    soft: Vec<Part<'a, R>>,
}

fn prefixes<'a, R>(rules: &'a Classifier<R>, key: &Key) -> Prefixes<'a> {
    Prefixes {
        ipv4: &rules.ipv4,
        ipv6: &rules.ipv6,
        answers: (rules.ipv4.answers(), rules.ipv6.answers()),
        ethertype: ethertype(key),
    }
}

/// The rule of a row that is to be looked at next, by its position.
type Part<'a, R> = (&'a Row<R>, usize);

impl<'a, R: Classified> Search<'a, R, Nothing> {
    /// The search of a table as it is.
    #[inline(always)]
    pub fn of(rules: &'a Classifier<R>) -> Search<'a, R, Nothing> {
        Search { rules, except: Nothing, beside: None }
    }
}

impl<'a, R: Classified> Search<'a, R, One<'a, R>> {
    /// The search of a table without one rule: what it finds decides if that rule goes.
    pub fn without(rules: &'a Classifier<R>, rule: &'a R) -> Search<'a, R, One<'a, R>> {
        Search { rules, except: One(rule), beside: None }
    }
}

impl<'a, R: Classified, E: Except<R>> Search<'a, R, E> {
    /// See [`Classifier::lookup`].
    pub fn lookup(&self, key: &Key, wc: &mut Mask) -> Option<&'a Arc<R>> {
        self.search(key, wc, Some(&mut 0))
    }

    /// See [`Classifier::lookup_counted`].
    pub fn lookup_counted(&self, key: &Key, wc: &mut Mask, effort: &mut usize) -> Option<&'a Arc<R>> {
        self.search(key, wc, Some(effort))
    }

    /// See [`Classifier::find`].
    pub fn find(&self, pattern: &Pattern, priority: u16) -> Option<&'a Arc<R>> {
        let own = self.rules.find(pattern, priority).filter(|rule| !self.except.has(rule));
        own.or_else(|| self.beside?.find(pattern, priority))
    }

    /// See [`Classifier::overlaps`].
    pub fn overlaps(&self, key: &Key, mask: &Mask, priority: u16) -> bool {
        let is_rival =
            |row: &&Row<R>| row.position(priority, R::priority).is_ok_and(|at| !self.except.has(&row.rules()[at]));
        let classifiers = std::iter::once(self.rules).chain(self.beside);
        let mut subtables = classifiers.flat_map(|classifier| classifier.subtables.iter());
        let layout = Layout::new(mask);
        let values = layout.values(key);
        subtables.any(|subtable| {
            if !subtable.priorities.contains(priority) {
                return false;
            }
            if subtable.is_decided_by(mask) {
                return subtable.row_of(key).as_ref().is_some_and(is_rival);
            }
            let agreement = subtable.layout.agreement(&layout, &values);
            let agrees = |row: &&Row<R>| agreement.has(&row.best().pattern().values);
            subtable.rows.iter().filter(agrees).any(|row| is_rival(&row))
        })
    }

    /// `effort` counts what conjunctive matches take. Without it, there are none.
    fn search(&self, key: &Key, wc: &mut Mask, effort: Option<&mut usize>) -> Option<&'a Arc<R>> {
        let conjunctive = effort.is_some();
        let mut found = Candidates { best: None, soft: Vec::new() };
        let mut prefixes = prefixes(self.rules, key);
        match self.beside {
            None => {
                let mut subtables = self.rules.subtables.iter();
                while let Some(subtable) = subtables.next()
                    && self.visit(subtable, key, wc, &mut prefixes, conjunctive, &mut found)
                {}
            }
            Some(beside) => {
                // By priority, so that no subtable is looked at without need.
                let (mut own, mut others) =
                    (self.rules.subtables.iter().peekable(), beside.subtables.iter().peekable());
                let mut prefixes_beside = self::prefixes(beside, key);
                let highest = |subtable: Option<&&'a Subtable<R>>| subtable.map(|subtable| subtable.max_priority());
                loop {
                    let is_own = highest(own.peek()) >= highest(others.peek());
                    let (next, prefixes) = match is_own {
                        true => (own.next(), &mut prefixes),
                        false => (others.next(), &mut prefixes_beside),
                    };
                    let Some(subtable) = next else { break };
                    if !self.visit(subtable, key, wc, prefixes, conjunctive, &mut found) {
                        break;
                    }
                }
            }
        }
        let Candidates { best, soft } = found;
        match effort {
            Some(effort) if !soft.is_empty() => self.resolve(key, wc, best, soft, effort),
            _ => best,
        }
    }

    /// Looks for the best rule of a subtable. False where neither it nor those after it can have a better one.
    #[inline(always)]
    fn visit(
        &self,
        subtable: &'a Subtable<R>,
        key: &Key,
        wc: &mut Mask,
        prefixes: &mut Prefixes<'a>,
        conjunctive: bool,
        found: &mut Candidates<'a, R>,
    ) -> bool {
        let is_better = |best: Option<&'a Arc<R>>, priority| best.is_none_or(|best| best.priority() < priority);
        if !is_better(found.best, subtable.max_priority()) {
            return false;
        }
        let Some(row) = subtable.lookup(key, wc, prefixes) else { return true };
        let Some((position, rule)) = self.first_from(row, 0) else { return true };
        if is_better(found.best, rule.priority()) {
            if rule.conjunctions().is_empty() {
                found.best = Some(rule);
            } else if conjunctive {
                found.soft.push((row, position));
            }
        }
        true
    }

    /// The first rule of a row, from a position on, that is not passed over.
    #[inline(always)]
    fn first_from(&self, row: &'a Row<R>, from: usize) -> Option<(usize, &'a Arc<R>)> {
        row.rules().iter().enumerate().skip(from).find(|(_, rule)| !self.except.has(rule))
    }

    /// Decides between an ordinary match and parts of conjunctive ones, from the highest priority down.
    fn resolve(
        &self,
        key: &Key,
        wc: &mut Mask,
        mut best: Option<&'a Arc<R>>,
        mut soft: Vec<Part<'a, R>>,
        effort: &mut usize,
    ) -> Option<&'a Arc<R>> {
        let limit = effort.saturating_add(MAX_EFFORT);
        // A search goes through the subtables.
        let subtables = self.rules.by_mask.len() + self.beside.map_or(0, |beside| beside.by_mask.len());
        let at = |&(row, n): &Part<'a, R>| row.rules().get(n);
        loop {
            soft.retain(|part| at(part).is_some_and(|rule| best.is_none_or(|best| rule.priority() > best.priority())));
            let Some(top) = soft.iter().filter_map(at).map(|rule| rule.priority()).max() else { return best };
            let parts: Vec<_> = soft.iter().filter_map(at).filter(|rule| rule.priority() == top).collect();
            *effort += soft.len() + parts.iter().map(|rule| rule.conjunctions().len()).sum::<usize>();
            if *effort > limit {
                return None;
            }
            for id in complete_conjunctions(parts.iter().flat_map(|rule| rule.conjunctions())) {
                *effort += 1 + subtables / 4;
                if *effort > limit {
                    return None;
                }
                let mut key = key.clone();
                key.set(Field::ConjId, id.into());
                if let Some(rule) = self.search(&key, wc, None) {
                    return Some(rule);
                }
            }
            for part in soft.iter_mut().filter(|part| at(part).is_some_and(|rule| rule.priority() == top)) {
                let next = self.first_from(part.0, part.1 + 1);
                part.1 = next.map_or(usize::MAX, |(position, _)| position);
                if let Some((_, rule)) = next.filter(|(_, rule)| rule.conjunctions().is_empty()) {
                    if best.is_none_or(|best| rule.priority() > best.priority()) {
                        best = Some(rule);
                    }
                    part.1 = usize::MAX;
                }
            }
        }
    }
}

/// The ids of the conjunctions of which every dimension is present, in the order in which they became
/// complete.
fn complete_conjunctions<'a>(parts: impl Iterator<Item = &'a Conjunction>) -> Vec<u32> {
    // A rule can be part of thousands.
    let mut seen: HashMap<(u32, u8), u64, foldhash::fast::RandomState> = HashMap::default();
    let (mut complete, mut known): (Vec<u32>, HashSet<u32, foldhash::fast::RandomState>) = Default::default();
    for part in parts {
        let clauses = seen.entry((part.id, part.n_clauses)).or_insert(0);
        *clauses |= 1u64 << (part.clause & 63);
        if clauses.count_ones() == u32::from(part.n_clauses) && known.insert(part.id) {
            complete.push(part.id);
        }
    }
    complete
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    struct TestRule {
        priority: u16,
        pattern: Pattern,
        conjunctions: Vec<Conjunction>,
    }

    impl Classified for TestRule {
        fn priority(&self) -> u16 {
            self.priority
        }

        fn pattern(&self) -> &Pattern {
            &self.pattern
        }

        fn conjunctions(&self) -> &[Conjunction] {
            &self.conjunctions
        }
    }

    struct Gone(HashSet<*const TestRule>);

    impl Except<TestRule> for Gone {
        fn has(&self, rule: &TestRule) -> bool {
            self.0.contains(&std::ptr::from_ref(rule))
        }
    }

    /// A rule on bits of two registers, or a dimension of a conjunction, or what the conjunction does.
    fn rule() -> impl Strategy<Value = (u16, [u8; 2], [u8; 2], u8)> {
        (0u16..6, any::<[u8; 2]>().prop_map(|bits| bits.map(|bits| bits & 3)), any::<[u8; 2]>(), 0u8..8)
    }

    fn made(
        classifier: &Classifier<TestRule>,
        (priority, bits, values, kind): (u16, [u8; 2], [u8; 2], u8),
    ) -> TestRule {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        let conjunctions = match kind {
            0 | 1 => vec![Conjunction { id: 1, clause: kind, n_clauses: 2 }],
            _ => Vec::new(),
        };
        if kind == 2 {
            key.set(Field::ConjId, 1);
            mask.set_exact(Field::ConjId);
        }
        for ((field, bits), value) in [Field::Reg0, Field::Reg1].into_iter().zip(bits).zip(values) {
            key.set(field, (value & bits).into());
            mask.add(field, bits.into());
        }
        TestRule { priority, pattern: classifier.pattern(&key, &mask), conjunctions }
    }

    proptest! {
        /// A table that is changed by passing over and standing beside answers as one that has really been changed.
        #[test]
        fn changes_are_as_good_as_made(
            rules in prop::collection::vec((rule(), any::<bool>()), 0..16),
            more in prop::collection::vec(rule(), 0..6),
            keys in prop::collection::vec(any::<[u8; 2]>().prop_map(|bits| bits.map(|bits| bits & 3)), 8),
        ) {
            let (mut before, mut beside, mut after) = <[Classifier<TestRule>; 3]>::default().into();
            let mut gone = Gone(HashSet::new());
            for (rule, _) in &rules {
                before.insert(Arc::new(made(&before, *rule)));
            }
            let kept: Vec<_> = before.iter().cloned().collect();
            for (rule, (_, goes)) in kept.iter().zip(&rules) {
                if *goes {
                    gone.0.insert(Arc::as_ptr(rule));
                } else {
                    after.insert(rule.clone());
                }
            }
            for rule in more {
                let rule = Arc::new(made(&before, rule));
                if let Some(old) = before.find(&rule.pattern, rule.priority) {
                    gone.0.insert(Arc::as_ptr(old));
                }
                beside.insert(rule.clone());
                after.insert(rule);
            }
            let is_part = |rule: &Arc<TestRule>| !rule.conjunctions.is_empty();
            let is_apart = |rule: &Arc<TestRule>| {
                let same = (0..6).filter_map(|priority| before.find(&rule.pattern, priority));
                same.into_iter().any(|other| is_part(other) != is_part(rule))
            };
            // A part would hide a rule that is on the other side.
            if beside.iter().any(is_apart) {
                return Ok(());
            }
            for bits in keys {
                let mut key = Key::new();
                key.set(Field::Reg0, bits[0].into());
                key.set(Field::Reg1, bits[1].into());
                let expected = after.lookup(&key, &mut Mask::wildcard()).map(|rule| rule.priority);
                let gone = Gone(gone.0.clone());
                let search = Search { rules: &before, except: gone, beside: Some(&beside) };
                let found = search.lookup(&key, &mut Mask::wildcard());
                prop_assert_eq!(found.map(|rule| rule.priority), expected);
                // And without the rule that was found in the table as it is.
                if let Some(rule) = before.lookup(&key, &mut Mask::wildcard()) {
                    let found = Search::without(&before, rule).lookup(&key, &mut Mask::wildcard());
                    let mut without = Classifier::default();
                    before.iter().filter(|other| !Arc::ptr_eq(other, rule)).for_each(|other| drop(without.insert(other.clone())));
                    let expected = without.lookup(&key, &mut Mask::wildcard());
                    prop_assert_eq!(found.map(|rule| rule.priority), expected.map(|rule| rule.priority));
                }
            }
        }
    }
}
