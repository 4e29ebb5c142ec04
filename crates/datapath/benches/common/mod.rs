//! What the benchmarks of the whole loop share: a port that replays frames from memory, one that throws them
//! away, and sets of rules between the two.

use std::ptr::NonNull;
use std::sync::Arc;

use datapath::{Action, Config, Datapath, FlowSpec, PortNo, Rewrite};
use packet::buffer::RawPacket;
use packet::flow::extract::{VlanLimit, extract};
use packet::{BATCH_SIZE, Batch, Clock, Field, Key, Mask, Memory, Offload, Packet, Time};
use ports::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxQueue};

/// Buffers that live as long as the process and are never given back.
static STATIC: Memory = Memory { name: "static", release: |_| (), release_all: |_| (), allocate: |_, _, _| None };

/// Buffers that a source fills in turn, as a driver's pool would have them.
const BUFFERS: usize = 2048;

/// Free bytes before a frame.
const HEADROOM: usize = 128;

/// Free bytes behind a frame.
const TAILROOM: usize = 64;

/// Bytes of a frame. Its 64 bytes in memory are copied whole.
const FRAME: usize = 60;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Buffer {
    headroom: [u8; HEADROOM],
    frame: [u8; 64],
    tailroom: [u8; TAILROOM],
    /// So that no two frames are next to each other.
    rest: [u8; 1920],
}

/// A port that gives each of so many flows' frames equally often, in random order. With none, it only sends.
pub struct Loop {
    pub name: &'static str,
    pub flows: usize,
    /// Frames have an MPLS label.
    pub labelled: bool,
}

pub struct Source {
    trace: &'static [[u8; 64]],
    at: usize,
    buffers: NonNull<Buffer>,
    slot: usize,
}

// SAFETY: the buffers are the source's alone, but for the packets that it has given away.
unsafe impl Send for Source {}

impl RxQueue for Source {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        for _ in 0..BATCH_SIZE {
            // SAFETY: `slot` is below the number of buffers.
            let mut buffer = unsafe { self.buffers.add(self.slot) };
            // SAFETY: no packet is in the buffer: every one is thrown away before 2048 others were given.
            let frame = unsafe { &mut buffer.as_mut().frame };
            *frame = self.trace[self.at];
            self.slot = (self.slot + 1) % BUFFERS;
            self.at += 1;
            if self.at == self.trace.len() {
                self.at = 0;
            }
            let raw = RawPacket {
                data: NonNull::from(frame).cast(),
                handle: 0,
                memory: &STATIC,
                len: FRAME as u32,
                tailroom: (64 - FRAME + TAILROOM) as u32,
                rss_hash: 0,
                headroom: HEADROOM as u16,
                offload: Offload::NONE,
            };
            // SAFETY: there is that much of the buffer before and behind the frame, which is never freed.
            batch.push(unsafe { Packet::from_raw(raw) });
        }
        BATCH_SIZE
    }
}

pub struct Sink;

impl TxQueue for Sink {
    fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
        let count = batch.len();
        packet::buffer::release(batch);
        count
    }
}

impl Loop {
    pub fn source(&self) -> Source {
        // A trace of at least 1024 packets.
        let count = self.flows.next_multiple_of(1024);
        let mut trace: Vec<[u8; 64]> = (0..count).map(|n| frame((n % self.flows) as u32, self.labelled)).collect();
        let mut state = 88_172_645_463_325_252u64;
        for i in (1..count).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            trace.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let none = Buffer { headroom: [0; HEADROOM], frame: [0; 64], tailroom: [0; TAILROOM], rest: [0; 1920] };
        let buffers = vec![none; BUFFERS].leak();
        Source { trace: trace.leak(), at: 0, buffers: NonNull::from(buffers).cast(), slot: 0 }
    }
}

impl Port for Loop {
    fn name(&self) -> &str {
        self.name
    }
    fn kind(&self) -> &'static str {
        "loop"
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
        if self.flows == 0 { vec![] } else { vec![Box::new(self.source())] }
    }
    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Sink))
    }
}

/// A UDP frame, perhaps with a label.
fn frame(flow: u32, labelled: bool) -> [u8; 64] {
    let plain = plain_frame(flow);
    if !labelled {
        return plain;
    }
    let mut f = [0; 64];
    f[..12].copy_from_slice(&plain[..12]);
    f[12..18].copy_from_slice(&[0x88, 0x47, 0, 1, 1, 64]);
    f[18..].copy_from_slice(&plain[14..60]);
    // With the label, the datagram that fits into the frame is shorter.
    (f[21], f[43]) = (42, 22);
    f
}

