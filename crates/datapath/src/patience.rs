//! How long an idle worker goes on polling before it sleeps.
//!
//! To be woken costs tens of microseconds, which a request and its answer pay again and again. So it always polls
//! for about as long as that takes: whatever comes next, that is at most twice the better choice of the two, and
//! an answer that follows its request finds the worker awake. And it learns: a sleep that a packet ended within
//! [`LIMIT`] of the one before was a mistake, and the next time it polls for twice as long as that took; a longer
//! one was right. Packets that come more often than once in [`LIMIT`] thus keep it awake, and an idle switch sleeps.

use std::time::Duration;

use packet::Time;

/// The least that it polls: what a sleep and the way out of it cost.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The longest that it polls in vain.
const LIMIT: Duration = Duration::from_millis(1);

/// What one worker has learnt.
pub struct Patience {
    /// When there was something to do last.
    worked: Time,
    /// Whether it has slept since.
    slept: bool,
    /// How long it polls from then on.
    polls: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { worked: Time(0), slept: false, polls: WAKE_UP }
    }
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
        self.polls = if gap < LIMIT { (2 * gap).clamp(WAKE_UP, LIMIT) } else { WAKE_UP };
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
        assert!(!patience.is_over(at(1099)) && patience.is_over(at(1100)), "nothing learnt: as long as to wake up");
        patience.sleep();
        patience.work(at(1200));
        assert!(!patience.is_over(at(1599)) && patience.is_over(at(1600)), "twice the 200 µs");
        patience.work(at(1300));
        assert!(!patience.is_over(at(1699)), "awake, it learns nothing new");
        patience.sleep();
        patience.work(at(2200));
        assert!(!patience.is_over(at(3199)) && patience.is_over(at(3200)), "no longer than the limit");
        patience.sleep();
        patience.work(at(4200));
        assert!(!patience.is_over(at(4299)) && patience.is_over(at(4300)), "a sleep of its worth");
        patience.sleep();
        patience.work(at(4210));
        assert!(!patience.is_over(at(4309)), "never less than to wake up");
    }
}
