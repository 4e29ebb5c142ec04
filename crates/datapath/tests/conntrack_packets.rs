//! Which packets are tracked, as they come and after what the same program has done to them: checksums, offloads, tags, labels,
//! extension headers.

mod common;

use std::sync::Arc;

use common::fragments::{MACS, address, data, v4, v6};
use common::{ByHand, by_hand, flow};
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::conntrack::counters::Counter;
use datapath::{Action, Config, Rewrite};
use packet::buffer::heap::HEAP;
use packet::wire::mpls::LabelStackEntry;
use packet::wire::{build, ethertype, ip_proto};
use packet::{Field, Offload, Packet};
use ports::Offloads;
use ports::offload::complete;

const INSIDE: u32 = 0x0a00_0001;
const OUTSIDE: u32 = 0xc633_6401;
const PUBLIC: u32 = 0xcb00_7107;

fn ct(request: Request) -> Action {
    Action::Ct(Arc::new(request))
}

fn commit() -> Action {
    ct(Request { commit: true, ..Request::default() })
}

fn set(field: Field, value: u128) -> Action {
    Action::Set(Arc::new(Rewrite::field(field, value)))
}

/// SNAT to one address.
fn snat(to: std::net::IpAddr) -> Action {
    let addresses = Some((to, to));
    let nat = Nat { side: Side::Src, addresses, ports: None, choice: Choice::Hash, persistent: false };
    ct(Request { commit: true, nat: Some(Translate::New(nat)), ..Request::default() })
}

/// A datapath that does `actions` with packets of the first port, and sends those of new and established connections to the
/// second one, and invalid ones to the third.
fn bed(actions: &[Action]) -> ByHand {
    let bed = by_hand(Config::default(), 3);
    let (dp, _, p) = &bed;
    dp.install(flow(p[0].0, 0, &[], [actions, &[Action::Recirc(1)]].concat())).unwrap();
    for (bits, out) in [(CtState::TRK, 1), (CtState::TRK | CtState::INV, 2)] {
        let mut spec = flow(p[0].0, 1, &[], vec![Action::Output(p[out].0)]);
        spec.key.set(Field::CtState, bits.0.into());
        spec.mask.add(Field::CtState, (CtState::TRK | CtState::INV).0.into());
        dp.install(spec).unwrap();
    }
    for (number, port) in p {
        port.mtu.store(9000, std::sync::atomic::Ordering::Relaxed);
        dp.refresh_port(*number).unwrap();
    }
    bed
}

/// What comes out of it for a packet, if that is tracked; the error is what comes out as invalid.
fn tracked((dp, _, p): &ByHand, packet: Packet) -> Result<Packet, Packet> {
    p[0].1.queues[0].lock().unwrap().push_back(packet);
    dp.poll();
    let [valid, invalid] = [1, 2].map(|n: usize| p[n].1.sent.lock().unwrap().pop());
    assert!(valid.is_some() != invalid.is_some());
    valid.ok_or_else(|| invalid.unwrap())
}

fn tracked_frame(bed: &ByHand, frame: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let bytes = |packet: Packet| packet.data().to_vec();
    tracked(bed, Packet::from_slice(frame)).map(bytes).map_err(bytes)
}

/// Packets of all protocols that have checksums.
fn packets(src: (u32, u8)) -> Vec<Vec<u8>> {
    let chunk = [0, 0, 0, 8, 1, 2, 3, 4];
    let payload = |proto| match proto {
        ip_proto::TCP => build::tcp(1000, 80, 2, &data(33)),
        ip_proto::UDP => build::udp(1000, 53, &data(33)),
        ip_proto::SCTP => build::sctp(1000, 80, 7, &chunk),
        ip_proto::ICMP => build::icmp(8, 0, [0, 9, 0, 1], &data(33)),
        _ => build::icmpv6(128, 0, [0, 9, 0, 1], &data(33)),
    };
    let of_v4 = [ip_proto::TCP, ip_proto::UDP, ip_proto::SCTP, ip_proto::ICMP];
    let of_v6 = [ip_proto::TCP, ip_proto::UDP, ip_proto::SCTP, ip_proto::ICMPV6];
    let of_v4 = of_v4.map(|proto| v4(src.0, OUTSIDE, proto, payload(proto)));
    of_v4.into_iter().chain(of_v6.map(|proto| v6(src.1, 2, proto, payload(proto)))).collect()
}

