//! Multicast snooping, by a list of who has asked for what; and its properties.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use openflow::OfPort;
use packet::{Field, Time};

use super::{PacketInFlight, Reference};

/// What a switch that snoops has learnt.
pub struct RefSnooping {
    pub members: BTreeMap<(u16, IpAddr), BTreeMap<OfPort, Time>>,
    pub routers: BTreeMap<(u16, OfPort), Time>,
    /// Ports that get all multicast, and those that get reports.
    pub flood: BTreeSet<OfPort>,
    pub flood_reports: BTreeSet<OfPort>,
    pub flood_unregistered: bool,
}

/// Where a packet goes: to all ports, or to these.
pub(super) type Receivers = Option<BTreeSet<OfPort>>;

impl RefSnooping {
    /// Time passes.
    pub fn expire(&mut self, now: Time) {
        for members in self.members.values_mut() {
            members.retain(|_, heard| *heard + Duration::from_secs(300) > now);
        }
        self.members.retain(|_, members| !members.is_empty());
        self.routers.retain(|_, heard| *heard + Duration::from_secs(180) > now);
    }

    pub fn forget(&mut self, gone: OfPort) {
        for members in self.members.values_mut() {
            members.remove(&gone);
        }
        self.members.retain(|_, members| !members.is_empty());
        self.routers.retain(|(_, port), _| *port != gone);
    }

    #[cfg(test)]
    pub fn flush(&mut self) {
        self.members.clear();
        self.routers.clear();
    }

    /// What is said of a group.
    fn hear(&mut self, now: Time, vlan: u16, port: OfPort, group: IpAddr, joins: bool) {
        let is_local = match group {
            IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
            IpAddr::V6(group) => group.octets()[1] & 15 < 2 || group.segments() == [0xff02, 0, 0, 0, 0, 0, 0, 1],
        };
        if self.flood.contains(&port) || is_local {
            return;
        }
        if joins && !self.routers.contains_key(&(vlan, port)) {
            self.members.entry((vlan, group)).or_default().insert(port, now);
        }
        if !joins && !self.flood_reports.contains(&port) {
            let left = self.members.get_mut(&(vlan, group)).map(|members| {
                members.remove(&port);
                members.is_empty()
            });
            if left == Some(true) {
                self.members.remove(&(vlan, group));
            }
        }
    }

    fn routers_of(&self, vlan: u16) -> impl Iterator<Item = OfPort> {
        self.routers.keys().filter(move |(of, _)| *of == vlan).map(|(_, port)| *port)
    }
}

/// What NORMAL has learnt: addresses; members of groups, and routers.
pub(super) type Learnt = (HashMap<(u16, [u8; 6]), OfPort>, Option<(Vec<(u16, IpAddr, OfPort)>, Vec<(u16, OfPort)>)>);

impl Reference {
    pub(super) fn learnt(&self) -> Learnt {
        let snooping = self.snooping.as_ref().map(|snooping| {
            let of_group = |((vlan, group), ports): (&(u16, IpAddr), &BTreeMap<OfPort, Time>)| {
                ports.keys().map(|port| (*vlan, *group, *port)).collect::<Vec<_>>()
            };
            (snooping.members.iter().flat_map(of_group).collect(), snooping.routers.keys().copied().collect())
        });
        (self.macs.clone(), snooping)
    }

