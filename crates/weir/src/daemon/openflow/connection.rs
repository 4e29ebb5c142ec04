//! One OpenFlow connection: moves bytes between a socket and a session, which does no I/O.
//!
//! Nothing here grows without a bound: while a peer does not take what it is sent, nothing more is
//! read from it and no events are taken for it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofproto::Bridge;
use ofproto::connection::{ConnectionKind, DirectSend, Session, Settings};
use openflow::stats::SwitchDesc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, watch};

use super::lockstep::Lockstep;
use super::{ControllerState, Peers, direct, message_log};
use crate::config::desired::{Controller, ControllerKind};
use crate::connections::Slot;
use crate::turn;

/// How long a peer may read nothing while there is something to read.
const STALL: Duration = Duration::from_secs(30);

/// Reads in a row that each found something at once, after which a peer that sends without end is given packet-ins all the same.
const READS: u32 = 16;

/// How long a peer may take to send its hello, and before that for the handshake of TLS.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// A stream of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Its peer, for other threads, where messages go as they are.
    fn direct(&self) -> Option<Arc<dyn DirectSend>>;
}

impl Stream for TcpStream {
    fn direct(&self) -> Option<Arc<dyn DirectSend>> {
        direct::socket(self)
    }
}

impl Stream for UnixStream {
    fn direct(&self) -> Option<Arc<dyn DirectSend>> {
        direct::socket(self)
    }
}

impl Stream for tls::Stream {
    fn direct(&self) -> Option<Arc<dyn DirectSend>> {
        None
    }
}

/// Speaks OpenFlow until the connection ends. An error says why, in words. A peer that has been silent for the probe
/// interval is sent an echo request; zero is never. `slot` is told what the peer does.
pub async fn run(
    mut stream: Box<dyn Stream>,
    name: &str,
    peers: &Peers,
    state: &ControllerState,
    slot: Option<&Slot>,
) -> Result<(), String> {
    let mut changes = state.settings.subscribe();
    let settings = settings(&changes.borrow_and_update(), &peers.bridge);
    let kind = settings.kind;
    let mut session = Session::new(peers.bridge.clone(), settings, peers.roles.clone(), peers.timer.now());
    let wake = Arc::new(Notify::new());
    let waker = wake.clone();
    session.set_waker(Arc::new(move || waker.notify_one()));
    session.set_tracer(message_log::tracer(name));
    let point = state.snoop_point.clone();
    session.set_snoop(Arc::new(move |message| point.copy(message)));
    if let Some(peer) = stream.direct() {
        session.set_direct(peer);
    }
    let mut counted = Counted { peers, kind, name, state, up: None };
    tracing::debug!("{}: connection opened", called(peers, name));
    let ended = pump(&mut stream, &mut session, (&wake, changes), name, &mut counted, slot).await;
    report_flow_mods(&mut session, peers, name, true);
    // A delete that it has begun comes to its end, in turns with the other connections.
    while session.change_more() {
        tokio::task::yield_now().await;
    }
    drop(session);
    drop(counted);
    // A stream that keeps bytes back lets go of them, and a peer that speaks TLS is told that this is the end.
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.shutdown()).await;
    match &ended {
        Ok(()) if kind == ConnectionKind::Service => {
            tracing::debug!("{}: connection closed by peer", called(peers, name));
        }
        Ok(()) => tracing::info!("{}: connection closed by peer", called(peers, name)),
        Err(e) => tracing::info!("{}: connection dropped ({e})", called(peers, name)),
    }
    ended
}

/// How a connection to a controller with these settings is to behave.
fn settings(controller: &Controller, bridge: &Bridge) -> Settings {
    Settings {
        kind: match controller.kind {
            ControllerKind::Primary => ConnectionKind::Controller,
            ControllerKind::Service => ConnectionKind::Service,
        },
        versions: bridge.config().protocols,
        probe_interval: Some(controller.inactivity_probe).filter(|probe| !probe.is_zero()),
        packet_in_limit: controller.packet_in_limit(),
        packet_in_queue: controller.queue_size.into(),
        async_messages: controller.async_messages,
        desc: description(bridge.name()),
    }
}

