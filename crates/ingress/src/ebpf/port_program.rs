//! The program of a port, and what it has decided on each receive queue.
//!
//! Sharing between threads: as of [`crate::counters`]: each queue has counters of its own, which only its worker writes.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::machine::{Machine, Verdict};
use super::object::MAX_BYTES;

/// A program at a port.
#[derive(Debug)]
pub struct PortProgram {
    machine: Machine,
    /// The file that it is from.
    path: String,
    counts: Mutex<Counts>,
}

/// What a program has decided about frames: how many of them were passed, dropped for `XDP_DROP`, and for other reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct VerdictCounts {
    pub passed: u64,
    pub dropped: u64,
    pub aborted: u64,
    pub unsupported: u64,
    pub faults: u64,
}

#[derive(Debug, Default)]
struct Counts {
    /// By queues that are no more.
    ended: VerdictCounts,
    queues: Vec<Arc<QueueCounters>>,
}

/// The counters of a queue, in the order of [`Verdict`].
#[derive(Debug, Default)]
struct QueueCounters([AtomicU64; 5]);

/// The program for the worker of a receive queue.
#[derive(Debug)]
pub struct QueueProgram {
    program: Arc<PortProgram>,
    counters: Arc<QueueCounters>,
}

impl PortProgram {
    /// A program from a file, which has decided about no frame yet.
    pub fn new(machine: Machine, path: &str) -> PortProgram {
        PortProgram { machine, path: path.to_owned(), counts: Mutex::default() }
    }

    /// Loads a program from a file: the only one, or the one of this function or in this section.
    ///
    /// # Errors
    /// Why the file cannot be read, or is refused.
    pub fn open(path: &str, wanted: Option<&str>) -> Result<PortProgram, String> {
        let failed = |reason: String| format!("{path}: {reason}");
        if !Path::new(path).is_absolute() {
            return Err(failed("the path has to begin with /".into()));
        }
        let object = read(path).map_err(failed)?;
        let machine = Machine::load(&object, wanted).map_err(|e| failed(e.to_string()))?;
        Ok(PortProgram::new(machine, path))
    }

    /// The program.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The file that it is from.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The program for one of the port's receive queues.
    pub fn for_queue(self: &Arc<Self>) -> QueueProgram {
        let counters = Arc::<QueueCounters>::default();
        let mut counts = self.counts.lock();
        counts.fold_ended();
        counts.queues.push(counters.clone());
        QueueProgram { program: self.clone(), counters }
    }

    /// What it has decided, on all queues together.
    pub fn counts(&self) -> VerdictCounts {
        let mut counts = self.counts.lock();
        counts.fold_ended();
        counts.queues.iter().fold(counts.ended, |sum, queue| sum.and(queue.read()))
    }
}

/// Reads a file that is not too long. What is not a file is not waited for.
fn read(path: &str) -> Result<Vec<u8>, String> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|e| e.to_string())?;
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("it is not a file".into());
    }
    let mut bytes = Vec::new();
    // One byte more, which the reader of objects refuses.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

impl Counts {
    /// Adds up the counters that no worker has any more, so that queues that come and go take no memory.
    fn fold_ended(&mut self) {
        let Counts { ended, queues } = self;
        queues.retain(|queue| {
            let is_used = Arc::strong_count(queue) > 1;
            if !is_used {
                *ended = ended.and(queue.read());
            }
            is_used
        });
    }
}

impl VerdictCounts {
    fn and(self, other: VerdictCounts) -> VerdictCounts {
        VerdictCounts {
            passed: self.passed + other.passed,
            dropped: self.dropped + other.dropped,
            aborted: self.aborted + other.aborted,
            unsupported: self.unsupported + other.unsupported,
            faults: self.faults + other.faults,
        }
    }
}

impl QueueCounters {
    #[inline]
    fn count(&self, verdict: Verdict) {
        let counter = &self.0[verdict as usize];
        counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn read(&self) -> VerdictCounts {
        let [passed, dropped, aborted, unsupported, faults] = self.0.each_ref().map(|counter| counter.load(Relaxed));
        VerdictCounts { passed, dropped, aborted, unsupported, faults }
    }
}

impl QueueProgram {
    /// Whether the program refuses a frame, which is counted.
    #[inline]
    pub fn refuses(&self, frame: &[u8], now: u64) -> bool {
        let verdict = self.program.machine.verdict(frame, now);
        self.counters.count(verdict);
        verdict != Verdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembler::{assemble, exit, load, set, skip_if_greater};
    use super::*;

    #[test]
    fn files_that_are_none_are_refused() {
        let error = |path: &str| PortProgram::open(path, None).unwrap_err();
        assert!(error("prog.o").contains("prog.o: the path has to begin with /"));
        assert!(error("/nonexistent/prog.o").contains("/nonexistent/prog.o: No such file"));
        assert!(error("/dev/zero").contains("it is not a file") && error("/proc").contains("it is not a file"));
        assert!(error("/bin/sh").contains("not of BPF"));
        assert!(error("/proc/self/stat").contains("not an object file of BPF"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri runs no commands")]
    fn a_pipe_is_not_waited_for_and_a_long_file_not_read() {
        let folder = std::env::temp_dir().join(format!("weir-port-program-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::fs::File::create(path("long")).unwrap().set_len(1 << 40).unwrap();
        // Nobody writes to the pipe: to open it for reading alone would wait for that.
        let errors = ["pipe", "long"].map(|name| PortProgram::open(&path(name), None).unwrap_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(errors[0].contains("it is not a file") && errors[1].contains("more than 16 MiB"), "{errors:?}");
    }

    #[test]
    fn verdicts_are_counted_by_queue_and_together() {
        // Returns the third byte of a frame.
        let words = [
            load(4, 6, 1, 0),
            load(4, 7, 1, 4),
            super::super::assembler::copy(2, 6),
            super::super::assembler::add(2, 3),
            set(0, 0),
            skip_if_greater(2, 7, 1),
            load(1, 0, 6, 2),
            exit(),
        ];
        let program = Arc::new(PortProgram::new(assemble(&words, Vec::new()).unwrap(), "/p.o"));
        let (a, b) = (program.for_queue(), program.for_queue());
        let refused = |queue: &QueueProgram, verdict: u8| queue.refuses(&[9, 9, verdict], 0);
        assert_eq!([0, 1, 2, 3].map(|verdict| refused(&a, verdict)), [true, true, false, true]);
        assert!(!refused(&b, 2) && b.refuses(&[], 0));
        let expected = VerdictCounts { passed: 2, dropped: 1, aborted: 2, unsupported: 1, faults: 0 };
        assert_eq!(program.counts(), expected);
        drop((a, b));
        (0..10).for_each(|_| drop(program.for_queue()));
        assert_eq!(program.counts(), expected, "what queues have counted stays when they go");
        assert!(program.counts.lock().queues.len() <= 1, "and takes no memory");
    }
}
