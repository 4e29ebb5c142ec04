//! What neighbours are to be told after a failover: see `bonds`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::forwarding::BridgeId;
use crate::model::mac::MacKey;

/// An address, with the bridge and the bond by which it is announced.
pub(crate) type Announcement = (BridgeId, Arc<str>, MacKey);

/// Announcements that wait. There are no more of a bond than addresses in its bridge's table.
#[derive(Default)]
pub(crate) struct Announcements(VecDeque<Announcement>);

impl Announcements {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes so many at most, and says whether there are more.
    pub fn take(&mut self, most: usize) -> (Vec<Announcement>, bool) {
        let count = self.0.len().min(most);
        let some = self.0.drain(..count).collect();
        (some, !self.0.is_empty())
    }

    /// Puts those of a bond in the place of what is left of an earlier failover.
    pub fn replace(&mut self, bridge: BridgeId, bond: &str, all: Vec<Announcement>) {
        self.0.retain(|(of_bridge, of_bond, _)| *of_bridge != bridge || **of_bond != *bond);
        self.0.extend(all);
    }
}
