//! The views: what each shows of a measurement, with its columns declared once.

use super::table::{Column, Table, Target, Value};
use crate::report::activity::{QueueShow, ZoneShow};
use crate::report::measurement::{ConnectionRates, Measurement, PortRates, UpcallRates};
use crate::report::ranking::{Ranking, TopDrop, TopFlow, TopRule};
use crate::report::rates::WorkerRates;

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// Ports: rates, errors, drops.
    Ports,
    /// Workers: load, cycles, hits by tier.
    Workers,
    /// Receive queues.
    Queues,
    /// Flows of the datapath with the most traffic.
    Flows,
    /// OpenFlow rules with the most traffic.
    Rules,
    /// Where most is dropped.
    Drops,
    /// Tracked connections.
    Connections,
    /// The slow path.
    Upcalls,
}

impl View {
    /// In the order of their keys, `1` to `8`.
    pub const ALL: [View; 8] = [
        View::Ports,
        View::Workers,
        View::Queues,
        View::Flows,
        View::Rules,
        View::Drops,
        View::Connections,
        View::Upcalls,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            View::Ports => "ports",
            View::Workers => "workers",
            View::Queues => "queues",
            View::Flows => "flows",
            View::Rules => "rules",
            View::Drops => "drops",
            View::Connections => "connections",
            View::Upcalls => "upcalls",
        }
    }
}

/// What a view is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    #[default]
    All,
    /// A port: its queues, drops and flows.
    Port(String),
    /// A rule: its datapath flows.
    Rule {
        /// As `weir/top flows rule=` takes it.
        rule: String,
        /// For people.
        text: String,
    },
    /// The whole text of a line.
    Text(String),
}

const fn left<R>(heading: &'static str, width: u16, value: fn(&R) -> Value) -> Column<R> {
    Column { heading, width, right: false, value }
}

