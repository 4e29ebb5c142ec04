//! The guest of one port, as the port's threads know it.
//!
//! Sharing between threads: librte_vhost's thread writes what it reports, through [`super::driver`];
//! workers read it once for each burst, inside their [`Presence`]; the management thread asks
//! librte_vhost about the guest while it holds `control`, which whoever takes the guest away locks too.
//! `vring_changed` is called with the rings locked, and therefore locks nothing.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::Offloads;
use crate::dpdk::mempool::{Mempool, PoolRef};
use crate::virtual_port::VirtualPort;

use super::counters::Counts;
use super::presence::{Inside, Presence, wait_until_absent};

/// The most pairs of queues that a guest has (`VHOST_MAX_QUEUE_PAIRS` of librte_vhost).
pub const MAX_PAIRS: usize = 128;

/// In the place of a guest's number: there is none. In the place of a queue's: none is enabled.
const NONE: i32 = -1;

/// A port's guest, or its absence.
pub struct Guest {
    /// The port's own state.
    pub state: VirtualPort,
    /// The path of the socket.
    pub socket: PathBuf,
    /// Weir connects to the socket, rather than making it.
    pub client: bool,
    /// Counters that outlive a guest.
    pub counts: Counts,
    /// `tx-retries-max`.
    pub retries: AtomicU8,
    /// librte_vhost's number of the guest; [`NONE`] without one.
    vid: AtomicI32,
    /// Features that were negotiated.
    features: AtomicU64,
    /// Which queues to receive from are enabled.
    rx: [AtomicBool; MAX_PAIRS],
    /// Which queues to send to are enabled.
    tx: [AtomicBool; MAX_PAIRS],
    /// The guest's queue for each of ours to send by: an enabled one, or `u16::MAX`.
    tx_map: [AtomicU16; MAX_PAIRS],
    /// Pairs of queues that there have been at most.
    pairs: AtomicU16,
    /// Of all queues that were made.
    presences: Mutex<Vec<Arc<Presence>>>,
    /// Held while the guest is asked something, or is taken away.
    control: Mutex<()>,
    /// Where received frames are put.
    pool: AtomicPtr<Mempool>,
    pools: Mutex<Vec<PoolRef>>,
}

impl Guest {
    /// No guest yet.
    pub fn new(state: VirtualPort, socket: PathBuf, client: bool, retries: u8, pool: PoolRef) -> Guest {
        state.set_carrier(false);
        let guest = Guest {
            state,
            socket,
            client,
            counts: Counts::default(),
            retries: AtomicU8::new(retries),
            vid: AtomicI32::new(NONE),
            features: AtomicU64::new(0),
            rx: [const { AtomicBool::new(false) }; MAX_PAIRS],
            tx: [const { AtomicBool::new(false) }; MAX_PAIRS],
            tx_map: [const { AtomicU16::new(u16::MAX) }; MAX_PAIRS],
            pairs: AtomicU16::new(1),
            presences: Mutex::default(),
            control: Mutex::default(),
            pool: AtomicPtr::default(),
            pools: Mutex::default(),
        };
        guest.set_pool(pool);
        guest
    }

    /// Has frames received into another pool.
    pub fn set_pool(&self, pool: PoolRef) {
        self.pool.store(std::ptr::from_ref(pool.leak()).cast_mut(), Ordering::Release);
        // The ones before may still be in use by a burst.
        self.pools.lock().push(pool);
    }

    /// Where received frames are put.
    #[inline(always)]
    pub fn pool(&self) -> &'static Mempool {
        // SAFETY: `set_pool` stored a reference that lives as long as the process.
        unsafe { &*self.pool.load(Ordering::Acquire) }
    }
}

/// For workers.
impl Guest {
    /// A place for one more queue to say that it is in the guest's rings.
    pub fn new_presence(&self) -> Arc<Presence> {
        let presence = Arc::new(Presence::default());
        let mut all = self.presences.lock();
        all.retain(|old| Arc::strong_count(old) > 1);
        all.push(presence.clone());
        presence
    }

    /// Enters the guest's rings, if there is a guest and the port is enabled: the guest's number is good
    /// until the second value is dropped.
    #[inline(always)]
    pub fn enter<'a>(&self, presence: &'a Presence) -> Option<(i32, Inside<'a>)> {
        let inside = presence.enter();
        let vid = self.vid.load(Ordering::Acquire);
        (vid != NONE && self.state.running()).then_some((vid, inside))
    }

    /// Whether the guest sends by queue `index`.
    #[inline(always)]
    pub fn receives(&self, index: usize) -> bool {
        self.rx[index].load(Ordering::Relaxed)
    }

    /// The guest's queue that our queue `index` sends to.
    #[inline(always)]
    pub fn sends_to(&self, index: usize) -> Option<u16> {
        let queue = self.tx_map[index % MAX_PAIRS].load(Ordering::Relaxed);
        (queue != u16::MAX).then_some(queue)
    }

    /// Whether the guest's rings are packed ones.
    pub fn has_packed_rings(&self) -> bool {
        self.features.load(Ordering::Relaxed) & 1 << dpdk_sys::VIRTIO_F_RING_PACKED != 0
    }

    /// What the guest takes unfinished.
    #[inline]
    pub fn offloads(&self) -> Offloads {
        offloads(self.features.load(Ordering::Relaxed))
    }
}

