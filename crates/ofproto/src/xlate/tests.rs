//! Cached outcomes against fresh ones, for actions whose outcome the reference does not know: whatever
//! has been cached from other packets, a packet fares as it does when nothing is.

use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, Match, OfPort, PortConfig, PortMod};
use packet::Field;
use packet::flow::text::NoNames;
use packet::wire::build;
use proptest::prelude::*;
use proptest::sample::select;

use crate::model::vlan::{PortVlan, VlanMode};
use crate::reference::tests::{Bed, frame};

const PORTS: u32 = 4;

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::new(PORTS);
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

fn check(bed: &Bed, frames: &[(u32, Vec<u8>)]) -> Result<(), TestCaseError> {
    let cached: Vec<_> = frames.iter().map(|(port, frame)| bed.receive(OfPort(*port), frame)).collect();
    for ((port, frame), cached) in frames.iter().zip(cached) {
        bed.switch.purge();
        prop_assert_eq!(cached, bed.receive(OfPort(*port), frame), "from port {} frame {:02x?}", port, frame);
    }
    Ok(())
}

const CHOICES: &[&str] = &[
    "actions=bundle(FIELDS,7,hrw,ofport,members:1,2,3)",
    "actions=bundle(FIELDS,7,active_backup,ofport,members:3,2)",
    "actions=bundle_load(FIELDS,7,hrw,ofport,NXM_NX_REG0[],members:1,2,3),output:NXM_NX_REG0[]",
    "actions=multipath(FIELDS,3,modulo_n,4,0,NXM_NX_REG1[0..7]),output:NXM_NX_REG1[]",
    "actions=multipath(FIELDS,3,hash_threshold,4,0,NXM_NX_REG1[0..7]),output:NXM_NX_REG1[]",
    "actions=multipath(FIELDS,3,hrw,4,0,NXM_NX_REG1[0..7]),output:NXM_NX_REG1[]",
    "actions=multipath(FIELDS,3,iter_hash,4,0,NXM_NX_REG1[0..7]),output:NXM_NX_REG1[]",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn choices_by_a_hash(
        choice in select(CHOICES),
        fields in select(openflow::action::HashFields::NAMES),
        frames in proptest::collection::vec((1..=PORTS, frame()), 1..12),
    ) {
        check(&bed(&[&choice.replace("FIELDS", fields.1)]), &frames)?;
    }
}

#[test]
fn ipv6_packets_with_addresses_took_the_flow_of_one_that_is_cut_short() {
    let addresses = [0; 16].iter().chain(&[7; 16]).copied();
    let header = [0x60, 0, 0, 0, 0, 0, 59, 64].into_iter().chain(addresses);
    let whole: Vec<u8> = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd].into_iter().chain(header).collect();
    for fields in openflow::action::HashFields::NAMES {
        for choice in CHOICES {
            let bed = bed(&[&choice.replace("FIELDS", fields.1)]);
            check(&bed, &[(1, whole[..14].to_vec()), (1, whole.clone())]).unwrap();
        }
    }
}

const SELECTIONS: &[(&str, &[(Field, u128)])] = &[
    ("", &[]),
    ("dp_hash", &[]),
    ("hash", &[(Field::NwDst, 0xff)]),
    ("hash", &[(Field::DlSrc, 3), (Field::UdpDst, 0xffff)]),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn select_groups(
        selection in select(SELECTIONS),
        weights in proptest::collection::vec(0u16..4, 0..5),
        frames in proptest::collection::vec((1..=PORTS, frame()), 1..12),
    ) {
        let bed = bed(&[]);
        let bucket = |(n, weight): (u32, u16)| Bucket {
            id: n,
            weight,
            watch_port: if n == 2 { OfPort(9) } else { OfPort::ANY },
            watch_group: GroupId::ANY,
            actions: vec![Action::set_field(Field::DlDst, n.into()), Action::output(OfPort::IN_PORT)],
        };
        let (method, fields) = selection;
        let selection = Selection { method: method.into(), param: 5, fields: fields.to_vec() };
        let buckets = (0..).zip(weights).map(bucket).collect();
        bed.put_group(1, &GroupSpec { kind: GroupType::Select, buckets, selection });
        bed.add_flow(0, 1, Match::any(), vec![Action::Group(GroupId(1))]);
        check(&bed, &frames)?;
    }
}

