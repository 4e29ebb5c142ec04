//! Patch sockets: a dummy port whose frames go to another process's dummy port, and come from there.
//!
//! On the wire each frame comes after its length, two bytes in network byte order, as between OVS's dummy
//! ports. `pstream` listens, and sends each frame to everybody who has connected; `stream` connects, and
//! connects again when the connection ends. At most [`MAX_PEERS`] are connected: for another one, the one makes
//! room that has never sent a frame, or has sent none for longest.
//!
//! Sharing between threads: workers put frames into [`PatchLink::outgoing`] and ring the bell; a thread of the
//! port's own does everything with the sockets, and puts what comes in into the port's receive queue.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Error;
use crate::files::{self, SocketFile};
use crate::sys::{Doorbell, system};

/// Frames that wait for the thread, and for a peer; more are dropped, as in OVS.
const QUEUE_LEN: usize = 100;

/// Bytes that wait for one peer; what comes beyond them is dropped. The last frame can exceed it.
const OUTPUT_LIMIT: usize = 1 << 20;

/// Connections to one port.
const MAX_PEERS: usize = 64;

/// Looks at one peer's bytes before the others have their turn.
const READS: usize = 16;

/// The shortest frame: an Ethernet header. Who sends a shorter one does not speak this protocol.
const MIN_FRAME: usize = 14;

/// The first pause before connecting again, and the longest. It is short: the other port is often made just after this one.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(8));

/// The first pause before connecting again to who has hung up, or after what should not fail.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Which way a connection comes about, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Unix(PathBuf),
    Tcp(String),
    PassiveUnix(PathBuf),
    PassiveTcp(String),
}

impl Target {
    fn parse(text: &str) -> Option<Target> {
        let (kind, rest) = text.split_once(':').filter(|(_, rest)| !rest.is_empty())?;
        match kind {
            "unix" => Some(Target::Unix(rest.into())),
            "punix" => Some(Target::PassiveUnix(rest.into())),
            "tcp" => {
                let (_, port) = rest.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
                port.parse::<u16>().ok().map(|_| Target::Tcp(rest.into()))
            }
            "ptcp" => {
                let (port, host) = rest.split_once(':').unwrap_or((rest, "0.0.0.0"));
                port.parse::<u16>().ok().map(|port| Target::PassiveTcp(format!("{host}:{port}")))
            }
            _ => None,
        }
    }
}

/// A port's patch sockets. Dropping it closes them and ends their thread.
#[derive(Debug)]
pub(super) struct Patch {
    shared: Arc<PatchLink>,
    /// It connects, rather than listens.
    active: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct PatchLink {
    outgoing: ArrayQueue<Vec<u8>>,
    bell: Doorbell,
    stop: AtomicBool,
    connected: AtomicBool,
}

/// Takes the frames that come in.
pub(super) type Deliver = Box<dyn Fn(&[u8]) + Send>;

impl Patch {
    /// What the options `stream` and `pstream` of `port` ask for: the first connects, the second listens.
    pub fn open(port: &str, stream: Option<&str>, pstream: Option<&str>, deliver: Deliver) -> Result<Patch, Error> {
        let (option, text) = match (stream, pstream) {
            (Some(text), None) => ("stream", text),
            (_, Some(text)) => ("pstream", text),
            (None, None) => ("stream", ""),
        };
        let wrong = |problem: &str| Error::Option {
            port: port.into(),
            option: option.into(),
            problem: format!("{text:?}: {problem}"),
        };
        if stream.is_some() && pstream.is_some() {
            return Err(wrong("a port has either stream or pstream"));
        }
        let active = option == "stream";
        let expected =
            if active { "should be unix:FILE or tcp:HOST:PORT" } else { "should be punix:FILE or ptcp:PORT[:HOST]" };
        let target = Target::parse(text).ok_or_else(|| wrong(expected))?;
        if active != matches!(target, Target::Unix(_) | Target::Tcp(_)) {
            return Err(wrong(expected));
        }
        let listener = Listener::open(&target).map_err(|e| system(port, format!("listen on {text}"), e))?;
        let shared = Arc::new(PatchLink {
            outgoing: ArrayQueue::new(QUEUE_LEN),
            bell: Doorbell::new(port)?,
            stop: AtomicBool::new(false),
            connected: AtomicBool::new(false),
        });
        let pump = Pump {
            shared: shared.clone(),
            target,
            listener,
            peers: Vec::new(),
            deliver,
            turn: 0,
            backoff: BACKOFF.0,
            due: Instant::now(),
        };
        let thread = std::thread::Builder::new().name(format!("patch-{port}"));
        let thread = thread.spawn(|| pump.run()).map_err(|e| system(port, "start a thread", e))?;
        Ok(Patch { shared, active, thread: Some(thread) })
    }

