//! Numbers for values that travel through the datapath: recirculation states and punts.
//!
//! Equal values get the same number, so that translating a flow again gives equal actions. A value
//! lives as long as a record holds it, and some time longer for packets on their way.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;

/// A table of numbered values. Numbers start at 1.
///
/// There can be as many values as there are flows, and those who want one wait for each other. So nothing that is done with the lock held
/// takes longer the more there are, but for the growing of a table of hashes.
pub(crate) struct Interner<T> {
    table: Mutex<ValueTable<T>>,
    /// Hashes values without the lock.
    hasher: RandomState,
}

/// So many values are looked at before others get the lock.
const PIECE: usize = 512;

/// So many more values than after the last collection are many.
const MANY: usize = 1 << 16;

struct ValueTable<T> {
    by_id: BTreeMap<u32, Numbered<T>>,
    /// The numbers that values have when they come again, by the values' hashes, which are kept: values are long.
    by_value: HashTable<(u64, u32)>,
    next: u32,
    /// How many there were after the last collection.
    kept: usize,
}

/// A value that has a number.
struct Numbered<T> {
    value: Arc<T>,
    hash: u64,
    /// Nobody held it at the last collection.
    idle: bool,
}

impl<T> Numbered<T> {
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.value) > 1
    }
}

impl<T> Default for Interner<T> {
    fn default() -> Interner<T> {
        let table = ValueTable { by_id: BTreeMap::new(), by_value: HashTable::new(), next: 1, kept: 0 };
        Interner { table: Mutex::new(table), hasher: RandomState::default() }
    }
}

impl<T: Eq> ValueTable<T> {
    /// The number that a value has when it comes again.
    fn current(&self, hash: u64, value: &T) -> Option<u32> {
        let is = |(_, id): &(u64, u32)| self.by_id.get(id).is_some_and(|numbered| *numbered.value == *value);
        self.by_value.find(hash, is).map(|(_, id)| *id)
    }

    /// Gives a value a number of its own.
    fn number(&mut self, hash: u64, value: T) -> (u32, Arc<T>) {
        let mut id = self.next;
        while id == 0 || self.by_id.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        self.next = id.wrapping_add(1);
        let shared = Arc::new(value);
        self.by_id.insert(id, Numbered { value: shared.clone(), hash, idle: false });
        (id, shared)
    }

    /// Has a value get another number than this one when it comes again.
    fn retire(&mut self, hash: u64, id: u32) {
        if let Ok(entry) = self.by_value.find_entry(hash, |(_, other)| *other == id) {
            entry.remove();
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The number of `value`, and the shared value, which has to be held to keep the number.
    pub fn intern(&self, value: T) -> (u32, Arc<T>) {
        let hash = self.hasher.hash_one(&value);
        let table = &mut *self.table.lock();
        if let Some(id) = table.current(hash, &value)
            && let Some(numbered) = table.by_id.get(&id)
        {
            if !numbered.idle || numbered.is_held() {
                return (id, numbered.value.clone());
            }
            // Its number is left to packets on their way, as OVS leaves it.
            table.retire(hash, id);
        }
        let (id, shared) = table.number(hash, value);
        table.by_value.insert_unique(hash, (hash, id), |(hash, _)| *hash);
        (id, shared)
    }

    /// As [`intern`](Interner::intern), for who only wants to see what would happen: a number that no record holds is not
    /// used, and the new one is left to nobody else.
    pub fn intern_to_show(&self, value: T) -> (u32, Arc<T>) {
        let hash = self.hasher.hash_one(&value);
        let mut table = self.table.lock();
        if let Some(id) = table.current(hash, &value)
            && let Some(numbered) = table.by_id.get(&id).filter(|numbered| numbered.is_held())
        {
            return (id, numbered.value.clone());
        }
        table.number(hash, value)
    }

    /// The value with this number.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        self.table.lock().by_id.get(&id).map(|numbered| numbered.value.clone())
    }

    /// Removes the values that nobody has held since the last call, in pieces.
    pub fn collect(&self) {
        let mut from = Some(0);
        while let Some(id) = from {
            let (next, freed) = self.collect_piece(id);
            // The lock is free.
            drop(freed);
            from = next;
        }
        let mut table = self.table.lock();
        table.kept = table.by_id.len();
    }

    /// Whether there are many more than after the last collection, so that one is due earlier.
    pub fn has_grown(&self) -> bool {
        let table = self.table.lock();
        table.by_id.len() > 2 * table.kept + MANY
    }

    /// Removes those among the next values, from a number on. Returns the number to go on from, which is `None` at the end, and what was
    /// removed.
    fn collect_piece(&self, from: u32) -> (Option<u32>, Vec<Numbered<T>>) {
        let table = &mut *self.table.lock();
        let (mut gone, mut last) = (Vec::new(), None);
        for (id, numbered) in table.by_id.range_mut(from..).take(PIECE) {
            last = Some(*id);
            let is_idle = !numbered.is_held();
            if std::mem::replace(&mut numbered.idle, is_idle) && is_idle {
                gone.push((numbered.hash, *id));
            }
        }
        gone.iter().for_each(|(hash, id)| table.retire(*hash, *id));
        let freed = gone.iter().filter_map(|(_, id)| table.by_id.remove(id)).collect();
        (last.and_then(|last| last.checked_add(1)), freed)
    }

    /// Has values get another number when they come again. Who still holds one, or carries its number, finds it until it
    /// is [collected](Interner::collect).
    pub fn retire(&self) {
        self.table.lock().by_value.clear();
    }

    /// Number of values.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.table.lock().by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_idle_gets_another_number() {
        let interner = Interner::default();
        let (old, held) = interner.intern("a".to_owned());
        interner.collect();
        assert_eq!(interner.intern("a".to_owned()).0, old, "it is held");
        drop(held);
        assert_eq!(interner.intern("a".to_owned()).0, old, "it was, a moment ago");
        interner.collect();
        let (new, held) = interner.intern("a".to_owned());
        assert!(new != old && interner.get(old).is_some());
        interner.collect();
        interner.collect();
        assert_eq!((interner.get(old), interner.get(new)), (None, Some(held)));
    }

