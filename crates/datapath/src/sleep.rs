//! How idle workers sleep, and what wakes them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// Wakes one thread out of its sleep.
///
/// The sleeper raises `sleeping`, looks once more for work, and sleeps; others first leave the work and
/// then look at `sleeping`. With both in sequentially consistent order, one of the two sees the other.
#[derive(Default)]
pub struct Waker {
    sleeping: AtomicBool,
    /// Made when the thread is started.
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
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst)
            && let Some(event) = self.event.get()
        {
            // It can only fail when the counter is full, and then the thread is awake for certain.
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
        self.sleeping.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if !has_work() {
            let own = PollFd::new(event, PollFlags::IN);
            let others = others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut fds: Vec<PollFd<'_>> = std::iter::once(own).chain(others).collect();
            let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => tracing::warn!("an idle worker cannot wait for its queues: {error}"),
            }
        }
        self.sleeping.store(false, Ordering::SeqCst);
        let _ = read(event.as_fd(), &mut [0; 8]);
    }
}
