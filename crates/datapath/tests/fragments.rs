//! Fragments that are tracked: held until their datagram is whole, then sent on as they came, each with the metadata and
//! the translation of the whole.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::fragments::{address, cut, data, v4, v6};
use common::{ByHand, MemPort, ToPort, by_hand, flow, udp};
use conntrack::fragments::{Incomplete, MAX_FRAGMENTS, TIMEOUT};
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::conntrack::counters::Counter;
use datapath::{Action, Config, Datapath, DropReason, PortNo};
use packet::wire::{build, ethertype, ip_proto};
use packet::{Field, Key, Offload, Packet, Pool, PoolConfig};
use proptest::prelude::*;

const INSIDE: u32 = 0x0a00_0001;
const OUTSIDE: u32 = 0xc633_6401;
const PUBLIC: u32 = 0xcb00_7107;

fn ct(request: Request) -> Action {
    Action::Ct(Arc::new(request))
}

/// SNAT of what goes out.
fn nat(addresses: [std::net::IpAddr; 2]) -> Option<Translate> {
    let [from, to] = addresses;
    let addresses = Some((from, to));
    Some(Translate::New(Nat { side: Side::Src, addresses, ports: None, choice: Choice::Hash, persistent: false }))
}

/// From the first port to the second: looked up, committed after recirculation, and sent. What comes back goes to the first
/// port where it belongs to a connection. The third port gets what is invalid.
fn firewall(dp: &Datapath, ports: &[(PortNo, Arc<MemPort>)], translate: Option<Translate>) {
    let [inside, outside, invalid] = [ports[0].0, ports[1].0, ports[2].0];
    let (trk, new, est, rpl) = (CtState::TRK, CtState::NEW, CtState::EST, CtState::RPL);
    let look_up = Request { zone: 3, nat: translate.map(|_| Translate::AsBefore), ..Request::default() };
    let commit = Request { zone: 3, commit: true, nat: translate, ..Request::default() };
    let after = |port, state: CtState, actions| {
        let (mut spec, mask) = (flow(port, 1, &[], actions), trk | new | est | rpl | CtState::INV);
        spec.key.set(Field::CtState, state.0.into());
        spec.mask.add(Field::CtState, mask.0.into());
        dp.install(spec).unwrap();
    };
    for port in [inside, outside] {
        dp.install(flow(port, 0, &[], vec![ct(look_up), Action::Recirc(1)])).unwrap();
        after(port, trk | CtState::INV, vec![Action::Output(invalid)]);
    }
    after(inside, trk | new, vec![ct(commit), Action::Output(outside)]);
    after(inside, trk | est, vec![Action::Output(outside)]);
    after(outside, trk | est | rpl, vec![Action::Output(inside)]);
    after(outside, trk | new, vec![]);
}

/// A datapath with the firewall, which takes fragments of 400 bytes.
fn bed(translate: Option<Translate>) -> ByHand {
    let bed = by_hand(Config::default(), 3);
    for v6 in [false, true] {
        assert!(bed.0.conntrack().fragments.set_min_size(v6, 400));
    }
    firewall(&bed.0, &bed.2, translate);
    bed
}

/// A UDP datagram of IPv4 or IPv6 from inside, with checksum.
fn datagram(is_v6: bool, len: usize, sport: u16) -> Vec<u8> {
    let payload = build::udp(sport, 53, &data(len));
    if is_v6 { v6(1, 2, ip_proto::UDP, payload) } else { v4(INSIDE, OUTSIDE, ip_proto::UDP, payload) }
}

/// Every packet has gone out or ended, and nothing is held.
fn assert_balanced(dp: &Datapath) {
    let account = dp.account();
    assert_eq!(account.came(), account.went(), "{account}");
    assert_eq!(dp.conntrack().fragments.status().held, 0);
}

fn sent(ports: &[(PortNo, Arc<MemPort>)]) -> [Vec<Vec<u8>>; 3] {
    [0, 1, 2].map(|n: usize| ports[n].1.take())
}

fn poll(dp: &Datapath, times: usize) {
    (0..times).for_each(|_| {
        dp.poll();
    });
}

fn none() -> Vec<Vec<u8>> {
    Vec::new()
}

