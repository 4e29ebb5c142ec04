//! `weir/drops`.

use super::Context;
use super::flows::{in_turn, list, literal};
use crate::daemon::drops::{describer, sources};
use crate::unixctl::Pieces;

/// Most rows that are made at a time.
const PIECE: usize = 64;

/// `weir/drops`: what [`Drops`](crate::report::drops::Drops) is in JSON, in no order. Rows are made while the client reads; what they count
/// is of one time, so that they add up.
pub fn report(context: &Context, _: &[String]) -> Result<Pieces, String> {
    let describe = describer(&context.engine);
    let mut sources = sources(&context.engine).into_iter();
    let next = move || {
        let piece: Vec<_> = sources.by_ref().take(PIECE).collect();
        (!piece.is_empty()).then_some(piece)
    };
    Ok(in_turn(vec![literal("{\"drops\":["), list(next, move |source| describe(&source)), literal("]}")]))
}
