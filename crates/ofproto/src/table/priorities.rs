//! How many rules of a subtable have which priority.
//!
//! A rule mostly has a priority that others have, too. Then a hash table is all that is touched; the order of the priorities is needed
//! where the first rule of one comes, or the last one goes.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// The priorities of rules.
#[derive(Default)]
pub(super) struct Priorities {
    /// How many rules there are of each priority, at least one.
    counts: HashMap<u16, u32, foldhash::fast::RandomState>,
    /// The same priorities in order.
    present: BTreeSet<u16>,
    /// The last one of them, or zero.
    highest: u16,
}

impl Priorities {
    /// Counts a rule.
    pub fn add(&mut self, priority: u16) {
        let count = self.counts.entry(priority).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.present.insert(priority);
            self.highest = self.highest.max(priority);
        }
    }

    /// Counts a rule no more.
    pub fn remove(&mut self, priority: u16) {
        let Entry::Occupied(mut count) = self.counts.entry(priority) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.present.remove(&priority);
            self.highest = self.present.last().copied().unwrap_or(0);
        }
    }

    /// The highest priority; zero where there is no rule.
    pub fn highest(&self) -> u16 {
        self.highest
    }

    /// Whether a rule has this priority.
    pub fn contains(&self, priority: u16) -> bool {
        self.counts.contains_key(&priority)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_those_of_the_rules(steps in prop::collection::vec((any::<bool>(), 0u16..6), 0..80)) {
            let (mut priorities, mut rules) = (Priorities::default(), BTreeMap::new());
            for (added, priority) in steps {
                let count = rules.entry(priority).or_insert(0u32);
                if added {
                    priorities.add(priority);
                    *count += 1;
                } else {
                    priorities.remove(priority);
                    *count = count.saturating_sub(1);
                }
                rules.retain(|_, count| *count > 0);
                prop_assert_eq!(priorities.highest(), rules.last_key_value().map_or(0, |(&priority, _)| priority));
                prop_assert!((0..6).all(|priority| priorities.contains(priority) == rules.contains_key(&priority)));
                prop_assert_eq!(priorities.present.len(), rules.len());
            }
        }
    }
}
