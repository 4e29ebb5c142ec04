//! The thread that reads the configuration and brings the switch to it.
//!
//! Opening a device can take a while; on a thread of its own it delays no connection. Jobs are done
//! one after the other, so that two reloads never mix.
//!
//! It also gives ports their devices back: see [`super::missing`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use packet::buffer::pool::give_back_kept;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Error;
use super::apply::{Lost, Target};
use super::missing::{Interfaces, Missing, Seen};
use crate::config::origins::{Loaded, Origins, port_key};
use crate::config::{ConfigErrors, Desired, Workers, check};
use crate::reconfigure::{self, Apply as _, Failure, Step};
use crate::unixctl::command::Outcome;

/// What of the configuration is not in force. The configurator writes, reports read.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Ports that could not be opened or changed: bridge, port, type, error.
    pub ports: Vec<FailedPort>,
    /// Other steps that failed, in words.
    pub errors: Vec<String>,
}

/// A port that could not be opened or changed.
#[derive(Clone, Debug)]
pub struct FailedPort {
    /// Bridge.
    pub bridge: String,
    /// Name.
    pub name: String,
    /// Type; empty where the device is there and could not be changed.
    pub kind: String,
    /// Why.
    pub error: String,
}

enum Job {
    Apply(Box<Loaded>, oneshot::Sender<Outcome>),
    Reload(oneshot::Sender<Outcome>),
    RemoveAll(oneshot::Sender<Outcome>),
    /// Devices have come or gone.
    LookForDevices,
}

/// What the thread and those who ask it share.
#[derive(Default)]
pub struct Requests {
    /// None once the thread is to end.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// Devices are to be looked for, and that has not begun.
    looking: AtomicBool,
    /// Ports that wait for a device.
    pub missing: Missing,
}

impl Requests {
    /// Has the devices looked for that ports wait for, or have lost. However often this is called, it is done
    /// once after the last call.
    pub fn look_for_devices(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            self.send(Job::LookForDevices);
        }
    }

    /// Where the thread has died, the job is dropped, and its receiver learns that.
    fn send(&self, job: Job) {
        let _ = self.jobs.lock().as_ref().map(|jobs| jobs.send(job));
    }
}

/// A handle to the thread. Dropping it ends the thread after the job in hand.
pub struct Configurator {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
    status: Arc<Mutex<Status>>,
    /// What the workers are set to.
    workers: Arc<Mutex<Workers>>,
}

impl Configurator {
    /// Starts the thread. `target` runs with its workers and caches set already; `config` is the file to read
    /// again, where there is one.
    pub fn start(config: Option<PathBuf>, target: Target) -> Result<Configurator, Error> {
        let (jobs, queue) = mpsc::channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let running =
            Desired { workers: target.workers.clone(), datapath: target.datapath.clone(), ..Desired::default() };
        let workers = Arc::new(Mutex::new(running.workers.clone()));
        let requests = Arc::new(Requests { jobs: Mutex::new(Some(jobs)), ..Requests::default() });
        let mut worker = Worker {
            config,
            target,
            wanted: Loaded { desired: running.clone(), origins: Origins::default() },
            running,
            failures: Vec::new(),
            told: BTreeSet::new(),
            interfaces: Interfaces::of_this_namespace(),
            requests: requests.clone(),
            status: status.clone(),
            workers: workers.clone(),
        };
        let thread = std::thread::Builder::new().name("configurator".into()).spawn(move || {
            for job in queue {
                worker.run(job);
            }
        });
        Ok(Configurator { requests, thread: Some(thread.map_err(Error::Thread)?), status, workers })
    }

    /// Applies a configuration that has been read.
    pub fn apply(&self, loaded: Loaded) -> oneshot::Receiver<Outcome> {
        self.submit(|reply| Job::Apply(Box::new(loaded), reply))
    }

    /// Reads the configuration again and applies what changed.
    pub fn reload(&self) -> oneshot::Receiver<Outcome> {
        self.submit(Job::Reload)
    }

    /// Removes all bridges and ports: the end of the daemon.
    pub fn remove_all(&self) -> oneshot::Receiver<Outcome> {
        self.submit(Job::RemoveAll)
    }