    #[test]
    fn what_was_retired_gets_another_number() {
        let interner = Interner::default();
        let (old, held) = interner.intern("a".to_owned());
        interner.retire();
        let (new, also_held) = interner.intern("a".to_owned());
        assert_ne!(new, old);
        (0..3).for_each(|_| interner.collect());
        assert_eq!((interner.get(old), interner.get(new)), (Some(held), Some(also_held)), "both are held");
        (0..2).for_each(|_| interner.collect());
        assert_eq!(interner.len(), 0);
    }

    #[test]
    fn what_is_only_shown_leaves_no_number() {
        let interner = Interner::default();
        let (shown, _) = interner.intern_to_show("a".to_owned());
        let (again, _) = interner.intern_to_show("a".to_owned());
        let (real, held) = interner.intern("a".to_owned());
        assert!(shown != again && again != real && shown != real);
        assert_eq!(interner.intern_to_show("a".to_owned()).0, real, "a flow has it");
        interner.collect();
        interner.collect();
        assert_eq!((interner.get(shown), interner.len()), (None, 1));
        assert_eq!(interner.intern("a".to_owned()).0, real);
        drop(held);
    }

    #[test]
    fn values_live_while_held() {
        let interner = Interner::default();
        let (a, held) = interner.intern("a".to_owned());
        let (b, _) = interner.intern("b".to_owned());
        assert_ne!(a, b);
        assert_eq!(interner.intern("a".to_owned()).0, a);
        interner.collect();
        assert_eq!(interner.len(), 2, "a packet may still carry the number");
        interner.collect();
        assert_eq!((interner.get(a).as_deref(), interner.get(b)), (Some(&"a".to_owned()), None));
        drop(held);
        interner.collect();
        interner.collect();
        assert_eq!(interner.len(), 0);
    }

    #[test]
    fn many_values_are_collected_in_pieces_and_none_that_is_held() {
        let interner = Interner::default();
        let held: Vec<_> = (0..5 * PIECE).map(|n| interner.intern(n)).filter(|(id, _)| id % 7 == 0).collect();
        assert!(!interner.has_grown());
        (0..2).for_each(|_| interner.collect());
        assert_eq!(interner.len(), held.len());
        for (id, value) in &held {
            assert_eq!((interner.get(*id).as_ref(), interner.intern(**value).0), (Some(value), *id));
        }
        drop((0..MANY + 2 * held.len()).map(|n| interner.intern(n + 5 * PIECE)).collect::<Vec<_>>());
        assert!(interner.has_grown());
        (0..2).for_each(|_| interner.collect());
        assert!(interner.len() == held.len() && !interner.has_grown());
    }
}
