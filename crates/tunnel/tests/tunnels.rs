//! What is encapsulated comes out again as it was, and what a stranger sends is read within its bounds.

use std::net::{IpAddr, Ipv6Addr};

use packet::flow::block;
use packet::wire::{checksum, ethertype};
use proptest::prelude::*;
use tunnel::Malformed;
use tunnel::config::{BarePayload, FlowLabel};
use tunnel::header::{GTPU_PACKET, Group, Header, Mirror, Payload, Protocol, Unwritable};
use tunnel::metadata::{Carried, receive, store_received};
use tunnel::options::Options;
use tunnel::outer::{Decapsulated, Each, Outer, PlainHeaders, Prepared, Verify, decapsulate, payload_of};
use tunnel::plain;
use tunnel::srv6::Segments;
use zerocopy::{FromBytes, IntoBytes};

const ALL: Verify = Verify { ip: true, transport: true };
const PROTOCOLS: [Protocol; 12] = [
    Protocol::Vxlan { group_policy: false },
    Protocol::Vxlan { group_policy: true },
    Protocol::VxlanGpe,
    Protocol::Geneve,
    Protocol::Gre,
    Protocol::Erspan,
    Protocol::Gtpu,
    Protocol::Lisp,
    bareudp(ethertype::IPV4, true),
    bareudp(ethertype::MPLS, true),
    bareudp(ethertype::NSH, false),
    Protocol::Srv6 { flow_label: FlowLabel::Copy },
];

const fn bareudp(ethertype: u16, with_relative: bool) -> Protocol {
    Protocol::Bareudp(BarePayload { ethertype, with_relative })
}

/// A header whose options and segments are elsewhere.
#[derive(Clone, Debug)]
struct Owned {
    protocol: Protocol,
    header: Header<'static>,
    options: Vec<u8>,
    segments: Vec<Ipv6Addr>,
}

impl Owned {
    fn new(protocol: Protocol, header: Header<'static>) -> Owned {
        Owned { protocol, header, options: Vec::new(), segments: Vec::new() }
    }

    fn header(&self) -> Header<'_> {
        match self.header {
            Header::Geneve { vni, oam, payload, .. } => Header::Geneve { vni, oam, payload, options: &self.options },
            Header::Srv6 { payload, .. } => Header::Srv6 { segments: Segments::Path(&self.segments), payload },
            other => other,
        }
    }

    /// With the outer headers that such a header can have, and the other way round.
    fn fit(mut self, mut outer: Outer) -> (Outer, Owned) {
        match (&mut self.header, &mut self.protocol) {
            (Header::Srv6 { .. }, _) => {
                let address = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                let first = address(outer.dst);
                (outer.src, outer.dst) = (address(outer.src).into(), first.into());
                outer.dont_fragment = false;
                if let Some(segment) = self.segments.first_mut() {
                    *segment = first;
                }
            }
            // Multicast of MPLS is what comes to a multicast address.
            (Header::Bareudp { payload }, Protocol::Bareudp(bare)) if bare.ethertype == ethertype::MPLS => {
                let is_multicast = outer.dst.is_multicast();
                bare.with_relative |= is_multicast;
                *payload = Payload::Packet(if is_multicast { ethertype::MPLS_MULTICAST } else { ethertype::MPLS });
            }
            _ => {}
        }
        (outer, self)
    }

    /// What becomes of a packet on its way through the segments.
    fn travel(&self, outer: &mut Outer, packet: &mut [u8]) {
        if let (Header::Srv6 { .. }, Some(last)) = (self.header, self.segments.last()) {
            packet[24..40].copy_from_slice(&last.octets());
            packet[43] = 0;
            outer.dst = (*last).into();
        }
    }

    /// The header as it is received: with what differs from packet to packet.
    fn received(&self, each: &Each) -> Header<'_> {
        match self.header() {
            Header::Gre { key, checksum, sequence, payload } => {
                Header::Gre { key, checksum, sequence: sequence.map(|_| each.sequence), payload }
            }
            Header::Erspan { session, mirror, .. } => {
                let mirror = match mirror {
                    Mirror::Two { egress, hardware, .. } => Mirror::Two { egress, hardware, timestamp: each.timestamp },
                    one => one,
                };
                Header::Erspan { session, sequence: each.sequence, mirror }
            }
            other => other,
        }
    }
}