#[test]
fn wrong_checksums_are_invalid_unless_the_port_has_verified_them() {
    for frame in packets((INSIDE, 1)) {
        let bed = bed(&[commit()]);
        assert_eq!(tracked_frame(&bed, &frame), Ok(frame.clone()));
        let mut wrong = frame.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(tracked_frame(&bed, &wrong), Err(wrong.clone()));
        assert_eq!(bed.0.conntrack().counters.get(Counter::Checksum), 1);
        for flags in [Offload::DATA_VALID, Offload::NEEDS_CSUM] {
            let mut packet = Packet::from_slice(&wrong);
            *packet.offload_mut() = Offload { flags, csum_start: 34, csum_offset: 6, ..Offload::NONE };
            assert!(tracked(&bed, packet).is_ok());
        }
        if frame[12] == 8 {
            let mut wrong = frame.clone();
            wrong[25] ^= 1;
            assert_eq!(tracked_frame(&bed, &wrong), Err(wrong.clone()));
            assert_eq!(bed.0.conntrack().counters.get(Counter::IpChecksum), 1);
        }
    }
}

#[test]
fn udp_without_a_checksum_is_for_ipv4_alone() {
    let zeroed = |mut frame: Vec<u8>, at: usize| {
        frame[at..at + 2].fill(0);
        frame
    };
    let payload = || build::udp(1000, 53, &data(33));
    let bed = bed(&[snat(PUBLIC.to_be_bytes().into())]);
    let frame = |src| zeroed(v4(src, OUTSIDE, ip_proto::UDP, payload()), 40);
    assert_eq!(tracked_frame(&bed, &frame(INSIDE)), Ok(frame(PUBLIC)), "and stays without");
    let frame = zeroed(v6(1, 2, ip_proto::UDP, payload()), 60);
    assert_eq!(tracked_frame(&bed, &frame), Err(frame));
}

/// A TCP segment as a local stack leaves it: to be cut, and without its checksum.
fn super_frame(src: (u32, u8), is_v6: bool) -> Packet {
    let payload = build::tcp(1000, 80, 2, &data(4000));
    let frame = if is_v6 { v6(src.1, 2, 6, payload) } else { v4(src.0, OUTSIDE, 6, payload) };
    let transport = if is_v6 { 54 } else { 34 };
    let mut packet = Packet::from_slice(&frame);
    let pseudo = packet::wire::checksum::Sum::ZERO
        .add_bytes(&frame[if is_v6 { 22..54 } else { 26..34 }])
        .add_u32((frame.len() - transport) as u32)
        .add_u32(6);
    packet.data_mut()[transport + 16..transport + 18].copy_from_slice(&pseudo.partial().to_be_bytes());
    *packet.offload_mut() = Offload {
        flags: Offload::NEEDS_CSUM,
        gso_type: if is_v6 { Offload::GSO_TCPV6 } else { Offload::GSO_TCPV4 },
        hdr_len: transport as u16 + 20,
        gso_size: 1000,
        csum_start: transport as u16,
        csum_offset: 16,
    };
    packet
}

fn segments(packet: Packet) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    complete(packet, Offloads::default(), &HEAP, &mut |part| parts.push(part.data().to_vec())).unwrap();
    parts
}

