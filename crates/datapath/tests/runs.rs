//! What a program does to the packets of a run is what it does to each of them alone, in order for each output.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use common::{MemPort, by_hand, flow, udp};
use datapath::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::{Action, Config, Datapath, DropReason, HashAlgorithm, PortNo, Rewrite};
use packet::{Field, Packet};
use proptest::prelude::*;

const PORTS: usize = 4;

/// Actions of all kinds but punts, which the tests of misses have.
fn actions(ports: Vec<PortNo>) -> impl Strategy<Value = Vec<Action>> {
    let set = |field: Field, values: Vec<u128>| {
        prop::sample::select(values).prop_map(move |value| Action::Set(Arc::new(Rewrite::field(field, value))))
    };
    let output = || prop::sample::select(ports[..IN].to_vec()).prop_map(Action::Output);
    let rewrite = prop_oneof![
        3 => (prop::sample::select(vec![0x8100u16, 0x88a8]), 1u16..0xfff)
            .prop_map(|(tpid, tci)| Action::PushVlan { tpid, tci }),
        2 => Just(Action::PopVlan),
        1 => set(Field::DlSrc, vec![1, 0xfeff_ffff_ffff]),
        1 => set(Field::VlanTci, vec![0x1007, 0xf008]),
        1 => set(Field::NwTtl, vec![1, 63]),
        1 => set(Field::NwDst, vec![7, 0xffff_ffff]),
        1 => set(Field::UdpDst, vec![5, 6]),
    ]
    .boxed();
    let simple = prop_oneof![
        6 => output(),
        8 => rewrite.clone(),
        1 => set(Field::PktMark, vec![0, 9]),
        1 => Just(Action::PushMpls { ethertype: 0x8847, lse: 0x1140 }),
        1 => Just(Action::PopMpls { ethertype: 0x0800 }),
        1 => Just(Action::Hash { algorithm: HashAlgorithm::L4, basis: 3 }),
        1 => Just(Action::Recirc(1)),
        1 => prop::sample::select(vec![20u32, 62, 200]).prop_map(|max_len| Action::Truncate { max_len }),
        1 => Just(Action::Drop(DropReason::Rule)),
    ];
    let nested = simple.prop_recursive(2, 8, 4, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            list().prop_map(Action::Clone),
            list().prop_map(|actions| Action::Sample { probability: u32::MAX, actions }),
            (list(), list()).prop_map(|(longer, others)| Action::CheckLength { size: 66, longer, others }),
        ]
    });
    let rewrites_and_sends = (prop::collection::vec(rewrite, 1..5), output()).prop_map(|(mut list, last)| {
        list.push(last);
        list
    });
    let rewrites_and_sends = rewrites_and_sends.boxed();
    let by_length = (rewrites_and_sends.clone(), rewrites_and_sends.clone())
        .prop_map(|(longer, others)| vec![Action::CheckLength { size: 66, longer, others }]);
    let all_kinds = prop::collection::vec(nested, 1..7).boxed();
    let floods = prop::collection::vec(output(), 2..8).boxed();
    prop_oneof![4 => all_kinds, 2 => rewrites_and_sends, 1 => by_length.boxed(), 2 => floods]
}

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Of few kinds, so that there are runs; each frame has a number in its payload.
    let frame =
        (0u32..2, 0usize..3, 0usize..6, prop::sample::select(vec![64usize, 70])).prop_map(|(src, tags, odd, len)| {
            let mut f = udp(src, 2, 3, 4);
            match odd {
                0 => f[20] = 0x20,                             // a fragment
                1 => f[12..14].copy_from_slice(&[0x88, 0xb5]), // not IP
                _ => {}
            }
            for tag in 0..tags {
                f.splice(12..12, [0x81, 0x00, 0x60, tag as u8 + 1]);
            }
            f.resize(len + 4 * tags, 0);
            f
        });
    prop::collection::vec((frame, 1usize..12), 1..8).prop_map(|runs| {
        let all = runs.into_iter().flat_map(|(frame, times)| vec![frame; times]);
        let number = |(n, mut frame): (usize, Vec<u8>)| {
            *frame.last_mut().unwrap() = n as u8;
            frame
        };
        all.enumerate().map(number).collect()
    })
}

type Left = (Vec<Vec<Vec<u8>>>, Vec<u64>);

/// The port that frames come in at: not the first, whose number is that of a key without any.
const IN: usize = 3;

