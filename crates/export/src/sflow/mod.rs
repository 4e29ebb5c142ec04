//! sFlow version 5 (sflow.org, "sFlow Version 5", July 2004): samples of packets, and of the counters of ports.
//!
//! An [`Agent`] stands for a bridge. Samples gather in a datagram, which is sent when it is full, and at the end of each
//! second. The counters of a port are sampled once in each polling interval; the ports are spread over it.

pub mod datagram;

use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;
use packet::Time;

use crate::settings::Sflow;
use crate::tunnel::Tunnel;
use crate::{MAX_DATAGRAM, Moment, Sink};
use datagram::{Datagram, Source};

/// How long a sample may wait for others.
const TICK: Duration = Duration::from_secs(1);

/// When it is looked for the first time what there is to send: whoever has just set an agent up soon hears of it.
const FIRST: Duration = Duration::from_millis(500);

/// Most bytes of a packet in a sample, so that a datagram always has room for one.
pub const MAX_HEADER: usize = 1000;

/// The bridge as a source of samples is an entity of its own, whose numbers begin here.
const FIRST_BRIDGE: u32 = 1000;

/// A packet that was sampled.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Sample {
    /// Which bridge.
    pub bridge: u32,
    /// What it begins with: see [`datagram::header_protocol`].
    pub protocol: u32,
    /// The first bytes of the packet.
    pub header: Vec<u8>,
    /// Bytes of the whole frame, without its check sequence.
    pub frame_len: u32,
    /// Interface that it came in by; zero where that has no number.
    pub input: u32,
    /// Where it goes, in sFlow's form: see [`output`].
    pub output: u32,
    /// Tag that it came with.
    pub src_tci: u16,
    /// Tag that it leaves with.
    pub dst_tci: u16,
    /// Tunnel that it has come through.
    pub ingress: Option<Tunnel>,
    /// Tunnel that it goes into.
    pub egress: Option<Tunnel>,
    /// MPLS labels that it leaves with, outermost first.
    pub mpls: Vec<u32>,
}

/// sFlow's form of where a packet goes: to how many ports, and to which, if to one that has a number.
pub fn output(outputs: u32, ifindex: u32) -> u32 {
    const DISCARDED_FOR_UNKNOWN_REASON: u32 = 0x4000_0000 | 256;
    match (outputs, ifindex) {
        (0, _) => DISCARDED_FOR_UNKNOWN_REASON,
        (1, 1..=0x3fff_ffff) => ifindex,
        (n, _) => 0x8000_0000 | n.min(0x3fff_ffff),
    }
}

/// A port whose counters are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolledPort {
    /// Number of the interface, not zero.
    pub ifindex: u32,
    /// Number of the port in OpenFlow.
    pub port: u32,
}

/// Counters of a port. Those that are not kept are all ones.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PortCounters {
    /// Name of the port.
    pub name: String,
    /// Datapath id of the bridge.
    pub datapath_id: u64,
    /// Bits for each second; zero where that is not known.
    pub speed: u64,
    /// Full duplex, half duplex, or not known.
    pub full_duplex: Option<bool>,
    /// The port is enabled.
    pub admin_up: bool,
    /// It has a carrier.
    pub up: bool,
    /// Bytes and packets received.
    pub rx: (u64, u64),
    /// Bytes and packets sent.
    pub tx: (u64, u64),
    /// Dropped on reception, and errors.
    pub rx_bad: (u64, u64),
    /// Dropped on transmission, and errors.
    pub tx_bad: (u64, u64),
    /// Frames that are not aligned, that have a bad check sequence, that are too long.
    pub frames_bad: (u64, u64, u64),
    /// Of a port that speaks LACP.
    pub lacp: Option<LacpCounters>,
}

/// What LACP knows of a port, and its counters ("sFlow LAG Port Statistics Structure", with the names of IEEE 802.1AX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LacpCounters {
    /// The address of this system.
    pub actor: [u8; 6],
    /// That of the partner; zero: none is known.
    pub partner: [u8; 6],
    /// The key of the bond.
    pub aggregator: u32,
    /// The states of this end, as it is configured and as it is, and those of the partner.
    pub states: [u8; 4],
    /// Frames received, and those among them that are not well formed.
    pub rx: (u64, u64),
    /// Frames sent.
    pub tx: u64,
}

