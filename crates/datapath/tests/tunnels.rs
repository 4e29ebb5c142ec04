//! Packets into tunnels and out of them.

mod common;
#[path = "tunnels/joined.rs"]
mod joined;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{MemPort, by_hand, flow, udp};
use datapath::{Action, Config, Datapath, Decapsulation, DropReason, Encapsulation, PortNo, Rewrite};
use packet::buffer::heap::HEAP;
use packet::wire::build;
use packet::{Field, Offload, Packet};
use ports::Offloads;
use ports::offload::complete;
use ports::tunnel::TunnelPort;
use proptest::prelude::*;
use tunnel::header::{Header, Mirror, Payload, Protocol};
use tunnel::outer::{Outer, Prepared};
use tunnel::send::SourcePorts;

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 9, 2, 2, 0, 0, 0, 9, 1, 8, 0];
const OPTIONS: [u8; 12] = [0xff, 0xff, 1, 1, 1, 2, 3, 4, 0, 1, 2, 0];

/// Protocols with a header each.
fn kinds() -> Vec<(Protocol, Header<'static>)> {
    let payload = Payload::Ethernet;
    let gre = |checksum, sequence| Header::Gre { key: Some(7), checksum, sequence, payload };
    let erspan = |mirror| Header::Erspan { session: 7, sequence: 0, mirror };
    vec![
        (Protocol::Vxlan { group_policy: false }, Header::Vxlan { vni: 7, group: None }),
        (Protocol::VxlanGpe, Header::VxlanGpe { vni: 7, payload }),
        (Protocol::Geneve, Header::Geneve { vni: 7, oam: false, payload, options: &[] }),
        (Protocol::Geneve, Header::Geneve { vni: 7, oam: true, payload, options: &OPTIONS }),
        (Protocol::Gre, gre(false, None)),
        (Protocol::Gre, gre(true, Some(0))),
        (Protocol::Erspan, erspan(Mirror::One { index: 5 })),
        (Protocol::Erspan, erspan(Mirror::Two { egress: true, hardware: 3, timestamp: 0 })),
    ]
}

fn outer(v6: bool, checksum: bool, protocol: Protocol) -> Outer {
    let address = |last: u8| -> IpAddr {
        if v6 {
            IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
        } else {
            [172, 31, 0, last].into()
        }
    };
    let udp = protocol.ip_proto() == 17;
    let dst_port = if protocol == Protocol::Geneve { 6081 } else { 4789 };
    Outer {
        src: address(1),
        dst: address(2),
        tos: 0,
        ttl: 64,
        dont_fragment: !v6,
        ports: (0, if udp { dst_port } else { 0 }),
        checksum: udp && (checksum || v6),
    }
}

