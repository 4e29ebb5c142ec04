//! What the counters of ports, of the datapath and of the tables say of dropped packets, joined.
//!
//! The datapath counts drops by port and reason. Of those that the tables or an ingress filter decide, the rules have counters, too: they are
//! shown apart, and what is left of the datapath's counter is of rules that are not remembered any more.

use std::collections::HashMap;
use std::sync::Arc;

use datapath::{DropReason, DropStage, PortNo};
use ofproto::{Bridge, DropSite, TableDrop};
use openflow::FlowMod;
use openflow::text::matching::format_match;
use ports::TxDrops;

use super::engine::Engine;
use crate::flow_text::Names;
use crate::report::drops::{DropFlow, DropRow, DropRule, FoundFlow};
use crate::report::{IngressPort, IngressProgram};

/// What a row is made of.
pub enum DropSource {
    /// A place in the tables, with the packets that it has counted.
    Site(u64, Arc<DropSite>),
    /// A row that is there already.
    Row(DropRow),
}

impl DropSource {
    /// Whether packets have come in at the port, or were to leave by it.
    pub fn is_of_port(&self, port: &str, ports: &HashMap<PortNo, String>) -> bool {
        match self {
            DropSource::Site(_, site) => ports.get(&site.port()).is_some_and(|name| name == port),
            DropSource::Row(row) => [&row.in_port, &row.out_port].into_iter().any(|name| name.as_deref() == Some(port)),
        }
    }
}

/// All drops. What they count is of one time, so that they add up.
pub fn sources(engine: &Engine) -> Vec<DropSource> {
    let bridges = engine.switch.bridges();
    let sites: Vec<_> = engine.switch.table_drops().into_iter().map(|site| (site.packets(), site)).collect();
    let mut known = Known::default();
    sites.iter().for_each(|(packets, site)| known.add(site.port(), site.reason(), *packets));
    let mut rows = of_ingress_filters(engine, &mut known);
    rows.extend(of_datapath(engine, &mut known));
    bridges.iter().for_each(|bridge| rows.extend(of_devices(bridge)));
    let sites = sites.into_iter().map(|(packets, site)| DropSource::Site(packets, site));
    rows.into_iter().map(DropSource::Row).chain(sites).collect()
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

/// Makes rows. The names of ports are those of now.
pub fn describer(engine: &Engine) -> impl Fn(&DropSource) -> DropRow + use<> {
    let ports = port_names(engine);
    let bridges = engine.switch.bridges();
    let names: HashMap<_, _> =
        bridges.iter().map(|bridge| (bridge.name().to_owned(), Names::of_bridge(bridge))).collect();
    let no_names = Names::default();
    move |source| {
        let (packets, site) = match source {
            DropSource::Row(row) => return row.clone(),
            DropSource::Site(packets, site) => (*packets, site),
        };
        let drop = site.describe();
        let rule = drop_rule(&drop, names.get(&drop.bridge).unwrap_or(&no_names));
        DropRow { in_port: Some(name_of(&ports, drop.port)), rule: Some(rule), ..row(packets, drop.reason) }
    }
}

/// The table and rule of a drop, in words.
pub fn drop_rule(drop: &TableDrop, names: &Names) -> DropRule {
    let flow = drop.rule.as_ref().map(|rule| {
        let mut matching = String::new();
        format_match(&mut matching, &rule.matching, FlowMod::DEFAULT_PRIORITY, names);
        FoundFlow { cookie: rule.cookie.0, priority: rule.priority, matching }
    });
    DropRule::Flow(DropFlow { bridge: drop.bridge.clone(), table: drop.table, flow })
}

/// What ingress filters have dropped, by their rules and their programs. What a port has dropped by itself for them is among it.
fn of_ingress_filters(engine: &Engine, known: &mut Known) -> Vec<DropRow> {
    let numbers: HashMap<_, _> = port_names(engine).into_iter().map(|(number, name)| (name, number)).collect();
    let ports = engine.ingress.report();
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
fn of_datapath(engine: &Engine, known: &mut Known) -> Vec<DropRow> {
    let stats = engine.datapath.stats();
    let names = port_names(engine);
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
        // The sum of the queues is not read where they are told apart: it might be of a later time.
        let by_queue = device.tx_queue_drops();
        if by_queue.is_empty() {
            rows.extend(of_transmission(&info.name, None, device.tx_drops()));
        }
        for (queue, drops) in (0..).zip(by_queue) {
            rows.extend(of_transmission(&info.name, Some(queue), drops));
        }
    }
    rows
}

/// What a port, or a transmit queue of it, has not sent.
fn of_transmission(port: &str, queue: Option<u32>, drops: TxDrops) -> impl Iterator<Item = DropRow> {
    let rows: Vec<_> = drops.iter().collect();
    rows.into_iter().map(move |(reason, packets)| DropRow {
        packets,
        stage: "transmit".into(),
        reason: reason.name().into(),
        meaning: reason.describe().into(),
        out_port: Some(port.to_owned()),
        queue,
        ..DropRow::default()
    })
}

/// The names of the datapath's ports.
pub fn port_names(engine: &Engine) -> HashMap<PortNo, String> {
    engine.datapath.ports().into_iter().map(|(number, port)| (number, port.name().to_owned())).collect()
}

/// The name of a port; its number in the datapath where it has gone.
fn name_of(names: &HashMap<PortNo, String>, port: PortNo) -> String {
    names.get(&port).cloned().unwrap_or_else(|| format!("datapath port {}", port.0))
}

#[cfg(test)]
mod tests {
    use ports::TxDrop;

    use super::*;

    #[test]
    fn the_documentation_explains_each_reason() {
        let documentation = include_str!("../../../../docs/drops.md");
        let line = |stage: &str, name: &str, meaning: &str| format!("| {stage} | `{name}` | {meaning} |");
        let datapath = DropReason::ALL.iter().map(|r| line(r.stage().name(), r.name(), r.describe()));
        let transmit = TxDrop::ALL.iter().map(|r| line("transmit", r.name(), r.describe()));
        for line in datapath.chain(transmit) {
            assert!(documentation.lines().any(|documented| documented == line), "docs/drops.md lacks: {line}");
        }
    }
}
