//! Bonds of patch ports: `balance-tcp` chooses their members by a hash of the datapath, in a second pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use datapath::{Action as DpAction, Config, HashAlgorithm, Punt, flow_hash};
use export::settings::{BridgeExport, Sflow};
use openflow::group::{Bucket, GroupCommand, GroupMod, GroupSpec, GroupType, Selection, bucket_id};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, Match, OfPort, PacketOut};
use packet::Key;
use packet::flow::VlanLimit;
use packet::flow::text::NoNames;
use packet::wire::{build, ethertype};
use ports::registry;
use proptest::prelude::*;
use tunnel::header::{Header, Protocol};

use crate::bridge::Bridge;
use crate::model::bond::{BondMode, BondSettings, LacpStatus};
use crate::model::config::{BridgeConfig, FailMode};
use crate::model::mirror::{Mirror, MirrorOutput, PortSelection};
use crate::model::port::{Device, PortSpec};
use crate::reference::tests::Bed;
use crate::trace::{Request, trace};
use crate::xlate::tunnel_tests::{Host, tunnel_port};

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
const ALL: [u8; 6] = [0xff; 6];

/// Two bridges, joined by a bond whose members are patch ports: `a0` and so on at br0, numbered from 10 on, and `b0` and so on at br1, numbered
/// from 20 on, which are no bond there.
struct Joined {
    bed: Bed,
    other: Bridge,
}

impl Joined {
    /// Ports 1 and 2 are br0's, 3 and 4 are br1's. br0 does NORMAL; br1 sends what comes by `b0` to 3, and everything else to 4.
    fn new(mode: BondMode, members: u32) -> Joined {
        let bed = Bed::with(2, Config::default());
        let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 2) };
        let other = bed.switch.add_bridge(config).unwrap();
        let mut joined = Joined { bed, other };
        (3..=4).for_each(|n| joined.add_other_port(n));
        let settings = BondSettings { mode, ..BondSettings::default() };
        joined.bed.bridge.set_bond("bond0", settings, [0; 6]).unwrap();
        for n in 0..members {
            join(&joined.bed.bridge, (n, "a", Some("bond0")), &joined.other, (n, "b", None));
        }
        negotiated(&joined.bed, &joined.bed.bridge, "bond0");
        flow(&joined.bed.bridge, "actions=NORMAL");
        flow(&joined.other, "priority=1,actions=output:4");
        flow(&joined.other, "priority=2,in_port=20,actions=output:3");
        flow(&joined.other, "priority=60000,in_port=3,actions=output:20");
        // THERE is at the bond.
        joined.bed.receive(OfPort(3), &udp(0, THERE, HERE));
        joined.bed.datapath.flush();
        joined
    }

    fn add_other_port(&mut self, n: u32) {
        let bed = &mut self.bed;
        let port = registry::open(&registry::PortSpec::new(&format!("p{n}"), "dummy"), &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(&format!("p{n}")).unwrap());
        self.other.add_port(PortSpec { request: Some(OfPort(n)), ..PortSpec::new(port) }).unwrap();
    }

    /// A port of br0, a member of its bond or not.
    fn add_own_port(&mut self, n: u32, logical: Option<&str>) {
        let bed = &mut self.bed;
        let port = registry::open(&registry::PortSpec::new(&format!("p{n}"), "dummy"), &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(&format!("p{n}")).unwrap());
        let logical = logical.map(str::to_owned);
        bed.bridge.add_port(PortSpec { request: Some(OfPort(n)), logical, ..PortSpec::new(port) }).unwrap();
    }

    /// Has what is sent to these ports copied to port 2.
    fn set_mirror(&self, destinations: PortSelection) {
        let mirror = Mirror {
            name: "m0".into(),
            sources: PortSelection::Ports(Default::default()),
            destinations,
            vlans: None,
            output: MirrorOutput::Port("p2".into()),
            max_len: None,
        };
        let config = self.bed.bridge.config();
        self.bed.bridge.set_config(BridgeConfig { mirrors: vec![mirror], ..config });
        self.bed.switch.revalidate();
    }

    /// By which ports a frame is sent that comes in by port 1.
    fn ports(&self, frame: &[u8]) -> Vec<u32> {
        self.bed.receive(OfPort(1), frame).into_iter().map(|(port, _)| port.0).collect()
    }

    /// The members by which these connections go, as the ports of br1 say.
    fn members(&self, connections: std::ops::Range<u16>) -> BTreeMap<u16, u32> {
        connections.map(|n| (n, self.only(&self.ports(&udp(n, HERE, THERE))))).collect()
    }

    fn only(&self, ports: &[u32]) -> u32 {
        assert_eq!(ports.len(), 1, "{ports:?}");
        ports[0]
    }

    /// Packets that were sent by the members.
    fn sent_by_members(&self) -> Vec<u64> {
        self.bed.switch.revalidate();
        (10..12).map(|n| self.bed.bridge.port_stats(OfPort(n))[0].tx_packets).collect()
    }

    /// Has a member be enabled or not.
    fn enable(&self, member: &str, enabled: bool) {
        let number = self.bed.bridge.ports().into_iter().find(|port| port.name == member).unwrap().port;
        self.bed
            .switch
            .forwarding
            .write()
            .bridges
            .get_mut(&self.bed.bridge.id())
            .unwrap()
            .bonds
            .get_mut("bond0")
            .unwrap()
            .set_may_enable(number, enabled);
        self.bed.switch.run_bonds();
        self.bed.switch.revalidate();
    }
}

