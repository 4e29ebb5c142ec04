//! Dummy ports: frames come in from tests and commands and go out to them. They take no system
//! resources but one event descriptor for each receive queue, by which a sleeping worker wakes.
//!
//! Sharing between threads: [`Dummy`] is shared by everybody; receive queues are bounded lock-free
//! queues that any thread fills and one worker empties; the frames that were sent lie behind a mutex,
//! and the recordings behind a lock, which workers take once for each burst.

mod patch;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use packet::buffer::heap::HEAP;
use packet::wire::{arp, build};
use packet::{Batch, Packet, Time};
use parking_lot::{Condvar, Mutex, RwLock};

use self::patch::Patch;
use crate::kind::{Directory, Env, Kind};
use crate::offload;
use crate::options::{Form, OptionDef, Options};
use crate::pcap::Recorder;
use crate::spec::PortSpec;
use crate::stats::{PortCounters, RxCounters, TxCounters};
use crate::sys::Doorbell;
use crate::virtual_port::{VirtualPort, copy};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["dummy", "dummy-pmd", "dummy-internal"],
    doc: "Frames in and out from tests and the command line.",
    options: &[
        OptionDef { name: "n_rxq", form: Form::Number(1, 1024), doc: "Receive queues, 1 by default." },
        OptionDef {
            name: "n_txq",
            form: Form::Number(1, 1024),
            doc: "Most transmit queues, by default one for each worker.",
        },
        OptionDef {
            name: "numa_id",
            form: Form::Number(0, 127),
            doc: "NUMA node at which a dummy-pmd port is, 0 by default.",
        },
        OptionDef { name: "ifindex", form: Form::Number(1, i32::MAX as u64), doc: "Interface index to report." },
        OptionDef { name: "pcap", form: Form::Path, doc: "Capture file to which frames in both directions are added." },
        OptionDef { name: "rxq_pcap", form: Form::Path, doc: "Capture file to which received frames are added." },
        OptionDef {
            name: "stream",
            form: Form::Stream,
            doc: "Where to connect to another dummy port: unix:FILE or tcp:HOST:PORT.",
        },
        OptionDef {
            name: "pstream",
            form: Form::Stream,
            doc: "Where another dummy port connects to: punix:FILE or ptcp:PORT[:HOST].",
        },
        OptionDef { name: "tx_pcap", form: Form::Path, doc: "Capture file to which sent frames are added." },
    ],
    open: |spec, options, env| Ok(Dummy::open(spec, options, env)?),
};

/// Counters of the first transmit queues.
const TX_QUEUE_STATS: [(&str, &str); 4] = [
    ("tx_q0_bytes", "tx_q0_packets"),
    ("tx_q1_bytes", "tx_q1_packets"),
    ("tx_q2_bytes", "tx_q2_packets"),
    ("tx_q3_bytes", "tx_q3_packets"),
];

/// Frames that a receive queue holds; more are dropped.
const RX_QUEUE_LEN: usize = 4096;

/// Sent frames that are kept for [`Dummy::take_sent`]; the oldest give way.
const SENT_LEN: usize = 4096;

/// ARP operations (RFC 826).
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

impl Directory {
    /// The open dummy port called `name`.
    pub fn find(&self, name: &str) -> Option<Arc<Dummy>> {
        self.get(name)?.downcast().ok()
    }

    /// Begins recordings anew whose files have gone, or are others now. OVS's dummy ports open theirs at each change of the configuration,
    /// which tests rely on that remove them.
    pub fn renew_recordings(&self) {
        for name in self.names() {
            if let Some(port) = self.find(&name) {
                port.recorders.write().renew(&name);
            }
        }
    }
}

/// A dummy port.
#[derive(Debug)]
pub struct Dummy {
    state: VirtualPort,
    kind: &'static str,
    /// Zero for none.
    ifindex: AtomicU32,
    fixed: Fixed,
    /// How many transmit queues have been made.
    tx_queues: AtomicUsize,
    counters: PortCounters,
    rx: Vec<Arc<Injected>>,
    rx_taken: Mutex<bool>,
    sent: Mutex<VecDeque<Vec<u8>>>,
    more_sent: Condvar,
    patch: Option<Patch>,
    /// IPv4 address; zero for none.
    address: AtomicU32,
    recorders: RwLock<Recorders>,
    myself: Weak<Dummy>,
}

