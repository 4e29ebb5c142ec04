//! The thread of a tap: reads what workers show, and hands it to the control socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datapath::tap::{Ports, TapSettings};
use datapath::{Datapath, Error, PortNo, Tap};
use ofproto::Switch;
use packet::Clock;
use tokio::sync::mpsc;

use super::filter;
use super::output::Output;
use super::request::TapRequest;
use crate::places::{Place, Places};
use crate::unixctl::command::{Outcome, Stream, StreamItem};

/// Bytes of a piece that is handed over, about: more by the last packet.
const PIECE: usize = 64 << 10;

/// How many pieces wait for the client. The thread waits for room, and meanwhile the workers' rings fill.
const PIECES: usize = 8;

/// For how long the thread sleeps where there is nothing to read.
const PAUSE: Duration = Duration::from_millis(5);

/// How often ports, flows and rules are looked at again.
const REFRESH: Duration = Duration::from_millis(250);

/// Threads of taps, as many as there can be taps.
static PLACES: Places = Places::new(Datapath::MOST_TAPS);

/// What the thread works on.
struct Session {
    request: TapRequest,
    datapath: Arc<Datapath>,
    switch: Arc<Switch>,
    clock: Arc<dyn Clock>,
    version: String,
    pieces: mpsc::Sender<StreamItem>,
    stop: Arc<AtomicBool>,
}

/// A place for a tap.
///
/// # Errors
/// There are as many taps as there can be.
pub fn place() -> Result<Place, String> {
    PLACES.take().ok_or_else(|| Error::TooManyTaps(PLACES.most()).to_string())
}

/// Starts a tap in its place. What it sees comes by the stream that this returns; its end says how much that was, or why there is nothing.
///
/// # Errors
/// No thread can be started.
pub fn start(
    request: TapRequest,
    place: Place,
    datapath: &Arc<Datapath>,
    switch: &Arc<Switch>,
    clock: &Arc<dyn Clock>,
    version: &str,
) -> Result<Stream, String> {
    let (pieces, items) = mpsc::channel(PIECES);
    let stop = Arc::new(AtomicBool::new(false));
    let session = Session {
        request,
        datapath: datapath.clone(),
        switch: switch.clone(),
        clock: clock.clone(),
        version: version.to_owned(),
        pieces,
        stop: stop.clone(),
    };
    let run = move || {
        let outcome = session.run();
        // Who reads the end may have another one begin at once.
        drop(place);
        // Where the client has gone, nobody wants to know.
        let _ = session.pieces.blocking_send(StreamItem::End(outcome));
    };
    let thread = std::thread::Builder::new().name("tap".into()).spawn(run);
    thread.map_err(|error| format!("no thread for a tap: {error}"))?;
    Ok(Stream { items, stop })
}

impl Session {
    fn run(&self) -> Outcome {
        let request = &self.request;
        let filter = filter::compile(&request.filter, self.switch.settings().vlan_limit)?;
        if request.check {
            return Ok(String::new());
        }
        let settings = TapSettings {
            received: request.received,
            sent: request.sent,
            drops_only: request.drops_only,
            snap_length: request.snap_length,
            rate: request.rate,
            filter,
        };
        let mut ports = self.ports();
        let tap = self.datapath.add_tap(settings, ports.clone()).map_err(|error| error.to_string())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_1970 = (now.as_nanos() as u64).saturating_sub(self.clock.now().0);
        let mut output = Output::new(request, &self.datapath, &self.switch, since_1970);
        let all = || self.datapath.ports().into_iter().map(|(number, _)| number).collect();
        output.begin(&self.version, &ports.clone().unwrap_or_else(all));
        // The first piece, maybe an empty one, says that the tap is there.
        let first = output.take().unwrap_or_default();
        // Where the client has gone, it is found out when it is asked for more.
        let _ = self.pieces.blocking_send(StreamItem::Piece(first));
        Ok(self.read(tap, &mut output, &mut ports))
    }

    /// Reads until the client has enough or has gone. Returns what is to be said at the end.
    fn read(&self, mut tap: Tap, output: &mut Output, ports: &mut Ports) -> String {
        let mut left = self.request.count.unwrap_or(u64::MAX);
        let (mut seen, mut refreshed) = (0u64, Instant::now());
        while left > 0 && !self.pieces.is_closed() {
            let is_last = self.stop.load(Relaxed);
            if is_last {
                // What there is by now is read, and no more comes, however much passes.
                tap.close();
            }
            if refreshed.elapsed() >= REFRESH {
                refreshed = Instant::now();
                output.refresh(&self.datapath);
                self.follow_ports(&tap, ports);
            }
            let read = tap.read(|record, frame| {
                output.packet(record, frame);
                (left, seen) = (left - 1, seen + 1);
                left > 0 && output.pending() < PIECE
            });
            if let Some(piece) = output.take()
                && self.pieces.blocking_send(StreamItem::Piece(piece)).is_err()
            {
                break;
            }
            if read == 0 {
                if is_last {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        let counts = tap.counts();
        drop(tap);
        output.end(self.clock.now(), counts.lost);
        if let Some(piece) = output.take() {
            let _ = self.pieces.blocking_send(StreamItem::Piece(piece));
        }
        format!(
            "{seen} packets shown, {} lost because the reader was too slow, {} left out for the rate\n",
            counts.lost, counts.skipped
        )
    }

    /// The numbers of the ports that are named; `None`: all.
    fn ports(&self) -> Ports {
        let names = &self.request.ports;
        if names.is_empty() {
            return None;
        }
        let is_named = |name: &str| names.binary_search_by(|known| known.as_str().cmp(name)).is_ok();
        let ports = self.datapath.ports().into_iter().filter(|(_, port)| is_named(port.name()));
        let mut numbers: Vec<PortNo> = ports.map(|(number, _)| number).collect();
        numbers.sort_unstable_by_key(|port| port.0);
        Some(numbers.into())
    }

    /// Goes on at a port that has come back, under another number.
    fn follow_ports(&self, tap: &Tap, ports: &mut Ports) {
        let now = self.ports();
        if now != *ports {
            tap.set_ports(now.clone());
            *ports = now;
        }
    }
}
