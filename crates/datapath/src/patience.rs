//! How long an idle worker goes on polling before it sleeps.
//!
//! To be woken costs tens of microseconds, which a request and its answer pay again and again. So the worker
//! learns: a sleep that a packet ended within [`LIMIT`] of the one before was a mistake, and the next time it
//! polls for twice as long as that took; a longer one was right, and it no longer waits at all. Packets that
//! come more often than once in [`LIMIT`] thus keep it awake, and an idle switch sleeps.

use std::time::Duration;

use packet::Time;

/// The longest that it polls in vain.
const LIMIT: Duration = Duration::from_millis(1);

/// What one worker has learnt.
#[derive(Default)]
pub struct Patience {
    /// When there was something to do last.
    worked: Time,
    /// Whether it has slept since.
    slept: bool,
    /// How long it polls from then on.
    polls: Duration,
}

impl Patience {
    /// There is something to do.
    #[inline]
    pub fn work(&mut self, now: Time) {
        if self.slept {
            self.learn(now);
        }
        self.worked = now;
    }

    #[cold]
    fn learn(&mut self, now: Time) {
        self.slept = false;
        let gap = now.since(self.worked);
        self.polls = if gap < LIMIT { (2 * gap).min(LIMIT) } else { Duration::ZERO };
    }

    /// Whether it has polled for long enough.
    pub fn is_over(&self, now: Time) -> bool {
        now.since(self.worked) >= self.polls
    }

    /// It goes to sleep.
    pub fn sleep(&mut self) {
        self.slept = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_from_short_sleeps_and_forgets_after_a_long_one() {
        let at = |micros: u64| Time(micros * 1000);
        let mut patience = Patience::default();
        patience.work(at(1000));
        assert!(patience.is_over(at(1000)), "nothing learnt: it sleeps at once");
        patience.sleep();
        patience.work(at(1100));
        assert!(!patience.is_over(at(1299)) && patience.is_over(at(1300)), "twice the 100 µs");
        patience.work(at(1200));
        assert!(!patience.is_over(at(1399)), "awake, it learns nothing new");
        patience.sleep();
        patience.work(at(2100));
        assert!(!patience.is_over(at(3099)) && patience.is_over(at(3100)), "no longer than the limit");
        patience.sleep();
        patience.work(at(4000));
        assert!(patience.is_over(at(4000)), "a sleep of its worth");
    }
}
