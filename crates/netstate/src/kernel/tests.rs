//! A kernel that says what the tests want, and the one there is.

use std::net::IpAddr;

use super::message::{Device, Hop, Route};
use super::*;
use crate::routes::Origin;

/// A kernel with what it has told.
#[derive(Default)]
struct Model {
    state: NetState,
    kernel: KnownKernel,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A route of the main table: destination, device, gateway.
fn route(to: &str, device: u32, gateway: Option<&str>) -> Route {
    Route {
        mark: 0,
        prefix: to.parse().unwrap(),
        local: false,
        table: 254,
        metric: 0,
        tos: 0,
        hop: Some(Hop { device, gateway: gateway.map(ip), source: None, number: 0 }),
        multipath: false,
    }
}

impl Model {
    /// Two devices with an address each.
    fn new() -> Model {
        let mut model = Model::default();
        model.device(1, "eth1", true);
        model.device(2, "eth2", true);
        model.event(Change::Address(1, (ip("192.0.2.1"), 24)));
        model.event(Change::Address(2, (ip("198.51.100.1"), 24)));
        model.event(Change::Route(route("192.0.2.0/24", 1, None)));
        model
    }

    fn device(&mut self, index: u32, name: &str, up: bool) {
        self.event(Change::Device(Device { index, name: Some(name.into()), up }));
    }

    fn event(&mut self, change: Change) {
        self.kernel.change(change, true);
    }

    /// A round. Whether it made a difference.
    fn round(&mut self) -> bool {
        let generations = |state: &NetState| (state.routes.read().generation(), state.neighbours.lock().generation());
        let before = generations(&self.state);
        self.kernel.follow();
        self.kernel.tell(&self.state, Time(0), |name| name == "other");
        generations(&self.state) != before
    }

    /// All routes after a round: `DESTINATION DEVICE GATEWAY SOURCE`.
    fn routes(&mut self) -> Vec<String> {
        self.round();
        let routes = self.state.routes.read();
        let text = |route: &crate::routes::Route| {
            let gateway = route.gateway.map_or("-".to_owned(), |gateway| gateway.to_string());
            format!("{} {} {gateway} {}", route.prefix, route.device, route.source)
        };
        let mut all: Vec<String> = routes.iter().map(text).collect();
        all.sort();
        all
    }

    fn neighbour(&mut self, device: &str, address: &str) -> Option<u8> {
        self.round();
        self.state.neighbours.lock().find(device, ip(address), Time(0)).map(|mac| mac[5])
    }

