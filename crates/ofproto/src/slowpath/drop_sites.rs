//! Where the tables drop packets, and how many: a site for each input port, rule and reason.
//!
//! A translation that ends in a drop says where ([`Dropped`]), and the record of its flow holds the site, which it
//! credits with the flow's packets. So packets are counted by the datapath's flows, as they are for rules, and forwarding costs nothing more.
//!
//! There are [`MOST`] sites at most. When there are more, those that no flow has any more are forgotten; their packets are then still in the
//! datapath's counters of the port and the reason. With a port its sites are forgotten: another one may get its number.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapath::{DropReason, PortNo};
use openflow::{Cookie, Match};
use parking_lot::Mutex;
use tunnel::fields::FieldTable;

use crate::model::forwarding::BridgeId;
use crate::table::{Pattern, RuleStats};

/// Most sites.
const MOST: usize = 16_384;
/// How many new sites are asked for, at least, between two looks which of them can be forgotten: so that a look costs each of them little.
const BETWEEN_LOOKS: usize = 4_096;

/// All sites.
#[derive(Default)]
pub(crate) struct DropSites(Mutex<Sites>);

#[derive(Default)]
struct Sites {
    by_key: HashMap<Key, Arc<DropSite>>,
    /// How many new sites have been asked for since the last look which ones can be forgotten.
    asked: usize,
}

/// What tells sites apart. Of rules, their counters do: a modification keeps them, and a site keeps them alive.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    bridge: BridgeId,
    port: PortNo,
    table: u8,
    rule: Option<usize>,
    reason: DropReason,
}

/// A place where the tables drop packets.
pub struct DropSite {
    bridge: String,
    port: PortNo,
    table: u8,
    rule: Option<DroppingRule>,
    reason: DropReason,
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// Where the tables drop the packets of a translation.
pub(crate) struct Dropped {
    pub bridge: BridgeId,
    /// The last table that was looked up before the reason.
    pub table: u8,
    /// The rule that was found there.
    pub rule: Option<DroppingRule>,
    pub reason: DropReason,
}

/// The rule that was the last one before a drop.
pub(crate) struct DroppingRule {
    pub cookie: Cookie,
    /// That of a hidden flow is higher than rules can have.
    pub priority: u32,
    pub pattern: Pattern,
    /// What the tun_metadata fields of its bridge stand for.
    pub tlv: Arc<FieldTable>,
    pub stats: Arc<RuleStats>,
}

impl DroppingRule {
    fn describe(&self) -> TableDropRule {
        TableDropRule {
            cookie: self.cookie,
            priority: self.priority,
            matching: crate::model::tlv::describe(self.pattern.key(), self.pattern.mask(), &self.tlv),
        }
    }
}

impl Dropped {
    /// The same for a report on a packet that came in at a port of the datapath, in the bridge with this name.
    pub fn describe(&self, bridge: &str, port: PortNo) -> TableDrop {
        let (bridge, rule) = (bridge.to_owned(), self.rule.as_ref().map(DroppingRule::describe));
        TableDrop { bridge, port, table: self.table, rule, reason: self.reason, packets: 0, bytes: 0 }
    }
}

/// What was dropped at a site, for reports.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDrop {
    /// Name of the bridge whose tables drop them.
    pub bridge: String,
    /// The datapath port that they came in at.
    pub port: PortNo,
    /// The last table that was looked up.
    pub table: u8,
    /// The rule that was found there; `None` where there was none, or the tables were not asked.
    pub rule: Option<TableDropRule>,
    /// Why.
    pub reason: DropReason,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A rule in [`TableDrop`], as it was when it was first seen.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDropRule {
    /// Cookie.
    pub cookie: Cookie,
    /// Priority; above 65 535 that of a hidden flow.
    pub priority: u32,
    /// Match.
    pub matching: Match,
}

impl DropSite {
    /// Counts packets.
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// The datapath port that the packets came in at.
    pub fn port(&self) -> PortNo {
        self.port
    }

    /// Why they are dropped.
    pub fn reason(&self) -> DropReason {
        self.reason
    }