/// Joins two bridges by patch ports with these numbers, which may be members of bonds.
fn join(left: &Bridge, (n, a, of): (u32, &str, Option<&str>), right: &Bridge, (m, b, at): (u32, &str, Option<&str>)) {
    let patch = |name: String, peer: String, number: u32, logical: Option<&str>| PortSpec {
        request: Some(OfPort(number)),
        logical: logical.map(str::to_owned),
        ..PortSpec::of(&name, Device::Patch { peer, mac: [2, 0, 0, 0, 1, number as u8] })
    };
    left.add_port(patch(format!("{a}{n}"), format!("{b}{m}"), 10 + n, of)).unwrap();
    right.add_port(patch(format!("{b}{m}"), format!("{a}{n}"), 20 + m, at)).unwrap();
}

pub(crate) fn negotiated(bed: &Bed, bridge: &Bridge, bond: &str) {
    let mut forwarding = bed.switch.forwarding.write();
    let bridge = forwarding.bridges.get_mut(&bridge.id()).unwrap();
    bridge.bonds.get_mut(bond).unwrap().set_lacp(LacpStatus::Negotiated);
    drop(forwarding);
    bed.switch.run_bonds();
}

fn flow(bridge: &Bridge, text: &str) {
    bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, text, &NoNames).unwrap()).unwrap();
}

fn ip(n: u16) -> build::Ipv4<'static> {
    let src = Ipv4Addr::from(0x0a00_0000 + u32::from(n));
    build::Ipv4 { src, dst: [10, 1, 0, 1].into(), proto: 17, ttl: 9, ..Default::default() }
}

/// A datagram of the n-th connection.
fn udp(n: u16, src: [u8; 6], dst: [u8; 6]) -> Vec<u8> {
    build::ethernet(dst, src, &[], ethertype::IPV4, &ip(n).packet(build::udp(1000 + n, 53, b"question")))
}

/// The hash by which the datapath chooses.
fn hash(frame: &[u8]) -> u8 {
    let mut key = Key::new();
    packet::flow::extract(frame, &mut key, VlanLimit::default());
    flow_hash(HashAlgorithm::L4, &key, 0) as u8
}

impl Joined {
    /// The member of br0's bond that has a bucket, as a port of br1.
    fn member_of(&self, bucket: u8) -> Option<u32> {
        let forwarding = self.bed.switch.forwarding.read();
        let member = forwarding.bridges[&self.bed.bridge.id()].bonds["bond0"].member_of(bucket);
        member.map(|port| if port == OfPort(10) { 3 } else { 4 })
    }
}

#[test]
fn connections_share_flows_and_each_stays_with_its_member() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let first = joined.members(0..600);
    assert_eq!(joined.members(0..600), first);
    let flows = joined.bed.datapath.flow_count();
    assert!((100..=257).contains(&flows), "one of the first pass, 256 of the second: {flows}");
    let by_first = first.values().filter(|port| **port == 3).count();
    assert!((200..400).contains(&by_first), "{by_first}");
    for (n, port) in &first {
        assert_eq!(joined.member_of(hash(&udp(*n, HERE, THERE))), Some(*port), "the datapath's hash chooses");
    }
    let sent = joined.sent_by_members();
    assert_eq!(sent, [2 * by_first as u64, 1200 - 2 * by_first as u64], "each member has what it has sent");
    let (_, buckets) = joined.bed.bridge.bond_flows_after(None).unwrap();
    let packets: u64 = buckets.iter().map(|(_, flow)| flow.packet_count).sum();
    assert_eq!((buckets.len(), packets), (256, 1200));
    joined.members(600..2000);
    assert!(joined.bed.datapath.flow_count() <= 257);
}