fn plain_frame(flow: u32) -> [u8; 64] {
    let mut f = [0u8; 64];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    (f[14], f[17], f[20], f[22], f[23], f[37], f[39]) = (0x45, 46, 0x40, 64, 17, 53, 26);
    f[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    f[30..34].copy_from_slice(&0xc612_0001u32.to_be_bytes());
    f[34..36].copy_from_slice(&((1024 + flow % 50_000) as u16).to_be_bytes());
    f
}

/// What is matched, and what is done.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "each benchmark uses what it needs")]
pub enum Rules {
    /// The input port only, and packets are forwarded.
    Port,
    /// The input port only, and packets are dropped.
    Drop,
    /// All packets, by protocol and a prefix of the destination.
    Prefix,
    /// The input port only, and packets get a VLAN tag.
    Push,
    /// The input port only, and packets are sent to another address.
    Readdress,
    /// Each flow by its source, with one of so many masks.
    Sources(usize),
    /// Each flow by protocol, addresses and ports.
    Tuples,
    /// Each flow by its source, and packets get a VLAN tag.
    SourcesPush,
    /// All packets, by a prefix of the destination, and this is done with them before they are sent: at once, or by way of
    /// another stage, whose flows look at the prefix and at what was done.
    Before(Before, bool),
}

/// What sends packets to another stage.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "each benchmark uses what it needs")]
pub enum Before {
    /// A hash of their headers is computed, which spreads them over eight flows, as bonds do.
    Hash,
    /// A label is taken off.
    PopMpls,
    /// Metadata is written.
    Mark,
}

/// The recirculation id of the other stage.
const STAGE: u32 = 7;

impl Before {
    fn action(self) -> Action {
        match self {
            Before::Hash => Action::Hash { basis: 3 },
            Before::PopMpls => Action::PopMpls { ethertype: 0x0800 },
            Before::Mark => Action::Set(Arc::new(Rewrite::field(Field::TunId, 9))),
        }
    }

    /// The flows of the other stage.
    fn later(self, source: PortNo, sink: PortNo) -> Vec<FlowSpec> {
        let buckets = if self == Before::Hash { 8 } else { 1 };
        let spec = |bucket: u128| {
            let (mut key, mut mask) = (Key::new(), Mask::wildcard());
            key.set(Field::InPortOxm, source.0.into());
            key.set(Field::RecircId, STAGE.into());
            prefix(&mut key, &mut mask);
            match self {
                Before::Hash => {
                    key.set(Field::DpHash, bucket);
                    mask.add(Field::DpHash, 7);
                }
                Before::PopMpls => {}
                Before::Mark => {
                    key.set(Field::TunId, 9);
                    mask.set_exact(Field::TunId);
                }
            }
            FlowSpec {
                key: Box::new(key),
                mask: Box::new(mask),
                actions: vec![Action::Output(sink)],
                tag: Arc::new(()),
            }
        };
        (0..buckets).map(spec).collect()
    }
}

/// UDP over IPv4 to a prefix.
fn prefix(key: &mut Key, mask: &mut Mask) {
    for (field, value, bits) in [
        (Field::DlType, 0x0800, 0xffff),
        (Field::NwProto, 17, 0xff),
        (Field::NwFrag, 0, 3),
        (Field::NwDst, 0xc612_0000, 0xfffe_0000),
    ] {
        key.set(field, value);
        mask.add(field, bits);
    }
}

fn specs(rules: Rules, flows: usize, source: PortNo, sink: PortNo) -> Vec<FlowSpec> {
    let number = if matches!(rules, Rules::Sources(_) | Rules::Tuples | Rules::SourcesPush) { flows } else { 1 };
    let spec = |flow: usize| {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        key.set(Field::InPortOxm, source.0.into());
        match rules {
            Rules::Port | Rules::Drop | Rules::Push | Rules::Readdress => {}
            Rules::Prefix => prefix(&mut key, &mut mask),
            Rules::Before(Before::PopMpls, _) => {
                key.set(Field::DlType, 0x8847);
                mask.set_exact(Field::DlType);
            }
            Rules::Before(..) => prefix(&mut key, &mut mask),
            Rules::Tuples => {
                extract(&frame(flow as u32, false), &mut key, VlanLimit::default());
                key.set(Field::InPortOxm, source.0.into());
                for field in [Field::DlType, Field::NwFrag, Field::NwProto, Field::NwSrc, Field::NwDst] {
                    mask.set_exact(field);
                }
                [Field::UdpSrc, Field::UdpDst].iter().for_each(|&field| mask.set_exact(field));
            }
            Rules::SourcesPush => {
                key.set(Field::NwSrc, u128::from(0x0a00_0000 + flow as u32));
                mask.set_exact(Field::NwSrc);
            }
            Rules::Sources(masks) => {
                key.set(Field::NwSrc, u128::from(0x0a00_0000 + flow as u32));
                mask.set_exact(Field::NwSrc);
                // Bits that are zero in every packet.
                mask.add(Field::NwTos, (flow % masks) as u128);
            }
        }
        let actions = match rules {
            Rules::Drop => vec![],
            Rules::Push | Rules::SourcesPush => {
                vec![Action::PushVlan { tpid: 0x8100, tci: 100 }, Action::Output(sink)]
            }
            Rules::Readdress => {
                vec![Action::Set(Arc::new(Rewrite::field(Field::NwDst, 0xc612_0002))), Action::Output(sink)]
            }
            Rules::Before(before, again) => {
                vec![before.action(), if again { Action::Recirc(STAGE) } else { Action::Output(sink) }]
            }
            _ => vec![Action::Output(sink)],
        };
        FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag: Arc::new(()) }
    };
    let later = match rules {
        Rules::Before(before, true) => before.later(source, sink),
        _ => vec![],
    };
    (0..number).map(spec).chain(later).collect()
}

/// The core that what is measured runs on: the last one.
pub fn last_core() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) - 1
}

/// A datapath with a source of so many flows, a sink, and rules between them, after `passes` passes of all flows. Its
/// worker has its core once it is started.
pub fn datapath(rules: Rules, flows: usize, clock: Arc<dyn Clock>, passes: usize) -> Arc<Datapath> {
    let (max_flows, exact_entries) = (5_000_000, 1 << 23);
    let config = Config { workers: vec![last_core()], max_flows, exact_entries, ..Config::default() };
    let dp = Datapath::new(config, clock);
    let source = dp
        .add_port(Arc::new(Loop {
            name: "source",
            flows,
            labelled: matches!(rules, Rules::Before(Before::PopMpls, _)),
        }))
        .expect("the port");
    let sink = dp.add_port(Arc::new(Loop { name: "sink", flows: 0, labelled: false })).expect("the port");
    for spec in specs(rules, flows, source, sink) {
        dp.install(spec).expect("below the limits");
    }
    for _ in 0..passes * flows.max(1024) / BATCH_SIZE {
        dp.poll();
    }
    dp
}
