//! What is kept of events and answers for all connections together.
//!
//! Each connection's part is bounded, but there may be very many connections. Where all together exceed their limit, the
//! one with the largest part loses it, and is closed: its peer does not read, or reads too slowly. So those who read are
//! served, whatever others do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Somebody for whom something is kept.
pub(crate) trait Holder: Send + Sync {
    /// How many bytes are kept.
    fn held(&self) -> usize;

    /// Frees what can be freed at once, says so with [`EventMemory::change`], and closes the connection soon. False where
    /// that has been done before.
    fn overflow(&self) -> bool;
}

/// The sum, and who has a part in it.
pub(crate) struct EventMemory {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// How many have been closed.
    closed: AtomicU64,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
}

impl EventMemory {
    /// So many bytes for all together.
    pub fn new(limit: usize) -> Arc<EventMemory> {
        Arc::new(EventMemory {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            closed: AtomicU64::new(0),
            holders: Mutex::default(),
        })
    }

    /// Changes the limit. What exceeds it goes with the next event.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, SeqCst);
    }

    /// How many connections have been closed.
    pub fn closed(&self) -> u64 {
        self.closed.load(SeqCst)
    }

    /// How many bytes are kept.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Adds a holder of nothing.
    pub fn join(&self, holder: Weak<dyn Holder>) {
        let mut holders = self.holders.lock();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(holder);
    }

    /// Says that a part is of `new` bytes instead of `old`.
    pub fn change(&self, old: usize, new: usize) {
        match new.checked_sub(old) {
            Some(more) => self.used.fetch_add(more, SeqCst),
            None => self.used.fetch_sub(old - new, SeqCst),
        };
    }

    /// Closes whoever holds most, until all hold no more than the limit. Not to be called with a lock that a holder takes.
    pub fn enforce(&self) {
        while self.used.load(SeqCst) > self.limit.load(SeqCst) {
            let largest = {
                let holders = self.holders.lock();
                let holders = holders.iter().filter_map(Weak::upgrade).map(|holder| (holder.held(), holder));
                holders.max_by_key(|(held, _)| *held)
            };
            // Who has just come may have been counted before it is among the holders.
            let Some((_, largest)) = largest.filter(|(held, _)| *held > 0) else { return };
            if largest.overflow() {
                self.closed.fetch_add(1, SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Part(Arc<EventMemory>, AtomicUsize);

    impl Holder for Part {
        fn held(&self) -> usize {
            self.1.load(SeqCst)
        }

        fn overflow(&self) -> bool {
            let held = self.1.swap(0, SeqCst);
            self.0.change(held, 0);
            held > 0
        }
    }

    #[test]
    fn who_holds_most_makes_room() {
        let memory = EventMemory::new(100);
        let parts: Vec<_> = (0..3).map(|_| Arc::new(Part(memory.clone(), AtomicUsize::new(0)))).collect();
        for part in &parts {
            let part: Arc<dyn Holder> = part.clone();
            memory.join(Arc::downgrade(&part));
        }
        let hold = |part: usize, bytes| {
            memory.change(parts[part].1.swap(bytes, SeqCst), bytes);
            memory.enforce();
        };
        let held = || parts.iter().map(|part| part.held()).collect::<Vec<_>>();
        hold(0, 40);
        hold(1, 50);
        hold(2, 10);
        assert_eq!((held(), memory.closed()), (vec![40, 50, 10], 0));
        hold(2, 11);
        assert_eq!((held(), memory.closed()), (vec![40, 0, 11], 1));
        hold(1, 89);
        assert_eq!((held(), memory.closed()), (vec![40, 0, 11], 2), "itself");
        memory.set_limit(5);
        hold(1, 1);
        assert_eq!((held(), memory.closed()), (vec![0, 1, 0], 4), "one after the other");
    }
}
