//! Rate limits: a token bucket for all receive queues of a port.
//!
//! Sharing between threads: the workers of the port's queues each take tokens by compare-and-swap of one number. It
//! says nothing about other memory, so its accesses need no order.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use packet::Time;

/// Units of time in a nanosecond: with them, the highest rate is right to a part in a thousand, and numbers of 64 bits
/// last for nine years.
const UNITS: u64 = 64;

/// How much of a second's frames may come at once: one in so many.
const BURST: u64 = 10;

/// A bucket that holds what may come in a tenth of a second, and at least one token. It is full at the start.
///
/// Instead of tokens, the time is kept at which the bucket will be full again (the *theoretical arrival time* of
/// ITU-T I.371): a token that is taken makes it later by the time between two frames.
#[derive(Debug)]
pub struct TokenBucket {
    /// When it will be full, in units since the clock's start.
    full_at: AtomicU64,
    /// Units between two frames.
    interval: u64,
    /// Units in which an empty bucket becomes full.
    depth: u64,
}

impl TokenBucket {
    /// A full bucket that is filled with `rate` tokens in a second; at least one.
    pub fn new(rate: u32) -> TokenBucket {
        let rate = u64::from(rate.max(1));
        let interval = 1_000_000_000 * UNITS / rate;
        TokenBucket { full_at: AtomicU64::new(0), interval, depth: (rate / BURST).max(1) * interval }
    }

    /// Takes a token; `false` where there is none.
    #[inline]
    pub fn take(&self, now: Time) -> bool {
        let now = now.0.saturating_mul(UNITS);
        let taken = |full_at: u64| {
            let then = full_at.max(now).saturating_add(self.interval);
            (then - now <= self.depth).then_some(then)
        };
        self.full_at.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::MAX_RATE;

    /// How many of a second's `steps`, in each of which `each` frames come, go on.
    fn passed(bucket: &TokenBucket, second: u64, steps: u64, each: u64) -> u64 {
        let at = |step| Time(second * 1_000_000_000 + step * 1_000_000_000 / steps);
        (0..steps).map(|step| (0..each).filter(|_| bucket.take(at(step))).count() as u64).sum()
    }

    #[test]
    fn so_many_go_on_in_a_second() {
        let bucket = TokenBucket::new(1000);
        assert_eq!(passed(&bucket, 0, 1000, 3), 1000 + 100 - 1, "with the burst that it began with");
        assert_eq!(passed(&bucket, 1, 1000, 3), 1000);
        assert_eq!(passed(&bucket, 2, 500, 1), 500, "fewer than may come");
        assert_eq!(passed(&bucket, 3, 1, 5000), 100, "a burst is a tenth of a second's");
        let slow = TokenBucket::new(1);
        assert_eq!((0..4).map(|second| passed(&slow, second, 10, 1)).collect::<Vec<_>>(), [1, 1, 1, 1]);
    }

    #[test]
    fn the_highest_rate_is_nearly_right_and_time_may_end() {
        let bucket = TokenBucket::new(MAX_RATE / 3);
        let at = |millis: u64| Time(millis * 1_000_000);
        let taken = |now| (0..MAX_RATE).take_while(|_| bucket.take(now)).count() as u32;
        assert_eq!(taken(at(0)), MAX_RATE / 30, "a tenth of a second's");
        let wanted = MAX_RATE / 3 / 1000;
        let per_milli: Vec<_> = (1..50).map(|millis| taken(at(millis))).collect();
        assert!(per_milli.iter().all(|n| n.abs_diff(wanted) <= wanted / 1000), "{wanted}: {per_milli:?}");
        let last = TokenBucket::new(50);
        assert!((0..200).all(|_| last.take(Time(u64::MAX))), "at the end of time nothing is limited");
    }
}
