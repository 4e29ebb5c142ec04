//! Answers that can be long are made piece by piece, as the peer takes them.
//!
//! An answer about flows is a walk that remembers its place in the tables (see [`FlowWalk`]); one about groups or meters
//! remembers the number that comes next. The entries are made when there is room in the output, with the tables' lock held
//! for one piece at most. So neither a long answer nor a slow peer holds the tables, and beside its place, an answer takes
//! the memory of two pieces. What was removed by the time that its piece is made is left out.

use openflow::stats::AggregateStats;
use openflow::{Dialect, GroupId, MultipartReply, OfError, Version};

use crate::bridge::{Bridge, FlowWalk};

/// Most entries of a piece. It goes out as one message, or as several where it does not fit.
pub(super) const PIECE: usize = 128;

/// What a step of work on an answer has come to.
pub(super) enum Step {
    /// The next piece is to be sent, and whether more follow.
    Piece(MultipartReply, bool),
    /// Nothing is to be sent yet.
    Working,
}

/// Takes the next step, which is short. `None` when the answer is complete.
pub(super) type Pieces = Box<dyn FnMut() -> Option<Step> + Send>;

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

/// A group, or all for ALL. `show` makes a piece of the answer about some of them.
pub(super) fn groups(bridge: Bridge, wanted: GroupId, show: fn(&Bridge, &[GroupId]) -> MultipartReply) -> Pieces {
    let ids = bridge.clone();
    numbered(GroupId(0), move |from, most| ids.group_ids(wanted, from, most), move |ids| show(&bridge, ids))
}

/// The same of meters. The one that is wanted has to be there.
pub(super) fn meters(
    bridge: Bridge,
    wanted: u32,
    show: fn(&Bridge, &[u32]) -> MultipartReply,
) -> Result<Pieces, OfError> {
    bridge.meter_ids(wanted, 0, 1)?;
    let ids = bridge.clone();
    // It may have gone by the time that it is shown.
    let next = move |from, most| ids.meter_ids(wanted, from, most).unwrap_or_default();
    Ok(numbered(0, next, move |ids| show(&bridge, ids)))
}

/// The pieces of an answer about what has numbers, by number. `next` tells so many numbers from one on, in their order, and
/// `show` makes a piece about some of them. There is one piece at least, maybe empty.
fn numbered<N: Copy + Send + 'static>(
    first: N,
    next: impl Fn(N, usize) -> Vec<N> + Send + 'static,
    show: impl Fn(&[N]) -> MultipartReply + Send + 'static,
) -> Pieces {
    let mut from = Some(first);
    Box::new(move || {
        // One more, with which the next piece begins.
        let mut numbers = next(from?, PIECE + 1);
        from = if numbers.len() > PIECE { numbers.pop() } else { None };
        Some(Step::Piece(show(&numbers), from.is_some()))
    })
}

/// An answer that is one piece.
pub(super) fn whole(reply: MultipartReply) -> Pieces {
    let mut reply = Some(reply);
    Box::new(move || Some(Step::Piece(reply.take()?, false)))
}

#[cfg(test)]
mod tests {
    use openflow::MeterConfig;
    use openflow::meter::MeterFlags;

    use super::*;

    /// The meters with these numbers, in pieces: their numbers, and whether more was said to follow.
    fn shown(next: impl FnMut(u32, usize) -> Vec<u32> + Send + 'static) -> Vec<(Vec<u32>, bool)> {
        let config = |&meter: &u32| MeterConfig { meter, flags: MeterFlags::empty(), bands: Vec::new() };
        let next = parking_lot::Mutex::new(next);
        let mut pieces = numbered(
            0,
            move |from, most| (next.lock())(from, most),
            move |ids| MultipartReply::MeterConfig(ids.iter().map(config).collect()),
        );
        let piece = |step| match step {
            Step::Piece(MultipartReply::MeterConfig(meters), more) => (meters.iter().map(|m| m.meter).collect(), more),
            Step::Piece(other, _) => panic!("{other:?}"),
            Step::Working => panic!("it takes no work"),
        };
        std::iter::from_fn(|| pieces().map(piece)).collect()
    }

    fn sizes(n: u32) -> Vec<(usize, bool)> {
        let pieces = shown(move |from, most| (from..n).take(most).collect());
        assert!(pieces.iter().flat_map(|(ids, _)| ids).copied().eq(0..n), "each once, in their order");
        pieces.into_iter().map(|(ids, more)| (ids.len(), more)).collect()
    }

    #[test]
    fn the_last_piece_and_no_other_says_that_it_is_the_last() {
        assert_eq!(sizes(0), [(0, false)]);
        assert_eq!(sizes(PIECE as u32), [(PIECE, false)]);
        assert_eq!(sizes(2 * PIECE as u32 + 1), [(PIECE, true), (PIECE, true), (1, false)]);
    }

    #[test]
    fn what_is_removed_meanwhile_is_left_out() {
        // All go when the first piece has been made.
        let mut looks = 0;
        let pieces = shown(move |from, most| {
            looks += 1;
            if looks == 1 { (from..1000).take(most).collect() } else { Vec::new() }
        });
        assert_eq!(pieces, [((0..PIECE as u32).collect(), true), (Vec::new(), false)]);
    }
}