/// What the log calls a connection, as in Open vSwitch.
pub fn called(peers: &Peers, name: &str) -> String {
    format!("{}<->{name}", peers.bridge.name())
}

/// What a peer is told about this switch.
fn description(bridge: &str) -> SwitchDesc {
    SwitchDesc {
        manufacturer: "Weir".into(),
        hardware: "Weir".into(),
        software: env!("CARGO_PKG_VERSION").into(),
        serial: "None".into(),
        datapath: bridge.into(),
    }
}

/// Counts the connection while it lasts, also if its task is aborted.
struct Counted<'a> {
    peers: &'a Peers,
    kind: ConnectionKind,
    name: &'a str,
    state: &'a ControllerState,
    /// Counted as a connection; whether as one that wants misses.
    up: Option<bool>,
}

impl Counted<'_> {
    fn update(&mut self, session: &Session) {
        let now = session.version().map(|_| session.wants_misses());
        if now.is_some() {
            self.state.change(|status| status.role = Some(session.role()));
        }
        if now == self.up {
            return;
        }
        if self.up.is_none() {
            self.state.change(|status| status.connected = Some(self.peers.timer.now()));
            if self.kind == ConnectionKind::Controller {
                tracing::info!("{}: connected", called(self.peers, self.name));
            }
        }
        self.leave();
        if let Some(wants_misses) = now {
            self.state.change(|status| {
                status.connections += 1;
                status.error = None;
            });
            self.peers.count(self.kind, wants_misses, true);
        }
        self.up = now;
    }

    fn leave(&mut self) {
        if let Some(wanted_misses) = self.up.take() {
            self.state.change(|status| status.connections = status.connections.saturating_sub(1));
            self.peers.count(self.kind, wanted_misses, false);
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.up.is_some() {
            self.state.change(|status| status.disconnected = Some(self.peers.timer.now()));
        }
        self.leave();
    }
}

async fn pump(
    stream: &mut Box<dyn Stream>,
    session: &mut Session,
    (wake, mut changes): (&Notify, watch::Receiver<Controller>),
    name: &str,
    counted: &mut Counted<'_>,
    slot: Option<&Slot>,
) -> Result<(), String> {
    let peers = counted.peers;
    let timer = &peers.timer;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut input = vec![0; 1 << 16];
    let started = tokio::time::Instant::now();
    let mut progress = Progress::new(started);
    let mut known = (0, false);
    let mut pace = Lockstep::new();
    // Reads since there was nothing to read, or since packet-ins went all the same.
    let mut reads = 0;
    loop {
        let now = timer.now();
        let holds_packet_ins = reads != 0;
        session.hold_packet_ins(holds_packet_ins);
        if session.has_work() {
            // One piece of a long answer.
            let turn = turn::take().await;
            session.poll(now);
            turn.end().await;
        } else {
            session.poll(now);
        }
        if let Some(idle) = session.has_probed() {
            let called = called(peers, name);
            tracing::debug!("{called}: idle {} seconds, sending inactivity probe", idle.as_secs());
        }
        counted.update(session);
        report_flow_mods(session, peers, name, false);
        if let Some(reason) = session.closed() {
            // The peer is told what it did wrong.
            let _ = tokio::time::timeout(Duration::from_secs(1), writer.write_all(session.output())).await;
            return Err(reason.to_string());
        }
        let next = session.next_timeout();
        // A millisecond at least, so that a timeout that is due does not make this a busy loop.
        let due = next.unwrap_or(now + Duration::from_secs(60)).max(now + Duration::from_millis(1));
        let waiting = !session.output().is_empty();
        progress.look(waiting, tokio::time::Instant::now());
        if let Some(slot) = slot {
            tell(slot, session, &mut known);
        }
        let reading = session.wants_input();
        session.rest();
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(started + HANDSHAKE), if session.version().is_none() => {
                return Err(format!("the peer has not said hello for {} s", HANDSHAKE.as_secs()));
            }
            () = tokio::time::sleep_until(progress.since + STALL), if waiting => {
                return Err(format!("the peer has taken nothing for {} s", STALL.as_secs()));
            }
            read = pace.wait(reader.read(&mut input)), if reading => match read {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    reads = (reads + 1) % READS;
                    let asked = Instant::now();
                    session.receive(&input[..n], timer.now());
                    let taken = write_answer(&mut writer, session).await;
                    if taken > 0 {
                        progress.taken(tokio::time::Instant::now());
                        if session.output().is_empty() {
                            pace.answered(asked, Instant::now());
                        }
                    }
                    // Other tasks run, however much the peer sends.
                    tokio::task::yield_now().await;
                    continue;
                }
                Err(e) => return closed(e),
            },
            written = writer.write(session.output()), if waiting => match written {
                Ok(n) => {
                    session.sent(n);
                    progress.taken(tokio::time::Instant::now());
                    if let Some(slot) = slot.filter(|_| known.1) {
                        slot.answered();
                    }
                    // Other tasks run, even if the peer reads a long answer as fast as it is made.
                    tokio::task::yield_now().await;
                }
                Err(e) => return closed(e),
            },
            // What was held goes as soon as there is nothing to read.
            () = std::future::ready(()), if session.has_work() || reading && holds_packet_ins => {}
            () = wake.notified() => {}
            Ok(()) = changes.changed() => session.reconfigure(&settings(&changes.borrow_and_update(), &peers.bridge)),
            () = timer.sleep_until(due) => {}
        }
        if reading {
            reads = 0;
        }
    }
}

