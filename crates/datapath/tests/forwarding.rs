//! A packet's way, driven by hand.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{ToPort, by_hand, flow, packet_in, udp};
use datapath::{Action, Config, DropReason, FlowSpec, HashAlgorithm, Rewrite};
use packet::flow::VlanLimit;
use packet::{Field, Packet, Pool, PoolConfig};

#[test]
fn a_flow_forwards_and_counts() {
    let (dp, clock, p) = by_hand(Config::default(), 3);
    assert_eq!((p[0].0.0, p[1].0.0), (1, 2));
    let id = dp.install(flow(p[0].0, 0, &[(Field::UdpDst, 53)], vec![Action::Output(p[1].0)])).unwrap();
    for n in 0..40 {
        p[0].1.give(&udp(0x0a000000 + n, 0x0a000001, 1000, 53));
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(dp.poll() + dp.poll(), 40);
    let sent = p[1].1.take();
    assert_eq!(sent.len(), 40);
    assert!(sent.iter().zip(0..).all(|(f, n)| *f == udp(0x0a000000 + n, 0x0a000001, 1000, 53)), "in order, unchanged");
    let stats = dp.flow_stats(id).unwrap();
    assert_eq!((stats.packets, stats.bytes), (40, 40 * 64));
    assert!(stats.used <= dp.now() && dp.now().since(stats.used) < Duration::from_millis(2), "{stats:?}");

    let worker = &dp.stats().workers[0];
    assert_eq!((worker.received, worker.megaflow_hits, worker.exact_hits), (40, 32, 8));
    assert_eq!((worker.sent, worker.batches_sent, worker.busy_turns), (40, 2, 2));
    dp.reset_stats();
    assert_eq!(dp.stats().workers[0].received, 0);

    let gone = dp.remove(id).unwrap();
    assert_eq!(gone.stats.packets, 40);
    assert!(dp.remove(id).is_none() && dp.flow_stats(id).is_none() && dp.flow(id).is_none());
    p[0].1.give(&udp(1, 2, 3, 53));
    dp.poll();
    assert_eq!(p[1].1.sent(), 0);
    assert_eq!(dp.stats().workers[0].drops.get(DropReason::UpcallError), 1, "there is no slow path");
}

#[test]
fn two_datapaths_have_vlan_limits_of_their_own() {
    let plain = udp(1, 2, 3, 53);
    let tagged = [&plain[..12], &[0x81, 0, 0, 100, 0x81, 0, 0, 200], &plain[12..]].concat();
    // A field more makes it another way of looking flows up than by what all frames have.
    for more in [&[][..], &[(Field::DlSrc, 0x0200_0000_0001)]] {
        let both = [VlanLimit::Two, VlanLimit::One].map(|vlan_limit| {
            let (dp, clock, p) = by_hand(Config { vlan_limit, ..Config::default() }, 3);
            for (dl_type, to) in [(0x0800, p[1].0), (0x8100, p[2].0)] {
                let key = [&[(Field::DlType, dl_type)], more].concat();
                dp.install(flow(p[0].0, 0, &key, vec![Action::Recirc(7)])).unwrap();
                dp.install(flow(p[0].0, 7, &key, vec![Action::Output(to)])).unwrap();
            }
            (dp, clock, p)
        });
        let sent = || {
            both.each_ref().map(|(dp, _, p)| {
                p[0].1.give(&tagged);
                dp.poll();
                [1, 2].map(|port: usize| p[port].1.take().len())
            })
        };
        assert_eq!(sent(), [[1, 0], [0, 1]], "two tags are parsed, and one");
        both[0].0.set_vlan_limit(VlanLimit::One);
        both[1].0.set_vlan_limit(VlanLimit::Two);
        assert_eq!(sent(), [[0, 1], [1, 0]], "and the other way round");
    }
}

#[test]
fn misses_go_up_once_for_each_kind_and_come_back_in_order() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let upcall = ToPort::new(p[1].0, Field::UdpSrc, true);
    dp.set_upcall(upcall.clone());
    let frames: Vec<_> = (0..30).map(|n| udp(1, 2, 100 + n % 3, 53)).collect();
    frames.iter().for_each(|f| p[0].1.give(f));
    dp.poll();
    assert_eq!(p[1].1.take(), frames);
    assert_eq!(upcall.misses.load(Ordering::SeqCst), 3, "the copies are not asked about");
    assert_eq!((dp.flow_count(), dp.stats().masks), (3, 1));
    assert_eq!(dp.flows().map(|f| f.stats.packets).collect::<Vec<_>>(), [9, 9, 9], "not the first");
    let worker = &dp.stats().workers[0];
    assert_eq!((worker.misses, worker.lost), (30, 0));
    p[0].1.give(&frames[0]);
    dp.poll();
    assert_eq!((upcall.misses.load(Ordering::SeqCst), p[1].1.sent()), (3, 1));
}

