//! The flow key and its mask.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::block::{ALL_BLOCKS, BLOCK_SIZE, BLOCKS, Block, BlockId, Common, Ct, Encap, L3, Pipeline, Regs, Tunnel};
use super::field::Field;

/// A set of blocks, one bit for each [`BlockId`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blocks(pub u16);

impl Blocks {
    /// Only the common block.
    pub const COMMON: Blocks = Blocks(1);
    /// Every block.
    pub const ALL: Blocks = Blocks((1 << BLOCKS) - 1);

    /// Whether `id` is in the set.
    #[inline(always)]
    pub fn has(self, id: BlockId) -> bool {
        self.0 & 1 << id as u16 != 0
    }

    /// The set with `id` added.
    #[inline(always)]
    #[must_use]
    pub fn with(self, id: BlockId) -> Blocks {
        Blocks(self.0 | 1 << id as u16)
    }

    /// The blocks in the set, in order. One step for each block that is in it.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = BlockId> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let id = ALL_BLOCKS.get(bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(*id)
        })
    }

    /// Number of blocks in the set.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// The blocks of tunnel metadata: either all of them are present in a key, or none.
const TUN_META: Blocks = Blocks(Blocks::ALL.0 & !((1 << BlockId::TunMeta0 as u16) - 1));

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A flow key: everything about a packet that a flow can match, in a fixed layout.
///
/// A block that is not [`present`](Key::present) counts as all zero, whatever its bytes hold: the fast
/// path reuses keys without clearing them. All accessors, comparison and hashing honour this.
#[repr(C, align(64))]
pub struct Key {
    blocks: [Block; BLOCKS],
    present: Blocks,
}

impl Clone for Key {
    /// Reads no more than the blocks that hold data: the others may be in no cache.
    fn clone(&self) -> Key {
        let mut new = Key::new();
        new.clone_from(self);
        new
    }

    /// Copies no more than the blocks that hold data.
    fn clone_from(&mut self, source: &Key) {
        self.present = source.present;
        for block in source.present.iter() {
            self.blocks[block as usize] = source.blocks[block as usize];
        }
    }
}

/// A mask over a [`Key`], in the same layout: a one bit is matched, a zero bit is a wildcard.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mask(pub Key);

macro_rules! typed_blocks {
    ($($get:ident $get_mut:ident $ty:ident $doc:literal;)*) => {
        $(
            #[doc = concat!("The ", $doc, " block; all zero where it is absent.")]
            #[inline(always)]
            pub fn $get(&self) -> &$ty {
                zerocopy::transmute_ref!(self.block(BlockId::$ty))
            }

            #[doc = concat!("The ", $doc, " block, made present (zeroed) where it was absent.")]
            #[inline(always)]
            pub fn $get_mut(&mut self) -> &mut $ty {
                zerocopy::transmute_mut!(self.block_mut(BlockId::$ty))
            }
        )*
    };
}

impl Key {
    /// The key with no block present but the common one, which is all zero.
    pub const fn new() -> Key {
        Key { blocks: [Block::ZERO; BLOCKS], present: Blocks::COMMON }
    }

    /// The blocks that hold data.
    #[inline(always)]
    pub fn present(&self) -> Blocks {
        self.present
    }

    /// Where it is kept which blocks hold data: in a cache line of its own.
    pub fn present_address(&self) -> *const Blocks {
        &raw const self.present
    }

    /// A block; [`Block::ZERO`] where it is absent.
    #[inline(always)]
    pub fn block(&self, id: BlockId) -> &Block {
        if self.present.has(id) { &self.blocks[id as usize] } else { &Block::ZERO }
    }

    /// A block for writing; it becomes present, zeroed, where it was absent. The four blocks of tunnel
    /// metadata become present together.
    #[inline(always)]
    pub fn block_mut(&mut self, id: BlockId) -> &mut Block {
        if !self.present.has(id) {
            self.add_block(id);
        }
        &mut self.blocks[id as usize]
    }

