use packet::buffer::heap::HEAP;
use packet::{Pool, PoolConfig};
use proptest::prelude::*;

use super::*;

/// A super-frame as a local stack hands it over: unfinished checksum, lengths of the whole.
#[derive(Clone, Debug)]
struct Shape {
    tags: usize,
    ipv6: bool,
    tcp: bool,
    ip_options: usize,
    tcp_options: usize,
    flags: u8,
    seq: u32,
    id: u16,
    gso_size: u16,
    payload: Vec<u8>,
    unfinished: bool,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let headers = (0usize..3, any::<bool>(), any::<bool>(), 0usize..3, 0usize..11, any::<u8>());
    let rest = (any::<u32>(), any::<u16>(), 48u16..1500, prop::collection::vec(any::<u8>(), 0..9000), any::<bool>());
    (headers, rest).prop_map(
        |((tags, ipv6, tcp, ip_options, tcp_options, flags), (seq, id, gso_size, payload, unfinished))| Shape {
            tags,
            ipv6,
            tcp,
            ip_options,
            tcp_options,
            flags,
            seq,
            id,
            // Of datagrams, there are so many at most.
            gso_size: if tcp { gso_size } else { gso_size.max(payload.len().div_ceil(MAX_DATAGRAMS) as u16) },
            payload,
            unfinished,
        },
    )
}

