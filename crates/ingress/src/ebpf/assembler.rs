//! Programs for tests and fuzzing, word by word.

use std::collections::BTreeMap;

use super::instruction::{Target, Word};
use super::machine::{LoadError, Machine};
use super::map::Definition;
use super::object::{RawObject, RawProgram};

/// A word.
pub fn word(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Word {
    Word { code, registers: from << 4 | to, offset, immediate }
}

/// `to = constant`.
pub fn set(to: u8, constant: i32) -> Word {
    word(0xb7, to, 0, 0, constant)
}

/// `to = from`.
pub fn copy(to: u8, from: u8) -> Word {
    word(0xbf, to, from, 0, 0)
}

/// `to += constant`.
pub fn add(to: u8, constant: i32) -> Word {
    word(0x07, to, 0, 0, constant)
}

/// `to += from`.
pub fn add_register(to: u8, from: u8) -> Word {
    word(0x0f, to, from, 0, 0)
}

/// `to = *(from + offset)`, so many bytes.
pub fn load(bytes: u8, to: u8, from: u8, offset: i16) -> Word {
    word(0x61 | size(bytes), to, from, offset, 0)
}

/// `*(to + offset) = from`, so many bytes.
pub fn store(bytes: u8, to: u8, offset: i16, from: u8) -> Word {
    word(0x63 | size(bytes), to, from, offset, 0)
}

/// `*(to + offset) = constant`, so many bytes.
pub fn store_constant(bytes: u8, to: u8, offset: i16, constant: i32) -> Word {
    word(0x62 | size(bytes), to, 0, offset, constant)
}

fn size(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}

/// `if left > right` skips so many words.
pub fn skip_if_greater(left: u8, right: u8, words: i16) -> Word {
    word(0x2d, left, right, words, 0)
}

/// `if left == constant` skips so many words.
pub fn skip_if_equal(left: u8, constant: i32, words: i16) -> Word {
    word(0x15, left, 0, words, constant)
}

/// Skips so many words.
pub fn skip(words: i16) -> Word {
    word(0x05, 0, 0, words, 0)
}

/// Calls a helper.
pub fn call(helper: i32) -> Word {
    word(0x85, 0, 0, 0, helper)
}

/// Ends.
pub fn exit() -> Word {
    word(0x95, 0, 0, 0, 0)
}

/// `to` = a map by its number, from 0: two words.
pub fn map(to: u8, number: i32) -> [Word; 2] {
    [word(0x18, to, 0, 0, number + 1), Word::default()]
}

/// An array of four values of sixteen bytes, a hash of 4-byte keys and 8-byte values, and prefixes of IPv4 addresses.
pub fn maps() -> Vec<Definition> {
    let map = |name: &str, kind, key_size, value_size, max_entries| Definition {
        name: name.into(),
        kind,
        key_size,
        value_size,
        max_entries,
        ..Definition::default()
    };
    vec![map("array", 2, 4, 16, 4), map("hash", 1, 4, 8, 8), map("prefixes", 11, 8, 4, 8)]
}

/// Loads a program with these maps. Loads of 64 bits by way of `0x18` refer to the map in their constant, from 1.
///
/// # Errors
/// As of [`Machine::load`].
pub fn assemble(words: &[Word], maps: Vec<Definition>) -> Result<Machine, LoadError> {
    let mut targets = BTreeMap::new();
    let mut words = words.to_vec();
    for (at, word) in words.iter_mut().enumerate() {
        if word.code == 0x18
            && word.registers >> 4 == 0
            && let Some(map) = word.immediate.checked_sub(1)
            && let Some(map) = usize::try_from(map).ok().filter(|map| *map < maps.len())
        {
            targets.insert(at, Target::Map(map));
            word.immediate = 0;
        }
    }
    let program = RawProgram { name: "test".into(), section: "xdp".into(), words, targets };
    Machine::from_object(RawObject { programs: vec![program], maps }, None)
}
