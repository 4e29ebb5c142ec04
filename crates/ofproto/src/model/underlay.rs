//! The network below tunnels, as translation sees it: by which device and to which neighbour packets for the end of a tunnel leave.
//!
//! What was found out once is kept as a [`Hop`], which never changes. Flows hold the hops that they were translated with. When routes
//! or neighbours change, the hops are found out anew; those that have come out otherwise are marked as stale, and the flows that hold
//! them, and no others, are translated again ([`ChangeSet`](crate::slowpath::change_set::ChangeSet)).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use netstate::neighbours::Mac;
use netstate::state::NetState;
use openflow::OfPort;
use packet::Time;
use parking_lot::Mutex;

use crate::model::shared::BridgeId;

/// How many hops are kept. Flows with further ones are translated again whenever anything changes.
const MAX_HOPS: usize = 65536;

/// Between two looks at hops are so many times as long as the first one took, but no longer than [`LONGEST_REST`], unless that was longer
/// itself: a routing protocol may change routes without end, of which any can be about any hop.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);

/// How many hops are taken out while the lock is held.
const PORTION: usize = 1024;

/// What a hop is found by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Towards {
    /// The packet's mark.
    pub mark: u32,
    /// The address that it is sent from, where that is given.
    pub from: Option<IpAddr>,
    /// The other end of the tunnel.
    pub to: IpAddr,
}

/// What is asked, and the bridge that the device is a port of.
type HopKey = (Towards, Option<Box<str>>);

/// A route to the other end of a tunnel, and the neighbour on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The device by which packets leave.
    pub device: Box<str>,
    /// The own address.
    pub source: IpAddr,
    /// The neighbour: a gateway, or the other end itself.
    pub neighbour: IpAddr,
    /// The neighbour's address, if it is known.
    pub mac: Option<Mac>,
    /// The lowest and the highest UDP source port.
    pub source_ports: (u16, u16),
}

/// How the other end of a tunnel is reached.
#[derive(Debug)]
pub(crate) struct Hop {
    /// `None` where there is no route.
    pub route: Option<Route>,
    towards: Towards,
    /// The bridge that neighbours are known by, beside the device.
    bridge: Option<Box<str>>,
    stale: AtomicBool,
    /// When a packet took it last.
    used: AtomicU64,
}

impl Hop {
    /// Whether it would come out otherwise now.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::SeqCst)
    }

    /// Notes that packets took it, the last at this time.
    pub fn note_use(&self, used: Time) {
        self.used.fetch_max(used.0, Ordering::Relaxed);
    }
}

/// A neighbour whose address is not known, and who asks for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Question {
    /// The bridge of the underlay.
    pub bridge: BridgeId,
    /// Its name.
    pub name: Box<str>,
    /// The device that has the route.
    pub device: Box<str>,
    /// That device as the bridge's port: the question comes from there.
    pub port: OfPort,
    /// Its MAC address.
    pub mac: Mac,
    /// Its IP address.
    pub source: IpAddr,
    /// The neighbour.
    pub neighbour: IpAddr,
}

/// The hops that are kept.
#[derive(Default)]
struct Hops {
    kept: HashMap<HopKey, Arc<Hop>>,
    /// The same by the neighbour on the way.
    by_neighbour: HashMap<IpAddr, HashSet<HopKey>>,
    /// How many more are not kept before those are looked for again that no flow holds.
    patience: usize,
}

impl Hops {
    /// Whether one more can be kept. Those that no flow holds make room; where that gains little, it is not tried again
    /// before as many have asked as it takes to pay for it.
    fn has_room(&mut self) -> bool {
        if self.kept.len() < MAX_HOPS {
            return true;
        }
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        self.sweep();
        if self.kept.len() > MAX_HOPS / 4 * 3 {
            self.patience = MAX_HOPS / 4;
        }
        self.kept.len() < MAX_HOPS
    }

    fn insert(&mut self, key: HopKey, hop: Arc<Hop>) {
        if let Some(route) = &hop.route {
            self.by_neighbour.entry(route.neighbour).or_default().insert(key.clone());
        }
        self.kept.insert(key, hop);
    }