/// The datapath hashes; however many connections there are, its flows are as many as there are places.
#[test]
fn a_select_group_takes_few_flows() {
    let bed = bed(&[]);
    let bucket = |(id, weight): (u32, u16)| Bucket {
        id,
        weight,
        watch_port: OfPort(3 + id),
        watch_group: GroupId::ANY,
        actions: vec![Action::output(OfPort(3 + id))],
    };
    let buckets = (0..).zip([1, 3]).map(bucket).collect();
    bed.put_group(1, &GroupSpec { kind: GroupType::Select, buckets, selection: Selection::default() });
    let mut ip = Match::any();
    ip.set(Field::DlType, 0x0800);
    let rewrite = Action::set_field(Field::DlSrc, 0x0200_0000_0009);
    bed.add_flow(0, 1, ip, vec![rewrite, Action::Group(GroupId(1)), Action::output(OfPort(2))]);
    let send = || {
        let mut sent = [0; 5];
        for n in 0..=255 {
            let ip = build::Ipv4 {
                src: [10, 0, 0, n].into(),
                dst: [10, 0, 1, 1].into(),
                proto: 17,
                ..build::Ipv4::default()
            };
            let packet = ip.packet(build::udp(1, 2, b"x"));
            let frame = build::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], 0x0800, &packet);
            for (port, sent_frame) in bed.receive(OfPort(1), &frame) {
                assert_eq!(sent_frame[6..12], [2, 0, 0, 0, 0, 9]);
                sent[port.0 as usize] += 1;
            }
        }
        sent
    };
    let sent = send();
    assert_eq!((sent[2], sent[3] + sent[4]), (256, 256));
    assert!((24..=104).contains(&sent[3]), "a quarter of them, more or less: {sent:?}");
    assert_eq!(send(), sent, "the same flows go the same ways");
    let hashing = |flow: &datapath::FlowDump| flow.actions.iter().any(|a| matches!(a, datapath::Action::Hash { .. }));
    assert_eq!(bed.datapath.flows().filter(hashing).count(), 1);
    let flows = bed.datapath.flows().count();
    assert!(flows <= 17, "{flows}");
}

/// A bundle uses another member once the first is down, also for packets that are cached.
#[test]
fn a_bundle_leaves_ports_that_are_down() {
    let bed = bed(&["actions=bundle(eth_src,0,active_backup,ofport,members:2,3)"]);
    let frame = [&[2; 12][..], &[0x88, 0xb5], &[0; 46]].concat();
    let to = || bed.receive(OfPort(1), &frame).into_iter().map(|(port, _)| port.0).collect::<Vec<_>>();
    assert_eq!((to(), to()), (vec![2], vec![2]));
    let set = |port: u32, down: bool| {
        let desc = &bed.bridge.port_descs(OfPort(port))[0];
        let config = if down { PortConfig::PORT_DOWN } else { PortConfig::empty() };
        let change = PortMod {
            port: OfPort(port),
            hw_addr: desc.hw_addr,
            config,
            mask: PortConfig::PORT_DOWN,
            advertise: openflow::PortFeatures::empty(),
        };
        bed.bridge.port_mod(&change).unwrap();
        bed.switch.run(packet::Clock::now(&*bed.clock));
    };
    set(2, true);
    assert_eq!(to(), [3]);
    set(3, true);
    assert!(to().is_empty());
    set(2, false);
    assert_eq!(to(), [2]);
}

