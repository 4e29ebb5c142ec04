//! The fast extractor against the reference, on frames that are built and then damaged, and on any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::flow::compose::compose_sized;
use crate::flow::{Field, compose, exthdr, frag, reference};
use crate::wire::{build, checksum, ipv4, mpls, udp};

const DST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SRC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn l4() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let data = || vec(any::<u8>(), 0..40);
    let mac = || proptest::option::of(any::<[u8; 6]>());
    prop_oneof![
        (any::<u16>(), any::<u16>(), any::<u16>(), data()).prop_map(|(s, d, f, data)| (6, build::tcp(s, d, f, &data))),
        (any::<u16>(), any::<u16>(), data()).prop_map(|(s, d, data)| (17, build::udp(s, d, &data))),
        (any::<u16>(), any::<u16>(), data()).prop_map(|(s, d, data)| (132, build::sctp(s, d, 1, &data))),
        (select(vec![1, 2]), any::<u8>(), any::<u8>(), data())
            .prop_map(|(proto, kind, code, data)| (proto, build::icmp(kind, code, [1; 4], &data))),
        (any::<u8>(), any::<u8>(), data())
            .prop_map(|(kind, code, data)| (58, build::icmpv6(kind, code, [0; 4], &data))),
        (135..=136u8, any::<[u8; 16]>(), any::<u32>(), mac(), mac())
            .prop_map(|(kind, to, word, sll, tll)| (58, build::neighbor(kind, word, to.into(), sll, tll))),
        (any::<u8>(), data()),
    ]
}

fn ipv4() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let options = prop_oneof![3 => Just(0), 1 => 1..=10usize];
    let flags = prop_oneof![3 => Just(0), 1 => Just(0x4000), 1 => any::<u16>()];
    (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u8>(), any::<u8>(), flags, options, l4()).prop_map(
        |(src, dst, tos, ttl, flags_offset, words, (proto, payload))| {
            let options = [1; 40];
            let spec = build::Ipv4 {
                src: src.into(),
                dst: dst.into(),
                proto,
                tos,
                ttl,
                flags_offset,
                options: &options[..4 * words],
            };
            (0x0800, spec.packet(payload))
        },
    )
}

fn ipv6() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let extension = (select(vec![0u8, 43, 44, 51, 60]), 0..3usize, prop_oneof![Just(0u16), Just(1), any::<u16>()]);
    let extensions =
        prop_oneof![2 => vec(extension.clone(), 0..1), 2 => vec(extension.clone(), 0..6), 1 => vec(extension, 14..20)];
    (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), any::<u32>(), extensions, l4()).prop_map(
        |(src, dst, traffic_class, flow_label, extensions, (proto, payload))| {
            let bytes: Vec<(u8, Vec<u8>)> = extensions
                .into_iter()
                .map(|(proto, units, word)| {
                    let len = if proto == 44 { 8 } else { 8 + 8 * units };
                    let mut bytes = vec![0; len];
                    bytes[1] = if proto == 51 { 2 * units } else { units } as u8;
                    bytes[2..4].copy_from_slice(&word.to_be_bytes());
                    (proto, bytes)
                })
                .collect();
            let extensions: Vec<(u8, &[u8])> = bytes.iter().map(|(proto, bytes)| (*proto, &bytes[..])).collect();
            let (src, dst) = (src.into(), dst.into());
            let spec =
                build::Ipv6 { src, dst, proto, traffic_class, flow_label, hop_limit: 3, extensions: &extensions };
            (0x86dd, spec.packet(payload))
        },
    )
}

fn other() -> impl Strategy<Value = (u16, Vec<u8>)> {
    prop_oneof![
        (select(vec![0x0806, 0x8035]), prop_oneof![1..5u16, any::<u16>()])
            .prop_map(|(ty, op)| (ty, build::arp(op, SRC, [10, 0, 0, 1].into(), DST, [10, 0, 0, 2].into()))),
        (select(vec![0x8847, 0x8848]), vec(any::<u32>(), 0..20), vec(any::<u8>(), 0..20)).prop_map(
            |(ty, lses, data)| {
                let stack: Vec<_> = lses.into_iter().map(mpls::LabelStackEntry).collect();
                (ty, build::mpls(&stack, &data))
            }
        ),
        (any::<[u8; 24]>(), select(vec![2u8, 6, 7]), select(vec![1u8, 2, 9])).prop_map(|(mut nsh, words, kind)| {
            nsh[0] &= 0x3f;
            nsh[1] = nsh[1] & 0xc0 | words;
            nsh[2] = kind;
            (0x894f, nsh.to_vec())
        }),
        any::<[u8; 6]>().prop_map(|tag| (0x88e7, tag.to_vec())),
        (any::<u16>(), vec(any::<u8>(), 0..60)),
    ]
}