#[test]
fn verdicts_without_a_flow_are_asked_for_each_packet() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let upcall = ToPort::new(p[1].0, Field::UdpSrc, false);
    dp.set_upcall(upcall.clone());
    (0..5).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
    dp.poll();
    assert_eq!((upcall.misses.load(Ordering::SeqCst), p[1].1.sent(), dp.flow_count()), (5, 5, 0));
}

#[test]
fn above_the_limits_packets_pass_without_a_flow() {
    let (dp, _, p) = by_hand(Config { max_flows: 2, ..Config::default() }, 2);
    dp.set_upcall(ToPort::new(p[1].0, Field::UdpSrc, true));
    (0..5).for_each(|n| p[0].1.give(&udp(1, 2, n, 4)));
    dp.poll();
    assert_eq!((p[1].1.sent(), dp.flow_count()), (5, 2));
}

#[test]
fn copies_rewrites_and_clones() {
    let (dp, _, p) = by_hand(Config::default(), 4);
    let set = |field, value| Action::Set(Arc::new(Rewrite::field(field, value)));
    let (one, two, three) = (Action::Output(p[1].0), Action::Output(p[2].0), Action::Output(p[3].0));
    let actions = vec![
        set(Field::UdpDst, 99),
        one.clone(),
        Action::Clone(vec![Action::PushVlan { tpid: 0x8100, tci: 0x1005 }, two.clone()]),
        Action::Truncate { max_len: 60 },
        three.clone(),
        set(Field::UdpSrc, 7),
        three,
    ];
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    let changed = udp(1, 2, 3, 99);
    assert_eq!(p[1].1.take(), std::slice::from_ref(&changed));
    let tagged = [&changed[..12], &[0x81, 0, 0, 5], &changed[12..]].concat();
    assert_eq!(p[2].1.take(), [tagged]);
    assert_eq!(p[3].1.take(), [changed[..60].to_vec(), udp(1, 2, 7, 99)]);
}

#[test]
fn recirculation_classifies_again_and_ends() {
    let (dp, _, p) = by_hand(Config { max_depth: 5, ..Config::default() }, 2);
    let set = Action::Set(Arc::new(Rewrite::field(Field::NwDst, 9)));
    let mark = Action::Set(Arc::new(Rewrite::field(Field::PktMark, 0x77)));
    dp.install(flow(p[0].0, 0, &[], vec![set, mark, Action::PopVlan, Action::Recirc(1)])).unwrap();
    dp.install(flow(p[0].0, 1, &[(Field::NwDst, 9), (Field::PktMark, 0x77)], vec![Action::Output(p[1].0)])).unwrap();
    let plain = udp(1, 2, 3, 4);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    p[0].1.give(&tagged);
    dp.poll();
    assert_eq!(p[1].1.take(), [udp(1, 9, 3, 4)]);
    // Without a tag, pop_vlan has nothing to pop, and the packet goes on.
    p[0].1.give(&plain);
    dp.poll();
    assert_eq!(p[1].1.take(), [udp(1, 9, 3, 4)]);

    dp.flush();
    dp.install(flow(p[0].0, 0, &[], vec![Action::Recirc(2)])).unwrap();
    dp.install(flow(p[0].0, 2, &[], vec![Action::Recirc(2)])).unwrap();
    p[0].1.give(&plain);
    dp.poll();
    assert_eq!(dp.stats().workers[0].drops.get(DropReason::RecursionTooDeep), 1);
    assert_eq!(dp.stats().workers[0].recirculated, 2 + 5);
}

