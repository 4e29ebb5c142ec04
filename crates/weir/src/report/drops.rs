//! `weir drops`: which packets were dropped where, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::table::{Table, grouped};

/// The answer of `weir/drops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Packets that were dropped, by where and why; the most first.
    pub drops: Vec<DropRow>,
}

/// Packets that were dropped at one place for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRow {
    /// Packets.
    pub packets: u64,
    /// The part of a packet's way that dropped them: "device" (before Weir has them), "receive", "slow path", "translate", "act", "output",
    /// "transmit" (the port's queue does not take them).
    pub stage: String,
    /// The name of the reason.
    pub reason: String,
    /// What it means, in words.
    pub meaning: String,
    /// The port that they came in at, where that is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_port: Option<String>,
    /// The port that they were to be sent to, where the reason is of that port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_port: Option<String>,
    /// The transmit queue of that port, where queues have counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// What decided it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<DropRule>,
}

/// What decided that packets are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropRule {
    /// A bridge's tables.
    Flow(DropFlow),
    /// A rule of the port's ingress filter, as text.
    IngressFilter(String),
    /// A rule that is not remembered any more, or not one alone.
    Others,
}

/// The last table that was looked up before a drop, and what was found there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DropFlow {
    /// Name of the bridge.
    pub bridge: String,
    /// Table.
    pub table: u8,
    /// The flow that was found; `None` where none was.
    pub flow: Option<FoundFlow>,
}

/// A flow in [`DropFlow`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FoundFlow {
    /// Cookie.
    pub cookie: u64,
    /// Priority; above 65 535 that of a hidden flow.
    pub priority: u32,
    /// Match in the syntax of ovs-ofctl(8); empty where it matches all.
    #[serde(rename = "match")]
    pub matching: String,
}

impl std::fmt::Display for DropRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DropRule::IngressFilter(rule) => f.write_str(rule),
            DropRule::Others => f.write_str("other flows"),
            DropRule::Flow(DropFlow { bridge, table, flow: None }) => write!(f, "{bridge} table={table}: no flow"),
            DropRule::Flow(DropFlow { bridge, table, flow: Some(FoundFlow { cookie, priority, matching }) }) => {
                let comma = if matching.is_empty() { "" } else { "," };
                write!(f, "{bridge} table={table} cookie={cookie:#x} priority={priority}{comma}{matching}")
            }
        }
    }
}

/// By what drops are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    /// Stage and reason.
    pub reason: bool,
    /// Input and output port, with its queue.
    pub port: bool,
    /// The rule that decided it.
    pub rule: bool,
}

impl Drops {
    /// The drops of one port, or all, told apart by no more than `by`; the most first.
    #[must_use]
    pub fn grouped(&self, port: Option<&str>, by: By) -> Drops {
        let is_of_port = |row: &&DropRow| {
            port.is_none() || [&row.in_port, &row.out_port].into_iter().any(|name| name.as_deref() == port)
        };
        let mut groups: BTreeMap<RowKey, DropRow> = BTreeMap::new();
        for row in self.drops.iter().filter(is_of_port) {
            let mut row = row.clone();
            if !by.reason {
                row.stage.clear();
                row.reason.clear();
                row.meaning.clear();
            }
            if !by.port {
                (row.in_port, row.out_port, row.queue) = (None, None, None);
            }
            if !by.rule {
                row.rule = None;
            }
            let packets = row.packets;
            let group = groups.entry(row.key()).or_insert(DropRow { packets: 0, ..row });
            group.packets += packets;
        }
        let mut drops: Vec<_> = groups.into_values().collect();
        drops.sort_by_key(|row| std::cmp::Reverse(row.packets));
        Drops { drops }
    }

    /// What was dropped since `before`.
    #[must_use]
    pub fn since(&self, before: &Drops) -> Drops {
        let known: BTreeMap<_, _> = before.drops.iter().map(|row| (row.key(), row.packets)).collect();
        let more = self.drops.iter().filter_map(|row| {
            let packets = row.packets.saturating_sub(known.get(&row.key()).copied().unwrap_or(0));
            (packets > 0).then(|| DropRow { packets, ..row.clone() })
        });
        let mut drops: Vec<_> = more.collect();
        drops.sort_by_key(|row| std::cmp::Reverse(row.packets));
        Drops { drops }
    }
}

/// What tells rows apart: stage, reason, input port, output port, its queue, and what decided it.
pub type RowKey = (String, String, Option<String>, Option<String>, Option<u32>, Option<DropRule>);

