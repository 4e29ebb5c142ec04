//! Which flow does a packet belong to?
//!
//! Three nouns: the [`arena`] holds the flows; a [`subtable`] finds, among the flows with one mask, the
//! one that equals a packet under it; the [`megaflow`] table has the subtables of each input port in the
//! order of their usefulness. Beside it, each worker has an [`exact`]-match cache that leads packets of a
//! known microflow straight to their flow.
//!
//! Only the arena decides: buckets and caches hold hints. A hint is a hit when the flow it names is live
//! and equals the packet under the flow's own mask; so removing a flow is one store, no cache is ever
//! searched for stale entries, and a number that was given to another flow does no harm.

#![allow(unsafe_code)]

pub mod arena;
pub mod exact;
pub mod megaflow;
pub mod shape;
mod simd;
pub mod subtable;
#[cfg(test)]
mod tests;

pub use arena::{FlowRef, Live, Work};
pub use exact::ExactCache;
pub use megaflow::{Installed, PortList, Table};

/// Asks the processor for a cache line. Harmless for any address.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The numbers of the set bits, ascending.
#[inline(always)]
pub fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        lowest
    })
}