const fn right<R>(heading: &'static str, width: u16, value: fn(&R) -> Value) -> Column<R> {
    Column { heading, width, right: true, value }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn number(n: Option<usize>) -> Value {
    n.map_or(Value::Unknown, |n| Value::Count(n as u64))
}

const PORTS: &[Column<PortRates>] = &[
    left("port", 15, |p| text(&p.name)),
    left("link", 8, |p| text(&p.link)),
    right("rx/s", 6, |p| Value::Rate(p.rx_packets)),
    right("rx bit/s", 8, |p| Value::Rate(8.0 * p.rx_bytes)),
    right("tx/s", 6, |p| Value::Rate(p.tx_packets)),
    right("tx bit/s", 8, |p| Value::Rate(8.0 * p.tx_bytes)),
    right("err/s", 5, |p| Value::Rate(p.rx_errors + p.tx_errors)),
    right("drop/s", 6, |p| Value::Rate(p.dropped)),
    right("rxdrop", 6, |p| Value::Rate(p.rx_dropped)),
    right("txdrop", 6, |p| Value::Rate(p.tx_dropped)),
    left("bridge", 6, |p| text(&p.bridge)),
];

const WORKERS: &[Column<(String, WorkerRates)>] = &[
    left("wrk", 3, |(name, _)| text(name)),
    right("core", 4, |(_, w)| number(w.core)),
    right("busy %", 6, |(_, w)| Value::Percent(w.busy_percent)),
    right("rx/s", 6, |(_, w)| Value::Rate(w.packets)),
    right("tx/s", 6, |(_, w)| Value::Rate(w.sent)),
    right("drop/s", 6, |(_, w)| Value::Rate(w.dropped)),
    right("cyc/p", 5, |(_, w)| Value::Rate(w.cycles_per_packet)),
    right("tier0%", 6, |(_, w)| Value::Percent(w.share(w.simple_hits))),
    right("tier1%", 6, |(_, w)| Value::Percent(w.share(w.exact_hits))),
    right("tier2%", 6, |(_, w)| Value::Percent(w.share(w.megaflow_hits))),
    right("miss/s", 6, |(_, w)| Value::Rate(w.misses)),
    right("lost/s", 6, |(_, w)| Value::Rate(w.lost)),
];

const QUEUES: &[Column<QueueShow>] = &[
    left("port", 15, |q| text(&q.port)),
    right("queue", 5, |q| Value::Count(q.queue as u64)),
    right("worker", 6, |q| Value::Count(q.worker as u64)),
    right("core", 5, |q| number(q.core)),
    right("busy %", 6, |q| q.busy_percent.map_or(Value::Unknown, |percent| Value::Percent(percent.into()))),
    left("state", 8, |q| text(if q.enabled { "enabled" } else { "disabled" })),
    left("pinned", 6, |q| text(if q.pinned { "yes" } else { "no" })),
];

/// The columns of traffic, which flows and rules have first.
macro_rules! traffic_and {
    ($($column:expr),* $(,)?) => {
        &[
            right("pkt/s", 6, |row| Value::Rate(row.traffic.packets_per_s)),
            right("bit/s", 6, |row| Value::Rate(8.0 * row.traffic.bytes_per_s)),
            right("packets", 8, |row| Value::Rate(row.traffic.packets as f64)),
            $($column),*
        ]
    };
}

const FLOWS: &[Column<TopFlow>] =
    traffic_and![left("port", 10, |f| text(&f.port)), left("datapath flow", 30, |f| Value::Text(flow_words(&f.text)))];

const RULES: &[Column<TopRule>] = traffic_and![
    left("bridge", 8, |r| text(&r.bridge)),
    right("table", 5, |r| Value::Count(r.table.into())),
    left("OpenFlow rule", 30, |r| Value::Text(rule_words(&r.text))),
];

const DROPS: &[Column<TopDrop>] = &[
    right("drop/s", 6, |d| Value::Rate(d.packets_per_s)),
    right("packets", 7, |d| Value::Rate(d.row.packets as f64)),
    left("reason", 16, |d| text(&d.row.reason)),
    left("from", 10, |d| text(d.row.in_port.as_deref().unwrap_or("-"))),
    left("to", 8, |d| text(d.row.out_port.as_deref().unwrap_or("-"))),
    left("decided by", 12, |d| Value::Text(d.row.rule.as_ref().map_or("-".into(), ToString::to_string))),
];

const ZONES: &[Column<ZoneShow>] = &[
    right("zone", 5, |z| Value::Count(z.zone.into())),
    right("connections", 11, |z| Value::Count(z.connections)),
    right("limit", 10, |z| z.limit.map_or(Value::Unknown, |limit| Value::Count(limit.into()))),
];

/// A figure with its name.
type Figure = (String, Value, &'static str);

const FIGURES: &[Column<Figure>] = &[
    left("what", 34, |(name, _, _)| text(name)),
    right("value", 10, |(_, value, _)| value.clone()),
    left("", 20, |(_, _, unit)| text(unit)),
];

const TEXT: &[Column<String>] = &[left("", 20, |line| text(line))];

/// Match and actions of a datapath flow: without the counters in between and the port, which have columns, and without what nearly all flows match.
fn flow_words(flow: &str) -> String {
    let mut words = match (flow.find(", packets:"), flow.find(", actions:")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &flow[..from], &flow[to..]),
        _ => flow.to_owned(),
    };
    let common = ["recirc_id(0),", "packet_type(ns=0,id=0),"];
    common.iter().for_each(|part| words = words.replacen(part, "", 1));
    match words.strip_prefix("in_port(").and_then(|rest| rest.split_once("),")) {
        Some((_, rest)) => rest.to_owned(),
        None => words,
    }
}

/// Priority, match and actions of a rule, without what comes before them.
fn rule_words(rule: &str) -> String {
    let actions = rule.find(" actions=").unwrap_or(rule.len());
    let start = rule[..actions].rfind(", ").map_or(0, |at| at + 2);
    rule[start..].to_owned()
}

/// What a view shows: a table, or several one below the other. An empty ranking is one that is not there yet.
pub fn tables(view: View, scope: &Scope, measurement: &Measurement) -> Vec<Table> {
    match (scope, view) {
        (Scope::Port(port), _) => of_port(port, measurement),
        (Scope::Text(line), _) => vec![wrapped(line)],
        (_, View::Ports) => {
            vec![Table::of("ports", PORTS, &measurement.ports, |port| Some(Target::Port(port.name.clone())))]
        }
        (_, View::Workers) => vec![workers(measurement)],
        (_, View::Queues) => {
            vec![Table::of("queues", QUEUES, &measurement.queues, |queue| Some(Target::Port(queue.port.clone())))]
        }
        (_, View::Flows) => vec![flows(measurement)],
        (_, View::Rules) => vec![rules(measurement)],
        (_, View::Drops) => vec![drops(measurement)],
        (_, View::Connections) => connections(&measurement.connections),
        (_, View::Upcalls) => upcalls(&measurement.upcalls),
    }
}

fn workers(measurement: &Measurement) -> Table {
    let name = |w: &WorkerRates| w.worker.map_or("all".into(), |number| number.to_string());
    let rows: Vec<_> =
        measurement.stats.workers.iter().chain([&measurement.stats.total]).map(|w| (name(w), w.clone())).collect();
    Table::of("workers", WORKERS, &rows, |_| None)
}

/// The rows of a ranking, and what there is in all for the title.
fn ranked<R>(ranking: &Option<Ranking<R>>) -> (&[R], String) {
    match ranking {
        Some(Ranking { rows, of, .. }) => (rows, format!("{} of {of}", rows.len())),
        None => (&[], "measuring".into()),
    }
}

fn flows(measurement: &Measurement) -> Table {
    let (rows, of) = ranked(&measurement.flows);
    Table::of(format!("datapath flows ({of})"), FLOWS, rows, |flow| {
        Some(Target::Text(format!("{}, {}", flow.ufid, flow.text)))
    })
}

fn rules(measurement: &Measurement) -> Table {
    let (rows, of) = ranked(&measurement.rules);
    Table::of(format!("OpenFlow rules ({of})"), RULES, rows, |rule| {
        let text = format!("cookie={:#x} {}", rule.cookie, rule_words(&rule.text));
        Some(Target::Rule { rule: format!("{}/{}", rule.bridge, rule.id), text })
    })
}

fn drops(measurement: &Measurement) -> Table {
    let (rows, of) = ranked(&measurement.drops);
    Table::of(format!("drops ({of})"), DROPS, rows, |drop| {
        let rule = drop.row.rule.as_ref().map(|rule| format!(" Decided by {rule}.")).unwrap_or_default();
        Some(Target::Text(format!("{} ({}): {}{rule}", drop.row.reason, drop.row.stage, drop.row.meaning)))
    })
}

/// A port with what belongs to it.
fn of_port(name: &str, measurement: &Measurement) -> Vec<Table> {
    let port = measurement.ports.iter().filter(|port| port.name == name);
    let queues = measurement.queues.iter().filter(|queue| queue.port == name);
    let mut tables = vec![Table::of(format!("port {name}"), PORTS, port.clone(), |_| None)];
    let errors: Vec<_> = port.clone().filter_map(|port| port.error.clone()).collect();
    if !errors.is_empty() {
        tables.push(Table::of("not in service", TEXT, &errors, |_| None));
    }
    tables.push(Table::of("receive queues", QUEUES, queues, |_| None));
    tables.push(drops(measurement));
    tables.push(flows(measurement));
    tables
}

/// Columns of a line that is shown whole.
const WRAPPED: usize = 76;

/// A long line, in pieces.
fn wrapped(line: &str) -> Table {
    let chars: Vec<char> = line.chars().collect();
    let pieces: Vec<String> = chars.chunks(WRAPPED).map(|piece| piece.iter().collect()).collect();
    Table::of("", TEXT, &pieces, |_| None)
}

fn figures(title: &str, rows: Vec<Figure>) -> Table {
    Table::of(title, FIGURES, &rows, |_| None)
}

fn connections(c: &ConnectionRates) -> Vec<Table> {
    let full = if c.limit == 0 { 0.0 } else { 100.0 * c.connections as f64 / f64::from(c.limit) };
    let mut rows: Vec<Figure> = vec![
        ("connections".into(), Value::Count(c.connections), ""),
        ("limit".into(), Value::Count(c.limit.into()), "dpctl/ct-set-maxconns"),
        ("used".into(), Value::Percent(full), "% of the limit"),
        ("made".into(), Value::Rate(c.made), "/s"),
        ("ended".into(), Value::Rate(c.ended), "/s"),
        ("dropped early".into(), Value::Rate(c.dropped_early), "/s"),
    ];
    rows.extend(c.counters.iter().map(|(name, rate)| (name.clone(), Value::Rate(*rate), "/s")));
    vec![figures("tracked connections", rows), Table::of("zones", ZONES, &c.zones, |_| None)]
}

fn upcalls(u: &UpcallRates) -> Vec<Table> {
    let now = &u.now;
    let slow_path: Vec<Figure> = vec![
        ("misses".into(), Value::Rate(u.misses), "/s"),
        ("lost".into(), Value::Rate(u.lost), "/s"),
        ("lost, queue full".into(), Value::Rate(u.queue_full), "/s"),
        ("punted".into(), Value::Rate(u.punted), "/s"),
        ("dropped, too many waited".into(), Value::Rate(u.overflown), "/s"),
        ("handler threads".into(), Value::Count(now.handlers as u64), "n-handler-threads"),
    ];
    let flows: Vec<Figure> = vec![
        ("datapath flows".into(), Value::Count(now.flows as u64), ""),
        ("limit".into(), Value::Count(now.flow_limit as u64), "flow-limit"),
        ("bytes".into(), Value::Rate(now.flow_bytes as f64), ""),
        ("masks".into(), Value::Count(now.masks as u64), ""),
        ("ports with too many masks".into(), Value::Count(now.mask_pressure.len() as u64), "megaflow-mask-limit"),
        ("evicted".into(), Value::Rate(u.evictions), "/s"),
        ("rounds of revalidators".into(), Value::Rate(u.rounds), "/s"),
        ("last round".into(), Value::Count(now.round_ms), "ms"),
        ("translated again".into(), Value::Rate(u.translated), "/s"),
        ("revalidator threads".into(), Value::Count(now.revalidators as u64), "n-revalidator-threads"),
    ];
    vec![figures("slow path", slow_path), figures("datapath flows", flows)]
}

/// Everything as text, for `--once`.
pub fn all_text(measurement: &Measurement) -> String {
    let tables = View::ALL.into_iter().flat_map(|view| tables(view, &Scope::All, measurement));
    tables.map(|table| table.text()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_do_not_hide_match_and_actions() {
        let flow = "recirc_id(0),in_port(p1),packet_type(ns=0,id=0),eth_type(0x0806), packets:9, bytes:540, used:0.1s, actions:p2";
        assert_eq!(flow_words(flow), "eth_type(0x0806), actions:p2");
        assert_eq!(
            flow_words("recirc_id(0x1),in_port(p1), packets:9, actions:p2"),
            "recirc_id(0x1),in_port(p1), actions:p2"
        );
        let rule =
            "cookie=0x2a, duration=1.5s, table=3, n_packets=9, n_bytes=540, idle_age=0, priority=7,ip actions=drop";
        assert_eq!(rule_words(rule), "priority=7,ip actions=drop");
        for odd in [
            "",
            "in_port(",
            "in_port(),",
            "recirc_id(0),in_port(a),",
            "actions",
            " actions=",
            "a, b",
            ", packets:",
            ", actions:x, packets:",
        ] {
            let _ = (flow_words(odd), rule_words(odd));
        }
    }

    #[test]
    fn a_port_leads_to_its_queues_drops_and_flows() {
        let queue = |port: &str| QueueShow { port: port.into(), ..QueueShow::default() };
        let measurement = Measurement {
            ports: vec![PortRates { name: "p1".into(), ..PortRates::default() }],
            queues: vec![queue("p1"), queue("p2")],
            ..Measurement::default()
        };
        let shown = tables(View::Ports, &Scope::Port("p1".into()), &measurement);
        let shown: Vec<_> = shown.iter().map(|table| (table.title.as_str(), table.lines.len())).collect();
        let expected =
            [("port p1", 1), ("receive queues", 1), ("drops (measuring)", 0), ("datapath flows (measuring)", 0)];
        assert_eq!(shown, expected);
    }
}