impl Shape {
    fn build(&self) -> Packet {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..self.tags {
            f.extend(if self.tags == 2 && tag == 0 { [0x88, 0xa8, 0, 7] } else { [0x81, 0, 0x20, 9] });
        }
        let l4_header = if self.tcp { 20 + 4 * self.tcp_options } else { 8 };
        let l4_len = l4_header + self.payload.len();
        if self.ipv6 {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend(((l4_len + 8 * self.ip_options) as u16).to_be_bytes());
            let protocol = if self.tcp { 6 } else { 17 };
            f.extend([if self.ip_options > 0 { 60 } else { protocol }, 64]);
            f.extend([[0x20; 16], [0x31; 16]].concat());
            for i in 0..self.ip_options {
                f.extend([if i + 1 < self.ip_options { 60 } else { protocol }, 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            let ihl = 20 + 4 * self.ip_options;
            f.extend([0x08, 0x00, 0x40 | (ihl / 4) as u8, 0]);
            f.extend(((ihl + l4_len) as u16).to_be_bytes());
            f.extend(self.id.to_be_bytes());
            f.extend([0x40, 0, 64, if self.tcp { 6 } else { 17 }, 0xde, 0xad, 10, 0, 0, 1, 10, 0, 0, 2]);
            f.extend(vec![1; 4 * self.ip_options]);
        }
        let l4 = f.len();
        f.extend([0x30, 0x39, 0, 80]);
        if self.tcp {
            f.extend(self.seq.to_be_bytes());
            f.extend([0, 0, 0, 1, ((l4_header / 4) << 4) as u8, self.flags, 1, 0, 0xbe, 0xef, 0, 0]);
            f.extend(vec![1; 4 * self.tcp_options]);
        } else {
            f.extend((l4_len as u16).to_be_bytes());
            f.extend([0xbe, 0xef]);
        }
        f.extend(&self.payload);
        let mut packet = Packet::from_slice(&f);
        *packet.offload_mut() = Offload {
            flags: if self.unfinished { Offload::NEEDS_CSUM } else { 0 },
            gso_type: match (self.tcp, self.ipv6) {
                (true, false) => Offload::GSO_TCPV4,
                (true, true) => Offload::GSO_TCPV6 | Offload::GSO_ECN,
                (false, _) => Offload::GSO_UDP_L4,
            },
            hdr_len: 0,
            gso_size: self.gso_size,
            csum_start: l4 as u16,
            csum_offset: if self.tcp { 16 } else { 6 },
        };
        packet
    }
}

/// The internet checksum in its plainest form, byte by byte: independent of the code under test.
fn plain_sum(bytes: &[u8]) -> u32 {
    let mut total = 0u32;
    for (i, &byte) in bytes.iter().enumerate() {
        total += if i % 2 == 0 { u32::from(byte) * 256 } else { u32::from(byte) };
        if total > 0xffff {
            total -= 0xffff;
        }
    }
    total
}

/// What a segment says, after checking its lengths and checksums.
struct Parsed {
    id: u16,
    seq: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn parse(frame: &[u8], shape: &Shape) -> Parsed {
    let l3 = 14 + 4 * shape.tags;
    let (l4, addresses) = match shape.ipv6 {
        true => {
            assert_eq!(usize::from(frame[l3 + 4]) * 256 + usize::from(frame[l3 + 5]), frame.len() - l3 - 40);
            (l3 + 40 + 8 * shape.ip_options, &frame[l3 + 8..l3 + 40])
        }
        false => {
            assert_eq!(usize::from(frame[l3 + 2]) * 256 + usize::from(frame[l3 + 3]), frame.len() - l3);
            let l4 = l3 + 20 + 4 * shape.ip_options;
            assert_eq!(plain_sum(&frame[l3..l4]), 0xffff, "IPv4 header checksum");
            (l4, &frame[l3 + 12..l3 + 20])
        }
    };
    let mut pseudo = addresses.to_vec();
    pseudo.extend([0, if shape.tcp { 6 } else { 17 }]);
    pseudo.extend(((frame.len() - l4) as u16).to_be_bytes());
    pseudo.extend(&frame[l4..]);
    assert_eq!(plain_sum(&pseudo), 0xffff, "L4 checksum");
    let at = |i| frame[l4 + i];
    if !shape.tcp {
        assert_eq!(usize::from(at(4)) * 256 + usize::from(at(5)), frame.len() - l4);
        assert_ne!([at(6), at(7)], [0, 0], "zero would say that there is no checksum");
    }
    let header = if shape.tcp { 20 + 4 * shape.tcp_options } else { 8 };
    Parsed {
        id: u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]),
        seq: u32::from_be_bytes([at(4), at(5), at(6), at(7)]),
        flags: if shape.tcp { at(13) } else { 0 },
        payload: frame[l4 + header..].to_vec(),
    }
}

/// A tunnel's headers around a frame, as a stack writes them: `kind` is VXLAN, Geneve with options, GRE with a key, GRE
/// over IP, or IP in IP.
fn encapsulate(inner: &Packet, kind: usize, ipv6: bool, checksum: bool) -> Packet {
    let version = inner.data()[14] >> 4;
    let (skipped, protocol, header) = match kind {
        0 => (0, 17, vec![8, 0, 0, 0, 0, 0, 7, 0]),
        1 => (0, 17, [&[2, 0, 0x65, 0x58, 0, 0, 7, 0][..], &[1, 2, 3, 1, 0, 0, 0, 9]].concat()),
        2 => (0, 47, vec![0x20, 0, 0x65, 0x58, 0, 0, 0, 7]),
        3 => (14, 47, if version == 6 { vec![0, 0, 0x86, 0xdd] } else { vec![0, 0, 8, 0] }),
        _ => (14, if version == 6 { 41 } else { 4 }, vec![]),
    };
    let payload = [&header[..], &inner.data()[skipped..]].concat();
    let udp = if protocol == 17 { 8 } else { 0 };
    let length = (udp + payload.len()) as u16;
    let mut f = vec![2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 2];
    if ipv6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(length.to_be_bytes());
        f.extend([protocol, 64]);
        f.extend([[0x42; 16], [0x53; 16]].concat());
    } else {
        f.extend([0x08, 0x00, 0x45, 0]);
        f.extend((20 + length).to_be_bytes());
        f.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0xde, 0xad, 172, 31, 0, 1, 172, 31, 0, 2]);
    }
    if udp > 0 {
        f.extend([0xc0, 1, 0x12, 0xb5]);
        f.extend(length.to_be_bytes());
        f.extend(if checksum { [0xbe, 0xef] } else { [0, 0] });
    }
    let before = f.len() + header.len();
    f.extend(payload);
    let mut packet = Packet::from_slice(&f);
    *packet.offload_mut() = *inner.offload();
    packet.offload_mut().csum_start = (before - skipped) as u16 + inner.offload().csum_start;
    packet
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn segments_in_a_tunnel_are_the_segments_without(
        mut shape in shapes(), kind in 0..5usize, ipv6 in any::<bool>(), checksum in any::<bool>(), can in 0..16u8,
    ) {
        shape.unfinished = true;
        if kind > 2 {
            shape.tags = 0;
        }
        let inner = shape.build();
        let outer = encapsulate(&inner, kind, ipv6, checksum);
        let before = usize::from(outer.offload().csum_start - inner.offload().csum_start);
        let skipped = if kind > 2 { 14 } else { 0 };
        let mut wanted = Vec::new();
        segment(&inner, &HEAP, &mut |part| wanted.push(part.data()[skipped..].to_vec())).unwrap();
        let tunnelled = fuzz::finish(outer.data(), *outer.offload(), fuzz::offloads(can));
        let finished = |mut part: Packet| {
            complete_checksum(&mut part).unwrap();
            part.data()[before + skipped..].to_vec()
        };
        let found: Vec<_> = tunnelled.into_iter().map(finished).collect();
        prop_assert_eq!(found, wanted);
    }

    /// What a port that knows tunnels gets: what is in one over UDP whole, unless the outer checksum is different for each segment.
    #[test]
    fn a_port_that_knows_tunnels_gets_what_it_knows(
        mut shape in shapes(), kind in 0..5usize, ipv6 in any::<bool>(), checksum in any::<bool>(),
    ) {
        shape.unfinished = true;
        if kind > 2 {
            shape.tags = 0;
        }
        let inner = shape.build();
        let packet = encapsulate(&inner, kind, ipv6, checksum);
        let skipped = if kind > 2 { 14 } else { 0 };
        let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: true, datagrams: false };
        let is_known = kind < 2 && !checksum;
        let place = tunnel_of(&packet);
        prop_assert_eq!(place.is_some(), is_known);
        if let Some(TunnelPlace { outer_l4, inner_l3, outer_ipv6 }) = place {
            let before = packet.offload().csum_start - inner.offload().csum_start;
            prop_assert_eq!((outer_l4, outer_ipv6), (if ipv6 { 54 } else { 34 }, ipv6));
            prop_assert_eq!(usize::from(inner_l3), usize::from(before) + 14 + 4 * shape.tags - skipped);
        }
        let parts = fuzz::finish(packet.data(), *packet.offload(), all);
        prop_assert_eq!(parts.len() == 1 && parts[0].offload().is_gso(), is_known);
        prop_assert_eq!(tunnel_of(&inner), None);
    }

    /// What a port that cuts UDP gets: what is in a tunnel over UDP in few frames, each datagram of which is a segment.
    #[test]
    fn a_port_that_cuts_datagrams_gets_segments_as_such(
        mut shape in shapes(), kind in 0..5usize, ipv6 in any::<bool>(), checksum in any::<bool>(),
    ) {
        shape.unfinished = true;
        if kind > 2 {
            shape.tags = 0;
        }
        let packet = encapsulate(&shape.build(), kind, ipv6, checksum);
        let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: true };
        // What the datagrams are is looked at there.
        let parts = fuzz::finish(packet.data(), *packet.offload(), all);
        let segments = shape.payload.len().div_ceil(shape.gso_size.into());
        let is_udp = parts.iter().any(|part| part.offload().gso_type == Offload::GSO_UDP_L4);
        prop_assert_eq!(is_udp, kind < 2 && (2..=128).contains(&segments));
        prop_assert!(!is_udp || parts.len() == segments.div_ceil(64));
    }

    #[test]
    fn a_right_checksum_of_tcp_is_left_unfinished_again(mut shape in shapes(), wrong in any::<Option<u8>>()) {
        shape.unfinished = true;
        let mut parts = Vec::new();
        segment(&shape.build(), &HEAP, &mut |part| parts.push(part)).unwrap();
        for mut part in parts {
            *part.data_mut().last_mut().unwrap() ^= wrong.unwrap_or(0);
            let before = part.data().to_vec();
            unfinish_tcp(&mut part);
            prop_assert_eq!(part.offload().needs_csum(), shape.tcp && wrong.unwrap_or(0) == 0);
            complete_checksum(&mut part).unwrap();
            prop_assert!(part.data() == before);
        }
    }

    #[test]
    fn segments_make_up_the_original(shape in shapes()) {
        let packet = shape.build();
        let mut segments = Vec::new();
        let count = segment(&packet, &HEAP, &mut |p| segments.push(p)).unwrap();
        prop_assert_eq!(count, segments.len());
        prop_assert_eq!(count, shape.payload.len().div_ceil(shape.gso_size.into()).max(1));
        let mut payload = Vec::new();
        for (i, segment) in segments.iter().enumerate() {
            prop_assert_eq!(*segment.offload(), Offload::NONE);
            let parsed = parse(segment.data(), &shape);
            prop_assert!(parsed.payload.len() == usize::from(shape.gso_size) || i + 1 == count);
            if !shape.ipv6 {
                prop_assert_eq!(parsed.id, shape.id.wrapping_add(i as u16));
            }
            if shape.tcp {
                prop_assert_eq!(parsed.seq, shape.seq.wrapping_add(payload.len() as u32));
                let kept = 0x76 | if i + 1 == count { 0x09 } else { 0 } | if i == 0 { 0x80 } else { 0 };
                prop_assert_eq!(parsed.flags, shape.flags & kept);
            }
            payload.extend(parsed.payload);
        }
        prop_assert_eq!(payload, shape.payload);
    }

    #[test]
    fn segments_with_checksums_left_to_the_port_become_the_same(shape in shapes()) {
        let (mut finished, mut left) = (Vec::new(), Vec::new());
        segment(&shape.build(), &HEAP, &mut |p| finished.push(p)).unwrap();
        complete(shape.build(), Offloads { csum: true, ..Offloads::default() }, &HEAP, &mut |p| left.push(p)).unwrap();
        prop_assert_eq!(finished.len(), left.len());
        for (finished, mut left) in finished.iter().zip(left) {
            prop_assert!(left.offload().needs_csum());
            complete_checksum(&mut left).unwrap();
            prop_assert_eq!(finished.data(), left.data());
        }
    }

    #[test]
    fn completed_checksums_verify(mut shape in shapes()) {
        shape.unfinished = true;
        let mut packet = shape.build();
        packet.offload_mut().gso_type = 0;
        // The sender leaves the pseudo header's sum in the checksum field.
        let l4 = usize::from(packet.offload().csum_start);
        let l3 = 14 + 4 * shape.tags;
        let addresses = if shape.ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let mut pseudo = packet.data()[addresses].to_vec();
        pseudo.extend([0, if shape.tcp { 6 } else { 17 }]);
        pseudo.extend(((packet.len() - l4) as u16).to_be_bytes());
        let at = l4 + usize::from(packet.offload().csum_offset);
        packet.data_mut()[at..at + 2].copy_from_slice(&(plain_sum(&pseudo) as u16).to_be_bytes());
        if !shape.ipv6 {
            let sum = checksum(&{ let mut h = packet.data()[l3..l4].to_vec(); h[10] = 0; h[11] = 0; h });
            packet.data_mut()[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        complete_checksum(&mut packet).unwrap();
        prop_assert!(!packet.offload().needs_csum());
        parse(packet.data(), &shape);
    }

    #[test]
    fn arbitrary_frames_never_panic(
        frame in prop::collection::vec(any::<u8>(), 0..200),
        ethertype in prop::sample::select(vec![[8u8, 0], [0x86, 0xdd], [0x81, 0]]),
        first in any::<u8>(), flags: u8, gso_type in 0u8..8, gso_size in 0u16..4, csum_start in 0u16..220, csum_offset in 0u16..30,
    ) {
        let mut frame = frame;
        for (at, value) in [(12, ethertype[0]), (13, ethertype[1]), (14, first)] {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        for can in [Offloads::default(), Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: false }] {
            let mut packet = Packet::from_slice(&frame);
            *packet.offload_mut() = Offload { flags, gso_type, hdr_len: 0, gso_size, csum_start, csum_offset };
            let mut emitted = 0;
            let _ = complete(packet, can, &HEAP, &mut |p| emitted += p.len());
        }
    }
}

fn shape() -> Shape {
    Shape {
        tags: 0,
        ipv6: false,
        tcp: true,
        ip_options: 0,
        tcp_options: 3,
        flags: 0x18,
        seq: u32::MAX - 100,
        id: 0xffff,
        gso_size: 1448,
        payload: vec![7; 60_000],
        unfinished: true,
    }
}

#[test]
fn what_the_port_can_do_is_left_to_it() {
    let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: false };
    let count = |can: Offloads| {
        let mut frames = Vec::new();
        complete(shape().build(), can, &HEAP, &mut |p| frames.push(p)).unwrap();
        (frames.len(), frames[0].offload().is_gso())
    };
    assert_eq!(count(all), (1, true));
    assert_eq!(count(Offloads { tso4: false, ..all }), (42, false));
    assert_eq!(count(Offloads { csum: false, ..all }), (42, false));
    assert_eq!(count(Offloads::default()), (42, false));
}

