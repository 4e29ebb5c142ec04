//! Sleeping by the daemon's clock.
//!
//! The system's timers know nothing of a clock that is stopped or warped, so tasks of the management thread that wait
//! for a time of the daemon's clock wait here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use datapath::sync::clock::{MonotonicClock, WarpClock};
use packet::{Clock, Time};
use tokio::sync::watch;

/// The daemon's clock, for sleeping. Cheap to clone.
#[derive(Clone)]
pub struct Timer {
    clock: Arc<dyn Clock>,
    warp: Option<Arc<WarpClock>>,
    /// Changes with each warp.
    warps: watch::Receiver<()>,
    /// Tasks that do what a time that has come asks of them.
    working: Arc<AtomicUsize>,
}

/// A task does what is due. See [`Timer::begin_due_work`].
pub struct DueWork(Arc<AtomicUsize>);

impl Drop for DueWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Timer {
    /// By the system's clock.
    pub fn system() -> Timer {
        // Without a sender nothing ever changes.
        let (clock, warps) = (Arc::new(MonotonicClock::new()), watch::channel(()).1);
        Timer { clock, warp: None, warps, working: Arc::default() }
    }

    /// By a clock that commands can stop and warp.
    pub fn warpable() -> Timer {
        let clock = Arc::new(WarpClock::new());
        let (warped, warps) = watch::channel(());
        clock.on_warp(move || {
            warped.send_replace(());
        });
        Timer { clock: clock.clone(), warp: Some(clock), warps, working: Arc::default() }
    }

    /// The clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// The clock where it can be stopped and warped.
    pub fn warp_clock(&self) -> Option<&WarpClock> {
        self.warp.as_deref()
    }

    /// The present time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Sleeps until `due` has come.
    pub async fn sleep_until(&self, due: Time) {
        let mut warps = self.warps.clone();
        loop {
            warps.mark_unchanged();
            let left = due.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                Ok(()) = warps.changed() => {}
            }
        }
    }

    /// Returns after the next warp.
    pub async fn warped(&self) {
        let mut warps = self.warps.clone();
        warps.mark_unchanged();
        if warps.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Marks the caller as doing what a warp has made due, until the value is dropped. To be called right after waking,
    /// before anything is awaited.
    pub fn begin_due_work(&self) -> DueWork {
        self.working.fetch_add(1, SeqCst);
        DueWork(self.working.clone())
    }

    /// Whether a task does what is due.
    pub fn is_working(&self) -> bool {
        self.working.load(SeqCst) > 0
    }

    /// Sleeps for `time`.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }

    /// The outcome of `future`, or `None` when that takes longer than `limit`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            outcome = future => Some(outcome),
            () = self.sleep(limit) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_warp_ends_a_sleep() {
        let timer = Timer::warpable();
        timer.warp_clock().unwrap().stop();
        let started = timer.now();
        run(async {
            let warping = async {
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                    timer.warp_clock().unwrap().warp(Duration::from_secs(900));
                }
            };
            let sleeping = async {
                timer.sleep(Duration::from_secs(3600)).await;
                timer.now()
            };
            let (woken, ()) = tokio::join!(sleeping, warping);
            assert_eq!(woken, started + Duration::from_secs(3600), "not before its time");
        });
    }

    #[test]
    fn work_that_a_warp_causes_can_be_awaited() {
        let (timer, done) = (Timer::warpable(), tokio::sync::Notify::new());
        run(async {
            let worker = async {
                timer.warped().await;
                let _work = timer.begin_due_work();
                done.notified().await;
            };
            let warper = async {
                tokio::task::yield_now().await;
                timer.warp_clock().unwrap().warp(Duration::from_secs(1));
                while !timer.is_working() {
                    tokio::task::yield_now().await;
                }
                done.notify_one();
            };
            tokio::join!(worker, warper);
            assert!(!timer.is_working());
        });
    }

    #[test]
    fn a_stopped_clock_lets_nothing_come_due() {
        let timer = Timer::warpable();
        timer.warp_clock().unwrap().stop();
        run(async {
            let sleeping = timer.sleep(Duration::from_millis(1));
            assert!(tokio::time::timeout(Duration::from_millis(30), sleeping).await.is_err());
        });
    }

    #[test]
    fn the_systems_clock_passes() {
        run(async {
            let timer = Timer::system();
            let due = timer.now() + Duration::from_millis(5);
            timer.sleep_until(due).await;
            assert!(timer.now() >= due);
            assert_eq!(timer.timeout(Duration::from_secs(60), async { 5 }).await, Some(5));
            assert_eq!(timer.timeout(Duration::from_millis(1), std::future::pending::<()>()).await, None);
        });
    }
}