/// What a port is opened with and keeps.
#[derive(Debug, PartialEq, Eq)]
struct Fixed {
    rx_queues: usize,
    /// Most transmit queues.
    tx_queues: usize,
    numa_node: usize,
    stream: Option<String>,
    pstream: Option<String>,
}

impl Fixed {
    fn of(options: &Options) -> Fixed {
        Fixed {
            rx_queues: options.number("n_rxq").unwrap_or(1) as usize,
            tx_queues: options.number("n_txq").map_or(usize::MAX, |n| n as usize),
            numa_node: options.number("numa_id").unwrap_or(0) as usize,
            stream: options.text("stream").map(str::to_owned),
            pstream: options.text("pstream").map(str::to_owned),
        }
    }
}

/// Where received and sent frames are recorded.
#[derive(Debug, Default)]
struct Recorders {
    rx: Option<Arc<Recorder>>,
    tx: Option<Arc<Recorder>>,
}

impl Recorders {
    fn open(port: &str, options: &Options) -> Result<Recorders, Error> {
        let record = |option| options.path(option).map(|p| Recorder::append(port, &p).map(Arc::new)).transpose();
        Ok(match record("pcap")? {
            Some(both) => Recorders { rx: Some(both.clone()), tx: Some(both) },
            None => Recorders { rx: record("rxq_pcap")?, tx: record("tx_pcap")? },
        })
    }

    /// Begins the recordings anew whose files have gone.
    fn renew(&mut self, port: &str) {
        let renewed = |old: &Arc<Recorder>| match old.replacement(port) {
            Ok(new) => new.map(Arc::new),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        };
        let are_one = self.rx.as_ref().zip(self.tx.as_ref()).is_some_and(|(rx, tx)| Arc::ptr_eq(rx, tx));
        if let Some(new) = self.rx.as_ref().and_then(renewed) {
            self.rx = Some(new);
        }
        if are_one {
            self.tx.clone_from(&self.rx);
        } else if let Some(new) = self.tx.as_ref().and_then(renewed) {
            self.tx = Some(new);
        }
    }
}

/// The interface index that the options ask for; zero for none.
fn ifindex_of(options: &Options) -> u32 {
    options.number("ifindex").unwrap_or(0) as u32
}

/// Frames on their way into a receive queue.
#[derive(Debug)]
struct Injected {
    frames: ArrayQueue<Packet>,
    bell: Doorbell,
    /// Frames that found the queue full. Any injecting thread counts here.
    overflows: std::sync::atomic::AtomicU64,
}

impl Injected {
    fn push(&self, packet: Packet) -> bool {
        let taken = self.frames.push(packet).is_ok();
        if !taken {
            self.overflows.fetch_add(1, Relaxed);
        }
        self.bell.raise();
        taken
    }
}

impl Dummy {
    fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<Dummy>, Error> {
        // As in OVS, the n-th dummy port of a process has the address aa:55:aa:55:00:n. OVS gives zero to a port of the datapath itself.
        let n = env.dummies.number() + 1;
        let mac = [0xaa, 0x55, 0xaa, 0x55, (n >> 8) as u8, n as u8];
        let fixed = Fixed::of(options);
        let rx: Vec<Arc<Injected>> = (0..fixed.rx_queues)
            .map(|_| {
                let frames = ArrayQueue::new(RX_QUEUE_LEN);
                Ok(Arc::new(Injected { frames, bell: Doorbell::new(&spec.name)?, overflows: Default::default() }))
            })
            .collect::<Result<_, Error>>()?;
        let recorders = RwLock::new(Recorders::open(&spec.name, options)?);
        let patch = match (fixed.stream.as_deref(), fixed.pstream.as_deref()) {
            (None, None) => None,
            (stream, pstream) => {
                let queue = rx[0].clone();
                // Counted by the queue where it is full. The peer may send what it likes: its frames are bounded like others.
                let deliver = move |frame: &[u8]| match copy(&HEAP, frame) {
                    Some(packet) => drop(queue.push(packet)),
                    None => drop(queue.overflows.fetch_add(1, Relaxed)),
                };
                Some(Patch::open(&spec.name, stream, pstream, Box::new(deliver))?)
            }
        };
        let port = Arc::new_cyclic(|myself| Dummy {
            state: VirtualPort::new(spec, mac),
            kind: KIND.names.iter().find(|k| **k == spec.kind).unwrap_or(&"dummy"),
            ifindex: AtomicU32::new(ifindex_of(options)),
            fixed,
            tx_queues: AtomicUsize::new(0),
            counters: PortCounters::default(),
            rx,
            rx_taken: Mutex::new(false),
            sent: Mutex::default(),
            more_sent: Condvar::new(),
            patch,
            address: AtomicU32::new(0),
            recorders,
            myself: myself.clone(),
        });
        env.dummies.add(&spec.name, port.myself.clone());
        Ok(port)
    }

