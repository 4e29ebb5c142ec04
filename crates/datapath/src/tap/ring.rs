//! A ring of records, by which one worker hands what it has seen to the thread of a tap.
//!
//! Shared memory: [`Producer`] writes words, then `head`; [`Consumer`] reads words, then writes `tail`. Both numbers count all words ever
//! written or read. A word between `tail` and `head` belongs to the consumer, every other one to the producer: the release store of one number
//! and its acquire load by the other end hand words over. Neither end can be cloned, so there is one of each. Where there is no room for a
//! record, it is counted as lost: the worker never waits.

use std::cell::Cell;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Words of a record's header.
pub const HEADER: usize = 5;

/// The header of a record. The upper half of the first word is the ring's own; the others are whatever the producer says.
pub type Header = [u64; HEADER];

struct Shared {
    words: Box<[AtomicU64]>,
    /// Words written since the start.
    head: CachePadded<AtomicU64>,
    /// Words read since the start.
    tail: CachePadded<AtomicU64>,
    /// Records for which there was no room.
    lost: CachePadded<AtomicU64>,
}

impl Shared {
    fn word(&self, number: u64) -> &AtomicU64 {
        // The number of words is a power of two.
        &self.words[number as usize & (self.words.len() - 1)]
    }
}

/// The end that writes.
pub struct Producer {
    shared: Arc<Shared>,
    /// The value of the shared number, which nobody else writes.
    head: Cell<u64>,
    /// What is known of the shared number, which may be larger by now.
    tail: Cell<u64>,
}

/// The end that reads.
pub struct Consumer {
    shared: Arc<Shared>,
    /// The value of the shared number, which nobody else writes.
    tail: u64,
}

/// A ring of at least so many words.
pub fn ring(words: usize) -> (Producer, Consumer) {
    let zeros = || CachePadded::new(AtomicU64::new(0));
    let words = (0..words.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared { words, head: zeros(), tail: zeros(), lost: zeros() });
    let producer = Producer { shared: shared.clone(), head: Cell::new(0), tail: Cell::new(0) };
    (producer, Consumer { shared, tail: 0 })
}

