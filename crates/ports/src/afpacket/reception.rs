//! The sockets of one receive queue: at first one without a ring, later one with.
//!
//! A ring takes 2 MiB of the kernel's memory, filled or not, and to make one takes as long as a grace period of the
//! kernel. Of a thousand ports few are busy, so a queue begins with a plain socket, which takes memory only for
//! frames that wait, and costs a system call for each. When it proves busy, it grows:
//!
//! 1. The worker notices ([`Reception::grow`]), and opens a second socket.
//! 2. Another thread gives it a ring, which takes a while, and has it join the first one's group: the kernel
//!    hands each frame of the interface to one socket of a group, and the first has them all.
//! 3. The worker takes it over between two polls, and has the kernel direct frames to it: each frame goes to the
//!    one socket or to the other, and none to both or neither.
//! 4. The worker goes on to empty the first one until what was on its way to it has arrived, and gives it up.
//!
//! All rings that were made in this way take no more than [`MOST_MEMORY`]; where that is used up, queues stay with plain
//! sockets, and ask again later. Who asks for a ring by `n_rxq_desc`, or for several queues, gets rings at once.
//!
//! Sharing between threads: `state` is changed by the worker from `Plain` to `Growing`, and by the thread that makes
//! the ring from there; `next` is filled by this thread before, and emptied by the worker after that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Netdev;
use super::background;
use super::socket::{RxSocket, Share, Socket, ring_size};
use crate::Error;

/// Most bytes of all rings that were made because a queue was busy.
const MOST_MEMORY: usize = 128 << 20;

/// What they take now.
static MEMORY: AtomicUsize = AtomicUsize::new(0);

/// What a queue and its port share.
pub struct Reception {
    shared: Arc<Netdev>,
    slots: usize,
    state: AtomicU8,
    /// The group that the sockets have joined.
    group: Mutex<Option<u16>>,
    /// Those that receive.
    sockets: Mutex<Vec<Arc<Socket>>>,
    /// What has grown.
    next: Mutex<Option<(RxSocket, Reserved)>>,
    /// Frames that sockets had no room for when they were asked last. Reading resets the kernel's count.
    lost: AtomicU64,
    /// It has been said why there is no ring.
    complained: AtomicBool,
}

/// Growth so far.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Growth {
    Plain,
    Growing,
    Ready,
}

/// A part of [`MOST_MEMORY`], given back when it is dropped.
pub struct Reserved(usize);

