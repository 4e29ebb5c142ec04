//! What the switch does, where other reports do not have it: receive queues, the slow path, tracked connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The answer of `weir/queues`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// Receive queues that are polled, by port and number.
    pub queues: Vec<QueueShow>,
}

/// A receive queue in [`Queues`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueShow {
    /// Name of the port.
    pub port: String,
    /// Number of the queue in the port.
    pub queue: usize,
    /// Number of the worker that polls it.
    pub worker: usize,
    /// The core of that.
    pub core: Option<usize>,
    /// Whether the configuration has tied it to a core (`pmd-rxq-affinity`).
    pub pinned: bool,
    /// Whether the device uses it.
    pub enabled: bool,
    /// What its packets have cost in the last 5 s, in percent of a core; `None` before that is known.
    pub busy_percent: Option<u8>,
}

/// The answer of `weir/upcalls`: the slow path, and the flows that it makes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Upcalls {
    /// Misses that were answered, since the start.
    pub misses: u64,
    /// Misses that were dropped.
    pub lost: u64,
    /// Of these, those that found the share of their port of the queue used up.
    pub queue_full: u64,
    /// Packets that an action gave to the slow path.
    pub punted: u64,
    /// Packets that the tables decide on one by one, and that were dropped because too many of them waited.
    pub overflown: u64,
    /// Handler threads (`n-handler-threads`).
    pub handlers: usize,
    /// Revalidator threads (`n-revalidator-threads`).
    pub revalidators: usize,
    /// Flows in the datapath now.
    pub flows: usize,
    /// Most flows that there may be (`flow-limit`).
    pub flow_limit: usize,
    /// Bytes that they take.
    pub flow_bytes: usize,
    /// Different masks of these flows.
    pub masks: usize,
    /// Ports whose flows ask for more masks than they may have (`megaflow-mask-limit`).
    pub mask_pressure: Vec<String>,
    /// Flows that had to make room for others, or for wider masks.
    pub evictions: u64,
    /// Rounds of the revalidators.
    pub rounds: u64,
    /// How long the last one took, in milliseconds.
    pub round_ms: u64,
    /// Flows that were translated again because of changes.
    pub translated: u64,
}

/// The answer of `weir/connections`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Tracked connections now.
    pub connections: u64,
    /// Most connections that there may be (`dpctl/ct-set-maxconns`).
    pub limit: u32,
    /// Connections that were made, since the start.
    pub made: u64,
    /// Connections that have ended, for whatever reason.
    pub ended: u64,
    /// Of these, those that had to make room for others.
    pub dropped_early: u64,
    /// What else was counted, by the names of `coverage/show`; without what has not occurred.
    pub counters: BTreeMap<String, u64>,
    /// How many zones have connections.
    pub zones_in_use: usize,
    /// The zones with the most connections, 64 at most.
    pub zones: Vec<ZoneShow>,
}

/// A zone in [`Connections`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneShow {
    /// Number.
    pub zone: u16,
    /// Connections.
    pub connections: u64,
    /// Most connections that it may have; `None` without a limit.
    pub limit: Option<u32>,
}
