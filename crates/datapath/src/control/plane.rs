//! The control plane: changes workers, handlers, and which worker polls and transmits by which queue, one change at a
//! time.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use parking_lot::{Mutex, RwLock};

use crate::action::PortNo;
use crate::config::Config;
use crate::control::balance::{Balancer, Inputs};
use crate::control::handlers::{HandlerHandle, HandlerPool};
use crate::control::maintenance::Maintenance;
use crate::control::pool::{WorkerHandle, WorkerPool};
use crate::control::ports::PortTable;
use crate::control::queues;
use crate::control::resources::Resources;
use crate::control::runtime::{Inline, Runtime, Threads};
use crate::control::schedule_log::{self, Lines, Unpinnable, shown_core};
use crate::control::scheduler::{self, Scheduling};
use crate::drop::DropReason;
use crate::error::Error;
use crate::perf::state::PerfState;
use crate::slowpath::channel::Channel;
use crate::slowpath::handler::{Handler, ProgramCache, Served};
use crate::slowpath::new_flows::NewFlows;
use crate::sync::rcu::Reader;
use crate::tap::WorkerTap;
use crate::tap::list::TapList;
use crate::verify::state::Verification;
use crate::worker::Worker;
use crate::worker::idle_policy::Core;
use crate::worker::mailbox::Command;
use crate::worker::setup::WorkerSetup;
use crate::worker::waker::Waker;

/// What the control plane changes and others read.
pub type Parts = (Resources, Arc<Mutex<PortTable>>, Arc<RwLock<WorkerPool>>, Arc<Maintenance>);

/// What a change of workers, handlers or ports needs. There is one for each datapath, behind a lock, so that there is one
/// change at a time.
pub struct ControlPlane {
    /// Settings as they are now.
    pub config: Config,
    /// When receive queues move by themselves.
    pub balancer: Balancer,
    /// Who looks at packets.
    pub taps: TapList,
    /// Which packets are sampled to verify the caches.
    pub verification: Verification,
    /// Which performance metrics workers measure.
    pub perf: PerfState,
    scheduling: Scheduling,
    unpinnable: Unpinnable,
    runtime: Box<dyn Runtime>,
    handlers: HandlerPool,
    ports: Arc<Mutex<PortTable>>,
    pool: Arc<RwLock<WorkerPool>>,
    maintenance: Arc<Maintenance>,
    resources: Resources,
}

/// Set up and shut down.
impl ControlPlane {
    /// A control plane of `parts` without ports, with a worker on each of `cores` and with [`Config::handlers`]. Its callers
    /// drive them until [`start`](ControlPlane::start). There can be as many handlers as there are `readers` for them.
    pub fn new(
        config: Config,
        parts: Parts,
        readers: Vec<Reader>,
        cores: &[Option<usize>],
    ) -> Result<ControlPlane, Error> {
        let (resources, ports, pool, maintenance) = parts;
        let handlers = config.handlers;
        let mut plane = ControlPlane {
            config,
            balancer: Balancer::default(),
            taps: TapList::default(),
            verification: Verification::default(),
            perf: PerfState::default(),
            scheduling: Scheduling::default(),
            unpinnable: Unpinnable::default(),
            runtime: Box::new(Inline::default()),
            handlers: HandlerPool::new(readers),
            ports,
            pool,
            maintenance,
            resources,
        };
        plane.set_handlers(handlers)?;
        for &core in cores {
            plane.add_worker(core)?;
        }
        Ok(plane)
    }

    /// See [`Datapath::start`](crate::Datapath::start).
    pub fn start(&mut self) -> Result<(), Error> {
        if !self.runtime.is_inline() {
            return Ok(());
        }
        // What can fail comes before anything is given to a thread, so that a failure changes nothing.
        let mut threads = Threads::new(self.maintenance.clone());
        let prepare = |(number, worker): (usize, &WorkerHandle)| {
            threads.prepare_worker(number, self.pinning(worker.core), &worker.mailbox.waker)
        };
        let worker_seats = self.pool.read().iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let prepare = |(number, handler): (usize, &HandlerHandle)| threads.prepare_handler(number, &handler.notifier);
        let handler_seats = self.handlers.iter().enumerate().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let (workers, handlers) = self.runtime.release();
        workers.into_iter().zip(worker_seats).for_each(|(worker, seat)| threads.add_worker(worker, seat));
        handlers.into_iter().zip(handler_seats).for_each(|(handler, seat)| threads.add_handler(handler, seat));
        self.runtime = Box::new(threads);
        for (_, worker) in self.pool.read().iter() {
            log_thread(worker, "created");
        }
        self.log_workers();
        Ok(())
    }

