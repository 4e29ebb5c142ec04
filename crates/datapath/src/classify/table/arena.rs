//! Where flows live: chunks of entries that never move and are never given back.
//!
//! An entry is one line of header and then the flow's masked key, only the blocks that its mask looks
//! at. All entries of a chunk have the same number of blocks, so a header stays a header for ever, and a
//! stale [`FlowRef`] in some cache always leads to one.
//!
//! Who touches what: a writer (one at a time) fills in the key and the header of a dead entry, and then
//! makes it live by storing its shape. Readers load the shape first; while it is not null, nothing else
//! but the program changes. To reuse an entry, the writer clears the shape and waits for a grace period.
//! Counters of a flow are written by their worker alone, and zeroed by the writer before the entry
//! becomes live.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use packet::Key;
use packet::flow::{BLOCK_SIZE, BLOCKS, Block};

use super::flow_ref::{CHUNK, CHUNK_BITS, FlowRef};
use super::shape::Shape;
use crate::action::PortNo;
use crate::actions::program::Program;
use crate::classify::table::flow_counters::{FlowCounters, WorkerFlowCounters};
use crate::drop::DropReason;
use crate::sync::rcu::{Domain, Guard};
use crate::upcall::{FlowId, FlowStats};

/// First line of an entry.
#[repr(C, align(64))]
struct Header {
    /// The mask; null where the entry is dead. Owned by the flow's subtable.
    shape: AtomicPtr<Shape>,
    /// What to do: see [`pack`].
    program: AtomicPtr<Program>,
    /// Hash of the masked key.
    hash: AtomicU64,
    /// Raised whenever the entry is used anew.
    generation: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == BLOCK_SIZE);

/// The program of a live flow.
#[derive(Clone, Copy)]
pub enum CompiledAction<'a> {
    /// Send to this port: by far the most frequent, so it needs no further line.
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
    /// Whether `key` is one of the flow's.
    #[inline(always)]
    pub fn matches(&self, key: &Key) -> bool {
        self.shape.matches(self.key, key)
    }

    /// What to do.
    #[inline(always)]
    pub fn action(&self) -> CompiledAction<'a> {
        unpack(self.header.program.load(Ordering::Acquire), self.guard)
    }
}

/// What to do with a packet, in a word that a cache can keep: see [`FastAction::kind`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// No flow is known.
    Miss,
}

impl FastAction {
    /// No flow is known.
    pub const MISS: FastAction = FastAction(u32::MAX);
    /// Run the flow's program.
    pub const PROGRAM: FastAction = FastAction(u32::MAX - 1);
    /// The upper bits of a drop.
    const DROP: u32 = 0x8000_0000;

    /// What a flow's work is.
    #[inline(always)]
    pub fn of(work: CompiledAction<'_>) -> FastAction {
        match work {
            // There are no ports with such numbers: all are as good as one.
            CompiledAction::Output(port) => FastAction(port.0.min(FastAction::DROP - 1)),
            CompiledAction::Drop(reason) => FastAction(FastAction::DROP | reason as u32),
            CompiledAction::Program(_) => FastAction::PROGRAM,
        }
    }

    /// Zero where it is the same as another.
    #[inline(always)]
    pub fn differs(self, other: FastAction) -> u32 {
        self.0 ^ other.0
    }

    /// What it is.
    #[inline(always)]
    pub fn kind(self) -> FastActionKind {
        match self {
            FastAction::MISS => FastActionKind::Miss,
            FastAction::PROGRAM => FastActionKind::Program,
            FastAction(port) if port < FastAction::DROP => FastActionKind::Output(PortNo(port)),
            FastAction(drop) => FastActionKind::Drop(reason((drop & !FastAction::DROP) as usize)),
        }
    }
}

fn reason(number: usize) -> DropReason {
    *DropReason::ALL.get(number).expect("it was made of a reason")
}

struct Chunk {
    base: AtomicPtr<u8>,
    /// Bytes from entry to entry.
    stride: AtomicU32,
}