#[test]
fn fragments_go_on_as_they_came_when_all_are_there() {
    for is_v6 in [false, true] {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
            let (dp, _, p) = bed(None);
            let parts = cut(&datagram(is_v6, 2000, 1000), 7, &[800, 800]);
            let parts = order.map(|n| parts[n].clone());
            for part in &parts[..2] {
                p[0].1.give(part);
                dp.poll();
            }
            assert_eq!((sent(&p), dp.conntrack().fragments.status().held), ([none(), none(), none()], 2));
            p[0].1.give(&parts[2]);
            dp.poll();
            dp.poll();
            assert_eq!(sent(&p), [none(), parts.to_vec(), none()], "{order:?}");
            assert_balanced(&dp);
            let limits = &dp.conntrack().tracker.table.limits;
            assert_eq!((limits.zone_connections(3), limits.connections()), (1, 1), "by the ports of the first one");
            let status = dp.conntrack().fragments.status();
            let family = if is_v6 { status.v6 } else { status.v4 };
            assert_eq!((family.accepted, family.completed), (6, 6), "in the first pass, and to be committed");
        }
    }
}

#[test]
fn interleaved_datagrams_are_told_apart() {
    let (dp, _, p) = bed(None);
    let of = |sport: u16| cut(&datagram(false, 2000, sport), sport, &[800, 800]);
    let (a, b) = (of(1000), of(1001));
    let all = [&a[1], &b[0], &b[2], &a[2], &a[0], &b[1]];
    all.iter().for_each(|part| p[0].1.give(part));
    dp.poll();
    dp.poll();
    let expected = [&a[1], &a[2], &a[0], &b[0], &b[2], &b[1]];
    assert_eq!(sent(&p)[1], expected.map(|part| part.clone()));
    assert_eq!(dp.conntrack().tracker.table.limits.connections(), 2);
    assert_balanced(&dp);
}

#[test]
fn replies_in_fragments_belong_to_their_connection() {
    let (dp, _, p) = bed(None);
    let reply = v4(OUTSIDE, INSIDE, ip_proto::UDP, build::udp(53, 1000, &data(2000)));
    let parts = cut(&reply, 9, &[1480]);
    parts.iter().for_each(|part| p[1].1.give(part));
    dp.poll();
    assert_eq!(sent(&p), [none(), none(), none()], "nobody has asked");
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    dp.poll();
    assert_eq!(sent(&p)[1].len(), 1);
    parts.iter().for_each(|part| p[1].1.give(part));
    dp.poll();
    assert_eq!(sent(&p), [parts, none(), none()]);
    assert_balanced(&dp);
}

#[test]
fn fragments_are_translated_with_their_datagram() {
    let public = [address(9).into(), address(9).into()];
    for (is_v6, addresses) in [(false, [[203, 0, 113, 7].into(); 2]), (true, public)] {
        for proto in [ip_proto::UDP, ip_proto::TCP, ip_proto::SCTP] {
            let payload = |sport, dport| match proto {
                ip_proto::TCP => build::tcp(sport, dport, 2, &data(2000)),
                ip_proto::SCTP => build::sctp(sport, dport, 7, &[&[0, 0, 3, 232][..], &data(996)].concat()),
                _ => build::udp(sport, dport, &data(2000)),
            };
            let build = |src: (u32, u8), dst: (u32, u8), payload| {
                if is_v6 { v6(src.1, dst.1, proto, payload) } else { v4(src.0, dst.0, proto, payload) }
            };
            let (inside, outside, public) = ((INSIDE, 1), (OUTSIDE, 2), (PUBLIC, 9));
            let (dp, _, p) = bed(nat(addresses));
            let parts = |frame: &[u8]| {
                let mut parts = cut(frame, 7, &[496, 496]);
                parts.reverse();
                parts
            };
            parts(&build(inside, outside, payload(1000, 53))).iter().for_each(|part| p[0].1.give(part));
            poll(&dp, 2);
            assert_eq!(sent(&p)[1], parts(&build(public, outside, payload(1000, 53))), "{proto} {is_v6}");
            if proto == ip_proto::UDP {
                parts(&build(outside, public, payload(53, 1000))).iter().for_each(|part| p[1].1.give(part));
                poll(&dp, 2);
                assert_eq!(sent(&p)[0], parts(&build(outside, inside, payload(53, 1000))), "{proto} {is_v6}");
            }
            assert_balanced(&dp);
        }
    }
}

#[test]
fn a_copy_goes_on_alone_as_invalid() {
    let (dp, _, p) = bed(None);
    let parts = cut(&datagram(false, 2000, 1000), 7, &[800, 800]);
    [0, 0, 1, 2].into_iter().for_each(|n: usize| p[0].1.give(&parts[n]));
    poll(&dp, 2);
    assert_eq!(sent(&p), [none(), parts.clone(), vec![parts[0].clone()]]);
    assert_eq!(dp.conntrack().counters.get(Counter::FragmentDuplicate), 1);
    assert_balanced(&dp);
}