    fn remove(&mut self, hop: &Hop) {
        let key = (hop.towards.clone(), hop.bridge.clone());
        self.kept.remove(&key);
        if let Some(route) = &hop.route
            && let Some(of_neighbour) = self.by_neighbour.get_mut(&route.neighbour)
        {
            of_neighbour.remove(&key);
            if of_neighbour.is_empty() {
                self.by_neighbour.remove(&route.neighbour);
            }
        }
    }

    /// Takes out those that nobody else has.
    fn sweep(&mut self) {
        let free = |hop: &&Arc<Hop>| Arc::strong_count(hop) == 1;
        let free: Vec<Arc<Hop>> = self.kept.values().filter(free).cloned().collect();
        free.iter().for_each(|hop| self.remove(hop));
    }

    /// Those that a change of these neighbours can be about, or any change; without those that nobody else has, where all are looked at.
    fn concerned(&mut self, neighbours: Option<&std::collections::HashSet<IpAddr>>) -> Vec<Arc<Hop>> {
        let Some(neighbours) = neighbours else {
            self.sweep();
            return self.kept.values().cloned().collect();
        };
        let keys = neighbours.iter().filter_map(|ip| self.by_neighbour.get(ip)).flatten();
        keys.filter_map(|key| self.kept.get(key)).cloned().collect()
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Underlay {
    /// Routes and neighbours.
    pub netstate: Arc<NetState>,
    hops: Mutex<Hops>,
    /// Routes or neighbours have changed since the last call of `refresh`.
    changed: AtomicBool,
    /// The generation of the routes, and the range of source ports, with which the hops were found out last.
    routes_seen: Mutex<(u64, (u16, u16))>,
    /// When hops may be looked at again.
    rested: Mutex<Time>,
    /// Until when uses of neighbours have been told.
    told: AtomicU64,
}

impl Underlay {
    /// How packets reach the end of a tunnel. `bridge_of` names the bridge that a device is a port of.
    pub fn hop(&self, towards: &Towards, bridge_of: impl FnOnce(&str) -> Option<String>, now: Time) -> Arc<Hop> {
        let device = self.route(towards).map(|route| route.device);
        let bridge = device.and_then(|device| bridge_of(&device)).map(String::into_boxed_str);
        let mut hops = self.hops.lock();
        let key = (towards.clone(), bridge);
        if let Some(hop) = hops.kept.get(&key) {
            return hop.clone();
        }
        let is_kept = hops.has_room();
        let route = self.find_out(towards, key.1.as_deref(), now);
        let bridge = key.1.clone();
        let (stale, used) = (AtomicBool::new(!is_kept), AtomicU64::new(0));
        let hop = Arc::new(Hop { route, towards: towards.clone(), bridge, stale, used });
        if is_kept {
            hops.insert(key, hop.clone());
        }
        hop
    }

    fn route(&self, towards: &Towards) -> Option<Route> {
        let routes = self.netstate.routes.read();
        let route = match towards.from {
            Some(from) => routes.find_from(towards.mark, from, towards.to)?,
            None => routes.find(towards.mark, towards.to)?,
        };
        Some(Route {
            device: route.device.clone(),
            source: towards.from.unwrap_or(route.source),
            neighbour: route.gateway.unwrap_or(towards.to),
            mac: None,
            source_ports: *self.netstate.source_ports.lock(),
        })
    }

    fn find_out(&self, towards: &Towards, bridge: Option<&str>, now: Time) -> Option<Route> {
        let mut route = self.route(towards)?;
        let neighbours = self.netstate.neighbours.lock();
        let look = |name: &str| neighbours.look(name, route.neighbour, now);
        route.mac = bridge.and_then(look).or_else(|| look(&route.device));
        Some(route)
    }

    /// The address of a neighbour, which counts as used. It is known by its bridge, or by the device of the kernel.
    pub fn neighbour(&self, bridge: Option<&str>, device: &str, ip: IpAddr, now: Time) -> Option<Mac> {
        let mut neighbours = self.netstate.neighbours.lock();
        let of_bridge = bridge.and_then(|bridge| neighbours.find(bridge, ip, now));
        of_bridge.or_else(|| neighbours.find(device, ip, now))
    }

    /// Says that routes or neighbours have changed.
    pub fn set_changed(&self) {
        self.changed.store(true, Ordering::SeqCst);
    }

    /// When hops are to be looked at again because something has changed; `None` where nothing has.
    pub fn next_refresh(&self, now: Time) -> Option<Time> {
        self.changed.load(Ordering::SeqCst).then(|| now.max(*self.rested.lock()))
    }

    /// Has nobody look at hops for a while, after it took so long.
    pub fn rest(&self, ended: Time, took: Duration) {
        *self.rested.lock() = ended + (took * REST).min(LONGEST_REST).max(took);
    }

    /// Finds the hops out anew that what has changed can be about, if something has. Whether some have come out otherwise.
    ///
    /// Translations wait for the lock of the hops, so it is not held while any of them is found out.
    pub fn refresh(&self, now: Time) -> Option<Refreshed> {
        if !self.changed.swap(false, Ordering::SeqCst) {
            return None;
        }
        // What changes after this is said again. Hops that are new after this are found out with what has changed until now.
        let neighbours = self.netstate.neighbours.lock().take_changed();
        let routes = (self.netstate.routes.read().generation(), *self.netstate.source_ports.lock());
        let same_routes = std::mem::replace(&mut *self.routes_seen.lock(), routes) == routes;
        let neighbours = neighbours.filter(|_| same_routes);
        let (concerned, is_full): (Vec<Arc<Hop>>, bool) = {
            let mut hops = self.hops.lock();
            hops.patience = 0;
            let is_full = hops.kept.len() >= MAX_HOPS;
            (hops.concerned(neighbours.as_ref()), is_full)
        };
        // A device may be of another bridge now; then its flows are translated again because of that.
        let is_stale = |hop: &Arc<Hop>| self.find_out(&hop.towards, hop.bridge.as_deref(), now) != hop.route;
        let looked_at = concerned.len();
        let stale: Vec<Arc<Hop>> = concerned.into_iter().filter(is_stale).collect();
        for portion in stale.chunks(PORTION) {
            let mut hops = self.hops.lock();
            for hop in portion {
                hop.stale.store(true, Ordering::SeqCst);
                hops.remove(hop);
            }
        }
        Some(Refreshed { looked_at, some_are_stale: !stale.is_empty() || is_full })
    }

    /// Lets the neighbours that packets went to lately be known for longer.
    pub fn keep_used(&self, now: Time) {
        let told = self.told.swap(now.0, Ordering::Relaxed);
        let is_used = |hop: &&Arc<Hop>| hop.used.load(Ordering::Relaxed) > told;
        let used: Vec<Arc<Hop>> = self.hops.lock().kept.values().filter(is_used).cloned().collect();
        for hop in used {
            if let Some(route) = &hop.route {
                self.neighbour(hop.bridge.as_deref(), &route.device, route.neighbour, now);
            }
        }
    }
}

/// What has become of the hops after a change.
pub(crate) struct Refreshed {
    /// How many were found out anew.
    pub looked_at: usize,
    /// Some have come out otherwise.
    pub some_are_stale: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use netstate::neighbours::Told;
    use netstate::routes::Origin;

    use super::*;

    fn towards(number: u32) -> Towards {
        Towards { mark: 0, from: None, to: IpAddr::V4(number.into()) }
    }

    /// A route by a gateway, and the neighbours that are known.
    fn connected() -> Underlay {
        let underlay = Underlay::default();
        let mut routes = underlay.netstate.routes.write();
        routes.set_addresses("br-phy", vec![([192, 0, 2, 1].into(), 24)]);
        let gateway = Some([192, 0, 2, 254].into());
        routes.add(0, "0.0.0.0/0".parse().unwrap(), "br-phy", gateway, Origin::User).unwrap();
        drop(routes);
        hear(&underlay, 254, 1);
        underlay.refresh(Time(0));
        underlay
    }

    fn hear(underlay: &Underlay, last: u8, mac: u8) {
        let ip = [192, 0, 2, last].into();
        underlay.netstate.neighbours.lock().set("br-phy", ip, [mac; 6], Told::Heard, Time(0));
        underlay.set_changed();
    }

    #[test]
    fn hops_are_stale_by_what_they_depend_on() {
        let underlay = connected();
        let (there, none) = (underlay.hop(&towards(7), |_| None, Time(0)), || Towards { mark: 1, ..towards(7) });
        let nowhere = underlay.hop(&none(), |_| None, Time(0));
        let stale = |underlay: &Underlay| underlay.refresh(Time(0)).is_some_and(|refreshed| refreshed.some_are_stale);
        // A neighbour that is on nobody's way.
        hear(&underlay, 9, 1);
        assert!(underlay.hops.lock().concerned(Some(&[[192, 0, 2, 9].into()].into())).is_empty());
        assert!(!stale(&underlay) && !there.is_stale());
        hear(&underlay, 254, 2);
        assert!(stale(&underlay) && there.is_stale() && !nowhere.is_stale());
        let there = underlay.hop(&towards(7), |_| None, Time(0));
        assert_eq!(there.route.as_ref().unwrap().mac, Some([2; 6]));
        let gateway = Some([192, 0, 2, 253].into());
        let to = "0.0.0.0/0".parse().unwrap();
        underlay.netstate.routes.write().add(1, to, "br-phy", gateway, Origin::User).unwrap();
        underlay.set_changed();
        // With it, what nobody holds goes.
        drop(underlay.hop(&towards(8), |_| None, Time(0)));
        assert!(stale(&underlay) && nowhere.is_stale() && !there.is_stale());
        let hops = underlay.hops.lock();
        assert_eq!((hops.kept.len(), hops.by_neighbour.len()), (1, 1));
        drop(hops);
        *underlay.netstate.source_ports.lock() = (40_000, 40_010);
        underlay.set_changed();
        assert!(stale(&underlay) && there.is_stale());
        assert!(underlay.refresh(Time(0)).is_none());
    }

    #[test]
    fn translations_do_not_wait_while_hops_are_found_out() {
        let underlay = Arc::new(connected());
        let there = underlay.hop(&towards(7), |_| None, Time(0));
        hear(&underlay, 254, 2);
        // Whoever finds out waits for the neighbours.
        let neighbours = underlay.netstate.neighbours.lock();
        let refreshes = std::thread::spawn({
            let underlay = underlay.clone();
            move || underlay.refresh(Time(0)).is_some()
        });
        while underlay.changed.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let (done, is_done) = mpsc::channel();
        std::thread::spawn({
            let underlay = underlay.clone();
            move || done.send(underlay.hop(&towards(7), |_| None, Time(0)))
        });
        let found = is_done.recv_timeout(Duration::from_secs(60)).expect("a hop that is known is not found");
        assert!(Arc::ptr_eq(&found, &there));
        drop(neighbours);
        assert!(refreshes.join().unwrap() && there.is_stale());
    }

    #[test]
    fn hops_are_looked_at_now_and_then_while_routes_change_without_end() {
        let underlay = connected();
        let millis = |millis| Time(0) + Duration::from_millis(millis);
        for (took, next) in [(20, 200), (500, 1500), (3000, 6000)] {
            underlay.set_changed();
            underlay.rest(millis(took), Duration::from_millis(took));
            assert_eq!(underlay.next_refresh(millis(took)), Some(millis(next)), "after {took} ms");
            assert_eq!(underlay.next_refresh(millis(9000)), Some(millis(9000)));
        }
        underlay.refresh(millis(9000));
        assert_eq!(underlay.next_refresh(millis(9000)), None);
    }

    #[test]
    fn hops_that_flows_hold_are_not_looked_through_for_each_one_that_finds_no_room() {
        let underlay = Underlay::default();
        let hop = |number: usize| underlay.hop(&towards(number as u32), |_| None, Time(0));
        let mut held: Vec<_> = (0..MAX_HOPS).map(hop).collect();
        assert!(held.iter().all(|hop| !hop.is_stale()) && Arc::ptr_eq(&held[7], &hop(7)));
        assert!(hop(MAX_HOPS).is_stale(), "no room: translated again after every change");
        held.truncate(MAX_HOPS / 2);
        // Now there would be room, for whoever looks.
        for number in 1..=MAX_HOPS / 4 {
            assert!(hop(MAX_HOPS + number).is_stale());
        }
        assert!(!hop(0).is_stale() && !hop(2 * MAX_HOPS).is_stale());
        assert_eq!(underlay.hops.lock().kept.len(), MAX_HOPS / 2 + 1);
        assert_eq!(underlay.hops.lock().patience, 0);
    }
}
