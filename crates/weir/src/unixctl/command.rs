//! The table of commands.
//!
//! A command is declared once: its name, its arguments, its help and what it does. `list-commands`,
//! `help` and the check of the arguments follow from the declaration.

use std::fmt::Write as _;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

/// What a command answers: its text, or an error in words.
pub type Outcome = Result<String, String>;

/// A long text, made in pieces: each call appends some of it, which takes a millisecond or so, and says whether more may
/// follow. A call may append nothing.
pub type Pieces = Box<dyn FnMut(&mut String) -> bool>;

/// When a command answers.
pub enum Reply {
    /// At once.
    Now(Outcome),
    /// When another thread has done the work. That thread's death is an error reply.
    Later(oneshot::Receiver<Outcome>),
    /// Piece by piece, as the client takes it.
    Pieces(Pieces),
    /// By notifications as things happen, then by a reply.
    Stream(Stream),
    /// The same, made from a list that takes so many bytes until the reply is complete.
    Listing(usize, Pieces),
}

/// What a command tells while things happen, for as long as the client wants. Another thread sends; dropping this tells it that nobody listens.
pub struct Stream {
    /// Pieces, then an end.
    pub items: mpsc::Receiver<StreamItem>,
    /// Set when the client has enough. What there is by then still comes, and the end.
    pub stop: Arc<AtomicBool>,
}

/// A part of a stream.
pub enum StreamItem {
    /// The parameter of a notification, whose method is [`PIECE`](super::jsonrpc::PIECE).
    Piece(String),
    /// The reply. Nothing follows.
    End(Outcome),
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Reply {
    /// Answers when a thread of its own, which gets this name, has done the work. Others are served meanwhile. So many such threads run at a
    /// time as there are places; what has none waits for its turn, and is not begun where the client has gone by then.
    pub fn on_thread(
        name: &'static str,
        places: &'static Semaphore,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Reply {
        let (mut reply, answer) = oneshot::channel();
        if let Ok(place) = places.try_acquire() {
            start(name, place, work, reply);
        } else {
            tokio::task::spawn_local(async move {
                tokio::select! {
                    biased;
                    () = reply.closed() => {}
                    // They are never closed.
                    Ok(place) = places.acquire() => start(name, place, work, reply),
                }
            });
        }
        Reply::Later(answer)
    }
}

/// Starts a thread that does some work in its place.
fn start(
    name: &'static str,
    place: SemaphorePermit<'static>,
    work: impl FnOnce() -> Outcome + Send + 'static,
    reply: oneshot::Sender<Outcome>,
) {
    let run = move || {
        let outcome = work();
        drop(place);
        // The client may have gone meanwhile.
        let _ = reply.send(outcome);
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
        // The client is told that there is no thread.
        tracing::warn!("cannot start the thread {name}: {error}");
    }
}

impl From<Result<Pieces, String>> for Reply {
    fn from(outcome: Result<Pieces, String>) -> Reply {
        outcome.map_or_else(|problem| Reply::Now(Err(problem)), Reply::Pieces)
    }
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Reply {
        Reply::Now(outcome)
    }
}

/// What runs a command. It is called on the management thread, and returns soon.
pub enum Run<C: 'static> {
    /// Something that is answered at once, or as the client takes it.
    Quick(fn(&C, &[String]) -> Reply),
    /// Something that the client waits for: others do it, or it takes an interval. Of such replies there are so many at a time.
    Slow(fn(&C, &[String]) -> Reply),
}

/// One command on context `C`.
pub struct Command<C: 'static> {
    /// Name, as `ovs-appctl` has it.
    pub name: &'static str,
    /// Its arguments, in OVS's notation: `[BRIDGE] FLOW`.
    pub usage: &'static str,
    /// How few and how many arguments it takes.
    pub args: (usize, usize),
    /// One sentence on what it does.
    pub help: &'static str,
    /// Does it: work that takes time is handed to another thread.
    pub run: Run<C>,
}