/// What a guest with these features takes unfinished.
fn offloads(features: u64) -> Offloads {
    let has = |bit: u32| features & 1 << bit != 0;
    let csum = has(dpdk_sys::VIRTIO_NET_F_GUEST_CSUM);
    Offloads {
        csum,
        tso4: csum && has(dpdk_sys::VIRTIO_NET_F_GUEST_TSO4),
        tso6: csum && has(dpdk_sys::VIRTIO_NET_F_GUEST_TSO6),
        // librte_vhost has no word for it.
        uso: false,
        tunnels: false,
        datagrams: false,
    }
}

/// For librte_vhost's thread.
impl Guest {
    /// A guest is ready. `pairs` of queues were announced.
    pub fn connected(&self, vid: i32, features: u64, pairs: u16) {
        self.features.store(features, Ordering::Relaxed);
        self.want_pairs(pairs);
        self.vid.store(vid, Ordering::SeqCst);
        self.state.set_carrier(true);
    }

    /// The guest's features have changed (logging of writes, while it is migrated).
    pub fn features_changed(&self, features: u64) {
        self.features.store(features, Ordering::Relaxed);
    }

    /// The guest goes. When this returns, nobody uses it any more.
    pub fn disconnected(&self, vid: i32) {
        let _control = self.control.lock();
        self.vid.store(NONE, Ordering::SeqCst);
        self.state.set_carrier(false);
        let presences = self.presences.lock().clone();
        wait_until_absent(presences.iter().map(|presence| &**presence));
        self.counts.keep(vid, self.pairs());
    }

    /// The guest's side has closed the connection: what its queues were counts no more.
    pub fn reset_queues(&self) {
        self.rx.iter().chain(&self.tx).for_each(|enabled| enabled.store(false, Ordering::Relaxed));
        self.remap();
    }

    /// The guest enables or disables a ring. Locks nothing.
    pub fn vring_changed(&self, vring: u16, enabled: bool) {
        let pair = usize::from(vring / 2);
        if pair >= MAX_PAIRS {
            return;
        }
        // Rings that the guest sends by have odd numbers (virtio 1.2 section 5.1.2).
        match vring % 2 {
            0 => {
                self.tx[pair].store(enabled, Ordering::Relaxed);
                self.remap();
            }
            _ => self.rx[pair].store(enabled, Ordering::Relaxed),
        }
        if enabled {
            self.want_pairs(pair as u16 + 1);
        }
    }

    /// Spreads our queues over the enabled ones of the guest; one that is enabled serves its own number.
    fn remap(&self) {
        let enabled: Vec<u16> =
            (0..MAX_PAIRS as u16).filter(|&q| self.tx[usize::from(q)].load(Ordering::Relaxed)).collect();
        let mut others = enabled.iter().copied().cycle();
        for (index, place) in self.tx_map.iter().enumerate() {
            let own = self.tx[index].load(Ordering::Relaxed);
            let queue = if own { Some(index as u16) } else { others.next() };
            place.store(queue.unwrap_or(u16::MAX), Ordering::Relaxed);
        }
    }

    fn want_pairs(&self, pairs: u16) {
        self.pairs.fetch_max(pairs.min(MAX_PAIRS as u16), Ordering::Relaxed);
    }
}

/// For the management thread.
impl Guest {
    /// Pairs of queues that there have been at most.
    pub fn pairs(&self) -> u16 {
        self.pairs.load(Ordering::Relaxed)
    }

    /// Asks the guest, which stays meanwhile; `None` without one. `ask` takes no lock of librte_vhost's
    /// but that of a ring.
    pub fn ask<R>(&self, ask: impl FnOnce(i32) -> R) -> Option<R> {
        let _control = self.control.lock();
        let vid = self.vid.load(Ordering::Acquire);
        (vid != NONE).then(|| ask(vid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_need_checksums() {
        let bit = |bit: u32| 1u64 << bit;
        let tso = bit(dpdk_sys::VIRTIO_NET_F_GUEST_TSO4) | bit(dpdk_sys::VIRTIO_NET_F_GUEST_TSO6);
        assert_eq!(offloads(tso), Offloads::default());
        let all = offloads(tso | bit(dpdk_sys::VIRTIO_NET_F_GUEST_CSUM));
        assert_eq!(all, Offloads { csum: true, tso4: true, tso6: true, uso: false, tunnels: false, datagrams: false });
    }
}