/// Other Ethernet addresses have a flow of their own in the first pass, and the id of the second pass in common.
#[test]
fn what_the_output_does_not_look_at_makes_no_further_ids() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let ids = || joined.bed.switch.interners.frozen.len();
    flow(
        &joined.bed.bridge,
        "priority=40000,udp,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG3[],set_field:7->metadata,NORMAL",
    );
    for n in 0..20 {
        assert_eq!(joined.ports(&udp(n, [2, 0, 0, 0, 1, n as u8], THERE)).len(), 1);
        let tags = [(ethertype::VLAN, 1 + n)];
        let payload = ip(n).packet(build::udp(1, 2, b""));
        let tagged = build::ethernet(ALL, HERE, &tags, ethertype::IPV4, &payload);
        assert_eq!(joined.bed.receive(OfPort(1), &tagged).len(), 2, "a flood of the VLAN: to port 2 and the bond");
    }
    assert_eq!(ids(), 1);
}

#[test]
fn a_member_that_goes_and_comes_back() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let both = joined.members(0..300);
    let before = joined.bed.switch.revalidation_stats().translated;
    let flows = joined.bed.datapath.flow_count() as u64;
    joined.enable("a0", false);
    let translated = joined.bed.switch.revalidation_stats().translated - before;
    assert!(translated < flows, "the flow of the first pass does not depend on it: {translated} of {flows}");
    assert!(joined.members(0..300).values().all(|port| *port == 4));
    joined.enable("a1", false);
    assert_eq!(joined.ports(&udp(0, HERE, THERE)), [], "none is left");
    joined.enable("a0", true);
    joined.enable("a1", true);
    assert_eq!(joined.members(0..300), both);
}

/// Buckets have loads, by the counters of flows, and are moved for them.
#[test]
fn load_is_counted_and_moved() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let show = || joined.bed.bridge.show_bonds(Some("bond0")).unwrap();
    // Connections of the first member only.
    let all = joined.members(0..400);
    let busy: Vec<u16> = all.iter().filter(|(_, port)| **port == 3).map(|(n, _)| *n).take(8).collect();
    let large = |n: u16| {
        build::ethernet(THERE, HERE, &[], ethertype::IPV4, &ip(n).packet(build::udp(1000 + n, 53, &[0; 1400])))
    };
    let busy_hashes: BTreeSet<u8> = busy.iter().map(|n| hash(&large(*n))).collect();
    for n in &busy {
        (0..200).for_each(|_| assert_eq!(joined.ports(&large(*n)), [3]));
    }
    joined.bed.switch.revalidate();
    joined.bed.clock.advance(std::time::Duration::from_secs(10));
    joined.bed.switch.run_bonds();
    joined.bed.switch.revalidate();
    let shown = show();
    for hash in &busy_hashes {
        assert!(shown.contains(&format!("  hash {hash}: ")), "{shown}");
    }
    let sent: BTreeSet<u32> = busy.iter().map(|n| joined.only(&joined.ports(&large(*n)))).collect();
    assert_eq!(sent.len(), 2, "some were moved: {shown}");
}

#[test]
fn modes_that_look_at_no_connection_do_not_recirculate() {
    for mode in [BondMode::ActiveBackup, BondMode::BalanceSlb] {
        let joined = Joined::new(mode, 2);
        let ports: BTreeSet<_> = joined.members(0..50).into_values().collect();
        assert_eq!((ports.len(), joined.bed.datapath.flow_count()), (1, 1), "{mode:?}");
        let load = |joined: &Joined| {
            joined.bed.switch.revalidate();
            joined.bed.clock.advance(std::time::Duration::from_secs(10));
            joined.bed.switch.run_bonds();
            joined.bed.bridge.show_bonds(Some("bond0")).unwrap().matches("kB load").count()
        };
        assert_eq!(load(&joined), usize::from(mode == BondMode::BalanceSlb));
    }
}

/// A flood goes to the bond and to others; what is sent after the bond has no hash of it.
#[test]
fn copies_of_a_flood_are_their_own() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    for n in 0..40 {
        let frame = udp(n, HERE, ALL);
        let wanted = [2, joined.member_of(hash(&frame)).unwrap()];
        assert_eq!(joined.ports(&frame), wanted);
    }
    flow(&joined.bed.bridge, "priority=40000,udp,in_port=1,actions=clone(set_field:10.9.9.9->ip_dst,NORMAL),output:2");
    joined.bed.switch.revalidate();
    let frame = udp(1, HERE, THERE);
    let sent = joined.bed.receive(OfPort(1), &frame);
    let mut rewritten = ip(1);
    rewritten.dst = [10, 9, 9, 9].into();
    let rewritten =
        build::ethernet(THERE, HERE, &[], ethertype::IPV4, &rewritten.packet(build::udp(1001, 53, b"question")));
    let [(OfPort(2), whole), (by, other)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((whole, other), (&frame, &rewritten));
    assert_eq!(Some(by.0), joined.member_of(hash(&rewritten)), "by its headers as they are sent");
}

