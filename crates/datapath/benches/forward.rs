//! The whole loop: frames in memory to a port that throws them away, one flow for all packets and one
//! for each, with one mask and with several. Prints cycles per packet of the worker beside criterion's time for a batch of 32.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::clock::MonotonicClock;
use datapath::{Action, Config, Datapath, FlowSpec, PortNo, Rewrite};
use packet::buffer::RawPacket;
use packet::{BATCH_SIZE, Batch, Field, Key, Mask, Memory, Offload, Packet, Time};
use ports::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxQueue};

/// Frames that live as long as the process and are never given back.
static STATIC: Memory = Memory { name: "static", release: |_| (), release_all: |_| (), allocate: |_, _, _| None };

struct Loop {
    name: &'static str,
    frames: usize,
    headroom: usize,
}

struct Source {
    memory: &'static mut [u8],
    /// Room before each frame, which shares no line with it.
    headroom: usize,
    at: usize,
}

impl RxQueue for Source {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        if self.memory.is_empty() {
            return 0;
        }
        for _ in 0..BATCH_SIZE {
            let data = NonNull::from(&mut self.memory[self.at + self.headroom]);
            self.at = (self.at + self.headroom + 64) % self.memory.len();
            let raw = RawPacket {
                data,
                handle: 0,
                memory: &STATIC,
                len: 60,
                tailroom: 4,
                rss_hash: 0,
                headroom: self.headroom as u16,
                offload: Offload::NONE,
            };
            // SAFETY: the frame is never freed, and the sink forgets a packet before it is made again.
            batch.push(unsafe { Packet::from_raw(raw) });
        }
        BATCH_SIZE
    }
}

struct Sink;

impl TxQueue for Sink {
    fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
        let count = batch.len();
        packet::buffer::release(batch);
        count
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
    fn features(&self) -> Features {
        Features::default()
    }
    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        // A trace of at least 1024 packets, in random order.
        let count = if self.frames == 0 { 0 } else { self.frames.next_multiple_of(1024) };
        let mut trace: Vec<[u8; 64]> = (0..count).map(|n| frame((n % self.frames) as u32)).collect();
        let mut state = 88_172_645_463_325_252u64;
        for i in (1..count).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            trace.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let mut memory: Vec<u8> = Vec::with_capacity(count * (self.headroom + 64) + 63);
        // Frames start with a line.
        memory.resize(memory.as_ptr().align_offset(64), 0);
        let first = memory.len();
        for frame in trace {
            memory.resize(memory.len() + self.headroom, 0);
            memory.extend(frame);
        }
        vec![Box::new(Source { memory: &mut memory.leak()[first..], headroom: self.headroom, at: 0 })]
    }
    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Sink))
    }
}

fn frame(flow: u32) -> [u8; 64] {
    let mut f = [0u8; 64];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    (f[14], f[17], f[20], f[22], f[23], f[37], f[39]) = (0x45, 46, 0x40, 64, 17, 53, 26);
    f[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    f[30..34].copy_from_slice(&0xc612_0001u32.to_be_bytes());
    f[34..36].copy_from_slice(&((1024 + flow % 50_000) as u16).to_be_bytes());
    f
}

/// What is matched.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    /// The input port only, and packets are forwarded.
    Port,
    /// The input port only, and packets are dropped.
    Drop,
    /// The input port only, and packets get a VLAN tag.
    Push,
    /// The input port only, and packets are sent to another address.
    Readdress,
    /// Each flow by its source, and packets get a VLAN tag.
    SourcesPush,
    /// All packets, by protocol and a prefix of the destination.
    Prefix,
    /// Each flow by its source, with one of so many masks.
    Sources(usize),
}

