//! Which flow does a packet belong to?
//!
//! Three nouns: the [`arena`] holds the flows; a [`subtable`] finds, among the flows with one mask, the
//! one that equals a packet under it; the [`megaflow`] table has the subtables of each input port in the
//! order of their usefulness. Before it each worker has two caches: [`headers`], from a frame's first bytes,
//! whose entries hold as long as the flow's epoch; [`exact`], from keys, for frames with unusual headers,
//! whose entries are hints that the arena decides about.
//!
//! A hint, there or in a subtable's bucket, is a hit when the flow it names is live and equals the packet
//! under the flow's own mask. So a removed flow is out of sight by one store, and one for each worker, its
//! epoch; no cache is ever searched for stale entries, and a number that was given to another flow does no
//! harm.

#![allow(unsafe_code)]

use std::num::NonZeroU32;

pub mod batch;
pub mod cache;
pub mod cpu;
#[cfg(test)]
mod frame_tests;
pub mod mem;
pub mod mixed;
pub mod plan;
pub mod rescan;
pub mod scan;
pub mod table;
#[cfg(test)]
mod tests;

pub use batch::{Caches, classify};
pub use cache::headers::{Found, HeaderCache};
pub use cache::keys::KeyCache;
pub use packet::buffer::prefetch;
pub use table::arena::{CompiledAction, FastAction, FastActionKind, Live};
pub use table::flow_ref::FlowRef;
pub use table::megaflow::{FlowList, Installed, Requester, Table};

/// The numbers of the set bits, ascending.
#[inline(always)]
pub fn bits(set: u32) -> Bits {
    Bits(set)
}

/// See [`bits`]. A type of its own, because adaptors of iterators are not inlined reliably.
pub struct Bits(u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        // Of a number that is not zero, so that the compiler knows the result to be below 32.
        let lowest = NonZeroU32::new(self.0)?.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}
