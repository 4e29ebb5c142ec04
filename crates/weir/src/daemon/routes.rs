//! What the HTTP server answers, in one table. Its answers are made from what commands work on, too.

use super::commands::{Context, metrics};
use crate::http::{Answer, Route};
use crate::metrics::text;

/// The paths.
pub static ROUTES: &[Route<Context>] = &[Route {
    path: "/metrics",
    media_type: text::MEDIA_TYPE,
    run: |context, _| Answer::Pieces(metrics::all(context)),
}];
