//! A bridge's snooping: what it learns from messages of membership, and where multicast goes (RFC 4541).

use std::collections::{BTreeMap, BTreeSet};
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
    Ports(Vec<(Port, Why)>),
}

/// Why packets go to a port, the first of these that is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is a member.
    Member,
    /// Its settings ask for all multicast, or for all reports.
    Setting,
    /// It leads to a router.
    Router,
}

/// What has changed of where multicast goes. An address may be there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The groups that have other members.
    pub groups: Vec<Group>,
    /// The VLANs that have other routers.
    pub routers: Vec<u16>,
}

impl Changes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.routers.is_empty()
    }
}

/// A port that leads to a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Router {
    /// When it was heard last.
    pub heard: Time,
    /// The VLAN; 0 for none.
    pub vlan: u16,
    /// The port.
    pub port: Port,
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Groups and routers that were learnt.
    pub learned: u64,
    /// Memberships and routers that were not renewed in time.
    pub expired: u64,
    /// Memberships that made room for others.
    pub evicted: u64,
    /// Messages that were wrong.
    pub errors: u64,
}

/// Multicast snooping of a bridge.
#[derive(Debug, Default)]
pub struct Snooping {
    settings: Settings,
    table: Table,
    ports: BTreeMap<Port, PortSettings>,
    routers: Routers,
    errors: u64,
}

/// Ports that lead to routers.
#[derive(Debug, Default)]
struct Routers {
    /// When they were heard last.
    heard: BTreeMap<(u16, Port), Time>,
    /// The same in the order in which they expire.
    order: BTreeSet<Router>,
    /// VLANs that have got one or lost one.
    changes: Vec<u16>,
    learned: u64,
    expired: u64,
}

impl Routers {
    fn hear(&mut self, heard: Time, vlan: u16, port: Port) {
        match self.heard.insert((vlan, port), heard) {
            Some(before) => drop(self.order.remove(&Router { heard: before, vlan, port })),
            None => {
                self.learned += 1;
                self.changes.push(vlan);
            }
        }
        self.order.insert(Router { heard, vlan, port });
    }

    fn forget(&mut self, router: Router) {
        self.order.remove(&router);
        self.heard.remove(&(router.vlan, router.port));
        self.changes.push(router.vlan);
    }

    fn forget_where(&mut self, gone: impl Fn(&Router) -> bool) {
        let routers: Vec<Router> = self.order.iter().copied().filter(gone).collect();
        routers.into_iter().for_each(|router| self.forget(router));
    }

    /// As [`Table::expire`].
    fn expire(&mut self, now: Time, most: usize) -> usize {
        let mut expired = 0;
        while expired < most
            && let Some(oldest) = self.order.first().copied()
            && oldest.heard + ROUTER_TIME <= now
        {
            self.forget(oldest);
            expired += 1;
        }
        self.expired += expired as u64;
        expired
    }

    fn of(&self, vlan: u16) -> impl Iterator<Item = Port> {
        self.heard.range((vlan, 0)..=(vlan, Port::MAX)).map(|((_, port), _)| *port)
    }
}

impl Snooping {
    /// Nothing is learnt yet.
    pub fn new(settings: Settings) -> Snooping {
        Snooping { settings, ..Snooping::default() }
    }