/// One flow sends long packets and others different ways, and the pipeline goes on in both.
#[test]
fn length_decides_in_the_datapath() {
    let bed = bed(&[
        "in_port=1,actions=write_actions(output:4),goto_table:2",
        "table=2,actions=check_pkt_larger(100)->NXM_NX_REG0[3],resubmit(,1)",
        "table=1,reg0=8/8,actions=set_field:02:00:00:00:00:09->eth_dst,output:2",
        "table=1,actions=set_field:02:00:00:00:00:07->eth_dst,output:3",
        "in_port=2,actions=push_vlan:0x8100,check_pkt_larger(100)->NXM_NX_REG0[0],output:3",
    ]);
    let frame = |len: usize| [&[2; 12][..], &[0x88, 0xb5], &vec![0; len - 14]].concat();
    let sent = |port, len| bed.receive(OfPort(port), &frame(len));
    for _ in 0..2 {
        for (len, expected) in [(101, vec![(2, 9), (4, 9)]), (100, vec![(3, 7), (4, 7)])] {
            let got: Vec<_> = sent(1, len).into_iter().map(|(port, frame)| (port.0, frame[5])).collect();
            assert_eq!(got, expected, "{len} bytes");
        }
    }
    assert_eq!(bed.datapath.flow_count(), 1);
    assert_eq!(sent(2, 97).len(), 1, "the tag counts, and what comes after is done");
}

/// A frame with these VLAN tags, outermost first.
fn tagged(tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    for (tpid, tci) in tags {
        frame.extend([tpid.to_be_bytes(), tci.to_be_bytes()].concat());
    }
    frame.extend([0x88, 0xb5]);
    frame.resize(80, 0x5a);
    frame
}

/// A service tag goes around as many tags as a frame has, and comes off them again.
#[test]
fn a_tunnel_keeps_both_tags_of_a_frame() {
    let bed = Bed::new(4);
    let mode = |mode, tag| PortVlan { mode, tag, ..PortVlan::default() };
    for (port, vlan) in [
        (1, mode(VlanMode::Dot1qTunnel, 100)),
        (2, mode(VlanMode::Trunk, 0)),
        (3, mode(VlanMode::Dot1qTunnel, 100)),
        (4, mode(VlanMode::Dot1qTunnel, 200)),
    ] {
        bed.bridge.set_port_vlan(OfPort(port), vlan).unwrap();
    }
    bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort::NORMAL)]);
    let (outer, inner, third) = ((0x8100, 0x6005), (0x8100, 7), (0x8100, 0x2008));
    let service = (0x88a8, 100);
    for tags in [&[][..], &[outer], &[outer, inner], &[outer, inner, third]] {
        let with_service = [&[service], tags].concat();
        for _ in 0..2 {
            let expected = [(OfPort(2), tagged(&with_service)), (OfPort(3), tagged(tags))];
            let cut = |sent: Vec<(OfPort, Vec<u8>)>| {
                sent.into_iter().map(|(port, frame)| (port, frame[..34].to_vec())).collect::<Vec<_>>()
            };
            assert_eq!(cut(bed.receive(OfPort(1), &tagged(tags))), cut(expected.into()), "{tags:x?}");
            let back = [1, 3].map(|port| (OfPort(port), tagged(tags)));
            assert_eq!(cut(bed.receive(OfPort(2), &tagged(&with_service))), cut(back.into()), "{tags:x?}");
        }
    }
}

/// A machine whose port gets another VLAN is no longer reached by those of the old one, though its address was learnt there.
#[test]
fn addresses_are_forgotten_where_the_port_gets_another_vlan() {
    let bed = Bed::new(3);
    bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort::NORMAL)]);
    let from = |src: u8, dst: u8| build::ethernet([2, 0, 0, 0, 0, dst], [2, 0, 0, 0, 0, src], &[], 0x88b5, &[0; 46]);
    let ports = |sent: Vec<(OfPort, Vec<u8>)>| sent.into_iter().map(|(port, _)| port.0).collect::<Vec<_>>();
    assert_eq!(ports(bed.receive(OfPort(1), &from(1, 9))), [2, 3]);
    assert_eq!(ports(bed.receive(OfPort(2), &from(2, 1))), [1]);
    let access = PortVlan { mode: VlanMode::Access, tag: 5, ..PortVlan::default() };
    bed.bridge.set_port_vlan(OfPort(1), access.clone()).unwrap();
    bed.bridge.barrier();
    assert_eq!(ports(bed.receive(OfPort(2), &from(2, 1))), [3]);
    // What stays as it was is not forgotten.
    bed.receive(OfPort(1), &from(1, 9));
    let known = bed.bridge.mac_stats();
    bed.bridge.set_port_vlan(OfPort(1), access).unwrap();
    assert_eq!(bed.bridge.mac_stats(), known);
    assert_eq!(ports(bed.receive(OfPort(3), &tagged_to(5, 1))), [1]);
}