#[test]
fn an_overlap_ends_its_datagram() {
    let (dp, _, p) = bed(None);
    let frame = datagram(false, 2000, 1000);
    let parts = cut(&frame, 7, &[800, 800]);
    let over = cut(&frame, 7, &[792, 800]);
    [&parts[0], &over[1], &parts[2], &parts[1]].into_iter().for_each(|part| p[0].1.give(part));
    dp.poll();
    assert_eq!(sent(&p), [none(), none(), none()]);
    assert_eq!(dp.account().drops.get(DropReason::FragmentOverlap), 4);
    assert_eq!(dp.conntrack().fragments.status().v4.overlapped, 4);
    assert_eq!(dp.conntrack().tracker.table.limits.connections(), 0);
    assert_balanced(&dp);
}

#[test]
fn what_is_missing_for_too_long_is_not_waited_for() {
    let (dp, clock, p) = bed(None);
    let parts = cut(&datagram(true, 2000, 1000), 7, &[800, 800]);
    [0, 2].into_iter().for_each(|n: usize| p[0].1.give(&parts[n]));
    dp.poll();
    let listed = dp.conntrack().fragments.incomplete();
    assert!(matches!(listed[..], [Incomplete { fragments: 2, first_seen: true, last_seen: true, .. }]));
    clock.advance(TIMEOUT - Duration::from_millis(1));
    poll(&dp, 2);
    assert_eq!(dp.conntrack().fragments.status().held, 2);
    clock.advance(Duration::from_millis(1));
    poll(&dp, 2);
    assert_eq!(dp.account().drops.get(DropReason::FragmentExpired), 2);
    assert_eq!(dp.conntrack().fragments.status().v6.expired, 2);
    assert_balanced(&dp);
    p[0].1.give(&parts[1]);
    dp.poll();
    assert_eq!((sent(&p), dp.conntrack().fragments.status().held), ([none(), none(), none()], 1));
}

#[test]
fn a_flood_of_first_fragments_is_bounded() {
    let (dp, clock, p) = bed(None);
    let first = |id: u32| {
        let mut part = cut(&datagram(false, 2000, 1000), id as u16, &[1480])[0].clone();
        // Of another sender, with a checksum to match.
        part[29] = (id >> 16) as u8 + 2;
        let sum = u16::from_be_bytes([part[24], part[25]]);
        let sum = packet::wire::checksum::update16(sum, 1, u16::from(part[29]));
        part[24..26].copy_from_slice(&sum.to_be_bytes());
        part
    };
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    dp.poll();
    drop(sent(&p));
    let (mut answers, max) = (0, dp.conntrack().fragments.status().max);
    for id in 0..100_000 {
        p[0].1.give(&first(id));
        if id % 32 == 31 {
            p[1].1.give(&udp(OUTSIDE, INSIDE, 53, 1000));
            dp.poll();
            let [back, _, invalid] = sent(&p);
            answers += back.len();
            assert!(invalid.len() == 32 || id < 2 * max, "{id}: {}", invalid.len());
        }
    }
    assert_eq!((answers, dp.conntrack().fragments.status().held), (3125, max), "others pass");
    assert_eq!(dp.conntrack().counters.get(Counter::FragmentTooMany), 100_000 - u64::from(max));
    clock.advance(TIMEOUT);
    poll(&dp, 2);
    assert_eq!(dp.account().drops.get(DropReason::FragmentExpired), u64::from(max));
    assert_balanced(&dp);
}

#[test]
fn a_flood_of_whole_datagrams_passes() {
    let (dp, _, p) = bed(None);
    let parts = cut(&datagram(false, 2000, 1000), 7, &[1480]);
    for _ in 0..2000 {
        parts.iter().for_each(|part| p[0].1.give(part));
        dp.poll();
    }
    assert_eq!((p[1].1.sent(), dp.conntrack().tracker.table.limits.connections()), (4000, 1));
    assert_balanced(&dp);
}