/// What becomes of a packet of port 0 that is recirculated, by each of its passes, as many times.
fn storm(dp: &datapath::Datapath, port: datapath::PortNo, copies: usize, last: Action) {
    let actions = |id: u32| [vec![Action::Recirc(id); copies], vec![last.clone()]].concat();
    for id in 0..7 {
        dp.install(flow(port, id, &[], actions(id + 1))).unwrap();
    }
    dp.install(flow(port, 7, &[], vec![last])).unwrap();
}

#[test]
fn one_packet_became_hundreds_of_thousands_by_recirculation() {
    // Copies; packets that were recirculated; why the others were not, and how many.
    let cases = [
        (1, 6, DropReason::RecursionTooDeep, 1),
        (3, 3 + 9 + 27 + 81 + 243 + 729, DropReason::RecursionTooDeep, 2187),
        (8, 8 + 64 + 512, DropReason::RecirculationStorm, 4096),
        (1000, 1000, DropReason::RecirculationStorm, 1_000_000),
        (1025, 0, DropReason::RecirculationStorm, 1025),
    ];
    for (copies, recirculated, reason, dropped) in cases {
        let (dp, _, p) = by_hand(Config { max_depth: 6, ..Config::default() }, 2);
        storm(&dp, p[0].0, copies, Action::Output(p[1].0));
        p[0].1.give(&udp(1, 2, 3, 4));
        (0..100).for_each(|_| assert!(dp.poll() <= 1));
        let worker = &dp.stats().workers[0];
        let drops: Vec<_> = worker.drops.iter().collect();
        assert_eq!((worker.recirculated, drops), (recirculated, vec![(reason, dropped)]), "{copies} copies");
        // Each pass sends one.
        assert_eq!(p[1].1.sent() as u64, 1 + recirculated);
    }
}

/// However many packets storm at once, only so many wait, and other ports have their turns meanwhile.
#[test]
fn a_recirculation_storm_kept_other_ports_waiting() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    storm(&dp, p[0].0, 900, Action::Output(p[2].0));
    dp.install(flow(p[1].0, 0, &[], vec![Action::Output(p[2].0)])).unwrap();
    let frame = udp(1, 2, 3, 4);
    (0..64).for_each(|_| p[0].1.give(&frame));
    let (mut before, mut most) = (0, 0);
    for turn in 0.. {
        // Once the other port is silent, the storm has all of the time.
        let others = usize::from(turn < 50);
        (0..others).for_each(|_| p[1].1.give(&udp(1, 2, 3, 5)));
        dp.poll();
        let sent = p[2].1.take().into_iter().filter(|sent| *sent != frame).count();
        assert_eq!(sent, others, "in turn {turn}");
        let worker = &dp.stats().workers[0];
        most = most.max(worker.recirculated - std::mem::replace(&mut before, worker.recirculated));
        // Those of the first pass that have found no room, and what the others would have become.
        let lost = 64 * 900 - worker.recirculated + 900 * worker.recirculated;
        let drops = worker.drops.iter().collect::<Vec<_>>();
        if drops == [(DropReason::RecirculationStorm, lost)] {
            break;
        }
        assert!(turn < 1000, "the storm does not end: {drops:?}");
    }
    // A slice in one go, and one before more was received.
    assert!(most <= 2 * (256 + 32), "{most} recirculated in one turn");
    assert!((4000..=2 * 8192).contains(&before), "{before} recirculated");
    assert_eq!(p[0].1.queues[0].lock().unwrap().len(), 0);
}

#[test]
fn a_recirculated_miss_is_installed_for_its_recirculation() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let upcall = ToPort::new(p[1].0, Field::UdpSrc, true);
    dp.set_upcall(upcall.clone());
    dp.install(flow(p[0].0, 0, &[], vec![Action::Recirc(8)])).unwrap();
    (0..3).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
    dp.poll();
    assert_eq!((p[1].1.sent(), upcall.misses.load(Ordering::SeqCst)), (3, 1));
    let installed = dp.flows().find(|f| f.key.get(Field::RecircId) == 8).unwrap();
    assert!(installed.mask.is_exact(Field::RecircId) && installed.stats.packets == 2, "not the first");
}

