//! Packets that come in by bonds and leave by them.

use std::sync::Arc;
use std::time::Duration;

use datapath::{Action as DpAction, Bucket, Config, DropReason, FlowSpec};
use openflow::text::parse_flow_mod;
use openflow::{FlowModCommand, OfPort, PortReason};
use packet::flow::Mask;
use packet::flow::text::NoNames;
use packet::wire::{build, ethertype};
use ports::Port as _;
use ports::registry;

use crate::bridge::bonds::BondError;
use crate::model::bond::{BondMode, BondSettings};
use crate::model::mac::MacKey;
use crate::model::mirror::{Mirror, MirrorOutput, PortSelection};
use crate::model::port::PortSpec;
use crate::model::vlan::PortVlan;
use crate::reference::tests::Bed;

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
const ALL: [u8; 6] = [0xff; 6];

/// A learning switch. Ports 1 and 2 are a bond of this mode, 3 and 4 are not.
pub(crate) fn bond(mode: BondMode) -> Bed {
    bond_of(mode, 2, 2)
}

/// The same with more members, whose numbers come first.
fn bond_of(mode: BondMode, members: u32, others: u32) -> Bed {
    let mut bed = Bed::with(0, Config::default());
    let settings = BondSettings { mode, ..BondSettings::default() };
    bed.bridge.set_bond("bond0", settings, [0; 6]).unwrap();
    for n in 1..=members + others {
        let port = registry::open(&registry::PortSpec::new(&format!("p{n}"), "dummy"), &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(&format!("p{n}")).unwrap());
        let logical = (n <= members).then(|| "bond0".to_owned());
        bed.bridge.add_port(PortSpec { logical, ..PortSpec::new(port) }).unwrap();
    }
    let flow = parse_flow_mod(FlowModCommand::Add, "actions=NORMAL", &NoNames).unwrap();
    bed.bridge.flow_mod(&flow).unwrap();
    bed
}

fn frame(src: [u8; 6], dst: [u8; 6]) -> Vec<u8> {
    build::ethernet(dst, src, &[], 0x88b5, &[0; 46])
}

/// By which ports frames were sent.
fn ports(sent: Vec<(OfPort, Vec<u8>)>) -> Vec<u32> {
    sent.into_iter().map(|(port, _)| port.0).collect()
}

pub(crate) fn set_up(bed: &Bed, port: u32, up: bool) {
    bed.devices[port as usize - 1].set_admin_up(up).unwrap();
    let number = bed.bridge.port(OfPort(port)).unwrap().dp_port.unwrap();
    bed.datapath.refresh_port(number).unwrap();
    bed.switch.run_bonds();
}

#[test]
fn a_flood_has_one_copy_for_a_bond_and_none_for_the_one_that_it_came_from() {
    for mode in [BondMode::ActiveBackup, BondMode::BalanceSlb] {
        let bed = bond(mode);
        assert_eq!(ports(bed.receive(OfPort(1), &frame(THERE, ALL))), [3, 4]);
        // The other end has flooded it to the other member, too.
        assert_eq!(ports(bed.receive(OfPort(2), &frame(THERE, ALL))), []);
        let sent = ports(bed.receive(OfPort(3), &frame(HERE, ALL)));
        assert_eq!(sent.iter().filter(|port| **port <= 2).count(), 1, "{mode:?} {sent:?}");
        assert!(sent.contains(&4) && sent.len() == 2);
    }
}

/// The other end's switch floods what a bond of `balance-slb` has sent by one member back by another one.
#[test]
fn slb_drops_what_it_has_sent_itself() {
    let bed = bond(BondMode::BalanceSlb);
    bed.receive(OfPort(3), &frame(HERE, ALL));
    for member in [1, 2] {
        assert_eq!(ports(bed.receive(OfPort(member), &frame(HERE, THERE))), [], "by member {member}");
        let key = MacKey { vlan: 0, mac: HERE };
        assert_eq!(bed.bridge.macs().into_iter().find(|entry| entry.key == key).unwrap().port, OfPort(3));
    }
    // Others are taken by any member, and known to be at the bond.
    assert_eq!(ports(bed.receive(OfPort(2), &frame(THERE, HERE))), [3]);
    let sent = ports(bed.receive(OfPort(4), &frame([2, 0, 0, 0, 0, 9], THERE)));
    assert!(sent == [1] || sent == [2], "{sent:?}");
}

