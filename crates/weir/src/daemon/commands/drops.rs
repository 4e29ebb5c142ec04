//! `weir/drops`: what the counters of ports, of the datapath and of the tables say of dropped packets, joined.
//!
//! The datapath counts drops by port and reason. Of those that the tables or an ingress filter decide, the rules have counters, too: they are
//! shown apart, and what is left of the datapath's counter is of rules that are not remembered any more.

use std::collections::HashMap;
use std::sync::Arc;

use datapath::{DropReason, DropStage, PortNo};
use ofproto::{Bridge, DropSite, TableDrop};
use openflow::FlowMod;
use openflow::text::matching::format_match;
use ports::{TxDrop, TxDrops};

use super::Context;
use super::flows::{in_turn, list, literal};
use crate::flow_text::Names;
use crate::report::drops::{DropFlow, DropRow, DropRule, FoundFlow};
use crate::report::{IngressPort, IngressProgram};
use crate::unixctl::Pieces;

/// Most rows that are made at a time.
const PIECE: usize = 64;

/// `weir/drops`: what [`Drops`](crate::report::drops::Drops) is in JSON, in no order. Rows are made while the client reads; what they count
/// is of one time, so that they add up.
pub fn report(context: &Context, _: &[String]) -> Result<Pieces, String> {
    let bridges = context.engine.switch.bridges();
    let sites: Vec<_> = context.engine.switch.table_drops().into_iter().map(|site| (site.packets(), site)).collect();
    let mut known = Known::default();
    sites.iter().for_each(|(packets, site)| known.add(site.port(), site.reason(), *packets));
    let mut rows = of_ingress_filters(context, &mut known);
    rows.extend(of_datapath(context, &mut known));
    bridges.iter().for_each(|bridge| rows.extend(of_devices(bridge)));
    let mut rows = rows.into_iter().chain(of_tables(context, &bridges, sites));
    let next = move || {
        let piece: Vec<_> = rows.by_ref().take(PIECE).collect();
        (!piece.is_empty()).then_some(piece)
    };
    Ok(in_turn(vec![literal("{\"drops\":["), list(next, |row| row), literal("]}")]))
}

/// The packets of which more is known than the datapath's counters say.
#[derive(Default)]
struct Known {
    by_port: HashMap<(PortNo, DropReason), u64>,
    by_reason: HashMap<DropReason, u64>,
}

impl Known {
    fn add(&mut self, port: PortNo, reason: DropReason, packets: u64) {
        *self.by_port.entry((port, reason)).or_default() += packets;
        *self.by_reason.entry(reason).or_default() += packets;
    }
}

/// A row of a reason of the datapath.
fn row(packets: u64, reason: DropReason) -> DropRow {
    DropRow {
        packets,
        stage: reason.stage().name().into(),
        reason: reason.name().into(),
        meaning: reason.describe().into(),
        ..DropRow::default()
    }
}

/// What the OpenFlow tables have decided.
fn of_tables(
    context: &Context,
    bridges: &[Bridge],
    sites: Vec<(u64, Arc<DropSite>)>,
) -> impl Iterator<Item = DropRow> + use<> {
    let ports = port_names(context);
    let names: HashMap<_, _> =
        bridges.iter().map(|bridge| (bridge.name().to_owned(), Names::of_bridge(bridge))).collect();
    let no_names = Names::default();
    sites.into_iter().map(move |(packets, site)| {
        let TableDrop { bridge, port, table, rule, reason, .. } = site.describe();
        let names = names.get(&bridge).unwrap_or(&no_names);
        let flow = rule.map(|rule| {
            let mut matching = String::new();
            format_match(&mut matching, &rule.matching, FlowMod::DEFAULT_PRIORITY, names);
            FoundFlow { cookie: rule.cookie.0, priority: rule.priority, matching }
        });
        let rule = DropRule::Flow(DropFlow { bridge, table, flow });
        DropRow { in_port: Some(name_of(&ports, port)), rule: Some(rule), ..row(packets, reason) }
    })
}

