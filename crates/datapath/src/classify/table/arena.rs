//! The arena of flows: chunks of entries that never move and are never freed.
//!
//! An entry is one cache line of header, followed by the key of the packet that the flow was made for, of which only the
//! blocks are stored that its mask matches. Comparisons leave out the bits that it does not match; dumps show them. All entries of a chunk have the same number of blocks, so a header stays a header for ever, and
//! a stale [`FlowRef`] in a cache always leads to one.
//!
//! Shared memory: the only writer fills in the key and the header of a dead entry, and makes it live by storing its
//! shape. Readers load the shape first. While it is not null, only the program changes. To reuse an entry, the writer
//! clears the shape and waits for a grace period. A flow's counters are written by their worker alone, and zeroed by
//! the writer before the entry becomes live.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use packet::flow::{BLOCK_SIZE, BLOCKS, Block};
use packet::{Key, Mask};
use zerocopy::{Immutable, IntoBytes};

use super::flow_ref::{CHUNK, CHUNK_BITS, FlowRef};
use super::shape::Shape;
use crate::action::PortNo;
use crate::actions::program::Program;
use crate::classify::plan::covers_received;
use crate::classify::table::flow_counters::{FlowCounters, WorkerFlowCounters};
use crate::drop::DropReason;
use crate::sync::rcu::{Domain, Guard};
use crate::upcall::{FlowId, FlowStats};

/// The first cache line of an entry.
#[repr(C, align(64))]
struct Header {
    /// The mask, which the flow's subtable owns; null while the entry is dead.
    shape: AtomicPtr<Shape>,
    /// The actions, which flows with equal ones may share: see [`pack`].
    program: AtomicPtr<Program>,
    /// Hash of the masked key.
    hash: AtomicU64,
    /// Incremented whenever the entry is reused.
    generation: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == BLOCK_SIZE);

/// The compiled actions of a live flow.
#[derive(Clone, Copy)]
pub enum CompiledAction<'a> {
    /// Send to this port. This is by far the most frequent action, so it needs no further cache line.
    Output(PortNo),
    /// Drop.
    Drop(DropReason),
    /// Anything else.
    Program(&'a Program),
}

/// A live flow.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    header: &'a Header,
    shape: &'a Shape,
    key: &'a [Block],
    guard: Guard<'a>,
}

impl<'a> Live<'a> {
    /// Whether a key matches the flow.
    #[inline(always)]
    pub fn matches(&self, key: &Key) -> bool {
        self.shape.matches(self.key, key)
    }

    /// Whether it matches no bit of what ports receive that `mask` does not have: of headers, and of what those of tunnels said.
    pub fn is_within(&self, mask: &Mask) -> bool {
        self.shape.blocks().all(|(id, bits)| covers_received(mask, id, bits))
    }

    /// Its actions.
    #[inline(always)]
    pub fn action(&self) -> CompiledAction<'a> {
        unpack(self.header.program.load(Ordering::Acquire), self.guard)
    }
}

/// A fast action: what is done with a packet, in one word that caches store: see [`FastAction::kind`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct FastAction(u32);

/// The kinds of [`FastAction`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastActionKind {
    /// Send to this port.
    Output(PortNo),
    /// Drop.
    Drop(DropReason),
    /// Run the flow's program.
    Program,
    /// No flow was found.
    Miss,
}

impl FastAction {
    /// No flow was found.
    pub const MISS: FastAction = FastAction(u32::MAX);
    /// Run the flow's program.
    pub const PROGRAM: FastAction = FastAction(u32::MAX - 1);
    /// Run what the flow's program does behind its tracking. Only fused connections have it.
    pub const REST: FastAction = FastAction(u32::MAX - 2);
    /// The upper bits of a drop.
    const DROP: u32 = 0x8000_0000;
    /// The upper bits of the number of a compact rewrite.
    const REWRITE: u32 = 0x4000_0000;
    /// The bits that tell a drop and a compact rewrite. Both are set where the entry is of a fused connection.
    const KIND: u32 = FastAction::DROP | FastAction::REWRITE;
    /// The upper bits of the number of a fused connection.
    const FUSED: u32 = FastAction::KIND;

