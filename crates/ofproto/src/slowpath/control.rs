//! What operators have set in the slow path, and what revalidation remembers between rounds.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use datapath::FlowId;
use packet::flow::BlockId;
use packet::flow::field::FIELDS;
use packet::{Key, Mask, Time};

/// What operators can set.
#[derive(Default)]
pub(crate) struct Control {
    /// Flows match packets as exactly as they can.
    pub exact: AtomicBool,
    /// The datapath's flows are left as they are.
    pub paused: AtomicBool,
    /// Flows are logged whole.
    pub dumps_whole: AtomicBool,
}

/// Statistics of the rounds over the datapath's flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevalidationStats {
    /// How many there were.
    pub count: u64,
    /// How many of them found their flows by an index.
    pub indexed: u64,
    /// Flows, averaged over the rounds; the latest ones count most.
    pub average_flows: usize,
    /// Most flows that a round has seen.
    pub most_flows: usize,
    /// How long the last round took.
    pub duration: Duration,
    /// How many flows each revalidator has looked at in the last round.
    pub by_thread: Vec<usize>,
    /// How many flows were translated again because of changes.
    pub translated: u64,
}

impl RevalidationStats {
    /// Adds a round over all flows.
    pub(crate) fn note(&mut self, by_thread: Vec<usize>, duration: Duration) {
        let flows = by_thread.iter().sum();
        self.count += 1;
        self.average_flows = (self.average_flows + flows) / 2;
        self.most_flows = self.most_flows.max(flows);
        self.duration = duration;
        self.by_thread = by_thread;
    }
}

/// What revalidation remembers between rounds for changes.
#[derive(Default)]
pub(crate) struct Revalidation {
    /// Generation that the last round brought into force.
    pub generation: u64,
    /// When it ended, and how long it took.
    pub ended: Time,
    pub duration: Duration,
    /// Flows that were marked because of an address or a group (`mac_changes`), and are still to be looked at.
    pub marked: Vec<FlowId>,
    /// When those were last done with whose turn it was, and how long that took.
    pub macs_ended: Time,
    pub macs_took: Duration,
}

/// What is remembered between rounds for statistics.
#[derive(Default)]
pub(crate) struct StatisticsRounds {
    pub last: Time,
    pub last_collect: Time,
}

/// Adds every field that a packet with this key has. The tables' own fields are no part of a packet.
pub(crate) fn match_all(mask: &mut Mask, key: &Key) {
    for info in FIELDS {
        let own = match info.block() {
            BlockId::Pipeline | BlockId::Regs => true,
            block => block != BlockId::Common && block != BlockId::Ct && !key.present().has(block),
        };
        if !own && info.prereq.satisfied(key) {
            mask.set_exact(info.field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Field;

    #[test]
    fn a_flow_that_matches_all_has_the_packets_fields() {
        let (mut mask, mut key) = (Mask::wildcard(), Key::new());
        key.set(Field::DlType, 0x0800);
        key.set(Field::NwProto, 6);
        match_all(&mut mask, &key);
        for field in [Field::DlSrc, Field::NwSrc, Field::NwTtl, Field::TcpDst, Field::PktMark, Field::CtState] {
            assert!(mask.is_exact(field), "{field:?}");
        }
        for field in [Field::Reg0, Field::Metadata, Field::TunId, Field::NdTarget] {
            assert!(mask.is_wild(field), "{field:?}");
        }
    }

    #[test]
    fn the_average_follows_the_walks() {
        let mut stats = RevalidationStats::default();
        for flows in [vec![60, 40], vec![200], vec![50]] {
            stats.note(flows, Duration::from_millis(3));
        }
        assert_eq!((stats.average_flows, stats.most_flows), (87, 200));
    }
}
