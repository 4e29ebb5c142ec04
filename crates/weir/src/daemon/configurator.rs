//! The thread that reads the configuration and brings the switch to it.
//!
//! Opening a device can take a while; on a thread of its own it delays no connection. Jobs are done
//! one after the other, so that two reloads never mix.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Error;
use super::apply::Target;
use crate::config::toml::{Loaded, Origins, port_key};
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
    /// Type; empty where the port is there and could not be changed.
    pub kind: String,
    /// Why.
    pub error: String,
}

enum Job {
    Apply(Box<Loaded>, oneshot::Sender<Outcome>),
    Reload(oneshot::Sender<Outcome>),
    RemoveAll(oneshot::Sender<Outcome>),
}

/// A handle to the thread. Dropping it ends the thread after the job in hand.
pub struct Configurator {
    jobs: Option<mpsc::Sender<Job>>,
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
        let mut worker = Worker { config, target, running, status: status.clone(), workers: workers.clone() };
        let thread = std::thread::Builder::new().name("configurator".into()).spawn(move || {
            for job in queue {
                worker.run(job);
            }
        });
        Ok(Configurator { jobs: Some(jobs), thread: Some(thread.map_err(Error::Thread)?), status, workers })
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
        // Where the thread has died, the job is dropped, and its receiver learns that.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job(reply)));
        answer
    }
}

impl Drop for Configurator {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

struct Worker {
    config: Option<PathBuf>,
    target: Target,
    running: Desired,
    status: Arc<Mutex<Status>>,
    workers: Arc<Mutex<Workers>>,
}

impl Worker {
    fn run(&mut self, job: Job) {
        // Whoever asked may have gone meanwhile.
        let _ = match job {
            Job::Apply(loaded, reply) => reply.send(self.apply(&loaded.desired, &loaded.origins)),
            Job::Reload(reply) => reply.send(self.reload()),
            Job::RemoveAll(reply) => {
                let nothing = Desired { bridges: Default::default(), ..self.running.clone() };
                reply.send(self.apply(&nothing, &Origins::default()))
            }
        };
    }

    fn reload(&mut self) -> Outcome {
        let Some(config) = &self.config else {
            return Err("the configuration is in a database, which is followed as it changes".into());
        };
        let loaded = crate::config::toml::load(config).map_err(|e| e.to_string())?;
        let missing = check::cores(&loaded.desired, &loaded.origins);
        if !missing.is_empty() {
            return Err(ConfigErrors(missing).to_string());
        }
        self.apply(&loaded.desired, &loaded.origins)
    }

    fn apply(&mut self, desired: &Desired, origins: &Origins) -> Outcome {
        let steps = reconfigure::plan(&self.running, desired, &self.target.numbers());
        let count = steps.len();
        let failures = reconfigure::apply(&mut self.target, &mut self.running, steps);
        let engine = &self.target.engine;
        engine.local_mtus.apply(&engine.switch, &engine.datapath);
        for bridge in engine.switch.bridges() {
            bridge.barrier();
        }
        let lines: Vec<_> = failures.iter().map(|failure| describe(failure, origins)).collect();
        for line in &lines {
            tracing::error!("{line}");
        }
        self.workers.lock().clone_from(&self.running.workers);
        *self.status.lock() = status(&failures, &lines);
        tracing::info!("configuration applied: {} changes, {} failed", count - failures.len(), failures.len());
        if lines.is_empty() { Ok(format!("{count} changes applied")) } else { Err(lines.join("\n")) }
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
