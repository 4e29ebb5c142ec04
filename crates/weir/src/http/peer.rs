//! A peer, from its connection to the slot that it takes: what the slot is told is what is true of the socket.
//!
//! hyper takes an answer into a buffer of its own, and is done with the body long before the peer has read all of it. So it is the
//! stream below hyper that says when some of an answer has been taken, and when all of it: it is flushed when the buffer is empty.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Slot;

/// What is known of a peer. Its stream, its requests and the bodies of its answers share it.
pub(super) struct Peer {
    slot: Slot,
    stage: Cell<Stage>,
}

/// How far the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is nothing to answer.
    Idle,
    /// The answer, or the next piece of it, is being made.
    Working,
    /// There is some for the peer to take, of so many bytes, and more may follow.
    Answered(usize),
    /// All that there is has been given to hyper: of so many bytes, and some of it may wait there.
    Complete(usize),
}

impl Peer {
    /// A peer with this slot, of which nothing has been read.
    pub(super) fn new(slot: Slot) -> Rc<Peer> {
        Rc::new(Peer { slot, stage: Cell::new(Stage::Idle) })
    }

    /// Returns when the connection is to be closed, to make room.
    pub(super) async fn lost(&self) {
        self.slot.lost().await;
    }

    /// A request is here, or the next piece of its answer is being made.
    pub(super) fn working(&self) {
        self.stage.set(Stage::Working);
        self.slot.working();
    }

    /// So many bytes are there for the peer to take.
    pub(super) fn answered(&self, bytes: usize) {
        self.stage.set(Stage::Answered(bytes));
        self.progress(bytes);
    }

    /// There is no more of this answer.
    pub(super) fn complete(&self) {
        let bytes = match self.stage.get() {
            Stage::Answered(bytes) | Stage::Complete(bytes) => bytes,
            Stage::Idle | Stage::Working => 0,
        };
        self.stage.set(Stage::Complete(bytes));
        self.progress(bytes);
    }

    /// The peer has taken some of what there was for it.
    fn taken(&self) {
        if let Stage::Answered(bytes) | Stage::Complete(bytes) = self.stage.get() {
            self.progress(bytes);
        }
    }

    fn progress(&self, bytes: usize) {
        self.slot.answered();
        self.slot.keep(bytes);
    }

    /// The peer has taken all that there was.
    fn flushed(&self) {
        if let Stage::Complete(_) = self.stage.get() {
            self.stage.set(Stage::Idle);
            self.slot.keep(0);
            self.slot.idle();
        }
    }
}

/// A peer's stream.
pub(super) struct PeerStream<S> {
    stream: Pin<Box<S>>,
    peer: Rc<Peer>,
}

impl<S> PeerStream<S> {
    /// A stream on which what is taken of answers is told to `peer`.
    pub(super) fn new(stream: S, peer: Rc<Peer>) -> PeerStream<S> {
        PeerStream { stream: Box::pin(stream), peer }
    }
}

impl<S: AsyncRead> AsyncRead for PeerStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, into)
    }
}

impl<S: AsyncWrite> AsyncWrite for PeerStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream.as_mut().poll_write(context, bytes));
        self.peer.taken();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream.as_mut().poll_write_vectored(context, parts));
        self.peer.taken();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.stream.as_mut().poll_flush(context));
        self.peer.flushed();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::connections::Connections;

    /// Whether the only peer of `connections` could be closed for another one now.
    async fn makes_room(connections: &Connections) -> bool {
        tokio::select! {
            biased;
            _ = connections.admit() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn an_answer_that_hyper_has_is_not_yet_the_peers() {
        let connections = Connections::new(1);
        let peer = Peer::new(connections.admit().await);
        let (stream, mut other) = tokio::io::duplex(4);
        let mut stream = PeerStream::new(stream, peer.clone());
        peer.working();
        assert!(!makes_room(&connections).await);
        peer.answered(6);
        peer.complete();
        // hyper writes what it has, as far as there is room.
        assert_eq!(stream.write(b"answer").await.unwrap(), 4);
        assert!(!makes_room(&connections).await, "the rest has not been sent");
        other.read_exact(&mut [0; 4]).await.unwrap();
        stream.write_all(b"er").await.unwrap();
        assert!(!makes_room(&connections).await, "hyper may have more");
        stream.flush().await.unwrap();
        assert!(makes_room(&connections).await);
    }

    #[tokio::test]
    async fn who_waits_for_the_next_piece_is_not_closed() {
        let connections = Connections::new(1);
        let peer = Peer::new(connections.admit().await);
        let (stream, _other) = tokio::io::duplex(4);
        let mut stream = PeerStream::new(stream, peer.clone());
        peer.working();
        peer.answered(4);
        stream.write_all(b"some").await.unwrap();
        stream.flush().await.unwrap();
        peer.working();
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        assert!(!makes_room(&connections).await);
    }
}