impl DropRow {
    /// What tells it from others.
    pub fn key(&self) -> RowKey {
        let DropRow { stage, reason, in_port, out_port, queue, rule, .. } = self.clone();
        (stage, reason, in_port, out_port, queue, rule)
    }
}

/// A table of drops, and what the reasons mean. With a time, packets are shown by second, too.
pub fn text(drops: &Drops, by: By, time: Option<Duration>) -> String {
    if drops.drops.is_empty() {
        return "no packet was dropped\n".into();
    }
    let mut headings = vec![">packets"];
    headings.extend(time.is_some().then_some(">per second"));
    if by.reason {
        headings.extend(["stage", "reason"]);
    }
    if by.port {
        headings.extend(["from", "to", "queue"]);
    }
    headings.extend(by.rule.then_some("decided by"));
    let mut table = Table::new(&headings);
    let mut meanings = BTreeMap::new();
    for row in &drops.drops {
        let mut cells = vec![grouped(row.packets)];
        cells.extend(time.map(|time| format!("{:.0}", row.packets as f64 / time.as_secs_f64())));
        if by.reason {
            cells.extend([row.stage.clone(), row.reason.clone()]);
            meanings.insert(&row.reason, &row.meaning);
        }
        let or_dash = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".into());
        if by.port {
            cells.extend([
                or_dash(&row.in_port),
                or_dash(&row.out_port),
                or_dash(&row.queue.map(|queue| queue.to_string())),
            ]);
        }
        cells.extend(by.rule.then(|| or_dash(&row.rule.as_ref().map(DropRule::to_string))));
        table.row(cells);
    }
    let mut text = table.render("");
    if time.is_none() {
        text.extend(meanings.iter().map(|(reason, meaning)| format!("{reason}: {meaning}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: By = By { reason: true, port: true, rule: true };

    fn row(packets: u64, reason: &str, in_port: &str, rule: Option<DropRule>) -> DropRow {
        DropRow {
            packets,
            stage: "translate".into(),
            reason: reason.into(),
            meaning: format!("what {reason} means"),
            in_port: Some(in_port.into()),
            out_port: None,
            queue: None,
            rule,
        }
    }

    fn flow(table: u8) -> Option<DropRule> {
        Some(DropRule::Flow(DropFlow { bridge: "br0".into(), table, flow: None }))
    }

    fn example() -> Drops {
        Drops { drops: vec![row(1, "rule", "p1", flow(0)), row(2, "rule", "p2", flow(1)), row(4, "vlan", "p1", None)] }
    }

    #[test]
    fn rows_are_joined_by_what_does_not_tell_them_apart() {
        let packets =
            |port, by| -> Vec<u64> { example().grouped(port, by).drops.iter().map(|row| row.packets).collect() };
        assert_eq!(packets(None, ALL), [4, 2, 1]);
        assert_eq!(packets(Some("p1"), ALL), [4, 1]);
        assert_eq!(packets(None, By { port: false, rule: false, ..ALL }), [4, 3]);
        assert_eq!(packets(None, By { reason: false, rule: false, ..ALL }), [5, 2]);
        assert_eq!(packets(None, By { reason: false, port: false, rule: false }), [7]);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let mut later = example();
        later.drops[1].packets = 9;
        later.drops.push(row(3, "rule", "p3", None));
        let since: Vec<_> = later.since(&example()).drops.into_iter().map(|row| (row.packets, row.in_port)).collect();
        assert_eq!(since, [(7, Some("p2".into())), (3, Some("p3".into()))]);
    }

    #[test]
    fn text_names_rule_and_meaning() {
        let found = FoundFlow { cookie: 0x2a, priority: 9, matching: "ip,nw_src=10.0.0.1".into() };
        let rule = DropRule::Flow(DropFlow { bridge: "br0".into(), table: 3, flow: Some(found) });
        let transmit =
            DropRow { out_port: Some("p2".into()), queue: Some(1), in_port: None, ..row(7, "full", "", None) };
        let text = text(&Drops { drops: vec![row(1234, "rule", "p1", Some(rule)), transmit] }, ALL, None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "packets  stage      reason  from  to  queue  decided by");
        assert_eq!(
            lines[1],
            "  1 234  translate  rule    p1    -   -      br0 table=3 cookie=0x2a priority=9,ip,nw_src=10.0.0.1"
        );
        assert_eq!(lines[2], "      7  translate  full    -     p2  1      -");
        assert_eq!(lines[3..], ["full: what full means", "rule: what rule means"]);
    }
}
