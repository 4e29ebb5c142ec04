//! The whole loop: frames in memory to a port that throws them away, one flow for all packets and one
//! for each, with one mask and with several. Prints cycles per packet of the worker beside criterion's time for a batch of 32.
//!
//! The worker has the last core, and real-time priority there where that is allowed.
//! With `SAMPLES=directory`, samples where the time goes, for `scripts/stages.py`.

#![allow(unsafe_code)]

mod common;
#[path = "common/threads.rs"]
mod threads;

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Before, Frames, Loop, Rules, Sink};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::sync::clock::MonotonicClock;
use packet::{BATCH_SIZE, Batch, Time};
use ports::{RxQueue, TxQueue};

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    group.throughput(Throughput::Elements(BATCH_SIZE as u64)).sample_size(20);
    for (name, flows, rules) in [
        ("floor, 1 flow", 1, None),
        ("floor, 1000 flows", 1_000, None),
        ("floor, 10000 flows", 10_000, None),
        ("floor of kinds, 10000 flows", 10_000, None),
        ("floor, 100000 flows", 100_000, None),
        ("floor, 1000000 flows", 1_000_000, None),
        ("floor, 4000000 flows", 4_000_000, None),
        ("port rule, 1 flow", 1, Some(Rules::Port)),
        ("metered, 1 flow", 1, Some(Rules::Metered)),
        ("metered, 10000 flows", 10_000, Some(Rules::Metered)),
        ("drop rule, 1 flow", 1, Some(Rules::Drop)),
        ("push_vlan, 1 flow", 1, Some(Rules::Push)),
        ("push_vlan, 1000 flows", 1_000, Some(Rules::SourcesPush)),
        ("push_vlan, 10000 flows", 10_000, Some(Rules::SourcesPush)),
        ("push_vlan, one rule, 10000 flows", 10_000, Some(Rules::Push)),
        ("pop_vlan, 1000 flows", 1_000, Some(Rules::SourcesPop(Frames::Tagged))),
        ("pop_vlan, 10000 flows", 10_000, Some(Rules::SourcesPop(Frames::Tagged))),
        ("pop_vlan, one rule, 10000 flows", 10_000, Some(Rules::Pop(Frames::Tagged))),
        ("pop_vlan of two, 1000 flows", 1_000, Some(Rules::SourcesPop(Frames::TwoTags))),
        ("pop_vlan of two, 10000 flows", 10_000, Some(Rules::SourcesPop(Frames::TwoTags))),
        ("pop_vlan of two, one rule, 10000 flows", 10_000, Some(Rules::Pop(Frames::TwoTags))),
        ("next hops, 1000 flows", 1_000, Some(Rules::NextHops)),
        ("next hops, 10000 flows", 10_000, Some(Rules::NextHops)),
        ("tunnels, 1 flow", 1, Some(Rules::Tunnels { routed: false })),
        ("tunnels, 10000 flows", 10_000, Some(Rules::Tunnels { routed: false })),
        ("routed tunnels, 1 flow", 1, Some(Rules::Tunnels { routed: true })),
        ("routed tunnels, 10000 flows", 10_000, Some(Rules::Tunnels { routed: true })),
        ("kinds, plain, 1000 flows", 1_000, Some(Rules::Kinds(Frames::Plain))),
        ("kinds, 1000 flows", 1_000, Some(Rules::Kinds(Frames::Kinds))),
        ("kinds, 10000 flows", 10_000, Some(Rules::Kinds(Frames::Kinds))),
        ("kinds, port rule, 1000 flows", 1_000, Some(Rules::Pop(Frames::Kinds))),
        ("set nw_dst, 1 flow", 1, Some(Rules::Readdress)),
        ("prefix rule, 1 flow", 1, Some(Rules::Prefix)),
        ("prefix rule, 1000 flows", 1_000, Some(Rules::Prefix)),
        ("prefix rule, 10000 flows", 10_000, Some(Rules::Prefix)),
        ("prefix rule, 100000 flows", 100_000, Some(Rules::Prefix)),
        ("prefix rule, 1000000 flows", 1_000_000, Some(Rules::Prefix)),
        ("prefix rule, 4000000 flows", 4_000_000, Some(Rules::Prefix)),
        ("bond, 1 flow", 1, Some(Rules::Bond)),
        ("bond, 1000 flows", 1_000, Some(Rules::Bond)),
        ("bond, 10000 flows", 10_000, Some(Rules::Bond)),
        ("bond, 100000 flows", 100_000, Some(Rules::Bond)),
        ("source rules, 1 flow, 1 mask", 1, Some(Rules::Sources(1))),
        ("source rules, 1000 flows, 1 mask", 1_000, Some(Rules::Sources(1))),
        ("source rules, 10000 flows, 1 mask", 10_000, Some(Rules::Sources(1))),
        ("source rules, 10000 flows, 20 masks", 10_000, Some(Rules::Sources(20))),
        ("source rules, 100000 flows, 1 mask", 100_000, Some(Rules::Sources(1))),
        ("source rules, 1000000 flows, 1 mask", 1_000_000, Some(Rules::Sources(1))),
        ("source rules, 4000000 flows, 1 mask", 4_000_000, Some(Rules::Sources(1))),
        ("five-tuples, 1 flow", 1, Some(Rules::Tuples)),
        ("five-tuples, 10000 flows", 10_000, Some(Rules::Tuples)),
        ("five-tuples, 100000 flows", 100_000, Some(Rules::Tuples)),
        ("hash, 1 flow", 1, Some(Rules::Before(Before::Hash, false))),
        ("hash and again, 1 flow", 1, Some(Rules::Before(Before::Hash, true))),
        ("hash, 10000 flows", 10_000, Some(Rules::Before(Before::Hash, false))),
        ("hash and again, 10000 flows", 10_000, Some(Rules::Before(Before::Hash, true))),
        ("pop_mpls, 1 flow", 1, Some(Rules::Before(Before::PopMpls, false))),
        ("pop_mpls and again, 1 flow", 1, Some(Rules::Before(Before::PopMpls, true))),
        ("pop_mpls, 10000 flows", 10_000, Some(Rules::Before(Before::PopMpls, false))),
        ("pop_mpls and again, 10000 flows", 10_000, Some(Rules::Before(Before::PopMpls, true))),
        ("tracked, 1 flow", 1, Some(Rules::Before(Before::Track, true))),
        ("tracked, 1000 flows", 1_000, Some(Rules::Before(Before::Track, true))),
        ("tracked, 10000 flows", 10_000, Some(Rules::Before(Before::Track, true))),
        ("tracked, 100000 flows", 100_000, Some(Rules::Before(Before::Track, true))),
        ("translated, 1 flow", 1, Some(Rules::Before(Before::Translate, true))),
        ("translated, 10000 flows", 10_000, Some(Rules::Before(Before::Translate, true))),
        ("translated, 100000 flows", 100_000, Some(Rules::Before(Before::Translate, true))),
        ("segments, 1 connection", 2, Some(Rules::Before(Before::Connect, true))),
        ("segments, 1000 connections", 2_000, Some(Rules::Before(Before::Connect, true))),
        ("segments, 10000 connections", 20_000, Some(Rules::Before(Before::Connect, true))),
        ("segments, 100000 connections", 200_000, Some(Rules::Before(Before::Connect, true))),
        ("metadata, 1 flow", 1, Some(Rules::Before(Before::Mark, false))),
        ("metadata and again, 1 flow", 1, Some(Rules::Before(Before::Mark, true))),
        ("metadata, 10000 flows", 10_000, Some(Rules::Before(Before::Mark, false))),
        ("metadata and again, 10000 flows", 10_000, Some(Rules::Before(Before::Mark, true))),
    ] {
        // As criterion has it: only what is named on the command line.
        if std::env::args().skip(1).any(|arg| !arg.starts_with('-') && !name.contains(&*arg)) {
            continue;
        }
        let Some(rules) = rules else {
            let frames = if name.contains("kinds") { Frames::Kinds } else { Frames::Plain };
            println!("    {name}: cycles per packet {}", floor(flows, frames));
            continue;
        };
        let dp = common::datapath(rules, flows, Arc::new(MonotonicClock::new()), 10);
        dp.start().expect("a thread");
        threads::prefer("worker0", common::last_core()).expect("the thread is there");
        let rounds = Rounds::of(|| {
            dp.reset_stats();
            std::thread::sleep(ROUND);
            dp.stats().workers[0].cycles_per_packet()
        });
        let worker = &dp.stats().workers[0];
        let share = |n: u64| 100.0 * n as f64 / worker.received as f64;
        println!(
            "    {name}: cycles per packet {rounds}; hits: simple {:.1} %, exact {:.1} %, megaflow {:.1} %",
            share(worker.simple_hits),
            share(worker.exact_hits),
            share(worker.megaflow_hits),
        );
        assert_eq!(worker.drops.total() > 0, rules == Rules::Drop);
        sample(name, &rounds);
        dp.stop();
        group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter(|| dp.poll()));
    }
}

