//! Headers that change a packet's type, from OpenFlow actions to bytes.

use std::sync::Arc;

use datapath::{Config, DropReason};
use openflow::group::{Bucket, Selection};
use openflow::text::parse_flow_mod;
use openflow::{FlowModCommand, FlowRemoved, GroupId, GroupSpec, GroupType, OfError, OfPort, PortStatus};
use packet::Field;
use packet::flow::text::NoNames;
use packet::wire::build;
use parking_lot::Mutex;
use tunnel::header::{Header, Payload, Protocol};

use crate::events::{PacketInEvent, Subscriber};
use crate::reference::tests::Bed;
use crate::xlate::tunnel_tests::Host;

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::with(3, Config::default());
    for flow in flows {
        add(&bed, flow).unwrap_or_else(|error| panic!("{flow}: {error:?}"));
    }
    bed
}

fn add(bed: &Bed, flow: &str) -> Result<(), OfError> {
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap())
}

fn udp() -> Vec<u8> {
    udp_to([10, 0, 0, 2])
}

fn udp_to(dst: [u8; 4]) -> Vec<u8> {
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: dst.into(), proto: 17, ..Default::default() };
    let packet = header.packet(build::udp(1000, 53, b"question"));
    build::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], 0x0800, &packet)
}

fn with_ethernet(dst: u8, ethertype: u16, header: &[u8], payload: &[u8]) -> Vec<u8> {
    build::ethernet([2, 0, 0, 0, 0, dst], [0; 6], &[], ethertype, &[header, payload].concat())
}

/// Of the datapath's flows, as text.
fn actions(bed: &Bed) -> Vec<String> {
    let text = |flow: datapath::FlowDump| {
        let mut text = String::new();
        datapath::text::format_actions(&mut text, &flow.actions, &flow.key, &Default::default());
        text
    };
    let mut all: Vec<_> = bed.datapath.flows().map(text).collect();
    all.sort();
    all
}

const TO_PORT_2: &str = "encap(ethernet),set_field:02:00:00:00:00:07->eth_dst,output:2";

