//! What the state of bridges and that of their ports both have.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ports::Stats;

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

impl PatchCounters {
    /// The counters as those of a port, which has no others.
    pub fn stats(&self) -> Stats {
        Stats {
            rx_packets: self.rx_packets.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            tx_packets: self.tx_packets.load(Relaxed),
            tx_bytes: self.tx_bytes.load(Relaxed),
            rx_dropped: Stats::UNKNOWN,
            rx_errors: Stats::UNKNOWN,
            rx_frame_err: Stats::UNKNOWN,
            rx_over_err: Stats::UNKNOWN,
            rx_crc_err: Stats::UNKNOWN,
            tx_dropped: Stats::UNKNOWN,
            tx_errors: Stats::UNKNOWN,
            collisions: Stats::UNKNOWN,
        }
    }
}
