//! A bridge's snooping: what it learns from messages of membership, and where multicast goes (RFC 4541).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use packet::Time;
use packet::wire::Error;

use super::message::{Body, Message, Record};
use super::settings::{PortSettings, Settings};
use super::table::{Group, Member, Port, Table};

/// How long a port leads to a router after a query, as in Open vSwitch.
const ROUTER_TIME: Duration = Duration::from_secs(180);

/// What a message of membership was, which decides where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// A router's: it goes to all ports.
    Query,
    /// A host's: it goes to the ports of [`Snooping::report_ports`] only, lest other hosts keep silent (RFC 4541 section 2.1.1).
    Report,
}

/// Where multicast goes; never back where it came from, which the caller sees to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To all ports of the VLAN.
    Flood,
    /// To these, each named once, in ascending order.
    Ports(Vec<Port>),
}

/// Multicast snooping of a bridge.
#[derive(Debug)]
pub struct Snooping {
    settings: Settings,
    table: Table,
    ports: BTreeMap<Port, PortSettings>,
    /// Ports that lead to routers, and when they last heard one.
    routers: BTreeMap<(u16, Port), Time>,
    changed: bool,
    errors: u64,
}

impl Snooping {
    /// Nothing is learnt yet.
    pub fn new(settings: Settings) -> Snooping {
        let (table, ports, routers) = Default::default();
        Snooping { settings, table, ports, routers, changed: false, errors: 0 }
    }

    /// Changes the settings. A smaller table loses groups when it takes new ones.
    pub fn configure(&mut self, settings: Settings) {
        self.changed |= self.settings.flood_unregistered != settings.flood_unregistered;
        self.settings = settings;
    }

    /// Changes the settings of a port.
    pub fn configure_port(&mut self, port: Port, settings: PortSettings) {
        let before = self.ports.insert(port, settings).unwrap_or_default();
        if settings == PortSettings::default() {
            self.ports.remove(&port);
        }
        self.changed |= before != settings;
    }

    /// Forgets a port, or what it has in VLANs of which `of` is true: it is removed, or is in these VLANs no longer.
    pub fn forget_port(&mut self, port: Port, of: impl Fn(u16) -> bool) {
        self.changed |= self.table.remove_port(port, |group| of(group.vlan));
        let routers = self.routers.len();
        self.routers.retain(|(vlan, router), _| *router != port || !of(*vlan));
        self.changed |= routers != self.routers.len();
    }

