//! Groups of a bridge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openflow::action::Action;
use openflow::group::GroupSpec;
use openflow::{GroupId, OfPort};
use packet::Time;

use super::selector::Selector;

/// A group. It never changes but for its counters: a modification replaces it.
#[derive(Debug)]
pub struct Group {
    /// Number.
    pub id: GroupId,
    /// What it is.
    pub spec: GroupSpec,
    /// How it chooses, if it is a select group.
    pub selector: Selector,
    /// When it was added.
    pub created: Time,
    /// Counters of the group.
    pub stats: Arc<GroupCounters>,
    /// Counters of each bucket.
    pub buckets: Box<[Arc<GroupCounters>]>,
}

/// Counters of a group or a bucket.
#[derive(Debug, Default)]
pub struct GroupCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl GroupCounters {
    /// Adds packets.
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Packets and bytes so far.
    pub fn get(&self) -> (u64, u64) {
        (self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }
}

impl Group {
    /// A group with counters at zero.
    pub fn new(id: GroupId, spec: GroupSpec, created: Time) -> Group {
        let buckets = spec.buckets.iter().map(|_| Arc::default()).collect();
        let selector = Selector::of(id, &spec);
        Group { id, spec, selector, created, stats: Arc::default(), buckets }
    }
}

/// Whether one of the actions sends packets through this group.
pub(crate) fn uses_group(actions: &[Action], group: GroupId) -> bool {
    actions.iter().any(|action| match action {
        Action::Group(id) => *id == group,
        Action::Clone(inner) => uses_group(inner, group),
        _ => false,
    })
}

/// Whether one of the actions sends packets to this port.
pub(crate) fn outputs_to(actions: &[Action], to: OfPort) -> bool {
    actions.iter().any(|action| match action {
        Action::Output { port, .. } | Action::Enqueue { port, .. } | Action::OutputTrunc { port, .. } => *port == to,
        Action::Controller(_) => to == OfPort::CONTROLLER,
        Action::Clone(inner) => outputs_to(inner, to),
        _ => false,
    })
}