fn tagged_to(vid: u16, dst: u8) -> Vec<u8> {
    build::ethernet([2, 0, 0, 0, 0, dst], [2, 0, 0, 0, 0, 3], &[(0x8100, vid)], 0x88b5, &[0; 46])
}

/// OpenFlow's push_vlan does, too, and pop_vlan finds what it covered.
#[test]
fn tags_that_are_pushed_displace_none() {
    let bed = bed(&[
        "in_port=1,actions=push_vlan:0x88a8,set_field:4196->vlan_vid,output:2,pop_vlan,output:3,resubmit(,1)",
        "table=1,vlan_tci=0x1000/0x1000,actions=pop_vlan,output:4",
        "in_port=2,actions=push_vlan:0x8100,push_vlan:0x8100,pop_vlan,resubmit(,2)",
        "table=2,vlan_tci=0x1000/0x1000,actions=pop_vlan,resubmit(,3)",
        "table=3,vlan_tci=0x1000/0x1000,actions=set_field:4105->vlan_vid,output:3",
    ]);
    let (outer, inner) = ((0x8100, 0x6005), (0x8100, 7));
    let got: Vec<_> =
        bed.receive(OfPort(1), &tagged(&[outer, inner])).into_iter().map(|(_, f)| f[..30].to_vec()).collect();
    let expected = [&[(0x88a8, 100), outer, inner][..], &[outer, inner], &[inner]];
    assert_eq!(got, expected.map(|tags| tagged(tags)[..30].to_vec()));
    let got = &bed.receive(OfPort(2), &tagged(&[outer, inner]))[0].1;
    assert_eq!(got[..30], tagged(&[(0x8100, 0x6009), inner])[..30]);
    // A loop of pushes ends.
    let pushes = "push_vlan:0x8100,".repeat(40);
    assert!(self::bed(&[&format!("actions={pushes}output:2")]).receive(OfPort(1), &tagged(&[])).is_empty());
}

/// What a datapath flow rewrites lies where it lay, also under more tags than a parser looks through.
#[test]
fn headers_below_three_tags_are_rewritten() {
    use packet::wire::build;
    let bed = bed(&["udp,actions=push_vlan:0x88a8,output:2,dec_ttl,output:3,pop_vlan,set_field:80->udp_dst,output:4"]);
    let frame = |tags: &[(u16, u16)], ttl, port| {
        let header = build::Ipv4 { ttl, proto: 17, ..build::Ipv4::default() };
        build::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], tags, 0x0800, &header.packet(build::udp(7, port, b"")))
    };
    let (outer, inner) = ((0x8100, 5), (0x8100, 6));
    for tags in [&[][..], &[outer], &[outer, inner]] {
        let pushed = [&[(0x88a8, 0)], tags].concat();
        let expected = [frame(&pushed, 64, 9), frame(&pushed, 63, 9), frame(tags, 63, 80)];
        let sent = bed.receive(OfPort(1), &frame(tags, 64, 9)).into_iter().map(|(_, frame)| frame).collect::<Vec<_>>();
        assert_eq!(sent, expected, "{tags:x?}");
    }
}

#[test]
fn a_tag_that_is_stripped_and_pushed_again_is_looked_at() {
    let tagged = |tci: [u8; 2]| [&[2; 12], &[0x81, 0][..], &tci, &[0x12, 0x34], &[0; 46]].concat();
    let frames = [[0, 6], [0x60, 6], [0, 7], [0, 6]].map(|tci| (1, tagged(tci)));
    let bed = bed(&["actions=strip_vlan,mod_vlan_vid:6,output:2"]);
    check(&bed, &frames).unwrap();
    for (port, frame) in &frames {
        assert_eq!(bed.receive(OfPort(*port), frame), [(OfPort(2), tagged([0, 6]))], "{frame:02x?}");
    }
}