#[test]
fn a_segment_longer_than_ip_can_say_is_refused() {
    for ipv6 in [false, true] {
        let whole = Shape { ipv6, payload: vec![7; 66_000], ..shape() };
        let cut = |gso_size| {
            let mut packet = Shape { gso_size, ..whole.clone() }.build();
            // A length of zero: all there is.
            let length = if ipv6 { 18 } else { 16 };
            packet.data_mut()[length..length + 2].fill(0);
            segment(&packet, &HEAP, &mut |_| {})
        };
        assert_eq!(cut(32_000), Ok(3));
        assert!(cut(65_535).unwrap_err().to_string().contains("length field"));
    }
}

#[test]
fn a_super_frame_that_lies_is_not_left_to_the_port() {
    let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: false };
    let refuse = |change: &dyn Fn(&mut Packet)| {
        let mut packet = shape().build();
        change(&mut packet);
        let mut none = |_| panic!("nothing may come out");
        complete(packet, all, &HEAP, &mut none).unwrap_err().to_string()
    };
    assert!(refuse(&|p| p.data_mut()[46] = 0x10).contains("TCP header"));
    assert!(refuse(&|p| p.offload_mut().gso_type = Offload::GSO_TCPV6).contains("agree"));
    assert!(refuse(&|p| p.offload_mut().gso_size = 0).contains("zero"));
    assert!(refuse(&|p| p.offload_mut().csum_offset = 65_000).contains("checksum at"));
}