/// A group behind the bond chooses as it does without the bond, by a hash of its own.
#[test]
fn groups_behind_a_bond_have_their_own_hash() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let bucket = |id: u32| Bucket {
        id,
        weight: 1,
        watch_port: OfPort::ANY,
        watch_group: GroupId::ANY,
        actions: vec![Action::output(OfPort(3 + id))],
    };
    let selection = Selection { method: "dp_hash".into(), param: 77, fields: Vec::new() };
    let spec = GroupSpec { kind: GroupType::Select, buckets: vec![bucket(0), bucket(1)], selection };
    let change = GroupMod { command: GroupCommand::Add, group: GroupId(1), command_bucket: bucket_id::ALL, spec };
    joined.other.group_mod(&change).unwrap();
    // By the bond, tracked on the way or not, and straight.
    for actions in ["group:1", "ct(table=1)"] {
        flow(&joined.other, &format!("priority=40000,udp,in_port=20,actions={actions}"));
        flow(&joined.other, &format!("priority=40000,udp,in_port=21,actions={actions}"));
        flow(&joined.other, "table=1,actions=group:1");
        joined.bed.switch.revalidate();
        let by_bond = joined.members(0..100);
        let flows = || joined.bed.datapath.flow_count();
        let before = flows();
        joined.members(100..1000);
        assert!(actions != "group:1" || flows() - before < 300, "no flow is about a whole hash: {}", flows());
        flow(&joined.bed.bridge, "priority=50000,actions=output:30");
        if actions == "group:1" {
            join(&joined.bed.bridge, (20, "a", None), &joined.other, (20, "b", None));
        }
        flow(&joined.other, &format!("priority=40000,udp,in_port=40,actions={actions}"));
        joined.bed.switch.revalidate();
        assert_eq!(joined.members(0..100), by_bond, "{actions}");
        let delete = parse_flow_mod(FlowModCommand::DeleteStrict, "priority=50000", &NoNames).unwrap();
        joined.bed.bridge.flow_mod(&delete).unwrap();
        joined.bed.switch.revalidate();
    }
}

/// What comes after the bond in a list of actions does not take the bond's hash for its own.
#[test]
fn groups_after_a_bond_have_their_own_hash() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let bucket =
        |id: u32, actions| Bucket { id, weight: 1, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions };
    let selection = Selection { method: "dp_hash".into(), param: 77, fields: Vec::new() };
    let buckets = vec![bucket(0, vec![Action::output(OfPort(2))]), bucket(1, vec![])];
    let spec = GroupSpec { kind: GroupType::Select, buckets, selection };
    joined.bed.put_group(1, &spec);
    let by_two = |actions: &str| {
        flow(&joined.bed.bridge, &format!("priority=40000,udp,in_port=1,actions={actions}"));
        flow(&joined.bed.bridge, "table=1,actions=group:1");
        joined.bed.switch.revalidate();
        (0..60).map(|n| joined.ports(&udp(n, HERE, THERE)).contains(&2)).collect::<Vec<_>>()
    };
    let alone = by_two("ct(table=1)");
    assert!(alone.contains(&true) && alone.contains(&false));
    assert_eq!(by_two("NORMAL,ct(table=1)"), alone);
}

/// Flows that were made while there was no partner are looked at again when there is one, and the other way round.
#[test]
fn a_partner_comes_and_goes() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let id = joined.bed.bridge.id();
    for lacp in [LacpStatus::Configured, LacpStatus::Negotiated, LacpStatus::Configured] {
        joined
            .bed
            .switch
            .forwarding
            .write()
            .bridges
            .get_mut(&id)
            .unwrap()
            .bonds
            .get_mut("bond0")
            .unwrap()
            .set_lacp(lacp);
        joined.bed.switch.run_bonds();
        joined.bed.switch.revalidate();
        let sent: usize = (0..20).map(|n| joined.ports(&udp(n, HERE, THERE)).len()).sum();
        assert_eq!(sent, if lacp == LacpStatus::Negotiated { 20 } else { 0 }, "{lacp:?}");
    }
}

