//! `weir/metrics`: what all counters say, for Prometheus.
//!
//! Everything is read here on the management thread, in pieces: counters of workers and ports are atomics that their owners write, so
//! nothing on a packet's way waits for it. The locks that are taken are those of the control plane and of the tables, to read.

use std::sync::Arc;

use datapath::PortNo;
use datapath::conntrack::counters::Counter;
use ofproto::bridge::TableCounts;
use ofproto::{PortInfo, PortProtocols};
use ports::pools;

use super::Context;
use super::flows::in_turn;
use crate::metrics::bridges::{Bridge, Controller, Table};
use crate::metrics::datapath::{Conntrack, Datapath, PortDrops};
use crate::metrics::ports::{Device, Port};
use crate::metrics::process::{Daemon, Usage};
use crate::metrics::workers::Worker;
use crate::metrics::{bridges, datapath as of_datapath, of_one, pieces, ports as of_ports, process, workers};
use crate::unixctl::Pieces;
use crate::unixctl::server::REPLIED;

/// How many ports or others are asked at a time. A device may ask the kernel.
const COLLECTED: usize = 16;

/// `weir/metrics`.
pub fn report(context: &Context, _: &[String]) -> Result<Pieces, String> {
    Ok(all(context))
}

/// All metrics, in Prometheus's text format.
pub fn all(context: &Context) -> Pieces {
    let datapath = &context.engine.datapath;
    let stats = datapath.worker_stats();
    let frequency = stats.cycles_per_second;
    let mut perf = datapath.perf_metrics();
    let workers = stats.workers.iter();
    let all_workers: Vec<_> =
        workers.map(|worker| Worker::new(worker.clone(), frequency, perf.remove(&worker.number))).collect();
    let bridges = context.engine.switch.bridges();
    in_turn(vec![
        of_one(process::METRICS, daemon(context)),
        of_one(of_datapath::METRICS, of_bridges_datapath(context, stats)),
        pieces(of_datapath::PORT_DROPS, port_drops(datapath.clone())),
        pieces(workers::METRICS, by_piece(all_workers.into_iter())),
        pieces(bridges::METRICS, by_one(bridges.clone(), |bridge| [of_bridge(bridge)])),
        pieces(bridges::TABLES, by_one(bridges.clone(), tables)),
        pieces(bridges::CONTROLLERS, by_piece(controllers(context, &bridges).into_iter())),
        pieces(of_ports::METRICS, by_piece(all_ports(bridges))),
    ])
}

/// Collects the drops of some ports at a time.
fn port_drops(datapath: Arc<::datapath::Datapath>) -> impl FnMut(&mut Vec<PortDrops>) -> bool {
    let mut from = Some(PortNo(0));
    move |subjects| {
        let Some(first) = from else { return false };
        let ports = datapath.port_drops(first, COLLECTED);
        from = ports.last().and_then(|(last, ..)| last.0.checked_add(1)).map(PortNo);
        let dropped = ports.into_iter().filter(|(_, _, drops)| drops.total() > 0);
        subjects.extend(dropped.map(|(_, port, drops)| PortDrops { port, drops }));
        from.is_some()
    }
}

/// Collects some at a time.
fn by_piece<T>(mut items: impl Iterator<Item = T>) -> impl FnMut(&mut Vec<T>) -> bool {
    move |subjects| {
        let before = subjects.len();
        subjects.extend(items.by_ref().take(COLLECTED));
        subjects.len() - before == COLLECTED
    }
}

/// Collects what one bridge after the other has.
fn by_one<T, I: IntoIterator<Item = T>>(
    bridges: Vec<ofproto::Bridge>,
    of: fn(&ofproto::Bridge) -> I,
) -> impl FnMut(&mut Vec<T>) -> bool {
    let mut bridges = bridges.into_iter();
    move |subjects| {
        let bridge = bridges.next();
        bridge.iter().for_each(|bridge| subjects.extend(of(bridge)));
        bridge.is_some()
    }
}

fn daemon(context: &Context) -> Daemon {
    let unapplied = context.configurator.unapplied();
    Daemon {
        version: env!("CARGO_PKG_VERSION").into(),
        started: context.started_at,
        changes: context.configurator.changes(),
        unapplied: unapplied.ports.len() + unapplied.errors.len() + usize::from(context.http.problem().is_some()),
        usage: Usage::of_this_process(),
        buffers: pools::in_use().collect(),
        requests: REPLIED.load(std::sync::atomic::Ordering::Relaxed),
    }
}

fn of_bridges_datapath(context: &Context, stats: ::datapath::Stats) -> Datapath {
    let (datapath, switch) = (&context.engine.datapath, &context.engine.switch);
    let tracking = datapath.conntrack();
    let limits = &tracking.tracker.table.limits;
    Datapath {
        stats,
        flow_limit: datapath.max_flows(),
        flow_memory_limit: datapath.max_flow_memory(),
        handlers: datapath.handlers(),
        revalidators: switch.revalidators(),
        revalidation: switch.revalidation_stats(),
        conntrack: Conntrack {
            connections: limits.connections(),
            limit: limits.limit(),
            events: Counter::ALL.iter().map(|&counter| tracking.counters.get(counter)).collect(),
        },
        verified: switch.verify_counts(),
        samples_lost: switch.exporter().lost(),
        overflown_connections: switch.overflown_connections(),
    }
}

fn of_bridge(bridge: &ofproto::Bridge) -> Bridge {
    Bridge {
        name: bridge.name().to_owned(),
        ports: bridge.port_count(),
        flows: bridge.flow_count(),
        macs: bridge.mac_counts().0,
        macs_limit: bridge.config().mac.max_entries,
        mac_stats: bridge.mac_stats(),
    }
}

/// The tables of a bridge that are in use.
pub fn tables_in_use(bridge: &ofproto::Bridge) -> impl Iterator<Item = TableCounts> {
    bridge.table_counts().into_iter().filter(|counts| counts.flows > 0 || counts.lookups > 0)
}

fn tables(bridge: &ofproto::Bridge) -> Vec<Table> {
    tables_in_use(bridge)
        .map(|counts| Table {
            bridge: bridge.name().to_owned(),
            table: counts.table.0.to_string(),
            flows: counts.flows,
            limit: counts.limit,
            lookups: counts.lookups,
            matched: counts.matched,
        })
        .collect()
}

fn controllers(context: &Context, bridges: &[ofproto::Bridge]) -> Vec<Controller> {
    let of_bridge = |bridge: &ofproto::Bridge| {
        let name = bridge.name().to_owned();
        let controllers = context.openflow.controllers(&name).into_iter();
        controllers.map(move |(target, status)| Controller {
            bridge: name.clone(),
            target: target.to_string(),
            connections: status.connections,
        })
    };
    bridges.iter().flat_map(of_bridge).collect()
}

/// The ports of all bridges; of each is asked when its turn comes.
fn all_ports(bridges: Vec<ofproto::Bridge>) -> impl Iterator<Item = Port> {
    bridges.into_iter().flat_map(|bridge| {
        let name = bridge.name().to_owned();
        bridge.ports().into_iter().map(move |info| of_port(&name, bridge.port_protocols(info.port), info))
    })
}

fn of_port(bridge: &str, protocols: PortProtocols, info: PortInfo) -> Port {
    let device = info.device.map(|device| Device {
        link: device.link(),
        mtu: device.mtu(),
        stats: device.stats(),
        tx_drops: device.tx_drops(),
    });
    Port { bridge: bridge.to_owned(), name: info.name, kind: info.kind, ofport: info.port.0, device, protocols }
}
