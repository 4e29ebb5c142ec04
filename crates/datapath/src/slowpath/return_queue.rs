//! The queue by which packets come down to a worker, from all handlers of its channels.
//!
//! A worker must not wait for a handler, which the kernel may stop at any instruction. In a queue that several threads fill, one
//! that has stopped in the middle of an insertion keeps the items behind its own from the reader, which can only wait for
//! it. So each channel has a queue of its own, and a counter of the insertions that have ended: the worker takes no more
//! than these.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::SegQueue;
use packet::BATCH_SIZE;

/// The queues of a worker's channels, of which there are `N`.
pub struct ReturnQueue<T, const N: usize> {
    sources: [Source<T>; N],
    /// How many items there are to take, of all channels. Less than there are while one is inserted.
    ready: AtomicUsize,
}

/// The queue of one channel. One thread at a time inserts.
struct Source<T> {
    items: SegQueue<T>,
    /// How many items can be taken without waiting.
    ready: AtomicUsize,
}

impl<T, const N: usize> ReturnQueue<T, N> {
    /// Empty queues.
    pub fn new() -> ReturnQueue<T, N> {
        let source = |_| Source { items: SegQueue::new(), ready: AtomicUsize::new(0) };
        ReturnQueue { sources: std::array::from_fn(source), ready: AtomicUsize::new(0) }
    }

    /// Inserts an item that comes by this channel. Only the handler that serves the channel may do so.
    pub fn push(&self, channel: usize, item: T) {
        let source = &self.sources[channel];
        source.items.push(item);
        source.ready.fetch_add(1, Ordering::Release);
        // A worker that goes to sleep looks at this after it has said so (see the waker).
        self.ready.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether there is nothing to take.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ready.load(Ordering::SeqCst) == 0
    }

    /// Takes the next item. The channels take turns. Only the worker may do so.
    pub fn pop(&self, cursor: &mut Cursor) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        for _ in 0..=N {
            let source = &self.sources[cursor.channel];
            if cursor.taken < BATCH_SIZE && source.ready.load(Ordering::Acquire) > 0 {
                cursor.taken += 1;
                source.ready.fetch_sub(1, Ordering::Relaxed);
                self.ready.fetch_sub(1, Ordering::Relaxed);
                return source.items.pop();
            }
            *cursor = Cursor { channel: (cursor.channel + 1) % N, taken: 0 };
        }
        None
    }
}

/// Whose turn it is.
#[derive(Default)]
pub struct Cursor {
    channel: usize,
    /// How many items of the channel were taken in this turn.
    taken: usize,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn channels_take_turns_and_each_is_in_order() {
        let (queue, mut cursor) = (ReturnQueue::<usize, 8>::new(), Cursor::default());
        assert!(queue.is_empty() && queue.pop(&mut cursor).is_none());
        (0..3 * BATCH_SIZE).for_each(|number| queue.push(2, number));
        queue.push(7, 1000);
        let mut came: Vec<usize> = std::iter::from_fn(|| queue.pop(&mut cursor)).collect();
        assert!(queue.is_empty());
        let other = came.iter().position(|&number| number == 1000).unwrap();
        assert_eq!(other, BATCH_SIZE, "after a batch of the other channel");
        came.remove(other);
        assert_eq!(came, (0..3 * BATCH_SIZE).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let (queue, mut cursor) = (Arc::new(ReturnQueue::<(usize, u32), 4>::new()), Cursor::default());
        let count = if cfg!(miri) { 50 } else { 20_000 };
        let handlers = [0, 3].map(|channel| {
            let queue = queue.clone();
            std::thread::spawn(move || (0..count).for_each(|number| queue.push(channel, (channel, number))))
        });
        let mut next = [0; 4];
        while next.iter().sum::<u32>() < 2 * count {
            let Some((channel, number)) = queue.pop(&mut cursor) else { continue };
            assert_eq!(number, next[channel]);
            next[channel] += 1;
        }
        assert!(queue.is_empty() && queue.pop(&mut cursor).is_none());
        handlers.into_iter().for_each(|handler| handler.join().unwrap());
    }
}
