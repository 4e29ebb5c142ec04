//! Asks the daemon, again and again, on threads of their own: the screen never waits for it.
//!
//! Where the daemon goes away, it is looked for until it is there again, also under another process id. Rankings take as long as an interval in the
//! daemon, so each has a connection of its own.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::screen::Wanted;
use crate::report::Show;
use crate::report::ranking::Ranking;
use crate::report::sample::{Look, Sample};
use crate::unixctl::Client;
use crate::unixctl::client;

/// How long to wait before a daemon that does not answer is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest that a ranking measures, so that another one can be asked for soon.
const LONGEST: Duration = Duration::from_secs(5);

/// The shortest, as the daemon has it.
const SHORTEST: Duration = Duration::from_millis(100);

/// Why there is no sample.
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
}

/// What the thread tells.
#[derive(Debug)]
pub enum Update {
    /// A sample, with what its rankings were asked for and what of them has no answer.
    Sample(Box<Sample>, Wanted, Option<String>),
    /// Which switch it is.
    About(String),
    /// No answer, and why. It goes on.
    Lost(String),
}

/// Connects to the daemon, wherever it is now.
pub type Connect = dyn Fn() -> Result<Client, Error> + Send + Sync;

/// Asks until the other ends of the channels are gone.
pub fn run(connect: &Connect, interval: Duration, wanted: &Receiver<Wanted>, updates: &Sender<Update>) {
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
    connect: &Connect,
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
    let (mut before, mut then) = look(&mut client)?;
    let mut rankers = Rankers::default();
    let mut start = Instant::now();
    loop {
        let measured = asking.clone();
        let time = interval.clamp(SHORTEST, LONGEST);
        let (waited, ranked) = std::thread::scope(|scope| {
            let ranked = rankers.ask(scope, connect, &measured, time);
            (wanted.recv_timeout((start + interval).saturating_duration_since(Instant::now())), ranked())
        });
        match waited {
            Ok(next) => *asking = wanted.try_iter().last().unwrap_or(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        start = Instant::now();
        let (mut now, at) = look(&mut client)?;
        let problem = ranked?.give(&mut now);
        let sample = Box::new(now.since(&before, at - then));
        if updates.send(Update::Sample(sample, measured, problem)).is_err() {
            return Ok(());
        }
        (before, then) = (now, at);
    }
}

/// One sample, over an interval.
pub fn once(connect: &Connect, interval: Duration, wanted: &Wanted) -> Result<Sample, Error> {
    let mut client = connect()?;
    let (before, then) = look(&mut client)?;
    let mut rankers = Rankers::default();
    let ranked = std::thread::scope(|scope| {
        let ranked = rankers.ask(scope, connect, wanted, interval.min(Duration::from_secs(60)));
        std::thread::sleep(interval);
        ranked()
    })?;
    let (mut now, at) = look(&mut client)?;
    match ranked.give(&mut now) {
        Some(problem) => Err(Error::Client(client::Error::Command(problem))),
        None => Ok(now.since(&before, at - then)),
    }
}

/// What a switch is, and what it says at two times: for who compares more than rates.
pub fn two_looks(connect: &Connect, interval: Duration) -> Result<(Show, [Look; 2], Duration), Error> {
    let mut client = connect()?;
    let (before, then) = look(&mut client)?;
    std::thread::sleep(interval);
    let (now, at) = look(&mut client)?;
    Ok((ask(&mut client, "weir/show", &[])?, [before, now], at - then))
}

fn ask<T: DeserializeOwned>(client: &mut Client, command: &str, words: &[String]) -> Result<T, Error> {
    Ok(serde_json::from_str(&client.call(command, words)?)?)
}

/// Asks for everything but rankings. The time is that of the counters.
fn look(client: &mut Client) -> Result<(Look, Instant), Error> {
    let stats = ask(client, "weir/stats", &[])?;
    let at = Instant::now();
    let look = Look {
        stats,
        ports: ask(client, "weir/ports", &[])?,
        queues: ask(client, "weir/queues", &[])?,
        upcalls: ask(client, "weir/upcalls", &[])?,
        connections: ask(client, "weir/connections", &[])?,
        ..Look::default()
    };
    Ok((look, at))
}

/// A ranking that was asked for; an error in words where there is none.
type Answer<R> = Option<Result<Ranking<R>, String>>;

/// The rankings of a sample.
#[derive(Default)]
struct Ranked {
    flows: Answer<crate::report::ranking::TopFlow>,
    rules: Answer<crate::report::ranking::TopRule>,
    drops: Answer<crate::report::ranking::TopDrop>,
}

impl Ranked {
    /// Adds them to a look. Returns what is wrong with one of them.
    fn give(self, look: &mut Look) -> Option<String> {
        let mut problem = None;
        fn take<R>(answer: Answer<R>, problem: &mut Option<String>) -> Option<Ranking<R>> {
            match answer? {
                Ok(ranking) => Some(ranking),
                Err(words) => {
                    *problem = Some(words);
                    None
                }
            }
        }
        look.flows = take(self.flows, &mut problem);
        look.rules = take(self.rules, &mut problem);
        look.drops = take(self.drops, &mut problem);
        problem
    }
}

/// The connections for rankings, as far as they were needed.
#[derive(Default)]
struct Rankers {
    flows: Option<Client>,
    rules: Option<Client>,
    drops: Option<Client>,
}

impl Rankers {
    /// Begins to ask for what is wanted; the function waits for the answers.
    fn ask<'scope, 'env: 'scope>(
        &'scope mut self,
        scope: &'scope std::thread::Scope<'scope, 'env>,
        connect: &'scope Connect,
        wanted: &Wanted,
        interval: Duration,
    ) -> impl FnOnce() -> Result<Ranked, Error> + 'scope {
        let flows = begin(scope, connect, &mut self.flows, &wanted.flows, interval);
        let rules = begin(scope, connect, &mut self.rules, &wanted.rules, interval);
        let drops = begin(scope, connect, &mut self.drops, &wanted.drops, interval);
        move || Ok(Ranked { flows: flows()?, rules: rules()?, drops: drops()? })
    }
}

fn begin<'scope, 'env: 'scope, R: DeserializeOwned + Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    connect: &'scope Connect,
    client: &'scope mut Option<Client>,
    words: &Option<Vec<String>>,
    interval: Duration,
) -> impl FnOnce() -> Result<Answer<R>, Error> + 'scope {
    let asked = words.clone().map(|mut words| {
        words.push(format!("interval={}", interval.as_secs_f64()));
        scope.spawn(move || rank(connect, client, &words))
    });
    move || match asked {
        None => Ok(None),
        Some(thread) => match thread.join() {
            Ok(answer) => answer.map(Some),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

fn rank<R: DeserializeOwned>(
    connect: &Connect,
    client: &mut Option<Client>,
    words: &[String],
) -> Result<Result<Ranking<R>, String>, Error> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect()?),
    };
    match ask(client, "weir/top", words) {
        // A rule or a port may have gone. The other reports are still there.
        Err(Error::Client(client::Error::Command(words))) => Ok(Err(words)),
        answer => answer.map(Ok),
    }
}
