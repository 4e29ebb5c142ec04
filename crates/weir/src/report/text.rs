//! The reports as tables for people.

use std::fmt::Write as _;

use super::table::{Table, grouped};
use super::{
    BridgeShow, Flows, IngressElements, IngressMap, IngressProgram, IngressReport, IngressRule, PortShow, Ports, Show,
    Stats, WorkerStats,
};

/// `weir show`.
pub fn show(show: &Show) -> String {
    let mut text = format!("weir {}, process {}, up {}\n", show.version, show.pid, duration(show.uptime_s));
    let _ = writeln!(text, "configuration {}", show.config);
    for bridge in &show.bridges {
        show_bridge(&mut text, bridge);
    }
    for error in &show.errors {
        let _ = writeln!(text, "error: {error}");
    }
    text
}

fn show_bridge(text: &mut String, bridge: &BridgeShow) {
    let _ = writeln!(text, "\nbridge {}", bridge.name);
    let _ = writeln!(
        text,
        "  datapath id {}, {}, {} flows, {} learnt addresses",
        bridge.datapath_id,
        bridge.fail_mode,
        grouped(bridge.flows),
        grouped(bridge.macs as u64)
    );
    for controller in &bridge.controllers {
        let state = match (controller.connections, &controller.error) {
            (0, Some(error)) => format!("not connected: {error}"),
            (0, None) => "not connected".into(),
            (1, _) => "connected".into(),
            (n, _) => format!("{n} connections"),
        };
        let _ = writeln!(text, "  controller {}: {state}", controller.target);
    }
    let mut table = Table::new(&[">port", "name", "type", "vlan", "link", ">mtu", "address", "details"]);
    for port in &bridge.ports {
        table.row(vec![
            port.ofport.map_or("-".into(), ofport),
            port.name.clone(),
            port.kind.clone(),
            vlan(port),
            port.link_state().into(),
            port.mtu.map_or("-".into(), |n| n.to_string()),
            port.mac.clone().unwrap_or("-".into()),
            details(port),
        ]);
    }
    text.push_str(&table.render("  "));
}

fn ofport(number: u32) -> String {
    if number == openflow::OfPort::LOCAL.0 { "LOCAL".into() } else { number.to_string() }
}

fn vlan(port: &PortShow) -> String {
    let list = || port.trunks.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match (port.vlan_mode.as_str(), port.tag) {
        ("trunk", _) if port.trunks.is_empty() => "all".into(),
        ("trunk", _) => format!("trunk {}", list()),
        ("access", Some(tag)) => tag.to_string(),
        (mode, tag) => format!("{mode} {}", tag.unwrap_or(0)),
    }
}

/// Facts of a port that would only fill the line.
const NO_DETAILS: [&str; 2] = ["driver_version", "firmware_version"];

fn details(port: &PortShow) -> String {
    let status = || port.status.iter().filter(|(name, _)| !NO_DETAILS.contains(&&***name));
    match &port.error {
        Some(error) => error.clone(),
        None => status().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" "),
    }
}

/// `weir ports`.
pub fn ports(ports: &Ports) -> String {
    let mut table = Table::new(&[
        "bridge",
        ">port",
        "name",
        "link",
        ">rx packets",
        ">rx bytes",
        ">rx drop",
        ">rx err",
        ">tx packets",
        ">tx bytes",
        ">tx drop",
        ">tx err",
        "dropped in Weir",
    ]);
    for port in &ports.ports {
        let count = |name: &str| port.statistics.get(name).map_or("-".into(), |&n| grouped(n));
        let mut row = vec![
            port.bridge.clone(),
            port.ofport.map_or("-".into(), ofport),
            port.name.clone(),
            port.link_state().into(),
        ];
        row.extend(["rx_packets", "rx_bytes", "rx_dropped", "rx_errors"].map(count));
        row.extend(["tx_packets", "tx_bytes", "tx_dropped", "tx_errors"].map(count));
        row.push(drops(port.drops.iter().chain(&port.tx_drops)));
        table.row(row);
    }
    let mut text = table.render("");
    for port in &ports.ports {
        if let Some(error) = &port.error {
            let _ = writeln!(text, "{}: {error}", port.name);
        }
    }
    text
}

fn drops<'a>(drops: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    drops.map(|(reason, n)| format!("{reason} {}", grouped(*n))).collect::<Vec<_>>().join(", ")
}

