//! The thread that brings the switch to its desired state.
//!
//! Opening a device can take a while; on a thread of its own it delays no connection. Jobs are done
//! one after the other, so that two configurations never mix.
//!
//! It also gives ports their devices back: see [`super::missing`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use datapath::PortNo;
use packet::buffer::pool::give_back_kept;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Error;
use super::apply::LiveSwitch;
use super::devices::Lost;
use super::missing::{Interfaces, Missing, Seen};
use crate::config::origins::{Loaded, Origins};
use crate::config::{Desired, Workers};
use crate::reconfigure::unapplied::{FailedPort, Unapplied, describe, opened_by};
use crate::reconfigure::{self, Apply as _, Failure, ReconfigureStep};
use crate::unixctl::command::Outcome;

enum Job {
    Apply(Box<Loaded>, oneshot::Sender<Outcome>),
    RemoveAll(oneshot::Sender<Outcome>),
    /// Takes ports from their bridges, each with its interface, until the next configuration.
    Take(Vec<(String, String)>, oneshot::Sender<Outcome>),
    /// Gives an interface another number in the datapath.
    Renumber(String, PortNo, oneshot::Sender<Outcome>),
    /// Devices have come or gone.
    LookForDevices,
    /// What failed may succeed now.
    TryAgain,
}

/// The thread's queue of jobs. Any thread may add one; they are done one after the other.
#[derive(Default)]
pub struct Jobs {
    /// None once the thread is to end.
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    /// A job to look for devices is queued and has not begun.
    looking: AtomicBool,
    /// Configurations that have changed something.
    changes: AtomicU64,
    /// Ports that wait for a device.
    pub missing: Missing,
}

impl Jobs {
    /// Queues a search for the devices that ports wait for or have lost. Calls before it begins are merged into one.
    pub fn look_for_devices(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            self.send(Job::LookForDevices);
        }
    }

    /// Queues another attempt at everything that failed.
    pub fn try_again(&self) {
        self.send(Job::TryAgain);
    }

    /// If the thread has died, the job is dropped; the receiver of its reply sees the channel closed.
    fn send(&self, job: Job) {
        let _ = self.queue.lock().as_ref().map(|queue| queue.send(job));
    }
}

/// A handle to the thread. Dropping it ends the thread after the job in hand.
pub struct Configurator {
    jobs: Arc<Jobs>,
    thread: Option<JoinHandle<()>>,
    unapplied: Arc<Mutex<Unapplied>>,
    /// What the workers are set to.
    workers: Arc<Mutex<Workers>>,
}

impl Configurator {
    /// Starts the thread. `switch` runs with its workers and caches set already.
    pub fn start(switch: LiveSwitch) -> Result<Configurator, Error> {
        let (sender, queue) = mpsc::channel();
        let running =
            Desired { workers: switch.workers.clone(), datapath: switch.datapath.clone(), ..Desired::default() };
        let jobs = Arc::new(Jobs { queue: Mutex::new(Some(sender)), ..Jobs::default() });
        let again = jobs.clone();
        switch.engine.ingress.compiler.on_ready(move || again.try_again());
        let unapplied: Arc<Mutex<Unapplied>> = Arc::default();
        let workers = Arc::new(Mutex::new(running.workers.clone()));
        let mut thread = ConfiguratorThread {
            switch,
            wanted: Loaded { desired: running.clone(), origins: Origins::default() },
            running,
            failures: Vec::new(),
            taken: BTreeMap::new(),
            told: BTreeSet::new(),
            interfaces: Interfaces::of_this_namespace(),
            jobs: jobs.clone(),
            unapplied: unapplied.clone(),
            workers: workers.clone(),
        };
        let handle = std::thread::Builder::new().name("configurator".into()).spawn(move || {
            for job in queue {
                thread.run(job);
            }
        });
        Ok(Configurator { jobs, thread: Some(handle.map_err(Error::Thread)?), unapplied, workers })
    }

    /// Applies a configuration that has been read.
    pub fn apply(&self, loaded: Loaded) -> oneshot::Receiver<Outcome> {
        self.submit(|reply| Job::Apply(Box::new(loaded), reply))
    }

    /// Removes all bridges and ports: the end of the daemon.
    pub fn remove_all(&self) -> oneshot::Receiver<Outcome> {
        self.submit(Job::RemoveAll)
    }

    /// Takes the ports of these interfaces from their bridges, as if they had gone from the datapath by themselves. The next
    /// configuration that is applied brings them back.
    pub fn take_from_datapath(&self, ports: Vec<(String, String)>) -> oneshot::Receiver<Outcome> {
        self.submit(|reply| Job::Take(ports, reply))
    }

    /// Gives an interface another number in the datapath; for tests.
    pub fn renumber(&self, interface: &str, number: PortNo) -> oneshot::Receiver<Outcome> {
        self.submit(|reply| Job::Renumber(interface.to_owned(), number, reply))
    }

