//! The workers, as the control plane knows them: their numbers, where commands for them go, and what they count.
//!
//! A worker's number is its index in everything that is kept for each worker: readers of the RCU domain, flow
//! counters, drops of each port. The next worker with a number continues with the counts of the one before, so
//! nothing is lost when a worker ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use packet::Time;

use crate::account::Account;
use crate::conntrack::fragments::Held;
use crate::control::load_history::LoadHistory;
use crate::control::scheduler::EligibleWorker;
use crate::drop::DropReason;
use crate::error::Error;
use crate::slowpath::channel::Channels;
use crate::stats::WorkerStats;
use crate::sync::counters::WorkerCounters;
use crate::sync::rcu::Reader;
use crate::worker::Worker;
use crate::worker::mailbox::{Command, Mailbox};

/// The workers that there are, and places for others.
pub struct WorkerPool {
    workers: BTreeMap<usize, WorkerHandle>,
    /// Places in the RCU domain of workers that do not exist, by number.
    vacant: BTreeMap<usize, Reader>,
    /// Workers that there can be.
    max_workers: usize,
    /// What workers that have ended have counted.
    ended: WorkerStats,
    /// The same since the start, regardless of resets.
    ended_ever: WorkerStats,
    /// Cycles that have passed, of which loads are a share.
    elapsed: LoadHistory,
}

/// A worker, as other threads know it.
pub struct WorkerHandle {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// The NUMA node of that.
    pub node: usize,
    /// Where commands for it go.
    pub mailbox: Arc<Mailbox>,
    /// Its ways to the slow path.
    pub channels: Channels,
    /// What it counts.
    counters: Arc<WorkerCounters>,
    /// Its counters when they were reset.
    base: WorkerStats,
    /// When this was, or when it came into being.
    since: Time,
    /// Its busy cycles.
    busy: LoadHistory,
    /// Whether it gets no further queues or commands, since it is about to end.
    ending: bool,
}

impl WorkerHandle {
    /// The handle of a new worker.
    pub fn new(worker: &Worker, channels: Channels, (core, node): (Option<usize>, usize), now: Time) -> WorkerHandle {
        WorkerHandle {
            core,
            node,
            mailbox: worker.mailbox.clone(),
            channels,
            counters: worker.executor.counters.clone(),
            base: WorkerStats::default(),
            since: now,
            busy: LoadHistory::default(),
            ending: false,
        }
    }

    fn stats(&self, number: usize, now: Time) -> WorkerStats {
        let counted_for = now.since(self.since);
        WorkerStats { number, core: self.core, node: self.node, counted_for, ..self.counters.read().since(&self.base) }
    }
}

/// Workers come and go.
impl WorkerPool {
    /// No workers, with a place for each of `readers`. `now` is the present value of the cycle counter.
    pub fn new(readers: Vec<Reader>, now: u64) -> WorkerPool {
        WorkerPool {
            workers: BTreeMap::new(),
            max_workers: readers.len(),
            vacant: readers.into_iter().enumerate().collect(),
            ended: WorkerStats::default(),
            ended_ever: WorkerStats::default(),
            elapsed: LoadHistory::starting_at(now),
        }
    }

    /// Workers that there can be.
    pub fn max_workers(&self) -> usize {
        self.max_workers
    }

    /// The number that the next worker gets.
    pub fn next_number(&self) -> Result<usize, Error> {
        self.vacant.keys().next().copied().ok_or(Error::TooManyWorkers(self.max_workers))
    }

    /// Takes a place in the RCU domain for the worker of this number.
    pub fn take_place(&mut self, number: usize) -> Result<Reader, Error> {
        self.vacant.remove(&number).ok_or(Error::TooManyWorkers(self.max_workers))
    }

    /// Adds a worker, which is ready for commands.
    pub fn add(&mut self, number: usize, worker: WorkerHandle) {
        self.workers.insert(number, worker);
    }

    /// Marks a worker as about to end: it gets nothing new to do.
    pub fn end(&mut self, number: usize) {
        if let Some(worker) = self.get_mut(number) {
            worker.ending = true;
        }
    }

