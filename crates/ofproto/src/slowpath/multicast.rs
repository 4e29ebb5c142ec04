//! Multicast groups: messages of membership are learnt from, and the flows of the groups that have changed follow.
//!
//! A message goes up as a packet that is translated for itself ([`Punt::Slow`](datapath::Punt::Slow)), within its port's share of the
//! slow path. The translation says where it was heard, and the payload says of which groups. Whoever changes the table of groups
//! marks the flows that depend on them, as with addresses (`mac_changes`): there is no round over all flows.

use packet::flow::{Layers, extract};
use packet::{Key, Time};
use protocols::mcast::Snooping;

use crate::model::forwarding::{BridgeId, BridgeState, Forwarding};
use crate::switch::Switch;
use crate::xlate::Heard;

/// So many memberships, and as many routers, expire before others get the locks of the tables.
const AT_ONCE: usize = 1024;

impl Switch {
    /// Changes what a bridge has learnt of groups, and marks the flows that depend on what has changed.
    pub(crate) fn change_groups(&self, bridge: &BridgeState, change: impl FnOnce(&mut Snooping)) {
        let changes = bridge.multicast.change(change);
        if !changes.is_empty() && self.mac_dependents.mark_groups(bridge.id, &changes) {
            self.notify();
        }
    }

    /// Learns from a frame, where a translation has heard it as a message of membership.
    pub(crate) fn hear(&self, forwarding: &Forwarding, heard: &[Heard], frame: &[u8], now: Time) {
        if heard.is_empty() {
            return;
        }
        let layers = extract(frame, &mut Key::new(), self.settings().vlan_limit);
        // Without a whole header of IP nothing is said.
        let Some(packet) = (layers.l3 != Layers::NONE).then(|| frame.get(usize::from(layers.l3)..)).flatten() else {
            return;
        };
        for Heard { bridge, vlan, port } in heard {
            let Some(bridge) = forwarding.bridges.get(bridge) else { continue };
            self.change_groups(bridge, |snooping| {
                if let Err(error) = snooping.receive(now, *vlan, *port, packet) {
                    let name = &bridge.config.name;
                    tracing::debug!(target: "mcast", "bridge {name}, port {port}, VLAN {vlan}: ignored a message: {error}");
                }
            });
        }
    }

