//! Workers: each forwards packets on one core, and does nothing else.
//!
//! A worker is a plain object. Its owner runs it turn by turn: a thread, or
//! [`Datapath::poll`](crate::Datapath::poll). Other threads ask it for something by a command in its [`Mailbox`],
//! which it reads between turns, and between batches of long turns. To check for commands costs one load.

mod answers;
mod commands;
mod contention;
pub mod fairness;
pub mod idle_policy;
pub mod idle_queues;
pub mod mailbox;
pub mod rx_queue;
pub mod setup;
mod thread;
pub mod time_cache;
mod turn;
pub mod waker;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use packet::{Clock, Time};

use crate::actions::execute::Executor;
use crate::classify::Table;
use crate::classify::batch::Caches;
use crate::perf::worker::WorkerPerf;
use crate::pipeline::batch::InFlight;
use crate::pipeline::recirculation::Deferred;
use crate::slowpath::channel::Down;
use crate::sync::rcu::Reader;
use crate::worker::commands::Leaving;
use crate::worker::fairness::Fairness;
use crate::worker::idle_policy::IdlePolicy;
use crate::worker::idle_queues::IdleQueues;
use crate::worker::mailbox::Mailbox;
use crate::worker::rx_queue::Rx;
use crate::worker::time_cache::TimeCache;

/// A worker.
pub struct Worker {
    /// The worker's number.
    pub number: usize,
    /// The worker as a reader of the RCU domain.
    pub reader: Reader,
    /// The flows.
    pub table: Arc<Table>,
    /// Its flow caches.
    pub caches: Caches,
    /// The batch that it is processing.
    pub in_flight: InFlight,
    /// Executes actions, and has the queues to output ports, to recirculation and to the slow path.
    pub executor: Executor,
    /// Recirculated packets that are left for later turns, by input port.
    pub deferred: Vec<Deferred>,
    /// How many batches have caused a recirculation storm.
    pub storms: u64,
    /// The receive queues that it polls.
    pub rx: Vec<Rx>,
    /// Idle receive queues, which it does not poll until they have frames.
    pub idle_queues: IdleQueues,
    /// Divides its time fairly among its receive queues.
    pub fairness: Fairness,
    /// Receive queues that it is about to give to other workers.
    pub leaving: Vec<Leaving>,
    /// Senders that are notified when no packet is outstanding in the slow path.
    pub draining: Vec<Sender<()>>,
    /// Commands of other threads.
    pub mailbox: Arc<Mailbox>,
    /// The queue by which packets come back from the slow path.
    pub returned: Arc<Down>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The longest sleep while a queue has to be polled; zero: it does not sleep then.
    pub max_sleep: Duration,
    /// Turns since the last one that had packets.
    pub empty_turns: u32,
    /// See [`Command::Report`].
    pub idle: bool,
    /// Decides when it sleeps.
    pub idle_policy: IdlePolicy,
    /// Time of the last housekeeping of the transmit queues.
    pub housekept: Time,
    /// Decides when it reads the clock.
    pub time_cache: TimeCache,
    /// Detailed performance metrics, if they are on.
    pub perf: Option<Box<WorkerPerf>>,
}
