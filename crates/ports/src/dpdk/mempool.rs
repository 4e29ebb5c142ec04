//! Mempools: where the frames of DPDK's ports lie, shared by all ports of one NUMA node whose MTUs need
//! buffers of the same size, as in OVS.
//!
//! A pool is made when the first port wants it, as large as there is memory for, and freed when no port
//! uses it and all of its mbufs are back. Its [`Mempool`], which packets refer to, is never freed, and
//! serves the next pool of the same shape.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use dpdk_sys::{rte_mbuf, rte_mempool};
use packet::buffer::{Owner, RawPacket};
use packet::{BATCH_SIZE, Memory, Offload, Packet};
use parking_lot::Mutex;

use super::{eal, log, thread};

/// Mbufs of a pool for frames of a usual MTU.
const MBUFS: u32 = 4096 * 64;

/// Mbufs of a pool on ordinary memory whose size nobody gave.
const FEW_MBUFS: u32 = 4096 * 8;

/// Mbufs of a pool for small frames, or for jumbo frames on such memory. Fewer make no pool.
const MIN_MBUFS: u32 = 4096 * 4;

/// Buffers grow by this many bytes, so that near MTUs share a pool.
const STEP: u32 = 1024;

/// Ethernet header, checksum, and two VLAN tags: what a frame has on top of the MTU.
const FRAME_OVERHEAD: u32 = 14 + 4 + 8;

/// The longest frame in a buffer, in bytes.
const MAX_FRAME: u32 = 9728;

/// The name of every mempool's memory.
static NAME: &str = "dpdk";

/// A pool of mbufs.
pub struct Mempool {
    /// What its packets refer to.
    memory: Memory,
    /// Null while it is not there.
    raw: AtomicPtr<rte_mempool>,
    /// Bytes of a buffer.
    buffer: u16,
    /// NUMA node.
    socket: i32,
    /// Ports that use it.
    users: AtomicUsize,
}

/// All pools that ever were. Locked while pools come and go, never for a packet of the pool that its
/// queue has.
static POOLS: Mutex<Vec<&'static Mempool>> = Mutex::new(Vec::new());

/// The memory of mbufs that belong to no pool of Weir's.
static FOREIGN: Memory = Memory { name: "dpdk", release, release_all, allocate: |_, _, _| None, owner: Owner::NONE };

/// A port's use of a pool.
pub struct PoolRef(&'static Mempool);

impl Deref for PoolRef {
    type Target = Mempool;

    fn deref(&self) -> &Mempool {
        self.0
    }
}

impl Clone for PoolRef {
    fn clone(&self) -> PoolRef {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        PoolRef(self.0)
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            sweep(&POOLS.lock());
        }
    }
}

/// A pool for frames of `mtu` bytes of L3 packet on NUMA node `socket`; a negative one is any.
///
/// # Errors
/// What is wrong, and what would help.
pub fn get(mtu: u32, socket: i32) -> Result<PoolRef, String> {
    if mtu + FRAME_OVERHEAD > MAX_FRAME {
        return Err(format!("MTU {mtu} is more than {}", MAX_FRAME - FRAME_OVERHEAD));
    }
    let buffer = buffer_size(mtu);
    let socket = socket.max(0);
    let mut pools = POOLS.lock();
    let known = pools.iter().copied().find(|pool| (pool.buffer, pool.socket) == (buffer, socket));
    if let Some(pool) = known.filter(|pool| !pool.raw().is_null()) {
        let reference = PoolRef::new(pool);
        sweep(&pools);
        return Ok(reference);
    }
    sweep(&pools);
    let raw = create(buffer, socket, wanted_count(mtu, eal::memory()))?;
    let pool = known.unwrap_or_else(|| {
        let memory = Memory { name: NAME, release, release_all, allocate, owner: Owner::NONE };
        let (raw, users) = (AtomicPtr::default(), AtomicUsize::new(0));
        let pool = Box::into_raw(Box::new(Mempool { memory, raw, buffer, socket, users }));
        // SAFETY: the box has been given up, so nothing frees it, and nobody else has it yet.
        unsafe { (*pool).memory.owner = Owner::new(pool) };
        // SAFETY: as above, and nothing changes it from now on.
        unsafe { &*pool }
    });
    pool.raw.store(raw, Ordering::Release);
    if known.is_none() {
        pools.push(pool);
    }
    Ok(PoolRef::new(pool))
}

/// The pools that there are now.
pub fn all() -> Vec<PoolRef> {
    POOLS.lock().iter().filter(|pool| !pool.raw().is_null()).map(|pool| PoolRef::new(pool)).collect()
}

