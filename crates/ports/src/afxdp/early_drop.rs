//! What the XDP program of a port drops for an ingress filter: the counters, and the exchange of programs.
//!
//! Each program has counters of its own. Those of the one before are kept until the next exchange: it may still be at work on
//! another processor for a moment when it has been exchanged.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::program::{Attachment, Dropping, Program};
use super::syscall;
use crate::early_drop::{Counters, DropProgram, Dropped, EarlyDrop};
use crate::{Error, afxdp};

/// Words of a counter: frames, bytes.
const WORDS: usize = 2;

/// Name of the maps of counters.
const NAME: &str = "weir_dropped";

/// Counters read by one system call.
const AT_ONCE: usize = 1024;

/// The means to have a port's program drop frames.
pub struct XdpDrop {
    port: String,
    program: Program,
    /// Locked while programs are loaded and exchanged, one at a time, which takes time: readers do without. `None` when the
    /// port is closed.
    attachment: Mutex<Option<Attachment>>,
    /// Locked for moments.
    counted: Mutex<Counted>,
}

/// What has been counted.
#[derive(Default)]
struct Counted {
    /// How many rules are in force, where there are any.
    rules: Option<u32>,
    /// By programs whose counters are no more.
    ended: Dropped,
    /// Of the program that was put in force last, and of the one before.
    maps: Vec<Arc<CounterMap>>,
}

/// The counters of a program: one for all rules, and one for each. Each processor has its own.
#[derive(Debug)]
struct CounterMap {
    map: OwnedFd,
    rules: usize,
    processors: usize,
}

impl XdpDrop {
    /// Of an attached program.
    pub fn new(port: &str, program: Program, attachment: Attachment) -> XdpDrop {
        XdpDrop { port: port.into(), program, attachment: Mutex::new(Some(attachment)), counted: Mutex::default() }
    }

    /// Leads the frames of a receive queue to a socket.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        self.program.redirect(queue, socket)
    }

    /// Takes the program off the interface. The counters stay.
    pub fn detach(&self) {
        *self.attachment.lock() = None;
        self.counted.lock().rules = None;
    }

    /// How many rules are in force, where there are any.
    pub fn rules(&self) -> Option<u32> {
        self.counted.lock().rules
    }

    fn failed(&self, what: &str, source: io::Error) -> Error {
        let hint = source.raw_os_error().and_then(afxdp::hint);
        Error::System { port: self.port.clone(), what: what.into(), source, hint }
    }

    /// Whether the bounds are kept; what is beyond is not made, and not shown to the kernel.
    fn check(&self, program: &DropProgram) -> Result<(), Error> {
        let (instructions, rules) = (program.instructions.len(), program.rules as usize);
        let entries: usize = program.tables.iter().map(|table| table.entries.len()).sum();
        if instructions <= DropProgram::MAX_INSTRUCTIONS && rules.max(entries) <= DropProgram::MAX_RULES {
            return Ok(());
        }
        let problem = format!(
            "{instructions} instructions and {entries} prefixes for {rules} rules are too many for an XDP program"
        );
        Err(Error::Unavailable { port: self.port.clone(), problem })
    }
}

impl EarlyDrop for XdpDrop {
    fn set(&self, program: &DropProgram) -> Result<Arc<dyn Counters>, Error> {
        self.check(program)?;
        let mut attachment = self.attachment.lock();
        let Some(attachment) = &mut *attachment else {
            let problem = "the port is closed".into();
            return Err(Error::Unavailable { port: self.port.clone(), problem });
        };
        let map = CounterMap::new(program.rules).map_err(|e| self.failed("make counters for an XDP program", e))?;
        let loaded = self.program.load_dropping(&Dropping { program, counters: map.map.as_fd() });
        let loaded = loaded.map_err(|e| self.failed("load an XDP program that drops frames", e))?;
        attachment.replace(loaded.as_fd()).map_err(|e| self.failed("replace the XDP program", e))?;
        let map = Arc::new(map);
        let counted = &mut *self.counted.lock();
        counted.rules = Some(program.rules);
        counted.maps.push(map.clone());
        if counted.maps.len() > 2 {
            counted.ended.add(counted.maps.remove(0).total());
        }
        Ok(map)
    }

    fn clear(&self) -> Result<(), Error> {
        let mut attachment = self.attachment.lock();
        if self.rules().is_some()
            && let Some(attachment) = &mut *attachment
        {
            attachment.replace(self.program.plain()).map_err(|e| self.failed("replace the XDP program", e))?;
            self.counted.lock().rules = None;
        }
        Ok(())
    }

    fn total(&self) -> Dropped {
        let counted = self.counted.lock();
        counted.maps.iter().fold(counted.ended, |mut sum, map| {
            sum.add(map.total());
            sum
        })
    }
}

impl CounterMap {
    fn new(rules: u32) -> io::Result<CounterMap> {
        let processors = possible_processors()?;
        let map = syscall::create_percpu_array(NAME, (WORDS * size_of::<u64>()) as u32, 1 + rules)?;
        Ok(CounterMap { map, rules: rules as usize, processors })
    }

    /// What all rules have dropped.
    fn total(&self) -> Dropped {
        self.read_one(0)
    }

    fn read_one(&self, counter: usize) -> Dropped {
        let mut words = vec![0; WORDS * self.processors];
        // SAFETY: `words` has room for the value of each processor that the kernel says there may be.
        let answer = unsafe { syscall::look_up(self.map.as_fd(), counter as u32, &mut words) };
        debug_assert!(answer.is_ok(), "{answer:?}");
        sum(&words)
    }
}

impl Counters for CounterMap {
    fn read(&self) -> Vec<Dropped> {
        let mut counts = Vec::with_capacity(1 + self.rules);
        let mut keys = [0; AT_ONCE];
        let mut words = vec![0; AT_ONCE * WORDS * self.processors];
        while counts.len() <= self.rules {
            let behind = (counts.len() as u32).checked_sub(1);
            // SAFETY: `words` has room for the value of each processor that there may be, for each of the keys.
            let count = unsafe { syscall::look_up_many(self.map.as_fd(), behind, &mut keys, &mut words) };
            match count {
                Ok(count @ 1..) => counts.extend(words.chunks(WORDS * self.processors).take(count).map(sum)),
                _ => counts.push(self.read_one(counts.len())),
            }
        }
        counts.drain(1..=self.rules).collect()
    }
}

/// The sum over all processors.
fn sum(words: &[u64]) -> Dropped {
    let sum = |word: usize| words.iter().skip(word).step_by(WORDS).fold(0, |sum: u64, n| sum.wrapping_add(*n));
    Dropped { packets: sum(0), bytes: sum(1) }
}

/// How many processors the kernel keeps room for.
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_number(&text).map(|last| last + 1).ok_or_else(|| io::Error::other(format!("processors {text:?}")))
}

/// The last number of a list such as "0-3,8-11".
fn last_number(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_says_how_many_there_may_be() {
        assert_eq!(["0\n", "0-3", "0-3,8-11\n", "", "x"].map(last_number), [Some(0), Some(3), Some(11), None, None]);
    }
}
