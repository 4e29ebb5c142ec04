//! What operators may do to the slow path while it runs, and what it tells about itself: `upcall/...` and
//! `revalidator/...` of OVS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datapath::FlowId;
use packet::flow::BlockId;
use packet::flow::field::FIELDS;
use packet::{Key, Mask};

use crate::switch::Switch;

/// Switches of the slow path.
#[derive(Default)]
pub(crate) struct Control {
    /// Flows match packets as exactly as they can.
    exact: AtomicBool,
    /// The datapath's flows are left as they are.
    paused: AtomicBool,
}

/// What the walks over the datapath's flows have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// How many there were.
    pub count: u64,
    /// Flows, averaged over the walks; the latest ones count most.
    pub average_flows: usize,
    /// Most flows that a walk has seen.
    pub most_flows: usize,
    /// How long the last walk took.
    pub duration: Duration,
    /// How many flows each revalidator has looked at in the last walk.
    pub by_thread: Vec<usize>,
}

impl Walks {
    /// Takes note of a walk.
    pub(crate) fn note(&mut self, by_thread: Vec<usize>, duration: Duration) {
        let flows = by_thread.iter().sum();
        self.count += 1;
        self.average_flows = (self.average_flows + flows) / 2;
        self.most_flows = self.most_flows.max(flows);
        self.duration = duration;
        self.by_thread = by_thread;
    }
}

impl Switch {
    /// Whether one datapath flow may be for many connections, which is how it starts. Without, each flow
    /// matches all that its packets have. Removes the flows that there are.
    pub fn set_megaflows(&self, enabled: bool) {
        self.control.exact.store(!enabled, Ordering::Relaxed);
        self.purge();
    }

    /// Stops the walks over the datapath's flows that are not asked for: no flow is brought up to date,
    /// none expires, until they are let go on.
    pub fn set_paused(&self, paused: bool) {
        self.control.paused.store(paused, Ordering::Relaxed);
        if !paused {
            self.notify();
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.control.paused.load(Ordering::Relaxed)
    }

    /// What the walks over the datapath's flows have seen.
    pub fn walks(&self) -> Walks {
        self.revalidation.lock().walks.clone()
    }

    /// Removes a datapath flow and counts its last packets. Whether there was one.
    pub fn remove_datapath_flow(&self, id: FlowId) -> bool {
        let Some(datapath) = self.datapath.get() else { return false };
        let removed = datapath.remove_all(&[id]);
        let found = !removed.is_empty();
        self.credit_removed(removed);
        found
    }

    /// The mask of a flow for packets with this key, whose translation depends on `mask`.
    pub(crate) fn mask_of_flow(&self, mut mask: Box<Mask>, key: &Key) -> Box<Mask> {
        if self.control.exact.load(Ordering::Relaxed) {
            match_all(&mut mask, key);
        }
        mask
    }
}

/// Adds every field that a packet with this key has. The tables' own fields are no part of a packet.
fn match_all(mask: &mut Mask, key: &Key) {
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
        let mut walks = Walks::default();
        for flows in [vec![60, 40], vec![200], vec![50]] {
            walks.note(flows, Duration::from_millis(3));
        }
        assert_eq!((walks.average_flows, walks.most_flows), (87, 200));
    }
}
