//! Every reason to drop a packet is raised by one, and counted once.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath::pipeline::ingress::{Filter, Ingress};
use datapath::{Config, DropReason, EgressLimits, PolicerLimits, Punt, RateLimit, SflowPunt, ShaperLimits};
use openflow::meter::{Band, BandKind, MeterCommand, MeterFlags};
use openflow::text::parse_flow_mod;
use openflow::{
    FlowModCommand, FragHandling, MeterConfig, MeterMod, OfPort, PortConfig, PortFeatures, PortMod, SwitchConfig,
};
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Offload, Packet, Pool, PoolConfig, Time};
use ports::Port as _;
use protocols::mcast::Settings;
use protocols::spanning_tree::State;
use protocols::stp;
use tunnel::header::{Header, Payload, Protocol};

use crate::model::bond::BondMode;
use crate::model::config::BridgeConfig;
use crate::model::mirror::{Mirror, MirrorOutput, PortSelection};
use crate::model::vlan::{PortVlan, VlanMode};
use crate::reference::tests::Bed;
use crate::switch::SwitchSettings;
use crate::xlate::tunnel_tests::Host;

const ME: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A UDP datagram in a VLAN or none.
fn frame(vlan: Option<u16>, ttl: u8, fragment: bool) -> Vec<u8> {
    let header =
        build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, ttl, ..Default::default() };
    let mut packet = header.packet(build::udp(1000, 53, b"question"));
    if fragment {
        // "More fragments", and a checksum that nobody looks at.
        packet[6] |= 0x20;
    }
    let tags: Vec<_> = vlan.map(|vid| (0x8100, vid)).into_iter().collect();
    build::ethernet(OTHER, ME, &tags, 0x0800, &packet)
}

fn udp() -> Vec<u8> {
    frame(None, 64, false)
}

/// A switch with ports 1 to 3 and these flows.
fn bed(flows: &[&str]) -> Bed {
    bed_with(flows, Config::default())
}

fn bed_with(flows: &[&str], config: Config) -> Bed {
    let bed = Bed::with(3, config);
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

/// Receives a frame by port 1. Nothing is sent.
fn ends(bed: Bed, frame: &[u8]) -> Bed {
    assert_eq!(bed.receive(OfPort(1), frame), []);
    bed
}

fn configure(bed: &Bed, port: u32, config: PortConfig) {
    let hw_addr = bed.bridge.port_descs(OfPort(port))[0].hw_addr;
    let change = PortMod { port: OfPort(port), hw_addr, config, mask: config, advertise: PortFeatures::empty() };
    bed.bridge.port_mod(&change).unwrap();
}

fn repeat(action: &str, times: usize) -> String {
    format!("actions={}", vec![action; times].join(","))
}

/// An ingress filter.
struct RefuseAll;

impl Filter for RefuseAll {
    fn refused(&mut self, _: &[Packet], _: Time) -> u32 {
        u32::MAX
    }
}

/// A fragment of an IPv4 packet, of more to come.
fn fragment(offset: u16, len: usize) -> Vec<u8> {
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let flags_offset = 0x2000 | (offset / 8);
    let header = build::Ipv4 { src, dst, proto: 17, flags_offset, ..Default::default() };
    // Longer than the least size of a fragment.
    build::ethernet(OTHER, ME, &[], 0x0800, &header.packet(vec![0; len + 1200]))
}

/// A switch that tracks packets, and that waits for the rest of a datagram.
fn tracked(offset: u16, len: usize) -> Bed {
    let bed = ends(bed(&["ip,actions=ct(commit),output:2"]), &fragment(offset, len));
    assert_eq!(bed.datapath.conntrack().fragments.status().held, 1);
    bed
}

/// A frame in GRE for the host of [`Host`].
fn gre() -> Vec<u8> {
    let header = Header::Gre { key: None, checksum: false, sequence: None, payload: Payload::Ethernet };
    Host::new(&[], &[]).frame(Protocol::Gre, &header, &udp())
}

fn set_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].copy_from_slice(&[0; 2]);
    let sum = packet::wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A host with tunnels that has received a frame.
