//! Asks for rankings. The daemon takes an interval or longer to answer, so each of flows, rules and drops has a thread and a connection of its own,
//! from the first question on. One question at a time is under way for each.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::screen::Wanted;
use super::source::{Connect, Error, ask};
use crate::report::measurement::Reports;
use crate::report::ranking::{Ranking, TopDrop, TopFlow, TopRule};
use crate::unixctl::{Client, client};

/// The words of a question, without the interval.
type Words = Vec<String>;

/// A ranking; words of the daemon where it has none: a rule or a port may have gone.
type Answer<R> = Result<Ranking<R>, String>;

/// The thread for one subject.
struct Ranker<R> {
    questions: Sender<(Words, Duration)>,
    answers: Receiver<(Words, Result<Answer<R>, Error>)>,
    is_asking: bool,
    latest: Option<(Words, Answer<R>)>,
}

impl<R: DeserializeOwned + Clone + Send + 'static> Ranker<R> {
    fn start(connect: Arc<Connect>) -> io::Result<Ranker<R>> {
        let (questions, asked) = channel::<(Words, Duration)>();
        let (answered, answers) = channel();
        let work = move || {
            let mut client = None;
            while let Ok((words, interval)) = asked.recv() {
                let answer = rank(&*connect, &mut client, &words, interval);
                if answered.send((words, answer)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("ranking".into()).spawn(work)?;
        Ok(Ranker { questions, answers, is_asking: false, latest: None })
    }

    /// Takes an answer that has come, or comes within a time; without a time, waits as long as it takes.
    fn take(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        if !self.is_asking {
            return Ok(());
        }
        let answer = match patience {
            Some(time) => self.answers.recv_timeout(time),
            None => self.answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok((words, answer)) => {
                self.is_asking = false;
                self.latest = Some((words, answer?));
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Thread(io::Error::other("it has ended"))),
        }
    }
}

fn rank<R: DeserializeOwned>(
    connect: &Connect,
    client: &mut Option<Client>,
    words: &[String],
    interval: Duration,
) -> Result<Answer<R>, Error> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect()?),
    };
    let mut arguments = words.to_vec();
    arguments.push(format!("interval={}", interval.as_secs_f64()));
    match ask(client, "weir/top", &arguments) {
        Err(Error::Client(client::Error::Command(words))) => Ok(Err(words)),
        answer => answer.map(Ok),
    }
}

/// The threads for all subjects, as far as they were needed.
pub struct Rankers {
    connect: Arc<Connect>,
    flows: Option<Ranker<TopFlow>>,
    rules: Option<Ranker<TopRule>>,
    drops: Option<Ranker<TopDrop>>,
}

impl Rankers {
    /// None yet.
    pub fn new(connect: &Arc<Connect>) -> Rankers {
        Rankers { connect: connect.clone(), flows: None, rules: None, drops: None }
    }

    /// Asks for what is wanted, where nothing is being asked.
    pub fn ask(&mut self, wanted: &Wanted, interval: Duration) -> Result<(), Error> {
        begin(&self.connect, &mut self.flows, &wanted.flows, interval)?;
        begin(&self.connect, &mut self.rules, &wanted.rules, interval)?;
        begin(&self.connect, &mut self.drops, &wanted.drops, interval)
    }

    /// Takes the answers that have come, or come within a time each.
    pub fn take(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        self.flows.as_mut().map_or(Ok(()), |ranker| ranker.take(patience))?;
        self.rules.as_mut().map_or(Ok(()), |ranker| ranker.take(patience))?;
        self.drops.as_mut().map_or(Ok(()), |ranker| ranker.take(patience))
    }

    /// Adds the latest answers to what is wanted. Returns what is wrong with one of them.
    pub fn give(&self, wanted: &Wanted, reports: &mut Reports) -> Option<String> {
        let mut problem = None;
        reports.flows = latest(&self.flows, &wanted.flows, &mut problem);
        reports.rules = latest(&self.rules, &wanted.rules, &mut problem);
        reports.drops = latest(&self.drops, &wanted.drops, &mut problem);
        problem
    }
}

fn begin<R: DeserializeOwned + Clone + Send + 'static>(
    connect: &Arc<Connect>,
    ranker: &mut Option<Ranker<R>>,
    wanted: &Option<Words>,
    interval: Duration,
) -> Result<(), Error> {
    let Some(words) = wanted else {
        // Later, it would be old.
        ranker.iter_mut().for_each(|ranker| ranker.latest = None);
        return Ok(());
    };
    let ranker = match ranker {
        Some(ranker) => ranker,
        None => ranker.insert(Ranker::start(connect.clone()).map_err(Error::Thread)?),
    };
    if !ranker.is_asking {
        // A thread that has ended is noticed when its answer is taken.
        let _ = ranker.questions.send((words.clone(), interval));
        ranker.is_asking = true;
    }
    Ok(())
}

fn latest<R: Clone>(
    ranker: &Option<Ranker<R>>,
    wanted: &Option<Words>,
    problem: &mut Option<String>,
) -> Option<Ranking<R>> {
    let (words, answer) = ranker.as_ref()?.latest.as_ref()?;
    if Some(words) != wanted.as_ref() {
        return None;
    }
    answer.as_ref().map_err(|words| *problem = Some(words.clone())).ok().cloned()
}
