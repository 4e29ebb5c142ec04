//! Datagrams, cut into fragments.

use packet::wire::{build, checksum, ethertype, ip_proto};

pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]];

/// Data without a pattern that a shift would hide.
pub fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A frame with a packet of IPv4.
pub fn v4(src: u32, dst: u32, proto: u8, payload: Vec<u8>) -> Vec<u8> {
    let ip = build::Ipv4 { src: src.into(), dst: dst.into(), proto, ..Default::default() };
    build::ethernet(MACS[0], MACS[1], &[], ethertype::IPV4, &ip.packet(payload))
}

/// A frame with a packet of IPv6 between addresses that end in these bytes.
pub fn v6(src: u8, dst: u8, proto: u8, payload: Vec<u8>) -> Vec<u8> {
    let ip = build::Ipv6 { src: address(src), dst: address(dst), proto, ..Default::default() };
    build::ethernet(MACS[0], MACS[1], &[], ethertype::IPV6, &ip.packet(payload))
}

pub fn address(last: u8) -> std::net::Ipv6Addr {
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into()
}

/// An untagged frame cut into fragments: the first of `cuts` bytes of data each, the last one of what is left.
pub fn cut(frame: &[u8], id: u16, cuts: &[usize]) -> Vec<Vec<u8>> {
    let v6 = frame[12..14] == [0x86, 0xdd];
    let head = 14 + if v6 { 40 } else { usize::from(frame[14] & 0xf) * 4 };
    let (mut at, mut parts) = (head, Vec::new());
    for (n, len) in cuts.iter().copied().chain([frame.len()]).enumerate() {
        let end = (at + len).min(frame.len());
        let (part, offset, more) = (&frame[at..end], (at - head) as u16, end < frame.len());
        parts.push(if v6 { of_v6(frame, part, id, offset, more) } else { of_v4(frame, head, part, id, offset, more) });
        at = end;
        if !more {
            break;
        }
        assert!(len.is_multiple_of(8), "cut {n}");
    }
    parts
}

fn of_v4(frame: &[u8], head: usize, part: &[u8], id: u16, offset: u16, more: bool) -> Vec<u8> {
    let mut fragment = [&frame[..head], part].concat();
    let len = (head - 14 + part.len()) as u16;
    let flags = offset / 8 + if more { 0x2000 } else { 0 };
    for (at, word) in [(2, len), (4, id), (6, flags), (10, 0)] {
        fragment[14 + at..16 + at].copy_from_slice(&word.to_be_bytes());
    }
    let sum = checksum::checksum(&fragment[14..head]);
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    fragment
}

fn of_v6(frame: &[u8], part: &[u8], id: u16, offset: u16, more: bool) -> Vec<u8> {
    let [o, p] = (offset | u16::from(more)).to_be_bytes();
    let [i, j] = id.to_be_bytes();
    let header = [frame[20], 0, o, p, 0, 0, i, j];
    let mut fragment = [&frame[..54], &header, part].concat();
    fragment[18..20].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
    fragment[20] = ip_proto::FRAGMENT;
    fragment
}
