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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::field::FIELDS;
    use super::*;

    /// A key, a mask and another key that differs in a few fields.
    fn matches() -> impl Strategy<Value = (Key, Mask, Key)> {
        let fields = || proptest::collection::vec((0..FIELDS.len(), any::<u128>()), 0..6);
        (fields(), fields(), fields()).prop_map(|(values, masks, changes)| {
            let mut key = Key::new();
            values.iter().for_each(|&(i, v)| key.set(FIELDS[i].field, v));
            let mut mask = Mask::wildcard();
            masks.iter().for_each(|&(i, v)| mask.add(FIELDS[i].field, v));
            values.iter().step_by(2).for_each(|&(i, _)| mask.set_exact(FIELDS[i].field));
            let mut other = key.clone();
            changes.iter().take(values.len() % 3).for_each(|&(i, v)| other.set(FIELDS[i].field, v));
            (key, mask, other)
        })
    }

    proptest! {
        #[test]
        fn says_what_the_dense_form_says((key, mask, other) in matches()) {
            let sparse = SparseMatch::new(&key, &mask);
            prop_assert!(sparse.matches(&key));
            prop_assert_eq!(sparse.matches(&other), key.matches(&other, &mask));
            let (dense, bits) = sparse.expand();
            prop_assert_eq!(&dense, &key.masked(&mask));
            prop_assert_eq!(&bits, &mask);
            prop_assert_eq!(sparse, SparseMatch::new(&dense, &bits));
        }
    }

    #[test]
    fn stores_only_what_is_matched() {
        use crate::flow::Field;
        let mut mask = Mask::wildcard();
        assert_eq!(SparseMatch::new(&Key::new(), &mask).pairs().len(), 0);
        mask.set_exact(Field::NwDst);
        mask.set_exact(Field::Reg3);
        mask.set_exact(Field::Metadata);
        mask.clear(Field::Metadata);
        assert_eq!(SparseMatch::new(&Key::new(), &mask).pairs().len(), 2);
        assert!(size_of::<SparseMatch>() <= 24);
    }
}
