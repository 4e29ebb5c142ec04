//! What a filter costs for each frame: prefixes, expressions of tcpdump, XDP programs. What it takes to load a program.
//!
//! Batches of 32 frames of 60 bytes, UDP from and to random addresses, of which half are in 198.18.0.0/15. `none` is the
//! loop without a filter, and `libpcap` that library's own interpreter.

#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datapath::pipeline::ingress::Filter as _;
use ingress::bpf::Instruction;
use ingress::ebpf::assembler::{
    add, add_register, assemble, call, copy, exit, load, map, maps, set, skip_if_greater, store, word,
};
use ingress::ebpf::instruction::{MAX_WORDS, Word};
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

/// libpcap's interpreter: `bpf_filter` of pcap/bpf.h.
type Interpreter = unsafe extern "C" fn(*const Instruction, *const u8, wire_len: c_uint, len: c_uint) -> c_uint;

fn libpcap_filter() -> Interpreter {
    // SAFETY: the strings end with a zero, and the library's initialisation has no preconditions.
    let function = unsafe {
        let library = libc::dlopen(c"libpcap.so.0.8".as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, c"bpf_filter".as_ptr())
    };
    assert!(!function.is_null(), "libpcap is needed");
    // SAFETY: that is its type in pcap/bpf.h.
    unsafe { std::mem::transmute::<*mut libc::c_void, Interpreter>(function) }
}

/// How many prefixes the rule lists have.
const PREFIXES: [u32; 7] = [1, 4, 8, 10, 100, 1_000, 10_000];

/// Rules that drop so many prefixes of 29 to 32 bits, all in 198.18.0.0/15.
fn prefix_rules(count: u32) -> String {
    let rule = |i: u32| format!("drop dst net {}/{}", std::net::Ipv4Addr::from(0xc612_0000 | i << 3), 29 + i % 4);
    (0..count).map(rule).collect::<Vec<_>>().join(";")
}

fn frames_through_filters(criterion: &mut Criterion) {
    let frames = frames();
    let mut group = criterion.benchmark_group("ingress");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut measure = |name: &str, refused: &mut dyn FnMut(&[Packet]) -> u32| {
        let mut batches = frames.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| refused(black_box(batches.next().expect("there are always more"))));
        });
    };
    measure("none", &mut |batch| batch.len() as u32);
    let mut measure_filter = |name: &str, filter: PortFilter| {
        let mut queue = filter.for_queue();
        measure(name, &mut |batch| queue.refused(batch, Time(5)));
    };
    let rules = |text: &str| PortFilter::new(RuleSet::compile(text).expect("the rules are right"));
    let interpreted = |text: &str| PortFilter::new(RuleSet::compile_to_interpret(text).expect("the rules are right"));
    let program = |machine: Machine| {
        PortFilter::new(RuleSet::default()).with_program(Some(Arc::new(PortProgram::new(machine, "/bench.o"))))
    };
    measure_filter("empty", rules(""));
    measure_filter("prefix", rules("drop dst net 198.18.0.0/15"));
    for count in PREFIXES {
        measure_filter(&format!("prefixes_{count}"), rules(&prefix_rules(count)));
    }
    // The first is the prefix of above in words that no look-up stands for.
    let expressions = [
        ("expression_prefix", "ip and dst net 198.18.0.0/15"),
        ("expression_udp", "udp and dst net 198.18.0.0/15 and not src port 7"),
    ];
    for (name, expression) in expressions {
        measure_filter(&format!("{name}_native"), rules(&format!("drop {expression}")));
        measure_filter(&format!("{name}_interpreted"), interpreted(&format!("drop {expression}")));
    }
    measure_filter("xdp_address", program(by_address()));
    measure_filter("xdp_address_interpreted", program(by_address().interpreted()));
    for (number, name) in [(0, "xdp_array"), (1, "xdp_hash"), (2, "xdp_prefixes")] {
        measure_filter(name, program(by_map(number)));
    }
    measure_filter("xdp_hash_interpreted", program(by_map(1).interpreted()));
    let filter = libpcap_filter();
    for (name, expression) in expressions {
        let program = ingress::libpcap::compile(expression).expect("the expression is right");
        measure(&format!("{name}_libpcap"), &mut |batch| {
            let matches = |packet: &Packet| {
                let len = packet.len() as c_uint;
                // SAFETY: the program is libpcap's own, and the frame has so many bytes.
                unsafe { filter(program.as_ptr(), packet.data().as_ptr(), len, len) }
            };
            batch.iter().fold(0, |set, packet| set << 1 | u32::from(matches(packet) != 0))
        });
    }
    group.finish();
}

/// The largest programs: of nothing but arithmetic; with about as many branches as there may be; and one that is verified
/// for about as long as there may be, by 32 ways through a loop of 15 000 rounds.
fn largest_programs() -> [(&'static str, Vec<Word>); 3] {
    // `if left & constant` skips a word.
    let skip_if_common = |left: u8, constant: i32| word(0x45, left, 0, 1, constant);
    // The time, as a number of which nothing is known.
    let number = [call(5), copy(3, 0)];
    let arithmetic = (0..MAX_WORDS as i32 - 3).map(|i| if i % 2 == 0 { add(0, i) } else { add_register(0, 3) });
    let arithmetic = number.into_iter().chain(arithmetic).chain([exit()]).collect();
    let branches = (0..4_000).flat_map(|i| [skip_if_common(3, 1 << (i % 31)), set(0, 1), set(0, 2)]);
    let branches = number.into_iter().chain(branches).chain([exit()]).collect();
    let ways = (0..5).flat_map(|bit| [skip_if_common(3, 1 << bit), add(4, 1 << bit)]);
    let rounds = [set(5, 0), add(5, 1), word(0xa5, 5, 0, -2, 15_000), copy(0, 4), exit()];
    let rounds = number.into_iter().chain([set(4, 0)]).chain(ways).chain(rounds).collect();
    [("arithmetic", arithmetic), ("branches", branches), ("rounds", rounds)]
}

fn loading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    for (name, words) in largest_programs() {
        group.bench_function(name, |bencher| {
            bencher.iter(|| assemble(black_box(&words), Vec::new()).expect("the program is right"));
        });
    }
    group.finish();
}

criterion_group!(benches, frames_through_filters, loading);
criterion_main!(benches);