/// What ingress filters have dropped, by their rules and their programs. What a port has dropped by itself for them is among it.
fn of_ingress_filters(context: &Context, known: &mut Known) -> Vec<DropRow> {
    let numbers: HashMap<_, _> = port_names(context).into_iter().map(|(number, name)| (name, number)).collect();
    let ports = super::ingress::report(context, None).map(|report| report.ports).unwrap_or_default();
    let mut rows = Vec::new();
    for IngressPort { name, rules, program, .. } in ports {
        let of_program = program.map(|program| {
            let IngressProgram { name, dropped, aborted, unsupported, faults, .. } = program;
            (format!("program {name}"), dropped + aborted + unsupported + faults)
        });
        let of_rules = rules.into_iter().map(|rule| (rule.rule, rule.dropped));
        for (rule, dropped) in of_rules.chain(of_program).filter(|(_, dropped)| *dropped > 0) {
            // Without a device, its counters in the datapath have gone.
            known.add(numbers.get(&name).copied().unwrap_or(PortNo(u32::MAX)), DropReason::IngressFilter, dropped);
            let rule = Some(DropRule::IngressFilter(rule));
            rows.push(DropRow { in_port: Some(name.clone()), rule, ..row(dropped, DropReason::IngressFilter) });
        }
    }
    rows
}

/// What the datapath has counted, without what is known by rule.
fn of_datapath(context: &Context, known: &mut Known) -> Vec<DropRow> {
    let stats = context.engine.datapath.stats();
    let names = port_names(context);
    let mut rows = Vec::new();
    for (port, drops) in &stats.ports {
        let name = name_of(&names, *port);
        for (reason, counted) in drops.iter() {
            let rest = counted.saturating_sub(known.by_port.get(&(*port, reason)).copied().unwrap_or(0));
            known.add(*port, reason, rest);
            let rule = matches!(reason.stage(), DropStage::Translate).then_some(DropRule::Others);
            let (in_port, out_port) =
                if reason.is_of_output_port() { (None, Some(name.clone())) } else { (Some(name.clone()), None) };
            rows.push(DropRow { in_port, out_port, rule, ..row(rest, reason) });
        }
    }
    // Of ports that have gone, or never were.
    let mut all = datapath::Drops::default();
    stats.workers.iter().chain([&stats.ended]).for_each(|worker| all += &worker.drops);
    for (reason, counted) in all.iter() {
        rows.push(row(counted.saturating_sub(known.by_reason.get(&reason).copied().unwrap_or(0)), reason));
    }
    rows.retain(|row| row.packets > 0);
    rows
}

/// What devices have dropped: before Weir had it, or instead of sending it.
fn of_devices(bridge: &Bridge) -> Vec<DropRow> {
    let mut rows = Vec::new();
    for info in bridge.ports() {
        let Some(device) = &info.device else { continue };
        let known = |count: u64| if count == ports::Stats::UNKNOWN { 0 } else { count };
        let dropped = known(device.stats().rx_dropped);
        if dropped > 0 {
            rows.push(DropRow {
                packets: dropped,
                stage: "device".into(),
                reason: "rx_dropped".into(),
                meaning: "The device, its driver or its queue dropped them before Weir could take them.".into(),
                in_port: Some(info.name.clone()),
                ..DropRow::default()
            });
        }
        let of_queue = |drops: TxDrops, queue: Option<u32>| {
            drops
                .iter()
                .map(|(reason, packets)| of_transmission(&info.name, queue, reason, packets))
                .collect::<Vec<_>>()
        };
        match device.tx_queue_drops() {
            queues if queues.is_empty() => rows.extend(of_queue(device.tx_drops(), None)),
            queues => rows.extend((0..).zip(queues).flat_map(|(queue, drops)| of_queue(drops, Some(queue)))),
        }
    }
    rows
}

/// A row of what a transmit queue of a port did not take.
fn of_transmission(port: &str, queue: Option<u32>, reason: TxDrop, packets: u64) -> DropRow {
    DropRow {
        packets,
        stage: "transmit".into(),
        reason: reason.name().into(),
        meaning: reason.describe().into(),
        out_port: Some(port.to_owned()),
        queue,
        ..DropRow::default()
    }
}

fn port_names(context: &Context) -> HashMap<PortNo, String> {
    context.engine.datapath.ports().into_iter().map(|(number, port)| (number, port.name().to_owned())).collect()
}

/// The name of a port; its number in the datapath where it has gone.
fn name_of(names: &HashMap<PortNo, String>, port: PortNo) -> String {
    names.get(&port).cloned().unwrap_or_else(|| format!("datapath port {}", port.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_explains_each_reason() {
        let documentation = include_str!("../../../../../docs/drops.md");
        let line = |stage: &str, name: &str, meaning: &str| format!("| {stage} | `{name}` | {meaning} |");
        let datapath = DropReason::ALL.iter().map(|r| line(r.stage().name(), r.name(), r.describe()));
        let transmit = TxDrop::ALL.iter().map(|r| line("transmit", r.name(), r.describe()));
        for line in datapath.chain(transmit) {
            assert!(documentation.lines().any(|documented| documented == line), "docs/drops.md lacks: {line}");
        }
    }
}
