//! Null ports: a source of identical frames and a sink that counts, as cheap as can be. They are the
//! floor under every benchmark.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use packet::{Batch, Memory, Time};
use parking_lot::Mutex;

use crate::kind::{Env, Kind};
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, RxCounters, TxCounters};
use crate::virtual_port::{VirtualPort, mac_from_name};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["null"],
    doc: "Sink that counts and, with n_rxq, source of identical frames.",
    options: &[
        OptionDef { name: "n_rxq", form: Form::Number(0, 1024), doc: "Queues that produce frames, 0 by default." },
        OptionDef {
            name: "size",
            form: Form::Number(42, 65535),
            doc: "Bytes of the UDP frame to produce, 60 by default.",
        },
        OptionDef { name: "frame", form: Form::Hex, doc: "Frame to produce, instead of the UDP frame." },
        OptionDef {
            name: "count",
            form: Form::Number(0, u64::MAX),
            doc: "Frames that each queue produces, no end by default.",
        },
        OptionDef {
            name: "rate",
            form: Form::Number(1, 1_000_000_000),
            doc: "Frames per second and queue, no limit by default.",
        },
    ],
    open: |spec, options, env| Ok(Null::open(spec, options, env)?),
};

/// A null port.
#[derive(Debug)]
struct Null {
    state: Arc<VirtualPort>,
    counters: PortCounters,
    sources: Mutex<Vec<Source>>,
}

impl Null {
    fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<Null>, Error> {
        let mac = mac_from_name(&spec.name);
        let frame = match options.hex("frame") {
            Some(frame) if (14..=65550).contains(&frame.len()) => frame,
            Some(frame) => {
                let problem = format!("{} bytes; a frame has 14 to 65550", frame.len());
                return Err(options.error("frame", problem));
            }
            None => udp_frame(mac, options.number("size").unwrap_or(60) as usize),
        };
        let state = Arc::new(VirtualPort::new(spec, mac));
        let counters = PortCounters::default();
        let sources = (0..options.number("n_rxq").unwrap_or(0) as usize)
            .map(|index| Source {
                state: state.clone(),
                counters: counters.rx(index),
                memory: env.memory,
                frame: frame.clone().into(),
                left: options.number("count").unwrap_or(u64::MAX),
                pace: options.number("rate").map(Pace::new),
            })
            .collect();
        Ok(Arc::new(Null { state, counters, sources: Mutex::new(sources) }))
    }
}

/// A UDP frame of `size` bytes from `mac`, with correct checksums: 10.0.0.1:1 to 10.0.0.2:2.
fn udp_frame(mac: Mac, size: usize) -> Vec<u8> {
    let ip_len = (size - 14) as u16;
    let mut frame = Vec::with_capacity(size);
    frame.extend_from_slice(&[0x02, 0, 0, 0, 0, 2]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame.extend_from_slice(&ip_len.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2]);
    frame.extend_from_slice(&(ip_len - 20).to_be_bytes());
    frame.resize(size, 0);
    let checksum = crate::offload::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    // A UDP checksum of zero means "none" (RFC 768), which IPv4 allows.
    frame
}

impl Port for Null {
    fn name(&self) -> &str {
        &self.state.name
    }

    fn kind(&self) -> &'static str {
        "null"
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

    fn offloads(&self) -> Offloads {
        // Whatever is thrown away needs no checksum.
        Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: false }
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        self.sources.lock().drain(..).map(|s| Box::new(s) as Box<dyn RxQueue>).collect()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Sink { state: self.state.clone(), counters: self.counters.tx(index) }))
    }
}

#[derive(Debug)]
struct Source {
    state: Arc<VirtualPort>,
    counters: Arc<RxCounters>,
    memory: &'static Memory,
    frame: Box<[u8]>,
    left: u64,
    pace: Option<Pace>,
}

impl RxQueue for Source {
    fn receive(&mut self, batch: &mut Batch, now: Time) -> usize {
        let mut want = (batch.remaining_capacity() as u64).min(self.left);
        if let Some(pace) = &mut self.pace {
            want = pace.allow(want, now);
        }
        if want == 0 || !self.state.running() {
            return 0;
        }
        let made = crate::virtual_port::copies(self.memory, &self.frame, want as usize, batch);
        self.left -= want;
        self.counters.passed(made, made * self.frame.len());
        if made < want as usize {
            self.counters.dropped.add(want - made as u64);
        }
        made
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_due(&self) -> Option<Time> {
        match &self.pace {
            _ if self.left == 0 => Some(Time(u64::MAX)),
            pace => pace.as_ref().map(|p| p.next_due()),
        }
    }
}

struct Sink {
    state: Arc<VirtualPort>,
    counters: Arc<TxCounters>,
}

impl TxQueue for Sink {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let count = batch.len();
        if !self.state.running() {
            self.counters.dropped(TxDrop::Down, count);
            packet::buffer::release(batch);
            return 0;
        }
        let bytes = batch.iter().map(|p| p.len()).sum();
        packet::buffer::release(batch);
        self.counters.passed(count, bytes);
        count
    }
}

