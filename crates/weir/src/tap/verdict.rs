//! What flows and rules say of a packet, in words.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use datapath::tap::{Event, Record};
use datapath::text::{Context as Style, format_actions, format_key, format_ufid};
use datapath::{Action, Bucket, Datapath, DropReason, FlowId, PortNo, Punt};
use ofproto::{Decision, Switch, TableDrop};
use openflow::FlowMod;
use openflow::text::PortNames;
use openflow::text::matching::format_match;
use packet::flow::text::NoNames;
use packet::put;
use serde::Serialize;

/// Most flows that are remembered at a time.
const MOST_FLOWS: usize = 4096;

/// The ports of the datapath by number. Those that have gone stay: what was seen of them may still be on its way, and their numbers are not
/// given to others soon.
#[derive(Default)]
pub struct PortTable(BTreeMap<u32, String>);

impl PortTable {
    /// Takes over what ports there are now. Returns those that are new.
    pub fn refresh(&mut self, datapath: &Datapath) -> Vec<(PortNo, String)> {
        let mut new = Vec::new();
        for (number, port) in datapath.ports() {
            let name = port.name().to_owned();
            if self.0.get(&number.0) != Some(&name) {
                self.0.insert(number.0, name.clone());
                new.push((number, name));
            }
        }
        new
    }

    /// The name of a port, or what stands for it.
    pub fn shown(&self, port: PortNo) -> String {
        self.0.get(&port.0).cloned().unwrap_or_else(|| format!("datapath port {}", port.0))
    }
}

impl PortNames for PortTable {
    fn name(&self, port: u32) -> Option<String> {
        self.0.get(&port).cloned()
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
    }
}

/// A datapath flow, in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowText {
    /// What becomes of its packets.
    pub outcome: String,
    /// Its identity, match and actions.
    pub flow: String,
    /// The rules that decided it.
    pub rules: String,
}

/// Describes flows, and remembers them for a while.
pub struct Verdicts {
    datapath: Arc<Datapath>,
    switch: Arc<Switch>,
    known: HashMap<FlowId, Option<Rc<FlowText>>>,
}

impl Verdicts {
    /// Nothing known yet.
    pub fn new(datapath: &Arc<Datapath>, switch: &Arc<Switch>) -> Verdicts {
        Verdicts { datapath: datapath.clone(), switch: switch.clone(), known: HashMap::new() }
    }

    /// Forgets what may have changed.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The flow, in words; `None` where it has gone.
    pub fn flow(&mut self, id: FlowId, ports: &PortTable) -> Option<Rc<FlowText>> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        if self.known.len() >= MOST_FLOWS {
            self.known.clear();
        }
        let described = self.datapath.flow(id).map(|flow| {
            let style = Style { ports, verbose: false };
            let mut text = String::new();
            format_ufid(&mut text, id);
            text.push(' ');
            format_key(&mut text, &flow.key, &flow.mask, &style);
            text.push_str(", actions:");
            format_actions(&mut text, &flow.actions, &flow.key, &style);
            let decision = self.switch.decision(&flow.tag);
            let rules = decision.as_ref().map(rules).unwrap_or_default();
            Rc::new(FlowText { outcome: outcome(&flow.actions, ports), flow: text, rules })
        });
        self.known.insert(id, described.clone());
        described
    }
}

/// What has become of a packet, in a few words. `flow` is its flow, if that is known.
pub fn verdict(record: &Record, flow: Option<&FlowText>) -> String {
    match (record.event, flow) {
        (Event::Sent, _) => "sent".into(),
        (Event::Received(Some(reason)) | Event::Dropped(reason), _) => {
            format!("dropped: {} ({})", reason.name(), reason.describe().trim_end_matches('.'))
        }
        (Event::Received(None), Some(flow)) => flow.outcome.clone(),
        (Event::Received(None), None) if record.flow.is_some() => "its flow has gone already".into(),
        (Event::Received(None), None) => "translated for this packet alone".into(),
    }
}

/// What actions do with a packet, in words.
pub fn outcome(actions: &[Action], ports: &PortTable) -> String {
    let mut found = Outcome::default();
    found.add(actions);
    let mut parts = Vec::new();
    let names: Vec<_> = found.outputs.iter().map(|port| ports.shown(*port)).collect();
    if !names.is_empty() {
        parts.push(format!("forwarded to {}", names.join(", ")));
    }
    if found.leaves_tunnel {
        parts.push("taken out of a tunnel".into());
    }
    parts.extend(found.recirculations.iter().map(|id| format!("recirculated ({id:#x})")));
    if found.to_controller {
        parts.push("sent to controllers".into());
    }
    if found.goes_up {
        parts.push("sent up".into());
    }
    if parts.is_empty() {
        let reason = found.reason.unwrap_or(DropReason::Rule);
        parts.push(format!("dropped: {} ({})", reason.name(), reason.describe().trim_end_matches('.')));
    }
    parts.join(", ")
}

#[derive(Default)]
struct Outcome {
    outputs: Vec<PortNo>,
    recirculations: Vec<u32>,
    leaves_tunnel: bool,
    to_controller: bool,
    goes_up: bool,
    reason: Option<DropReason>,
}

