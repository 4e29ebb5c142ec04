//! The client's end of the control socket: one connection, blocking.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ovsdb::framing::{FrameError, Framer};

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

    fn transact(&mut self, request: &[u8]) -> Result<Result<String, String>, Error> {
        let io = |path: &Path, source| Error::Io { path: path.into(), source };
        let protocol = |path: &Path, source| Error::Protocol { path: path.into(), source };
        self.stream.write_all(request).map_err(|e| io(&self.path, e))?;
        let mut chunk = vec![0; 1 << 16];
        loop {
            if let Some(message) = self.framer.next_object().map_err(|e| protocol(&self.path, e))? {
                return jsonrpc::parse_reply(message).map_err(|e| protocol(&self.path, e));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io(&self.path, std::io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.framer.push(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io(&self.path, e)),
            }
        }
    }
}
