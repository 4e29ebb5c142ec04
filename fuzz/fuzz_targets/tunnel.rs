//! Packets for a tunnel's end, of any protocol. What is read lies within them, and can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::flow::Key;
use tunnel::config::{BarePayload, FlowLabel};
use tunnel::header::{Header, Protocol};
use tunnel::metadata::receive;
use tunnel::outer::{Decapsulated, Prepared, Verify, decapsulate};
use tunnel::plain;

const PROTOCOLS: [Protocol; 13] = [
    Protocol::Vxlan { group_policy: false },
    Protocol::Vxlan { group_policy: true },
    Protocol::VxlanGpe,
    Protocol::Geneve,
    Protocol::Gre,
    Protocol::Erspan,
    Protocol::Gtpu,
    Protocol::Lisp,
    Protocol::Bareudp(BarePayload { ethertype: 0x0800, with_relative: true }),
    Protocol::Bareudp(BarePayload { ethertype: 0x8847, with_relative: true }),
    Protocol::Bareudp(BarePayload { ethertype: 0x86dd, with_relative: false }),
    Protocol::Srv6 { flow_label: FlowLabel::Copy },
    Protocol::Srv6 { flow_label: FlowLabel::Compute },
];

fuzz_target!(|data: &[u8]| {
    let Some((first, packet)) = data.split_first() else { return };
    let protocol = PROTOCOLS[usize::from(*first) % PROTOCOLS.len()];
    let verify = Verify { ip: first & 0x80 != 0, transport: first & 0x40 != 0 };
    let result = decapsulate(packet, protocol, verify);
    // The short way says the same.
    let received = receive(packet, protocol, verify, Key::default().tunnel_mut());
    assert_eq!(
        received.map(|received| (received.start, received.end)),
        result.map(|result| (result.start, result.end))
    );
    // So does the shortest one.
    if verify.ip {
        let ethertype = if packet.first().is_some_and(|version| version >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] };
        let frame = [&[0; 12], &ethertype[..], packet].concat();
        let mut key = Key::default();
        if let Some(range) = plain::receive(&frame, protocol, verify.transport, key.tunnel_mut()) {
            assert_eq!(Ok((range.start - 14, range.end - 14)), result.map(|result| (result.start, result.end)));
        }
    }
    let Ok(Decapsulated { outer, header, start, end }) = result else { return };
    let payload = &packet[start..end];
    let Ok(prepared) = Prepared::new(&[], &outer, protocol, &header) else { return };
    let mut again = vec![0; prepared.len()];
    again.extend(payload);
    if prepared.write(&mut again, &Default::default()) {
        if matches!(header, Header::Srv6 { segments, .. } if !segments.is_empty()) {
            // As the routers on its way do.
            again[43] = 0;
        }
        let read = decapsulate(&again, protocol, Verify { ip: true, transport: true }).expect("it was written here");
        assert_eq!(&again[read.start..read.end], payload);
    }
});
