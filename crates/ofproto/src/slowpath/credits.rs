//! How much of each datapath flow's counters has been credited to the rules it stands for.
//!
//! This is kept by flow, not in its record: a miss that installs the same flow again may replace the record at any
//! time. Each packet is credited once, whichever thread does it: the part of the counters that is new is taken under a
//! lock.

use datapath::{FlowId, FlowStats};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Shards, each with a lock of its own, so that revalidators seldom wait for each other.
const SHARDS: usize = 64;

/// Packets and bytes credited for a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Credited {
    packets: u64,
    bytes: u64,
}

impl Credited {
    /// The part of `stats` that is not credited yet. It counts as credited from now on.
    fn take(&mut self, stats: &FlowStats) -> FlowStats {
        let packets = stats.packets.saturating_sub(self.packets);
        let bytes = stats.bytes.saturating_sub(self.bytes);
        *self = Credited { packets: self.packets.max(stats.packets), bytes: self.bytes.max(stats.bytes) };
        FlowStats { packets, bytes, ..*stats }
    }
}

/// What has been credited of all flows.
pub(crate) struct Credits(Box<[Mutex<HashMap<FlowId, Credited>>]>);

impl Default for Credits {
    fn default() -> Credits {
        Credits((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl Credits {
    /// The part of a flow's counters that is to be credited now.
    pub fn take(&self, id: FlowId, stats: &FlowStats) -> FlowStats {
        self.shard(id).lock().entry(id).or_default().take(stats)
    }

    /// The part to be credited of a flow that was removed, which is not known any more afterwards.
    pub fn take_last(&self, id: FlowId, stats: &FlowStats) -> FlowStats {
        self.shard(id).lock().remove(&id).unwrap_or_default().take(stats)
    }

    fn shard(&self, id: FlowId) -> &Mutex<HashMap<FlowId, Credited>> {
        &self.0[id.0 as usize % SHARDS]
    }

    /// Flows that are known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_is_credited_once() {
        let credits = Credits::default();
        let stats = |packets| FlowStats { packets, bytes: 60 * packets, ..FlowStats::default() };
        let taken = |stats: FlowStats| (stats.packets, stats.bytes);
        assert_eq!(taken(credits.take(FlowId(1), &stats(3))), (3, 180));
        assert_eq!(taken(credits.take(FlowId(65), &stats(7))), (7, 420), "of the same shard");
        assert_eq!(taken(credits.take(FlowId(1), &stats(3))), (0, 0));
        assert_eq!(taken(credits.take(FlowId(1), &stats(2))), (0, 0), "an older reading adds nothing");
        assert_eq!(taken(credits.take_last(FlowId(1), &stats(5))), (2, 120));
        assert_eq!(credits.len(), 1);
    }
}
