//! `weir/stats` and the statistics commands of OVS's userspace datapath.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use datapath::RxAssignment;

use super::Context;
use super::reports::json;
use crate::report::{Stats, WorkerStats};
use crate::unixctl::command::Outcome;

/// `weir/stats`.
pub fn report(context: &Context, _: &[String]) -> Outcome {
    let stats = context.engine.datapath.stats();
    let queues = queues_by_worker(context);
    let workers: Vec<_> =
        stats.workers.iter().map(|w| worker(w, queues.get(&w.number).cloned().unwrap_or_default())).collect();
    let ended = (stats.ended != datapath::WorkerStats::default()).then(|| worker(&stats.ended, Vec::new()));
    let all = || stats.workers.iter().chain([&stats.ended]);
    let occurred: BTreeSet<_> = all().flat_map(|w| w.drops.iter()).map(|(reason, _)| reason).collect();
    json(&Stats {
        workers,
        ended,
        flows: stats.flows,
        masks: stats.masks,
        cycles_per_second: stats.cycles_per_second,
        drop_reasons: occurred.into_iter().map(|r| (r.name().into(), r.describe().into())).collect(),
    })
}

fn worker(w: &datapath::WorkerStats, queues: Vec<String>) -> WorkerStats {
    WorkerStats {
        worker: w.number,
        core: w.core,
        queues,
        packets: w.received,
        recirculated: w.recirculated,
        simple_hits: w.simple_hits,
        exact_hits: w.exact_hits,
        megaflow_hits: w.megaflow_hits,
        misses: w.misses,
        lost: w.lost,
        subtables_per_lookup: w.subtables_per_lookup(),
        cycles_per_packet: w.cycles_per_packet(),
        sent: w.sent,
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

/// `dpif-netdev/pmd-stats-show`, in the layout of OVS 3.1.
pub fn pmd_stats(context: &Context, args: &[String]) -> Outcome {
    let only = pmd_argument(context, args)?;
    let mut text = String::new();
    for w in context.engine.datapath.stats().workers {
        let core = w.core.unwrap_or(0);
        if only.is_some_and(|only| only != core) {
            continue;
        }
        let passes = w.received + w.recirculated;
        let cycles = w.busy_cycles + w.idle_cycles;
        let per = |n: u64, of: u64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
        let mut line = |args: std::fmt::Arguments| {
            let _ = writeln!(text, "{args}");
        };
        line(format_args!("pmd thread numa_id 0 core_id {core}:"));
        line(format_args!("  packets received: {}", w.received));
        line(format_args!("  packet recirculations: {}", w.recirculated));
        line(format_args!("  avg. datapath passes per packet: {:.2}", per(passes, w.received)));
        line(format_args!("  phwol hits: 0"));
        line(format_args!("  mfex opt hits: 0"));
        line(format_args!("  simple match hits: {}", w.simple_hits));
        line(format_args!("  emc hits: {}", w.exact_hits));
        line(format_args!("  smc hits: 0"));
        line(format_args!("  megaflow hits: {}", w.megaflow_hits));
        line(format_args!("  avg. subtable lookups per megaflow hit: {:.2}", w.subtables_per_lookup()));
        line(format_args!("  miss with success upcall: {}", w.misses));
        line(format_args!("  miss with failed upcall: {}", w.lost));
        line(format_args!("  avg. packets per output batch: {:.2}", w.packets_per_batch()));
        line(format_args!("  idle cycles: {} ({:.2}%)", w.idle_cycles, 100.0 * per(w.idle_cycles, cycles)));
        line(format_args!("  processing cycles: {} ({:.2}%)", w.busy_cycles, 100.0 * per(w.busy_cycles, cycles)));
        if w.received > 0 {
            line(format_args!("  avg cycles per packet: {:.2} ({cycles}/{})", per(cycles, w.received), w.received));
            line(format_args!(
                "  avg processing cycles per packet: {:.2} ({}/{})",
                per(w.busy_cycles, w.received),
                w.busy_cycles,
                w.received
            ));
        }
    }
    Ok(text)
}

/// `dpif-netdev/pmd-stats-clear`. The counters of all workers start again, whichever is named.
pub fn pmd_stats_clear(context: &Context, args: &[String]) -> Outcome {
    pmd_argument(context, args)?;
    context.engine.datapath.reset_stats();
    Ok(String::new())
}

/// `dpif-netdev/pmd-rxq-show`.
pub fn pmd_rxq_show(context: &Context, args: &[String]) -> Outcome {
    let only = pmd_argument(context, args)?;
    let ports: BTreeMap<_, _> = context.engine.datapath.ports().into_iter().collect();
    let assignments = context.engine.datapath.rx_assignments();
    let mut text = String::new();
    for (number, w) in context.engine.datapath.stats().workers.iter().enumerate() {
        let core = w.core.unwrap_or(0);
        if only.is_some_and(|only| only != core) {
            continue;
        }
        let _ = writeln!(text, "pmd thread numa_id 0 core_id {core}:\n  isolated : false");
        for queue in assignments.iter().filter(|queue| queue.worker == number) {
            let name = ports.get(&queue.port).map_or("?", |port| port.name());
            let _ = writeln!(text, "  port: {name:<16}  queue-id: {:>2} (enabled)", queue.queue);
        }
    }
    Ok(text)
}

/// Parses `[-pmd CORE] [DP]`: the core.
fn pmd_argument(context: &Context, args: &[String]) -> Result<Option<usize>, String> {
    let mut args = args.iter();
    let mut core = None;
    while let Some(arg) = args.next() {
        if arg == "-pmd" {
            let value = args.next().ok_or("-pmd needs the number of a core")?;
            core = Some(value.parse().map_err(|_| format!("-pmd {value}: not the number of a core"))?);
        } else {
            super::ports::check_datapath(context, Some(arg))?;
        }
    }
    Ok(core)
}
