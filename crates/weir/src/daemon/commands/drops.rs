//! `weir/drops`: what the counters of ports, of the datapath and of the tables say of dropped packets, joined.
//!
//! The datapath counts drops by port and reason. Of those that the tables or an ingress filter decide, the rules have counters, too: they are
//! shown apart, and what is left of the datapath's counter is of rules that are not remembered any more.

use std::collections::HashMap;

use datapath::{DropReason, DropStage, PortNo};
use ofproto::{Bridge, TableDrop};
use openflow::FlowMod;
use openflow::text::matching::format_match;

use super::Context;
use super::reports::json;
use crate::flow_text::Names;
use crate::report::drops::{DropFlow, DropRow, DropRule, Drops, FoundFlow};
use crate::report::{IngressPort, IngressProgram};
use crate::unixctl::command::Outcome;

/// `weir/drops`.
pub fn report(context: &Context, _: &[String]) -> Outcome {
    let bridges = context.engine.switch.bridges();
    let mut rows = of_tables(context, &bridges);
    rows.extend(of_ingress_filters(context));
    let by_rule = by_port_and_reason(&rows);
    rows.extend(of_datapath(context, &by_rule));
    bridges.iter().for_each(|bridge| rows.extend(of_devices(bridge)));
    rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
    json(&Drops { drops: rows })
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
fn of_tables(context: &Context, bridges: &[Bridge]) -> Vec<DropRow> {
    let ports = port_names(context);
    let names: HashMap<_, _> = bridges.iter().map(|bridge| (bridge.name(), Names::of_bridge(bridge))).collect();
    let no_names = Names::default();
    let of = |drop: TableDrop| {
        let names = names.get(&*drop.bridge).unwrap_or(&no_names);
        let flow = drop.rule.map(|rule| {
            let mut matching = String::new();
            format_match(&mut matching, &rule.matching, FlowMod::DEFAULT_PRIORITY, names);
            FoundFlow { cookie: rule.cookie.0, priority: rule.priority, matching }
        });
        let rule = DropRule::Flow(DropFlow { bridge: drop.bridge, table: drop.table, flow });
        DropRow { in_port: Some(name_of(&ports, drop.port)), rule: Some(rule), ..row(drop.packets, drop.reason) }
    };
    context.engine.switch.table_drops().into_iter().map(of).collect()
}

/// What ingress filters have dropped, by their rules and their programs.
fn of_ingress_filters(context: &Context) -> Vec<DropRow> {
    let ports = super::ingress::report(context, None).map(|report| report.ports).unwrap_or_default();
    let mut rows = Vec::new();
    for IngressPort { name, rules, program, .. } in ports {
        let of_program = program.map(|program| {
            let IngressProgram { name, dropped, aborted, unsupported, faults, .. } = program;
            (format!("program {name}"), dropped + aborted + unsupported + faults)
        });
        let of_rules = rules.into_iter().map(|rule| (rule.rule, rule.dropped));
        rows.extend(of_rules.chain(of_program).filter(|(_, dropped)| *dropped > 0).map(|(rule, dropped)| DropRow {
            in_port: Some(name.clone()),
            rule: Some(DropRule::IngressFilter(rule)),
            ..row(dropped, DropReason::IngressFilter)
        }));
    }
    rows
}

/// Input port and reason of a row.
type PortAndReason = (Option<String>, String);

fn by_port_and_reason(rows: &[DropRow]) -> HashMap<PortAndReason, u64> {
    let mut sums = HashMap::new();
    for row in rows {
        *sums.entry((row.in_port.clone(), row.reason.clone())).or_default() += row.packets;
    }
    sums
}

/// What the datapath has counted, without what is known by rule.
fn of_datapath(context: &Context, by_rule: &HashMap<PortAndReason, u64>) -> Vec<DropRow> {
    let stats = context.engine.datapath.stats();
    let names = port_names(context);
    let mut rows = Vec::new();
    let mut of_ports = datapath::Drops::default();
    for (port, drops) in &stats.ports {
        of_ports += drops;
        let name = name_of(&names, *port);
        for (reason, counted) in drops.iter() {
            let known = by_rule.get(&(Some(name.clone()), reason.name().into())).copied().unwrap_or(0);
            let is_of_output = reason.stage() == DropStage::Output;
            let rule = matches!(reason.stage(), DropStage::Translate).then_some(DropRule::Others);
            let (in_port, out_port) =
                if is_of_output { (None, Some(name.clone())) } else { (Some(name.clone()), None) };
            rows.push(DropRow { in_port, out_port, rule, ..row(counted.saturating_sub(known), reason) });
        }
    }
    // Ports that have gone, or never were.
    let mut all = datapath::Drops::default();
    stats.workers.iter().chain([&stats.ended]).for_each(|worker| all += &worker.drops);
    for (reason, counted) in all.iter() {
        rows.push(row(counted.saturating_sub(of_ports.get(reason)), reason));
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
        rows.extend(device.tx_drops().iter().map(|(reason, packets)| DropRow {
            packets,
            stage: "transmit".into(),
            reason: reason.name().into(),
            meaning: reason.describe().into(),
            out_port: Some(info.name.clone()),
            ..DropRow::default()
        }));
    }
    rows
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
    use ports::drop::TxDrop;

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
