//! `weir doctor`: the machine, and the switch on it where one runs.

use std::time::Duration;

use super::{Error, RunningDaemon, print_on, top};
use crate::doctor::switch::{self, Switch};
use crate::doctor::{self, Finding, Machine, Severity};
use crate::printable::{printable, printable_json};
use crate::top::source::{self, Connect};
use crate::unixctl::client;

/// Prints what is found. Fails where something does not work.
pub fn run(daemon: RunningDaemon, interval: Duration) -> Result<(), Error> {
    let json = daemon.json;
    let mut findings = doctor::examine(&Machine::at("/"));
    findings.extend(of_switch(&*top::connect(daemon.rundir, daemon.socket), interval));
    let findings = doctor::sorted(findings);
    let text = if json {
        printable_json(&serde_json::to_string_pretty(&findings)?)
    } else {
        // Names and errors come from elsewhere.
        doctor::text(&findings).lines().map(|line| printable(line) + "\n").collect()
    };
    print_on(&text)?;
    if findings.iter().any(|finding| finding.level == Severity::Problem) { Err(Error::Unready) } else { Ok(()) }
}

fn of_switch(connect: &Connect, interval: Duration) -> Vec<Finding> {
    match source::reports_twice(connect, interval) {
        Ok((show, [before, now], time)) => switch::examine(&Switch::new(show, before, now, time)),
        Err(e @ (source::Error::NotFound(_) | source::Error::Client(client::Error::Connect { .. }))) => {
            vec![doctor::no_switch(&e.to_string())]
        }
        // As Open vSwitch's own daemon does.
        Err(source::Error::Client(client::Error::Command(words))) => {
            vec![doctor::no_switch(&format!("the daemon is not Weir, or another version: {words}"))]
        }
        Err(e) => vec![doctor::silent_switch(&e.to_string())],
    }
}
