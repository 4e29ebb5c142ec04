//! A mask in compact form: which bits of which words of the key, in the order in which they are
//! looked at.
//!
//! Fields are looked at in four stages: metadata, then L2, L3 and L4 (with what ARP and neighbour discovery
//! say beyond L3). When no rule of a subtable agrees
//! with a packet in the fields of an early stage, the fields of the later ones stay wildcards.

use std::hash::{BuildHasher, Hasher};
use std::mem::offset_of;
use std::sync::LazyLock;

use foldhash::fast::FixedState;
use packet::flow::block::{BLOCK_SIZE, BLOCKS, BlockId, Common, Ct, Encap, L3};
use packet::{Key, Mask};
use smallvec::SmallVec;

/// Number of stages.
pub const STAGES: usize = 4;

/// What a match has of the words of a layout, in their order: those of most matches take no memory of their own.
pub type Values = SmallVec<[u64; 4]>;

/// Words in a key.
const WORDS: usize = BLOCKS * BLOCK_SIZE / 8;

/// For each stage, the bits of each word that belong to it.
static STAGE_BITS: LazyLock<Box<[[u64; WORDS]; STAGES]>> = LazyLock::new(|| {
    let mut bytes = [0usize; BLOCKS * BLOCK_SIZE];
    let mut set = |block: BlockId, from: usize, to: usize, stage: usize| {
        let base = block as usize * BLOCK_SIZE;
        bytes[base + from..base + to].fill(stage);
    };
    let common = BlockId::Common;
    set(common, 0, offset_of!(Common, nw_frag), 1);
    set(common, offset_of!(Common, nw_frag), offset_of!(Common, tp_src), 2);
    set(common, offset_of!(Common, tcp_flags), offset_of!(Common, nw_src), 3);
    set(common, offset_of!(Common, tp_src), offset_of!(Common, vlan), 3);
    set(common, offset_of!(Common, vlan), offset_of!(Common, in_port), 1);
    set(BlockId::L3, 0, BLOCK_SIZE, 3);
    set(BlockId::L3, 0, offset_of!(L3, nd_target), 2);
    set(BlockId::L3, offset_of!(L3, ipv6_label), offset_of!(L3, arp_sha), 2);
    set(BlockId::Encap, 0, BLOCK_SIZE, 2);
    set(BlockId::Encap, 0, offset_of!(Encap, nsh_flags), 1);
    set(BlockId::Encap, offset_of!(Encap, nsh_flags), offset_of!(Encap, pbb_isid), 3);
    set(BlockId::Ct, offset_of!(Ct, ct_tp_src), offset_of!(Ct, ct_label), 3);
    set(BlockId::Ct, offset_of!(Ct, ct_src), BLOCK_SIZE, 2);
    let mut bits = Box::new([[0u64; WORDS]; STAGES]);
    for (word, chunk) in bytes.chunks(8).enumerate() {
        for (stage, bits) in bits.iter_mut().enumerate() {
            let mask = std::array::from_fn(|i| if chunk[i] == stage { 0xff } else { 0 });
            bits[word] = u64::from_ne_bytes(mask);
        }
    }
    bits
});

/// Some bits of one word of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bits {
    block: BlockId,
    word: u8,
    mask: u64,
}

/// A mask as a list of words, stage by stage.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    bits: Box<[Bits]>,
    /// Where each stage that has bits ends in `bits`; the last one is `bits.len()`. Never empty.
    ends: Box<[u16]>,
}

impl Layout {
    /// The compact form of `mask`.
    pub fn new(mask: &Mask) -> Layout {
        let (mut bits, mut ends) = (Vec::new(), Vec::new());
        for stage in STAGE_BITS.iter() {
            let before = bits.len();
            for block in mask.blocks().iter() {
                for (word, &all) in mask.0.block(block).words().iter().enumerate() {
                    let mask = all & stage[block as usize * 8 + word];
                    if mask != 0 {
                        bits.push(Bits { block, word: word as u8, mask });
                    }
                }
            }
            if bits.len() > before {
                ends.push(bits.len() as u16);
            }
        }
        if ends.is_empty() {
            ends.push(0);
        }
        Layout { bits: bits.into(), ends: ends.into() }
    }

    /// The stages that have bits; at least one.
    pub fn stages(&self) -> usize {
        self.ends.len()
    }

    fn range(&self, stage: usize) -> std::ops::Range<usize> {
        let from = if stage == 0 { 0 } else { self.ends[stage - 1].into() };
        from..self.ends[stage].into()
    }

    /// The bits of `key` under the mask, as rules store them.
    pub fn values(&self, key: &Key) -> Values {
        self.bits.iter().map(|b| key.block(b.block).words()[b.word as usize] & b.mask).collect()
    }

    /// Whether `values` are those of `key`.
    pub fn equal(&self, key: &Key, values: &[u64]) -> bool {
        self.bits.iter().zip(values).all(|(b, &v)| key.block(b.block).words()[b.word as usize] & b.mask == v)
    }

    /// What stored values have to be to agree with those of another layout, in the bits that both have.
    pub fn agreement(&self, other: &Layout, values: &[u64]) -> Agreement {
        let theirs = |b: &Bits| {
            let same = other.bits.iter().zip(values).filter(|(o, _)| (o.block, o.word) == (b.block, b.word));
            same.fold((0, 0), |(mask, value), (o, v)| (mask | o.mask, value | v))
        };
        let wanted = self.bits.iter().enumerate().map(|(at, b)| {
            let (mask, value) = theirs(b);
            (at, mask & b.mask, value & b.mask)
        });
        Agreement(wanted.filter(|(_, mask, _)| *mask != 0).collect())
    }

