//! The thread that follows the kernel's routes and neighbours, for tunnels.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use netstate::kernel::{Follower, Scope};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use super::Error;
use super::engine::Engine;

/// The shortest time between two rounds: what the kernel tells within it is one change.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(20);

/// After a round the thread rests for so many times as long as that took of a core, so that it takes no more than a fifth of one, whatever
/// the kernel tells; but not for longer than [`LONGEST_REST`].
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(2);

/// The thread. Dropping it ends it.
pub struct NetWatch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl NetWatch {
    /// Starts the thread.
    pub fn start(engine: &Engine, scope: Scope) -> Result<NetWatch, Error> {
        let (stop, stopped) = UnixStream::pair().map_err(Error::Thread)?;
        let engine = engine.clone();
        let thread = std::thread::Builder::new().name("netstate".into()).spawn(move || match Follower::open(scope) {
            Ok(follower) => follow(follower, &engine, &stopped),
            Err(error) => tracing::warn!("routes and neighbours of the kernel are not known: {error}"),
        });
        Ok(NetWatch { stop: Some(stop), thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for NetWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

fn follow(mut follower: Follower, engine: &Engine, stopped: &UnixStream) {
    let Engine { switch, clock, env, .. } = engine;
    // The addresses of dummy ports are what commands say.
    let is_dummy = |name: &str| env.dummies.find(name).is_some();
    let mut problem = None;
    loop {
        let began = time_on_core();
        let round = follower.round(switch.netstate(), clock.now(), is_dummy);
        if round.has_changed {
            switch.netstate_changed();
        }
        // Said once, until it has gone well again.
        let failed = round.outcome.as_ref().err().map(io::Error::kind);
        if let Err(error) = &round.outcome
            && failed != problem
        {
            tracing::warn!("cannot ask for routes and neighbours of the kernel: {error}");
        }
        problem = failed;
        let rest = (time_on_core().saturating_sub(began) * REST).clamp(BETWEEN_ROUNDS, LONGEST_REST);
        if has_ended(stopped.as_fd(), None, Some(rest))
            || has_ended(stopped.as_fd(), Some(&follower), follower.patience())
        {
            return;
        }
    }
}

/// How long this thread has run.
fn time_on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Waits until the thread is to end, the kernel has told something, or the time is over. Whether the thread is to end.
fn has_ended(end: BorrowedFd<'_>, follower: Option<&Follower>, at_most: Option<Duration>) -> bool {
    let mut fds = vec![PollFd::from_borrowed_fd(end, PollFlags::IN)];
    fds.extend(follower.into_iter().flat_map(Follower::sockets).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let at_most = at_most.map(|time| time.try_into().unwrap_or_default());
    // An interrupted wait is one that is over.
    let _ = poll(&mut fds, at_most.as_ref());
    !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_time_and_with_the_thread() {
        let (stop, stopped) = UnixStream::pair().unwrap();
        assert!(!has_ended(stopped.as_fd(), None, Some(Duration::ZERO)));
        let follower = Follower::open(Scope::All).unwrap();
        assert!(!has_ended(stopped.as_fd(), Some(&follower), Some(Duration::ZERO)));
        drop(stop);
        assert!(has_ended(stopped.as_fd(), Some(&follower), None));
    }
}
