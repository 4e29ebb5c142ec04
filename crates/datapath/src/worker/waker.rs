//! How idle threads sleep, and how they are woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Says whether a thread sleeps, so that others wake it only then.
///
/// The thread sets `sleeping`, checks once more for work, and sleeps. Others first publish the work and then read
/// `sleeping`. All of these accesses are sequentially consistent, so at least one side sees the other's write.
#[derive(Default)]
struct SleepFlag {
    sleeping: AtomicBool,
}

impl SleepFlag {
    /// Whether the thread has to be woken. To be called after work was published.
    fn is_raised(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Calls `sleep`, unless `has_work`.
    fn sleep_unless(&self, has_work: impl Fn() -> bool, sleep: impl FnOnce()) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !has_work() {
            sleep();
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Wakes one thread that sleeps.
#[derive(Default)]
pub struct Waker {
    sleep_flag: SleepFlag,
    /// The eventfd, created when the thread is started.
    event: OnceLock<OwnedFd>,
}

impl Waker {
    /// To be called before the first sleep.
    pub fn prepare(&self) -> std::io::Result<()> {
        if self.event.get().is_none() {
            let _ = self.event.set(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        Ok(())
    }

    /// Wakes the thread if it sleeps.
    pub fn wake(&self) {
        if self.sleep_flag.is_raised()
            && let Some(event) = self.event.get()
        {
            // The write fails only when the counter is full, and then the thread is awake.
            let _ = write(event, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until woken, until one of `others` is readable, or for `timeout` (`None`: without end),
    /// unless `has_work`. May wake early.
    pub fn sleep<'a>(
        &'a self,
        others: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
        has_work: impl Fn() -> bool,
    ) {
        let Some(event) = self.event.get() else { return };
        self.sleep_flag.sleep_unless(has_work, || {
            let own = PollFd::new(event, PollFlags::IN);
            let others = others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut fds: Vec<PollFd<'_>> = std::iter::once(own).chain(others).collect();
            let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => tracing::warn!("an idle worker cannot wait for its queues: {error}"),
            }
        });
        let _ = read(event.as_fd(), &mut [0; 8]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    /// Published work either keeps the thread from sleeping or wakes it. Otherwise it would sleep for ever, which
    /// loom detects.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let sleep_flag = Arc::new(SleepFlag::default());
            let [work, woken] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
            let (shared, left, rung) = (sleep_flag.clone(), work.clone(), woken.clone());
            let sleeper = loom::thread::spawn(move || {
                let sleep = || {
                    while !rung.load(Ordering::Acquire) {
                        loom::thread::yield_now();
                    }
                };
                shared.sleep_unless(|| left.load(Ordering::Acquire), sleep);
            });
            work.store(true, Ordering::Release);
            if sleep_flag.is_raised() {
                woken.store(true, Ordering::Release);
            }
            sleeper.join().unwrap();
        });
    }
}
