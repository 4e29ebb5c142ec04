//! The client's end of the control socket: one connection, blocking.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
        let failed = |source| Error::Connect { path: path.into(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
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
        // Nothing may happen for long.
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
        self.stream.write_all(request).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// The next message.
    fn receive(&mut self) -> Result<Map<String, Value>, Error> {
        let io = |path: &Path, source| Error::Io { path: path.into(), source };
        let mut chunk = vec![0; 1 << 16];
        loop {
            let next = self.framer.next_object();
            if let Some(message) = next.map_err(|source| Error::Protocol { path: self.path.clone(), source })? {
                return Ok(message);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io(&self.path, std::io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.framer.push(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io(&self.path, e)),
            }
        }
    }

    fn outcome(&self, message: Map<String, Value>) -> Result<Result<String, String>, Error> {
        jsonrpc::parse_reply(message).map_err(|source| Error::Protocol { path: self.path.clone(), source })
    }
}
