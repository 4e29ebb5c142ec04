//! What the state of bridges and that of their ports both have.

use std::sync::atomic::AtomicU64;

/// Identity of a bridge, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BridgeId(pub u32);

/// Counters of a patch port or a tunnel port.
#[derive(Debug, Default)]
pub(crate) struct PatchCounters {
    pub rx_packets: AtomicU64,
    pub rx_bytes: AtomicU64,
    pub tx_packets: AtomicU64,
    pub tx_bytes: AtomicU64,
}
