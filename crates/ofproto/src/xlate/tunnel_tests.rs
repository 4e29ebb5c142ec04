//! Tunnels between two hosts, one of which is made of frames.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::DropReason;
use netstate::neighbours::Told;
use netstate::resolution;
use netstate::routes::Origin;
use openflow::text::parse_flow_mod;
use openflow::{FlowModCommand, OfPort};
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Clock, Time};
use ports::dummy::Dummy;
use ports::{Port, registry};
use tunnel::config::{Config, Kind};
use tunnel::header::{Header, Payload, Protocol};
use tunnel::metadata::Metadata;
use tunnel::outer::{self, Decapsulated, Outer, Verify};

use crate::Bridge;
use crate::model::config::BridgeConfig;
use crate::model::port::{Device, PortSpec};
use crate::model::tunnels::TunnelPort;
use crate::reference::tests::Bed;

const OWN: &str = "192.0.2.1";
const THEIRS: &str = "192.0.2.2";
const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A host: `br0` with ports 1 and 2 and tunnel ports from 10 on, and `br-phy`, which has the address and the port `eth0`.
pub(crate) struct Host {
    pub bed: Bed,
    pub phy: Bridge,
    eth0: Arc<Dummy>,
    local: Arc<dyn Port>,
}

impl Host {
    /// With these tunnel ports, each as `type option=value ...`, and these flows of `br0`. The neighbour is known.
    pub fn new(tunnels: &[&str], flows: &[&str]) -> Host {
        let host = Host::without_neighbour(tunnels, flows);
        host.set_neighbour(THEIRS, THEIR_MAC);
        host
    }

    pub fn without_neighbour(tunnels: &[&str], flows: &[&str]) -> Host {
        let bed = Bed::new(2);
        let phy = bed.switch.add_bridge(BridgeConfig::new("br-phy", 2)).unwrap();
        let open = |name: &str, kind: &str| {
            let port = registry::open(&registry::PortSpec::new(name, kind), &bed.env).unwrap();
            port.set_admin_up(true).unwrap();
            port
        };
        let local = open("br-phy", "dummy-internal");
        phy.add_port(PortSpec { request: Some(OfPort::LOCAL), ..PortSpec::new(local.clone()) }).unwrap();
        phy.add_port(PortSpec::new(open("eth0", "dummy"))).unwrap();
        let eth0 = bed.env.dummies.find("eth0").unwrap();
        let mut host = Host { bed, phy, eth0, local };
        for (tunnel, number) in tunnels.iter().zip(10..) {
            host.add_tunnel(tunnel, number).unwrap();
        }
        flows.iter().for_each(|flow| host.add_flow(flow));
        {
            let mut routes = host.bed.switch.netstate().routes.write();
            routes.set_addresses("br-phy", vec![(ip(OWN), 24), (ip("2001:db8::1"), 64)]);
            for net in ["192.0.2.0/24", "2001:db8::/64"] {
                routes.add(0, net.parse().unwrap(), "br-phy", None, Origin::Kernel).unwrap();
            }
        }
        host.bed.switch.netstate_changed();
        host
    }

    pub fn add_tunnel(&mut self, text: &str, number: u32) -> Result<OfPort, crate::Error> {
        self.bed.bridge.add_port(tunnel_port(text, number))
    }

    pub fn add_flow(&self, flow: &str) {
        self.bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }

    /// The same, where it can be.
    pub fn try_flow(&self, flow: &str) {
        if let Ok(flow) = parse_flow_mod(FlowModCommand::Add, flow, &NoNames) {
            let _ = self.bed.bridge.flow_mod(&flow);
        }
    }

    pub fn set_neighbour(&self, of: &str, mac: [u8; 6]) {
        let now = self.bed.clock.now();
        self.bed.switch.netstate().neighbours.lock().set("br-phy", ip(of), mac, Told::Set, now);
        self.bed.switch.netstate_changed();
        self.bed.switch.run(now);
    }