fn headers() -> impl Strategy<Value = Owned> {
    let vni = 0u32..1 << 24;
    let payload = prop_oneof![
        Just(Payload::Ethernet),
        Just(Payload::Packet(ethertype::IPV4)),
        Just(Payload::Packet(ethertype::IPV6)),
        Just(Payload::Packet(ethertype::MPLS)),
        Just(Payload::Packet(ethertype::NSH)),
    ];
    let group = prop::option::of((any::<u16>(), prop::sample::select(vec![0u8, 0x40, 0x08, 0x48])))
        .prop_map(|group| group.map(|(id, flags)| Group { id, flags }));
    let option =
        (any::<u16>(), any::<u8>(), prop::collection::vec(any::<[u8; 4]>(), 0..32)).prop_map(|(class, kind, value)| {
            let mut bytes = class.to_be_bytes().to_vec();
            bytes.extend([kind, value.len() as u8]);
            bytes.extend(value.as_flattened());
            bytes
        });
    let options = prop::collection::vec(option, 0..4)
        .prop_map(|options| options.concat())
        .prop_filter("no room", |options| options.len() <= 180);
    let mirror = prop_oneof![
        (0u32..1 << 20).prop_map(|index| Mirror::One { index }),
        (any::<bool>(), 0u8..64).prop_map(|(egress, hardware)| Mirror::Two { egress, hardware, timestamp: 0 }),
    ];
    let ip = prop::sample::select(vec![ethertype::IPV4, ethertype::IPV6]).prop_map(Payload::Packet);
    let bare = prop::sample::select(vec![
        (ethertype::IPV4, true, ethertype::IPV4),
        (ethertype::IPV4, true, ethertype::IPV6),
        (ethertype::IPV4, false, ethertype::IPV4),
        (ethertype::IPV6, false, ethertype::IPV6),
        (ethertype::MPLS, true, ethertype::MPLS),
        (ethertype::MPLS, false, ethertype::MPLS),
        (ethertype::NSH, false, ethertype::NSH),
    ]);
    let flow_label = prop::sample::select(vec![FlowLabel::Copy, FlowLabel::Zero, FlowLabel::Compute]);
    let segments = prop::collection::vec(any::<[u8; 16]>().prop_map(Ipv6Addr::from), 0..=6);
    let plain = Owned::new;
    prop_oneof![
        (prop::option::of(vni.clone()), ip.clone())
            .prop_map(move |(instance, payload)| plain(Protocol::Lisp, Header::Lisp { instance, payload })),
        bare.prop_map(move |(ethertype, with_relative, payload)| {
            plain(bareudp(ethertype, with_relative), Header::Bareudp { payload: Payload::Packet(payload) })
        }),
        (flow_label, segments, ip.clone()).prop_map(|(flow_label, segments, payload)| Owned {
            segments,
            ..Owned::new(Protocol::Srv6 { flow_label }, Header::Srv6 { segments: Segments::Path(&[]), payload })
        }),
        (vni.clone(), group).prop_map(move |(vni, group)| {
            plain(Protocol::Vxlan { group_policy: group.is_some() }, Header::Vxlan { vni, group })
        }),
        (vni.clone(), payload.clone())
            .prop_map(move |(vni, payload)| plain(Protocol::VxlanGpe, Header::VxlanGpe { vni, payload })),
        (vni, any::<bool>(), payload.clone(), options).prop_map(|(vni, oam, payload, options)| Owned {
            options,
            ..Owned::new(Protocol::Geneve, Header::Geneve { vni, oam, payload, options: &[] })
        }),
        (any::<Option<u32>>(), any::<bool>(), any::<bool>(), payload).prop_map(
            move |(key, checksum, sequence, payload)| {
                plain(Protocol::Gre, Header::Gre { key, checksum, sequence: sequence.then_some(0), payload })
            }
        ),
        (0u16..1 << 10, mirror).prop_map(move |(session, mirror)| {
            plain(Protocol::Erspan, Header::Erspan { session, sequence: 0, mirror })
        }),
        (
            any::<u32>(),
            prop::sample::select(vec![0x30u8, 0x32, 0x31, 0x33]),
            any::<[u8; 4]>(),
            prop::option::of(ip),
            any::<u8>()
        )
            .prop_map(move |(teid, flags, optional, packet, kind)| {
                let is_packet = packet.is_some() || kind == GTPU_PACKET;
                let kind = if is_packet { GTPU_PACKET } else { kind };
                let packet = packet.unwrap_or(Payload::Packet(ethertype::IPV6));
                let payload = if is_packet { packet } else { Payload::Message };
                let optional = if flags & 7 == 0 { [0; 4] } else { optional };
                plain(Protocol::Gtpu, Header::Gtpu { teid, flags, kind, optional, payload })
            }),
    ]
}

