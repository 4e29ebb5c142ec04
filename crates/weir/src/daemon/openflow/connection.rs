//! One OpenFlow connection: moves bytes between a socket and a session, which does no I/O.
//!
//! Nothing here grows without a bound: while a peer does not take what it is sent, nothing more is
//! read from it and no events are taken for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use packet::{Clock, Time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::listener::Stream;
use super::session::{self, Session};
use super::{ControllerState, Peers};

/// While more bytes than this wait to be sent, nothing is read.
const HIGH_WATER: usize = 1 << 20;

/// How long a peer may take nothing of what it is sent.
const STALL: Duration = Duration::from_secs(30);

/// Who the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A configured controller.
    Controller,
    /// A tool on the management socket.
    Management,
}

/// Speaks OpenFlow until the peer goes. An error says why, in words.
pub async fn run(
    stream: Box<dyn Stream>,
    name: &str,
    peers: &Peers,
    kind: Kind,
    state: &ControllerState,
    probe: Duration,
) -> Result<(), String> {
    let wake = Arc::new(Notify::new());
    let session = session::open(&peers.bridge, kind, probe, wake.clone(), peers.clock.now());
    let mut counted = Counted { peers, kind, state, up: None };
    tracing::debug!(bridge = peers.bridge.name(), peer = name, "OpenFlow connection opened");
    let ended = pump(stream, session, &wake, peers.clock.as_ref(), &mut counted).await;
    match &ended {
        Ok(()) => tracing::debug!(bridge = peers.bridge.name(), peer = name, "OpenFlow connection closed"),
        Err(e) => tracing::info!(bridge = peers.bridge.name(), peer = name, "OpenFlow connection closed: {e}"),
    }
    ended
}

/// Keeps the numbers of connections right, also when the task is ended from outside.
struct Counted<'a> {
    peers: &'a Peers,
    kind: Kind,
    state: &'a ControllerState,
    /// Counted as a connection; whether as one that wants misses.
    up: Option<bool>,
}

impl Counted<'_> {
    fn update(&mut self, session: &dyn Session) {
        let now = session.is_up().then(|| session.wants_misses());
        if now == self.up {
            return;
        }
        self.leave();
        if let Some(wants_misses) = now {
            self.state.connections.set(self.state.connections.get() + 1);
            *self.state.error.borrow_mut() = None;
            self.peers.count(self.kind, wants_misses, true);
        }
        self.up = now;
    }

    fn leave(&mut self) {
        if let Some(wanted_misses) = self.up.take() {
            self.state.connections.set(self.state.connections.get().saturating_sub(1));
            self.peers.count(self.kind, wanted_misses, false);
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

async fn pump(
    stream: Box<dyn Stream>,
    mut session: Box<dyn Session>,
    wake: &Notify,
    clock: &dyn Clock,
    counted: &mut Counted<'_>,
) -> Result<(), String> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut input = vec![0; 1 << 16];
    let mut output = Output::default();
    let mut progress = tokio::time::Instant::now();
    loop {
        let next = session.run(clock.now())?;
        if output.len() < HIGH_WATER {
            session.output(&mut output.bytes);
        }
        counted.update(session.as_ref());
        let now = clock.now();
        let pause = next.map_or(Duration::from_secs(60), |due: Time| due.since(now).max(Duration::from_millis(1)));
        if output.is_empty() {
            progress = tokio::time::Instant::now();
        }
        tokio::select! {
            read = reader.read(&mut input), if output.len() < HIGH_WATER => match read {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    if let Err(e) = session.receive(&input[..n], clock.now()) {
                        // The peer is told what it did wrong.
                        session.output(&mut output.bytes);
                        let _ = tokio::time::timeout(Duration::from_secs(1), writer.write_all(output.pending())).await;
                        return Err(e);
                    }
                }
                Err(e) => return closed(e),
            },
            written = writer.write(output.pending()), if !output.is_empty() => match written {
                Ok(n) => {
                    output.advance(n);
                    progress = tokio::time::Instant::now();
                }
                Err(e) => return closed(e),
            },
            () = wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
            () = tokio::time::sleep_until(progress + STALL), if !output.is_empty() => {
                return Err(format!("the peer has taken nothing for {} s", STALL.as_secs()));
            }
        }
    }
}

/// A peer that ends is nothing special: tools do it after each command.
fn closed(e: io::Error) -> Result<(), String> {
    match e.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(e.to_string()),
    }
}

/// Bytes to be sent.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > HIGH_WATER {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}
