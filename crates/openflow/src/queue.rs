//! Queues of ports, as they are configured.

use crate::types::OfPort;

/// A queue (`struct ofp_packet_queue`, `struct ofp14_queue_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueConfig {
    /// Port.
    pub port: OfPort,
    /// Queue.
    pub queue: u32,
    /// Guaranteed rate in thousandths of the port's; `None` where none is set.
    pub min_rate: Option<u16>,
    /// Highest rate in thousandths of the port's; `None` where none is set. Not in OpenFlow 1.0.
    pub max_rate: Option<u16>,
}

impl QueueConfig {
    /// Every queue, in requests (`OFPQ_ALL`).
    pub const ALL: u32 = u32::MAX;
}