/// Puts an MPLS label in front of the IP header, as the action does.
fn label(mut packet: Packet) -> Packet {
    packet.push_front(4).unwrap();
    let frame = packet.data_mut();
    frame.copy_within(4..16, 0);
    frame[12..18].copy_from_slice(&[0x88, 0x47, 0, 1, 0x01, 64]);
    let offload = packet.offload_mut();
    offload.csum_start += 4;
    packet
}

#[test]
fn labelled_frames_are_cut_here_whatever_the_port_can_do() {
    let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: false, datagrams: false };
    for ipv6 in [false, true] {
        let shape = Shape { ipv6, ..shape() };
        let mut segments = Vec::new();
        complete(label(shape.build()), all, &HEAP, &mut |p| segments.push(p)).unwrap();
        assert_eq!(segments.len(), 42);
        for mut segment in segments {
            complete_checksum(&mut segment).unwrap();
            let frame = segment.data_mut();
            assert_eq!(frame[12..18], [0x88, 0x47, 0, 1, 0x01, 64]);
            frame.copy_within(0..12, 4);
            frame[16..18].copy_from_slice(if ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
            parse(&frame[4..], &shape);
        }
    }
}

#[test]
fn sctp_gets_its_crc_even_where_the_port_completes_checksums() {
    let mut f = vec![0; 12];
    f.extend([8, 0, 0x45, 0, 0, 36, 0, 0, 0, 0, 64, 132, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0, 1, 0, 2, 0, 0, 0, 3, 9, 9, 9, 9, 1, 2, 3, 4]);
    let mut packet = Packet::from_slice(&f);
    *packet.offload_mut() = Offload { flags: 1, csum_start: 34, csum_offset: 8, ..Offload::NONE };
    let mut out = Vec::new();
    complete(packet, Offloads { csum: true, ..Offloads::default() }, &HEAP, &mut |p| out.push(p)).unwrap();
    let mut expected = f[34..].to_vec();
    expected[8..12].fill(0);
    assert_eq!(out[0].data()[42..46], crc32c(&expected).to_le_bytes());
    assert!(!out[0].offload().needs_csum());
}

