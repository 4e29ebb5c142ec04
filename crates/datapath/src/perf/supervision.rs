//! Which turns are suspicious, and how they are handed to who logs them (`dpif-netdev/pmd-perf-log-set` of ovs-vswitchd(8)).
//!
//! A turn is suspicious that takes too long, or that finds a queue of a guest too full: packets may have been lost meanwhile. It is handed over with some turns before and after it, when
//! these have been, so that this does not disturb what is measured. A worker writes it to a ring of fixed size; where that is full, it is lost.

use super::history::{Iteration, LENGTH};
use super::metrics::PerfMetrics;
use crate::tap::ring::{Consumer, Header, Producer, ring};

/// Bytes of a worker's ring: room for some hundred suspicious turns with a few around them.
const RING: usize = 256 << 10;

/// From how many turns around a suspicious one on supervision goes back to the defaults: logging so many may cause the next one.
const MANY: usize = 100;

/// How turns are supervised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supervision {
    /// How many turns before a suspicious one are logged.
    pub before: usize,
    /// How many after it.
    pub after: usize,
    /// Whether another suspicious turn in that time makes it longer.
    pub extends: bool,
    /// How long a turn may take, in microseconds.
    pub longest: u32,
    /// How many frames in a queue of a guest are too many.
    pub fullest: u32,
}

impl Default for Supervision {
    fn default() -> Supervision {
        Supervision { before: 5, after: 5, extends: false, longest: 250, fullest: 128 }
    }
}

impl Supervision {
    /// The same without more turns than there are in the history: those after are cut first.
    #[must_use]
    pub fn bounded(self) -> Supervision {
        let before = self.before.min(LENGTH - 2);
        Supervision { before, after: self.after.min(LENGTH - 2 - before), ..self }
    }

    /// Goes back to the default turns around a suspicious one.
    pub fn fall_back(&mut self) {
        let Supervision { before, after, extends, .. } = Supervision::default();
        *self = Supervision { before, after, extends, ..*self };
    }
}

/// Why a turn is suspicious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It took too long.
    Cycles,
    /// A queue of a guest was too full.
    GuestQueue,
}

/// A suspicious turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicious {
    /// Its number.
    pub turn: u64,
    /// Its cycles.
    pub cycles: u64,
    /// What is suspicious in it.
    pub reason: Reason,
    /// The turns around it, the latest one first. None where another suspicious turn followed, with which they come.
    pub around: Vec<Iteration>,
}

impl Suspicious {
    /// Whether so many turns are around it that supervision has gone back to its defaults.
    pub fn has_many_around(&self) -> bool {
        self.around.len() > MANY
    }
}

/// What is to be handed over when the turns after it have been.
#[derive(Clone, Copy)]
struct Pending {
    turn: u64,
    cycles: u64,
    reason: Reason,
    begin: u64,
    end: u64,
}

/// The worker's end.
pub struct Supervisor {
    settings: Supervision,
    /// The most cycles of a turn that is not suspicious.
    limit: u64,
    pending: Option<Pending>,
    ring: Producer,
    /// The turns that are being handed over. Has room for all that there can be.
    data: Vec<u8>,
}

/// Both ends of a supervision, by so many cycles in a second.
pub fn supervise(settings: Supervision, frequency: u64) -> (Box<Supervisor>, SuspiciousReader) {
    let (producer, consumer) = ring(RING / 8);
    let settings = settings.bounded();
    let limit = (u128::from(settings.longest) * u128::from(frequency) / 1_000_000).min(u64::MAX.into()) as u64;
    let data = Vec::with_capacity(LENGTH * size_of::<[u64; Iteration::WORDS]>());
    let supervisor = Supervisor { settings, limit, pending: None, ring: producer, data };
    (Box::new(supervisor), SuspiciousReader(consumer))
}

impl Supervisor {
    /// Looks at a turn that is in the history now.
    pub fn check(&mut self, turn: &Iteration, metrics: &PerfMetrics) {
        let reason = if turn.cycles > self.limit {
            Some(Reason::Cycles)
        } else {
            (turn.guest_queue >= u64::from(self.settings.fullest)).then_some(Reason::GuestQueue)
        };
        if let Some(reason) = reason {
            self.note(turn, reason);
        }
        if let Some(pending) = self.pending
            && pending.end <= turn.timestamp
        {
            self.pending = None;
            self.hand_over(&pending, metrics.turns.own((pending.end - pending.begin + 1) as usize));
        }
    }

    fn note(&mut self, turn: &Iteration, reason: Reason) {
        let (number, cycles) = (turn.timestamp, turn.cycles);
        let Supervision { before, after, extends, .. } = self.settings;
        let end = number + after as u64;
        match &mut self.pending {
            None => {
                let begin = number.saturating_sub(before as u64).max(1);
                self.pending = Some(Pending { turn: number, cycles, reason, begin, end });
            }
            Some(pending) if extends => {
                let earlier = *pending;
                let end = end.min(pending.begin + LENGTH as u64 - 1);
                *pending = Pending { turn: number, cycles, reason, end, ..earlier };
                self.hand_over(&earlier, std::iter::empty());
            }
            Some(_) => {}
        }
    }

