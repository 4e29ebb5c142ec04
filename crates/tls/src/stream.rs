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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Ca, Settings, Tls};

    /// More than the sockets' buffers take.
    const LONG: usize = 1 << 25;

    fn own_certificate(folder: &std::path::Path) -> Tls {
        let (key, certificate) = (folder.join("key.pem"), folder.join("certificate.pem"));
        let make = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=switch", "-keyout"])
            .args([key.as_os_str(), "-out".as_ref(), certificate.as_os_str()])
            .output()
            .expect("openssl");
        assert!(make.status.success(), "{}", String::from_utf8_lossy(&make.stderr));
        let (private_key, certificate) = (Some(key), Some(certificate));
        Tls::new(Settings { private_key, certificate, ca: Some(Ca::Unverified), ..Settings::default() })
    }

    /// Whoever only waits for the peer's next message has sent it what is encrypted already.
    #[tokio::test]
    async fn what_was_written_goes_out_while_the_peer_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let tls = own_certificate(folder.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = tokio::sync::oneshot::channel();
        let server = async {
            let mut stream = tls.accept(listener.accept().await.unwrap().0).await.unwrap();
            let message = vec![7; LONG];
            let mut sent = 0;
            // As much as is taken without waiting, and no flush.
            while let Ok(written) = tokio::time::timeout(Duration::ZERO, stream.write(&message[sent..])).await {
                sent += written.unwrap();
            }
            assert!(sent < LONG, "the buffers are full");
            tell.send(sent).unwrap();
            let mut answer = [0];
            stream.read_exact(&mut answer).await.unwrap();
            answer
        };
        let client = async {
            let mut stream = tls.connect("localhost", TcpStream::connect(address).await.unwrap()).await.unwrap();
            let mut received = vec![0; told.await.unwrap()];
            let all = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut received)).await;
            all.expect("all that was written").unwrap();
            stream.write_all(&[9]).await.unwrap();
            stream.flush().await.unwrap();
        };
        let (answer, ()) = tokio::join!(server, client);
        assert_eq!(answer, [9]);
    }
}
