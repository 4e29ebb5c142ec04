//! Maps: what programs remember, and what operators read and set.
//!
//! All memory of a map is there from the start. Those "per CPU" are maps like others, whose values all workers share.
//!
//! | module | what it is |
//! |---|---|
//! | [`table`] | Hash tables, whose look-ups take no lock |
//! | [`prefixes`] | Longest prefix match |
//! | [`values`] | The memory of the values |
//! | [`text`] | Keys and values as text |

pub mod prefixes;
pub mod table;
pub mod text;
pub mod values;

use std::sync::atomic::Ordering::Relaxed;

use prefixes::Prefixes;
use table::{Existing, MAX_KEY, Table, pack};
use values::Values;

/// The most bytes of memory that the maps of a program take.
pub const MAX_MEMORY: usize = 64 << 20;

/// The most bytes of a value that a program can set by its key: those of a stack.
pub const MAX_SET: usize = 512;

/// The most bytes of a value.
pub const MAX_VALUE: usize = 1 << 16;

/// What an element takes beside its key and value.
const OVERHEAD: usize = 32;

/// Types of maps that there are in the kernel, by their numbers.
const TYPES: &[&str] = &[
    "unspec",
    "hash",
    "array",
    "prog_array",
    "perf_event_array",
    "percpu_hash",
    "percpu_array",
    "stack_trace",
    "cgroup_array",
    "lru_hash",
    "lru_percpu_hash",
    "lpm_trie",
    "array_of_maps",
    "hash_of_maps",
    "devmap",
    "sockmap",
    "cpumap",
    "xskmap",
    "sockhash",
    "cgroup_storage",
    "reuseport_sockarray",
    "percpu_cgroup_storage",
    "queue",
    "stack",
    "sk_storage",
    "devmap_hash",
    "struct_ops",
    "ringbuf",
];

/// The flags that are known (linux/bpf.h): no preallocation, a NUMA node, read-only for programs, and for memory mapping.
/// Only the third one matters here.
const KNOWN_FLAGS: u32 = 1 | 1 << 2 | READ_ONLY | 1 << 10;

/// Programs only read it (`BPF_F_RDONLY_PROG`).
pub const READ_ONLY: u32 = 1 << 7;

/// What an object file says of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// The number of its type in the kernel.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many elements it can have.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// What the first value holds at the start: global variables.
    pub initial: Vec<u8>,
}

/// Why an operation on a map fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum MapError {
    #[error("there is no such key")]
    NoKey,
    #[error("the map is full, or the index is beyond its end")]
    Full,
    #[error("the key is there already")]
    Exists,
    #[error("the map does not take this key, flag or operation")]
    Invalid,
    #[error("the map is being changed by others")]
    Busy,
}

impl MapError {
    /// What helpers return for it: an errno of Linux, with a minus.
    pub fn errno(self) -> i64 {
        match self {
            MapError::NoKey => -2,
            MapError::Full => -7,
            MapError::Exists => -17,
            MapError::Invalid => -22,
            MapError::Busy => -16,
        }
    }
}

/// A map.
#[derive(Debug)]
pub struct Map {
    definition: Definition,
    elements: Elements,
}

#[derive(Debug)]
enum Elements {
    Array(Values),
    Hash(Table),
    Prefixes(Prefixes),
}

/// An element: its key and its value.
pub type Element = (Vec<u8>, Vec<u8>);

impl Definition {
    /// The name of its type, as bpftool(8) has it.
    pub fn kind_name(&self) -> String {
        TYPES.get(self.kind as usize).map_or_else(|| format!("type {}", self.kind), |name| (*name).to_owned())
    }

    /// Whether it can be made, and how many bytes of memory it takes.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<usize, String> {
        let Definition { key_size, value_size, max_entries, flags, .. } = *self;
        let keys = match self.kind {
            1 | 5 => 1..=MAX_KEY,
            2 | 6 => 4..=4,
            11 => 5..=4 + prefixes::MAX_ADDRESS,
            _ => {
                return Err(format!(
                    "its type {} does not exist here; array, hash, lpm_trie, percpu_array and percpu_hash do",
                    self.kind_name()
                ));
            }
        };
        if !keys.contains(&(key_size as usize)) {
            let (least, most) = (keys.start(), keys.end());
            return Err(format!("keys of {key_size} bytes; a map of type {} has {least} to {most}", self.kind_name()));
        }
        if value_size == 0 || value_size as usize > MAX_VALUE {
            return Err(format!("values of {value_size} bytes; they have 1 to {MAX_VALUE}"));
        }
        if max_entries == 0 {
            return Err("it has no elements (max_entries)".into());
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(format!("unknown flags {:#x}", flags & !KNOWN_FLAGS));
        }
        let element = (key_size as usize).next_multiple_of(8) + (value_size as usize).next_multiple_of(8) + OVERHEAD;
        let memory = (max_entries as usize).saturating_mul(element);
        if memory > MAX_MEMORY {
            return Err(format!(
                "it takes {} MiB; the maps of a program take {} at most",
                memory >> 20,
                MAX_MEMORY >> 20
            ));
        }
        Ok(memory)
    }
}

