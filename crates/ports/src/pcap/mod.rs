//! Pcap ports: replay of a capture file and recording to one.

mod file;
pub mod fuzz;
mod recorder;

pub use file::Capture;
pub use recorder::{Recorder, Stamps};

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use packet::{Batch, Memory, Time};
use parking_lot::Mutex;

use crate::kind::{Env, Kind};
use crate::null::Pace;
use crate::offload;
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, RxCounters, TxCounters};
use crate::sys::system;
use crate::virtual_port::{VirtualPort, copy, mac_from_name};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue, files};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["pcap"],
    doc: "Replays a capture file and records to one.",
    options: &[
        OptionDef { name: "rx_pcap", form: Form::Path, doc: "Capture file (pcap or pcapng) to replay." },
        OptionDef {
            name: "tx_pcap",
            form: Form::Path,
            doc: "Capture file (pcap) to make and to record sent frames to.",
        },
        OptionDef { name: "loop", form: Form::Bool, doc: "Begin again at the end of the file, false by default." },
        OptionDef {
            name: "timing",
            form: Form::Word(&["fast", "original"]),
            doc: "Replay as fast as frames are taken (default) or with the intervals of the file.",
        },
        OptionDef {
            name: "rate",
            form: Form::Number(1, 1_000_000_000),
            doc: "Replay this number of frames per second.",
        },
        OptionDef {
            name: "stamps",
            form: Form::Word(&["time-of-day", "clock"]),
            doc: "Time stamps of recorded frames: the time of day (default) or the switch's own clock.",
        },
    ],
    open: |spec, options, env| Ok(Pcap::open(spec, options, env)?),
};

struct Pcap {
    state: Arc<VirtualPort>,
    counters: PortCounters,
    memory: &'static Memory,
    replay: Mutex<Option<Replay>>,
    recorder: Option<Arc<Recorder>>,
    /// Frames to replay, and from where, for `status`.
    source: Option<(String, usize)>,
}

impl Pcap {
    fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<Pcap>, Error> {
        let port = spec.name.as_str();
        if options.text("rx_pcap").is_none() && options.text("tx_pcap").is_none() {
            return Err(options.error("rx_pcap", "missing; a pcap port needs rx_pcap, tx_pcap or both"));
        }
        let state = Arc::new(VirtualPort::new(spec, mac_from_name(port)));
        let counters = PortCounters::default();
        let (mut replay, mut source) = (None, None);
        if let Some(path) = options.path("rx_pcap") {
            let path_text = path.display().to_string();
            let bytes = read(&path).map_err(|e| system(port, format!("read {path_text}"), e))?;
            let wrong = |problem| Error::File { port: port.into(), path: path_text.clone(), problem };
            let capture = Capture::parse(bytes).map_err(wrong)?;
            let looped = options.flag("loop", false);
            let timing = match (options.number("rate"), options.text("timing")) {
                (Some(_), Some("original")) => {
                    return Err(options.error("rate", "does not go together with timing=original"));
                }
                (Some(rate), _) => Timing::Rate(Pace::new(rate)),
                (None, Some("original")) => Timing::Original { start: None, lap: lap_time(&capture) },
                _ => Timing::Fast,
            };
            source = Some((path_text, capture.len()));
            let (state, counters) = (state.clone(), counters.rx(0));
            replay = Some(Replay { state, counters, memory: env.memory, capture, looped, timing, next: 0, laps: 0 });
        }
        let stamps = if options.text("stamps") == Some("clock") { Stamps::Clock } else { Stamps::TimeOfDay };
        let recorder = options.path("tx_pcap").map(|p| Recorder::create(port, &p, stamps).map(Arc::new)).transpose()?;
        Ok(Arc::new(Pcap { state, counters, memory: env.memory, replay: Mutex::new(replay), recorder, source }))
    }
}

/// Reads a regular file: others may never end.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// From the first frame of a lap to the first of the next: the file's span and one mean interval.
fn lap_time(capture: &Capture) -> Duration {
    if capture.len() < 2 {
        return Duration::from_secs(1);
    }
    let span = capture.time(capture.len() - 1).saturating_sub(capture.time(0));
    span.saturating_add(span / (capture.len() - 1) as u32)
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.state.name
    }

    fn kind(&self) -> &'static str {
        "pcap"
    }

    fn mac(&self) -> Mac {
        self.state.mac()
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.state.set_mac(mac);
        Ok(())
    }

    fn mtu(&self) -> u32 {
        self.state.mtu()
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.state.set_mtu(mtu)
    }

    fn link(&self) -> Link {
        self.state.link()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.state.set_admin_up(up);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.counters.sum()
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.counters.tx_queue_drops()
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let Some((path, frames)) = &self.source else { return Vec::new() };
        vec![("rx_pcap", path.clone()), ("rx_pcap_frames", frames.to_string())]
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        self.replay.lock().take().map(|r| Box::new(r) as Box<dyn RxQueue>).into_iter().collect()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let (state, recorder, counters) = (self.state.clone(), self.recorder.clone(), self.counters.tx(index));
        Ok(Box::new(RecordTx { state, recorder, memory: self.memory, counters }))
    }
}

