//! What the switch does, for `weir top` and `weir doctor`.

use std::collections::BTreeMap;

use datapath::conntrack::counters::Counter;
use datapath::{DropReason, RxAssignment};

use super::Context;
use super::reports::json;
use crate::daemon::ranking::Question;
use crate::report::activity::{Connections, QueueShow, Queues, Upcalls, ZoneShow};
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "weir/queues" "" (0, 0) now!(queues), "Receive queues, with the worker and the load of each, as JSON.";
    "weir/upcalls" "" (0, 0) now!(upcalls), "Counters of the slow path, and of the flows that it makes, as JSON.";
    "weir/connections" "" (0, 0) now!(connections), "Counts of tracked connections, as JSON.";
    "weir/top" "flows|rules|drops|pairs [most=N] [by=packets|bytes] [port=PORT] [bridge=BRIDGE] [rule=BRIDGE/ID] [interval=SECONDS]" (1, 7) slow!(top),
        "The flows of the datapath, OpenFlow rules, drops or pairs of ports with the most traffic, measured over an interval, as JSON.";
};

/// How far the load of queues looks back, in seconds: one step of the history.
const LOAD_SECONDS: u64 = 5;

/// Most zones in an answer.
const MOST_ZONES: usize = 64;

fn queues(context: &Context, _: &[String]) -> Outcome {
    let datapath = &context.engine.datapath;
    let ports: BTreeMap<_, _> = datapath.ports().into_iter().collect();
    let cores: BTreeMap<_, _> = datapath.stats().workers.into_iter().map(|w| (w.number, w.core)).collect();
    let usage = datapath.usage(LOAD_SECONDS);
    let show = |RxAssignment { port, queue, worker, pinned }: RxAssignment| {
        let device = ports.get(&port)?;
        Some(QueueShow {
            port: device.name().to_owned(),
            queue,
            worker,
            core: cores.get(&worker).copied().flatten(),
            pinned,
            enabled: device.rx_enabled(queue),
            busy_percent: usage.queues.get(&(port, queue)).copied().flatten(),
        })
    };
    let mut queues: Vec<_> = datapath.rx_assignments().into_iter().filter_map(show).collect();
    queues.sort_by(|a, b| (&a.port, a.queue).cmp(&(&b.port, b.queue)));
    json(&Queues { queues })
}

fn upcalls(context: &Context, _: &[String]) -> Outcome {
    let (switch, datapath) = (&context.engine.switch, &context.engine.datapath);
    let (stats, rounds) = (datapath.stats(), switch.revalidation_stats());
    let sum = |of: fn(&datapath::WorkerStats) -> u64| stats.workers.iter().chain([&stats.ended]).map(of).sum::<u64>();
    let names: BTreeMap<_, _> = datapath.ports().into_iter().collect();
    let pressed = datapath.ports_under_mask_pressure();
    json(&Upcalls {
        misses: sum(|w| w.misses),
        lost: sum(|w| w.lost),
        queue_full: sum(|w| w.drops.get(DropReason::UpcallQueueFull)),
        punted: sum(|w| w.punted),
        overflown: switch.slow_drops(),
        handlers: datapath.handlers(),
        revalidators: switch.revalidators(),
        flows: stats.flows,
        flow_limit: datapath.max_flows(),
        flow_bytes: stats.flow_bytes,
        masks: stats.masks,
        mask_pressure: pressed.iter().filter_map(|port| Some(names.get(port)?.name().to_owned())).collect(),
        evictions: stats.evictions,
        rounds: rounds.count,
        round_ms: rounds.duration.as_millis() as u64,
        translated: rounds.translated,
    })
}

fn connections(context: &Context, _: &[String]) -> Outcome {
    let conntrack = context.engine.datapath.conntrack();
    let (limits, counts) = (&conntrack.tracker.table.limits, conntrack.tracker.table.counts());
    let mut zones: Vec<_> = (0..=u16::MAX).map(|zone| (limits.zone_connections(zone), zone)).collect();
    zones.retain(|(connections, _)| *connections > 0);
    let zones_in_use = zones.len();
    zones.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then(x.cmp(y)));
    zones.truncate(MOST_ZONES);
    let occurred = Counter::ALL.iter().map(|&counter| (counter.name(), conntrack.counters.get(counter)));
    json(&Connections {
        connections: limits.connections(),
        limit: limits.limit(),
        made: counts.made,
        ended: counts.removed,
        dropped_early: counts.dropped_early,
        counters: occurred.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect(),
        zones_in_use,
        zones: zones
            .into_iter()
            .map(|(connections, zone)| ZoneShow { zone, connections, limit: limits.zone_limit(zone) })
            .collect(),
    })
}

/// `weir/top`.
pub fn top(context: &Context, args: &[String]) -> Reply {
    match Question::parse(args) {
        Ok(question) => context.rankings.ask(question),
        Err(problem) => Reply::Now(Err(problem)),
    }
}