fn buffer_size(mtu: u32) -> u16 {
    let size = (mtu + FRAME_OVERHEAD).next_multiple_of(STEP) + u32::from(dpdk_sys::mbuf::HEADROOM);
    size.min(u16::MAX.into()) as u16
}

fn wanted_count(mtu: u32, memory: eal::Memory) -> u32 {
    let jumbo = mtu + FRAME_OVERHEAD > 2 * STEP;
    if mtu < 1500 || jumbo && memory.ordinary && !memory.given {
        MIN_MBUFS
    } else if memory.ordinary && !memory.given {
        FEW_MBUFS
    } else {
        MBUFS
    }
}

/// Makes a pool of `count` mbufs, or of the half, and so on.
fn create(buffer: u16, socket: i32, mut count: u32) -> Result<*mut rte_mempool, String> {
    loop {
        let name = CString::new(format!("weir{socket:02}{buffer:05}{count:07}")).expect("no zero in it");
        let (cache, private) = (dpdk_sys::RTE_MEMPOOL_CACHE_MAX_SIZE, 0);
        // SAFETY: EAL is initialised, since a port asks for a pool. The name is copied.
        let make =
            || unsafe { dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), count, cache, private, buffer, socket) };
        let (raw, complaints) = log::listen(make);
        if !raw.is_null() {
            tracing::debug!(target: "dpdk", "made a mempool of {count} mbufs of {buffer} bytes on NUMA node {socket}");
            return Ok(raw);
        }
        // SAFETY: DPDK is loaded, and the call that has just failed in this thread has set the number.
        let errno = unsafe { dpdk_sys::weir_errno() };
        if errno != libc::ENOMEM || count / 2 < MIN_MBUFS {
            return Err(no_room(buffer, socket, count, errno, &complaints));
        }
        count /= 2;
    }
}

fn no_room(buffer: u16, socket: i32, count: u32, errno: i32, complaints: &[String]) -> String {
    let mib = (u64::from(count) * u64::from(buffer)) >> 20;
    let error = eal::error_text(errno);
    let said = log::cause(complaints).map_or(String::new(), |complaint| format!(" ({complaint})"));
    let help = if eal::memory().ordinary {
        "give DPDK more with other_config:dpdk-alloc-mem (MiB), and start again"
    } else {
        "reserve more hugepages (sysctl vm.nr_hugepages)"
    };
    format!("no memory for {count} packet buffers, {mib} MiB on NUMA node {socket}: {error}{said}; {help}")
}

/// Frees what nobody uses.
fn sweep(pools: &[&'static Mempool]) {
    for pool in pools {
        let raw = pool.raw();
        if raw.is_null() || pool.users.load(Ordering::Acquire) > 0 {
            continue;
        }
        // No port takes mbufs out any more, and nobody duplicates a packet of a pool that has all of
        // them: one that is full stays so.
        // SAFETY: the pool is there.
        if unsafe { dpdk_sys::weir_mempool_full(raw) } != 0 {
            pool.raw.store(std::ptr::null_mut(), Ordering::Release);
            // SAFETY: the pool is there and has all of its mbufs back, so that nobody refers to its memory any
            // more.
            unsafe { dpdk_sys::rte_mempool_free(raw) };
            tracing::debug!(target: "dpdk", "freed a mempool on NUMA node {}", pool.socket);
        }
    }
}

impl PoolRef {
    /// `pool` is there, and the list of pools locked.
    fn new(pool: &'static Mempool) -> PoolRef {
        pool.users.fetch_add(1, Ordering::Relaxed);
        PoolRef(pool)
    }

    /// The pool, for as long as the process lives; its mbufs while this reference lives.
    pub fn leak(&self) -> &'static Mempool {
        self.0
    }
}

impl Mempool {
    /// DPDK's pool; null while it is not there.
    #[inline(always)]
    pub fn raw(&self) -> *mut rte_mempool {
        self.raw.load(Ordering::Acquire)
    }