fn push(outer: &Outer, kind: &(Protocol, Header<'_>)) -> Action {
    push_by(outer, kind, PortNo(1))
}

/// With the port of the underlay that has its address.
fn push_by(outer: &Outer, (protocol, header): &(Protocol, Header<'_>), port: PortNo) -> Action {
    let mut ethernet = ETHERNET;
    if outer.src.is_ipv6() {
        ethernet[12..].copy_from_slice(&[0x86, 0xdd]);
    }
    let headers = Prepared::new(&ethernet, outer, *protocol, header).unwrap();
    let push = Encapsulation::new(PortNo(9), port, 4, headers, SourcePorts::default(), None);
    Action::TunnelPush(Arc::new(push))
}

struct Way {
    dp: Arc<Datapath>,
    numbers: Vec<PortNo>,
    /// What comes in here enters the tunnel and leaves by the second one; what comes in at the third one leaves the tunnel and goes to the
    /// fourth.
    ports: Vec<Arc<MemPort>>,
}

/// Both ends of a tunnel.
fn way(kind: &(Protocol, Header<'_>), v6: bool, checksum: bool, clone: bool) -> Way {
    let (dp, _, p) = by_hand(Config::default(), 4);
    let port = dp.add_port(TunnelPort::new("vxlan_sys_4789", "vxlan")).unwrap();
    assert_eq!(port, PortNo(4789));
    // Other ports are numbered as if it were not there.
    let next = dp.add_port(MemPort::new("next")).unwrap();
    assert_eq!(next.0, p[3].0.0 + 1);
    let encapsulate = vec![push(&outer(v6, checksum, kind.0), kind), Action::Output(p[1].0)];
    let encapsulate = if clone { vec![Action::Clone(encapsulate), Action::Output(p[3].0)] } else { encapsulate };
    let pop = Decapsulation { port, protocol: kind.0, erspan: None };
    dp.install(flow(p[0].0, 0, &[], encapsulate)).unwrap();
    dp.install(flow(p[2].0, 0, &[], vec![Action::TunnelPop(pop)])).unwrap();
    dp.install(flow(port, 0, &[(Field::TunId, 7)], vec![Action::Output(p[3].0)])).unwrap();
    let numbers = p.iter().map(|(number, _)| *number).collect();
    Way { dp, numbers, ports: p.into_iter().map(|(_, port)| port).collect() }
}

impl Way {
    fn poll(&self) {
        for _ in 0..4 {
            self.dp.poll();
        }
    }

    fn ports_no(&self, index: usize) -> u128 {
        self.numbers[index].0.into()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.dp.stats().workers.iter().map(|worker| worker.drops.get(reason)).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What enters a tunnel leaves it as it was, by runs and one by one, and packets keep their order.
    #[test]
    fn what_enters_a_tunnel_leaves_it(
        kind in 0..kinds().len(), v6: bool, checksum: bool, clone: bool, count in 1..40u32, sources in 1..40u32,
    ) {
        let way = way(&kinds()[kind], v6, checksum, clone);
        let frames: Vec<_> = (0..count).map(|n| udp(n % sources, 9, n as u16, 80)).collect();
        frames.iter().for_each(|frame| way.ports[0].give(frame));
        way.poll();
        if clone {
            prop_assert_eq!(way.ports[3].take(), frames.clone());
        }
        let outer = way.ports[1].take();
        prop_assert_eq!(outer.len(), frames.len());
        outer.iter().for_each(|frame| way.ports[2].give(frame));
        way.poll();
        prop_assert_eq!(way.ports[3].take(), frames);
    }

    /// Any bytes: nothing panics, and each packet is dropped for one reason or goes on.
    #[test]
    fn bytes_of_strangers_are_dropped_by_name(
        kind in 0..kinds().len(), v6: bool, cut in 0..120usize, at in 0..100usize, to: u8, padding in 0..20usize,
    ) {
        let way = way(&kinds()[kind], v6, true, false);
        way.ports[0].give(&udp(1, 2, 3, 4));
        way.poll();
        let mut frame = way.ports[1].take().pop().unwrap();
        if let Some(byte) = frame.get_mut(at) {
            *byte = to;
        }
        frame.truncate(cut.max(14));
        frame.resize(frame.len() + padding, 0);
        way.ports[2].give(&frame);
        way.poll();
        let reasons = [
            DropReason::TunnelHeader,
            DropReason::TunnelChecksum,
            DropReason::TunnelFragment,
            DropReason::TunnelOption,
            DropReason::Congestion,
            DropReason::UpcallError,
        ];
        let dropped: u64 = reasons.iter().map(|reason| way.drops(*reason)).sum();
        prop_assert_eq!(dropped + way.ports[3].sent() as u64, 1);
    }
}

fn super_frame() -> (Vec<u8>, Packet) {
    let tcp = build::tcp(1000, 80, 0x10, &[7; 3000]);
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 6, ..Default::default() };
    let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(tcp));
    let mut packet = Packet::from_slice(&frame);
    *packet.offload_mut() = Offload {
        flags: Offload::NEEDS_CSUM,
        gso_type: Offload::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
    };
    (frame, packet)
}

/// A super-frame enters a tunnel and leaves it as a whole, where each segment would get the same headers and the port takes it so. Otherwise it
/// is cut before. It stays between the packets before it and behind it.
#[test]
fn super_frames_enter_whole_or_are_cut() {
    for takes_tunnels in [true, false] {
        super_frames(takes_tunnels);
    }
}

fn super_frames(takes_tunnels: bool) {
    for (kind, v6, checksum) in [
        (0, false, false),
        (0, false, true),
        (0, true, true),
        (3, false, false),
        (4, false, false),
        (5, false, false),
        (6, false, false),
    ] {
        let way = way(&kinds()[kind], v6, checksum, false);
        way.ports[1].tunnels.store(takes_tunnels, Ordering::Relaxed);
        way.dp.refresh_port(way.numbers[1]).unwrap();
        let plain = udp(1, 2, 3, 4);
        let (frame, packet) = super_frame();
        way.ports[0].give(&plain);
        way.ports[0].queues[0].lock().unwrap().push_back(packet);
        way.ports[0].give(&plain);
        way.poll();
        let outer: Vec<_> = way.ports[1].sent.lock().unwrap().drain(..).collect();
        let (is_summed, is_numbered) = (v6 || checksum || kind == 5, kind >= 5);
        let is_whole = takes_tunnels && !is_summed && !is_numbered;
        assert_eq!(outer.len(), if is_whole { 3 } else { 5 }, "{kind}");
        let longer = outer[0].len() - plain.len();
        for packet in outer {
            if packet.len() > 1000 {
                // What is left to do is about the inner packet, unless the outer one's checksum covers it.
                let todo = *packet.offload();
                assert_eq!((todo.needs_csum(), todo.is_gso()), (!is_summed, is_whole));
                assert!(!is_whole || (usize::from(todo.csum_start), todo.gso_size) == (34 + longer, 1000));
            }
            way.ports[2].queues[0].lock().unwrap().push_back(packet);
        }
        way.poll();
        let inner: Vec<_> = way.ports[3].sent.lock().unwrap().drain(..).collect();
        let is_joined = !is_summed;
        assert_eq!((inner.len(), inner[0].data()), (if is_joined { 3 } else { 5 }, &plain[..]));
        if is_joined {
            let mut expected = super_frame().1;
            if is_whole {
                assert_eq!((inner[1].data(), *inner[1].offload()), (&frame[..], *expected.offload()));
            } else {
                // The sum of the pseudo header, which this one has not got, is another one.
                expected.data_mut()[50..52].copy_from_slice(&inner[1].data()[50..52]);
                assert_eq!(inner[1].len(), expected.len());
            }
        }
        assert_eq!(way.dp.account().joined, if is_joined && !is_whole { 2 } else { 0 });
        assert_eq!(way.dp.account().came(), way.dp.account().went());
    }
}

/// A super-frame of UDP, each of whose datagrams has a segment in a tunnel, leaves the tunnel as one of these segments, where their checksums are
/// right; also when its datagrams come one by one, as from a kernel that has cut it for a port.
#[test]
fn super_frames_of_datagrams_leave_the_tunnel_as_those_of_segments() {
    let kinds_and_checksums = [(0, false), (0, true), (3, false), (3, true)];
    let cases = kinds_and_checksums.into_iter().flat_map(|case| [(case, false), (case, true)]);
    for (((kind, checksum), is_cut), is_wrong) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let way = way(&kinds()[kind], false, checksum, false);
        way.ports[1].tunnels.store(false, Ordering::Relaxed);
        way.ports[1].datagrams.store(true, Ordering::Relaxed);
        way.dp.refresh_port(way.numbers[1]).unwrap();
        way.ports[3].super_frames.store(is_cut, Ordering::Relaxed);
        way.dp.refresh_port(way.numbers[3]).unwrap();
        let (frame, packet) = super_frame();
        way.ports[0].queues[0].lock().unwrap().push_back(packet);
        way.poll();
        let outer = way.ports[1].sent.lock().unwrap().pop().unwrap();
        let can = Offloads { csum: true, tso4: true, uso: true, datagrams: true, ..Offloads::default() };
        let mut datagrams = Vec::new();
        complete(outer, can, &HEAP, &mut |packet| datagrams.push(packet)).unwrap();
        let [mut datagrams] = <[Packet; 1]>::try_from(datagrams).unwrap();
        assert_eq!(datagrams.offload().gso_type, Offload::GSO_UDP_L4, "{kind} {checksum}");
        if is_wrong {
            let middle = datagrams.len() / 2;
            datagrams.data_mut()[middle] ^= 1;
        }
        let can = Offloads { csum: true, uso: !is_cut, ..Offloads::default() };
        let mut queue = way.ports[2].queues[0].lock().unwrap();
        complete(datagrams, can, &HEAP, &mut |packet| queue.push_back(packet)).unwrap();
        assert!(queue.iter().all(|packet| packet.offload().needs_csum()));
        assert_eq!(queue.len(), if is_cut { 3 } else { 1 });
        drop(queue);
        way.poll();
        let inner: Vec<_> = way.ports[3].sent.lock().unwrap().drain(..).collect();
        let expected = super_frame().1;
        assert_eq!(inner.iter().map(|packet| packet.len() - 54).sum::<usize>(), 3000);
        if is_wrong {
            assert_eq!(inner.len(), 3);
            assert_eq!(*inner[1].offload(), Offload::NONE, "whoever receives it is to see that");
        } else {
            assert_eq!((inner.len(), inner[0].len(), *inner[0].offload()), (1, frame.len(), *expected.offload()));
            assert_eq!((&inner[0].data()[..50], &inner[0].data()[52..]), (&frame[..50], &frame[52..]));
        }
        assert_eq!(way.dp.account().came(), way.dp.account().went());
    }
}

/// A packet.
#[derive(Clone, Copy, Debug)]
struct Given {
    flow: u32,
    /// Free bytes before the frame.
    room: usize,
    len: usize,
    port: u16,
    offload: Offload,
}

fn given() -> impl Strategy<Value = Given> {
    let todo = Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    let offload = prop::sample::select(vec![
        Offload::NONE,
        Offload::NONE,
        Offload { flags: Offload::DATA_VALID, ..Offload::NONE },
        todo,
    ]);
    let room = prop::sample::select(vec![128usize, 128, 64, 63, 50, 49, 0]);
    let len = prop_oneof![4 => 64..200usize, 1 => 65_440..65_500usize];
    (0..24u32, room, len, any::<u16>(), offload).prop_map(|(flow, room, len, port, offload)| Given {
        flow,
        room,
        len,
        port,
        offload,
    })
}

impl Given {
    fn packet(&self) -> Packet {
        let mut frame = udp(self.flow, 9, self.port, 80);
        frame.resize(self.len, self.port as u8);
        let mut packet = Packet::from_slice(&frame);
        packet.push_front(packet.headroom() - self.room).unwrap();
        packet.data_mut()[..self.len].copy_from_slice(&frame);
        packet.truncate(self.len);
        assert_eq!((packet.headroom(), packet.len()), (self.room, self.len));
        *packet.offload_mut() = self.offload;
        packet
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Packets of a batch that enter different tunnels, or none, leave as they do where each is alone and its program's steps are gone
    /// through, whatever is left to do for them and whatever room there is before them.
    #[test]
    fn packets_of_a_batch_get_headers_as_if_alone(packets in prop::collection::vec(given(), 1..70)) {
        let sent = |batched: bool| {
            let (dp, _, p) = by_hand(Config::default(), 2);
            let out = Action::Output(p[1].0);
            let length = |actions: Vec<Action>| {
                // The same, in a form that is never compact.
                if batched { actions } else { vec![Action::CheckLength { size: 9, longer: actions.clone(), others: actions }] }
            };
            for n in 0..24u32 {
                let tag = Action::PushVlan { tpid: 0x8100, tci: 0x1005 };
                let (protocol, header) = kinds()[[0, 2, 3, 4][n as usize % 4]];
                let header = if let Header::Vxlan { .. } = header { Header::Vxlan { vni: n, group: None } } else { header };
                // No fragments, whose identifications differ.
                let outer = Outer { tos: n as u8 * 4, dont_fragment: true, ..outer(n % 5 == 4, n % 7 == 6, protocol) };
                let push = push(&outer, &(protocol, header));
                let set = |field, value| Action::Set(Arc::new(Rewrite::field(field, value)));
                let before = match n / 4 {
                    0 | 1 => vec![],
                    2 => vec![set(Field::DlDst, 0x0200_0000_0099), set(Field::NwTtl, 63)],
                    3 => vec![tag.clone()],
                    _ => vec![set(Field::DlSrc, 0x0200_0000_0098), set(Field::NwDst, 0x0a00_0001), tag.clone()],
                };
                let actions = match n {
                    20 => vec![out.clone()],
                    21 => vec![tag, out.clone()],
                    22 => vec![],
                    23 => vec![push, tag, set(Field::NwTtl, 9), out.clone()],
                    _ => [before, vec![push, out.clone()]].concat(),
                };
                dp.install(flow(p[0].0, 0, &[(Field::NwSrc, n.into())], length(actions))).unwrap();
            }
            for given in &packets {
                p[0].1.queues[0].lock().unwrap().push_back(given.packet());
                if !batched {
                    dp.poll();
                }
            }
            for _ in 0..4 {
                dp.poll();
            }
            let sent: Vec<_> = p[1].1.sent.lock().unwrap().drain(..).map(|packet| (packet.data().to_vec(), *packet.offload())).collect();
            let drops: u64 = dp.stats().workers.iter().map(|worker| worker.drops.total()).sum();
            (sent, drops)
        };
        let (batched, alone) = (sent(true), sent(false));
        prop_assert_eq!(batched.1, alone.1);
        prop_assert_eq!(batched.0, alone.0);
    }
}

/// Whoever makes a super-frame need not be right about it: what has no room in a tunnel as a whole, is cut, and what cannot be cut is dropped.
#[test]
fn strange_super_frames_do_not_enter_whole() {
    type Change = fn(&mut Packet);
    let changes: [(Change, usize); 6] = [
        (|_| {}, 1),
        // Segments that are longer than the MTU, by one byte.
        (|packet| packet.offload_mut().gso_size = 1500 - 14 - 36 - 40 + 1, 3),
        (|packet| packet.offload_mut().gso_size = 1500 - 14 - 36 - 40, 1),
        // A checksum elsewhere.
        (|packet| packet.offload_mut().csum_start = 30, 0),
        (|packet| packet.offload_mut().csum_start = 60_000, 0),
        (|packet| packet.offload_mut().gso_type = Offload::GSO_UDP, 0),
    ];
    for (at, (change, count)) in changes.into_iter().enumerate() {
        let way = way(&kinds()[0], false, false, false);
        let (_, mut packet) = super_frame();
        change(&mut packet);
        way.ports[0].queues[0].lock().unwrap().push_back(packet);
        way.poll();
        let sent: Vec<_> = way.ports[1].sent.lock().unwrap().drain(..).collect();
        let sent = sent.iter().filter(|packet| packet.offload().is_gso()).count();
        assert_eq!(sent, usize::from(count == 1), "{at}");
        assert_eq!(way.dp.account().came(), way.dp.account().went());
    }
}

/// What is too short for a header of Ethernet does not leave a tunnel: nothing behind it expects that.
#[test]
fn no_less_than_a_header_of_ethernet_leaves_a_tunnel() {
    let way = way(&kinds()[4], false, false, false);
    way.ports[0].give(&udp(1, 2, 3, 4));
    way.poll();
    let outer = way.ports[1].take().pop().unwrap();
    for inner in [0, 13, 14] {
        let mut frame = outer[..14 + 20 + 8 + inner].to_vec();
        frame[16..18].copy_from_slice(&(28 + inner as u16).to_be_bytes());
        frame[24..26].fill(0);
        let sum = packet::wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        way.ports[2].give(&frame);
        way.poll();
    }
    assert_eq!(
        (way.drops(DropReason::TunnelHeader), way.ports[3].take().pop().map(|frame| frame.len())),
        (2, Some(14))
    );
}

/// Packets of a connection have one source port, so that no network reorders them; so have those of ICMP between two hosts.
#[test]
fn source_ports_are_those_of_connections() {
    let way = way(&kinds()[0], false, false, false);
    let port_of = |proto: u8, l4: Vec<u8>| {
        let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto, ..Default::default() };
        way.ports[0].give(&build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(l4)));
        way.poll();
        way.ports[1].take().pop().unwrap()[34..36].to_vec()
    };
    for proto in [1, 47] {
        let ports = [[8, 0, 1, 1, 1, 1], [8, 0, 2, 2, 1, 2]].map(|l4| port_of(proto, l4.to_vec()));
        assert_eq!(ports[0], ports[1], "protocol {proto}");
    }
    let udp =
        [(1, "one"), (1, "other"), (2, "one")].map(|(port, body)| port_of(17, build::udp(port, 9, body.as_bytes())));
    assert_eq!(udp[0], udp[1]);
    assert_ne!(udp[0], udp[2]);
}

