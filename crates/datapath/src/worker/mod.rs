//! Workers: one forwards on one core, and does nothing else.
//!
//! A worker is a plain object that whoever owns it runs turn by turn: its thread, or
//! [`Datapath::poll`](crate::Datapath::poll). What others want of it they leave in its [`Mailbox`], which
//! it empties between turns, and in long ones between batches; looking costs it one load.

mod answers;
mod commands;
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
use crate::pipeline::batch::InFlight;
use crate::pipeline::recirculation::Deferred;
use crate::slowpath::queue::Channel;
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
    /// Its number.
    pub number: usize,
    /// Its place in the RCU domain.
    pub reader: Reader,
    /// The flows.
    pub table: Arc<Table>,
    /// What it remembers of flows.
    pub caches: Caches,
    /// The batch at work.
    pub in_flight: InFlight,
    /// What happens to packets.
    pub executor: Executor,
    /// Packets that are recirculated in later turns, by the port that they have come in on.
    pub deferred: Vec<Deferred>,
    /// Batches whose packets have become many by recirculation.
    pub storms: u64,
    /// What it polls.
    pub rx: Vec<Rx>,
    /// What it does not poll until there are frames.
    pub idle_queues: IdleQueues,
    /// Whether what it polls shares its time.
    pub fairness: Fairness,
    /// What it is about to give away.
    pub leaving: Vec<Leaving>,
    /// Who waits for all packets to have come back.
    pub draining: Vec<Sender<()>>,
    /// What it is asked to do.
    pub mailbox: Arc<Mailbox>,
    /// To and from the slow path.
    pub channel: Arc<Channel>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Longest sleep where a queue has to be polled; zero: none.
    pub max_sleep: Duration,
    /// Turns without a packet since the last one with.
    pub empty_turns: u32,
    /// See [`Command::Report`].
    pub idle: bool,
    /// What it has learnt about sleep.
    pub idle_policy: IdlePolicy,
    /// When the transmit queues were reaped last.
    pub housekept: Time,
    /// How often it looks at clocks.
    pub time_cache: TimeCache,
}