    /// Takes an IP packet that a port has received in a VLAN, and learns from it. None where it is no message of membership; then
    /// and where it is wrong, [`Snooping::destination`] says where it goes. The work is linear in the length of the packet.
    pub fn receive(&mut self, now: Time, vlan: u16, port: Port, packet: &[u8]) -> Result<Option<Learned>, Error> {
        let message = match Message::new_checked(packet) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.errors += 1;
                return Err(error);
            }
        };
        match message.body {
            Body::Query(_) => {
                self.learn_router(now, vlan, port, message.src);
                return Ok(Some(Learned::Query));
            }
            Body::Report(group) => self.learn(now, vlan, port, Record::Join(group)),
            Body::Leave(group) => self.learn(now, vlan, port, Record::Leave(group)),
            Body::Records(records) => records.iter().for_each(|record| self.learn(now, vlan, port, record)),
        }
        Ok(Some(Learned::Report))
    }

    fn learn_router(&mut self, now: Time, vlan: u16, port: Port, src: IpAddr) {
        // A query from no address is a switch's own (RFC 4541 section 2.1.1).
        if src.is_unspecified() || self.settings_of(port).flood {
            return;
        }
        self.changed |= self.routers.insert((vlan, port), now).is_none();
    }

    fn learn(&mut self, now: Time, vlan: u16, port: Port, record: Record) {
        let settings = self.settings_of(port);
        self.changed |= match record {
            Record::Join(address) => {
                // Such ports get everything without being members.
                let gets_all = settings.flood || self.routers.contains_key(&(vlan, port));
                let wanted = !gets_all && !is_local(address);
                wanted && self.table.join(now, Group { vlan, address }, port, self.settings.table_size)
            }
            // Behind a port to which reports go there is another switch, with other members.
            Record::Leave(address) => !settings.flood_reports && self.table.leave(&Group { vlan, address }, port),
        };
    }

    /// Makes a port a member for good; whether it was not. Groups that go to all ports anyway have no members.
    pub fn add_static(&mut self, group: Group, port: Port) -> bool {
        let added = group.address.is_multicast() && !is_local(group.address) && self.table.join_for_good(group, port);
        self.changed |= added;
        added
    }

    /// Ends a port's membership, static or not; whether there was one.
    pub fn remove(&mut self, group: &Group, port: Port) -> bool {
        let removed = self.table.remove(group, port);
        self.changed |= removed;
        removed
    }

    /// Forgets what was learnt (`mdb/flush`); static members stay.
    pub fn flush(&mut self) {
        self.changed |= self.table.clear() | !self.routers.is_empty();
        self.routers.clear();
    }

    /// Where packets for an address go in a VLAN.
    pub fn destination(&self, vlan: u16, address: IpAddr) -> Destination {
        if is_local(address) {
            return Destination::Flood;
        }
        match self.table.members(&Group { vlan, address }) {
            Some(members) => Destination::Ports(self.with_routers(vlan, members, |settings| settings.flood)),
            None if self.settings.flood_unregistered => Destination::Flood,
            None => Destination::Ports(self.with_routers(vlan, std::iter::empty(), |settings| settings.flood)),
        }
    }

    /// Where reports go.
    pub fn report_ports(&self, vlan: u16) -> Vec<Port> {
        self.with_routers(vlan, std::iter::empty(), |settings| settings.flood_reports)
    }

    /// These ports, those that lead to routers, and those with a setting.
    fn with_routers(
        &self,
        vlan: u16,
        ports: impl Iterator<Item = Port>,
        setting: impl Fn(&PortSettings) -> bool,
    ) -> Vec<Port> {
        let routers = self.routers.range((vlan, 0)..=(vlan, Port::MAX)).map(|((_, port), _)| *port);
        let set = self.ports.iter().filter(|(_, settings)| setting(settings)).map(|(port, _)| *port);
        let mut all: Vec<Port> = ports.chain(routers).chain(set).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Ends what is too old. Whether something has changed since the last call, so that translations are out of date.
    pub fn run(&mut self, now: Time) -> bool {
        self.changed |= self.table.expire(now, self.settings.ageing_time);
        let routers = self.routers.len();
        self.routers.retain(|_, heard| *heard + ROUTER_TIME > now);
        self.changed |= routers != self.routers.len();
        std::mem::take(&mut self.changed)
    }

    /// When to run again at the latest.
    pub fn next_wakeup(&self) -> Option<Time> {
        if self.changed {
            return Some(Time::default());
        }
        let routers = self.routers.values().min().map(|heard| *heard + ROUTER_TIME);
        [self.table.next_expiry(self.settings.ageing_time), routers].into_iter().flatten().min()
    }

    /// How many messages were wrong.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// All memberships.
    pub fn members(&self) -> Vec<Member> {
        self.table.list()
    }

    /// The text of `mdb/show`. `name` has the names or numbers of ports.
    pub fn show(&self, now: Time, name: impl Fn(Port) -> String) -> String {
        let mut text = " port  VLAN  GROUP                Age\n".to_owned();
        for Member { group, port, renewed } in self.members() {
            let Group { vlan, address } = group;
            let age = renewed.map_or("static".to_owned(), |at| now.since(at).as_secs().to_string());
            text += &format!("{:>5}  {vlan:>4}  {address}         {age:>3}\n", name(port));
        }
        let mut routers: Vec<_> = self.routers.iter().collect();
        routers.sort_by_key(|(_, heard)| **heard);
        for ((vlan, port), heard) in routers {
            let age = now.since(*heard).as_secs();
            text += &format!("{:>5}  {vlan:>4}  querier             {age:>3}\n", name(*port));
        }
        text
    }

    fn settings_of(&self, port: Port) -> PortSettings {
        self.ports.get(&port).copied().unwrap_or_default()
    }
}