/// A virtual machine that has moved says so by an announcement, which a reflection of an announcement is not.
#[test]
fn an_address_can_move_to_a_bond() {
    let any = std::net::Ipv4Addr::new(10, 0, 0, 1);
    let announcement = build::ethernet(ALL, HERE, &[], ethertype::ARP, &build::arp(1, HERE, any, [0; 6], any));
    let bed = bond(BondMode::BalanceSlb);
    bed.receive(OfPort(3), &frame(HERE, THERE));
    assert_eq!(ports(bed.receive(OfPort(1), &announcement)), [3, 4], "it has moved");
    assert_eq!(ports(bed.receive(OfPort(1), &frame(HERE, THERE))), [3, 4]);
    // It comes back, and announces that: the bond's reflection of it does not count.
    bed.receive(OfPort(3), &announcement);
    bed.switch.revalidate();
    assert_eq!(ports(bed.receive(OfPort(1), &announcement)), []);
    assert_eq!(ports(bed.receive(OfPort(4), &frame(THERE, HERE))), [3]);
    bed.clock.advance(std::time::Duration::from_secs(6));
    assert_eq!(ports(bed.receive(OfPort(1), &announcement)), [3, 4], "after a while it does");
}

/// No flow is translated again for what is sent by another member, and none that has come in by a bond that is as it was.
#[test]
fn a_failover_changes_where_packets_go_at_once() {
    for mode in [BondMode::ActiveBackup, BondMode::BalanceSlb] {
        let bed = bond(mode);
        bed.receive(OfPort(1), &frame(THERE, ALL));
        let before = ports(bed.receive(OfPort(3), &frame(HERE, THERE)));
        let lost = before[0];
        set_up(&bed, lost, false);
        // The revalidator has not run.
        assert_eq!(ports(bed.receive(OfPort(3), &frame(HERE, THERE))), [3 - lost]);
        assert_eq!(bed.datapath.flow_count(), 2, "no flow was added");
        // What comes in by the member that is left is taken once flows have been looked at.
        bed.switch.revalidate();
        assert_eq!(ports(bed.receive(OfPort(3 - lost), &frame(THERE, ALL))), [3, 4]);
        assert_eq!(ports(bed.receive(OfPort(lost), &frame(THERE, ALL))), []);
    }
}

#[test]
fn neighbours_are_told_of_a_failover() {
    let bed = bond(BondMode::ActiveBackup);
    bed.receive(OfPort(1), &frame(THERE, ALL));
    bed.receive(OfPort(3), &frame(HERE, ALL));
    set_up(&bed, 1, false);
    while bed.switch.send_announcements() {}
    bed.poll();
    let sent = bed.sent();
    let rarp =
        build::ethernet(ALL, HERE, &[], 0x8035, &build::arp(3, HERE, [0, 0, 0, 0].into(), HERE, [0, 0, 0, 0].into()));
    assert_eq!(sent, [(OfPort(2), rarp)], "of the address that is elsewhere, by the member that is left");
}

/// Each flow stays with its member; flows are spread over all.
#[test]
fn sources_are_spread_over_many_members() {
    let bed = bond_of(BondMode::BalanceSlb, 32, 1);
    let mut used = std::collections::BTreeMap::<u32, u32>::new();
    for n in 0..=255u8 {
        let sent = |dst| ports(bed.receive(OfPort(33), &frame([2, 1, 0, 0, 0, n], dst)));
        let [first, second] = [sent(THERE), sent(ALL)];
        assert_eq!((first.len(), &first), (1, &second), "one source leaves by one member");
        *used.entry(first[0]).or_default() += 1;
    }
    assert!(used.len() > 24 && used.values().all(|count| *count < 32), "{used:?}");
    // Those of a lost member go elsewhere, the others stay.
    set_up(&bed, 5, false);
    for n in 0..=255u8 {
        assert_ne!(ports(bed.receive(OfPort(33), &frame([2, 1, 0, 0, 0, n], THERE))), [5]);
    }
}

#[test]
fn mirrors_select_bonds_by_their_ports_names() {
    let bed = bond(BondMode::ActiveBackup);
    let mirror = Mirror {
        name: "m0".into(),
        sources: PortSelection::Ports(["bond0".to_owned()].into()),
        destinations: PortSelection::Ports(Default::default()),
        vlans: None,
        output: MirrorOutput::Port("p4".into()),
        max_len: None,
    };
    let config = bed.bridge.config();
    bed.bridge.set_config(crate::BridgeConfig { mirrors: vec![mirror], ..config });
    let mut sent = ports(bed.receive(OfPort(1), &frame(THERE, ALL)));
    sent.sort_unstable();
    assert_eq!(sent, [3, 4]);
    let to_bond = Mirror {
        output: MirrorOutput::Port("bond0".into()),
        sources: PortSelection::All,
        ..bed.bridge.config().mirrors[0].clone()
    };
    bed.bridge.set_config(crate::BridgeConfig { mirrors: vec![to_bond], ..bed.bridge.config() });
    bed.switch.revalidate();
    let mut sent = ports(bed.receive(OfPort(3), &frame(HERE, ALL)));
    sent.sort_unstable();
    assert_eq!(sent, [1, 4], "the copy goes by the active member");
}

