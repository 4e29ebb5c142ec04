//! A port in memory, frames, and slow paths for tests.
#![allow(dead_code, reason = "each test uses what it needs")]

pub mod fragments;
pub mod segments;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::sync::clock::ManualClock;
use datapath::{Action, Config, Datapath, FlowSpec, Kept, Miss, PacketInPunt, PortNo, Punt, Upcall, Verdict};
use packet::{Batch, Clock, Field, Key, Mask, Packet, Time};
use ports::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxQueue};

/// A port whose frames come from and go to queues in memory.
pub struct MemPort {
    pub name: String,
    pub mtu: AtomicU32,
    pub up: AtomicBool,
    /// Whether it takes super-frames in tunnels.
    pub tunnels: AtomicBool,
    /// Whether it makes super-frames of UDP of them.
    pub datagrams: AtomicBool,
    /// Whether it takes super-frames of TCP.
    pub super_frames: AtomicBool,
    pub queues: Vec<Arc<Mutex<VecDeque<Packet>>>>,
    /// How often a worker that would receive had to wait for whoever holds a queue's lock.
    pub waits: Arc<AtomicUsize>,
    pub sent: Arc<Mutex<Vec<Packet>>>,
    pub bursts: Arc<AtomicUsize>,
    pub max_tx: usize,
    /// Written to when a frame is given in; workers can then sleep on it.
    pub event: Option<Arc<std::os::fd::OwnedFd>>,
}

impl MemPort {
    pub fn new(name: &str) -> Arc<MemPort> {
        MemPort::with(name, 1, usize::MAX, None)
    }

    pub fn with(name: &str, rx: usize, max_tx: usize, event: Option<Arc<std::os::fd::OwnedFd>>) -> Arc<MemPort> {
        Arc::new(MemPort {
            name: name.into(),
            mtu: AtomicU32::new(1500),
            up: AtomicBool::new(true),
            tunnels: AtomicBool::new(true),
            datagrams: AtomicBool::new(false),
            super_frames: AtomicBool::new(false),
            queues: (0..rx).map(|_| Arc::default()).collect(),
            waits: Arc::default(),
            sent: Arc::default(),
            bursts: Arc::default(),
            max_tx,
            event,
        })
    }

    pub fn give(&self, frame: &[u8]) {
        self.queues[0].lock().unwrap().push_back(Packet::from_slice(frame));
        if let Some(event) = &self.event {
            rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn take(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().drain(..).map(|p| p.data().to_vec()).collect()
    }

    /// Packets that no worker has received yet.
    pub fn waiting(&self) -> usize {
        self.queues[0].lock().unwrap().len()
    }

    pub fn sent(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

struct Rx(Arc<Mutex<VecDeque<Packet>>>, Option<Arc<std::os::fd::OwnedFd>>, Arc<AtomicUsize>);

impl RxQueue for Rx {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        let mut queue = self.0.try_lock().unwrap_or_else(|_| {
            self.2.fetch_add(1, Ordering::SeqCst);
            self.0.lock().unwrap()
        });
        let count = queue.len().min(batch.remaining_capacity());
        batch.extend(queue.drain(..count));
        if let Some(event) = self.1.as_ref().filter(|_| queue.is_empty()) {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
        count
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.1.as_ref().map(|event| std::os::fd::AsFd::as_fd(event))
    }
}

struct Tx(Arc<Mutex<Vec<Packet>>>, Arc<AtomicUsize>);

impl TxQueue for Tx {
    fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
        self.1.fetch_add(1, Ordering::SeqCst);
        let count = batch.len();
        self.0.lock().unwrap().extend(batch.drain(..));
        count
    }
}

impl Port for MemPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn mac(&self) -> Mac {
        [2, 0, 0, 0, 0, 1]
    }
    fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }
    fn link(&self) -> Link {
        Link { up: true, admin_up: self.up.load(Ordering::Relaxed), resets: 0 }
    }
    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.up.store(up, Ordering::Relaxed);
        Ok(())
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
    fn tx_drops(&self) -> ports::TxDrops {
        ports::TxDrops::default()
    }
    fn features(&self) -> Features {
        Features::default()
    }
    fn offloads(&self) -> Offloads {
        let [tunnels, datagrams, tso] =
            [&self.tunnels, &self.datagrams, &self.super_frames].map(|flag| flag.load(Ordering::Relaxed));
        Offloads { csum: tso, tso4: tso, tso6: tso, tunnels, datagrams, ..Offloads::default() }
    }
    fn pays_by_frame(&self) -> bool {
        true
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        self.queues
            .iter()
            .map(|q| Box::new(Rx(q.clone(), self.event.clone(), self.waits.clone())) as Box<dyn RxQueue>)
            .collect()
    }
    fn max_tx_queues(&self) -> usize {
        self.max_tx
    }
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Tx(self.sent.clone(), self.bursts.clone())))
    }
}