/// Meters frames out at a constant rate. The first is due at once; a caller that comes late gets what
/// it missed, of at most 10 ms.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Frames per second.
    rate: u64,
    /// When frame number zero was due, and how many were let through since.
    start: Option<Time>,
    passed: u64,
}

impl Pace {
    const MAX_BACKLOG: Duration = Duration::from_millis(10);

    pub(crate) fn new(rate: u64) -> Pace {
        Pace { rate: rate.max(1), start: None, passed: 0 }
    }

    /// How many frames of `want` may pass at `now`; they count as passed.
    pub(crate) fn allow(&mut self, want: u64, now: Time) -> u64 {
        let start = *self.start.get_or_insert(now);
        let due = self.due(now.since(start));
        let backlog = self.due(Pace::MAX_BACKLOG);
        if due > self.passed + backlog {
            // Forget what could not be sent in time, instead of a burst at line rate.
            self.passed = due - backlog;
        }
        let allowed = want.min(due - self.passed.min(due));
        self.passed += allowed;
        allowed
    }

    /// When the next frame is due.
    pub(crate) fn next_due(&self) -> Time {
        let Some(start) = self.start else { return Time(0) };
        let nanos = (u128::from(self.passed) * 1_000_000_000).div_ceil(u128::from(self.rate));
        start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Frames that are due `elapsed` after the start, the first included.
    fn due(&self, elapsed: Duration) -> u64 {
        (elapsed.as_nanos() * u128::from(self.rate) / 1_000_000_000) as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    fn open(options: &[(&str, &str)]) -> Result<Arc<dyn Port>, Error> {
        registry::open(&PortSpec::new("null0", "null").with(options), &Env::default())
    }

    #[test]
    fn source_to_sink() {
        let port = open(&[("n_rxq", "1"), ("size", "64"), ("count", "40")]).unwrap();
        let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
        let mut batch = Batch::new();
        assert_eq!(rx[0].receive(&mut batch, Time(0)), 32);
        assert_eq!(batch[0].len(), 64);
        assert_eq!(crate::offload::checksum(&batch[31].data()[14..34]), 0);
        assert_eq!(tx.transmit(&mut batch, Time(0)), 32);
        assert_eq!(rx[0].receive(&mut batch, Time(0)), 8);
        assert_eq!(rx[0].receive(&mut batch, Time(0)), 0);
        let s = port.stats();
        assert_eq!((s.rx_packets, s.rx_bytes, s.tx_packets, s.tx_bytes), (40, 2560, 32, 2048));
    }

    #[test]
    fn frame_from_hexadecimal() {
        let port = open(&[("n_rxq", "2"), ("frame", "ffffffffffff 020000000001 88b5 0102")]).unwrap();
        let mut rx = port.take_rx_queues();
        let mut batch = Batch::new();
        rx[1].receive(&mut batch, Time(0));
        assert_eq!(&batch[0].data()[12..], &[0x88, 0xb5, 1, 2]);
        assert!(open(&[("frame", "00")]).unwrap_err().to_string().contains("1 bytes; a frame has 14"));
        assert!(open(&[]).unwrap().take_rx_queues().is_empty(), "a sink produces nothing");
    }

    #[test]
    fn rate_is_kept_at_any_polling_interval() {
        for step in [1_000, 7_777, 1_000_000, 9_999_999] {
            let port = open(&[("n_rxq", "1"), ("rate", "3000")]).unwrap();
            let mut rx = port.take_rx_queues();
            let (mut now, mut count) = (Time(5), 0);
            while now.0 < 1_000_000_000 {
                let mut batch = Batch::new();
                count += rx[0].receive(&mut batch, now);
                now = Time(now.0 + step);
            }
            assert!((2970..=3001).contains(&count), "{count} with a step of {step} ns");
        }
    }

    #[test]
    fn next_due_is_when_a_frame_comes() {
        let port = open(&[("n_rxq", "1"), ("rate", "1000")]).unwrap();
        let mut rx = port.take_rx_queues();
        let mut batch = Batch::new();
        assert_eq!(rx[0].receive(&mut batch, Time(500)), 1);
        let due = rx[0].next_due().unwrap();
        assert_eq!(due, Time(1_000_500));
        assert_eq!(rx[0].receive(&mut batch, Time(due.0 - 1)), 0);
        assert_eq!(rx[0].receive(&mut batch, due), 1);
    }
}
