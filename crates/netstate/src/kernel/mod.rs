//! The kernel's routes and neighbours, followed by rtnetlink(7).
//!
//! ```text
//! kernel ──events: links, addresses, routes──▶ Events ─┐                        ┌▶ Routes
//!    ├─────events: neighbours────────────────▶ Events ─┼▶ message ▶ KnownKernel ┤
//!    └─────dumps, at the start and when events are lost┘                        └▶ Neighbours
//! ```
//!
//! - `devices`: names and addresses of devices
//! - `message`: messages as changes
//! - `neighbours`: the kernel's neighbours
//! - `routes`: the kernel's routes, and which of them count
//!
//! What is known of the kernel is kept beside what is told of it, by the kernel's own numbers: devices are renamed, and what cannot be
//! used now is of use when another message has come. A round ([`Follower::round`]) takes over the events that wait, up to a number, and
//! then tells what of it makes a difference: however often something changes between two rounds, it is told once.
//!
//! Neighbours have a socket of their own, so that a flood of them costs no news of routes.
//!
//! Everything is bounded: the sockets' buffers, devices' addresses, routes, neighbours. What is said of a thousand things takes the time of
//! a thousand; that devices or addresses change is looked up in all routes once a round.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink::{Event, Events, Requests};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, neighbour, route};
use weir_time::Time;

use crate::state::NetState;

mod devices;
mod message;
mod neighbours;
mod routes;
#[cfg(test)]
mod tests;

use devices::Devices;
use message::Change;
use neighbours::KnownNeighbours;
use routes::KnownRoutes;

/// How many datagrams of a socket are taken over in a round.
const DATAGRAMS: usize = 4096;

/// How often a table is asked for again because it has changed meanwhile.
const DUMPS: usize = 3;

/// After a table could not be had as a whole, it is asked for again after this time.
const RETRY: Duration = Duration::from_secs(5);

/// The order in which things were seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Seen(u64);

/// What is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Devices with their addresses, routes, and neighbours.
    All,
    /// Devices with their addresses only.
    Addresses,
}

/// Follows the kernel, in the network namespace of the thread that has opened it.
pub struct Follower {
    scope: Scope,
    events: Events,
    neighbour_events: Option<Events>,
    requests: Requests,
    kernel: KnownKernel,
    /// When what is stale is asked for, if not at once.
    retry: Option<Instant>,
}

/// How a round went.
#[derive(Debug)]
pub struct Round {
    /// Whether something has changed of what is told.
    pub has_changed: bool,
    /// Whether what had to be asked for could be.
    pub outcome: io::Result<()>,
}

impl Follower {
    /// Begins to listen. The first round finds out what there is.
    pub fn open(scope: Scope) -> io::Result<Follower> {
        let addresses = [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        let routes = [libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV6_ROUTE, libc::RTNLGRP_NEXTHOP];
        let (events, neighbour_events) = match scope {
            Scope::All => (Events::open(&[addresses, routes].concat())?, Some(Events::open(&[libc::RTNLGRP_NEIGH])?)),
            Scope::Addresses => (Events::open(&addresses)?, None),
        };
        let mut kernel = KnownKernel::default();
        kernel.routes.is_stale = scope == Scope::All;
        (kernel.devices_stale, kernel.neighbours.is_stale) = (true, scope == Scope::All);
        Ok(Follower { scope, events, neighbour_events, requests: Requests::open()?, kernel, retry: None })
    }

    /// What is readable when something has changed.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.events), self.neighbour_events.as_ref()].into_iter().flatten().map(|events| events.as_fd())
    }

