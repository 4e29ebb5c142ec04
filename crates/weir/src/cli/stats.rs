//! `weir stats --interval`: asks again and again, and shows what happened in between.

use std::time::{Duration, Instant};

use super::{Error, RunningDaemon, print_on};
use crate::report::{Stats, rates};

/// Lines between two lines of headings: a screen of 24 lines shows one.
const LINES: u64 = 22;

/// Shows an interval in each line, `count` of them or until nobody reads. An interval lasts as long as it lasted: where an answer came late,
/// its rates are of the longer time.
pub fn watch(daemon: &RunningDaemon, interval: Duration, count: Option<u64>) -> Result<(), Error> {
    let ask = || -> Result<(Stats, Instant), Error> {
        let answer = daemon.call("weir/stats", &[])?;
        Ok((serde_json::from_str(&answer)?, Instant::now()))
    };
    let (mut before, mut then) = ask()?;
    for number in 0..count.unwrap_or(u64::MAX) {
        std::thread::sleep(interval);
        let (now, at) = ask()?;
        let shown = now.rates(&before, at - then);
        (before, then) = (now, at);
        let headings = if number % LINES == 0 { rates::headings() } else { String::new() };
        let text = if daemon.json { serde_json::to_string(&shown)? } else { headings + &rates::line(&shown) };
        if !print_on(&text)? {
            break;
        }
    }
    Ok(())
}
