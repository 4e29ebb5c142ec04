//! A hash table of fixed size for keys of one size, whose values stay where they are.
//!
//! Sharing between threads: any number of threads look keys up without a lock, while one at a time, which holds `writer`,
//! adds and removes. Elements are slots that are there from the start; those of one bucket are a chain. A slot's `version`
//! is odd while its key changes: whoever compares a key looks at the version before and after. A walk along a chain may be
//! led astray by a slot that moves to another chain: `removals` has changed then, and the walk begins again, a bounded
//! number of times. A value that was found may come to belong to another key while it is used, as in the kernel.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use parking_lot::{Mutex, MutexGuard};

use super::MapError;
use super::values::Values;

/// No slot.
const NONE: u32 = u32::MAX;

/// How often a walk begins again.
const ATTEMPTS: usize = 16;

/// How often a thread that must not sleep tries to get the writer's lock.
const SPINS: usize = 2000;

/// The most bytes of a key.
pub const MAX_KEY: usize = 64;

/// A key, padded with zeros to whole words.
pub type Key = [u64; MAX_KEY / 8];

/// The table.
#[derive(Debug)]
pub struct Table {
    /// Words of a key.
    key_words: usize,
    keys: Box<[AtomicU64]>,
    versions: Box<[AtomicU32]>,
    next: Box<[AtomicU32]>,
    /// The first slot of each bucket; a power of two of them.
    heads: Box<[AtomicU32]>,
    removals: AtomicU32,
    writer: Mutex<Writer>,
    hasher: foldhash::quality::RandomState,
    /// The values, by slot.
    pub values: Values,
}

/// What only the one that changes the table uses.
#[derive(Debug)]
struct Writer {
    free: Vec<u32>,
    is_used: Box<[bool]>,
}

/// Whether a key has to be there already (the flags of `bpf_map_update_elem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Existing {
    Any = 0,
    MustNotBe = 1,
    MustBe = 2,
}

impl Existing {
    /// From the flags of `bpf_map_update_elem`.
    pub fn from_flags(flags: u64) -> Option<Existing> {
        [Existing::Any, Existing::MustNotBe, Existing::MustBe].into_iter().find(|existing| *existing as u64 == flags)
    }
}

/// The words of a key.
pub fn pack(bytes: &[u8]) -> Key {
    let mut key = Key::default();
    for (word, bytes) in key.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    key
}

impl Table {
    /// A table for so many elements, at least one.
    pub fn new(capacity: usize, key_size: usize, value_size: usize) -> Table {
        let key_words = key_size.div_ceil(8);
        let numbers = |count: usize, number: u32| (0..count).map(|_| AtomicU32::new(number)).collect();
        Table {
            key_words,
            keys: (0..capacity * key_words).map(|_| AtomicU64::new(0)).collect(),
            versions: numbers(capacity, 0),
            next: numbers(capacity, NONE),
            heads: numbers(capacity.next_power_of_two(), NONE),
            removals: AtomicU32::new(0),
            writer: Mutex::new(Writer {
                free: (0..capacity as u32).rev().collect(),
                is_used: vec![false; capacity].into(),
            }),
            hasher: foldhash::quality::RandomState::default(),
            values: Values::new(capacity, value_size),
        }
    }

    /// The slot of a key. Takes no lock.
    pub fn find(&self, key: &Key) -> Option<usize> {
        let head = &self.heads[self.bucket(key)];
        for _ in 0..ATTEMPTS {
            let removals = self.removals.load(Acquire);
            let (mut slot, mut steps) = (head.load(Acquire), 0);
            while let Some(next) = self.next.get(slot as usize) {
                if self.holds(slot as usize, key) {
                    return Some(slot as usize);
                }
                slot = next.load(Acquire);
                steps += 1;
                if steps % 16 == 0 && self.removals.load(Acquire) != removals {
                    break;
                }
            }
            fence(Acquire);
            if self.removals.load(Relaxed) == removals {
                return None;
            }
        }
        None
    }

    /// Sets the value of a key. `wait`: the thread may sleep until another one has made its change.
    ///
    /// # Errors
    /// The table is full, or the key is there or not, and should not be so; without `wait`, that others change it.
    pub fn update(&self, key: &Key, value: &[u8], existing: Existing, wait: bool) -> Result<(), MapError> {
        let mut writer = self.writer(wait)?;
        match (self.find(key), existing) {
            (Some(_), Existing::MustNotBe) => return Err(MapError::Exists),
            (None, Existing::MustBe) => return Err(MapError::NoKey),
            (Some(slot), _) => {
                self.values.write(slot, value);
                return Ok(());
            }
            (None, _) => {}
        }
        let slot = writer.free.pop().ok_or(MapError::Full)? as usize;
        writer.is_used[slot] = true;
        let version = self.versions[slot].load(Relaxed);
        self.versions[slot].store(version.wrapping_add(1), Relaxed);
        fence(Release);
        for (stored, word) in self.keys[slot * self.key_words..].iter().zip(&key[..self.key_words]) {
            stored.store(*word, Relaxed);
        }
        self.values.write(slot, value);
        self.versions[slot].store(version.wrapping_add(2), Release);
        let head = &self.heads[self.bucket(key)];
        self.next[slot].store(head.load(Relaxed), Release);
        head.store(slot as u32, Release);
        Ok(())
    }

    /// Removes a key.
    ///
    /// # Errors
    /// The key is not there; without `wait`, others change the table.
    pub fn delete(&self, key: &Key, wait: bool) -> Result<(), MapError> {
        let mut writer = self.writer(wait)?;
        let slot = self.find(key).ok_or(MapError::NoKey)?;
        let mut link = &self.heads[self.bucket(key)];
        while link.load(Relaxed) != slot as u32 {
            link = &self.next[link.load(Relaxed) as usize];
        }
        link.store(self.next[slot].load(Relaxed), Release);
        self.removals.fetch_add(1, Release);
        writer.is_used[slot] = false;
        writer.free.push(slot as u32);
        Ok(())
    }

    /// The keys and slots of up to `limit` elements.
    pub fn elements(&self, limit: usize) -> Vec<(Key, usize)> {
        let writer = self.writer.lock();
        let used = writer.is_used.iter().enumerate().filter(|(_, is_used)| **is_used).take(limit);
        used.map(|(slot, _)| (self.key(slot), slot)).collect()
    }

    fn key(&self, slot: usize) -> Key {
        let mut key = Key::default();
        let stored = &self.keys[slot * self.key_words..][..self.key_words];
        key.iter_mut().zip(stored).for_each(|(word, stored)| *word = stored.load(Relaxed));
        key
    }

    /// Whether a slot has this key, and had it all the time.
    fn holds(&self, slot: usize, key: &Key) -> bool {
        let version = self.versions[slot].load(Acquire);
        let stored = &self.keys[slot * self.key_words..][..self.key_words];
        let same = stored.iter().zip(key).all(|(stored, word)| stored.load(Relaxed) == *word);
        fence(Acquire);
        same && version.is_multiple_of(2) && self.versions[slot].load(Relaxed) == version
    }

    fn bucket(&self, key: &Key) -> usize {
        let mut hasher = self.hasher.build_hasher();
        key[..self.key_words].iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish() as usize & (self.heads.len() - 1)
    }

    fn writer(&self, wait: bool) -> Result<MutexGuard<'_, Writer>, MapError> {
        if wait {
            return Ok(self.writer.lock());
        }
        for _ in 0..SPINS {
            if let Some(writer) = self.writer.try_lock() {
                return Ok(writer);
            }
            std::hint::spin_loop();
        }
        Err(MapError::Busy)
    }
}