    /// Sends a frame by port 1 of `br0`; returns what leaves by `eth0`.
    pub fn send(&self, frame: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(self.bed.receive(OfPort(1), frame), []);
        self.eth0.take_sent()
    }

    /// Receives a frame by `eth0`; returns what leaves by the ports of `br0`.
    pub fn receive(&self, frame: &[u8]) -> Vec<(OfPort, Vec<u8>)> {
        assert!(self.eth0.inject(frame));
        self.bed.poll();
        self.bed.sent()
    }

    /// A frame of the other host with these headers before `inner`.
    pub fn frame(&self, protocol: Protocol, header: &Header<'_>, inner: &[u8]) -> Vec<u8> {
        let udp = protocol.ip_proto() == 17;
        let dst_port = if protocol == Protocol::Geneve { 6081 } else { 4789 };
        let ports = if udp { (50000, dst_port) } else { (0, 0) };
        let (src, dst) = (ip(THEIRS), ip(OWN));
        let outer = Outer { src, dst, tos: 0, ttl: 64, dont_fragment: true, ports, checksum: false };
        let headers = [&self.local.mac()[..], &THEIR_MAC, &[8, 0]].concat();
        let mut out = vec![0; 2048];
        let each = outer::Each { source_port: 50000, ..Default::default() };
        let prepared = outer::Prepared::new(&headers, &outer, protocol, header).unwrap();
        let len = prepared.len();
        out.truncate(len + inner.len());
        out[len..].copy_from_slice(inner);
        assert!(prepared.write(&mut out, &each));
        out
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.bed.datapath.stats().workers.iter().map(|worker| worker.drops.get(reason)).sum()
    }
}

/// A tunnel port with this number: `type option=value ...`.
pub(super) fn tunnel_port(text: &str, number: u32) -> PortSpec {
    let mut words = text.split(' ');
    let kind = Kind::from_name(words.next().unwrap()).unwrap();
    let (config, problems) = Config::parse(kind, words.map(|word| word.split_once('=').unwrap())).unwrap();
    assert_eq!(problems, []);
    let name = format!("t{number}");
    let device = Device::Tunnel(TunnelPort::new(&name, config, [2, 0, 0, 0, 5, number as u8]));
    PortSpec { request: Some(OfPort(number)), ..PortSpec::of(&name, device) }
}

fn udp(port: u16) -> Vec<u8> {
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, ..Default::default() };
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(port, 53, b"question")))
}

fn decapsulate(frame: &[u8], protocol: Protocol) -> (Decapsulated<'_>, &[u8]) {
    let verify = Verify { ip: true, transport: true };
    let received = outer::decapsulate(&frame[14..], protocol, verify).unwrap();
    (received, &frame[14 + received.start..14 + received.end])
}

const VXLAN: Protocol = Protocol::Vxlan { group_policy: false };

fn vxlan(vni: u32) -> Header<'static> {
    Header::Vxlan { vni, group: None }
}

#[test]
fn what_is_sent_to_a_tunnel_port_leaves_by_the_underlay() {
    let host = Host::new(&["vxlan remote_ip=192.0.2.2 key=7 tos=inherit"], &["in_port=1,actions=10"]);
    for port in [1, 2, 1] {
        let inner = udp(port);
        let sent = host.send(&inner);
        assert_eq!(sent.len(), 1);
        assert_eq!((&sent[0][..6], &sent[0][6..12]), (&THEIR_MAC[..], &host.local.mac()[..]));
        let (received, payload) = decapsulate(&sent[0], VXLAN);
        assert_eq!((received.header, payload), (vxlan(7), &inner[..]));
        assert_eq!((received.outer.src, received.outer.dst), (ip(OWN), ip(THEIRS)));
    }
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_000_000_000));
    let stats = host.bed.bridge.port_stats(OfPort(10));
    assert_eq!((stats[0].tx_packets, stats[0].rx_packets), (3, 0));
    // Over IPv6 likewise.
    let host = Host::new(&["geneve remote_ip=2001:db8::2 key=flow"], &["actions=set_tunnel:9,10"]);
    host.set_neighbour("2001:db8::2", THEIR_MAC);
    let sent = host.send(&udp(1));
    let (received, payload) = decapsulate(&sent[0], Protocol::Geneve);
    assert_eq!((Metadata::of(&received).0.tun_id, payload), (9, &udp(1)[..]));
}

