//! `weir top`: a screen, or one measurement.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Error, RunningDaemon, control_socket, print_on};
use crate::printable::printable_json;
use crate::rundir::Rundir;
use crate::top::poll;
use crate::top::screen::Wanted;
use crate::top::source::{Connect, Error as SourceError};
use crate::top::{terminal, views};
use crate::unixctl::Client;

/// Shows the switch; with `rows`, prints one measurement with rankings of so many rows.
pub fn show(daemon: RunningDaemon, interval: Duration, rows: Option<usize>) -> Result<(), Error> {
    let json = daemon.json;
    let connect = connect(daemon.rundir, daemon.socket);
    if let Some(rows) = rows {
        let measurement = poll::once(&connect, interval, &Wanted::all(rows))?;
        let text = if json {
            printable_json(&serde_json::to_string_pretty(&measurement)?)
        } else {
            views::all_text(&measurement)
        };
        return print_on(&text).map(drop);
    }
    if json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    // Before the screen is cleared: a daemon that was never there is an error.
    drop(connect()?);
    Ok(terminal::run(connect, interval)?)
}

/// Finds the daemon anew each time: after a restart it has another socket.
pub fn connect(rundir: Rundir, socket: Option<PathBuf>) -> Arc<Connect> {
    Arc::new(move || {
        let path = control_socket(&rundir, socket.as_deref()).map_err(|e| SourceError::NotFound(e.to_string()))?;
        Ok(Client::connect(&path)?)
    })
}
