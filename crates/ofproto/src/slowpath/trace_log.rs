//! Which packet is traced in the log: one whose translation was given up since its resubmits have no end.
//!
//! A trace is long, and such packets may come at any rate: there is one a minute at most.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use packet::{Key, Time};
use parking_lot::Mutex;

use crate::xlate::XlateError;

/// There is no other trace for so long.
const PAUSE: Duration = Duration::from_secs(60);

/// Which packet is to be traced, and when another may be.
#[derive(Default)]
pub(crate) struct TraceLog {
    /// In nanoseconds.
    next: AtomicU64,
    has_waiting: AtomicBool,
    waiting: Mutex<Option<Box<Key>>>,
}

impl TraceLog {
    /// Notes why the translation of a packet was given up. Takes no lock but once a minute.
    pub fn note(&self, error: Option<XlateError>, key: &Key, now: Time) {
        let is_endless = matches!(error, Some(XlateError::TooDeep | XlateError::TooManyResubmits));
        let next = self.next.load(Relaxed);
        if !is_endless || now.0 < next {
            return;
        }
        let after = (now + PAUSE).0;
        if self.next.compare_exchange(next, after, Relaxed, Relaxed).is_ok() {
            *self.waiting.lock() = Some(Box::new(key.clone()));
            self.has_waiting.store(true, Relaxed);
        }
    }

    /// The packet that is to be traced now.
    pub fn take(&self) -> Option<Box<Key>> {
        let is_due = self.has_waiting.load(Relaxed) && self.has_waiting.swap(false, Relaxed);
        if is_due { self.waiting.lock().take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_a_minute() {
        let (log, at) = (TraceLog::default(), |seconds| Time(0) + Duration::from_secs(seconds));
        let note = |error, seconds| log.note(error, &Key::new(), at(seconds));
        note(Some(XlateError::NoBridge), 100);
        note(None, 100);
        assert!(log.take().is_none(), "these are no endless resubmits");
        note(Some(XlateError::TooDeep), 100);
        note(Some(XlateError::TooManyResubmits), 101);
        assert!(log.take().is_some() && log.take().is_none());
        note(Some(XlateError::TooDeep), 159);
        assert!(log.take().is_none());
        note(Some(XlateError::TooDeep), 160);
        assert!(log.take().is_some());
    }
}
