//! Fused connections against the long way: whatever packets come, a datapath with caches does what one without does, to
//! packets, counters and connections.

#[path = "../common/mod.rs"]
mod common;
mod packets;
mod rules;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ByHand, by_hand};
use conntrack::table::slot::Contents;
use datapath::{Action, Config, DropReason, Miss, Punt, Upcall, Verdict};
use packet::flow::{BlockId, Blocks};
use packet::wire::build;
use packet::{Field, Key, Packet, Time};
use packets::{Ends, Event, event, tunnelled};
use proptest::prelude::*;
use rules::{Before, Early, Rules, flows_for_none, install, rules, tunnel};

/// A slow path that keeps what it gets, and its metadata.
#[derive(Default)]
struct Reports(Mutex<Vec<(Vec<u8>, String)>>);

impl Reports {
    /// What came since then, in no order, as copies have none.
    fn take(&self) -> Vec<(Vec<u8>, String)> {
        let mut reports = std::mem::take(&mut *self.0.lock().unwrap());
        reports.sort();
        reports
    }
}

impl Upcall for Reports {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        misses.iter_mut().for_each(|miss| miss.verdict = Verdict::Drop(DropReason::Rule));
    }

    fn punt(&self, packet: &Packet, key: &Key, _: &Punt, _: Time) {
        let mut key = key.clone();
        // Collectors are not told of the rest.
        key.keep(Blocks::COMMON.with(BlockId::L3).with(BlockId::Tunnel).with(BlockId::TunMeta0));
        [Field::RecircId, Field::DpHash].into_iter().for_each(|field| key.set(field, 0));
        self.0.lock().unwrap().push((packet.data().to_vec(), format!("{key:?}")));
    }
}

/// All connections, in an order of their own.
fn connections(switch: &ByHand) -> Vec<Contents> {
    let (mut cursor, mut all) = (0, Vec::new());
    while switch.0.conntrack().tracker.table.dump(&mut cursor, 100, |_, contents| all.push(*contents)) {}
    all.sort_by_key(|contents| (contents.orig, contents.reply));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_short_way_does_what_the_long_way_does(
        rules in rules(),
        events in prop::collection::vec(event(), 1..120),
        disturb in prop::collection::vec((0..120usize, 0..9u8), 0..6),
    ) {
        let config = |caches| Config { exact_one_in: caches, ..Config::default() };
        let (short, long) = (by_hand(config(1), 3), by_hand(config(0), 3));
        let ids = [install(&short, rules), install(&long, rules)];
        let reports = [&short, &long].map(|switch| {
            let reports = Arc::<Reports>::default();
            switch.0.set_upcall(reports.clone());
            reports
        });
        let mut ends = Ends::default();
        let mut others = [Vec::new(), Vec::new()];
        for (n, event) in events.iter().enumerate() {
            let mut frame = event.frame(&mut ends, rules.is_public());
            let len = frame.len();
            if rules.from_tunnel {
                frame = tunnelled(&frame, event.reply, event.end);
            }
            let port = usize::from(event.reply);
            let mut sent = Vec::new();
            for ((switch, ids), others) in [&short, &long].into_iter().zip(&ids).zip(&mut others) {
                let (dp, clock, p) = switch;
                clock.advance(Duration::from_millis(100 * u64::from(event.after)));
                for (_, what) in disturb.iter().filter(|(at, _)| *at == n) {
                    let table = &dp.conntrack().tracker.table;
                    match what {
                        // Somebody changes marks, removes a connection, or changes what a flow does.
                        0 => for contents in connections(switch) {
                            let found = table.find(&contents.orig, dp.now());
                            found.and_then(|found| table.mark(found.connection, Some((9, 0xf)), None));
                        },
                        1 => if let Some(contents) = connections(switch).first() {
                            table.find(&contents.orig, dp.now()).map(|found| table.remove(found.connection));
                        },
                        2 => dp.modify(ids[2], vec![Action::Output(p[2].0)]).unwrap(),
                        // In a form that cannot be done so shortly.
                        3 => {
                            let output = vec![tunnel(p[1].0), Action::Output(p[2].0)];
                            let list = Action::CheckLength { size: 60, longer: output.clone(), others: output };
                            dp.modify(ids[2], vec![list]).unwrap();
                        }
                        // Flows come that are for none of these packets, and have others look at more; and go.
                        4 => others.extend(flows_for_none(switch, rules, n)),
                        5 => drop(dp.remove_all(&std::mem::take(others))),
                        6 => dp.conntrack().set_fusing(n % 2 == 0),
                        7 => {
                            let spec = dp.flow(ids[1]).unwrap();
                            dp.modify(ids[1], spec.actions.to_vec()).unwrap();
                        }
                        _ => dp.conntrack().tracker.set_liberal(true),
                    }
                }
                for _ in 0..event.repeated {
                    let mut packet = Packet::from_slice(&frame);
                    *packet.offload_mut() = event.offload(frame.len() - len);
                    p[port].1.queues[0].lock().unwrap().push_back(packet);
                }
                while dp.poll() > 0 {}
                // Copies of the same packets by different flows have no order.
                let mut copies = p[2].1.take();
                copies.sort();
                sent.push([p[0].1.take(), p[1].1.take(), copies]);
            }
            prop_assert_eq!(&sent[0], &sent[1], "packet {}: {:?}", n, event);
            prop_assert_eq!(reports[0].take(), reports[1].take(), "after packet {}: {:?}", n, event);
            prop_assert_eq!(connections(&short), connections(&long), "after packet {}: {:?}", n, event);
        }
        for (a, b) in ids[0].iter().zip(&ids[1]) {
            prop_assert_eq!(short.0.flow_stats(*a), long.0.flow_stats(*b));
        }
    }
}

