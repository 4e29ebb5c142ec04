//! Peers that wait for the answer to each request before they send the next one, as `ovs-ofctl add-flows` does.
//!
//! Their pace is that of two threads that wake each other, and on idle cores most of it is waking. So the thread stays awake for a moment
//! after an answer, where the peer has asked again at once before, and nobody else wants the core.

use std::future::Future;
use std::pin::pin;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::daemon::topology;

/// How long the next request is awaited awake: longer than a peer that was asleep takes to wake and ask.
const AWAKE: Duration = Duration::from_micros(100);

/// A peer that asks so soon after its last answer waits for each.
const LOCKSTEP: Duration = Duration::from_millis(1);

/// A turn of others that takes so long is one of a busy thread: the peer, or another short task, has done in less.
const BUSY: Duration = Duration::from_micros(200);

/// How long the thread sleeps at once after a turn of a busy thread: whoever is woken goes before such a thread, and whoever lets it go
/// first does not.
const CROWDED: Duration = Duration::from_millis(100);

/// Whether this process may use one core only: who asks next cannot run while this thread is awake.
static HAS_ONE_CORE: LazyLock<bool> = LazyLock::new(|| topology::of_machine().has_one_core());

/// What is known of a peer's pace.
#[derive(Debug, Default)]
pub struct Lockstep {
    /// Nobody is awaited awake.
    sleeps: bool,
    /// When the last request was answered.
    answered: Option<Instant>,
    /// Until when the next request is awaited awake.
    awake_until: Option<Instant>,
    /// Until when a busy thread is taken to want the core.
    crowded_until: Option<Instant>,
}

impl Lockstep {
    /// Nothing is known.
    pub fn new() -> Lockstep {
        Lockstep { sleeps: *HAS_ONE_CORE, ..Lockstep::default() }
    }

    /// A request came at `asked`, and the peer had the whole answer at `now`.
    pub fn answered(&mut self, asked: Instant, now: Instant) {
        let waits = self.answered.is_some_and(|at| asked.saturating_duration_since(at) < LOCKSTEP);
        let is_crowded = self.crowded_until.is_some_and(|until| now < until);
        self.answered = Some(now);
        self.awake_until = (waits && !is_crowded && !self.sleeps).then(|| now + AWAKE);
    }

    /// The others' turn took from `began` to `now`.
    fn yielded(&mut self, began: Instant, now: Instant) {
        if now.saturating_duration_since(began) > BUSY {
            (self.awake_until, self.crowded_until) = (None, Some(now + CROWDED));
        }
    }

    fn is_awake(&self, now: Instant) -> bool {
        self.awake_until.is_some_and(|until| now < until)
    }

    /// Waits for `next`, awake where that pays. The other tasks, and whoever wants the core, have their turns meanwhile.
    pub async fn wait<T>(&mut self, next: impl Future<Output = T>) -> T {
        let mut next = pin!(next);
        let mut now = Instant::now();
        while self.is_awake(now) {
            tokio::select! {
                biased;
                done = &mut next => return done,
                // Looks for what has come on every socket.
                () = tokio::task::yield_now() => {}
            }
            let began = Instant::now();
            std::thread::yield_now();
            now = Instant::now();
            self.yielded(began, now);
        }
        next.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_awaited_awake_on_the_only_core() {
        let (start, mut pace) = (Instant::now(), Lockstep { sleeps: true, ..Lockstep::default() });
        for n in 0..9 {
            let now = start + Duration::from_micros(20 * n);
            pace.answered(now, now);
            assert!(!pace.is_awake(now));
        }
    }

    #[test]
    fn a_peer_that_asks_again_at_once_is_awaited_awake() {
        let (start, mut pace) = (Instant::now(), Lockstep::default());
        let at = |micros| start + Duration::from_micros(micros);
        pace.answered(at(0), at(5));
        assert!(!pace.is_awake(at(6)), "the first request says nothing of the next one");
        pace.answered(at(40), at(45));
        assert!(pace.is_awake(at(144)) && !pace.is_awake(at(145)));
        pace.answered(at(1_045), at(1_050));
        assert!(!pace.is_awake(at(1_051)), "it came a millisecond later");
    }

    #[test]
    fn a_busy_thread_has_the_core() {
        let (start, mut pace) = (Instant::now(), Lockstep::default());
        let at = |micros| start + Duration::from_micros(micros);
        pace.answered(at(0), at(5));
        pace.answered(at(40), at(45));
        pace.yielded(at(50), at(90));
        assert!(pace.is_awake(at(91)), "the peer had its turn");
        pace.yielded(at(91), at(3_091));
        assert!(!pace.is_awake(at(3_091)));
        for n in 0..10 {
            pace.answered(at(3_100 + 10 * n), at(3_105 + 10 * n));
            assert!(!pace.is_awake(at(3_106 + 10 * n)));
        }
        pace.answered(at(103_000), at(103_001));
        pace.answered(at(103_200), at(103_201));
        assert!(pace.is_awake(at(103_202)), "it may have gone");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_comes_is_taken_and_others_have_their_turns() {
        let mut pace = Lockstep::default();
        let now = Instant::now();
        pace.answered(now, now);
        // Awake for as long as the test needs.
        pace.awake_until = Some(now + Duration::from_secs(60));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { sender.send(7) });
        assert_eq!(pace.wait(receiver).await, Ok(7));
    }
}
