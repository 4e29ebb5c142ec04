//! Longest prefix match: keys that are prefixes, in one hash table by their length and bits.
//!
//! A look-up asks the table once for each length that is in use, the longest first: as many times as there are lengths at
//! most, whatever the packets hold.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::MapError;
use super::table::{Existing, Key, Table, pack};

/// The most bytes of the address behind the length.
pub const MAX_ADDRESS: usize = 32;

/// Lengths that there can be.
const LENGTHS: usize = MAX_ADDRESS * 8 + 1;

/// The prefixes. A key is a length in bits, as a number of four bytes in the machine's order, and so many bytes.
#[derive(Debug)]
pub struct Prefixes {
    /// The elements.
    pub table: Table,
    /// Bytes of an address.
    size: usize,
    /// Lengths that are in use or have been, one bit for each: another thread may add a prefix of a length whose last one
    /// is removed at this moment.
    lengths: [AtomicU64; LENGTHS.div_ceil(64)],
}

impl Prefixes {
    /// For so many prefixes of addresses of so many bytes.
    pub fn new(capacity: usize, size: usize, value_size: usize) -> Prefixes {
        Prefixes { table: Table::new(capacity, 4 + size, value_size), size, lengths: Default::default() }
    }

    /// The slot of the longest prefix that holds this address, of those that are not longer than it.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let (length, address) = self.split(key);
        let mut length = length.min(self.size * 8);
        loop {
            length = self.longest(length)?;
            if let Some(slot) = self.table.find(&masked(length, address)) {
                return Some(slot);
            }
            length = length.checked_sub(1)?;
        }
    }

    /// Sets the value of a prefix.
    ///
    /// # Errors
    /// As of [`Table::update`]; or the prefix is longer than an address.
    pub fn update(&self, key: &[u8], value: &[u8], existing: Existing, wait: bool) -> Result<(), MapError> {
        let (length, address) = self.split(key);
        if length > self.size * 8 {
            return Err(MapError::Invalid);
        }
        self.table.update(&masked(length, address), value, existing, wait)?;
        self.lengths[length / 64].fetch_or(1 << (length % 64), Relaxed);
        Ok(())
    }

    /// Removes a prefix.
    ///
    /// # Errors
    /// As of [`Table::delete`]; or the prefix is longer than an address.
    pub fn delete(&self, key: &[u8], wait: bool) -> Result<(), MapError> {
        let (length, address) = self.split(key);
        if length > self.size * 8 {
            return Err(MapError::Invalid);
        }
        self.table.delete(&masked(length, address), wait)
    }

    /// The longest length in use that is not longer than this.
    fn longest(&self, length: usize) -> Option<usize> {
        let mut word = length / 64;
        let mut bits = self.lengths[word].load(Relaxed) & u64::MAX >> (63 - length % 64);
        loop {
            if bits != 0 {
                return Some(word * 64 + 63 - bits.leading_zeros() as usize);
            }
            word = word.checked_sub(1)?;
            bits = self.lengths[word].load(Relaxed);
        }
    }

    fn split<'a>(&self, key: &'a [u8]) -> (usize, &'a [u8]) {
        let (length, address) = key.split_at(4);
        (u32::from_ne_bytes([length[0], length[1], length[2], length[3]]) as usize, address)
    }
}

/// The key of a prefix: what is behind its length is zero.
fn masked(length: usize, address: &[u8]) -> Key {
    let mut bytes = [0; 4 + MAX_ADDRESS];
    bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    let whole = length / 8;
    bytes[4..4 + whole].copy_from_slice(&address[..whole]);
    if !length.is_multiple_of(8) {
        bytes[4 + whole] = address[whole] & !(0xff >> (length % 8));
    }
    pack(&bytes)
}