impl Map {
    /// A map of a definition that was checked: empty, or with the initial value.
    pub fn new(definition: Definition) -> Map {
        let Definition { key_size, value_size, max_entries, .. } = definition;
        let (key_size, value_size, count) = (key_size as usize, value_size as usize, max_entries as usize);
        let elements = match definition.kind {
            2 | 6 => Elements::Array(Values::new(count, value_size)),
            11 => Elements::Prefixes(Prefixes::new(count, key_size - 4, value_size)),
            _ => Elements::Hash(Table::new(count, key_size, value_size)),
        };
        let map = Map { definition, elements };
        map.values().write(0, &map.definition.initial);
        map
    }

    /// What it is.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The memory of its values.
    pub fn values(&self) -> &Values {
        match &self.elements {
            Elements::Array(values) => values,
            Elements::Hash(table) => &table.values,
            Elements::Prefixes(prefixes) => &prefixes.table.values,
        }
    }

    /// Whether the place of a value is its key, a number of four bytes.
    pub fn is_array(&self) -> bool {
        matches!(self.elements, Elements::Array(_))
    }

    /// The place of a key's value among the values. The key has as many bytes as the map's keys.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        match &self.elements {
            Elements::Array(_) => {
                let index = u32::from_ne_bytes(*key.first_chunk()?);
                (index < self.definition.max_entries).then_some(index as usize)
            }
            Elements::Hash(table) => table.find(&pack(key)),
            Elements::Prefixes(prefixes) => prefixes.find(key),
        }
    }

    /// Sets the value of a key. Both have the size that the map says. `wait`: as of [`Table::update`].
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64, wait: bool) -> Result<(), MapError> {
        let existing = Existing::from_flags(flags).ok_or(MapError::Invalid)?;
        match &self.elements {
            Elements::Array(_) if existing == Existing::MustNotBe => Err(MapError::Exists),
            Elements::Array(values) => {
                values.write(self.find(key).ok_or(MapError::Full)?, value);
                Ok(())
            }
            Elements::Hash(table) => table.update(&pack(key), value, existing, wait),
            Elements::Prefixes(prefixes) => prefixes.update(key, value, existing, wait),
        }
    }

    /// Removes a key.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn delete(&self, key: &[u8], wait: bool) -> Result<(), MapError> {
        match &self.elements {
            Elements::Array(_) => Err(MapError::Invalid),
            Elements::Hash(table) => table.delete(&pack(key), wait),
            Elements::Prefixes(prefixes) => prefixes.delete(key, wait),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.find(key).map(|slot| self.value(slot))
    }

    /// Up to `limit` elements, in no order.
    pub fn elements(&self, limit: usize) -> Vec<Element> {
        let table = match &self.elements {
            Elements::Array(_) => {
                let count = (self.definition.max_entries as usize).min(limit);
                return (0..count).map(|index| ((index as u32).to_ne_bytes().to_vec(), self.value(index))).collect();
            }
            Elements::Hash(table) => table,
            Elements::Prefixes(prefixes) => &prefixes.table,
        };
        let bytes = |key: table::Key| {
            let bytes = key.iter().flat_map(|word| word.to_le_bytes());
            bytes.take(self.definition.key_size as usize).collect()
        };
        table.elements(limit).into_iter().map(|(key, slot)| (bytes(key), self.value(slot))).collect()
    }

    fn value(&self, slot: usize) -> Vec<u8> {
        let value = &self.values().value(slot)[..self.definition.value_size as usize];
        value.iter().map(|byte| byte.load(Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    pub fn map(kind: u32, key_size: u32, value_size: u32, max_entries: u32) -> Map {
        let definition =
            Definition { name: "m".into(), kind, key_size, value_size, max_entries, ..Definition::default() };
        definition.check().unwrap();
        Map::new(definition)
    }

    #[test]
    fn arrays_have_all_their_elements() {
        let array = map(2, 4, 5, 3);
        assert_eq!(array.elements(10).len(), 3);
        assert_eq!(array.update(&2_u32.to_ne_bytes(), b"abcde", 0, true), Ok(()));
        assert_eq!(array.get(&2_u32.to_ne_bytes()).unwrap(), b"abcde");
        assert_eq!(array.get(&1_u32.to_ne_bytes()).unwrap(), [0; 5]);
        assert_eq!(array.get(&3_u32.to_ne_bytes()), None);
        assert_eq!(array.update(&3_u32.to_ne_bytes(), b"abcde", 0, true), Err(MapError::Full));
        assert_eq!(array.update(&2_u32.to_ne_bytes(), b"abcde", 1, true), Err(MapError::Exists));
        assert_eq!(array.update(&2_u32.to_ne_bytes(), b"abcde", 9, true), Err(MapError::Invalid));
        assert_eq!(array.delete(&2_u32.to_ne_bytes(), true), Err(MapError::Invalid));
    }

    #[test]
    fn the_longest_prefix_is_found() {
        let prefixes = map(11, 8, 1, 8);
        let key = |length: u32, address: [u8; 4]| [length.to_ne_bytes(), address].concat();
        for (length, address, value) in [(0, [0, 0, 0, 0], 1), (9, [10, 128, 0, 0], 2), (32, [10, 128, 0, 1], 3)] {
            prefixes.update(&key(length, address), &[value], 0, true).unwrap();
        }
        let found = |length, address| prefixes.get(&key(length, address)).map(|value| value[0]);
        assert_eq!(found(32, [10, 128, 0, 1]), Some(3));
        assert_eq!(found(31, [10, 128, 0, 1]), Some(2), "what is asked for may be a prefix");
        assert_eq!(found(32, [10, 255, 0, 1]), Some(2));
        assert_eq!(found(32, [10, 127, 0, 1]), Some(1));
        prefixes.delete(&key(0, [9, 9, 9, 9]), true).unwrap();
        assert_eq!(found(32, [10, 127, 0, 1]), None);
        assert_eq!(prefixes.update(&key(33, [0; 4]), &[0], 0, true), Err(MapError::Invalid));
        assert_eq!(prefixes.elements(9).len(), 2);
    }

    #[test]
    fn definitions_are_bounded() {
        let wrong = |definition: Definition| definition.check().unwrap_err();
        let hash = Definition { kind: 1, key_size: 4, value_size: 8, max_entries: 10, ..Definition::default() };
        assert!(wrong(Definition { kind: 17, ..hash.clone() }).contains("type xskmap does not exist here"));
        assert!(wrong(Definition { kind: 9, ..hash.clone() }).contains("lru_hash"));
        assert!(wrong(Definition { kind: 99, ..hash.clone() }).contains("type 99"));
        assert!(wrong(Definition { kind: 2, key_size: 8, ..hash.clone() }).contains("keys of 8 bytes"));
        assert!(wrong(Definition { key_size: u32::MAX, ..hash.clone() }).contains("bytes"));
        assert!(wrong(Definition { value_size: 0, ..hash.clone() }).contains("values of 0 bytes"));
        assert!(wrong(Definition { max_entries: u32::MAX, ..hash.clone() }).contains("MiB"));
        assert!(wrong(Definition { flags: 1 << 30, ..hash }).contains("unknown flags 0x40000000"));
    }

    proptest! {
        #[test]
        fn a_hash_is_what_the_standard_librarys_is(
            operations in proptest::collection::vec((0..3_u8, 0..12_u16, any::<u8>(), 0..3_u64), 0..200),
        ) {
            let (hash, mut model) = (map(1, 2, 1, 8), HashMap::new());
            for (operation, key, value, flags) in operations {
                let bytes = key.to_ne_bytes();
                if operation == 0 {
                    let expected = model.remove(&key).map(|_: u8| ()).ok_or(MapError::NoKey);
                    prop_assert_eq!(hash.delete(&bytes, false), expected);
                } else {
                    let expected = match (model.contains_key(&key), flags) {
                        (true, 1) => Err(MapError::Exists),
                        (false, 2) => Err(MapError::NoKey),
                        (false, _) if model.len() == 8 => Err(MapError::Full),
                        _ => { model.insert(key, value); Ok(()) }
                    };
                    prop_assert_eq!(hash.update(&bytes, &[value], flags, false), expected);
                }
                for key in 0..12_u16 {
                    let value = hash.get(&key.to_ne_bytes()).map(|value| value[0]);
                    prop_assert_eq!(value, model.get(&key).copied());
                }
                prop_assert_eq!(hash.elements(100).len(), model.len());
            }
        }
    }

    #[test]
    fn keys_that_stay_are_found_while_others_change() {
        let hash = map(1, 4, 4, 64);
        let key = |number: u32| number.to_ne_bytes();
        (0..8).for_each(|number| hash.update(&key(number), &key(number), 0, true).unwrap());
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
                    let number = 100 + round % 50;
                    hash.update(&key(number), &key(number), 0, true).unwrap();
                    if round % 3 > 0 {
                        hash.delete(&key(number), true).unwrap();
                    }
                }
            });
            while !changing.is_finished() {
                for number in 0..8 {
                    assert_eq!(hash.get(&key(number)), Some(key(number).to_vec()));
                }
            }
        });
    }
}
