//! A match, stored with only the blocks that it looks at.

use std::fmt;

use super::block::Block;
use super::key::{Blocks, Key, Mask};

/// Values and mask of a rule or a megaflow. Takes one pointer-sized header and, for each block in which the
/// mask has a bit, 128 bytes on the heap: the masked value and, beside it, the mask.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SparseMatch {
    pairs: Box<[Pair]>,
    blocks: Blocks,
}

/// One block of a [`SparseMatch`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Pair {
    /// Value; zero where `mask` is.
    pub key: Block,
    /// The bits that are matched.
    pub mask: Block,
}

impl SparseMatch {
    /// The match on `key` under `mask`. Bits of `key` outside `mask` are forgotten.
    pub fn new(key: &Key, mask: &Mask) -> SparseMatch {
        let blocks = mask.blocks();
        let pair = |id| {
            let mask = *mask.0.block(id);
            let mut masked = *key.block(id);
            masked.words_mut().iter_mut().zip(mask.words()).for_each(|(k, m)| *k &= m);
            Pair { key: masked, mask }
        };
        SparseMatch { pairs: blocks.iter().map(pair).collect(), blocks }
    }

    /// The blocks in which at least one bit is matched.
    #[inline(always)]
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Value and mask of each of [`blocks`](Self::blocks), in ascending order.
    #[inline(always)]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Whether `key` equals the value in every bit that is matched.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        self.blocks.iter().zip(&self.pairs).all(|(id, pair)| {
            let (words, value, mask) = (key.block(id).words(), pair.key.words(), pair.mask.words());
            (0..8).fold(0, |diff, i| diff | words[i] & mask[i] ^ value[i]) == 0
        })
    }

    /// The values, zero where nothing is matched.
    pub fn key(&self) -> Key {
        self.dense(|pair| &pair.key)
    }

    /// The mask.
    pub fn mask(&self) -> Mask {
        Mask(self.dense(|pair| &pair.mask))
    }

    /// Values and mask in the dense form.
    pub fn expand(&self) -> (Key, Mask) {
        (self.key(), self.mask())
    }

    fn dense(&self, part: impl Fn(&Pair) -> &Block) -> Key {
        let mut key = Key::new();
        for (id, pair) in self.blocks.iter().zip(&self.pairs) {
            *key.block_mut(id) = *part(pair);
        }
        key
    }
}

impl From<(&Key, &Mask)> for SparseMatch {
    fn from((key, mask): (&Key, &Mask)) -> SparseMatch {
        SparseMatch::new(key, mask)
    }
}

impl fmt::Debug for SparseMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseMatch").field("key", &self.key()).field("mask", &self.mask()).finish()
    }
}
