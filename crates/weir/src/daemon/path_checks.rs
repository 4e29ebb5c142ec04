//! The thread of the path checks: it runs the sessions of BFD and CFM and sends their frames.
//!
//! It waits for nothing but its time: for no worker, no controller, no configuration. What follows from a path that has come up or gone
//! down is left to the thread of the bonds.

use std::sync::Arc;
use std::time::Duration;

use ofproto::Switch;

use super::Error;
use super::engine::Engine;
use super::service::Service;

/// Starts the thread.
pub fn start(engine: &Engine) -> Result<Service, Error> {
    let run = |switch: &Arc<Switch>, late| switch.run_due_path_checks(late);
    Service::start_timed("path-checks", engine, run, Switch::wait_for_path_checks)
}

/// Does all that is due, for tests that warp the clock.
pub fn run(switch: &Arc<Switch>) {
    switch.run_due_path_checks(Duration::ZERO);
    switch.apply_path_checks();
}
