//! Finds the rule for a key by looking at each rule.
//!
//! Who verifies what the datapath's caches did looks up the tables this way: it shares nothing with the classifier but the rules themselves. It
//! has no subtables that are passed over, no tries, and no bits that the answer depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use packet::{Field, Key};

use super::classifier::{Classified, Classifier};

/// The clauses that a packet has of each conjunction, by its number and how many clauses it has.
type Clauses = BTreeMap<(u32, u8), BTreeSet<u8>>;

/// More conjunctions that are complete, and more parts of some, are not looked at: each takes as long as the whole table.
const MOST_COMPLETE: usize = 16;
const MOST_PARTS: usize = 4096;

/// The best rule for `key`, as [`Classifier::lookup`] finds it, and whether there is no other of its priority. Takes as long as there are rules, and
/// where conjunctions are complete, as often again; where they are too many, some rule is said not to be alone.
pub(crate) fn scan<'a, R: Classified>(rules: &'a Classifier<R>, key: &Key) -> Option<(&'a Arc<R>, bool)> {
    let matching = |key: &Key| rules.iter().filter(|rule| rule.pattern().matches(key)).collect::<Vec<_>>();
    let all = matching(key);
    let alone = best(&all);
    // Of each priority above that of the best rule which acts alone.
    let mut had: BTreeMap<u16, Clauses> = BTreeMap::new();
    for rule in all.iter().filter(|rule| alone.is_none_or(|(alone, _)| rule.priority() > alone.priority())) {
        for part in rule.conjunctions() {
            let clauses = had.entry(rule.priority()).or_default();
            clauses.entry((part.id, part.n_clauses)).or_default().insert(part.clause);
        }
    }
    let complete = had.values().rev().flatten().filter(|((_, n), clauses)| clauses.len() == usize::from(*n));
    if complete.clone().count() > MOST_COMPLETE || had.values().map(Clauses::len).sum::<usize>() > MOST_PARTS {
        return all.first().map(|rule| (*rule, false));
    }
    let is_one = complete.clone().count() == 1;
    for ((id, _), _) in complete {
        let mut key = key.clone();
        key.set(Field::ConjId, (*id).into());
        let mut seen = matching(&key);
        seen.retain(|rule| !is_hidden(rule, &all));
        if let Some((rule, is_alone)) = best(&seen) {
            return Some((rule, is_alone && is_one));
        }
    }
    alone
}

/// Of the rules that are no parts of conjunctions, one with the highest priority, and whether it is the only one.
fn best<'a, R: Classified>(rules: &[&'a Arc<R>]) -> Option<(&'a Arc<R>, bool)> {
    let whole = || rules.iter().copied().filter(|rule| rule.conjunctions().is_empty());
    let best = whole().max_by_key(|rule| rule.priority())?;
    Some((best, whole().filter(|rule| rule.priority() == best.priority()).count() == 1))
}

/// As in OVS, a rule is not seen through a complete conjunction if a part of one with the very same match is above it.
fn is_hidden<R: Classified>(rule: &Arc<R>, all: &[&Arc<R>]) -> bool {
    let above = |part: &&&Arc<R>| !part.conjunctions().is_empty() && part.priority() > rule.priority();
    all.iter().filter(above).any(|part| {
        let (part, rule) = (part.pattern(), rule.pattern());
        part.mask() == rule.mask() && part.key() == rule.key()
    })
}