    #[inline(always)]
    fn add_block(&mut self, id: BlockId) {
        if id >= BlockId::TunMeta0 {
            self.present = Blocks(self.present.0 | TUN_META.0);
            self.blocks[BlockId::TunMeta0 as usize..].fill(Block::ZERO);
        } else {
            self.present = self.present.with(id);
            self.blocks[id as usize] = Block::ZERO;
        }
    }

    /// The common block, which is always present, as eight native-endian words.
    #[inline(always)]
    pub fn common_words_mut(&mut self) -> &mut [u64; 8] {
        self.blocks[BlockId::Common as usize].words_mut()
    }

    /// The common block as eight native-endian words.
    #[inline(always)]
    pub fn common_words(&self) -> &[u64; 8] {
        self.blocks[BlockId::Common as usize].words()
    }

    /// Forgets every block but the common one, whose bytes stay as they are: the start of an
    /// extraction, which overwrites all of the common block.
    #[inline(always)]
    pub fn reset(&mut self) {
        self.present = Blocks::COMMON;
    }

    /// Forgets every block but these, as [`reset`](Key::reset) does.
    #[inline(always)]
    pub fn keep(&mut self, blocks: Blocks) {
        self.present = Blocks(self.present.0 & blocks.0 | Blocks::COMMON.0);
    }

    typed_blocks! {
        common common_mut Common "common";
        l3 l3_mut L3 "L3";
        encap encap_mut Encap "encapsulation";
        ct ct_mut Ct "connection tracking";
        tunnel tunnel_mut Tunnel "tunnel";
        pipeline pipeline_mut Pipeline "pipeline";
        regs regs_mut Regs "register";
    }

    /// The storage bytes of a field, in network byte order.
    pub fn bytes(&self, field: Field) -> &[u8] {
        let info = field.info();
        let at = info.offset as usize % BLOCK_SIZE;
        &self.block(ALL_BLOCKS[info.offset as usize / BLOCK_SIZE]).0[at..at + info.bytes as usize]
    }

    /// A field's value as an unsigned number.
    #[inline]
    pub fn get(&self, field: Field) -> u128 {
        let info = field.info();
        let raw = match *self.bytes(field) {
            [a] => u128::from(a),
            [a, b] => u128::from(u16::from_be_bytes([a, b])),
            [a, b, c, d] => u128::from(u32::from_be_bytes([a, b, c, d])),
            ref bytes => load(bytes),
        };
        raw >> info.shift & info.max()
    }

    /// Writes a field. Bits of `value` beyond the field's width are ignored.
    #[inline]
    pub fn set(&mut self, field: Field, value: u128) {
        let info = field.info();
        let (at, bytes) = (info.offset as usize % BLOCK_SIZE, info.bytes as usize);
        let to = &mut self.block_mut(ALL_BLOCKS[info.offset as usize / BLOCK_SIZE]).0[at..at + bytes];
        let mask = info.max() << info.shift;
        let value = value << info.shift & mask;
        match to {
            [a] => *a = *a & !mask as u8 | value as u8,
            [a, b] => {
                let old = u16::from_be_bytes([*a, *b]);
                [*a, *b] = (old & !mask as u16 | value as u16).to_be_bytes();
            }
            [a, b, c, d] => {
                let old = u32::from_be_bytes([*a, *b, *c, *d]);
                [*a, *b, *c, *d] = (old & !mask as u32 | value as u32).to_be_bytes();
            }
            bytes => store(bytes, mask, value),
        }
    }

    /// The 256 bytes of tunnel metadata; all zero where absent.
    pub fn tun_metadata(&self) -> &[u8; 256] {
        static ZERO: [u8; 256] = [0; 256];
        if !self.present.has(BlockId::TunMeta0) {
            return &ZERO;
        }
        let blocks: &[Block; 4] = self.blocks[BlockId::TunMeta0 as usize..].first_chunk().expect("four blocks");
        zerocopy::transmute_ref!(blocks)
    }

