//! Bindings to libdpdk 22.11, and to a shim for its inline functions.
//!
//! Empty where libdpdk was not found when this was compiled. [`bindings`] is made by `scripts/dpdk-bindings.sh`, which
//! also makes `shim/layout.c`: the C compiler checks there that the installed headers have every
//! structure as the bindings have it. [`mbuf`] and [`shim`] are written by hand, and checked by
//! `shim/mbuf.c`.

#[cfg(dpdk)]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
mod bindings;
#[cfg(dpdk)]
pub mod mbuf;
#[cfg(dpdk)]
pub mod shim;
#[cfg(dpdk)]
pub mod vhost;

#[cfg(dpdk)]
pub use bindings::*;
#[cfg(dpdk)]
pub use mbuf::rte_mbuf;
#[cfg(dpdk)]
pub use shim::*;
#[cfg(dpdk)]
pub use vhost::*;
