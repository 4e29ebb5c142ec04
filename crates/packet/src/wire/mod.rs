//! Wire formats, one file each.
//!
//! Every file has the same parts in the same order: the header as it lies in memory (a `zerocopy`
//! structure, for reading, writing in place and emitting), a checked view (`new_checked`), accessors, and
//! tests. A view never reads outside the bytes that it was given; accessors return numbers in host byte
//! order.

pub mod checksum;

/// Why bytes are not the header that they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header says or needs.
    #[error("{layer}: {have} bytes, at least {need} needed")]
    Truncated {
        /// Name of the format.
        layer: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A value that the format does not allow.
    #[error("{layer}: {what}")]
    Malformed {
        /// Name of the format.
        layer: &'static str,
        /// What is wrong.
        what: &'static str,
    },
}