    /// Puts a frame into receive queue 0. `false` when it is full: the frame is dropped and counted.
    pub fn inject(&self, frame: &[u8]) -> bool {
        self.inject_packet(0, Packet::from_slice(frame))
    }

    /// Puts a packet, with its offloads, into receive queue `queue` (modulo their number).
    pub fn inject_packet(&self, queue: usize, packet: Packet) -> bool {
        self.rx[queue % self.rx.len()].push(packet)
    }

    /// Gives the port an IPv4 address: it answers ARP requests for it. Unspecified for none.
    pub fn set_address(&self, address: Ipv4Addr) {
        self.address.store(address.to_bits(), Relaxed);
    }

    /// The answer to `frame`, if that is an ARP request for the port's address.
    fn arp_reply(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let address = Ipv4Addr::from_bits(self.address.load(Relaxed));
        if address.is_unspecified() || frame.get(12..14)? != [0x08, 0x06] {
            return None;
        }
        let request = arp::Packet::new_checked(frame.get(14..)?).ok()?;
        if request.opcode() != ARP_REQUEST || request.tpa() != address {
            return None;
        }
        let body = build::arp(ARP_REPLY, self.mac(), address, request.sha(), request.spa());
        Some(build::ethernet(request.sha(), self.mac(), &[], 0x0806, &body))
    }

    /// Whether the patch socket of the option `stream` is connected; `None` for a port without that option.
    pub fn connected(&self) -> Option<bool> {
        self.patch.as_ref()?.connected()
    }

    /// How many receive queues there are.
    pub fn rx_queues(&self) -> usize {
        self.rx.len()
    }

    /// Takes the frames that were sent since the last call, the oldest first; at most the last 4096
    /// are kept.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().drain(..).collect()
    }

    /// As [`take_sent`](Dummy::take_sent), but waits until there are `count` frames, or `timeout` has
    /// passed.
    pub fn wait_sent(&self, count: usize, timeout: Duration) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        let mut sent = self.sent.lock();
        while sent.len() < count && !self.more_sent.wait_until(&mut sent, deadline).timed_out() {}
        sent.drain(..).collect()
    }

    /// All counters, with those that [`stats`](Port::stats) keeps to itself.
    pub fn counted(&self) -> Stats {
        let mut stats = self.counters.sum();
        let overflows: u64 = self.rx.iter().map(|rx| rx.overflows.load(Relaxed)).sum();
        stats.rx_dropped += overflows;
        stats.rx_over_err += overflows;
        stats
    }

    /// Plugs or pulls the cable.
    pub fn set_carrier(&self, up: bool) {
        self.state.set_carrier(up);
    }
}

impl Port for Dummy {
    fn name(&self) -> &str {
        &self.state.name
    }

    fn kind(&self) -> &'static str {
        self.kind
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

    fn set_options(&self, options: &Options) -> Result<bool, Error> {
        if Fixed::of(options) != self.fixed {
            return Ok(false);
        }
        let recorders = Recorders::open(self.name(), options)?;
        *self.recorders.write() = recorders;
        self.ifindex.store(ifindex_of(options), Relaxed);
        Ok(true)
    }

    fn link(&self) -> Link {
        self.state.link()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.state.set_admin_up(up);
        Ok(())
    }