    /// The fast action of a flow's compiled actions.
    #[inline(always)]
    pub fn of(work: CompiledAction<'_>) -> FastAction {
        match work {
            // Larger numbers are not those of any port, so they need not be told apart.
            CompiledAction::Output(port) => FastAction(port.0.min(FastAction::REWRITE - 1)),
            CompiledAction::Drop(reason) => FastAction(FastAction::DROP | reason as u32),
            CompiledAction::Program(_) => FastAction::PROGRAM,
        }
    }

    /// The fast action of a flow whose program has a compact form, by its number in the worker's
    /// [`RewriteTable`](crate::actions::compact::RewriteTable).
    #[inline(always)]
    pub fn of_rewrite(number: u32) -> FastAction {
        debug_assert!(number < FastAction::REWRITE);
        FastAction(FastAction::REWRITE | number)
    }

    /// The number of the compact rewrite, if it is one.
    #[inline(always)]
    pub fn rewrite(self) -> Option<u32> {
        (self.0 & FastAction::KIND == FastAction::REWRITE).then_some(self.0 & !FastAction::KIND)
    }

    /// The fast action of a header cache entry whose number leads to a fused connection: see
    /// [`fused`](crate::classify::cache::fused).
    #[inline(always)]
    pub fn of_fused(number: u32) -> FastAction {
        debug_assert!(FastAction::FUSED | number < FastAction::REST.0 && number < FastAction::REWRITE);
        FastAction(FastAction::FUSED | number)
    }

    /// Whether it is a fused connection.
    #[inline(always)]
    pub fn is_fused(self) -> bool {
        self.0 >= FastAction::FUSED && self.0 < FastAction::REST.0
    }

    /// The number, if it is a fused connection.
    #[inline(always)]
    pub fn fused(self) -> Option<u32> {
        self.is_fused().then_some(self.0 & !FastAction::KIND)
    }

    /// Whether it is a program, or the rest of one.
    #[inline(always)]
    pub fn is_any_program(self) -> bool {
        matches!(self, FastAction::PROGRAM | FastAction::REST)
    }

    /// Zero if two fast actions are equal.
    #[inline(always)]
    pub fn differs(self, other: FastAction) -> u32 {
        self.0 ^ other.0
    }

    /// Its kind.
    #[inline(always)]
    pub fn kind(self) -> FastActionKind {
        match self {
            FastAction::MISS => FastActionKind::Miss,
            FastAction::PROGRAM | FastAction::REST => FastActionKind::Program,
            FastAction(port) if port < FastAction::REWRITE => FastActionKind::Output(PortNo(port)),
            FastAction(rewrite) if rewrite < FastAction::DROP => FastActionKind::Program,
            FastAction(fused) if fused >= FastAction::FUSED => FastActionKind::Program,
            FastAction(drop) => FastActionKind::Drop(reason((drop & !FastAction::DROP) as usize)),
        }
    }
}

fn reason(number: usize) -> DropReason {
    *DropReason::ALL.get(number).expect("it was made of a reason")
}

struct Chunk {
    base: AtomicPtr<u8>,
    /// Distance of the entries, in bytes.
    stride: AtomicU32,
}

/// The arena: all entries, and each worker's counters for them.
pub struct Arena {
    chunks: Box<[Chunk]>,
    /// The flow counters of each worker that has ever existed.
    all_counters: Box<[OnceLock<WorkerFlowCounters>]>,
    /// Workers below this number have counters. Changed by the writer alone.
    workers: AtomicUsize,
}