    /// An answer to a question for all routes.
    fn dump(&mut self, all: &[Route]) {
        let since = self.kernel.next();
        self.kernel.routes.is_stale = false;
        all.iter().for_each(|route| self.kernel.change(Change::Route(route.clone()), false));
        self.kernel.routes.sweep(since);
    }
}

#[test]
fn nothing_is_told_when_nothing_has_changed() {
    let mut model = Model::new();
    assert!(model.round());
    model.device(1, "eth1", true);
    model.event(Change::Address(1, (ip("192.0.2.1"), 24)));
    model.event(Change::Route(route("192.0.2.0/24", 1, None)));
    model.event(Change::Neighbour(1, ip("192.0.2.9"), [2, 0, 0, 0, 0, 9]));
    model.event(Change::NeighbourGone(1, ip("192.0.2.9")));
    model.event(Change::Route(route("203.0.113.0/24", 1, Some("192.0.2.254"))));
    model.event(Change::RouteGone(route("203.0.113.0/24", 1, Some("192.0.2.254"))));
    model.event(Change::RouteGone(route("203.0.113.0/24", 1, Some("192.0.2.254"))));
    assert!(!model.round() && !model.kernel.is_stale());
}

#[test]
fn a_route_waits_for_its_device_and_for_a_source() {
    let mut model = Model::new();
    model.event(Change::Route(route("203.0.113.0/24", 3, Some("10.0.0.254"))));
    assert_eq!(model.routes(), ["192.0.2.0/24 eth1 - 192.0.2.1"]);
    model.device(3, "eth3", true);
    assert_eq!(model.routes().len(), 1);
    model.event(Change::Address(3, (ip("10.0.0.1"), 24)));
    assert_eq!(model.routes(), ["192.0.2.0/24 eth1 - 192.0.2.1", "203.0.113.0/24 eth3 10.0.0.254 10.0.0.1"]);
    model.event(Change::AddressGone(3, (ip("10.0.0.1"), 24)));
    assert_eq!(model.routes().len(), 1);
    model.event(Change::Address(3, (ip("10.7.7.7"), 32)));
    assert_eq!(model.routes()[1], "203.0.113.0/24 eth3 10.0.0.254 10.7.7.7", "any is better than none");
}

#[test]
fn the_source_that_the_kernel_prefers_is_taken() {
    let mut model = Model::new();
    let mut preferred = route("192.0.2.0/24", 1, None);
    preferred.hop.as_mut().unwrap().source = Some(ip("192.0.2.77"));
    model.event(Change::RouteReplaced(preferred));
    assert_eq!(model.routes(), ["192.0.2.0/24 eth1 - 192.0.2.77"]);
    model.event(Change::Address(2, (ip("192.0.2.77"), 32)));
    model.round();
    assert!(!model.kernel.is_stale());
    model.event(Change::AddressGone(2, (ip("192.0.2.77"), 32)));
    model.round();
    assert!(model.kernel.routes.is_stale, "the kernel does not tell that the route goes with it");
}

#[test]
fn of_several_routes_the_one_of_the_main_table_with_the_lowest_metric_counts() {
    let mut model = Model::new();
    let of = |table, metric, tos, gateway| Route { table, metric, tos, ..route("0.0.0.0/0", 1, Some(gateway)) };
    let ranks = [
        of(254, 10, 0, "192.0.2.10"),
        of(254, 20, 0, "192.0.2.20"),
        of(254, 0, 4, "192.0.2.30"),
        of(253, 0, 0, "192.0.2.40"),
        of(7, 0, 0, "192.0.2.50"),
        of(254 + 256, 0, 0, "192.0.2.60"),
    ];
    ranks.iter().rev().for_each(|route| model.event(Change::Route(route.clone())));
    for (n, route) in ranks.iter().enumerate() {
        assert_eq!(model.routes()[0], format!("0.0.0.0/0 eth1 192.0.2.{}0 192.0.2.1", n + 1));
        model.event(Change::RouteGone(route.clone()));
    }
    assert!(model.routes().len() == 1 && !model.kernel.is_stale());
}

#[test]
fn marks_and_local_addresses_are_kept_apart() {
    let mut model = Model::new();
    model.event(Change::Route(Route { mark: 5, ..route("192.0.2.0/24", 2, Some("198.51.100.9")) }));
    model.event(Change::Route(Route { local: true, table: 255, ..route("192.0.2.1/32", 1, None) }));
    model.round();
    let routes = model.state.routes.read();
    let found = |mark, to| routes.find(mark, ip(to)).map(|route| (&*route.device, route.origin));
    assert_eq!(found(0, "192.0.2.9"), Some(("eth1", Origin::Kernel)));
    assert_eq!(found(5, "192.0.2.9"), Some(("eth2", Origin::Kernel)));
    assert_eq!(found(0, "192.0.2.1"), Some(("eth1", Origin::Local)));
}

#[test]
fn a_route_is_replaced_also_by_none() {
    let mut model = Model::new();
    model.event(Change::RouteReplaced(route("192.0.2.0/24", 2, Some("198.51.100.9"))));
    assert_eq!(model.routes(), ["192.0.2.0/24 eth2 198.51.100.9 198.51.100.1"]);
    model.event(Change::RouteReplaced(Route { hop: None, ..route("192.0.2.0/24", 2, None) }));
    assert!(model.routes().is_empty() && !model.kernel.is_stale());
}

#[test]
fn what_is_ambiguous_is_asked_for() {
    let first = route("0.0.0.0/0", 1, Some("192.0.2.10"));
    let second = route("0.0.0.0/0", 1, Some("192.0.2.20"));
    let with = |changes: Vec<Change>| {
        let mut model = Model::new();
        model.event(Change::Route(first.clone()));
        changes.into_iter().for_each(|change| model.event(change));
        model.round();
        model
    };
    let multipath = |route: &Route| Route { multipath: true, ..route.clone() };
    let appended = with(vec![Change::Route(second.clone())]);
    let another_goes = with(vec![Change::RouteGone(second.clone())]);
    let one_of_several_goes = with(vec![Change::RouteReplaced(multipath(&first)), Change::RouteGone(first.clone())]);
    let mut down = with(Vec::new());
    down.device(1, "eth1", false);
    down.round();
    for model in [&appended, &another_goes, &one_of_several_goes, &down] {
        assert!(model.kernel.routes.is_stale);
    }
    let mut model = appended;
    model.dump(&[second.clone(), first.clone()]);
    assert_eq!(model.routes(), ["0.0.0.0/0 eth1 192.0.2.20 192.0.2.1"], "in the order in which they are told");
    model.dump(&[multipath(&first)]);
    assert!(!model.kernel.is_stale());
    model.event(Change::RouteGone(multipath(&first)));
    assert!(model.routes().is_empty() && !model.kernel.is_stale());
}

#[test]
fn routes_by_a_next_hop_that_has_gone_are_asked_for() {
    let mut model = Model::new();
    let mut by_number = route("203.0.113.0/24", 1, Some("192.0.2.254"));
    by_number.hop.as_mut().unwrap().number = 7;
    model.event(Change::Route(by_number));
    model.event(Change::NextHopGone(8));
    model.round();
    assert!(!model.kernel.is_stale());
    model.event(Change::NextHopGone(7));
    model.round();
    assert!(model.kernel.routes.is_stale);
}

#[test]
fn a_device_that_goes_takes_all_along() {
    let mut model = Model::new();
    model.event(Change::Neighbour(1, ip("192.0.2.9"), [2, 0, 0, 0, 0, 9]));
    assert_eq!((model.neighbour("eth1", "192.0.2.9"), model.routes().len()), (Some(9), 1));
    model.event(Change::DeviceGone(1));
    assert_eq!((model.neighbour("eth1", "192.0.2.9"), model.routes().len()), (None, 0));
    assert!(model.state.routes.read().addresses("eth1").is_empty());
    // One of the same number comes in the same round, with a route of its own.
    model.device(1, "eth1", true);
    model.event(Change::Address(1, (ip("192.0.2.1"), 24)));
    model.event(Change::Route(route("192.0.2.0/24", 1, None)));
    model.round();
    model.event(Change::DeviceGone(1));
    model.device(1, "eth7", true);
    model.event(Change::Address(1, (ip("10.0.0.1"), 24)));
    model.event(Change::Route(route("10.0.0.0/24", 1, None)));
    assert_eq!(model.routes(), ["10.0.0.0/24 eth7 - 10.0.0.1"]);
}

#[test]
fn names_that_are_exchanged_take_all_along() {
    let mut model = Model::new();
    model.event(Change::Neighbour(1, ip("192.0.2.9"), [2, 0, 0, 0, 0, 9]));
    model.event(Change::Neighbour(2, ip("192.0.2.9"), [2, 0, 0, 0, 0, 8]));
    assert_eq!(model.neighbour("eth1", "192.0.2.9"), Some(9));
    for (index, name) in [(1, "t"), (2, "eth1"), (1, "eth2")] {
        model.device(index, name, true);
    }
    assert_eq!(model.routes(), ["192.0.2.0/24 eth2 - 192.0.2.1"]);
    assert_eq!([1, 2].map(|n| model.neighbour(&format!("eth{n}"), "192.0.2.9")), [Some(8), Some(9)]);
    let routes = model.state.routes.read();
    assert_eq!(routes.addresses("eth1"), [(ip("198.51.100.1"), 24)]);
    assert!(routes.addresses("t").is_empty());
}

#[test]
fn neighbours_come_go_and_move() {
    let mut model = Model::new();
    model.event(Change::Neighbour(9, ip("192.0.2.9"), [2, 0, 0, 0, 0, 9]));
    model.round();
    model.device(9, "eth9", true);
    assert_eq!(model.neighbour("eth9", "192.0.2.9"), Some(9), "its device was not known then");
    model.event(Change::Neighbour(9, ip("192.0.2.9"), [2, 0, 0, 0, 0, 8]));
    assert_eq!(model.neighbour("eth9", "192.0.2.9"), Some(8));
    model.event(Change::NeighbourGone(9, ip("192.0.2.9")));
    assert_eq!(model.neighbour("eth9", "192.0.2.9"), None);
}

#[test]
fn the_order_of_addresses_is_the_kernels() {
    let mut model = Model::new();
    for last in [7, 5, 6] {
        model.event(Change::Address(1, (ip(&format!("192.0.2.{last}")), 24)));
    }
    assert_eq!(model.routes(), ["192.0.2.0/24 eth1 - 192.0.2.1"]);
    model.event(Change::AddressGone(1, (ip("192.0.2.1"), 24)));
    assert_eq!(model.routes(), ["192.0.2.0/24 eth1 - 192.0.2.7"]);
}

#[test]
fn what_an_answer_does_not_have_is_no_more() {
    let mut model = Model::new();
    model.event(Change::Neighbour(1, ip("192.0.2.9"), [2, 0, 0, 0, 0, 9]));
    model.round();
    let since = model.kernel.next();
    model.device(2, "eth2", true);
    let now = model.kernel.next();
    model.kernel.devices.sweep_addresses(since);
    model.kernel.devices.sweep(since, now);
    model.kernel.neighbours.sweep(since);
    assert!(model.routes().is_empty() && model.neighbour("eth1", "192.0.2.9").is_none());
    assert!(model.state.routes.read().addresses("eth2").is_empty());
}

#[test]
fn addresses_that_others_tell_are_left_alone() {
    let mut model = Model::new();
    model.state.routes.write().set_addresses("other", vec![(ip("10.0.0.1"), 8)]);
    model.device(7, "other", true);
    model.event(Change::Address(7, (ip("10.0.0.2"), 24)));
    model.round();
    assert_eq!(model.state.routes.read().addresses("other"), [(ip("10.0.0.1"), 8)]);
}

#[test]
fn of_many_routes_for_the_same_addresses_those_are_kept_that_count_most() {
    let mut model = Model::new();
    let of = |metric: u32| Route { metric, ..route("0.0.0.0/0", 1, Some(&format!("192.0.2.{metric}"))) };
    (1..100).rev().for_each(|metric| model.event(Change::Route(of(metric))));
    assert!(model.routes()[0].contains("192.0.2.1 ") && model.kernel.routes.count() < 40);
    model.event(Change::RouteGone(of(1)));
    assert!(model.routes()[0].contains("192.0.2.2 ") && model.kernel.routes.is_stale, "there is room for another one");
}

#[test]
fn no_more_neighbours_are_kept_than_there_is_room_for() {
    let mut model = Model::new();
    for n in 0..neighbours::MAX_KERNELS as u32 + 10 {
        model.event(Change::Neighbour(1, n.to_be_bytes().into(), [2, 0, 0, 0, 0, 9]));
    }
    model.round();
    assert_eq!(model.kernel.neighbours.count(), neighbours::MAX_KERNELS);
    assert_eq!(model.state.neighbours.lock().len(), neighbours::MAX_KERNELS);
    model.event(Change::DeviceGone(1));
    model.round();
    assert!(model.state.neighbours.lock().is_empty() && model.kernel.neighbours.count() == 0);
}

#[test]
fn this_kernel_can_be_followed() {
    for scope in [Scope::All, Scope::Addresses] {
        let (state, mut follower) = (NetState::default(), Follower::open(scope).unwrap());
        follower.round(&state, Time(0), |_| false).outcome.unwrap();
        let lo = state.routes.read().addresses("lo").to_vec();
        let routes = state.routes.read();
        let local = routes.find(0, ip("127.0.0.1")).filter(|route| route.origin == Origin::Local);
        let has_one = lo.contains(&(ip("127.0.0.1"), 8)) && scope == Scope::All;
        assert_eq!(local.is_some(), has_one, "{lo:?}");
    }
}

mod any_messages {
    use proptest::prelude::*;