    /// The tunnel metadata for writing; its four blocks become present together.
    pub fn tun_metadata_mut(&mut self) -> &mut [u8; 256] {
        self.block_mut(BlockId::TunMeta0);
        let blocks: &mut [Block; 4] = self.blocks[BlockId::TunMeta0 as usize..].first_chunk_mut().expect("four blocks");
        zerocopy::transmute_mut!(blocks)
    }

    /// The key with every bit cleared that `mask` does not match.
    pub fn masked(&self, mask: &Mask) -> Key {
        let mut out = Key::new();
        for id in mask.0.present.iter() {
            let (key, bits) = (self.block(id).words(), mask.0.block(id).words());
            let to = out.block_mut(id).words_mut();
            for i in 0..8 {
                to[i] = key[i] & bits[i];
            }
        }
        out
    }

    /// Whether the key equals `other` in every bit that `mask` matches.
    pub fn matches(&self, other: &Key, mask: &Mask) -> bool {
        mask.0.present.iter().all(|id| {
            let (a, b, m) = (self.block(id).words(), other.block(id).words(), mask.0.block(id).words());
            (0..8).fold(0, |diff, i| diff | (a[i] ^ b[i]) & m[i]) == 0
        })
    }
}

/// The number that these bytes are, in network byte order.
fn load(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |n, &byte| n << 8 | u128::from(byte))
}

/// Replaces the bits of `mask` in the number that these bytes are, in network byte order.
fn store(bytes: &mut [u8], mask: u128, value: u128) {
    for (i, byte) in bytes.iter_mut().rev().enumerate() {
        let (mask, bits) = ((mask >> (8 * i)) as u8, (value >> (8 * i)) as u8);
        *byte = *byte & !mask | bits;
    }
}

impl Default for Key {
    fn default() -> Key {
        Key::new()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        Blocks(self.present.0 | other.present.0).iter().all(|id| self.block(id) == other.block(id))
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for id in self.present.iter().filter(|&id| !self.block(id).is_zero()) {
            state.write_u8(id as u8);
            state.write(&self.block(id).0);
        }
    }
}

impl Mask {
    /// The mask that matches nothing: every packet passes.
    pub const fn wildcard() -> Mask {
        Mask(Key::new())
    }

    /// Matches every bit of `field`.
    pub fn set_exact(&mut self, field: Field) {
        self.0.set(field, u128::MAX);
    }

    /// Matches the bits of `field` that are set in `bits`, in addition to those already matched.
    pub fn add(&mut self, field: Field, bits: u128) {
        if bits != 0 {
            let old = self.0.get(field);
            self.0.set(field, old | bits);
        }
    }

    /// Matches no bit of `field`.
    pub fn clear(&mut self, field: Field) {
        if self.0.bytes(field).iter().any(|&b| b != 0) {
            self.0.set(field, 0);
        }
    }

    /// The matched bits of `field`.
    pub fn get(&self, field: Field) -> u128 {
        self.0.get(field)
    }

    /// Whether no bit of `field` is matched.
    pub fn is_wild(&self, field: Field) -> bool {
        self.get(field) == 0
    }

    /// Whether every bit of `field` is matched.
    pub fn is_exact(&self, field: Field) -> bool {
        self.get(field) == field.info().max()
    }

    /// Adds the bits that `other` matches.
    pub fn union(&mut self, other: &Mask) {
        for id in other.0.present.iter() {
            let from = other.0.block(id).words();
            let to = self.0.block_mut(id).words_mut();
            for i in 0..8 {
                to[i] |= from[i];
            }
        }
    }

    /// The blocks with at least one matched bit.
    pub fn blocks(&self) -> Blocks {
        Blocks(self.0.present.iter().filter(|&id| !self.0.block(id).is_zero()).fold(0, |n, id| n | 1 << id as u16))
    }
}

