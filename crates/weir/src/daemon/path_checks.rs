//! The thread of the path checks: it runs the sessions of BFD and CFM and sends their frames.
//!
//! It waits for nothing but its time: for no worker, no controller, no configuration. What follows from a path that has come up or gone
//! down is left to the thread of the bonds.

use std::sync::Arc;

use ofproto::Switch;

use super::Error;
use super::engine::Engine;
use super::service::Service;

/// Starts the thread.
pub fn start(engine: &Engine) -> Result<Service, Error> {
    Service::start_timed("path-checks", engine, |switch| switch.run_due_path_checks(), Switch::wait_for_path_checks)
}

/// Does all that is due, for tests that warp the clock.
pub fn run(switch: &Arc<Switch>) {
    switch.run_due_path_checks();
    switch.apply_path_checks();
}
