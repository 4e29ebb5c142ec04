//! One round of revalidation, shared by several threads.
//!
//! The datapath's flows have numbers. A thread takes the next chunk of numbers under the round's lock, works on it
//! without the lock, and hands in its result. So no flow is handled by two threads, and a slow thread delays no more
//! than its own chunk. The round is over when the last chunk is handed in.

use parking_lot::{Condvar, Mutex};

/// A round that leaves results of type `R`.
pub(crate) struct Round<R> {
    progress: Mutex<Progress<R>>,
    /// No thread works on a chunk.
    none_taken: Condvar,
}

struct Progress<R> {
    /// Where the next chunk begins.
    next: usize,
    /// Where the last one ends.
    end: usize,
    /// Chunks that threads are working on.
    taken: usize,
    /// What the threads handed in, with how many items each thread had.
    results: Vec<R>,
    items: Vec<usize>,
}

/// A chunk that a thread works on. It is handed in when it is dropped. So where its thread panics, the others do not
/// wait for it for ever.
struct Chunk<'a, R> {
    round: &'a Round<R>,
    thread: usize,
    items: usize,
    result: Option<R>,
}

impl<R> Round<R> {
    /// A round of so many threads over the numbers below `end`, of which nothing is done yet.
    pub fn new(threads: usize, end: usize) -> Round<R> {
        let progress = Progress { next: 0, end, taken: 0, results: Vec::new(), items: vec![0; threads] };
        Round { progress: Mutex::new(progress), none_taken: Condvar::new() }
    }

    /// Works on the next chunk, of `size` numbers, as the thread with this number. `work` gets the first number, and
    /// returns with its result how many items there were. False where no chunk is left.
    pub fn work_on_chunk(&self, thread: usize, size: usize, work: impl FnOnce(usize) -> (R, usize)) -> bool {
        let mut progress = self.progress.lock();
        if progress.next >= progress.end {
            return false;
        }
        let from = progress.next;
        progress.next += size;
        progress.taken += 1;
        drop(progress);
        let mut chunk = Chunk { round: self, thread, items: 0, result: None };
        let (result, items) = work(from);
        (chunk.result, chunk.items) = (Some(result), items);
        true
    }

    /// Whether a chunk is left.
    pub fn has_more(&self) -> bool {
        let progress = self.progress.lock();
        progress.next < progress.end
    }

    /// Calls `act` while no thread works on a chunk, nor takes one.
    pub fn interrupt(&self, act: impl FnOnce()) {
        let mut progress = self.progress.lock();
        while progress.taken > 0 {
            self.none_taken.wait(&mut progress);
        }
        act();
    }

    /// Waits until every chunk is handed in. Returns what was handed in, and how many items each thread had.
    pub fn finish(&self) -> (Vec<R>, Vec<usize>) {
        let mut progress = self.progress.lock();
        while progress.next < progress.end || progress.taken > 0 {
            self.none_taken.wait(&mut progress);
        }
        (std::mem::take(&mut progress.results), std::mem::take(&mut progress.items))
    }
}

impl<R> Drop for Chunk<'_, R> {
    fn drop(&mut self) {
        let mut progress = self.round.progress.lock();
        progress.taken -= 1;
        if let Some(items) = progress.items.get_mut(self.thread) {
            *items += self.items;
        }
        progress.results.extend(self.result.take());
        if progress.taken == 0 {
            self.round.none_taken.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use proptest::prelude::*;

    use super::*;

    type Numbers = Round<Vec<usize>>;

    fn numbers(from: usize, size: usize, total: usize) -> (Vec<usize>, usize) {
        let numbers: Vec<_> = (from..(from + size).min(total)).collect();
        let count = numbers.len();
        (numbers, count)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn each_item_is_handled_once(threads in 1usize..6, total in 0usize..500, size in 1usize..40) {
            let round = Numbers::new(threads, total);
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let round = &round;
                    scope.spawn(move || while round.work_on_chunk(thread, size, |from| numbers(from, size, total)) {});
                }
                let (results, items) = round.finish();
                let mut all = results.concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..total));
                assert_eq!(items.iter().sum::<usize>(), total);
            });
        }
    }

    #[test]
    fn threads_work_at_the_same_time_and_the_last_is_waited_for() {
        let round = Arc::new(Numbers::new(2, 2));
        // Both are inside of their chunk before either goes on.
        let (meeting, done) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let other = {
            let (round, meeting, done) = (round.clone(), meeting.clone(), done.clone());
            std::thread::spawn(move || {
                round.work_on_chunk(1, 1, |from| {
                    meeting.wait();
                    done.fetch_add(1, SeqCst);
                    numbers(from, 1, 2)
                })
            })
        };
        round.work_on_chunk(0, 1, |from| {
            meeting.wait();
            numbers(from, 1, 2)
        });
        let (_, items) = round.finish();
        assert_eq!((items, done.load(SeqCst)), (vec![1, 1], 1));
        assert!(other.join().unwrap() && !round.has_more());
    }

    #[test]
    fn nobody_works_during_an_interruption() {
        let (round, working) = (Numbers::new(3, 3000), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 1..3 {
                let (round, working) = (&round, &working);
                let work = move |from| {
                    working.fetch_add(1, SeqCst);
                    let result = numbers(from, 1, 3000);
                    working.fetch_sub(1, SeqCst);
                    result
                };
                scope.spawn(move || while round.work_on_chunk(thread, 1, work) {});
            }
            while round.has_more() {
                round.interrupt(|| assert_eq!(working.load(SeqCst), 0));
            }
            assert_eq!(round.finish().1.iter().sum::<usize>(), 3000);
        });
    }

    #[test]
    fn a_thread_that_panics_holds_up_nobody() {
        let round = Numbers::new(1, 3);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            round.work_on_chunk(0, 2, |_| panic!("on purpose"))
        }));
        assert!(outcome.is_err());
        let work = || round.work_on_chunk(0, 2, |from| numbers(from, 2, 3));
        assert!(work() && !work());
        assert_eq!(round.finish(), (vec![vec![2]], vec![1]));
    }
}
