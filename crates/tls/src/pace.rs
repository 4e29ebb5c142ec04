//! How much of a thread's time goes to the handshakes of those who connect.
//!
//! Each handshake takes an operation with the private key, which is some milliseconds of a thread that has others to answer. So they
//! take turns, in the order in which they have said hello, and after each one the next waits for three times as long as it has
//! taken: a flood of them gets a quarter of the thread, whatever the key and the machine are.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep_until};

/// How often what was taken the others get.
const OTHERS: u32 = 3;

/// The turns of the handshakes of one thread.
#[derive(Debug, Default)]
pub struct Pace {
    /// Fair: who waits longest is next.
    turn: tokio::sync::Mutex<()>,
    /// When the next turn is; `None`: at once.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// Waits for a turn, which lasts until what is returned is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        loop {
            // Those that had their turn before may go on taking time.
            let next = *self.next.lock();
            match next.filter(|next| *next > Instant::now()) {
                Some(next) => sleep_until(next).await,
                None => return turn,
            }
        }
    }

    /// Notes that a handshake has taken so much.
    pub fn charge(&self, taken: Duration) {
        let (mut next, now) = (self.next.lock(), Instant::now());
        *next = Some(next.map_or(now, |next| next.max(now)) + taken * OTHERS);
    }

    /// Does something, and charges for it.
    pub fn charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = std::time::Instant::now();
        let done = work();
        self.charge(begun.elapsed());
        done
    }
}

/// A future whose work is charged for.
pub struct Charged<'a, F> {
    pub future: F,
    pub pace: &'a Pace,
}

impl<F: Future + Unpin> Future for Charged<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let pace = self.pace;
        pace.charged(|| Pin::new(&mut self.future).poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const WORK: Duration = Duration::from_millis(5);

    /// By a clock that moves only while all wait.
    #[tokio::test(start_paused = true)]
    async fn a_flood_gets_a_quarter_of_the_time() {
        let (pace, begun) = (Arc::new(Pace::default()), Instant::now());
        let one = |number: u32| {
            let pace = pace.clone();
            async move {
                let turn = pace.turn().await;
                tokio::time::advance(WORK).await;
                pace.charge(WORK);
                drop(turn);
                number
            }
        };
        let tasks: Vec<_> = (0..100).map(|number| tokio::spawn(one(number))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(begun.elapsed() >= 99 * 4 * WORK, "{:?}", begun.elapsed());
        // Whoever comes alone does not wait.
        tokio::time::advance(3 * WORK).await;
        let alone = Instant::now();
        drop(pace.turn().await);
        assert_eq!(alone.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_the_turn_is_charged_too() {
        let pace = Pace::default();
        pace.charged(|| std::thread::sleep(Duration::from_millis(2)));
        let begun = Instant::now();
        let slow = std::pin::pin!(async { std::thread::sleep(Duration::from_millis(2)) });
        Charged { future: slow, pace: &pace }.await;
        pace.charge(WORK);
        drop(pace.turn().await);
        assert!(begun.elapsed() >= Duration::from_millis(6) + 3 * WORK, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_gives_up_does_not_keep_the_turn() {
        let pace = Pace::default();
        pace.charge(WORK);
        tokio::time::timeout(WORK, pace.turn()).await.unwrap_err();
        drop(pace.turn().await);
    }
}
