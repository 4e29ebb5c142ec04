//! The whole loop: frames in memory to a port that throws them away, one flow for all packets and one
//! for each, with one mask and with several. Prints cycles per packet of the worker beside criterion's time for a batch of 32.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::clock::MonotonicClock;
use datapath::{Action, Config, Datapath, FlowSpec};
use packet::buffer::RawPacket;
use packet::{BATCH_SIZE, Batch, Field, Key, Mask, Memory, Offload, Packet, Time};
use ports::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxQueue};

/// Frames that live as long as the process and are never given back.
static STATIC: Memory = Memory { name: "static", release: |_| (), allocate: |_, _, _| None };

struct Loop {
    name: &'static str,
    frames: usize,
}

struct Source {
    frames: &'static mut [[u8; 64]],
    at: usize,
}

impl RxQueue for Source {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        if self.frames.is_empty() {
            return 0;
        }
        for _ in 0..BATCH_SIZE {
            let data = NonNull::from(&mut self.frames[self.at]).cast();
            self.at = (self.at + 1) % self.frames.len();
            let raw = RawPacket {
                data,
                handle: 0,
                memory: &STATIC,
                len: 60,
                tailroom: 4,
                rss_hash: 0,
                headroom: 0,
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
        batch.drain(..).count()
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
        vec![Box::new(Source { frames: trace.leak(), at: 0 })]
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

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    group.throughput(Throughput::Elements(BATCH_SIZE as u64)).sample_size(20);
    for (packets, flows, masks) in [
        (1, 1, 1),
        (1_000, 1_000, 1),
        (10_000, 10_000, 1),
        (10_000, 10_000, 20),
        (100_000, 1, 1),
        (100_000, 100_000, 1),
    ] {
        let dp = Datapath::new(Config::default(), Arc::new(MonotonicClock::new()));
        let source = dp.add_port(Arc::new(Loop { name: "source", frames: packets })).expect("the port");
        let sink = dp.add_port(Arc::new(Loop { name: "sink", frames: 0 })).expect("the port");
        for flow in 0..flows {
            let (mut key, mut mask) = (Key::new(), Mask::wildcard());
            key.set(Field::InPortOxm, source.0.into());
            if flows > 1 {
                key.set(Field::NwSrc, u128::from(0x0a00_0000 + flow as u32));
                mask.set_exact(Field::NwSrc);
                // Bits that are zero in every packet.
                mask.add(Field::PktMark, (flow % masks) as u128);
            }
            let actions = vec![Action::Output(sink)];
            let spec = FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag: Arc::new(()) };
            dp.install(spec).expect("below the limits");
        }
        for _ in 0..2 * packets / BATCH_SIZE {
            dp.poll();
        }
        dp.reset_stats();
        let name = format!("{packets} packets, {flows} flows, {masks} masks");
        group.bench_function(BenchmarkId::from_parameter(&name), |b| b.iter(|| dp.poll()));
        let worker = &dp.stats().workers[0];
        assert_eq!(worker.drops.total(), 0);
        println!("    {name}: {:.1} cycles per packet in the worker's turns", worker.cycles_per_packet());
    }
}

criterion_group!(benches, forward);
criterion_main!(benches);
