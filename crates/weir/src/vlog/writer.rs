//! A thread that writes lines to files, so that nobody else waits for a disk that has stalled.
//!
//! While the disk does its work, who logs a line goes on when it is written: what the daemon has said before it answers can be read
//! then, and a process that is killed has its last words in the file. Once somebody has waited in vain, nobody waits until all that is kept
//! is written, and for a while where that is slow; lines that there is no room for are lost. A process that ends waits for the last ones.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a line is waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long at least nobody waits after that was in vain, where the disk is slow.
const DISTRUST: Duration = Duration::from_secs(10);

/// A disk that takes no longer than this for a line is not slow: it was the thread that had to wait for its turn.
const QUICK: Duration = Duration::from_millis(10);

/// Bytes of lines that are kept.
const MOST: usize = 1 << 20;

/// Writes lines in their order.
pub struct Writer {
    shared: Arc<Shared>,
    /// Without a thread, which could not be started, who logs writes.
    has_thread: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is a line, or no more will come.
    filled: Condvar,
    /// A line is written.
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<(Arc<File>, String)>,
    /// Of the lines that are not written yet.
    bytes: usize,
    /// How many lines have come, and how many are done with.
    came: u64,
    done: u64,
    /// When somebody has waited in vain.
    stalled: Option<Instant>,
    is_at_end: bool,
}

impl Writer {
    /// Starts the thread.
    pub fn start() -> Writer {
        let (queue, filled, written) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue, filled, written });
        let theirs = shared.clone();
        let has_thread = thread::Builder::new().name("log".into()).spawn(move || theirs.run()).is_ok();
        Writer { shared, has_thread }
    }

    /// Writes a line that ends in a line feed, or keeps it to be written.
    pub fn write(&self, file: &Arc<File>, line: String) {
        if !self.has_thread {
            let _ = (&**file).write(line.as_bytes());
            return;
        }
        let mut queue = self.shared.queue.lock();
        if queue.bytes + line.len() > MOST {
            return;
        }
        queue.bytes += line.len();
        queue.came += 1;
        let mine = queue.came;
        queue.lines.push_back((file.clone(), line));
        self.shared.filled.notify_one();
        let is_waited_for = |queue: &mut Queue| queue.done < mine && queue.stalled.is_none();
        if self.shared.written.wait_while_for(&mut queue, is_waited_for, PATIENCE).timed_out() {
            queue.stalled = Some(Instant::now());
            self.shared.written.notify_all();
        }
    }

    /// Whether all that has come is written, and whether who logs waits for that.
    #[cfg(test)]
    pub fn state(&self) -> (bool, bool) {
        let queue = self.shared.queue.lock();
        (queue.done == queue.came, queue.stalled.is_none())
    }

    /// Returns when all that has come is written, or at this time.
    pub fn flush(&self, deadline: Instant) {
        let mut queue = self.shared.queue.lock();
        let all = queue.came;
        while queue.done < all && !self.shared.written.wait_until(&mut queue, deadline).timed_out() {}
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue.lock().is_at_end = true;
        self.shared.filled.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut torn = None;
        loop {
            let mut queue = self.queue.lock();
            self.filled.wait_while(&mut queue, |queue| queue.lines.is_empty() && !queue.is_at_end);
            let Some((file, line)) = queue.lines.pop_front() else { return };
            drop(queue);
            let began = Instant::now();
            write(&file, &line, &mut torn);
            let is_quick = began.elapsed() < QUICK;
            let mut queue = self.queue.lock();
            queue.bytes -= line.len();
            queue.done += 1;
            queue.stalled = queue.stalled.filter(|at| !queue.lines.is_empty() || !is_quick && at.elapsed() < DISTRUST);
            self.written.notify_all();
        }
    }
}

/// Writes a line. A full disk loses lines and nothing else. `torn` is the file whose last line was cut short, for want of room.
fn write(file: &Arc<File>, line: &str, torn: &mut Option<Arc<File>>) {
    let mut to = &**file;
    if torn.as_ref().is_some_and(|torn| Arc::ptr_eq(torn, file)) && to.write_all(b"\n").is_err() {
        return;
    }
    // One call for a line: lines of two processes in one file do not mix.
    let is_short = to.write(line.as_bytes()).is_ok_and(|written| written < line.len());
    *torn = is_short.then(|| file.clone());
}
