//! Whose turn it is to work on a long reply.
//!
//! The management thread makes long replies in short pieces. Between two pieces, whoever they are for, it looks after
//! everything else once: so however many peers ask for long replies, others wait for one piece.

use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::unixctl::command::Pieces;

/// Bytes of text after which a piece of a long reply is sent.
const PIECE: usize = 64 << 10;

/// How long is worked on a piece at a time.
const PIECE_TIME: Duration = Duration::from_millis(1);

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

/// Makes a piece of a long reply. Returns whether more may follow.
pub fn make_piece(pieces: &mut Pieces, text: &mut String) -> bool {
    let began = Instant::now();
    while text.len() < PIECE && began.elapsed() < PIECE_TIME {
        if !pieces(text) {
            return false;
        }
    }
    true
}