/// Collectors are told that a packet is sent somewhere, and not that it is dropped.
#[test]
fn samples_tell_that_a_packet_is_sent() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    let (targets, polling) = (Vec::new(), std::time::Duration::ZERO);
    let sflow = Sflow { targets, sampling: 1, polling, header: 64, agent: Some("10.0.0.9".into()), sub_id: 0 };
    joined.bed.bridge.set_export(&BridgeExport { sflow: Some(sflow), ..BridgeExport::default() });
    joined.members(0..1);
    let is_first = |flow: &datapath::FlowDump| flow.key.common().recirc_id.get() == 0;
    let first = joined.bed.datapath.flows().find(is_first).unwrap();
    let outputs: Vec<u32> = first
        .actions
        .iter()
        .filter_map(|action| match action {
            DpAction::Punt(punt) => match &**punt {
                Punt::Sflow(sample) => Some(sample.output),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(outputs, [0x8000_0001], "to one port, whichever");
}

/// Members that are tunnels, also such whose other end the packet says.
#[test]
fn tunnels_as_members() {
    for (options, actions) in [
        ("remote_ip=192.0.2.2 key=", "NORMAL"),
        (
            "remote_ip=flow key=flow dst_port=",
            "set_field:192.0.2.2->tun_dst,set_field:5->tun_id,set_field:9->reg1,NORMAL",
        ),
    ] {
        let mut host = Host::new(&[], &[]);
        let settings = BondSettings { mode: BondMode::BalanceTcp, ..BondSettings::default() };
        host.bed.bridge.set_bond("bond0", settings, [0; 6]).unwrap();
        for n in 0..2 {
            let spec = tunnel_port(&format!("vxlan {options}{}", 4789 + n), 10 + n);
            host.bed.bridge.add_port(PortSpec { logical: Some("bond0".into()), ..spec }).unwrap();
        }
        negotiated(&host.bed, &host.bed.bridge, "bond0");
        host.bed.bridge.remove_port(OfPort(2)).unwrap();
        host.bed.devices.truncate(1);
        host.add_flow(&format!("actions={actions}"));
        let mut used = BTreeMap::<Vec<u8>, u32>::new();
        for n in 0..300 {
            let frames = [(); 2].map(|()| host.send(&udp(n, HERE, THERE)));
            let [first, second] = &frames;
            assert_eq!((first.len(), first), (1, second), "each connection by one tunnel, once");
            // The destination port and the network identifier.
            *used.entry([&first[0][36..38], &first[0][46..49]].concat()).or_default() += 1;
            assert!(first[0].ends_with(&udp(n, HERE, THERE)));
        }
        assert!(used.len() == 2 && used.values().all(|count| *count > 80), "{used:?}");
        let passes = host.bed.datapath.flow_count();
        assert!(passes <= 257, "{passes}");
    }
}

/// What comes out of tunnels is spread over patch ports, whoever has sent it.
#[test]
fn a_bond_behind_a_tunnel() {
    let mut host = Host::new(&["vxlan remote_ip=flow key=flow"], &["actions=NORMAL"]);
    let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 3) };
    let other = host.bed.switch.add_bridge(config).unwrap();
    for n in 3..=4 {
        let port = registry::open(&registry::PortSpec::new(&format!("p{n}"), "dummy"), &host.bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        host.bed.devices.push(host.bed.env.dummies.find(&format!("p{n}")).unwrap());
        other.add_port(PortSpec { request: Some(OfPort(n)), ..PortSpec::new(port) }).unwrap();
    }
    let settings = BondSettings { mode: BondMode::BalanceTcp, ..BondSettings::default() };
    host.bed.bridge.set_bond("bond0", settings, [0; 6]).unwrap();
    for n in 1..3 {
        join(&host.bed.bridge, (n, "a", Some("bond0")), &other, (n, "b", None));
    }
    negotiated(&host.bed, &host.bed.bridge, "bond0");
    flow(&other, "in_port=21,actions=output:3");
    flow(&other, "in_port=22,actions=output:4");
    let mut used = BTreeMap::<u32, u32>::new();
    for n in 0..200u16 {
        let inner = udp(n, HERE, ALL);
        let header = Header::Vxlan { vni: u32::from(n % 7), group: None };
        let sent = host.receive(&host.frame(Protocol::Vxlan { group_policy: false }, &header, &inner));
        assert!(
            sent.len() == 3 && sent.iter().all(|(_, data)| *data == inner),
            "to ports 1 and 2, and a member: {sent:?}"
        );
        *used.entry(sent[2].0.0).or_default() += 1;
    }
    assert!(used.len() == 2 && used.values().all(|count| *count > 50), "{used:?}");
    assert_eq!(host.bed.switch.interners.frozen.len(), 1, "whatever the tunnel's number is");
}

/// Many bridges in a row, joined by bonds: the last ones choose by what they match, so that packets need not come round for each.
#[test]
fn many_bonds_in_a_row() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    joined.bed.bridge.remove_ports(&[OfPort(10), OfPort(11)]).unwrap();
    let settings = BondSettings { mode: BondMode::BalanceTcp, ..BondSettings::default() };
    let mut last = joined.bed.bridge.clone();
    for n in 2..9u32 {
        let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new(&format!("br{n}"), n.into()) };
        let next = joined.bed.switch.add_bridge(config).unwrap();
        last.set_bond("there", settings.clone(), [0; 6]).unwrap();
        next.set_bond("back", settings.clone(), [0; 6]).unwrap();
        for m in 0..2 {
            join(&last, (100 * n + m, "c", Some("there")), &next, (100 * n + m, "d", Some("back")));
        }
        negotiated(&joined.bed, &last, "there");
        negotiated(&joined.bed, &next, "back");
        flow(&next, "actions=NORMAL");
        last = next;
    }
    join(&last, (90, "e", None), &joined.other, (90, "f", None));
    flow(&joined.other, "priority=40000,in_port=110,actions=output:3");
    for n in 0..60 {
        let frame = udp(n, HERE, ALL);
        assert_eq!(joined.bed.receive(OfPort(1), &frame), [(OfPort(2), frame.clone()), (OfPort(3), frame)], "{n}");
    }
    joined.bed.switch.revalidate();
    for n in [202, 802] {
        let bridge = if n == 202 { &joined.bed.bridge } else { &joined.bed.switch.bridges()[7] };
        let sent = [0, 1].map(|m| bridge.port_stats(OfPort(10 + n - 2 + m))[0].tx_packets);
        assert!(sent[0] + sent[1] == 60 && sent[0].min(sent[1]) > 0, "{n}: {sent:?}");
    }
}

