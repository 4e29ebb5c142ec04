//! The network below tunnels, as translation sees it: by which device and to which neighbour packets for the end of a tunnel leave.
//!
//! What was found out once is kept as a [`Hop`], which never changes. Flows hold the hops that they were translated with. When routes
//! or neighbours change, the hops are found out anew; those that have come out otherwise are marked as stale, and the flows that hold
//! them, and no others, are translated again ([`ChangeSet`](crate::slowpath::change_set::ChangeSet)).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashMap;
use netstate::neighbours::Mac;
use netstate::state::NetState;
use openflow::OfPort;
use packet::Time;
use parking_lot::Mutex;

use crate::model::shared::BridgeId;

/// How many hops are kept. Flows with further ones are translated again whenever anything changes.
const MAX_HOPS: usize = 65536;

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
        self.kept.retain(|_, hop| Arc::strong_count(hop) > 1);
        if self.kept.len() > MAX_HOPS / 4 * 3 {
            self.patience = MAX_HOPS / 4;
        }
        self.kept.len() < MAX_HOPS
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
        let hop = Arc::new(Hop { route, bridge, stale: AtomicBool::new(!is_kept), used: AtomicU64::new(0) });
        if is_kept {
            hops.kept.insert(key, hop.clone());
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

    /// Finds the hops out anew if something has changed. Whether some have come out otherwise.
    pub fn refresh(&self, now: Time) -> Option<Refreshed> {
        if !self.changed.swap(false, Ordering::SeqCst) {
            return None;
        }
        let mut hops = self.hops.lock();
        let before = hops.kept.len();
        hops.patience = 0;
        hops.kept.retain(|(towards, bridge), hop| {
            // Nobody else has it.
            if Arc::strong_count(hop) == 1 {
                return false;
            }
            // A device may be of another bridge now; then its flows are translated again because of that.
            let is_same = self.find_out(towards, bridge.as_deref(), now) == hop.route;
            if !is_same {
                hop.stale.store(true, Ordering::SeqCst);
            }
            is_same
        });
        Some(Refreshed { some_are_stale: hops.kept.len() != before || before >= MAX_HOPS })
    }

    /// Lets the neighbours that packets went to lately be known for longer.
    pub fn keep_used(&self, now: Time) {
        let told = self.told.swap(now.0, Ordering::Relaxed);
        let hops = self.hops.lock();
        for hop in hops.kept.values() {
            if hop.used.load(Ordering::Relaxed) > told
                && let Some(route) = &hop.route
            {
                self.neighbour(hop.bridge.as_deref(), &route.device, route.neighbour, now);
            }
        }
    }
}

/// What has become of the hops after a change.
pub(crate) struct Refreshed {
    /// Some have come out otherwise.
    pub some_are_stale: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn towards(number: u32) -> Towards {
        Towards { mark: 0, from: None, to: IpAddr::V4(number.into()) }
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
