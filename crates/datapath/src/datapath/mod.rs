//! The datapath as the rest of the switch sees it.

mod flows;
mod perf;
mod ports;
mod settings;
mod statistics;
mod taps;
mod verify;

pub use taps::Tap;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use packet::{Clock, Time};
use parking_lot::{Mutex, RwLock};

use crate::bond::Bonds;
use crate::classify::Table;
use crate::config::Config;
use crate::conntrack::Conntrack;
use crate::control::maintenance::Maintenance;
use crate::control::plane::ControlPlane;
use crate::control::pool::WorkerPool;
use crate::control::ports::PortTable;
use crate::control::resources::Resources;
use crate::error::Error;
use crate::sync::rcu::Domain;
use crate::sync::tsc;
use crate::upcall::Upcall;
use crate::worker::mailbox::{Command, Injections};

/// Ports, flows and the workers that forward between them.
///
/// Every method may be called from any thread, also from [`Upcall`]s, except where it says otherwise. The order of the
/// locks is in `control/mod.rs`.
pub struct Datapath {
    pub(crate) resources: Resources,
    pub(crate) ports: Arc<Mutex<PortTable>>,
    pub(crate) pool: Arc<RwLock<WorkerPool>>,
    maintenance: Arc<Maintenance>,
    pub(crate) injections: Arc<Injections>,
    pub(crate) control: Mutex<ControlPlane>,
}

/// Set up and shut down.
impl Datapath {
    /// A datapath without ports and flows. Its workers do not run until [`start`](Datapath::start);
    /// until then [`poll`](Datapath::poll) drives them.
    pub fn new(config: Config, clock: Arc<dyn Clock>) -> Arc<Datapath> {
        let cores: Vec<_> = config.workers.iter().map(|&core| Some(core)).collect();
        let cores = if cores.is_empty() { vec![None] } else { cores };
        let max_workers = config.max_workers.max(cores.len());
        // As many handlers as workers.
        let domain = Arc::new(Domain::new(2 * max_workers));
        let mut readers = domain.readers();
        let for_handlers = readers.split_off(max_workers);
        let table = Table::new(config.max_flows, config.max_masks, max_workers, config.seed, domain.clone());
        table.set_max_memory(config.max_flow_memory);
        // A secret of its own: the seed's hashes choose caches' sets.
        let secret = [config.seed[1] ^ 0x636f_6e6e, config.seed[0].rotate_left(32)];
        let conntrack = Arc::new(Conntrack::new(config.max_connections, secret));
        let bonds = Arc::new(Bonds::new(max_workers));
        let resources = Resources { clock, table: Arc::new(table), conntrack, bonds, domain, upcall: Arc::default() };
        let ports = Arc::new(Mutex::new(PortTable::default()));
        let pool = Arc::new(RwLock::new(WorkerPool::new(readers, tsc::cycles())));
        let maintenance = Arc::new(Maintenance::new(resources.clone(), ports.clone(), pool.clone()));
        let parts = (resources.clone(), ports.clone(), pool.clone(), maintenance.clone());
        let control = ControlPlane::new(config, parts, for_handlers, &cores);
        let control = Mutex::new(control.expect("there are as many places as workers, and no thread is started"));
        Arc::new(Datapath { resources, ports, pool, maintenance, injections: Arc::default(), control })
    }

    /// Connects the slow path. Until then every miss is dropped as an upcall error. Can be done once;
    /// later calls have no effect.
    pub fn set_upcall(&self, upcall: Arc<dyn Upcall>) {
        let _ = self.resources.upcall.set(upcall);
    }

    /// Starts the worker and handler threads. Without effect where they run.
    pub fn start(&self) -> Result<(), Error> {
        self.control.lock().start()
    }

    /// Stops the threads, after which [`poll`](Datapath::poll) drives the datapath again. Packets that
    /// wait for the slow path stay queued; fragments of datagrams that are not whole are dropped. Not to be called from an
    /// upcall.
    pub fn stop(&self) {
        let mut control = self.control.lock();
        control.stop();
        control.purge_fragments(|_| true);
    }

    /// Runs one turn of each worker in the calling thread, with the upcalls that it causes and what
    /// they send back, and returns how many packets were received. Deterministic. Without effect while
    /// threads run. Not to be called from an upcall.
    pub fn poll(&self) -> usize {
        let Some(received) = self.control.lock().poll() else { return 0 };
        self.maintenance.run();
        received
    }

    /// Work that is due now and then: ranks subtables, frees memory, notices changes of the ports' MTU
    /// and state. A handler thread does it every 100 ms; without threads, [`poll`](Datapath::poll) does.
    pub fn maintain(&self) {
        self.maintenance.run();
    }

    /// Connection tracking: the connections, their limits and timeouts.
    pub fn conntrack(&self) -> &Conntrack {
        &self.resources.conntrack
    }

    /// Bonds: outputs that choose a port for each packet.
    pub fn bonds(&self) -> &Arc<Bonds> {
        &self.resources.bonds
    }

    /// The present time, by the datapath's clock.
    pub fn now(&self) -> Time {
        self.resources.clock.now()
    }

    /// Returns when every worker has finished the batch that it is at. After [`modify`](Datapath::modify)
    /// and a barrier, no packet is treated by the old actions any more.
    pub fn barrier(&self) {
        self.resources.domain.synchronize();
    }

    /// Returns when all packets that came in before the call are processed, in the slow path as well: each worker has
    /// had a turn without work since then, and none of its packets is in the slow path. `false` where traffic goes on
    /// for longer than `timeout`. Not to be called from an upcall.
    pub fn settle(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        // The first answers say that a turn has begun that sees what came in; its end comes later.
        let mut idle = self.reports(deadline).map(|_| false);
        while idle == Some(false) && Instant::now() < deadline {
            std::thread::yield_now();
            idle = self.reports(deadline);
        }
        idle == Some(true)
    }

    /// Whether all workers report that they are idle; `None` where one does not answer in time.
    fn reports(&self, deadline: Instant) -> Option<bool> {
        self.poll();
        let (reply, answers) = mpsc::channel();
        self.control.lock().tell(|| Command::Report(reply.clone()));
        drop(reply);
        let mut idle = true;
        loop {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => idle &= answer,
                // All workers have answered.
                Err(mpsc::RecvTimeoutError::Disconnected) => return Some(idle),
                Err(mpsc::RecvTimeoutError::Timeout) => return None,
            }
        }
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.stop();
    }
}
