//! The client's end of the control socket: one connection, blocking.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use ovsdb::framing::{FrameError, Framer};
use serde_json::{Map, Value};

use super::jsonrpc::{self, Request};

/// How long the daemon may take to answer. Applying a configuration opens devices and takes the
/// longest.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A reply may list millions of flows.
const MAX_REPLY: usize = 4 << 30;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No daemon answers at the socket.
    #[error("{}: cannot connect: {source}; is the daemon running? (start it with \"weir run CONFIG\")", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("{}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// There is a socket, and nobody who answers: a daemon that is stopped, or very busy.
    #[error("{}: no answer for {} s; is the daemon stopped?", path.display(), TIMEOUT.as_secs())]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The peer does not speak the protocol.
    #[error("{}: {source}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: FrameError,
    },
    /// The command failed: the daemon's words.
    #[error("{}", .0.trim_end())]
    Command(String),
}

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    framer: Framer,
}

impl Client {
    /// Connects to the control socket at `path`.
    pub fn connect(path: &Path) -> Result<Client, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => Error::Silent { path: path.into() },
            _ => Error::Connect { path: path.into(), source },
        };
        let stream = connect(path, TIMEOUT).map_err(failed)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        Ok(Client { path: path.into(), stream, framer: jsonrpc::framer(MAX_REPLY) })
    }

    /// Runs a command and returns its text.
    pub fn call(&mut self, method: &str, arguments: &[String]) -> Result<String, Error> {
        let reply = self.transact(&Request::new(method, arguments).encode())?;
        reply.map_err(Error::Command)
    }

    /// Runs a command that tells things as they happen: calls `piece` with the parameter of each notification, as long as it says to go on.
    /// Returns the command's text at the end; `None` where `piece` has had enough.
    pub fn stream(
        &mut self,
        method: &str,
        arguments: &[String],
        mut piece: impl FnMut(&str) -> bool,
    ) -> Result<Option<String>, Error> {
        // A daemon that is there says so. Then nothing may happen for long.
        self.transact(&Request::new("version", &[]).encode())?.ok();
        self.stream.set_read_timeout(None).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.send(&Request::new(method, arguments).encode())?;
        loop {
            let message = self.receive()?;
            match jsonrpc::piece(&message) {
                Some(parameter) if piece(parameter) => {}
                Some(_) => return Ok(None),
                None => return self.outcome(message)?.map(Some).map_err(Error::Command),
            }
        }
    }

    /// A handle of the connection, by which another thread can close the sending end: that says that the client has enough of a stream.
    pub fn handle(&self) -> Result<UnixStream, Error> {
        self.stream.try_clone().map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    fn transact(&mut self, request: &[u8]) -> Result<Result<String, String>, Error> {
        self.send(request)?;
        loop {
            let message = self.receive()?;
            // Who asks for a reply alone gets no more.
            if jsonrpc::piece(&message).is_none() {
                return self.outcome(message);
            }
        }
    }

    fn send(&mut self, request: &[u8]) -> Result<(), Error> {
        self.stream.write_all(request).map_err(|source| self.broken(source))
    }

    /// The next message.
    fn receive(&mut self) -> Result<Map<String, Value>, Error> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let next = self.framer.next_object();
            if let Some(message) = next.map_err(|source| Error::Protocol { path: self.path.clone(), source })? {
                return Ok(message);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.framer.push(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.broken(e)),
            }
        }
    }

    fn broken(&self, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent { path: self.path.clone() },
            _ => Error::Io { path: self.path.clone(), source },
        }
    }

    fn outcome(&self, message: Map<String, Value>) -> Result<Result<String, String>, Error> {
        jsonrpc::parse_reply(message).map_err(|source| Error::Protocol { path: self.path.clone(), source })
    }
}

/// Connects to a socket. Where its queue of connections is full, that waits for so long at most.
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_full_queue_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ctl");
        let _listening = UnixListener::bind(&path).unwrap();
        let (began, short) = (Instant::now(), Duration::from_millis(20));
        // Nobody accepts.
        let mut held = Vec::new();
        let refused = loop {
            match connect(&path, short) {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= short && !held.is_empty());
    }
}
