//! The tables of a bridge as they would be after changes of flows, for look-ups. `whatif` makes the changes.
//!
//! No table is copied: a shadow has the rules that would go, which look-ups pass over, and those that would come.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use openflow::TableId;
use packet::{Key, Mask};

use crate::model::forwarding::BridgeId;
use crate::table::{Classifier, Except, Rule, Search};

/// Most changed rules of a table of which each is looked at by itself for each flow of the datapath.
const MOST_EACH: usize = 4096;

/// Changes of a bridge's flows.
pub struct Shadow {
    pub(crate) bridge: BridgeId,
    pub(crate) tables: BTreeMap<u8, TableShadow>,
}

/// Changes of a table's flows.
#[derive(Default)]
pub(crate) struct TableShadow {
    /// The rules of the table that would go, by their address, at which no other comes while they are held here.
    pub removed: Removed,
    /// The rules that would come.
    pub added: Classifier<Rule>,
    /// What each of these matches. `None` where they are too many to look at each.
    pub patterns: Option<Vec<(Key, Mask)>>,
}

/// Rules that would go.
#[derive(Default)]
pub(crate) struct Removed(HashMap<usize, Arc<Rule>>);

impl Removed {
    pub fn insert(&mut self, rule: Arc<Rule>) {
        self.0.insert(Arc::as_ptr(&rule).addr(), rule);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.0.values()
    }
}

impl Except<Rule> for &Removed {
    fn has(&self, rule: &Rule) -> bool {
        self.0.contains_key(&std::ptr::from_ref(rule).addr())
    }
}

/// Rules that would go, and another one.
struct RemovedAnd<'a> {
    removed: &'a Removed,
    rule: &'a Rule,
}

impl Except<Rule> for RemovedAnd<'_> {
    fn has(&self, rule: &Rule) -> bool {
        std::ptr::eq(self.rule, rule) || self.removed.has(rule)
    }
}

impl TableShadow {
    /// Whether a rule of the table would go.
    pub fn has_removed(&self, rule: &Rule) -> bool {
        (&self.removed).has(rule)
    }

    /// The search of the table as it would be.
    pub fn search<'a>(&'a self, rules: &'a Classifier<Rule>) -> Search<'a, Rule, &'a Removed> {
        Search { rules, except: &self.removed, beside: Some(&self.added) }
    }
}

impl Shadow {
    /// No changes.
    pub(crate) fn new(bridge: BridgeId) -> Shadow {
        Shadow { bridge, tables: BTreeMap::new() }
    }

    pub(crate) fn table(&mut self, table: TableId) -> &mut TableShadow {
        self.tables.entry(table.0).or_default()
    }

    /// Looks up a table of a bridge as it would be. `rules` is what it has.
    pub(crate) fn lookup<'a>(
        &'a self,
        (bridge, table): (BridgeId, u8),
        rules: &'a Classifier<Rule>,
        key: &Key,
        (wc, effort): (&mut Mask, &mut usize),
    ) -> Option<&'a Arc<Rule>> {
        match self.tables.get(&table).filter(|_| bridge == self.bridge) {
            Some(shadow) => shadow.search(rules).lookup_counted(key, wc, effort),
            None => rules.lookup_counted(key, wc, effort),
        }
    }

    /// What [`lookup`](Shadow::lookup) would find without a rule that it has found.
    pub(crate) fn lookup_without<'a>(
        &'a self,
        (bridge, table): (BridgeId, u8),
        rules: &'a Classifier<Rule>,
        key: &Key,
        rule: &'a Rule,
    ) -> Option<&'a Arc<Rule>> {
        let wc = &mut Mask::wildcard();
        match self.tables.get(&table).filter(|_| bridge == self.bridge) {
            Some(shadow) => {
                let except = RemovedAnd { removed: &shadow.removed, rule };
                Search { rules, except, beside: Some(&shadow.added) }.lookup(key, wc)
            }
            None => Search::without(rules, rule).lookup(key, wc),
        }
    }

    /// Ends the changes: prepares for looking at flows.
    pub(crate) fn finish(&mut self) {
        self.tables.retain(|_, table| table.removed.len() + table.added.len() > 0);
        for table in self.tables.values_mut() {
            let rules = table.removed.rules().chain(table.added.iter());
            let few = table.removed.len() + table.added.len() <= MOST_EACH;
            table.patterns = few.then(|| rules.map(|rule| (rule.pattern.key(), rule.pattern.mask())).collect());
        }
    }

    pub(crate) fn counts(&self) -> RuleCounts {
        let mut counts = RuleCounts::default();
        for table in self.tables.values() {
            let replaced =
                table.removed.rules().filter(|rule| table.added.find(&rule.pattern, rule.priority).is_some()).count();
            counts.modified += replaced;
            counts.added += table.added.len() - replaced;
            counts.removed += table.removed.len() - replaced;
        }
        counts
    }
}

/// How many rules changes are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Rules that come, and are not there yet.
    pub added: usize,
    /// Rules that take the place of one with the same match and priority.
    pub modified: usize,
    /// Rules that go.
    pub removed: usize,
}