impl Producer {
    /// Appends a record of this header and these bytes, fewer than 2³². Returns false where there is no room for it.
    pub fn push(&self, mut header: Header, data: &[u8]) -> bool {
        let shared = &*self.shared;
        let needed = (HEADER + data.len().div_ceil(8)) as u64;
        let (head, capacity) = (self.head.get(), shared.words.len() as u64);
        if head + needed - self.tail.get() > capacity {
            self.tail.set(shared.tail.load(Ordering::Acquire));
            if head + needed - self.tail.get() > capacity {
                shared.lost.store(shared.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return false;
            }
        }
        header[0] = header[0] & 0xffff_ffff | (data.len() as u64) << 32;
        for (word, at) in header.into_iter().zip(head..) {
            shared.word(at).store(word, Ordering::Relaxed);
        }
        let (whole, rest) = data.as_chunks::<8>();
        let mut at = head + HEADER as u64;
        for bytes in whole {
            shared.word(at).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            at += 1;
        }
        if !rest.is_empty() {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            shared.word(at).store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.head.set(head + needed);
        shared.head.store(head + needed, Ordering::Release);
        true
    }
}

impl Consumer {
    /// Takes the oldest record: its header, and its bytes into `data`.
    pub fn pop(&mut self, data: &mut Vec<u8>) -> Option<Header> {
        let shared = &*self.shared;
        if shared.head.load(Ordering::Acquire) == self.tail {
            return None;
        }
        let mut header = [0; HEADER];
        for (word, at) in header.iter_mut().zip(self.tail..) {
            *word = shared.word(at).load(Ordering::Relaxed);
        }
        let length = (header[0] >> 32) as usize;
        header[0] &= 0xffff_ffff;
        let first = self.tail + HEADER as u64;
        let words = length.div_ceil(8) as u64;
        data.clear();
        for at in first..first + words {
            data.extend_from_slice(&shared.word(at).load(Ordering::Relaxed).to_le_bytes());
        }
        data.truncate(length);
        self.tail = first + words;
        shared.tail.store(self.tail, Ordering::Release);
        Some(header)
    }

    /// How many records have found no room since the start.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Whether nothing will come any more: the producer has gone, and everything was read.
    pub fn is_finished(&self) -> bool {
        Arc::strong_count(&self.shared) == 1 && self.shared.head.load(Ordering::Acquire) == self.tail
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order_or_is_counted(
            lengths in prop::collection::vec((0usize..300, any::<bool>()), 0..200)
        ) {
            let (producer, mut consumer) = ring(64);
            let (mut expected, mut lost) = (std::collections::VecDeque::new(), 0);
            let mut data = Vec::new();
            for (number, (length, read)) in lengths.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + number) as u8).collect();
                let header = [number as u64, 1, u64::MAX, 3, 4];
                if producer.push(header, &bytes) { expected.push_back((header, bytes)) } else { lost += 1 }
                if read && let Some((header, bytes)) = expected.pop_front() {
                    prop_assert_eq!(consumer.pop(&mut data), Some(header));
                    prop_assert_eq!(&data, &bytes);
                }
            }
            for (header, bytes) in expected {
                prop_assert_eq!(consumer.pop(&mut data), Some(header));
                prop_assert_eq!(&data, &bytes);
            }
            prop_assert_eq!(consumer.pop(&mut data), None);
            prop_assert_eq!(consumer.lost(), lost);
        }
    }

    #[test]
    fn frames_of_every_length_pass() {
        let (producer, mut consumer) = ring(2 * 65_536 / 8);
        let frame: Vec<u8> = (0..=65_535u32).map(|i| (i % 251) as u8).collect();
        let mut data = Vec::new();
        for length in (0..200).chain(65_500..=65_535) {
            assert!(producer.push([length as u64; HEADER], &frame[..length]));
            assert_eq!(consumer.pop(&mut data).map(|header| header[1]), Some(length as u64));
            assert!(data == frame[..length], "{length}");
        }
        // What can never fit is lost, not waited for.
        assert!(!ring(64).0.push([0; HEADER], &frame));
    }

    #[test]
    fn a_ring_is_finished_when_its_producer_has_gone_and_all_is_read() {
        let (producer, mut consumer) = ring(64);
        assert!(producer.push([7; HEADER], b"x") && !consumer.is_finished());
        drop(producer);
        assert!(!consumer.is_finished());
        assert!(consumer.pop(&mut Vec::new()).is_some() && consumer.is_finished());
    }

    #[test]
    fn two_threads_share_a_ring() {
        let (producer, mut consumer) = ring(256);
        let count = if cfg!(miri) { 100 } else { 100_000u64 };
        let writer = std::thread::spawn(move || {
            let mut sent = 0;
            for number in 0..count {
                let bytes = number.to_le_bytes().repeat(1 + number as usize % 5);
                sent += u64::from(producer.push([number & 0xffff_ffff, number, 0, 0, 0], &bytes));
            }
            sent
        });
        let (mut data, mut read, mut last) = (Vec::new(), 0, None);
        loop {
            let Some(header) = consumer.pop(&mut data) else {
                if consumer.is_finished() {
                    break;
                }
                std::thread::yield_now();
                continue;
            };
            assert!(last < Some(header[1]), "in order");
            assert_eq!(data, header[1].to_le_bytes().repeat(1 + header[1] as usize % 5));
            (last, read) = (Some(header[1]), read + 1);
        }
        assert_eq!((read, consumer.lost()), (writer.join().unwrap(), count - read));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A record is read as it was written, also where the ring wraps, or not yet.
    #[test]
    fn records_are_handed_over_whole() {
        loom::model(|| {
            let (producer, mut consumer) = ring(8);
            let writer = loom::thread::spawn(move || {
                (1..=2u64).filter(|&number| producer.push([number; HEADER], &[number as u8; 8])).count()
            });
            let (mut data, mut last) = (Vec::new(), 0);
            for _ in 0..2 {
                if let Some(header) = consumer.pop(&mut data) {
                    assert!(header[1] > last && data == [header[1] as u8; 8]);
                    last = header[1];
                }
            }
            let sent = writer.join().unwrap();
            assert!(sent >= 1);
        });
    }
}