impl Outcome {
    fn add(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Output(port) if !self.outputs.contains(port) => self.outputs.push(*port),
                Action::Bond { bond, bucket: Bucket::Fixed(bucket) } => self.outputs.extend(bond.member(*bucket)),
                Action::Bond { bond, bucket: Bucket::ByHash } => self.outputs.extend(bond.members()),
                Action::Recirc(id) => self.recirculations.push(*id),
                Action::TunnelPop(_) => self.leaves_tunnel = true,
                Action::Punt(punt) if punt.is_sample() => {}
                Action::Punt(punt) if matches!(**punt, Punt::PacketIn(_)) => self.to_controller = true,
                Action::Punt(_) => self.goes_up = true,
                Action::Clone(inner) => self.add(inner),
                Action::CheckLength { longer, others, .. } => {
                    self.add(longer);
                    self.add(others);
                }
                Action::Drop(reason) => self.reason = Some(*reason),
                _ => {}
            }
        }
    }
}

/// The rules behind a flow: `br0 table=0 priority=9 cookie=0x0; table=3 priority=7 cookie=0x2a`, and where they drop.
fn rules(decision: &Decision) -> String {
    let mut text = decision.bridges.join(", ");
    for (i, rule) in decision.rules.iter().enumerate() {
        text.push_str(if i == 0 { " " } else { "; " });
        match rule {
            Some(rule) => {
                put!(text, "table={} priority={} cookie={:#x}", rule.table.0, rule.priority, rule.cookie.0);
            }
            None => text.push_str("hidden flow"),
        }
    }
    if decision.more_rules > 0 {
        put!(text, "; {} more", decision.more_rules);
    }
    if let Some(dropped) = &decision.dropped {
        text.push_str("; dropped by ");
        dropped_by(&mut text, dropped);
    }
    text
}

fn dropped_by(text: &mut String, TableDrop { bridge, table, rule, .. }: &TableDrop) {
    let Some(rule) = rule else { return put!(text, "{bridge} table={table}: no flow") };
    put!(text, "{bridge} table={table} cookie={:#x} priority={}", rule.cookie.0, rule.priority);
    let mut matching = String::new();
    format_match(&mut matching, &rule.matching, FlowMod::DEFAULT_PRIORITY, &NoNames);
    if !matching.is_empty() {
        put!(text, ",{matching}");
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Cookie, TableId};
    use packet::Time;

    use super::*;

    fn ports() -> PortTable {
        PortTable((1..4).map(|n| (n, format!("p{n}"))).collect())
    }

    #[test]
    fn actions_have_an_outcome() {
        let parse = |text: &str| datapath::text::parse_actions(text, &NoNames).unwrap();
        for (actions, expected) in [
            ("2", "forwarded to p2"),
            ("2,3,2", "forwarded to p2, p3"),
            ("set(ipv4(ttl=5)),9", "forwarded to datapath port 9"),
            ("ct(zone=5),recirc(0x7)", "recirculated (0x7)"),
            ("clone(3),recirc(0x1)", "forwarded to p3, recirculated (0x1)"),
            ("drop", "dropped: rule (A flow says so: it has no actions)"),
        ] {
            assert_eq!(outcome(&parse(actions), &ports()), expected, "{actions}");
        }
        assert!(outcome(&[Action::Drop(DropReason::TtlExceeded)], &ports()).starts_with("dropped: ttl_exceeded"));
    }

    #[test]
    fn records_have_a_verdict() {
        let record = |event, flow| Record { time: Time(1), event, port: PortNo(1), flow, length: 60, recirc_id: 0 };
        let flow = FlowText { outcome: "forwarded to p2".into(), ..FlowText::default() };
        let known = Some(FlowId(5));
        let of = |event, id, flow| verdict(&record(event, id), flow);
        assert_eq!(of(Event::Received(None), known, Some(&flow)), "forwarded to p2");
        assert_eq!(of(Event::Received(None), known, None), "its flow has gone already");
        assert_eq!(of(Event::Received(None), None, None), "translated for this packet alone");
        let meter = "dropped: meter (The packet exceeds the rate of a meter)";
        assert_eq!(of(Event::Dropped(DropReason::Meter), known, Some(&flow)), meter);
        assert_eq!(of(Event::Sent, None, None), "sent");
    }

    #[test]
    fn rules_are_named_in_their_order() {
        let name = |table, priority, cookie| {
            Some(ofproto::table::RuleName { table: TableId(table), priority, cookie: Cookie(cookie) })
        };
        let mut decision = Decision {
            bridges: vec!["br0".into()],
            rules: vec![name(0, 9, 0), None, name(3, 7, 0x2a)],
            ..Decision::default()
        };
        let expected = "br0 table=0 priority=9 cookie=0x0; hidden flow; table=3 priority=7 cookie=0x2a";
        assert_eq!(rules(&decision), expected);
        decision.more_rules = 2;
        let (bridge, port, reason) = ("br0".into(), PortNo(1), DropReason::Rule);
        decision.dropped = Some(TableDrop { bridge, port, table: 4, rule: None, reason, packets: 0, bytes: 0 });
        assert_eq!(rules(&decision), format!("{expected}; 2 more; dropped by br0 table=4: no flow"));
    }
}