    /// Where NORMAL sends a packet by what was learnt of multicast; `None` where this has nothing to say of it.
    pub(super) fn snoop(&mut self, in_flight: &PacketInFlight, vlan: u16) -> Option<Receivers> {
        let now = self.connections.now;
        let (key, layers) = in_flight.frame.key();
        let common = key.common();
        let bytes = &in_flight.frame.bytes;
        if bytes[0] & 1 == 0 || bytes[..6] == [0xff; 6] {
            return None;
        }
        let dst = match common.dl_type.get() {
            0x0800 => IpAddr::from(common.nw_dst.get().to_be_bytes()),
            0x86dd => IpAddr::from((key.get(Field::Ipv6Dst)).to_be_bytes()),
            _ => return None,
        };
        let snooping = self.snooping.as_mut()?;
        let message = bytes.get(usize::from(layers.l4)..).unwrap_or_default();
        let in_port = in_flight.in_port;
        let is_report = match (dst, common.nw_proto, message) {
            (IpAddr::V4(_), 2, [0x11, _, _, _, ..]) | (IpAddr::V6(_), 58, [130, ..]) => {
                if !snooping.flood.contains(&in_port) {
                    snooping.routers.insert((vlan, in_port), now);
                }
                return Some(None);
            }
            (IpAddr::V4(_), 2, [kind @ (0x16 | 0x17), _, _, _, a, b, c, d, ..]) => {
                snooping.hear(now, vlan, in_port, IpAddr::from([*a, *b, *c, *d]), *kind == 0x16);
                true
            }
            (IpAddr::V6(_), 58, [kind @ (131 | 132), rest @ ..]) => {
                let group = <[u8; 16]>::try_from(&rest[7..23]).unwrap();
                snooping.hear(now, vlan, in_port, IpAddr::from(group), *kind == 131);
                true
            }
            // Version 3: one group, with no sources.
            (IpAddr::V4(_), 2, [0x22, rest @ ..]) => {
                let group = <[u8; 4]>::try_from(&rest[11..15]).unwrap();
                snooping.hear(now, vlan, in_port, IpAddr::from(group), rest[7] == 4);
                true
            }
            (IpAddr::V4(_), 2, _) => return Some(None),
            _ => false,
        };
        if is_report {
            return Some(Some(snooping.routers_of(vlan).chain(snooping.flood_reports.iter().copied()).collect()));
        }
        let is_local = match dst {
            IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
            IpAddr::V6(group) => {
                group.segments() == [0xff02, 0, 0, 0, 0, 0, 0, 1]
                    || (group.is_multicast() && group.octets()[1] & 15 < 2)
            }
        };
        let members = snooping.members.get(&(vlan, dst));
        if is_local || (members.is_none() && snooping.flood_unregistered) {
            return Some(None);
        }
        let members = members.into_iter().flat_map(|members| members.keys().copied());
        Some(Some(members.chain(snooping.routers_of(vlan)).chain(snooping.flood.iter().copied()).collect()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv6Addr;

    use datapath::Config;
    use openflow::{Action, Instructions, Match};
    use packet::wire::build;
    use proptest::prelude::*;
    use proptest::sample::select;
    use protocols::mcast::message::{Body, Message, Record, Records};
    use protocols::mcast::{PortSettings, Settings};

    use super::super::tests::{Change, PORTS, Pair, frame, groups, mirrors, rule, tiny, vlan};
    use super::*;
    use crate::model::config::BridgeConfig;
    use crate::model::mac::MacSettings;

    fn group(n: u8, ipv6: bool) -> IpAddr {
        if ipv6 {
            IpAddr::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, n.into()))
        } else {
            IpAddr::from([239, 0, 0, n])
        }
    }

    /// The frame of an IP packet to a group.
    fn to_group(packet: &[u8], src: u8, vlan: Option<u16>) -> Vec<u8> {
        let ipv6 = packet[0] >> 4 == 6;
        let dst = match ipv6 {
            true => [0x33, 0x33, packet[36], packet[37], packet[38], packet[39]],
            false => [1, 0, 0x5e, packet[17] & 0x7f, packet[18], packet[19]],
        };
        let tags: Vec<_> = vlan.map(|vid| (0x8100, vid)).into_iter().collect();
        build::ethernet(dst, [2, 0, 0, 0, 0, src], &tags, if ipv6 { 0x86dd } else { 0x0800 }, packet)
    }

    #[derive(Clone, Copy, Debug)]
    enum What {
        Data,
        Join,
        Join3,
        Leave,
        Query,
    }

    fn packet(what: What, n: u8, ipv6: bool) -> Vec<u8> {
        let group = group(n, ipv6);
        let src = if ipv6 { IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7]) } else { IpAddr::from([10, 0, 0, 7]) };
        let records = Records::write(&[Record::Join(group)]);
        let body = match (what, group) {
            (What::Data, IpAddr::V4(dst)) => {
                return build::Ipv4 { dst, proto: 17, ..Default::default() }.packet(build::udp(5, 6, b"data"));
            }
            (What::Data, IpAddr::V6(dst)) => {
                return build::Ipv6 { dst, proto: 17, ..Default::default() }.packet(build::udp(5, 6, b"data"));
            }
            (What::Join3, IpAddr::V4(_)) => Body::Records(Records::read(&records, false).unwrap()),
            (What::Join | What::Join3, _) => Body::Report(group),
            (What::Leave, _) => Body::Leave(group),
            (What::Query, _) => Body::Query(None),
        };
        Message { src, body }.emit()
    }

    /// Data and messages about few groups, of few stations, so that flows are used again after a change.
    pub fn multicast_frame() -> impl Strategy<Value = Vec<u8>> {
        let what = select(vec![What::Data, What::Data, What::Join, What::Join3, What::Leave, What::Query]);
        let vlan = select(vec![None, None, None, None, Some(5u16), Some(6)]);
        (what, 1u8..3, proptest::bool::weighted(0.25), 1u8..3, vlan)
            .prop_map(|(what, n, ipv6, src, vlan)| to_group(&packet(what, n, ipv6), src, vlan))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Receive(u32, Vec<u8>),
        Change(Change),
        Flush,
        Flood(u32, bool, bool),
        Unregistered(bool),
        OnOff,
    }

    fn step() -> impl Strategy<Value = Step> {
        let change = prop_oneof![
            2 => (1..=PORTS, vlan()).prop_map(|(port, vlan)| Change::Vlan(port, vlan)),
            1 => mirrors().prop_map(Change::Mirrors),
            1 => Just(Change::FlushMacs),
            1 => (1..=PORTS).prop_map(Change::RemovePort),
            3 => select(vec![10u64, 100, 180, 300]).prop_map(Change::Age),
        ];
        prop_oneof![
            40 => (1..=PORTS, multicast_frame()).prop_map(|(port, frame)| Step::Receive(port, frame)),
            2 => (1..=PORTS, frame()).prop_map(|(port, frame)| Step::Receive(port, frame)),
            4 => change.prop_map(Step::Change),
            1 => Just(Step::Flush),
            2 => (1..=PORTS, any::<bool>(), any::<bool>()).prop_map(|(port, all, reports)| Step::Flood(port, all, reports)),
            1 => any::<bool>().prop_map(Step::Unregistered),
            1 => Just(Step::OnOff),
        ]
    }

    impl Pair {
        /// Begins to snoop, or ends it.
        pub(in crate::reference) fn snoop(&mut self, settings: Option<Settings>) {
            let bridge = &self.bed.bridge;
            // The reference does not forget addresses.
            let mac = MacSettings { ageing: Duration::from_secs(1 << 20), ..MacSettings::default() };
            bridge.set_config(BridgeConfig { mcast_snooping: settings, mac, ..bridge.config() });
            let before = self.reference.snooping.take();
            self.reference.snooping = settings.map(|settings| RefSnooping {
                flood_unregistered: settings.flood_unregistered,
                ..before.unwrap_or(RefSnooping {
                    members: BTreeMap::new(),
                    routers: BTreeMap::new(),
                    flood: BTreeSet::new(),
                    flood_reports: BTreeSet::new(),
                    flood_unregistered: true,
                })
            });
            // Slow packets may overtake others.
            self.is_ordered = false;
            self.bed.bridge.barrier();
        }

        fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
            match step {
                Step::Receive(port, frame) => return self.packet(*port, frame),
                Step::Change(change) => self.change(change),
                Step::Flush => {
                    self.bed.bridge.flush_multicast();
                    if let Some(snooping) = &mut self.reference.snooping {
                        snooping.flush();
                    }
                    self.bed.bridge.barrier();
                }
                Step::Flood(port, all, reports) => {
                    let port = OfPort(*port);
                    let settings = PortSettings { flood: *all, flood_reports: *reports };
                    let Some(snooping) = &mut self.reference.snooping else { return Ok(()) };
                    if self.bed.bridge.set_port_multicast(port, settings).is_ok() {
                        for (set, is_in) in [(&mut snooping.flood, *all), (&mut snooping.flood_reports, *reports)] {
                            if is_in {
                                set.insert(port)
                            } else {
                                set.remove(&port)
                            };
                        }
                    }
                    self.bed.bridge.barrier();
                }
                Step::Unregistered(flood_unregistered) => {
                    if self.reference.snooping.is_some() {
                        self.snoop(Some(Settings { flood_unregistered: *flood_unregistered, ..Settings::default() }));
                    }
                }
                Step::OnOff => {
                    let ports: Vec<OfPort> = self.reference.ports.keys().copied().collect();
                    let was_on = self.reference.snooping.is_some();
                    for port in ports {
                        // The settings of ports stay when a bridge ends to snoop: here they begin anew.
                        self.bed.bridge.set_port_multicast(port, PortSettings::default()).unwrap();
                    }
                    self.snoop((!was_on).then(Settings::default));
                }
            }
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

        /// Whoever joins, leaves, asks and sends, packets of groups go where the list says, from the first packet after each change.
        #[test]
        fn a_switch_that_snoops_equals_the_reference(
            vlans in proptest::collection::vec(vlan(), PORTS as usize),
            plain in any::<bool>(),
            groups in groups(),
            rules in proptest::collection::vec(rule(), 0..4),
            steps in proptest::collection::vec(step(), 20..80),
            limited in any::<bool>(),
        ) {
            let vlans = if plain { vec![Default::default(); PORTS as usize] } else { vlans };
            let mut pair = Pair::new(&vlans, if limited { tiny() } else { Config::default() });
            pair.groups(&groups);
            let normal = Instructions::apply(vec![Action::output(OfPort::NORMAL)]);
            pair.put(0, 0, &Match::any(), &normal);
            for rule in &rules {
                pair.add(rule);
            }
            pair.snoop(Some(Settings::default()));
            for step in &steps {
                pair.step(step)?;
            }
            pair.check_counters()?;
        }
    }

    #[test]
    fn a_message_is_dropped_where_it_is_and_not_where_the_first_one_was() {
        let mut pair = Pair::new(&vec![Default::default(); PORTS as usize], Config::default());
        pair.put(0, 0, &Match::any(), &Instructions::apply(vec![Action::output(OfPort::NORMAL)]));
        pair.snoop(Some(Settings::default()));
        let receive =
            |port: u32, what| pair.bed.receive(OfPort(port), &to_group(&packet(what, 1, false), port as u8, None));
        let dropped = || pair.bed.switch.table_drops().iter().map(|site| site.packets()).sum::<u64>();
        assert_eq!((receive(2, What::Join).len(), dropped()), (0, 1), "there is no router");
        assert_eq!((receive(4, What::Query).len(), dropped()), (3, 1));
        assert_eq!((receive(2, What::Join).len(), dropped()), (1, 1), "the same flow");
        pair.bed.bridge.flush_multicast();
        assert_eq!((receive(2, What::Join).len(), dropped()), (0, 2));
    }

    #[test]
    fn a_member_gets_what_others_do_not() {
        let mut pair = Pair::new(&vec![Default::default(); PORTS as usize], Config::default());
        pair.put(0, 0, &Match::any(), &Instructions::apply(vec![Action::output(OfPort::NORMAL)]));
        let sent_to = |pair: &Pair, port: u32, what: What| -> Vec<u32> {
            let sent = pair.bed.receive(OfPort(port), &to_group(&packet(what, 1, false), port as u8, None));
            sent.into_iter().map(|(port, _)| port.0).collect()
        };
        assert_eq!(sent_to(&pair, 1, What::Data), [2, 3, 4], "it does not snoop");
        pair.snoop(Some(Settings { flood_unregistered: false, ..Settings::default() }));
        assert_eq!(sent_to(&pair, 1, What::Data), []);
        assert_eq!(sent_to(&pair, 4, What::Query), [1, 2, 3]);
        assert_eq!(sent_to(&pair, 2, What::Join), [4], "a report goes to routers");
        pair.bed.switch.run(packet::Clock::now(&*pair.bed.clock));
        assert_eq!(sent_to(&pair, 1, What::Data), [2, 4]);
        assert_eq!(sent_to(&pair, 2, What::Leave), [4]);
        pair.bed.switch.run(packet::Clock::now(&*pair.bed.clock));
        assert_eq!(sent_to(&pair, 1, What::Data), [4]);
    }
}
