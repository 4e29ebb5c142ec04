//! Look-ups of established connections and new connections, one core.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use conntrack::headers::{Headers, Upper};
use conntrack::nat::{Choice, Nat};
use conntrack::protocol::tcp::Segment;
use conntrack::tracker::{Metadata, Request, Tracker, Translate};
use conntrack::tuple::{Side, Tuple};
use packet::Time;

const NOW: Time = Time(1_000_000_000);

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
    let commit = Request { commit: true, ..Request::default() };
    let look = Request::default();
    for n in [1, 1_000, 10_000, 100_000, 1_000_000] {
        let tracker = Tracker::new(n, [1, 2]);
        for i in 0..n {
            tracker.track(&udp(i), &Metadata::default(), &commit, NOW);
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
                    black_box(tracker.track(packet, &Metadata::default(), &look, NOW));
                }
            });
        });
    }
    group.finish();
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
    let plain = Request { commit: true, ..Request::default() };
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
    group.bench_function("SYN, and one that expires", |b| {
        b.iter_custom(|times| {
            let tracker = Tracker::new(3_000_000, [1, 2]);
            let (mut n, mut shard) = (0u32, 0);
            let start = Instant::now();
            for i in 0..times {
                // 1 000 000 each second, which last for 30.
                let now = Time(NOW.0 + i * 1_000);
                let packet = Headers { tuple: tuple(n, 6), upper: Upper::Tcp(syn) };
                n = (n + 1) % (1 << 24);
                black_box(tracker.track(&packet, &Metadata::default(), &plain, now));
                if i % 32 == 0 {
                    tracker.table.expire(&mut shard, 64, now);
                }
            }
            start.elapsed()
        });
    });
    group.finish();
}

criterion_group!(benches, established, new);
criterion_main!(benches);
