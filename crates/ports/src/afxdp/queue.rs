//! The queues of a port: what workers call.
//!
//! Sharing between threads: a queue object owns the rings of its direction while it lives, and puts
//! them back into the port when it is dropped, so that a transmit queue can be made again. The two
//! directions of a socket share nothing but the descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use packet::{BATCH_SIZE, Batch, Packet, Pool, Time};
use rustix::io::Errno;

use super::Binding;
use super::ring::Descriptor;
use super::socket::{RxRings, Socket, TxRings};
use super::{metadata, unfinished};
use crate::merge::Merger;
use crate::stats::{RxCounters, TxCounters};
use crate::{Offloads, RxQueue, TxDrop, TxQueue};
use crate::{offload, pools};

/// Chunks given to the kernel at a time.
const REFILL: usize = 2 * BATCH_SIZE;

/// How many frames ahead of the one that is looked at are fetched into the cache: another core has written them.
const AHEAD: u32 = 8;

/// System calls for one burst, at most: without zero-copy, each sends some 32 frames.
const MAX_KICKS: usize = 8;

/// Bytes of an Ethernet header: what is shorter is no frame.
const ETHERNET_HEADER: usize = 14;

/// A receive queue.
pub(super) struct Receiver {
    shared: Arc<Binding>,
    index: usize,
    counters: Arc<RxCounters>,
    /// Present until the drop.
    rings: Option<RxRings>,
    /// For what comes from a stack.
    merger: Option<Merger>,
}

/// Frames looked at in one burst, at most, where they are merged.
const MERGE: usize = 8 * BATCH_SIZE;

impl Receiver {
    pub fn new(shared: &Arc<Binding>, index: usize, counters: Arc<RxCounters>) -> Option<Receiver> {
        let rings = shared.queues[index].rx.lock().take();
        // Without memory for them there are no super-frames.
        let large = if shared.from_stack { pools::large_frames().ok() } else { None };
        let merger = large.map(|pool| Merger::new(pool.memory()));
        rings.map(|rings| Receiver { shared: shared.clone(), index, counters, rings: Some(rings), merger })
    }
}

impl RxQueue for Receiver {
    fn receive(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let (before, mut bytes, mut count) = (batch.len(), 0, 0);
        rings.rx.look();
        (0..AHEAD - 1).for_each(|at| rings.prefetch(self.shared.pool, at));
        while !batch.is_full() && count < MERGE {
            let Some(descriptor) = rings.rx.pop() else { break };
            rings.prefetch(self.shared.pool, AHEAD - 1);
            // SAFETY: the kernel names a frame that it has received.
            let Some(mut packet) = (unsafe { rings.take(self.shared.pool, descriptor) }) else {
                self.counters.errors.add(1);
                continue;
            };
            bytes += packet.len();
            count += 1;
            if self.shared.from_stack {
                *packet.offload_mut() = unfinished::recognise(packet.data());
            }
            match &mut self.merger {
                Some(merger) => merger.add(packet, batch),
                None => batch.push(packet),
            }
        }
        if let Some(merger) = &mut self.merger {
            merger.finish(batch);
        }
        if count > 0 {
            rings.rx.release();
            self.counters.passed(count, bytes);
        }
        rings.refill(self.shared.pool);
        if rings.fill.needs_wakeup() {
            self.shared.queues[self.index].socket.wake_rx();
        }
        batch.len() - before
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.queues[self.index].socket.as_fd())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        *self.shared.queues[self.index].rx.lock() = self.rings.take();
    }
}

impl RxRings {
    /// Fetches the frame that is received after `count` others, so that many are on their way at a time.
    #[inline(always)]
    fn prefetch(&self, pool: &'static Pool, count: u32) {
        if let Some(descriptor) = self.rx.peek(count) {
            packet::buffer::prefetch(pool.base().as_ptr().wrapping_add(descriptor.address as usize));
        }
    }

