//! Segment routing: packets of others, bad ones, and flow labels.

use std::net::Ipv6Addr;

use packet::wire::ethertype;
use tunnel::Malformed;
use tunnel::config::FlowLabel;
use tunnel::header::{Header, Payload, Protocol, Unwritable};
use tunnel::outer::{Each, Outer, Prepared, Verify, decapsulate};
use tunnel::srv6::Segments;

const SRV6: Protocol = Protocol::Srv6 { flow_label: FlowLabel::Copy };
const V4: Payload = Payload::Packet(ethertype::IPV4);
const V6: Payload = Payload::Packet(ethertype::IPV6);
/// Packets within: of IPv4, and of IPv6 with the flow label 0x12345.
const INNER4: &str = "4500002800010000400066d30a0000010a000002abababababababababababababababababababab";
const INNER6: &str = "6001234500143b40fd000000000000000000000000000001fd000000000000000000000000000002\
                      abababababababababababababababababababab";
/// Outer headers as scapy 2.5 makes them: one segment; three, at the start; three, at the end and with a TLV; one behind options for all
/// routers.
const ONE: &str = "6120000000402b4020010db800000000000000000000000120010db8000000000000000000000002\
                   040204000000000020010db8000000000000000000000002";
const THREE: &str = "6121234500742b4020010db800000000000000000000000120010db8000000000000000000000002\
                     290604020200000020010db800000000000000000000000420010db8000000000000000000000003\
                     20010db8000000000000000000000002";
const ARRIVED: &str = "61212345008c2b4020010db800000000000000000000000120010db8000000000000000000000004\
                       290904000200000020010db800000000000000000000000420010db8000000000000000000000003\
                       20010db80000000000000000000000020212000000000000000000000000000000000001\
                       04020000";
const OPTIONS: &str = "612000000048004020010db800000000000000000000000120010db8000000000000000000000002\
                       2b00010400000000040204000000000020010db8000000000000000000000002";
const WITHOUT: &str = "612000000028044020010db800000000000000000000000120010db8000000000000000000000002";