#[test]
fn super_frames_pass_whole() {
    for is_v6 in [false, true] {
        let to = if is_v6 { address(9).into() } else { PUBLIC.to_be_bytes().into() };
        let bed = bed(&[snat(to)]);
        let passed = tracked(&bed, super_frame((INSIDE, 1), is_v6)).unwrap();
        assert_eq!(*passed.offload(), *super_frame((INSIDE, 1), is_v6).offload());
        let segments = [passed, super_frame((PUBLIC, 9), is_v6)].map(segments);
        assert_eq!(segments[0].len(), 4);
        assert_eq!(segments[0], segments[1], "as if it came from there, also when it is cut");
    }
}

#[test]
fn extension_headers_and_options_may_stand_before_the_transport() {
    let options = |kind: u8| (kind, &[0, 0, 1, 4, 0, 0, 0, 0][..]);
    let extensions: [&[(u8, &[u8])]; 5] = [
        &[options(0)],
        &[options(60)],
        &[options(0), options(60), options(60)],
        // An atomic fragment.
        &[(44, &[0, 0, 0, 0, 1, 2, 3, 4])],
        // Authentication: 24 bytes.
        &[(51, &[0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3])],
    ];
    for extensions in extensions {
        for (proto, payload) in [(6, build::tcp(1000, 80, 2, &data(9))), (17, build::udp(1000, 53, &data(9)))] {
            let frame = |src| {
                let ip = build::Ipv6 { src: address(src), dst: address(2), proto, extensions, ..Default::default() };
                build::ethernet(MACS[0], MACS[1], &[], ethertype::IPV6, &ip.packet(payload.clone()))
            };
            let bed = bed(&[snat(address(9).into())]);
            assert_eq!(tracked_frame(&bed, &frame(1)), Ok(frame(9)));
        }
    }
    let frame = |src: u32| {
        let ip = build::Ipv4 { src: src.into(), dst: OUTSIDE.into(), proto: 6, options: &[1; 8], ..Default::default() };
        let packet = ip.packet(build::tcp(1000, 80, 2, &data(9)));
        build::ethernet(MACS[0], MACS[1], &[], ethertype::IPV4, &packet)
    };
    assert_eq!(tracked_frame(&bed(&[snat(PUBLIC.to_be_bytes().into())]), &frame(INSIDE)), Ok(frame(PUBLIC)));
}

#[test]
fn tagged_packets_are_tracked_and_labelled_ones_are_not() {
    let tagged = |frame: &[u8], tags: &[u8]| [&frame[..12], tags, &frame[12..]].concat();
    for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]] {
        for (from, to) in packets((INSIDE, 1)).into_iter().zip(packets((PUBLIC, 9))) {
            let address = if from[12] == 8 { PUBLIC.to_be_bytes().into() } else { address(9).into() };
            assert_eq!(tracked_frame(&bed(&[snat(address)]), &tagged(&from, tags)), Ok(tagged(&to, tags)));
        }
    }
    // Behind the tags that are parsed nothing is known.
    let bed = bed(&[commit()]);
    let frame = v4(INSIDE, OUTSIDE, 17, build::udp(1000, 53, b"question"));
    let three = tagged(&frame, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7]);
    let labelled =
        build::ethernet(MACS[0], MACS[1], &[], 0x8847, &build::mpls(&[LabelStackEntry(0x0000_1140)], &frame[14..]));
    let arp = build::ethernet(
        [0xff; 6],
        MACS[1],
        &[],
        ethertype::ARP,
        &build::arp(1, MACS[1], INSIDE.into(), [0; 6], OUTSIDE.into()),
    );
    for frame in [three, labelled, arp] {
        assert_eq!(tracked_frame(&bed, &frame), Err(frame));
    }
    assert_eq!(bed.0.conntrack().counters.get(Counter::NoIp), 3);
}

/// Whether a connection was made from and to these addresses and ports.
fn has_connection(bed: &ByHand, src: (u32, u16), dst: (u32, u16)) -> bool {
    let tracker = &bed.0.conntrack().tracker;
    let tuple =
        conntrack::Tuple::new(src.0.to_be_bytes().into(), dst.0.to_be_bytes().into(), ip_proto::UDP, (src.1, dst.1), 0);
    tracker.table.limits.connections() == 1 && tracker.table.find(&tuple.unwrap(), bed.0.now()).is_some()
}