    /// Changes the settings. Where a table is smaller now, ports lose what they have renewed least recently. Of other changes than
    /// that nothing is told by [`Snooping::take_changes`]: they are about all groups.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
        self.table.shrink(settings.table_size);
    }

    /// Changes the settings of a port, which is about all groups, too.
    pub fn configure_port(&mut self, port: Port, settings: PortSettings) {
        if settings == PortSettings::default() {
            self.ports.remove(&port);
        } else {
            self.ports.insert(port, settings);
        }
    }

    /// Forgets what was learnt of a port in VLANs of which `of` is true, and static members: it is removed, or is in these VLANs no
    /// longer. The settings of the port stay.
    pub fn forget_port(&mut self, port: Port, of: impl Fn(u16) -> bool) {
        self.table.remove_port(port, &of);
        self.routers.forget_where(|router| router.port == port && of(router.vlan));
    }

    /// What has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        Changes { groups: self.table.take_changes(), routers: std::mem::take(&mut self.routers.changes) }
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
        self.routers.hear(now, vlan, port);
    }

    fn learn(&mut self, now: Time, vlan: u16, port: Port, record: Record) {
        let settings = self.settings_of(port);
        match record {
            Record::Join(address) => {
                // Such ports get everything without being members.
                let gets_all = settings.flood || self.routers.heard.contains_key(&(vlan, port));
                if !gets_all && !is_local(address) {
                    self.table.join(now, Group { vlan, address }, port, self.settings.table_size);
                }
            }
            // Behind a port to which reports go there is another switch, with other members. Nothing is learnt of a port that gets
            // everything.
            Record::Leave(address) if !settings.flood_reports && !settings.flood => {
                self.table.leave(&Group { vlan, address }, port);
            }
            Record::Leave(_) => {}
        }
    }

    /// Makes a port a member for good; whether it was not. Groups that go to all ports anyway have no members.
    pub fn add_static(&mut self, group: Group, port: Port) -> bool {
        group.address.is_multicast() && !is_local(group.address) && self.table.join_for_good(group, port)
    }

    /// Ends a port's membership, static or not; whether there was one.
    pub fn remove(&mut self, group: &Group, port: Port) -> bool {
        self.table.remove(group, port)
    }

    /// Takes over what was known before a restart, instead of what is known now. To be called with what was heard least recently first.
    pub fn restore(&mut self, entries: &[Entry]) {
        self.table.clear();
        self.routers.forget_where(|_| true);
        for entry in entries {
            match *entry {
                Entry::Member(Member { group, port, renewed: Some(at) }) => {
                    self.learn(at, group.vlan, port, Record::Join(group.address));
                }
                Entry::Member(Member { group, port, renewed: None }) => drop(self.add_static(group, port)),
                Entry::Router(Router { heard, vlan, port }) if !self.settings_of(port).flood => {
                    self.routers.hear(heard, vlan, port);
                }
                Entry::Router(_) => {}
            }
        }
    }

    /// Forgets what was learnt (`mdb/flush`); static members stay.
    pub fn flush(&mut self) {
        self.table.clear();
        self.routers.forget_where(|_| true);
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
    pub fn report_ports(&self, vlan: u16) -> Vec<(Port, Why)> {
        self.with_routers(vlan, std::iter::empty(), |settings| settings.flood_reports)
    }

    /// These members, the ports with a setting, and those that lead to routers.
    fn with_routers(
        &self,
        vlan: u16,
        members: impl Iterator<Item = Port>,
        setting: impl Fn(&PortSettings) -> bool,
    ) -> Vec<(Port, Why)> {
        let members = members.map(|port| (port, Why::Member));
        let set = self.ports.iter().filter(|(_, settings)| setting(settings)).map(|(port, _)| (*port, Why::Setting));
        let routers = self.routers.of(vlan).map(|port| (port, Why::Router));
        let mut all: Vec<(Port, Why)> = members.chain(set).chain(routers).collect();
        all.sort_by_key(|(port, _)| *port);
        all.dedup_by_key(|(port, _)| *port);
        all
    }

    /// Ends at most this many memberships that are too old, and as many routers. How many it has ended.
    pub fn expire(&mut self, now: Time, most: usize) -> usize {
        self.table.expire(now, self.settings.ageing_time, most) + self.routers.expire(now, most)
    }

    /// When something is too old next.
    pub fn next_expiry(&self) -> Option<Time> {
        let router = self.routers.order.first().map(|router| router.heard + ROUTER_TIME);
        [self.table.next_expiry(self.settings.ageing_time), router].into_iter().flatten().min()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats {
            learned: self.table.learned + self.routers.learned,
            expired: self.table.expired + self.routers.expired,
            evicted: self.table.evicted,
            errors: self.errors,
        }
    }

    /// How many groups have members.
    pub fn groups(&self) -> usize {
        self.table.len()
    }

    /// All that `mdb/show` shows: members, then routers.
    pub fn entries(&self) -> Vec<Entry> {
        let members = self.table.list().into_iter().map(Entry::Member);
        members.chain(self.routers.order.iter().copied().map(Entry::Router)).collect()
    }

    /// All memberships: static ones, then by when their group was renewed last, and in it by when they were, as Open vSwitch has them.
    pub fn members(&self) -> Vec<Member> {
        self.table.list()
    }

    /// Ports that lead to routers, by when they were heard last.
    pub fn routers(&self) -> Vec<Router> {
        self.routers.order.iter().copied().collect()
    }

    fn settings_of(&self, port: Port) -> PortSettings {
        self.ports.get(&port).copied().unwrap_or_default()
    }
}

