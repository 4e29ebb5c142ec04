//! Flow set-ups: packets that all differ in their UDP ports, against a rule that makes each of them a flow of its own.
//!
//!     cargo bench -p weir-ofproto --bench setups -- [--packets N] [--workers N] [--handlers N] [--window N]
//!         [--parse] [--flood] [--looked-at] [--flow-limit N]
//!
//! The source is a generator: 10.1 million packets, unless `--packets` says otherwise, divided among the workers. It
//! keeps `--window` packets on their way for each worker, and gives another when one has come out of the switch, so that
//! what is measured is how many flows can be set up in a second. With `--flood`, it gives packets as fast as a worker takes
//! them, and most find no room in the slow path.
//!
//! With `--looked-at`, a rule of a second table matches the register that the ports are copied to. So no translation
//! serves a second packet.
//!
//! With `--parse`, the slow path does not use what the fast path has found out about a packet. It parses the packet
//! again, for its key, and for the offsets of its headers, and hashes the key.
//!
//! Printed are set-ups in a second; the share of the packets that were forwarded by what was decided for them; and the
//! processor time that the handlers and the workers took for one of them, which tells what more handlers would do on
//! more cores than the machine has.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapath::sync::clock::MonotonicClock;
use datapath::{Config, Datapath, FlowId, FlowTag, Miss, Punt, RemovedFlow, Upcall};
use ofproto::{Bridge, BridgeConfig, FailMode, PortSpec, Switch, SwitchSettings};
use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, Subfield, TableId};
use packet::buffer::pool::{Pool, PoolConfig};
use packet::flow::extract::{VlanLimit, extract};
use packet::flow::hash::Hasher;
use packet::wire::build;
use packet::{BATCH_SIZE, Batch, Clock, Field, Key, Mask, Packet, Time};
use ports::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxQueue};

/// What is measured.
struct Options {
    packets: u64,
    workers: usize,
    handlers: usize,
    window: u64,
    parse: bool,
    flood: bool,
    looked_at: bool,
    flow_limit: usize,
}

impl Options {
    fn from_args() -> Options {
        let mut options = Options {
            packets: 10_100_000,
            workers: 1,
            handlers: 1,
            window: 512,
            parse: false,
            flood: false,
            looked_at: false,
            flow_limit: Config::default().max_flows,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut number = || args.next().and_then(|n| n.parse::<usize>().ok()).expect("a number after the option");
            match &*arg {
                "--packets" => options.packets = number() as u64,
                "--workers" => options.workers = number(),
                "--handlers" => options.handlers = number(),
                "--window" => options.window = number() as u64,
                "--flow-limit" => options.flow_limit = number(),
                "--parse" => options.parse = true,
                "--flood" => options.flood = true,
                "--looked-at" => options.looked_at = true,
                // What cargo passes.
                "--bench" => {}
                other => panic!("there is no option {other}"),
            }
        }
        options
    }
}

/// What one source has given, and what of that has come out.
#[derive(Default)]
struct Way {
    given: AtomicU64,
    sent: AtomicU64,
}

/// A port that gives packets, all with different ports, or takes them.
struct Generator {
    name: String,
    pool: &'static Pool,
    way: Arc<Way>,
    /// How many, and how many of them may be on their way; zero: it takes packets only.
    packets: u64,
    window: u64,
}

struct Source {
    pool: &'static Pool,
    way: Arc<Way>,
    frame: Vec<u8>,
    packets: u64,
    window: u64,
    next: u64,
}

impl RxQueue for Source {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        let room = self.window.saturating_sub(self.next - self.way.sent.load(Relaxed));
        let count = room.min(self.packets - self.next).min(BATCH_SIZE as u64);
        let mut given = 0;
        while given < count
            && let Some(mut packet) = self.pool.allocate()
        {
            let frame = packet.push_back(self.frame.len()).expect("a chunk is larger");
            frame.copy_from_slice(&self.frame);
            let ports = (self.next + given) as u32;
            frame[34..38].copy_from_slice(&ports.rotate_left(16).to_be_bytes());
            batch.push(packet);
            given += 1;
        }
        self.next += given;
        self.way.given.store(self.next, Relaxed);
        given as usize
    }
}

