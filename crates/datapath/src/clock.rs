//! Clocks: the system's, and one that tests move by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use packet::{Clock, Time};

/// The system's monotonic clock. Its time starts near one second, so that no reading is zero.
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    pub fn new() -> MonotonicClock {
        MonotonicClock { start: Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Time {
        Time(1_000_000_000) + self.start.elapsed()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn new(start: Time) -> ManualClock {
        ManualClock { nanos: AtomicU64::new(start.0) }
    }

    /// Moves the clock forwards.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.nanos.load(Ordering::SeqCst))
    }
}