    /// Sends a frame to the other end, or drops it.
    pub fn send(&self, frame: &[u8]) {
        if self.shared.connected.load(SeqCst) && self.shared.outgoing.push(frame.to_vec()).is_ok() {
            self.shared.bell.raise();
        }
    }

    /// Whether it is connected; `None` where it only listens.
    pub fn connected(&self) -> Option<bool> {
        self.active.then(|| self.shared.connected.load(SeqCst))
    }
}

impl Drop for Patch {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.bell.raise();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

enum Listener {
    Unix {
        listener: UnixListener,
        /// The file goes with the listener.
        _file: SocketFile,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// The listener of a passive target.
    fn open(target: &Target) -> std::io::Result<Option<Listener>> {
        match target {
            Target::PassiveUnix(path) => {
                let (listener, file) = files::listen(path)?;
                Ok(Some(Listener::Unix { listener, _file: file }))
            }
            Target::PassiveTcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Some(Listener::Tcp(listener)))
            }
            _ => Ok(None),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix { listener, .. } => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Listener::Unix { listener, .. } => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
        }
    }
}

fn connect(target: &Target) -> std::io::Result<OwnedFd> {
    match target {
        Target::Unix(path) => {
            let stream = files::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
        Target::Tcp(address) => {
            let address = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream.into())
        }
        Target::PassiveUnix(_) | Target::PassiveTcp(_) => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}

/// What the thread works on.
struct Pump {
    shared: Arc<PatchLink>,
    target: Target,
    listener: Option<Listener>,
    peers: Vec<Peer>,
    deliver: Deliver,
    /// Counts what the thread does, to tell what was later.
    turn: u64,
    backoff: Duration,
    /// When to connect next.
    due: Instant,
}

impl Pump {
    fn run(mut self) {
        while !self.shared.stop.load(SeqCst) {
            self.connect();
            self.send();
            self.wait();
            self.accept();
            self.turn += 1;
            let (deliver, turn) = (&self.deliver, self.turn);
            self.peers.retain_mut(|peer| peer.receive(deliver, turn));
            self.count();
        }
    }

    /// Connects where it is time to.
    fn connect(&mut self) {
        if self.listener.is_some() || !self.peers.is_empty() || Instant::now() < self.due {
            return;
        }
        match connect(&self.target) {
            Ok(fd) => {
                self.peers.push(Peer::new(fd));
                self.backoff = LONG_PAUSE;
            }
            Err(_) => {
                self.due = Instant::now() + self.backoff;
                self.backoff = (self.backoff * 2).min(BACKOFF.1);
            }
        }
        self.count();
    }

    /// Hands on what the workers have left.
    fn send(&mut self) {
        let outgoing = &self.shared.outgoing;
        while let Some(frame) = outgoing.pop() {
            self.peers.iter_mut().for_each(|peer| peer.enqueue(&frame));
        }
        // The bell also says that it is time to stop, and may have said so since the thread looked.
        self.shared.bell.lower(|| !outgoing.is_empty() || self.shared.stop.load(SeqCst));
        self.peers.retain_mut(Peer::flush);
        self.count();
    }

    fn count(&mut self) {
        let connected = !self.peers.is_empty();
        if self.shared.connected.swap(connected, SeqCst) && !connected {
            // Who hangs up is not called again at once.
            self.due = Instant::now() + self.backoff;
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&self) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.shared.bell.as_fd(), PollFlags::IN)];
        fds.extend(self.listener.iter().map(|l| PollFd::from_borrowed_fd(l.as_fd(), PollFlags::IN)));
        fds.extend(self.peers.iter().map(|peer| {
            let out = if peer.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(&peer.fd, PollFlags::IN | out)
        }));
        let pause = (self.listener.is_none() && self.peers.is_empty())
            .then(|| self.due.saturating_duration_since(Instant::now()));
        let pause = pause.map(|p| Timespec { tv_sec: p.as_secs() as i64, tv_nsec: p.subsec_nanos().into() });
        if let Err(error) = poll(&mut fds, pause.as_ref())
            && error != Errno::INTR
        {
            tracing::warn!("a dummy port cannot wait for its patch sockets: {error}");
            std::thread::sleep(LONG_PAUSE);
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        // So many at a time: those that are connected have their turn, too.
        for _ in 0..MAX_PEERS {
            match listener.accept() {
                Ok(fd) => {
                    if self.peers.len() >= MAX_PEERS {
                        let silent = self.peers.iter().enumerate().min_by_key(|(_, peer)| peer.spoke);
                        silent.map(|(at, _)| at).map(|at| self.peers.remove(at));
                    }
                    self.peers.push(Peer::new(fd));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    // Out of descriptors, most likely: try again when some may have been closed.
                    tracing::warn!("a dummy port cannot accept a connection: {e}");
                    return std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// A connection.
struct Peer {
    fd: OwnedFd,
    /// The beginning of a frame.
    input: Vec<u8>,
    /// Frames, with their lengths, that the peer has not taken.
    output: Vec<u8>,
    /// In which turn of the thread it last sent a whole frame; zero: never.
    spoke: u64,
}

impl Peer {
    fn new(fd: OwnedFd) -> Peer {
        Peer { fd, input: Vec::new(), output: Vec::new(), spoke: 0 }
    }

    fn enqueue(&mut self, frame: &[u8]) {
        let Ok(len) = u16::try_from(frame.len()) else { return };
        // A peer that takes nothing is not to take all memory.
        if self.output.len() < OUTPUT_LIMIT {
            self.output.extend(len.to_be_bytes());
            self.output.extend(frame);
        }
    }

    /// Writes what there is to write; false when the connection is over.
    fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match rustix::io::write(&self.fd, &self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what there is to read; false when the connection is over.
    fn receive(&mut self, deliver: &Deliver, turn: u64) -> bool {
        let mut chunk = [0; 1 << 14];
        for _ in 0..READS {
            match rustix::io::read(&self.fd, &mut chunk) {
                Ok(0) => return false,
                Ok(n) => self.input.extend(&chunk[..n]),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            if !self.take_frames(deliver, turn) {
                return false;
            }
        }
        true
    }

    /// Delivers whole frames; false for what cannot be one.
    fn take_frames(&mut self, deliver: &Deliver, turn: u64) -> bool {
        let mut rest = &self.input[..];
        while let [high, low, after @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            if len < MIN_FRAME {
                return false;
            }
            let Some((frame, after)) = after.split_at_checked(len) else { break };
            deliver(frame);
            self.spoke = turn;
            rest = after;
        }
        self.input = rest.to_vec();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;
    use crate::dummy::Dummy;
    use crate::registry::{self, PortSpec};
    use packet::{Batch, Packet, Time};
    use std::cell::RefCell;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn open(env: &Env, name: &str, option: (&str, &str)) -> Result<(Arc<dyn crate::Port>, Arc<Dummy>), Error> {
        let port = registry::open(&PortSpec::new(name, "dummy").with(&[option]), env)?;
        Ok((port, env.dummies.find(name).unwrap()))
    }

    fn until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(30), "took too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn frames_pass_between_two_ports_and_the_connection_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let (passive, active) = (format!("punix:{}", path.display()), format!("unix:{}", path.display()));
        let env = Env::default();
        let (a, _) = open(&env, "a", ("pstream", &passive)).unwrap();
        let (b, dummy) = open(&env, "b", ("stream", &active)).unwrap();
        until(|| dummy.connected() == Some(true));
        let (frame, mut rx, start) = ([7; 60], b.take_rx_queues(), Instant::now());
        let (mut tx, mut batch) = (a.tx_queue(0).unwrap(), Batch::new());
        // The listener may not have accepted yet, and drops what it is to send until then.
        loop {
            batch.push(Packet::from_slice(&frame));
            tx.transmit(&mut batch, Time(0));
            if rx[0].receive(&mut batch, Time(0)) > 0 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "nothing came");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(batch.drain(..).next().unwrap().data(), frame);
        drop(tx);
        drop(a);
        assert!(!path.exists(), "the socket goes with the port");
        until(|| dummy.connected() == Some(false));
        let (_again, _) = open(&env, "a", ("pstream", &passive)).unwrap();
        until(|| dummy.connected() == Some(true));
    }

    #[test]
    fn a_port_closes_whatever_its_thread_is_about() {
        let (env, dir) = (Env::default(), tempfile::tempdir().unwrap());
        let path = dir.path().join("p.sock");
        for round in 0..1500 {
            let (port, _) = open(&env, "a", ("pstream", &format!("punix:{}", path.display()))).unwrap();
            let (mut tx, mut batch) = (port.tx_queue(0).unwrap(), Batch::new());
            let mut transmit = || {
                batch.push(Packet::from_slice(&[7; 60]));
                tx.transmit(&mut batch, Time(0));
            };
            let mut peer = UnixStream::connect(&path).unwrap();
            peer.set_nonblocking(true).unwrap();
            let arrived = RefCell::new((&mut peer, &mut transmit));
            until(|| {
                let (peer, transmit) = &mut *arrived.borrow_mut();
                transmit();
                peer.read(&mut [0; 62]).is_ok()
            });
            // The thread takes this frame, and clears the bell, about when it is told to end.
            transmit();
            let closing = std::thread::spawn(move || {
                let (start, pause) = (Instant::now(), Duration::from_micros(round % 100));
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
                drop((tx, port));
            });
            until(|| closing.is_finished());
        }
    }

    #[test]
    fn who_does_not_speak_the_protocol_is_hung_up_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let env = Env::default();
        let (_port, _) = open(&env, "a", ("pstream", &format!("punix:{}", path.display()))).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&[0, 5, 1, 2, 3, 4, 5]).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0);
    }

    #[test]
    fn silent_peers_make_room_and_one_that_speaks_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let (port, _) = open(&Env::default(), "a", ("pstream", &format!("punix:{}", path.display()))).unwrap();
        let (mut rx, mut batch) = (port.take_rx_queues(), Batch::new());
        let received = RefCell::new((0, &mut rx, &mut batch));
        let arrived = |count: usize| {
            until(|| {
                let (got, rx, batch) = &mut *received.borrow_mut();
                *got += rx[0].receive(batch, Time(0));
                batch.clear();
                *got >= count
            });
        };
        let frame = [&[0, 60][..], &[7; 60]].concat();
        let mut speaks = UnixStream::connect(&path).unwrap();
        speaks.write_all(&frame).unwrap();
        arrived(1);
        // Some say nothing, some half a frame.
        let silent: Vec<_> = (0..3 * MAX_PEERS)
            .map(|n| {
                let mut peer = UnixStream::connect(&path).unwrap();
                peer.write_all(&frame[..n % 2 * 30]).unwrap();
                peer
            })
            .collect();
        let mut first = &silent[0];
        assert_eq!(first.read(&mut [0; 8]).unwrap_or(0), 0, "the first has made room");
        speaks.write_all(&frame).unwrap();
        arrived(2);
        UnixStream::connect(&path).unwrap().write_all(&frame).unwrap();
        arrived(3);
    }

    #[test]
    fn a_socket_that_nobody_accepts_from_does_not_keep_the_port() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| files::connect(&path).ok()).collect();
        assert!(!waiting.is_empty());
        let (port, dummy) = open(&Env::default(), "a", ("stream", &format!("unix:{}", path.display()))).unwrap();
        // Ends the thread, which would wait for ever.
        drop((port, dummy));
    }

    #[test]
    fn a_listener_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "precious").unwrap();
        let refused = open(&Env::default(), "a", ("pstream", &format!("punix:{}", path.display())));
        assert!(refused.err().unwrap().to_string().contains("is no socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn addresses_that_make_no_sense_are_refused() {
        for (option, text) in [
            ("stream", "punix:/x"),
            ("pstream", "unix:/x"),
            ("stream", "tcp:1"),
            ("pstream", "ptcp:x"),
            ("stream", ""),
            ("stream", "tcp:192.0.2.1:65536"),
            ("stream", "tcp:[::1]"),
            ("stream", "tcp::1"),
        ] {
            assert!(open(&Env::default(), "a", (option, text)).is_err(), "{option} {text}");
        }
        let spec = PortSpec::new("a", "dummy").with(&[("stream", "unix:/x"), ("pstream", "punix:/y")]);
        assert!(registry::open(&spec, &Env::default()).is_err());
    }
}
