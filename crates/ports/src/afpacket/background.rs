//! A few threads for what waits in the kernel.
//!
//! To close a packet socket, and to give one a ring, waits until every processor has finished what it does
//! with incoming packets (`synchronize_net` in net/packet/af_packet.c): 10 to 30 ms each. Whoever closes the
//! sockets of a thousand ports one by one waits for a minute. Those who wait at the same time wait for the
//! same end, so threads that do nothing else get it done in a second, and neither workers nor the management
//! wait at all.
//!
//! Threads are started when they are wanted, and end when there is nothing to do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Most threads.
const THREADS: usize = 32;

/// How long a thread waits for more to do.
const IDLE: Duration = Duration::from_secs(1);

/// Something to be done by some thread.
pub type Job = Box<dyn FnOnce() + Send>;

struct JobQueue {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

static STATE: Mutex<JobQueue> = Mutex::new(JobQueue { waiting: VecDeque::new(), threads: 0, idle: 0 });
/// There is something to do.
static POSTED: Condvar = Condvar::new();
/// A thread has nothing to do.
static DONE: Condvar = Condvar::new();

/// Has a thread do something, soon. Where none can be started, the caller gets it back.
pub fn submit(job: Job) -> Result<(), Job> {
    let mut state = STATE.lock();
    state.waiting.push_back(job);
    if state.idle >= state.waiting.len() {
        POSTED.notify_one();
    } else if state.threads < THREADS {
        match std::thread::Builder::new().name("packet-sockets".into()).spawn(serve) {
            Ok(_) => state.threads += 1,
            // It was put there last, and nobody but this thread has had the lock since.
            Err(_) if state.threads == 0 => return state.waiting.pop_back().map_or(Ok(()), Err),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Waits until everything that was submitted is done. `false` where that takes longer than `patience`.
pub fn finish(patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let mut state = STATE.lock();
    while !state.waiting.is_empty() || state.threads > state.idle {
        if DONE.wait_until(&mut state, end).timed_out() {
            return false;
        }
    }
    true
}

fn serve() {
    let _leave = Leave;
    let mut state = STATE.lock();
    loop {
        if let Some(job) = state.waiting.pop_front() {
            drop(state);
            job();
            state = STATE.lock();
            continue;
        }
        state.idle += 1;
        DONE.notify_all();
        let timed_out = POSTED.wait_for(&mut state, IDLE).timed_out();
        state.idle -= 1;
        if timed_out && state.waiting.is_empty() {
            return;
        }
    }
}

/// Counts a thread out, even if what it does panics.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        STATE.lock().threads -= 1;
        DONE.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_thousand_jobs_are_done_by_a_few_threads() {
        let (done, now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        for _ in 0..1000 {
            let (done, now, most): (_, _, Arc<AtomicUsize>) = (done.clone(), now.clone(), Arc::clone(&most));
            let job = move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                now.fetch_sub(1, SeqCst);
                done.fetch_add(1, SeqCst);
            };
            assert!(submit(Box::new(job)).is_ok());
        }
        assert!(finish(Duration::from_secs(60)));
        assert_eq!(done.load(SeqCst), 1000);
        assert!((2..=THREADS).contains(&most.load(SeqCst)), "{most:?} at once");
    }
}
