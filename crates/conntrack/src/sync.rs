//! Atomics and locks: the standard library's and parking_lot's, or loom's, which tries every order of what threads do to
//! them. With `--cfg loom` (`scripts/nightly.sh loom`) only the tests named `loom` run.

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// A lock that is held for a short time, and is not poisoned by a panic.
#[cfg(not(loom))]
pub use parking_lot::{Mutex, MutexGuard};

#[cfg(loom)]
pub use model::{Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    pub use loom::sync::MutexGuard;

    /// loom's lock with parking_lot's interface.
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock that holds `value`.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread of a model panics")
        }
    }
}
