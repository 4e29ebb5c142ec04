//! Taking a snapshot: pointers to the state of one moment, and their encoding.

use std::io::Write;
use std::sync::Arc;

use datapath::Datapath;
use openflow::{Instructions, OfPort, TableId};
use packet::Time;
use protocols::mcast::{Entry, Member, Router, Snooping};
use tunnel::fields::FieldTable;

use super::sections::{
    BridgeSection, FlowSection, GroupSection, MacSection, MeterSection, MulticastSection, PortSection, RuleSpec,
    Section, TableSection,
};
use super::wire::Writer;
use super::{SnapshotError, connections};
use crate::model::forwarding::{BridgeState, PortState};
use crate::model::group::Group;
use crate::model::mac::MacEntry;
use crate::model::meter::Meter;
use crate::model::tlv;
use crate::switch::Switch;
use crate::table::{Rule, TableState};

/// The bridges of a moment.
pub(super) struct Captured {
    now: Time,
    /// Whose connections are written.
    datapath: Option<Arc<Datapath>>,
    bridges: Vec<CapturedBridge>,
}

/// A bridge of a moment. What is shared with the bridge changes no more but for its counters.
struct CapturedBridge {
    header: BridgeSection,
    tables: Vec<TableSection>,
    ports: Vec<PortSection>,
    meters: Vec<Meter>,
    groups: Vec<Arc<Group>>,
    rules: Vec<Arc<Rule>>,
    tlv: Arc<FieldTable>,
    macs: Vec<MacEntry>,
    multicast: Vec<Entry>,
}

impl Switch {
    /// The bridges as they are now.
    pub(super) fn capture(&self) -> Captured {
        let forwarding = self.forwarding.read();
        let bridges = forwarding.bridges.values().map(CapturedBridge::of).collect();
        Captured { now: self.clock.now(), datapath: self.datapath.get().cloned(), bridges }
    }
}

impl CapturedBridge {
    fn of(bridge: &BridgeState) -> CapturedBridge {
        let (macs, mac_stats) = {
            let table = bridge.macs.read();
            (table.iter().collect(), table.stats())
        };
        let tables = bridge.tables.iter().enumerate().map(|(id, table)| TableSection {
            table: TableId(id as u8),
            state: table.state.clone(),
            matched: table.counters.matched(),
            missed: table.counters.missed(),
        });
        // A table that is as all are at the start needs no section.
        let tables =
            tables.filter(|table| table.matched > 0 || table.missed > 0 || table.state != TableState::default());
        let port =
            |port: OfPort, state: &PortState| PortSection { port, config: state.config, name: state.name.clone() };
        CapturedBridge {
            header: BridgeSection { frag: bridge.frag, mac_stats, name: bridge.config.name.clone() },
            tables: tables.collect(),
            ports: bridge.ports.iter().map(|(&number, state)| port(number, state)).collect(),
            meters: bridge.meters.values().cloned().collect(),
            groups: bridge.groups.values().cloned().collect(),
            rules: bridge.tables.iter().flat_map(|table| table.rules.iter().cloned()).collect(),
            tlv: bridge.tlv.clone(),
            macs,
            multicast: bridge.multicast.read(Snooping::entries).unwrap_or_default(),
        }
    }
}

impl Captured {
    /// Encodes all, one section at a time.
    pub fn write(self, out: &mut dyn Write) -> Result<(), SnapshotError> {
        let (mut writer, now) = (Writer::new(out)?, self.now);
        if let Some(datapath) = self.datapath {
            connections::write(datapath.conntrack(), datapath.now(), &mut writer)?;
        }
        for bridge in self.bridges {
            bridge.write(&mut writer, now)?;
        }
        writer.finish()
    }
}

impl CapturedBridge {
    fn write(mut self, writer: &mut Writer<'_>, now: Time) -> Result<(), SnapshotError> {
        let name = self.header.name.clone();
        let mut put = |section: Section, what: &dyn Fn() -> String| {
            let encoded = section.encode();
            let (kind, body) =
                encoded.ok_or_else(|| SnapshotError::Unencodable { bridge: name.clone(), what: what() })?;
            writer.section(kind, &body)
        };
        put(Section::Bridge(self.header), &String::new)?;
        for table in self.tables {
            put(Section::Table(table), &String::new)?;
        }
        for port in self.ports {
            put(Section::Port(port), &String::new)?;
        }
        if !self.tlv.is_empty() {
            put(Section::Tlv(tlv::maps(&self.tlv)), &String::new)?;
        }
        for Meter { config, created, limit } in self.meters {
            let number = config.meter;
            let meter = MeterSection { age: now.since(created), config };
            put(Section::Meter(meter), &|| format!("meter {number}"))?;
            let counters = limit.counters(now);
            // A meter that no packet has met needs none.
            if counters.packets > 0 {
                put(Section::MeterCounters(number, counters), &String::new)?;
            }
        }
        for group in self.groups {
            put(Section::Group(describe_group(&group, now)), &|| format!("group {}", group.id.0))?;
        }
        for rule in self.rules {
            let what = || format!("a flow of table {} and priority {}", rule.table.0, rule.priority);
            put(Section::Flow(Box::new(describe_rule(&rule, &self.tlv, now))), &what)?;
        }
        // In the order in which they are given up, and, for those of one moment, in a certain one.
        self.macs.sort_unstable_by_key(|entry| (entry.used, entry.key));
        for entry in self.macs {
            let age = entry.used.map(|used| now.since(used));
            put(Section::Mac(MacSection { age, port: entry.port, key: entry.key }), &String::new)?;
        }
        for entry in self.multicast {
            put(Section::Multicast(describe_multicast(entry, now)), &String::new)?;
        }
        Ok(())
    }
}

fn describe_multicast(entry: Entry, now: Time) -> MulticastSection {
    let (heard, port, vlan, group) = match entry {
        Entry::Member(Member { group, port, renewed }) => (renewed, port, group.vlan, Some(group.address)),
        Entry::Router(Router { heard, vlan, port }) => (Some(heard), port, vlan, None),
    };
    MulticastSection { age: heard.map(|at| now.since(at)), port: OfPort(port), vlan, group }
}

fn describe_group(group: &Group, now: Time) -> GroupSection {
    GroupSection {
        group: group.id,
        spec: group.spec.clone(),
        age: now.since(group.created),
        counters: group.stats.get(),
        buckets: group.buckets.iter().map(|counters| counters.get()).collect(),
    }
}

fn describe_rule(rule: &Rule, tlv: &FieldTable, now: Time) -> FlowSection {
    FlowSection {
        ages: [rule.created, rule.renewed(), rule.stats.used()].map(|time| now.since(time)),
        packets: rule.stats.packets(),
        bytes: rule.stats.bytes(),
        cookie: rule.cookie,
        table: rule.table,
        importance: rule.importance,
        flags: rule.flags,
        caps: rule.caps().map_or((0, 0), |caps| caps.get()),
        rule: RuleSpec {
            priority: rule.priority,
            idle_timeout: rule.idle_timeout,
            hard_timeout: rule.hard_timeout,
            matching: rule.matching(tlv),
            instructions: Instructions::clone(&rule.instructions),
        },
    }
}