#[test]
fn vlans_of_a_bond_are_those_of_its_port() {
    let bed = bond(BondMode::ActiveBackup);
    for member in [1, 2] {
        bed.bridge.set_port_vlan(OfPort(member), PortVlan::access(5)).unwrap();
    }
    bed.bridge.set_port_vlan(OfPort(3), PortVlan::access(5)).unwrap();
    bed.bridge.set_port_vlan(OfPort(4), PortVlan::access(6)).unwrap();
    assert_eq!(ports(bed.receive(OfPort(1), &frame(THERE, ALL))), [3]);
    assert_eq!(ports(bed.receive(OfPort(3), &frame(HERE, THERE))), [1]);
    assert_eq!(ports(bed.receive(OfPort(4), &frame(HERE, THERE))), []);
}

/// Members keep their own numbers: flows may send to one of them.
#[test]
fn a_flow_can_send_to_a_member() {
    let bed = bond(BondMode::ActiveBackup);
    let flow = parse_flow_mod(FlowModCommand::Add, "priority=40000,in_port=3,actions=output:2", &NoNames).unwrap();
    bed.bridge.flow_mod(&flow).unwrap();
    assert_eq!(ports(bed.receive(OfPort(3), &frame(HERE, ALL))), [2]);
}

#[test]
fn operators_change_bonds() {
    let bed = bond(BondMode::BalanceSlb);
    let bridge = &bed.bridge;
    assert_eq!(bridge.set_active_member("bond0", "p1"), Ok(false));
    assert_eq!(bridge.set_active_member("bond0", "p2"), Ok(true));
    assert_eq!(bridge.set_active_member("bond0", "p3"), Err(BondError::NoMember));
    assert_eq!(bridge.set_active_member("bond1", "p1"), Err(BondError::NoBond));
    let bucket = crate::model::bond::hash::source(HERE, 0, 0) as u8;
    for member in ["p1", "p2"] {
        bridge.migrate_bucket("bond0", bucket, member).unwrap();
        let sent = ports(bed.receive(OfPort(3), &frame(HERE, THERE)));
        assert!(sent.contains(&u32::from(member.as_bytes()[1] - b'0')), "{sent:?}");
    }
    bridge.enable_member("bond0", "p1", false).unwrap();
    // Its carrier enables it again.
    assert!(bridge.show_bonds(Some("bond0")).unwrap().contains("member p1: enabled"));
    set_up(&bed, 1, false);
    assert!(bridge.show_bonds(None).unwrap().contains("member p1: disabled"));
    assert_eq!(bridge.migrate_bucket("bond0", 0, "p1"), Err(BondError::DisabledMigration));
    assert_eq!(bridge.set_active_member("bond0", "p1"), Err(BondError::DisabledActive));
}

/// A bond loses all but one member, stops to be one, and becomes one again.
#[test]
fn a_bond_that_ends_and_begins_again() {
    let bed = bond(BondMode::ActiveBackup);
    bed.receive(OfPort(1), &frame(THERE, ALL));
    bed.bridge.remove_bond("bond0");
    bed.switch.revalidate();
    let mut sent = ports(bed.receive(OfPort(3), &frame(HERE, ALL)));
    sent.sort_unstable();
    assert_eq!(sent, [1, 2, 4], "ports on their own");
    bed.bridge.set_bond("bond0", BondSettings::default(), [0; 6]).unwrap();
    bed.switch.revalidate();
    let mut sent = ports(bed.receive(OfPort(3), &frame(HERE, ALL)));
    sent.sort_unstable();
    assert_eq!(sent, [1, 4]);
    bed.bridge.remove_ports(&[OfPort(1), OfPort(2)]).unwrap();
    assert_eq!(bed.bridge.bonds(), [], "without members there is no bond");
    bed.bridge.port_changed(OfPort(3), PortReason::Modify);
}