/// A stack that ends tunnels itself leaves the cutting of the inner segments to its device: such a frame leaves the tunnel whole.
#[test]
fn super_frames_of_inner_segments_leave_the_tunnel_whole() {
    for v6 in [false, true] {
        let way = way(&kinds()[0], v6, false, false);
        let tcp = build::tcp(1000, 80, 0x10, &[7; 1300]);
        let header = build::Ipv4 { proto: 6, ..Default::default() };
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(tcp));
        way.ports[0].give(&frame);
        way.poll();
        let outer = way.ports[1].take().pop().unwrap();
        let headers = (outer.len() - frame.len()) as u16;
        let rest = |moved: u16| Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: Offload::GSO_TCPV4,
            hdr_len: 54 + moved,
            gso_size: 500,
            csum_start: 34 + moved,
            csum_offset: 16,
        };
        let receive = |offload: Offload| {
            let mut packet = Packet::from_slice(&outer);
            *packet.offload_mut() = offload;
            way.ports[2].queues[0].lock().unwrap().push_back(packet);
            way.poll();
        };
        receive(rest(headers));
        let inner = way.ports[3].sent.lock().unwrap().pop().unwrap();
        assert_eq!((inner.data(), *inner.offload()), (&frame[..], rest(0)));
        // One that is to be cut within the tunnel's own header.
        receive(Offload { csum_start: headers - 4, ..rest(headers) });
        assert_eq!((way.ports[3].sent(), way.drops(DropReason::TunnelHeader)), (0, 1));
    }
}

