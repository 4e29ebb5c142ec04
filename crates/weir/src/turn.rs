//! Whose turn it is to work on a long reply.
//!
//! The management thread makes long replies in short pieces. Between two pieces, whoever they are for, it looks after
//! everything else once: so however many peers ask for long replies, others wait for one piece.

use tokio::sync::{Semaphore, SemaphorePermit};

static TURN: Semaphore = Semaphore::const_new(1);

/// The right to make one piece.
pub struct Turn(Option<SemaphorePermit<'static>>);

/// Waits for a turn. Who asked first is first.
pub async fn take() -> Turn {
    // The semaphore is never closed.
    Turn(TURN.acquire().await.ok())
}

impl Turn {
    /// Lets the thread look after everything else, and then the next one have a turn.
    pub async fn end(self) {
        tokio::task::yield_now().await;
        drop(self.0);
    }
}
