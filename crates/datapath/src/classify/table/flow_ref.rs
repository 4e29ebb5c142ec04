//! Numbers of flows.

use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::{Immutable, IntoBytes};

/// Bits of a flow number that are the index in a chunk. Few in Miri, which takes long to visit each counter of a chunk.
pub const CHUNK_BITS: u32 = if cfg!(miri) { 4 } else { 14 };
/// Entries in a chunk. With one block, a chunk is 2 MiB.
pub const CHUNK: usize = 1 << CHUNK_BITS;

/// The number of an entry. [`FlowRef::NONE`] and any number that was ever handed out lead to an entry, live or dead,
/// of the arena that handed it out. There is one arena for each datapath, and no number is passed from one datapath
/// to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct FlowRef(pub(super) u32);

impl FlowRef {
    /// An entry that is never live.
    pub const NONE: FlowRef = FlowRef(0);

    /// The chunk that it lies in.
    pub fn chunk(self) -> usize {
        (self.0 >> CHUNK_BITS) as usize
    }

    /// The index in its chunk.
    pub fn slot(self) -> usize {
        self.0 as usize % CHUNK
    }

    /// The number.
    pub(in crate::classify) fn index(self) -> usize {
        self.0 as usize
    }

    /// The entry with a number that was handed out.
    pub(in crate::classify) fn at(index: usize) -> FlowRef {
        FlowRef(index as u32)
    }
}

/// A [`FlowRef`] in shared memory.
#[derive(Default)]
pub struct AtomicFlowRef(AtomicU32);

impl AtomicFlowRef {
    /// Loads the number.
    #[inline(always)]
    pub(in crate::classify) fn load(&self) -> FlowRef {
        FlowRef(self.0.load(Ordering::Acquire))
    }

    /// Stores another number.
    pub(in crate::classify) fn store(&self, flow: FlowRef) {
        self.0.store(flow.0, Ordering::Release);
    }
}