    /// The core to which the thread of a worker on `core` is pinned.
    fn pinning(&self, core: Option<usize>) -> Option<usize> {
        core.filter(|_| !self.config.topology.is_made_up())
    }

    /// Says in the log how many workers there are at each NUMA node.
    fn log_workers(&self) {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for worker in self.pool.read().eligible() {
            *counts.entry(worker.node).or_default() += 1;
        }
        for (node, count) in counts {
            tracing::info!(target: schedule_log::TARGET, "There are {count} pmd threads on numa node {node}");
        }
    }

    /// See [`Datapath::stop`](crate::Datapath::stop).
    pub fn stop(&mut self) {
        if self.runtime.is_inline() {
            return;
        }
        let (workers, handlers) = self.runtime.release();
        let mut inline = Inline::default();
        workers.into_iter().for_each(|worker| inline.add_worker(worker, None));
        handlers.into_iter().for_each(|handler| inline.add_handler(handler, None));
        self.runtime = Box::new(inline);
    }

    /// Drops the fragments that are held for tracking, all datagrams that have one from a port that goes.
    pub fn purge_fragments(&mut self, goes: impl Fn(PortNo) -> bool) {
        let purged = self.resources.conntrack.fragments.purge(|held| goes(held.in_port()));
        self.pool.read().retire(purged, DropReason::FragmentPurged);
        self.runtime.serve();
    }

    /// See [`Datapath::poll`](crate::Datapath::poll). `None` while threads run.
    pub fn poll(&mut self) -> Option<usize> {
        self.runtime.poll()
    }

    /// Posts a command to every worker, and has it executed where no thread drives them.
    pub fn tell(&mut self, command: impl Fn() -> Command) {
        self.pool.read().tell(command);
        self.runtime.serve();
    }

    /// Has workers that no thread drives execute their commands.
    pub fn serve(&mut self) {
        self.runtime.serve();
    }
}

#[cfg(test)]
impl ControlPlane {
    /// The runtime, where no threads run.
    pub fn inline(&mut self) -> &mut Inline {
        self.runtime.inline()
    }

    /// Wakes the handler of a worker's channel.
    pub fn notifier_of(&self, worker: usize, channel: usize) -> Arc<crate::slowpath::channel::Notifier> {
        self.handlers.of_channel(worker, channel).notifier.clone()
    }
}

/// Workers come and go.
impl ControlPlane {
    /// See [`Datapath::set_workers`](crate::Datapath::set_workers).
    pub fn set_workers(&mut self, cores: &[usize]) -> Result<(), Error> {
        let mut wanted: Vec<Option<usize>> = cores.iter().map(|&core| Some(core)).collect();
        if wanted.is_empty() {
            wanted.push(None);
        }
        let mut ending = Vec::new();
        for (number, worker) in self.pool.read().iter() {
            match wanted.iter().position(|core| *core == worker.core) {
                Some(at) => drop(wanted.swap_remove(at)),
                None => ending.push(number),
            }
        }
        wanted.sort();
        let mut added = Vec::new();
        for core in wanted {
            match self.add_worker(core) {
                Ok(number) => added.push(number),
                Err(error) => {
                    added.into_iter().for_each(|number| self.remove_worker(number));
                    return Err(error);
                }
            }
        }
        ending.iter().for_each(|&number| self.pool.write().end(number));
        if !(added.is_empty() && ending.is_empty()) {
            let pool = self.pool.read();
            ending.iter().filter_map(|&number| pool.get(number)).for_each(|worker| log_thread(worker, "destroyed"));
            added.iter().filter_map(|&number| pool.get(number)).for_each(|worker| log_thread(worker, "created"));
            drop(pool);
            self.log_workers();
        }
        self.schedule();
        ending.into_iter().for_each(|number| self.remove_worker(number));
        self.config.workers = cores.to_vec();
        Ok(())
    }