/// A member that is a port of the datapath beside one that is none. A mirror that selects it has one copy, by whichever member the packet
/// leaves.
#[test]
fn a_bond_of_a_patch_port_and_a_device() {
    let mut joined = Joined::new(BondMode::BalanceTcp, 1);
    joined.add_own_port(5, Some("bond0"));
    joined.enable("p5", true);
    let spread = joined.members(0..200);
    let by_device = spread.values().filter(|port| **port == 5).count();
    assert!((50..150).contains(&by_device) && spread.values().all(|port| [3, 5].contains(port)), "{by_device}");
    assert!(joined.bed.datapath.flow_count() <= 257);

    joined.add_own_port(6, None);
    joined.set_mirror(PortSelection::Ports(["bond0".to_owned(), "p6".to_owned()].into()));
    for (n, member) in spread {
        // A flood: to the bond and to p6.
        let sent = joined.ports(&udp(n, HERE, ALL));
        let mut wanted = vec![2, member, 6];
        wanted.sort_unstable();
        assert_eq!(sent, wanted, "{n}: one copy by p2");
    }
}

/// A mirror that sends to a bond of `balance-slb`: its copies are of flows that need not match a source.
#[test]
fn mirrored_packets_leave_by_the_member_of_their_source() {
    let joined = Joined::new(BondMode::BalanceSlb, 2);
    let mirror = Mirror {
        name: "m0".into(),
        sources: PortSelection::All,
        destinations: PortSelection::Ports(Default::default()),
        vlans: None,
        output: MirrorOutput::Port("bond0".into()),
        max_len: None,
    };
    let config = joined.bed.bridge.config();
    joined.bed.bridge.set_config(BridgeConfig { mirrors: vec![mirror], ..config });
    flow(&joined.bed.bridge, "priority=40000,actions=drop");
    joined.bed.switch.revalidate();
    let mut used = BTreeSet::new();
    for n in 0..60u8 {
        let source = [2, 0, 0, 0, 3, n];
        let bucket = crate::model::bond::hash::source(source, 0, 0) as u8;
        let sent = joined.only(&joined.ports(&udp(1, source, THERE)));
        assert_eq!(Some(sent), joined.member_of(bucket));
        used.insert(sent);
    }
    assert_eq!(used.len(), 2);
}

/// A packet-out, and one that a controller has had in the meantime.
#[test]
fn packets_of_controllers_are_spread() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    for n in 0..50 {
        let data = udp(n, HERE, THERE);
        let wanted = joined.member_of(hash(&data)).unwrap();
        let actions = vec![Action::output(OfPort::NORMAL)];
        let message = PacketOut { buffer_id: None, in_port: OfPort(1), metadata: Match::any(), actions, data };
        joined.bed.bridge.packet_out(&message).unwrap();
        joined.bed.poll();
        let sent: Vec<u32> = joined.bed.sent().into_iter().map(|(port, _)| port.0).collect();
        assert_eq!(sent, [wanted]);
    }
}

