//! Which options of Geneve the fields tun_metadata0 to tun_metadata63 stand for, and where their values are.
//!
//! All values together have 256 bytes, in words of four: as many as options of a packet can have. A field has as many words as its
//! option is long, the lowest ones that are free; they need not be neighbours, so none is ever too scattered to be used.

use crate::Malformed;
use crate::options::Options;

/// How many fields there are.
pub const FIELDS: usize = 64;
/// Bytes of all values.
pub const SPACE: usize = 256;
const WORD: usize = 4;
/// Bytes of the longest value.
pub const MAX_LEN: usize = 124;

/// Why a field cannot stand for an option: the errors of NXT_TLV_TABLE_MOD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Unmappable {
    /// There is no such field.
    #[error("no such field")]
    Index,
    /// The length is no multiple of four, or above 124.
    #[error("bad length of an option")]
    Length,
    /// There are not so many bytes left.
    #[error("no room for another option")]
    Full,
    /// The field stands for another option.
    #[error("field in use")]
    AlreadyMapped,
    /// Another field stands for the option.
    #[error("option in use")]
    Duplicate,
}

/// The option of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Mapping {
    /// Class.
    pub class: u16,
    /// Type.
    pub kind: u8,
    /// The words of its value, lowest first.
    words: u64,
}

impl Mapping {
    /// Bytes of its value.
    pub fn len(&self) -> usize {
        self.words.count_ones() as usize * WORD
    }

    /// Whether its value has none: that the option is there is all that it says.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Its value among all values, in the last bytes.
    pub fn get(&self, all: &[u8; SPACE]) -> [u8; MAX_LEN] {
        let mut value = [0; MAX_LEN];
        let own = value[MAX_LEN - self.len()..].as_chunks_mut::<WORD>().0;
        for (place, word) in self.places().zip(own) {
            word.copy_from_slice(&all[place]);
        }
        value
    }

    /// Writes its value, from the last bytes of `value`, among all values.
    pub fn set(&self, all: &mut [u8; SPACE], value: &[u8; MAX_LEN]) {
        let own = value[MAX_LEN - self.len()..].as_chunks::<WORD>().0;
        for (place, word) in self.places().zip(own) {
            all[place].copy_from_slice(word);
        }
    }

    /// Where its words are among all values, one after the other.
    fn places(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut left = self.words;
        std::iter::from_fn(move || {
            let word = (left != 0).then(|| left.trailing_zeros() as usize * WORD)?;
            left &= left - 1;
            Some(word..word + WORD)
        })
    }
}

/// The values of all fields of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values {
    /// The values, each where its mapping says; those that are not there are zero.
    pub bytes: [u8; SPACE],
    /// Which fields the packet has.
    pub present: u64,
}

impl Default for Values {
    fn default() -> Values {
        Values { bytes: [0; SPACE], present: 0 }
    }
}

/// The options that fields stand for.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct FieldTable {
    mappings: [Option<Mapping>; FIELDS],
    /// Words that are in use.
    used: u64,
}

impl Default for FieldTable {
    fn default() -> FieldTable {
        FieldTable { mappings: [None; FIELDS], used: 0 }
    }
}

impl FieldTable {
    /// The option of a field.
    pub fn get(&self, index: usize) -> Option<&Mapping> {
        self.mappings.get(index)?.as_ref()
    }