    /// The packet that a receive descriptor stands for. `None` for a chunk that was not the kernel's
    /// to fill, or a frame in several pieces, which was not asked for.
    ///
    /// # Safety
    /// The kernel has written the descriptor to the receive ring.
    #[inline]
    unsafe fn take(&mut self, pool: &'static Pool, descriptor: Descriptor) -> Option<Packet> {
        let chunk = pool.chunk_of(descriptor.address)?;
        if !self.held.remove(chunk) {
            return None;
        }
        // SAFETY: the chunk was given to the kernel, which has given it back with this descriptor.
        unsafe { pool.packet(descriptor.address, descriptor.len) }
    }

    /// Gives the kernel chunks for those that came back with frames. An exhausted pool leaves it with
    /// fewer, and with none it drops frames, until packets are freed.
    #[inline]
    pub fn refill(&mut self, pool: &'static Pool) {
        let want = self.fill.size() as usize;
        while want - self.held.len().min(want) >= REFILL.min(want) {
            let mut chunks = [0; REFILL];
            let n = pool.take_bulk(&mut chunks[..REFILL.min(want)]);
            for &chunk in &chunks[..n] {
                // The ring holds no more than `held`, which is below its size.
                let pushed = self.fill.push(pool.chunk_address(chunk));
                debug_assert!(pushed, "the fill ring is smaller than what it holds");
                self.held.insert(chunk);
            }
            self.fill.submit();
            if n < REFILL.min(want) {
                return;
            }
        }
    }
}

/// A transmit queue.
pub(super) struct Sender {
    shared: Arc<Binding>,
    index: usize,
    counters: Arc<TxCounters>,
    /// Present until the drop.
    rings: Option<TxRings>,
    /// What the kernel takes over.
    offloads: Offloads,
    /// Sends super-frames.
    large: Option<Box<dyn TxQueue>>,
    /// Super-frames to be sent.
    whole: Batch,
    /// The interface took nothing at the last attempt: it is down, or has gone.
    down: bool,
}

impl Sender {
    pub fn new(
        shared: &Arc<Binding>,
        index: usize,
        counters: Arc<TxCounters>,
        large: Option<Box<dyn TxQueue>>,
    ) -> Option<Sender> {
        let rings = shared.queues[index].tx.lock().take();
        let (shared, offloads) = (shared.clone(), shared.offloads());
        let (rings, whole) = (Some(rings?), Batch::new());
        Some(Sender { shared, index, counters, rings, offloads, large, whole, down: false })
    }

    /// Sends a packet that needs nothing more done to it; `false` when it was dropped.
    fn send(&mut self, packet: Packet) -> bool {
        let (pool, len) = (self.shared.pool, packet.len());
        let Some(rings) = &mut self.rings else { return false };
        if len < ETHERNET_HEADER || len > self.shared.max_frame {
            let reason = if len < ETHERNET_HEADER { TxDrop::TooShort } else { TxDrop::TooLong };
            self.counters.dropped(reason, 1);
            return false;
        }
        if rings.tx.free(1) == 0 {
            rings.tx.submit();
            self.down = !rings.kick(&self.shared.queues[self.index].socket);
            rings.reap(pool);
        }
        if let Err(reason) = rings.push(pool, packet) {
            // The ring stays full where the interface takes nothing.
            let reason = if self.down && reason == TxDrop::QueueFull { TxDrop::Down } else { reason };
            self.counters.dropped(reason, 1);
            return false;
        }
        self.counters.passed(1, len);
        true
    }

    /// Sends the super-frames that have been gathered.
    #[inline]
    fn send_whole(&mut self, now: Time) -> usize {
        if self.whole.is_empty() {
            return 0;
        }
        self.large.as_mut().map_or(0, |large| large.transmit(&mut self.whole, now))
    }

    fn flush(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        rings.tx.submit();
        if rings.tx.needs_wakeup() && rings.tx.pending() > 0 {
            self.down = !rings.kick(&self.shared.queues[self.index].socket);
        }
    }
}

