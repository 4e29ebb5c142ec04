//! Workers, the threads that forward. Other counters of theirs than here are sums over all of them ([`super::datapath`]).

use std::sync::Arc;

use datapath::WorkerStats;
use datapath::perf::{Metric as Measured, PerfMetrics};

use super::{Metric, Samples, metrics};

/// A worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its number.
    number: String,
    /// Its counters.
    stats: WorkerStats,
    /// Cycles in a second.
    frequency: f64,
    /// What it measures, if it does.
    perf: Option<Arc<PerfMetrics>>,
}

impl Worker {
    /// With `frequency` cycles in a second.
    pub fn new(stats: WorkerStats, frequency: u64, perf: Option<Arc<PerfMetrics>>) -> Worker {
        Worker { number: stats.number.to_string(), stats, frequency: frequency.max(1) as f64, perf }
    }

    fn add_histogram(&self, out: &mut Samples<'_>, of: Measured) {
        if let Some(perf) = &self.perf {
            let bins = perf.histogram(of);
            out.add_histogram(&[&self.number], &bins.walls, &bins.counts, bins.sum);
        }
    }

    fn add(&self, out: &mut Samples<'_>, of: fn(&WorkerStats) -> u64) {
        out.add(&[&self.number], of(&self.stats));
    }

    /// Adds samples that another label tells apart.
    fn add_each<const N: usize>(&self, out: &mut Samples<'_>, of: [(&str, u64); N]) {
        of.iter().for_each(|(label, n)| out.add(&[&self.number, label], *n));
    }

    fn seconds(&self, cycles: u64) -> f64 {
        cycles as f64 / self.frequency
    }
}

/// What is said of each. A counter is never a difference: what it is made of is not read at one moment, and where it went down by one,
/// Prometheus would take it for having started again.
pub static METRICS: &[Metric<Worker>] = metrics! {
    "weir_worker_info" Gauge ["worker", "core", "numa_node"] info,
        "Always 1; the labels say on which core and NUMA node a worker is. Without a core it is on no particular one.";
    "weir_worker_cycles_total" Counter ["worker", "state"]
        |w, out| w.add_each(out, [("busy", w.stats.busy_cycles), ("idle", w.stats.idle_cycles)]),
        "Cycles of turns that handled packets (busy) and of those that found none (idle).";
    "weir_worker_seconds_total" Counter ["worker", "state"] seconds,
        "How long a worker handled packets (busy), looked for some (idle) and slept (sleeping).";
    "weir_worker_turns_total" Counter ["worker"] |w, out| w.add(out, |s| s.turns), "Turns of a worker over its receive queues.";
    "weir_worker_busy_turns_total" Counter ["worker"] |w, out| w.add(out, |s| s.busy_turns), "Of these, turns that handled packets.";
    "weir_worker_sleeps_total" Counter ["worker"] |w, out| w.add(out, |s| s.sleeps), "Times that a worker went to sleep.";
    "weir_worker_receive_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.received),
        "Packets that a worker has taken from ports.";
    "weir_worker_injected_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.injected),
        "Packets that came from the management, such as packet-outs.";
    "weir_worker_copied_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.copied),
        "Packets made from others: copies, and segments beyond the first.";
    "weir_worker_joined_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.joined),
        "Packets that became part of another one.";
    "weir_worker_recirculated_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.recirculated),
        "Passes of packets through classification because of recirculation.";
    "weir_worker_hits_total" Counter ["worker", "tier"]
        |w, out| w.add_each(out, [
            ("simple", w.stats.simple_hits), ("exact", w.stats.exact_hits), ("megaflow", w.stats.megaflow_hits),
        ]),
        "Packets whose flow was found, by where: simple match, header and key cache (exact), or megaflow table.";
    "weir_worker_subtable_lookups_total" Counter ["worker"] |w, out| w.add(out, |s| s.subtables_visited),
        "Subtables of the megaflow table that packets have visited.";
    "weir_worker_upcalls_total" Counter ["worker", "outcome"]
        |w, out| w.add_each(out, [("answered", w.stats.misses), ("lost", w.stats.lost)]),
        "Packets that no flow matched: those that the slow path has answered, and those that were dropped as it had no room or failed.";
    "weir_worker_punted_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.punted),
        "Packets that an action gave to the slow path: for controllers, collectors and protocols.";
    "weir_worker_transmit_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.sent), "Packets that ports have taken.";
    "weir_worker_transmit_batches_total" Counter ["worker"] |w, out| w.add(out, |s| s.batches_sent), "Bursts in which they were sent.";
    "weir_worker_refused_packets_total" Counter ["worker"] |w, out| w.add(out, |s| s.refused),
        "Packets that ports did not take; weir_port_transmit_drops_total says why.";
    "weir_worker_turn_cycles" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::TurnCycles),
        "Cycles of a turn. This and the other histograms are there with other_config:pmd-perf-metrics only.";
    "weir_worker_cycles_per_packet" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::CyclesPerPacket),
        "Cycles of a turn for each packet that it received.";
    "weir_worker_receive_batch_packets" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::ReceiveBatch),
        "Packets that were received together from a queue.";
    "weir_worker_guest_queue_packets" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::TurnGuestQueue),
        "Packets that the fullest queue of a vhost-user guest had in a turn; 0 where none was polled that had any.";
    "weir_worker_transmit_batch_packets" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::TransmitBatch),
        "Packets that were sent together to a port.";
    "weir_worker_upcall_cycles" Histogram ["worker"] |w, out| w.add_histogram(out, Measured::UpcallCycles),
        "Cycles from when a packet that no flow matched went to the slow path until its worker had the answer.";
};

fn info(w: &Worker, out: &mut Samples<'_>) {
    let core = w.stats.core.map(|core| core.to_string()).unwrap_or_default();
    out.add(&[&w.number, &core, &w.stats.node.to_string()], 1u64);
}

fn seconds(w: &Worker, out: &mut Samples<'_>) {
    out.add(&[&w.number, "busy"], w.seconds(w.stats.busy_cycles));
    out.add(&[&w.number, "idle"], w.seconds(w.stats.idle_cycles));
    out.add(&[&w.number, "sleeping"], w.stats.slept.as_secs_f64());
}