#[test]
fn what_comes_for_a_tunnel_is_received_at_its_port() {
    let tunnels = ["vxlan remote_ip=192.0.2.2 key=7", "vxlan remote_ip=flow key=flow", "gre remote_ip=192.0.2.2"];
    let flows = ["in_port=10,actions=1", "in_port=11,tun_id=9,actions=2", "in_port=12,actions=1,2"];
    let host = Host::new(&tunnels, &flows);
    let inner = udp(1);
    let gre = Header::Gre { key: None, checksum: true, sequence: None, payload: Payload::Ethernet };
    for _ in 0..2 {
        let to = |number: u32| (OfPort(number), inner.clone());
        assert_eq!(host.receive(&host.frame(VXLAN, &vxlan(7), &inner)), [to(1)]);
        assert_eq!(host.receive(&host.frame(VXLAN, &vxlan(9), &inner)), [to(2)]);
        assert_eq!(host.receive(&host.frame(VXLAN, &vxlan(8), &inner)), [], "no flow takes it");
        assert_eq!(host.receive(&host.frame(Protocol::Gre, &gre, &inner)), [to(1), to(2)]);
    }
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_000_000_000));
    let received = |port: u32| host.bed.bridge.port_stats(OfPort(port))[0].rx_packets;
    assert_eq!([10, 11, 12].map(received), [2, 4, 2]);
    // Of another host, no port takes GRE.
    let mut frame = host.frame(Protocol::Gre, &gre, &inner);
    let before = host.drops(DropReason::TunnelPort);
    frame[29] = 3;
    frame[24..26].copy_from_slice(&[0; 2]);
    let sum = packet::wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(host.receive(&frame), []);
    assert_eq!(host.drops(DropReason::TunnelPort), before + 1);
}

#[test]
fn packets_wait_for_a_neighbour_and_keep_their_order() {
    let host = Host::without_neighbour(&["vxlan remote_ip=192.0.2.2"], &["in_port=1,actions=10"]);
    let question = resolution::question(host.local.mac(), ip(OWN), ip(THEIRS)).unwrap();
    let first = host.send(&udp(1));
    // The management port of this test does what the worker's next turns do.
    host.bed.poll();
    assert_eq!([first, host.eth0.take_sent()].concat(), std::slice::from_ref(&question));
    for port in 2..5 {
        assert_eq!(host.send(&udp(port)), Vec::<Vec<u8>>::new(), "it is asked for once");
    }
    // It is asked for again after a second.
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_100_000_000));
    host.bed.poll();
    assert_eq!(host.eth0.take_sent(), [question]);
    let message = build::arp(2, THEIR_MAC, [192, 0, 2, 2].into(), host.local.mac(), [192, 0, 2, 1].into());
    host.receive(&build::ethernet(host.local.mac(), THEIR_MAC, &[], 0x0806, &message));
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_200_000_000));
    host.bed.poll();
    let sent = host.eth0.take_sent();
    let inner: Vec<_> = sent.iter().map(|frame| decapsulate(frame, VXLAN).1.to_vec()).collect();
    assert_eq!(inner, [1, 2, 3, 4].map(udp));
    // And from now on they go at once.
    assert_eq!(host.send(&udp(5)).len(), 1);
}