#[test]
fn what_cannot_be_held_goes_on_as_invalid() {
    let (dp, _, p) = bed(None);
    let part = |id: u16| cut(&datagram(false, 2000, 1000), id, &[1480])[0].clone();
    let small = cut(&datagram(false, 2000, 1000), 1, &[376])[0].clone();
    let mut wrong = part(2);
    wrong[24] ^= 1;
    let uneven = {
        let frame = datagram(false, 1500, 1000);
        let mut part = cut(&frame, 3, &[1480])[0].clone();
        part.pop();
        part[16..18].copy_from_slice(&1499u16.to_be_bytes());
        let sum = u16::from_be_bytes([part[24], part[25]]);
        part[24..26].copy_from_slice(&packet::wire::checksum::update16(sum, 1500, 1499).to_be_bytes());
        part
    };
    [&small, &wrong, &uneven].into_iter().for_each(|part| p[0].1.give(part));
    dp.poll();
    assert_eq!(sent(&p), [none(), none(), vec![small, wrong, uneven]]);
    let counted = |counter| dp.conntrack().counters.get(counter);
    let counters = [Counter::FragmentTooSmall, Counter::FragmentIpChecksum, Counter::FragmentMalformed];
    assert_eq!(counters.map(counted), [1, 1, 1]);
    dp.conntrack().fragments.set_enabled(false, false);
    p[0].1.give(&part(4));
    dp.poll();
    assert_eq!((sent(&p)[2].len(), counted(Counter::FragmentOff)), (1, 1));
    dp.conntrack().fragments.set_enabled(false, true);
    assert!(dp.conntrack().fragments.set_max(0));
    p[0].1.give(&part(5));
    dp.poll();
    assert_eq!((sent(&p)[2].len(), counted(Counter::FragmentTooMany)), (1, 1));
    assert_balanced(&dp);
}

#[test]
fn checksums_cover_all_fragments() {
    for is_v6 in [false, true] {
        let (dp, _, p) = bed(None);
        let mut parts = cut(&datagram(is_v6, 2000, 1000), 7, &[800, 800]);
        *parts[2].last_mut().unwrap() ^= 1;
        parts.iter().for_each(|part| p[0].1.give(part));
        dp.poll();
        assert_eq!(sent(&p), [none(), none(), parts]);
        assert_eq!(dp.conntrack().counters.get(Counter::Checksum), 1);
        assert_balanced(&dp);
    }
}

#[test]
fn tags_and_options_and_extension_headers_may_stand_before() {
    let tagged = |frame: &[u8], tags: &[u8]| [&frame[..12], tags, &frame[12..]].concat();
    let options = {
        let ip =
            build::Ipv4 { src: INSIDE.into(), dst: OUTSIDE.into(), proto: 17, options: &[1; 8], ..Default::default() };
        build::ethernet([2; 6], [4; 6], &[], ethertype::IPV4, &ip.packet(build::udp(1000, 53, &data(2000))))
    };
    // Options of the destination, which stand before the fragment header and are not in the datagram.
    let extended = |part: &Vec<u8>| {
        let mut part = [&part[..54], &[44, 0, 1, 4, 0, 0, 0, 0], &part[54..]].concat();
        part[20] = 60;
        let len = u16::from_be_bytes([part[18], part[19]]) + 8;
        part[18..20].copy_from_slice(&len.to_be_bytes());
        part
    };
    let v4 = cut(&datagram(false, 2000, 1000), 7, &[800, 800]);
    let v6 = cut(&datagram(true, 2000, 1000), 7, &[800, 800]);
    let all: [Vec<Vec<u8>>; 5] = [
        v4.iter().map(|part| tagged(part, &[0x81, 0, 0, 5])).collect(),
        v6.iter().map(|part| tagged(part, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6])).collect(),
        cut(&options, 7, &[800, 800]),
        v6.iter().map(extended).collect(),
        // Padded to the least length of a frame.
        cut(&datagram(false, 1600 - 8 + 4, 1000), 7, &[800, 800])
            .into_iter()
            .map(|mut part| {
                part.resize(part.len().max(60), 0xee);
                part
            })
            .collect(),
    ];
    for (n, parts) in all.into_iter().enumerate() {
        let (dp, _, p) = bed(None);
        parts.iter().rev().for_each(|part| p[0].1.give(part));
        poll(&dp, 2);
        let expected: Vec<_> = parts.into_iter().rev().collect();
        assert_eq!(sent(&p), [none(), expected, none()], "{n}");
        assert_eq!(dp.conntrack().tracker.table.limits.connections(), 1);
    }
}

