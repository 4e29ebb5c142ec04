//! Who waits for changes to be in force.
//!
//! A connection that asks for a barrier waits for the changes that it has made itself, and only if flows depend on them.
//! Whoever does the rounds wakes it; all changes that wait are brought into force by one round.

use parking_lot::Mutex;

use crate::events::Waker;

/// Those who wait, with the generation that they wait for.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Vec<(u64, Waker)>>);

impl Waiting {
    /// Has `waker` called when the changes up to a generation are in force.
    pub fn add(&self, generation: u64, waker: Waker) {
        self.0.lock().push((generation, waker));
    }

    /// Whether anybody waits.
    pub fn is_any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Wakes those who wait for no later generation.
    pub fn wake(&self, in_force: u64) {
        let awake: Vec<_> = self.0.lock().extract_if(.., |(generation, _)| *generation <= in_force).collect();
        awake.iter().for_each(|(_, wake)| wake());
    }
}
