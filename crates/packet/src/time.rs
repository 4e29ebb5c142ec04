//! Points in time, passed in by whoever drives the code. Nothing in this crate reads a clock.

use std::time::Duration;

/// Nanoseconds since an arbitrary start: monotonic, and warped by tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The time from `earlier` until this one; zero where `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds.
    pub fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The present time; never runs backwards.
    fn now(&self) -> Time;
}