impl Default for Mask {
    fn default() -> Mask {
        Mask::wildcard()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = super::field::FIELDS.iter().filter(|i| self.get(i.field) != 0);
        f.debug_map().entries(shown.map(|i| (i.name, format!("{:#x}", self.get(i.field))))).finish()
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::field::FIELDS;
    use super::*;

    fn any_key() -> impl Strategy<Value = Key> {
        proptest::collection::vec((0..BLOCKS, any::<u64>(), 0..8usize), 0..30).prop_map(|words| {
            let mut key = Key::new();
            words.into_iter().for_each(|(i, word, at)| key.block_mut(ALL_BLOCKS[i]).words_mut()[at] = word);
            key
        })
    }

    proptest! {
        /// Setting a field and reading it back gives the value cut to its width; no bit outside the field
        /// changes.
        #[test]
        fn set_changes_the_field_and_nothing_else(key in any_key(), i in 0..FIELDS.len(), value: u128) {
            let info = &FIELDS[i];
            let mut after = key.clone();
            after.set(info.field, value);
            prop_assert_eq!(after.get(info.field), value & info.max());
            let mut field = Mask::wildcard();
            field.set_exact(info.field);
            for id in ALL_BLOCKS {
                for word in 0..8 {
                    let changed = key.block(id).words()[word] ^ after.block(id).words()[word];
                    prop_assert_eq!(changed & !field.0.block(id).words()[word], 0, "{:?}", info.field);
                }
            }
        }

        #[test]
        fn a_key_is_copied_over_another(key in any_key(), mut other in any_key()) {
            other.clone_from(&key);
            prop_assert_eq!(other.present(), key.present());
            prop_assert!(other == key);
        }

        #[test]
        fn mask_operations_agree_with_the_field_values(key in any_key(), bits in any_key(), i in 0..FIELDS.len()) {
            let (field, mask) = (FIELDS[i].field, Mask(bits));
            let masked = key.masked(&mask);
            prop_assert_eq!(masked.get(field), key.get(field) & mask.get(field));
            prop_assert!(key.matches(&masked, &mask));
            let mut union = mask.clone();
            union.set_exact(field);
            prop_assert!(union.is_exact(field));
            union.clear(field);
            prop_assert!(union.is_wild(field));
            union.union(&mask);
            prop_assert_eq!(union, mask);
        }
    }

    /// The bits that `set_exact` matches are as many as the field's width, so that no two halves of a
    /// declaration in the table contradict each other.
    #[test]
    fn widths_fit_the_storage() {
        for info in FIELDS {
            let mut mask = Mask::wildcard();
            mask.set_exact(info.field);
            let ones: u32 = mask.0.block(info.block()).words().iter().map(|w| w.count_ones()).sum();
            assert_eq!(ones, u32::from(info.bits), "{}", info.name);
            assert!(usize::from(info.offset) % BLOCK_SIZE + usize::from(info.bytes) <= BLOCK_SIZE, "{}", info.name);
            assert!(u32::from(info.wire) * 8 >= u32::from(info.bits), "{}", info.name);
        }
    }

    #[test]
    fn an_absent_block_is_zero_whatever_its_bytes() {
        let mut key = Key::new();
        key.set(Field::Reg5, 9);
        key.set(Field::NwSrc, 1);
        key.reset();
        assert_eq!((key.get(Field::Reg5), key.get(Field::NwSrc)), (0, 1));
        let mut other = Key::new();
        other.set(Field::NwSrc, 1);
        assert_eq!(key, other);
        key.set(Field::Reg6, 1);
        assert_eq!(key.get(Field::Reg5), 0);
    }

    /// The four blocks of tunnel metadata came into being one by one; reading all of them then returned
    /// zeros, or bytes of an earlier packet.
    #[test]
    fn tunnel_metadata_blocks_are_present_together() {
        let mut key = Key::new();
        key.tun_metadata_mut().fill(0xff);
        key.reset();
        assert_eq!(key.tun_metadata(), &[0; 256]);
        key.block_mut(BlockId::TunMeta2).0[5] = 7;
        assert_eq!(key.tun_metadata()[128 + 5], 7);
        assert_eq!(key.tun_metadata().iter().filter(|&&b| b != 0).count(), 1);
    }
}
