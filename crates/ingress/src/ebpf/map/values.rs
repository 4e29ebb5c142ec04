//! The values of a map: memory that programs, helpers and readers use at the same time.
//!
//! Sharing between threads: every byte may be read and written by any thread at any time, as the programs like. Rust code
//! accesses it by atomic operations without order; native code of programs by its plain ones, which machines make atomic
//! enough: a value of several words may be seen half written, as in the kernel.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::super::instruction::Atomic;

/// Values of one size, each at a multiple of eight bytes.
#[derive(Debug)]
pub struct Values {
    words: Box<[AtomicU64]>,
    /// Words of a value.
    stride: usize,
}

impl Values {
    /// So many values of so many bytes, all zero.
    pub fn new(count: usize, size: usize) -> Values {
        let stride = size.div_ceil(8);
        Values { words: (0..count * stride).map(|_| AtomicU64::new(0)).collect(), stride }
    }

    /// Bytes from one value to the next.
    pub fn stride(&self) -> usize {
        self.stride * 8
    }

    /// Where the first one is. The memory stays there for as long as this lives.
    pub fn address(&self) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast()
    }

    /// All bytes.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the words are that many bytes, which live as long as `self`; all accesses to them are atomic or by
        // native code, and every byte is a valid `AtomicU8`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 8) }
    }

    /// The bytes of a value, or what is behind its end up to a multiple of eight.
    pub fn value(&self, index: usize) -> &[AtomicU8] {
        &self.bytes()[index * self.stride()..][..self.stride()]
    }

    /// Reads the first bytes of a value.
    pub fn read(&self, index: usize, into: &mut [u8]) {
        into.iter_mut().zip(self.value(index)).for_each(|(into, byte)| *into = byte.load(Relaxed));
    }

    /// Writes the first bytes of a value.
    pub fn write(&self, index: usize, from: &[u8]) {
        from.iter().zip(self.value(index)).for_each(|(from, byte)| byte.store(*from, Relaxed));
    }

    /// An atomic operation on eight or four bytes at a place that is a multiple of that. Returns what was there; `None`
    /// where there is no such place. `expected`: what [`Atomic::CompareExchange`] compares with.
    pub fn atomic(&self, wide: bool, atomic: Atomic, at: usize, with: u64, expected: u64) -> Option<u64> {
        use std::sync::atomic::Ordering::SeqCst;
        if !at.is_multiple_of(if wide { 8 } else { 4 }) {
            return None;
        }
        let word = self.words.get(at / 8)?;
        if wide {
            return Some(match atomic {
                Atomic::Add => word.fetch_add(with, SeqCst),
                Atomic::Or => word.fetch_or(with, SeqCst),
                Atomic::And => word.fetch_and(with, SeqCst),
                Atomic::Xor => word.fetch_xor(with, SeqCst),
                Atomic::Exchange => word.swap(with, SeqCst),
                Atomic::CompareExchange => {
                    word.compare_exchange(expected, with, SeqCst, SeqCst).unwrap_or_else(|was| was)
                }
            });
        }
        // SAFETY: half of a word of this map: it is aligned, lives as long as `self`, and is only accessed atomically.
        let half = unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>().add(at / 4 % 2) };
        let with = with as u32;
        Some(u64::from(match atomic {
            Atomic::Add => half.fetch_add(with, SeqCst),
            Atomic::Or => half.fetch_or(with, SeqCst),
            Atomic::And => half.fetch_and(with, SeqCst),
            Atomic::Xor => half.fetch_xor(with, SeqCst),
            Atomic::Exchange => half.swap(with, SeqCst),
            Atomic::CompareExchange => {
                half.compare_exchange(expected as u32, with, SeqCst, SeqCst).unwrap_or_else(|was| was)
            }
        }))
    }
}
