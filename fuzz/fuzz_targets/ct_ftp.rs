//! The FTP helper: any text, from either end, over IPv4 and IPv6. A change of text stays within the segment, and the packet
//! that it makes has right lengths and checksums.
#![no_main]

use conntrack::headers::{Headers, Verify};
use conntrack::helpers::ftp;
use conntrack::nat::Place;
use libfuzzer_sys::fuzz_target;
use packet::wire::build;
use packet::{Key, Packet};

fuzz_target!(|input: (bool, [u8; 16], Vec<u8>)| {
    let (from_server, address, text) = input;
    for v6 in [false, true] {
        let Ok(Some(announcement)) = ftp::parse(&text, from_server, v6) else { continue };
        let Some((_, range)) = announcement.address.clone() else { continue };
        let new = if v6 { address.into() } else { [address[0], address[1], address[2], address[3]].into() };
        let edit = announcement.edit(range, new);
        let segment = build::tcp(21, 40000, 0x18, &text[..text.len().min(1400)]);
        let (ethertype, ip, header) = if v6 {
            (0x86dd, build::Ipv6 { proto: 6, ..Default::default() }.packet(segment), 40)
        } else {
            (0x0800, build::Ipv4 { proto: 6, ..Default::default() }.packet(segment), 20)
        };
        let frame = build::ethernet([2; 6], [4; 6], &[], ethertype, &ip);
        let mut packet = Packet::from_slice(&frame);
        let place = Place { ip: 14, transport: Some(14 + header), end: frame.len(), proto: 6, partial: false };
        if !edit.apply(&mut packet, &place) {
            continue;
        }
        let mut key = Key::new();
        let layers = packet::flow::extract(packet.data(), &mut key, packet::flow::VlanLimit::Two);
        Headers::of(packet.data(), &key, layers, 0, Verify { ip: true, transport: true }).expect("a whole packet");
    }
});
