//! Restoring a snapshot.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use openflow::{GroupId, OfError, OfPort, TlvCommand, TlvTableMod};
use packet::Time;
use protocols::mcast::{self, Entry, Member, Router};
use tunnel::fields::FieldTable;

use super::sections::{
    BridgeSection, FlowSection, GroupSection, MacSection, MulticastSection, PortSection, Section, TableSection,
};
use super::wire::{self, Sections};
use super::{SnapshotError, connections};
use crate::bridge::check::{Known, check_bucket, check_instructions};
use crate::bridge::meters;
use crate::model::forwarding::TABLES;
use crate::model::group::Group;
use crate::model::mac::MacEntry;
use crate::model::meter::Meter;
use crate::model::tlv;
use crate::model::transaction::Transaction;
use crate::switch::Switch;
use crate::table::{Rule, TableState};

/// What has been taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Names of the bridges.
    pub bridges: Vec<String>,
    /// Bridges of the snapshot that this switch does not have.
    pub unknown_bridges: Vec<String>,
    /// Flows of all bridges.
    pub flows: usize,
    /// Groups of all bridges.
    pub groups: usize,
    /// Meters of all bridges.
    pub meters: usize,
    /// Addresses, learnt and static ones.
    pub macs: usize,
    /// Addresses at ports that do not exist any more, or have another number now.
    pub lost_macs: usize,
    /// Connections.
    pub connections: usize,
    /// Connections that there is no room for, or whose tuples another connection has.
    pub lost_connections: usize,
}

pub(super) fn restore(switch: &Switch, snapshot: &[u8]) -> Result<Restored, SnapshotError> {
    let sections = wire::open(snapshot)?;
    check(sections.clone())?;
    // What was forwarded so far counts for what there was.
    switch.revalidate();
    let mut restored = Restored::default();
    let mut sections = sections.peekable();
    let datapath = switch.datapath.get();
    let mut connections = datapath.map(|datapath| connections::Restoration::new(datapath.conntrack(), datapath.now()));
    while let Some(section) = sections.next() {
        if let Ok(body) = &section
            && let Some(section) = connections::Section::decode(body)?
        {
            if let Some(connections) = &mut connections {
                connections.take_over(section);
            }
            continue;
        }
        if let Section::Bridge(header) = Section::decode(section?)? {
            restore_bridge(switch, header, &mut sections, &mut restored)?;
        }
    }
    if let Some(connections) = connections {
        (restored.connections, restored.lost_connections) = (connections.taken, connections.lost);
    }
    Ok(restored)
}

/// Whether every section can be read and belongs to a bridge.
fn check(sections: Sections<'_>) -> Result<(), SnapshotError> {
    let mut names = Vec::new();
    for section in sections {
        let section = section?;
        let corrupt = |what| SnapshotError::Corrupt { at: section.at, what };
        if connections::Section::decode(&section)?.is_some() && !names.is_empty() {
            return Err(corrupt("a connection behind the first bridge"));
        }
        match Section::decode(section.clone())? {
            Section::Unknown => {}
            Section::Bridge(header) if names.contains(&header.name) => return Err(corrupt("a bridge is there twice")),
            Section::Bridge(header) => names.push(header.name),
            _ if names.is_empty() => return Err(corrupt("a section before the first bridge")),
            _ => {}
        }
    }
    Ok(())
}

/// Takes over the sections up to the next bridge.
fn restore_bridge(
    switch: &Switch,
    header: BridgeSection,
    sections: &mut Peekable<Sections<'_>>,
    restored: &mut Restored,
) -> Result<(), SnapshotError> {
    let now = switch.clock.now();
    let mut forwarding = switch.forwarding.write();
    // Ports' settings and the handling of fragments change, on which all depends.
    forwarding.touch();
    let generation = forwarding.generation();
    let bridge = forwarding.bridges.values_mut().find(|bridge| bridge.config.name == header.name);
    let Some(bridge) = bridge else {
        while next_of_bridge(sections)?.is_some() {}
        restored.unknown_bridges.push(header.name);
        return Ok(());
    };
    let mut restoration = Restoration {
        transaction: Transaction::new(bridge, generation, now),
        old_meters: BTreeMap::new(),
        old_tlv: Arc::default(),
        ports: HashMap::new(),
        tables: Vec::new(),
        macs: Vec::new(),
        multicast: Vec::new(),
        counts: Restored::default(),
    };
    restoration.transaction.clear();
    let outcome = match restoration.take_over(&header.name, sections) {
        Ok(()) => Ok(restoration.finish(&header)),
        Err(error) => {
            restoration.undo();
            Err(error)
        }
    };
    drop(forwarding);
    switch.notify();
    let counts = outcome?;
    restored.bridges.push(header.name);
    restored.flows += counts.flows;
    restored.groups += counts.groups;
    restored.meters += counts.meters;
    restored.macs += counts.macs;
    restored.lost_macs += counts.lost_macs;
    Ok(())
}

