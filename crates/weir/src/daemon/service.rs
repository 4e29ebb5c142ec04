//! Threads that do one thing again and again, until the daemon ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofproto::Switch;
use packet::Time;

use super::Error;
use super::engine::Engine;

/// The longest wait of a thread that knows when it is next due, and so the longest that it takes to notice that a test has warped the
/// clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// The shortest time from one look of such a thread to the next, whatever wakes it: a look takes the tables' locks.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A thread. Dropping it ends it.
pub struct Service {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a thread that prepares itself, and then takes turns. A turn that waits does so in pieces, or parked: the thread is
    /// unparked when it is to end.
    pub fn start(
        name: &str,
        prepare: impl FnOnce() + Send + 'static,
        mut turn: impl FnMut() + Send + 'static,
    ) -> Result<Service, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            prepare();
            while !stopped.load(Ordering::Relaxed) {
                turn();
            }
        });
        Ok(Service { stop, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Starts a thread of the switch that runs what is due, which says when it is due again, and waits until then or until something
    /// happens before. It is told how long after that time it runs: the thread may have had no core, or may have waited for a lock.
    pub fn start_timed(
        name: &str,
        engine: &Engine,
        run: impl Fn(&Arc<Switch>, Duration) -> Option<Time> + Send + 'static,
        wait: impl Fn(&Switch, Duration) + Send + 'static,
    ) -> Result<Service, Error> {
        let (switch, clock) = (engine.switch.clone(), engine.clock.clone());
        let mut late = Duration::ZERO;
        let turn = move || {
            let (began, now) = (Instant::now(), clock.now());
            let next = run(&switch, late);
            let after = |now| next.map_or(LONGEST_WAIT, |next| next.since(now)).clamp(SHORTEST_WAIT, LONGEST_WAIT);
            wait(&switch, after(clock.now()));
            std::thread::sleep(SHORTEST_WAIT.saturating_sub(began.elapsed()));
            late = began.elapsed().saturating_sub(after(now));
        };
        Service::start(name, || (), turn)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}