/// `weir flows`.
pub fn flows(flows: &Flows) -> String {
    let mut text = String::new();
    for bridge in &flows.bridges {
        let _ = writeln!(text, "OpenFlow flows of {} ({}):", bridge.name, grouped(bridge.flows.len() as u64));
        for flow in &bridge.flows {
            let _ = writeln!(text, "  {}", flow.text.trim());
        }
    }
    let _ = writeln!(text, "Datapath flows ({}):", grouped(flows.datapath.len() as u64));
    for flow in &flows.datapath {
        let _ = writeln!(text, "  {}", flow.text);
    }
    text
}

/// `weir stats`: one line for each counter, one column for each worker.
pub fn stats(stats: &Stats) -> String {
    let mut names: Vec<String> = stats.workers.iter().map(|w| format!(">worker {}", w.worker)).collect();
    names.extend(stats.ended.iter().map(|_| ">ended".to_string()));
    let all = || stats.workers.iter().chain(&stats.ended);
    let mut headings = vec![""];
    headings.extend(names.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    for (name, _, value) in WORKER_LINES {
        table.row(std::iter::once(name.to_string()).chain(all().map(value)).collect());
    }
    for reason in stats.drop_reasons.keys() {
        let count = |w: &WorkerStats| grouped(w.drops.get(reason).copied().unwrap_or(0));
        table.row(std::iter::once(format!("dropped: {reason}")).chain(all().map(count)).collect());
    }
    let mut text = table.render("");
    let _ = writeln!(text, "datapath flows {}, masks {}", grouped(stats.flows as u64), grouped(stats.masks as u64));
    if stats.evictions > 0 {
        let _ = writeln!(text, "flows evicted to make room {}", grouped(stats.evictions));
    }
    for (reason, meaning) in &stats.drop_reasons {
        let _ = writeln!(text, "{reason}: {meaning}");
    }
    text
}

/// A line's name, what it means, and its value.
type Line = (&'static str, &'static str, fn(&WorkerStats) -> String);

/// The lines of `weir stats`, in the order in which a packet meets what they count.
const WORKER_LINES: &[Line] = &[
    ("core", "The processor core that the worker is pinned to.", |w| w.core.map_or("any".into(), |c| c.to_string())),
    ("receive queues", "The ports whose receive queues it polls, with the queue's number.", |w| w.queues.join(" ")),
    ("packets received", "Packets that it took from ports.", |w| grouped(w.packets)),
    ("packets injected", "Packets that controllers or the daemon sent (packet-out).", |w| grouped(w.injected)),
    (
        "copies made",
        "Packets made from others: copies for further ports, and segments of super-frames beyond the first.",
        |w| grouped(w.copied),
    ),
    ("recirculated", "Passes after the first one, after connection tracking for example.", |w| grouped(w.recirculated)),
    (
        "hits, tier 0 (simple match)",
        "Packets of ports whose flows look at nothing but port, Ethernet type, VLAN and fragments.",
        |w| with_share(w, w.simple_hits),
    ),
    ("hits, tier 1 (exact match)", "Packets that the header cache or the key cache knew.", |w| {
        with_share(w, w.exact_hits)
    }),
    ("hits, tier 2 (megaflow)", "Packets for which subtables were searched.", |w| with_share(w, w.megaflow_hits)),
    ("misses", "Packets that no datapath flow matched, and that the slow path answered.", |w| with_share(w, w.misses)),
    ("misses lost", "Misses that were dropped: the slow path had no room, or met an error.", |w| with_share(w, w.lost)),
    ("subtables per tier 2 lookup", "How many masks were tried for a packet of tier 2.", |w| {
        format!("{:.2}", w.subtables_per_lookup)
    }),
    ("cycles per packet", "Busy cycles for each packet received or recirculated.", |w| {
        format!("{:.1}", w.cycles_per_packet)
    }),
    ("packets sent", "Packets that ports took.", |w| grouped(w.sent)),
    (
        "packets refused by ports",
        "Packets that ports did not take; each port says why (stage `transmit` of `weir drops`).",
        |w| grouped(w.refused),
    ),
    ("packets punted", "Packets that went to controllers or to the slow path because an action says so.", |w| {
        grouped(w.punted)
    }),
    ("packets joined", "Packets that became part of another one: segments that left a tunnel.", |w| grouped(w.joined)),
    ("packets per output batch", "Packets in the average burst that a port is given.", |w| {
        format!("{:.2}", w.packets_per_batch)
    }),
    ("busy cycles", "Cycles of turns that handled packets.", |w| with_cycles_share(w, w.busy_cycles)),
    ("idle cycles", "Cycles of turns that found nothing; sleep is not in it.", |w| with_cycles_share(w, w.idle_cycles)),
    ("sleeps", "How often the worker slept, and for how long.", |w| {
        format!("{} ({:.1} s)", grouped(w.sleeps), w.slept_s)
    }),
];

fn with_share(w: &WorkerStats, n: u64) -> String {
    share(n, w.packets + w.recirculated)
}

fn with_cycles_share(w: &WorkerStats, n: u64) -> String {
    share(n, w.busy_cycles + w.idle_cycles)
}

fn share(n: u64, of: u64) -> String {
    if of == 0 { grouped(n) } else { format!("{} ({:.1} %)", grouped(n), 100.0 * n as f64 / of as f64) }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min {} s", seconds % 60),
        (0, h, m) => format!("{h} h {m} min"),
        (d, h, _) => format!("{d} d {h} h"),
    }
}