impl Arena {
    /// An arena for at least `max_flows` entries and at most `max_workers` workers. At first there are no workers:
    /// see `add_worker`.
    pub fn new(max_flows: usize, max_workers: usize) -> (Arena, Free) {
        // One more chunk for each number of blocks, whose last chunk may be nearly empty.
        let count = (max_flows / CHUNK + 1 + BLOCKS).min(1 << (u32::BITS - CHUNK_BITS));
        let chunk = |_| Chunk { base: AtomicPtr::default(), stride: AtomicU32::new(0) };
        let arena = Arena {
            chunks: (0..count).map(chunk).collect(),
            all_counters: (0..max_workers).map(|_| OnceLock::new()).collect(),
            workers: AtomicUsize::new(0),
        };
        let mut free = Free::default();
        let none = arena.allocate(&mut free, 1);
        assert_eq!(none, Some(FlowRef::NONE), "the first entry is the one that is never live");
        (arena, free)
    }

    #[inline(always)]
    fn header(&self, flow: FlowRef) -> &Header {
        // SAFETY: a `FlowRef` is a number that `allocate` has handed out, or `NONE`, which lies in the first chunk.
        // Chunks stay until the arena is dropped. Every entry starts with a header, whose members are all atomic and
        // valid as zeros.
        unsafe { &*self.entry(flow).cast::<Header>() }
    }

    #[inline(always)]
    fn entry(&self, flow: FlowRef) -> *mut u8 {
        let chunk = &self.chunks[flow.chunk()];
        let (base, stride) = (chunk.base.load(Ordering::Relaxed), chunk.stride.load(Ordering::Relaxed));
        base.wrapping_add(flow.slot() * stride as usize)
    }

    /// The flow, if it is live.
    #[inline(always)]
    pub fn live<'a>(&'a self, flow: FlowRef, guard: Guard<'a>) -> Option<Live<'a>> {
        let header = self.header(flow);
        let shape = NonNull::new(header.shape.load(Ordering::Acquire))?;
        // SAFETY: the shape is not null, so the flow was live while the guard's reader was online. Shape and key
        // blocks of a live flow stay unchanged until a grace period after it is dead. The blocks follow the header,
        // and were written before the shape was stored with release ordering.
        unsafe {
            let shape = guard.protect(shape.as_ptr());
            let key = std::slice::from_raw_parts(self.entry(flow).add(BLOCK_SIZE).cast::<Block>(), shape.count());
            Some(Live { header, shape, key, guard })
        }
    }

    /// The actions of a flow that was live in this turn, even if it is dead by now.
    #[inline(always)]
    pub fn action<'a>(&'a self, flow: FlowRef, guard: Guard<'a>) -> CompiledAction<'a> {
        let program = self.header(flow).program.load(Ordering::Acquire);
        // The program stays for a grace period, which does not end within a turn.
        unpack(NonNull::new(program).expect("it was live in this turn").as_ptr(), guard)
    }

    /// Prefetches the cache lines of an entry that a comparison reads.
    #[inline(always)]
    pub fn prefetch(&self, flow: FlowRef) {
        let entry = self.entry(flow);
        crate::classify::prefetch(entry);
        crate::classify::prefetch(entry.wrapping_add(BLOCK_SIZE));
    }

    /// Prefetches the cache line with the pointer to the flow's program.
    #[inline(always)]
    pub fn prefetch_header(&self, flow: FlowRef) {
        crate::classify::prefetch(self.entry(flow));
    }

    /// Prefetches the flow's program.
    #[inline(always)]
    pub fn prefetch_program(&self, flow: FlowRef) {
        crate::classify::prefetch(self.header(flow).program.load(Ordering::Relaxed));
    }