    /// Writes stored values back into a key.
    pub fn expand(&self, values: &[u64]) -> Key {
        let mut key = Key::new();
        for (b, &value) in self.bits.iter().zip(values) {
            key.block_mut(b.block).words_mut()[b.word as usize] |= value;
        }
        key
    }

    /// Some bytes of a block of the key that stored values stand for.
    pub fn bytes<const N: usize>(&self, values: &[u64], block: BlockId, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (b, value) in self.bits.iter().zip(values).filter(|(b, _)| b.block == block) {
            let begin = usize::from(b.word) * 8;
            for (at, byte) in (begin..).zip(value.to_ne_bytes()) {
                if let Some(to) = at.checked_sub(offset).and_then(|at| bytes.get_mut(at)) {
                    *to |= byte;
                }
            }
        }
        bytes
    }

    /// Adds the bits of the first `stages` stages to `mask`.
    pub fn fold_into(&self, mask: &mut Mask, stages: usize) {
        let end = if stages == 0 { 0 } else { self.ends[stages - 1].into() };
        for b in &self.bits[..end] {
            mask.0.block_mut(b.block).words_mut()[b.word as usize] |= b.mask;
        }
    }

    /// The bits of a word of a block that the mask has.
    pub fn matched(&self, block: BlockId, word: usize) -> u64 {
        let own = self.bits.iter().filter(|b| b.block == block && usize::from(b.word) == word);
        own.fold(0, |bits, b| bits | b.mask)
    }

    /// Whether `stage` looks at any bit of a word of a block.
    pub fn stage_has(&self, stage: usize, block: BlockId, word: usize) -> bool {
        self.bits[self.range(stage)].iter().any(|b| b.block == block && usize::from(b.word) == word)
    }

    /// Extends a hash over the earlier stages by this one, from a key.
    pub fn hash_key(&self, stage: usize, basis: u64, key: &Key) -> u64 {
        hash(basis, self.bits[self.range(stage)].iter().map(|b| key.block(b.block).words()[b.word as usize] & b.mask))
    }

    /// Extends a hash over the earlier stages by this one, from stored values.
    pub fn hash_values(&self, stage: usize, basis: u64, values: &[u64]) -> u64 {
        hash(basis, values[self.range(stage)].iter().copied())
    }

    /// The hash over the layout itself and values.
    pub fn fingerprint(&self, values: &[u64]) -> u64 {
        hash(self.hash_all(values), self.bits.iter().flat_map(|b| [(b.block as u64) << 8 | u64::from(b.word), b.mask]))
    }

    /// The hash over all stages, from stored values.
    pub fn hash_all(&self, values: &[u64]) -> u64 {
        (0..self.stages()).fold(0, |basis, stage| self.hash_values(stage, basis, values))
    }
}

/// What stored values of a layout have to be: the place of each word, bits of it and what they are.
#[derive(Clone)]
pub struct Agreement(SmallVec<[(usize, u64, u64); 4]>);

impl Agreement {
    /// Whether these values agree.
    pub fn has(&self, values: &[u64]) -> bool {
        self.0.iter().all(|&(at, mask, value)| values.get(at).is_some_and(|have| have & mask == value))
    }
}

fn hash(basis: u64, words: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = SEED.with_basis(basis);
    for word in words {
        hasher.write_u64(word);
    }
    hasher.finish()
}

/// A hash that is keyed once for each process, so that nobody outside can aim at a bucket.
struct Seed(LazyLock<FixedState>);
static SEED: Seed = Seed(LazyLock::new(|| {
    let random = std::collections::hash_map::RandomState::new();
    FixedState::with_seed(random.build_hasher().finish())
}));

impl Seed {
    fn with_basis(&self, basis: u64) -> impl Hasher {
        let mut hasher = self.0.build_hasher();
        hasher.write_u64(basis);
        hasher
    }
}

#[cfg(test)]
mod tests {
    use packet::Field;
    use packet::flow::block::ALL_BLOCKS;

    use super::*;

    #[test]
    fn stages_cover_every_bit_once() {
        let mut seen = [0u64; WORDS];
        for stage in STAGE_BITS.iter() {
            for (seen, bits) in seen.iter_mut().zip(stage) {
                assert_eq!(*seen & bits, 0);
                *seen |= bits;
            }
        }
        assert!(seen.iter().all(|&bits| bits == u64::MAX));
        let mut all = Mask::wildcard();
        for block in ALL_BLOCKS {
            all.0.block_mut(block).0.fill(0xff);
        }
        assert_eq!(Layout::new(&all).stages(), STAGES);
    }

    #[test]
    fn values_come_back() {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        for (field, value) in
            [(Field::InPort, 3), (Field::DlType, 0x800), (Field::NwDst, 0x0a000001), (Field::TcpDst, 80)]
        {
            key.set(field, value);
            mask.set_exact(field);
        }
        let layout = Layout::new(&mask);
        assert_eq!(layout.stages(), 4);
        let values = layout.values(&key);
        assert_eq!(layout.expand(&values), key);
        assert!(layout.equal(&key, &values));
        assert_eq!(layout.bytes(&values, BlockId::Common, offset_of!(Common, nw_dst)), [10, 0, 0, 1]);
        assert_eq!(layout.bytes(&values, BlockId::Common, offset_of!(Common, tp_src)), [0, 0, 0, 80]);
        assert_eq!(layout.bytes(&values, BlockId::L3, 0), [0; 16]);
        let mut folded = Mask::wildcard();
        layout.fold_into(&mut folded, 2);
        assert!(folded.is_exact(Field::InPort) && folded.is_exact(Field::DlType) && folded.is_wild(Field::NwDst));
    }
}
