//! Weir's own pool of frames, which is also the UMEM of AF_XDP sockets.
//!
//! A pool is one contiguous region, cut into chunks of equal size that are known by their numbers. A
//! chunk holds one frame and the space around it. It is always in exactly one of these hands:
//!
//! 1. the shared free list, behind a mutex that is taken once for many chunks;
//! 2. the cache of one thread, from which and to which that thread allocates and frees without a lock;
//! 3. the owner of a [`Packet`] ([`RawPacket::handle`] is the chunk's number);
//! 4. whoever took its number with [`Pool::take_bulk`]: a ring that a kernel or device reads.
//!
//! Who may touch what when: the bytes of a chunk belong to its holder alone, and a free chunk's bytes
//! to nobody. A thread's cache is touched by that thread alone, and goes back to the shared list when
//! the thread ends. Region, sizes and `id` never change after [`Pool::new`]. A pool is never freed, so
//! that no frame can outlive it.
//!
//! The region is zeroed once, by the system, and only where it is touched: what was never written
//! takes up addresses but no memory. A pool for frames of 64 KiB with chunks of 128 KiB therefore
//! costs what its frames use. Reused chunks hold what was there before; every byte is initialised at
//! all times.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Memory, Offload, Owner, Packet, RawPacket};

/// Alignment of the region: that of a huge page, so that the system can back it with such.
pub const ALIGNMENT: usize = 2 << 20;

/// The most chunks that one thread keeps for itself: two batches in each direction, some times over.
const CACHE_MAX: usize = 256;

/// Shape of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many frames it holds.
    pub chunks: usize,
    /// Bytes for each frame with the space around it: a power of two from 256 to 1 MiB. AF_XDP wants
    /// 2048 or 4096.
    pub chunk_size: usize,
    /// Free bytes in front of a new frame, where it leaves room for them.
    pub headroom: usize,
}

impl Default for PoolConfig {
    /// 32 768 chunks of 2 KiB: 64 MiB.
    fn default() -> PoolConfig {
        PoolConfig { chunks: 32 * 1024, chunk_size: 2048, headroom: 256 }
    }
}

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The shape is impossible.
    #[error(
        "a pool of {chunks} chunks of {chunk_size} bytes with {headroom} bytes of headroom cannot be: chunks must \
         number from 1 to {}, their size must be a power of two from 256 to {}, and the headroom less than that",
        MAX_CHUNKS,
        MAX_CHUNK_SIZE
    )]
    Shape {
        /// As asked for.
        chunks: usize,
        /// As asked for.
        chunk_size: usize,
        /// As asked for.
        headroom: usize,
    },
    /// The system has no room.
    #[error("no room for a pool of {bytes} bytes; configure fewer chunks")]
    Memory {
        /// Size of the region.
        bytes: usize,
    },
}

/// The most chunks of a pool.
pub const MAX_CHUNKS: usize = 1 << 24;
/// The largest chunk, in bytes.
pub const MAX_CHUNK_SIZE: usize = 1 << 20;

/// A pool of frames.
pub struct Pool {
    /// What its packets point to.
    memory: Memory,
    /// Place in each thread's list of caches.
    id: usize,
    base: NonNull<u8>,
    chunks: usize,
    chunk_shift: u32,
    headroom: u16,
    /// How many chunks a thread may keep.
    cache_limit: usize,
    free: Mutex<Vec<u32>>,
}

