//! How long an idle worker goes on polling before it sleeps.
//!
//! To be woken costs tens of microseconds, which a request and its answer pay again and again. So it always polls
//! for about as long as that takes: whatever comes next, that is at most twice the better choice of the two, and
//! an answer that follows its request finds the worker awake. And it learns: a sleep that a packet ended within
//! some limit of the one before was a mistake, and the next time it polls for twice as long as that took; a longer
//! one was right. Packets that come more often than that thus keep it awake, and an idle switch sleeps.
//!
//! The limit is small for a worker that shares its core with others, who could use the time. One that was given a
//! core is to answer at once: packets as rare as those of a ping, one in a second, keep it awake.

use std::time::Duration;

use packet::Time;

/// The least that it polls: what a sleep and the way out of it cost.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The longest that a worker polls in vain which may run on any core.
const SHARED: Duration = Duration::from_millis(1);

/// The same of one that was given a core.
const DEDICATED: Duration = Duration::from_millis(1250);

/// What one worker has learnt.
pub struct IdlePolicy {
    /// When there was something to do last.
    worked: Time,
    /// Whether it has slept since.
    slept: bool,
    /// How long it polls from then on.
    polls: Duration,
    /// The longest that it polls.
    limit: Duration,
}

impl IdlePolicy {
    /// Of a worker that knows nothing yet. `dedicated`: it was given a core.
    pub fn new(dedicated: bool) -> IdlePolicy {
        let limit = if dedicated { DEDICATED } else { SHARED };
        IdlePolicy { worked: Time(0), slept: false, polls: WAKE_UP, limit }
    }

    /// There is something to do.
    #[inline]
    pub fn on_work(&mut self, now: Time) {
        if self.slept {
            self.learn(now);
        }
        self.worked = now;
    }

    #[cold]
    fn learn(&mut self, now: Time) {
        self.slept = false;
        let gap = now.since(self.worked);
        self.polls = if gap < self.limit { (2 * gap).clamp(WAKE_UP, self.limit) } else { WAKE_UP };
    }

    /// Whether it has polled for long enough.
    pub fn may_sleep(&self, now: Time) -> bool {
        now.since(self.worked) >= self.polls
    }

    /// It goes to sleep.
    pub fn on_sleep(&mut self) {
        self.slept = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_from_short_sleeps_and_forgets_after_a_long_one() {
        let at = |micros: u64| Time(micros * 1000);
        let mut idle_policy = IdlePolicy::new(false);
        idle_policy.on_work(at(1000));
        assert!(
            !idle_policy.may_sleep(at(1099)) && idle_policy.may_sleep(at(1100)),
            "nothing learnt: as long as to wake up"
        );
        idle_policy.on_sleep();
        idle_policy.on_work(at(1200));
        assert!(!idle_policy.may_sleep(at(1599)) && idle_policy.may_sleep(at(1600)), "twice the 200 µs");
        idle_policy.on_work(at(1300));
        assert!(!idle_policy.may_sleep(at(1699)), "awake, it learns nothing new");
        idle_policy.on_sleep();
        idle_policy.on_work(at(2200));
        assert!(!idle_policy.may_sleep(at(3199)) && idle_policy.may_sleep(at(3200)), "no longer than the limit");
        idle_policy.on_sleep();
        idle_policy.on_work(at(4200));
        assert!(!idle_policy.may_sleep(at(4299)) && idle_policy.may_sleep(at(4300)), "a sleep of its worth");
        idle_policy.on_sleep();
        idle_policy.on_work(at(4210));
        assert!(!idle_policy.may_sleep(at(4309)), "never less than to wake up");
    }
    #[test]
    fn who_was_given_a_core_stays_awake_for_a_ping() {
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut idle_policy = IdlePolicy::new(true);
        idle_policy.on_work(at(1000));
        idle_policy.on_sleep();
        idle_policy.on_work(at(2000));
        assert!(!idle_policy.may_sleep(at(3001)), "the next one comes a second later");
        assert!(idle_policy.may_sleep(at(3250)), "it has not come");
        idle_policy.on_sleep();
        idle_policy.on_work(at(5000));
        assert!(idle_policy.may_sleep(at(5001)), "more than the limit: it was right to sleep");
    }
}
