//! One round of revalidation, shared by several threads.
//!
//! The datapath lists its flows in chunks. A thread takes the next chunk under the round's lock, works on it without
//! the lock, and hands in its result. So no flow is handled by two threads, and a slow thread delays no more than its
//! own chunk. The round is over when the last chunk is handed in.

use parking_lot::{Condvar, Mutex};

/// A round that leaves results of type `R`.
pub(crate) struct Round<R> {
    progress: Mutex<Progress<R>>,
    finished: Condvar,
}

struct Progress<R> {
    /// Where the next chunk begins.
    next: Option<usize>,
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
    /// A round of so many threads, of which nothing is done yet.
    pub fn new(threads: usize) -> Round<R> {
        let progress = Progress { next: Some(0), taken: 0, results: Vec::new(), items: vec![0; threads] };
        Round { progress: Mutex::new(progress), finished: Condvar::new() }
    }

    /// Works on one chunk, as the thread with this number. `fetch` lists some items from an index on, and the index
    /// after them. False where no chunk is left.
    pub fn work_on_chunk<T>(
        &self,
        thread: usize,
        fetch: impl FnOnce(usize) -> (Vec<T>, Option<usize>),
        work: impl FnOnce(Vec<T>) -> R,
    ) -> bool {
        let mut progress = self.progress.lock();
        let Some(from) = progress.next else { return false };
        let (items, next) = fetch(from);
        progress.next = next;
        progress.taken += 1;
        drop(progress);
        let mut chunk = Chunk { round: self, thread, items: items.len(), result: None };
        chunk.result = Some(work(items));
        true
    }

    /// Whether a chunk is left.
    pub fn has_more(&self) -> bool {
        self.progress.lock().next.is_some()
    }

    /// Waits until every chunk is handed in. Returns what was handed in, and how many items each thread had.
    pub fn finish(&self) -> (Vec<R>, Vec<usize>) {
        let mut progress = self.progress.lock();
        while progress.next.is_some() || progress.taken > 0 {
            self.finished.wait(&mut progress);
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
        if progress.next.is_none() && progress.taken == 0 {
            self.round.finished.notify_all();
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

    /// Lists numbers below `total`, in chunks of `size`.
    fn numbers(total: usize, size: usize) -> impl Fn(usize) -> (Vec<usize>, Option<usize>) {
        move |from| {
            let to = (from + size).min(total);
            ((from..to).collect(), (to < total).then_some(to))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn each_item_is_handled_once(threads in 1usize..6, total in 0usize..500, size in 1usize..40) {
            let round = Numbers::new(threads);
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let round = &round;
                    scope.spawn(move || while round.work_on_chunk(thread, numbers(total, size), |items| items) {});
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
        let round = Arc::new(Numbers::new(2));
        // Both are inside of their chunk before either goes on.
        let (meeting, done) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let other = {
            let (round, meeting, done) = (round.clone(), meeting.clone(), done.clone());
            std::thread::spawn(move || {
                round.work_on_chunk(1, numbers(2, 1), |items| {
                    meeting.wait();
                    done.fetch_add(1, SeqCst);
                    items
                })
            })
        };
        round.work_on_chunk(0, numbers(2, 1), |items| {
            meeting.wait();
            items
        });
        let (_, items) = round.finish();
        assert_eq!((items, done.load(SeqCst)), (vec![1, 1], 1));
        assert!(other.join().unwrap() && !round.has_more());
    }

    #[test]
    fn a_thread_that_panics_holds_up_nobody() {
        let round = Numbers::new(1);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            round.work_on_chunk(0, numbers(3, 2), |_| panic!("on purpose"))
        }));
        assert!(outcome.is_err());
        assert!(
            round.work_on_chunk(0, numbers(3, 2), |items| items)
                && !round.work_on_chunk(0, numbers(3, 2), |items| items)
        );
        assert_eq!(round.finish(), (vec![vec![2]], vec![3]));
    }
}
