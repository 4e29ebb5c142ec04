//! Periodic work: enforces limits, frees memory, hands over evicted flows, ranks subtables, checks ports and measures
//! loads.

use std::sync::Arc;
use std::time::Duration;

use packet::Time;
use parking_lot::{Mutex, RwLock};

use crate::control::load_history;
use crate::control::pool::WorkerPool;
use crate::control::ports::PortTable;
use crate::control::resources::Resources;
use crate::drop::DropReason;
use crate::sync::tsc;

/// How often it runs where a thread runs it.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// How often subtables are ranked and ports are checked.
const RANK: Duration = Duration::from_secs(1);

/// The maintenance of a datapath. Any thread may run it that holds none of the locks.
pub struct Maintenance {
    resources: Resources,
    ports: Arc<Mutex<PortTable>>,
    pool: Arc<RwLock<WorkerPool>>,
    last: Mutex<LastTimes>,
}

/// When something was done last.
struct LastTimes {
    /// Subtables were ranked and ports checked.
    ranked: Time,
    /// A step of the load histories ended.
    measured: Time,
}

impl Maintenance {
    /// Of these parts. What is due at intervals counts from now on.
    pub fn new(resources: Resources, ports: Arc<Mutex<PortTable>>, pool: Arc<RwLock<WorkerPool>>) -> Maintenance {
        let now = resources.clock.now();
        Maintenance { resources, ports, pool, last: Mutex::new(LastTimes { ranked: now, measured: now }) }
    }

    /// Does what is due.
    pub fn run(&self) {
        let Resources { clock, table, conntrack, domain, .. } = &self.resources;
        domain.collect();
        table.enforce_limits();
        if table.has_evicted() {
            self.resources.hand_over(table.take_evicted());
        }
        let now = clock.now();
        conntrack.expire(now);
        self.pool.read().retire(conntrack.expire_fragments(now), DropReason::FragmentExpired);
        let (rank, measure) = self.last.lock().due(now);
        if rank {
            table.rank(now);
            let ports = self.ports.lock().all();
            ports.iter().for_each(|port| port.refresh());
        }
        if measure {
            let mut ports = self.ports.lock();
            ports.end_step();
            self.pool.write().end_step(tsc::cycles());
        }
    }
}

impl LastTimes {
    /// Whether to rank and whether to measure now. Records it as done.
    fn due(&mut self, now: Time) -> (bool, bool) {
        let is_due = |last: &mut Time, interval| {
            let due = now.since(*last) >= interval;
            if due {
                *last = now;
            }
            due
        };
        (is_due(&mut self.ranked, RANK), is_due(&mut self.measured, load_history::STEP))
    }
}