    /// What its packets refer to.
    #[inline(always)]
    pub fn memory(&'static self) -> &'static Memory {
        &self.memory
    }

    /// Bytes of a buffer, with its headroom.
    pub fn buffer(&self) -> usize {
        self.buffer.into()
    }

    /// Mbufs in the pool, and how many of them are free.
    pub fn count(&self) -> (usize, usize) {
        let raw = self.raw();
        if raw.is_null() {
            return (0, 0);
        }
        // SAFETY: the pool is there.
        unsafe { (dpdk_sys::weir_mempool_size(raw) as usize, dpdk_sys::rte_mempool_avail_count(raw) as usize) }
    }

    /// Fills `mbufs` with fresh ones, or with none.
    #[inline]
    pub fn take_bulk(&self, mbufs: &mut [*mut rte_mbuf]) -> bool {
        let raw = self.raw();
        let (count, lcore) = (mbufs.len() as u32, thread::lcore());
        // SAFETY: the pool is there, and `mbufs` has room for as many as are asked for. The number is this thread's.
        !raw.is_null() && unsafe { dpdk_sys::weir_pktmbuf_alloc_bulk(raw, mbufs.as_mut_ptr(), count, lcore) } == 0
    }

    /// The pool whose memory this is.
    ///
    /// # Safety
    /// `memory` is the `memory` of a pool.
    unsafe fn of(memory: &'static Memory) -> &'static Mempool {
        // SAFETY: the memory is a pool's, which `get` has made its owner and which is never freed.
        unsafe { &*memory.owner.get() }
    }
}

/// The memory of an mbuf of this pool.
#[cold]
pub fn memory_of(raw: *mut rte_mempool) -> &'static Memory {
    let pools = POOLS.lock();
    pools.iter().find(|pool| pool.raw() == raw).map_or(&FOREIGN, |pool| &pool.memory)
}

/// Whether the packets of this memory are mbufs.
#[inline(always)]
pub fn is_mbufs(memory: &'static Memory) -> bool {
    std::ptr::eq(memory.name.as_ptr(), NAME.as_ptr()) || std::ptr::eq(memory, &FOREIGN)
}

/// [`Memory::allocate`] of mempools.
fn allocate(memory: &'static Memory, headroom: usize, size: usize) -> Option<Packet> {
    // SAFETY: this function is the `allocate` of pools' memories only.
    let pool = unsafe { Mempool::of(memory) };
    let room = pool.buffer().checked_sub(size).filter(|&room| room >= headroom)?;
    let headroom = headroom.max(dpdk_sys::mbuf::HEADROOM.into()).min(room) as u16;
    let mut mbuf = [std::ptr::null_mut::<rte_mbuf>()];
    if !pool.take_bulk(&mut mbuf) {
        return None;
    }
    let handle = mbuf[0] as usize;
    // SAFETY: the mbuf was just taken; its buffer has `buf_len` bytes, of which the headroom is less.
    unsafe {
        let mbuf = &*mbuf[0];
        let data = NonNull::new(mbuf.buf_addr.cast::<u8>().add(headroom.into()))?;
        let tailroom = u32::from(mbuf.buf_len - headroom);
        let offload = Offload::NONE;
        Some(Packet::from_raw(RawPacket { data, handle, memory, len: 0, tailroom, queue: 0, headroom, offload }))
    }
}

/// [`Memory::release`] of mempools.
///
/// # Safety
/// As [`Memory::release`] says.
unsafe fn release(raw: RawPacket) {
    // SAFETY: the handle of a packet of a mempool is its mbuf, which the packet owned.
    unsafe { thread::give_back(raw.handle as *mut rte_mbuf) }
}

/// [`Memory::release_all`] of mempools.
///
/// # Safety
/// As [`Memory::release_all`] says.
unsafe fn release_all(raw: &[RawPacket]) {
    for raw in raw.chunks(BATCH_SIZE) {
        let mut mbufs = [std::ptr::null_mut(); BATCH_SIZE];
        mbufs.iter_mut().zip(raw).for_each(|(mbuf, raw)| *mbuf = raw.handle as *mut rte_mbuf);
        // SAFETY: the handle of a packet of a mempool is its mbuf, which the packet owned.
        unsafe { thread::give_back_all(&mut mbufs[..raw.len()]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_mtus_share_a_size() {
        assert_eq!(buffer_size(1500), 2048 + 128);
        assert_eq!(buffer_size(1500), buffer_size(2022));
        assert_eq!(buffer_size(2023), 3072 + 128);
        assert_eq!(buffer_size(9000), 9216 + 128);
        let huge = eal::Memory::default();
        assert_eq!((wanted_count(1500, huge), wanted_count(1000, huge)), (262_144, 16_384));
        let ordinary = eal::Memory { ordinary: true, given: false };
        assert_eq!((wanted_count(1500, ordinary), wanted_count(9000, ordinary)), (32_768, 16_384));
        assert_eq!(wanted_count(1500, eal::Memory { given: true, ..ordinary }), 262_144);
    }
}
