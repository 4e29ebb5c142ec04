//! Set-up and end of a worker.

use std::sync::Arc;

use packet::Time;

use crate::action::PortNo;
use crate::actions::execute::Executor;
use crate::actions::sample::Sampler;
use crate::classify::batch::Caches;
use crate::config::Config;
use crate::control::resources::Resources;
use crate::pipeline::batch::InFlight;
use crate::pipeline::join_policy::JoinPolicy;
use crate::pipeline::port::Queue;
use crate::pipeline::tx::Outputs;
use crate::slowpath::channel::{Channels, ServingHandlers};
use crate::slowpath::queue::MissQueue;
use crate::sync::counters::WorkerCounters;
use crate::sync::rcu::Reader;
use crate::verify::worker::VerifySampler;
use crate::worker::Worker;
use crate::worker::fairness::Fairness;
use crate::worker::idle_policy::{Core, IdlePolicy};
use crate::worker::idle_queues::IdleQueues;
use crate::worker::mailbox::Mailbox;
use crate::worker::time_cache::TimeCache;
use crate::worker::waker::Waker;

/// What differs from worker to worker at its start.
pub struct WorkerSetup {
    /// Its number.
    pub number: usize,
    /// The worker as a reader of the RCU domain.
    pub reader: Reader,
    /// Wakes it.
    pub waker: Arc<Waker>,
    /// Its channels to the slow path.
    pub channels: Channels,
    /// The handlers that serve them.
    pub serving: ServingHandlers,
    /// Who else runs where it does.
    pub core: Core,
}

impl Worker {
    /// A worker without ports.
    pub fn new(setup: WorkerSetup, config: &Config, resources: &Resources) -> Worker {
        let Resources { table, clock, conntrack, bonds, .. } = resources;
        let WorkerSetup { number, reader, waker, channels, serving, core } = setup;
        let returned = channels[0].down.clone();
        let counters = Arc::new(WorkerCounters::default());
        let executor = Executor {
            outputs: Outputs::new(number, config.tx_flush_interval, counters.clone(), bonds.clone()),
            recirculation: Default::default(),
            misses: MissQueue::new(channels, serving, config.upcall_queue),
            counters,
            now: clock.now(),
            max_depth: config.max_depth,
            vlan_limit: config.vlan_limit,
            scratch: Vec::new(),
            tunnelled: Box::default(),
            tunnelled_from: PortNo(0),
            hasher: table.hasher.clone(),
            // Workers have distances of their own.
            sampler: Sampler::new(config.seed[0].rotate_left(32) ^ number as u64),
            verify: VerifySampler::new(config.seed[1] ^ number as u64),
            conntrack: conntrack.clone(),
            unestablished: 0,
            unestablished_cycles: 0,
            join_policy: JoinPolicy::default(),
            reassemblies: 0,
        };
        let mut caches = Caches::new(config.exact_entries, config.seed);
        caches.set_one_in(config.exact_one_in);
        Worker {
            number,
            reader,
            table: table.clone(),
            caches,
            in_flight: InFlight::new(config.vlan_limit),
            executor,
            deferred: Vec::new(),
            storms: 0,
            rx: Vec::new(),
            idle_queues: IdleQueues::default(),
            fairness: Fairness::default(),
            leaving: Vec::new(),
            draining: Vec::new(),
            mailbox: Arc::new(Mailbox::new(waker)),
            returned,
            clock: clock.clone(),
            max_sleep: config.max_sleep,
            empty_turns: 0,
            idle: false,
            idle_policy: IdlePolicy::new(core),
            housekept: Time(0),
            time_cache: TimeCache::default(),
            perf: None,
        }
    }

    /// Ends the worker: transmits what waits, and drops and counts what is still to be recirculated. Returns its RCU
    /// reader and its transmit queues.
    pub fn end(mut self) -> (Reader, Vec<(PortNo, Queue)>) {
        self.retire_deferred();
        let queues = self.executor.outputs.dismantle(self.executor.now);
        (self.reader, queues)
    }
}