#[test]
fn packets_are_given_up_whose_neighbour_does_not_answer() {
    let host = Host::without_neighbour(&["vxlan remote_ip=192.0.2.2"], &["in_port=1,actions=10"]);
    for port in 0..70 {
        host.send(&udp(port));
    }
    assert_eq!(host.bed.switch.neighbour_drops(), 6, "more than may wait");
    for second in 1..5 {
        host.bed.switch.run(Time(host.bed.clock.now().0 + second * 1_000_000_001));
    }
    assert_eq!(host.bed.switch.neighbour_drops(), 70);
}

#[test]
fn a_change_below_is_about_the_flows_that_depend_on_it() {
    let tunnels = ["vxlan remote_ip=192.0.2.2 key=1", "vxlan remote_ip=192.0.2.3 key=2"];
    let host = Host::new(&tunnels, &["in_port=1,udp,tp_src=1,actions=10", "in_port=1,udp,tp_src=2,actions=11"]);
    host.set_neighbour("192.0.2.3", [2, 0, 0, 0, 9, 3]);
    let macs = |port: u16| host.send(&udp(port)).iter().map(|frame| frame[..6].to_vec()).collect::<Vec<_>>();
    assert_eq!((macs(1), macs(2)), (vec![THEIR_MAC.to_vec()], vec![vec![2, 0, 0, 0, 9, 3]]));
    let translated = || host.bed.switch.revalidation_stats().translated;
    host.bed.bridge.barrier();
    let before = translated();
    host.set_neighbour(THEIRS, [2, 0, 0, 0, 9, 7]);
    host.bed.bridge.barrier();
    assert_eq!(translated() - before, 1, "the flow that goes there, and no other one");
    assert_eq!(macs(1), [[2, 0, 0, 0, 9, 7]]);
    // A neighbour that nobody uses.
    let before = translated();
    host.set_neighbour("192.0.2.77", THEIR_MAC);
    host.bed.bridge.barrier();
    assert_eq!(translated(), before);
    // A more special route leads over a gateway.
    host.set_neighbour("192.0.2.254", [2, 0, 0, 0, 9, 8]);
    let gateway = Some(ip("192.0.2.254"));
    let mut routes = host.bed.switch.netstate().routes.write();
    routes.add(0, "192.0.2.3/32".parse().unwrap(), "br-phy", gateway, Origin::User).unwrap();
    drop(routes);
    host.bed.switch.netstate_changed();
    host.bed.bridge.barrier();
    assert_eq!((macs(1), macs(2)), (vec![vec![2, 0, 0, 0, 9, 7]], vec![vec![2, 0, 0, 0, 9, 8]]));
    // Without a route there is no way.
    host.bed.switch.netstate().routes.write().remove(0, "192.0.2.0/24".parse().unwrap(), Origin::Kernel);
    host.bed.switch.netstate_changed();
    host.bed.bridge.barrier();
    assert_eq!((macs(1).len(), host.drops(DropReason::TunnelRoute)), (0, 1));
}

#[test]
fn a_tunnel_in_itself_ends() {
    // The bridge that has the tunnel port has its route, too.
    let mut host = Host::new(&[], &[]);
    let config = Config::parse(Kind::Vxlan, [("remote_ip", THEIRS)]).unwrap().0;
    let device = Device::Tunnel(TunnelPort::new("loop", config, [2, 0, 0, 0, 5, 5]));
    let spec = PortSpec::of("loop", device);
    host.phy.add_port(spec).unwrap();
    host.add_tunnel("vxlan remote_ip=192.0.2.2 key=1", 10).unwrap();
    host.add_flow("in_port=1,actions=10");
    // NORMAL floods to the tunnel, whose packets are flooded to it.
    host.send(&udp(1));
    host.send(&udp(1));
    let account = host.bed.datapath.account();
    assert_eq!(account.came(), account.went());
    // Where it is sent nowhere else, that is the reason of its drop.
    host.phy.remove_port(host.phy.port_by_name("eth0").unwrap()).unwrap();
    host.bed.bridge.barrier();
    let before = host.drops(DropReason::PipelineDepth);
    host.bed.receive(OfPort(1), &udp(2));
    assert_eq!(host.drops(DropReason::PipelineDepth), before + 1);
}