#[test]
fn punts_carry_the_packet_as_it_is_now() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let upcall = ToPort::new(p[1].0, Field::UdpSrc, true);
    dp.set_upcall(upcall.clone());
    let set = Action::Set(Arc::new(Rewrite::field(Field::UdpDst, 99)));
    let punt = packet_in(42);
    dp.install(flow(p[0].0, 0, &[], vec![set, punt, Action::Output(p[1].0)])).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(p[1].1.sent(), 1);
    let punts = upcall.punts.lock().unwrap();
    let (frame, key, cookie) = &punts[0];
    assert_eq!((frame, key.get(Field::UdpDst), *cookie), (&udp(1, 2, 3, 99), 99, 42));
    assert_eq!(key.get(Field::InPortOxm), 1);
}

#[test]
fn packets_can_be_executed() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let metadata = flow(p[0].0, 0, &[], vec![]).key;
    dp.execute(Packet::from_slice(&udp(1, 2, 3, 4)), &metadata, &[Action::Output(p[1].0), Action::Output(p[0].0)]);
    dp.execute(Packet::from_slice(&udp(1, 2, 3, 5)), &metadata, &[Action::Recirc(0)]);
    dp.install(flow(p[0].0, 0, &[(Field::UdpDst, 5)], vec![Action::Output(p[1].0)])).unwrap();
    dp.poll();
    assert_eq!(p[1].1.take(), [udp(1, 2, 3, 4), udp(1, 2, 3, 5)]);
    assert_eq!(p[0].1.take(), [udp(1, 2, 3, 4)]);
}

#[test]
fn every_drop_has_its_reason() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let send = |actions: Vec<Action>, frame: &[u8]| {
        dp.flush();
        dp.reset_stats();
        dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
        p[0].1.give(frame);
        dp.poll();
        let stats = dp.stats();
        let reasons: Vec<_> = stats.workers[0].drops.iter().collect();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        let port = stats.ports.iter().find(|(_, d)| d.total() > 0).map(|(no, _)| no.0);
        (reasons[0].0, port)
    };
    let frame = udp(1, 2, 3, 4);
    let out = Action::Output(p[1].0);
    assert_eq!(send(vec![], &frame), (DropReason::Rule, Some(1)));
    assert_eq!(send(vec![Action::Drop(DropReason::Reflection)], &frame), (DropReason::Reflection, Some(1)));
    assert_eq!(send(vec![Action::Output(datapath::PortNo(77))], &frame), (DropReason::NoSuchPort, Some(1)));
    assert_eq!(send(vec![out.clone()], &[0; 1515]), (DropReason::TooBig, Some(2)));
    let nested = (0..40).fold(out.clone(), |inner, _| Action::Clone(vec![inner]));
    assert_eq!(send(vec![nested], &frame), (DropReason::RecursionTooDeep, Some(1)));
    p[1].1.up.store(false, Ordering::Relaxed);
    dp.refresh_port(p[1].0).unwrap();
    assert_eq!(send(vec![out.clone()], &frame), (DropReason::PortDown, Some(2)));
    p[0].1.up.store(false, Ordering::Relaxed);
    dp.refresh_port(p[0].0).unwrap();
    assert_eq!(send(vec![out], &frame), (DropReason::InPortDown, Some(1)));
}

/// A frame in a buffer of `size` bytes without headroom; the pool has `spare` more of them.
fn scarce(frame: &[u8], size: usize, spare: usize) -> Packet {
    let pool = Pool::new(PoolConfig { chunks: 1 + spare, chunk_size: size, headroom: 0 }).unwrap();
    packet::buffer::heap::packet(frame, 0, 0).duplicate_in(pool.memory()).unwrap()
}