/// A packet is cut off before it enters.
#[test]
fn packets_are_truncated_before_they_enter() {
    let kind = &kinds()[0];
    let way = way(kind, false, false, false);
    let id = way.dp.flows().into_iter().find(|flow| flow.key.get(Field::InPortOxm) == way.ports_no(0)).unwrap().id;
    way.dp.remove(id).unwrap();
    let actions = vec![
        Action::Clone(vec![
            Action::Truncate { max_len: 60 },
            push(&outer(false, false, kind.0), kind),
            Action::Output(PortNo(way.ports_no(1) as u32)),
        ]),
        Action::Output(PortNo(way.ports_no(3) as u32)),
    ];
    way.dp.install(flow(PortNo(way.ports_no(0) as u32), 0, &[], actions)).unwrap();
    let frame = udp(1, 2, 3, 100);
    way.ports[0].give(&frame);
    way.poll();
    assert_eq!(way.ports[1].take().pop().unwrap()[50..], frame[..60]);
    assert_eq!(way.ports[3].take(), [frame]);
}

/// Congestion that the outer packet has met is told to the inner one, where that can hear it (RFC 6040). Otherwise it is for the slow
/// path to drop it, but for what has more tags than that may see.
#[test]
fn congestion_is_told() {
    let way = way(&kinds()[0], false, false, false);
    let tags = [(0x88a8, 5), (0x8100, 6)];
    let rows = [
        (2, 0, Some(3)),
        (1, 1, Some(3)),
        (3, 0, Some(3)),
        (0, 0, Some(0)),
        (0, 1, Some(0)),
        (1, 2, Some(3)),
        (0, 2, None),
    ];
    for (inner_tos, count, result) in rows {
        let header = build::Ipv4 { tos: inner_tos, proto: 17, ..Default::default() };
        let packet = header.packet(build::udp(1, 2, b"x"));
        way.ports[0].give(&build::ethernet([2; 6], [4; 6], &tags[..count], 0x0800, &packet));
        way.poll();
        let mut frame = way.ports[1].take().pop().unwrap();
        // The same sum: what is added to TOS is taken from the identification, which is zero.
        frame[15] = 3;
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        frame[24..26].copy_from_slice(&(sum - 3).to_be_bytes());
        way.ports[2].give(&frame);
        way.poll();
        let out = way.ports[3].take().pop();
        let l3 = 14 + 4 * count;
        assert_eq!(out.as_ref().map(|frame| frame[l3 + 1]), result);
        if let Some(frame) = out {
            assert_eq!(packet::wire::checksum::checksum(&frame[l3..l3 + 20]), 0);
        }
    }
    assert_eq!(way.drops(DropReason::Congestion), 1);
}