#[test]
fn tunnel_ports_come_and_go_with_their_carriers() {
    let mut host = Host::new(&["vxlan remote_ip=192.0.2.2", "vxlan remote_ip=192.0.2.3", "gre remote_ip=flow"], &[]);
    let carriers = |host: &Host| {
        host.bed.switch.carriers().into_iter().map(|carrier| (carrier.name, carrier.users)).collect::<Vec<_>>()
    };
    assert_eq!(carriers(&host), [("vxlan_sys_4789".to_owned(), 2), ("gre_sys".to_owned(), 1)]);
    assert!(matches!(host.add_tunnel("vxlan remote_ip=192.0.2.3", 20), Err(crate::Error::SameTunnel(_))));
    assert!(matches!(
        host.add_tunnel("vxlan remote_ip=192.0.2.4 exts=gbp", 20),
        Err(crate::Error::TunnelConflict { .. })
    ));
    assert_eq!(host.bed.bridge.port(OfPort(10)).unwrap().dp_port.unwrap().0, 4789);
    host.bed.bridge.remove_ports(&[OfPort(10), OfPort(12)]).unwrap();
    assert_eq!(carriers(&host), [("vxlan_sys_4789".to_owned(), 1)]);
    host.bed.bridge.remove_port(OfPort(11)).unwrap();
    assert_eq!((carriers(&host), host.bed.datapath.ports().len()), (vec![], 4));
    host.add_tunnel("vxlan remote_ip=192.0.2.3", 20).unwrap();
    assert_eq!(carriers(&host), [("vxlan_sys_4789".to_owned(), 1)]);
}

#[test]
fn a_tunnel_that_changes_is_there_all_the_time() {
    let mut host = Host::new(&["vxlan remote_ip=192.0.2.2"], &[]);
    host.add_tunnel("vxlan remote_ip=192.0.2.3 key=3", 11).unwrap();
    let bridge = &host.bed.bridge;
    let change = |options: &str| {
        let options = options.split(' ').map(|option| option.split_once('=').unwrap());
        let config = Config::parse(Kind::Vxlan, options).unwrap().0;
        bridge.change_tunnel(OfPort(10), &TunnelPort::new("changed", config, [2, 0, 0, 0, 5, 5]))
    };
    let listed = || host.bed.switch.tunnels().concat();
    let carrier = host.bed.switch.carriers();
    bridge.port(OfPort(10)).unwrap().device.unwrap().set_admin_up(false).unwrap();
    assert!(change("remote_ip=192.0.2.2 key=9"));
    assert!(!bridge.port(OfPort(10)).unwrap().device.unwrap().link().admin_up, "as it was");
    assert_eq!(host.bed.switch.carriers(), carrier);
    let before = listed();
    // What another port has, another UDP port, and another form of headers.
    for options in ["remote_ip=192.0.2.3 key=3", "remote_ip=192.0.2.2 dst_port=4790", "remote_ip=192.0.2.2 exts=gbp"] {
        assert!(!change(options), "{options}");
    }
    assert_eq!((listed(), host.bed.switch.carriers()), (before, carrier));
}

