//! The thread that verifies what the datapath's caches did with some packets.
//!
//! It gives way to the threads that forward, but not without end: it holds the lock of the tables while it looks at rules, and whoever changes them
//! waits for it then. So it is nice, and neither SCHED_IDLE nor as nice as can be: on a busy processor it still gets a tenth of the time.

use std::time::Duration;

use super::Error;
use super::engine::Engine;
use super::service::Service;

/// How often it looks for samples.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(100);

/// Most new samples that are checked in a round: a thousand in a second. More wait in the workers' rings, and are lost when these are full.
const MOST_CHECKS: usize = 100;

/// The niceness: see nice(2).
const NICENESS: i32 = 10;

/// Starts the thread.
pub fn start(engine: &Engine) -> Result<Service, Error> {
    let switch = engine.switch.clone();
    let prepare = || {
        // On Linux, this is of the thread that calls.
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::debug!("the verifier keeps its priority: {error}");
        }
    };
    let turn = move || {
        switch.verify(MOST_CHECKS);
        std::thread::park_timeout(BETWEEN_ROUNDS);
    };
    Service::start("verifier", prepare, turn)
}
