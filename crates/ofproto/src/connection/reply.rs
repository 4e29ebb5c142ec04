//! Answers that can be long are made piece by piece, as the peer takes them.
//!
//! An answer about flows is a walk that remembers its place in the tables (see [`FlowWalk`]); one about groups or meters
//! is a list of their numbers. The entries are made when there is room in the output, with the tables' lock held for one
//! piece at most. So neither a long answer nor a slow peer holds the tables, and beside the place or the list, an answer
//! takes the memory of two pieces. What was removed by the time that its piece is made is left out.

use std::vec::IntoIter;

use openflow::stats::AggregateStats;
use openflow::{Dialect, MultipartReply, Version};

use crate::bridge::FlowWalk;

/// Most entries of a piece. It goes out as one message, or as several where it does not fit.
const PIECE: usize = 128;

/// What a step of work on an answer has come to.
pub(super) enum Step {
    /// The next piece is to be sent, and whether more follow.
    Piece(MultipartReply, bool),
    /// Nothing is to be sent yet.
    Working,
}

/// Takes the next step, which is short. `None` when the answer is complete.
type Pieces = Box<dyn FnMut() -> Option<Step> + Send>;

/// An answer under way.
pub(super) struct Reply {
    pub version: Version,
    pub xid: u32,
    pub dialect: Dialect,
    pub pieces: Pieces,
}

/// The flows of a walk. A piece waits until it is known whether another one follows.
pub(super) fn flows(walk: FlowWalk) -> Pieces {
    let (mut walk, mut waiting) = (Some(walk), None);
    Box::new(move || {
        let Some(flows) = walk.as_mut()?.next_flows(PIECE) else {
            walk = None;
            return Some(Step::Piece(MultipartReply::Flow(waiting.take().unwrap_or_default()), false));
        };
        if flows.is_empty() {
            return Some(Step::Working);
        }
        Some(waiting.replace(flows).map_or(Step::Working, |piece| Step::Piece(MultipartReply::Flow(piece), true)))
    })
}

/// The sums over the flows of a walk.
pub(super) fn aggregate(walk: FlowWalk) -> Pieces {
    let (mut walk, mut sum) = (Some(walk), AggregateStats::default());
    Box::new(move || {
        if walk.as_mut()?.add_next(&mut sum) {
            return Some(Step::Working);
        }
        walk = None;
        Some(Step::Piece(MultipartReply::Aggregate(sum), false))
    })
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
        Some(Step::Piece(make(piece), more))
    })
}

/// An answer that is one piece.
pub(super) fn whole(reply: MultipartReply) -> Pieces {
    let mut reply = Some(reply);
    Box::new(move || Some(Step::Piece(reply.take()?, false)))
}

#[cfg(test)]
mod tests {
    use openflow::{OfPort, QueueConfig};

    use super::*;

    /// Sizes of the pieces, and whether more was said to follow.
    fn sizes(n: usize) -> Vec<(usize, bool)> {
        let queue = QueueConfig { port: OfPort(1), queue: 1, min_rate: None, max_rate: None };
        let mut pieces = pieces(vec![queue; n], MultipartReply::QueueDesc);
        let size = |step| match step {
            Step::Piece(MultipartReply::QueueDesc(queues), more) => (queues.len(), more),
            Step::Piece(other, _) => panic!("{other:?}"),
            Step::Working => panic!("a list takes no work"),
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