/// A frame of any protocol, with up to three tags, Ethernet II or SNAP, maybe padded.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = vec((select(vec![0x8100, 0x88a8]), any::<u16>()), 0..=3);
    let tags = prop_oneof![Just(Vec::new()), tags];
    let body = prop_oneof![4 => ipv4(), 4 => ipv6(), 2 => other()];
    (tags, body, prop::bool::weighted(0.1), 0..30usize).prop_map(|(tags, (ty, body), snap, padding)| {
        let build = if snap { build::snap } else { build::ethernet };
        let mut frame = build(DST, SRC, &tags, ty, &body);
        frame.resize(frame.len() + padding, 0xee);
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 1500 }, failure_persistence: None, max_global_rejects: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_on_built_frames(frame in frame()) {
        reference::check(&frame);
    }

    #[test]
    fn agrees_on_truncated_frames(frame in frame(), keep: prop::sample::Index) {
        reference::check(&frame[..keep.index(frame.len() + 1)]);
    }

    #[test]
    fn agrees_on_damaged_frames(mut frame in frame(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        for (at, value) in damage {
            // Most of the headers are in the first bytes.
            let at = at.index(frame.len().min(70));
            frame[at] = value;
        }
        reference::check(&frame);
    }

    #[test]
    fn agrees_on_any_bytes(bytes in vec(any::<u8>(), 0..120), ty in select(vec![0x0800u16, 0x86dd, 0x8100, 0x8847, 0x894f, 0])) {
        reference::check(&bytes);
        let mut bytes = bytes;
        if ty != 0 && bytes.len() >= 14 {
            bytes[12..14].copy_from_slice(&ty.to_be_bytes());
            reference::check(&bytes);
        }
    }

    /// What is composed from a packet's key has the same key. Extension headers and what is behind an
    /// invalid header do not survive.
    #[test]
    fn composes_what_it_extracts(frame in frame()) {
        let (key, layers) = reference::extract(&frame, VlanLimit::Two);
        let common = key.common();
        let known = match common.dl_type.get() {
            0x0800 | 0x86dd => layers.l4 != Layers::NONE || common.nw_frag & frag::LATER != 0,
            0x0806 | 0x8035 => layers.l3 != Layers::NONE,
            0x8847 | 0x8848 => layers.l2_5 != Layers::NONE && layers.l3 != Layers::NONE,
            0x88e7 => true,
            _ => false,
        };
        let fragment = if key.common().nw_frag != 0 && key.common().dl_type.get() == 0x86dd { exthdr::FRAG } else { 0 };
        prop_assume!(known && key.encap().ipv6_exthdr.get() == fragment);
        // An invalid message's options are gone; 58 over IPv4 has none.
        let nd = matches!(key.get(Field::Icmpv6Type), 135 | 136) && key.common().nw_proto == 58;
        prop_assume!(!nd || key.common().dl_type.get() == 0x86dd && key.l3().nd_target != [0; 16]);
        prop_assume!(!nd || key.l3().arp_sha == [0; 6] || key.l3().arp_tha == [0; 6]);
        let again = reference::extract(&compose(&key, &[]), VlanLimit::Two).0;
        prop_assert_eq!(&again, &key);
        // Zeros at the end are data, but where a neighbour discovery message has its options.
        let len = compose(&key, &[]).len();
        prop_assert_eq!(compose_sized(&key, len - 1), None);
        let padded = compose_sized(&key, len + 17).unwrap();
        prop_assert_eq!(padded.len(), len + 17);
        if !nd {
            prop_assert_eq!(reference::extract(&padded, VlanLimit::Two).0, key);
        }
    }
}

#[test]
fn sized_packets_have_right_lengths_and_checksums() {
    let mut key = Key::new();
    for (field, value) in [(Field::DlType, 0x0800), (Field::NwProto, 17), (Field::UdpSrc, 1), (Field::UdpDst, 2)] {
        key.set(field, value);
    }
    let frame = compose_sized(&key, 100).unwrap();
    let packet = ipv4::Packet::new_checked(&frame[14..]).unwrap();
    assert!(frame.len() == 100 && packet.total_len() == 86 && packet.verify_checksum());
    let datagram = udp::Datagram::new_checked(packet.payload()).unwrap();
    let pseudo = checksum::pseudo_v4(packet.src(), packet.dst(), 17, 66);
    assert_eq!((datagram.len(), pseudo.add_bytes(packet.payload()).finish()), (66, 0));
}

/// A frame of the plain case is really taken by it, so that the tests above test it.
#[test]
fn plain_frames_take_the_plain_path() {
    let packet = |proto, payload| build::Ipv4 { proto, ..build::Ipv4::default() }.packet(payload);
    for (proto, payload) in [(17, build::udp(1, 2, &[0; 18])), (6, build::tcp(1, 2, 0x12, &[0; 6]))] {
        let mut key = Key::new();
        let frame = build::ethernet(DST, SRC, &[], 0x0800, &packet(proto, payload.clone()));
        assert!(plain_untagged(frame.first_chunk().unwrap(), frame.len(), &mut key).is_some());
        let frame = build::ethernet(DST, SRC, &[(0x8100, 5)], 0x0800, &packet(proto, payload));
        assert!(plain_tagged(&frame, &mut key).is_some());
        assert_eq!(key.get(Field::VlanTci), 0x1005);
    }
}

#[test]
fn packets_without_ethernet_header() {
    let spec = build::Ipv4 { proto: 17, src: [10, 0, 0, 1].into(), ..build::Ipv4::default() };
    let mut key = Key::new();
    let layers = extract_l3(&spec.packet(build::udp(5, 6, &[])), 0x0800, &mut key);
    assert_eq!((layers.l3, layers.l4), (0, 20));
    assert_eq!((key.get(Field::DlType), key.get(Field::UdpDst)), (0x0800, 6));
    assert_eq!(key.common().nw_src.get(), 0x0a00_0001);
    assert_eq!(extract_l3(&[], 0x86dd, &mut key), Layers::EMPTY);
}

/// The same option twice makes a neighbour solicitation invalid; random frames hardly have that.
#[test]
fn repeated_link_layer_option_clears_target_and_addresses() {
    let option = crate::wire::nd::link_layer_option(1, SRC);
    let body = [&[0xfd; 16][..], &option, &option].concat();
    let packet = build::Ipv6 { proto: 58, ..build::Ipv6::default() }.packet(build::icmpv6(135, 0, [0; 4], &body));
    let frame = build::ethernet(DST, SRC, &[], 0x86dd, &packet);
    reference::check(&frame);
    let mut key = Key::new();
    extract(&frame, &mut key, VlanLimit::default());
    assert_eq!((key.get(Field::NdTarget), key.get(Field::NdSll)), (0, 0));
    assert_eq!((key.get(Field::Icmpv6Type), key.get(Field::NdOptionsType)), (135, 1));
}

#[test]
fn a_tag_beyond_the_limit_is_payload() {
    let packet = build::Ipv4 { proto: 17, ..build::Ipv4::default() }.packet(build::udp(1, 2, &[]));
    let frame = build::ethernet(DST, SRC, &[(0x88a8, 5), (0x8100, 6)], 0x0800, &packet);
    let read = |limit| {
        let mut key = Key::new();
        let layers = extract(&frame, &mut key, limit);
        let tags = key.common().vlan.map(|tag| (tag.tpid.get(), tag.tci.get()));
        assert_eq!(simple_mark(&frame, limit).dl_type, key.common().dl_type.get());
        (tags, key.get(Field::DlType), key.get(Field::UdpDst), layers)
    };
    let both = Layers { l2_5: Layers::NONE, l3: 22, l4: 42, vlans: 2 };
    assert_eq!(read(VlanLimit::Two), ([(0x88a8, 0x1005), (0x8100, 0x1006)], 0x0800, 2, both));
    let outer = Layers { l2_5: Layers::NONE, l3: 18, l4: Layers::NONE, vlans: 1 };
    assert_eq!(read(VlanLimit::One), ([(0x88a8, 0x1005), (0, 0)], 0x8100, 0, outer));
}
