//! How many connections there are, and may be: of all zones together (`dpctl/ct-set-maxconns`), and of each
//! (`dpctl/ct-set-limits`, CT_Zone.limit).

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use super::Refused;
use crate::sync::{AtomicU64, Ordering};

/// The limit that Open vSwitch begins with.
pub const DEFAULT_LIMIT: u32 = 3_000_000;

/// Zones that there can be, and those whose counts lie together.
#[cfg(not(loom))]
const ZONES: usize = 1 << 16;
#[cfg(not(loom))]
const PAGE: usize = 256;
#[cfg(loom)]
const ZONES: usize = 1;
#[cfg(loom)]
const PAGE: usize = 1;

/// Counts and limits. A place is taken before a connection is made, so that the count is never above the limit.
pub struct Limits {
    connections: CachePadded<AtomicU64>,
    limit: AtomicU64,
    /// The limit of zones that have none of their own, and one; zero for none.
    default_zone: AtomicU64,
    zones: Box<[OnceLock<Box<[Zone]>>]>,
}

struct Zone {
    connections: AtomicU64,
    /// The zone's limit, and one; zero for none of its own.
    limit: AtomicU64,
}

impl Limits {
    pub(super) fn new(limit: u32) -> Limits {
        let limits = Limits {
            connections: CachePadded::new(AtomicU64::new(0)),
            limit: AtomicU64::new(limit.into()),
            default_zone: AtomicU64::new(0),
            zones: (0..ZONES / PAGE).map(|_| OnceLock::new()).collect(),
        };
        limits.zone(0);
        limits
    }

    fn zone(&self, zone: u16) -> &Zone {
        let new = || Zone { connections: AtomicU64::new(0), limit: AtomicU64::new(0) };
        let page = self.zones[usize::from(zone) % ZONES / PAGE].get_or_init(|| (0..PAGE).map(|_| new()).collect());
        &page[usize::from(zone) % PAGE]
    }

    /// Takes a place for a connection of a zone.
    pub(super) fn take(&self, zone: u16) -> Result<(), Refused> {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed) {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::Full);
        }
        let counted = self.zone(zone);
        let limit = self.zone_limit(zone).unwrap_or(u32::MAX);
        if counted.connections.fetch_add(1, Ordering::Relaxed) >= u64::from(limit) {
            counted.connections.fetch_sub(1, Ordering::Relaxed);
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::ZoneFull);
        }
        Ok(())
    }

    /// Gives a place back.
    pub(super) fn give(&self, zone: u16) {
        self.zone(zone).connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many connections there are, those included that are about to be refused.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many connections a zone has.
    pub fn zone_connections(&self, zone: u16) -> u64 {
        let page = self.zones[usize::from(zone) % ZONES / PAGE].get();
        page.map_or(0, |page| page[usize::from(zone) % PAGE].connections.load(Ordering::Relaxed))
    }

    /// How many connections there may be.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed) as u32
    }

    /// Sets how many connections there may be. Those beyond stay until they end.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit.into(), Ordering::Relaxed);
    }

    /// The limit that was set for a zone, zero for no limit; `None` where the default holds.
    pub fn own_limit(&self, zone: u16) -> Option<u32> {
        let page = self.zones[usize::from(zone) % ZONES / PAGE].get()?;
        let limit = page[usize::from(zone) % PAGE].limit.load(Ordering::Relaxed);
        limit.checked_sub(1).map(|limit| limit as u32)
    }

    /// The limit of zones that have none of their own; zero for no limit.
    pub fn default_zone_limit(&self) -> u32 {
        self.default_zone.load(Ordering::Relaxed).saturating_sub(1) as u32
    }

    /// The limit that holds for a zone; `None` for none.
    pub fn zone_limit(&self, zone: u16) -> Option<u32> {
        let own = match self.zones[usize::from(zone) % ZONES / PAGE].get() {
            Some(page) => page[usize::from(zone) % PAGE].limit.load(Ordering::Relaxed),
            None => 0,
        };
        let limit = if own == 0 { self.default_zone.load(Ordering::Relaxed) } else { own };
        // As in ovs-dpctl(8), a limit of zero is none.
        limit.checked_sub(1).filter(|limit| *limit != 0).map(|limit| limit as u32)
    }

    /// Sets the limit of a zone, or with `None` that of the default. Zero is for no limit.
    pub fn set_zone_limit(&self, zone: u16, limit: Option<u32>) {
        self.zone(zone).limit.store(limit.map_or(0, |limit| u64::from(limit) + 1), Ordering::Relaxed);
    }

    /// Sets the limit of zones that have none of their own.
    pub fn set_default_zone_limit(&self, limit: Option<u32>) {
        self.default_zone.store(limit.map_or(0, |limit| u64::from(limit) + 1), Ordering::Relaxed);
    }
}