#[test]
fn each_fragment_keeps_what_was_done_to_it() {
    // Metadata and headers that are written before the ct action, by other flows for first fragments than for later ones.
    let (dp, _, p) = by_hand(Config::default(), 3);
    let set = |field, value| Action::Set(Arc::new(datapath::Rewrite::field(field, value)));
    for (kind, mark) in [(1, 7), (3, 8)] {
        let actions = vec![
            set(Field::PktMark, mark),
            set(Field::TunId, mark),
            set(Field::NwDst, PUBLIC.into()),
            ct(Request { commit: true, zone: 2, ..Request::default() }),
            Action::Recirc(1),
        ];
        dp.install(flow(p[0].0, 0, &[(Field::NwFrag, kind)], actions)).unwrap();
    }
    for (mark, out) in [(7, 1), (8, 2)] {
        let fields = [
            (Field::PktMark, mark),
            (Field::TunId, mark),
            (Field::NwDst, PUBLIC.into()),
            (Field::CtZone, 2),
            (Field::CtNwDst, PUBLIC.into()),
            (Field::CtTpDst, 53),
        ];
        dp.install(flow(p[0].0, 1, &fields, vec![Action::Output(p[out].0)])).unwrap();
    }
    let parts = cut(&datagram(false, 2000, 1000), 7, &[1480]);
    parts.iter().for_each(|part| p[0].1.give(part));
    poll(&dp, 2);
    assert_eq!([1, 2].map(|n: usize| p[n].1.sent()), [1, 1]);
    assert_balanced(&dp);
}

#[test]
fn several_ct_actions_of_one_program() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let commit = |zone| ct(Request { commit: true, zone, ..Request::default() });
    let mut actions: Vec<Action> = (1..=16).map(commit).collect();
    actions.push(Action::Output(p[1].0));
    dp.install(flow(p[0].0, 0, &[], actions.clone())).unwrap();
    let parts = cut(&datagram(false, 2000, 1000), 7, &[1480]);
    parts.iter().for_each(|part| p[0].1.give(part));
    dp.poll();
    assert_eq!(sent(&p), [none(), parts.clone(), none()]);
    let limits = &dp.conntrack().tracker.table.limits;
    assert_eq!((limits.connections(), limits.zone_connections(16)), (16, 1));
    // One more is too deep.
    actions.insert(0, commit(17));
    dp.flush();
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    parts.iter().for_each(|part| p[0].1.give(part));
    dp.poll();
    assert_eq!((p[1].1.sent(), dp.account().drops.get(DropReason::RecursionTooDeep)), (0, 2));
    assert_balanced(&dp);
}

#[test]
fn thousands_of_ct_actions_that_hold_nothing() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.conntrack().fragments.set_enabled(false, false);
    let mut actions = vec![ct(Request::default()); 20_000];
    actions.push(Action::Output(p[1].0));
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    p[0].1.give(&cut(&datagram(false, 2000, 1000), 7, &[1480])[0]);
    dp.poll();
    assert_eq!(p[1].1.sent(), 1);
}

#[test]
fn in_clones_and_choices_by_length_and_packet_outs_and_after_upcalls() {
    let commit = ct(Request { commit: true, zone: 4, ..Request::default() });
    let parts = cut(&datagram(false, 2000, 1000), 7, &[1480]);
    type Way = fn(Action, PortNo, PortNo) -> Vec<Action>;
    let ways: [(&str, Way); 4] = [
        ("straight", |ct, one, _| vec![ct, Action::Output(one)]),
        ("clone", |ct, one, two| vec![Action::Clone(vec![ct, Action::Output(one)]), Action::Output(two)]),
        ("length", |ct, one, _| {
            let list = vec![ct, Action::Output(one)];
            vec![Action::CheckLength { size: 1000, longer: list.clone(), others: list }]
        }),
        ("copy", |ct, one, two| {
            vec![Action::Output(two), ct, Action::PushVlan { tpid: 0x8100, tci: 5 }, Action::Output(one)]
        }),
    ];
    for (name, way) in ways {
        for injected in [false, true] {
            let (dp, _, p) = by_hand(Config::default(), 3);
            let actions = way(commit.clone(), p[1].0, p[2].0);
            if injected {
                let mut key = Key::new();
                key.set(Field::InPortOxm, p[0].0.0.into());
                parts.iter().for_each(|part| dp.execute(Packet::from_slice(part), &key, &actions));
            } else {
                dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
                parts.iter().for_each(|part| p[0].1.give(part));
            }
            dp.poll();
            let [_, one, two] = sent(&p);
            let tag = |part: &Vec<u8>| [&part[..12], &[0x81, 0, 0, 5], &part[12..]].concat();
            let expected = if name == "copy" { parts.iter().map(tag).collect() } else { parts.clone() };
            assert_eq!(one, expected, "{name}");
            assert_eq!(two, if matches!(name, "clone" | "copy") { parts.clone() } else { none() }, "{name}");
            assert_eq!(dp.conntrack().tracker.table.limits.zone_connections(4), 1);
            assert_balanced(&dp);
        }
    }
}

