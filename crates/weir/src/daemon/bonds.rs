//! The thread of the bonds: delays of members, LACP, rebalancing, and what neighbours are told after a failover.
//!
//! It tells the tables which paths BFD and CFM find up, too, since members of bonds depend on that.
//!
//! A carrier that changes is acted upon by whoever sees it ([`super::links`]); what comes later, and the frames of LACP, are this thread's. It
//! waits for nothing but its time: no worker, no controller, no configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofproto::Switch;

use super::Error;
use super::engine::Engine;

/// The longest wait, and so the longest that it takes to notice that a test has warped the clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// The shortest time from one look to the next, also between bursts of announcements.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The thread. Dropping it ends it.
pub struct BondThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BondThread {
    /// Starts the thread.
    pub fn start(engine: &Engine) -> Result<BondThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (switch, clock, stopped) = (engine.switch.clone(), engine.clock.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("bonds".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                switch.apply_path_checks();
                let next = switch.run_due_bonds();
                switch.tell_lacp_changes();
                let more = switch.send_announcements();
                let wait = next.map_or(LONGEST_WAIT, |next| next.since(clock.now()));
                let longest = if more { SHORTEST_WAIT } else { LONGEST_WAIT };
                switch.wait_for_bonds(wait.clamp(SHORTEST_WAIT, longest));
                // Whatever a peer sends, bonds are looked at so often and no more: that takes the tables' lock.
                std::thread::sleep(SHORTEST_WAIT.saturating_sub(began.elapsed()));
            }
        });
        Ok(BondThread { stop, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for BondThread {
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
    switch.run_due_bonds();
    switch.tell_lacp_changes();
    while switch.send_announcements() {}
}