/// A UDP/IPv4 frame with right checksums but for UDP's, which is absent.
pub fn udp(src: u32, dst: u32, sport: u16, dport: u16) -> Vec<u8> {
    let mut f = vec![0u8; 64];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    (f[14], f[17], f[22], f[23]) = (0x45, 50, 64, 17);
    f[26..30].copy_from_slice(&src.to_be_bytes());
    f[30..34].copy_from_slice(&dst.to_be_bytes());
    let sum: u32 = (14..34).step_by(2).map(|i| u32::from(u16::from_be_bytes([f[i], f[i + 1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f[34..36].copy_from_slice(&sport.to_be_bytes());
    f[36..38].copy_from_slice(&dport.to_be_bytes());
    f[38..40].copy_from_slice(&30u16.to_be_bytes());
    f
}

/// A flow that matches `fields` exactly.
pub fn flow(in_port: PortNo, recirc: u32, fields: &[(Field, u128)], actions: Vec<Action>) -> FlowSpec {
    let (mut key, mut mask) = (Key::new(), Mask::wildcard());
    key.set(Field::InPortOxm, in_port.0.into());
    key.set(Field::RecircId, recirc.into());
    for &(field, value) in fields {
        key.set(field, value);
        mask.set_exact(field);
    }
    FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag: Arc::new(()) }
}

/// A slow path that installs flows on one field that send to one port, and records what it saw.
pub struct ToPort {
    pub port: AtomicU32,
    pub field: Field,
    pub misses: AtomicUsize,
    pub calls: AtomicUsize,
    pub install: bool,
    pub delay: Duration,
    pub punts: Mutex<Vec<(Vec<u8>, Key, u32)>>,
}

impl ToPort {
    pub fn new(port: PortNo, field: Field, install: bool) -> Arc<ToPort> {
        ToPort::slow(port, field, install, Duration::ZERO)
    }

    pub fn slow(port: PortNo, field: Field, install: bool, delay: Duration) -> Arc<ToPort> {
        Arc::new(ToPort {
            port: AtomicU32::new(port.0),
            field,
            misses: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            install,
            delay,
            punts: Mutex::default(),
        })
    }
}

impl Upcall for ToPort {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.misses.fetch_add(misses.len(), Ordering::SeqCst);
        std::thread::sleep(self.delay);
        for miss in misses {
            let actions = vec![Action::Output(PortNo(self.port.load(Ordering::SeqCst)))];
            miss.verdict = if self.install {
                let mut mask = Mask::wildcard();
                mask.set_exact(self.field);
                Verdict::Install { mask: Arc::new(mask), actions: actions.into(), tag: Arc::new(()) }
            } else {
                Verdict::Execute(actions)
            };
        }
    }

    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, _: Time) {
        let Punt::PacketIn(packet_in) = punt else { return };
        self.punts.lock().unwrap().push((packet.data().to_vec(), key.clone(), packet_in.context));
    }
}

/// A punt that can be told by its context.
pub fn packet_in(context: u32) -> Action {
    let (continuation, max_len, kept) = (None, Some(128), Kept::default());
    let punt = PacketInPunt { context, continuation, reason: 1, rule_cookie: 0, controller_id: 0, max_len, kept };
    Action::Punt(Arc::new(Punt::PacketIn(punt)))
}

/// What [`by_hand`] makes.
pub type ByHand = (Arc<Datapath>, Arc<ManualClock>, Vec<(PortNo, Arc<MemPort>)>);

/// A datapath driven by hand, with `ports` ports and a clock that stands still.
pub fn by_hand(config: Config, ports: usize) -> ByHand {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let dp = Datapath::new(config, clock.clone() as Arc<dyn Clock>);
    let ports = (0..ports)
        .map(|n| {
            let port = MemPort::new(&format!("p{n}"));
            (dp.add_port(port.clone()).unwrap(), port)
        })
        .collect();
    (dp, clock, ports)
}

/// Waits for a condition; panics after half a minute, which a busy machine does not take either.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
