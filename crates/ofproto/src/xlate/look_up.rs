//! How a translation finds the rules of tables.

use std::sync::Arc;

use packet::{Key, Mask};

use crate::model::forwarding::BridgeId;
use crate::model::shadow::Shadow;
use crate::table::{Classifier, Rule, Search, scan};

/// A table: its bridge, and its number there.
pub(crate) type TablePlace = (BridgeId, u8);

/// How the rules of tables are found in a translation.
#[derive(Clone, Copy)]
pub(crate) enum LookUp<'a> {
    /// By the tables' classifiers, which also say what the answer depends on.
    Classifier,
    /// The same, as if flows had been changed.
    Shadow(&'a Shadow),
    /// By looking at each rule ([`scan`]). What the answer depends on is not told.
    Scan {
        /// At how many rules altogether; then it is by the classifiers.
        left: usize,
        /// Several rules of one priority matched somewhere. It is not defined which of them counts (OpenFlow 1.5, section 5.4), so the
        /// classifier was asked.
        is_ambiguous: bool,
    },
}

impl<'a> LookUp<'a> {
    /// By the classifiers, as if these changes had been made, if there are any.
    pub fn with(changes: Option<&'a Shadow>) -> LookUp<'a> {
        changes.map_or(LookUp::Classifier, LookUp::Shadow)
    }

    /// By looking at so many rules.
    pub fn scan(left: usize) -> LookUp<'a> {
        LookUp::Scan { left, is_ambiguous: false }
    }

    /// The rule for a key among `rules`: those of a table, or the hidden ones, which have no place among the tables. Bits that the answer
    /// depends on are added to `wc` by a classifier, and what conjunctive matches take to `effort`
    /// ([`lookup_counted`](Classifier::lookup_counted)).
    #[inline]
    pub fn find<'r>(
        &mut self,
        place: Option<TablePlace>,
        rules: &'r Classifier<Rule>,
        key: &Key,
        (wc, effort): (&mut Mask, &mut usize),
    ) -> Option<&'r Arc<Rule>>
    where
        'a: 'r,
    {
        match (self, place) {
            (LookUp::Shadow(shadow), Some(place)) => shadow.lookup(place, rules, key, (wc, effort)),
            (LookUp::Scan { left, is_ambiguous }, _) if rules.len() <= *left => {
                *left -= rules.len();
                let (rule, is_alone) = scan(rules, key)?;
                if is_alone {
                    return Some(rule);
                }
                *is_ambiguous = true;
                rules.lookup_counted(key, wc, effort)
            }
            _ => rules.lookup_counted(key, wc, effort),
        }
    }

    /// What would be found in a table without a rule that was found there.
    pub fn find_without<'r>(
        &self,
        place: TablePlace,
        rules: &'r Classifier<Rule>,
        key: &Key,
        rule: &'r Rule,
    ) -> Option<&'r Arc<Rule>>
    where
        'a: 'r,
    {
        match self {
            LookUp::Shadow(shadow) => shadow.lookup_without(place, rules, key, rule),
            _ => Search::without(rules, rule).lookup(key, &mut Mask::wildcard()),
        }
    }

    /// Whether it is not defined what was found.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, LookUp::Scan { is_ambiguous: true, .. })
    }
}
