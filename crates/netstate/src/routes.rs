//! Routes: by which device, and over which next hop, an address is reached, and from which own address.
//!
//! Of the routes to an address the one counts that says most: an operator's before the kernel's, those of local addresses before others,
//! and then the one with the longest prefix. A packet's mark has to be that of the route. To find a route takes at most as many steps
//! as there are lengths of prefixes in use, however many routes there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use crate::prefix::{Prefix, bits};

/// Where a route is from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// The kernel's.
    Kernel,
    /// An operator has added it.
    User,
    /// The kernel's, of an address of its own.
    Local,
}

impl Origin {
    /// By how many bits a prefix counts as longer: Open vSwitch's numbers.
    fn bonus(self) -> u16 {
        match self {
            Origin::Kernel => 0,
            Origin::User => 32,
            Origin::Local => 64,
        }
    }
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Which packets take it: those with this mark.
    pub mark: u32,
    /// Which addresses it is for.
    pub prefix: Prefix,
    /// The device.
    pub device: Box<str>,
    /// The next hop; without one, the address itself.
    pub gateway: Option<IpAddr>,
    /// The own address from which packets are sent.
    pub source: IpAddr,
    /// Where it is from.
    pub origin: Origin,
}

/// The device has no address from which the destination or the gateway can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no source address")]
pub struct NoSource;

type Class = (Origin, u8);

/// What a route is found by, and its place in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place(u32, Class, u128);

/// All routes.
#[derive(Debug, Default)]
pub struct Routes {
    routes: HashMap<Place, Route>,
    /// The same in order, for listings.
    places: BTreeSet<Place>,
    /// How many routes there are of each origin and length of prefix, the ones that count most last: with the origin again to tell
    /// classes apart that count the same.
    classes: BTreeMap<(u16, Class), usize>,
    addresses: HashMap<Box<str>, Addresses>,
    /// How many devices have an address, by the address.
    own: HashMap<IpAddr, usize>,
    generation: u64,
}

/// The addresses of a device.
#[derive(Debug)]
struct Addresses {
    /// With the length of their networks' prefixes.
    all: Vec<(IpAddr, u8)>,
    /// The first address in each network.
    first: HashMap<Prefix, IpAddr>,
    /// The lengths of these networks' prefixes.
    lengths: BTreeSet<u8>,
}

impl Addresses {
    fn new(all: Vec<(IpAddr, u8)>) -> Addresses {
        let (mut first, mut lengths) = (HashMap::new(), BTreeSet::new());
        for (own, prefix) in all.iter().filter_map(|&(own, len)| Some((own, Prefix::new(own, len)?))) {
            first.entry(prefix).or_insert(own);
            lengths.insert(prefix.mapped_len());
        }
        Addresses { all, first, lengths }
    }

    /// The first address in the smallest network that an address of the same family is in.
    fn nearest(&self, to: IpAddr) -> Option<IpAddr> {
        self.lengths.iter().rev().find_map(|&len| {
            let own = self.first.get(&Prefix::of_bits(bits(to), len))?;
            (own.is_ipv4() == to.is_ipv4()).then_some(*own)
        })
    }
}

fn class_of(place: Place) -> (u16, Class) {
    let class @ (origin, len) = place.1;
    (u16::from(len) + origin.bonus(), class)
}

/// Whether an address of IPv6 is one of a link (fe80::/10).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn place_of(mark: u32, prefix: Prefix, origin: Origin) -> Place {
    Place(mark, (origin, prefix.mapped_len()), bits(prefix.address()))
}