/// What follows a packet of GRE in a long frame is passed on; UDP has a length of its own, and short frames have padding.
#[test]
fn what_follows_a_packet_in_its_frame() {
    let gre = kinds().into_iter().find(|(protocol, _)| *protocol == Protocol::Gre).unwrap();
    for (kind, len, passed) in [(&gre, 80, 3), (&gre, 1, 0), (&kinds()[0], 80, 0)] {
        let way = way(kind, false, false, false);
        let inner = if len == 1 { vec![2; 14] } else { udp(1, 2, 3, len) };
        way.ports[0].give(&inner);
        way.poll();
        let mut frame = way.ports[1].take().pop().unwrap();
        frame.extend([7; 3]);
        way.ports[2].give(&frame);
        way.poll();
        assert_eq!(way.ports[3].take().pop().unwrap().len(), inner.len() + passed);
    }
}

/// Nothing can be sent to where packets come out of tunnels.
#[test]
fn a_carrier_cannot_be_sent_to() {
    let way = way(&kinds()[0], false, false, false);
    let id = way.dp.flows().find(|flow| flow.key.get(Field::InPortOxm) == way.ports_no(0)).unwrap().id;
    way.dp.remove(id).unwrap();
    way.dp.install(flow(PortNo(way.ports_no(0) as u32), 0, &[], vec![Action::Output(PortNo(4789))])).unwrap();
    way.ports[0].give(&udp(1, 2, 3, 4));
    way.poll();
    assert_eq!(way.drops(DropReason::NoSuchPort), 1);
    assert_eq!(way.dp.account().came(), way.dp.account().went());
}

