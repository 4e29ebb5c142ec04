//! The ports' devices as they were seen last: a link that comes or goes, an MTU or address that somebody else has
//! changed. Controllers are told by a port-status message, the datapath takes the change over.
//!
//! What happens between two looks counts once: a device that flaps makes one change for each look.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use datapath::{Datapath, PortNo};
use ofproto::Switch;
use openflow::port::PortReason;
use parking_lot::Mutex;
use ports::Port;

/// What can change of a device without Weir's doing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DeviceStatus {
    up: bool,
    admin_up: bool,
    mtu: u32,
    mac: ports::Mac,
    gone: bool,
}

impl DeviceStatus {
    /// This with the link of another.
    fn with_link_of(self, other: &DeviceStatus) -> DeviceStatus {
        DeviceStatus { up: other.up, admin_up: other.admin_up, ..self }
    }
}

/// The devices as they were seen last. A device of the same number that is another one counts as new.
#[derive(Default)]
pub struct Links(Mutex<HashMap<PortNo, Watched>>);

/// A device, which is only remembered, and what it was like.
type Watched = (Weak<dyn Port>, DeviceStatus);

impl Links {
    /// Looks at the devices and tells of what has changed since the last look: the thread does it now and
    /// then, and whoever has made a change that is to be noticed at once. Returns whether some have gone since,
    /// whose places others may take: who asks first has to say so to the configurator.
    #[must_use]
    pub fn look(&self, switch: &Arc<Switch>, datapath: &Datapath) -> bool {
        let mut some_went = false;
        let mut seen = self.0.lock();
        let (mut now, mut different) = (HashMap::new(), Vec::new());
        for bridge in switch.bridges() {
            for info in bridge.ports() {
                let (Some(number), Some(device)) = (info.dp_port, &info.device) else { continue };
                let link = device.link();
                let (mtu, mac, gone) = (device.mtu(), device.mac(), device.is_gone());
                let status = DeviceStatus { up: link.up, admin_up: link.admin_up, mtu, mac, gone };
                let same = |old: &Weak<dyn Port>| old.as_ptr().addr() == Arc::as_ptr(device).addr();
                let before = seen.get(&number).filter(|(old, _)| same(old)).map(|(_, before)| before);
                let is_same = match before {
                    Some(before) => *before == status,
                    // It may have changed since its port was added.
                    None => match bridge.is_as_told(info.port) {
                        Some(is_same) => is_same,
                        // It is being added. The next look is the first one.
                        None => continue,
                    },
                };
                if !is_same {
                    // The port may have gone since it was listed.
                    let _ = datapath.refresh_port(number);
                    let same_but_link = |before: &DeviceStatus| before.with_link_of(&status) == status;
                    different.push((bridge.clone(), info.port, before.is_some_and(same_but_link)));
                }
                some_went |= gone && before.is_none_or(|before| !before.gone);
                now.insert(number, (Arc::downgrade(device), status));
            }
        }
        *seen = now;
        drop(seen);
        if !different.is_empty() {
            // Bonds first: packets leave by other members from then on, whoever is told later.
            switch.run_bonds();
        }
        for (bridge, port, is_link) in different {
            if is_link {
                // Few flows depend on it, and a neighbour can have it change over and over.
                bridge.link_changed(port);
            } else {
                bridge.port_changed(port, PortReason::Modify);
            }
        }
        some_went
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use datapath::Config;
    use datapath::sync::clock::ManualClock;
    use ofproto::{BridgeConfig, PortSpec, SpanningTreeConfig, SwitchSettings};
    use openflow::text::parse_flow_mod;
    use openflow::{FlowModCommand, OfPort};
    use packet::Time;
    use packet::flow::text::NoNames;
    use packet::wire::build;
    use ports::registry;
    use protocols::spanning_tree::Protocol;

    #[test]
    fn a_link_that_flaps_touches_no_flow_that_does_not_depend_on_it() {
        let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
        let datapath = Datapath::new(Config { exact_entries: 256, ..Config::default() }, clock.clone());
        let switch = Switch::new(SwitchSettings::default(), clock.clone());
        switch.attach(datapath.clone());
        let bridge = switch.add_bridge(BridgeConfig::new("br0", 1)).unwrap();
        let env = registry::Env::default();
        let ports = ["p1", "p2", "p3"].map(|name| {
            let device = registry::open(&registry::PortSpec::new(name, "dummy"), &env).unwrap();
            device.set_admin_up(true).unwrap();
            bridge.add_port(PortSpec::new(device)).unwrap();
            env.dummies.find(name).unwrap()
        });
        bridge.set_bond("p1", Default::default(), [0; 6]).unwrap();
        let rule = parse_flow_mod(FlowModCommand::Add, "in_port=2,actions=output:3", &NoNames).unwrap();
        bridge.flow_mod(&rule).unwrap();
        let links = Links::default();
        assert!(!links.look(&switch, &datapath));
        assert!(ports[1].inject(&build::ethernet([2; 6], [4; 6], &[], 0x1234, &[0; 46])));
        while datapath.poll() > 0 {}
        datapath.poll();
        assert_eq!((datapath.flow_count(), ports[2].take_sent().len()), (1, 1));
        switch.revalidate();
        let translated = switch.revalidation_stats().translated;
        for up in [false, true] {
            ports[0].set_carrier(up);
            assert_eq!(bridge.is_as_told(OfPort(1)), Some(false));
            assert!(!links.look(&switch, &datapath));
            assert_eq!(bridge.is_as_told(OfPort(1)), Some(true));
            switch.revalidate();
        }
        assert_eq!(switch.revalidation_stats().translated, translated);
    }

    /// As with a device that is made, added by its name at once, and set up then.
    #[test]
    fn a_link_that_comes_before_the_first_look_is_noticed() {
        let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
        let datapath = Datapath::new(Config { exact_entries: 256, ..Config::default() }, clock.clone());
        let switch = Switch::new(SwitchSettings::default(), clock.clone());
        switch.attach(datapath.clone());
        let spanning_tree = SpanningTreeConfig { protocol: Protocol::Rstp, ..SpanningTreeConfig::default() };
        let bridge = switch.add_bridge(BridgeConfig { spanning_tree, ..BridgeConfig::new("br0", 1) }).unwrap();
        let device = registry::open(&registry::PortSpec::new("p1", "dummy"), &registry::Env::default()).unwrap();
        device.set_admin_up(false).unwrap();
        let port = bridge.add_port(PortSpec::new(device.clone())).unwrap();
        switch.run_due_spanning_trees();
        assert_eq!(bridge.is_as_told(port), Some(true));
        device.set_admin_up(true).unwrap();
        assert_eq!(bridge.is_as_told(port), Some(false));
        let links = Links::default();
        (0..3).for_each(|_| assert!(!links.look(&switch, &datapath)));
        assert_eq!(bridge.is_as_told(port), Some(true));
        // The spanning tree has seen it, too: the port has no neighbour, and forwards in the end.
        for _ in 0..60 {
            switch.run_due_spanning_trees();
            clock.advance(Duration::from_secs(1));
        }
        let state = bridge.tree_port_status(port);
        assert!(format!("{state:?}").contains("Forwarding"), "{state:?}");
    }
}
