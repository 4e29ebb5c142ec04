//! Answers that can be long are made piece by piece, as the peer takes them.
//!
//! What an answer is about is chosen once, under the tables' lock, as a list of flows or numbers: a few bytes for
//! each. The entries are made from the list when there is room in the output: those of flows without that lock, others
//! with the lock held for one piece. So neither a long answer nor a slow peer holds the tables. Beside the list, an
//! answer takes the memory of one piece. What was removed by the time that its piece is made is left out, except flows,
//! which are shown as they were.

use std::vec::IntoIter;

use openflow::{Dialect, MultipartReply, Version};

/// Most entries of a piece. It goes out as one message, or as several where it does not fit.
const PIECE: usize = 128;

/// Makes the next piece, and says whether more follow. `None` when there is none.
type Pieces = Box<dyn FnMut() -> Option<(MultipartReply, bool)> + Send>;

/// An answer under way.
pub(super) struct Reply {
    pub version: Version,
    pub xid: u32,
    pub dialect: Dialect,
    pub pieces: Pieces,
}

/// The pieces of an answer about `all`. There is one at least, maybe empty.
pub(super) fn pieces<T: Send + 'static>(
    all: Vec<T>,
    make: impl Fn(Vec<T>) -> MultipartReply + Send + 'static,
) -> Pieces {
    let mut rest: Option<IntoIter<T>> = Some(all.into_iter());
    Box::new(move || {
        let left = rest.as_mut()?;
        let piece = left.by_ref().take(PIECE).collect();
        let more = left.len() > 0;
        if !more {
            rest = None;
        }
        Some((make(piece), more))
    })
}

/// An answer that is one piece.
pub(super) fn whole(reply: MultipartReply) -> Pieces {
    let mut reply = Some(reply);
    Box::new(move || Some((reply.take()?, false)))
}

#[cfg(test)]
mod tests {
    use openflow::{OfPort, QueueConfig};

    use super::*;

    /// Sizes of the pieces, and whether more was said to follow.
    fn sizes(n: usize) -> Vec<(usize, bool)> {
        let queue = QueueConfig { port: OfPort(1), queue: 1, min_rate: None, max_rate: None };
        let mut pieces = pieces(vec![queue; n], MultipartReply::QueueDesc);
        let size = |(reply, more)| match reply {
            MultipartReply::QueueDesc(queues) => (queues.len(), more),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| pieces().map(size)).collect()
    }

    #[test]
    fn the_last_piece_and_no_other_says_that_it_is_the_last() {
        assert_eq!(sizes(0), [(0, false)]);
        assert_eq!(sizes(PIECE), [(PIECE, false)]);
        assert_eq!(sizes(2 * PIECE + 1), [(PIECE, true), (PIECE, true), (1, false)]);
    }
}