#[test]
fn the_only_tunnel_of_a_udp_port_may_change_what_it_carries() {
    let mut host = Host::new(&["vxlan remote_ip=192.0.2.2"], &[]);
    let replace = |host: &Host, port: u32, options: &str| {
        let (kind, options) = options.split_once(' ').unwrap();
        let options = options.split(' ').map(|option| option.split_once('=').unwrap());
        let config = Config::parse(Kind::from_name(kind).unwrap(), options).unwrap().0;
        let name = host.bed.bridge.port(OfPort(port)).unwrap().name;
        host.bed.bridge.close_device(OfPort(port)).unwrap();
        host.bed.bridge.replace_tunnel(OfPort(port), &TunnelPort::new(&name, config, [2, 0, 0, 0, 5, 5]))
    };
    let carriers =
        |host: &Host| host.bed.switch.carriers().into_iter().map(|carrier| carrier.users).collect::<Vec<_>>();
    for options in [
        "vxlan remote_ip=192.0.2.2 exts=gbp",
        "vxlan remote_ip=192.0.2.2 exts=gpe",
        "vxlan remote_ip=192.0.2.2 exts=gbp",
    ] {
        replace(&host, 10, options).unwrap();
        assert_eq!(carriers(&host), [1], "{options}");
    }
    // Another UDP port and another type are none of its business; a port that shares its own is.
    host.add_tunnel("vxlan remote_ip=192.0.2.3 dst_port=4790", 11).unwrap();
    host.add_tunnel("geneve remote_ip=192.0.2.3", 12).unwrap();
    host.add_tunnel("vxlan remote_ip=192.0.2.3 exts=gbp", 13).unwrap();
    let plain = replace(&host, 10, "vxlan remote_ip=192.0.2.2");
    assert!(matches!(plain, Err(crate::Error::TunnelConflict { .. })), "{plain:?}");
    assert_eq!(carriers(&host), [1, 1, 1]);
}

#[test]
fn rules_below_a_tunnel_count_its_headers() {
    let host = Host::new(&["vxlan remote_ip=192.0.2.2"], &["in_port=1,actions=10"]);
    let inner = udp(1);
    (0..3).for_each(|_| assert_eq!(host.send(&inner).len(), 1));
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_000_000_000));
    let bytes = |bridge: &crate::Bridge, port: u32| {
        let flows = bridge.flow_stats(&crate::reference::tests::all_flows()).unwrap();
        (flows.iter().map(|flow| flow.byte_count).max(), bridge.port_stats(OfPort(port))[0].tx_bytes)
    };
    let len = inner.len() as u64;
    assert_eq!(bytes(&host.bed.bridge, 10), (Some(3 * len), 3 * len));
    assert_eq!(bytes(&host.phy, 1), (Some(3 * (len + 50)), 3 * (len + 50)));
}

#[test]
fn packets_tell_where_a_known_neighbour_is() {
    let host = Host::new(&["vxlan remote_ip=192.0.2.2"], &["in_port=1,actions=10", "in_port=10,actions=1"]);
    let known = || {
        let now = host.bed.clock.now();
        host.bed.switch.netstate().neighbours.lock().look("br-phy", ip(THEIRS), now)
    };
    let mut frame = host.frame(VXLAN, &vxlan(0), &udp(1));
    frame[6..12].copy_from_slice(&[2; 6]);
    host.receive(&frame);
    assert_eq!(known(), Some(THEIR_MAC), "an operator has said so");
    let now = host.bed.clock.now();
    {
        let mut neighbours = host.bed.switch.netstate().neighbours.lock();
        neighbours.flush(None);
        neighbours.set("br-phy", ip(THEIRS), THEIR_MAC, Told::Heard, now);
    }
    host.bed.switch.netstate_changed();
    frame[6..12].copy_from_slice(&[4; 6]);
    host.receive(&frame);
    assert_eq!(known(), Some([4; 6]));
    host.bed.switch.run(now);
    assert_eq!(host.send(&udp(1))[0][..6], [4; 6]);
}

#[test]
fn neighbours_go_with_their_port() {
    let host = Host::new(&["vxlan remote_ip=192.0.2.2"], &[]);
    let now = host.bed.clock.now();
    let netstate = host.bed.switch.netstate();
    netstate.neighbours.lock().set("eth0", ip(THEIRS), THEIR_MAC, Told::Heard, now);
    host.phy.remove_port(OfPort(1)).unwrap();
    assert_eq!(netstate.neighbours.lock().look("eth0", ip(THEIRS), now), None);
    let known = || netstate.neighbours.lock().look("br-phy", ip(THEIRS), now).is_some();
    assert!(known());
    // The bridge's own port goes where it gets other options.
    host.phy.remove_port(OfPort::LOCAL).unwrap();
    assert!(known());
    host.bed.switch.remove_bridge("br-phy").unwrap();
    assert!(!known());
}