/// Packets of ports' pools do not stay in their buffers, and none is lost, whatever becomes of them.
#[test]
fn held_fragments_keep_no_buffer_of_a_pool() {
    let pool = Pool::new(PoolConfig { chunks: 8, chunk_size: 2048, headroom: 128 }).unwrap();
    let (dp, clock, p) = bed(None);
    let give = |part: &[u8]| {
        let packet = Packet::from_slice(part).duplicate_in(pool.memory()).expect("a buffer");
        p[0].1.queues[0].lock().unwrap().push_back(packet);
    };
    for id in 0..100 {
        give(&cut(&datagram(false, 2000, 1000), id, &[1480])[0]);
        dp.poll();
        assert_eq!(pool.in_use(), 0);
    }
    assert_eq!(dp.conntrack().fragments.status().held, 100);
    give(&cut(&datagram(false, 2000, 1000), 99, &[1480])[1]);
    poll(&dp, 2);
    assert_eq!(sent(&p)[1].len(), 2);
    assert_eq!((dp.conntrack().fragments.status().held, pool.in_use()), (99, 0));
    clock.advance(TIMEOUT);
    poll(&dp, 2);
    assert_balanced(&dp);
}

#[test]
fn a_port_takes_its_fragments_with_it() {
    let (dp, _, p) = bed(None);
    let parts = |id| cut(&datagram(false, 2000, id), id, &[1480]);
    // Also those of another port in the same datagram.
    p[0].1.give(&parts(1)[0]);
    p[1].1.give(&parts(2)[0]);
    dp.poll();
    assert_eq!(dp.conntrack().fragments.status().held, 2);
    dp.remove_port(p[0].0).unwrap();
    assert_eq!(dp.account().drops.get(DropReason::FragmentPurged), 1);
    assert_eq!((dp.conntrack().fragments.status().held, dp.conntrack().fragments.status().v4.purged), (1, 1));
    dp.stop();
    assert_eq!(dp.account().drops.get(DropReason::FragmentPurged), 2);
    assert_balanced(&dp);
}

#[test]
fn an_upcall_may_come_before() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    dp.set_upcall(ToPort::new(p[1].0, Field::NwSrc, true));
    let commit = ct(Request { commit: true, ..Request::default() });
    dp.install(flow(p[0].0, 0, &[], vec![commit, Action::Recirc(1)])).unwrap();
    let parts = cut(&datagram(false, 2000, 1000), 7, &[1480]);
    for round in 0..3 {
        parts.iter().for_each(|part| p[0].1.give(part));
        poll(&dp, 3);
        assert_eq!(sent(&p)[1], parts, "{round}");
    }
    assert_balanced(&dp);
}

#[test]
fn the_longest_datagrams() {
    for (is_v6, most) in [(false, 65_535 - 20), (true, 65_535)] {
        let (dp, _, p) = bed(None);
        assert!(dp.conntrack().fragments.set_max(MAX_FRAGMENTS));
        let cuts = vec![1400; 65_536 / 1400];
        let whole = datagram(is_v6, most - 8, 1000);
        let parts = cut(&whole, 7, &cuts);
        parts.iter().for_each(|part| p[0].1.give(part));
        poll(&dp, 5);
        assert_eq!(sent(&p), [none(), parts.clone(), none()]);
        // What would be longer than a packet of IPv4 can be.
        if !is_v6 {
            let mut parts = parts;
            parts.last_mut().unwrap().extend([0; 8]);
            let last = parts.last_mut().unwrap();
            let len = u16::from_be_bytes([last[16], last[17]]);
            last[16..18].copy_from_slice(&(len + 8).to_be_bytes());
            let sum = u16::from_be_bytes([last[24], last[25]]);
            last[24..26].copy_from_slice(&packet::wire::checksum::update16(sum, len, len + 8).to_be_bytes());
            parts.iter().for_each(|part| p[0].1.give(part));
            poll(&dp, 5);
            assert_eq!(sent(&p), [none(), none(), parts]);
        }
        assert_balanced(&dp);
    }
}