fn received(tunnels: &[&str], frame: &[u8]) -> Bed {
    let host = Host::new(tunnels, &["actions=1"]);
    assert_eq!(host.receive(frame), []);
    host.bed
}

/// A host with a tunnel to which it has sent a frame.
fn sent(tunnels: &[&str], frame: &[u8]) -> Bed {
    let host = Host::new(tunnels, &["actions=10"]);
    assert_eq!(host.send(frame), Vec::<Vec<u8>>::new());
    host.bed
}

/// One packet in a very long time.
fn limited_to_one() -> PolicerLimits {
    PolicerLimits { packets: Some(RateLimit { rate: 1, burst: 1 }), ..PolicerLimits::default() }
}

/// The second of two packets is too much for one of the policers.
fn policed(ingress: PolicerLimits, egress: PolicerLimits) -> Bed {
    let bed = bed(&["in_port=1,actions=output:2"]);
    for (n, (port, _)) in bed.datapath.ports().into_iter().enumerate() {
        let limits = if n == 0 { (ingress, PolicerLimits::default()) } else { (PolicerLimits::default(), egress) };
        bed.datapath.set_policers(port, limits.0, EgressLimits::OneRate(limits.1)).unwrap();
    }
    assert_eq!(bed.receive(OfPort(1), &udp()).len(), 1);
    ends(bed, &udp())
}