    /// What of the configuration is not in force.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// What the workers are set to.
    pub fn workers(&self) -> Workers {
        self.workers.lock().clone()
    }

    fn submit(&self, job: impl FnOnce(oneshot::Sender<Outcome>) -> Job) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(job(reply));
        answer
    }

    /// For whoever watches the devices.
    pub fn requests(&self) -> Arc<Requests> {
        self.requests.clone()
    }
}

impl Drop for Configurator {
    fn drop(&mut self) {
        *self.requests.jobs.lock() = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

struct Worker {
    config: Option<PathBuf>,
    target: Target,
    /// What was asked for last.
    wanted: Loaded,
    running: Desired,
    /// The steps that failed when they were taken last.
    failures: Vec<Failure>,
    /// The errors that are in the log already.
    told: BTreeSet<String>,
    interfaces: Interfaces,
    requests: Arc<Requests>,
    status: Arc<Mutex<Status>>,
    workers: Arc<Mutex<Workers>>,
}

impl Worker {
    fn run(&mut self, job: Job) {
        // Whoever asked may have gone meanwhile.
        let _ = match job {
            Job::Apply(loaded, reply) => reply.send(self.apply(*loaded)),
            Job::Reload(reply) => reply.send(self.reload()),
            Job::RemoveAll(reply) => {
                let desired = Desired { bridges: Default::default(), ..self.running.clone() };
                let outcome = self.apply(Loaded { desired, origins: Origins::default() });
                // Nobody is to take them for buffers in use (`Engine::end`).
                give_back_kept();
                reply.send(outcome)
            }
            Job::LookForDevices => {
                // What comes or goes from now on is looked for again.
                self.requests.looking.store(false, Ordering::SeqCst);
                self.look_for_devices();
                return;
            }
        };
    }

    fn reload(&mut self) -> Outcome {
        let Some(config) = &self.config else {
            return Err("the configuration is in a database, which is followed as it changes".into());
        };
        let loaded = crate::source::toml::load(config).map_err(|e| e.to_string())?;
        let missing = check::cores(&loaded.desired, &loaded.origins);
        if !missing.is_empty() {
            return Err(ConfigErrors(missing).to_string());
        }
        self.apply(loaded)
    }

    /// Brings a configuration into force, trying everything that failed before.
    fn apply(&mut self, loaded: Loaded) -> Outcome {
        self.wanted = loaded;
        let steps = self.plan();
        let (count, seen) = (steps.len(), self.see(&steps));
        self.failures = reconfigure::apply(&mut self.target, &mut self.running, steps);
        tracing::info!(
            "configuration applied: {} changes, {} failed",
            count - self.failures.len(),
            self.failures.len()
        );
        let lines = self.finish(seen, |_| true);
        if lines.is_empty() { Ok(format!("{count} changes applied")) } else { Err(lines.join("\n")) }
    }

    /// Tries again to open what waits for a device, where one has come or gone since.
    fn look_for_devices(&mut self) {
        let steps = self.plan();
        let seen = self.see(&steps);
        let news = |port: &str| !self.requests.missing.was_tried(port, seen.get(port).copied().flatten());
        self.failures.retain(|failure| opened_by(&failure.step).is_some_and(|port| !news(port)));
        let steps = steps.into_iter().filter(|step| opened_by(step).is_none_or(news)).collect();
        self.failures.extend(reconfigure::apply(&mut self.target, &mut self.running, steps));
        let requests = self.requests.clone();
        self.finish(seen, |lost| !requests.missing.was_tried(&lost.name, lost.seen));
    }

    fn plan(&self) -> Vec<Step> {
        reconfigure::plan(&self.running, &self.wanted.desired, &self.target.numbers())
    }

    /// The interfaces that have the names of those to be opened. Looked at before that, so that one that comes
    /// meanwhile is noticed.
    fn see(&self, steps: &[Step]) -> BTreeMap<String, Seen> {
        steps.iter().filter_map(opened_by).map(|port| (port.to_owned(), self.interfaces.find(port))).collect()
    }

    /// After the steps: gives ports whose device has gone another, those that `worth_trying` names, and tells of
    /// everything that is not as it is wanted. Returns that in words.
    fn finish(&mut self, seen: BTreeMap<String, Seen>, worth_trying: impl Fn(&Lost) -> bool) -> Vec<String> {
        let mut lost = self.target.lost(|port| self.interfaces.find(port));
        lost.retain_mut(|lost| !(worth_trying(lost) && self.reopen(lost)));
        let engine = &self.target.engine;
        engine.local_mtus.apply(&engine.switch, &engine.datapath);
        engine.switch.revalidate();
        // New ports are known from now on: what changes of them before the first round of the watch is told, too.
        if engine.links.look(&engine.switch, &engine.datapath) {
            self.requests.look_for_devices();
        }
        let origins = &self.wanted.origins;
        let mut lines: Vec<_> = self.failures.iter().map(|failure| describe(failure, origins)).collect();
        let mut status = status(&self.failures, &lines);
        let mut missing: BTreeMap<_, _> = self
            .failures
            .iter()
            .filter_map(|failure| opened_by(&failure.step))
            .map(|port| (port.to_owned(), seen.get(port).copied().flatten()))
            .collect();
        for Lost { bridge, name, kind, error, seen, .. } in lost {
            lines.push(origins.error(&port_key(&bridge, &name), &error).to_string());
            missing.insert(name.clone(), seen);
            status.ports.push(FailedPort { bridge, name, kind, error });
        }
        for line in lines.iter().filter(|line| !self.told.contains(*line)) {
            tracing::error!("{line}");
        }
        self.told = lines.iter().cloned().collect();
        self.requests.missing.set(missing);
        self.workers.lock().clone_from(&self.running.workers);
        *self.status.lock() = status;
        lines
    }

    /// Whether a port has a device again. Where not, notes why.
    fn reopen(&self, lost: &mut Lost) -> bool {
        let Some(running) = self.running.bridges.get(&lost.bridge) else { return true };
        self.target.reopen(lost, running).inspect_err(|error| lost.error.clone_from(error)).is_ok()
    }
}

/// The port whose device a step opens.
fn opened_by(step: &Step) -> Option<&str> {
    match step {
        Step::AddPort { port, .. } => Some(port),
        Step::AddLocal { bridge, .. } => Some(bridge),
        _ => None,
    }
}

/// A failure with the place in the configuration that asked for it.
fn describe(failure: &Failure, origins: &Origins) -> String {
    let key = match &failure.step {
        Step::SetWorkers(_) => "workers".into(),
        Step::SetDatapath(_) => "datapath".into(),
        Step::StartDpdk(_) => "dpdk".into(),
        Step::AddPort { bridge, port, .. }
        | Step::SetVlans { bridge, port, .. }
        | Step::SetInterface { bridge, port, .. }
        | Step::RemovePort { bridge, port } => port_key(bridge, port),
        Step::AddFlow { bridge, .. } | Step::RemoveFlow { bridge, .. } => format!("bridge.{bridge}.flows"),
        Step::AddController { bridge, .. } | Step::RemoveController { bridge, .. } => {
            format!("bridge.{bridge}.controllers")
        }
        Step::AddBridge { bridge, .. }
        | Step::SetBridge { bridge, .. }
        | Step::RemoveBridge { bridge }
        | Step::AddLocal { bridge, .. }
        | Step::RemoveLocal { bridge } => format!("bridge.{bridge}"),
    };
    origins.error(&key, &failure.error).to_string()
}

fn status(failures: &[Failure], lines: &[String]) -> Status {
    let mut status = Status::default();
    for (failure, line) in failures.iter().zip(lines) {
        let (bridge, name, kind) = match &failure.step {
            Step::AddPort { bridge, port, wanted } => (bridge, port, wanted.interface.kind.clone()),
            Step::AddLocal { bridge, settings } => (bridge, bridge, settings.local_kind.name().into()),
            Step::SetVlans { bridge, port, .. } | Step::SetInterface { bridge, port, .. } => {
                (bridge, port, String::new())
            }
            _ => {
                status.errors.push(line.clone());
                continue;
            }
        };
        let error = failure.error.clone();
        status.ports.push(FailedPort { bridge: bridge.clone(), name: name.clone(), kind, error });
    }
    status
}
