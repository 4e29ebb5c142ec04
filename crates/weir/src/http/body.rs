//! An answer's way to the peer.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

use super::peer::Peer;
use crate::turn;
use crate::unixctl::Pieces;

/// The body of an answer. When it is dropped, hyper has all of it.
pub(super) struct Body {
    content: Content,
    peer: Rc<Peer>,
}

enum Content {
    /// Is there as a whole.
    Whole(Option<Bytes>),
    /// Is being made: the next piece, and what makes the rest.
    Pieces(Pin<Box<dyn Future<Output = (Bytes, Option<Pieces>)>>>),
}

impl Body {
    /// A text that is there.
    pub(super) fn text(text: impl Into<Bytes>, peer: Rc<Peer>) -> Body {
        let text = text.into();
        peer.answered(text.len());
        Body { content: Content::Whole(Some(text)), peer }
    }

    /// A text that is made as the peer reads it.
    pub(super) fn pieces(pieces: Pieces, peer: Rc<Peer>) -> Body {
        Body { content: Content::Pieces(Box::pin(piece(pieces))), peer }
    }
}

/// Makes the next piece, when it is its turn.
async fn piece(mut pieces: Pieces) -> (Bytes, Option<Pieces>) {
    loop {
        let turn = turn::take().await;
        let mut text = String::new();
        let more = turn::make_piece(&mut pieces, &mut text);
        turn.end().await;
        // What is empty would be the end for the peer.
        if !text.is_empty() || !more {
            return (text.into(), more.then_some(pieces));
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    /// Called when the peer has taken what came before: a piece is made when there is room for it.
    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        let (bytes, rest) = match &mut body.content {
            Content::Whole(text) => (text.take().unwrap_or_default(), None),
            Content::Pieces(next) => {
                // It is not the peer that is waited for.
                body.peer.working();
                std::task::ready!(next.as_mut().poll(context))
            }
        };
        body.peer.answered(bytes.len());
        body.content = match rest {
            Some(pieces) => Content::Pieces(Box::pin(piece(pieces))),
            None => Content::Whole(None),
        };
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Content::Pieces(_) => SizeHint::default(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.peer.complete();
    }
}
