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
//!
//! Where others turn out to want the core, the worker leaves it to them at once: they may be those that send what it waits for. Where the
//! process has one core only, it does so always: nothing can come from the same machine while it polls.

use std::time::Duration;

use packet::Time;

use crate::worker::contention::{Contention, on_processor};

/// The shortest time that a worker polls without success: the cost of a sleep and a wake-up.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The longest such time of a worker that may run on any core.
const SHARED_LIMIT: Duration = Duration::from_millis(1);

/// The longest such time of a worker with a core of its own.
const DEDICATED_LIMIT: Duration = Duration::from_millis(1250);

/// The longest such time of a worker that has all the rest of the process on its core.
const ONLY_LIMIT: Duration = Duration::ZERO;

/// How long a worker polls without success while others want its core.
const CONTENDED: Duration = Duration::from_micros(20);

/// How long a worker sleeps at most while others want its core, if it has to look itself whether there is anything to do: it has slept soon
/// after a frame, and the next burst must find room in the ring.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// Who runs where a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// One that is its own.
    Own,
    /// Any, with others.
    Shared,
    /// The only one that the process may use.
    Only,
}

impl Core {
    /// The longest time that a worker polls without success.
    fn limit(self) -> Duration {
        match self {
            Core::Own => DEDICATED_LIMIT,
            Core::Shared => SHARED_LIMIT,
            Core::Only => ONLY_LIMIT,
        }
    }
}

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
    /// Whether others want the core.
    contention: Contention,
}

impl IdlePolicy {
    /// The policy of a new worker.
    pub fn new(core: Core) -> IdlePolicy {
        let limit = core.limit();
        IdlePolicy {
            worked: Time(0),
            slept: false,
            polls: WAKE_UP.min(limit),
            limit,
            contention: Contention::default(),
        }
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
        let least = WAKE_UP.min(self.limit);
        self.polls = if gap < self.limit { (2 * gap).clamp(least, self.limit) } else { least };
    }

    /// Records that there is nothing to do.
    #[inline]
    pub fn on_idle(&mut self, now: Time) {
        self.contention.look(now, on_processor);
    }

    /// Whether the worker has polled without success for long enough.
    pub fn may_sleep(&self, now: Time) -> bool {
        let polls = if self.contention.is_contended(now) { CONTENDED.min(self.polls) } else { self.polls };
        now.since(self.worked) >= polls
    }

    /// How long a worker that has to look itself may sleep, which is `longest` at most.
    pub fn sleep_between_looks(&self, now: Time, longest: Duration) -> Duration {
        if self.contention.is_contended(now) { longest.min(SHORT_SLEEP) } else { longest }
    }

    /// Records that the worker goes to sleep.
    pub fn on_sleep(&mut self) {
        self.slept = true;
    }

    /// Records that it has slept.
    pub fn on_wake_up(&mut self, slept: Duration) {
        self.contention.on_slept(slept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_from_short_sleeps_and_forgets_after_a_long_one() {
        let at = |micros: u64| Time(micros * 1000);
        let mut idle_policy = IdlePolicy::new(Core::Shared);
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
    fn others_that_want_the_core_have_it_at_once() {
        let at = |micros: u64| Time(micros * 1000);
        let mut idle_policy = IdlePolicy::new(Core::Own);
        for n in 0..3 {
            idle_policy.contention.look(at(90_000 + n * 10_000), || Duration::from_millis(5) * n as u32);
        }
        idle_policy.on_work(at(110_000));
        assert!(!idle_policy.may_sleep(at(110_019)) && idle_policy.may_sleep(at(110_020)));
        let slept = |now, longest| idle_policy.sleep_between_looks(at(now), Duration::from_micros(longest)).as_micros();
        assert_eq!((slept(110_020, 500), slept(110_020, 50), slept(360_000, 500)), (100, 50, 500));
        idle_policy.on_work(at(360_000));
        assert!(!idle_policy.may_sleep(at(360_099)), "they may have gone");
    }

    #[test]
    fn the_only_core_is_left_at_once() {
        let at = |micros: u64| Time(micros * 1000);
        let mut idle_policy = IdlePolicy::new(Core::Only);
        for micros in [1000, 1050, 1200, 5000] {
            idle_policy.on_work(at(micros));
            assert!(idle_policy.may_sleep(at(micros)), "nobody else can run meanwhile");
            idle_policy.on_sleep();
        }
    }

    #[test]
    fn a_dedicated_worker_stays_awake_for_a_ping() {
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut idle_policy = IdlePolicy::new(Core::Own);
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