/// All entries.
pub struct Arena {
    chunks: Box<[Chunk]>,
    /// Of each worker that there has ever been, its counters of all entries.
    all_counters: Box<[OnceLock<WorkerFlowCounters>]>,
    /// Workers that have counters: those below this number. The writer's.
    workers: AtomicUsize,
}

impl Arena {
    /// An arena for at least `max_flows` entries and at most `max_workers`, of which there are none yet:
    /// see [`add_worker`](Arena::add_worker).
    pub fn new(max_flows: usize, max_workers: usize) -> (Arena, Free) {
        // One chunk more for each number of blocks, whose last chunk may be all but empty.
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
        // SAFETY: a flow's number is one that `allocate` has handed out, chunks stay until the arena is
        // dropped, and every entry starts with a header, all of whose members are atomic and valid as
        // zeros.
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
        // SAFETY: while a flow is live, so is its shape, and both stay as they are for a grace period.
        // The key blocks follow the header and were written before the shape was stored.
        unsafe {
            let shape = guard.protect(shape.as_ptr());
            let key = std::slice::from_raw_parts(self.entry(flow).add(BLOCK_SIZE).cast::<Block>(), shape.count());
            Some(Live { header, shape, key, guard })
        }
    }

    /// What to do with packets of a flow that was live in this turn: also if it is no longer.
    #[inline(always)]
    pub fn action<'a>(&'a self, flow: FlowRef, guard: Guard<'a>) -> CompiledAction<'a> {
        let program = self.header(flow).program.load(Ordering::Acquire);
        // It stays for a grace period, and a turn is none.
        unpack(NonNull::new(program).expect("it was live in this turn").as_ptr(), guard)
    }

    /// Asks for the lines of an entry that a comparison will read.
    #[inline(always)]
    pub fn prefetch(&self, flow: FlowRef) {
        let entry = self.entry(flow);
        crate::classify::prefetch(entry);
        crate::classify::prefetch(entry.wrapping_add(BLOCK_SIZE));
    }

    /// Asks for the line that says where the flow's program is.
    #[inline(always)]
    pub fn prefetch_header(&self, flow: FlowRef) {
        crate::classify::prefetch(self.entry(flow));
    }

    /// Asks for the flow's program.
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

    /// Workers that have counters.
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

    /// Where the flow with this identity is, if it is live.
    pub fn find(&self, id: FlowId) -> Option<FlowRef> {
        let flow = FlowRef(id.0 as u32);
        let known = self.chunks.get(flow.chunk()).is_some_and(|c| !c.base.load(Ordering::Acquire).is_null());
        (known && self.is_live(flow) && self.id(flow) == id).then_some(flow)
    }
}

/// The writer's side.
impl Arena {
    /// Makes counters for a worker, before it comes into being. One that follows an earlier worker of
    /// its number goes on with that one's counters.
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
    /// `flow` came from [`allocate`](Arena::allocate) for `shape.count()` blocks and is dead; the caller
    /// is the only writer; `shape` stays until a grace period after [`make_dead`](Arena::make_dead).
    pub(in crate::classify) unsafe fn make_live(
        &self,
        flow: FlowRef,
        shape: &Shape,
        key: &Key,
        hash: u64,
        program: Program,
    ) {
        let header = self.header(flow);
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            self.flow_counters(worker).clear(flow);
        }
        let mut at = self.entry(flow).wrapping_add(BLOCK_SIZE).cast::<Block>();
        for block in shape.compact(key) {
            // SAFETY: the entry has room for this many blocks, and no reader looks at a dead one's.
            unsafe { at.write(block) };
            at = at.wrapping_add(1);
        }
        header.program.store(pack(program), Ordering::Relaxed);
        header.hash.store(hash, Ordering::Relaxed);
        header.generation.store(header.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        header.shape.store(ptr::from_ref(shape).cast_mut(), Ordering::Release);
    }

    /// Makes a flow dead. Its entry may be freed after a grace period.
    pub(in crate::classify) fn make_dead(&self, flow: FlowRef) {
        self.header(flow).shape.store(ptr::null_mut(), Ordering::Release);
        self.invalidate_caches(flow);
    }

