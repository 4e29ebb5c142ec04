//! Which flows, rules and drops have the most traffic: for `weir top`.
//!
//! There may be millions of them, so this is not done on the management thread. A thread of its own walks over all that a question is about, twice:
//! the second walk finds how much each counter has risen since the first one, keeps the first N, and only these are described. Whoever asks again
//! within [`KEPT`] is answered by one more walk. Questions of several clients about one subject are answered by one walk.
//!
//! - The thread begins with the first question; what it has counted is kept for [`KEPT`] after the last one, and it ends as much later: nothing is
//!   done and nothing is kept while nobody asks.
//! - It takes a tenth of a core at most: after a walk it rests for nine times the time of the processor that the walk took. With very many flows,
//!   intervals get longer.
//! - It keeps 50 to 100 bytes for each flow or rule meanwhile.
//!
//! Modules: `question` (what is asked), `pairs` (flows added up by ports), `walk` (over everything), `top` (the first N of many).

mod pairs;
mod question;
mod top;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

pub use question::Question;
use question::Subject;
use walk::{Baselines, MAX_QUESTIONS};

use super::engine::Engine;
use crate::unixctl::command::{Outcome, Reply};

/// How long what was counted is kept after it was asked for.
const KEPT: Duration = Duration::from_secs(10);

/// How many times as long as the work of a walk the time to the next one is, at least.
const REST: u32 = 10;

/// Niceness of the thread: forwarding and everything else comes first.
const NICE: i32 = 10;

/// A question, and whom to tell.
type Asked = (Question, oneshot::Sender<Outcome>);

/// The thread, while there is one.
type Running = Arc<Mutex<Option<(Sender<Asked>, JoinHandle<()>)>>>;

/// Answers questions.
pub struct Rankings {
    engine: Engine,
    running: Running,
    stop: Arc<AtomicBool>,
}

impl Rankings {
    /// No thread yet.
    pub fn new(engine: &Engine) -> Rankings {
        Rankings { engine: engine.clone(), running: Arc::default(), stop: Arc::default() }
    }

    /// Answers a question when there is an answer.
    pub fn ask(&self, question: Question) -> Reply {
        let (reply, answer) = oneshot::channel();
        let mut running = self.running.lock();
        let asked = match &*running {
            Some((sender, _)) => sender.send((question, reply)).map_err(|failed| failed.0),
            None => Err((question, reply)),
        };
        if let Err(asked) = asked {
            let (sender, questions) = channel();
            // The receiver is there.
            let _ = sender.send(asked);
            let ranker = Ranker {
                engine: self.engine.clone(),
                questions,
                running: self.running.clone(),
                stop: self.stop.clone(),
                waiting: Vec::new(),
                baselines: Baselines::default(),
                last: HashMap::new(),
            };
            match std::thread::Builder::new().name("top".into()).spawn(move || ranker.run()) {
                Ok(thread) => *running = Some((sender, thread)),
                Err(e) => return Reply::Now(Err(format!("cannot start a thread that counts: {e}"))),
            }
        }
        Reply::Later(answer)
    }
}

