//! Packets that pass because their connection is remembered leave the same table, and get the same verdicts, as packets that are
//! tracked, whatever comes in between.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use conntrack::headers::{Headers, Upper};
use conntrack::nat::{Choice, Nat};
use conntrack::protocol::tcp::Segment;
use conntrack::table::remembered::{Moment, Remembered};
use conntrack::table::slot::Contents;
use conntrack::tracker::{Metadata, Request, Tracker, Translate};
use conntrack::tuple::{Side, Tuple};
use conntrack::{Verdict, timeout};
use packet::Time;

#[derive(Clone, Debug)]
enum Step {
    Packet {
        flow: u8,
        reply: bool,
        flags: u16,
        skip: u32,
        window: u16,
        len: u32,
        mark: Option<u32>,
    },
    /// Quarters of a second.
    Wait(u64),
    Expire,
    Remove(u8),
    Liberal(bool),
    Policy(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    const ACK: u16 = 0x10;
    let flags = prop_oneof![20 => Just(ACK), 2 => Just(0x18u16), 1 => Just(0x11u16), 1 => Just(2u16), 1 => Just(4u16)];
    let window = prop_oneof![10 => Just(1000u16), 1 => 0u16..3000];
    let len = prop_oneof![3 => Just(0u32), 3 => 0u32..500, 1 => 0u32..3000];
    let skip = prop_oneof![20 => Just(0u32), 1 => 0u32..100_000];
    let mark = proptest::option::weighted(0.03, 0u32..3);
    let packet = (0u8..6, any::<bool>(), flags, skip, window, len, mark);
    let packet = packet.prop_map(|(flow, reply, flags, skip, window, len, mark)| Step::Packet {
        flow,
        reply,
        flags,
        skip,
        window,
        len,
        mark,
    });
    let step = prop_oneof![
        60 => packet,
        10 => prop_oneof![5 => 0u64..3, 1 => 0u64..160].prop_map(Step::Wait),
        1 => Just(Step::Expire),
        1 => (0u8..6).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(Step::Liberal),
        1 => prop_oneof![Just(30u32), 5u32..100].prop_map(Step::Policy),
    ];
    proptest::collection::vec(step, 0..400)
}

/// Two of TCP, two of UDP, one of ICMP, and one of TCP over IPv6. The odd ones are translated.
fn tuple(flow: u8) -> Tuple {
    let v4 = |a: u8, proto, ports| Tuple::new([10, 0, 0, a].into(), [10, 9, 9, 9].into(), proto, ports, 0);
    match flow {
        0 | 1 => v4(flow, 6, (1000, 80)),
        2 | 3 => v4(flow, 17, (1000, 53)),
        4 => v4(flow, 1, (7, 8)),
        _ => Tuple::new([0xfc; 16].into(), [0xfd; 16].into(), 6, (1000, 80), 0),
    }
    .expect("a tuple")
}

fn translate(flow: u8) -> Option<Translate> {
    let address = [203, 0, 113, 1].into();
    let nat = Nat {
        side: Side::Src,
        addresses: Some((address, address)),
        ports: None,
        choice: Choice::Hash,
        persistent: false,
    };
    (flow % 2 == 1 && flow < 5).then_some(Translate::New(nat))
}

/// All connections, with the seconds that they have left.
fn all(tracker: &Tracker, now: Time) -> Vec<(Contents, Option<u32>)> {
    let mut all = Vec::new();
    tracker.table.dump(&mut 0, usize::MAX, |connection, contents| {
        all.push((*contents, tracker.table.seconds_left(connection, now)));
    });
    all
}

/// What a packet of a direction that is remembered gets.
fn verdict_without_connection(verdict: &Verdict) -> Verdict {
    Verdict { connection: None, ..*verdict }
}

proptest! {
    #[test]
    fn passing_is_tracking(steps in steps()) {
        // The one tracks every packet, the other those that do not pass.
        let (tracked, passed) = (Tracker::new(100, [1, 2]), Tracker::new(100, [1, 2]));
        let mut remembered: HashMap<Tuple, (Remembered, Verdict)> = HashMap::new();
        let mut next = [[0u32; 2]; 6];
        let (mut now, mut liberal) = (Time(1_000_000_000), false);
        for step in steps {
            match step {
                Step::Packet { flow, reply, flags, skip, window, len, mark } => {
                    let mut packet_tuple = tuple(flow);
                    if reply {
                        packet_tuple = match tracked.table.find(&packet_tuple, now) {
                            Some(found) => tracked.table.read(found.connection).unwrap().0.reply,
                            None => packet_tuple.reverse(),
                        };
                    }
                    let [own, other] = [usize::from(reply), usize::from(!reply)];
                    let segment = Segment {
                        seq: next[usize::from(flow)][own].wrapping_add(skip),
                        ack: next[usize::from(flow)][other],
                        flags,
                        window,
                        len,
                        scale: Some(1),
                    };
                    let upper = if packet_tuple.proto() == 6 { Upper::Tcp(segment) } else { Upper::Other };
                    let packet = Headers { tuple: packet_tuple, upper };
                    let nat = translate(flow);
                    let mark = mark.map(|mark| (mark, u32::MAX));
                    let request = Request { commit: true, nat, mark, ..Request::default() };
                    let expected = tracked.track(&packet, &Metadata::default(), &request, now);
                    if expected.invalid.is_none() {
                        let bits = u32::from(flags & 1 != 0) + u32::from(flags & 2 != 0);
                        next[usize::from(flow)][own] = segment.seq.wrapping_add(len).wrapping_add(bits);
                    }
                    let known = remembered.get(&packet_tuple).filter(|_| mark.is_none());
                    let passes = known.is_some_and(|(remembered, _)| match upper {
                        Upper::Tcp(segment) => passed.table.pass_tcp(remembered, &segment, liberal, Moment::of(now)),
                        _ => passed.table.pass_simple(remembered, Moment::of(now)),
                    });
                    if passes {
                        let known = verdict_without_connection(&known.unwrap().1);
                        prop_assert_eq!(known, verdict_without_connection(&expected));
                    } else {
                        let verdict = passed.track(&packet, &Metadata::default(), &request, now);
                        prop_assert_eq!(verdict, expected);
                        let again = verdict.connection.and_then(|found| passed.table.remember(&found));
                        match again.filter(|_| verdict.invalid.is_none()) {
                            Some(again) => remembered.insert(packet_tuple, (again, verdict)),
                            // What was remembered before stays, as it does with a datapath's cache.
                            None => None,
                        };
                    }
                }
                // A deadline that a shorter policy brings nearer by one tick would stay where it is.
                Step::Wait(quarters) => now = now + Duration::from_millis(250 * quarters),
                Step::Expire => {
                    let done = [&tracked, &passed].map(|t| t.table.expire(&mut 0, usize::MAX, now));
                    prop_assert_eq!(done[0].removed, done[1].removed);
                }
                Step::Remove(flow) => {
                    for tracker in [&tracked, &passed] {
                        if let Some(found) = tracker.table.find(&tuple(flow), now) {
                            tracker.table.remove(found.connection);
                        }
                    }
                }
                Step::Liberal(on) => {
                    [&tracked, &passed].iter().for_each(|tracker| tracker.set_liberal(on));
                    liberal = on;
                }
                Step::Policy(seconds) => {
                    let mut timeouts = timeout::Timeouts::default();
                    timeouts.set(timeout::Timeout::UdpMultiple, seconds);
                    [&tracked, &passed].iter().for_each(|tracker| assert_eq!(tracker.table.policies.set(0, &timeouts), Some(0)));
                }
            }
            prop_assert_eq!(all(&tracked, now), all(&passed, now));
        }
    }
}