/// A table of commands, in groups.
pub struct Commands<C: 'static>(pub &'static [&'static [Command<C>]]);

impl<C: 'static> Clone for Commands<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: 'static> Copy for Commands<C> {}

impl<C: 'static> Commands<C> {
    /// The command of this name.
    pub fn find(self, name: &str) -> Option<&'static Command<C>> {
        self.all().find(|c| c.name == name)
    }

    /// Whether clients wait for what the command of this name has others do.
    pub fn is_slow(self, name: &str) -> bool {
        self.find(name).is_some_and(|command| matches!(command.run, Run::Slow(_)))
    }

    fn all(self) -> impl Iterator<Item = &'static Command<C>> {
        self.0.iter().copied().flatten()
    }

    /// Checks the arguments and runs a command. `arguments` is `None` where one was not a string.
    pub fn run(self, context: &C, name: &str, arguments: Option<Vec<String>>) -> Reply {
        let problem = match (self.find(name), arguments) {
            (None, _) => unknown(name),
            (Some(_), None) => format!("\"{name}\" takes strings as arguments, and one is not"),
            (Some(command), Some(args)) if args.len() < command.args.0 => {
                format!("\"{name}\" command requires at least {} arguments", command.args.0)
            }
            (Some(command), Some(args)) if args.len() > command.args.1 => {
                format!("\"{name}\" command takes at most {} arguments", command.args.1)
            }
            (Some(command), Some(args)) => match command.run {
                Run::Quick(run) | Run::Slow(run) => return run(context, &args),
            },
        };
        Reply::Now(Err(problem))
    }

    /// The text of `list-commands`: a heading, then one command a line, in OVS's layout.
    pub fn list(self) -> String {
        let mut sorted: Vec<_> = self.all().collect();
        sorted.sort_by_key(|c| c.name);
        let mut text = "The available commands are:\n".to_string();
        for command in sorted {
            let _ = writeln!(text, "  {:<23} {}", command.name, command.usage);
        }
        text
    }

    /// The text of `help`: of one command, or of all.
    pub fn help(self, name: Option<&str>) -> Outcome {
        let Some(name) = name else { return Ok(self.list()) };
        match self.find(name) {
            Some(c) => Ok(format!("{} {}\n    {}\n", c.name, c.usage, c.help)),
            None => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> String {
    format!("\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)")
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: &[&[Command<u32>]] = &[
        &[Command {
            name: "double",
            usage: "N",
            args: (1, 1),
            help: "Twice N plus the context.",
            run: Run::Quick(|context, args| {
                let doubled = args[0].parse::<u32>().map(|n| (2 * n + context).to_string());
                doubled.map_err(|e| e.to_string()).into()
            }),
        }],
        &[Command {
            name: "again",
            usage: "",
            args: (0, 0),
            help: "Nothing.",
            run: Run::Quick(|_, _| Reply::Now(Ok("".into()))),
        }],
    ];

    fn run(name: &str, args: &[&str]) -> Outcome {
        match Commands(TABLE).run(&5, name, Some(args.iter().map(|s| s.to_string()).collect())) {
            Reply::Now(outcome) => outcome,
            Reply::Later(_) | Reply::Pieces(_) | Reply::Listing(..) | Reply::Stream(_) => panic!("not now"),
        }
    }

    #[test]
    fn arguments_are_checked_against_the_declaration() {
        assert_eq!(run("double", &["4"]), Ok("13".into()));
        assert!(run("double", &[]).unwrap_err().contains("at least 1"));
        assert!(run("double", &["1", "2"]).unwrap_err().contains("at most 1"));
        assert!(run("triple", &[]).unwrap_err().contains("is not a valid command"));
        assert!(matches!(Commands(TABLE).run(&5, "double", None), Reply::Now(Err(e)) if e.contains("strings")));
    }

    #[test]
    fn list_is_sorted_and_in_columns() {
        let expected = "The available commands are:\n  again                   \n  double                  N\n";
        assert_eq!(Commands(TABLE).list(), expected);
        assert!(Commands(TABLE).help(Some("double")).unwrap().contains("Twice"));
    }

    #[tokio::test]
    async fn what_has_no_place_waits_and_is_not_begun_for_who_has_gone() {
        static PLACES: Semaphore = Semaphore::const_new(1);
        static DONE: parking_lot::Mutex<Vec<&str>> = parking_lot::Mutex::new(Vec::new());
        let work = |name, gate: std::sync::mpsc::Receiver<()>| {
            Reply::on_thread("test", &PLACES, move || {
                let _ = gate.recv();
                DONE.lock().push(name);
                Ok(name.into())
            })
        };
        let test = async {
            let (go_on, gate) = std::sync::mpsc::channel();
            let open = || std::sync::mpsc::channel().1;
            // It has a place at once, so it is done whether its client waits or not.
            drop(work("first", gate));
            let (gone, last) = (work("gone", open()), work("last", open()));
            tokio::task::yield_now().await;
            drop(gone);
            tokio::task::yield_now().await;
            assert!(DONE.lock().is_empty());
            drop(go_on);
            let Reply::Later(answer) = last else { panic!("not now") };
            assert_eq!(answer.await, Ok(Ok("last".into())));
            assert_eq!(*DONE.lock(), ["first", "last"]);
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