impl Reserved {
    fn reserve(bytes: usize) -> Option<Reserved> {
        let add = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= MOST_MEMORY);
        MEMORY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Reserved(bytes))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        MEMORY.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Reception {
    /// A queue with a plain socket, which receives from now on.
    pub fn open(shared: &Arc<Netdev>, slots: usize) -> Result<(Arc<Reception>, Arc<Socket>), Error> {
        let socket = Arc::new(Socket::new(&shared.name)?);
        socket.prepare_plain(&shared.name)?;
        socket.listen(&shared.name, shared.ifindex)?;
        // Before Linux 6.11 not while the interface is down: then when it grows.
        let group = socket.join(&shared.name, Share::ToOne, None).ok();
        Ok((Arc::new(Reception::new(shared, slots, Growth::Plain, group, socket.clone())), socket))
    }

    /// A queue with a ring, which receives from now on.
    pub fn with_ring(shared: &Arc<Netdev>, slots: usize) -> Result<(Arc<Reception>, RxSocket), Error> {
        let socket = Arc::new(Socket::new(&shared.name)?);
        let ring = RxSocket::make(&shared.name, socket.clone(), slots, shared.mtu.load(Ordering::Relaxed))?;
        socket.listen(&shared.name, shared.ifindex)?;
        Ok((Arc::new(Reception::new(shared, slots, Growth::Ready, None, socket)), ring))
    }

    fn new(shared: &Arc<Netdev>, slots: usize, state: Growth, group: Option<u16>, socket: Arc<Socket>) -> Reception {
        Reception {
            shared: shared.clone(),
            slots,
            state: AtomicU8::new(state as u8),
            group: Mutex::new(group),
            sockets: Mutex::new(vec![socket]),
            next: Mutex::default(),
            lost: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        }
    }

    /// Shares the frames of one interface between queues by flow.
    pub fn fan_out(&self, group: Option<u16>) -> Result<u16, Error> {
        self.sockets.lock()[0].join(&self.shared.name, Share::ByFlow, group)
    }

    /// Has a ring made, unless it is on its way. It is to be looked for with [`grown`](Reception::grown).
    #[cold]
    pub fn grow(self: &Arc<Reception>) {
        let (plain, growing) = (Growth::Plain as u8, Growth::Growing as u8);
        if self.state.compare_exchange(plain, growing, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let size = ring_size(self.slots, self.shared.mtu.load(Ordering::Relaxed));
        let Some(memory) = Reserved::reserve(size) else {
            return self.fail("the rings of other ports take all memory");
        };
        // Here, because a socket belongs to the network namespace of the thread that opens it.
        let socket = match Socket::new(&self.shared.name) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return self.fail(error),
        };
        let reception = self.clone();
        let job = move || match reception.make(socket) {
            Ok(ring) => {
                *reception.next.lock() = Some((ring, memory));
                reception.state.store(Growth::Ready as u8, Ordering::Release);
            }
            Err(problem) => reception.fail(problem),
        };
        if background::submit(Box::new(job)).is_err() {
            self.fail("no thread can be started");
        }
    }

    fn make(&self, socket: Arc<Socket>) -> Result<RxSocket, String> {
        let (name, first) = (&self.shared.name, self.sockets.lock()[0].clone());
        if !first.shares_namespace(&socket) {
            return Err("the worker is in another network namespace".into());
        }
        let mtu = self.shared.mtu.load(Ordering::Relaxed);
        let ring = RxSocket::make(name, socket.clone(), self.slots, mtu).map_err(|e| e.to_string())?;
        // Between `listen` and `join`, it would get the frames of the first one as well.
        socket.mute().map_err(|e| e.to_string())?;
        socket.listen(name, self.shared.ifindex).map_err(|e| e.to_string())?;
        let mut group = self.group.lock();
        let number = match *group {
            Some(number) => number,
            None => *group.insert(first.join(name, Share::ToOne, None).map_err(|e| e.to_string())?),
        };
        socket.join(name, Share::ToOne, Some(number)).map_err(|e| e.to_string())?;
        socket.unmute().map_err(|e| e.to_string())?;
        Ok(ring)
    }

    fn fail(&self, problem: impl std::fmt::Display) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::info!("{}: stays without a receive ring for now: {problem}", self.shared.name);
        }
        self.state.store(Growth::Plain as u8, Ordering::Release);
    }

    /// The ring that was asked for, once it is there: from now on, it gets the frames.
    pub fn grown(&self) -> Option<(RxSocket, Reserved)> {
        if self.state.load(Ordering::Acquire) != Growth::Ready as u8 {
            return None;
        }
        let (ring, memory) = self.next.lock().take()?;
        if let Err(error) = ring.socket().direct_to_second() {
            self.fail(error);
            return None;
        }
        self.sockets.lock().push(ring.socket().clone());
        Some((ring, memory))
    }

    /// The first socket is given up.
    pub fn give_up_first(&self) {
        let first = self.sockets.lock().remove(0);
        self.lost.fetch_add(first.take_drops().into(), Ordering::Relaxed);
    }

    /// Frames that the kernel found no room for, so far.
    pub fn lost(&self) -> u64 {
        let drops: u64 = self.sockets.lock().iter().map(|socket| u64::from(socket.take_drops())).sum();
        self.lost.fetch_add(drops, Ordering::Relaxed) + drops
    }

    /// Whether frames come by a ring.
    pub fn has_ring(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Growth::Ready as u8
    }
}