    /// Ends memberships that were not renewed in time, so that others get the locks in between.
    pub(super) fn expire_groups(&self, id: BridgeId, now: Time) {
        let mut is_more = true;
        while is_more {
            let forwarding = self.forwarding.read();
            let Some(bridge) = forwarding.bridges.get(&id) else { return };
            let next = bridge.multicast.read(Snooping::next_expiry).flatten();
            is_more = false;
            if next.is_some_and(|at| at <= now) {
                self.change_groups(bridge, |snooping| is_more = snooping.expire(now, AT_ONCE) > 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, TableId};
    use packet::Clock;
    use packet::wire::build;
    use protocols::mcast::Settings;
    use protocols::mcast::message::{Body, Message, Record, Records};

    use super::*;
    use crate::bridge::Bridge;
    use crate::model::config::{BridgeConfig, FailMode};
    use crate::model::port::{Device, PortSpec};
    use crate::reference::tests::Bed;

    fn snoop(bridge: &Bridge, settings: Settings) {
        bridge.set_config(BridgeConfig { mcast_snooping: Some(settings), ..bridge.config() });
        let normal = Instructions::apply(vec![Action::output(OfPort::NORMAL)]);
        let change = FlowMod::new(FlowModCommand::Add, Match::any(), normal);
        bridge.flow_mod(&FlowMod { table: Some(TableId(0)), ..change }).unwrap();
    }

    fn bed(settings: Settings) -> Bed {
        let bed = Bed::new(4);
        snoop(&bed.bridge, settings);
        bed.switch.revalidate();
        bed
    }

    fn group(n: u8) -> IpAddr {
        IpAddr::from([239, 0, 0, n])
    }

    fn ethernet(packet: &[u8]) -> Vec<u8> {
        let [a, b, c] = [packet[17] & 0x7f, packet[18], packet[19]];
        build::ethernet([1, 0, 0x5e, a, b, c], [2; 6], &[], 0x0800, packet)
    }

    fn message(body: Body) -> Vec<u8> {
        ethernet(&Message { src: [10, 0, 0, 7].into(), body }.emit())
    }

    fn data(n: u8) -> Vec<u8> {
        let header = build::Ipv4 { dst: [239, 0, 0, n].into(), proto: 17, ..build::Ipv4::default() };
        ethernet(&header.packet(build::udp(5, 6, b"data")))
    }

    /// Receives the frame from the station behind a port. Where it has gone.
    fn sent_to(bed: &Bed, port: u32, frame: &[u8]) -> Vec<u32> {
        let mut frame = frame.to_vec();
        frame[11] = port as u8;
        bed.receive(OfPort(port), &frame).iter().map(|(port, _)| port.0).collect()
    }

    /// What has been looked at since the last call: rounds, and flows by the index.
    fn watch() -> impl FnMut(&Bed) -> (u64, u64) {
        let mut last = (0, 0);
        move |bed: &Bed| {
            bed.switch.run(bed.clock.now());
            let now = (bed.switch.revalidation_stats().count, bed.switch.mac_revalidations());
            let since = (now.0 - last.0, now.1 - last.1);
            last = now;
            since
        }
    }

    #[test]
    fn a_change_of_a_group_touches_its_own_flows_only() {
        let bed = bed(Settings::default());
        let mut looked_at = watch();
        (1..=16).for_each(|n| drop(sent_to(&bed, 1, &data(n))));
        looked_at(&bed);
        // A report goes up and has a flow of its own, which depends on no group.
        assert_eq!(sent_to(&bed, 2, &message(Body::Report(group(3)))), []);
        assert_eq!(looked_at(&bed), (0, 1), "the flow of the group that is flooded no longer");
        assert_eq!((sent_to(&bed, 1, &data(3)), sent_to(&bed, 1, &data(4))), (vec![2], vec![2, 3, 4]));
        assert_eq!(sent_to(&bed, 2, &message(Body::Report(group(3)))), []);
        assert_eq!(looked_at(&bed), (0, 0), "renewed");
        // A query: all flows of the VLAN may go there, but those that are flooded go on as they are.
        assert_eq!(sent_to(&bed, 4, &message(Body::Query(None))), [1, 2, 3]);
        assert_eq!(looked_at(&bed), (0, 16));
        assert_eq!(sent_to(&bed, 1, &data(3)), [2, 4]);
        // What ages: the router after 180 s, the member after 300 s.
        bed.clock.advance(Duration::from_secs(180));
        looked_at(&bed);
        assert_eq!(sent_to(&bed, 1, &data(3)), [2]);
        bed.clock.advance(Duration::from_secs(120));
        looked_at(&bed);
        assert_eq!(sent_to(&bed, 1, &data(3)), [2, 3, 4]);
    }

    /// A burst of joins has no flow looked at that is not about them, and no round.
    #[test]
    fn a_burst_of_joins_touches_no_other_flow() {
        let bed = bed(Settings { table_size: 50, ..Settings::default() });
        let mut looked_at = watch();
        (1..=16).for_each(|n| drop(sent_to(&bed, 1, &data(n))));
        looked_at(&bed);
        for first in (0..5000u32).step_by(100) {
            let records: Vec<Record> =
                (first..first + 100).map(|n| Record::Join(IpAddr::from((0xe800_0000 + n).to_be_bytes()))).collect();
            let bytes = Records::write(&records);
            sent_to(&bed, 3, &message(Body::Records(Records::read(&bytes, false).unwrap())));
        }
        assert_eq!((looked_at(&bed), bed.bridge.multicast_group_count()), ((0, 0), Some(50)));
    }

    /// Reports that cross a patch port are learnt on both sides, and the data goes where it is wanted.
    #[test]
    fn reports_cross_patch_ports() {
        let mut bed = bed(Settings { flood_unregistered: false, ..Settings::default() });
        let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 2) };
        let other = bed.switch.add_bridge(config).unwrap();
        let patch = |name: &str, peer: &str| PortSpec {
            request: Some(OfPort(9)),
            ..PortSpec::of(name, Device::Patch { peer: peer.into(), mac: [2, 0, 0, 0, 1, 0] })
        };
        bed.bridge.add_port(patch("a", "b")).unwrap();
        other.add_port(patch("b", "a")).unwrap();
        // A fifth device, of the other bridge.
        let mine = std::mem::replace(&mut bed.bridge, other.clone());
        bed.add_port("p5");
        bed.bridge = mine;
        snoop(&other, Settings { flood_unregistered: false, ..Settings::default() });
        bed.switch.revalidate();

        assert_eq!(sent_to(&bed, 5, &message(Body::Query(None))), [1, 2, 3, 4]);
        assert_eq!(sent_to(&bed, 2, &message(Body::Report(group(1)))), [5]);
        bed.switch.run(bed.clock.now());
        let groups = |bridge: &Bridge| bridge.multicast_entries().unwrap().len();
        assert_eq!((groups(&bed.bridge), groups(&other)), (2, 2));
        assert_eq!(sent_to(&bed, 5, &data(1)), [2], "from the other bridge to the member");
        assert_eq!(sent_to(&bed, 3, &data(1)), [2, 5], "to the member and to the router");
        // The ports go, and with them what was learnt.
        other.remove_port(OfPort(9)).unwrap();
        bed.bridge.remove_port(OfPort(2)).unwrap();
        assert_eq!((groups(&bed.bridge), groups(&other)), (1, 1));
        bed.bridge.forget_groups_behind(OfPort(9));
        assert_eq!(groups(&bed.bridge), 0);
    }

    #[test]
    fn groups_change_while_flows_are_installed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let bed = bed(Settings { flood_unregistered: false, ..Settings::default() });
        let done = AtomicBool::new(false);
        let (switch, clock, bridge) = (&bed.switch, &bed.clock, &bed.bridge);
        let change = |f: &dyn Fn(&mut Snooping)| {
            let forwarding = switch.forwarding.read();
            switch.change_groups(forwarding.bridges.get(&bridge.id()).unwrap(), |snooping| f(snooping));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0u32.. {
                    let group = protocols::mcast::Group { vlan: 0, address: group((i % 7) as u8 + 1) };
                    let port = 1 + i % 4;
                    change(&|snooping| {
                        let _changed =
                            if i % 3 == 0 { snooping.add_static(group, port) } else { snooping.remove(&group, port) };
                    });
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    switch.run(clock.now());
                }
            });
            for i in 0..2000u32 {
                bed.devices[i as usize % 4].inject(&data((i % 7) as u8 + 1));
                if i % 3 == 0 {
                    bed.poll();
                }
            }
            bed.poll();
            done.store(true, Ordering::Relaxed);
        });
        bed.sent();
        bed.switch.run(bed.clock.now());
        // Each flow does what its group's members are now.
        let forwarding = switch.forwarding.read();
        for flow in bed.datapath.flows() {
            let new = switch.translate_dp(&forwarding, &flow.key, None, clock.now()).unwrap();
            assert_eq!(new.actions[..], flow.actions[..], "{:?}", flow.key);
        }
        assert!(bed.datapath.flow_count() > 0 && switch.mac_revalidations() > 0);
    }
}