    /// How long to wait for events at most, because something has to be asked for again.
    pub fn patience(&self) -> Option<Duration> {
        self.retry.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Takes over what has happened, and tells it. The addresses of some devices are told by others.
    pub fn round(&mut self, state: &NetState, now: Time, is_told_by_others: impl Fn(&str) -> bool) -> Round {
        let generations = |state: &NetState| (state.routes.read().generation(), state.neighbours.lock().generation());
        let before = generations(state);
        self.read_events();
        self.kernel.follow();
        let mut outcome = Ok(());
        // After an overflow, first all has to be taken that waits: other rounds do that.
        let is_behind = self.events.is_behind() || self.neighbour_events.as_ref().is_some_and(Events::is_behind);
        for _ in 0..DUMPS {
            let is_due = self.retry.is_none_or(|at| at <= Instant::now());
            if !self.kernel.is_stale() || !is_due || is_behind {
                break;
            }
            outcome = self.ask();
            self.retry = self.kernel.is_stale().then(|| Instant::now() + RETRY);
            // From what is found now it may follow that something has to be asked for again.
            self.kernel.follow();
        }
        if self.kernel.is_stale() && self.retry.is_none() {
            self.retry = Some(Instant::now());
        }
        self.kernel.tell(state, now, is_told_by_others);
        Round { has_changed: generations(state) != before, outcome }
    }

    fn read_events(&mut self) {
        let kernel = &mut self.kernel;
        // Neighbours first: what they say of a device that has gone was said before.
        if let Some(events) = &mut self.neighbour_events {
            let mut take = |event: Event<'_>| match event {
                Event::Message(message) => kernel.event(message.message_type(), message.flags(), message.payload()),
                Event::Overflow => kernel.neighbours.is_stale = true,
            };
            (0..DATAGRAMS).take_while(|_| events.next(&mut take)).for_each(drop);
        }
        let (events, all) = (&mut self.events, self.scope == Scope::All);
        let mut take = |event: Event<'_>| match event {
            Event::Message(message) => kernel.event(message.message_type(), message.flags(), message.payload()),
            Event::Overflow => (kernel.devices_stale, kernel.routes.is_stale) = (true, all),
        };
        (0..DATAGRAMS).take_while(|_| events.next(&mut take)).for_each(drop);
    }

    /// Asks for what is stale.
    fn ask(&mut self) -> io::Result<()> {
        let Follower { requests, kernel, .. } = self;
        if kernel.devices_stale {
            let since = kernel.next();
            let whole = dump(requests, kernel, || vec![all_links()])?;
            let whole = dump(requests, kernel, || families(addresses_of))? && whole;
            kernel.devices_stale = !whole;
            if whole {
                let now = kernel.next();
                kernel.devices.sweep_addresses(since);
                kernel.devices.sweep(since, now);
            }
        }
        if kernel.routes.is_stale {
            let since = kernel.next();
            kernel.routes.is_stale = false;
            match dump(requests, kernel, || families(routes_of)) {
                Ok(true) => kernel.routes.sweep(since),
                other => {
                    kernel.routes.is_stale = true;
                    other?;
                }
            }
        }
        if kernel.neighbours.is_stale {
            let since = kernel.next();
            let whole = dump(requests, kernel, || families(neighbours_of))?;
            kernel.neighbours.is_stale = !whole;
            if whole {
                kernel.neighbours.sweep(since);
            }
        }
        Ok(())
    }
}

/// Asks for tables until they could be had as a whole, but not too often. Whether that was so.
fn dump(
    requests: &mut Requests,
    kernel: &mut KnownKernel,
    tables: impl Fn() -> Vec<RouteNetlinkMessage>,
) -> io::Result<bool> {
    for _ in 0..DUMPS {
        let mut whole = true;
        for table in tables() {
            whole &= requests.dump(table, |kind, body| kernel.answer(kind, body))?;
        }
        if whole {
            return Ok(true);
        }
    }
    Ok(false)
}

fn all_links() -> RouteNetlinkMessage {
    let mut links = LinkMessage::default();
    // The counters are the larger part of an answer.
    links.attributes = vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])];
    RouteNetlinkMessage::GetLink(links)
}

fn families(table: fn(AddressFamily) -> RouteNetlinkMessage) -> Vec<RouteNetlinkMessage> {
    [AddressFamily::Inet, AddressFamily::Inet6].map(table).into()
}

fn addresses_of(family: AddressFamily) -> RouteNetlinkMessage {
    let mut addresses = AddressMessage::default();
    addresses.header.family = family;
    RouteNetlinkMessage::GetAddress(addresses)
}

fn routes_of(family: AddressFamily) -> RouteNetlinkMessage {
    let mut routes = RouteMessage::default();
    routes.header = route::RouteHeader { address_family: family, ..Default::default() };
    RouteNetlinkMessage::GetRoute(routes)
}

fn neighbours_of(family: AddressFamily) -> RouteNetlinkMessage {
    let mut neighbours = NeighbourMessage::default();
    neighbours.header = neighbour::NeighbourHeader { family, ..Default::default() };
    RouteNetlinkMessage::GetNeighbour(neighbours)
}

