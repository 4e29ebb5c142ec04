//! Limits how often one place in the code may warn: what fails for each packet must not fill a disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many messages a place may log at once.
const BURST: f64 = 100.0;
/// How many more it may log for each second that passes.
const PER_SECOND: f64 = 1.0;

/// The budgets of the places that have logged.
#[derive(Default)]
pub struct Limiter {
    places: HashMap<usize, Budget>,
}

struct Budget {
    left: f64,
    at: Instant,
    dropped: Option<Dropped>,
}

/// What was dropped since a place last logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// How many messages.
    pub count: u64,
    first: Instant,
    last: Instant,
}

impl Dropped {
    /// The message that says so.
    pub fn text(&self, now: Instant) -> String {
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs();
        format!(
            "Dropped {} log messages in last {} seconds (most recently, {} seconds ago) due to excessive rate",
            self.count,
            seconds(self.first),
            seconds(self.last)
        )
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is logged.
    Log,
    /// It is logged, after word of those that were not.
    LogAfter(Dropped),
    /// It is dropped.
    Drop,
}

impl Limiter {
    /// Takes one message out of the budget of `place`.
    pub fn take(&mut self, place: usize, now: Instant) -> Verdict {
        let budget = self.places.entry(place).or_insert(Budget { left: BURST, at: now, dropped: None });
        let passed: Duration = now.saturating_duration_since(budget.at);
        budget.left = (budget.left + passed.as_secs_f64() * PER_SECOND).min(BURST);
        budget.at = now;
        if budget.left < 1.0 {
            let dropped = budget.dropped.get_or_insert(Dropped { count: 0, first: now, last: now });
            dropped.count += 1;
            dropped.last = now;
            return Verdict::Drop;
        }
        budget.left -= 1.0;
        budget.dropped.take().map_or(Verdict::Log, Verdict::LogAfter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let passed = (0..1000).filter(|_| limiter.take(1, start) == Verdict::Log).count();
        assert_eq!(passed, 100);
        assert_eq!(limiter.take(2, start), Verdict::Log, "another place has a budget of its own");
        let later = start + Duration::from_secs(5);
        let Verdict::LogAfter(dropped) = limiter.take(1, later) else { panic!("dropped") };
        assert_eq!(dropped.count, 900);
        assert!(dropped.text(later).starts_with("Dropped 900 log messages in last 5 seconds (most recently, 5 sec"));
        assert_eq!((0..10).filter(|_| limiter.take(1, later) == Verdict::Log).count(), 4);
    }
}