    /// How many they are.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// All that is known.
    pub fn describe(&self) -> TableDrop {
        TableDrop {
            bridge: self.bridge.clone(),
            port: self.port,
            table: self.table,
            rule: self.rule.as_ref().map(DroppingRule::describe),
            reason: self.reason,
            packets: self.packets(),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

impl DropSites {
    /// The site of a drop of packets that came in at this port of the datapath. `None` where there are too many.
    pub fn site(&self, dropped: Dropped, bridge_name: &str, port: PortNo) -> Option<Arc<DropSite>> {
        let Dropped { bridge, table, rule, reason } = dropped;
        let rule_key = rule.as_ref().map(|rule| Arc::as_ptr(&rule.stats).addr());
        let key = Key { bridge, port, table, rule: rule_key, reason };
        let mut sites = self.0.lock();
        if let Some(site) = sites.by_key.get(&key) {
            return Some(site.clone());
        }
        if !sites.has_room() {
            return None;
        }
        let (packets, bytes) = Default::default();
        let site = Arc::new(DropSite { bridge: bridge_name.to_owned(), port, table, rule, reason, packets, bytes });
        sites.by_key.insert(key, site.clone());
        Some(site)
    }

    /// The sites of packets that were dropped.
    pub fn used(&self) -> Vec<Arc<DropSite>> {
        self.0.lock().by_key.values().filter(|site| site.packets() > 0).cloned().collect()
    }

    /// Forgets the sites of ports that have gone from the datapath.
    pub fn forget_ports(&self, gone: &[PortNo]) {
        let gone: HashSet<_> = gone.iter().collect();
        self.0.lock().by_key.retain(|key, _| !gone.contains(&key.port));
    }
}

impl Sites {
    /// Whether there is room for another site. Where there is none, those that no flow has are forgotten, from time to time.
    fn has_room(&mut self) -> bool {
        self.asked += 1;
        if self.by_key.len() >= MOST && self.asked >= BETWEEN_LOOKS {
            self.asked = 0;
            // Who has no site yet could only get it here.
            self.by_key.retain(|_, site| Arc::strong_count(site) > 1);
        }
        self.by_key.len() < MOST
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Action, OfPort};
    use packet::Field;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    fn dropped(table: u8) -> Dropped {
        Dropped { bridge: BridgeId(1), table, rule: None, reason: DropReason::Rule }
    }

    fn frame(source: [u8; 4]) -> Vec<u8> {
        let header = build::Ipv4 { src: source.into(), proto: 17, ..build::Ipv4::default() };
        build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"")))
    }

    fn ip_from(source: u128) -> Match {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        matching.set(Field::NwSrc, source);
        matching
    }

    /// What was dropped, as port, table, priority of the rule, reason and packets.
    fn drops(bed: &Bed) -> Vec<(PortNo, u8, Option<u32>, DropReason, u64)> {
        let of = |d: TableDrop| (d.port, d.table, d.rule.map(|rule| rule.priority), d.reason, d.packets);
        let mut drops: Vec<_> = bed.switch.table_drops().iter().map(|site| of(site.describe())).collect();
        drops.sort();
        drops
    }

    #[test]
    fn packets_are_counted_where_they_are_dropped() {
        let bed = Bed::new(3);
        let resubmit = Action::Resubmit { in_port: OfPort::IN_PORT, table: openflow::TableId(1), with_ct: false };
        bed.add_flow(0, 9, ip_from(0x0a00_0001), vec![]);
        bed.add_flow(0, 8, ip_from(0x0a00_0002), vec![resubmit]);
        bed.add_flow(1, 7, ip_from(0x0a00_0003), vec![]);
        bed.add_flow(0, 6, ip_from(0x0a00_0004), vec![Action::output(OfPort(1))]);
        bed.add_flow(0, 5, ip_from(0x0a00_0005), vec![Action::output(OfPort(2))]);
        let receive = |port, last, times| {
            (0..times).for_each(|_| drop(bed.receive(OfPort(port), &frame([10, 0, 0, last]))));
        };
        receive(1, 1, 3);
        receive(2, 1, 2);
        receive(1, 2, 4);
        receive(1, 4, 5);
        receive(1, 5, 6);
        let ports: Vec<PortNo> = bed.bridge.ports().iter().filter_map(|info| info.dp_port).collect();
        let expected = vec![
            (ports[0], 0, Some(6), DropReason::Reflection, 5),
            (ports[0], 0, Some(9), DropReason::Rule, 3),
            (ports[0], 1, None, DropReason::Rule, 4),
            (ports[1], 0, Some(9), DropReason::Rule, 2),
        ];
        assert_eq!(drops(&bed), expected);
        // The same as the datapath counts.
        let counted = bed.datapath.stats().ports;
        let of_port = |port, reason| counted.iter().find(|(of, _)| *of == port).unwrap().1.get(reason);
        assert_eq!(of_port(ports[0], DropReason::Rule), 7);
        assert_eq!(of_port(ports[0], DropReason::Reflection), 5);
        assert_eq!(of_port(ports[1], DropReason::Rule), 2);
        // Flows that go are counted to the end.
        bed.switch.purge();
        assert_eq!(drops(&bed), expected);
    }