#[test]
fn a_service_header_goes_before_the_frame_and_off_again() {
    let flows = [
        &format!(
            "in_port=1,ip,actions=encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,set_field:0x11223344->nsh_c1,{TO_PORT_2}"
        ),
        "in_port=2,dl_type=0x894f,nsh_spi=0x1234,actions=decap(),decap(),output:3",
    ];
    let bed = bed(&flows);
    let header = [0x0f, 0xc6, 1, 3, 0, 0x12, 0x34, 255, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let encapsulated = with_ethernet(7, 0x894f, &header, &udp());
    // The first packet by the slow path, the others by the flow.
    for _ in 0..3 {
        assert_eq!(bed.receive(OfPort(1), &udp()), [(OfPort(2), encapsulated.clone())]);
        assert_eq!(bed.receive(OfPort(2), &encapsulated), [(OfPort(3), udp())]);
    }
    assert_eq!(
        actions(&bed),
        [
            "3",
            "pop_eth,pop_nsh(),recirc(0x1)",
            "push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x1234,si=255,c1=0x11223344,c2=0x0,c3=0x0,c4=0x0),\
             push_eth(src=00:00:00:00:00:00,dst=02:00:00:00:00:07),2",
        ]
    );
}

#[test]
fn options_of_a_service_header_are_padded() {
    let nsh = "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba98765432)))";
    let bed = bed(&[&format!("in_port=1,actions={nsh},{TO_PORT_2}")]);
    let options = [0x10, 0, 10, 4, 0x12, 0x34, 0x56, 0x78, 0x20, 0, 20, 7, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0];
    let header = [&[0x0f, 0xc7, 2, 3, 0, 0, 0, 255][..], &options].concat();
    assert_eq!(bed.receive(OfPort(1), &udp()), [(OfPort(2), with_ethernet(7, 0x894f, &header, &udp()))]);
}

#[test]
fn labels_go_before_the_frame_and_off_again() {
    let bed = bed(&[
        &format!(
            "in_port=1,actions=encap(mpls),set_field:5->mpls_label,encap(mpls),set_field:6->mpls_label,{TO_PORT_2}"
        ),
        "in_port=2,dl_type=0x8847,actions=decap(),decap(),decap(packet_type(ns=0,type=0)),output:3",
    ]);
    let labels = [0, 0, 0x60, 64, 0, 0, 0x51, 64];
    let encapsulated = with_ethernet(7, 0x8847, &labels, &udp());
    for _ in 0..3 {
        assert_eq!(bed.receive(OfPort(1), &udp()), [(OfPort(2), encapsulated.clone())]);
        assert_eq!(bed.receive(OfPort(2), &encapsulated), [(OfPort(3), udp())]);
    }
}

#[test]
fn ethernet_can_be_exchanged() {
    let bed = bed(&[&format!("in_port=1,ip,actions=decap(),set_field:10.9.9.9->nw_dst,{TO_PORT_2}")]);
    for _ in 0..2 {
        let [(port, frame)] = &bed.receive(OfPort(1), &udp())[..] else { panic!("one frame is sent") };
        assert_eq!((port, &frame[..14]), (&OfPort(2), &[2, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 8, 0][..]));
        assert_eq!(frame[14..], udp_to([10, 9, 9, 9])[14..]);
    }
}

#[test]
fn a_bucket_changes_its_own_copy() {
    let bed = bed(&[]);
    let actions_of = |text: &str| parse_flow_mod(FlowModCommand::Add, text, &NoNames).unwrap().instructions.apply;
    let bucket = |id, actions: &str| Bucket {
        id,
        weight: 0,
        watch_port: OfPort::ANY,
        watch_group: GroupId::ANY,
        actions: actions_of(&format!("actions={actions}")),
    };
    // The header of Ethernet comes after that of the service: a bucket has only one of a kind.
    let buckets = vec![bucket(0, "encap(nsh),group:2"), bucket(1, "output:3")];
    bed.put_group(1, &GroupSpec { kind: GroupType::All, buckets, selection: Selection::default() });
    let buckets = vec![bucket(0, TO_PORT_2)];
    bed.put_group(2, &GroupSpec { kind: GroupType::Indirect, buckets, selection: Selection::default() });
    add(&bed, "in_port=1,actions=group:1,output:2").unwrap();
    for _ in 0..2 {
        let sent = bed.receive(OfPort(1), &udp());
        let [(OfPort(2), encapsulated), (OfPort(2), whole), (OfPort(3), other)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((whole, other), (&udp(), &udp()));
        assert_eq!(encapsulated.len(), udp().len() + 14 + 24);
    }
}

/// A bucket that put a label before a frame with labels and sent it nowhere had the frame get one of its own again.
#[test]
fn a_label_that_is_put_before_no_packet_leaves_the_next_ones_alone() {
    let label = [0, 0, 0x11, 63];
    let labelled = with_ethernet(2, 0x8847, &label, &udp()[14..]);
    let bed = bed(&["in_port=1,actions=clone(encap(mpls),output:2),output:3"]);
    for _ in 0..2 {
        // Port 2 takes frames only.
        assert_eq!(bed.receive(OfPort(1), &labelled), [(OfPort(3), labelled.clone())]);
    }
}

/// A bucket whose copy came round again took the packet's action set with it.
#[test]
fn a_bucket_that_recirculates_leaves_the_action_set_to_the_packet() {
    let bed = bed(&[]);
    let decap = parse_flow_mod(FlowModCommand::Add, "actions=decap(),output:2", &NoNames).unwrap().instructions.apply;
    let bucket = Bucket { id: 0, weight: 0, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions: decap };
    bed.put_group(1, &GroupSpec { kind: GroupType::All, buckets: vec![bucket], selection: Selection::default() });
    add(&bed, "in_port=1,ip,actions=encap(nsh),group:1,decap(),write_actions(output:3)").unwrap();
    for _ in 0..2 {
        assert_eq!(bed.receive(OfPort(1), &udp()), [(OfPort(2), udp()), (OfPort(3), udp())]);
    }
}

#[test]
fn flows_for_frames_match_no_packet_without_ethernet() {
    let bed = bed(&[
        "in_port=1,ip,actions=decap(),goto_table:1",
        "table=1,priority=3,ip,actions=output:3",
        "table=1,priority=2,packet_type=(1,0x800),nw_dst=10.0.0.2,actions=encap(ethernet),output:2",
    ]);
    for _ in 0..2 {
        let sent = bed.receive(OfPort(1), &udp());
        assert_eq!((sent.len(), sent[0].0), (1, OfPort(2)));
    }
}

#[test]
fn labels_that_are_pushed_and_popped_leave_what_is_behind_them() {
    let bed = bed(&["in_port=1,ip,actions=push_mpls:0x8847,pop_mpls:0x0800,goto_table:1", "table=1,actions=output:2"]);
    assert_eq!(bed.receive(OfPort(1), &udp()), [(OfPort(2), udp())]);
    // The labels take with them what was known of it, also where a new look at the packet does not come before the output.
    let hop_by_hop =
        build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 0, ..Default::default() };
    let service = [&[0x0f, 0xc6, 1, 3, 0, 0, 9, 255][..], &[7; 16], &udp()].concat();
    for (ethertype, packet) in [
        (0x0800, hop_by_hop.packet(vec![1; 30])),
        (0x0806, build::arp(1, [4; 6], [10, 0, 0, 1].into(), [0; 6], [10, 0, 0, 2].into())),
        (0x894f, service),
    ] {
        let frame = with_ethernet(2, ethertype, &packet, &[0; 8]);
        for between in [
            format!("push_mpls:0x8847,pop_mpls:{ethertype:#x}"),
            format!("push_mpls:0x8847,push_mpls:0x8848,pop_mpls:0x8848,pop_mpls:{ethertype:#x}"),
        ] {
            let bed = self::bed(&[&format!("in_port=1,dl_type={ethertype:#x},actions={between},output:2")]);
            assert_eq!(bed.receive(OfPort(1), &frame), [(OfPort(2), frame.clone())], "{between}");
        }
    }
}

#[test]
fn the_ttl_of_a_service_header_ends() {
    let ttl = |ttl: u8| {
        let word = (u16::from(ttl) << 6 | 6).to_be_bytes();
        let header = [&[word[0], word[1], 1, 3, 0, 0, 9, 255][..], &[0; 16]].concat();
        with_ethernet(2, 0x894f, &header, &udp())
    };
    let bed = bed(&["in_port=1,dl_type=0x894f,actions=dec_nsh_ttl,output:2"]);
    assert_eq!(bed.receive(OfPort(1), &ttl(9)), [(OfPort(2), ttl(8))]);
    assert_eq!(bed.receive(OfPort(1), &ttl(1)), []);
}

/// What is behind a service header is looked at only when it is gone, so it may be anything.
#[test]
fn what_a_broken_service_header_is_before_is_dropped() {
    let bed = bed(&["in_port=1,dl_type=0x894f,actions=decap(),decap(),output:2"]);
    let header = [0x0f, 0xc6, 1, 3, 0, 0, 9, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bed.receive(OfPort(1), &with_ethernet(2, 0x894f, &header, &udp())).len(), 1);
    let drops =
        || -> u64 { bed.datapath.stats().workers.iter().map(|worker| worker.drops.get(DropReason::Malformed)).sum() };
    // By the same flow, but with no whole frame inside.
    assert_eq!(bed.receive(OfPort(1), &with_ethernet(2, 0x894f, &header, &[1, 2, 3])), []);
    assert_eq!(drops(), 1);
}

#[test]
fn headers_that_cannot_be_are_refused() {
    for flow in [
        "in_port=1,actions=push_vlan:0x8100,set_field:4196->vlan_vid,decap(),output:2",
        "in_port=1,actions=encap(ethernet),output:2",
        "in_port=1,ip,actions=decap(),decap(),output:2",
        "in_port=1,ip,actions=decap(),output:2",
    ] {
        let bed = bed(&[flow]);
        assert_eq!(bed.receive(OfPort(1), &udp()), [], "{flow}");
        let drops = bed.datapath.stats();
        let count = |reason| drops.workers.iter().map(|worker| worker.drops.get(reason)).sum::<u64>();
        assert_eq!(count(DropReason::UnsupportedPacketType), 1, "{flow}");
    }
}

#[test]
fn matches_follow_the_packet_type() {
    let bed = bed(&[]);
    for (flow, fits) in [
        ("ip,actions=decap(),set_field:1.1.1.1->nw_dst,encap(ethernet),output:2", true),
        ("packet_type=(1,0x800),actions=decap(),set_field:1.1.1.1->nw_dst,output:2", false),
        ("packet_type=(1,0x800),actions=decap(),set_field:5->metadata,output:2", true),
        ("ip,actions=encap(nsh),set_field:5->nsh_spi,output:2", true),
        ("ip,actions=encap(nsh),set_field:1.1.1.1->nw_dst,output:2", false),
        ("dl_type=0x894f,actions=dec_nsh_ttl,output:2", true),
        ("ip,actions=dec_nsh_ttl,output:2", false),
        ("actions=pop_mpls:0x800,output:2", false),
    ] {
        let parsed = parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap();
        let result = bed.bridge.flow_mod(&parsed);
        assert_eq!(result, if fits { Ok(()) } else { Err(OfError::OFPBAC_MATCH_INCONSISTENT) }, "{flow}");
    }
    // OpenFlow 1.0 has no such error.
    let mut old = parse_flow_mod(FlowModCommand::Add, "actions=pop_mpls:0x800,output:2", &NoNames).unwrap();
    old.lenient = true;
    assert_eq!(bed.bridge.flow_mod(&old), Ok(()));
}

#[test]
fn packets_without_ethernet_pass_tunnels_as_they_are() {
    let tunnels = ["gre remote_ip=192.0.2.2 packet_type=ptap"];
    let host =
        Host::new(&tunnels, &["in_port=1,ip,actions=decap(),10", "packet_type=(1,0x800),actions=encap(ethernet),1"]);
    let header = Header::Gre { key: None, checksum: false, sequence: None, payload: Payload::Packet(0x0800) };
    for _ in 0..2 {
        let [sent] = &host.send(&udp())[..] else { panic!("one frame is sent") };
        assert_eq!(sent[14 + 20..], [&[0, 0, 8, 0][..], &udp()[14..]].concat());
        let received = host.receive(&host.frame(Protocol::Gre, &header, &udp()[14..]));
        assert_eq!(received, [(OfPort(1), [&[0; 12][..], &udp()[12..]].concat())]);
    }
}

#[test]
fn controllers_get_packets_without_ethernet_as_they_are() {
    let bed = bed(&["in_port=1,ip,actions=decap(),controller"]);
    let recorder = Arc::new(Recorder::default());
    bed.bridge.subscribe(recorder.clone());
    assert_eq!(bed.receive(OfPort(1), &udp()), []);
    let events = recorder.0.lock();
    let packet_in = &events[0].packet_in;
    assert_eq!((&packet_in.data[..], packet_in.total_len as usize), (&udp()[14..], udp().len() - 14));
    assert_eq!(packet_in.metadata.exact(Field::PacketType), Some(0x1_0800));
}

#[derive(Default)]
struct Recorder(Mutex<Vec<PacketInEvent>>);

impl Subscriber for Recorder {
    fn packet_in(&self, event: &PacketInEvent) {
        self.0.lock().push(event.clone());
    }
    fn flow_removed(&self, _: &FlowRemoved) {}
    fn port_status(&self, _: &PortStatus, _: crate::events::Audience) {}
}
