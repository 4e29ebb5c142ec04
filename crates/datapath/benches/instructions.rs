//! Instructions for each packet, counted by callgrind: unlike cycles, they do not depend on what else the
//! machine does. `scripts/stages.py` says in which stage of a packet's way they are.
//!
//! Valgrind knows no AVX-512, so what is counted is the loop for AVX2. Time is made up, so that two runs count the
//! same. Needs valgrind, and `gungraun-runner` of the same version as the crate.

#![allow(unsafe_code, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Frames, Loop, Rules, Sink};
use datapath::Datapath;
use gungraun::Callgrind;
use gungraun::prelude::*;
use packet::{BATCH_SIZE, Batch, Clock, Time};
use ports::{RxQueue, TxQueue};

/// A clock that goes on by a microsecond whenever someone looks.
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(1000, Ordering::Relaxed))
    }
}

/// A datapath that knows all flows, and the number of batches that have each flow's packets equally often.
fn ready(rules: Rules, flows: usize) -> (Arc<Datapath>, usize) {
    let dp = common::datapath(rules, flows, Arc::new(Ticks(AtomicU64::new(0))), 16);
    dp.reset_stats();
    (dp, batches(flows))
}

fn batches(flows: usize) -> usize {
    flows.next_multiple_of(1024).max(8192) / BATCH_SIZE
}

// Polls a worker. What comes behind the measured part is not counted.
#[library_benchmark(setup = ready, teardown = check)]
#[bench::port_rule_1_flow(Rules::Port, 1)]
#[bench::drop_rule_1_flow(Rules::Drop, 1)]
#[bench::prefix_rule_1_flow(Rules::Prefix, 1)]
#[bench::prefix_rule_1000_flows(Rules::Prefix, 1_000)]
#[bench::push_vlan_1_flow(Rules::Push, 1)]
#[bench::push_vlan_1000_flows(Rules::SourcesPush, 1_000)]
#[bench::push_vlan_10000_flows(Rules::SourcesPush, 10_000)]
#[bench::pop_vlan_1000_flows(Rules::SourcesPop(Frames::Tagged), 1_000)]
#[bench::pop_vlan_of_two_1000_flows(Rules::SourcesPop(Frames::TwoTags), 1_000)]
#[bench::next_hops_10000_flows(Rules::NextHops, 10_000)]
#[bench::kinds_1000_flows(Rules::Kinds(Frames::Kinds), 1_000)]
#[bench::set_nw_dst_1_flow(Rules::Readdress, 1)]
#[bench::sources_1000_flows(Rules::Sources(1), 1_000)]
#[bench::sources_10000_flows(Rules::Sources(1), 10_000)]
#[bench::sources_100000_flows(Rules::Sources(1), 100_000)]
#[bench::tuples_10000_flows(Rules::Tuples, 10_000)]
#[bench::sources_10000_flows_20_masks(Rules::Sources(20), 10_000)]
fn forward((dp, batches): (Arc<Datapath>, usize)) -> (Arc<Datapath>, usize) {
    for _ in 0..batches {
        dp.poll();
    }
    (dp, batches)
}

/// The counts are worth nothing unless the cache knew nearly all flows: a few are always left that share a full set.
fn check((dp, batches): (Arc<Datapath>, usize)) {
    let worker = &dp.stats().workers[0];
    assert_eq!(worker.received, (batches * BATCH_SIZE) as u64);
    assert!((worker.simple_hits + worker.exact_hits) * 100 >= worker.received * 99, "{worker:?}");
    assert_eq!(worker.misses + worker.lost, 0, "{worker:?}");
}

type Floor = (Box<dyn RxQueue>, Box<dyn TxQueue>, Batch);

fn ready_floor(flows: usize) -> Floor {
    (Loop { name: "source", flows, frames: Frames::Plain }.source(), Box::new(Sink), Batch::new())
}

// The same source and sink without a switch between them.
#[library_benchmark(setup = ready_floor)]
#[bench::floor_1_flow(1)]
fn floor((mut source, mut sink, mut batch): Floor) -> Floor {
    for _ in 0..batches(1) {
        source.receive(&mut batch, Time(0));
        sink.transmit(&mut batch, Time(0));
    }
    (source, sink, batch)
}

library_benchmark_group!(name = instructions, benchmarks = [floor, forward]);
main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--dump-instr=yes", "--cache-sim=no"])),
    library_benchmark_groups = instructions
);