/// What leaves each port, and the drops. The frames come in batches, and are of one flow or of two; or the actions are
/// done with each by itself, on a key of its own. The ports in `down` are down.
fn left_with(actions: &[Action], way: Way, frames: &[Vec<u8>], down: &[usize]) -> Left {
    let (dp, _, p) = by_hand(Config::default(), PORTS);
    take_down(&dp, &p, down);
    let ports: Vec<PortNo> = p.iter().map(|port| port.0).collect();
    let actions = renumbered(actions, &ports);
    dp.install(flow(ports[IN], 1, &[], vec![Action::Output(ports[0])])).unwrap();
    match way {
        Way::Alone => {
            let metadata = flow(ports[IN], 0, &[], vec![]).key;
            frames.iter().for_each(|frame| dp.execute(Packet::from_slice(frame), &metadata, &actions));
        }
        Way::OneFlow => drop(dp.install(flow(ports[IN], 0, &[], actions)).unwrap()),
        Way::TwoFlows => (0..2).for_each(|src| {
            dp.install(flow(ports[IN], 0, &[(Field::NwSrc, src)], actions.clone())).unwrap();
        }),
    }
    if way != Way::Alone {
        frames.iter().for_each(|frame| p[IN].1.give(frame));
    }
    dp.poll();
    while dp.poll() > 0 {}
    let drops = &dp.stats().workers[0].drops;
    let sent = p.iter().map(|port| port.1.take()).collect();
    (sent, DropReason::ALL.iter().map(|&reason| drops.get(reason)).collect())
}

fn left(actions: &[Action], way: Way, frames: &[Vec<u8>]) -> Left {
    left_with(actions, way, frames, &[])
}