    /// A worker's counters of all flows.
    #[inline(always)]
    pub fn flow_counters(&self, worker: usize) -> FlowCounters<'_> {
        self.all_counters[worker].get().expect("a worker is enlisted before it comes into being").flow_counters()
    }

    /// The sum of all workers' counters.
    pub fn stats(&self, flow: FlowRef) -> FlowStats {
        let mut sum = FlowStats::default();
        for worker in 0..self.workers.load(Ordering::Acquire) {
            sum.add(&self.flow_counters(worker).stats(flow));
        }
        sum
    }

    /// The number of workers that have counters.
    pub(in crate::classify) fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// Whether the flow is live.
    pub fn is_live(&self, flow: FlowRef) -> bool {
        !self.header(flow).shape.load(Ordering::Acquire).is_null()
    }

    /// The identity of the flow that the entry holds, or held last.
    pub fn id(&self, flow: FlowRef) -> FlowId {
        FlowId(u64::from(self.header(flow).generation.load(Ordering::Acquire)) << 32 | u64::from(flow.0))
    }

    /// The entry of the flow with this identity, if it is live.
    pub fn find(&self, id: FlowId) -> Option<FlowRef> {
        let flow = FlowRef(id.0 as u32);
        let known = self.chunks.get(flow.chunk()).is_some_and(|c| !c.base.load(Ordering::Acquire).is_null());
        (known && self.is_live(flow) && self.id(flow) == id).then_some(flow)
    }
}

/// For the writer.
impl Arena {
    /// Makes counters for a worker, before the worker is created. A worker with a number that was used before
    /// continues with the counters of that number.
    pub(in crate::classify) fn add_worker(&self, worker: usize) {
        let workers = self.workers.load(Ordering::Relaxed);
        for of_worker in self.all_counters.iter().take(worker + 1).skip(workers) {
            of_worker.get_or_init(|| WorkerFlowCounters::new(self.chunks.len() * CHUNK));
        }
        self.workers.store(workers.max(worker + 1), Ordering::Release);
    }

    /// A dead entry for a key of `blocks` blocks, or `None` when all chunks are used.
    pub(in crate::classify) fn allocate(&self, free: &mut Free, blocks: usize) -> Option<FlowRef> {
        if let Some(flow) = free.entries[blocks - 1].pop() {
            return Some(flow);
        }
        let fresh = &mut free.fresh[blocks - 1];
        if fresh.start == fresh.end {
            let chunk = self.chunks.get(free.chunks)?;
            chunk.stride.store((BLOCK_SIZE * (1 + blocks)) as u32, Ordering::Release);
            chunk.base.store(zeroed::<Block>(CHUNK * (1 + blocks)).cast(), Ordering::Release);
            let first = (free.chunks << CHUNK_BITS) as u32;
            *fresh = first..first + CHUNK as u32;
            free.chunks += 1;
        }
        fresh.next().map(FlowRef)
    }

    /// Fills in a dead entry and makes it live.
    ///
    /// # Safety
    /// `flow` must be a dead entry that came from [`allocate`](Arena::allocate) for `shape.count()` blocks. The
    /// caller must be the only writer. `shape` must stay until a grace period after [`make_dead`](Arena::make_dead).
    pub(in crate::classify) unsafe fn make_live(
        &self,
        flow: FlowRef,
        shape: &Shape,
        key: &Key,
        hash: u64,
        program: &Arc<Program>,
    ) {
        let header = self.header(flow);
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            self.flow_counters(worker).clear(flow);
        }
        let mut at = self.entry(flow).wrapping_add(BLOCK_SIZE).cast::<Block>();
        for block in shape.compact(key) {
            // SAFETY: the caller guarantees that the entry has room for this many blocks and is dead, so no reader
            // accesses them.
            unsafe { at.write(*block) };
            at = at.wrapping_add(1);
        }
        header.program.store(pack(program), Ordering::Relaxed);
        header.hash.store(hash, Ordering::Relaxed);
        header.generation.store(header.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        header.shape.store(ptr::from_ref(shape).cast_mut(), Ordering::Release);
    }

