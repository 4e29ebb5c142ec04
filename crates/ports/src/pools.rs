//! The pools that all ports of this process share, so that a frame moves between them without a copy.
//!
//! Two sizes: [`frames`] for what fits an MTU, which AF_XDP sockets have as their UMEM, and
//! [`large_frames`] for what local stacks send before segmentation. Each is made when it is first
//! wanted. [`configure`] says how large, once, before any port is opened.

use std::sync::OnceLock;

use packet::buffer::pool::PoolError;
use packet::{Memory, Pool, PoolConfig};
use rustix::mm::{Advice, madvise};

use crate::Error;

/// Sizes of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Frames of up to an MTU.
    pub frames: PoolConfig,
    /// Frames of up to 64 KiB.
    pub large_frames: PoolConfig,
}

impl Default for PoolSizes {
    /// 64 MiB of frames, which AF_XDP locks in memory, and 1024 large ones, which take up what they use.
    fn default() -> PoolSizes {
        PoolSizes {
            frames: PoolConfig::default(),
            large_frames: PoolConfig { chunks: 1024, chunk_size: 128 * 1024, headroom: 256 },
        }
    }
}

static SIZES: OnceLock<PoolSizes> = OnceLock::new();
static FRAMES: OnceLock<Result<&'static Pool, PoolError>> = OnceLock::new();
static LARGE_FRAMES: OnceLock<Result<&'static Pool, PoolError>> = OnceLock::new();

/// Sets the sizes. `false`, and no change, when they have been set or used before.
pub fn configure(sizes: PoolSizes) -> bool {
    SIZES.set(sizes).is_ok()
}

/// The pool of frames.
pub fn frames() -> Result<&'static Pool, Error> {
    let make = || make(sizes().frames, Advice::LinuxHugepage);
    FRAMES.get_or_init(make).map_err(|error| pool_error("frames", error))
}

/// The pool of large frames.
pub fn large_frames() -> Result<&'static Pool, Error> {
    // Huge pages would back the parts of chunks that no frame reaches.
    let make = || make(sizes().large_frames, Advice::LinuxNoHugepage);
    LARGE_FRAMES.get_or_init(make).map_err(|error| pool_error("large-frames", error))
}

/// Where frames are put together: the pool of large frames, or the heap where that cannot be had.
pub fn for_super_frames() -> &'static Memory {
    large_frames().map_or(&packet::buffer::heap::HEAP, |pool| pool.memory())
}

/// Where parts of a frame in this memory are made: those of a large frame are not large, and there are few buffers for such.
pub fn of_parts(memory: &'static Memory) -> &'static Memory {
    match LARGE_FRAMES.get() {
        Some(Ok(large)) if std::ptr::eq(large.memory(), memory) => frames().map_or(memory, |pool| pool.memory()),
        _ => memory,
    }
}

/// How many buffers of each pool are in use, as [`Pool::in_use`] has it. Pools that nobody wanted are left out.
pub fn in_use() -> impl Iterator<Item = (&'static str, usize)> {
    let made = [("frames", &FRAMES), ("large-frames", &LARGE_FRAMES)];
    made.into_iter().filter_map(|(name, pool)| Some((name, pool.get()?.as_ref().ok()?.in_use())))
}

fn sizes() -> PoolSizes {
    *SIZES.get_or_init(PoolSizes::default)
}

#[allow(unsafe_code)]
fn make(config: PoolConfig, advice: Advice) -> Result<&'static Pool, PoolError> {
    let pool = Pool::new(config)?;
    // Only advice: a kernel without huge pages refuses it, and nothing is lost.
    // SAFETY: neither advice changes what the memory holds.
    let _ = unsafe { madvise(pool.base().as_ptr().cast(), pool.size(), advice) };
    Ok(pool)
}

fn pool_error(pool: &str, error: PoolError) -> Error {
    Error::Option { port: "pools".into(), option: pool.into(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_made_once() {
        assert!(std::ptr::eq(frames().unwrap(), frames().unwrap()));
        let large = large_frames().unwrap();
        assert!(large.chunk_size() >= 64 * 1024 + large.headroom());
        assert!(!configure(PoolSizes::default()), "too late");
    }
}