#[test]
fn what_there_is_no_buffer_for_is_dropped_and_counted_once() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let mut frame = udp(1, 2, 3, 4);
    frame.resize(256, 0);
    let (first, second) = (Action::Output(p[1].0), Action::Output(p[2].0));
    let tag = Action::PushVlan { tpid: 0x8100, tci: 7 };
    let label = Action::PushMpls { ethertype: 0x8847, lse: 0x1140 };
    let send = |actions: Vec<Action>, packets: Vec<Packet>| {
        dp.flush();
        let before = dp.account();
        dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
        p[0].1.queues[0].lock().unwrap().extend(packets);
        dp.poll();
        let account = dp.account();
        assert_eq!(account.came(), account.went(), "{account}");
        let no_buffer = account.drops.get(DropReason::NoBuffer) - before.drops.get(DropReason::NoBuffer);
        assert_eq!(account.drops.total() - before.drops.total(), no_buffer, "{account}");
        (no_buffer, p[1].1.take().len(), p[2].1.take().len())
    };
    let both = vec![first.clone(), second.clone()];
    assert_eq!(send(both.clone(), vec![scarce(&frame, 256, 0)]), (1, 0, 1), "the copy is missing, the packet goes on");
    assert_eq!(send(both, vec![scarce(&frame, 256, 1)]), (0, 1, 1));
    let cloned = vec![Action::Clone(vec![tag.clone(), first.clone()]), second.clone()];
    assert_eq!(send(cloned.clone(), vec![scarce(&frame, 256, 0)]), (1, 0, 1));
    assert_eq!(send(cloned, vec![scarce(&frame, 256, 1)]), (1, 0, 1), "the clone's tag finds no buffer");
    let punt = packet_in(1);
    assert_eq!(send(vec![punt, second.clone()], vec![scarce(&frame, 256, 0)]), (1, 0, 1));
    // Of packets that go by the same flow together, those end that have no room.
    let mixed = || vec![scarce(&frame, 512, 0), scarce(&frame, 256, 1), Packet::from_slice(&frame)];
    assert_eq!(send(vec![tag.clone(), first.clone()], mixed()), (1, 2, 0));
    assert_eq!(send(vec![tag.clone(), first.clone(), second], mixed()), (2, 1, 2));
    assert_eq!(send(vec![label, first.clone()], mixed()), (1, 2, 0));
    // Room behind the frame does for as many tags as fit there, and not for more.
    let most = |tags| [vec![tag.clone(); tags], vec![first.clone()]].concat();
    assert_eq!(send(most(4), vec![scarce(&frame, 512, 0)]), (0, 1, 0));
    assert_eq!(send(most(64), vec![scarce(&frame, 512, 0)]), (0, 1, 0));
    assert_eq!(send(most(65), vec![scarce(&frame, 512, 0)]), (1, 0, 0));
}

#[test]
fn tags_do_not_count_for_the_mtu_and_segments_will_be_cut() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let mut tagged = vec![0u8; 1518];
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    p[0].1.give(&tagged);
    let mut gso = Packet::from_slice(&[0; 9000]);
    gso.offload_mut().gso_type = packet::Offload::GSO_TCPV4;
    p[0].1.queues[0].lock().unwrap().push_back(gso);
    dp.poll();
    assert_eq!(p[1].1.sent(), 2);
}

#[test]
fn changed_actions_hold_at_once() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let id = dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    dp.modify(id, vec![Action::Output(p[2].0), Action::Output(p[2].0)]).unwrap();
    dp.set_tag(id, Arc::new(5u32)).unwrap();
    dp.barrier();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!((p[1].1.sent(), p[2].1.sent()), (1, 2));
    let again = dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    assert_eq!((again, dp.flow_count()), (id, 1), "equal key and mask are the same flow");
    let dump = dp.flow(id).unwrap();
    assert_eq!((dump.stats.packets, &*dump.actions), (2, &[Action::Output(p[1].0)][..]));
    dp.remove(id).unwrap();
    assert!(dp.modify(id, vec![]).is_err() && dp.set_tag(id, Arc::new(())).is_err());
    let new = dp.install(flow(p[0].0, 0, &[], vec![])).unwrap();
    assert_ne!(new, id, "identities are not used again");
}

#[test]
fn a_removed_port_gives_back_what_it_had() {
    let config = Config { tx_flush_interval: Duration::from_secs(1), ..Config::default() };
    let (dp, clock, p) = by_hand(config, 3);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let from_1 = dp.install(flow(p[1].0, 0, &[], vec![Action::Output(p[0].0)])).unwrap();
    clock.advance(Duration::from_micros(1));
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(p[1].1.sent(), 0);
    let removed = dp.remove_port(p[1].0).unwrap();
    assert_eq!(removed.iter().map(|f| f.id).collect::<Vec<_>>(), [from_1]);
    assert_eq!(p[1].1.sent(), 1, "what waited was sent");
    assert_eq!(Arc::strong_count(&p[1].1), 1, "nobody holds the port");
    assert!(dp.remove_port(p[1].0).is_err() && dp.port(p[1].0).is_none());
    assert_eq!((dp.ports().len(), dp.rx_assignments().len()), (2, 2));
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(dp.stats().workers[0].drops.get(DropReason::NoSuchPort), 1);
    let again = dp.add_port(p[1].1.clone()).unwrap();
    assert_eq!(again, p[1].0, "a port that comes back has the number that it had");
    assert!(matches!(dp.add_port(p[1].1.clone()), Err(datapath::Error::PortExists(_))));
}

