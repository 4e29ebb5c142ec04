//! What the XDP program of a port drops for an ingress filter: the counters, and the exchange of programs.
//!
//! All programs of a port count in one map, so nothing is lost when one takes another's place, and frames that the earlier
//! one still has are counted. Each program has counters of its own, taken in turn: the map has several times as many as a
//! program may have rules, so that those of the one before are still there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::program::{Attachment, Dropping, Program};
use super::syscall;
use crate::early_drop::{Counters, DropProgram, Dropped, EarlyDrop};
use crate::{Error, afxdp};

/// Counters in the map: one for all, and the others in turn.
const COUNTERS: u32 = 1 + 4 * DropProgram::MAX_RULES as u32;

/// Words of a counter: frames, bytes.
const WORDS: usize = 2;

/// Name of the map.
const NAME: &str = "weir_dropped";

/// The means to have a port's program drop frames.
pub struct XdpDrop {
    port: String,
    program: Program,
    /// Locked while programs are loaded and exchanged, one at a time, which takes time: readers do without.
    exchange: Mutex<Exchange>,
    /// Made when first needed.
    counters: OnceLock<CounterMap>,
    /// How many rules are in force.
    rules: Mutex<Option<u32>>,
}

/// What an exchange of programs changes.
struct Exchange {
    /// Absent when the port is closed.
    attachment: Option<Attachment>,
    /// The next counter.
    next: u32,
}

/// The counters of each processor.
struct CounterMap {
    map: OwnedFd,
    processors: usize,
}

impl XdpDrop {
    /// Of an attached program.
    pub fn new(port: &str, program: Program, attachment: Attachment) -> XdpDrop {
        let exchange = Mutex::new(Exchange { attachment: Some(attachment), next: 1 });
        XdpDrop { port: port.into(), program, exchange, counters: OnceLock::new(), rules: Mutex::new(None) }
    }

    /// Leads the frames of a receive queue to a socket.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        self.program.redirect(queue, socket)
    }

    /// Takes the program off the interface. The counters stay.
    pub fn detach(&self) {
        self.exchange.lock().attachment = None;
        *self.rules.lock() = None;
    }

    /// How many rules are in force, where there is a filter.
    pub fn rules(&self) -> Option<u32> {
        *self.rules.lock()
    }

    fn failed(&self, what: &str, source: io::Error) -> Error {
        let hint = source.raw_os_error().and_then(afxdp::hint);
        Error::System { port: self.port.clone(), what: what.into(), source, hint }
    }
}

impl EarlyDrop for XdpDrop {
    fn set(&self, program: &DropProgram) -> Result<Counters, Error> {
        let (instructions, rules) = (program.instructions.len(), program.rules as usize);
        if instructions > DropProgram::MAX_INSTRUCTIONS || rules > DropProgram::MAX_RULES {
            let problem = format!("{instructions} instructions for {rules} rules are too many for an XDP program");
            return Err(Error::Unavailable { port: self.port.clone(), problem });
        }
        let exchange = &mut *self.exchange.lock();
        let Exchange { attachment: Some(attachment), next } = exchange else { return Err(gone(&self.port)) };
        let counters = match self.counters.get() {
            Some(counters) => counters,
            None => {
                let made = CounterMap::new().map_err(|e| self.failed("make counters for an XDP program", e))?;
                self.counters.get_or_init(|| made)
            }
        };
        let first = if *next + program.rules <= COUNTERS { *next } else { 1 };
        let dropping = Dropping { program, counters: counters.map.as_fd(), first };
        let loaded = self.program.load_dropping(&dropping);
        let loaded = loaded.map_err(|e| self.failed("load an XDP program that drops frames", e))?;
        let base = (first..first + program.rules).map(|at| counters.read(at)).collect();
        attachment.replace(loaded.as_fd()).map_err(|e| self.failed("replace the XDP program", e))?;
        *next = first + program.rules;
        *self.rules.lock() = Some(program.rules);
        Ok(Counters { first, base })
    }

    fn clear(&self) -> Result<(), Error> {
        let mut exchange = self.exchange.lock();
        if self.rules.lock().is_some()
            && let Some(attachment) = &mut exchange.attachment
        {
            attachment.replace(self.program.plain()).map_err(|e| self.failed("replace the XDP program", e))?;
            *self.rules.lock() = None;
        }
        Ok(())
    }

    fn read(&self, counters: &Counters) -> Vec<Dropped> {
        let read = |at| self.counters.get().map_or(Dropped::default(), |map| map.read(at));
        (counters.first..).zip(&counters.base).map(|(at, &base)| read(at).since(base)).collect()
    }

    fn total(&self) -> Dropped {
        self.counters.get().map_or(Dropped::default(), |map| map.read(0))
    }
}

fn gone(port: &str) -> Error {
    Error::Unavailable { port: port.into(), problem: "the port is closed".into() }
}

impl CounterMap {
    fn new() -> io::Result<CounterMap> {
        let map = syscall::create_percpu_array(NAME, (WORDS * size_of::<u64>()) as u32, COUNTERS)?;
        Ok(CounterMap { map, processors: possible_processors()? })
    }

    /// The sum over all processors.
    fn read(&self, counter: u32) -> Dropped {
        let mut words = vec![0; WORDS * self.processors];
        // SAFETY: `words` has room for the value of each processor that the kernel says there may be.
        let answer = unsafe { syscall::look_up(self.map.as_fd(), counter, &mut words) };
        debug_assert!(answer.is_ok(), "{answer:?}");
        let sum = |word: usize| words.iter().skip(word).step_by(WORDS).fold(0, |sum: u64, n| sum.wrapping_add(*n));
        Dropped { packets: sum(0), bytes: sum(1) }
    }
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
