//! Connection tracking as a stage of the pipeline. The tracker itself is the crate `conntrack`, which knows nothing of
//! packets' ways.
//!
//! | module | what it is |
//! |---|---|
//! | [`counters`] | Why packets are not tracked, and why connections are not made |
//! | [`flush`] | Ending many connections |
//! | [`fragments`] | Fragments at a ct action |
//! | [`metadata`] | Between the tracker's metadata and the flow key |
//! | [`stage`] | The ct action on one packet, and programs that begin with it on a run |
//! | [`fused`] | The whole way of established connections in one look-up |
//! | [`trail`] | What is known of a packet's way while it goes round |
//! | [`verify`] | What the short way reads of a packet |
//! | [`zones`] | Timeout policies by zone |

pub mod counters;
pub mod ends;
pub mod flush;
pub mod fragments;
pub mod fused;
pub mod metadata;
pub mod stage;
pub mod stepped;
pub mod trail;
pub mod verify;
pub mod zones;

use std::sync::atomic::{AtomicBool, Ordering};

use ::conntrack::Tracker;
use ::conntrack::fragments::Fragments;
use packet::Time;
use parking_lot::Mutex;

use counters::Counters;
use fragments::Held;
use zones::ZonePolicies;

/// What all workers of a datapath share for connection tracking. Nothing here is locked as a whole.
pub struct Conntrack {
    /// The tracker, with the table of connections.
    pub tracker: Tracker,
    /// What became of packets that have no connection.
    pub counters: Counters,
    /// The timeout policies of zones.
    pub zones: ZonePolicies,
    /// Fragments of datagrams that are not whole yet, and the options of their reassembly (`dpctl/ipf-*`).
    pub fragments: Fragments<Held>,
    /// The shard of the table at which expiry goes on. Held while it runs.
    expiry: Mutex<usize>,
    /// Whether established connections take the short way.
    fusing: AtomicBool,
}

/// Most connections that one run of the maintenance looks at.
const EXPIRE: usize = 1 << 17;

impl Conntrack {
    /// For so many connections. `secret` is 128 random bits.
    pub fn new(limit: u32, secret: [u64; 2]) -> Conntrack {
        Conntrack {
            tracker: Tracker::new(limit, secret),
            counters: Counters::default(),
            zones: ZonePolicies::default(),
            fragments: Fragments::new(),
            expiry: Mutex::default(),
            fusing: AtomicBool::new(true),
        }
    }

    /// Whether packets of established connections take the short way ([`fused`]). They do so from the start; switched off, it
    /// shows what that is worth.
    pub fn set_fusing(&self, on: bool) {
        self.fusing.store(on, Ordering::Relaxed);
    }

    /// What [`set_fusing`](Conntrack::set_fusing) was told.
    pub fn is_fusing(&self) -> bool {
        self.fusing.load(Ordering::Relaxed)
    }

    /// Fragments whose datagram was not whole in time. They are to be dropped and counted by a worker.
    pub fn expire_fragments(&self, now: Time) -> Vec<Held> {
        std::iter::from_fn(|| self.fragments.expire(now)).flatten().collect()
    }

    /// Removes connections whose time is over: a bounded part of them. To be called every tenth of a second or so.
    pub fn expire(&self, now: Time) {
        // Where another thread is at it, there is nothing to be done.
        let Some(mut shard) = self.expiry.try_lock() else { return };
        let mut left = EXPIRE;
        loop {
            let expired = self.tracker.table.expire(&mut shard, left, now);
            left = left.saturating_sub(expired.looked_at);
            if expired.finished || left == 0 {
                return;
            }
        }
    }
}
