//! OpenFlow tables.
//!
//! | module | what it is |
//! |---|---|
//! | [`rule`] | A flow and its counters |
//! | [`classifier`] | Finds the rule for a key, by tuple space search |
//! | [`listing`] | The rules of a table in an order that survives changes |
//! | `changes` | The latest changes of a table |
//! | `cookies` | The rules of a table by their cookies |
//! | `instructions` | What rules do, equal lists once |
//! | `layout` | Which words of a key a mask looks at, in stages |
//! | `order` | The subtables, by priority |
//! | `priorities` | How many rules have which priority |
//! | `row` | The rules that share mask and values |
//! | `scan` | Finds the rule for a key by looking at each rule |
//! | `trie` | Prefixes of addresses and ports |
//! | `settings` | How the operator and controllers configure a table |
//! | `eviction` | Which flow is evicted when a table is full |

mod changes;
pub mod classifier;
mod cookies;
mod eviction;
mod instructions;
mod layout;
pub mod listing;
mod order;
mod priorities;
mod row;
pub mod rule;
mod scan;
mod settings;
#[cfg(test)]
mod tests;
mod trie;
mod vacancy;

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openflow::{Cookie, TableReason};

use cookies::Cookies;
use eviction::Candidates;

pub use changes::RuleChanges;
pub use classifier::search::{Except, Search};
pub use classifier::{Classified, Classifier, Conjunction, Pattern, Within};
pub use instructions::{InstructionSet, RuleInstructions};
pub use listing::{Listing, Place};
pub use rule::{Caps, Rule, RuleName, RuleStats};
pub(crate) use scan::scan;
pub use settings::{TableSettings, TableState};

/// A table of a bridge.
#[derive(Default)]
pub struct Table {
    /// The flows.
    pub rules: Classifier<Rule>,
    /// The same flows in the order in which they are listed.
    pub listing: Listing,
    /// Generation of the last change to the flows.
    pub changed: u64,
    /// The latest changes to the flows that were made while a datapath flow depended on the table.
    pub changes: RuleChanges,
    /// Which parts of the key were other than the packet's at a look-up, for any datapath flow that depends on the table.
    /// The bits are those of `slowpath::record::Parts`.
    overwritten: [AtomicU64; 3],
    /// Flows that have a timeout or can get one.
    pub expiring: usize,
    /// The flows by their cookies.
    cookies: Cookies,
    /// Counters.
    pub counters: Arc<TableCounters>,
    /// What the configuration says of it.
    pub settings: TableSettings,
    /// What controllers say of it.
    pub state: TableState,
    /// The event about its vacancy that comes next; `None` for none.
    awaited: Option<TableReason>,
    /// Who is evicted next, once somebody was. `None` before, and where the table is not limited any more.
    candidates: Option<Box<Candidates>>,
}

/// Counters of a table.
#[derive(Debug, Default)]
pub struct TableCounters {
    matched: AtomicU64,
    missed: AtomicU64,
}

impl TableCounters {
    /// Adds packets that were looked up, and found or not.
    pub fn add(&self, matched: bool, packets: u64) {
        let counter = if matched { &self.matched } else { &self.missed };
        counter.fetch_add(packets, Relaxed);
    }

    /// Sets the counters, as after a restart.
    pub fn restore(&self, matched: u64, missed: u64) {
        self.matched.store(matched, Relaxed);
        self.missed.store(missed, Relaxed);
    }

    /// Packets that matched no flow.
    pub fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// Packets that matched a flow.
    pub fn matched(&self) -> u64 {
        self.matched.load(Relaxed)
    }

    /// Packets looked up.
    pub fn lookups(&self) -> u64 {
        self.matched() + self.missed()
    }
}

impl Table {
    /// Adds a rule, or replaces the one with equal match and priority, which is returned.
    pub fn insert(&mut self, rule: Arc<Rule>, generation: u64) -> Option<Arc<Rule>> {
        self.note_change(generation, &rule);
        self.expiring += usize::from(rule.can_expire());
        rule.stats.enter(RuleName { table: rule.table, priority: rule.priority, cookie: rule.cookie });
        let old = self.rules.insert(rule.clone());
        self.listing.insert(&rule, old.as_deref());
        self.cookies.add(&rule);
        if let Some(candidates) = self.candidates.as_mut().filter(|_| self.settings.max_flows.is_some()) {
            candidates.add(&rule);
        } else {
            self.candidates = None;
        }
        if let Some(old) = &old {
            self.uncount(old);
        }
        old
    }

    /// Removes a rule.
    pub fn remove(&mut self, rule: &Rule, generation: u64) -> Option<Arc<Rule>> {
        let old = self.rules.remove(&rule.pattern, rule.priority)?;
        self.note_change(generation, &old);
        self.listing.remove(&old);
        self.uncount(&old);
        Some(old)
    }

    /// Removes every rule. What held them is returned: to free it takes time, for which nothing should be locked.
    pub fn clear(&mut self, generation: u64) -> impl Sized + use<> {
        (self.expiring, self.changed) = (0, generation);
        self.changes.note_all(generation);
        let held = (take(&mut self.rules), self.listing.clear());
        (held, take(&mut self.cookies), self.candidates.take())
    }

    /// Whether a datapath flow may depend on the table: each record of one holds the counters of the tables that its
    /// translation looked up.
    pub fn has_dependents(&self) -> bool {
        Arc::strong_count(&self.counters) > 1
    }

    /// Notes which parts of the key were other than the packet's at a look-up for a datapath flow.
    pub fn note_overwritten(&self, parts: [u64; 3]) {
        for (known, part) in self.overwritten.iter().zip(parts) {
            if part & !known.load(Relaxed) != 0 {
                known.fetch_or(part, Relaxed);
            }
        }
    }

    /// All parts that were noted for the datapath flows that there are, and maybe some of others.
    pub fn overwritten(&self) -> [u64; 3] {
        self.overwritten.each_ref().map(|parts| parts.load(Relaxed))
    }

    /// A flow that depends on the table later is translated after the change.
    fn note_change(&mut self, generation: u64, rule: &Rule) {
        self.changed = generation;
        if self.has_dependents() {
            self.changes.note(generation, &rule.pattern);
        } else {
            self.overwritten = Default::default();
        }
    }

    /// Number of rules with this cookie.
    pub fn count_of(&self, cookie: Cookie) -> u32 {
        self.cookies.count(cookie)
    }

    /// The rules with this cookie, the oldest first.
    pub fn rules_of(&mut self, cookie: Cookie, most: usize) -> Vec<Arc<Rule>> {
        self.cookies.rules(cookie, most, (self.rules.len(), self.rules.iter()))
    }

    /// Takes a removed rule out of the counts.
    fn uncount(&mut self, rule: &Arc<Rule>) {
        if let Some(candidates) = &mut self.candidates {
            candidates.remove(rule);
        }
        self.expiring -= usize::from(rule.can_expire());
        self.cookies.remove(rule);
    }
}
