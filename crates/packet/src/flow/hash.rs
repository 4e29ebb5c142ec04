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
    #[inline(always)]
    pub fn add_block(&self, state: u64, id: BlockId, words: &[u64; 8]) -> u64 {
        if words.iter().fold(0, |or, w| or | w) == 0 {
            return state;
        }
        let tweak = self.chain.rotate_left(5 * id as u32);
        fold(state ^ self.chain, self.block(words) ^ tweak)
    }

    /// Hash of two words and another thing. The words are a pair of the hash NH (Black et al., "UMAC", 1999).
    #[inline(always)]
    pub fn pair(&self, words: [u64; 2], other: u32) -> u64 {
        let [a, b] = [words[0].wrapping_add(self.words[0]), words[1].wrapping_add(self.words[1])];
        self.finish(fold(a, b) ^ u64::from(other))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Blocks, block::BLOCK_SIZE};
    use super::*;

    const HASHER: Hasher = Hasher::new([1, 2]);

    fn key(blocks: &[(usize, [u8; BLOCK_SIZE])]) -> Key {
        let mut key = Key::new();
        for (i, bytes) in blocks {
            key.block_mut(super::super::block::ALL_BLOCKS[*i]).0 = *bytes;
        }
        key
    }

    fn blocks() -> impl Strategy<Value = Vec<(usize, [u8; BLOCK_SIZE])>> {
        proptest::collection::vec((0..super::super::BLOCKS, any::<[u8; BLOCK_SIZE]>()), 0..5)
    }

    proptest! {
        /// As in equality, a block of zeros counts as absent.
        #[test]
        fn equal_keys_have_equal_hashes(blocks in blocks(), zero in 1..super::super::BLOCKS) {
            let (a, mut b) = (key(&blocks), key(&blocks));
            if !b.present().has(super::super::block::ALL_BLOCKS[zero]) {
                b.block_mut(super::super::block::ALL_BLOCKS[zero]);
            }
            prop_assert_eq!(&a, &b);
            prop_assert_eq!(HASHER.hash_key(&a), HASHER.hash_key(&b));
        }

        #[test]
        fn masked_hash_is_that_of_the_masked_key(a in blocks(), m in blocks()) {
            let (a, m) = (key(&a), Mask(key(&m)));
            prop_assert_eq!(HASHER.hash_masked(&a, &m), HASHER.hash_key(&a.masked(&m)));
        }
    }

    /// Flipping any input bit flips each output bit with a probability near one half: over 512 keys, each
    /// of the 64 x 512 pairs of bits lies within six standard deviations of 256.
    #[test]
    #[cfg_attr(miri, ignore = "statistics, which take many keys; no unsafe code")]
    fn avalanche_of_one_block() {
        let mut state = 7;
        let keys: Vec<[u64; 8]> = (0..512).map(|_| std::array::from_fn(|_| split_mix(&mut state))).collect();
        for bit in (0..512).step_by(3) {
            let mut flips = [0; 64];
            for words in &keys {
                let mut other = *words;
                other[bit / 64] ^= 1 << (bit % 64);
                let hash = |words| HASHER.finish(HASHER.block(words));
                let diff = hash(words) ^ hash(&other);
                (0..64).for_each(|out| flips[out] += diff >> out & 1);
            }
            for (out, &count) in flips.iter().enumerate() {
                assert!((188..=324).contains(&count), "input bit {bit}, output bit {out}: {count} of 512");
            }
        }
    }

    /// The same for keys as they occur: zero but for a counter, in any field, in any block. No two of the
    /// hashes, nor their low or high 32 bits beyond what chance gives, are equal.
    #[test]
    #[cfg_attr(miri, ignore = "statistics, which take many keys; no unsafe code")]
    fn counters_in_sparse_keys_spread() {
        for id in Blocks::ALL.iter() {
            for word in 0..8 {
                let mut hashes: Vec<u64> = (0..2000u64)
                    .map(|n| {
                        let mut key = Key::new();
                        key.block_mut(id).words_mut()[word] = n << (7 * word);
                        HASHER.hash_key(&key)
                    })
                    .collect();
                let buckets = |shift: u32| {
                    let mut count = [0; 16];
                    hashes.iter().for_each(|h| count[(h >> shift & 15) as usize] += 1);
                    count
                };
                for count in [buckets(0), buckets(60)].concat() {
                    assert!((60..=200).contains(&count), "{id:?} word {word}: {count} of 2000 in one of 16");
                }
                hashes.sort_unstable();
                hashes.dedup();
                assert_eq!(hashes.len(), 2000);
            }
        }
    }

    #[test]
    fn depends_on_the_secret_and_on_the_block() {
        let hash = |secret, i| Hasher::new(secret).hash_key(&key(&[(i, [5; BLOCK_SIZE])]));
        let all = [hash([1, 2], 0), hash([1, 3], 0), hash([2, 2], 0), hash([1, 2], 1), hash([1, 2], 2)];
        assert_eq!(std::collections::HashSet::from(all).len(), all.len());
    }
}
