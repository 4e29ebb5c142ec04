//! The thread of the path checks: it runs the sessions of BFD and CFM and sends their frames.
//!
//! It waits for nothing but its time: for no worker, no controller, no configuration. What follows from a path that has come up or gone
//! down is left to the thread of the bonds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofproto::Switch;

use super::Error;
use super::engine::Engine;

/// The longest wait, and so the longest that it takes to notice that a test has warped the clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// The shortest time from one look to the next.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The thread. Dropping it ends it.
pub struct PathCheckThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PathCheckThread {
    /// Starts the thread.
    pub fn start(engine: &Engine) -> Result<PathCheckThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (switch, clock, stopped) = (engine.switch.clone(), engine.clock.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("path-checks".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let next = switch.run_due_path_checks();
                let wait = next.map_or(LONGEST_WAIT, |next| next.since(clock.now()));
                switch.wait_for_path_checks(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT));
                // Whatever peers send, sessions are looked at so often and no more.
                std::thread::sleep(SHORTEST_WAIT.saturating_sub(began.elapsed()));
            }
        });
        Ok(PathCheckThread { stop, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for PathCheckThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// Does all that is due, for tests that warp the clock.
pub fn run(switch: &Arc<Switch>) {
    switch.run_due_path_checks();
    switch.apply_path_checks();
}
