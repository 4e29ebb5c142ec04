//! Keyed hash of a flow key.
//!
//! The words of a block are mixed with secret words and multiplied in pairs, 64 by 64 to 128 bits, and the
//! halves of each product are folded together: the construction of wyhash. Four independent
//! multiplications cover a block, one more finishes. Without the secret nobody can choose packets whose
//! hashes collide, so the secret must come from the system's source of randomness, fresh for each process.
//!
//! Equal keys have equal hashes: a block that is absent or all zero contributes nothing, exactly as in
//! [`Key`]'s equality.

use super::block::BlockId;
use super::key::{Key, Mask};

/// A keyed hash function over [`Key`]s.
#[derive(Clone)]
#[repr(align(64))]
pub struct Hasher {
    words: [u64; 8],
    chain: u64,
    finish: u64,
}

impl Hasher {
    /// The hash function that `secret` selects: 128 random bits.
    pub const fn new(secret: [u64; 2]) -> Hasher {
        // splitmix64 (Steele, Lea, Flood 2014) stretches the secret; the words differ whatever it is.
        let mut state = secret[0];
        let mut words = [0; 8];
        let mut i = 0;
        while i < words.len() {
            words[i] = split_mix(&mut state) ^ secret[1].rotate_left(7 * i as u32);
            i += 1;
        }
        let chain = split_mix(&mut state) ^ secret[1].rotate_left(56);
        // Odd, so that the multiplication by it loses nothing.
        let finish = (split_mix(&mut state) ^ secret[1].rotate_left(31)) | 1;
        Hasher { words, chain, finish }
    }

    /// Hash of all blocks of `key`.
    #[inline(always)]
    pub fn hash_key(&self, key: &Key) -> u64 {
        let mut state = self.block(key.common_words());
        if key.present() != super::Blocks::COMMON {
            state = self.rest(state, key);
        }
        self.finish(state)
    }

    /// Hash of the bits of `key` that `mask` matches: equal to `hash_key(&key.masked(mask))`.
    #[inline]
    pub fn hash_masked(&self, key: &Key, mask: &Mask) -> u64 {
        let mut state = self.block(&and(key.common_words(), mask.0.common_words()));
        for id in mask.0.present().iter().skip(1) {
            state = self.add_block(state, id, &and(key.block(id).words(), mask.0.block(id).words()));
        }
        self.finish(state)
    }

    /// First step of a hash that is put together block by block: the words of the common block.
    #[inline(always)]
    pub fn block(&self, words: &[u64; 8]) -> u64 {
        let secret = &self.words;
        fold(words[0] ^ secret[0], words[1] ^ secret[1])
            ^ fold(words[2] ^ secret[2], words[3] ^ secret[3])
            ^ fold(words[4] ^ secret[4], words[5] ^ secret[5])
            ^ fold(words[6] ^ secret[6], words[7] ^ secret[7])
    }

    /// Next step: the words of block `id`, which are passed over if all are zero. Blocks come in
    /// ascending order.
    #[inline]
    pub fn add_block(&self, state: u64, id: BlockId, words: &[u64; 8]) -> u64 {
        if words.iter().fold(0, |or, w| or | w) == 0 {
            return state;
        }
        let tweak = self.chain.rotate_left(5 * id as u32);
        fold(state ^ self.chain, self.block(words) ^ tweak)
    }

    /// Last step.
    #[inline(always)]
    pub fn finish(&self, state: u64) -> u64 {
        fold(state ^ self.chain, self.finish)
    }

    #[inline(never)]
    fn rest(&self, state: u64, key: &Key) -> u64 {
        key.present().iter().skip(1).fold(state, |state, id| self.add_block(state, id, key.block(id).words()))
    }
}

/// Words of two blocks, and-ed.
#[inline(always)]
pub fn and(a: &[u64; 8], b: &[u64; 8]) -> [u64; 8] {
    std::array::from_fn(|i| a[i] & b[i])
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
