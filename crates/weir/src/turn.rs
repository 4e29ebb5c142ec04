//! Whose turn it is to work on a long reply, or on something else that is long.
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

/// Long work that goes on in turns.
pub struct Steps {
    turn: Turn,
    began: Instant,
}

/// Begins long work, when it is its turn.
pub async fn begin() -> Steps {
    Steps { turn: take().await, began: Instant::now() }
}

impl Steps {
    /// To be called between two short steps: when a piece has taken long enough, others have their turn.
    pub async fn next(&mut self) {
        if self.began.elapsed() >= PIECE_TIME {
            std::mem::replace(&mut self.turn, Turn(None)).end().await;
            *self = begin().await;
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[tokio::test]
    async fn others_run_between_the_steps_of_long_work() {
        let local = tokio::task::LocalSet::new();
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        local.spawn_local(async move {
            loop {
                counted.set(counted.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let work = async {
            let mut steps = begin().await;
            let before = turns.get();
            steps.next().await;
            let soon = turns.get();
            for _ in 0..5 {
                std::thread::sleep(PIECE_TIME);
                steps.next().await;
            }
            (soon - before, turns.get() - soon)
        };
        let (at_once, later) = local.run_until(work).await;
        assert!(at_once <= 1 && later >= 5, "{at_once} and {later}");
    }
}