#[test]
fn hostile_requests_are_refused() {
    let refuse = |change: &dyn Fn(&mut Packet)| {
        let mut packet = shape().build();
        change(&mut packet);
        let mut none = |_| panic!("nothing may come out");
        complete(packet, Offloads::default(), &HEAP, &mut none).unwrap_err().to_string()
    };
    assert!(refuse(&|p| p.offload_mut().gso_size = 1).contains("more segments"));
    assert!(refuse(&|p| p.offload_mut().gso_size = 0).contains("zero"));
    assert!(refuse(&|p| p.offload_mut().gso_type = Offload::GSO_TCPV6).contains("agree"));
    assert!(refuse(&|p| p.offload_mut().gso_type = Offload::GSO_UDP).contains("unknown type"));
    assert!(refuse(&|p| p.offload_mut().csum_start = 14).contains("does not start"));
    assert!(refuse(&|p| p.data_mut()[46] = 0x10).contains("TCP header"));
    assert!(refuse(&|p| p.truncate(50)).contains("cut short"));
    assert!(refuse(&|p| p.data_mut()[20] = 0x20).contains("fragment"));
    let outside = |p: &mut Packet| {
        p.offload_mut().gso_type = 0;
        p.truncate(51);
    };
    assert_eq!(refuse(&outside), "checksum at 50 in a frame of 51 bytes");
}