    /// Prefetches what it takes to make a flow dead.
    pub(in crate::classify) fn prefetch_for_writer(&self, flow: FlowRef) {
        self.prefetch_header(flow);
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            crate::classify::prefetch(self.flow_counters(worker).of(flow));
        }
    }

    /// Makes a flow dead. Its entry may be freed after a grace period.
    pub(in crate::classify) fn make_dead(&self, flow: FlowRef) {
        self.header(flow).shape.store(ptr::null_mut(), Ordering::Release);
        self.invalidate_caches(flow);
    }

    /// Invalidates the cache entries of a flow, by its epochs. To be called after the change.
    fn invalidate_caches(&self, flow: FlowRef) {
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            self.flow_counters(worker).of(flow).invalidate_caches();
        }
    }

    /// Prefetches an entry for a key of `blocks` blocks, and a flow's counters, for [`make_live`](Arena::make_live).
    pub(in crate::classify) fn prefetch_dead(&self, flow: FlowRef, blocks: usize) {
        let entry = self.entry(flow);
        (0..=blocks).for_each(|block| crate::classify::prefetch(entry.wrapping_add(block * BLOCK_SIZE)));
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            crate::classify::prefetch(self.flow_counters(worker).of(flow));
        }
    }

    /// Frees the entry of a flow that has been dead for at least a grace period.
    pub(in crate::classify) fn free(&self, free: &mut Free, flow: FlowRef) {
        let program = self.header(flow).program.swap(ptr::null_mut(), Ordering::AcqRel);
        if is_shared(program) {
            // SAFETY: the pointer came from `Arc::into_raw` in `pack`. It is unlinked, and so was the flow a grace period ago,
            // so no reader can use it. It is made an `Arc` again only here.
            drop(unsafe { Arc::from_raw(program) });
        }
        let stride = self.chunks[flow.chunk()].stride.load(Ordering::Relaxed) as usize;
        free.entries[stride / BLOCK_SIZE - 2].push(flow);
    }

    /// Replaces a live flow's program.
    pub(in crate::classify) fn set_program(&self, flow: FlowRef, program: &Arc<Program>, domain: &Domain) {
        let old = self.header(flow).program.swap(pack(program), Ordering::AcqRel);
        self.invalidate_caches(flow);
        retire(old, domain);
    }

    /// Hash of a live flow's masked key.
    pub(in crate::classify) fn hash(&self, flow: FlowRef) -> u64 {
        self.header(flow).hash.load(Ordering::Relaxed)
    }

    /// The masked key of a live flow. Only the writer can make the flow dead, so it needs no guard. `None` where the flow
    /// is dead.
    pub(in crate::classify) fn key_for_writer(&self, flow: FlowRef) -> Option<Key> {
        let mut key = Key::new();
        self.read_key_for_writer(flow, &mut key).then_some(key)
    }

    /// As [`key_for_writer`](Arena::key_for_writer), in place of another key. False where the flow is dead.
    pub(in crate::classify) fn read_key_for_writer(&self, flow: FlowRef, key: &mut Key) -> bool {
        let stored = self.stored_for_writer(flow);
        stored.inspect(|(shape, blocks)| shape.expand_masked_into(blocks, key)).is_some()
    }

    /// The key of the packet that a live flow was made for, but for the blocks that its mask does not match.
    pub(in crate::classify) fn packet_key_for_writer(&self, flow: FlowRef) -> Option<Key> {
        let (shape, blocks) = self.stored_for_writer(flow)?;
        let mut key = Key::new();
        shape.expand_into(blocks, &mut key);
        Some(key)
    }

    fn stored_for_writer(&self, flow: FlowRef) -> Option<(&Shape, &[Block])> {
        let shape = NonNull::new(self.header(flow).shape.load(Ordering::Acquire))?;
        // SAFETY: the shape is not null, so the flow is live, and shape and key blocks are complete. Only the writer
        // could free them, and the writer is here.
        unsafe {
            let shape = shape.as_ref();
            let blocks = std::slice::from_raw_parts(self.entry(flow).add(BLOCK_SIZE).cast::<Block>(), shape.count());
            Some((shape, blocks))
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let base = *chunk.base.get_mut();
            if base.is_null() {
                break;
            }
            let blocks = *chunk.stride.get_mut() as usize / BLOCK_SIZE;
            for slot in 0..CHUNK {
                let entry = base.wrapping_add(slot * blocks * BLOCK_SIZE).cast::<Header>();
                // SAFETY: `&mut self` says that there are no readers left. Every entry of a chunk starts with a
                // header, and a program pointer that is not immediate came from `Arc::into_raw` in `pack`.
                unsafe {
                    let program = *(*entry).program.get_mut();
                    if is_shared(program) {
                        drop(Arc::from_raw(program));
                    }
                }
            }
            release(base.cast::<Block>(), CHUNK * blocks);
        }
    }
}