    /// Adds a worker without receive queues, and returns its number.
    fn add_worker(&mut self, core: Option<usize>) -> Result<usize, Error> {
        // What can fail comes before anything changes.
        let number = self.pool.read().next_number()?;
        let waker = Arc::new(Waker::default());
        let pinned_to = self.pinning(core);
        let seat = self.runtime.prepare_worker(number, pinned_to, &waker)?;
        let reader = self.pool.write().take_place(number)?;

        let (resources, Resources { table, clock, .. }) = (&self.resources, &self.resources);
        table.add_worker(number);
        let channels = Channel::all(&waker);
        let serving = self.handlers.serving(number);
        let sharing = match pinned_to {
            _ if self.config.topology.has_one_core() => Core::Only,
            Some(_) => Core::Own,
            None => Core::Shared,
        };
        let setup = WorkerSetup { number, reader, waker, channels: channels.clone(), serving, core: sharing };
        let mut worker = Worker::new(setup, &self.config, resources);
        let workers = self.pool.read().numbers().len() + 1;
        let tap = |tap| WorkerTap::new(tap, workers);
        self.taps.iter().for_each(|of| worker.executor.outputs.add_tap(tap(of), table, clock.now()));
        worker.executor.verify.set(self.verification.for_worker(table, workers));
        worker.set_perf(self.perf.for_worker(number, false));
        for (at, channel) in channels.iter().enumerate() {
            self.handlers.of_channel(number, at).channel_list.add(Served::new(channel.clone()));
        }
        let at = (core, self.config.topology.node_of(core));
        let handle = WorkerHandle::new(&worker, channels, at, clock.now());
        {
            let mut ports = self.ports.lock();
            queues::connect(&mut ports, &self.pool.read(), &mut *self.runtime, &mut worker);
        }
        self.pool.write().add(number, handle);
        self.runtime.add_worker(worker, seat);
        Ok(number)
    }

    /// Ends a worker that has no receive queues.
    fn remove_worker(&mut self, number: usize) {
        let (done, drained) = mpsc::channel();
        {
            let mut pool = self.pool.write();
            pool.end(number);
            let Some(worker) = pool.get(number) else { return };
            // Commands are executed in order, so earlier ones come before this.
            worker.mailbox.post(Command::Drain { reply: done });
        }
        self.runtime.settle();
        let _ = drained.recv();
        // Waiting packets are transmitted and counted before the counters are read for the last time.
        let ended = self.runtime.remove_worker(number).map(Worker::end);
        self.perf.forget(number);
        let Some(handle) = self.pool.write().remove(number) else { return };
        // A worker that has panicked keeps what it had; the process is about to end.
        let Some((reader, queues)) = ended else { return };
        // Nothing is outstanding, so the handler need not be waited for.
        for (at, channel) in handle.channels.iter().enumerate() {
            let handler = self.handlers.of_channel(number, at);
            drop(handler.channel_list.release(channel));
            handler.notifier.notify();
        }
        self.pool.write().give_place_back(number, reader);
        let mut ports = self.ports.lock();
        queues::disconnect(&mut ports, &self.pool.read(), &mut *self.runtime, number, queues);
    }
}

/// Transmit queues.
impl ControlPlane {
    /// See [`Datapath::set_tx_steering`](crate::Datapath::set_tx_steering).
    pub fn set_tx_steering(&mut self, port: PortNo, by_hash: bool) -> Result<(), Error> {
        let mut ports = self.ports.lock();
        let managed = ports.get_mut(port).ok_or(Error::NoSuchPort(port))?;
        queues::steer(managed, &self.pool.read(), &mut *self.runtime, by_hash);
        Ok(())
    }
}

/// Handlers come and go.
impl ControlPlane {
    /// How many handlers there are.
    pub fn handlers(&self) -> usize {
        self.handlers.count()
    }

