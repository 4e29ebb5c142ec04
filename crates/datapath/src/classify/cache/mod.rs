//! What a worker remembers of flows: by the first bytes of frames, and by keys.

pub mod headers;
mod insertion;
pub mod keys;