fn outers() -> impl Strategy<Value = Outer> {
    let addresses = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|[src, dst]| (IpAddr::from(src), IpAddr::from(dst))),
        any::<[[u8; 16]; 2]>().prop_map(|[src, dst]| (IpAddr::from(src), IpAddr::from(dst))),
    ];
    (addresses, any::<u8>(), any::<u8>(), any::<bool>(), any::<u16>(), any::<bool>()).prop_map(
        |((src, dst), tos, ttl, dont_fragment, port, checksum)| {
            let dont_fragment = dont_fragment && src.is_ipv4();
            Outer { src, dst, tos, ttl, dont_fragment, ports: (0, port), checksum }
        },
    )
}

/// A frame with these headers, and `data` behind them.
fn encapsulate(outer: &Outer, owned: &Owned, each: &Each, data: &[u8]) -> Result<Vec<u8>, Unwritable> {
    let prepared = Prepared::new(&[7; 14], outer, owned.protocol, &owned.header())?;
    let mut frame = vec![0xee; prepared.len()];
    frame.extend(data);
    if let Some(plain) = prepared.plain() {
        let each = Each { source_port: each.source_port, ..Each::default() };
        assert!(prepared.write(&mut frame, &each));
        let mut room = [0xee; PlainHeaders::ROOM];
        assert!(plain.write(&mut room, data.len(), each.source_port));
        assert_eq!(room[room.len() - plain.len()..], frame[..plain.len()]);
    }
    assert!(prepared.write(&mut frame, each));
    Ok(frame)
}

/// Reads a packet in all ways, of which three are for most packets only: what they say is the same.
fn read(packet: &[u8], protocol: Protocol, verify: Verify) -> Result<Decapsulated<'_>, Malformed> {
    let result = decapsulate(packet, protocol, verify);
    let [mut expected, mut block] =
        [(); 2].map(|()| block::Tunnel::read_from_bytes(&[0xee; size_of::<block::Tunnel>()]).unwrap());
    let received = receive(packet, protocol, verify, &mut block);
    match (result, received) {
        (Ok(result), Ok(received)) => {
            store_received(&result, &mut expected);
            assert_eq!(block.as_bytes(), expected.as_bytes());
            let options = if let Header::Geneve { options, .. } = result.header { options } else { &[] };
            let Decapsulated { start, end, .. } = result;
            let payload = payload_of(&result.header);
            assert_eq!(received, Carried { payload, options, tos: result.outer.tos, start, end });
        }
        (result, received) => assert_eq!(received.map(|_| ()), result.map(|_| ())),
    }
    let is_v6 = packet.first().is_some_and(|version| version >> 4 == 6);
    let ethertype = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
    let frame = [&[7; 12], &ethertype[..], packet].concat();
    let plain = verify.ip.then(|| plain::receive(&frame, protocol, verify.transport, &mut block)).flatten();
    let has_options = matches!(result, Ok(Decapsulated { header: Header::Geneve { options: [_, ..], .. }, .. }));
    if let Some(range) = &plain {
        let result = result.expect("it is like most");
        assert_eq!(block.as_bytes(), expected.as_bytes());
        assert_eq!(*range, 14 + result.start..14 + result.end);
        assert!(result.outer.tos & 3 == 0 && !has_options && range.len() >= 14);
        assert_eq!(payload_of(&result.header), Payload::Ethernet);
    }
    let more = verify.ip.then(|| plain::receive_more(&frame, protocol, verify.transport, &mut block)).flatten();
    if let Some((range, options)) = &more {
        let result = result.expect("it is a little less like most");
        assert_eq!(block.as_bytes(), expected.as_bytes());
        assert_eq!(*range, 14 + result.start..14 + result.end);
        let known = if let Header::Geneve { options, .. } = result.header { options } else { &[] };
        assert_eq!((*options, payload_of(&result.header)), (known, Payload::Ethernet));
    }
    assert!(plain.is_none() || more.is_some());
    if let Ok(Decapsulated { outer, header, start, end }) = result {
        let is_known = match header {
            Header::Vxlan { group, .. } => group.is_none(),
            Header::Geneve { oam, payload, .. } => !oam && payload == Payload::Ethernet,
            _ => false,
        };
        let is_usual = packet[0] == 0x45 || is_v6;
        assert_eq!(more.is_some(), is_known && is_usual && outer.tos & 3 == 0 && end - start >= 14 && verify.ip);
    }
    // Those that are like most are known as such.
    if let Ok(Decapsulated { outer, header, start, end }) = result {
        let is_most = match header {
            Header::Vxlan { group, .. } => group.is_none(),
            Header::Geneve { oam, payload, .. } => {
                !oam && payload == Payload::Ethernet && !has_options && packet[start - 7] == 0
            }
            _ => false,
        };
        let has_plain_carrier = packet[0] == 0x45 && outer.tos & 3 == 0 && !(outer.checksum && verify.transport);
        let is_expected = is_most && has_plain_carrier && end - start >= 14 && verify.ip;
        assert_eq!(plain.is_some(), is_expected);
    }
    result
}

