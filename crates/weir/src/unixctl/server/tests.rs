use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Mutex;

use super::*;
use crate::unixctl::command::Run;
use crate::unixctl::{Client, Command};

/// How many lines have been made of each long text that has not been dropped, by its name.
static LINES: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);

/// A text of so many lines of 1 KiB.
struct Lines(String, u64);

impl Lines {
    fn add(&mut self, text: &mut String) -> bool {
        if self.1 == 0 {
            return false;
        }
        self.1 -= 1;
        text.push_str(&line(self.1));
        *LINES.lock().unwrap().get_or_insert_default().entry(self.0.clone()).or_default() += 1;
        true
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        LINES.lock().unwrap().get_or_insert_default().remove(&self.0);
    }
}

fn line(n: u64) -> String {
    format!("{n:>1021}\"\n")
}

/// How many lines have been made of a text, which has not been dropped.
fn lines(name: &str) -> Option<u64> {
    LINES.lock().unwrap().get_or_insert_default().get(name).copied()
}

static TABLE: &[&[Command<()>]] = &[&[
    Command {
        name: "echo",
        usage: "[TEXT]...",
        args: (0, usize::MAX),
        help: "Repeats.",
        run: Run::Quick(|(), args| Reply::Now(Ok(args.join(" ")))),
    },
    Command {
        name: "large",
        usage: "",
        args: (0, 0),
        help: "A large reply.",
        run: Run::Quick(|(), _| Reply::Now(Ok("x".repeat(8 << 20)))),
    },
    Command {
        name: "medium",
        usage: "",
        args: (0, 0),
        help: "A reply that does not fit into the socket.",
        run: Run::Quick(|(), _| Reply::Now(Ok("x".repeat(1 << 19)))),
    },
    Command {
        name: "lines",
        usage: "NAME N",
        args: (2, 2),
        help: "A text of N lines of 1 KiB, made in pieces.",
        run: Run::Quick(|(), args| {
            let mut lines = Lines(args[0].clone(), args[1].parse().unwrap());
            Reply::Pieces(Box::new(move |text| lines.add(text)))
        }),
    },
    Command {
        name: "ticks",
        usage: "N",
        args: (1, 1),
        help: "Tells numbers up to N, as long as somebody listens.",
        run: Run::Slow(|(), args| Reply::Stream(ticks(args[0].parse().unwrap()))),
    },
    Command {
        name: "held",
        usage: "",
        args: (0, 0),
        help: "Answers when the test lets go of it.",
        run: Run::Quick(|(), _| held(&HELD)),
    },
    Command {
        name: "awaited",
        usage: "",
        args: (0, 0),
        help: "The same, as what others do.",
        run: Run::Slow(|(), _| held(&AWAITED)),
    },
    Command {
        name: "holds up",
        usage: "",
        args: (0, 0),
        help: "Holds up everything until the test lets go of it.",
        run: Run::Quick(|(), _| {
            let gate = GATE.lock().unwrap().take().unwrap();
            Reply::Now(gate.recv().map_err(|e| e.to_string()))
        }),
    },
    Command {
        name: "mark",
        usage: "NAME",
        args: (1, 1),
        help: "Notes who was served.",
        run: Run::Quick(|(), args| {
            MARKS.lock().unwrap().push(args[0].clone());
            Reply::Now(Ok(String::new()))
        }),
    },
    Command {
        name: "dies",
        usage: "",
        args: (0, 0),
        help: "Never answers.",
        run: Run::Slow(|(), _| Reply::Later(tokio::sync::oneshot::channel().1)),
    },
]];

/// Clients that wait for the answer to `held`.
static HELD: Mutex<Vec<tokio::sync::oneshot::Sender<Outcome>>> = Mutex::new(Vec::new());

/// What `holds up` waits for.
static GATE: Mutex<Option<std::sync::mpsc::Receiver<String>>> = Mutex::new(None);

/// The arguments of `mark`.
static MARKS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A stream of numbers from a thread, which also says how many there were.
fn ticks(count: u64) -> Stream {
    let (pieces, items) = tokio::sync::mpsc::channel(2);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let mut told = 0;
        while told < count && !stopped.load(Ordering::Relaxed) {
            if pieces.blocking_send(StreamItem::Piece(told.to_string())).is_err() {
                STREAMS_GIVEN_UP.fetch_add(1, Ordering::SeqCst);
                return;
            }
            told += 1;
        }
        let _ = pieces.blocking_send(StreamItem::End(Ok(told.to_string())));
    });
    Stream { items, stop }
}

/// How many streams have found out that nobody listens.
static STREAMS_GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Where a test answers what is asked of others.
static AWAITED: Mutex<Vec<tokio::sync::oneshot::Sender<Outcome>>> = Mutex::new(Vec::new());