impl Routes {
    /// A number that is another one after each change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Sets the addresses of a device, in the order in which they are preferred. Routes that exist already keep their source.
    pub fn set_addresses(&mut self, device: &str, addresses: Vec<(IpAddr, u8)>) {
        if self.addresses(device) == addresses {
            return;
        }
        self.generation += 1;
        for (address, _) in &addresses {
            *self.own.entry(*address).or_default() += 1;
        }
        let before = match addresses.is_empty() {
            true => self.addresses.remove(device),
            false => self.addresses.insert(device.into(), Addresses::new(addresses)),
        };
        for (address, _) in before.into_iter().flat_map(|before| before.all) {
            match self.own.get_mut(&address) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.own.remove(&address)),
            }
        }
    }

    /// The addresses of a device, with the length of their networks' prefixes.
    pub fn addresses(&self, device: &str) -> &[(IpAddr, u8)] {
        self.addresses.get(device).map_or(&[], |addresses| &addresses.all)
    }

    /// The address of a device in the smallest network that an address of the same family is in: the first one of those with
    /// networks of the same size.
    pub fn source_for(&self, device: &str, to: IpAddr) -> Option<IpAddr> {
        self.addresses.get(device)?.nearest(to)
    }

    /// The own address from which packets are sent to an address over a gateway, from the nearest network: the address's or else the
    /// gateway's. Behind a gateway with a link-local address, only link-local addresses are reached from one.
    pub fn source(&self, device: &str, to: IpAddr, gateway: Option<IpAddr>) -> Option<IpAddr> {
        if let Some(source) = self.source_for(device, to) {
            return Some(source);
        }
        let gateway = gateway?;
        let global = |own: &&(IpAddr, u8)| own.0.is_ipv6() && !is_link_local(own.0);
        let global =
            self.addresses(device).iter().find(global).filter(|_| is_link_local(gateway) && !is_link_local(to));
        global.map(|(own, _)| *own).or_else(|| self.source_for(device, gateway))
    }

    /// The first address of a device from which an address of the same family can be reached, whatever their networks: what the kernel
    /// takes where it has no better one.
    pub fn any_source(&self, device: &str, to: IpAddr) -> Option<IpAddr> {
        let fits = |own: &&(IpAddr, u8)| own.0.is_ipv4() == to.is_ipv4() && is_link_local(own.0) == is_link_local(to);
        self.addresses(device).iter().find(fits).map(|(own, _)| *own)
    }

    /// Adds a route, in the place of one with the same mark, prefix and origin. Its source is chosen by its destination, or else by its
    /// gateway.
    pub fn add(
        &mut self,
        mark: u32,
        prefix: Prefix,
        device: &str,
        gateway: Option<IpAddr>,
        origin: Origin,
    ) -> Result<(), NoSource> {
        let source = self.source(device, prefix.address(), gateway).ok_or(NoSource)?;
        self.insert(Route { mark, prefix, device: device.into(), gateway, source, origin });
        Ok(())
    }

    /// Adds a route whose source is known.
    pub fn insert(&mut self, route: Route) {
        let place = place_of(route.mark, route.prefix, route.origin);
        if self.routes.get(&place) == Some(&route) {
            return;
        }
        self.generation += 1;
        if self.routes.insert(place, route).is_none() {
            self.places.insert(place);
            *self.classes.entry(class_of(place)).or_default() += 1;
        }
    }

    /// Removes a route; whether there was one.
    pub fn remove(&mut self, mark: u32, prefix: Prefix, origin: Origin) -> bool {
        let place = place_of(mark, prefix, origin);
        if self.routes.remove(&place).is_none() {
            return false;
        }
        self.generation += 1;
        self.places.remove(&place);
        let class = class_of(place);
        if let Some(count) = self.classes.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&class);
            }
        }
        true
    }

    /// The route to an address.
    pub fn find(&self, mark: u32, to: IpAddr) -> Option<&Route> {
        let to = to.to_canonical();
        self.classes.keys().rev().find_map(|(_, class)| {
            let prefix = Prefix::of_bits(bits(to), class.1);
            let route = self.routes.get(&Place(mark, *class, bits(prefix.address())))?;
            // A default route of IPv6 is none for addresses of IPv4, though these are mapped into it.
            (route.prefix.address().is_ipv4() == to.is_ipv4()).then_some(route)
        })
    }

    /// As [`find`](Routes::find), for packets that are sent from this address, which has to be local: a device's, or one with a local route.
    pub fn find_from(&self, mark: u32, from: IpAddr, to: IpAddr) -> Option<&Route> {
        let is_local = || self.find(mark, from).is_some_and(|route| route.origin == Origin::Local);
        if !self.own.contains_key(&from.to_canonical()) && !is_local() {
            return None;
        }
        self.find(mark, to)
    }

    /// The route of just this mark, prefix and origin.
    pub fn get(&self, mark: u32, prefix: Prefix, origin: Origin) -> Option<&Route> {
        self.routes.get(&place_of(mark, prefix, origin))
    }

    /// How many routes have this origin.
    pub fn count(&self, origin: Origin) -> usize {
        self.classes.iter().filter(|((_, (of, _)), _)| *of == origin).map(|(_, count)| count).sum()
    }

    /// All routes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.values()
    }

    /// The routes after a place in the order of listings, or all: those that are there all the time come once, however the routes
    /// change between two calls.
    pub fn after(&self, place: Option<Place>) -> impl Iterator<Item = (Place, &Route)> {
        let from = place.map_or(Unbounded, Excluded);
        self.places.range((from, Unbounded)).filter_map(|place| Some((*place, self.routes.get(place)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Two devices, as the kernel would tell them.
    fn routes() -> Routes {
        let mut routes = Routes::default();
        routes.set_addresses("br-phy", vec![(ip("192.0.2.1"), 24), (ip("192.0.2.130"), 25), (ip("2001:db8::1"), 64)]);
        routes.set_addresses("eth1", vec![(ip("198.51.100.1"), 24)]);
        for (to, device, gateway, origin) in [
            ("192.0.2.0/24", "br-phy", None, Origin::Kernel),
            ("192.0.2.1/32", "br-phy", None, Origin::Local),
            ("0.0.0.0/0", "eth1", Some("198.51.100.254"), Origin::Kernel),
            ("2001:db8::/64", "br-phy", None, Origin::Kernel),
        ] {
            routes.add(0, prefix(to), device, gateway.map(ip), origin).unwrap();
        }
        routes
    }

    #[test]
    fn the_longest_prefix_and_the_nearest_source_count() {
        let routes = routes();
        let found = |to: &str| routes.find(0, ip(to)).map(|route| (&*route.device, route.source, route.gateway));
        assert_eq!(found("192.0.2.7"), Some(("br-phy", ip("192.0.2.1"), None)));
        assert_eq!(found("203.0.113.7"), Some(("eth1", ip("198.51.100.1"), Some(ip("198.51.100.254")))));
        assert_eq!(found("2001:db8::9"), Some(("br-phy", ip("2001:db8::1"), None)));
        assert_eq!(found("2001:db9::9"), None, "the default route is of IPv4");
        assert_eq!(routes.find(1, ip("192.0.2.7")), None, "another mark");
        assert_eq!(found("::ffff:192.0.2.7"), found("192.0.2.7"));
        assert_eq!(routes.source_for("br-phy", ip("192.0.2.200")), Some(ip("192.0.2.130")));
        assert_eq!(routes.source_for("br-phy", ip("203.0.113.7")), None);
    }

    #[test]
    fn an_operators_routes_come_before_the_kernels() {
        let mut routes = routes();
        let before = routes.generation();
        routes.add(0, prefix("192.0.0.0/16"), "eth1", Some(ip("198.51.100.9")), Origin::User).unwrap();
        assert_ne!(routes.generation(), before);
        assert_eq!(&*routes.find(0, ip("192.0.2.7")).unwrap().device, "eth1");
        assert_eq!(&*routes.find(0, ip("192.0.2.1")).unwrap().device, "br-phy", "its own address");
        assert_eq!(routes.add(0, prefix("203.0.113.0/24"), "br-phy", None, Origin::User), Err(NoSource));
        assert!(!routes.remove(0, prefix("192.0.0.0/16"), Origin::Kernel));
        assert!(routes.remove(0, prefix("192.0.0.0/16"), Origin::User));
        assert_eq!(&*routes.find(0, ip("192.0.2.7")).unwrap().device, "br-phy");
        assert!(routes.remove(0, prefix("192.0.2.0/24"), Origin::Kernel));
        assert_eq!(routes.find(0, ip("192.0.2.7")).map(|route| &*route.device), Some("eth1"), "the default route");
    }

    #[test]
    fn the_default_route_of_ipv6_is_none_for_ipv4() {
        let mut routes = Routes::default();
        routes.set_addresses("eth1", vec![(ip("2001:db8::1"), 64)]);
        routes.add(0, prefix("::/0"), "eth1", Some(ip("2001:db8::fe")), Origin::Kernel).unwrap();
        assert!(routes.find(0, ip("2001:db9::9")).is_some());
        assert_eq!(routes.find(0, ip("192.0.2.7")), None);
    }

    #[test]
    fn what_is_as_it_was_is_no_change() {
        let mut routes = routes();
        let before = routes.generation();
        routes.add(0, prefix("192.0.2.0/24"), "br-phy", None, Origin::Kernel).unwrap();
        routes.set_addresses("eth1", vec![(ip("198.51.100.1"), 24)]);
        routes.set_addresses("eth2", Vec::new());
        assert!(!routes.remove(0, prefix("192.0.2.0/25"), Origin::Kernel));
        assert_eq!(routes.generation(), before);
        routes.set_addresses("eth1", vec![(ip("198.51.100.1"), 25)]);
        assert_ne!(routes.generation(), before);
    }

    #[test]
    fn a_listing_goes_on_where_it_was() {
        let mut routes = routes();
        let (mut place, mut seen) = (None, Vec::new());
        loop {
            let next = routes.after(place).next().map(|(place, route)| (place, route.prefix));
            let Some((at, prefix)) = next else { break };
            place = Some(at);
            seen.push(prefix.to_string());
            routes.remove(0, prefix, Origin::Local);
        }
        seen.sort();
        assert_eq!(seen, ["0.0.0.0/0", "192.0.2.0/24", "192.0.2.1/32", "2001:db8::/64"]);
    }

    #[test]
    fn a_gateway_of_the_link_is_no_reason_for_a_source_of_the_link() {
        let mut routes = Routes::default();
        routes.set_addresses("eth1", vec![(ip("fe80::1"), 64)]);
        let source = |routes: &Routes, to: &str| routes.source("eth1", ip(to), Some(ip("fe80::fe")));
        assert_eq!(source(&routes, "2001:db9::"), Some(ip("fe80::1")), "there is no other");
        routes.set_addresses("eth1", vec![(ip("192.0.2.1"), 24), (ip("fe80::1"), 64), (ip("2001:db8::1"), 64)]);
        assert_eq!(source(&routes, "2001:db9::"), Some(ip("2001:db8::1")));
        assert_eq!(source(&routes, "fe80::9"), Some(ip("fe80::1")));
        assert_eq!(routes.source("eth1", ip("2001:db9::"), Some(ip("2001:db9::1"))), None);
        let any = ["2001:db9::", "fe80::9", "203.0.113.1"].map(|to| routes.any_source("eth1", ip(to)));
        assert_eq!(any, [Some(ip("2001:db8::1")), Some(ip("fe80::1")), Some(ip("192.0.2.1"))]);
        assert_eq!(routes.any_source("eth2", ip("2001:db9::")), None);
    }

    #[test]
    fn packets_are_sent_from_local_addresses_only() {
        let routes = routes();
        assert!(routes.find_from(0, ip("192.0.2.1"), ip("192.0.2.7")).is_some());
        assert!(routes.find_from(0, ip("192.0.2.9"), ip("192.0.2.7")).is_none());
    }

    #[test]
    fn an_address_of_a_device_is_local_whatever_routes_there_are_to_it() {
        let mut routes = routes();
        routes.add(0, prefix("198.51.100.0/24"), "eth1", None, Origin::User).unwrap();
        let from = |routes: &Routes, own: &str| routes.find_from(0, ip(own), ip("192.0.2.7")).is_some();
        assert!(
            from(&routes, "198.51.100.1") && from(&routes, "::ffff:198.51.100.1") && !from(&routes, "198.51.100.2")
        );
        // Two devices may have it.
        routes.set_addresses("eth2", vec![(ip("198.51.100.1"), 24), (ip("198.51.100.1"), 25)]);
        routes.set_addresses("eth1", vec![(ip("198.51.100.3"), 24)]);
        assert!(from(&routes, "198.51.100.1") && from(&routes, "198.51.100.3"));
        routes.set_addresses("eth2", Vec::new());
        assert!(!from(&routes, "198.51.100.1") && from(&routes, "198.51.100.3"));
        assert_eq!(routes.own.len(), 4);
    }

    proptest! {
        #[test]
        fn the_source_is_what_a_look_at_all_addresses_finds(
            own in prop::collection::vec((any::<u8>(), 24u8..33), 0..12),
            to: u8,
        ) {
            let near = |last: u8| IpAddr::from([192, 0, 2, last]);
            let all: Vec<_> = own.iter().map(|&(last, len)| (near(last), len)).collect();
            let mut routes = Routes::default();
            routes.set_addresses("eth1", all.clone());
            let in_network = all.iter().filter(|(own, len)| Prefix::new(*own, *len).unwrap().contains(near(to)));
            let best = in_network.rev().max_by_key(|(_, len)| *len).map(|(own, _)| *own);
            prop_assert_eq!(routes.source_for("eth1", near(to)), best);
        }

        /// Whatever was added and removed: what is found is what a look at all routes finds.
        #[test]
        fn finds_what_a_look_at_all_finds(
            steps in prop::collection::vec((0u32..2, any::<u32>(), 0u8..33, 0u8..3, any::<bool>()), 0..60),
            to: u32,
        ) {
            let near = |bits: u32| IpAddr::from((bits & 0x8000_4003).to_be_bytes());
            let (mut routes, mut all) = (Routes::default(), Vec::<Route>::new());
            for (n, (mark, bits, len, origin, remove)) in steps.into_iter().enumerate() {
                let prefix = Prefix::new(near(bits), len).unwrap();
                let origin = [Origin::Kernel, Origin::User, Origin::Local][usize::from(origin)];
                let same = |route: &Route| (route.mark, route.prefix, route.origin) == (mark, prefix, origin);
                let had = all.iter().any(same);
                all.retain(|route| !same(route));
                if remove {
                    prop_assert_eq!(routes.remove(mark, prefix, origin), had);
                } else {
                    let (device, source) = (n.to_string().into(), near(0));
                    let route = Route { mark, prefix, device, gateway: None, source, origin };
                    all.push(route.clone());
                    routes.insert(route);
                }
            }
            for mark in [0, 1] {
                let fitting = all.iter().filter(|route| route.mark == mark && route.prefix.contains(near(to)));
                let best = fitting.max_by_key(|route| class_of(place_of(mark, route.prefix, route.origin)));
                prop_assert_eq!(routes.find(mark, near(to)), best);
            }
            prop_assert_eq!((routes.iter().count(), routes.after(None).count()), (all.len(), all.len()));
            let operators = all.iter().filter(|route| route.origin == Origin::User).count();
            prop_assert_eq!(routes.count(Origin::User), operators);
        }
    }
}