/// The table of the datapath is what a plain choice by the same hash is: by connection, each packet goes where its bucket says.
#[test]
fn the_datapath_chooses_as_a_plain_table_does() {
    let bed = bond_of(BondMode::BalanceSlb, 4, 1);
    let output = bed.datapath.bonds().add().unwrap();
    let numbers: Vec<_> = (1..=4).map(|n| bed.bridge.port(OfPort(n)).unwrap().dp_port.unwrap()).collect();
    for bucket in 0..=u8::MAX {
        output.set_member(bucket, Some(numbers[usize::from(bucket) % 4]));
    }
    let ip = |port| {
        build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, ttl: 9, ..Default::default() }
            .packet(build::udp(port, 53, b"question"))
    };
    for port in 0..200 {
        let frame = build::ethernet(THERE, HERE, &[], ethertype::IPV4, &ip(port));
        let wanted = u32::from(datapath::bond::hash(&frame, 0) as u8 % 4) + 1;
        let actions = [DpAction::Bond { bond: output.clone(), bucket: Bucket::ByHash }];
        bed.datapath.execute(packet::Packet::from_slice(&frame), &packet::Key::new(), &actions);
        bed.poll();
        assert_eq!(ports(bed.sent()), [wanted]);
    }
}

/// Batches that go to a bond leave as their packets would one by one: each by the member of its bucket, in order, and counted for it; what
/// no member can send is dropped.
#[test]
fn batches_go_where_their_packets_would() {
    for interval in [0, 50] {
        let bed = bond_of(BondMode::BalanceSlb, 4, 1);
        bed.datapath.set_tx_flush_interval(Duration::from_micros(interval));
        let output = bed.datapath.bonds().add().unwrap();
        let number = |n| bed.bridge.port(OfPort(n)).unwrap().dp_port.unwrap();
        // Of five parts of the buckets, one has no member, that of the third is down, and the fourth takes short frames only.
        for bucket in 0..=u8::MAX {
            let part = u32::from(bucket) % 5;
            output.set_member(bucket, (part < 4).then(|| number(part + 1)));
        }
        set_up(&bed, 3, false);
        bed.devices[3].set_mtu(100).unwrap();
        bed.datapath.refresh_port(number(4)).unwrap();
        let actions = vec![DpAction::Bond { bond: output.clone(), bucket: Bucket::ByHash }];
        let mut key = packet::Key::new();
        key.common_mut().in_port = number(5).0.into();
        let (key, mask) = (Box::new(key), Box::new(Mask::wildcard()));
        bed.datapath.install(FlowSpec { key, mask, actions, tag: Arc::new(()) }).unwrap();

        let (mut wanted, mut bytes, mut down, mut too_big) = (Vec::new(), [0; 256], 0, 0);
        for (n, size) in [1, 2, 31, 32, 33, 64, 100].into_iter().enumerate() {
            for port in 0..size {
                let data = if port % 5 == 3 && n % 2 == 0 { vec![0; 200] } else { vec![0; 20] };
                let header = build::Ipv4 {
                    src: [10, 0, 0, 1].into(),
                    dst: [10, 0, 0, 2].into(),
                    proto: 17,
                    ..Default::default()
                };
                let packet = header.packet(build::udp(port, n as u16, &data));
                let frame = build::ethernet(THERE, HERE, &[], ethertype::IPV4, &packet);
                assert!(bed.devices[4].inject(&frame));
                let bucket = datapath::bond::hash(&frame, 0) as u8;
                match bucket % 5 {
                    4 => down += 1,
                    2 => {
                        down += 1;
                        bytes[usize::from(bucket)] += frame.len() as u64;
                    }
                    3 if data.len() > 100 => {
                        too_big += 1;
                        bytes[usize::from(bucket)] += frame.len() as u64;
                    }
                    part => {
                        bytes[usize::from(bucket)] += frame.len() as u64;
                        wanted.push((OfPort(u32::from(part) + 1), frame));
                    }
                }
            }
        }
        bed.poll();
        bed.datapath.set_tx_flush_interval(Duration::ZERO);
        bed.poll();
        let mut sent = bed.sent();
        sent.sort_by_key(|(port, _)| *port);
        wanted.sort_by_key(|(port, _): &(OfPort, Vec<u8>)| *port);
        assert_eq!(sent, wanted, "{interval}");
        let drops = bed.datapath.account().drops;
        assert_eq!((drops.get(DropReason::PortDown), drops.get(DropReason::TooBig)), (down, too_big));
        assert_eq!(output.traffic().map(|bucket| bucket.bytes), bytes);
        assert!(down > 50 && too_big > 2);
    }
}
