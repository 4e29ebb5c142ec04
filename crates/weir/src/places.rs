//! Places for work that others do, as a thread of its own: so much is under way at a time, whoever asks, and what is beyond is refused before it
//! is begun.
//!
//! A place is kept until the work has ended, also where the client has gone meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Places for one kind of work.
pub struct Places {
    taken: AtomicUsize,
    most: usize,
}

impl Places {
    /// So many.
    pub const fn new(most: usize) -> Places {
        Places { taken: AtomicUsize::new(0), most }
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A place, if one is free.
    pub fn take(&'static self) -> Option<Place> {
        let add = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Place(self))
    }
}

/// One of the places. Dropping it gives it back.
pub struct Place(&'static Places);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_than_so_many_and_each_comes_back() {
        static PLACES: Places = Places::new(2);
        let mut places: Vec<_> = (0..2).map(|_| PLACES.take().unwrap()).collect();
        assert!(PLACES.take().is_none());
        places.pop();
        assert!(PLACES.take().is_some_and(|_| PLACES.take().is_none()));
        drop(places);
        assert!(PLACES.take().is_some());
    }
}
