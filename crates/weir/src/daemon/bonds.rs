//! The thread of the bonds: delays of members, LACP, rebalancing, and what neighbours are told after a failover.
//!
//! It tells the tables which paths BFD and CFM find up, too, since members of bonds depend on that.
//!
//! A carrier that changes is acted upon by whoever sees it ([`super::links`]); what comes later, and the frames of LACP, are this thread's. It
//! waits for nothing but its time: no worker, no controller, no configuration.

use std::sync::Arc;

use ofproto::Switch;
use packet::Time;

use super::Error;
use super::engine::Engine;
use super::service::Service;

/// Starts the thread.
pub fn start(engine: &Engine) -> Result<Service, Error> {
    let clock = engine.clock.clone();
    let run = move |switch: &Arc<Switch>, _| -> Option<Time> {
        switch.apply_path_checks();
        let next = switch.run_due_bonds();
        switch.tell_lacp_changes();
        let is_more = switch.send_announcements();
        if is_more { Some(clock.now()) } else { next }
    };
    Service::start_timed("bonds", engine, run, Switch::wait_for_bonds)
}

/// Does all that is due, for tests that warp the clock.
pub fn run(switch: &Arc<Switch>) {
    switch.run_due_bonds();
    switch.tell_lacp_changes();
    while switch.send_announcements() {}
}
