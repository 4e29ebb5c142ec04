//! The rules of a subtable that have the same values.
//!
//! Most rows have one rule. So a row takes two words: a pointer, and what is kept of the hash of its values. With that, a hash
//! table can grow without looking at the rules, which lie anywhere in memory.

use std::slice;
use std::sync::Arc;

/// The rules that share mask and values.
pub(super) enum Row<R> {
    One {
        hash: u32,
        rule: Arc<R>,
    },
    // Two words, whatever there is in it.
    #[expect(clippy::box_collection)]
    Many {
        hash: u32,
        rules: Box<Vec<Arc<R>>>,
    },
}

/// What a row keeps of the hash of its values.
pub(super) fn short(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32
}

/// The hash of a row in a hash table, which looks at the first and at the last bits.
pub(super) fn spread(short: u32) -> u64 {
    u64::from(short) << 32 | u64::from(short)
}

impl<R> Row<R> {
    /// A row of one rule.
    pub fn new(hash: u32, rule: Arc<R>) -> Row<R> {
        Row::One { hash, rule }
    }

    /// What is kept of the hash of the values.
    pub fn hash(&self) -> u32 {
        match self {
            Row::One { hash, .. } | Row::Many { hash, .. } => *hash,
        }
    }

    /// The rules by priority, descending. There is one at least.
    pub fn rules(&self) -> &[Arc<R>] {
        match self {
            Row::One { rule, .. } => slice::from_ref(rule),
            Row::Many { rules, .. } => rules,
        }
    }

    /// The rule of highest priority.
    pub fn best(&self) -> &Arc<R> {
        &self.rules()[0]
    }

    /// Replaces the rule at a position.
    pub fn replace(&mut self, at: usize, new: Arc<R>) -> Arc<R> {
        let place = match self {
            Row::One { rule, .. } => rule,
            Row::Many { rules, .. } => &mut rules[at],
        };
        std::mem::replace(place, new)
    }

    /// Inserts a rule at a position.
    pub fn insert(&mut self, at: usize, new: Arc<R>) {
        match self {
            Row::One { hash, rule } => {
                let mut rules = vec![rule.clone()];
                rules.insert(at, new);
                *self = Row::Many { hash: *hash, rules: Box::new(rules) };
            }
            Row::Many { rules, .. } => rules.insert(at, new),
        }
    }

    /// Removes the rule at a position; `None` where it is the only one.
    pub fn remove(&mut self, at: usize) -> Option<Arc<R>> {
        let Row::Many { hash, rules } = self else { return None };
        let removed = rules.remove(at);
        if let [rule] = &rules[..] {
            *self = Row::One { hash: *hash, rule: rule.clone() };
        } else if rules.len() < rules.capacity() / 4 {
            rules.shrink_to(rules.capacity() / 2);
        }
        Some(removed)
    }

    /// The position of the rule of this priority, or where it would have to be inserted.
    pub fn position(&self, priority: u16, of: impl Fn(&R) -> u16) -> Result<usize, usize> {
        self.rules().binary_search_by(|rule| priority.cmp(&of(rule)))
    }
}
