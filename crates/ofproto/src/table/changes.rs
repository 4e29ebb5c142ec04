//! The latest changes of a table, so that whoever keeps flows in step with it looks at those only that a changed rule
//! can be about.

use std::collections::VecDeque;

use super::classifier::Pattern;

/// Most changes that are remembered.
const MOST: usize = 2048;

/// The latest changes of a table.
#[derive(Default)]
pub struct RuleChanges {
    /// The matches of rules that were added, removed or replaced, with the generation of the change, in order.
    latest: VecDeque<(u64, Pattern)>,
    /// All changes after this generation are in `latest`.
    complete_after: u64,
}

impl RuleChanges {
    /// Notes that a rule with this match was added, removed or replaced.
    pub fn note(&mut self, generation: u64, pattern: &Pattern) {
        if self.latest.len() == MOST
            && let Some((forgotten, _)) = self.latest.pop_front()
        {
            self.complete_after = forgotten;
        }
        self.latest.push_back((generation, pattern.clone()));
    }

    /// Notes that any rule may have changed.
    pub fn note_all(&mut self, generation: u64) {
        self.latest = VecDeque::new();
        self.complete_after = generation;
    }

    /// The matches of the rules that have changed since a generation; `None` where they are not all known.
    pub fn since(&self, generation: u64) -> Option<impl Iterator<Item = &Pattern> + Clone> {
        let later = self.latest.partition_point(|(changed, _)| *changed <= generation);
        (generation >= self.complete_after).then(|| self.latest.range(later..).map(|(_, pattern)| pattern))
    }
}

#[cfg(test)]
mod tests {
    use packet::{Field, Key, Mask};

    use super::*;
    use crate::table::{Classifier, Rule};

    #[test]
    fn what_is_forgotten_is_not_called_known() {
        let rules = Classifier::<Rule>::default();
        let pattern = |n: u128| {
            let (mut key, mut mask) = (Key::new(), Mask::wildcard());
            key.set(Field::PktMark, n);
            mask.set_exact(Field::PktMark);
            rules.pattern(&key, &mask)
        };
        let mut changes = RuleChanges::default();
        let marks = |changes: &RuleChanges, since| -> Option<Vec<u128>> {
            Some(changes.since(since)?.map(|pattern| pattern.key().get(Field::PktMark)).collect())
        };
        changes.note(5, &pattern(1));
        changes.note(5, &pattern(2));
        changes.note(7, &pattern(3));
        assert_eq!(marks(&changes, 0), Some(vec![1, 2, 3]));
        assert_eq!(marks(&changes, 5), Some(vec![3]));
        assert_eq!(marks(&changes, 7), Some(vec![]));
        (0..MOST as u64 - 2).for_each(|n| changes.note(8 + n, &pattern(4)));
        assert_eq!(marks(&changes, 4), None, "one of generation 5 is forgotten");
        assert_eq!(marks(&changes, 5).map(|marks| marks.len()), Some(MOST - 1));
        changes.note_all(5000);
        assert_eq!((marks(&changes, 4999), marks(&changes, 5000)), (None, Some(vec![])));
    }
}
