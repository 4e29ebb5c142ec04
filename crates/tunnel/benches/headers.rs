//! The headers of a tunnel before 32 packets, and their taking away, in time for each packet.

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use packet::flow::Key;
use tunnel::header::{Header, Payload, Protocol};
use tunnel::metadata::receive;
use tunnel::outer::{Each, Outer, Prepared, Verify};

const PACKETS: usize = 32;
const ETHERNET: usize = 14;
const INNER: usize = 64;
const OPTION: [u8; 8] = [1, 2, 0x80, 1, 0, 7, 0, 9];

fn outer(v6: bool, port: u16, checksum: bool) -> Outer {
    let end = |last: u8| -> IpAddr {
        if v6 { IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]) } else { [192, 0, 2, last].into() }
    };
    Outer { src: end(1), dst: end(2), tos: 0, ttl: 64, dont_fragment: !v6, ports: (0, port), checksum }
}

fn cases() -> Vec<(&'static str, Outer, Protocol, Header<'static>)> {
    let payload = Payload::Ethernet;
    let vxlan = Protocol::Vxlan { group_policy: false };
    let geneve = |options| Header::Geneve { vni: 7, oam: false, payload, options };
    vec![
        ("vxlan", outer(false, 4789, false), vxlan, Header::Vxlan { vni: 7, group: None }),
        ("vxlan over IPv6", outer(true, 4789, false), vxlan, Header::Vxlan { vni: 7, group: None }),
        ("vxlan with checksum", outer(false, 4789, true), vxlan, Header::Vxlan { vni: 7, group: None }),
        ("geneve", outer(false, 6081, false), Protocol::Geneve, geneve(&[])),
        ("geneve with an option", outer(false, 6081, false), Protocol::Geneve, geneve(&OPTION)),
        (
            "gre",
            outer(false, 0, false),
            Protocol::Gre,
            Header::Gre { key: Some(7), checksum: false, sequence: None, payload },
        ),
    ]
}

fn headers(c: &mut Criterion) {
    for (name, outer, protocol, header) in cases() {
        let prepared = Prepared::new(&[7; ETHERNET], &outer, protocol, &header).expect("they fit");
        let mut frames: Vec<Vec<u8>> = (0..PACKETS).map(|_| vec![0x45; prepared.len() + INNER]).collect();
        let mut each = Each::default();
        frames.iter_mut().for_each(|frame| assert!(prepared.write(frame, &each)));
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(PACKETS as u64));
        group.bench_function("write", |b| {
            b.iter(|| {
                for frame in &mut frames {
                    each.source_port = each.source_port.wrapping_add(1);
                    black_box(black_box(&prepared).write(frame, &each));
                }
            });
        });
        let verify = Verify { ip: true, transport: true };
        let mut key = Key::default();
        group.bench_function("read", |b| {
            b.iter(|| {
                for frame in &frames {
                    let packet = black_box(&frame[ETHERNET..]);
                    let received =
                        receive(packet, black_box(protocol), verify, key.tunnel_mut()).expect("it was written here");
                    black_box((received.start, received.end, &mut key));
                }
            });
        });
        group.finish();
    }
}

criterion_group!(benches, headers);
criterion_main!(benches);
