//! When things of a bridge that have numbers, its ports and its groups, have changed last, and which of them a translation looked at.

use std::collections::VecDeque;
use std::hash::Hash;

use hashbrown::{HashMap, HashSet};

/// Most changes that are remembered.
const MOST: usize = 1 << 16;

/// The latest changes. One of what has gone is remembered like others: flows may depend on that it is there, or not.
pub(crate) struct NumberChanges<T> {
    /// Generation of the last one.
    last: u64,
    /// All changes after this generation are known by number.
    complete_after: u64,
    /// Generation of the last change of each number.
    by_number: HashMap<T, u64>,
    /// The changes with their generations, in order.
    latest: VecDeque<(u64, T)>,
}

impl<T> Default for NumberChanges<T> {
    fn default() -> NumberChanges<T> {
        NumberChanges { last: 0, complete_after: 0, by_number: HashMap::new(), latest: VecDeque::new() }
    }
}

impl<T: Copy + Eq + Hash> NumberChanges<T> {
    /// Notes that what has this number was added, removed or changed.
    pub fn note(&mut self, number: T, generation: u64) {
        if self.latest.len() == MOST {
            // Flows that were up to date before are looked at once more. That is rare enough.
            self.note_all(self.last);
        }
        self.last = generation;
        if self.by_number.insert(number, generation) != Some(generation) {
            self.latest.push_back((generation, number));
        }
    }

    /// Notes that all may have changed.
    pub fn note_all(&mut self, generation: u64) {
        *self = NumberChanges { last: generation, complete_after: generation, ..NumberChanges::default() };
    }

    /// Generation of the last change.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// What has changed since a generation.
    pub fn since(&self, generation: u64) -> Changed<T> {
        if self.last <= generation {
            return Changed::Nothing;
        }
        if self.complete_after > generation {
            return Changed::All;
        }
        let later = self.latest.partition_point(|(changed, _)| *changed <= generation);
        Changed::These(self.latest.range(later..).map(|(_, number)| *number).collect())
    }

    fn has_changed(&self, number: T, since: u64) -> bool {
        self.complete_after > since || self.by_number.get(&number).is_some_and(|changed| *changed > since)
    }
}

/// What has changed since some generation.
pub(crate) enum Changed<T> {
    Nothing,
    These(HashSet<T>),
    All,
}

impl<T> Changed<T> {
    /// Whether nothing has.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Changed::Nothing)
    }
}

/// What a translation looked at: some numbers, at most `N`, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LookedAt<T, const N: usize> {
    numbers: [T; N],
    /// How many; beyond `N`: all.
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for LookedAt<T, N> {
    fn default() -> LookedAt<T, N> {
        LookedAt { numbers: [T::default(); N], len: 0 }
    }
}

impl<T: Copy + Default + Eq + Hash, const N: usize> LookedAt<T, N> {
    /// Notes that a number was looked at. Where there is no room for it, all count as looked at.
    pub fn add(&mut self, number: T) {
        if self.has_all() || self.some().contains(&number) {
            return;
        }
        match self.numbers.get_mut(usize::from(self.len)) {
            Some(free) => (*free, self.len) = (number, self.len + 1),
            None => self.add_all(),
        }
    }

    /// Notes that all were looked at.
    pub fn add_all(&mut self) {
        *self = LookedAt { numbers: [T::default(); N], len: u8::MAX };
    }

    /// Whether some were.
    pub fn has_some(&self) -> bool {
        self.len > 0
    }

    /// Whether what has changed was looked at.
    pub fn has_any_of(&self, changed: &Changed<T>) -> bool {
        match changed {
            Changed::Nothing => false,
            Changed::All => self.has_some(),
            Changed::These(numbers) => self.has_all() || self.some().iter().any(|number| numbers.contains(number)),
        }
    }

    /// Whether what was looked at has changed since a generation.
    pub fn has_changed(&self, changes: &NumberChanges<T>, since: u64) -> bool {
        changes.last() > since
            && (self.has_all() || self.some().iter().any(|&number| changes.has_changed(number, since)))
    }

    fn has_all(&self) -> bool {
        usize::from(self.len) > N
    }

    /// The numbers, unless all were looked at.
    pub fn some(&self) -> &[T] {
        self.numbers.get(..usize::from(self.len)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_at(numbers: &[u32]) -> LookedAt<u32, 2> {
        let mut looked_at = LookedAt::default();
        numbers.iter().for_each(|number| looked_at.add(*number));
        looked_at
    }

    /// Whether both ways of asking say that what was looked at has changed.
    fn is_stale(changes: &NumberChanges<u32>, since: u64, numbers: &[u32]) -> bool {
        let looked_at = looked_at(numbers);
        let stale = looked_at.has_any_of(&changes.since(since));
        assert_eq!(looked_at.has_changed(changes, since), stale, "{numbers:?} since {since}");
        stale
    }

    #[test]
    fn what_was_looked_at_and_has_changed_is_found() {
        let mut changes = NumberChanges::default();
        for (generation, number) in [(3, 7), (5, 8), (5, 9), (6, 7)] {
            changes.note(number, generation);
        }
        assert!(is_stale(&changes, 5, &[7]) && is_stale(&changes, 5, &[1, 7]) && is_stale(&changes, 2, &[9]));
        assert!(!is_stale(&changes, 5, &[8]) && !is_stale(&changes, 6, &[7]) && !is_stale(&changes, 0, &[1, 2]));
        assert!(is_stale(&changes, 5, &[1, 2, 3]), "too many to tell");
        assert!(!is_stale(&changes, 0, &[]) && !is_stale(&changes, 6, &[1, 2, 3]));
        changes.note_all(9);
        assert!(is_stale(&changes, 8, &[1]) && !is_stale(&changes, 9, &[1]) && !is_stale(&changes, 8, &[]));
        changes.note(1, 10);
        assert!(is_stale(&changes, 9, &[1]) && !is_stale(&changes, 9, &[7]));
    }

    #[test]
    fn numbers_without_end_are_not_all_remembered() {
        let mut changes = NumberChanges::default();
        (0..3 * MOST as u32).for_each(|number| changes.note(number, u64::from(number) + 1));
        assert!(changes.by_number.len() <= MOST && changes.latest.len() <= MOST);
        let last = 3 * MOST as u64;
        assert!(is_stale(&changes, last - 1, &[last as u32 - 1]) && !is_stale(&changes, last, &[5]));
        assert!(is_stale(&changes, 10, &[5]), "forgotten: it may have changed");
    }
}