struct Sink(Arc<Way>);

impl TxQueue for Sink {
    fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
        let count = batch.len();
        self.0.sent.fetch_add(count as u64, Relaxed);
        packet::buffer::release(batch);
        count
    }
}

impl Port for Generator {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "generator"
    }
    fn mac(&self) -> Mac {
        [2; 6]
    }
    fn mtu(&self) -> u32 {
        1500
    }
    fn link(&self) -> Link {
        Link { up: true, admin_up: true, resets: 0 }
    }
    fn set_admin_up(&self, _: bool) -> Result<(), Error> {
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
    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        if self.packets == 0 {
            return Vec::new();
        }
        let ip =
            build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [198, 18, 0, 1].into(), proto: 17, ..Default::default() };
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &ip.packet(build::udp(0, 0, &[0; 18])));
        let Generator { pool, packets, window, .. } = *self;
        vec![Box::new(Source { pool, way: self.way.clone(), frame, packets, window, next: 0 })]
    }
    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Sink(self.way.clone())))
    }
}

/// A slow path that is told nothing but the packet and its port.
struct Parse {
    switch: Arc<Switch>,
    hasher: Hasher,
}

impl Upcall for Parse {
    fn misses(&self, misses: &mut [Miss], now: Time) {
        for miss in &mut *misses {
            let in_port = miss.key.common().in_port;
            let mut key = Box::new(Key::new());
            miss.layers = extract(miss.packet.data(), &mut key, VlanLimit::default());
            key.common_mut().in_port = in_port;
            miss.hash = self.hasher.hash_key(&key);
            assert!(miss.key == key, "what was handed over is the same");
            miss.key = key;
        }
        self.switch.misses(misses, now);
    }

    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, now: Time) {
        self.switch.punt(packet, key, punt, now);
    }

    fn version_of(&self, tag: &FlowTag, key: &Key, mask: &Mask) -> Option<u64> {
        self.switch.version_of(tag, key, mask)
    }

    fn is_current(&self, version: u64) -> bool {
        self.switch.is_current(version)
    }

    fn installed(&self, flows: &[(FlowId, FlowTag)]) {
        self.switch.installed(flows);
    }

    fn evicted(&self, flows: Vec<RemovedFlow>) {
        self.switch.evicted(flows);
    }
}

/// What is measured: a switch with a source and a sink for each worker.
struct Bed {
    switch: Arc<Switch>,
    datapath: Arc<Datapath>,
    ways: Vec<Arc<Way>>,
    _bridge: Bridge,
}

