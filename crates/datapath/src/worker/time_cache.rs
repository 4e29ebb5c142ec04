//! When a worker reads the clocks: one reading costs as much as several packets.
//!
//! In a thread, a turn begins when the last one ends, so the cycle counter is read once for each receive queue that
//! is polled. The clock is read again when some microseconds have passed since the last reading. Where a caller runs
//! the worker turn by turn, both are read in each turn.

use crate::sync::tsc;

/// How long a reading of the clock is used, in cycles: some microseconds.
const FRESH: u64 = 10_000;

/// The last readings of one worker.
#[derive(Debug, Default)]
pub struct TimeCache {
    /// Whether turns follow each other without a pause.
    runs: bool,
    /// Cycle counter at the end of the last turn; `None` after a pause.
    ended: Option<u64>,
    /// Cycle counter when the clock was read.
    read: Option<u64>,
}

impl TimeCache {
    /// The state at the start or after a pause. `runs`: turns follow each other from now on.
    pub fn new(runs: bool) -> TimeCache {
        TimeCache { runs, ended: None, read: None }
    }

    /// Cycle counter at the start of a turn.
    #[inline(always)]
    pub fn start(&mut self) -> u64 {
        match self.ended {
            Some(ended) => ended,
            None => tsc::cycles(),
        }
    }

    /// Whether the turn that starts now reads the clock.
    #[inline(always)]
    pub fn is_clock_due(&mut self, start: u64) -> bool {
        if self.read.is_some_and(|read| start.wrapping_sub(read) < FRESH) {
            return false;
        }
        self.read = self.runs.then_some(start);
        true
    }

    /// Cycle counter at the end of a turn. `last`: its last reading.
    #[inline(always)]
    pub fn end(&mut self, last: u64) -> u64 {
        if !self.runs {
            return tsc::cycles();
        }
        self.ended = Some(last);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read_in_each_turn_unless_turns_follow_each_other() {
        let mut time_cache = TimeCache::default();
        for _ in 0..3 {
            let start = time_cache.start();
            assert!(time_cache.is_clock_due(start));
            assert!(time_cache.end(start) >= start);
        }
        let mut time_cache = TimeCache::new(true);
        let start = time_cache.start();
        assert!(time_cache.is_clock_due(start));
        assert_eq!(time_cache.end(start + 9_000), start + 9_000);
        assert_eq!(time_cache.start(), start + 9_000);
        assert!(!time_cache.is_clock_due(start + 9_000));
        time_cache.end(start + 10_000);
        let start = time_cache.start();
        assert!(time_cache.is_clock_due(start) && !time_cache.is_clock_due(start + 1));
    }
}
