//! The UMEM of sockets: the memory that the kernel puts frames into and sends them from.
//!
//! It is the pool of all frames ([`crate::pools::frames`]), whole, registered once with each socket.
//! So a frame that came in by one socket goes out by any other as it is, whatever their interfaces and
//! modes. Sharing one registration between sockets (XDP_SHARED_UMEM) would save the kernel a table of
//! about 128 bytes per chunk and socket, but forces the mode of the first socket on all others, so that
//! one veth would take zero-copy from every NIC.
//!
//! The kernel doesn't know of each other's registrations and needn't: a chunk is in one ring of one
//! socket at most, because it has one holder (see `packet::buffer::pool`). [`Held`] says which chunks
//! the kernel holds for a socket; they come back to the pool when the socket is closed. Counting would
//! not do: a chunk that was taken from the fill ring for a frame that was then thrown away is in no
//! ring.

use packet::Pool;

/// The chunks that the kernel holds on behalf of one ring pair. Written by the owner of the rings only.
pub struct Held {
    bits: Box<[u64]>,
    count: usize,
}

impl Held {
    /// None of the chunks of `pool`.
    pub fn new(pool: &Pool) -> Held {
        Held { bits: vec![0; pool.chunks().div_ceil(64)].into(), count: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds a chunk, which was not there before.
    #[inline]
    pub fn insert(&mut self, chunk: u32) {
        let bit = 1 << (chunk % 64);
        debug_assert_eq!(self.bits[chunk as usize / 64] & bit, 0, "chunk {chunk} was given twice");
        self.bits[chunk as usize / 64] |= bit;
        self.count += 1;
    }

    /// Removes a chunk; `false` when it was not there.
    #[inline]
    pub fn remove(&mut self, chunk: u32) -> bool {
        let bit = 1 << (chunk % 64);
        let was = self.bits[chunk as usize / 64] & bit != 0;
        self.bits[chunk as usize / 64] &= !bit;
        self.count -= usize::from(was);
        was
    }

    /// Removes all.
    pub fn take(&mut self) -> Vec<u32> {
        let mut chunks = Vec::with_capacity(self.count);
        for (index, word) in self.bits.iter_mut().enumerate() {
            while *word != 0 {
                chunks.push(index as u32 * 64 + word.trailing_zeros());
                *word &= *word - 1;
            }
        }
        self.count = 0;
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::PoolConfig;

    #[test]
    fn holds_what_was_inserted() {
        let pool = Pool::new(PoolConfig { chunks: 130, chunk_size: 2048, headroom: 256 }).unwrap();
        let mut held = Held::new(pool);
        for chunk in [0, 63, 64, 129] {
            held.insert(chunk);
        }
        assert!(held.remove(63) && !held.remove(63) && !held.remove(1));
        assert_eq!(held.len(), 3);
        assert_eq!(held.take(), [0, 64, 129]);
        assert_eq!((held.len(), held.take().len()), (0, 0));
    }
}
