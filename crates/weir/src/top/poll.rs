//! Asks the daemon, again and again, on a thread of its own: the screen never waits for it.
//!
//! Where the daemon goes away, it is looked for until it is there again, also under another process id. Rankings may take longer than an interval: the
//! latest one is shown until there is another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::rankers::Rankers;
use super::screen::Wanted;
use super::source::{Connect, Error, ask, reports};
use crate::report::Show;
use crate::report::measurement::Measurement;
use crate::unixctl::client;

/// How long to wait before a daemon that does not answer is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// The shortest and the longest interval of a ranking: the daemon has the first, and the other one lets another be asked for soon.
const RANKED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The longest interval that the daemon takes.
const MINUTE: Duration = Duration::from_secs(60);

/// How long is waited for a ranking that should be there.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the thread tells.
#[derive(Debug)]
pub enum Update {
    /// A measurement, with what its rankings were asked for and what of them has no answer.
    Measurement(Box<Measurement>, Wanted, Option<String>),
    /// Which switch it is.
    About(String),
    /// No answer, and why. It goes on.
    Lost(String),
}

/// Asks until the other ends of the channels are gone.
pub fn run(connect: &Arc<Connect>, interval: Duration, wanted: &Receiver<Wanted>, updates: &Sender<Update>) {
    let mut asking = Wanted::default();
    loop {
        match follow(connect, interval, &mut asking, wanted, updates) {
            Ok(()) => return,
            Err(e) if updates.send(Update::Lost(e.to_string())).is_err() => return,
            Err(_) => {}
        }
        match wanted.recv_timeout(AGAIN) {
            Ok(next) => asking = next,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Asks one daemon for as long as it answers. Ends well where nobody wants to know any more.
fn follow(
    connect: &Arc<Connect>,
    interval: Duration,
    asking: &mut Wanted,
    wanted: &Receiver<Wanted>,
    updates: &Sender<Update>,
) -> Result<(), Error> {
    let mut client = connect()?;
    let show: Show = ask(&mut client, "weir/show", &[])?;
    if updates.send(Update::About(format!("weir {}, process {}", show.version, show.pid))).is_err() {
        return Ok(());
    }
    let (mut before, mut then) = reports(&mut client)?;
    let mut rankers = Rankers::new(connect);
    let ranked = interval.clamp(RANKED.0, RANKED.1);
    loop {
        rankers.ask(asking, ranked)?;
        let mut end = then + interval;
        loop {
            match wanted.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(next) => {
                    *asking = next;
                    rankers.take(Some(Duration::ZERO))?;
                    rankers.ask(asking, ranked)?;
                    // As soon as there can be an answer.
                    end = end.min(Instant::now() + ranked);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        rankers.take(Some(PATIENCE))?;
        let (mut now, at) = reports(&mut client)?;
        let problem = rankers.give(asking, &mut now);
        let measurement = Box::new(now.since(&before, at - then));
        if updates.send(Update::Measurement(measurement, asking.clone(), problem)).is_err() {
            return Ok(());
        }
        (before, then) = (now, at);
    }
}

/// One measurement, over an interval.
pub fn once(connect: &Arc<Connect>, interval: Duration, wanted: &Wanted) -> Result<Measurement, Error> {
    let mut client = connect()?;
    let mut rankers = Rankers::new(connect);
    rankers.ask(wanted, interval.min(MINUTE))?;
    let (before, then) = reports(&mut client)?;
    std::thread::sleep(interval);
    let (mut now, at) = reports(&mut client)?;
    rankers.take(None)?;
    match rankers.give(wanted, &mut now) {
        Some(problem) => Err(Error::Client(client::Error::Command(problem))),
        None => Ok(now.since(&before, at - then)),
    }
}
