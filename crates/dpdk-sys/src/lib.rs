//! Bindings to libdpdk 22.11, and to a shim for its inline functions, which are loaded at run time.
//!
//! Nothing here is linked with DPDK: [`load`] does that when it is first asked for, and until then no function may be
//! called. Everything is declared whether libdpdk was found when this was compiled or not; where it was not,
//! [`load`] says so.
//!
//! [`bindings`] is made by `scripts/dpdk-bindings.sh`, which also makes `shim/layout.c`: the C compiler
//! checks there that the installed headers have every structure as the bindings have it. [`mbuf`], [`shim`]
//! and [`vhost`] are written by hand, and checked by `shim/mbuf.c`.

#[macro_use]
mod functions;

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
mod load;
pub mod mbuf;
pub mod shim;
pub mod vhost;

pub use bindings::*;
pub use load::{BUILT_WITH, LoadError, is_loaded, load};
pub use mbuf::rte_mbuf;
pub use shim::*;
pub use vhost::*;
