//! A stream of bytes for code that knows nothing of TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::in_words;

/// A connection.
///
/// What has been written goes to the peer without being flushed, as long as the stream is read or written: of what is
/// encrypted, up to 64 KiB wait here, and behave like bytes in the socket's own buffer.
#[derive(Debug)]
pub struct Stream(Box<TlsStream<TcpStream>>);

impl Stream {
    pub(crate) fn client(stream: tokio_rustls::client::TlsStream<TcpStream>) -> Stream {
        Stream(Box::new(stream.into()))
    }

    pub(crate) fn server(stream: tokio_rustls::server::TlsStream<TcpStream>) -> Stream {
        Stream(Box::new(stream.into()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // What is wrong with the other direction is seen by whoever writes.
        let _ = Pin::new(&mut self.0).poll_flush(cx);
        match ready!(Pin::new(&mut self.0).poll_read(cx, buf)) {
            // The peer has hung up without a word. The protocols inside say by themselves where a message ends, so
            // nothing can be cut short unnoticed.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            Err(e) => Poll::Ready(Err(match in_words(&e) {
                Some(words) => io::Error::new(e.kind(), words),
                None => e,
            })),
            done => Poll::Ready(done),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