/// What the switch has done and taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SwitchCounters {
    /// Packets that a flow matched.
    pub hits: u64,
    /// Packets that none matched.
    pub misses: u64,
    /// Packets that were lost on their way to the slow path.
    pub lost: u64,
    /// Masks that were tried.
    pub mask_hits: u64,
    /// Flows.
    pub flows: u32,
    /// Masks.
    pub masks: u32,
    /// Milliseconds of processor time as a user and in the kernel.
    pub time: (u32, u32),
    /// Bytes of memory.
    pub memory: u64,
}

/// Where counters come from.
pub trait Counters {
    /// The ports of a bridge that have a number as an interface.
    fn ports(&self, bridge: u32) -> Vec<PolledPort>;

    /// The counters of a port, if it is still there.
    fn port(&self, bridge: u32, port: u32) -> Option<PortCounters>;

    /// The address of a device.
    fn address(&self, device: &str) -> Option<IpAddr>;

    /// Samples that were lost on their way to the exporter, so far.
    fn lost_samples(&self) -> u64;

    /// Those of the switch.
    fn switch(&self) -> SwitchCounters;
}

/// Whose counters are to be sampled.
#[derive(Debug)]
pub struct Poll {
    /// Of which bridge.
    pub bridge: u32,
    ports: Vec<PolledPort>,
    is_global: bool,
}

/// What they are.
pub struct Polled {
    /// Of which bridge.
    pub bridge: u32,
    ports: Vec<(PolledPort, PortCounters)>,
    switch: Option<SwitchCounters>,
}

impl Poll {
    /// Reads the counters. That may take long: devices are asked.
    pub fn read(self, counters: &dyn Counters) -> Polled {
        let Poll { bridge, ports, is_global } = self;
        let of_port = |port: PolledPort| Some((port, counters.port(bridge, port.port)?));
        let switch = is_global.then(|| counters.switch());
        Polled { bridge, ports: ports.into_iter().filter_map(of_port).collect(), switch }
    }
}

/// The agent of a bridge.
pub struct Agent {
    settings: Sflow,
    datagram: Datagram,
    started: Time,
    /// Samples of packets, and of the counters of each interface and of the switch, so far.
    samples: u32,
    counter_samples: HashMap<u32, u32>,
    /// Packets out of which samples were taken.
    pool: u32,
    /// Samples that were lost.
    drops: u32,
    next_tick: Time,
    /// Ticks so far.
    ticks: u64,
}

impl Agent {
    /// An agent that has the address `address`.
    pub fn new(settings: Sflow, address: IpAddr, now: Time) -> Agent {
        Agent {
            datagram: Datagram::new(address, settings.sub_id),
            settings,
            started: now,
            samples: 0,
            counter_samples: HashMap::new(),
            pool: 0,
            drops: 0,
            next_tick: now + FIRST,
            ticks: 0,
        }
    }

    /// When [`poll`](Agent::poll) has something to say.
    pub fn next(&self) -> Time {
        self.next_tick
    }

    /// Samples of packets so far.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Sets the address of the agent. What has not been sent gets it, too.
    pub fn set_address(&mut self, address: IpAddr) {
        self.datagram.set_agent(address);
    }

    /// Notes that samples were lost.
    pub fn lose(&mut self, samples: u64) {
        self.drops = self.drops.wrapping_add(samples as u32);
    }

    fn source(&self) -> Source {
        Source { class: datagram::PHYSICAL_ENTITY, index: FIRST_BRIDGE.wrapping_add(self.settings.sub_id) & 0xff_ffff }
    }