/// A packet that is punted with more tags than an extraction sees through is rewritten behind them all the same.
#[test]
fn what_lies_behind_many_tags_is_rewritten() {
    let tags = |frame: &[u8], count: usize| {
        let tags = [0x81, 0, 0x10, 7].repeat(count);
        [&frame[..12], &tags, &frame[12..]].concat()
    };
    let push = Action::PushVlan { tpid: 0x8100, tci: 0x1007 };
    let rewrite = Action::Set(Arc::new(Rewrite::field(Field::NwSrc, 9)));
    let punt = packet_in(1);
    for between in [
        vec![punt.clone()],
        vec![Action::Hash { algorithm: HashAlgorithm::L4, basis: 1 }],
        vec![Action::Clone(vec![push.clone(), punt])],
    ] {
        let (dp, _, p) = by_hand(Config::default(), 2);
        dp.set_upcall(ToPort::new(p[1].0, Field::NwDst, false));
        let actions = [vec![push.clone()], between, vec![rewrite.clone(), Action::Output(p[1].0)]].concat();
        dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
        p[0].1.give(&tags(&udp(1, 2, 3, 4), 2));
        dp.poll();
        let mut sent = p[1].1.take();
        let sent = Packet::from_slice(&sent.pop().unwrap());
        let expected = tags(&udp(9, 2, 3, 4), 3);
        // Source and the rest of the header, but for the checksums.
        assert_eq!(sent.data()[12 + 12 + 2 + 12..][..8], expected[12 + 12 + 2 + 12..][..8]);
    }
}

/// What comes back from the slow path is charged to its port, which means nothing where no other port has traffic.
#[test]
fn a_lone_port_is_polled_in_every_turn() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    dp.set_upcall(ToPort::new(p[1].0, Field::UdpSrc, true));
    let punt = packet_in(9);
    dp.install(flow(p[0].0, 0, &[(Field::UdpDst, 53)], vec![punt, Action::Output(p[1].0)])).unwrap();
    for n in 0..20 {
        p[0].1.give(&udp(1, 2, n, if n % 4 == 3 { 54 } else { 53 }));
        assert_eq!(dp.poll(), 1);
    }
}

/// Packets of a connection stay in order also where some of a batch miss and others have flows, however they are looked up;
/// and each is counted once, by its flow or by the slow path.
#[test]
fn what_misses_is_not_overtaken_in_its_batch() {
    let mut state = 1u32;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    // One connection, a few, and so many that batches are taken to be mixed.
    for connections in [1, 3, 200] {
        let (dp, _, p) = by_hand(Config::default(), 2);
        let upcall = ToPort::new(p[1].0, Field::NwTtl, true);
        dp.set_upcall(upcall.clone());
        let (mut given, mut gone) = (0u16, 0);
        for _ in 0..100 {
            for _ in 0..=draw(32) {
                let mut frame = udp(1, 2, draw(connections) as u16, 4);
                // Of the few values of which there are flows, and others.
                frame[22] = if draw(8) == 0 { draw(200) as u8 } else { 200 + draw(3) as u8 };
                frame[60..62].copy_from_slice(&given.to_be_bytes());
                p[0].1.give(&frame);
                given += 1;
            }
            dp.poll();
            for id in dp.flows().filter(|_| draw(16) == 0).map(|f| f.id).collect::<Vec<_>>() {
                gone += dp.remove(id).unwrap().stats.packets;
            }
        }
        let sent = p[1].1.take();
        let mut last = std::collections::HashMap::new();
        for frame in &sent {
            let number = u16::from_be_bytes([frame[60], frame[61]]);
            let before = last.insert([frame[34], frame[35]], number);
            assert!(before < Some(number), "{number} behind {before:?} of {connections} connections");
        }
        assert_eq!(sent.len(), usize::from(given));
        // A packet whose flow was installed while it was on its way up is counted by that.
        let of_flows = gone + dp.flows().map(|f| f.stats.packets).sum::<u64>();
        assert_eq!(of_flows + upcall.misses.load(Ordering::SeqCst) as u64, u64::from(given));
    }
}

