//! Look-ups of established connections and new connections, one core.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use conntrack::headers::{Headers, Upper};
use conntrack::nat::{Choice, Nat};
use conntrack::protocol::tcp::Segment;
use conntrack::table::remembered::{Moment, Remembered};
use conntrack::tracker::{Metadata, Request, Tracker, Translate, Verdict};
use conntrack::tuple::{Side, Tuple};
use packet::Time;

const NOW: Time = Time(1_000_000_000);
const COMMIT: Request =
    Request { zone: 0, commit: true, force: false, nat: None, mark: None, label: None, helper: None, policy: 0 };

fn tuple(n: u32, proto: u8) -> Tuple {
    let [a, b, c, d] = n.to_be_bytes();
    let _ = a;
    Tuple::new([10, b, c, d].into(), [172, 16, 0, 1].into(), proto, (40_000, 80), 0).expect("a tuple")
}

/// An order without a pattern.
fn scattered(n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    let mut state = 1u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

fn udp(n: u32) -> Headers {
    Headers { tuple: tuple(n, 17), upper: Upper::Other }
}

fn established(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("established");
    let look = Request::default();
    for n in [1, 1_000, 10_000, 100_000, 1_000_000] {
        let tracker = Tracker::new(n, [1, 2]);
        for i in 0..n {
            tracker.track(&udp(i), &Metadata::default(), &COMMIT, NOW);
            let answer = Headers { tuple: tuple(i, 17).reverse(), upper: Upper::Other };
            tracker.track(&answer, &Metadata::default(), &look, NOW);
        }
        let packets: Vec<Headers> = scattered(n).into_iter().map(udp).collect();
        let mut next = packets.iter().cycle();
        group.throughput(Throughput::Elements(32));
        group.bench_function(BenchmarkId::new("find", n), |b| {
            b.iter(|| {
                for _ in 0..32 {
                    black_box(tracker.table.find(&next.next().expect("a cycle").tuple, NOW));
                }
            });
        });
        let mut at = 0;
        group.bench_function(BenchmarkId::new("find, batch prefetched", n), |b| {
            b.iter(|| {
                let batch: [&Headers; 32] = std::array::from_fn(|i| &packets[(at + i) % packets.len()]);
                at = (at + 32) % packets.len();
                let hashes = batch.map(|packet| tracker.table.hash(&packet.tuple));
                hashes.iter().for_each(|hash| tracker.table.prefetch(*hash));
                for (packet, hash) in batch.iter().zip(hashes) {
                    black_box(tracker.table.find_hashed(&packet.tuple, hash, NOW));
                }
            });
        });
        group.bench_function(BenchmarkId::new("track", n), |b| {
            b.iter(|| {
                for _ in 0..32 {
                    let packet = next.next().expect("a cycle");
                    black_box(&tracker.track(packet, &Metadata::default(), &look, NOW));
                }
            });
        });
        let mut verdict = Verdict::default();
        group.bench_function(BenchmarkId::new("track, batch prefetched", n), |b| {
            b.iter(|| {
                let batch: [&Headers; 32] = std::array::from_fn(|i| &packets[(at + i) % packets.len()]);
                at = (at + 32) % packets.len();
                let hashes = batch.map(|packet| tracker.table.hash(&packet.tuple));
                hashes.iter().for_each(|hash| tracker.table.prefetch(*hash));
                hashes.iter().for_each(|hash| tracker.table.prefetch_connection(*hash));
                for (packet, hash) in batch.iter().zip(hashes) {
                    tracker.track_hashed(packet, hash, &Metadata::default(), &look, NOW, &mut verdict);
                    black_box(&verdict);
                }
            });
        });
    }
    group.finish();
}

/// Packets of connections that are remembered, in batches, prefetched. Time goes on: deadlines are stored ten times a second.
fn remembered(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("remembered");
    group.throughput(Throughput::Elements(32));
    for n in [1, 10_000, 100_000] {
        let tracker = Tracker::new(2 * n, [1, 2]);
        let order = scattered(n);
        let packets: Vec<Remembered> = order.iter().map(|&i| remember_udp(&tracker, i)).collect();
        let mut at = 0;
        let mut time = NOW.0;
        group.bench_function(BenchmarkId::new("UDP", n), |b| {
            b.iter(|| {
                let batch: [&Remembered; 32] = std::array::from_fn(|i| &packets[(at + i) % packets.len()]);
                at = (at + 32) % packets.len();
                time += 1_000;
                let now = Moment::of(Time(time));
                for remembered in batch {
                    tracker.table.prefetch_slot(remembered);
                }
                for remembered in batch {
                    assert!(tracker.table.pass_simple(remembered, now));
                }
            });
        });
        let mut packets: Vec<(Remembered, Segment)> = order.iter().map(|&i| remember_tcp(&tracker, i)).collect();
        let mut at = 0;
        let mut time = NOW.0;
        group.bench_function(BenchmarkId::new("TCP", n), |b| {
            b.iter(|| {
                let many = packets.len();
                time += 1_000;
                let now = Moment::of(Time(time));
                for i in 0..32 {
                    tracker.table.prefetch_slot(&packets[(at + i) % many].0);
                }
                for i in 0..32 {
                    let (remembered, segment) = &mut packets[(at + i) % many];
                    // Each sends more than before.
                    segment.seq = segment.seq.wrapping_add(segment.len);
                    assert!(tracker.table.pass_tcp(remembered, segment, true, now));
                }
                at = (at + 32) % many;
            });
        });
    }
    group.finish();
}

fn remember_udp(tracker: &Tracker, n: u32) -> Remembered {
    let track = |packet: &Headers| tracker.track(packet, &Metadata::default(), &COMMIT, NOW);
    let answer = Headers { tuple: tuple(n, 17).reverse(), upper: Upper::Other };
    track(&udp(n));
    track(&answer);
    let found = track(&udp(n)).connection.expect("a connection");
    tracker.table.remember(&found).expect("an established connection")
}

/// With the next segment.
fn remember_tcp(tracker: &Tracker, n: u32) -> (Remembered, Segment) {
    let track = |reply: bool, flags: u16, seq: u32, ack: u32| {
        let tuple = if reply { tuple(n, 6).reverse() } else { tuple(n, 6) };
        let upper = Upper::Tcp(Segment { seq, ack, flags, window: 65_000, ..Segment::default() });
        tracker.track(&Headers { tuple, upper }, &Metadata::default(), &COMMIT, NOW).connection
    };
    track(false, 0x02, 0, 0);
    track(true, 0x12, 0, 1);
    track(false, 0x10, 1, 1);
    let found = track(false, 0x10, 1, 1).expect("a connection");
    let next = Segment { seq: 1, ack: 1, flags: 0x10, window: 65_000, len: 1, scale: None };
    (tracker.table.remember(&found).expect("an established connection"), next)
}

fn new(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("new");
    let nat = Nat {
        side: Side::Src,
        addresses: Some((IpAddr::from([203, 0, 113, 1]), IpAddr::from([203, 0, 113, 16]))),
        ports: None,
        choice: Choice::Hash,
        persistent: false,
    };
    let plain = COMMIT;
    let translated = Request { nat: Some(Translate::New(nat)), ..plain };
    let syn = Segment { flags: 2, window: 65_000, scale: Some(7), ..Segment::default() };
    const NUMBER: u32 = 100_000;
    for (name, request) in [("SYN", plain), ("SYN, translated", translated)] {
        group.throughput(Throughput::Elements(NUMBER.into()));
        group.sample_size(10);
        group.bench_function(name, |b| {
            b.iter_batched(
                || Tracker::new(NUMBER, [1, 2]),
                |tracker| {
                    for i in 0..NUMBER {
                        let packet = Headers { tuple: tuple(i, 6), upper: Upper::Tcp(syn) };
                        let verdict = tracker.track(&packet, &Metadata::default(), &request, NOW);
                        assert!(verdict.connection.is_some());
                    }
                    tracker
                },
                BatchSize::PerIteration,
            );
        });
    }
    // A connection is made and another expires, as under a flood.
    group.throughput(Throughput::Elements(1));
    for resident in [100_000, 1_000_000] {
        group.bench_function(BenchmarkId::new("SYN, and one that expires", resident), |b| {
            b.iter_custom(|times| {
                let mut flood = Flood::new(resident);
                (0..resident + resident / 4).step_by(32).for_each(|_| flood.batch());
                // Enough for what expires in bursts, whatever the number that is asked for.
                const BATCHES: u32 = 8192;
                let start = Instant::now();
                (0..BATCHES).for_each(|_| flood.batch());
                let elapsed = start.elapsed().mul_f64(times as f64 / f64::from(32 * BATCHES));
                let counts = flood.tracker.table.counts();
                assert!(
                    counts.removed >= u64::from(resident / 8) && counts.made - counts.removed > u64::from(resident / 2)
                );
                elapsed
            });
        });
    }
    group.finish();
}

/// New connections in batches, so many that `resident` are there when the first ones have ended, after 30 seconds.
struct Flood {
    tracker: Tracker,
    next: u32,
    now: u64,
    /// Nanoseconds between two connections.
    gap: u64,
    shard: usize,
    verdict: Verdict,
}

impl Flood {
    fn new(resident: u32) -> Flood {
        let (tracker, gap) = (Tracker::new(2 * resident, [1, 2]), 30_000_000_000 / u64::from(resident));
        Flood { tracker, next: 0, now: NOW.0, gap, shard: 0, verdict: Verdict::default() }
    }

    fn batch(&mut self) {
        let syn = Segment { flags: 2, window: 65_000, scale: Some(7), ..Segment::default() };
        let table = &self.tracker.table;
        let batch: [Headers; 32] =
            std::array::from_fn(|i| Headers { tuple: tuple(self.next + i as u32, 6), upper: Upper::Tcp(syn) });
        self.next = (self.next + 32) % (1 << 24);
        self.now += 32 * self.gap;
        let hashes: [u64; 32] = std::array::from_fn(|i| table.hash(&batch[i].tuple));
        hashes.iter().for_each(|hash| table.prefetch(*hash));
        hashes.iter().for_each(|hash| table.prefetch_connection(*hash));
        for (packet, hash) in batch.iter().zip(hashes) {
            self.tracker.track_hashed(packet, hash, &Metadata::default(), &COMMIT, Time(self.now), &mut self.verdict);
            assert!(self.verdict.connection.is_some());
        }
        table.expire(&mut self.shard, 64, Time(self.now));
    }
}

criterion_group!(benches, established, remembered, new);
criterion_main!(benches);