impl Drop for Rankings {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let running = self.running.lock().take();
        if let Some((sender, thread)) = running {
            drop(sender);
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// A walk that was made.
struct Walked {
    at: Instant,
    /// How long a processor worked on it.
    took: Duration,
}

/// A question that waits for the end of its interval.
struct Waiting {
    question: Question,
    reply: oneshot::Sender<Outcome>,
    due: Instant,
}

/// The thread's own.
struct Ranker {
    engine: Engine,
    questions: Receiver<Asked>,
    running: Running,
    stop: Arc<AtomicBool>,
    waiting: Vec<Waiting>,
    baselines: Baselines,
    /// The last walk over each subject that is kept.
    last: HashMap<Subject, Walked>,
}

impl Ranker {
    fn run(mut self) {
        if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
            tracing::debug!("top: cannot give way to others: {e}");
        }
        while !self.stop.load(Ordering::Relaxed) {
            self.forget();
            match self.questions.recv_timeout(self.time_to_next()) {
                Ok(asked) => self.take(asked),
                Err(RecvTimeoutError::Timeout) if self.is_idle() && self.has_ended() => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for subject in Subject::ALL {
                let now = Instant::now();
                if self.waiting.iter().any(|waiting| waiting.question.subject == subject && waiting.due <= now) {
                    self.answer(subject);
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.last.is_empty()
    }

    fn time_to_next(&self) -> Duration {
        let next = self.waiting.iter().map(|waiting| waiting.due).min();
        next.map_or(KEPT, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Whether no question has come until the thread was no longer known.
    fn has_ended(&mut self) -> bool {
        let known = self.running.clone();
        let mut running = known.lock();
        match self.questions.try_recv() {
            Ok(asked) => {
                drop(running);
                self.take(asked);
                false
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                *running = None;
                true
            }
        }
    }

    /// Forgets what nobody has asked for lately.
    fn forget(&mut self) {
        let is_kept = |subject: &Subject, walked: &Walked| {
            walked.at.elapsed() < KEPT.max(REST * walked.took)
                || self.waiting.iter().any(|waiting| waiting.question.subject == *subject)
        };
        let gone: Vec<_> = self.last.iter().filter(|(s, walked)| !is_kept(s, walked)).map(|(s, _)| *s).collect();
        for subject in gone {
            self.last.remove(&subject);
            match subject {
                Subject::Flows => self.baselines.flows = Default::default(),
                Subject::Rules => self.baselines.rules = Default::default(),
                Subject::Drops => self.baselines.drops = Default::default(),
            }
        }
    }

    /// Has a question wait until its interval is over; one that is the first about its subject has it begin.
    fn take(&mut self, (question, reply): Asked) {
        // Those whose client has gone are not in the way.
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        if self.waiting.len() >= MAX_QUESTIONS {
            // The client may have gone.
            let _ = reply.send(Err("too many clients ask what has the most traffic".into()));
            return;
        }
        if !self.last.contains_key(&question.subject) {
            self.walk(question.subject, &[], Duration::ZERO);
        }
        let due = self
            .last
            .get(&question.subject)
            .map_or_else(Instant::now, |walked| walked.at + question.interval.max(REST * walked.took));
        self.waiting.push(Waiting { question, reply, due });
    }

    /// Answers all questions about a subject.
    fn answer(&mut self, subject: Subject) {
        let (asked, others) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| w.question.subject == subject);
        self.waiting = others;
        let asked: Vec<Waiting> = asked;
        let (questions, replies): (Vec<_>, Vec<_>) = asked.into_iter().map(|w| (w.question, w.reply)).unzip();
        let time = self.last.get(&subject).map_or(Duration::ZERO, |walked| walked.at.elapsed());
        let answers = self.walk(subject, &questions, time);
        for (reply, answer) in replies.into_iter().zip(answers) {
            // The client may have gone.
            let _ = reply.send(answer);
        }
    }

    fn walk(&mut self, subject: Subject, questions: &[Question], time: Duration) -> Vec<Outcome> {
        let (at, began) = (Instant::now(), processor_time());
        let stop = self.stop.clone();
        let go_on = move || !stop.load(Ordering::Relaxed);
        let (engine, baselines) = (&self.engine, &mut self.baselines);
        let answers = match subject {
            Subject::Flows => walk::flows(engine, &mut baselines.flows, questions, time, &go_on),
            Subject::Rules => walk::rules(engine, &mut baselines.rules, questions, time, &go_on),
            Subject::Drops => walk::drops(engine, baselines, questions, time),
        };
        self.last.insert(subject, Walked { at, took: processor_time().saturating_sub(began) });
        answers
    }
}

/// How long this thread has run on a processor. On a busy machine that is much less than the time that has passed.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