/// A TTL that runs out ends the list of its rule and not that of the rule that called it, also where the packet was
/// recirculated between.
#[test]
fn a_list_that_ends_early_after_recirculation_leaves_the_callers() {
    let header = build::Ipv4 { ttl: 1, proto: 17, ..build::Ipv4::default() };
    let packet = header.packet(build::udp(7, 9, b""));
    let frame = build::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &[], 0x0800, &packet);
    for called in ["dec_ttl,output:4", "debug_recirc,dec_ttl,output:4", "debug_recirc,dec_ttl,debug_recirc,output:4"] {
        let called = format!("table=1,ip,actions={called}");
        let bed = bed(&["ip,actions=resubmit(,1),output:2,goto_table:2", &called, "table=2,ip,actions=output:3"]);
        let sent = bed.receive(OfPort(1), &frame);
        assert_eq!(sent, [(OfPort(2), frame.clone()), (OfPort(3), frame.clone())], "{called}");
    }
}

/// A flow is translated again from what it matches, which is less than a label stack entry.
#[test]
fn what_is_left_of_a_label_survives_revalidation() {
    use packet::wire::mpls::LabelStackEntry;
    let frame = |stack: &[LabelStackEntry]| {
        build::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &[], 0x8847, &build::mpls(stack, &[0x45; 40]))
    };
    let below = LabelStackEntry::new(7, 0, true, 3);
    let (old, new) = (LabelStackEntry::new(1000, 5, false, 64), LabelStackEntry::new(1000, 5, false, 63));
    let bed = bed(&["mpls,actions=dec_mpls_ttl,output:2"]);
    for _ in 0..2 {
        assert_eq!(bed.receive(OfPort(1), &frame(&[old, below])), [(OfPort(2), frame(&[new, below]))]);
        bed.add_flow(7, 1, Match::any(), vec![]);
        bed.add_flow(0, 1, Match::any(), vec![]);
        bed.bridge.barrier();
    }
    let zero = LabelStackEntry::new(0, 0, false, 0);
    let bed = self::bed(&["mpls,actions=set_mpls_ttl:0,output:2"]);
    for _ in 0..2 {
        let ttl = LabelStackEntry::new(0, 0, false, 9);
        assert_eq!(bed.receive(OfPort(1), &frame(&[ttl, below])), [(OfPort(2), frame(&[zero, below]))]);
        bed.add_flow(0, 1, Match::any(), vec![]);
        bed.bridge.barrier();
    }
}

/// The DSCP of a queue is for what is sent to it, not for what is sent next, nor for a port whose queue has none.
#[test]
fn packets_have_the_dscp_of_their_queue() {
    let bed = bed(&["actions=enqueue:2:1,output:3,enqueue:3:1,enqueue:2:7,set_queue:2,output:2,dec_ttl,output:4"]);
    bed.bridge.set_queue_dscp(OfPort(2), [(1, 10), (2, 63)].into()).unwrap();
    let frame = |tos, ttl| {
        let header = build::Ipv4 { tos, ttl, proto: 17, ..build::Ipv4::default() };
        build::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &[], 0x0800, &header.packet(build::udp(7, 9, b"")))
    };
    for tos in [0x03, 0x2b, 0xff] {
        let sent = bed.receive(OfPort(1), &frame(tos, 9));
        let expected = [
            (OfPort(2), frame(10 << 2 | 3, 9)),
            (OfPort(2), frame(tos, 9)),
            (OfPort(2), frame(63 << 2 | 3, 9)),
            (OfPort(3), frame(tos, 9)),
            (OfPort(3), frame(tos, 9)),
            (OfPort(4), frame(tos, 8)),
        ];
        assert_eq!(sent, expected, "{tos:#x}");
    }
    // Nothing else has one.
    let other = [&[2; 12][..], &[0x88, 0xb5], &[0; 46]].concat();
    assert_eq!(bed.receive(OfPort(1), &other)[0], (OfPort(2), other.clone()));
    bed.bridge.set_queue_dscp(OfPort(2), Default::default()).unwrap();
    bed.bridge.barrier();
    assert_eq!(bed.receive(OfPort(1), &frame(3, 9))[0], (OfPort(2), frame(3, 9)));
}
