//! Classification: which flow a packet belongs to.
//!
//! The [arena](table::arena) holds the flows. A [subtable](table::subtable) finds, among the flows with one mask, the
//! one that a packet matches. The [megaflow table](table::megaflow) has a list of subtables for each input port and
//! later recirculation stage, those with the most hits first. Each worker has two caches before it: the header cache
//! ([`cache::headers`]) maps the first bytes of a frame to a flow, and its entries hold as long as the flow's epoch;
//! the key cache ([`cache::keys`]) maps the keys of frames with unusual headers to hints.
//!
//! A hint, in the key cache or in a subtable's bucket, is the number of a flow. It is a hit if this flow is live and
//! the packet matches its key under its mask. So to remove a flow takes one store to the flow and one to its epoch of
//! each worker. No cache is searched for stale entries, and a stale hint does no harm after its number was given to
//! another flow.

#![allow(unsafe_code)]

use std::num::NonZeroU32;

pub mod batch;
pub mod cache;
pub mod cpu;
#[cfg(test)]
mod frame_tests;
#[cfg(test)]
mod index_tests;
pub mod mem;
pub mod mixed;
pub mod places;
pub mod plan;
pub mod probe;
pub mod rescan;
pub mod scan;
pub mod table;
#[cfg(test)]
mod tests;

pub use batch::{Caches, classify};
pub use cache::headers::{Found, HeaderCache};
pub use cache::keys::KeyCache;
pub use packet::buffer::prefetch;
pub use probe::CacheTier;
pub use table::arena::{CompiledAction, FastAction, FastActionKind, Live};
pub use table::flow_ref::FlowRef;
pub use table::install::{Installed, NewFlow, Requester};
pub use table::megaflow::{FlowList, Table};
pub use table::walk::FLOW_CHUNK;

/// The numbers of the bits that are set, in ascending order.
#[inline(always)]
pub fn bits(set: u32) -> Bits {
    Bits(set)
}

/// The iterator of [`bits`]. It is a type of its own because iterator adaptors are not inlined reliably.
pub struct Bits(u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        // `NonZeroU32` tells the compiler that the result is below 32.
        let lowest = NonZeroU32::new(self.0)?.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}
