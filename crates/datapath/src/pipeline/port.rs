//! A datapath port: the part that the workers share, and a worker's transmit queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use packet::{Batch, Time};
use parking_lot::Mutex;
use ports::{Offloads, Port, TakesTunnels, TxQueue};

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::policer::{EgressPolicer, Policer};
use crate::stats::Drops;
use crate::sync::counters::DropCounters;

/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;

/// A datapath port, shared by the workers.
pub struct DpPort {
    /// Datapath port number.
    pub no: PortNo,
    /// The port.
    pub port: Arc<dyn Port>,
    /// Longest frame that can be sent, without VLAN tags.
    max_frame: AtomicU32,
    up: AtomicBool,
    /// Whether it takes super-frames in tunnels; see [`TakesTunnels`].
    takes_tunnels: AtomicBool,
    takes_datagrams: AtomicBool,
    /// Whether it takes super-frames of TCP, and gains by them.
    gains_by_super_frames: AtomicBool,
    /// What is sent to it is for somebody who wants to see packets as they came.
    keeps_segments: AtomicBool,
    /// Drop counters of each worker, by its number.
    pub drops: Box<[CachePadded<DropCounters>]>,
    /// What workers and receive queues that come into being are given. Each has its own reference.
    policers: Mutex<Policers>,
}

/// The policers of a port.
#[derive(Clone, Debug, Default)]
pub struct Policers {
    /// Limits what it receives.
    pub ingress: Option<Arc<Policer>>,
    /// Limits what is sent to it.
    pub egress: Option<Arc<EgressPolicer>>,
}

impl DpPort {
    /// A datapath port for at most `max_workers` workers.
    pub fn new(no: PortNo, port: Arc<dyn Port>, max_workers: usize) -> Arc<DpPort> {
        let drops = (0..max_workers).map(|_| CachePadded::default()).collect();
        let shared = DpPort {
            no,
            port,
            max_frame: AtomicU32::new(0),
            up: AtomicBool::new(false),
            takes_tunnels: AtomicBool::new(false),
            takes_datagrams: AtomicBool::new(false),
            gains_by_super_frames: AtomicBool::new(false),
            keeps_segments: AtomicBool::new(false),
            drops,
            policers: Mutex::default(),
        };
        shared.refresh();
        Arc::new(shared)
    }

    /// Reads MTU and administrative state of the port again.
    pub fn refresh(&self) {
        self.max_frame.store(self.port.mtu().saturating_add(ETHERNET), Ordering::Relaxed);
        self.up.store(self.port.link().admin_up, Ordering::Relaxed);
        let Offloads { tunnels, datagrams, csum, tso4, tso6, .. } = self.port.offloads();
        let keeps = self.keeps_segments.load(Ordering::Relaxed);
        let takes = csum && tso4 && tso6 && !keeps && self.port.pays_by_frame();
        self.gains_by_super_frames.store(takes, Ordering::Relaxed);
        self.takes_tunnels.store(tunnels, Ordering::Relaxed);
        self.takes_datagrams.store(datagrams, Ordering::Relaxed);
    }

    /// Changes whether segments that are sent to it stay as they are.
    pub fn keep_segments(&self, keeps: bool) {
        if self.keeps_segments.swap(keeps, Ordering::Relaxed) != keeps {
            self.refresh();
        }
    }

    /// Drops since the port was added, summed over the workers, with what the port drops by itself for its filter.
    pub fn read_drops(&self) -> Drops {
        let mut sum = self.drops.iter().fold(Drops::default(), |mut sum, worker| {
            sum += &worker.read();
            sum
        });
        if let Some(early) = self.port.early_drop() {
            sum.0[DropReason::IngressFilter as usize] += early.total().packets;
        }
        sum
    }

    /// Its policers. Takes a lock: not for each packet.
    pub fn policers(&self) -> Policers {
        self.policers.lock().clone()
    }

    /// Replaces them, for workers and receive queues that come into being.
    pub(crate) fn set_policers(&self, policers: Policers) {
        *self.policers.lock() = policers;
    }

    /// Whether the port is administratively up.
    #[inline(always)]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Whether it takes super-frames in tunnels, and cuts them itself or has somebody cut them.
    pub fn takes_tunnels(&self) -> TakesTunnels {
        let [whole, datagrams] = [&self.takes_tunnels, &self.takes_datagrams].map(|flag| flag.load(Ordering::Relaxed));
        TakesTunnels { whole, datagrams }
    }

    /// Whether it takes super-frames of TCP that are in no tunnel, and gains by them: a frame costs it as much, and nobody wants to see what came.
    #[inline(always)]
    pub fn gains_by_super_frames(&self) -> bool {
        self.gains_by_super_frames.load(Ordering::Relaxed)
    }

    /// The port's MTU.
    #[inline(always)]
    pub fn mtu(&self) -> usize {
        self.max_frame() - ETHERNET as usize
    }

    /// Longest frame that can be sent, without VLAN tags.
    #[inline(always)]
    pub fn max_frame(&self) -> usize {
        self.max_frame.load(Ordering::Relaxed) as usize
    }
}

/// The transmit queue by which a worker sends to a port.
pub enum Queue {
    /// A queue that this worker alone uses.
    Own(Box<dyn TxQueue>),
    /// A queue that several workers share, locked once for each burst.
    Shared(SharedQueue),
}

/// A transmit queue of several workers.
pub type SharedQueue = Arc<Mutex<Box<dyn TxQueue>>>;

impl Queue {
    /// Makes the queue a shared one. Returns it twice: for this worker and for another.
    pub fn share(self) -> (Queue, SharedQueue) {
        let shared = match self {
            Queue::Own(queue) => Arc::new(Mutex::new(queue)),
            Queue::Shared(shared) => shared,
        };
        (Queue::Shared(shared.clone()), shared)
    }

    /// Removes the lock of a shared queue that no other worker uses any more.
    pub fn reclaim(self) -> Queue {
        match self {
            Queue::Shared(shared) => match Arc::try_unwrap(shared) {
                Ok(queue) => Queue::Own(queue.into_inner()),
                Err(shared) => Queue::Shared(shared),
            },
            own => own,
        }
    }

    /// Transmits a burst. The batch is empty afterwards.
    #[inline]
    pub fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize {
        match self {
            Queue::Own(queue) => queue.transmit(batch, now),
            Queue::Shared(queue) => queue.lock().transmit(batch, now),
        }
    }

    /// See [`TxQueue::needs_housekeeping`].
    pub fn needs_housekeeping(&self) -> bool {
        match self {
            Queue::Own(queue) => queue.needs_housekeeping(),
            Queue::Shared(queue) => queue.lock().needs_housekeeping(),
        }
    }

    /// See [`TxQueue::housekeep`].
    pub fn housekeep(&mut self, now: Time) {
        match self {
            Queue::Own(queue) => queue.housekeep(now),
            Queue::Shared(queue) => {
                // A worker that holds the lock is transmitting, which reaps as well.
                if let Some(mut queue) = queue.try_lock() {
                    queue.housekeep(now);
                }
            }
        }
    }
}