/// Whether a group goes to all ports whoever is a member: 224.0.0.x (RFC 4541 section 2.1.2), ff02::1, and what does not leave an
/// interface or has a reserved scope, for which there are no reports (RFC 3810 section 6).
pub fn is_local(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == Ipv4Addr::new(224, 0, 0, 0).octets()[..3],
        IpAddr::V6(group) => {
            group == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) || (group.is_multicast() && group.octets()[1] & 0xf < 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Records;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn host() -> IpAddr {
        IpAddr::from([10, 0, 0, 7])
    }

    fn group(last: u8) -> IpAddr {
        IpAddr::from([239, 0, 1, last])
    }

    fn say(snooping: &mut Snooping, now: u64, port: Port, src: IpAddr, body: Body) -> Option<Learned> {
        let packet = Message { src, body }.emit();
        snooping.receive(Time(now * SECOND), 5, port, &packet).unwrap()
    }

    fn names(port: Port) -> String {
        port.to_string()
    }

    fn ports(ports: &[Port]) -> Destination {
        Destination::Ports(ports.to_vec())
    }

    #[test]
    fn members_and_routers_get_what_is_sent_to_a_group() {
        let mut snooping = Snooping::new(Settings::default());
        assert_eq!(snooping.destination(5, group(1)), Destination::Flood);
        assert_eq!(say(&mut snooping, 0, 1, host(), Body::Report(group(1))), Some(Learned::Report));
        assert!(snooping.run(Time(0)) && !snooping.run(Time(0)));
        assert_eq!(say(&mut snooping, 7, 3, host(), Body::Query(None)), Some(Learned::Query));
        say(&mut snooping, 8, 2, host(), Body::Report(group(1)));
        // Renewed: nothing has to be translated again.
        assert!(snooping.run(Time(8 * SECOND)));
        say(&mut snooping, 9, 2, host(), Body::Report(group(1)));
        assert!(!snooping.run(Time(9 * SECOND)));

        assert_eq!(snooping.destination(5, group(1)), ports(&[1, 2, 3]));
        assert_eq!(snooping.destination(6, group(1)), Destination::Flood);
        assert_eq!((snooping.report_ports(5), snooping.report_ports(6)), (vec![3], vec![]));
        let text = " port  VLAN  GROUP                Age\n    1     5  239.0.1.1          10\n    2     5  \
                    239.0.1.1           1\n    3     5  querier               3\n";
        assert_eq!(snooping.show(Time(10 * SECOND), names), text);

        say(&mut snooping, 10, 1, host(), Body::Leave(group(1)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[2, 3]));
        snooping.flush();
        assert_eq!(snooping.show(Time(10 * SECOND), names), " port  VLAN  GROUP                Age\n");
    }

    #[test]
    fn reports_of_version_3_join_and_leave() {
        let mut snooping = Snooping::new(Settings { flood_unregistered: false, ..Settings::default() });
        let bytes = Records::write(&[Record::Join(group(1)), Record::Join(group(2)), Record::Leave(group(1))]);
        say(&mut snooping, 0, 1, host(), Body::Records(Records::read(&bytes, false).unwrap()));
        assert_eq!((snooping.destination(5, group(1)), snooping.destination(5, group(2))), (ports(&[]), ports(&[1])));
        let link_local = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7]);
        let group6 = IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 0, 7]);
        let bytes = Records::write(&[Record::Join(group6)]);
        say(&mut snooping, 0, 2, link_local, Body::Records(Records::read(&bytes, true).unwrap()));
        assert_eq!(snooping.destination(5, group6), ports(&[2]));
    }

    #[test]
    fn what_is_not_renewed_ends() {
        let mut snooping = Snooping::new(Settings { flood_unregistered: false, ..Settings::default() });
        say(&mut snooping, 0, 1, host(), Body::Report(group(1)));
        say(&mut snooping, 0, 3, host(), Body::Query(Some(group(1))));
        say(&mut snooping, 100, 2, host(), Body::Report(group(1)));
        assert!(snooping.run(Time(0)));
        assert_eq!(snooping.next_wakeup(), Some(Time(180 * SECOND)));
        assert!(!snooping.run(Time(180 * SECOND - 1)) && snooping.run(Time(180 * SECOND)));
        assert_eq!(
            (snooping.destination(5, group(1)), snooping.next_wakeup()),
            (ports(&[1, 2]), Some(Time(300 * SECOND)))
        );
        assert!(snooping.run(Time(300 * SECOND)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[2]));
        assert!(snooping.run(Time(400 * SECOND)));
        assert_eq!((snooping.destination(5, group(1)), snooping.next_wakeup()), (ports(&[]), None));
    }

    #[test]
    fn settings_of_ports() {
        let mut snooping = Snooping::new(Settings { flood_unregistered: false, ..Settings::default() });
        snooping.configure_port(7, PortSettings { flood: true, flood_reports: false });
        snooping.configure_port(8, PortSettings { flood: false, flood_reports: true });
        assert_eq!((snooping.destination(5, group(1)), snooping.report_ports(5)), (ports(&[7]), vec![8]));
        // A port that gets all multicast is neither a member nor one that leads to a router.
        say(&mut snooping, 0, 7, host(), Body::Report(group(1)));
        say(&mut snooping, 0, 7, host(), Body::Query(None));
        // Behind this one there may be other members.
        say(&mut snooping, 0, 8, host(), Body::Report(group(1)));
        say(&mut snooping, 0, 8, host(), Body::Leave(group(1)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[7, 8]));
        assert_eq!(snooping.members().len(), 1);
        snooping.forget_port(8, |vlan| vlan != 5);
        assert_eq!(snooping.members().len(), 1);
        snooping.forget_port(8, |_| true);
        assert_eq!(snooping.destination(5, group(1)), ports(&[7]));
    }

    #[test]
    fn groups_that_are_never_pruned() {
        let mut snooping = Snooping::new(Settings { flood_unregistered: false, ..Settings::default() });
        for address in [IpAddr::from([224, 0, 0, 251]), IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 1])] {
            let src = if address.is_ipv4() { host() } else { IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7]) };
            say(&mut snooping, 0, 1, src, Body::Report(address));
            assert_eq!(snooping.destination(5, address), Destination::Flood);
            assert!(!snooping.add_static(Group { vlan: 5, address }, 1));
        }
        assert!(snooping.members().is_empty());
        let mdns = IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 0xfb]);
        assert!(!is_local(mdns) && !is_local(IpAddr::from([224, 0, 1, 1])));
    }

    #[test]
    fn queries_from_no_address_are_no_routers() {
        let mut snooping = Snooping::new(Settings::default());
        say(&mut snooping, 0, 1, IpAddr::from([0; 4]), Body::Query(None));
        assert_eq!(snooping.report_ports(5), vec![]);
        assert!(!snooping.run(Time(0)));
    }

    #[test]
    fn static_members_are_shown_and_stay() {
        let mut snooping = Snooping::new(Settings::default());
        let member = Group { vlan: 5, address: group(1) };
        assert!(snooping.add_static(member, 4));
        snooping.flush();
        snooping.run(Time(u64::MAX));
        let text = " port  VLAN  GROUP                Age\n    4     5  239.0.1.1         static\n";
        assert_eq!(snooping.show(Time(0), names), text);
        assert!(snooping.remove(&member, 4));
        assert_eq!(snooping.destination(5, group(1)), Destination::Flood);
    }

    #[test]
    fn wrong_messages_are_counted() {
        let mut snooping = Snooping::new(Settings::default());
        let mut packet = Message { src: host(), body: Body::Report(group(1)) }.emit();
        *packet.last_mut().unwrap() ^= 1;
        assert!(snooping.receive(Time(0), 5, 1, &packet).is_err());
        assert_eq!((snooping.errors(), snooping.members().len()), (1, 0));
    }
}
