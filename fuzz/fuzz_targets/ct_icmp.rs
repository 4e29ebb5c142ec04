//! ICMP and ICMPv6 messages, most of all what errors quote: whatever is read lies within the message, and a translation
//! writes nowhere else.
#![no_main]

use std::net::IpAddr;

use conntrack::headers::{Headers, Upper, Verify};
use conntrack::nat::{Place, Translation};
use conntrack::tuple::Side;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, [u8; 16], [u8; 16], Vec<u8>)| {
    let (v6, src, dst, message) = input;
    let address = |bytes: [u8; 16]| match v6 {
        true => IpAddr::from(bytes),
        false => [bytes[0], bytes[1], bytes[2], bytes[3]].into(),
    };
    let proto = if v6 { 58 } else { 1 };
    let read = Headers::above_ip(address(src), address(dst), proto, &message, 0, Verify::default());
    let Ok(Headers { tuple, upper: Upper::Error(quoted) }) = read else { return };
    assert!(quoted.ip < quoted.transport && quoted.transport <= message.len());
    let mut to = tuple;
    to.set_address(Side::Dst, address([7; 16]));
    to.set_port(Side::Dst, 4444);
    let Some(outside) = Translation::between(&tuple, &to) else { return };
    let inside = Translation::between(&tuple.reverse(), &to.reverse());
    let header = if v6 { 40 } else { 20 };
    let mut frame = vec![0; 14 + header];
    frame.extend(&message);
    let end = frame.len();
    frame.extend([0xee; 8]);
    let place = Place { ip: 14, transport: Some(14 + header), end, proto, partial: false };
    outside.apply_to_error(&mut frame, &place, &quoted, inside.as_ref().expect("the reverse differs, too"));
    assert_eq!(frame[end..], [0xee; 8], "nothing behind the packet changes");
});