/// Packets of an established connection are not classified twice.
#[test]
fn established_packets_take_the_short_way() {
    let cases = [(false, false, false), (true, false, false), (true, true, false), (false, true, true)];
    let ways =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)];
    let all = cases.into_iter().flat_map(|case| ways.map(|way| (case, way)));
    let befores = [Before::Nothing, Before::Copy, Before::Mirror, Before::Meter, Before::Tag, Before::Report];
    let all = all.flat_map(|case| befores.map(|before| (case, before)));
    for (((nat, tcp, v6), (tunnel, from_tunnel, second)), before) in all {
        let switch = by_hand(Config::default(), 3);
        let rules = Rules {
            nat,
            zone: 1,
            mark: true,
            rewrites: true,
            tunnel,
            from_tunnel,
            ends: from_tunnel,
            second,
            before,
            ..Rules::default()
        };
        install(&switch, rules);
        let (dp, _, p) = &switch;
        let mut ends = Ends::default();
        let mut give = |reply: bool, flags: u16, count: usize| {
            let tcp = tcp.then_some((flags, 0));
            let event = Event { client: 0, reply, tcp, v6, data: 3, ..Event::default() };
            for _ in 0..count {
                let frame = event.frame(&mut ends, nat);
                let frame = if from_tunnel { tunnelled(&frame, reply, 0) } else { frame };
                p[usize::from(reply)].1.give(&frame);
                while dp.poll() > 0 {}
            }
        };
        // To leave a tunnel is a pass.
        let passes = u64::from(from_tunnel);
        give(false, 0x02, 1);
        give(true, 0x12, 1);
        for _ in 0..2 {
            give(false, 0x10, 2);
            give(true, 0x10, 2);
        }
        let (so_far, copies) = (dp.stats().workers[0].recirculated, p[2].1.sent());
        give(false, 0x10, 20);
        give(true, 0x10, 20);
        let after = dp.stats().workers[0].recirculated;
        assert_eq!(after, so_far + 40 * passes, "nat {nat}, tcp {tcp}, v6 {v6}, {rules:?}");
        let copied = matches!(before, Before::Copy | Before::Mirror | Before::Tag);
        assert_eq!(p[2].1.sent(), copies + if copied { 40 } else { 0 }, "{rules:?}");
        dp.conntrack().set_fusing(false);
        give(false, 0x10, 20);
        assert_eq!(dp.stats().workers[0].recirculated, after + 20 * (1 + passes + u64::from(second)), "switched off");
    }
}

/// Whatever else is done with them before they are tracked, and in between.
#[test]
fn what_comes_before_tracking_is_done_on_the_short_way() {
    let cases = [(false, false), (true, true)];
    let ways =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)];
    let all = cases.into_iter().flat_map(|case| ways.map(|way| (case, way)));
    let earlies =
        Early::ALL.into_iter().flat_map(|early| [(early, Early::Nothing), (Early::Nothing, early), (early, early)]);
    let all = all.flat_map(|case| earlies.clone().map(move |early| (case, early)));
    for (((nat, tcp), (from_tunnel, second, hash)), (first, again)) in all {
        // On the short way it is not known what lies behind a second tag, nor which packets are remarked.
        let again_twice = second && hash;
        // Nobody answers another address.
        if [first, again].iter().any(|early| matches!(early, Early::Remark | Early::Address))
            || matches!((first, again), (Early::Push, Early::Push))
            || again_twice && matches!(again, Early::Push)
        {
            continue;
        }
        let switch = by_hand(Config::default(), 3);
        let rules = Rules { nat, zone: 1, rewrites: true, from_tunnel, second, hash, first, again, ..Rules::default() };
        install(&switch, rules);
        let (dp, clock, p) = &switch;
        let mut ends = Ends::default();
        let mut give = |reply: bool, flags: u16, count: usize| {
            let tcp = tcp.then_some((flags, 0));
            let event = Event { client: 0, reply, tcp, data: 3, ..Event::default() };
            for _ in 0..count {
                clock.advance(Duration::from_millis(200));
                let frame = event.frame(&mut ends, nat);
                let frame = if from_tunnel { tunnelled(&frame, reply, 0) } else { frame };
                p[usize::from(reply)].1.give(&frame);
                while dp.poll() > 0 {}
            }
        };
        give(false, 0x02, 1);
        give(true, 0x12, 1);
        for _ in 0..2 {
            give(false, 0x10, 2);
            give(true, 0x10, 2);
        }
        let passes = u64::from(from_tunnel);
        let so_far = (dp.stats().workers[0].recirculated, p[0].1.sent() + p[1].1.sent());
        give(false, 0x10, 20);
        give(true, 0x10, 20);
        let after = (dp.stats().workers[0].recirculated, p[0].1.sent() + p[1].1.sent());
        assert_eq!(after.0, so_far.0 + 40 * passes, "nat {nat}, tcp {tcp}, {rules:?}");
        assert!(hash || after.1 == so_far.1 + 40, "nat {nat}, tcp {tcp}, {rules:?}");
    }
}

