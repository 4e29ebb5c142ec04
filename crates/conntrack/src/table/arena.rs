//! Slots by number. Their memory comes in chunks that are made when they are needed and kept as long as the arena.
//!
//! A number that was given back goes to the shard that it came from; what a shard has too much goes to a common list.

use std::sync::OnceLock;

use super::slot::Slot;
use crate::sync::Mutex;

/// Slots of a chunk: 768 KiB, zeroed by the system when they are first touched.
#[cfg(not(loom))]
const CHUNK: usize = 1 << 12;
#[cfg(loom)]
const CHUNK: usize = 2;

/// The most chunks: 16 million slots.
#[cfg(not(loom))]
const CHUNKS: usize = 1 << 12;
#[cfg(loom)]
const CHUNKS: usize = 2;

/// The most slots that there can be.
pub(super) const MAX_SLOTS: usize = CHUNK * CHUNKS;

/// Numbers that a shard takes from the common list at once.
#[cfg(not(loom))]
const BATCH: usize = 16;
#[cfg(loom)]
const BATCH: usize = 1;

/// All slots.
pub(super) struct Arena {
    chunks: Box<[OnceLock<Box<[Slot; CHUNK]>>]>,
    common: Mutex<Common>,
}

struct Common {
    free: Vec<u32>,
    /// Numbers below have been given out at least once.
    used: u32,
}

impl Arena {
    pub(super) fn new() -> Arena {
        // loom does not know that a `OnceLock` orders what is in it.
        let chunk = || if cfg!(loom) { OnceLock::from(new_chunk()) } else { OnceLock::new() };
        let chunks = (0..CHUNKS).map(|_| chunk()).collect();
        Arena { chunks, common: Mutex::new(Common { free: Vec::new(), used: 0 }) }
    }

    /// The slot of a number that has been given out.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Slot {
        let chunk = self.chunks[number as usize / CHUNK].get().expect("a number that was given out has a chunk");
        &chunk[number as usize % CHUNK]
    }

    /// The slot of any number.
    #[inline]
    pub(super) fn try_get(&self, number: u32) -> Option<&Slot> {
        Some(&self.chunks.get(number as usize / CHUNK)?.get()?[number as usize % CHUNK])
    }

    /// Numbers below have been given out.
    pub(super) fn used(&self) -> u32 {
        self.common.lock().used
    }

    /// A free number, from the shard's list or the common one; `None` where there are as many as there can be.
    pub(super) fn take(&self, own: &mut Vec<u32>) -> Option<u32> {
        if let Some(number) = own.pop() {
            return Some(number);
        }
        let mut common = self.common.lock();
        let left = common.free.len().saturating_sub(BATCH);
        own.extend(common.free.drain(left..));
        while own.len() < BATCH && (common.used as usize) < MAX_SLOTS {
            let number = common.used;
            self.chunks[number as usize / CHUNK].get_or_init(new_chunk);
            common.used += 1;
            own.push(number);
        }
        own.pop()
    }

    /// Gives a number back.
    pub(super) fn give(&self, own: &mut Vec<u32>, number: u32) {
        own.push(number);
        if own.len() >= 4 * BATCH {
            self.common.lock().free.extend(own.drain(..2 * BATCH));
        }
    }
}

#[cfg(not(loom))]
fn new_chunk() -> Box<[Slot; CHUNK]> {
    use zerocopy::FromZeros;
    <[Slot; CHUNK]>::new_box_zeroed().unwrap_or_else(|_| {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<[Slot; CHUNK]>());
    })
}

#[cfg(loom)]
fn new_chunk() -> Box<[Slot; CHUNK]> {
    Box::new(std::array::from_fn(|_| Slot::new()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_once_and_come_back() {
        let arena = Arena::new();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut taken: Vec<u32> = (0..1000).map(|_| arena.take(&mut a).unwrap()).collect();
        let used = arena.used();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 1000);
        taken.into_iter().for_each(|number| arena.give(&mut a, number));
        // What the other shard takes, the first has given.
        (0..900).for_each(|_| assert!(arena.take(&mut b).unwrap() < used));
        assert!(a.len() < 4 * BATCH);
    }
}