    #[cold]
    fn hand_over(&mut self, pending: &Pending, around: impl Iterator<Item = Iteration>) {
        self.data.clear();
        let mut turns = 0;
        for turn in around {
            turn.words().iter().for_each(|word| self.data.extend_from_slice(&word.to_ne_bytes()));
            turns += 1;
        }
        self.ring.push([pending.reason as u64, pending.turn, pending.cycles, 0, 0], &self.data);
        if turns > MANY {
            self.settings.fall_back();
        }
    }
}

/// The end of who logs.
pub struct SuspiciousReader(Consumer);

impl SuspiciousReader {
    /// The next suspicious turn, if there is one.
    pub fn next(&mut self, data: &mut Vec<u8>) -> Option<Suspicious> {
        let [reason, turn, cycles, ..]: Header = self.0.pop(data)?;
        let reason = if reason == Reason::GuestQueue as u64 { Reason::GuestQueue } else { Reason::Cycles };
        let words: Vec<_> = data.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        let around = words.as_chunks().0.iter().map(|words| Iteration::from_words(*words)).collect();
        Some(Suspicious { turn, cycles, reason, around })
    }

    /// How many found no room.
    pub fn lost(&self) -> u64 {
        self.0.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has turns with these cycles supervised; a turn may take 250 cycles.
    fn suspicious(settings: Supervision, cycles: impl IntoIterator<Item = u64>) -> Vec<(u64, Vec<u64>)> {
        let (mut supervisor, mut reader) = supervise(settings, 1_000_000);
        let metrics = PerfMetrics::default();
        for (number, cycles) in (1..).zip(cycles) {
            let turn = Iteration { timestamp: number, iterations: 1, cycles, ..Iteration::default() };
            metrics.turns.push(&turn);
            supervisor.check(&turn, &metrics);
        }
        let mut data = Vec::new();
        let found = std::iter::from_fn(|| reader.next(&mut data));
        found.map(|found| (found.turn, found.around.iter().map(|turn| turn.timestamp).collect())).collect()
    }

    fn turns(all: u64, long: &[u64]) -> Vec<u64> {
        (1..=all).map(|number| if long.contains(&number) { 251 } else { 250 }).collect()
    }

    #[test]
    fn a_long_turn_comes_with_those_around_it() {
        let default = Supervision::default();
        assert_eq!(suspicious(default, turns(100, &[])), []);
        assert_eq!(suspicious(default, turns(100, &[20])), [(20, (15..=25).rev().collect())]);
        assert_eq!(suspicious(default, turns(24, &[20])), [], "not yet");
        assert_eq!(suspicious(default, turns(100, &[2])), [(2, (1..=7).rev().collect())]);
        // The second one is among those around the first.
        assert_eq!(suspicious(default, turns(100, &[20, 23])), [(20, (15..=25).rev().collect())]);
        let alone = Supervision { before: 0, after: 0, ..default };
        assert_eq!(suspicious(alone, turns(100, &[20, 21])), [(20, vec![20]), (21, vec![21])]);
    }

    #[test]
    fn a_full_queue_of_a_guest_is_suspicious_too() {
        let (mut supervisor, mut reader) = supervise(Supervision { after: 0, ..Supervision::default() }, 1_000_000);
        let (metrics, mut data) = (PerfMetrics::default(), Vec::new());
        let mut check = |timestamp, cycles, guest_queue| {
            let turn = Iteration { timestamp, iterations: 1, cycles, guest_queue, ..Iteration::default() };
            metrics.turns.push(&turn);
            supervisor.check(&turn, &metrics);
            reader.next(&mut data).map(|found| (found.turn, found.reason))
        };
        assert_eq!(check(1, 250, 127), None);
        assert_eq!(check(2, 250, 128), Some((2, Reason::GuestQueue)));
        assert_eq!(check(3, 251, 128), Some((3, Reason::Cycles)), "as in OVS, one reason is given");
    }

    #[test]
    fn others_extend_it_where_that_is_wanted() {
        let extends = Supervision { extends: true, ..Supervision::default() };
        let found = suspicious(extends, turns(100, &[20, 23, 28]));
        assert_eq!(found, [(20, vec![]), (23, vec![]), (28, (15..=33).rev().collect())]);
        // No more than there are in the history, and then no longer.
        let always = suspicious(extends, std::iter::repeat_n(1000, 3000));
        let longest = always.iter().map(|(_, around)| around.len()).max().unwrap();
        assert_eq!(longest, LENGTH);
        let (_, last) = always.last().unwrap();
        assert_eq!(last.len(), 11, "back to the defaults");
    }

    #[test]
    fn settings_are_within_the_history() {
        let huge = Supervision { before: 10_000, after: 10_000, ..Supervision::default() }.bounded();
        assert_eq!((huge.before, huge.after), (LENGTH - 2, 0));
        assert_eq!(Supervision { before: 3, after: usize::MAX, ..huge }.bounded().after, LENGTH - 5);
        let found = suspicious(Supervision { before: 600, after: 300, ..huge }, turns(2000, &[1000]));
        assert_eq!(found, [(1000, (400..=1300).rev().collect())]);
    }
}
