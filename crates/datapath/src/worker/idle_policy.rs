//! When an idle worker stops polling and sleeps.
//!
//! To wake a worker takes tens of microseconds, which a request and its answer would pay again and again. So a worker
//! polls for about as long as a wake-up takes before it sleeps. Whatever comes next, that costs at most twice as much
//! as the better one of polling and sleeping, and an answer that soon follows its request finds the worker awake.
//!
//! The policy also adapts. A sleep that a packet ended soon, within a limit since the last work, was a mistake: the
//! next time, the worker polls for twice as long as that took. A longer sleep was right. So packets that come more
//! often than the limit keep a worker awake, and the workers of an idle switch sleep.
//!
//! The limit is small for a worker that shares its core with other threads, which could use the time. It is large for
//! a worker with a core of its own: packets as rare as those of a ping, one in a second, keep it awake.

use std::time::Duration;

use packet::Time;

/// The shortest time that a worker polls without success: the cost of a sleep and a wake-up.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The longest such time of a worker that may run on any core.
const SHARED_LIMIT: Duration = Duration::from_millis(1);

/// The longest such time of a worker with a core of its own.
const DEDICATED_LIMIT: Duration = Duration::from_millis(1250);

/// The idle policy of one worker, and its state.
pub struct IdlePolicy {
    /// When there was something to do last.
    worked: Time,
    /// Whether the worker has slept since then.
    slept: bool,
    /// How long the worker polls before it sleeps.
    polls: Duration,
    /// The longest time that the worker polls.
    limit: Duration,
}

impl IdlePolicy {
    /// The policy of a new worker. `dedicated`: it has a core of its own.
    pub fn new(dedicated: bool) -> IdlePolicy {
        let limit = if dedicated { DEDICATED_LIMIT } else { SHARED_LIMIT };
        IdlePolicy { worked: Time(0), slept: false, polls: WAKE_UP, limit }
    }

    /// Records that there is something to do.
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

    /// Whether the worker has polled without success for long enough.
    pub fn may_sleep(&self, now: Time) -> bool {
        now.since(self.worked) >= self.polls
    }

    /// Records that the worker goes to sleep.
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
    fn a_dedicated_worker_stays_awake_for_a_ping() {
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