/// A segment of a control connection of FTP, from inside. `seq` counts from the handshake on.
fn control(seq: u32, flags: u16, text: &str) -> Vec<u8> {
    let mut segment = build::tcp(1000, 21, flags, text.as_bytes());
    segment[4..8].copy_from_slice(&(1000 + seq).to_be_bytes());
    segment[8..12].copy_from_slice(&(if flags & 0x10 == 0 { 0u32 } else { 5001 }).to_be_bytes());
    segment[14..16].fill(0xff);
    v4(INSIDE, OUTSIDE, ip_proto::TCP, segment)
}

#[test]
fn an_announcement_may_become_shorter_in_fragments() {
    let text = |then: &str| format!("PORT 10,0,0,1,4,1\r\n{}", then.repeat(1000));
    for (public, shorter) in [([1, 1, 1, 1], true), ([100, 100, 100, 100], false)] {
        let actions = |out| {
            let helper = Some(conntrack::helpers::Helper::Ftp);
            vec![
                ct(Request { commit: true, nat: nat([public.into(); 2]), helper, ..Request::default() }),
                Action::Output(out),
            ]
        };
        let beds = [0, 1].map(|_| by_hand(Config::default(), 2));
        for (dp, _, p) in &beds {
            dp.conntrack().fragments.set_min_size(false, 400);
            dp.install(flow(p[0].0, 0, &[], actions(p[1].0))).unwrap();
            let back = Request { nat: Some(Translate::AsBefore), ..Request::default() };
            dp.install(flow(p[1].0, 0, &[], vec![ct(back), Action::Output(p[0].0)])).unwrap();
            p[0].1.give(&control(0, 2, ""));
            dp.poll();
            let mut answer = build::tcp(21, 1000, 0x12, b"");
            answer[4..8].copy_from_slice(&5000u32.to_be_bytes());
            answer[8..12].copy_from_slice(&1001u32.to_be_bytes());
            answer[14..16].fill(0xff);
            p[1].1.give(&v4(OUTSIDE, u32::from_be_bytes(public), ip_proto::TCP, answer));
            p[0].1.give(&control(1, 0x10, ""));
            poll(dp, 2);
            assert_eq!((p[0].1.take().len(), p[1].1.take().len()), (1, 2));
        }
        let [(dp, _, p), (other, _, of_parts)] = &beds;
        let mut seq = 1;
        for data in [text("x"), "x".repeat(1200)] {
            let whole = control(seq, 0x18, &data);
            seq += data.len() as u32;
            p[0].1.give(&whole);
            dp.poll();
            let parts = cut(&whole, 9, &[400, 400]);
            parts.iter().for_each(|part| of_parts[0].1.give(part));
            other.poll();
            let (expected, sent) = (cut(&p[1].1.take()[0], 9, &[400, 400]), of_parts[1].1.take());
            if shorter {
                assert_eq!(sent, expected);
                assert_eq!(sent.iter().flatten().count() + usize::from(seq < 2000), parts.iter().flatten().count());
            }
            assert_eq!([sent.len(), parts.len()], [3, 3]);
        }
        // Without room for a longer text, it stays as it is.
        let counted = [dp, other].map(|dp| dp.conntrack().counters.get(Counter::NoBuffer));
        assert_eq!(counted, [0, u64::from(!shorter)]);
        assert_balanced(dp);
        assert_balanced(other);
    }
}

