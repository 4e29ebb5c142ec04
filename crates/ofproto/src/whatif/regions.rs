//! Parts of a flow's packets: those that equal a key under a mask.

use std::collections::VecDeque;

use packet::flow::{BlockId, VLAN_PRESENT};
use packet::{Field, Key, Mask};

use crate::slowpath::record::Parts;
use crate::trace::is_ct_state;

/// The packets that equal a key under a mask. The key is that of one of them.
#[derive(Clone)]
pub struct Region {
    pub key: Box<Key>,
    pub mask: Box<Mask>,
}

impl Region {
    /// Those of its packets that also equal `values` under `mask`; `None` where there are none.
    pub fn narrowed(&self, values: &Key, mask: &Mask) -> Option<Region> {
        let mut narrowed = self.clone();
        for block in mask.0.present().iter() {
            let (bits, values) = (*mask.0.block(block).words(), *values.block(block).words());
            let known = *self.mask.0.block(block).words();
            let words = narrowed.key.block(block).words();
            let is_other = (0..bits.len()).any(|n| (words[n] ^ values[n]) & bits[n] & known[n] != 0);
            if is_other {
                return None;
            }
            let merged = std::array::from_fn(|n| words[n] & !bits[n] | values[n] & bits[n]);
            *narrowed.key.block_mut(block).words_mut() = merged;
        }
        narrowed.mask.union(mask);
        narrowed.is_possible().then_some(narrowed)
    }

    /// Whether `mask` tells none of its packets apart.
    pub fn is_within(&self, mask: &Mask) -> bool {
        mask.0.present().iter().all(|block| {
            let (bits, known) = (mask.0.block(block).words(), self.mask.0.block(block).words());
            bits.iter().zip(known).all(|(bits, known)| bits & !known == 0)
        })
    }

    /// Splits off the packets that differ from its key in `mask`: appends to `parts` regions that have no packet in common and,
    /// with those that agree with the key, make up the whole. False where they are more than `most`; then some are missing.
    pub fn split(&self, mask: &Mask, most: usize, parts: &mut VecDeque<Region>) -> bool {
        let (mut same, mut left) = (self.clone(), most);
        for block in mask.0.present().iter() {
            for n in 0..mask.0.block(block).words().len() {
                let mut extra = mask.0.block(block).words()[n] & !self.mask.0.block(block).words()[n];
                while extra != 0 {
                    let bit = extra & extra.wrapping_neg();
                    extra &= extra - 1;
                    if left == 0 {
                        return false;
                    }
                    left -= 1;
                    set(&mut same.mask.0, block, n, |word| word | bit);
                    let mut other = same.clone();
                    set(&mut other.key, block, n, |word| word ^ bit);
                    if other.is_possible() {
                        parts.push_back(other);
                    }
                }
            }
        }
        true
    }

    /// Whether packets can be like its key.
    fn is_possible(&self) -> bool {
        let tci = self.key.common().vlan[0].tci.get();
        let is_tag = tci == 0 || tci & VLAN_PRESENT != 0;
        is_tag && is_ct_state(self.key.get(Field::CtState) as u32)
    }
}

/// Changes a word of a block.
fn set(key: &mut Key, block: BlockId, n: usize, change: impl FnOnce(u64) -> u64) {
    let word = &mut key.block_mut(block).words_mut()[n];
    *word = change(*word);
}

/// The bits of a match that say something of a packet as the datapath has it: not those of what the pipeline keeps beside it,
/// nor of options of tunnels, which the datapath has in another form, nor `without`.
pub fn of_packet(mask: &Mask, without: Parts) -> Mask {
    const BLOCKS: [BlockId; 5] = [BlockId::Common, BlockId::L3, BlockId::Encap, BlockId::Tunnel, BlockId::Ct];
    let mut bits = Mask::wildcard();
    for block in BLOCKS.into_iter().filter(|block| mask.0.present().has(*block)) {
        for (n, word) in mask.0.block(block).words().iter().enumerate() {
            set(&mut bits.0, block, n, |_| word & !without.word(block, n));
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(values: [u8; 2], bits: [u8; 2]) -> Region {
        let (mut key, mut mask) = (Box::new(Key::new()), Box::new(Mask::wildcard()));
        for ((field, value), bits) in [Field::NwTos, Field::NwTtl].into_iter().zip(values).zip(bits) {
            key.set(field, value.into());
            mask.add(field, bits.into());
        }
        Region { key, mask }
    }

    fn has(region: &Region, values: [u8; 2]) -> bool {
        self::region(values, [0; 2]).key.matches(&region.key, &region.mask)
    }

    proptest! {
        /// A packet is in exactly one of the parts, or agrees with the key.
        #[test]
        fn a_split_loses_nothing_and_has_nothing_twice(
            values: [u8; 2], bits: [u8; 2], more: [u8; 2], packets in prop::collection::vec(any::<[u8; 2]>(), 20),
        ) {
            let (whole, mask) = (region(values, bits), region([0; 2], more).mask);
            let mut parts = VecDeque::new();
            prop_assert!(whole.split(&mask, 16, &mut parts));
            let mut same = whole.clone();
            same.mask.union(&mask);
            for packet in packets.into_iter().chain([values]) {
                let times = parts.iter().chain([&same]).filter(|part| has(part, packet)).count();
                prop_assert_eq!(times, usize::from(has(&whole, packet)));
            }
        }

        #[test]
        fn a_narrowed_region_has_what_is_in_both(
            values: [u8; 2], bits: [u8; 2], others: [u8; 2], more: [u8; 2], packets in prop::collection::vec(any::<[u8; 2]>(), 20),
        ) {
            let (whole, other) = (region(values, bits), region(others, more));
            let narrowed = whole.narrowed(&other.key, &other.mask);
            for packet in packets.into_iter().chain([values, others]) {
                let expected = has(&whole, packet) && has(&other, packet);
                prop_assert_eq!(narrowed.as_ref().is_some_and(|part| has(part, packet)), expected);
            }
            if let Some(part) = narrowed {
                prop_assert!(has(&whole, [part.key.get(Field::NwTos) as u8, part.key.get(Field::NwTtl) as u8]));
            }
        }
    }

    #[test]
    fn a_split_into_too_many_parts_says_so() {
        let mut parts = VecDeque::new();
        assert!(!region([0; 2], [0; 2]).split(&region([0; 2], [0xff; 2]).mask, 3, &mut parts));
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn no_state_is_made_up_that_no_connection_has() {
        let mut wanted = Mask::wildcard();
        wanted.add(Field::CtState, 0x22);
        let (mut tracked, mut parts) = (region([0; 2], [0; 2]), VecDeque::new());
        tracked.key.set(Field::CtState, 0x22);
        assert!(tracked.split(&wanted, 8, &mut parts));
        let states: Vec<_> = parts.iter().map(|part| part.key.get(Field::CtState)).collect();
        assert_eq!(states, [0x20], "established without tracked is none");
    }
}
