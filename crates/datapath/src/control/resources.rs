//! What workers, handlers and callers of a datapath use together. None of it is locked here, and none of it changes
//! once the slow path is connected.

use std::sync::{Arc, OnceLock};

use packet::Clock;

use crate::bond::Bonds;
use crate::classify::Table;
use crate::conntrack::Conntrack;
use crate::sync::rcu::Domain;
use crate::upcall::{RemovedFlow, Upcall};

/// The clock, the flows, the domain of deferred freeing, and the slow path.
#[derive(Clone)]
pub struct Resources {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The flows.
    pub table: Arc<Table>,
    /// Connection tracking.
    pub conntrack: Arc<Conntrack>,
    /// Bonds.
    pub bonds: Arc<Bonds>,
    /// Delays freeing until no worker or handler uses what was unlinked.
    pub domain: Arc<Domain>,
    /// The slow path, once it is connected.
    pub upcall: Arc<OnceLock<Arc<dyn Upcall>>>,
}

impl Resources {
    /// Hands flows that were evicted to the slow path.
    pub fn hand_over(&self, evicted: Vec<RemovedFlow>) {
        if let Some(upcall) = self.upcall.get().filter(|_| !evicted.is_empty()) {
            upcall.evicted(evicted);
        }
    }
}