    /// See [`Datapath::set_handlers`](crate::Datapath::set_handlers).
    pub fn set_handlers(&mut self, count: usize) -> Result<(), Error> {
        let (before, after) = (self.handlers.count(), count.clamp(1, self.handlers.max()));
        // What can fail comes before anything changes.
        let prepare = |number| {
            let handle = HandlerHandle::default();
            let seat = self.runtime.prepare_handler(number, &handle.notifier)?;
            Ok::<_, Error>((handle, seat))
        };
        let added = (before..after).map(prepare).collect::<Result<Vec<_>, _>>()?;

        for (handle, seat) in added {
            let Some(reader) = self.handlers.take_place() else { break };
            self.runtime.add_handler(self.new_handler(&handle, reader), seat);
            self.handlers.add(handle);
        }
        let channels = self.pool.read().iter().map(|(number, worker)| (number, worker.channels.clone())).collect();
        let moves = self.handlers.release(channels, before, after);
        self.runtime.serve();
        self.handlers.take_over(moves);
        for (number, worker) in self.pool.read().iter() {
            worker.mailbox.post(Command::SetHandlers(self.handlers.serving_of(number, after)));
        }
        self.runtime.serve();
        for _ in after..before {
            let handler = self.runtime.remove_handler();
            self.handlers.remove_last(handler.map(|handler| handler.reader));
        }
        self.config.handlers = after;
        Ok(())
    }

    fn new_handler(&self, handle: &HandlerHandle, reader: Reader) -> Handler {
        let Resources { clock, table, upcall, .. } = self.resources.clone();
        let channel_list = handle.channel_list.clone();
        Handler {
            channel_list,
            channels: Vec::new(),
            reader,
            table,
            upcall,
            clock,
            recent: ProgramCache::default(),
            new_flows: NewFlows::default(),
        }
    }
}

/// Receive queues move.
impl ControlPlane {
    /// See [`Datapath::set_rx_policy`](crate::Datapath::set_rx_policy).
    pub fn set_scheduling(&mut self, scheduling: Scheduling) {
        let old = std::mem::replace(&mut self.scheduling, scheduling);
        if old.policy != scheduling.policy {
            let policy = scheduling.policy.name();
            tracing::info!(target: schedule_log::TARGET, "Rxq to PMD assignment mode changed to: '{policy}'.");
        }
        if old.isolate != scheduling.isolate {
            let isolates = if scheduling.isolate { "isolates" } else { "does not isolate" };
            tracing::info!(target: schedule_log::TARGET, "pmd-rxq-affinity {isolates} PMD core");
        }
        if old != scheduling {
            self.schedule();
        }
    }

    /// Assigns the receive queues to the workers by the policy in force. When this returns, every queue has changed hands.
    pub fn schedule(&mut self) {
        let (moves, mailboxes, lines) = {
            let mut ports = self.ports.lock();
            let pool = self.pool.read();
            let (before, workers) = (ports.assignments(), pool.eligible());
            let assignments = scheduler::assign(self.scheduling, &ports.loads(), &workers);
            let moves = ports.reassign(assignments);
            let lines = Lines::new(self.scheduling, &ports, &before, &workers, &mut self.unpinnable);
            (moves, pool.mailboxes(), lines)
        };
        lines.write();
        queues::hand_over(moves, &mailboxes, &mut *self.runtime);
    }

    /// Moves receive queues where that is due and of use.
    pub fn balance(&mut self) {
        let inputs = || {
            let ports = self.ports.lock();
            let pool = self.pool.read();
            let worker = |worker: scheduler::EligibleWorker| (worker, pool.least_busy(worker.number));
            Inputs {
                scheduling: self.scheduling,
                queues: ports.loads(),
                assignments: ports.assignments(),
                workers: pool.eligible().into_iter().map(worker).collect(),
                elapsed: pool.elapsed().sum(),
            }
        };
        if self.balancer.decide(self.resources.clock.now(), inputs) {
            self.schedule();
        }
    }
}

fn log_thread(worker: &WorkerHandle, event: &str) {
    let (core, node) = (shown_core(worker.core), worker.node);
    tracing::info!(target: schedule_log::TARGET, "PMD thread on numa_id: {node}, core id: {core:2} {event}.");
}