/// The first line of `mdb/show`.
pub const HEADING: &str = " port  VLAN  GROUP                Age\n";

/// What a line of `mdb/show` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A port is a member of a group.
    Member(Member),
    /// A port leads to a router.
    Router(Router),
}

impl Entry {
    /// The port.
    pub fn port(&self) -> Port {
        match self {
            Entry::Member(member) => member.port,
            Entry::Router(router) => router.port,
        }
    }

    /// When it was heard last; none where it is static.
    pub fn heard(&self) -> Option<Time> {
        match self {
            Entry::Member(member) => member.renewed,
            Entry::Router(router) => Some(router.heard),
        }
    }

    /// The line. `name` has the names or numbers of ports.
    pub fn show(&self, now: Time, name: impl Fn(Port) -> String) -> String {
        match self {
            Entry::Member(Member { group: Group { vlan, address }, port, renewed }) => {
                let age = renewed.map_or("static".to_owned(), |at| now.since(at).as_secs().to_string());
                format!("{:>5}  {vlan:>4}  {address}         {age:>3}", name(*port))
            }
            Entry::Router(Router { heard, vlan, port }) => {
                let age = now.since(*heard).as_secs();
                format!("{:>5}  {vlan:>4}  querier             {age:>3}", name(*port))
            }
        }
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

    /// The numbers of ports; those whose settings ask for it have been given with a minus sign.
    fn ports(ports: &[i32]) -> Destination {
        Destination::Ports(ports.iter().map(|port| (port.unsigned_abs(), why(*port))).collect())
    }

    /// Ports of these tests: 3 leads to a router, if not to a member.
    fn why(port: i32) -> Why {
        match port {
            3 => Why::Router,
            ..0 => Why::Setting,
            _ => Why::Member,
        }
    }

    fn text(snooping: &Snooping, now: u64) -> String {
        let lines = snooping.entries().into_iter().map(|entry| entry.show(Time(now * SECOND), names) + "\n");
        std::iter::once(HEADING.to_owned()).chain(lines).collect()
    }

    /// Expires what is too old. Whether the group's members or the routers have changed since the last call.
    fn run(snooping: &mut Snooping, now: Time) -> bool {
        snooping.expire(now, usize::MAX);
        !snooping.take_changes().is_empty()
    }

    #[test]
    fn members_and_routers_get_what_is_sent_to_a_group() {
        let mut snooping = Snooping::new(Settings::default());
        assert_eq!(snooping.destination(5, group(1)), Destination::Flood);
        assert_eq!(say(&mut snooping, 0, 1, host(), Body::Report(group(1))), Some(Learned::Report));
        assert!(run(&mut snooping, Time(0)) && !run(&mut snooping, Time(0)));
        assert_eq!(say(&mut snooping, 7, 3, host(), Body::Query(None)), Some(Learned::Query));
        say(&mut snooping, 8, 2, host(), Body::Report(group(1)));
        // Renewed: nothing has to be translated again.
        assert!(run(&mut snooping, Time(8 * SECOND)));
        say(&mut snooping, 9, 2, host(), Body::Report(group(1)));
        assert!(!run(&mut snooping, Time(9 * SECOND)));

        assert_eq!(snooping.destination(5, group(1)), ports(&[1, 2, 3]));
        assert_eq!(snooping.destination(6, group(1)), Destination::Flood);
        let mut entries = snooping.entries();
        entries.sort_by_key(Entry::heard);
        let mut restored = Snooping::new(Settings::default());
        restored.restore(&entries);
        assert_eq!((restored.entries(), restored.destination(5, group(1))), (snooping.entries(), ports(&[1, 2, 3])));
        assert_eq!((snooping.report_ports(5), snooping.report_ports(6)), (vec![(3, Why::Router)], vec![]));
        let wanted = " port  VLAN  GROUP                Age\n    1     5  239.0.1.1          10\n    2     5  \
                    239.0.1.1           1\n    3     5  querier               3\n";
        assert_eq!(text(&snooping, 10), wanted);

        say(&mut snooping, 10, 1, host(), Body::Leave(group(1)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[2, 3]));
        snooping.flush();
        assert_eq!(text(&snooping, 10), " port  VLAN  GROUP                Age\n");
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
        assert!(run(&mut snooping, Time(0)));
        assert_eq!(snooping.next_expiry(), Some(Time(180 * SECOND)));
        assert!(!run(&mut snooping, Time(180 * SECOND - 1)) && run(&mut snooping, Time(180 * SECOND)));
        assert_eq!(
            (snooping.destination(5, group(1)), snooping.next_expiry()),
            (ports(&[1, 2]), Some(Time(300 * SECOND)))
        );
        assert!(run(&mut snooping, Time(300 * SECOND)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[2]));
        assert!(run(&mut snooping, Time(400 * SECOND)));
        assert_eq!((snooping.destination(5, group(1)), snooping.next_expiry()), (ports(&[]), None));
    }

    #[test]
    fn settings_of_ports() {
        let mut snooping = Snooping::new(Settings { flood_unregistered: false, ..Settings::default() });
        snooping.configure_port(7, PortSettings { flood: true, flood_reports: false });
        snooping.configure_port(8, PortSettings { flood: false, flood_reports: true });
        assert_eq!(
            (snooping.destination(5, group(1)), snooping.report_ports(5)),
            (ports(&[-7]), vec![(8, Why::Setting)])
        );
        // A port that gets all multicast is neither a member nor one that leads to a router.
        say(&mut snooping, 0, 7, host(), Body::Report(group(1)));
        say(&mut snooping, 0, 7, host(), Body::Query(None));
        // Behind this one there may be other members.
        say(&mut snooping, 0, 8, host(), Body::Report(group(1)));
        say(&mut snooping, 0, 8, host(), Body::Leave(group(1)));
        assert_eq!(snooping.destination(5, group(1)), ports(&[-7, 8]));
        assert_eq!(snooping.members().len(), 1);
        snooping.forget_port(8, |vlan| vlan != 5);
        assert_eq!(snooping.members().len(), 1);
        snooping.forget_port(8, |_| true);
        assert_eq!(snooping.destination(5, group(1)), ports(&[-7]));
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
        assert!(!run(&mut snooping, Time(0)));
    }

    #[test]
    fn static_members_are_shown_and_stay() {
        let mut snooping = Snooping::new(Settings::default());
        let member = Group { vlan: 5, address: group(1) };
        assert!(snooping.add_static(member, 4));
        snooping.flush();
        run(&mut snooping, Time(u64::MAX));
        let wanted = " port  VLAN  GROUP                Age\n    4     5  239.0.1.1         static\n";
        assert_eq!(text(&snooping, 0), wanted);
        assert!(snooping.remove(&member, 4));
        assert_eq!(snooping.destination(5, group(1)), Destination::Flood);
    }

    #[test]
    fn wrong_messages_are_counted() {
        let mut snooping = Snooping::new(Settings::default());
        let mut packet = Message { src: host(), body: Body::Report(group(1)) }.emit();
        *packet.last_mut().unwrap() ^= 1;
        assert!(snooping.receive(Time(0), 5, 1, &packet).is_err());
        assert_eq!((snooping.stats().errors, snooping.members().len()), (1, 0));
    }
}