/// A tunnel that leads into itself ends.
#[test]
fn a_tunnel_in_itself_ends() {
    let kind = &kinds()[0];
    let way = way(kind, false, false, false);
    let port = PortNo(4789);
    let pop = Decapsulation { port, protocol: kind.0, erspan: None };
    let again = vec![push(&outer(false, false, kind.0), kind), Action::TunnelPop(pop)];
    let id = way.dp.flows().into_iter().find(|flow| flow.key.get(Field::InPortOxm) == 4789).unwrap().id;
    way.dp.remove(id).unwrap();
    way.dp.install(flow(port, 0, &[(Field::TunId, 7)], again)).unwrap();
    way.ports[0].give(&udp(1, 2, 3, 4));
    way.poll();
    way.ports[2].give(&way.ports[1].take().pop().unwrap());
    way.poll();
    assert_eq!(way.drops(DropReason::RecursionTooDeep), 1);
}

/// What is too long for the device of the route is sent in fragments, where the outer header allows that.
#[test]
fn what_is_too_long_is_fragmented_unless_the_outer_header_forbids_it() {
    let kind = &kinds()[0];
    for (v6, dont_fragment) in [(false, false), (true, false), (false, true), (true, true)] {
        let way = way(kind, v6, false, false);
        let id = way.dp.flows().into_iter().find(|flow| flow.key.get(Field::InPortOxm) == way.ports_no(0)).unwrap().id;
        way.dp.remove(id).unwrap();
        let out = PortNo(way.ports_no(1) as u32);
        let headers = push_by(&Outer { dont_fragment, ..outer(v6, false, kind.0) }, kind, out);
        way.dp.install(flow(PortNo(way.ports_no(0) as u32), 0, &[], vec![headers, Action::Output(out)])).unwrap();
        let head = if v6 { 40 } else { 20 };
        // Inner packets of 1 500 bytes among short ones, one of which just fits.
        let of_len = |len: usize| {
            let header = build::Ipv4 { proto: 17, ..Default::default() };
            build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(3, 4, &vec![7; len - 28])))
        };
        let frames = [of_len(60), of_len(1500), of_len(1500 - head - 16 - 14), of_len(70)];
        frames.iter().for_each(|frame| way.ports[0].give(frame));
        way.poll();
        let outer = way.ports[1].take();
        assert!(outer.iter().all(|frame| frame.len() <= 1514));
        assert_eq!(outer.len(), if dont_fragment { 3 } else { 5 });
        assert_eq!(way.drops(DropReason::TooBig), u64::from(dont_fragment));
        if !dont_fragment {
            let [first, second] = [&outer[1], &outer[2]];
            let payload = match v6 {
                false => [&first[34..], &second[34..]].concat(),
                true => [&first[62..], &second[62..]].concat(),
            };
            // Behind the headers of UDP and VXLAN.
            assert_eq!(payload[16..], frames[1]);
            assert_eq!(outer[3].len(), 1514, "what fits is not touched");
            // They are not put together again here.
            outer.iter().for_each(|frame| way.ports[2].give(frame));
            way.poll();
            assert_eq!((way.ports[3].take().len(), way.drops(DropReason::TunnelFragment)), (3, 2));
        }
        assert_eq!(way.dp.account().came(), way.dp.account().went());
    }
}