#[test]
fn a_frame_of_udp_is_cut_into_as_many_datagrams_as_linux_allows() {
    let count = |bytes: usize| {
        let packet = Shape { tcp: false, payload: vec![1; bytes], gso_size: 60, ..shape() }.build();
        segment(&packet, &HEAP, &mut |_| {})
    };
    assert_eq!(count(128 * 60), Ok(128));
    assert!(count(128 * 60 + 1).unwrap_err().to_string().contains("more segments"));
}

#[test]
fn udp_without_checksum_keeps_none() {
    let mut shape = Shape { tcp: false, unfinished: false, payload: vec![1; 100], gso_size: 60, ..shape() };
    for (ipv6, kept) in [(false, true), (true, false)] {
        shape.ipv6 = ipv6;
        let mut packet = shape.build();
        let at = usize::from(packet.offload().csum_start) + 6;
        packet.data_mut()[at..at + 2].fill(0);
        segment(&packet, &HEAP, &mut |p| assert_eq!(p.data()[at..at + 2] == [0, 0], kept)).unwrap();
    }
}

/// A burst of super-frames has more segments than there are large buffers.
#[test]
fn segments_of_large_frames_are_not_in_large_buffers() {
    let shape = Shape { gso_size: 100, payload: vec![7; 500], unfinished: true, ..shape() };
    let (large, frames) = (pools::large_frames().unwrap().memory(), pools::frames().unwrap().memory());
    let mut segments = Vec::new();
    complete(shape.build(), Offloads::default(), large, &mut |p| segments.push(p)).unwrap();
    assert_eq!(segments.len(), 5);
    assert!(segments.iter().all(|segment| std::ptr::eq(segment.memory(), frames)));
}

#[test]
fn segments_end_where_buffers_do() {
    let shape = Shape {
        tags: 0,
        ipv6: false,
        tcp: true,
        ip_options: 0,
        tcp_options: 0,
        flags: 0x10,
        seq: 1,
        id: 1,
        gso_size: 100,
        payload: vec![7; 500],
        unfinished: true,
    };
    let pool = Pool::new(PoolConfig { chunks: 2, chunk_size: 512, headroom: 0 }).unwrap();
    let cut = || {
        let mut segments = Vec::new();
        let result = complete(shape.build(), Offloads::default(), pool.memory(), &mut |p| segments.push(p));
        (result, segments.iter().map(|p| p.memory().name).collect::<Vec<_>>(), segments.len())
    };
    assert_eq!(
        cut(),
        (Ok(()), vec!["pool"; 5], 5),
        "what finds no room in the first pool finds some among large frames"
    );
    let large = pools::large_frames().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| large.allocate()).collect();
    let (result, _, made) = cut();
    let small = Pool::new(PoolConfig { chunks: 16, chunk_size: 512, headroom: 0 }).unwrap();
    let mut segments = Vec::new();
    let can = Offloads { csum: true, tso4: true, datagrams: true, ..Offloads::default() };
    let in_tunnel = encapsulate(&shape.build(), 0, false, false);
    let in_small = complete(in_tunnel, can, small.memory(), &mut |p| segments.push(p.offload().is_gso()));
    drop(all);
    assert_eq!((result, made), (Err(OffloadError::NoBuffer), 2));
    assert_eq!((in_small, segments), (Ok(()), vec![false; 5]), "segments have room where no datagrams have");
}