/// What raises a reason.
fn raise(reason: DropReason) -> Bed {
    match reason {
        DropReason::Rule => ends(bed(&["actions=drop"]), &udp()),
        DropReason::InPortDown => {
            let bed = bed(&["actions=output:2"]);
            configure(&bed, 1, PortConfig::NO_RECV);
            ends(bed, &udp())
        }
        DropReason::IngressFilter => {
            let bed = bed(&["actions=output:2"]);
            for (port, _) in bed.datapath.ports() {
                let ingress = |_| Some(Box::new(Ingress { filter: Some(Box::new(RefuseAll)), ..Ingress::default() }));
                bed.datapath.set_ingress(port, ingress).unwrap();
            }
            ends(bed, &udp())
        }
        DropReason::IngressPolicer => policed(limited_to_one(), PolicerLimits::default()),
        DropReason::UpcallQueueFull => {
            let bed = bed_with(&["actions=output:2"], Config { upcall_queue: 2, ..Config::default() });
            (0..32).for_each(|_| assert!(bed.devices[0].inject(&udp())));
            bed.poll();
            bed
        }
        DropReason::SampleLost => {
            let bed = bed_with(&[], Config { upcall_queue: 2, ..Config::default() });
            let punt = SflowPunt { bridge: 0, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
            let punt = datapath::Action::Punt(Arc::new(Punt::Sflow(punt)));
            let sample = datapath::Action::Sample { probability: u32::MAX, actions: vec![punt.clone()] };
            let output = datapath::Action::Output(bed.bridge.port(OfPort(2)).unwrap().dp_port.unwrap());
            let actions = [punt.clone(), punt, sample, output];
            bed.datapath.execute(Packet::from_slice(&udp()), &packet::Key::new(), &actions);
            bed.poll();
            assert_eq!(bed.sent().len(), 1, "the packet itself goes on");
            bed
        }
        DropReason::UpcallError => {
            let bed = bed(&["actions=output:2"]);
            bed.switch.set_settings(SwitchSettings { hold_misses: true, ..SwitchSettings::default() });
            ends(bed, &udp())
        }
        DropReason::TtlExceeded => ends(bed(&["ip,actions=dec_ttl,output:2"]), &frame(None, 1, false)),
        DropReason::VlanNotAllowed => {
            let bed = bed(&["actions=NORMAL"]);
            let access = PortVlan { mode: VlanMode::Access, tag: 5, ..PortVlan::default() };
            bed.bridge.set_port_vlan(OfPort(1), access).unwrap();
            ends(bed, &frame(Some(6), 64, false))
        }
        DropReason::Reflection => {
            let bed = bed(&["actions=NORMAL"]);
            let back = build::ethernet(ME, OTHER, &[], 0x88b5, &[0; 46]);
            assert_eq!(bed.receive(OfPort(1), &back).len(), 2, "flooded");
            ends(bed, &udp())
        }
        DropReason::ProtectedPort => {
            let bed = bed(&["actions=output:2"]);
            for port in [1, 2] {
                let vlan = PortVlan { protected: true, ..PortVlan::default() };
                bed.bridge.set_port_vlan(OfPort(port), vlan).unwrap();
            }
            ends(bed, &udp())
        }
        DropReason::BondAdmission => {
            let bed = super::bond_tests::bond(BondMode::ActiveBackup);
            // The second member is the backup.
            assert_eq!(bed.receive(OfPort(2), &udp()), []);
            bed
        }
        DropReason::ReservedAddress => {
            let bpdu = build::ethernet([1, 0x80, 0xc2, 0, 0, 1], ME, &[], 0x8808, &[0; 46]);
            ends(bed(&["actions=NORMAL"]), &bpdu)
        }
        DropReason::SpanningTree => {
            let bed = bed(&["actions=output:2"]);
            bed.set_tree_state(OfPort(1), Some(State::Stp(stp::State::Listening)));
            ends(bed, &udp())
        }
        DropReason::NoMulticastReceiver => {
            let bed = bed(&["actions=NORMAL"]);
            let snooping = Settings { flood_unregistered: false, ..Settings::default() };
            bed.bridge.set_config(BridgeConfig { mcast_snooping: Some(snooping), ..bed.bridge.config() });
            let header = build::Ipv4 { dst: [239, 0, 0, 1].into(), proto: 17, ..Default::default() };
            let packet = header.packet(build::udp(1000, 53, b"nobody"));
            ends(bed, &build::ethernet([1, 0, 0x5e, 0, 0, 1], ME, &[], 0x0800, &packet))
        }
        DropReason::MirrorPort => {
            let bed = bed(&["actions=NORMAL"]);
            let mirror = Mirror {
                name: "m0".into(),
                sources: PortSelection::Ports(["p2".to_owned()].into()),
                destinations: PortSelection::Ports(Default::default()),
                vlans: None,
                output: MirrorOutput::Port("p1".into()),
                max_len: None,
            };
            bed.bridge.set_config(BridgeConfig { mirrors: vec![mirror], ..bed.bridge.config() });
            ends(bed, &udp())
        }
        DropReason::Fragment => {
            let bed = bed(&["actions=output:2"]);
            let config = SwitchConfig { frag: FragHandling::Drop, invalid_ttl_to_controller: None, miss_send_len: 0 };
            bed.bridge.set_switch_config(config).unwrap();
            ends(bed, &frame(None, 64, true))
        }
        DropReason::PipelineDepth => ends(bed(&["actions=resubmit(,0)"]), &udp()),
        DropReason::TooManyResubmits => {
            let twice = "actions=resubmit(,1),resubmit(,1)";
            let tables: Vec<_> =
                (0..12).map(|t| format!("table={t},{}", twice.replace(",1)", &format!(",{})", t + 1)))).collect();
            ends(bed(&tables.iter().map(String::as_str).collect::<Vec<_>>()), &udp())
        }
        DropReason::StackTooDeep => {
            let pushes = format!("{},resubmit(,1)", repeat("push:NXM_NX_REG0[]", 4096));
            ends(bed(&[&pushes, "table=1,actions=output:2"]), &udp())
        }
        DropReason::UnsupportedPacketType => ends(bed(&["actions=encap(ethernet),output:2"]), &udp()),
        DropReason::TooManyLabels => ends(bed(&[&format!("{},output:2", repeat("push_mpls:0x8847", 4))]), &udp()),
        DropReason::TooMuchWork => ends(bed(&[&repeat("output:2,output:3,IN_PORT", 11_000)]), &udp()),
        DropReason::RecursionTooDeep => {
            let bed = bed(&[]);
            let key = packet::Key::new();
            let nested = (0..=datapath::MAX_NESTING).fold(Vec::new(), |inner, _| vec![datapath::Action::Clone(inner)]);
            bed.datapath.execute(Packet::from_slice(&udp()), &key, &nested);
            bed.poll();
            bed
        }
        DropReason::RecirculationStorm => {
            let bed = bed(&[]);
            let round = vec![datapath::Action::Recirc(0); 1025];
            bed.datapath.execute(Packet::from_slice(&udp()), &packet::Key::new(), &round);
            bed.poll();
            bed
        }
        DropReason::Meter => {
            let bed = bed(&[]);
            let flags = MeterFlags::PKTPS;
            let config = MeterConfig { meter: 1, flags, bands: vec![Band { kind: BandKind::Drop, rate: 1, burst: 1 }] };
            bed.bridge.meter_mod(&MeterMod { command: MeterCommand::Add, config }).unwrap();
            bed.bridge
                .flow_mod(&parse_flow_mod(FlowModCommand::Add, "actions=meter:1,output:2", &NoNames).unwrap())
                .unwrap();
            assert_eq!(bed.receive(OfPort(1), &udp()).len(), 1);
            ends(bed, &udp())
        }
        DropReason::NoBuffer => {
            let bed = bed(&["actions=output:2,output:3"]);
            let pool = Pool::new(PoolConfig { chunks: 1, chunk_size: 512, headroom: 0 }).unwrap();
            let only = Packet::from_slice(&udp()).duplicate_in(pool.memory()).unwrap();
            assert!(bed.devices[0].inject_packet(0, only));
            bed.poll();
            assert_eq!(bed.sent().len(), 1, "the packet itself, without the copy");
            bed
        }
        DropReason::FragmentOverlap => {
            let bed = tracked(0, 80);
            ends(bed, &fragment(8, 80))
        }
        DropReason::FragmentExpired => {
            let bed = tracked(0, 80);
            bed.clock.advance(conntrack::fragments::TIMEOUT);
            (0..2).for_each(|_| bed.poll());
            bed
        }
        DropReason::FragmentPurged => {
            let bed = tracked(0, 80);
            bed.datapath.remove_port(bed.bridge.port(OfPort(1)).unwrap().dp_port.unwrap()).unwrap();
            bed
        }
        DropReason::TunnelPort => received(&["gre remote_ip=192.0.2.3"], &gre()),
        DropReason::TunnelHeader => {
            let mut frame = gre();
            frame[34] = 1;
            received(&["gre remote_ip=flow"], &frame)
        }
        DropReason::TunnelChecksum => {
            let mut frame = gre();
            frame[15] = 8;
            received(&["gre remote_ip=flow"], &frame)
        }
        DropReason::TunnelFragment => {
            let mut frame = gre();
            (frame[20], frame[21]) = (0x20, 0);
            received(&["gre remote_ip=flow"], &set_checksum(frame))
        }
        DropReason::TunnelOption => {
            let host = Host::new(&["geneve remote_ip=flow"], &[]);
            let header = Header::Geneve { vni: 0, oam: false, payload: Payload::Ethernet, options: &[0, 0, 0, 0] };
            let mut frame = host.frame(Protocol::Geneve, &header, &udp());
            frame[53] = 1;
            assert_eq!(host.receive(&frame), []);
            host.bed
        }
        DropReason::Congestion => {
            let mut frame = gre();
            frame[15] = 3;
            received(&["gre remote_ip=flow"], &set_checksum(frame))
        }
        DropReason::TunnelRoute => sent(&["gre remote_ip=203.0.113.1"], &udp()),
        DropReason::TunnelBuild => sent(&["erspan remote_ip=192.0.2.2 key=70000 erspan_ver=1 erspan_idx=1"], &udp()),
        DropReason::TunnelPush => sent(&["gre remote_ip=192.0.2.2"], &[2; 65_530]),
        DropReason::Malformed => {
            let bed = bed(&["actions=output(port=2,max_len=20)"]);
            let mut packet = Packet::from_slice(&udp());
            *packet.offload_mut() = Offload { gso_type: Offload::GSO_TCPV6, gso_size: 100, ..Offload::NONE };
            assert!(bed.devices[0].inject_packet(0, packet));
            bed.poll();
            bed
        }
        DropReason::NoSuchPort => ends(bed(&["actions=output:9"]), &udp()),
        DropReason::PortDown => {
            let bed = bed(&["actions=output:2"]);
            bed.devices[1].set_admin_up(false).unwrap();
            bed.datapath.refresh_port(bed.bridge.port(OfPort(2)).unwrap().dp_port.unwrap()).unwrap();
            ends(bed, &udp())
        }
        DropReason::EgressPolicer => policed(PolicerLimits::default(), limited_to_one()),
        DropReason::QueueFull => {
            let bed = bed(&["actions=output:2"]);
            let port = bed.bridge.port(OfPort(2)).unwrap().dp_port.unwrap();
            let limit = |limits| bed.datapath.set_policers(port, PolicerLimits::default(), limits).unwrap();
            limit(EgressLimits::Shaper(ShaperLimits { kind: "linux-htb", max: 1, queues: BTreeMap::new() }));
            for _ in 0..1100 {
                assert!(bed.devices[0].inject(&udp()));
                bed.poll();
            }
            // What waits leaves with the limit.
            limit(EgressLimits::Nothing);
            bed
        }
        DropReason::TooBig => ends(bed(&["actions=output:2"]), &[2; 2000]),
    }
}

/// A reason without a packet that raises it does not compile above; one that is not raised, or not alone, fails here.
#[test]
fn every_reason_is_raised() {
    for &reason in DropReason::ALL {
        let bed = raise(reason);
        let account = bed.datapath.account();
        let raised: Vec<_> = account.drops.iter().map(|(reason, _)| reason).collect();
        assert_eq!(raised, [reason], "{account}");
        assert_eq!(account.came(), account.went(), "{}: {account}", reason.name());
        assert_eq!(bed.datapath.stats().workers[0].drops, account.drops);
    }
}

/// The datapath actions of the only flow, as `dpctl/dump-flows` shows them.
fn shown(bed: &Bed) -> String {
    let flows: Vec<_> = bed.datapath.flows().collect();
    assert_eq!(flows.len(), 1);
    let mut text = String::new();
    let context = datapath::text::Context::default();
    datapath::text::format_actions(&mut text, &flows[0].actions, &flows[0].key, &context);
    text
}

#[test]
fn reasons_do_not_show_in_actions() {
    assert_eq!(shown(&raise(DropReason::Rule)), "drop");
    assert_eq!(shown(&ends(bed(&["actions=output:1"]), &udp())), "drop");
    assert_eq!(shown(&raise(DropReason::VlanNotAllowed)), "drop");
    // The controller is told, and the packet ends here all the same.
    let bed = raise(DropReason::TtlExceeded);
    let text = shown(&bed);
    assert!(text.starts_with("userspace(") && !text.contains("drop"), "{text}");
    let account = bed.datapath.account();
    assert_eq!((account.punted, account.drops.total(), account.copied), (1, 1, 1));
}

#[test]
fn what_goes_anywhere_is_not_dropped() {
    for (flow, sent) in [
        ("actions=output:1,output:2", vec![2]),
        ("actions=NORMAL,output:1", vec![2, 3]),
        ("ip,actions=output:2,set_field:1->nw_ttl,dec_ttl,output:3", vec![2]),
    ] {
        let bed = bed(&[flow]);
        let ports: Vec<_> = bed.receive(OfPort(1), &udp()).into_iter().map(|(port, _)| port.0).collect();
        assert_eq!((ports, bed.datapath.account().drops.total()), (sent, 0), "{flow}");
    }
    // Each branch of a choice by length has its own end.
    let bed = bed(&["actions=check_pkt_larger(100)->NXM_NX_REG0[0],output:1"]);
    let drops = ends(bed, &udp()).datapath.account().drops;
    assert_eq!((drops.get(DropReason::Reflection), drops.total()), (1, 1));
}