    /// Only what OVS's dummy ports count: tests compare the others with "unknown".
    fn stats(&self) -> Stats {
        let Stats { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = self.counted();
        Stats {
            rx_packets,
            rx_bytes,
            rx_dropped: Stats::UNKNOWN,
            rx_errors: Stats::UNKNOWN,
            rx_frame_err: Stats::UNKNOWN,
            rx_over_err: Stats::UNKNOWN,
            rx_crc_err: Stats::UNKNOWN,
            tx_packets,
            tx_bytes,
            tx_dropped: Stats::UNKNOWN,
            tx_errors: Stats::UNKNOWN,
            collisions: Stats::UNKNOWN,
        }
    }

    /// The first two are made up: something for tests to look at.
    fn custom_stats(&self) -> Vec<(&'static str, u64)> {
        let stats = self.stats();
        let mut shown = vec![
            ("rx_custom_packets_1", 0),
            ("rx_custom_packets_2", 0),
            ("rx_q0_bytes", stats.rx_bytes),
            ("rx_q0_packets", stats.rx_packets),
        ];
        match self.fixed.tx_queues {
            // Nobody has asked for several.
            1 | usize::MAX => shown.extend([("tx_q0_bytes", stats.tx_bytes), ("tx_q0_packets", stats.tx_packets)]),
            count => {
                for (index, (bytes, packets)) in TX_QUEUE_STATS.into_iter().enumerate().take(count) {
                    let queue = self.counters.tx(index);
                    shown.extend([(bytes, queue.bytes.get()), (packets, queue.packets.get())]);
                }
            }
        }
        shown
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.counters.tx_queue_drops()
    }

    fn queues(&self) -> Vec<u32> {
        vec![0]
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn ifindex(&self) -> Option<u32> {
        Some(self.ifindex.load(Relaxed)).filter(|&ifindex| ifindex > 0)
    }

    /// Only one in poll mode has a NUMA node.
    fn numa_node(&self) -> Option<usize> {
        self.is_pmd().then_some(self.fixed.numa_node)
    }

    /// The others stand for devices that OVS's main thread polls.
    fn is_pmd(&self) -> bool {
        self.kind == "dummy-pmd"
    }

    fn shown_options(&self) -> Vec<(&'static str, String)> {
        let (rx, tx) = (self.rx.len(), self.tx_queues.load(Relaxed));
        let queues = |name, count: usize| self.is_pmd().then(|| (name, count.to_string()));
        let options = [
            queues("configured_rx_queues", rx),
            queues("configured_tx_queues", tx),
            self.ifindex().map(|ifindex| ("ifindex", ifindex.to_string())),
            queues("requested_rx_queues", rx),
            queues("requested_tx_queues", tx),
        ];
        options.into_iter().flatten().collect()
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        if std::mem::replace(&mut *self.rx_taken.lock(), true) {
            return Vec::new();
        }
        let Some(port) = self.myself.upgrade() else { return Vec::new() };
        let queue = |(index, queue): (usize, &Arc<Injected>)| {
            let counters = self.counters.rx(index);
            Box::new(DummyRx { port: port.clone(), queue: queue.clone(), counters }) as Box<dyn RxQueue>
        };
        self.rx.iter().enumerate().map(queue).collect()
    }

    fn max_tx_queues(&self) -> usize {
        self.fixed.tx_queues
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let port = self.myself.upgrade().expect("borrowed from an Arc");
        self.tx_queues.fetch_max(index + 1, Relaxed);
        Ok(Box::new(DummyTx { counters: self.counters.tx(index), port }))
    }
}

struct DummyRx {
    port: Arc<Dummy>,
    queue: Arc<Injected>,
    counters: Arc<RxCounters>,
}

impl RxQueue for DummyRx {
    fn receive(&mut self, batch: &mut Batch, now: Time) -> usize {
        let before = batch.len();
        let mut bytes = 0;
        let recorders = self.port.recorders.read();
        while !batch.is_full() {
            let Some(packet) = self.queue.frames.pop() else {
                self.queue.bell.lower(|| !self.queue.frames.is_empty());
                break;
            };
            if !self.port.state.running() {
                self.counters.dropped.add(1);
                continue;
            }
            if let Some(recorder) = &recorders.rx {
                recorder.record(packet.data(), now);
            }
            bytes += packet.len();
            offload::note_received(packet.offload());
            batch.push(packet);
        }
        let count = batch.len() - before;
        if let Some(recorder) = recorders.rx.as_ref().filter(|_| count > 0) {
            recorder.flush();
        }
        self.counters.passed(count, bytes);
        count
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.bell.as_fd())
    }
}

struct DummyTx {
    port: Arc<Dummy>,
    counters: Arc<TxCounters>,
}

impl DummyTx {
    /// Takes one frame that needs no further work; `false` where it does not fit the port.
    fn send(
        &self,
        sent: &mut VecDeque<Vec<u8>>,
        recorder: Option<&Recorder>,
        frame: &[u8],
        mtu: usize,
        now: Time,
    ) -> bool {
        if !crate::virtual_port::fits(frame, mtu) {
            self.counters.dropped(TxDrop::of_length(frame), 1);
            return false;
        }
        if let Some(recorder) = recorder {
            recorder.record(frame, now);
        }
        if sent.len() == SENT_LEN {
            sent.pop_front();
        }
        sent.push_back(frame.to_vec());
        if let Some(patch) = &self.port.patch {
            patch.send(frame);
        }
        if let Some(reply) = self.port.arp_reply(frame) {
            self.port.inject(&reply);
        }
        self.counters.passed(1, frame.len());
        true
    }
}

impl TxQueue for DummyTx {
    fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize {
        if !self.port.state.running() {
            self.counters.dropped(TxDrop::Down, batch.len());
            batch.clear();
            return 0;
        }
        let mtu = self.port.state.mtu() as usize;
        let mut taken = 0;
        let recorders = self.port.recorders.read();
        let recorder = recorders.tx.as_deref();
        let mut sent = self.port.sent.lock();
        for packet in batch.drain(..) {
            let mut fine = true;
            let done = offload::complete(packet, Offloads::default(), &HEAP, &mut |p| {
                fine &= self.send(&mut sent, recorder, p.data(), mtu, now);
            });
            if let Err(error) = done {
                self.counters.dropped(error.into(), 1);
            }
            taken += usize::from(fine && done.is_ok());
        }
        drop(sent);
        if let Some(recorder) = recorder {
            recorder.flush();
        }
        self.port.more_sent.notify_all();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    fn open(env: &Env, name: &str, options: &[(&str, &str)]) -> (Arc<dyn Port>, Arc<Dummy>) {
        let port = registry::open(&PortSpec::new(name, "dummy").with(options), env).unwrap();
        (port, env.dummies.find(name).unwrap())
    }

    fn frame(n: usize) -> Vec<u8> {
        (0..n).map(|i| i as u8).collect()
    }

    fn readable(fd: BorrowedFd) -> bool {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn frames_pass_in_and_out() {
        let env = Env::default();
        let (port, dummy) = open(&env, "p0", &[]);
        let mut rx = port.take_rx_queues();
        assert_eq!((rx.len(), port.take_rx_queues().len()), (1, 0));
        for n in 60..100 {
            assert!(dummy.inject(&frame(n)));
        }
        let mut batch = Batch::new();
        assert_eq!(rx[0].receive(&mut batch, Time(0)), 32);
        let mut tx = port.tx_queue(0).unwrap();
        assert_eq!(tx.transmit(&mut batch, Time(0)), 32);
        assert!(batch.is_empty());
        assert_eq!(rx[0].receive(&mut batch, Time(0)), 8);
        let sent = dummy.wait_sent(32, Duration::ZERO);
        assert_eq!(sent, (60..92).map(frame).collect::<Vec<_>>());
        let stats = port.stats();
        assert_eq!((stats.rx_packets, stats.tx_packets), (40, 32));
        assert_eq!(stats.tx_bytes, (60..92).sum::<u64>());
    }

    #[test]
    fn descriptor_wakes_a_sleeper() {
        let (port, dummy) = open(&Env::default(), "p0", &[("n_rxq", "2")]);
        let mut rx = port.take_rx_queues();
        assert!(!readable(rx[1].wait_fd().unwrap()));
        dummy.inject_packet(1, Packet::from_slice(&frame(60)));
        assert!(readable(rx[1].wait_fd().unwrap()));
        assert!(!readable(rx[0].wait_fd().unwrap()));
        let mut batch = Batch::new();
        assert_eq!(rx[1].receive(&mut batch, Time(0)), 1);
        assert!(!readable(rx[1].wait_fd().unwrap()), "the empty queue lets its worker sleep");
    }

    #[test]
    fn oversized_and_short_frames_and_ports_that_are_down() {
        let (port, dummy) = open(&Env::default(), "p0", &[]);
        let mut tx = port.tx_queue(0).unwrap();
        let mut tagged = frame(1518);
        tagged[12..14].copy_from_slice(&[0x81, 0]);
        let mut batch: Batch =
            [&frame(1514)[..], &frame(1515), &frame(13), &tagged].into_iter().map(Packet::from_slice).collect();
        assert_eq!(tx.transmit(&mut batch, Time(0)), 2);
        port.set_admin_up(false).unwrap();
        batch.push(Packet::from_slice(&frame(60)));
        assert_eq!(tx.transmit(&mut batch, Time(0)), 0);
        assert_eq!((dummy.counted().tx_dropped, port.stats().tx_dropped), (3, Stats::UNKNOWN));
        assert_eq!(port.link(), Link { up: false, admin_up: false, resets: 1 });
        assert_eq!(dummy.take_sent().len(), 2);
        assert!(port.set_mtu(20).is_err());
    }

    #[test]
    fn recordings_and_the_index_change_while_it_is_open_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let env = Env::default();
        let (port, _dummy) = open(&env, "p0", &[("n_txq", "2")]);
        let mut tx = port.tx_queue(0).unwrap();
        let set = |options: &[(&str, &str)]| {
            registry::set_options(&*port, &PortSpec::new("p0", "dummy").with(options)).map_err(|e| e.to_string())
        };
        let mut send = |n| tx.transmit(&mut [&frame(n)[..]].into_iter().map(Packet::from_slice).collect(), Time(0));
        let recorded = |name: &str| {
            let capture = crate::pcap::Capture::parse(std::fs::read(path(name)).unwrap()).unwrap();
            (0..capture.len()).map(|n| capture.frame(n).len()).collect::<Vec<_>>()
        };
        send(60);
        assert_eq!(set(&[("n_txq", "2"), ("tx_pcap", &path("a")), ("ifindex", "7")]), Ok(true));
        assert_eq!(port.ifindex(), Some(7));
        send(61);
        assert_eq!(set(&[("n_txq", "2"), ("pcap", &path("b"))]), Ok(true));
        send(62);
        assert_eq!((port.ifindex(), recorded("a"), recorded("b")), (None, vec![61], vec![62]));
        for other in [&[][..], &[("n_txq", "3")], &[("n_txq", "2"), ("pstream", "punix:x")]] {
            assert_eq!(set(other), Ok(false));
        }
        // What cannot be had leaves everything as it was.
        assert!(set(&[("n_txq", "2"), ("tx_pcap", "/nowhere/c"), ("ifindex", "8")]).is_err());
        assert!(set(&[("n_txq", "2"), ("colour", "red")]).unwrap_err().contains("colour"));
        send(63);
        assert_eq!((port.ifindex(), recorded("b")), (None, vec![62, 63]));
        // A file that has gone is missed when somebody looks, and not before.
        env.dummies.renew_recordings();
        std::fs::remove_file(path("b")).unwrap();
        send(64);
        env.dummies.renew_recordings();
        send(65);
        assert_eq!(recorded("b"), [65]);
    }

    #[test]
    fn a_port_with_an_address_answers_arp_requests_for_it() {
        let (port, dummy) = open(&Env::default(), "p0", &[]);
        dummy.set_address(Ipv4Addr::new(10, 0, 0, 9));
        let (mut tx, mut rx) = (port.tx_queue(0).unwrap(), port.take_rx_queues());
        let asker = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
        let mut batch = Batch::new();
        for (last, answers) in [(8, 0), (9, 1)] {
            let body = build::arp(ARP_REQUEST, asker.0, asker.1, [0; 6], Ipv4Addr::new(10, 0, 0, last));
            batch.push(Packet::from_slice(&build::ethernet([0xff; 6], asker.0, &[], 0x0806, &body)));
            tx.transmit(&mut batch, Time(0));
            assert_eq!(rx[0].receive(&mut batch, Time(0)), answers);
        }
        let reply = batch.drain(..).next().unwrap();
        let reply = arp::Packet::new_checked(&reply.data()[14..]).unwrap();
        assert_eq!((reply.opcode(), reply.sha(), reply.tpa()), (ARP_REPLY, port.mac(), asker.1));
    }

    #[test]
    fn addresses_count_up_as_in_ovs() {
        let env = Env::default();
        let macs: Vec<_> = (0..3).map(|i| open(&env, &format!("p{i}"), &[]).0.mac()).collect();
        assert_eq!(macs[2], [0xaa, 0x55, 0xaa, 0x55, 0, 3]);
        assert_eq!(macs[0][5], 1);
        assert!(env.dummies.names().is_empty(), "closed ports leave the directory");
    }

    #[test]
    fn full_queue_drops_and_counts() {
        let (_port, dummy) = open(&Env::default(), "p0", &[]);
        let taken = (0..RX_QUEUE_LEN + 5).filter(|_| dummy.inject(&frame(60))).count();
        assert_eq!((taken, dummy.counted().rx_dropped), (RX_QUEUE_LEN, 5));
    }
}
