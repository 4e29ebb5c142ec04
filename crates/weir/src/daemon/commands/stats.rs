//! `weir/stats`.

use std::collections::{BTreeMap, BTreeSet};

use datapath::RxAssignment;

use super::Context;
use super::reports::json;
use crate::report::{Stats, WorkerStats};
use crate::unixctl::command::Outcome;

/// `weir/stats`.
pub fn report(context: &Context, _: &[String]) -> Outcome {
    json(&stats(context))
}

/// The counters of the workers.
pub fn stats(context: &Context) -> Stats {
    let stats = context.engine.datapath.stats();
    let queues = queues_by_worker(context);
    let workers: Vec<_> =
        stats.workers.iter().map(|w| worker(w, queues.get(&w.number).cloned().unwrap_or_default())).collect();
    let ended = (stats.ended != datapath::WorkerStats::default()).then(|| worker(&stats.ended, Vec::new()));
    let all = || stats.workers.iter().chain([&stats.ended]);
    let occurred: BTreeSet<_> = all().flat_map(|w| w.drops.iter()).map(|(reason, _)| reason).collect();
    Stats {
        workers,
        ended,
        flows: stats.flows,
        masks: stats.masks,
        flow_bytes: stats.flow_bytes,
        evictions: stats.evictions,
        cycles_per_second: stats.cycles_per_second,
        drop_reasons: occurred.into_iter().map(|r| (r.name().into(), r.describe().into())).collect(),
    }
}

fn worker(w: &datapath::WorkerStats, queues: Vec<String>) -> WorkerStats {
    WorkerStats {
        worker: w.number,
        core: w.core,
        queues,
        packets: w.received,
        injected: w.injected,
        copied: w.copied,
        recirculated: w.recirculated,
        simple_hits: w.simple_hits,
        exact_hits: w.exact_hits,
        megaflow_hits: w.megaflow_hits,
        misses: w.misses,
        lost: w.lost,
        subtables_per_lookup: w.subtables_per_lookup(),
        cycles_per_packet: w.cycles_per_packet(),
        sent: w.sent,
        refused: w.refused,
        punted: w.punted,
        joined: w.joined,
        packets_per_batch: w.packets_per_batch(),
        busy_cycles: w.busy_cycles,
        idle_cycles: w.idle_cycles,
        sleeps: w.sleeps,
        slept_s: w.slept.as_secs_f64(),
        drops: w.drops.iter().map(|(reason, n)| (reason.name().into(), n)).collect(),
    }
}

/// The receive queues of each worker, as PORT/QUEUE.
fn queues_by_worker(context: &Context) -> BTreeMap<usize, Vec<String>> {
    let ports: BTreeMap<_, _> = context.engine.datapath.ports().into_iter().collect();
    let mut by_worker: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for RxAssignment { port, queue, worker, .. } in context.engine.datapath.rx_assignments() {
        let name = ports.get(&port).map_or("?", |port| port.name());
        by_worker.entry(worker).or_default().push(format!("{name}/{queue}"));
    }
    by_worker
}
