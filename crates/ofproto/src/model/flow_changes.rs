//! Changes of a bridge's flows, for whoever is told of them as they are made.

use std::sync::Arc;

use openflow::FlowRemovedReason;
use openflow::monitor::FlowEvent;
use tunnel::fields::FieldTable;

use crate::events::SubscriptionId;
use crate::table::Rule;

/// A rule that was added, one that was removed, or one that replaced another.
pub(crate) struct RuleChange {
    pub old: Option<Arc<Rule>>,
    pub new: Option<Arc<Rule>>,
    /// What is told of it. `None`: nobody is told.
    pub event: Option<FlowEvent>,
}

impl RuleChange {
    /// The rule that was removed, and why.
    pub fn removed(&self) -> Option<(&Arc<Rule>, FlowRemovedReason)> {
        match (&self.old, self.event) {
            (Some(old), Some(FlowEvent::Removed(reason))) => Some((old, reason)),
            _ => None,
        }
    }
}

/// Who has asked for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The connection.
    pub subscription: SubscriptionId,
    /// The transaction id of its request.
    pub xid: u32,
}

/// What one transaction has changed.
pub(crate) struct FlowChanges<'a> {
    /// In the order in which they were made.
    pub changes: &'a [RuleChange],
    /// What the tun_metadata fields stand for.
    pub tlv: &'a Arc<FieldTable>,
    /// The transaction id of the request, where it is the watcher's own connection that has asked for the changes.
    pub own: Option<u32>,
}

/// Is told of all changes of a bridge's flows.
pub(crate) trait FlowWatcher: Send + Sync {
    /// Takes note of changes. Called with the tables locked, so that all changes come in their order: only what has to be
    /// done at once is done here.
    fn note(&self, changes: &FlowChanges<'_>);

    /// Does the rest. Called soon after, without a lock.
    fn settle(&self);
}