/// A super-frame is cut into segments first, and of these only those are fragmented that are too long.
#[test]
fn segments_that_are_too_long_are_fragmented() {
    let kind = &kinds()[0];
    let way = way(kind, false, false, false);
    let id = way.dp.flows().into_iter().find(|flow| flow.key.get(Field::InPortOxm) == way.ports_no(0)).unwrap().id;
    way.dp.remove(id).unwrap();
    let out = PortNo(way.ports_no(1) as u32);
    let headers = push_by(&Outer { dont_fragment: false, ..outer(false, false, kind.0) }, kind, out);
    way.dp.install(flow(PortNo(way.ports_no(0) as u32), 0, &[], vec![headers, Action::Output(out)])).unwrap();
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 6, ..Default::default() };
    let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::tcp(1000, 80, 0x10, &[7; 3000])));
    let mut packet = Packet::from_slice(&frame);
    *packet.offload_mut() = Offload {
        flags: Offload::NEEDS_CSUM,
        gso_type: Offload::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
    };
    way.ports[0].queues[0].lock().unwrap().push_back(packet);
    way.poll();
    let outer: Vec<_> = way.ports[1].sent.lock().unwrap().drain(..).collect();
    // Two segments of 1460 bytes, each in two fragments, and the rest of 80 bytes.
    let lens: Vec<_> = outer.iter().map(|packet| packet.len()).collect();
    assert_eq!(lens, [1514, 34 + 50, 1514, 34 + 50, 14 + 20 + 8 + 8 + 54 + 80]);
    let is_unfinished: Vec<_> = outer.iter().map(|packet| packet.offload().needs_csum()).collect();
    assert_eq!(is_unfinished, [false, false, false, false, true]);
    for pair in outer[..4].chunks(2) {
        let inner = [&pair[0].data()[34 + 16 + 14..], &pair[1].data()[34..]].concat();
        assert_eq!(ports::offload::checksum(&[&inner[12..20], &[0, 6, 5, 200], &inner[20..]].concat()), 0);
    }
}