fn take_down(dp: &Datapath, ports: &[(PortNo, Arc<MemPort>)], down: &[usize]) {
    for &number in down {
        ports[number].1.up.store(false, Relaxed);
        dp.refresh_port(ports[number].0).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Alone,
    OneFlow,
    TwoFlows,
}

/// Sequences of copies of a program's outputs to one port may interleave in another way; each is in order.
fn sorted((mut sent, drops): Left) -> Left {
    let number = |frame: &Vec<u8>| frame.last().copied();
    // Stable: what is left of a packet stays in order.
    sent.iter_mut().for_each(|frames| frames.sort_by_key(number));
    (sent, drops)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn packets_of_a_run_fare_as_they_do_alone(
        actions in actions((0..PORTS as u32).map(PortNo).collect()),
        by_source in any::<bool>(),
        frames in frames(),
        down in prop::sample::subsequence((0..IN).collect::<Vec<_>>(), 0..=IN),
    ) {
        let alone = left_with(&actions, Way::Alone, &frames, &down);
        let together = left_with(&actions, if by_source { Way::TwoFlows } else { Way::OneFlow }, &frames, &down);
        // A frame that was cut short has lost its number.
        let cut = |actions: &[Action]| format!("{actions:?}").contains("Truncate");
        if cut(&actions) {
            let mut lengths = [alone, together].map(|(sent, drops)| {
                (sent.into_iter().map(|mut f| { f.sort(); f }).collect::<Vec<_>>(), drops)
            });
            let second = std::mem::take(&mut lengths[1]);
            prop_assert_eq!(std::mem::take(&mut lengths[0]), second);
        } else {
            prop_assert_eq!(sorted(alone), sorted(together));
        }
    }
}

fn renumbered(actions: &[Action], ports: &[PortNo]) -> Vec<Action> {
    let list = |actions: &[Action]| renumbered(actions, ports);
    let one = |action: &Action| match action {
        Action::Output(port) => Action::Output(ports[port.0 as usize]),
        Action::Clone(inner) => Action::Clone(list(inner)),
        Action::Sample { probability, actions } => Action::Sample { probability: *probability, actions: list(actions) },
        Action::CheckLength { size, longer, others } => {
            Action::CheckLength { size: *size, longer: list(longer), others: list(others) }
        }
        other => other.clone(),
    };
    actions.iter().map(one).collect()
}

/// What is done with one packet of a run behind a check of its length does not move the headers of the next.
#[test]
fn each_packet_of_a_run_has_its_headers_where_they_are() {
    let ttl = Action::Set(Arc::new(Rewrite::field(Field::NwTtl, 9)));
    let longer = vec![Action::PushVlan { tpid: 0x8100, tci: 1 }, ttl, Action::Output(PortNo(1))];
    let check = [Action::CheckLength { size: 50, longer, others: vec![] }];
    let frame = udp(1, 2, 3, 4);
    let (sent, _) = left(&check, Way::OneFlow, &vec![frame.clone(); 5]);
    let mut expected = [&frame[..12], &[0x81, 0, 0, 1], &frame[12..]].concat();
    expected[26] = 9;
    assert_eq!(sent[1].len(), 5);
    for sent in &sent[1] {
        // But for the checksum.
        assert_eq!((&sent[..28], &sent[30..]), (&expected[..28], &expected[30..]));
    }
}

/// With one output to each port, the order of a flow's packets is kept exactly, also where a packet among
/// them cannot be rewritten: it goes on as it is.
#[test]
fn a_run_leaves_in_order_with_what_cannot_be_rewritten() {
    let untagged = udp(1, 2, 3, 4);
    let tagged = [&untagged[..12], &[0x81, 0, 0, 5], &untagged[12..]].concat();
    let frames: Vec<Vec<u8>> = (0..32u8)
        .map(|n| {
            let mut frame = if n % 5 == 4 { untagged.clone() } else { tagged.clone() };
            *frame.last_mut().unwrap() = n;
            frame
        })
        .collect();
    let [one, two] = [Action::Output(PortNo(1)), Action::Output(PortNo(2))];
    let (sent, drops) = left(&[Action::PopVlan, one.clone()], Way::OneFlow, &frames);
    let numbers: Vec<u8> = sent[1].iter().map(|frame| frame[frame.len() - 1]).collect();
    assert_eq!(numbers, (0..32).collect::<Vec<u8>>());
    assert!(sent[1].iter().all(|frame| frame[12..14] == [8, 0]));
    assert_eq!(drops.iter().sum::<u64>(), 0);
    // With a copy in between, the same for both ports.
    let (sent, _) = left(&[two, Action::PopVlan, one], Way::OneFlow, &frames);
    assert_eq!(sent[2], frames);
    assert_eq!(sent[1].iter().map(|frame| frame[frame.len() - 1]).collect::<Vec<u8>>(), numbers);
}

/// Copies of a flood do not overtake packets of other flows of their batch, nor do these overtake them, whichever ports
/// are down.
#[test]
fn floods_leave_in_order_with_other_flows() {
    for down in [&[][..], &[0], &[2], &[0, 2]] {
        let (dp, _, ports) = by_hand(Config::default(), PORTS);
        take_down(&dp, &ports, down);
        let output = |number: usize| Action::Output(ports[number].0);
        let push = Action::PushVlan { tpid: 0x8100, tci: 1 };
        let of_flows = [
            vec![output(0), output(1)],
            vec![output(1), output(2)],
            vec![output(1)],
            vec![push, output(1)],
            vec![output(0), output(1), output(2)],
        ];
        for (source, actions) in of_flows.into_iter().enumerate() {
            dp.install(flow(ports[IN].0, 0, &[(Field::NwSrc, source as u128)], actions)).unwrap();
        }
        // In a batch of its own, between others, and in runs; from the megaflow table first, then from the cache.
        let mut expected = Vec::new();
        for n in 0..8 * 32u32 {
            let source = if n < 64 { 0 } else { n * n / 7 % 5 };
            let mut frame = udp(source, 2, 3, 4);
            *frame.last_mut().unwrap() = n as u8;
            ports[IN].1.give(&frame);
            expected.push(n as u8);
        }
        while dp.poll() > 0 {}
        let sent = ports[1].1.take();
        assert_eq!(sent.iter().map(|frame| frame[frame.len() - 1]).collect::<Vec<_>>(), expected, "down: {down:?}");
        let account = dp.account();
        assert_eq!(account.came(), account.went(), "{account}");
        let copies = account.sent + dp.stats().workers[0].drops.get(DropReason::PortDown);
        assert!(copies > expected.len() as u64 && (down.len() < 2) == (account.sent > expected.len() as u64));
    }
}

/// A run is metered as a whole: what conforms goes on in order, with its checksum right where it was remarked.
#[test]
fn a_run_is_metered_as_its_packets_are_one_by_one() {
    let band = |rate, burst, kind| MeterBand { rate, burst, kind };
    let bands = [band(5, 5, MeterBandKind::Remark(1)), band(20, 20, MeterBandKind::Drop)];
    let push = || Action::PushVlan { tpid: 0x8100, tci: 1 };
    for (frames_at_once, tagged) in [(1, false), (32, false), (1, true), (32, true)] {
        let (dp, _, ports) = by_hand(Config::default(), 2);
        let numbers = Arc::<MeterNumbers>::default();
        let meter = numbers.add(MeterUnit::Packets, &bands, dp.now()).unwrap();
        let mut actions = vec![Action::Meter(meter.clone()), Action::Output(ports[1].0)];
        if tagged {
            actions.insert(0, push());
        }
        dp.install(flow(ports[0].0, 0, &[], actions)).unwrap();
        // AF11.
        let mut frame = udp(1, 2, 3, 4);
        frame[15] = 10 << 2 | 1;
        frame[24..26].copy_from_slice(&[0; 2]);
        let sum = packet::wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        for number in 0..32u8 {
            frame[63] = number;
            ports[0].1.give(&frame);
            if (number + 1) % frames_at_once == 0 {
                while dp.poll() > 0 {}
            }
        }
        let sent = ports[1].1.take();
        assert_eq!(sent.iter().map(|frame| *frame.last().unwrap()).collect::<Vec<_>>(), (0..20).collect::<Vec<u8>>());
        let l3 = if tagged { 18 } else { 14 };
        let tos: Vec<u8> = sent.iter().map(|frame| frame[l3 + 1]).collect();
        assert_eq!(tos, [[10 << 2 | 1; 5].as_slice(), &[12 << 2 | 1; 15]].concat());
        assert!(sent.iter().all(|frame| packet::wire::checksum::checksum(&frame[l3..l3 + 20]) == 0));
        assert_eq!(dp.stats().workers[0].drops.get(DropReason::Meter), 12);
        let counters = meter.counters(dp.now());
        assert_eq!((counters.packets, counters.bands[0].packets, counters.bands[1].packets), (32, 15, 12));
        let account = dp.account();
        assert_eq!(account.came(), account.went(), "{account}");
        // A meter outlives its flows' packets, and its number is free when they are gone.
        assert_eq!((meter.number(), Arc::strong_count(&meter)), (0, 3));
    }
}