    use super::super::message::tests::{attribute, route_body};

    proptest! {
        #[test]
        fn never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            super::fuzz(&bytes);
        }

        /// Messages about a few devices, prefixes and neighbours, in any order.
        #[test]
        fn leave_what_is_told_within_what_is_known(
            steps in prop::collection::vec((0u8..8, 0u8..4, 0u8..4, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut bytes = Vec::new();
            for (what, device, last, round, replaces) in steps {
                let address = [192, 0, 2, last];
                let index = u32::from(device).to_ne_bytes();
                let (kind, body) = match what {
                    0 | 1 => {
                        let mut link = [0; 16].to_vec();
                        link[4..8].copy_from_slice(&index);
                        link[8] = last & 1;
                        link.extend(attribute(libc::IFLA_IFNAME, [&b"a"[..], b"b", b"other", b""][usize::from(last)]));
                        ([libc::RTM_NEWLINK, libc::RTM_DELLINK][usize::from(what)], link)
                    }
                    2 | 3 => {
                        let mut own = [&[libc::AF_INET as u8, 24, 0, 0][..], &index].concat();
                        own.extend(attribute(libc::IFA_ADDRESS, &address));
                        ([libc::RTM_NEWADDR, libc::RTM_DELADDR][usize::from(what - 2)], own)
                    }
                    4 | 5 => {
                        let attributes = [attribute(libc::RTA_OIF, &index), attribute(libc::RTA_GATEWAY, &address)];
                        let route = route_body(1 + last / 2, 0, &attributes);
                        ([libc::RTM_NEWROUTE, libc::RTM_DELROUTE][usize::from(what - 4)], route)
                    }
                    _ => {
                        let mut known = [&[libc::AF_INET as u8, 0, 0, 0][..], &index, &[2, 0, 0, 0]].concat();
                        known.extend(attribute(libc::NDA_DST, &address));
                        known.extend(attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 0, device]));
                        ([libc::RTM_NEWNEIGH, libc::RTM_DELNEIGH][usize::from(what - 6)], known)
                    }
                };
                bytes.extend([kind as u8, u8::from(round) << 7 | u8::from(replaces), body.len() as u8]);
                bytes.extend(body);
            }
            super::fuzz(&bytes);
        }
    }
}