    #[test]
    fn sites_that_no_flow_has_make_room() {
        let sites = DropSites::default();
        let site = |port, table| sites.site(dropped(table), "br0", PortNo(port));
        let held: Vec<_> = (0..100).map(|port| site(port, 1).unwrap()).collect();
        held.iter().for_each(|site| site.add(1, 60));
        for port in 0..2 * MOST as u32 {
            assert!(site(port, 2).is_some());
        }
        assert!(sites.0.lock().by_key.len() <= MOST);
        assert_eq!(sites.used().len(), 100, "those of flows stay");
        assert!(Arc::ptr_eq(&held[7], &site(7, 1).unwrap()));
    }

    #[test]
    fn where_all_are_in_use_others_have_none() {
        let sites = DropSites::default();
        let site = |port| sites.site(dropped(1), "br0", PortNo(port));
        let mut held: Vec<_> = (0..MOST as u32).map(|port| site(port).unwrap()).collect();
        let beyond = MOST as u32;
        assert!(site(beyond).is_none());
        held.truncate(10);
        // It is looked again after a while.
        let refused = (0..).take_while(|_| site(beyond).is_none()).count();
        assert!(refused < BETWEEN_LOOKS, "{refused}");
        assert!(sites.0.lock().by_key.len() <= 11);
    }

    #[test]
    fn a_look_that_frees_little_is_not_followed_by_another_at_once() {
        let sites = DropSites::default();
        let site = |port| sites.site(dropped(1), "br0", PortNo(port));
        let mut held: Vec<_> = (0..MOST as u32).map(|port| site(port).unwrap()).collect();
        held.pop();
        // One place becomes free again and again; each look goes over all sites.
        let granted = (0..10 * BETWEEN_LOOKS as u32).filter(|more| site(MOST as u32 + more).is_some()).count();
        assert!((1..=11).contains(&granted), "{granted}");
    }

    #[test]
    fn a_number_that_another_port_gets_begins_anew() {
        let bed = Bed::new(2);
        bed.add_flow(0, 9, Match::any(), vec![]);
        drop(bed.receive(OfPort(1), &frame([10, 0, 0, 1])));
        drop(bed.receive(OfPort(2), &frame([10, 0, 0, 1])));
        let second = bed.bridge.ports()[1].dp_port.unwrap();
        bed.bridge.remove_port(OfPort(1)).unwrap();
        assert_eq!(drops(&bed), [(second, 0, Some(9), DropReason::Rule, 1)]);
    }

    #[test]
    fn flows_of_two_ports_that_come_in_turn_share_a_record_each() {
        let bed = Bed::new(3);
        let mut udp = Match::any();
        [(Field::DlType, 0x0800), (Field::NwProto, 17)].iter().for_each(|&(field, value)| udp.set(field, value));
        bed.add_flow(0, 9, udp.clone(), vec![]);
        // So each source port has a flow of its own.
        udp.set(Field::UdpSrc, 9);
        bed.add_flow(0, 10, udp, vec![Action::output(OfPort(3))]);
        for source in 1..9 {
            let header = build::Ipv4 { proto: 17, ..build::Ipv4::default() };
            let frame = build::ethernet(
                [2; 6],
                [4; 6],
                &[],
                0x0800,
                &header.packet(build::udp(0x1000 << (source % 4) | source, 2, b"")),
            );
            (1..3).for_each(|port| drop(bed.receive(OfPort(port), &frame)));
        }
        let records: HashSet<_> = bed.datapath.flows().map(|flow| Arc::as_ptr(&flow.tag).cast::<()>()).collect();
        assert!(bed.datapath.flow_count() >= 8);
        assert_eq!(records.len(), 2);
    }
}