/// The next section of the present bridge, and where it is.
fn next_of_bridge(sections: &mut Peekable<Sections<'_>>) -> Result<Option<(usize, Section)>, SnapshotError> {
    let is_of_bridge = |section: &Result<wire::Body<'_>, SnapshotError>| {
        section.as_ref().map_or(true, |body| body.kind != wire::kind::BRIDGE)
    };
    let Some(section) = sections.next_if(is_of_bridge) else { return Ok(None) };
    let section = section?;
    Ok(Some((section.at, Section::decode(section)?)))
}

/// A bridge that is being put into another state. Flows, groups and meters change at once, and can change back; the
/// rest waits until nothing can be refused any more.
struct Restoration<'a> {
    transaction: Transaction<'a>,
    /// The meters that there were before.
    old_meters: BTreeMap<u32, Meter>,
    /// What the tun_metadata fields stood for.
    old_tlv: Arc<FieldTable>,
    ports: HashMap<OfPort, PortSection>,
    tables: Vec<TableSection>,
    macs: Vec<MacSection>,
    multicast: Vec<MulticastSection>,
    counts: Restored,
}

impl Restoration<'_> {
    fn take_over(&mut self, name: &str, sections: &mut Peekable<Sections<'_>>) -> Result<(), SnapshotError> {
        self.old_meters = std::mem::take(&mut self.transaction.bridge.meters);
        self.old_tlv = std::mem::take(&mut self.transaction.bridge.tlv);
        while let Some((at, section)) = next_of_bridge(sections)? {
            let refused = |error| SnapshotError::Refused { bridge: name.to_owned(), at, error };
            match section {
                Section::Table(table) if usize::from(table.table.0) >= TABLES => {
                    return Err(refused(OfError::OFPTMFC_BAD_TABLE));
                }
                Section::Table(table) => self.tables.push(table),
                Section::Port(port) => drop(self.ports.insert(port.port, port)),
                Section::Tlv(maps) => {
                    let (bridge, change) =
                        (&mut *self.transaction.bridge, TlvTableMod { command: TlvCommand::Add, maps });
                    bridge.tlv = Arc::new(tlv::changed(&bridge.tlv, &change, |_| true).map_err(refused)?);
                }
                Section::Meter(meter) => {
                    meters::check(&meter.config).map_err(refused)?;
                    let created = self.ago(meter.age);
                    let (id, bridge) = (meter.config.meter, &mut *self.transaction.bridge);
                    let now = self.transaction.now;
                    let restored = Meter::new(meter.config, created, &bridge.meter_numbers, now)
                        .ok_or_else(|| refused(OfError::OFPMMFC_OUT_OF_METERS))?;
                    bridge.meters.insert(id, restored);
                }
                Section::MeterCounters(id, counters) => {
                    if let Some(meter) = self.transaction.bridge.meters.get(&id) {
                        meter.limit.restore(&counters, self.transaction.now);
                    }
                }
                Section::Group(group) => self.group(group).map_err(refused)?,
                Section::Flow(flow) => self.flow(*flow).map_err(refused)?,
                Section::Mac(mac) => self.macs.push(mac),
                Section::Multicast(heard) => self.multicast.push(heard),
                Section::Bridge(_) | Section::Unknown => {}
            }
        }
        Ok(())
    }

    fn ago(&self, age: Duration) -> Time {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Time(self.transaction.now.0.saturating_sub(age))
    }

    fn group(&mut self, section: GroupSection) -> Result<(), OfError> {
        if section.group > GroupId::MAX {
            return Err(OfError::OFPGMFC_INVALID_GROUP);
        }
        let known = Known::of(self.transaction.bridge);
        section.spec.buckets.iter().try_for_each(|bucket| check_bucket(&bucket.actions, &known))?;
        let group = Group::new(section.group, section.spec, self.ago(section.age));
        group.stats.add(section.counters.0, section.counters.1);
        for (counters, (packets, bytes)) in group.buckets.iter().zip(section.buckets) {
            counters.add(packets, bytes);
        }
        self.transaction.set_group(section.group, Some(Arc::new(group)));
        Ok(())
    }

    fn flow(&mut self, section: FlowSection) -> Result<(), OfError> {
        let (bridge, mut spec) = (&*self.transaction.bridge, section.rule);
        tlv::place(&mut spec.matching, &bridge.tlv)?;
        tlv::resolve(&mut spec.instructions.apply, &bridge.tlv)?;
        tlv::resolve(&mut spec.instructions.write, &bridge.tlv)?;
        let Some(table) = bridge.tables.get(usize::from(section.table.0)) else {
            return Err(OfError::OFPFMFC_BAD_TABLE_ID);
        };
        check_instructions(&spec.instructions, &spec.matching, Some(section.table), &Known::leniently(bridge, true))?;
        let pattern = table.rules.pattern(&spec.matching.key, &spec.matching.mask);
        let [created, modified, used] = section.ages.map(|age| self.ago(age));
        let instructions = self.transaction.bridge.instructions.share(&spec.instructions);
        let mut rule = Rule::new(section.table, spec.priority, pattern, instructions, created);
        rule.modified = modified;
        (rule.idle_timeout, rule.hard_timeout) = (spec.idle_timeout, spec.hard_timeout);
        (rule.cookie, rule.flags, rule.importance) = (section.cookie, section.flags, section.importance);
        rule.stats.restore(section.packets, section.bytes, used);
        if let Some(caps) = rule.caps() {
            caps.lower(section.caps.0, section.caps.1);
        }
        self.transaction.insert(rule);
        Ok(())
    }

    fn entry(&self, heard: &MulticastSection) -> Entry {
        let (at, port, vlan) = (heard.age.map(|age| self.ago(age)), heard.port.0, heard.vlan);
        match (heard.group, at) {
            (None, at) => Entry::Router(Router { heard: at.unwrap_or_default(), vlan, port }),
            (Some(address), renewed) => Entry::Member(Member { group: mcast::Group { vlan, address }, port, renewed }),
        }
    }

    /// Puts back what was there.
    fn undo(self) {
        let Restoration { transaction, old_meters, old_tlv, .. } = self;
        transaction.bridge.meters = old_meters;
        transaction.bridge.tlv = old_tlv;
        transaction.rollback();
    }

    /// Takes over what cannot be refused. Returns how much it was.
    fn finish(self, header: &BridgeSection) -> Restored {
        let used: Vec<Option<Time>> = self.macs.iter().map(|mac| mac.age.map(|age| self.ago(age))).collect();
        let mut multicast: Vec<Entry> = self.multicast.iter().map(|heard| self.entry(heard)).collect();
        let Restoration { transaction, ports, tables, macs, mut counts, .. } = self;
        let bridge = &mut *transaction.bridge;
        bridge.frag = header.frag;
        for table in &mut bridge.tables {
            table.state = TableState::default();
            table.counters.restore(0, 0);
        }
        for TableSection { table, state, matched, missed } in tables {
            if let Some(table) = bridge.tables.get_mut(usize::from(table.0)) {
                table.state = state;
                table.counters.restore(matched, missed);
            }
        }
        bridge.watch_vacancies();
        for port in ports.values() {
            if let Some(state) = bridge.ports.get_mut(&port.port).filter(|state| state.name == port.name) {
                state.config = port.config;
            }
        }
        let mut entries = Vec::new();
        for (mac, used) in macs.into_iter().zip(used) {
            let here = bridge.ports.get(&mac.port).map(|state| &state.name);
            if here.is_some() && here == ports.get(&mac.port).map(|port| &port.name) {
                entries.push(MacEntry { key: mac.key, port: mac.port, used });
            } else {
                counts.lost_macs += 1;
            }
        }
        // The table takes those that it learns later for those that were used later.
        entries.sort_by_key(|entry| entry.used);
        counts.flows = bridge.flow_count();
        counts.groups = bridge.groups.len();
        counts.meters = bridge.meters.len();
        // Every flow is looked at, for settings change, too.
        let (len, _) = bridge.macs.change(|table| {
            table.clear(transaction.now);
            entries.into_iter().for_each(|entry| table.restore(entry));
            table.set_stats(header.mac_stats);
            table.len()
        });
        counts.macs = len;
        let stayed = |port: u32| {
            let here = bridge.ports.get(&OfPort(port)).map(|state| &state.name);
            here.is_some() && here == ports.get(&OfPort(port)).map(|port| &port.name)
        };
        multicast.retain(|entry| stayed(entry.port()));
        multicast.sort_by_key(Entry::heard);
        drop(bridge.multicast.change(|snooping| snooping.restore(&multicast)));
        // The removed flows are replaced: no flow-removed is sent.
        drop(transaction.commit());
        counts
    }
}