fn from_hex(texts: &[&str]) -> Vec<u8> {
    let digits: Vec<u8> = texts.concat().into_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn segment(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

fn outer(src: u16, dst: u16) -> Outer {
    Outer {
        src: segment(src).into(),
        dst: segment(dst).into(),
        tos: 0x12,
        ttl: 64,
        dont_fragment: false,
        ports: (0, 0),
        checksum: false,
    }
}

fn read(packet: &[u8]) -> Result<(Outer, Header<'_>, &[u8]), Malformed> {
    let read = decapsulate(packet, SRV6, Verify { ip: true, transport: true })?;
    Ok((read.outer, read.header, &packet[read.start..read.end]))
}

#[test]
fn packets_of_others_are_read() {
    let all = [segment(2), segment(3), segment(4)];
    for (headers, inner, dst, segments, payload) in [
        (ONE, INNER4, 2, &all[..1], V4),
        (ARRIVED, INNER6, 4, &all, V6),
        (OPTIONS, INNER4, 2, &all[..1], V4),
        (WITHOUT, INNER4, 2, &[], V4),
    ] {
        // Padding of the frame is no payload.
        let packet = from_hex(&[headers, inner, "000000"]);
        let expected = Header::Srv6 { segments: Segments::Path(segments), payload };
        assert_eq!(read(&packet), Ok((outer(1, dst), expected, &from_hex(&[inner])[..])), "{headers}");
    }
}

#[test]
fn packets_are_as_others_make_them() {
    let all = [segment(2), segment(3), segment(4)];
    for (headers, inner, segments, payload) in
        [(ONE, INNER4, &all[..1], V4), (THREE, INNER6, &all, V6), (WITHOUT, INNER4, &[], V4)]
    {
        let header = Header::Srv6 { segments: Segments::Path(segments), payload };
        let prepared = Prepared::new(&[], &outer(1, 2), SRV6, &header).unwrap();
        assert_eq!((prepared.skipped(), prepared.sums_payload(), prepared.needs_id()), (14, false, false));
        let mut packet = vec![0xee; prepared.len()];
        packet.extend(from_hex(&[inner]));
        assert!(prepared.write(&mut packet, &Each { hash: !0, ..Each::default() }));
        assert_eq!(packet, from_hex(&[headers, inner]), "{segments:?}");
    }
}

#[test]
fn flow_labels() {
    for (flow_label, payload, inner, expected) in [
        (FlowLabel::Copy, V6, INNER6, 0x12345),
        (FlowLabel::Copy, V4, INNER4, 0),
        // Not what it was said to be, and too short.
        (FlowLabel::Copy, V6, INNER4, 0),
        (FlowLabel::Copy, V6, "600123", 0),
        (FlowLabel::Zero, V6, INNER6, 0),
        (FlowLabel::Compute, V6, INNER6, 0xabcde),
        (FlowLabel::Compute, V4, INNER4, 0xabcde),
    ] {
        let header = Header::Srv6 { segments: Segments::Path(&[segment(2)]), payload };
        let prepared = Prepared::new(&[9; 18], &outer(1, 2), Protocol::Srv6 { flow_label }, &header).unwrap();
        let mut frame = vec![0; prepared.len()];
        frame.extend(from_hex(&[inner]));
        assert!(prepared.write(&mut frame, &Each { hash: 0xdeda_bcde, ..Each::default() }));
        let first = u32::from_be_bytes(*frame[18..].first_chunk().unwrap());
        assert_eq!(first, 0x6120_0000 | expected, "{flow_label:?} {inner}");
    }
}

#[test]
fn bad_headers_are_refused_by_name() {
    let good = from_hex(&[ONE, INNER4]);
    for (at, value, why) in [
        // An IPv4 packet, and a fragment.
        (0, 0x45, Malformed::Length),
        (6, 44, Malformed::Fragment),
        (40, 44, Malformed::Fragment),
        // Neither a packet nor a header that may be before one: UDP, and no next header.
        (6, 17, Malformed::Payload),
        (40, 59, Malformed::Payload),
        // Another header after this one, that is a packet: its bytes say that segments are left, or that it is too long.
        (40, 43, Malformed::Carrier),
        (40, 60, Malformed::Payload),
        // Longer than the packet, longer than itself, shorter than its segment.
        (41, 0xff, Malformed::Truncated),
        (41, 0, Malformed::Length),
        (44, 1, Malformed::Length),
        (44, 0xff, Malformed::Length),
        // On its way, or of another type and on its way.
        (43, 1, Malformed::Carrier),
        (5, 0xff, Malformed::Truncated),
        (5, 0x07, Malformed::Truncated),
        (5, 0x10, Malformed::Truncated),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(read(&bad).map(|_| ()), Err(why), "{value:#x} at {at}");
    }
    // Of another type that has arrived: passed over.
    let mut other = good.clone();
    other[42] = 2;
    assert_eq!(read(&other).unwrap().1, Header::Srv6 { segments: Segments::Path(&[]), payload: V4 });
}

#[test]
fn what_does_not_fit_is_refused() {
    let all: Vec<_> = (2..200).map(segment).collect();
    let prepare = |outer: &Outer, protocol, count: usize, payload| {
        let header = Header::Srv6 { segments: Segments::Path(&all[..count]), payload };
        Prepared::new(&[0; 14], outer, protocol, &header).map(|prepared| prepared.len())
    };
    let good = outer(1, 2);
    assert_eq!(prepare(&good, SRV6, 6, V4), Ok(14 + 40 + 8 + 6 * 16));
    assert_eq!(prepare(&good, SRV6, 12, V4), Ok(14 + 40 + 8 + 12 * 16));
    for count in [13, 127, 128, 198] {
        assert_eq!(prepare(&good, SRV6, count, V4), Err(Unwritable::TooLong), "{count}");
    }
    for count in [0, 1] {
        for payload in [Payload::Ethernet, Payload::Message, Payload::Packet(ethertype::MPLS)] {
            assert_eq!(prepare(&good, SRV6, count, payload), Err(Unwritable::Payload), "{payload:?}");
        }
    }
    // The first segment is where the packet goes to.
    assert_eq!(prepare(&outer(1, 3), SRV6, 1, V4), Err(Unwritable::Range));
    let v4 = Outer { src: [192, 0, 2, 1].into(), dst: [192, 0, 2, 2].into(), ..good };
    assert_eq!(prepare(&v4, SRV6, 0, V4), Err(Unwritable::Range));
}