proptest! {
    #[test]
    fn what_is_encapsulated_comes_out_again(
        outer in outers(),
        owned in headers(),
        id: u16,
        source_port: u16,
        sequence: u32,
        timestamp: u32,
        hash: u32,
        mut data in prop::collection::vec(any::<u8>(), 1..200),
        padding in 0usize..20,
    ) {
        let (mut outer, owned) = owned.fit(outer);
        // Some tell IPv4 from IPv6 by the first byte.
        let is_v6 = payload_of(&owned.header) == Payload::Packet(ethertype::IPV6);
        data[0] = data[0] & 0xf | if is_v6 { 0x60 } else { 0x40 };
        let each = Each { id, source_port, sequence, timestamp, hash };
        let mut frame = encapsulate(&outer, &owned, &each, &data).unwrap();
        frame.extend(vec![0; padding]);
        owned.travel(&mut outer, &mut frame[14..]);
        let packet = &frame[14..];
        let Decapsulated { outer: seen, header, start, end } = read(packet, owned.protocol, ALL).unwrap();
        let is_udp = owned.protocol.ip_proto() == 17;
        let ports = if is_udp { (source_port, outer.ports.1) } else { (0, 0) };
        prop_assert_eq!(seen, Outer { ports, checksum: outer.checksum && is_udp, ..outer });
        prop_assert_eq!(header, owned.received(&each));
        prop_assert_eq!(&packet[start..end], &data[..]);
        if outer.src.is_ipv4() {
            prop_assert_eq!(u16::from_be_bytes([packet[4], packet[5]]), id);
        }
    }

    /// One bit that is wrong is noticed where a checksum covers it.
    #[test]
    fn checksums_are_verified(outer in outers(), owned in headers(), at: prop::sample::Index, bit in 0u8..8) {
        let (outer, owned) = owned.fit(Outer { checksum: true, ..outer });
        let mut frame = encapsulate(&outer, &owned, &Each::default(), &[0x45; 40]).unwrap();
        let is_udp = owned.protocol.ip_proto() == 17;
        let covered = is_udp || matches!(owned.header, Header::Gre { checksum: true, .. });
        let from = if outer.src.is_ipv4() { 34 } else { 54 };
        // Without that of UDP itself: zero is none.
        let at = from + at.index(frame.len() - from);
        let is_itself = is_udp && (from + 4..from + 8).contains(&at);
        // Without its flag there is none of GRE.
        let is_flag = !is_udp && (at, bit) == (from, 7);
        if !covered || is_itself || is_flag {
            return Ok(());
        }
        frame[at] ^= 1 << bit;
        let result = read(&frame[14..], owned.protocol, ALL);
        prop_assert!(result.is_err(), "{:?}", result);
    }

    /// A packet like most with one byte that is not, or that is cut short: [`read`] compares what all ways say. The checksum of IP is right,
    /// so that what is wrong is seen.
    #[test]
    fn packets_unlike_most_by_one_byte_are_known(
        geneve: bool, mended in prop::bool::weighted(0.9), at in 0..36usize, to in prop_oneof![any::<u8>(), 0..64u8], cut in 0..30usize,
        transport: bool, src: u32,
    ) {
        let outer = Outer {
            src: IpAddr::V4(src.into()), dst: IpAddr::V4([192, 0, 2, 1].into()), tos: 0, ttl: 64, dont_fragment: true, ports: (0, 4789),
            checksum: false,
        };
        let (protocol, header) = match geneve {
            true => (Protocol::Geneve, Header::Geneve { vni: 7, oam: false, payload: Payload::Ethernet, options: &[] }),
            false => (Protocol::Vxlan { group_policy: false }, Header::Vxlan { vni: 7, group: None }),
        };
        let owned = Owned::new(protocol, header);
        let mut frame = encapsulate(&outer, &owned, &Each::default(), &[0x45; 20]).unwrap();
        let packet = &mut frame[14..];
        packet[at] = to;
        if mended {
            packet[10..12].fill(0);
            let sum = packet::wire::checksum::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let whole = packet.len();
        // Hardly ever the end is missing.
        let end = if cut < 5 { whole - 4 * cut } else { whole };
        let _ = read(&packet[..end], protocol, Verify { ip: true, transport });
    }

    /// Whatever comes: the payload lies within the packet. A header that was read can be written, and is the same.
    #[test]
    fn strangers_are_read_within_bounds(
        outer in outers(),
        owned in headers(),
        cut: prop::sample::Index,
        change in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        protocol in prop::sample::select(PROTOCOLS.to_vec()),
        same: bool,
        ip: bool,
        transport: bool,
    ) {
        let (outer, owned) = owned.fit(outer);
        let mut frame = encapsulate(&outer, &owned, &Each::default(), &[0x45; 40]).unwrap();
        for (at, value) in change {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        frame.truncate(cut.index(2 * frame.len()));
        let packet = frame.get(14..).unwrap_or_default();
        let protocol = if same { owned.protocol } else { protocol };
        if let Ok(Decapsulated { header, start, end, .. }) = read(packet, protocol, Verify { ip, transport }) {
            prop_assert!(start <= end && end <= packet.len());
            let mut again = [0; 300];
            if let Ok((len, _)) = header.write(&mut again) {
                prop_assert!(len <= start);
            }
            if let Header::Srv6 { segments, .. } = header {
                prop_assert!(16 * segments.len() <= start);
            }
            if let Header::Geneve { options, .. } = header {
                prop_assert!(Options::of(options).all(|option| option.is_ok()));
            }
        }
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Outer packets that scapy 2.5 has made.
#[test]
fn packets_of_others_are_read() {
    let frame = [0xab; 20];
    for (protocol, hex, expected) in [
        (
            PROTOCOLS[0],
            "45000046000100004011f6a2c0000201c0000202c35012b50032f3de0800000012345600020000000002020000000001 \
             88b5abababababababababababababababababababab",
            Header::Vxlan { vni: 0x123456, group: None },
        ),
        (
            PROTOCOLS[1],
            "45000046000100004011f6a2c0000201c0000202c35012b5003200008848123400000700020000000002020000000001 \
             88b5abababababababababababababababababababab",
            Header::Vxlan { vni: 7, group: Some(Group { id: 0x1234, flags: 0x48 }) },
        ),
        (
            Protocol::Geneve,
            "4500004e000100004011f69ac0000201c0000202c35017c1003a0a210240655812345600010280010102030402000000 \
             000202000000000188b5abababababababababababababababababababab",
            Header::Geneve {
                vni: 0x123456,
                oam: false,
                payload: Payload::Ethernet,
                options: &[1, 2, 0x80, 1, 1, 2, 3, 4],
            },
        ),
        (
            Protocol::Gre,
            "4500004600010000402ff684c0000201c0000202b0006558a52a00000102030400000009020000000002020000000001 \
             88b5abababababababababababababababababababab",
            Header::Gre { key: Some(0x0102_0304), checksum: true, sequence: Some(9), payload: Payload::Ethernet },
        ),
        (
            Protocol::Erspan,
            "4500004600010000402ff684c0000201c0000202100088be00000009100000050000004d020000000002020000000001 \
             88b5abababababababababababababababababababab",
            Header::Erspan { session: 5, sequence: 9, mirror: Mirror::One { index: 77 } },
        ),
        (
            Protocol::Erspan,
            "4500004a00010000402ff680c0000201c0000202100022eb000000092000000501020304000000980200000000020200 \
             0000000188b5abababababababababababababababababababab",
            Header::Erspan {
                session: 5,
                sequence: 9,
                mirror: Mirror::Two { egress: true, hardware: 9, timestamp: 0x0102_0304 },
            },
        ),
        (
            Protocol::Gtpu,
            "45000050000100004011f698c0000201c000020208680868003c7eb732ff002c01020304000500004500002800010000 \
             400066d30a0000010a000002abababababababababababababababababababab",
            Header::Gtpu {
                teid: 0x0102_0304,
                flags: 0x32,
                kind: GTPU_PACKET,
                optional: [0, 5, 0, 0],
                payload: Payload::Packet(ethertype::IPV4),
            },
        ),
        // What scapy has no layer for, the header of LISP, is by hand.
        (
            Protocol::Lisp,
            "4500004c000100004011f69cc0000201c0000202c35010f50038424a4800000012345601450000280001000040006\
             6d30a0000010a000002abababababababababababababababababababab",
            Header::Lisp { instance: Some(0x123456), payload: Payload::Packet(ethertype::IPV4) },
        ),
        // With everything that is passed over: nonce, locator status bits, a request for an echo, the version of a mapping, reserved.
        (
            Protocol::Lisp,
            "45000060000100004011f688c0000201c0000202c35010f5004c0000f4aabbccdeadbeef6001234500143b40fd00000\
             0000000000000000000000001fd000000000000000000000000000002abababababababababababababababababababab",
            Header::Lisp { instance: None, payload: Payload::Packet(ethertype::IPV6) },
        ),
        (
            bareudp(ethertype::IPV4, true),
            "45000044000100004011f6a4c0000201c0000202c35019eb0030e9994500002800010000400066d30a0000010a00000\
             2abababababababababababababababababababab",
            Header::Bareudp { payload: Payload::Packet(ethertype::IPV4) },
        ),
        (
            bareudp(ethertype::MPLS, true),
            "45000048000100004011f6a0c0000201c0000202c35019eb003418840004d1094500002800010000400066d30a00000\
             10a000002abababababababababababababababababababab",
            Header::Bareudp { payload: Payload::Packet(ethertype::MPLS) },
        ),
    ] {
        let packet = from_hex(hex);
        let read = read(&packet, protocol, ALL).unwrap_or_else(|why| panic!("{protocol:?}: {why}"));
        assert_eq!(read.header, expected);
        assert_eq!((read.outer.src, read.outer.dst), ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()));
        assert!(packet[read.start..read.end].ends_with(&frame[..4]), "{protocol:?}");
        // And written, but for what is passed over.
        if !matches!(expected, Header::Lisp { instance: None, .. }) {
            let each = Each {
                id: u16::from_be_bytes([packet[4], packet[5]]),
                source_port: read.outer.ports.0,
                sequence: 9,
                timestamp: 0x0102_0304,
                ..Each::default()
            };
            let prepared = Prepared::new(&[], &read.outer, protocol, &read.header).unwrap();
            let mut again = [&vec![0; read.start], &packet[read.start..read.end]].concat();
            assert!(prepared.write(&mut again, &each));
            assert_eq!(again, packet[..read.end], "{protocol:?}");
        }
    }
    // To a multicast address.
    let packet = from_hex(
        "45000048000100004011d899c0000201e0000009c35019eb0034fa7c0004d1094500002800010000400066d30a0000010a00\
         0002abababababababababababababababababababab",
    );
    let multicast = Header::Bareudp { payload: Payload::Packet(ethertype::MPLS_MULTICAST) };
    assert_eq!(decapsulate(&packet, bareudp(ethertype::MPLS, true), ALL).unwrap().header, multicast);
}

/// A packet around others, over IPv4 and to this port.
fn outer(port: u16) -> Outer {
    Outer {
        src: [192, 0, 2, 1].into(),
        dst: [192, 0, 2, 2].into(),
        tos: 0,
        ttl: 64,
        dont_fragment: true,
        ports: (0, port),
        checksum: false,
    }
}

/// A change to a good packet, and why it is refused.
#[test]
fn bad_headers_are_refused_by_name() {
    let outer = outer(4789);
    let good = |protocol, header: Header<'static>| {
        encapsulate(
            &outer,
            &Owned { options: vec![0, 1, 2, 1, 0, 0, 0, 0], ..Owned::new(protocol, header) },
            &Each::default(),
            &[0x45; 8],
        )
        .unwrap()
        .split_off(14)
    };
    let vxlan = good(PROTOCOLS[0], Header::Vxlan { vni: 7, group: None });
    let geneve =
        good(Protocol::Geneve, Header::Geneve { vni: 7, oam: false, payload: Payload::Ethernet, options: &[] });
    let gre =
        good(Protocol::Gre, Header::Gre { key: Some(7), checksum: false, sequence: None, payload: Payload::Ethernet });
    let erspan = good(Protocol::Erspan, Header::Erspan { session: 7, sequence: 0, mirror: Mirror::One { index: 1 } });
    let payload = Payload::Packet(ethertype::IPV4);
    let gtpu =
        good(Protocol::Gtpu, Header::Gtpu { teid: 7, flags: 0x30, kind: GTPU_PACKET, optional: [0; 4], payload });
    let lisp = good(Protocol::Lisp, Header::Lisp { instance: Some(7), payload });
    let bare_ip = good(bareudp(ethertype::IPV4, false), Header::Bareudp { payload });
    let bare_mpls =
        good(bareudp(ethertype::MPLS, false), Header::Bareudp { payload: Payload::Packet(ethertype::MPLS) });
    for (packet, protocol, at, value, why) in [
        (&vxlan, PROTOCOLS[0], 0, 0x55, Malformed::Carrier),
        (&vxlan, PROTOCOLS[0], 0, 0x44, Malformed::Length),
        (&vxlan, PROTOCOLS[0], 3, 0x05, Malformed::Length),
        (&vxlan, PROTOCOLS[0], 2, 0x01, Malformed::Length),
        (&vxlan, PROTOCOLS[0], 6, 0x20, Malformed::Fragment),
        (&vxlan, PROTOCOLS[0], 7, 0x01, Malformed::Fragment),
        (&vxlan, PROTOCOLS[0], 9, 47, Malformed::Carrier),
        (&vxlan, PROTOCOLS[0], 25, 0x07, Malformed::Length),
        (&vxlan, PROTOCOLS[0], 25, 0xff, Malformed::Length),
        (&vxlan, PROTOCOLS[0], 25, 0x0c, Malformed::Truncated),
        (&vxlan, PROTOCOLS[0], 28, 0x00, Malformed::Flags),
        (&vxlan, PROTOCOLS[0], 28, 0x88, Malformed::Flags),
        (&vxlan, PROTOCOLS[1], 29, 0x08, Malformed::Flags),
        (&vxlan, PROTOCOLS[0], 35, 0x01, Malformed::Flags),
        (&vxlan, Protocol::VxlanGpe, 28, 0x3c, Malformed::Version),
        (&vxlan, Protocol::VxlanGpe, 28, 0x0c, Malformed::Payload),
        (&vxlan, Protocol::VxlanGpe, 28, 0x0d, Malformed::Flags),
        (&geneve, Protocol::Geneve, 28, 0x42, Malformed::Version),
        (&geneve, Protocol::Geneve, 28, 0x3f, Malformed::Length),
        (&geneve, Protocol::Geneve, 39, 0x02, Malformed::Option),
        (&gre, Protocol::Gre, 21, 0x01, Malformed::Version),
        (&gre, Protocol::Gre, 20, 0x60, Malformed::Flags),
        (&gre, Protocol::Erspan, 20, 0x10, Malformed::Payload),
        (&gre, Protocol::Erspan, 20, 0x20, Malformed::Flags),
        (&erspan, Protocol::Erspan, 28, 0x20, Malformed::Version),
        (&erspan, Protocol::Erspan, 22, 0x08, Malformed::Payload),
        (&gtpu, Protocol::Gtpu, 28, 0x50, Malformed::Version),
        (&gtpu, Protocol::Gtpu, 31, 0x09, Malformed::Length),
        (&gtpu, Protocol::Gtpu, 28, 0x34, Malformed::Length),
        (&gtpu, Protocol::Gtpu, 36, 0x15, Malformed::Payload),
        (&lisp, Protocol::Lisp, 28, 0x4a, Malformed::Flags),
        (&lisp, Protocol::Lisp, 25, 0x0f, Malformed::Truncated),
        (&lisp, Protocol::Lisp, 25, 0x10, Malformed::Payload),
        (&lisp, Protocol::Lisp, 36, 0x55, Malformed::Payload),
        (&lisp, Protocol::Lisp, 9, 6, Malformed::Carrier),
        (&bare_ip, bareudp(ethertype::IPV4, false), 25, 0x08, Malformed::Payload),
        (&bare_ip, bareudp(ethertype::IPV4, false), 28, 0x65, Malformed::Payload),
        (&bare_ip, bareudp(ethertype::IPV4, true), 28, 0x55, Malformed::Payload),
        (&bare_mpls, bareudp(ethertype::MPLS, false), 16, 0xe0, Malformed::Payload),
        (&vxlan, Protocol::Srv6 { flow_label: FlowLabel::Zero }, 0, 0x45, Malformed::Carrier),
    ] {
        let mut bad = packet.clone();
        bad[at] = value;
        let whole = read(&bad, protocol, Verify::default()).map(|_| ());
        assert_eq!(whole, Err(why), "{protocol:?} with {value:#x} at {at}");
    }
    let mut wrong = vxlan.clone();
    wrong[10] ^= 1;
    assert_eq!(read(&wrong, PROTOCOLS[0], ALL).map(|_| ()), Err(Malformed::Checksum));
    assert_eq!(checksum::checksum(&vxlan[..20]), 0);
}

/// The checksum of GRE does not cover the flag that says that there is one (RFC 2784 section 2.1): without the flag, the checksum is
/// payload.
#[test]
fn checksum_of_gre_does_not_cover_its_flag() {
    let header = Header::Gre { key: None, checksum: true, sequence: None, payload: Payload::Ethernet };
    let owned = Owned::new(Protocol::Gre, header);
    let mut packet = encapsulate(&outer(0), &owned, &Each::default(), &[0x45; 40]).unwrap().split_off(14);
    let with = decapsulate(&packet, Protocol::Gre, ALL).unwrap();
    assert_eq!((with.start, with.header), (28, header));
    packet[20] ^= 0x80;
    let without = decapsulate(&packet, Protocol::Gre, ALL).unwrap();
    let header = Header::Gre { key: None, checksum: false, sequence: None, payload: Payload::Ethernet };
    assert_eq!((without.start, without.header), (24, header));
}

#[test]
fn what_does_not_fit_is_refused() {
    let outer = outer(6081);
    let prepare = |protocol, header: &Header<'_>| Prepared::new(&[0; 14], &outer, protocol, header).map(|p| p.len());
    let geneve = |options| Header::Geneve { vni: 1, oam: false, payload: Payload::Ethernet, options };
    let long: Vec<u8> = [[0, 0, 0, 0u8]; 63].concat();
    assert_eq!(prepare(Protocol::Geneve, &geneve(&long[..200])), Ok(14 + 20 + 8 + 8 + 200));
    assert_eq!(prepare(Protocol::Geneve, &geneve(&long)), Err(Unwritable::TooLong));
    assert_eq!(prepare(Protocol::Geneve, &geneve(&long[..5])), Err(Unwritable::Range));
    let vxlan = |vni| Header::Vxlan { vni, group: None };
    assert_eq!(prepare(PROTOCOLS[0], &vxlan(1 << 24)), Err(Unwritable::Range));
    let bare = |payload| Header::Bareudp { payload };
    let ip = bareudp(ethertype::IPV4, false);
    assert_eq!(prepare(ip, &bare(Payload::Packet(ethertype::IPV4))), Ok(14 + 20 + 8));
    assert_eq!(prepare(ip, &bare(Payload::Packet(ethertype::IPV6))), Err(Unwritable::Payload));
    assert_eq!(prepare(bareudp(ethertype::TEB, false), &bare(Payload::Ethernet)), Err(Unwritable::Payload));
    let lisp = |instance, number| Header::Lisp { instance: Some(instance), payload: Payload::Packet(number) };
    assert_eq!(prepare(Protocol::Lisp, &lisp(1, ethertype::MPLS)), Err(Unwritable::Payload));
    assert_eq!(prepare(Protocol::Lisp, &lisp(1 << 24, ethertype::IPV4)), Err(Unwritable::Range));
    let mixed = Outer { src: IpAddr::from([0u8; 16]), ..outer };
    assert!(Prepared::new(&[], &mixed, PROTOCOLS[0], &vxlan(1)).is_err());
    // The longest packet, and one byte more.
    let prepared = Prepared::new(&[0; 14], &outer, PROTOCOLS[0], &vxlan(1)).unwrap();
    let mut frame = vec![0; 14 + 65_536];
    assert!(!prepared.write(&mut frame, &Each::default()));
    frame.pop();
    assert!(prepared.write(&mut frame, &Each::default()));
    assert!(!prepared.write(&mut frame[..10], &Each::default()));
    let (plain, mut room) = (prepared.plain().unwrap(), [0; PlainHeaders::ROOM]);
    assert!(!plain.write(&mut room, 65_536 - 36, 1));
    assert!(plain.write(&mut room, 65_535 - 36, 1));
}

#[test]
fn which_headers_are_like_most() {
    let address = |last| IpAddr::from([172, 31, 0, last]);
    let (tos, ttl, checksum) = (0, 64, false);
    let outer = Outer { src: address(1), dst: address(2), tos, ttl, dont_fragment: true, ports: (0, 4789), checksum };
    let is_plain = |ethernet: &[u8], outer: &Outer, protocol, header| {
        Prepared::new(ethernet, outer, protocol, &header).unwrap().plain().is_some()
    };
    let vxlan = Header::Vxlan { vni: 1, group: None };
    let geneve = |options| Header::Geneve { vni: 1, oam: false, payload: Payload::Ethernet, options };
    let all = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    assert!(is_plain(&[0; 14], &outer, PROTOCOLS[0], vxlan));
    assert!(is_plain(&[0; 14], &outer, Protocol::Geneve, geneve(&all[8..][..0])));
    assert!(!is_plain(&[0; 18], &outer, PROTOCOLS[0], vxlan), "a tag");
    assert!(!is_plain(&[0; 14], &Outer { checksum: true, ..outer }, PROTOCOLS[0], vxlan));
    assert!(!is_plain(&[0; 14], &Outer { dont_fragment: false, ..outer }, PROTOCOLS[0], vxlan));
    let six = Outer { src: IpAddr::from([1; 16]), dst: IpAddr::from([2; 16]), ..outer };
    assert!(!is_plain(&[0; 14], &six, PROTOCOLS[0], vxlan));
    // Up to 64 bytes, of which 50 are no options.
    assert!(is_plain(&[0; 14], &outer, Protocol::Geneve, geneve(&[0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8])));
    assert!(!is_plain(&[0; 14], &outer, Protocol::Geneve, geneve(&all[8..24])));
    let gre = Header::Gre { key: Some(1), checksum: false, sequence: None, payload: Payload::Ethernet };
    assert!(!is_plain(&[0; 14], &outer, Protocol::Gre, gre));
    let gtpu = Protocol::Gtpu;
    let payload = Payload::Packet(ethertype::IPV4);
    let header = Header::Gtpu { teid: 1, flags: 0x30, kind: 255, optional: [0; 4], payload };
    assert!(!is_plain(&[0; 14], &outer, gtpu, header), "it has a length of its own, and carries no frame");
}