/// The same source and sink without a switch between them, on a thread of their own.
fn floor(flows: usize, frames: Frames) -> Rounds {
    let batches = (flows / BATCH_SIZE).max(10_000);
    let body = move || {
        threads::prefer("floor", common::last_core()).expect("the thread is there");
        let mut source: Box<dyn RxQueue> = Loop { name: "source", flows, frames }.source();
        let mut sink: Box<dyn TxQueue> = Box::new(Sink);
        let mut batch = Batch::new();
        Rounds::of(|| {
            let start = datapath::sync::tsc::cycles();
            for _ in 0..batches {
                source.receive(&mut batch, Time(0));
                sink.transmit(&mut batch, Time(0));
            }
            (datapath::sync::tsc::cycles() - start) as f64 / (batches * BATCH_SIZE) as f64
        })
    };
    let thread = std::thread::Builder::new().name("floor".into()).spawn(body);
    thread.expect("a thread").join().expect("no panic")
}

/// Samples a worker, where that is asked for.
fn sample(name: &str, rounds: &Rounds) {
    let Some(directory) = std::env::var_os("SAMPLES") else { return };
    let file = Path::new(&directory).join(format!("{}.samples", name.replace(", ", "_").replace(' ', "_")));
    threads::sample(&file, "worker0", rounds.median(), || std::thread::sleep(20 * ROUND))
        .expect("the directory is there");
}

/// How long a round takes.
const ROUND: Duration = Duration::from_millis(50);

/// Cycles for each packet in several rounds, the least first.
struct Rounds(Vec<f64>);

impl Rounds {
    fn of(round: impl FnMut() -> f64) -> Rounds {
        let mut cycles: Vec<f64> = std::iter::repeat_with(round).take(15).collect();
        cycles.sort_by(f64::total_cmp);
        Rounds(cycles)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

impl Display for Rounds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} (median {:.1})", self.0[0], self.median())
    }
}

criterion_group!(benches, forward);
criterion_main!(benches);