fn specs(rules: Rules, flows: usize, source: PortNo, sink: PortNo) -> Vec<FlowSpec> {
    let number = if matches!(rules, Rules::Sources(_) | Rules::SourcesPush) { flows } else { 1 };
    let spec = |flow: usize| {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        key.set(Field::InPortOxm, source.0.into());
        match rules {
            Rules::Port | Rules::Drop | Rules::Push | Rules::Readdress => {}
            Rules::Prefix => {
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
        let push = || Action::PushVlan { tpid: 0x8100, tci: 100 };
        let actions = match rules {
            Rules::Drop => vec![],
            Rules::Push | Rules::SourcesPush => vec![push(), Action::Output(sink)],
            Rules::Readdress => {
                vec![Action::Set(Arc::new(Rewrite::field(Field::NwDst, 0xc612_0002))), Action::Output(sink)]
            }
            _ => vec![Action::Output(sink)],
        };
        FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag: Arc::new(()) }
    };
    (0..number).map(spec).collect()
}

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    group.throughput(Throughput::Elements(BATCH_SIZE as u64)).sample_size(20);
    for (name, flows, rules) in [
        ("floor", 1, None),
        ("port rule, 1 flow", 1, Some(Rules::Port)),
        ("drop rule, 1 flow", 1, Some(Rules::Drop)),
        ("push_vlan, 1 flow", 1, Some(Rules::Push)),
        ("push_vlan, 1000 flows", 1_000, Some(Rules::SourcesPush)),
        ("set nw_dst, 1 flow", 1, Some(Rules::Readdress)),
        ("prefix rule, 1 flow", 1, Some(Rules::Prefix)),
        ("prefix rule, 1000 flows", 1_000, Some(Rules::Prefix)),
        ("prefix rule, 100000 flows", 100_000, Some(Rules::Prefix)),
        ("source rules, 1 flow, 1 mask", 1, Some(Rules::Sources(1))),
        ("source rules, 1000 flows, 1 mask", 1_000, Some(Rules::Sources(1))),
        ("source rules, 10000 flows, 1 mask", 10_000, Some(Rules::Sources(1))),
        ("source rules, 10000 flows, 20 masks", 10_000, Some(Rules::Sources(20))),
        ("source rules, 100000 flows, 1 mask", 100_000, Some(Rules::Sources(1))),
        ("source rules, 1000000 flows, 1 mask", 1_000_000, Some(Rules::Sources(1))),
    ] {
        // As criterion has it: only what is named on the command line.
        if std::env::args().skip(1).any(|arg| !arg.starts_with('-') && !name.contains(&*arg)) {
            continue;
        }
        let Some(rules) = rules else {
            let mut source = Loop { name: "source", frames: flows, headroom: 0 }.take_rx_queues();
            let (mut sink, mut batch) = (Sink, Batch::new());
            let mut floor = || {
                source[0].receive(&mut batch, Time(0));
                sink.transmit(&mut batch, Time(0));
            };
            let mut cycles = || {
                let start = datapath::tsc::cycles();
                (0..10_000).for_each(|_| floor());
                datapath::tsc::cycles() - start
            };
            let rounds = rounds(|| cycles() as f64 / (10_000 * BATCH_SIZE) as f64);
            println!("    {name}: cycles per packet {rounds}");
            continue;
        };
        let config = Config { max_flows: 2_000_000, exact_entries: 1 << 21, ..Config::default() };
        // A tag goes where a driver leaves room for it.
        let headroom = if matches!(rules, Rules::Push | Rules::SourcesPush) { 64 } else { 0 };
        let dp = Datapath::new(config, Arc::new(MonotonicClock::new()));
        let source = dp.add_port(Arc::new(Loop { name: "source", frames: flows, headroom })).expect("the port");
        let sink = dp.add_port(Arc::new(Loop { name: "sink", frames: 0, headroom: 0 })).expect("the port");
        for spec in specs(rules, flows, source, sink) {
            dp.install(spec).expect("below the limits");
        }
        for _ in 0..10 * flows.max(1024) / BATCH_SIZE {
            dp.poll();
        }
        let batches = (flows / BATCH_SIZE).max(10_000);
        // Of the worker's turns, without what polls it.
        let cycles = || {
            dp.reset_stats();
            (0..batches).for_each(|_| {
                dp.poll();
            });
            dp.stats().workers[0].cycles_per_packet()
        };
        let rounds = rounds(cycles);
        let worker = &dp.stats().workers[0];
        let share = |n: u64| 100.0 * n as f64 / worker.received as f64;
        println!(
            "    {name}: cycles per packet {rounds}; hits: simple {:.1} %, exact {:.1} %, megaflow {:.1} %",
            share(worker.simple_hits),
            share(worker.exact_hits),
            share(worker.megaflow_hits),
        );
        assert_eq!(worker.drops.total(), if rules == Rules::Drop { worker.received } else { 0 });
        group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter(|| dp.poll()));
    }
}

/// The least and the median of several rounds.
fn rounds(round: impl FnMut() -> f64) -> String {
    let mut cycles: Vec<f64> = std::iter::repeat_with(round).take(15).collect();
    cycles.sort_by(f64::total_cmp);
    format!("{:.1} (median {:.1})", cycles[0], cycles[cycles.len() / 2])
}

criterion_group!(benches, forward);
criterion_main!(benches);