#[test]
fn what_a_program_has_changed_is_what_is_tracked() {
    let frame = |src, dst, ports: (u16, u16)| v4(src, dst, 17, build::udp(ports.0, ports.1, b"question"));
    let from = frame(INSIDE, OUTSIDE, (1000, 53));
    // Addresses and ports.
    let bed_of = |actions: &[Action]| bed(&[actions, &[commit()]].concat());
    let bed = bed_of(&[set(Field::NwSrc, PUBLIC.into()), set(Field::UdpDst, 99)]);
    assert_eq!(tracked_frame(&bed, &from), Ok(frame(PUBLIC, OUTSIDE, (1000, 99))));
    assert!(has_connection(&bed, (PUBLIC, 1000), (OUTSIDE, 99)));
    // Tags come and go.
    let bed = bed_of(&[Action::PushVlan { tpid: 0x8100, tci: 5 }, set(Field::NwSrc, PUBLIC.into())]);
    assert!(tracked_frame(&bed, &from).is_ok() && has_connection(&bed, (PUBLIC, 1000), (OUTSIDE, 53)));
    let three = [&from[..12], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7], &from[12..]].concat();
    let bed = bed_of(&[Action::PopVlan]);
    assert!(tracked_frame(&bed, &three).is_ok() && has_connection(&bed, (INSIDE, 1000), (OUTSIDE, 53)));
    // Labels, too.
    let packet = build::mpls(&[LabelStackEntry(0x0000_1140)], &from[14..]);
    let labelled = build::ethernet(MACS[0], MACS[1], &[], 0x8847, &packet);
    let bed = bed_of(&[Action::PopMpls { ethertype: ethertype::IPV4 }]);
    assert_eq!(tracked_frame(&bed, &labelled), Ok(from.clone()));
    assert!(has_connection(&bed, (INSIDE, 1000), (OUTSIDE, 53)));
    let bed = bed_of(&[Action::PushMpls { ethertype: 0x8847, lse: 0x1140 }]);
    assert!(tracked_frame(&bed, &from).is_err());
}

#[test]
fn what_ct_has_changed_is_what_later_actions_see() {
    let from = v4(INSIDE, OUTSIDE, 17, build::udp(1000, 53, b"question"));
    let to = v4(PUBLIC, OUTSIDE, 17, build::udp(1000, 53, b"question"));
    // In another zone, the translated addresses are tracked.
    let elsewhere = ct(Request { commit: true, zone: 5, ..Request::default() });
    let bed_of_two = bed(&[snat(PUBLIC.to_be_bytes().into()), elsewhere]);
    assert_eq!(tracked_frame(&bed_of_two, &from), Ok(to.clone()));
    let (dp, now) = (&bed_of_two.0, bed_of_two.0.now());
    let tuple = |src: u32, zone| {
        let (src, dst) = (src.to_be_bytes().into(), OUTSIDE.to_be_bytes().into());
        conntrack::Tuple::new(src, dst, ip_proto::UDP, (1000, 53), zone).unwrap()
    };
    let found = |src, zone| dp.conntrack().tracker.table.find(&tuple(src, zone), now).is_some();
    assert_eq!([found(INSIDE, 0), found(PUBLIC, 5), found(INSIDE, 5)], [true, true, false]);
    // Rewrites of the same program come on top, with right checksums.
    let written = bed(&[snat(PUBLIC.to_be_bytes().into()), set(Field::NwDst, 0x0102_0304), set(Field::UdpSrc, 7)]);
    let expected = v4(PUBLIC, 0x0102_0304, 17, build::udp(7, 53, b"question"));
    assert_eq!(tracked_frame(&written, &from), Ok(expected));
}
