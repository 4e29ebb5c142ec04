//! The thread of the spanning trees: it runs STP and RSTP, sends their frames, and has ports begin and end to forward.
//!
//! It waits for its time, shortly for the tables, and where a port has ended forwarding a bounded time for the datapath's flows: for no
//! worker, no controller, no configuration.

use std::sync::Arc;

use ofproto::Switch;

use super::Error;
use super::engine::Engine;
use super::service::Service;

/// Starts the thread.
pub fn start(engine: &Engine) -> Result<Service, Error> {
    let run = |switch: &Arc<Switch>, _| switch.run_due_spanning_trees();
    Service::start_timed("spanning-tree", engine, run, Switch::wait_for_spanning_trees)
}

/// Does all that is due, for tests that warp the clock.
pub fn run(switch: &Arc<Switch>) {
    switch.run_due_spanning_trees();
}