fn bed(options: &Options, clock: Arc<MonotonicClock>) -> Bed {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (0..options.workers).map(|n| (2 * cores - 1 - n) % cores).collect();
    let config = Config { workers, handlers: options.handlers, max_flows: options.flow_limit, ..Config::default() };
    let hasher = Hasher::new(config.seed);
    let datapath = Datapath::new(config, clock.clone());
    let switch = Switch::new(SwitchSettings::default(), clock);
    if options.parse {
        datapath.set_upcall(Arc::new(Parse { switch: switch.clone(), hasher }));
    }
    switch.attach(datapath.clone());
    let bridge = switch.add_bridge(BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br0", 1) });
    let bridge = bridge.expect("new");
    let pool = Pool::new(PoolConfig::default()).expect("memory");
    let ways: Vec<Arc<Way>> = (0..options.workers).map(|_| Arc::default()).collect();
    for (n, way) in ways.iter().enumerate() {
        let window = if options.flood { u64::MAX } else { options.window };
        let packets = options.packets / options.workers as u64;
        for (side, packets) in [("in", packets), ("out", 0)] {
            let port = Generator { name: format!("{side}{n}"), pool, way: way.clone(), packets, window };
            bridge.add_port(PortSpec::new(Arc::new(port))).expect("new");
        }
        let copy = |field, at| Action::RegMove {
            src: Subfield::new(field, 0, 16).expect("all of it"),
            dst: Subfield::new(Field::Reg0, at, 16).expect("half of it"),
        };
        let output = Action::output(OfPort(2 * n as u32 + 2));
        let mut actions = vec![copy(Field::UdpSrc, 0), copy(Field::UdpDst, 16)];
        if options.looked_at {
            let (in_port, table) = (OfPort::IN_PORT, TableId(1));
            actions.push(Action::Resubmit { in_port, table, with_ct: false });
            let mut no_packet = Match::any();
            no_packet.set(Field::Reg0, 0xffff_ffff);
            let mut from_here = Match::any();
            from_here.set(Field::InPortOxm, 2 * n as u128 + 1);
            for (priority, matching, actions) in [(2, no_packet, Vec::new()), (1, from_here, vec![output])] {
                let change = FlowMod::new(FlowModCommand::Add, matching, Instructions::apply(actions));
                bridge.flow_mod(&FlowMod { table: Some(table), priority, ..change }).expect("a valid flow");
            }
        } else {
            actions.push(output);
        }
        let mut matching = Match::any();
        for (field, value) in [(Field::InPortOxm, 2 * n as u128 + 1), (Field::DlType, 0x0800), (Field::NwProto, 17)] {
            matching.set(field, value);
        }
        let change = FlowMod::new(FlowModCommand::Add, matching, Instructions::apply(actions));
        bridge.flow_mod(&change).expect("a valid flow");
    }
    Bed { switch, datapath, ways, _bridge: bridge }
}

/// Processor time of the threads whose names begin like this.
fn time_of(threads: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let of = |task: fs::DirEntry| {
        let is_one = fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(threads));
        let time = fs::read_to_string(task.path().join("schedstat")).ok().filter(|_| is_one)?;
        time.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(of).sum())
}

fn main() {
    let options = Options::from_args();
    let clock = Arc::new(MonotonicClock::new());
    let Bed { switch, datapath, ways, _bridge } = bed(&options, clock.clone());
    std::thread::spawn(move || {
        loop {
            let next = switch.run(clock.now());
            switch.wait(next.since(clock.now()));
        }
    });
    let start = Instant::now();
    datapath.start().expect("threads");
    let given = || ways.iter().map(|way| way.given.load(Relaxed)).sum::<u64>();
    let all = options.packets / options.workers as u64 * options.workers as u64;
    let answered = || {
        let stats = datapath.stats();
        stats.workers.iter().fold((0, 0), |(misses, lost), w| (misses + w.misses, lost + w.lost))
    };
    let end = start + Duration::from_secs(120);
    while Instant::now() < end {
        let (misses, lost) = answered();
        if given() == all && misses + lost >= all {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let elapsed = start.elapsed();
    let (handlers, workers) = (time_of("handler"), time_of("worker"));
    let (setups, lost) = answered();
    let stats = datapath.stats();
    let each = |time: Duration| time.as_nanos() as f64 / setups as f64;
    println!(
        "{} workers, {} handlers{}{}{}: {:.0} set-ups/s; {setups} of {} packets by their flow ({:.1} %), {lost} lost; \
         {:.0} ns of a handler and {:.0} ns of a worker for each; {} flows, {} evicted",
        options.workers,
        options.handlers,
        if options.parse { ", parsed again" } else { "" },
        if options.flood { ", flood" } else { "" },
        if options.looked_at { ", looked at" } else { "" },
        setups as f64 / elapsed.as_secs_f64(),
        given(),
        100.0 * setups as f64 / given() as f64,
        each(handlers),
        each(workers),
        stats.flows,
        stats.evictions,
    );
    datapath.stop();
}