/// `weir ingress PORT show`: rules, one a line, with their numbers, and the program behind them.
pub fn ingress(report: &IngressReport) -> String {
    ingress_lines(report, |_| String::new(), describe_program)
}

/// `weir ingress PORT stats`: the same with counters.
pub fn ingress_stats(report: &IngressReport) -> String {
    let counters = |IngressRule { packets, bytes, dropped, .. }: &IngressRule| {
        format!("n_packets={packets}, n_bytes={bytes}, n_dropped={dropped}, ")
    };
    ingress_lines(report, counters, |program| {
        let IngressProgram { name, passed, dropped, aborted, unsupported, faults, .. } = program;
        format!(
            "  program {name}: n_pass={passed}, n_drop={dropped}, n_aborted={aborted}, n_unsupported={unsupported}, \
             n_fault={faults}\n"
        )
    })
}

fn describe_program(program: &IngressProgram) -> String {
    let IngressProgram { path, name, instructions, longest, code, maps, .. } = program;
    let mut text =
        format!("  program {name} of {path}: {instructions} instructions, at most {longest} a frame, {code}\n");
    for IngressMap { name, r#type, key_size, value_size, max_entries } in maps {
        let _ = writeln!(text, "  map {name}: {type}, key {key_size} B, value {value_size} B, {max_entries} entries");
    }
    text
}

/// A line for each rule, with its counters or without, and what is told of the program.
fn ingress_lines(
    report: &IngressReport,
    counters: impl Fn(&IngressRule) -> String,
    of_program: impl Fn(&IngressProgram) -> String,
) -> String {
    let mut text = String::new();
    for port in &report.ports {
        let _ = writeln!(text, "{}:", port.name);
        for (number, rule) in (1..).zip(&port.rules) {
            let offloaded = if rule.offloaded { " (offloaded)" } else { "" };
            let _ = writeln!(text, "  {number}: {}{}{offloaded}", counters(rule), rule.rule);
        }
        if let Some(reason) = &port.not_offloaded {
            let _ = writeln!(text, "  not offloaded: {reason}");
        }
        text.extend(port.program.as_ref().map(&of_program));
    }
    text
}

/// `weir ingress PORT map NAME`: keys and values, one a line.
pub fn ingress_elements(report: &IngressElements) -> String {
    let mut text = String::new();
    for (key, value) in &report.elements {
        let _ = writeln!(text, "{key} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_guide_explains_each_line_of_stats() {
        let guide = include_str!("../../../../docs/guide/counters.md");
        for (name, meaning, _) in WORKER_LINES {
            let line = format!("| {name} | {meaning} |");
            assert!(guide.lines().any(|explained| explained == line), "docs/guide/counters.md lacks: {line}");
        }
    }

    #[test]
    fn show_marks_a_port_with_its_error() {
        let good = PortShow { name: "p1".into(), ofport: Some(1), vlan_mode: "trunk".into(), ..PortShow::default() };
        let bad = PortShow { name: "p2".into(), error: Some("no such interface".into()), ..good.clone() };
        let bridge = BridgeShow { name: "br0".into(), ports: vec![good, bad], ..BridgeShow::default() };
        let text = show(&Show { bridges: vec![bridge], ..Show::default() });
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().any(|l| l.contains("p1") && !l.contains("no such")), "{text}");
        assert!(
            lines.iter().any(|l| l.contains("p2") && l.contains("error") && l.contains("no such interface")),
            "{text}"
        );
    }

    #[test]
    fn stats_show_shares_and_drops() {
        let drops = BTreeMap::from([("rule".to_string(), 3)]);
        let worker = WorkerStats { packets: 10, exact_hits: 5, drops, ..WorkerStats::default() };
        let reasons = BTreeMap::from([("rule".to_string(), "A flow says so.".to_string())]);
        let text = stats(&Stats { workers: vec![worker], drop_reasons: reasons, ..Stats::default() });
        let line = |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("hits, tier 1").contains("5 (50.0 %)"));
        assert!(line("dropped: rule").ends_with('3'));
        assert!(line("rule:").contains("A flow says so."));
    }
}