fn held(by: &Mutex<Vec<tokio::sync::oneshot::Sender<Outcome>>>) -> Reply {
    let (reply, answer) = tokio::sync::oneshot::channel();
    by.lock().unwrap().push(reply);
    Reply::Later(answer)
}

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
fn a_client_for_which_there_is_no_room_waits_for_it() {
    with_server(|path| {
        let held = |count| {
            while HELD.lock().unwrap().len() < count {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let hold = |mut client: Client| std::thread::spawn(move || client.call("held", &[]).map_err(|e| e.to_string()));
        // The last one makes room while it has nothing to do, and no more when it has.
        let mut last = Client::connect(path).unwrap();
        last.call("echo", &[]).unwrap();
        let mut clients: Vec<_> = (1..MAX_CONNECTIONS).map(|_| hold(Client::connect(path).unwrap())).collect();
        held(MAX_CONNECTIONS - 1);
        clients.push(hold(last));
        held(MAX_CONNECTIONS);
        let mut new = Client::connect(path).unwrap();
        let new = std::thread::spawn(move || new.call("echo", &["hi".into()]).map_err(|e| e.to_string()));
        std::thread::sleep(Duration::from_millis(100));
        for reply in HELD.lock().unwrap().drain(..) {
            reply.send(Ok("let go".into())).unwrap();
        }
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok("let go\n".into()));
        }
        assert_eq!(new.join().unwrap(), Ok("hi\n".into()));
    });
}

