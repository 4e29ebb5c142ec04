//! After every rewrite, the frame's key has the written values and is otherwise unchanged, and its checksums equal
//! those of a computation from scratch.

use packet::flow::extract::{Layers, VlanLimit, extract};
use packet::wire::build;
use packet::wire::crc32c::crc32c;
use packet::{Field, Key, Mask, Offload, Packet};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum L4 {
    Tcp,
    Udp,
    UdpWithoutChecksum,
    Sctp,
    Icmp,
    Solicitation,
    Advertisement,
}

#[derive(Clone, Debug)]
struct Shape {
    v6: bool,
    l4: L4,
    vlans: usize,
    /// IPv4 options or an IPv6 destination options header.
    options: bool,
    payload: Vec<u8>,
    padding: usize,
}

fn sum(bytes: &[u8], start: u64) -> u16 {
    let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0)));
    let mut sum = start + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn shape() -> impl Strategy<Value = Shape> {
    let l4 = prop_oneof![
        Just((false, L4::Tcp)),
        Just((true, L4::Tcp)),
        Just((false, L4::Udp)),
        Just((true, L4::Udp)),
        Just((false, L4::UdpWithoutChecksum)),
        Just((false, L4::Sctp)),
        Just((true, L4::Sctp)),
        Just((false, L4::Icmp)),
        Just((true, L4::Solicitation)),
        Just((true, L4::Advertisement)),
    ];
    let payload = proptest::collection::vec(any::<u8>(), 0..40);
    (l4, 0..3usize, any::<bool>(), payload, 0..8usize).prop_map(|((v6, l4), vlans, options, payload, padding)| Shape {
        v6,
        l4,
        vlans,
        options,
        payload,
        padding,
    })
}

impl Shape {
    fn proto(&self) -> u8 {
        match self.l4 {
            L4::Tcp => TCP,
            L4::Udp | L4::UdpWithoutChecksum => UDP,
            L4::Sctp => SCTP,
            L4::Icmp => ICMP,
            L4::Solicitation | L4::Advertisement => ICMPV6,
        }
    }

    fn l4_bytes(&self) -> Vec<u8> {
        let mut l4 = match self.l4 {
            L4::Tcp => {
                let mut tcp = vec![0x11; 20];
                tcp[12] = 0x50;
                tcp
            }
            L4::Udp | L4::UdpWithoutChecksum => vec![0x22; 8],
            L4::Sctp => vec![0x33; 12],
            L4::Icmp => vec![8, 0, 0, 0, 1, 2, 3, 4],
            L4::Solicitation | L4::Advertisement => {
                let kind = if matches!(self.l4, L4::Solicitation) { 135 } else { 136 };
                let mut nd = vec![0x44; 32];
                nd[..4].copy_from_slice(&[kind, 0, 0, 0]);
                nd[24..26].copy_from_slice(&[kind - 134, 1]);
                return nd;
            }
        };
        l4.extend(&self.payload);
        if self.proto() == UDP {
            let len = (l4.len() as u16).to_be_bytes();
            l4[4..6].copy_from_slice(&len);
        }
        l4
    }

