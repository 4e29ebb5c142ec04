//! Points in time, and where they come from. Whoever drives the code passes the time in: nothing here reads a clock.

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
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The present time; never runs backwards.
    fn now(&self) -> Time;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_of_ages_does_not_end_in_the_past() {
        assert_eq!(Time(5) + Duration::from_secs(u64::MAX), Time(u64::MAX));
        assert_eq!(Time(5) + Duration::from_nanos(u64::MAX - 5), Time(u64::MAX));
        assert_eq!(Time(5) + Duration::from_nanos(7), Time(12));
    }
}