    /// Takes a sample.
    pub fn sample(&mut self, sample: &Sample, at: Moment, sink: &mut dyn Sink) {
        self.samples = self.samples.wrapping_add(1);
        // What was not sampled is not counted; on average it is this much.
        self.pool = self.pool.wrapping_add(self.settings.sampling);
        let about = datagram::FlowSample {
            number: self.samples,
            source: self.source(),
            rate: self.settings.sampling,
            pool: self.pool,
            drops: self.drops,
            sample,
            header: usize::from(self.settings.header).min(MAX_HEADER),
        };
        let mut bytes = Vec::with_capacity(256);
        datagram::put_flow_sample(&mut bytes, &about);
        self.add(&bytes, at, sink);
    }

    fn add(&mut self, sample: &[u8], at: Moment, sink: &mut dyn Sink) {
        if self.datagram.len() + sample.len() > MAX_DATAGRAM {
            self.flush(at, sink);
        }
        self.datagram.add(sample);
    }

    /// Sends the samples that wait for others.
    pub fn flush(&mut self, at: Moment, sink: &mut dyn Sink) {
        let uptime = at.now.since(self.started).as_millis() as u32;
        if let Some(bytes) = self.datagram.take(uptime) {
            sink.send(&bytes);
        }
    }

    /// Says whose counters are to be sampled this second, unless that has been asked for. `is_global`: the agent tells the
    /// counters of the switch, too.
    pub fn poll(&mut self, bridge: u32, is_global: bool, counters: &dyn Counters, at: Moment) -> Option<Poll> {
        if at.now < self.next_tick {
            return None;
        }
        // After a long pause it is done once.
        let passed = at.now.since(self.next_tick).as_nanos() / TICK.as_nanos() + 1;
        self.ticks += passed as u64;
        self.next_tick = self.started + FIRST + TICK * u32::try_from(self.ticks).unwrap_or(u32::MAX);
        let interval = self.settings.polling.as_secs();
        if interval == 0 {
            return Some(Poll { bridge, ports: Vec::new(), is_global: false });
        }
        // The turns of an interface until a second; it is due where one has come since the last tick.
        let turns = |index: u32, until: u64| (until + interval - u64::from(index) % interval) / interval;
        let before = self.ticks - passed as u64;
        let is_due = |index: u32| turns(index, self.ticks) > turns(index, before);
        let ports = counters.ports(bridge).into_iter().filter(|port| is_due(port.ifindex)).collect();
        Some(Poll { bridge, ports, is_global: is_global && is_due(0) })
    }

    /// Takes what was asked for, and sends what there is.
    pub fn polled(&mut self, polled: &Polled, at: Moment, sink: &mut dyn Sink) {
        if let Some(switch) = &polled.switch {
            self.sample_switch(switch, at, sink);
        }
        for (port, counters) in &polled.ports {
            self.sample_port(*port, counters, at, sink);
        }
        self.flush(at, sink);
    }

    fn sample_port(&mut self, port: PolledPort, counters: &PortCounters, at: Moment, sink: &mut dyn Sink) {
        let source = Source { class: datagram::IFINDEX, index: port.ifindex & 0xff_ffff };
        let number = self.next_counter_sample(port.ifindex);
        let mut bytes = Vec::with_capacity(256);
        datagram::put_port_counters(&mut bytes, number, source, port, counters);
        self.add(&bytes, at, sink);
    }

    fn sample_switch(&mut self, counters: &SwitchCounters, at: Moment, sink: &mut dyn Sink) {
        let number = self.next_counter_sample(0);
        let mut bytes = Vec::with_capacity(128);
        datagram::put_switch_counters(&mut bytes, number, self.source(), counters);
        self.add(&bytes, at, sink);
    }

    fn next_counter_sample(&mut self, ifindex: u32) -> u32 {
        // Interfaces come and go. What was known of all of them is forgotten when there have been too many.
        const MAX_INTERFACES: usize = 65_536;
        if self.counter_samples.len() >= MAX_INTERFACES {
            self.counter_samples.clear();
        }
        let number = self.counter_samples.entry(ifindex).or_default();
        *number = number.wrapping_add(1);
        *number
    }
}

#[cfg(test)]
mod tests;