/// A replay: every frame is in memory, and each one that is received is a copy.
struct Replay {
    state: Arc<VirtualPort>,
    counters: Arc<RxCounters>,
    memory: &'static Memory,
    capture: Capture,
    looped: bool,
    timing: Timing,
    /// Index of the next frame, and how often the file was begun again.
    next: usize,
    laps: u32,
}

/// When frames are due.
enum Timing {
    /// At once.
    Fast,
    /// At a constant rate.
    Rate(Pace),
    /// As in the file: `start` is when the first frame was asked for.
    Original { start: Option<Time>, lap: Duration },
}

impl Replay {
    fn ended(&self) -> bool {
        self.next == self.capture.len() && !self.looped || self.capture.is_empty()
    }

    /// How many frames of `want` may pass now, for timings that count.
    fn allowance(&mut self, want: usize, now: Time) -> usize {
        match &mut self.timing {
            Timing::Rate(pace) if self.looped => pace.allow(want as u64, now) as usize,
            Timing::Rate(pace) => pace.allow(want.min(self.capture.len() - self.next) as u64, now) as usize,
            Timing::Original { start, .. } => {
                start.get_or_insert(now);
                want
            }
            Timing::Fast => want,
        }
    }

    /// When frame `next` is due, for the original timing.
    fn due(&self) -> Time {
        match self.timing {
            Timing::Original { start: Some(start), lap } if self.next < self.capture.len() => {
                let within = self.capture.time(self.next).saturating_sub(self.capture.time(0));
                start + lap.saturating_mul(self.laps).saturating_add(within)
            }
            Timing::Original { start: Some(start), lap } => start + lap.saturating_mul(self.laps.saturating_add(1)),
            _ => Time(0),
        }
    }
}

/// Frames of a large trace are in no cache: so many before its turn, one is asked for.
const AHEAD: usize = 16;

impl RxQueue for Replay {
    fn receive(&mut self, batch: &mut Batch, now: Time) -> usize {
        if !self.state.running() || self.ended() {
            return 0;
        }
        let (mut count, mut bytes) = (0, 0);
        for _ in 0..self.allowance(batch.remaining_capacity(), now) {
            if self.next == self.capture.len() {
                if !self.looped {
                    break;
                }
                if matches!(self.timing, Timing::Original { .. }) && self.due() > now {
                    break;
                }
                self.next = 0;
                self.laps += 1;
            }
            if matches!(self.timing, Timing::Original { .. }) && self.due() > now {
                break;
            }
            let frame = self.capture.frame(self.next);
            self.capture.prefetch(self.next + AHEAD);
            self.next += 1;
            match copy(self.memory, frame) {
                Some(packet) => {
                    count += 1;
                    bytes += frame.len();
                    batch.push(packet);
                }
                None => self.counters.dropped.add(1),
            }
        }
        self.counters.passed(count, bytes);
        count
    }

    fn next_due(&self) -> Option<Time> {
        match &self.timing {
            _ if self.ended() => Some(Time(u64::MAX)),
            Timing::Fast => None,
            Timing::Rate(pace) => Some(pace.next_due()),
            Timing::Original { .. } => Some(self.due()),
        }
    }
}

struct RecordTx {
    state: Arc<VirtualPort>,
    recorder: Option<Arc<Recorder>>,
    /// Where segments are made.
    memory: &'static Memory,
    counters: Arc<TxCounters>,
}

impl TxQueue for RecordTx {
    fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize {
        let recorder = match &self.recorder {
            Some(recorder) if self.state.running() => recorder,
            recorder => {
                let reason = if recorder.is_some() { TxDrop::Down } else { TxDrop::NotConnected };
                self.counters.dropped(reason, batch.len());
                batch.clear();
                return 0;
            }
        };
        let mut taken = 0;
        for packet in batch.drain(..) {
            let mut whole = true;
            let done = offload::complete(packet, Offloads::default(), self.memory, &mut |p| {
                if recorder.record(p.data(), now) {
                    self.counters.passed(1, p.len());
                } else {
                    self.counters.dropped(TxDrop::NotConnected, 1);
                    whole = false;
                }
            });
            match done {
                Ok(()) => taken += usize::from(whole),
                Err(error) => self.counters.dropped(error.into(), 1),
            }
        }
        taken
    }

    fn housekeep(&mut self, _now: Time) {
        if let Some(recorder) = &self.recorder {
            recorder.flush();
        }
    }
}

impl Drop for RecordTx {
    fn drop(&mut self) {
        self.housekeep(Time(0));
    }
}
