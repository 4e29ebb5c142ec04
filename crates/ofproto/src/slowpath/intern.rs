//! Numbers for values that travel through the datapath: recirculation states and punts.
//!
//! Equal values get the same number, so that translating a flow again gives equal actions. A value
//! lives as long as a record holds it, and some time longer for packets on their way.

use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// A table of numbered values. Numbers start at 1.
pub(crate) struct Interner<T> {
    table: Mutex<ValueTable<T>>,
}

/// References to a value that are those of the table.
const REFERENCES: usize = 2;

struct ValueTable<T> {
    by_id: HashMap<u32, (Arc<T>, bool)>,
    by_value: HashMap<Arc<T>, u32>,
    next: u32,
}

impl<T: Eq + Hash> Default for Interner<T> {
    fn default() -> Interner<T> {
        Interner { table: Mutex::new(ValueTable { by_id: HashMap::new(), by_value: HashMap::new(), next: 1 }) }
    }
}

impl<T> ValueTable<T> {
    /// Gives a value a number of its own.
    fn number(&mut self, value: T) -> (u32, Arc<T>) {
        let mut id = self.next;
        while id == 0 || self.by_id.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        self.next = id.wrapping_add(1);
        let shared = Arc::new(value);
        self.by_id.insert(id, (shared.clone(), false));
        (id, shared)
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The number of `value`, and the shared value, which has to be held to keep the number.
    pub fn intern(&self, value: T) -> (u32, Arc<T>) {
        let mut table = self.table.lock();
        if let Some((shared, &id)) = table.by_value.get_key_value(&value) {
            let is_idle = table.by_id.get(&id).is_some_and(|(_, idle)| *idle);
            if !is_idle || Arc::strong_count(shared) > REFERENCES {
                return (id, shared.clone());
            }
            // Its number is left to packets on their way, as OVS leaves it.
            table.by_value.remove(&value);
        }
        let (id, shared) = table.number(value);
        table.by_value.insert(shared.clone(), id);
        (id, shared)
    }

    /// As [`intern`](Interner::intern), for who only wants to see what would happen: a number that no record holds is not
    /// used, and the new one is left to nobody else.
    pub fn intern_to_show(&self, value: T) -> (u32, Arc<T>) {
        let mut table = self.table.lock();
        match table.by_value.get_key_value(&value) {
            Some((shared, &id)) if Arc::strong_count(shared) > REFERENCES => (id, shared.clone()),
            _ => table.number(value),
        }
    }

    /// The value with this number.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        self.table.lock().by_id.get(&id).map(|(value, _)| value.clone())
    }

    /// Removes the values that nobody has held since the last call.
    pub fn collect(&self) {
        let table = &mut *self.table.lock();
        table.by_id.retain(|id, (value, idle)| {
            let is_current = table.by_value.get(value) == Some(id);
            let own = if is_current { REFERENCES } else { REFERENCES - 1 };
            if Arc::strong_count(value) > own {
                *idle = false;
                return true;
            }
            if !*idle {
                *idle = true;
                return true;
            }
            if is_current {
                table.by_value.remove(value);
            }
            false
        });
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
}
