//! Any frames at a ct action, many of them fragments that nearly fit together: none is lost, and what is held is counted.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{Request, helpers};
use datapath::sync::clock::ManualClock;
use datapath::{Action, Config, Datapath, PortNo};
use libfuzzer_sys::fuzz_target;
use packet::wire::checksum;
use packet::{Clock, Field, Key, Offload, Packet, Time};

/// One frame: which one, how it is cut, and what is wrong with it.
type Step = (u8, u8, u8, Vec<(u8, u8)>, u8);

fuzz_target!(|steps: Vec<Step>| {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let dp = Datapath::new(Config { max_connections: 64, ..Config::default() }, clock.clone() as Arc<dyn Clock>);
    let fragments = &dp.conntrack().fragments;
    assert!(fragments.set_max(16) && fragments.set_min_size(false, 400) && fragments.set_min_size(true, 400));
    let address = Some(([203, 0, 113, 7].into(), [203, 0, 113, 9].into()));
    let nat = Nat { side: Side::Src, addresses: address, ports: None, choice: Choice::Hash, persistent: false };
    let commit = Request {
        commit: true,
        nat: Some(Translate::New(nat)),
        helper: Some(helpers::Helper::Ftp),
        ..Request::default()
    };
    let actions = [
        Action::Ct(Arc::new(commit)),
        Action::Clone(vec![Action::Ct(Arc::new(Request { zone: 7, ..Request::default() })), Action::Output(PortNo(1))]),
        Action::Ct(Arc::new(Request { zone: 8, ..Request::default() })),
        Action::Output(PortNo(1)),
    ];
    let mut metadata = Key::new();
    metadata.set(Field::InPortOxm, 1);
    for (kind, place, ids, wrong, seconds) in steps {
        let mut packet = Packet::from_slice(&frame(kind, place, ids, &wrong));
        if kind & 0x80 != 0 {
            let flags = if kind & 0x40 != 0 { Offload::NEEDS_CSUM } else { Offload::DATA_VALID };
            *packet.offload_mut() = Offload { flags, csum_start: 34, csum_offset: 16, ..Offload::NONE };
        }
        dp.execute(packet, &metadata, &actions);
        clock.advance(Duration::from_secs(u64::from(seconds >> 5)));
        dp.poll();
    }
    let held = u64::from(fragments.status().held);
    let account = dp.account();
    assert!(held <= 16 && account.came() >= account.went());
    dp.stop();
    let account = dp.account();
    assert_eq!((account.came(), fragments.status().held), (account.went(), 0));
});

/// A frame of IPv4 or IPv6 with TCP, UDP or ICMP, most of them fragments of 416 bytes of data.
fn frame(kind: u8, place: u8, ids: u8, wrong: &[(u8, u8)]) -> Vec<u8> {
    let is_v6 = kind & 1 != 0;
    let proto = [6, 17, 1, 58][usize::from(kind >> 1 & 3)];
    let (offset, more) = (u16::from(place & 3) * 416, place & 0x40 != 0);
    let len = if more { 416 } else { usize::from(place) };
    let mut above: Vec<u8> = (0..len).map(|i| i as u8).collect();
    if offset == 0 {
        let header = [0, 21, 0, 21, 0, 0, 0, ids, 0, 0, 0, 0, 0x50, 0x10, 9, 9];
        let end = header.len().min(above.len());
        above[..end].copy_from_slice(&header[..end]);
    }
    let mut frame =
        vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, if is_v6 { 0x86 } else { 8 }, if is_v6 { 0xdd } else { 0 }];
    let [o, p] = if is_v6 { offset | u16::from(more) } else { offset / 8 | u16::from(more) << 13 }.to_be_bytes();
    if is_v6 {
        let [a, b] = (above.len() as u16 + 8).to_be_bytes();
        frame.extend([0x60, 0, 0, 0, a, b, 44, 64]);
        frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend([proto, 0, o, p, 0, 0, 0, ids & 3]);
    } else {
        let [a, b] = (above.len() as u16 + 20).to_be_bytes();
        frame.extend([0x45, 0, a, b, 0, ids & 3, o, p, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend(above);
    for &(at, value) in wrong {
        if let Some(byte) = frame.get_mut(12 + usize::from(at)) {
            *byte ^= value;
        }
    }
    if !is_v6 && ids & 0x80 == 0 {
        frame[24..26].fill(0);
        let sum = checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}