// SAFETY: `base` is a plain address of memory that lives for ever; who may use which part of it is told
// by the ownership of chunks (see the head of this file). Everything else is `Send` by itself.
unsafe impl Send for Pool {}
// SAFETY: the free list is behind a mutex, and no other field is ever written, so that references may be
// shared.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool that lives as long as the process.
    pub fn new(config: PoolConfig) -> Result<&'static Pool, PoolError> {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

        let PoolConfig { chunks, chunk_size, headroom } = config;
        let sizes = chunk_size.is_power_of_two() && (256..=MAX_CHUNK_SIZE).contains(&chunk_size);
        if !sizes || !(1..=MAX_CHUNKS).contains(&chunks) || headroom >= chunk_size.min(1 << 16) {
            return Err(PoolError::Shape { chunks, chunk_size, headroom });
        }
        let pool = Box::new(Pool {
            memory: Memory { name: "pool", release, release_all, allocate, owner: Owner::NONE },
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            base: allocate_region(chunks * chunk_size)?,
            chunks,
            chunk_shift: chunk_size.trailing_zeros(),
            headroom: headroom as u16,
            cache_limit: (chunks / 16).min(CACHE_MAX),
            free: Mutex::new((0..chunks as u32).rev().collect()),
        });
        let pool = Box::into_raw(pool);
        // SAFETY: the box has been given up, so nothing frees it, and nobody else has it yet.
        unsafe { (*pool).memory.owner = Owner::new(pool) };
        // SAFETY: as above, and nothing changes it from now on.
        Ok(unsafe { &*pool })
    }

    /// The memory of this pool's packets.
    pub fn memory(&'static self) -> &'static Memory {
        &self.memory
    }

    /// A new packet of length zero with the pool's headroom, or `None` when all chunks are in use.
    pub fn allocate(&'static self) -> Option<Packet> {
        allocate(&self.memory, self.headroom as usize, 0)
    }

    /// First byte of the region, aligned to [`ALIGNMENT`].
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes in the region.
    pub fn size(&self) -> usize {
        self.chunks << self.chunk_shift
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Bytes in a chunk: a power of two.
    pub fn chunk_size(&self) -> usize {
        1 << self.chunk_shift
    }

    /// Free bytes in front of a new frame.
    pub fn headroom(&self) -> usize {
        self.headroom as usize
    }

    /// Chunks that this thread can get: those of the shared list and of its own cache. Other threads
    /// may keep up to a sixteenth of the pool each, and no more than 256, in theirs.
    pub fn available(&'static self) -> usize {
        let cached = with_cache(self, |cache| cache.chunks.len()).unwrap_or(0);
        cached + self.shared().len()
    }

    /// Chunks that neither this thread nor the shared list has: packets, those in rings, and what other threads keep.
    pub fn in_use(&'static self) -> usize {
        self.chunks - self.available()
    }

    /// Takes chunks for a ring, as many as there are up to the length of `chunks`, and returns how
    /// many. The caller then holds them: each becomes a packet again with [`Pool::packet`], or is given
    /// back with [`Pool::give_bulk`].
    pub fn take_bulk(&'static self, chunks: &mut [u32]) -> usize {
        let cached = with_cache(self, |cache| {
            let n = cache.chunks.len().min(chunks.len());
            let rest = cache.chunks.len() - n;
            chunks[..n].copy_from_slice(&cache.chunks[rest..]);
            cache.chunks.truncate(rest);
            n
        });
        let cached = cached.unwrap_or(0);
        let rest = &mut chunks[cached..];
        if rest.is_empty() {
            return cached;
        }
        let mut free = self.shared();
        let n = free.len().min(rest.len());
        let left = free.len() - n;
        rest[..n].copy_from_slice(&free[left..]);
        free.truncate(left);
        cached + n
    }

    /// Gives chunks back.
    ///
    /// # Safety
    /// The caller holds each of them, once (by [`Pool::take_bulk`], or as the `handle` of a packet of
    /// this pool that it has turned into its parts), and neither it nor a device touches them any more.
    pub unsafe fn give_bulk(&'static self, chunks: &[u32]) {
        let done = with_cache(self, |cache| {
            if cache.chunks.len() + chunks.len() > self.cache_limit {
                return false;
            }
            cache.chunks.extend_from_slice(chunks);
            true
        });
        if done != Some(true) {
            self.shared().extend_from_slice(chunks);
        }
    }

    /// The packet of `len` bytes at an address within the region, as rings have it. `None` when the
    /// frame doesn't lie within one chunk.
    ///
    /// # Safety
    /// The caller holds the chunk, gives it up with this call, and no device touches it any more.
    #[inline]
    pub unsafe fn packet(&'static self, address: u64, len: u32) -> Option<Packet> {
        let chunk = self.chunk_of(address)?;
        let headroom = address as usize & (self.chunk_size() - 1);
        let tailroom = (self.chunk_size() - headroom).checked_sub(len as usize)? as u32;
        // SAFETY: `chunk_of` has checked that the address lies within the region.
        let data = unsafe { self.base.add(address as usize) };
        // A headroom beyond 64 KiB is there, but not told.
        let headroom = headroom.min(u16::MAX as usize) as u16;
        let (memory, handle, offload) = (&self.memory, chunk as usize, Offload::NONE);
        // SAFETY: the chunk is initialised, the caller hands over its ownership, and headroom, frame
        // and tailroom lie within it. `release` takes packets whose handle is their chunk.
        Some(unsafe {
            Packet::from_raw(RawPacket { data, handle, memory, len, tailroom, queue: 0, headroom, offload })
        })
    }

    /// Where a packet's frame begins within the region, as rings have it; `None` for a packet that is
    /// not of this pool.
    #[inline]
    pub fn address(&self, packet: &Packet) -> Option<u64> {
        if !std::ptr::eq(packet.memory(), &self.memory) {
            return None;
        }
        // An empty packet may have been pulled to the very end of its chunk, but not beyond.
        Some(packet.0.data.as_ptr().addr() as u64 - self.base.as_ptr().addr() as u64)
    }

    /// The chunk that an address within the region belongs to; `None` outside.
    #[inline]
    pub fn chunk_of(&self, address: u64) -> Option<u32> {
        let chunk = address >> self.chunk_shift;
        (chunk < self.chunks as u64).then_some(chunk as u32)
    }

    /// Where a chunk begins within the region.
    #[inline]
    pub fn chunk_address(&self, chunk: u32) -> u64 {
        u64::from(chunk) << self.chunk_shift
    }

    fn shared(&self) -> MutexGuard<'_, Vec<u32>> {
        // A panic cannot leave the list half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool whose memory this is.
    ///
    /// # Safety
    /// `memory` is the `memory` of a pool.
    unsafe fn of(memory: &'static Memory) -> &'static Pool {
        // SAFETY: the memory is a pool's, which `new` has made its owner and which is never freed.
        unsafe { &*memory.owner.get() }
    }

    #[inline]
    fn take_one(&'static self) -> Option<u32> {
        let cached = with_cache(self, |cache| {
            if cache.chunks.is_empty() {
                cache.refill();
            }
            cache.chunks.pop()
        });
        // Without a cache: the thread is ending, or the pool is too small for caches.
        cached.flatten().or_else(|| self.shared().pop())
    }

    #[inline]
    fn give_one(&'static self, chunk: u32) {
        let cached = with_cache(self, |cache| {
            if cache.chunks.len() >= self.cache_limit {
                cache.spill();
            }
            cache.chunks.push(chunk);
        });
        if cached.is_none() {
            self.shared().push(chunk);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} chunks of {} bytes)", self.chunks, self.chunk_size())
    }
}

/// A zeroed region. Asked for with a small alignment and aligned by hand: then the system's zero pages
/// serve as they are, where a larger alignment would have the allocator write all of it.
fn allocate_region(bytes: usize) -> Result<NonNull<u8>, PoolError> {
    let error = PoolError::Memory { bytes };
    let layout = Layout::from_size_align(bytes + ALIGNMENT, 16).map_err(|_| error)?;
    // SAFETY: the layout's size is not zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(error)?;
    let skip = start.as_ptr().addr().next_multiple_of(ALIGNMENT) - start.as_ptr().addr();
    // SAFETY: `skip` is less than ALIGNMENT, which was asked for on top.
    Ok(unsafe { start.add(skip) })
}

/// The chunks that a thread keeps of one pool.
struct Cache {
    pool: &'static Pool,
    /// Never more than the pool's `cache_limit`.
    chunks: Vec<u32>,
}

impl Cache {
    fn new(pool: &'static Pool) -> Cache {
        Cache { pool, chunks: Vec::with_capacity(pool.cache_limit) }
    }

    /// Takes half of what it may keep from the shared list.
    #[cold]
    fn refill(&mut self) {
        let mut free = self.pool.shared();
        let rest = free.len() - free.len().min(self.pool.cache_limit.div_ceil(2));
        self.chunks.extend_from_slice(&free[rest..]);
        free.truncate(rest);
    }

    /// Gives half of what it may keep to the shared list: the older half, whose frames have left the
    /// processor's cache.
    #[cold]
    fn spill(&mut self) {
        let n = self.pool.cache_limit.div_ceil(2);
        self.pool.shared().extend(self.chunks.drain(..n));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.pool.shared().append(&mut self.chunks);
    }
}

thread_local! {
    /// By [`Pool::id`].
    static CACHES: RefCell<Vec<Option<Cache>>> = const { RefCell::new(Vec::new()) };
}

/// Gives the chunks that this thread keeps back to the shared lists.
pub fn give_back_kept() {
    // Where there are none any more, the thread is ending, and has given them back.
    let _ = CACHES.try_with(|caches| caches.borrow_mut().clear());
}

/// Runs `f` on this thread's cache of `pool`; `None` where there is none to be had.
#[inline]
fn with_cache<R>(pool: &'static Pool, f: impl FnOnce(&mut Cache) -> R) -> Option<R> {
    if pool.cache_limit == 0 {
        return None;
    }
    let run = |caches: &RefCell<Vec<Option<Cache>>>| {
        let mut caches = caches.borrow_mut();
        match caches.get_mut(pool.id) {
            Some(Some(cache)) => f(cache),
            _ => f(add_cache(&mut caches, pool)),
        }
    };
    CACHES.try_with(run).ok()
}

#[cold]
fn add_cache<'a>(caches: &'a mut Vec<Option<Cache>>, pool: &'static Pool) -> &'a mut Cache {
    if caches.len() <= pool.id {
        caches.resize_with(pool.id + 1, || None);
    }
    caches[pool.id].get_or_insert_with(|| Cache::new(pool))
}

/// [`Memory::allocate`] of pools.
fn allocate(memory: &'static Memory, headroom: usize, size: usize) -> Option<Packet> {
    // SAFETY: this function is the `allocate` of pools' memories only.
    let pool = unsafe { Pool::of(memory) };
    let room = pool.chunk_size().checked_sub(size).filter(|&room| room >= headroom)?;
    // Less than the whole chunk, so that the address below is in this chunk and not at the next.
    let headroom = headroom.max(pool.headroom()).min(room).min(pool.chunk_size() - 1);
    let chunk = pool.take_one()?;
    // SAFETY: the chunk was just taken, and the address lies within it.
    unsafe { pool.packet(pool.chunk_address(chunk) + headroom as u64, 0) }
}

/// [`Memory::release`] of pools.
///
/// # Safety
/// As [`Memory::release`] says.
unsafe fn release(raw: RawPacket) {
    // SAFETY: `raw` is of a pool's memory (contract of `Memory::release`).
    let pool = unsafe { Pool::of(raw.memory) };
    pool.give_one(raw.handle as u32);
}

/// [`Memory::release_all`] of pools.
///
/// # Safety
/// As [`Memory::release_all`] says.
unsafe fn release_all(raw: &[RawPacket]) {
    let Some(first) = raw.first() else { return };
    // SAFETY: they are of one pool's memory (contract of `Memory::release_all`).
    let pool = unsafe { Pool::of(first.memory) };
    let chunks = raw.iter().map(|raw| raw.handle as u32);
    let cached = with_cache(pool, |cache| {
        for chunk in chunks.clone() {
            if cache.chunks.len() >= pool.cache_limit {
                cache.spill();
            }
            cache.chunks.push(chunk);
        }
    });
    if cached.is_none() {
        pool.shared().extend(chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::sync::mpsc;
    use std::thread;

    fn pool(chunks: usize) -> &'static Pool {
        Pool::new(PoolConfig { chunks, chunk_size: 2048, headroom: 256 }).unwrap()
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let good = PoolConfig { chunks: 4, chunk_size: 256, headroom: 0 };
        assert!(Pool::new(good).is_ok());
        for bad in [
            PoolConfig { chunks: 0, ..good },
            PoolConfig { chunks: MAX_CHUNKS + 1, ..good },
            PoolConfig { chunk_size: 0, ..good },
            PoolConfig { chunk_size: 3000, ..good },
            PoolConfig { chunk_size: 2 * MAX_CHUNK_SIZE, ..good },
            PoolConfig { headroom: 256, ..good },
        ] {
            let error = Pool::new(bad).unwrap_err();
            assert!(error.to_string().contains(&format!("{} chunks of {} bytes", bad.chunks, bad.chunk_size)));
        }
    }

    #[test]
    fn exhaustion_is_none_and_all_come_back() {
        let pool = pool(100);
        let mut packets: Vec<Packet> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(packets.len(), 100);
        assert_eq!((pool.available(), pool.take_bulk(&mut [0])), (0, 0));
        let handles: HashSet<usize> = packets.iter().map(Packet::handle).collect();
        assert_eq!(handles.len(), 100);
        assert!(packets[0].duplicate().is_none(), "nothing takes other memory instead");
        packets[0].push_back(2048 - 256).unwrap().fill(7);
        assert!(!packets[0].make_headroom(257), "nor does a header that is pushed");
        assert_eq!((packets[0].headroom(), packets[0].len()), (256, 2048 - 256));
        packets.pop();
        assert_eq!(packets[0].duplicate().unwrap().memory().name, "pool");
        drop(packets);
        assert_eq!(pool.available(), 100);
    }

    #[test]
    fn frames_keep_to_their_chunk() {
        let pool = pool(64);
        assert_eq!(pool.base().as_ptr().addr() % ALIGNMENT, 0);
        let packet = pool.allocate().unwrap();
        assert_eq!((packet.headroom(), packet.len(), packet.tailroom()), (256, 0, 2048 - 256));
        // As much headroom as is asked for, and less than usual where the frame needs the room.
        let allocate = |headroom, size| (pool.memory().allocate)(pool.memory(), headroom, size);
        assert_eq!(allocate(1000, 1048).unwrap().headroom(), 1000);
        assert_eq!(allocate(0, 2000).unwrap().headroom(), 48);
        assert!(allocate(1000, 1049).is_none());
        assert!(allocate(0, 2049).is_none());
        assert!(allocate(usize::MAX, usize::MAX).is_none());
    }

    #[test]
    fn a_packet_goes_through_a_ring_and_back() {
        let pool = pool(8);
        let mut packet = pool.allocate().unwrap();
        packet.push_back(60).unwrap().fill(7);
        packet.pull_front(4);
        let (address, len) = (pool.address(&packet).unwrap(), packet.len() as u32);
        let chunk = packet.into_raw().handle as u32;
        assert_eq!(pool.chunk_of(address), Some(chunk));
        assert_eq!(address, pool.chunk_address(chunk) + 260);
        // SAFETY: the packet was turned into its parts above.
        let packet = unsafe { pool.packet(address, len) }.unwrap();
        assert_eq!((packet.data(), packet.headroom()), (&[7; 56][..], 260));
        assert_eq!(pool.address(&Packet::from_slice(b"heap")), None);
        assert_eq!(pool.address(&self::pool(8).allocate().unwrap()), None);
    }

    #[test]
    fn addresses_out_of_bounds_are_no_packets() {
        let pool = pool(8);
        assert_eq!(pool.take_bulk(&mut [0; 8]), 8);
        for (address, len) in [(0, 2049), (2047, 2), (8 * 2048, 0), (u64::MAX, 1), (7 * 2048 + 1, 2048)] {
            // SAFETY: all chunks were taken above.
            assert!(unsafe { pool.packet(address, len) }.is_none(), "{address} {len}");
        }
        // SAFETY: `take_bulk` has handed over every chunk, so the last one is owned here.
        assert!(unsafe { pool.packet(7 * 2048, 2048) }.is_some());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri writes zeros to all of it")]
    fn large_chunks_are_touched_only_where_written() {
        // 16 GiB of addresses.
        let pool = Pool::new(PoolConfig { chunks: 1 << 17, chunk_size: 1 << 17, headroom: 256 }).unwrap();
        let mut packet = pool.allocate().unwrap();
        packet.push_back(65_550).unwrap().fill(1);
        assert_eq!(packet.tailroom(), (1 << 17) - 256 - 65_550);
    }

    /// Threads hand packets round in a ring. Each writes its mark and sees that nobody else writes to
    /// the frame while it holds it.
    #[test]
    fn threads_share_without_handing_out_twice() {
        const THREADS: u8 = 4;
        const ROUNDS: u32 = if cfg!(miri) { 60 } else { 4000 };
        let pool = pool(512);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::sync_channel::<Packet>(64)).unzip();
        let threads = receivers.into_iter().enumerate().map(|(me, receiver)| {
            let next = senders[(me + 1) % THREADS as usize].clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    if let Some(mut mine) = pool.allocate() {
                        let mark = round.wrapping_mul(31).wrapping_add(me as u32).to_ne_bytes();
                        mine.push_back(4).unwrap().copy_from_slice(&mark);
                        if round % 7 == 0 {
                            thread::yield_now();
                        }
                        assert_eq!(mine.data(), mark);
                        let _ = next.try_send(mine);
                    }
                    let mut bulk = [0; 40];
                    let n = pool.take_bulk(&mut bulk[..(round % 41) as usize]);
                    drop(receiver.try_recv());
                    // SAFETY: `take_bulk` has handed over these chunks, and nothing refers to them.
                    unsafe { pool.give_bulk(&bulk[..n]) };
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        drop(senders);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.available(), 512);
        let mut all = vec![0; 600];
        assert_eq!(pool.take_bulk(&mut all), 512);
        assert_eq!(all[..512].iter().collect::<HashSet<_>>().len(), 512);
    }

    #[test]
    fn a_packet_can_be_dropped_while_its_thread_ends() {
        thread_local!(static LAST: RefCell<Option<Packet>> = const { RefCell::new(None) });
        let pool = pool(64);
        // The value of `LAST` and the caches are destroyed in an order that nobody promises.
        thread::spawn(move || LAST.set(pool.allocate())).join().unwrap();
        thread::spawn(move || LAST.set(Some(Packet::from_slice(b"")).and_then(|_| pool.allocate()))).join().unwrap();
        assert_eq!(pool.available(), 64);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Allocate,
        Drop(usize),
        Take(usize),
        Give(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => Just(Op::Allocate),
            2 => any::<usize>().prop_map(Op::Drop),
            1 => (0..50_usize).prop_map(Op::Take),
            1 => (0..50_usize).prop_map(Op::Give),
        ]
    }

    const OPERATIONS: usize = if cfg!(miri) { 20 } else { 200 };

    proptest! {
        /// Whatever is done, what is held and what is available are all chunks, each once.
        #[test]
        fn equals_a_model(chunks in 1..200_usize, ops in proptest::collection::vec(op(), 0..OPERATIONS)) {
            let pool = pool(chunks);
            let (mut packets, mut taken) = (Vec::<Packet>::new(), Vec::<u32>::new());
            for op in ops {
                let free = chunks - packets.len() - taken.len();
                match op {
                    Op::Allocate => {
                        let packet = pool.allocate();
                        prop_assert_eq!(packet.is_some(), free > 0);
                        packets.extend(packet);
                    }
                    Op::Drop(_) if packets.is_empty() => {}
                    Op::Drop(which) => drop(packets.swap_remove(which % packets.len())),
                    Op::Take(n) => {
                        let mut bulk = vec![0; n];
                        prop_assert_eq!(pool.take_bulk(&mut bulk), n.min(free));
                        taken.extend_from_slice(&bulk[..n.min(free)]);
                    }
                    Op::Give(n) => {
                        let rest = taken.len() - n.min(taken.len());
                        // SAFETY: these chunks were taken before, and `split_off` removes them from the list of
                        // what is held.
                        unsafe { pool.give_bulk(&taken.split_off(rest)) };
                    }
                }
                let held: HashSet<u32> = packets.iter().map(|p| p.handle() as u32).chain(taken.iter().copied()).collect();
                prop_assert_eq!(held.len(), packets.len() + taken.len());
                prop_assert!(held.iter().all(|&chunk| (chunk as usize) < chunks));
                prop_assert_eq!(pool.available(), chunks - held.len());
            }
        }
    }
}