    /// Removes a worker, which has stopped counting.
    pub fn remove(&mut self, number: usize) -> Option<WorkerHandle> {
        let worker = self.workers.remove(&number)?;
        let counted = worker.counters.read();
        self.ended_ever += &counted;
        self.ended += &counted.since(&worker.base);
        Some(worker)
    }

    /// Returns the reader of a removed worker.
    pub fn give_place_back(&mut self, number: usize, reader: Reader) {
        self.vacant.insert(number, reader);
    }
}

/// Who there is.
impl WorkerPool {
    /// The workers, by number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &WorkerHandle)> {
        self.workers.iter().map(|(&number, worker)| (number, worker))
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<usize> {
        self.workers.keys().copied().collect()
    }

    /// A worker.
    pub fn get(&self, number: usize) -> Option<&WorkerHandle> {
        self.workers.get(&number)
    }

    /// A worker, to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut WorkerHandle> {
        self.workers.get_mut(&number)
    }

    /// Where commands for each worker go.
    pub fn mailboxes(&self) -> BTreeMap<usize, Arc<Mailbox>> {
        self.iter().map(|(number, worker)| (number, worker.mailbox.clone())).collect()
    }

    /// Posts a command to every worker.
    pub fn tell(&self, command: impl Fn() -> Command) {
        self.workers.values().for_each(|worker| worker.mailbox.post(command()));
    }

    /// The workers that receive queues can be given to.
    pub fn eligible(&self) -> Vec<EligibleWorker> {
        let staying = self.iter().filter(|(_, worker)| !worker.ending);
        staying.map(|(number, worker)| EligibleWorker { number, core: worker.core, node: worker.node }).collect()
    }

    /// Has a worker drop fragments that were held to be tracked.
    pub fn retire(&self, fragments: Vec<Held>, reason: DropReason) {
        if !fragments.is_empty()
            && let Some(worker) = self.staying(None)
        {
            worker.mailbox.post(Command::Retire { fragments, reason });
        }
    }

    /// The worker of this number if it goes on, otherwise any that does.
    pub fn staying(&self, number: Option<usize>) -> Option<&WorkerHandle> {
        let wanted = number.and_then(|number| self.get(number)).filter(|worker| !worker.ending);
        wanted.or_else(|| self.workers.values().find(|worker| !worker.ending))
    }
}

/// What they have counted.
impl WorkerPool {
    /// Each worker's counters, and the sum of the workers that have ended.
    pub fn stats(&self, now: Time) -> (Vec<WorkerStats>, WorkerStats) {
        (self.iter().map(|(number, worker)| worker.stats(number, now)).collect(), self.ended.clone())
    }

    /// What has become of all packets since the start.
    pub fn account(&self) -> Account {
        let present: Vec<WorkerStats> = self.workers.values().map(|worker| worker.counters.read()).collect();
        Account::of(present.iter().chain([&self.ended_ever]))
    }

    /// Starts the counters from zero.
    pub fn reset_stats(&mut self, now: Time) {
        self.ended = WorkerStats::default();
        for worker in self.workers.values_mut() {
            (worker.base, worker.since) = (worker.counters.read(), now);
        }
    }

    /// Ends a step of the load histories. `now` is the present value of the cycle counter.
    pub fn end_step(&mut self, now: u64) {
        self.elapsed.step(now);
        for worker in self.workers.values_mut() {
            worker.busy.step(worker.counters.busy_cycles.get());
        }
    }

    /// Cycles that have passed, of which loads are a share.
    pub fn elapsed(&self) -> &LoadHistory {
        &self.elapsed
    }

    /// How busy each worker was in the last `steps` steps, in percent.
    pub fn usage(&self, steps: usize) -> BTreeMap<usize, Option<u8>> {
        self.iter().map(|(number, worker)| (number, worker.busy.percent_of(&self.elapsed, steps))).collect()
    }

    /// The least that a worker was busy in any step of the last minute, in percent.
    pub fn least_busy(&self, number: usize) -> Option<u8> {
        self.get(number)?.busy.least_percent_of(&self.elapsed)
    }
}
