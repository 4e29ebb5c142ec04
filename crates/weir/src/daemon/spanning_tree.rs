//! The thread of the spanning trees: it runs STP and RSTP, sends their frames, and has ports begin and end to forward.
//!
//! It waits for its time, shortly for the tables, and where a port has ended forwarding a bounded time for the datapath's flows: for no
//! worker, no controller, no configuration.

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
pub struct SpanningTreeThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SpanningTreeThread {
    /// Starts the thread.
    pub fn start(engine: &Engine) -> Result<SpanningTreeThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (switch, clock, stopped) = (engine.switch.clone(), engine.clock.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("spanning-tree".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let next = switch.run_due_spanning_trees();
                let wait = next.map_or(LONGEST_WAIT, |next| next.since(clock.now()));
                switch.wait_for_spanning_trees(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT));
                // Whatever peers send, trees are run so often and no more: that takes the tables' lock.
                std::thread::sleep(SHORTEST_WAIT.saturating_sub(began.elapsed()));
            }
        });
        Ok(SpanningTreeThread { stop, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for SpanningTreeThread {
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
    switch.run_due_spanning_trees();
}