/// What is known of the kernel.
#[derive(Debug, Default)]
struct KnownKernel {
    devices: Devices,
    routes: KnownRoutes,
    neighbours: KnownNeighbours,
    devices_stale: bool,
    /// Names of devices that are to be told anew, and devices whose neighbours are.
    names: HashSet<Box<str>>,
    renamed: HashSet<u32>,
    seen: u64,
    /// Of what there was too much: it is said once.
    full: [bool; 3],
}

impl KnownKernel {
    fn is_stale(&self) -> bool {
        self.devices_stale || self.routes.is_stale || self.neighbours.is_stale
    }

    fn next(&mut self) -> Seen {
        self.seen += 1;
        Seen(self.seen)
    }

    /// A message that the kernel has sent unasked.
    fn event(&mut self, kind: u16, flags: u16, body: &[u8]) {
        if let Some(change) = message::parse(kind, flags, body) {
            self.change(change, true);
        }
    }

    /// A part of an answer. Its flags are those of the answer.
    fn answer(&mut self, kind: u16, body: &[u8]) {
        if let Some(change) = message::parse(kind, 0, body) {
            self.change(change, false);
        }
    }

    fn change(&mut self, change: Change, is_event: bool) {
        let seen = self.next();
        let KnownKernel { devices, routes, neighbours, .. } = self;
        let (what, has_room) = match change {
            Change::Device(device) => return devices.put(device, seen),
            Change::DeviceGone(index) => return devices.remove(index, seen),
            Change::AddressGone(device, address) => return devices.remove_address(device, address),
            Change::RouteGone(route) => return routes.remove(&route),
            Change::NextHopGone(number) => return routes.remove_next_hop(number),
            Change::NeighbourGone(device, ip) => return neighbours.remove(device, ip),
            Change::Address(device, address) => (0, devices.put_address(device, address, seen)),
            Change::Route(route) => (1, routes.put(route, seen, is_event)),
            Change::RouteReplaced(route) => (1, routes.replace(route, seen)),
            Change::Neighbour(device, ip, mac) => (2, neighbours.put(device, ip, mac, seen)),
        };
        if !has_room && !std::mem::replace(&mut self.full[what], true) {
            let (what, most) = [
                ("addresses", devices::MAX_ADDRESSES),
                ("routes", routes::MAX_ROUTES),
                ("neighbours", neighbours::MAX_KERNELS),
            ][what];
            tracing::warn!("the kernel has more than {most} {what}: further ones are not known to tunnels");
        }
    }

    /// What follows for routes and neighbours from what has changed of devices.
    fn follow(&mut self) {
        let changes = std::mem::take(&mut self.devices.changes);
        self.routes.follow(&changes);
        self.neighbours.follow(&changes);
        self.names.extend(changes.names);
        self.renamed.extend(changes.renamed);
    }

    /// Tells what has changed.
    fn tell(&mut self, state: &NetState, now: Time, is_told_by_others: impl Fn(&str) -> bool) {
        let (names, renamed) = (std::mem::take(&mut self.names), std::mem::take(&mut self.renamed));
        if !names.is_empty() {
            self.devices.tell(&names, &mut state.routes.write(), is_told_by_others);
        }
        self.routes.tell(&state.routes, &self.devices);
        self.neighbours.tell(&state.neighbours, &self.devices, &renamed, now);
    }
}

/// For fuzzing: messages of a kernel that says what it likes. What is told lies within what is known.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    use crate::routes::Origin;

    let (state, mut kernel) = (NetState::default(), KnownKernel::default());
    let mut rest = bytes;
    while let Some((&[kind, flags, len], after)) = rest.split_first_chunk() {
        let (body, after) = after.split_at(after.len().min(len.into()));
        // A dump in the middle of it, of which nothing is there.
        if kind == u8::MAX {
            let now = kernel.next();
            kernel.devices.sweep_addresses(Seen(now.0 / 2));
            kernel.devices.sweep(Seen(now.0 / 2), now);
            kernel.routes.sweep(Seen(now.0 / 2));
            kernel.neighbours.sweep(Seen(now.0 / 2));
        }
        kernel.event(kind.into(), u16::from(flags) << 8, body);
        if flags & 0x80 != 0 {
            kernel.follow();
            kernel.tell(&state, Time(0), |name| name == "other");
        }
        rest = after;
    }
    kernel.follow();
    kernel.tell(&state, Time(0), |name| name == "other");
    let routes = state.routes.read();
    assert!(routes.iter().count() <= kernel.routes.count() && routes.iter().all(|route| route.origin != Origin::User));
    assert!(state.neighbours.lock().len() <= kernel.neighbours.count());
    assert!(routes.addresses("other").is_empty());
}