    /// Has caches forget what they know of a flow. Comes behind the change.
    fn invalidate_caches(&self, flow: FlowRef) {
        for worker in 0..self.workers.load(Ordering::Relaxed) {
            self.flow_counters(worker).of(flow).invalidate_caches();
        }
    }

    /// Gives back the entry of a flow that was killed at least a grace period ago.
    pub(in crate::classify) fn free(&self, free: &mut Free, flow: FlowRef, domain: &Domain) {
        retire(self.header(flow).program.swap(ptr::null_mut(), Ordering::AcqRel), domain);
        let stride = self.chunks[flow.chunk()].stride.load(Ordering::Relaxed) as usize;
        free.entries[stride / BLOCK_SIZE - 2].push(flow);
    }

    /// Replaces a live flow's program.
    pub(in crate::classify) fn set_program(&self, flow: FlowRef, program: Program, domain: &Domain) {
        let old = self.header(flow).program.swap(pack(program), Ordering::AcqRel);
        self.invalidate_caches(flow);
        retire(old, domain);
    }

    /// Hash of a live flow's masked key.
    pub(in crate::classify) fn hash(&self, flow: FlowRef) -> u64 {
        self.header(flow).hash.load(Ordering::Relaxed)
    }

    /// Key of a live flow, for the writer: only it can kill the flow meanwhile, so there is no need of a
    /// guard. `None` where the flow is dead.
    pub(in crate::classify) fn key_for_writer(&self, flow: FlowRef) -> Option<Key> {
        let shape = NonNull::new(self.header(flow).shape.load(Ordering::Acquire))?;
        // SAFETY: as in `live`; the writer frees nothing while it is here.
        unsafe {
            let shape = shape.as_ref();
            let key = std::slice::from_raw_parts(self.entry(flow).add(BLOCK_SIZE).cast::<Block>(), shape.count());
            Some(shape.expand(key))
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
                // SAFETY: as in `header`; nobody else is left. Packed pointers came from boxes.
                unsafe {
                    let program = *(*entry).program.get_mut();
                    if is_box(program) {
                        drop(Box::from_raw(program));
                    }
                }
            }
            release(base.cast::<Block>(), CHUNK * blocks);
        }
    }
}

/// Entries that are not in use. Belongs to the writer.
#[derive(Default)]
pub struct Free {
    /// Used before, by number of blocks less one.
    entries: [Vec<FlowRef>; BLOCKS],
    /// Never used, in the newest chunk of each number of blocks.
    fresh: [std::ops::Range<u32>; BLOCKS],
    /// Chunks that exist.
    chunks: usize,
}

/// A program pointer with this bit is not a pointer: the bits above [`ACTION_BITS`] are a port number, or,
/// with [`DROP_BIT`], a reason.
const IMMEDIATE: usize = 1;
const DROP_BIT: usize = 2;
const ACTION_BITS: u32 = 2;

fn pack(program: Program) -> *mut Program {
    let immediate = |bits: usize| ptr::without_provenance_mut(bits | IMMEDIATE);
    if let Some(port) = program.single_output() {
        return immediate((port.0 as usize) << ACTION_BITS);
    }
    match program.single_drop() {
        Some(reason) => immediate((reason as usize) << ACTION_BITS | DROP_BIT),
        None => Box::into_raw(Box::new(program)),
    }
}

fn is_box(program: *mut Program) -> bool {
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
    // SAFETY: a flow that was live in this turn had a program then; a program that is replaced, or whose
    // entry is freed, is retired through the domain.
    CompiledAction::Program(unsafe { guard.protect(program) })
}

fn retire(program: *mut Program, domain: &Domain) {
    if is_box(program) {
        // SAFETY: it came from a box in `pack`, and no new reader can reach it.
        domain.retire(unsafe { Box::from_raw(program) });
    }
}

fn zeroed<T>(count: usize) -> *mut T {
    let layout = Layout::array::<T>(count).expect("a chunk is far smaller than the address space");
    // SAFETY: the layout's size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory.cast()
}

fn release<T>(memory: *mut T, count: usize) {
    let layout = Layout::array::<T>(count).expect("it was allocated");
    // SAFETY: `zeroed` allocated it with this layout.
    unsafe { dealloc(memory.cast(), layout) };
}