    /// What of the configuration is not in force.
    pub fn unapplied(&self) -> Unapplied {
        self.unapplied.lock().clone()
    }

    /// How many configurations have changed something.
    pub fn changes(&self) -> u64 {
        self.jobs.changes.load(Ordering::Relaxed)
    }

    /// What the workers are set to.
    pub fn workers(&self) -> Workers {
        self.workers.lock().clone()
    }

    fn submit(&self, job: impl FnOnce(oneshot::Sender<Outcome>) -> Job) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply));
        answer
    }

    /// For whoever watches the devices.
    pub fn jobs(&self) -> Arc<Jobs> {
        self.jobs.clone()
    }
}

impl Drop for Configurator {
    fn drop(&mut self) {
        *self.jobs.queue.lock() = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

struct ConfiguratorThread {
    switch: LiveSwitch,
    /// What was asked for last.
    wanted: Loaded,
    running: Desired,
    /// The steps that failed when they were taken last.
    failures: Vec<Failure>,
    /// The interfaces that a command has taken away, with their OpenFlow numbers: they stay so until there is another
    /// configuration.
    taken: BTreeMap<String, Option<u16>>,
    /// The errors that have been logged already.
    told: BTreeSet<String>,
    interfaces: Interfaces,
    jobs: Arc<Jobs>,
    unapplied: Arc<Mutex<Unapplied>>,
    workers: Arc<Mutex<Workers>>,
}

impl ConfiguratorThread {
    fn run(&mut self, job: Job) {
        // The receiver may have been dropped meanwhile.
        let _ = match job {
            Job::Apply(loaded, reply) => reply.send(self.apply(*loaded)),
            Job::RemoveAll(reply) => {
                let desired = Desired { bridges: Default::default(), ..self.running.clone() };
                let outcome = self.apply(Loaded { desired, origins: Origins::default() });
                // Otherwise `Engine::end` would count them as leaked.
                give_back_kept();
                reply.send(outcome)
            }
            Job::Take(ports, reply) => reply.send(self.take(ports)),
            Job::Renumber(interface, number, reply) => {
                let outcome = self.switch.renumber(&interface, number, &self.running.bridges);
                self.finish(BTreeMap::new(), |_| false);
                reply.send(outcome.map(|()| String::new()))
            }
            Job::LookForDevices => {
                // Devices that come or go from now on need another search.
                self.jobs.looking.store(false, Ordering::SeqCst);
                self.look_for_devices();
                return;
            }
            Job::TryAgain => {
                // What fails again is reported by the log and in the state.
                let _ = self.apply(self.wanted.clone());
                return;
            }
        };
    }

    /// Brings a configuration into force, trying everything that failed before.
    fn apply(&mut self, loaded: Loaded) -> Outcome {
        self.wanted = loaded;
        let mut steps = self.plan();
        let taken = std::mem::take(&mut self.taken);
        for step in &mut steps {
            if let ReconfigureStep::AddPort { wanted, had, .. } = step {
                let back = wanted.interfaces.keys().filter_map(|name| Some((name.clone(), (*taken.get(name)?)?)));
                had.extend(back);
            }
        }
        let (count, seen) = (steps.len(), self.see(&steps));
        self.failures = reconfigure::apply(&mut self.switch, &mut self.running, steps);
        if self.failures.len() < count {
            self.jobs.changes.fetch_add(1, Ordering::Relaxed);
        }
        tracing::info!(
            "configuration applied: {} changes, {} failed",
            count - self.failures.len(),
            self.failures.len()
        );
        let lines = self.finish(seen, |_| true);
        if lines.is_empty() { Ok(format!("{count} changes applied")) } else { Err(lines.join("\n")) }
    }

    /// Takes ports from their bridges.
    fn take(&mut self, ports: Vec<(String, String)>) -> Outcome {
        let (mut steps, numbers) = (Vec::new(), self.switch.numbers());
        for (bridge, interface) in ports {
            let running = self.running.bridges.get(&bridge).into_iter().flat_map(|bridge| &bridge.ports);
            let port = running.into_iter().find(|(_, port)| port.interfaces.contains_key(&interface));
            let (port, has) = port.ok_or_else(|| format!("{interface}: no such port"))?;
            let (port, interfaces) = (port.clone(), has.interfaces.keys().cloned().collect());
            let number = numbers.get(&bridge).and_then(|numbers| numbers.get(&interface)).copied();
            steps.push(ReconfigureStep::RemovePort { bridge, port, interfaces });
            self.taken.insert(interface, number);
        }
        let failures = reconfigure::apply(&mut self.switch, &mut self.running, steps);
        let problems: Vec<_> = failures.into_iter().map(|failure| failure.error).collect();
        self.finish(BTreeMap::new(), |_| false);
        if problems.is_empty() { Ok(String::new()) } else { Err(problems.join("\n")) }
    }

    /// Tries again to open the devices that ports wait for, if a device of that name has come or gone since.
    fn look_for_devices(&mut self) {
        let steps = self.plan();
        let seen = self.see(&steps);
        let is_news = |name: &&str| !self.jobs.missing.was_tried(name, seen.get(*name).copied().flatten());
        // A step that opens nothing is worth trying at any time.
        let is_worth_trying = |step: &ReconfigureStep| {
            let opened = opened_by(step);
            let is_taken = |name: &&str| self.taken.contains_key(*name);
            opened.is_empty() || opened.iter().any(is_news) && !opened.iter().any(is_taken)
        };
        self.failures.retain(|failure| !is_worth_trying(&failure.step));
        let steps = steps.into_iter().filter(is_worth_trying).collect();
        self.failures.extend(reconfigure::apply(&mut self.switch, &mut self.running, steps));
        let jobs = self.jobs.clone();
        self.finish(seen, |lost| !jobs.missing.was_tried(&lost.name, lost.seen));
    }

    fn plan(&self) -> Vec<ReconfigureStep> {
        reconfigure::plan(&self.running, &self.wanted.desired, &self.switch.numbers())
    }

    /// The kernel's interfaces of the names to be opened. Looked up before opening, so that one that appears meanwhile
    /// is noticed afterwards.
    fn see(&self, steps: &[ReconfigureStep]) -> BTreeMap<String, Seen> {
        steps.iter().flat_map(opened_by).map(|name| (name.to_owned(), self.interfaces.find(name))).collect()
    }

    /// Follows the steps: reopens devices that have gone, as far as `worth_trying` says so, and reports everything that
    /// differs from the desired state. Returns that in words.
    fn finish(&mut self, seen: BTreeMap<String, Seen>, worth_trying: impl Fn(&Lost) -> bool) -> Vec<String> {
        let mut lost = self.switch.lost(|port| self.interfaces.find(port));
        lost.retain_mut(|lost| !(worth_trying(lost) && self.reopen(lost)));
        let engine = &self.switch.engine;
        let wanted = &self.wanted.desired.bridges;
        let ports: HashSet<&str> = wanted.iter().flat_map(|(name, bridge)| bridge.interface_names(name)).collect();
        engine.ingress.retain(|port| ports.contains(port));
        engine.local_mtus.apply(&engine.switch, &engine.datapath);
        engine.env.dummies.renew_recordings();
        for (name, bridge) in wanted {
            self.switch.follow_address(name, bridge);
        }
        let engine = &self.switch.engine;
        engine.switch.revalidate();
        // Makes new ports known, so that changes before the watch's next round are reported, too.
        if engine.links.look(&engine.switch, &engine.datapath) {
            self.jobs.look_for_devices();
        }
        let origins = &self.wanted.origins;
        let mut lines: Vec<_> = self.failures.iter().map(|failure| describe(failure, origins)).collect();
        let mut unapplied = Unapplied::new(&self.failures, &lines);
        unapplied.ports.extend(self.taken_ports());
        let mut missing: BTreeMap<_, _> = self
            .failures
            .iter()
            .flat_map(|failure| opened_by(&failure.step))
            .map(|name| (name.to_owned(), seen.get(name).copied().flatten()))
            .collect();
        for Lost { bridge, name, kind, error, seen, .. } in lost {
            let failed = FailedPort { bridge, name, kind, error };
            lines.push(failed.describe(origins));
            missing.insert(failed.name.clone(), seen);
            unapplied.ports.push(failed);
        }
        for line in lines.iter().filter(|line| !self.told.contains(*line)) {
            // What is wrong in a database is told as OVS does, whose programs look for errors in the log.
            match origins.are_in_file() {
                true => tracing::error!("{line}"),
                false => tracing::warn!("{line}"),
            }
        }
        self.told = lines.iter().cloned().collect();
        self.jobs.missing.set(missing);
        self.workers.lock().clone_from(&self.running.workers);
        *self.unapplied.lock() = unapplied;
        lines
    }

    /// The ports that a command has taken away, and that are wanted.
    fn taken_ports(&self) -> Vec<FailedPort> {
        let wanted = self.wanted.desired.bridges.iter();
        let interfaces = wanted.flat_map(|(bridge, of)| of.interface_names(bridge).map(move |name| (bridge, name)));
        let failed = |(bridge, name): (&String, &str)| FailedPort {
            bridge: bridge.clone(),
            name: name.to_owned(),
            kind: String::new(),
            error: "taken from the datapath by dpctl/del-if".into(),
        };
        interfaces.filter(|(_, name)| self.taken.contains_key(*name)).map(failed).collect()
    }

    /// Whether a port has a device again. If not, `lost` says why.
    fn reopen(&self, lost: &mut Lost) -> bool {
        let Some(running) = self.running.bridges.get(&lost.bridge) else { return true };
        self.switch.reopen(lost, running).inspect_err(|error| lost.error.clone_from(error)).is_ok()
    }
}
