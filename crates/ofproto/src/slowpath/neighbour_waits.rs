//! The packets that wait for neighbours below tunnels.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use netstate::waiting::Waiting;
use packet::{Key, Packet};
use parking_lot::Mutex;

use crate::model::underlay::Question;
use crate::xlate::frozen::Frozen;

/// Most packets that wait.
const MAX_WAITING: usize = 1024;
/// Most packets that wait for one neighbour.
const MAX_WAITING_FOR_ONE: usize = 64;

/// A packet that waits for a neighbour.
pub(super) struct Waits {
    pub packet: Packet,
    pub key: Box<Key>,
    /// The recirculation id of the pipeline that goes on, and what keeps it.
    pub continuation: (u32, Arc<Frozen>),
    pub question: Arc<Question>,
}

/// The packets that wait.
pub(crate) struct NeighbourWaits {
    pub(super) waiting: Mutex<Waiting<Waits>>,
    /// How many were given up.
    pub(super) dropped: AtomicU64,
}

impl Default for NeighbourWaits {
    fn default() -> NeighbourWaits {
        let waiting = Mutex::new(Waiting::new(MAX_WAITING, MAX_WAITING_FOR_ONE));
        NeighbourWaits { waiting, dropped: AtomicU64::new(0) }
    }
}
