//! Clocks: the system's, one that can be stopped and warped while a daemon runs, and one that tests
//! move by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use packet::{Clock, Time};
use parking_lot::Mutex;

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

/// The system's monotonic clock, which can be stopped for good and moved forwards.
///
/// Threads that sleep until a time by this clock have to be woken when it is moved: [`on_warp`] is for them.
///
/// Any thread may read it: that takes no lock. Stopping and warping are rare, and for one thread at a time.
///
/// [`on_warp`]: WarpClock::on_warp
#[derive(Default)]
pub struct WarpClock {
    system: MonotonicClock,
    /// What the system's clock showed when this one was stopped, in nanoseconds; zero while it runs.
    stopped: AtomicU64,
    /// How far it was moved, in nanoseconds.
    warped: AtomicU64,
    sleepers: Mutex<Vec<Sleeper>>,
}

/// Wakes a thread that sleeps until some time.
type Sleeper = Box<dyn Fn() + Send + Sync>;

impl WarpClock {
    /// A clock that starts now and runs.
    pub fn new() -> WarpClock {
        WarpClock::default()
    }

    /// Stops the clock: from now on only [`warp`](WarpClock::warp) moves it. Stopping it twice is as once.
    pub fn stop(&self) {
        let now = self.system.now().0;
        // If two threads stop it, the first one's time counts.
        let _ = self.stopped.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether the clock was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) != 0
    }

    /// Moves the clock forwards, stopped or not, and wakes the threads that sleep by it.
    pub fn warp(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |warped: u64| Some(warped.saturating_add(nanos));
        let _ = self.warped.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        self.sleepers.lock().iter().for_each(|wake| wake());
    }

    /// Calls `wake` after each warp, from the thread that warps. It must not block, nor use the clock's
    /// other methods than [`now`](Clock::now).
    pub fn on_warp(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.sleepers.lock().push(Box::new(wake));
    }
}

impl Clock for WarpClock {
    #[inline]
    fn now(&self) -> Time {
        let base = match self.stopped.load(Ordering::Acquire) {
            0 => self.system.now().0,
            stopped => stopped,
        };
        Time(base.saturating_add(self.warped.load(Ordering::Acquire)))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_stopped_clock_moves_only_when_warped() {
        let clock = WarpClock::new();
        let started = clock.now();
        assert!(started > Time(0));
        clock.stop();
        let stopped = clock.now();
        assert!(stopped >= started && clock.is_stopped());
        std::thread::sleep(Duration::from_millis(2));
        clock.stop();
        assert_eq!(clock.now(), stopped);
        clock.warp(Duration::from_secs(5));
        assert_eq!(clock.now(), stopped + Duration::from_secs(5));
        clock.warp(Duration::MAX);
        assert_eq!(clock.now(), Time(u64::MAX), "as far as it goes, and not around");
    }

    #[test]
    fn sleepers_are_woken_after_each_warp() {
        let clock = WarpClock::new();
        let woken = Arc::new(AtomicU32::new(0));
        let count = woken.clone();
        clock.on_warp(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let before = clock.now();
        clock.warp(Duration::from_secs(1));
        clock.warp(Duration::from_secs(1));
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        assert!(clock.now() >= before + Duration::from_secs(2), "a clock that runs is warped as well");
    }
}