/// A protocol and what its packets carry.
fn payload() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let len = prop_oneof![0..64usize, 1000..4000usize];
    (prop::sample::select(vec![ip_proto::UDP, ip_proto::TCP, ip_proto::ICMP, ip_proto::SCTP, 47]), len, 0..4u16)
        .prop_map(|(proto, len, port)| {
            let payload = match proto {
                ip_proto::UDP => build::udp(port, 53, &data(len)),
                ip_proto::TCP => build::tcp(port + 1, 53, 2, &data(len)),
                ip_proto::ICMP => build::icmp(8, 0, [0, 1, 0, 2], &data(len)),
                ip_proto::SCTP => {
                    let [a, b] = (len as u16 / 4 * 4 + 4).to_be_bytes();
                    build::sctp(port + 1, 53, 7, &[&[0, 0, a, b], &data(len / 4 * 4)[..]].concat())
                }
                _ => data(len),
            };
            (proto, payload)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a datagram is and however it is cut, its fragments go where it would go itself, with the same bytes.
    #[test]
    fn fragments_go_where_their_datagram_goes(
        (proto, payload) in payload(),
        is_v6 in any::<bool>(),
        translated in any::<bool>(),
        wrong in prop::option::of(any::<prop::sample::Index>()),
        cuts in prop::collection::vec(1..60usize, 1..6),
        order in any::<prop::sample::Index>(),
        seen in any::<bool>(),
    ) {
        let proto = if is_v6 && proto == ip_proto::ICMP { ip_proto::ICMPV6 } else { proto };
        let payload = if proto == ip_proto::ICMPV6 { build::icmpv6(128, 0, [0, 1, 0, 2], &payload[8..]) } else { payload };
        let mut whole =
            if is_v6 { v6(1, 2, proto, payload) } else { v4(INSIDE, OUTSIDE, proto, payload) };
        if let Some(at) = wrong {
            let head = if is_v6 { 54 } else { 34 };
            if whole.len() > head {
                let at = head + at.index(whole.len() - head);
                whole[at] ^= 0x10;
            }
        }
        let address = if is_v6 { address(9).into() } else { [203, 0, 113, 7].into() };
        let beds = [0, 1].map(|_| bed(translated.then(|| nat([address; 2])).flatten()));
        // Sizes below the least one do not matter here: the last fragment may have any.
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| 400 + 8 * cut).collect();
        let mut parts = cut(&whole, 77, &cuts);
        let turned = order.index(parts.len());
        parts.rotate_left(turned);
        if turned % 2 == 1 {
            parts.reverse();
        }
        let [(dp, _, ports), (other, _, other_ports)] = &beds;
        for (dp, _, ports) in &beds {
            for (number, port) in ports {
                port.mtu.store(9000, Ordering::Relaxed);
                dp.refresh_port(*number).unwrap();
            }
        }
        for _ in 0..1 + u8::from(seen) {
            ports[0].1.give(&whole);
            poll(dp, 3);
            parts.iter().for_each(|part| other_ports[0].1.give(part));
            poll(other, 3);
            let of_whole = sent(ports);
            let of_parts = sent(other_ports);
            let at = of_whole.iter().position(|sent| !sent.is_empty()).expect("it goes somewhere");
            // The whole as it came out, cut in the same way.
            let mut expected = cut(&of_whole[at][0], 77, &cuts);
            expected.rotate_left(turned);
            if turned % 2 == 1 {
                expected.reverse();
            }
            let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
            prop_assert_eq!(lengths(&of_parts[at]), lengths(&expected));
            prop_assert!(of_parts[at] == expected, "port {}", at);
            prop_assert_eq!(of_parts.iter().map(Vec::len).sum::<usize>(), parts.len());
        }
        for dp in [dp, other] {
            let account = dp.account();
            prop_assert_eq!(account.came(), account.went(), "{}", account);
            prop_assert_eq!(dp.conntrack().fragments.status().held, 0);
        }
        prop_assert_eq!(
            dp.conntrack().tracker.table.limits.connections(),
            other.conntrack().tracker.table.limits.connections()
        );
    }

    /// Fragments in any order, some missing, twice or over others: each goes out or is dropped, with the bytes it had.
    #[test]
    fn no_fragment_is_lost_or_changed(
        steps in prop::collection::vec((0..3u16, 0..5usize, 0..4usize, 0..3u64), 1..60),
        gso in any::<bool>(),
    ) {
        let (dp, clock, p) = bed(None);
        let cutting = [&[800, 800, 800][..], &[792, 800, 800], &[400, 400, 400], &[1600]];
        let mut given = Vec::new();
        for (id, which, how, seconds) in steps {
            clock.advance(Duration::from_secs(seconds));
            let parts = cut(&datagram(false, 2800, 1000 + id), id, cutting[how]);
            let Some(part) = parts.get(which) else { continue };
            let mut packet = Packet::from_slice(part);
            if gso && which == 0 {
                *packet.offload_mut() =
                    Offload { gso_type: Offload::GSO_UDP_L4, gso_size: 500, hdr_len: 42, ..Offload::NONE };
            }
            p[0].1.queues[0].lock().unwrap().push_back(packet);
            given.push(part.clone());
            dp.poll();
        }
        clock.advance(TIMEOUT);
        poll(&dp, 4);
        let account = dp.account();
        prop_assert_eq!(account.came(), account.went(), "{}", account);
        prop_assert_eq!(dp.conntrack().fragments.status().held, 0);
        for out in sent(&p).into_iter().flatten() {
            let at = given.iter().position(|given| *given == out);
            prop_assert!(at.is_some(), "bytes that nobody gave");
            given.swap_remove(at.unwrap_or_default());
        }
        prop_assert_eq!(given.len() as u64, account.drops.total());
    }
}