/// Writes what a request was answered with at once, as far as the peer takes it: a peer that waits for each of many answers has it
/// sooner. Of an answer that goes on, the rest is written when it is made, and an error is seen again by who writes next. Returns how many
/// bytes the peer has taken.
async fn write_answer<W: AsyncWrite + Unpin>(writer: &mut W, session: &mut Session) -> usize {
    if session.output().is_empty() || session.has_work() || session.closed().is_some() {
        return 0;
    }
    let written = tokio::select! {
        biased;
        written = writer.write(session.output()) => written.unwrap_or(0),
        () = std::future::ready(()) => 0,
    };
    session.sent(written);
    written
}

/// Since when a peer has taken nothing of what waits for it.
struct Progress {
    since: tokio::time::Instant,
    /// Whether something waited when that was looked at last.
    waited: bool,
}

impl Progress {
    fn new(now: tokio::time::Instant) -> Progress {
        Progress { since: now, waited: false }
    }

    /// Whether something waits at `now`. What begins to wait after a silence, however long that was, has not waited meanwhile.
    fn look(&mut self, waits: bool, now: tokio::time::Instant) {
        if !(waits && self.waited) {
            self.since = now;
        }
        self.waited = waits;
    }

    /// The peer has taken something.
    fn taken(&mut self, now: tokio::time::Instant) {
        self.since = now;
    }
}

/// Logs how many flow-mods have come, when that is due.
fn report_flow_mods(session: &mut Session, peers: &Peers, name: &str, ends: bool) {
    if let Some(report) = session.flow_mod_report(peers.timer.now(), ends) {
        tracing::info!(target: "connmgr", "{}: {report}", called(peers, name));
    }
}

/// Tells the slot what the peer does, from the number of messages that it has sent and from whether it has output to
/// read. Before the hello, the slot stays that of a new connection.
fn tell(slot: &Slot, session: &Session, known: &mut (u64, bool)) {
    let (messages, waiting) = (session.messages(), !session.output().is_empty());
    if session.version().is_none() || (messages, waiting) == *known {
        return;
    }
    if !waiting {
        slot.idle();
    } else if !known.1 {
        slot.answered();
    }
    *known = (messages, waiting);
}

/// A peer that closes the connection is no error: tools do so after each command.
fn closed(e: io::Error) -> Result<(), String> {
    match e.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_after_a_long_silence_has_not_waited_meanwhile() {
        let start = tokio::time::Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::new(start);
        progress.look(false, at(1));
        // Nothing was to be sent for a minute.
        progress.look(true, at(61));
        assert_eq!(progress.since, at(61));
        // The peer takes nothing, then something, but not all.
        progress.look(true, at(80));
        assert_eq!(progress.since, at(61));
        progress.taken(at(81));
        progress.look(true, at(82));
        assert_eq!(progress.since, at(81));
    }
}