/// The entries that are not in use. For the writer alone.
#[derive(Default)]
pub struct Free {
    /// Entries that were used before, by number of blocks less one.
    entries: [Vec<FlowRef>; BLOCKS],
    /// Entries that were never used, in the newest chunk of each number of blocks.
    fresh: [std::ops::Range<u32>; BLOCKS],
    /// Number of chunks.
    chunks: usize,
}

impl Free {
    /// The entry for a key of `blocks` blocks that is handed out after `number` others, if it is known by now.
    pub(in crate::classify) fn nth(&self, blocks: usize, number: usize) -> Option<FlowRef> {
        let (used, fresh) = (&self.entries[blocks - 1], &self.fresh[blocks - 1]);
        match number.checked_sub(used.len()) {
            None => Some(used[used.len() - 1 - number]),
            Some(number) => fresh.clone().nth(number).map(FlowRef),
        }
    }
}

/// A program pointer with this bit is not a pointer: the bits above [`ACTION_BITS`] are a port number, or,
/// with [`DROP_BIT`], a reason.
const IMMEDIATE: usize = 1;
const DROP_BIT: usize = 2;
const ACTION_BITS: u32 = 2;

fn pack(program: &Arc<Program>) -> *mut Program {
    let immediate = |bits: usize| ptr::without_provenance_mut(bits | IMMEDIATE);
    if let Some(port) = program.single_output() {
        return immediate((port.0 as usize) << ACTION_BITS);
    }
    match program.single_drop() {
        Some(reason) => immediate((reason as usize) << ACTION_BITS | DROP_BIT),
        None => Arc::into_raw(program.clone()).cast_mut(),
    }
}

/// Whether it is a pointer to a program, of which it holds a reference.
fn is_shared(program: *mut Program) -> bool {
    !program.is_null() && program.addr() & IMMEDIATE == 0
}

#[inline(always)]
fn unpack(program: *mut Program, guard: Guard<'_>) -> CompiledAction<'_> {
    let bits = program.addr();
    if bits & IMMEDIATE != 0 {
        let value = bits >> ACTION_BITS;
        return if bits & DROP_BIT != 0 {
            CompiledAction::Drop(reason(value))
        } else {
            CompiledAction::Output(PortNo(value as u32))
        };
    }
    // SAFETY: the flow was live in this turn, and had this program then. A program that is replaced, or whose entry
    // is freed, is retired through the guard's domain.
    CompiledAction::Program(unsafe { guard.protect(program) })
}

fn retire(program: *mut Program, domain: &Domain) {
    if is_shared(program) {
        // SAFETY: the pointer came from `Arc::into_raw` in `pack`. It is unlinked, so no new reader can reach it, and
        // it is made an `Arc` again only here.
        domain.retire(Box::new(unsafe { Arc::from_raw(program) }));
    }
}

fn zeroed<T>(count: usize) -> *mut T {
    let layout = Layout::array::<T>(count).expect("a chunk is far smaller than the address space");
    // SAFETY: the layout's size is not zero, since neither `T` nor the count is.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory.cast()
}

fn release<T>(memory: *mut T, count: usize) {
    let layout = Layout::array::<T>(count).expect("it was allocated");
    // SAFETY: `zeroed` allocated this memory with the same layout.
    unsafe { dealloc(memory.cast(), layout) };
}