#[test]
fn however_many_wait_for_others_there_is_room_and_who_has_gone_waits_no_more() {
    with_server(|path| {
        let ask = || {
            let mut stream = UnixStdStream::connect(path).unwrap();
            stream.write_all(&Request::new("awaited", &[]).encode()).unwrap();
            stream
        };
        let waits = |count| {
            let is_open = |reply: &&tokio::sync::oneshot::Sender<_>| !reply.is_closed();
            while AWAITED.lock().unwrap().iter().filter(is_open).count() != count {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let mut clients: Vec<_> = (0..MAX_WAITING).map(|_| ask()).collect();
        waits(MAX_WAITING);
        let mut client = Client::connect(path).unwrap();
        for _ in 0..MAX_CONNECTIONS {
            assert_eq!(Client::connect(path).unwrap().call("echo", &["hi".into()]).unwrap(), "hi\n");
            assert!(client.call("awaited", &[]).unwrap_err().to_string().contains("48 clients wait"));
        }
        let mut last = clients.pop().unwrap();
        drop(clients);
        waits(1);
        // Who says that it will ask for no more still waits for its answer.
        last.shutdown(std::net::Shutdown::Write).unwrap();
        clients = (1..MAX_WAITING).map(|_| ask()).collect();
        waits(MAX_WAITING);
        for reply in AWAITED.lock().unwrap().drain(..) {
            let _ = reply.send(Ok("done".into()));
        }
        let mut text = String::new();
        last.read_to_string(&mut text).unwrap();
        assert!(text.contains("done"), "{text}");
        drop(clients);
    });
}

#[test]
fn who_sends_many_requests_at_once_takes_turns_with_others() {
    with_server(|path| {
        let (let_go, gate) = std::sync::mpsc::channel();
        *GATE.lock().unwrap() = Some(gate);
        let mut first = Client::connect(path).unwrap();
        let mut many = UnixStdStream::connect(path).unwrap();
        let mut one = Client::connect(path).unwrap();
        one.call("echo", &[]).unwrap();
        let first = std::thread::spawn(move || first.call("holds up", &[]).map_err(|e| e.to_string()));
        while GATE.lock().unwrap().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        many.write_all("{\"method\":\"mark\",\"params\":[\"many\"],\"id\":1}".repeat(60).as_bytes()).unwrap();
        let one = std::thread::spawn(move || one.call("mark", &["one".into()]).map_err(|e| e.to_string()));
        // Its request is in the socket by then; if it is not, the test says less.
        std::thread::sleep(Duration::from_millis(100));
        let_go.send("go on".into()).unwrap();
        assert_eq!(first.join().unwrap(), Ok("go on\n".into()));
        one.join().unwrap().unwrap();
        let before = MARKS.lock().unwrap().iter().position(|name| name == "one").unwrap();
        assert!(before < 10, "{before} requests of another came first");
    });
}

#[test]
fn a_stream_comes_in_pieces_until_the_client_has_enough() {
    with_server(|path| {
        let mut client = Client::connect(path).unwrap();
        let mut told = Vec::new();
        let end = client.stream("ticks", &["100".into()], |piece| {
            told.push(piece.parse::<u64>().unwrap());
            true
        });
        assert_eq!((end.unwrap().as_deref(), told), (Some("100\n"), (0..100).collect()));
        assert_eq!(client.call("echo", &["hi".into()]).unwrap(), "hi\n", "the connection goes on");
        assert_eq!(client.call("ticks", &["7".into()]).unwrap(), "7\n", "who wants a reply gets it");

        // One that closes its sending end gets what there is by then, and the end.
        let (handle, mut told) = (client.handle().unwrap(), 0);
        let end = client.stream("ticks", &[u64::MAX.to_string()], |_| {
            told += 1;
            if told == 10 {
                handle.shutdown(std::net::Shutdown::Write).unwrap();
            }
            true
        });
        assert_eq!(end.unwrap(), Some(format!("{told}\n")));
        // One that asks for something else has enough, too.
        let mut impatient = UnixStdStream::connect(path).unwrap();
        impatient.write_all(&Request::new("ticks", &[u64::MAX.to_string()]).encode()).unwrap();
        impatient.write_all(&Request::new("echo", &["now".into()]).encode()).unwrap();
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        while !text.contains("\"now\\n\"") {
            let n = impatient.read(&mut chunk).unwrap();
            assert!(n > 0, "{text}");
            text.push_str(std::str::from_utf8(&chunk[..n]).unwrap());
        }
    });
}

#[test]
fn a_client_that_goes_ends_its_stream() {
    with_server(|path| {
        let mut deaf = UnixStdStream::connect(path).unwrap();
        deaf.write_all(&Request::new("ticks", &[u64::MAX.to_string()]).encode()).unwrap();
        deaf.read_exact(&mut [0; 10]).unwrap();
        // Others are served while it reads nothing.
        assert_eq!(Client::connect(path).unwrap().call("echo", &["hi".into()]).unwrap(), "hi\n");
        let before = STREAMS_GIVEN_UP.load(Ordering::SeqCst);
        drop(deaf);
        while STREAMS_GIVEN_UP.load(Ordering::SeqCst) == before {
            std::thread::sleep(Duration::from_millis(5));
        }
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
fn a_long_reply_is_made_as_the_client_takes_it() {
    with_server(|path| {
        let ask = |name: &str, n: u64| Request::new("lines", &[name.into(), n.to_string()]).encode();
        // 1 GiB for each of some clients that do not read.
        let names: Vec<_> = (0..8).map(|n| format!("deaf {n}")).collect();
        let deaf = names.iter().map(|name| {
            let mut stream = UnixStdStream::connect(path).unwrap();
            stream.write_all(&ask(name, 1 << 20)).unwrap();
            stream
        });
        let deaf: Vec<_> = deaf.collect();
        // Others are served meanwhile, those with long replies of their own, too.
        let mut client = Client::connect(path).unwrap();
        let whole: String = (0..3000).rev().map(line).collect();
        assert_eq!(client.call("lines", &["heard".into(), "3000".into()]).unwrap(), whole);
        assert_eq!(client.call("lines", &["none".into(), "0".into()]).unwrap(), "");
        assert_eq!(client.call("echo", &["hi".into()]).unwrap(), "hi\n");
        assert_eq!((lines("heard"), lines("none")), (None, None));
        for name in &names {
            // What the socket holds, and a piece.
            let made = lines(name).unwrap();
            assert!((1..1024).contains(&made), "{made} KiB");
        }
        // Who goes away frees what was kept for it.
        drop(deaf);
        while names.iter().any(|name| lines(name).is_some()) {
            assert_eq!(client.call("echo", &["hi".into()]).unwrap(), "hi\n");
        }
    });
}

#[test]
fn deaf_clients_together_keep_no_more_than_there_may_be() {
    with_server(|path| {
        // 8 MiB for each that does not read, and half a request of 3 MiB of each of some others.
        let half = [&b"{\"method\":\"echo\",\"id\":1,\"params\":[\""[..], &vec![b'x'; 3 << 20]].concat();
        let deaf: Vec<_> = (0..18)
            .map(|n| {
                let mut stream = UnixStdStream::connect(path).unwrap();
                let large = Request::new("large", &[]).encode();
                // It may have had to make room already.
                let _ = stream.write_all(if n % 6 == 0 { &half } else { &large });
                stream
            })
            .collect();
        let mut client = Client::connect(path).unwrap();
        assert_eq!(client.call("large", &[]).unwrap().len(), (8 << 20) + 1);
        let read_all = |mut stream: &UnixStdStream| {
            let mut all = Vec::new();
            // Who had to make room may find that the connection was reset.
            let _ = stream.read_to_end(&mut all);
            all.len() > 8 << 20
        };
        deaf.iter().for_each(|stream| stream.shutdown(std::net::Shutdown::Write).unwrap_or_default());
        let served = deaf.iter().filter(|stream| read_all(stream)).count();
        assert!((1..=MAX_KEPT / (8 << 20)).contains(&served), "{served} were served");
        assert_eq!(client.call("echo", &["hi".into()]).unwrap(), "hi\n");
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
