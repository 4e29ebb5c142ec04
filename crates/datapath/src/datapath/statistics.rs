//! Statistics of the datapath.

use crate::account::Account;
use crate::action::PortNo;
use crate::control::load_history;
use crate::datapath::Datapath;
use crate::stats::{Drops, Stats, Usage};
use crate::sync::tsc;

impl Datapath {
    /// Counters of the workers and ports.
    pub fn stats(&self) -> Stats {
        let ports = self.ports.lock();
        Stats { ports: ports.drops(), ..self.worker_stats() }
    }

    /// What was dropped at the ports from this number on, at most so many, with the name of each. Each worker has counters of its own
    /// for each port and reason: with many of both, this is how they are read in pieces.
    pub fn port_drops(&self, from: PortNo, most: usize) -> Vec<(PortNo, String, Drops)> {
        self.ports.lock().drops_from(from, most)
    }

    /// Counters without those of ports.
    pub fn worker_stats(&self) -> Stats {
        let (workers, ended) = self.pool.read().stats(self.now());
        let table = &self.resources.table;
        Stats {
            workers,
            ended,
            ports: Vec::new(),
            flows: table.count(),
            masks: table.masks(),
            flow_bytes: table.bytes(),
            evictions: table.evictions(),
            cycles_per_second: tsc::frequency(),
        }
    }

    /// What has become of all packets since the start.
    pub fn account(&self) -> Account {
        self.pool.read().account()
    }

    /// How busy queues and workers were in the last `seconds`, of which the last minute is known, in steps
    /// of five seconds; since queues were last assigned to workers.
    pub fn usage(&self, seconds: u64) -> Usage {
        let steps = seconds.div_ceil(load_history::STEP.as_secs()) as usize;
        let (ports, pool) = (self.ports.lock(), self.pool.read());
        let steps = steps.min(ports.comparable_steps());
        Usage { queues: ports.usage(pool.elapsed(), steps), workers: pool.usage(steps) }
    }

    /// Starts the counters of workers and ports from zero.
    pub fn reset_stats(&self) {
        let mut ports = self.ports.lock();
        self.pool.write().reset_stats(self.now());
        ports.reset_drops();
        drop(ports);
        self.restart_perf();
    }
}