/// Neither do those of a connection that nobody answers, though each of them is committed.
#[test]
fn unanswered_packets_take_the_short_way() {
    for (tunnel, second) in [(false, false), (true, false), (false, true), (true, true)] {
        let switch = by_hand(Config::default(), 3);
        install(&switch, Rules { nat: true, rewrites: tunnel, tunnel, second, ..Rules::default() });
        let (dp, _, p) = &switch;
        let event = Event { client: 1, data: 3, ..Event::default() };
        let give = |count: usize| {
            for _ in 0..count {
                p[0].1.give(&event.frame(&mut Ends::default(), true));
                dp.poll();
            }
        };
        give(4);
        let before = dp.stats().workers[0].recirculated;
        give(20);
        assert_eq!(
            (dp.stats().workers[0].recirculated, p[1].1.sent()),
            (before, 24),
            "tunnel {tunnel}, second {second}"
        );
    }
}

/// One packet of a batch goes the long way, for its window is larger than any before: those behind it of the same connection
/// follow, those of others need not.
#[test]
fn nothing_overtakes_a_packet_that_goes_the_long_way() {
    let switch = by_hand(Config::default(), 3);
    let rules = Rules { zone: 1, rewrites: true, ..Rules::default() };
    install(&switch, rules);
    let (dp, _, p) = &switch;
    let mut ends = Ends::default();
    let mut frame = |client, reply, flags, data| {
        let tcp = Some((flags, 0));
        Event { client, reply, tcp, data, ..Event::default() }.frame(&mut ends, false)
    };
    for (reply, flags) in [(false, 0x02), (true, 0x12), (false, 0x10), (false, 0x10), (false, 0x10)] {
        for client in [0, 1] {
            p[usize::from(reply)].1.give(&frame(client, reply, flags, 0));
            dp.poll();
        }
    }
    p[1].1.take();
    let before = dp.stats().workers[0].recirculated;
    let given: Vec<_> = [(0, 1), (0, 2), (0, 3), (1, 4), (0, 5), (0, 6)]
        .into_iter()
        .map(|(client, data)| {
            let mut frame = frame(client, false, 0x10, data);
            if data == 2 {
                let [window, sum] = [48, 50].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
                frame[48..50].copy_from_slice(&(window + 1).to_be_bytes());
                frame[50..52].copy_from_slice(&(sum - 1).to_be_bytes());
            }
            frame
        })
        .collect();
    given.iter().for_each(|frame| p[0].1.give(frame));
    dp.poll();
    let of = |client: u8, frames: &[Vec<u8>]| -> Vec<u8> {
        let port = 1000 + u16::from(client);
        // The last byte of the IP header's length tells them apart.
        frames.iter().filter(|frame| frame[34..36] == port.to_be_bytes()).map(|frame| frame[17]).collect()
    };
    let sent = p[1].1.take();
    assert_eq!((sent.len(), of(0, &sent), of(1, &sent)), (6, of(0, &given), of(1, &given)));
    assert_eq!(dp.stats().workers[0].recirculated, before + 4, "one, and three behind it");
}

/// Also frames whose length does not fit where those of others do, when a tag is removed.
#[test]
fn lengths_of_all_sizes_are_followed() {
    let switch = by_hand(Config::default(), 3);
    install(&switch, Rules { zone: 1, first: Early::Pop, ..Rules::default() });
    let (dp, _, p) = &switch;
    let give = |len: usize, reply: bool| {
        let (from, to) = if reply { (80, 1000) } else { (1000, 80) };
        let addresses = [[10, 0, 0, 1].into(), [192, 0, 2, 1].into()];
        let [src, dst] = if reply { [addresses[1], addresses[0]] } else { addresses };
        let datagram = build::udp(from, to, &vec![7; len - 18 - 20 - 8]);
        let datagram = build::Ipv4 { src, dst, proto: 17, ..Default::default() }.packet(datagram);
        p[usize::from(reply)].1.give(&build::ethernet([2; 6], [4; 6], &[(0x8100, 1)], 0x0800, &datagram));
        dp.poll();
    };
    (0..3).for_each(|_| [false, true].into_iter().for_each(|reply| give(100, reply)));
    let before = dp.stats().workers[0].recirculated;
    p[1].1.take();
    let lengths = [64, 100, 1518, 32_767, 32_768, 32_771, 32_772, 60_000];
    lengths.into_iter().for_each(|len| give(len, false));
    assert_eq!(dp.stats().workers[0].recirculated, before);
    // The port does not take the others.
    assert_eq!(p[1].1.take().iter().map(Vec::len).collect::<Vec<_>>(), [60, 96, 1514]);
}
