//! The daemon's end of the control socket.
//!
//! Each connection has a task on the management thread. A client that stalls delays no other: its task waits, a reply
//! of which it reads nothing is given up after [`WRITE_TIMEOUT`], and its connection may be closed for a new one (see
//! [`Connections`]). A long reply is made in pieces, the next one when the client has taken the one before; in between,
//! others are served (see [`turn`](crate::turn)). Of clients that wait for what other threads do there are [`MAX_WAITING`] at most, so that
//! however much that is, others are served. What is kept for all clients together is bounded by [`MAX_KEPT`].

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ovsdb::framing::FrameError;
use ports::files::{self, SocketFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::command::{Commands, Outcome, Pieces, Reply, Stream, StreamItem};
use super::jsonrpc::{self, MAX_REQUEST, ReplyEncoder, Request};
use crate::connections::{Connections, Slot};
use crate::turn;

/// Requests that have come.
pub static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Requests that were answered.
pub static REPLIED: AtomicU64 = AtomicU64::new(0);

/// How long a client may read nothing of a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a client may read nothing of a stream, as one whose own reader has paused.
const STREAM_TIMEOUT: Duration = Duration::from_secs(3600);

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;

/// Bytes above which a text is encoded in parts, and those of a part: that takes as long as it takes to make it.
const LONG: usize = 64 << 10;
const PART: usize = 16 << 10;

/// How many of them wait at a time for what others do. The rest are free for what is answered at once.
const MAX_WAITING: usize = 48;

/// How often it is looked whether a client that waits has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of requests and replies that are kept for all clients together. Beyond them, the client makes room that has sent
/// or taken nothing for longest.
const MAX_KEPT: usize = 64 << 20;

/// A listening control socket. Dropping it removes the socket from the file system.
pub struct Server {
    listener: UnixListener,
    _file: SocketFile,
}

impl Server {
    /// Listens at `path`. A socket that an earlier process left there is replaced.
    pub fn bind(path: &Path) -> io::Result<Server> {
        let (listener, file) = bind_unix(path)?;
        Ok(Server { listener, _file: file })
    }

    /// Serves clients until dropped. Runs within a [`tokio::task::LocalSet`].
    pub async fn serve<C: 'static>(&self, commands: Commands<C>, context: Rc<C>) {
        let connections = Connections::with_memory(MAX_CONNECTIONS, MAX_KEPT);
        let service = Rc::new(Service { commands, context, waiting: Rc::default() });
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let slot = connections.admit().await;
                    let service = service.clone();
                    tokio::task::spawn_local(async move {
                        let ended = tokio::select! {
                            ended = connection(stream, &slot, &service) => ended,
                            () = slot.lost() => Err(Error::MadeRoom),
                        };
                        if let Err(e) = ended {
                            tracing::debug!("control socket: {e}");
                        }
                    });
                    // Its task runs, and reads what has arrived, before another connection is taken.
                    tokio::task::yield_now().await;
                }
                Err(e) => {
                    // Most likely there are no descriptors left. Some may be free soon.
                    tracing::warn!("control socket: cannot accept a connection: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Listens on a Unix socket at `path`, for the management thread. See [`files::listen`].
pub fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let (listener, file) = files::listen(path)?;
    Ok((UnixListener::from_std(listener)?, file))
}

/// What all connections share.
struct Service<C: 'static> {
    commands: Commands<C>,
    context: Rc<C>,
    /// There is one more of it for each client that waits for what others do.
    waiting: Rc<()>,
}

impl<C> Service<C> {
    /// Runs a command. What this returns beside the reply is kept as long as the client waits.
    fn run(&self, request: &Request) -> (Reply, Option<Rc<()>>) {
        let waiting = self.commands.is_slow(&request.method).then(|| self.waiting.clone());
        if waiting.is_some() && Rc::strong_count(&self.waiting) > 1 + MAX_WAITING {
            let problem = format!("{MAX_WAITING} clients wait for requests that take some time; try again");
            return (Reply::Now(Err(problem)), None);
        }
        (self.commands.run(&self.context, &request.method, request.arguments()), waiting)
    }
}

/// Answers the requests of one client, in order.
async fn connection<C>(mut stream: UnixStream, slot: &Slot, service: &Service<C>) -> Result<(), Error> {
    let mut framer = jsonrpc::framer(MAX_REQUEST);
    let mut chunk = vec![0; 4096];
    loop {
        while let Some(message) = framer.next_object()? {
            let request = Request::parse(message)?;
            slot.working();
            RECEIVED.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("received request {}{}, id={}", request.method, json(&request.params), request.id);
            let (to_do, waiting) = service.run(&request);
            match to_do {
                Reply::Now(outcome) => reply(&mut stream, slot, &request.id, outcome).await?,
                Reply::Later(answer) => {
                    let ended = |_| Err("the thread that runs this command has ended".into());
                    let outcome = tokio::select! {
                        outcome = answer => outcome.unwrap_or_else(ended),
                        () = gone(&stream) => return Err(Error::Gone),
                    };
                    drop(waiting);
                    reply(&mut stream, slot, &request.id, outcome).await?;
                }
                Reply::Pieces(pieces) => reply_in_pieces(&mut stream, slot, request.id, pieces, 0).await?,
                Reply::Stream(items) => {
                    // A request behind it says that it is enough, as one that comes later does.
                    let listens = framer.pending() == 0;
                    match reply_by_stream(&mut stream, slot, &request.id, (items, listens)).await? {
                        Some(more) => framer.push(&more),
                        None => return Ok(()),
                    }
                }
                Reply::Listing(bytes, pieces) => reply_in_pieces(&mut stream, slot, request.id, pieces, bytes).await?,
            }
            slot.idle();
            if slot.is_lost() {
                return Err(Error::MadeRoom);
            }
            // Others are served, however many requests a client has sent at once.
            tokio::task::yield_now().await;
        }
        slot.keep(framer.pending());
        match stream.read(&mut chunk).await? {
            0 if framer.pending() > 0 => return Err(Error::Truncated),
            0 => return Ok(()),
            n => framer.push(&chunk[..n]),
        }
    }
}

/// Returns when the client has closed its connection, and not only its sending end.
async fn gone(stream: &UnixStream) {
    let has_hung_up = || {
        let events = &mut [PollFd::new(stream, PollFlags::empty())];
        poll(events, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    };
    while !has_hung_up() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Sends a reply that is there as a whole.
async fn reply(stream: &mut UnixStream, slot: &Slot, id: &Value, outcome: Outcome) -> Result<(), Error> {
    let outcome = match outcome {
        Ok(text) if text.len() > LONG => {
            let bytes = text.len();
            return reply_in_pieces(stream, slot, id.clone(), parts(text), bytes).await;
        }
        other => other,
    };
    REPLIED.fetch_add(1, Ordering::Relaxed);
    let (verdict, body) = match &outcome {
        Ok(text) => ("success", text),
        Err(text) => ("error", text),
    };
    tracing::debug!("replying with {verdict}, id={id}: {}", json(body));
    let bytes = jsonrpc::encode_reply(id, outcome);
    write(stream, slot, &bytes, bytes.len()).await
}

/// A text in parts.
fn parts(text: String) -> Pieces {
    let mut from = 0;
    Box::new(move |out| {
        let to = text.floor_char_boundary(from + PART);
        out.push_str(&text[from..to]);
        from = to;
        from < text.len()
    })
}

/// Sends a reply that is made meanwhile: a piece is made when the client has taken those before it. What it is made of takes
/// `source` bytes.
async fn reply_in_pieces(
    stream: &mut UnixStream,
    slot: &Slot,
    id: Value,
    mut pieces: Pieces,
    source: usize,
) -> Result<(), Error> {
    REPLIED.fetch_add(1, Ordering::Relaxed);
    tracing::debug!("replying with success, id={id}, in pieces");
    let (mut encoder, mut bytes) = ReplyEncoder::new(id);
    let (mut text, mut more) = (String::new(), true);
    while more {
        let turn = turn::take().await;
        more = turn::make_piece(&mut pieces, &mut text);
        encoder.push(&text, &mut bytes);
        text.clear();
        turn.end().await;
        write(stream, slot, &bytes, source + bytes.len()).await?;
        bytes.clear();
    }
    encoder.finish(&mut bytes);
    write(stream, slot, &bytes, bytes.len()).await
}

/// Sends notifications as they come, and at last the reply. A client that sends anything meanwhile, or closes its end, has enough. Returns what
/// it has sent; `None` where it has closed its end, so that no further request comes.
async fn reply_by_stream(
    socket: &mut UnixStream,
    slot: &Slot,
    id: &Value,
    (mut stream, mut listens): (Stream, bool),
) -> Result<Option<Vec<u8>>, Error> {
    let (mut chunk, mut sent, mut is_closed) = ([0; 4096], Vec::new(), false);
    stream.stop.store(!listens, Ordering::Relaxed);
    loop {
        let item = tokio::select! {
            item = stream.items.recv() => item,
            read = socket.read(&mut chunk), if listens => {
                sent.extend_from_slice(&chunk[..read?]);
                (listens, is_closed) = (false, sent.is_empty());
                stream.stop.store(true, Ordering::Relaxed);
                continue;
            }
        };
        match item {
            Some(StreamItem::Piece(piece)) => {
                let bytes = jsonrpc::encode_piece(&piece);
                write_within(STREAM_TIMEOUT, socket, slot, &bytes, bytes.len()).await?;
                // Between two pieces, it is not the client that others wait for.
                slot.keep(0);
                slot.working();
            }
            Some(StreamItem::End(outcome)) => reply(socket, slot, id, outcome).await?,
            None if is_closed => return Ok(None),
            None => return Ok(Some(sent)),
        }
    }
}

/// Writes a reply, as long as the client reads some of it. So many bytes are `kept` meanwhile.
async fn write(stream: &mut UnixStream, slot: &Slot, reply: &[u8], kept: usize) -> Result<(), Error> {
    write_within(WRITE_TIMEOUT, stream, slot, reply, kept).await
}

async fn write_within(
    timeout: Duration,
    stream: &mut UnixStream,
    slot: &Slot,
    reply: &[u8],
    kept: usize,
) -> Result<(), Error> {
    let mut rest = reply;
    while !rest.is_empty() {
        slot.answered();
        slot.keep(kept);
        let written = tokio::time::timeout(timeout, stream.write(rest)).await.map_err(|_| Error::Stalled)??;
        rest = &rest[written..];
    }
    Ok(())
}

/// For the log.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] FrameError),
    #[error("the client has gone before its reply was there")]
    Gone,
    #[error("the client ended in the middle of a request")]
    Truncated,
    #[error("the client does not read its reply")]
    Stalled,
    #[error("a silent client has made room for another")]
    MadeRoom,
}

#[cfg(test)]
mod tests;