    fn build(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for n in 0..self.vlans {
            frame.extend(if n == 0 { [0x88, 0xa8, 0x20, 5] } else { [0x81, 0x00, 0x30, 6] });
        }
        let l4 = self.l4_bytes();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x61, 0x23, 0x45, 0x67]);
            let extra = if self.options { 8 } else { 0 };
            frame.extend(((l4.len() + extra) as u16).to_be_bytes());
            frame.extend([if self.options { 60 } else { self.proto() }, 64]);
            frame.extend([0xfd; 16].iter().chain(&[0xfe; 16]));
            if self.options {
                frame.extend([self.proto(), 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            let header = if self.options { 24 } else { 20 };
            frame.extend([0x08, 0x00, 0x40 + header / 4, 0x28]);
            frame.extend((u16::from(header) + l4.len() as u16).to_be_bytes());
            frame.extend([0, 1, 0, 0, 64, self.proto(), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            if self.options {
                frame.extend([1, 1, 1, 0]);
            }
        }
        frame.extend(l4);
        frame.resize(frame.len() + self.padding, 0);
        complete(&mut frame, !matches!(self.l4, L4::UdpWithoutChecksum));
        frame
    }

    fn fields(&self) -> Vec<Field> {
        use Field::*;
        let mut fields = vec![DlSrc, DlDst, NwEcn, IpDscp, NwTtl, PktMark, TunId];
        if self.vlans > 0 {
            fields.extend([VlanVid, VlanPcp]);
        }
        fields.extend(if self.v6 { [Ipv6Src, Ipv6Dst, Ipv6Label] } else { [NwSrc, NwDst, NwDst] });
        fields.extend(match self.l4 {
            L4::Tcp => vec![TcpSrc, TcpDst],
            L4::Udp | L4::UdpWithoutChecksum => vec![UdpSrc, UdpDst],
            L4::Sctp => vec![SctpSrc, SctpDst],
            L4::Icmp => vec![IcmpType, IcmpCode],
            L4::Solicitation => vec![NdTarget, NdSll, NdReserved],
            L4::Advertisement => vec![NdTarget, NdTll, NdReserved],
        });
        fields
    }
}

/// Computes the checksums of a frame, and writes or compares them.
fn complete(frame: &mut [u8], with_udp: bool) -> bool {
    let before = frame.to_vec();
    let mut key = Key::new();
    let layers = extract(frame, &mut key, VlanLimit::default());
    let (l3, l4, proto) = (layers.l3 as usize, layers.l4 as usize, key.common().nw_proto);
    let v6 = key.common().dl_type.get() == IPV6;
    let end = l4::l3_end(frame, key.common().dl_type.get(), l3).unwrap();
    let addresses = if v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    if !v6 {
        frame[l3 + 10..l3 + 12].fill(0);
        let header = usize::from(frame[l3] & 15) * 4;
        let checksum = !sum(&frame[l3..l3 + header], 0);
        frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    let pseudo = u64::from(sum(&frame[addresses], (end - l4) as u64 + u64::from(proto)));
    let (at, pseudo) = match proto {
        TCP => (16, pseudo),
        UDP => (6, pseudo),
        ICMPV6 => (2, pseudo),
        ICMP => (2, 0),
        _ => {
            frame[l4 + 8..l4 + 12].fill(0);
            let crc = crc32c(&frame[l4..end]);
            frame[l4 + 8..l4 + 12].copy_from_slice(&crc.to_le_bytes());
            return before == frame;
        }
    };
    frame[l4 + at..l4 + at + 2].fill(0);
    if proto != UDP || with_udp {
        let checksum = match !sum(&frame[l4..end], pseudo) {
            0 if proto == UDP => 0xffff,
            checksum => checksum,
        };
        frame[l4 + at..l4 + at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    before == frame
}

fn rewrite(field: Field, value: u128, bits: u128) -> Rewrite {
    let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
    rewrite.key.set(field, value);
    rewrite.mask.add(field, bits & field.info().max());
    rewrite
}

fn apply(rewrite: &Rewrite, packet: &mut Packet) -> (Key, Key) {
    let mut key = Key::new();
    let layers = extract(packet.data(), &mut key, VlanLimit::default());
    let mut want = key.clone();
    for info in packet::flow::field::FIELDS {
        let bits = rewrite.mask.get(info.field);
        if bits != 0 {
            want.set(info.field, want.get(info.field) & !bits | rewrite.key.get(info.field) & bits);
        }
    }
    Rewriter::new(rewrite).apply(packet, &mut key, &layers);
    let mut fresh = key.clone();
    // As the executor does: metadata stays, the rest is extracted.
    let metadata = crate::pipeline::metadata::OwnMetadata::of(&key, &mut Vec::new());
    metadata.start(&mut fresh);
    extract(packet.data(), &mut fresh, VlanLimit::default());
    (fresh, want)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 600 }))]

    #[test]
    fn fields_are_written_and_checksums_right(
        shape in shape(), pick in any::<prop::sample::Index>(), value in any::<u128>(), bits in any::<u128>(), exact in any::<bool>()
    ) {
        let frame = shape.build();
        let mut key = Key::new();
        prop_assert_ne!(extract(&frame, &mut key, VlanLimit::default()).l4, Layers::NONE);
        let fields = shape.fields();
        let field = fields[pick.index(fields.len())];
        let mut value = value & field.info().max();
        match field {
            Field::VlanVid => value |= 0x1000,
            // Another type would be another message.
            Field::IcmpType => value |= 0x80,
            _ => {}
        }
        let bits = if exact || field == Field::IcmpType { u128::MAX } else { bits };
        let mut packet = Packet::from_slice(&frame);
        let (got, want) = apply(&rewrite(field, value, bits), &mut packet);
        prop_assert_eq!(&got, &want, "{:?}", field);
        let with_udp = !matches!(shape.l4, L4::UdpWithoutChecksum);
        prop_assert!(complete(&mut packet.data().to_vec(), with_udp), "{:?} {:02x?}", field, packet.data());
        if value & bits & field.info().max() == key.get(field) & bits {
            prop_assert_eq!(packet.data(), &frame[..]);
        }
    }

    #[test]
    fn partial_checksums_stay_partial(v6 in any::<bool>(), tcp in any::<bool>(), address in any::<u128>(), port in any::<u16>()) {
        let l4 = if tcp { L4::Tcp } else { L4::Udp };
        let shape = Shape { v6, l4, vlans: 1, options: false, payload: vec![7; 11], padding: 0 };
        let frame = shape.build();
        let at = 18 + if v6 { 40 } else { 20 };
        let field_at = at + if tcp { 16 } else { 6 };
        let mut packet = Packet::from_slice(&frame);
        // As a local stack leaves it: the pseudo header's sum.
        let pseudo = |f: &[u8]| {
            let addresses = if v6 { &f[26..58] } else { &f[30..38] };
            sum(addresses, (f.len() - at) as u64 + u64::from(shape.proto()))
        };
        packet.data_mut()[field_at..field_at + 2].copy_from_slice(&pseudo(&frame).to_be_bytes());
        *packet.offload_mut() = Offload {
            flags: Offload::NEEDS_CSUM,
            csum_start: at as u16,
            csum_offset: (field_at - at) as u16,
            ..Offload::NONE
        };
        let (src, port_field) = (if v6 { Field::Ipv6Src } else { Field::NwSrc }, if tcp { Field::TcpDst } else { Field::UdpDst });
        apply(&rewrite(src, address & src.info().max(), u128::MAX), &mut packet);
        apply(&rewrite(port_field, port.into(), u128::MAX), &mut packet);
        let left = u16::from_be_bytes([packet.data()[field_at], packet.data()[field_at + 1]]);
        prop_assert_eq!(left % 0xffff, pseudo(packet.data()) % 0xffff);

        // Pushed and popped headers move the offsets.
        assert!(push_vlan(&mut packet, 0x8100, 7));
        prop_assert_eq!(packet.offload().csum_start as usize, at + 4);
        pop_vlan(&mut packet);
        prop_assert_eq!(packet.offload().csum_start as usize, at);
    }

    #[test]
    fn any_rewrite_of_any_bytes_is_harmless(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..5usize, value in any::<u128>(), vlan in any::<bool>()
    ) {
        let types: [[u8; 2]; 5] = [[8, 0], [0x86, 0xdd], [8, 6], [0x88, 0x47], [0x12, 0x34]];
        if bytes.len() > 20 {
            bytes[12..14].copy_from_slice(if vlan { &[0x81, 0] } else { &types[kind] });
            bytes[16..18].copy_from_slice(&types[kind]);
        }
        for info in packet::flow::field::FIELDS.iter().filter(|i| i.writable) {
            let mut packet = Packet::from_slice(&bytes);
            let mut key = Key::new();
            let layers = extract(packet.data(), &mut key, VlanLimit::default());
            Rewriter::new(&rewrite(info.field, value & info.max(), u128::MAX)).apply(&mut packet, &mut key, &layers);
            prop_assert_eq!(packet.len(), bytes.len());
            pop_vlan(&mut packet);
            let layers = extract(packet.data(), &mut key, VlanLimit::default());
            assert!(push_mpls(&mut packet, &layers, 0x8847, 1));
            let layers = extract(packet.data(), &mut key, VlanLimit::default());
            pop_mpls(&mut packet, &layers, 0x800);
        }
    }
}

#[test]
fn later_fragments_keep_their_payload() {
    let shape = Shape { v6: false, l4: L4::Udp, vlans: 0, options: false, payload: vec![9; 16], padding: 0 };
    let mut frame = shape.build();
    frame[20..22].copy_from_slice(&[0, 5]);
    frame[24..26].fill(0);
    let checksum = !sum(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = Packet::from_slice(&frame);
    apply(&rewrite(Field::NwSrc, 0x0102_0304, u128::MAX), &mut packet);
    apply(&rewrite(Field::UdpSrc, 7, u128::MAX), &mut packet);
    assert_eq!(packet.data()[26..30], [1, 2, 3, 4]);
    assert_eq!(sum(&packet.data()[14..34], 0), 0xffff);
    assert_eq!(packet.data()[34..], frame[34..]);
}

#[test]
fn the_priority_is_the_queue_of_the_packet() {
    let mut packet = Packet::from_slice(&[0; 60]);
    let (_, want) = apply(&rewrite(Field::SkbPriority, 70, u128::MAX), &mut packet);
    assert_eq!((packet.queue(), want.common().skb_priority.get()), (70, 70));
    assert_eq!(packet.duplicate().unwrap().queue(), 70, "that of a copy, too");
    let _ = apply(&rewrite(Field::PktMark, 9, u128::MAX), &mut packet);
    assert_eq!(packet.queue(), 0, "this key has none");
}

#[test]
fn arp_fields() {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    let values = [(Field::ArpOp, 2), (Field::ArpSpa, 5), (Field::ArpTpa, 6), (Field::ArpSha, 7), (Field::ArpTha, 8)];
    let mut packet = Packet::from_slice(&frame);
    for (field, value) in values {
        let (got, want) = apply(&rewrite(field, value, u128::MAX), &mut packet);
        assert_eq!((got.get(field), &got), (value, &want));
    }
}

#[test]
fn mpls_labels() {
    let shape = Shape { v6: false, l4: L4::Tcp, vlans: 1, options: false, payload: vec![], padding: 0 };
    let frame = shape.build();
    let mut packet = Packet::from_slice(&frame);
    let mut key = Key::new();
    let layers = extract(packet.data(), &mut key, VlanLimit::default());
    assert!(push_mpls(&mut packet, &layers, 0x8847, 0x0001_1140));
    for (field, value) in [(Field::MplsLabel, 0x12345), (Field::MplsTc, 5), (Field::MplsTtl, 9)] {
        let (got, want) = apply(&rewrite(field, value, u128::MAX), &mut packet);
        assert_eq!((got.get(field), &got), (value, &want));
    }
    // What lies under the labels is not touched.
    let labelled = packet.data().to_vec();
    apply(&rewrite(Field::NwSrc, 1, u128::MAX), &mut packet);
    assert_eq!(packet.data(), labelled);
    let layers = extract(packet.data(), &mut key, VlanLimit::default());
    pop_mpls(&mut packet, &layers, 0x0800);
    assert_eq!(packet.data(), frame);
}

#[test]
fn routed_ipv6_destinations_are_not_in_the_checksum() {
    let shape = Shape { v6: true, l4: L4::Udp, vlans: 0, options: true, payload: vec![1; 8], padding: 0 };
    let mut frame = shape.build();
    // The options header becomes a routing header with one segment left.
    frame[20] = 43;
    frame[54..62].copy_from_slice(&[UDP, 0, 0, 1, 0, 0, 0, 0]);
    let mut packet = Packet::from_slice(&frame);
    apply(&rewrite(Field::Ipv6Dst, 1, u128::MAX), &mut packet);
    assert_eq!(packet.data()[54..], frame[54..]);
    assert_ne!(packet.data()[38..54], frame[38..54]);
}

#[test]
fn a_network_service_header_is_written_in_place() {
    let mut key = Key::new();
    let before = [(Field::NshTtl, 63), (Field::NshMdtype, 1), (Field::NshNp, 3), (Field::NshSpi, 0x123456)];
    let written = [(Field::NshFlags, 2), (Field::NshSi, 254), (Field::NshC1, 0x44332211), (Field::NshC4, 7)];
    key.set(Field::DlType, 0x894f);
    before.iter().for_each(|&(field, value)| key.set(field, value));
    let mut packet = Packet::from_slice(&packet::flow::compose(&key, b"payload"));
    let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
    for (field, value) in written {
        rewrite.key.set(field, value);
        rewrite.mask.set_exact(field);
    }
    let mut old = Key::new();
    let layers = extract(packet.data(), &mut old, VlanLimit::default());
    Rewriter::new(&rewrite).apply(&mut packet, &mut old, &layers);
    let mut new = Key::new();
    extract(packet.data(), &mut new, VlanLimit::default());
    for (field, value) in before.into_iter().chain(written) {
        assert_eq!(new.get(field), value, "{field:?}");
    }
    let short = &packet.data()[..18];
    let mut cut = Packet::from_slice(short);
    Rewriter::new(&rewrite).apply(&mut cut, &mut old, &layers);
    assert_eq!(cut.data(), short, "a header that is not whole is left alone");
}

/// Every header, truncated at every length: truncated headers stay unchanged, and those before are rewritten.
#[test]
fn rewrites_leave_headers_alone_that_are_cut_short() {
    const STEP: usize = if cfg!(miri) { 3 } else { 1 };
    let ports = [(Field::TcpDst, 6u8, 20), (Field::UdpSrc, 17, 8), (Field::SctpDst, 132, 12), (Field::IcmpType, 1, 8)];
    for (field, proto, whole) in ports {
        for cut in (0..whole).step_by(STEP) {
            let header = build::Ipv4 { proto, ..build::Ipv4::default() };
            // The frame is padded: the bytes where the header would be are not the packet's.
            let mut frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(vec![0; cut]));
            frame.resize(60, 0xee);
            let mut packet = Packet::from_slice(&frame);
            apply(&rewrite(field, 9, u128::MAX), &mut packet);
            assert_eq!(packet.data(), frame, "{field:?} {cut}");
            // An address is, without a checksum to follow.
            apply(&rewrite(Field::NwDst, 9, u128::MAX), &mut packet);
            assert_eq!((&packet.data()[30..34], &packet.data()[34..]), (&[0, 0, 0, 9][..], &frame[34..]));
        }
    }
    let headers = [
        (Field::NwDst, Field::NwTtl, 0x0800u16, 20),
        (Field::Ipv6Dst, Field::Ipv6Label, 0x86dd, 40),
        (Field::ArpTpa, Field::ArpOp, 0x0806, 28),
        (Field::MplsLabel, Field::MplsTtl, 0x8847, 4),
        (Field::NshTtl, Field::NshSi, 0x894f, 8),
    ];
    for (one, other, ethertype, whole) in headers {
        for cut in (0..whole).step_by(STEP) {
            let frame = build::ethernet([2; 6], [4; 6], &[], ethertype, &vec![0x45; cut]);
            let mut packet = Packet::from_slice(&frame);
            apply(&rewrite(one, 9, u128::MAX), &mut packet);
            apply(&rewrite(other, 9, u128::MAX), &mut packet);
            assert_eq!(packet.data(), frame, "{one:?} {cut}");
        }
    }
    // Not even an Ethernet header, and tags that are not there.
    for len in 0..18 {
        let frame = vec![0x81; len];
        let mut packet = Packet::from_slice(&frame);
        let layers = extract(packet.data(), &mut Key::new(), VlanLimit::default());
        pop_vlan(&mut packet);
        pop_mpls(&mut packet, &layers, 0x0800);
        apply(&rewrite(Field::VlanTci, 0x1fff, 0xffff), &mut packet);
        assert_eq!(packet.data(), frame);
        assert!(push_vlan(&mut packet, 0x8100, 7));
        assert_eq!(packet.len(), if len < 14 { len } else { len + 4 });
    }
}
