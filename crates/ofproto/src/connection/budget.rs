//! How much memory all peers together may make the switch hold for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A number of bytes, or of what else is counted, shared by everyone who holds a [`Charge`] on it.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
}

/// What one holder has taken of a budget. Goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0) })
    }

    /// A holder who has taken nothing yet.
    pub fn charge(self: &Arc<Budget>) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }
}

impl Charge {
    /// Takes more, if there is as much.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let limit = self.budget.limit;
        let more = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= limit);
        let granted = self.budget.used.fetch_update(Relaxed, Relaxed, more).is_ok();
        self.bytes += if granted { bytes } else { 0 };
        granted
    }

    /// Gives back some of what was taken.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.used.fetch_sub(bytes, Relaxed);
    }

    /// What this holder has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holder_has_another_cannot_get_until_it_goes() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (budget.charge(), budget.charge());
        assert!(a.grow(60) && !b.grow(41) && b.grow(40) && !a.grow(1));
        a.shrink(10);
        assert!(b.grow(10) && !b.grow(usize::MAX));
        drop(a);
        assert!(b.grow(50) && !b.grow(1));
        assert_eq!(b.bytes(), 100);
    }
}
