//! Arrays of which few elements are ever written.

use crate::classify::mem::region::{Region, Zero};

/// Elements that are allocated together.
const CHUNK: usize = 1 << 12;

/// An array without elements at first. Its memory is allocated by the chunk, with the first element of each that is written: unlike a
/// [`Region`], what is not used takes no address space either, of which some machines have no more than memory.
pub struct Chunks<T: Zero>(Box<[Option<Region<T>>]>);

impl<T: Zero> Chunks<T> {
    /// For at most `count` elements.
    pub fn new(count: usize) -> Chunks<T> {
        Chunks((0..count.div_ceil(CHUNK)).map(|_| None).collect())
    }

    /// Element `number`; `None`, or zeros, if it was not written.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number / CHUNK)?.as_ref()?.slice().get(number % CHUNK)
    }

    /// Writes element `number`.
    pub fn set(&mut self, number: usize, value: T) {
        let chunk = self.0[number / CHUNK].get_or_insert_with(|| Region::new(CHUNK));
        chunk.slice_mut()[number % CHUNK] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_there() {
        let mut chunks = Chunks::<u64>::new(3 * CHUNK + 1);
        assert_eq!((chunks.get(0), chunks.get(3 * CHUNK), chunks.get(9 * CHUNK)), (None, None, None));
        for number in [0, CHUNK - 1, 3 * CHUNK] {
            chunks.set(number, number as u64 + 7);
            assert_eq!(chunks.get(number), Some(&(number as u64 + 7)));
        }
        assert_eq!((chunks.get(1), chunks.get(CHUNK)), (Some(&0), None));
        assert!(chunks.0[1].is_none() && chunks.0[2].is_none());
    }
}
