//! Extraction, marks and hashes, in cycles of the time stamp counter where there is one.

use std::hint::black_box;

use criterion::measurement::{Measurement, ValueFormatter};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use packet::flow::{Field, Hasher, Key, Mask, VlanLimit, extract, simple_mark};
use packet::wire::build;

/// The time stamp counter. It counts at a constant rate, which is not that of the core under turbo.
struct Cycles;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Measurement for Cycles {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        now()
    }
    fn end(&self, start: u64) -> u64 {
        now() - start
    }
    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }
    fn zero(&self) -> u64 {
        0
    }
    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        &Cycles
    }
}

impl ValueFormatter for Cycles {
    fn scale_values(&self, _: f64, _: &mut [f64]) -> &'static str {
        "cycles"
    }
    fn scale_throughputs(&self, _: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        if let Throughput::Elements(n) = throughput {
            values.iter_mut().for_each(|v| *v /= *n as f64);
        }
        "cycles/packet"
    }
    fn scale_for_machines(&self, _: &mut [f64]) -> &'static str {
        "cycles"
    }
}

const MAC: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let v4 = |proto, payload| {
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        build::Ipv4 { src, dst, proto, ..build::Ipv4::default() }.packet(payload)
    };
    let v6 = |proto, payload| {
        let (src, dst) = ([0xfd; 16].into(), [0xfe; 16].into());
        build::Ipv6 { src, dst, proto, ..build::Ipv6::default() }.packet(payload)
    };
    let eth = |tags: &[(u16, u16)], ty, payload: Vec<u8>| {
        let mut frame = build::ethernet(MAC.0, MAC.1, tags, ty, &payload);
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let arp = build::arp(1, MAC.1, [10, 0, 0, 1].into(), [0; 6], [10, 0, 0, 2].into());
    vec![
        ("udp4", eth(&[], 0x0800, v4(17, build::udp(1000, 2000, &[0; 18])))),
        ("tcp4", eth(&[], 0x0800, v4(6, build::tcp(1000, 2000, 0x10, &[0; 6])))),
        ("vlan_tcp4", eth(&[(0x8100, 5)], 0x0800, v4(6, build::tcp(1000, 2000, 0x10, &[0; 6])))),
        ("icmp4", eth(&[], 0x0800, v4(1, build::icmp(8, 0, [0; 4], &[0; 18])))),
        ("tcp6", eth(&[], 0x86dd, v6(6, build::tcp(1000, 2000, 0x10, &[])))),
        ("udp6", eth(&[], 0x86dd, v6(17, build::udp(1000, 2000, &[])))),
        ("arp", eth(&[], 0x0806, arp)),
    ]
}

/// Runs `f` on each of a batch of 32 frames and keys, as a worker does.
fn bench_batch(c: &mut Criterion<Cycles>, name: &str, frame: &[u8], f: impl Fn(&[u8], &mut Key)) {
    let frames: Vec<Vec<u8>> = (0..32).map(|_| frame.to_vec()).collect();
    let mut keys: Vec<Key> = (0..32).map(|_| Key::new()).collect();
    // On a shared machine the mean says more about the neighbours: best and median of single batches first.
    let mut batches: Vec<u64> = (0..5000)
        .map(|_| {
            let start = now();
            for (frame, key) in black_box(&frames).iter().zip(black_box(&mut keys).iter_mut()) {
                f(frame, key);
            }
            now() - start
        })
        .collect();
    batches.sort_unstable();
    let per_packet = |at: usize| batches[at] as f64 / 32.0;
    println!("{name}: best {:.1}, median {:.1} cycles/packet", per_packet(0), per_packet(batches.len() / 2));
    let mut group = c.benchmark_group(name.split('/').next().unwrap_or(name));
    group.throughput(Throughput::Elements(32));
    group.bench_function(name.split('/').nth(1).unwrap_or(name), |b| {
        b.iter(|| {
            for (frame, key) in black_box(&frames).iter().zip(black_box(&mut keys).iter_mut()) {
                f(frame, key);
            }
        });
    });
    group.finish();
}

fn benches(c: &mut Criterion<Cycles>) {
    let limit = VlanLimit::default();
    let hasher = Hasher::new([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]);
    for (name, frame) in frames() {
        bench_batch(c, &format!("extract/{name}"), &frame, |frame, key| {
            key.reset();
            black_box(extract(frame, key, black_box(limit)));
        });
    }
    for (name, frame) in frames() {
        bench_batch(c, &format!("simple_mark/{name}"), &frame, |frame, _| {
            black_box(simple_mark(frame, black_box(limit)));
        });
    }
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwDst);
    mask.set_exact(Field::DlType);
    for (name, frame) in frames().into_iter().filter(|(name, _)| matches!(*name, "udp4" | "tcp6")) {
        let mut key = Key::new();
        extract(&frame, &mut key, limit);
        bench_batch(c, &format!("hash_key/{name}"), &frame, |_, _| {
            black_box(hasher.hash_key(black_box(&key)));
        });
        bench_batch(c, &format!("hash_masked/{name}"), &frame, |_, _| {
            black_box(hasher.hash_masked(black_box(&key), &mask));
        });
        bench_batch(c, &format!("extract_and_hash/{name}"), &frame, |frame, key| {
            key.reset();
            extract(frame, key, black_box(limit));
            black_box(hasher.hash_key(key));
        });
    }
}

criterion_group! {
    name = group;
    config = Criterion::default().with_measurement(Cycles).without_plots().sample_size(50)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = benches
}
criterion_main!(group);
