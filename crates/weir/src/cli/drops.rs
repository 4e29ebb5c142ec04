//! `weir drops`: asks once, or again and again.

use std::time::{Duration, Instant};

use super::args::DropKey;
use super::{Error, RunningDaemon, print, print_on, shown};
use crate::report::drops::{By, Drops, text};

/// What `--by` names.
pub fn by(keys: &[DropKey]) -> By {
    let has = |key| keys.contains(&key);
    By { reason: has(DropKey::Reason), port: has(DropKey::Port), rule: has(DropKey::Rule) }
}

/// Shows what was dropped since the start, or at every interval what was dropped in it.
pub fn show(daemon: &RunningDaemon, port: Option<&str>, by: By, watch: Option<Duration>) -> Result<(), Error> {
    let ask = || -> Result<Drops, Error> {
        let all: Drops = serde_json::from_str(&daemon.call("weir/drops", &[])?)?;
        Ok(all.grouped(port, by))
    };
    let Some(interval) = watch else {
        let drops = ask()?;
        return print(&if daemon.json { serde_json::to_string_pretty(&drops)? } else { text(&drops, by, None) });
    };
    let (mut before, mut at) = (ask()?, Instant::now());
    loop {
        std::thread::sleep(interval);
        let (now, then) = (ask()?, std::mem::replace(&mut at, Instant::now()));
        let drops = now.since(&before);
        let text = if daemon.json { serde_json::to_string(&drops)? } else { text(&drops, by, Some(at - then)) };
        if !print_on(&shown(&text))? {
            return Ok(());
        }
        before = now;
    }
}