impl TxQueue for Sender {
    fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize {
        self.housekeep(now);
        if self.down {
            // What was put into the ring now would be sent, late, when the interface comes up.
            self.counters.dropped(TxDrop::Down, batch.len());
            batch.clear();
            return 0;
        }
        let mut taken = 0;
        for packet in batch.drain(..) {
            let todo = packet.offload();
            if todo.is_gso() && self.large.is_some() {
                if self.whole.is_empty() {
                    self.flush();
                }
                self.whole.push(packet);
                continue;
            }
            taken += self.send_whole(now);
            taken += usize::from(if todo.is_gso() || todo.needs_csum() {
                // The packet socket is for what goes whole: what has to be cut goes by the ring. A receiver that has
                // AF_XDP, too, is not told of checksums that are not finished.
                let csum = self.offloads.csum && unfinished::can_be_told(packet.data(), *todo);
                let can = Offloads { csum, ..Offloads::default() };
                let mut whole = true;
                let memory = self.shared.pool.memory();
                let done = offload::complete(packet, can, memory, &mut |part| whole &= self.send(part));
                if let Err(error) = done {
                    self.counters.dropped(error.into(), 1);
                }
                done.is_ok() && whole
            } else {
                self.send(packet)
            });
        }
        self.flush();
        taken + self.send_whole(now)
    }

    fn housekeep(&mut self, _now: Time) {
        let Some(rings) = &mut self.rings else { return };
        rings.reap(self.shared.pool);
        if rings.tx.pending() > 0 && rings.tx.needs_wakeup() {
            self.down = !rings.kick(&self.shared.queues[self.index].socket);
            rings.reap(self.shared.pool);
        } else if self.down {
            // Everything was taken meanwhile.
            self.down = false;
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        *self.shared.queues[self.index].tx.lock() = self.rings.take();
    }
}

impl TxRings {
    /// Writes a packet to the ring: as it is when it lies in the pool, else as a copy. Fails where the ring has no room,
    /// or the pool none for the copy.
    #[inline]
    fn push(&mut self, pool: &'static Pool, packet: Packet) -> Result<(), TxDrop> {
        if self.tx.free(1) == 0 {
            return Err(TxDrop::QueueFull);
        }
        // The kernel counts the metadata's place as part of every frame.
        let fits = pool.address(&packet).is_some() && packet.headroom() >= self.metadata;
        let mut packet = match fits {
            true => packet,
            false => packet.duplicate_in(pool.memory()).ok_or(TxDrop::NoBuffer)?,
        };
        let options = if packet.offload().needs_csum() { metadata::write(&mut packet) } else { 0 };
        let address = pool.address(&packet).ok_or(TxDrop::NoBuffer)?;
        let (len, chunk) = (packet.len() as u32, packet.handle() as u32);
        if !self.tx.push(Descriptor { address, len, options }) {
            return Err(TxDrop::QueueFull);
        }
        // From here on the kernel owns the chunk, until it is in the completion ring.
        let _ = packet.into_raw();
        self.held.insert(chunk);
        Ok(())
    }

    /// Gives the chunks of sent frames back to the pool.
    #[inline]
    pub fn reap(&mut self, pool: &'static Pool) {
        loop {
            let (mut chunks, mut n) = ([0; BATCH_SIZE], 0);
            while n < BATCH_SIZE {
                let Some(address) = self.completion.pop() else { break };
                if let Some(chunk) = pool.chunk_of(address).filter(|&chunk| self.held.remove(chunk)) {
                    chunks[n] = chunk;
                    n += 1;
                }
            }
            self.completion.release();
            // SAFETY: the chunks were the kernel's, which has done with them.
            unsafe { pool.give_bulk(&chunks[..n]) };
            if n < BATCH_SIZE {
                return;
            }
        }
    }

    /// Has the kernel send what is in the ring. `false` when the interface is down or has gone.
    #[cold]
    fn kick(&mut self, socket: &Socket) -> bool {
        for _ in 0..MAX_KICKS {
            let before = self.tx.pending();
            let answer = socket.wake_tx();
            let progress = self.tx.pending() < before;
            match answer {
                Ok(()) if socket.zero_copy || self.tx.pending() == 0 => return true,
                // The kernel sends a bounded number of frames in one call, and then wants another.
                Ok(()) | Err(Errno::AGAIN) if progress => {}
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
