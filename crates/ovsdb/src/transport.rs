//! Connections to a server: `unix:FILE`, `tcp:HOST:PORT`, `ssl:HOST:PORT` (ovsdb(7), "Active connection
//! methods").

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};

use thiserror::Error;
use tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The port where none is given (RFC 7047 section 4).
pub const DEFAULT_PORT: u16 = 6640;

/// A connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// By the operating system or the peer.
    #[error("{remote}: {error}")]
    Io {
        /// Where to.
        remote: Remote,
        /// What is wrong.
        error: io::Error,
    },
    /// TLS cannot be had.
    #[error("{remote}: {error}")]
    Tls {
        /// Where to.
        remote: Remote,
        /// What is wrong.
        error: tls::Error,
    },
}

/// Text that does not name a server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a server: expected unix:FILE, tcp:HOST[:PORT] or ssl:HOST[:PORT]")]
pub struct RemoteError(pub String);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS over TCP.
    Ssl {
        /// Name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Remote {
    /// Reads remotes separated by commas: the members of a cluster.
    pub fn parse_list(text: &str) -> Result<Vec<Remote>, RemoteError> {
        text.split(',').map(|part| part.trim().parse()).collect()
    }
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Remote, RemoteError> {
        let wrong = || RemoteError(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        if kind == "unix" && !rest.is_empty() {
            return Ok(Remote::Unix(rest.into()));
        }
        let (host, port) = split_host(rest).ok_or_else(wrong)?;
        match kind {
            "tcp" => Ok(Remote::Tcp { host, port }),
            "ssl" => Ok(Remote::Ssl { host, port }),
            _ => Err(wrong()),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`.
fn split_host(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(DEFAULT_PORT), |p| p.parse().ok().filter(|&p| p != 0))?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, host, port) = match self {
            Remote::Unix(path) => return write!(f, "unix:{}", path.display()),
            Remote::Tcp { host, port } => ("tcp", host, port),
            Remote::Ssl { host, port } => ("ssl", host, port),
        };
        match host.contains(':') {
            true => write!(f, "{kind}:[{host}]:{port}"),
            false => write!(f, "{kind}:{host}:{port}"),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
    /// Over TLS.
    Tls(tls::Stream),
}

/// Connects to a server.
pub async fn connect(remote: &Remote, tls: &Tls) -> Result<Stream, ConnectError> {
    let io = |error| ConnectError::Io { remote: remote.clone(), error };
    match remote {
        Remote::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map_err(io),
        Remote::Tcp { host, port } => tcp(host, *port).await.map(Stream::Tcp).map_err(io),
        Remote::Ssl { host, port } => {
            let connected = match tls.connect(host, tcp(host, *port).await.map_err(io)?).await {
                // With the CA certificate that the server has just sent.
                Err(tls::Error::Bootstrapped(_)) => tls.connect(host, tcp(host, *port).await.map_err(io)?).await,
                connected => connected,
            };
            connected.map(Stream::Tls).map_err(|error| ConnectError::Tls { remote: remote.clone(), error })
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Requests are small, and somebody waits for each.
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_flush(cx),
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_read_and_printed() {
        for (text, printed) in [
            ("unix:/run/db.sock", "unix:/run/db.sock"),
            ("tcp:127.0.0.1", "tcp:127.0.0.1:6640"),
            ("tcp:db.example:1234", "tcp:db.example:1234"),
            ("ssl:[::1]:7", "ssl:[::1]:7"),
            ("ssl:[fe80::1]", "ssl:[fe80::1]:6640"),
        ] {
            let remote: Remote = text.parse().unwrap();
            assert_eq!(remote.to_string(), printed);
            assert_eq!(printed.parse(), Ok(remote));
        }
        for wrong in [
            "",
            "unix:",
            "tcp:",
            "tcp::1",
            "tcp:a:b",
            "tcp:a:0",
            "tcp:a:99999",
            "tcp:[::1",
            "tcp:[::1]1",
            "udp:a",
            "/x",
        ] {
            assert!(wrong.parse::<Remote>().is_err(), "{wrong}");
        }
        assert_eq!(Remote::parse_list("tcp:a,ssl:b:1").unwrap().len(), 2);
        assert!(Remote::parse_list("tcp:a,").is_err());
    }
}