    /// All fields that stand for an option, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Mapping)> {
        self.mappings.iter().enumerate().filter_map(|(index, mapping)| Some((index, mapping.as_ref()?)))
    }

    /// Whether no field stands for an option.
    pub fn is_empty(&self) -> bool {
        self.mappings.iter().all(Option::is_none)
    }

    /// Lets a field stand for an option whose value has `len` bytes. No other value moves.
    pub fn add(&mut self, index: usize, class: u16, kind: u8, len: u8) -> Result<(), Unmappable> {
        if !len.is_multiple_of(WORD as u8) || usize::from(len) > MAX_LEN {
            return Err(Unmappable::Length);
        }
        if self.mappings.get(index).ok_or(Unmappable::Index)?.is_some() {
            return Err(Unmappable::AlreadyMapped);
        }
        if self.find(class, kind).is_some() {
            return Err(Unmappable::Duplicate);
        }
        let mut words = 0u64;
        for _ in 0..len / WORD as u8 {
            let free = (self.used | words).trailing_ones();
            words |= 1u64.checked_shl(free).ok_or(Unmappable::Full)?;
        }
        self.used |= words;
        self.mappings[index] = Some(Mapping { class, kind, words });
        Ok(())
    }

    /// Lets a field stand for nothing.
    pub fn remove(&mut self, index: usize) {
        if let Some(mapping) = self.mappings.get_mut(index).and_then(Option::take) {
            self.used &= !mapping.words;
        }
    }

    /// The field that stands for an option.
    pub fn find(&self, class: u16, kind: u8) -> Option<(usize, &Mapping)> {
        self.iter().find(|(_, mapping)| (mapping.class, mapping.kind) == (class, kind))
    }

    /// The values of the options of a packet. Those for which no field stands are passed over, unless they are critical: such a packet has
    /// to be dropped (RFC 8926 section 3.5). So has one with an option of another length than its field.
    pub fn read(&self, options: &[u8]) -> Result<Values, Malformed> {
        let mut values = Values::default();
        for option in Options::of(options) {
            let option = option?;
            let Some((index, mapping)) = self.find(option.class, option.kind) else {
                if option.is_critical() {
                    return Err(Malformed::Critical);
                }
                continue;
            };
            if option.value.len() != mapping.len() {
                return Err(Malformed::Option);
            }
            for (place, word) in mapping.places().zip(option.value.as_chunks::<WORD>().0) {
                values.bytes[place].copy_from_slice(word);
            }
            values.present |= 1 << index;
        }
        Ok(values)
    }

    /// The values that have come with another table: those of options for which a field stands here, too.
    pub fn adopt(&self, values: &Values, other: &FieldTable) -> Values {
        let mut out = Values::default();
        for (_, theirs) in other.iter().filter(|(index, _)| values.present >> index & 1 != 0) {
            let ours = self.find(theirs.class, theirs.kind).filter(|(_, ours)| ours.len() == theirs.len());
            let Some((ours_index, ours)) = ours else { continue };
            ours.set(&mut out.bytes, &theirs.get(&values.bytes));
            out.present |= 1 << ours_index;
        }
        out
    }

    /// Writes the options of the fields that are present, in their order. Returns how many bytes they have, or `None` where there is no
    /// room.
    pub fn write(&self, values: &Values, out: &mut [u8]) -> Option<usize> {
        let mut len = 0;
        for (_, mapping) in self.iter().filter(|(index, _)| values.present >> index & 1 != 0) {
            let option = out.get_mut(len..len + WORD + mapping.len())?;
            let (head, value) = option.split_at_mut(WORD);
            head[..2].copy_from_slice(&mapping.class.to_be_bytes());
            head[2..].copy_from_slice(&[mapping.kind, (mapping.len() / WORD) as u8]);
            for (place, word) in mapping.places().zip(value.as_chunks_mut::<WORD>().0) {
                word.copy_from_slice(&values.bytes[place]);
            }
            len += WORD + mapping.len();
        }
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::options;

    #[test]
    fn mappings_are_refused_as_open_vswitch_does() {
        let mut table = FieldTable::default();
        assert_eq!(table.add(0, 0xffff, 1, 4), Ok(()));
        assert_eq!(table.add(0, 0xffff, 2, 4), Err(Unmappable::AlreadyMapped));
        assert_eq!(table.add(1, 0xffff, 1, 8), Err(Unmappable::Duplicate));
        assert_eq!(table.add(64, 0xffff, 2, 4), Err(Unmappable::Index));
        for len in [3, 5, 126, 128, 255] {
            assert_eq!(table.add(1, 0xffff, 2, len), Err(Unmappable::Length), "{len}");
        }
        assert_eq!([(1, 124), (2, 124)].map(|(index, len)| table.add(index, 0, index as u8, len)), [Ok(()); 2]);
        assert_eq!(table.add(3, 0, 3, 8), Err(Unmappable::Full));
        assert_eq!(table.add(3, 0, 3, 4), Ok(()));
        // The words of two that were apart from each other.
        table.remove(0);
        table.remove(3);
        assert_eq!(table.add(5, 0, 3, 8), Ok(()));
        assert_eq!(
            table.iter().map(|(index, mapping)| (index, mapping.len())).collect::<Vec<_>>(),
            [(1, 124), (2, 124), (5, 8)]
        );
    }

    #[test]
    fn options_that_no_field_stands_for() {
        let mut table = FieldTable::default();
        table.add(7, 1, 2, 4).unwrap();
        let option = |kind: u8, value: &[u8]| [&[0, 1, kind, (value.len() / 4) as u8], value].concat();
        let both = [option(3, &[9; 8]), option(2, &[1, 2, 3, 4])].concat();
        let values = table.read(&both).unwrap();
        assert_eq!((values.present, &values.bytes[..4]), (1 << 7, &[1, 2, 3, 4][..]));
        assert_eq!(table.read(&option(0x83, &[])), Err(Malformed::Critical), "critical");
        assert_eq!(table.read(&option(2, &[0; 8])), Err(Malformed::Option), "another length");
        assert_eq!(table.read(&both[..5]), Err(Malformed::Option));
    }

    proptest! {
        /// Against a map: what fields stand for, and values that are written come back as they were.
        #[test]
        fn values_come_back(
            steps in prop::collection::vec((0usize..66, 0u16..3, 0u8..5, 0u8..40, any::<bool>()), 0..80),
            values: [[u8; 16]; 16],
            present: u64,
        ) {
            let (mut table, mut map) = (FieldTable::default(), BTreeMap::<usize, (u16, u8, u8)>::new());
            for (index, class, kind, words, remove) in steps {
                if remove {
                    table.remove(index);
                    map.remove(&index);
                    continue;
                }
                let len = words.wrapping_mul(4);
                let space: usize = map.values().map(|known| usize::from(known.2)).sum();
                let expected = match () {
                    () if len > 124 => Err(Unmappable::Length),
                    () if index > 63 => Err(Unmappable::Index),
                    () if map.contains_key(&index) => Err(Unmappable::AlreadyMapped),
                    () if map.values().any(|known| (known.0, known.1) == (class, kind)) => Err(Unmappable::Duplicate),
                    () if space + usize::from(len) > SPACE => Err(Unmappable::Full),
                    () => Ok(()),
                };
                prop_assert_eq!(table.add(index, class, kind, len), expected);
                if expected.is_ok() {
                    map.insert(index, (class, kind, len));
                }
            }
            let seen = table.iter().map(|(index, mapping)| (index, (mapping.class, mapping.kind, mapping.len() as u8)));
            prop_assert!(seen.eq(map.iter().map(|(index, known)| (*index, *known))));
            // Bytes of fields that are not there are zero.
            let mut given = Values { bytes: [0; SPACE], present: 0 };
            for (index, mapping) in table.iter().filter(|(index, _)| present >> index & 1 != 0) {
                given.present |= 1 << index;
                for place in mapping.places() {
                    given.bytes[place.clone()].copy_from_slice(&values.as_flattened()[place]);
                }
            }
            let mut out = [0; 600];
            let len = table.write(&given, &mut out).unwrap();
            prop_assert_eq!(table.read(&out[..len]), Ok(given));
            // Each value by itself.
            let mut again = Values { present: given.present, ..Values::default() };
            table.iter().for_each(|(_, mapping)| mapping.set(&mut again.bytes, &mapping.get(&given.bytes)));
            prop_assert_eq!(again, given);
            // In a table whose fields are elsewhere.
            let mut other = FieldTable::default();
            for (index, mapping) in table.iter().filter(|(index, _)| index % 3 != 0) {
                other.add(63 - index, mapping.class, mapping.kind, mapping.len() as u8).unwrap();
            }
            let back = table.adopt(&other.adopt(&given, &table), &other);
            for (index, mapping) in table.iter() {
                let kept = index % 3 != 0 && given.present >> index & 1 != 0;
                prop_assert_eq!(back.present >> index & 1 != 0, kept);
                prop_assert_eq!(mapping.get(&back.bytes), if kept { mapping.get(&given.bytes) } else { [0; MAX_LEN] });
            }
            if len > options::MAX_LEN {
                prop_assert_eq!(table.write(&given, &mut out[..options::MAX_LEN]), None);
            }
        }
    }
}
