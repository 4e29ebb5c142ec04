//! The datapath, the slow path and connection tracking.

use ::datapath::conntrack::counters::Counter;
use ::datapath::{DropReason, Drops, Stats};
use ofproto::{RevalidationStats, VerifyCounts};

use super::{Metric, Samples, metrics};

/// The datapath of the bridges.
#[derive(Clone, Debug, Default)]
pub struct Datapath {
    /// Its counters; those of the workers count here as a sum only.
    pub stats: Stats,
    /// Most flows that there may be.
    pub flow_limit: usize,
    /// Most memory that flows may take, in bytes.
    pub flow_memory_limit: usize,
    /// Threads that translate misses.
    pub handlers: usize,
    /// Threads that bring flows up to date.
    pub revalidators: usize,
    /// What they have done.
    pub revalidation: RevalidationStats,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// Samples for collectors that the exporter had no room for.
    pub samples_lost: u64,
    /// Packets that were judged a second time by the tables.
    pub verified: VerifyCounts,
    /// OpenFlow connections that were closed since they did not read.
    pub overflown_connections: u64,
}

/// Connection tracking.
#[derive(Clone, Debug, Default)]
pub struct Conntrack {
    /// Connections that there are.
    pub connections: u64,
    /// Most that there may be.
    pub limit: u32,
    /// Why packets were not tracked, in the order of [`Counter::ALL`].
    pub events: Vec<u64>,
}

impl Datapath {
    /// Packets that all workers have dropped, those included that have ended.
    fn drops(&self) -> Drops {
        let mut all = self.stats.ended.drops.clone();
        self.stats.workers.iter().for_each(|worker| all += &worker.drops);
        all
    }
}

/// What is said of it.
pub static METRICS: &[Metric<Datapath>] = metrics! {
    "weir_drop_packets_total" Counter ["stage", "reason"] drops,
        "Packets dropped, by the stage of their way and the reason; docs/drops.md explains each.";
    "weir_flows" Gauge [] |d, out| out.add(&[], d.stats.flows), "Flows in the datapath.";
    "weir_flows_limit" Gauge [] |d, out| out.add(&[], d.flow_limit), "Most flows that there may be.";
    "weir_flow_memory_bytes" Gauge [] |d, out| out.add(&[], d.stats.flow_bytes), "Memory that the flows take.";
    "weir_flow_memory_limit_bytes" Gauge [] |d, out| out.add(&[], d.flow_memory_limit), "Most memory that they may take.";
    "weir_flow_evictions_total" Counter [] |d, out| out.add(&[], d.stats.evictions),
        "Flows that had to make room for others, or for wider masks.";
    "weir_masks" Gauge [] |d, out| out.add(&[], d.stats.masks), "Different masks of the flows.";
    "weir_handler_threads" Gauge [] |d, out| out.add(&[], d.handlers), "Threads that translate packets that no flow matches.";
    "weir_revalidator_threads" Gauge [] |d, out| out.add(&[], d.revalidators), "Threads that bring flows up to date.";
    "weir_revalidation_rounds_total" Counter [] |d, out| out.add(&[], d.revalidation.count), "Rounds over the flows.";
    "weir_revalidation_last_round_seconds" Gauge [] |d, out| out.add(&[], d.revalidation.duration.as_secs_f64()),
        "How long the last round took.";
    "weir_revalidation_translations_total" Counter [] |d, out| out.add(&[], d.revalidation.translated),
        "Flows that were translated again because of a change.";
    "weir_conntrack_connections" Gauge [] |d, out| out.add(&[], d.conntrack.connections), "Tracked connections.";
    "weir_conntrack_connections_limit" Gauge [] |d, out| out.add(&[], d.conntrack.limit), "Most that there may be.";
    "weir_conntrack_events_total" Counter ["event"] conntrack_events,
        "Packets that were not tracked and connections that were not made, by the name that coverage/show has for the reason.";
    "weir_export_samples_lost_total" Counter [] |d, out| out.add(&[], d.samples_lost),
        "Samples for collectors that the exporter had no room for.";
    "weir_verified_packets_total" Counter [] |d, out| out.add(&[], d.verified.checked()),
        "Packets that the OpenFlow tables have judged a second time (docs/verification.md).";
    "weir_verify_disagreements_total" Counter [] |d, out| out.add(&[], d.verified.disagreements),
        "Of these, packets with which the datapath's caches did something else: a fault of Weir.";
    "weir_verify_lost_total" Counter [] |d, out| out.add(&[], d.verified.lost),
        "Packets that were to be judged a second time, and of which too many waited.";
    "weir_openflow_overflown_connections_total" Counter [] |d, out| out.add(&[], d.overflown_connections),
        "OpenFlow connections that were closed because they did not read what waited for them.";
};

fn drops(d: &Datapath, out: &mut Samples<'_>) {
    let all = d.drops();
    // The reasons that have not occurred, too: a counter that appears with its first packet shows no increase for it.
    DropReason::ALL.iter().for_each(|&reason| out.add(&[reason.stage().name(), reason.name()], all.get(reason)));
}

fn conntrack_events(d: &Datapath, out: &mut Samples<'_>) {
    Counter::ALL.iter().zip(&d.conntrack.events).for_each(|(counter, n)| out.add(&[counter.name()], *n));
}

/// The drops of a port of the datapath.
#[derive(Clone, Debug)]
pub struct PortDrops {
    /// Its name in the datapath.
    pub port: String,
    /// What was dropped there.
    pub drops: Drops,
}

/// What is said of the drops of each port.
pub static PORT_DROPS: &[Metric<PortDrops>] = metrics! {
    "weir_port_drop_packets_total" Counter ["port", "stage", "reason"]
        |p, out| p.drops.iter().for_each(|(reason, n)| out.add(&[&p.port, reason.stage().name(), reason.name()], n)),
        "Of weir_drop_packets_total, the packets that came from a port, or at the stage output were for it; reasons that have occurred.";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_workers_that_have_ended_count_and_every_reason_is_there() {
        let worker = |n| {
            let mut drops = Drops::default();
            drops.0[DropReason::Rule as usize] = n;
            ::datapath::WorkerStats { drops, ..Default::default() }
        };
        let stats = Stats { workers: vec![worker(1), worker(2)], ended: worker(4), ..Stats::default() };
        let subject = Datapath { stats, ..Datapath::default() };
        let mut text = String::new();
        drops(&subject, &mut Samples::new(&mut text, METRICS[0].name, METRICS[0].labels));
        assert!(text.contains("weir_drop_packets_total{stage=\"translate\",reason=\"rule\"} 7\n"), "{text}");
        assert_eq!(text.lines().count(), DropReason::ALL.len());
    }
}