/// The fragments of a datagram, of which only the first has ports.
#[test]
fn fragments_stay_together() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    for n in 0..40 {
        let whole = build::udp(1000 + n, 53, &[7; 64]);
        let fragment = |flags_offset: u16, part: &[u8]| {
            let header = build::Ipv4 { flags_offset, ..ip(n) };
            build::ethernet(THERE, HERE, &[], ethertype::IPV4, &header.packet(part.to_vec()))
        };
        let sent = [fragment(0x2000, &whole[..32]), fragment(0x2004, &whole[32..64]), fragment(8, &whole[64..])]
            .map(|frame| joined.only(&joined.ports(&frame)));
        assert!(sent.iter().all(|port| *port == sent[0]), "{n}: {sent:?}");
    }
}

/// A trace follows the packet by the member that it has.
#[test]
fn traces_go_on_behind_the_bond() {
    let joined = Joined::new(BondMode::BalanceTcp, 2);
    for n in 0..20 {
        let frame = udp(n, HERE, THERE);
        let mut key = Key::new();
        packet::flow::extract(&frame, &mut key, VlanLimit::default());
        key.common_mut().in_port = 1.into();
        let member = joined.member_of(hash(&frame)).unwrap();
        let names = &NoNames;
        let (ports, datapath_ports) = (names, names);
        let request = Request {
            bridge: "br0",
            key: &key,
            actions: None,
            packet: Some(&frame),
            ct_next: &[],
            ports,
            datapath_ports,
        };
        let text = trace(&joined.bed.switch, &request).unwrap().text();
        let (first, second) = text.split_once(" - resume bond bond0 with dp_hash=0x").expect(&text);
        assert!(first.contains("Datapath actions: hash(l4(0)),recirc(0x"), "{first}");
        let by = joined.other.port(OfPort(member)).unwrap().dp_port.unwrap();
        assert!(second.contains("/0xff,eth"), "{second}");
        assert!(second.trim_end().ends_with(&format!("Datapath actions: {}", by.0)), "{second}");
    }
    assert_eq!(joined.bed.datapath.flow_count(), 0);
}

/// Frames of all kinds, a few values of each field, so that flows that match too little are hit by others' packets.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let v4 = |n: u8| Ipv4Addr::new(10, 0, 0, n);
    let v6 = |n: u8| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, n.into(), 1);
    (0u8..8, 0u8..3, 0u8..3, 0u16..3, 0u16..3, any::<bool>(), any::<bool>()).prop_map(
        move |(kind, a, b, sport, dport, is_ipv6, is_tagged)| {
            let (ends, data) = ((1000 + sport, 2000 + dport), b"data");
            // Not what the Ethernet address says, which NORMAL matches.
            let to = (b + dport as u8) % 3;
            let icmp = |v4: u8, v6: u8| match is_ipv6 {
                true => (58, build::icmpv6(v6, dport as u8, [0; 4], data)),
                false => (1, build::icmp(v4, dport as u8, [0; 4], data)),
            };
            let (proto, payload) = match kind {
                0 | 1 => (6, build::tcp(ends.0, ends.1, 2, data)),
                2 | 3 => (17, build::udp(ends.0, ends.1, data)),
                4 => (132, build::sctp(ends.0, ends.1, 7, data)),
                5 => icmp([8, 0, 3][usize::from(sport)], [128, 129, 1][usize::from(sport)]),
                _ => (47 + sport as u8, data.to_vec()),
            };
            let (source, dst) = ([2, 0, 0, 0, 2, a], [2, 0, 0, 0, 0, 0x20 + b]);
            let tags: &[(u16, u16)] = if is_tagged { &[(ethertype::VLAN, 5)] } else { &[] };
            let (dl_type, network) = match (kind, is_ipv6) {
                (6, true) => (0x88b5 + sport, vec![0; 46]),
                (6, false) => (ethertype::ARP, build::arp(1 + sport % 2, source, v4(a), dst, v4(to))),
                (_, true) => {
                    let header = build::Ipv6 { src: v6(a), dst: v6(to), proto, ..Default::default() };
                    (ethertype::IPV6, header.packet(payload))
                }
                (_, false) => {
                    let header = build::Ipv4 { src: v4(a), dst: v4(to), proto, ttl: 9, ..Default::default() };
                    // Fragments, too.
                    let flags_offset = if kind == 1 || kind == 3 { [0, 0x2000, 8][usize::from(sport)] } else { 0 };
                    (ethertype::IPV4, build::Ipv4 { flags_offset, ..header }.packet(payload))
                }
            };
            build::ethernet(dst, source, tags, dl_type, &network)
        },
    )
}

