//! What the processor can do.

pub mod level;
pub mod simd;
