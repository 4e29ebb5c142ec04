//! A mask, laid out for comparisons: only the blocks in which it has a bit, one after the other.

use packet::flow::block::ALL_BLOCKS;
use packet::flow::hash::{Hasher, and};
use packet::flow::{BLOCKS, Block, BlockId};
use packet::{Key, Mask};

/// A mask without its empty blocks. The common block always comes first.
#[repr(C, align(64))]
pub struct Shape {
    masks: [Block; BLOCKS],
    ids: [BlockId; BLOCKS],
    count: u8,
}

impl Shape {
    /// The shape of `mask`.
    pub fn new(mask: &Mask) -> Shape {
        let mut shape = Shape { masks: [Block::ZERO; BLOCKS], ids: ALL_BLOCKS, count: 0 };
        for id in mask.blocks().with(BlockId::Common).iter() {
            shape.masks[shape.count as usize] = *mask.0.block(id);
            shape.ids[shape.count as usize] = id;
            shape.count += 1;
        }
        shape
    }

    /// Number of blocks.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The mask's blocks.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.ids[..self.count()].iter().copied().zip(&self.masks)
    }

    /// The blocks of `key` that the mask has, with all of their bits.
    pub fn compact<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Block> {
        self.ids[..self.count()].iter().map(|&id| key.block(id))
    }

    /// The opposite of [`compact`](Shape::compact), in place of another key: only the blocks that there are get written.
    pub fn expand_into(&self, blocks: &[Block], key: &mut Key) {
        // The common block is always among them.
        key.reset();
        for (&id, block) in self.ids.iter().zip(blocks) {
            *key.block_mut(id) = *block;
        }
    }

    /// As [`expand_into`](Shape::expand_into), with zeros where the mask has them.
    pub fn expand_masked_into(&self, blocks: &[Block], key: &mut Key) {
        key.reset();
        for ((id, mask), block) in self.blocks().zip(blocks) {
            *key.block_mut(id).words_mut() = and(block.words(), mask.words());
        }
    }

    /// Hash of the bits of `key` that the mask covers: equal to [`Hasher::hash_masked`].
    #[inline(always)]
    pub fn hash(&self, hasher: &Hasher, key: &Key) -> u64 {
        let state = hasher.block(&and(key.common_words(), self.masks[0].words()));
        hasher.finish(if self.count == 1 { state } else { self.hash_rest(hasher, state, key) })
    }

    #[inline(never)]
    fn hash_rest(&self, hasher: &Hasher, state: u64, key: &Key) -> u64 {
        (1..self.count()).fold(state, |state, i| {
            let id = self.ids[i];
            hasher.add_block(state, id, &and(key.block(id).words(), self.masks[i].words()))
        })
    }

    /// Whether `key` equals `flow`, the [`compact`](Shape::compact) blocks of a flow, under the mask.
    /// One block is by far the most frequent case, then two (IPv6, ARP).
    #[inline(always)]
    pub fn matches(&self, flow: &[Block], key: &Key) -> bool {
        let common = differs(key.common_words(), flow[0].words(), self.masks[0].words());
        match flow.len() {
            1 => common == 0,
            2 => common | self.block_differs(1, flow, key) == 0,
            _ => common == 0 && self.rest_matches(flow, key),
        }
    }

    #[inline(never)]
    fn rest_matches(&self, flow: &[Block], key: &Key) -> bool {
        (1..flow.len()).all(|i| self.block_differs(i, flow, key) == 0)
    }

    #[inline(always)]
    fn block_differs(&self, i: usize, flow: &[Block], key: &Key) -> u64 {
        differs(key.block(self.ids[i]).words(), flow[i].words(), self.masks[i].words())
    }
}

/// Zero when `key` equals `flow` under `mask`. Compiles to whole vectors.
#[inline(always)]
fn differs(key: &[u64; 8], flow: &[u64; 8], mask: &[u64; 8]) -> u64 {
    let mut diff = [0; 8];
    for i in 0..8 {
        diff[i] = (key[i] ^ flow[i]) & mask[i];
    }
    (diff[0] | diff[1]) | (diff[2] | diff[3]) | (diff[4] | diff[5]) | (diff[6] | diff[7])
}
