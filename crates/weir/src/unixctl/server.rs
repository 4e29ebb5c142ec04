//! The daemon's end of the control socket.
//!
//! Each connection has a task on the management thread. A client that stalls delays no other: its task waits, a reply
//! of which it reads nothing is given up after [`WRITE_TIMEOUT`], and its connection may be closed for a new one (see
//! [`Connections`]).

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ovsdb::framing::FrameError;
use ports::files::{self, SocketFile};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::command::{Commands, Reply};
use super::jsonrpc::{self, MAX_REQUEST, Request};
use crate::connections::{Connections, Slot};

/// Requests that have come.
pub static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Requests that were answered.
pub static REPLIED: AtomicU64 = AtomicU64::new(0);

/// How long a client may read nothing of a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;

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
        let connections = Connections::new(MAX_CONNECTIONS);
        loop {
            connections.room().await;
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let Some(slot) = connections.admit() else { continue };
                    let context = context.clone();
                    tokio::task::spawn_local(async move {
                        let ended = tokio::select! {
                            ended = connection(stream, &slot, commands, &context) => ended,
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

/// Answers the requests of one client, in order.
async fn connection<C>(mut stream: UnixStream, slot: &Slot, commands: Commands<C>, context: &C) -> Result<(), Error> {
    let mut framer = jsonrpc::framer(MAX_REQUEST);
    let mut chunk = vec![0; 4096];
    loop {
        while let Some(message) = framer.next_object()? {
            let request = Request::parse(message)?;
            slot.working();
            RECEIVED.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("received request {}{}, id={}", request.method, json(&request.params), request.id);
            let outcome = match commands.run(context, &request.method, request.arguments()) {
                Reply::Now(outcome) => outcome,
                Reply::Later(answer) => {
                    answer.await.unwrap_or_else(|_| Err("the thread that runs this command has ended".into()))
                }
            };
            REPLIED.fetch_add(1, Ordering::Relaxed);
            let (verdict, body) = match &outcome {
                Ok(text) => ("success", text),
                Err(text) => ("error", text),
            };
            tracing::debug!("replying with {verdict}, id={}: {}", request.id, json(body));
            let reply = jsonrpc::encode_reply(&request.id, outcome);
            write(&mut stream, slot, &reply).await?;
            slot.idle();
        }
        match stream.read(&mut chunk).await? {
            0 if framer.pending() > 0 => return Err(Error::Truncated),
            0 => return Ok(()),
            n => framer.push(&chunk[..n]),
        }
    }
}

/// Writes a reply, as long as the client reads some of it.
async fn write(stream: &mut UnixStream, slot: &Slot, reply: &[u8]) -> Result<(), Error> {
    let mut rest = reply;
    while !rest.is_empty() {
        slot.answered();
        let written = tokio::time::timeout(WRITE_TIMEOUT, stream.write(rest)).await.map_err(|_| Error::Stalled)??;
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
    #[error("the client ended in the middle of a request")]
    Truncated,
    #[error("the client does not read its reply")]
    Stalled,
    #[error("a silent client has made room for another")]
    MadeRoom,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unixctl::{Client, Command};
    use std::io::{Read, Write};

    static TABLE: &[&[Command<()>]] = &[&[
        Command {
            name: "echo",
            usage: "[TEXT]...",
            args: (0, usize::MAX),
            help: "Repeats.",
            run: |(), args| Reply::Now(Ok(args.join(" "))),
        },
        Command {
            name: "large",
            usage: "",
            args: (0, 0),
            help: "A large reply.",
            run: |(), _| Reply::Now(Ok("x".repeat(8 << 20))),
        },
        Command {
            name: "medium",
            usage: "",
            args: (0, 0),
            help: "A reply that does not fit into the socket.",
            run: |(), _| Reply::Now(Ok("x".repeat(1 << 20))),
        },
        Command {
            name: "dies",
            usage: "",
            args: (0, 0),
            help: "Never answers.",
            run: |(), _| Reply::Later(tokio::sync::oneshot::channel().1),
        },
    ]];

    /// Runs `test` against a server on a thread of its own.
    fn with_server(test: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.ctl");
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let at = path.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let server = Server::bind(&at).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    () = server.serve(Commands(TABLE), Rc::new(())) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        test(&path);
        stop.send(()).unwrap();
        thread.join().unwrap();
        assert!(!path.exists(), "the socket is removed");
    }

    #[test]
    fn replies_in_order_on_one_connection() {
        with_server(|path| {
            let mut client = Client::connect(path).unwrap();
            for i in 0..10 {
                assert_eq!(client.call("echo", &[i.to_string(), "x".into()]).unwrap(), format!("{i} x\n"));
            }
            assert!(client.call("nonsense", &[]).unwrap_err().to_string().contains("not a valid command"));
            assert!(client.call("dies", &[]).unwrap_err().to_string().contains("has ended"));
            assert_eq!(client.call("large", &[]).unwrap().len(), (8 << 20) + 1);
        });
    }

    #[test]
    fn stalled_and_broken_clients_do_not_disturb_others() {
        with_server(|path| {
            // One sends half a request, one never reads its large reply, one sends garbage.
            let mut half = UnixStdStream::connect(path).unwrap();
            half.write_all(b"{\"method\": \"ec").unwrap();
            let mut deaf = UnixStdStream::connect(path).unwrap();
            deaf.write_all(&Request::new("large", &[]).encode()).unwrap();
            let mut garbage = UnixStdStream::connect(path).unwrap();
            garbage.write_all(b"\x00\xff garbage").unwrap();

            assert_eq!(Client::connect(path).unwrap().call("echo", &["hi".into()]).unwrap(), "hi\n");
            assert_eq!(garbage.read(&mut [0; 16]).unwrap(), 0, "the server hangs up on garbage");
            half.write_all(b"ho\", \"params\": [], \"id\": 1}").unwrap();
            let mut reply = [0; 64];
            let n = half.read(&mut reply).unwrap();
            assert!(std::str::from_utf8(&reply[..n]).unwrap().contains("\"result\":\"\""));
        });
    }

    #[test]
    fn silent_clients_make_room() {
        with_server(|path| {
            let (large, small) = (Request::new("medium", &[]).encode(), Request::new("echo", &[]).encode());
            let mut reader = UnixStdStream::connect(path).unwrap();
            reader.write_all(&Request::new("large", &[]).encode()).unwrap();
            // The system tells the server of what was taken when most of a socket's buffer is free again: that is to be
            // often, also where this test does not get on.
            let (mut taken, mut chunk) = (0, vec![0; 16 << 10]);
            let mut take = || {
                let n = reader.read(&mut chunk).unwrap();
                assert!(n > 0, "the reply ends after {taken} bytes");
                taken += n;
                taken
            };
            // Some say nothing, some half a request, some do not read their replies, some have theirs.
            let others: Vec<_> = (0..4 * MAX_CONNECTIONS)
                .map(|n| {
                    let mut stream = UnixStdStream::connect(path).unwrap();
                    let says = [&b""[..], b"{\"method\": \"ec", &large, &small][n % 4];
                    // It may have had to make room already.
                    let _ = stream.write_all(says);
                    take();
                    stream
                })
                .collect();
            for _ in 0..8 {
                assert_eq!(Client::connect(path).unwrap().call("echo", &["hi".into()]).unwrap(), "hi\n");
                take();
            }
            while take() < 8 << 20 {}
            drop(others);
        });
    }

    #[test]
    fn a_huge_request_is_refused() {
        with_server(|path| {
            let mut stream = UnixStdStream::connect(path).unwrap();
            let _ = stream.write_all(b"{\"method\":\"echo\",\"id\":1,\"params\":[\"");
            let piece = vec![b'x'; 1 << 20];
            // The server hangs up after some pieces, whereupon writing fails.
            let taken = (0..64).take_while(|_| stream.write_all(&piece).is_ok()).count();
            assert!(taken < 64, "took {taken} MiB");
            assert_eq!(Client::connect(path).unwrap().call("echo", &[]).unwrap(), "");
        });
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = bind_unix(&path).unwrap();
        assert_eq!(bind_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(live);
    }

    type UnixStdStream = std::os::unix::net::UnixStream;
}
