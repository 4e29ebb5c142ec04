//! The daemon, as it is asked: its reports at one time.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::report::Show;
use crate::report::measurement::Reports;
use crate::unixctl::{Client, client};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon cannot be reached, or refuses.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// It could not be found.
    #[error("{0}")]
    NotFound(String),
    /// It is another version.
    #[error("the daemon's answer is not what this version of weir expects: {0}")]
    Answer(#[from] serde_json::Error),
    /// It cannot be asked for a ranking.
    #[error("no thread asks for rankings: {0}")]
    Thread(std::io::Error),
}

/// Connects to the daemon, wherever it is now.
pub type Connect = dyn Fn() -> Result<Client, Error> + Send + Sync;

/// Runs a command that answers with JSON.
pub fn ask<T: DeserializeOwned>(client: &mut Client, command: &str, words: &[String]) -> Result<T, Error> {
    Ok(serde_json::from_str(&client.call(command, words)?)?)
}

/// Asks for everything but rankings. The time is that of the counters.
pub fn reports(client: &mut Client) -> Result<(Reports, Instant), Error> {
    let stats = ask(client, "weir/stats", &[])?;
    let at = Instant::now();
    let reports = Reports {
        stats,
        ports: ask(client, "weir/ports", &[])?,
        queues: ask(client, "weir/queues", &[])?,
        upcalls: ask(client, "weir/upcalls", &[])?,
        connections: ask(client, "weir/connections", &[])?,
        ..Reports::default()
    };
    Ok((reports, at))
}

/// What a switch is, and what it says at two times: for who compares more than rates.
pub fn reports_twice(connect: &Connect, interval: Duration) -> Result<(Show, [Reports; 2], Duration), Error> {
    let mut client = connect()?;
    let (before, then) = reports(&mut client)?;
    std::thread::sleep(interval);
    let (now, at) = reports(&mut client)?;
    Ok((ask(&mut client, "weir/show", &[])?, [before, now], at - then))
}