#[test]
fn packets_without_ethernet_count_without_it() {
    let host = Host::new(&["gre remote_ip=192.0.2.2 packet_type=legacy_l3"], &["in_port=10,actions=1"]);
    let inner = udp(1);
    let header = Header::Gre { key: None, checksum: false, sequence: None, payload: Payload::Packet(0x0800) };
    // The first by the slow path, the others by its flow.
    for _ in 0..3 {
        let received = host.receive(&host.frame(Protocol::Gre, &header, &inner[14..]));
        assert_eq!(received.len(), 1);
    }
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_000_000_000));
    let stats = &host.bed.bridge.port_stats(OfPort(10))[0];
    assert_eq!((stats.rx_packets, stats.rx_bytes), (3, 3 * (inner.len() as u64 - 14)));
}

#[test]
fn later_passes_of_packets_from_a_tunnel_match_it_too() {
    let flows = ["in_port=10,ip,actions=ct(table=1)", "table=1,actions=1"];
    let host = Host::new(&["vxlan remote_ip=192.0.2.2 key=flow"], &flows);
    for vni in [7, 9] {
        assert_eq!(host.receive(&host.frame(VXLAN, &vxlan(vni), &udp(1))).len(), 1);
    }
    let later = |flow: &datapath::FlowDump| flow.key.common().recirc_id.get() != 0;
    let matched = host.bed.datapath.flows().filter(later).map(|flow| {
        let (key, mask) = (flow.key.tunnel(), flow.mask.0.tunnel());
        (key.tun_id.get(), mask.tun_id.get(), mask.tun_src.get(), mask.tun_dst.get())
    });
    let mut matched: Vec<_> = matched.collect();
    matched.sort_unstable();
    assert_eq!(matched, [7, 9].map(|vni| (vni, u64::MAX, u32::MAX, u32::MAX)));
}

#[test]
fn packets_that_are_translated_one_by_one_have_a_flow() {
    let host = Host::new(&["vxlan remote_ip=192.0.2.2"], &["in_port=1,actions=debug_slow,10"]);
    let inner = udp(1);
    for _ in 0..3 {
        assert_eq!(host.send(&inner).len(), 1);
    }
    let slow = [datapath::Action::Punt(std::sync::Arc::new(datapath::Punt::Slow))];
    let mut flows = host.bed.datapath.flows();
    assert!(flows.any(|flow| flow.actions[..] == slow && flow.stats.packets == 2));
    host.bed.switch.run(Time(host.bed.clock.now().0 + 1_000_000_000));
    assert_eq!(host.bed.bridge.port_stats(OfPort(10))[0].tx_packets, 3);
    host.add_flow("in_port=1,actions=drop");
    assert_eq!(host.send(&inner), Vec::<Vec<u8>>::new());
}

/// Metadata goes to the tunnel's port of the datapath, as the text of OVS says it.
#[test]
fn tunnels_can_be_left_to_the_datapath() {
    let host = Host::new(&["geneve remote_ip=192.0.2.2 key=7"], &["in_port=1,actions=10"]);
    host.bed.switch.set_tunnel_push_pop(false);
    assert_eq!(host.send(&udp(1)), Vec::<Vec<u8>>::new());
    let mut text = String::new();
    for flow in host.bed.datapath.flows() {
        datapath::text::format_actions(&mut text, &flow.actions, &flow.key, &Default::default());
    }
    assert!(text.starts_with("set(tunnel(tun_id=0x7,dst=192.0.2.2,ttl=64,tp_dst=6081,flags(df|key))),"), "{text}");
}
