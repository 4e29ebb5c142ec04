//! How long a connection looks for its peer's next request before it sleeps.
//!
//! A client that waits for the answer to each of many requests, as `ovs-ofctl add-flows` does, sends the next one after some
//! microseconds. A thread that has gone to sleep meanwhile is woken later than that. So while requests follow answers that
//! fast, the connection stays awake for a moment after each answer. The first request that comes later ends this: a peer
//! that is idle or slow costs nothing.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};

/// A request that comes so soon after an answer is one of a series.
const SOON: Duration = Duration::from_micros(150);

/// How long the next one of a series is looked for.
const AWAKE: Duration = Duration::from_micros(40);

/// See the [module](self).
#[derive(Default)]
pub struct Attention {
    /// When the last answer was written, until something comes.
    answered: Option<Instant>,
    /// Whether the last request came soon after the answer before it.
    in_series: bool,
}

impl Attention {
    /// All that the peer has asked for is answered.
    pub fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// Something has come.
    pub fn received(&mut self, now: Instant) {
        self.in_series = self.answered.take().is_some_and(|answered| now.duration_since(answered) < SOON);
    }

    /// Whether to look again at once whether something has come.
    fn is_awake(&self, now: Instant) -> bool {
        self.in_series && self.answered.is_some_and(|answered| now.duration_since(answered) < AWAKE)
    }

    /// Reads what comes. Other tasks run meanwhile.
    pub async fn read<R: AsyncRead + Unpin>(&self, reader: &mut R, input: &mut [u8]) -> io::Result<usize> {
        while self.is_awake(Instant::now()) {
            tokio::select! {
                biased;
                read = reader.read(input) => return read,
                () = std::future::ready(()) => {}
            }
            // The thread sees to its sockets, and does not sleep.
            tokio::task::yield_now().await;
        }
        reader.read(input).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_series_of_quick_requests_keeps_the_connection_awake() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut attention = Attention::default();
        assert!(!attention.is_awake(at(0)));
        attention.received(at(0));
        attention.answered(at(10));
        assert!(!attention.is_awake(at(11)), "the first one is no series");
        attention.received(at(60));
        assert!(!attention.is_awake(at(61)), "nothing is answered");
        attention.answered(at(70));
        assert!(attention.is_awake(at(71)) && attention.is_awake(at(109)));
        assert!(!attention.is_awake(at(110)), "not for long");
        attention.received(at(220));
        attention.answered(at(230));
        assert!(!attention.is_awake(at(231)), "that was late");
    }
}