/// What the bond is asked for.
#[derive(Clone, Debug)]
enum Happens {
    Packet(u16, bool),
    Enable(usize, bool),
    Migrate(u8, usize),
    Basis(u32),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        8 => (0u16..300, any::<bool>()).prop_map(|(n, flood)| Happens::Packet(n, flood)),
        1 => (0usize..3, any::<bool>()).prop_map(|(n, enabled)| Happens::Enable(n, enabled)),
        1 => (any::<u8>(), 0usize..3).prop_map(|(bucket, n)| Happens::Migrate(bucket, n)),
        1 => (0u32..3).prop_map(Happens::Basis),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever happens to the bond, each packet leaves by the member that the bucket of its hash has then, once, as it came; and the members'
    /// counters are of what they have sent.
    #[test]
    fn packets_go_by_the_bucket_of_their_hash(all in prop::collection::vec(happens(), 1..120)) {
        let joined = Joined::new(BondMode::BalanceTcp, 3);
        flow(&joined.other, "priority=3,in_port=21,actions=output:4");
        flow(&joined.other, "priority=3,in_port=22,actions=output:3,output:4");
        let id = joined.bed.bridge.id();
        let (mut basis, mut sent) = (0, [0u64; 3]);
        for event in all {
            match event {
                Happens::Packet(n, flood) => {
                    let frame = udp(n, HERE, if flood { ALL } else { THERE });
                    let mut key = Key::new();
                    packet::flow::extract(&frame, &mut key, VlanLimit::default());
                    let bucket = flow_hash(HashAlgorithm::L4, &key, basis) as u8;
                    let member = joined.bed.switch.forwarding.read().bridges[&id].bonds["bond0"].member_of(bucket);
                    let mut wanted: Vec<u32> = match member.map(|port| port.0) {
                        Some(10) => vec![3],
                        Some(11) => vec![4],
                        Some(12) => vec![3, 4],
                        _ => vec![],
                    };
                    if let Some(member) = member {
                        sent[member.0 as usize - 10] += 1;
                    }
                    if flood {
                        wanted.insert(0, 2);
                    }
                    let got = joined.bed.receive(OfPort(1), &frame);
                    prop_assert!(got.iter().all(|(_, data)| *data == frame));
                    prop_assert_eq!(got.into_iter().map(|(port, _)| port.0).collect::<Vec<_>>(), wanted);
                }
                Happens::Enable(n, enabled) => joined.enable(&format!("a{n}"), enabled),
                Happens::Migrate(bucket, n) => {
                    let _ = joined.bed.bridge.migrate_bucket("bond0", bucket, &format!("a{n}"));
                    joined.bed.switch.revalidate();
                }
                Happens::Basis(hash_basis) => {
                    basis = hash_basis;
                    let settings = joined.bed.bridge.bond_settings("bond0").unwrap();
                    joined.bed.bridge.set_bond("bond0", BondSettings { hash_basis, ..settings }, [0; 6]).unwrap();
                    joined.bed.switch.revalidate();
                }
            }
        }
        joined.bed.switch.revalidate();
        let counted = [10, 11, 12].map(|n| joined.bed.bridge.port_stats(OfPort(n))[0].tx_packets);
        prop_assert_eq!(counted, sent);
    }

    /// Packets of all kinds, in flows of their own or shared ones, go by the bucket of their hash: also where the translation hashes, because a
    /// mirror's copy depends on the member.
    #[test]
    fn translation_hashes_as_the_datapath_does(all in prop::collection::vec(frames(), 1..150), is_mirrored: bool) {
        let mut joined = Joined::new(BondMode::BalanceTcp, 1);
        joined.add_own_port(5, Some("bond0"));
        joined.enable("p5", true);
        if is_mirrored {
            joined.set_mirror(PortSelection::Ports(["bond0".to_owned()].into()));
        }
        let id = joined.bed.bridge.id();
        for frame in all {
            let mut key = Key::new();
            packet::flow::extract(&frame, &mut key, VlanLimit::default());
            let bucket = flow_hash(HashAlgorithm::L4, &key, 0) as u8;
            let member = joined.bed.switch.forwarding.read().bridges[&id].bonds["bond0"].member_of(bucket).unwrap();
            let is_device = member == OfPort(5);
            let got = joined.ports(&frame);
            // br1 sends what comes by the patch port to 3. A flood goes to 2, and there may be a copy.
            let wanted = if is_device { 5 } else { 3 };
            prop_assert!(got.contains(&wanted) && !got.contains(&(8 - wanted)), "{got:?} {is_device}");
        }
    }
}
