//! What a filter costs for each frame: rules, many prefixes, expressions of tcpdump, XDP programs.
//!
//! Batches of 32 frames of 60 bytes, UDP from and to random addresses, of which half are in 198.18.0.0/15. `none` is the
//! loop without a filter.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datapath::pipeline::ingress::Filter as _;
use ingress::ebpf::assembler::{add, assemble, call, copy, exit, load, map, maps, set, skip_if_greater, store, word};
use ingress::ebpf::{Machine, PortProgram};
use ingress::{PortFilter, RuleSet};
use packet::{Packet, Time};

/// Frames in a batch.
const BATCH: usize = 32;

/// Batches of different frames.
const BATCHES: usize = 32;

fn frames() -> Vec<Vec<Packet>> {
    let mut seed = 7_u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let mut frame = |number: usize| {
        let mut frame = [0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        (frame[16], frame[17], frame[23]) = (0, 46, 17);
        frame[26..30].copy_from_slice(&random().to_be_bytes());
        let address = if number.is_multiple_of(2) { 0xc612_0000 | random() & 0x1_ffff } else { random() };
        frame[30..34].copy_from_slice(&address.to_be_bytes());
        (frame[36], frame[37]) = (0, 53);
        Packet::from_slice(&frame)
    };
    (0..BATCHES).map(|_| (0..BATCH).map(&mut frame).collect()).collect()
}

/// An XDP program that drops UDP to 198.18.0.0/15.
fn by_address() -> Machine {
    let words = [
        load(4, 6, 1, 0),
        load(4, 7, 1, 4),
        copy(2, 6),
        add(2, 34),
        skip_if_greater(2, 7, 7),
        load(2, 3, 6, 12),
        word(0x55, 3, 0, 5, 0x0008),
        load(1, 3, 6, 23),
        word(0x55, 3, 0, 3, 17),
        load(4, 3, 6, 30),
        word(0x57, 3, 0, 0, 0xfeff),
        word(0x15, 3, 0, 2, 0x12c6),
        set(0, 2),
        exit(),
        set(0, 1),
        exit(),
    ];
    assemble(&words, Vec::new()).expect("the program is right")
}

/// An XDP program that looks destinations up in a map, and counts what it finds; or lets frames pass.
fn by_map(number: i32) -> Machine {
    let [m1, m2] = map(1, number);
    let words = [
        load(4, 6, 1, 0),
        load(4, 7, 1, 4),
        copy(2, 6),
        add(2, 34),
        skip_if_greater(2, 7, 12),
        load(4, 3, 6, 30),
        store(4, 10, -4, 3),
        word(0x62, 10, 0, -8, 32),
        copy(2, 10),
        add(2, if number == 2 { -8 } else { -4 }),
        m1,
        m2,
        call(1),
        word(0x15, 0, 0, 3, 0),
        set(3, 1),
        word(if number == 2 { 0xc3 } else { 0xdb }, 0, 3, 0, 0),
        set(0, 0),
        set(0, 2),
        exit(),
    ];
    assemble(&words, maps()).expect("the program is right")
}

fn bench(criterion: &mut Criterion) {
    let frames = frames();
    let mut group = criterion.benchmark_group("ingress");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut measure = |name: &str, filter: Option<PortFilter>| {
        let mut queue = filter.map(|filter| filter.for_queue());
        let mut batches = frames.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let batch = batches.next().expect("there are always more");
                queue
                    .as_mut()
                    .map_or_else(|| black_box(batch).len() as u32, |queue| queue.refused(black_box(batch), Time(5)))
            });
        });
    };
    let rules = |text: &str| Some(PortFilter::new(RuleSet::compile(text).expect("the rules are right")));
    let interpreted =
        |text: &str| Some(PortFilter::new(RuleSet::compile_to_interpret(text).expect("the rules are right")));
    let program = |machine: Machine| {
        let program = Some(Arc::new(PortProgram::new(machine, "/bench.o")));
        Some(PortFilter::new(RuleSet::default()).with_program(program))
    };
    measure("none", None);
    measure("empty", rules(""));
    measure("prefix", rules("drop dst net 198.18.0.0/15"));
    let many: Vec<_> = (0..1000).map(|i| format!("drop dst net 10.{}.{}.0/24", i / 250, i % 250)).collect();
    measure("prefixes_1000", rules(&many.join(";")));
    let tcpdump = "drop udp and dst net 198.18.0.0/15 and not src port 7";
    measure("tcpdump", rules(tcpdump));
    measure("tcpdump_interpreted", interpreted(tcpdump));
    measure("xdp_address", program(by_address()));
    measure("xdp_address_interpreted", program(by_address().interpreted()));
    for (number, name) in [(0, "xdp_array"), (1, "xdp_hash"), (2, "xdp_prefixes")] {
        measure(name, program(by_map(number)));
    }
    measure("xdp_hash_interpreted", program(by_map(1).interpreted()));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
