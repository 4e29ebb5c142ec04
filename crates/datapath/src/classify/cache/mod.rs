//! A worker's flow caches: by the first bytes of frames, and by keys.

pub mod fused;
pub mod headers;
mod insertion;
pub mod keys;