#[test]
fn flows_that_stay_are_listed_once_while_others_come_and_go() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let install = |n: u32| dp.install(flow(p[0].0, 0, &[(Field::UdpSrc, n.into())], vec![])).unwrap();
    let first: Vec<_> = (0..2000).map(install).collect();
    let (mut next, mut listed, mut gone, mut more) = (Some(0), Vec::new(), Vec::new(), 2000);
    while let Some(from) = next {
        let (flows, to) = dp.flows_from(from);
        assert!(flows.len() <= 256);
        listed.extend(flows.iter().map(|flow| flow.id));
        // Some that were listed, and some that were not, make room for others.
        for id in [first[more as usize % 700], first[1999 - more as usize % 600]] {
            gone.extend(dp.remove(id).map(|flow| flow.id));
        }
        install(more);
        more += 1;
        next = to;
    }
    let times = |id| listed.iter().filter(|&&other| other == id).count();
    assert!(!gone.is_empty() && first.iter().filter(|id| !gone.contains(id)).all(|&id| times(id) == 1));
    assert!(gone.iter().all(|&id| times(id) <= 1));
}

#[test]
fn a_flow_is_found_by_its_key_and_mask() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let specs: Vec<FlowSpec> = (0..600)
        .map(|n| match n % 3 {
            0 => flow(p[0].0, 0, &[(Field::UdpSrc, n)], vec![]),
            1 => flow(p[1].0, 0, &[(Field::UdpSrc, n)], vec![]),
            _ => flow(p[0].0, 7, &[(Field::UdpDst, n), (Field::UdpSrc, n)], vec![]),
        })
        .collect();
    let find = |spec: &FlowSpec| dp.find_flow(&spec.key, (*spec.mask).clone());
    assert!(specs.iter().all(|spec| find(spec).is_none()));
    let copy = |spec: &FlowSpec| FlowSpec {
        key: spec.key.clone(),
        mask: spec.mask.clone(),
        actions: Vec::new(),
        tag: Arc::new(()),
    };
    let ids: Vec<_> = specs.iter().map(|spec| dp.install(copy(spec)).unwrap()).collect();
    assert!(specs.iter().zip(&ids).all(|(spec, id)| find(spec) == Some(*id)));
    // Bits of the key outside of the mask are of no account; those of the mask are.
    let mut other = copy(&specs[0]);
    other.key.set(Field::UdpDst, 99);
    assert_eq!(find(&other), Some(ids[0]));
    other.mask.set_exact(Field::UdpDst);
    assert_eq!(find(&other), None);
    dp.remove(ids[0]);
    assert_eq!(find(&specs[0]), None);
}

/// One packet in four is sent up, wherever it stands in its run, with its key, though the flow does not need one.
#[test]
fn some_packets_are_sampled_and_all_go_on() {
    let (dp, clock, p) = by_hand(Config::default(), 2);
    let upcall = ToPort::new(p[1].0, Field::UdpSrc, true);
    dp.set_upcall(upcall.clone());
    let sample = Action::Sample { probability: u32::MAX / 4, actions: vec![packet_in(7)] };
    dp.install(flow(p[0].0, 0, &[], vec![sample, Action::PopVlan, Action::Output(p[1].0)])).unwrap();
    let frame = udp(1, 2, 3, 4);
    for _ in 0..200 {
        (0..20).for_each(|_| p[0].1.give(&frame));
        dp.poll();
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(p[1].1.sent(), 4000);
    let punts = upcall.punts.lock().unwrap();
    assert!((860..1140).contains(&punts.len()), "{}", punts.len());
    assert!(punts.iter().all(|(data, key, context)| {
        let common = key.common();
        *context == 7 && *data == frame && common.tp_dst.get() == 4 && common.nw_proto == 17
    }));
}
