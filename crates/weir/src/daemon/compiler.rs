//! Compiles the ingress filters of a configuration, without the configuration waiting for a name server.
//!
//! Rules may name hosts, and libpcap looks their names up while it compiles. This is done by a thread that lives as long as
//! there is something to compile. Who wants rules waits for a moment, in which all rules are compiled that name no host. After
//! that they are an error, which says what they wait for; when they are there, `ready` is called, for another attempt.
//!
//! Sharing between threads: everything is under one mutex, which is not held while rules are compiled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ingress::RuleSet;
use parking_lot::{Condvar, Mutex};

/// How long rules are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What becomes of rules.
type Compiled = Result<RuleSet, String>;

/// See the [module](self).
pub struct Compiler {
    shared: Arc<Compilations>,
    patience: Duration,
}

struct Compilations {
    compile: fn(&str) -> Compiled,
    work: Mutex<Work>,
    done: Condvar,
    /// Called when rules are there that were not waited for.
    ready: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Work {
    /// What is wanted for each port, and what has become of it.
    ports: BTreeMap<String, (String, Option<Compiled>)>,
    /// Ports whose rules are to be compiled.
    queue: VecDeque<String>,
    /// There is a thread.
    running: bool,
    /// Nobody waits any more for what the thread works on.
    late: bool,
}

impl Default for Compiler {
    fn default() -> Compiler {
        Compiler::new(|rules| RuleSet::compile(rules).map_err(|e| e.to_string()), PATIENCE)
    }
}

impl Compiler {
    fn new(compile: fn(&str) -> Compiled, patience: Duration) -> Compiler {
        let (work, done, ready) = (Mutex::default(), Condvar::new(), OnceLock::new());
        Compiler { shared: Arc::new(Compilations { compile, work, done, ready }), patience }
    }

    /// Sets what is called when rules are there that were not waited for. Can be done once.
    pub fn on_ready(&self, ready: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.ready.set(Box::new(ready));
    }

    /// Compiles the rules of a port. Rules that are not there soon can be asked for again.
    pub fn compile(&self, port: &str, rules: &str) -> Compiled {
        let mut work = self.shared.work.lock();
        if work.ports.get(port).is_none_or(|(known, _)| known != rules) {
            work.ports.insert(port.to_owned(), (rules.to_owned(), None));
            work.queue.push_back(port.to_owned());
        }
        if !work.running {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("ingress-compiler".into()).spawn(move || shared.run());
            thread.map_err(|e| format!("cannot start a thread that compiles the rules: {e}"))?;
            work.running = true;
        }
        let deadline = Instant::now() + self.patience;
        loop {
            if work.ports.get(port).is_some_and(|(_, compiled)| compiled.is_some()) {
                return work
                    .ports
                    .remove(port)
                    .and_then(|(_, compiled)| compiled)
                    .unwrap_or_else(|| Err(String::new()));
            }
            // Where others have waited in vain, there is no use in waiting for what comes after them.
            work.late = work.late || self.shared.done.wait_until(&mut work, deadline).timed_out();
            if work.late && work.ports.get(port).is_none_or(|(_, compiled)| compiled.is_none()) {
                return Err("waits for a name server, which looks up a host that rules name".into());
            }
        }
    }

    /// Forgets ports that are not to be kept.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.shared.work.lock().ports.retain(|port, _| keep(port));
    }
}

impl Compilations {
    /// Compiles until nothing is left to do.
    fn run(&self) {
        let mut work = self.work.lock();
        while let Some(port) = work.queue.pop_front() {
            let Some(rules) = work.ports.get(&port).filter(|of| of.1.is_none()).map(|of| of.0.clone()) else {
                continue;
            };
            drop(work);
            let compiled = (self.compile)(&rules);
            work = self.work.lock();
            // Others may be wanted meanwhile.
            if let Some((_, outcome)) = work.ports.get_mut(&port).filter(|of| of.0 == rules) {
                *outcome = Some(compiled);
            }
            self.done.notify_all();
        }
        work.running = false;
        let late = std::mem::take(&mut work.late);
        drop(work);
        if let Some(ready) = self.ready.get().filter(|_| late) {
            ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The name server answers when this is free.
    static SERVER: Mutex<()> = Mutex::new(());

    fn slow(rules: &str) -> Compiled {
        if rules.contains("name") {
            drop(SERVER.lock());
        }
        RuleSet::compile("drop").map_err(|e| format!("{rules}: {e}"))
    }

    #[test]
    fn rules_are_compiled_or_refused() {
        let compiler = Compiler::default();
        assert_eq!(compiler.compile("p1", "drop dst net 10.0.0.0/8; pass").unwrap().rules().len(), 2);
        for _ in 0..2 {
            assert!(compiler.compile("p1", "deny").unwrap_err().contains("none of drop, pass"));
        }
    }

    #[test]
    fn a_name_server_that_does_not_answer_is_not_waited_for() {
        let compiler = Compiler::new(slow, Duration::from_millis(20));
        let (ready, is_ready) = mpsc::channel();
        compiler.on_ready(move || ready.send(()).unwrap());
        assert!(compiler.compile("p0", "drop").is_ok());
        let asked = SERVER.lock();
        for port in ["p1", "p2", "p3", "p1"] {
            assert!(compiler.compile(port, "drop host name").unwrap_err().contains("name server"));
        }
        // What comes after them is not waited for either.
        assert!(compiler.compile("p4", "drop").unwrap_err().contains("name server"));
        compiler.retain(|port| port != "p3");
        assert_eq!(compiler.shared.work.lock().ports.len(), 3);
        drop(asked);
        is_ready.recv().unwrap();
        // No thread is left, and each has its rules at once.
        assert!(!compiler.shared.work.lock().running);
        let asked = SERVER.lock();
        assert!(compiler.compile("p1", "drop host name").is_ok() && compiler.compile("p4", "drop").is_ok());
        // Others than those that were compiled are not taken for them.
        assert!(compiler.compile("p2", "drop host name2").is_err());
        drop(asked);
        is_ready.recv().unwrap();
        assert!(compiler.compile("p2", "drop host name2").is_ok());
    }
}
