//! Too many flows, too many masks, too many misses: packets go their way all the same, and are counted.

mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{by_hand, udp};
use datapath::{Action, Config, Datapath, DropReason, FlowSpec, Miss, PortNo, Punt, RemovedFlow, Upcall, Verdict};
use packet::{Field, Key, Mask, Packet, Time};

/// A slow path that sends everything to one port, by flows with masks of the test's choice.
struct Masks<F> {
    port: PortNo,
    /// `None`: the packet gets no flow.
    mask: F,
    seen: Mutex<Vec<Key>>,
    evicted: Mutex<Vec<RemovedFlow>>,
}

impl<F: Fn(&Key) -> Option<Mask> + Send + Sync + 'static> Masks<F> {
    fn connect(dp: &Datapath, port: PortNo, mask: F) -> Arc<Masks<F>> {
        let upcall = Arc::new(Masks { port, mask, seen: Mutex::default(), evicted: Mutex::default() });
        dp.set_upcall(upcall.clone());
        upcall
    }

    fn misses(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Packets that were counted: missed, by flows that are gone, and by flows.
    fn counted(&self, dp: &Datapath) -> u64 {
        dp.hand_over_evicted();
        let gone: u64 = self.evicted.lock().unwrap().iter().map(|f| f.stats.packets).sum();
        self.misses() as u64 + gone + dp.flows().map(|f| f.stats.packets).sum::<u64>()
    }
}

impl<F: Fn(&Key) -> Option<Mask> + Send + Sync + 'static> Upcall for Masks<F> {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        for miss in misses {
            self.seen.lock().unwrap().push((*miss.key).clone());
            let actions = vec![Action::Output(self.port)];
            miss.verdict = match (self.mask)(&miss.key) {
                Some(mask) => Verdict::Install { mask: Arc::new(mask), actions: actions.into(), tag: Arc::new(()) },
                None => Verdict::Execute(actions),
            };
        }
    }

    fn punt(&self, _: &Packet, _: &Key, _: &Punt, _: Time) {}

    fn evicted(&self, flows: Vec<RemovedFlow>) {
        self.evicted.lock().unwrap().extend(flows);
    }
}

fn turns(dp: &Datapath, count: usize) {
    (0..count).for_each(|_| {
        dp.poll();
    });
}

fn exact(fields: &[Field]) -> Mask {
    let mut mask = Mask::wildcard();
    fields.iter().for_each(|&field| mask.set_exact(field));
    mask
}

#[test]
fn a_full_table_makes_room_and_every_packet_is_counted() {
    let (dp, _, p) = by_hand(Config { max_flows: 8, ..Config::default() }, 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| Some(exact(&[Field::UdpSrc])));
    let mut given = 0;
    for round in 0..50 {
        // One flow is always in use: it is never evicted. The others come once.
        for sport in [1, 1, 100 + round * 3, 101 + round * 3, 102 + round * 3] {
            p[0].1.give(&udp(1, 2, sport, 4));
            given += 1;
        }
        dp.poll();
    }
    assert_eq!(p[2].1.sent(), given);
    assert_eq!(dp.flow_count(), 8);
    assert_eq!(upcall.misses(), 1 + 150, "the busy flow was installed once");
    assert_eq!(upcall.counted(&dp), given as u64);
    let evicted: HashSet<_> = upcall.evicted.lock().unwrap().iter().map(|f| f.id).collect();
    assert_eq!((evicted.len(), dp.stats().evictions), (151 - 8, 151 - 8), "each once");
}

#[test]
fn a_flood_makes_room_at_its_own_expense() {
    let (dp, _, p) = by_hand(Config { max_flows: 20, ..Config::default() }, 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| Some(exact(&[Field::UdpSrc])));
    (0..5).for_each(|sport| p[0].1.give(&udp(1, 2, sport, 4)));
    dp.poll();
    (0..300).for_each(|sport| p[1].1.give(&udp(1, 2, sport, 4)));
    turns(&dp, 20);
    let misses = upcall.misses();
    (0..5).for_each(|sport| p[0].1.give(&udp(1, 2, sport, 4)));
    dp.poll();
    assert_eq!(upcall.misses(), misses, "the quiet port's flows are all there, though nobody had used them");
    assert_eq!(p[2].1.sent(), 310);
    assert_eq!(upcall.counted(&dp), 310);
}

/// Each of its packets is in another recirculation stage, which has one flow.
#[test]
fn a_flood_over_many_stages_makes_room_at_its_own_expense() {
    let (dp, _, p) = by_hand(Config { max_flows: 20, ..Config::default() }, 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| Some(exact(&[Field::UdpSrc])));
    (0..5).for_each(|sport| p[0].1.give(&udp(1, 2, sport, 4)));
    dp.poll();
    let mut metadata = Key::new();
    metadata.set(Field::InPortOxm, p[1].0.0.into());
    for id in 1..=300 {
        dp.execute(Packet::from_slice(&udp(1, 2, 3, 4)), &metadata, &[Action::Recirc(id)]);
        turns(&dp, 2);
    }
    assert_eq!((upcall.misses(), dp.flow_count()), (305, 20));
    (0..5).for_each(|sport| p[0].1.give(&udp(1, 2, sport, 4)));
    dp.poll();
    assert_eq!(upcall.misses(), 305, "the quiet port's flows are all there, though nobody had used them");
    assert_eq!(p[2].1.sent(), 310);
    assert_eq!(upcall.counted(&dp), 310);
}

/// The flow that makes room may be the last one of its recirculation stage, and the new one of the same stage.
#[test]
fn a_stage_whose_last_flow_makes_room_finds_its_next_one() {
    let (dp, _, p) = by_hand(Config { max_flows: 1, ..Config::default() }, 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| Some(exact(&[Field::UdpSrc])));
    for (n, (port, id)) in [(1, 1), (1, 1), (0, 2), (0, 2), (1, 1), (1, 2), (1, 2)].into_iter().enumerate() {
        let mut metadata = Key::new();
        metadata.set(Field::InPortOxm, p[port].0.0.into());
        for _ in 0..3 {
            dp.execute(Packet::from_slice(&udp(1, 2, n as u16, 4)), &metadata, &[Action::Recirc(id)]);
            turns(&dp, 2);
        }
        assert_eq!((upcall.misses(), dp.flow_count()), (n + 1, 1));
    }
    assert_eq!((p[2].1.sent(), upcall.counted(&dp)), (21, 21));
}

#[test]
fn a_lowered_limit_and_a_budget_are_kept() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    Masks::connect(&dp, p[1].0, |_| Some(exact(&[Field::UdpSrc])));
    (0..600).for_each(|sport| p[0].1.give(&udp(1, 2, sport, 4)));
    turns(&dp, 30);
    assert_eq!(dp.flow_count(), 600);
    dp.set_max_flows(500);
    dp.poll();
    assert_eq!(dp.flow_count(), 500);
    let each = dp.stats().flow_bytes / 500;
    dp.set_max_flow_memory(each * 100);
    dp.poll();
    assert_eq!(dp.flow_count(), 100);
    (0..300).for_each(|sport| p[0].1.give(&udp(1, 2, 1000 + sport, 4)));
    turns(&dp, 30);
    assert_eq!((dp.flow_count(), p[1].1.sent()), (100, 900));
}

/// Adds a flow of the management, which drops.
fn add(dp: &Datapath, port: PortNo, sport: u16, mask: Mask) {
    let mut key = Box::new(Key::new());
    key.set(Field::InPortOxm, port.0.into());
    key.set(Field::UdpSrc, sport.into());
    dp.install(FlowSpec { key, mask: Box::new(mask), actions: vec![], tag: Arc::new(()) }).unwrap();
}

/// However many flows are the management's, of a mask or of a port: they stay, and others make room for each other.
#[test]
fn flows_of_the_management_are_in_nobodys_way() {
    let (dp, _, p) = by_hand(Config { max_flows: 60, ..Config::default() }, 3);
    let add = |port: usize, sport: u16, mask: Mask| add(&dp, p[port].0, sport, mask);
    // In a subtable of their own, in one with others, and of a port that has no others.
    (0..20).for_each(|n| add(0, 10_000 + n, exact(&[Field::UdpSrc, Field::DlDst])));
    (0..12).for_each(|n| add(0, 20_000 + n, exact(&[Field::UdpSrc])));
    (0..20).for_each(|n| add(1, 30_000 + n, exact(&[Field::UdpSrc])));
    let upcall = Masks::connect(&dp, p[2].0, |_| Some(exact(&[Field::UdpSrc])));
    for port in [0, 1, 0] {
        for sport in 0..200 {
            p[port].1.give(&udp(1, 2, sport, 4));
            dp.poll();
            assert!(dp.flow_count() <= 60);
            p[port].1.give(&udp(1, 2, sport, 4));
            dp.poll();
        }
    }
    assert_eq!(upcall.misses(), 600, "each new flow was installed, and known to the packet after it");
    assert_eq!(p[2].1.sent(), 1200);
    assert_eq!(dp.flows().filter(|f| f.actions.is_empty()).count(), 52);
}

/// Nor do ports that have no others, however many they are, and nobody's flow goes for want of choice.
#[test]
fn ports_of_the_management_alone_are_passed_by() {
    let (dp, _, p) = by_hand(Config { max_flows: 60, ..Config::default() }, 23);
    (0..20).for_each(|port| add(&dp, p[port].0, 1, exact(&[Field::UdpSrc])));
    // These are more than those of the other mask, of which one may go.
    (0..20).for_each(|n| add(&dp, p[20].0, 10_000 + n, exact(&[Field::UdpSrc, Field::UdpDst])));
    let upcall = Masks::connect(&dp, p[22].0, |key| {
        let busy = key.get(Field::UdpSrc) == 1;
        Some(exact(if busy { &[Field::UdpSrc, Field::UdpDst] } else { &[Field::UdpSrc] }))
    });
    p[20].1.give(&udp(1, 2, 1, 4));
    dp.poll();
    for sport in 2..200 {
        p[20].1.give(&udp(1, 2, sport, 4));
        p[20].1.give(&udp(1, 2, 1, 4));
        dp.poll();
    }
    assert_eq!((dp.flow_count(), upcall.misses()), (60, 199), "the one that is always in use stays");
    // A port without flows takes from it.
    for sport in 0..40 {
        p[21].1.give(&udp(1, 2, sport, 4));
        dp.poll();
    }
    assert_eq!(dp.flows().filter(|f| f.key.get(Field::InPortOxm) == u128::from(p[21].0.0)).count(), 2);
}

/// As many masks as there are source ports: other bits of the addresses for each.
fn by_port(key: &Key) -> Option<Mask> {
    let n = key.get(Field::UdpSrc) % 1024;
    let mut mask = exact(&[Field::UdpSrc]);
    mask.add(Field::NwSrc, (n & 31).max(1) << 8);
    mask.add(Field::NwDst, (n >> 5).max(1) << 8);
    Some(mask)
}

#[test]
fn masks_are_bounded_and_come_back() {
    let (dp, clock, p) = by_hand(Config { max_masks: 16, exact_entries: 8, ..Config::default() }, 2);
    let upcall = Masks::connect(&dp, p[1].0, by_port);
    let mut given = 0;
    for round in 0..4 {
        for sport in 0..1000 {
            p[0].1.give(&udp(7 + round % 2, 9, sport, 4));
            given += 1;
            if sport % 32 == 31 {
                dp.poll();
                assert!(dp.stats().masks <= 16 + 8, "{} masks", dp.stats().masks);
            }
        }
        turns(&dp, 30);
    }
    assert_eq!(p[1].1.sent(), given);
    let (first, worker) = (upcall.misses(), dp.stats().workers[0].clone());
    assert!(
        (2000..2100).contains(&first),
        "{first}: each of 2000 once, but for those evicted when there were too many"
    );
    assert!(worker.subtables_visited <= given as u64 * 24);
    assert!(dp.stats().masks <= 1 + 16 / 4, "the others are thinned out");
    assert_eq!(upcall.counted(&dp), given as u64);

    // The flood is over, and so is the pressure: flows get the masks that they ask for.
    dp.flush();
    clock.advance(Duration::from_secs(11));
    turns(&dp, 3);
    p[0].1.give(&udp(7, 9, 5, 4));
    dp.poll();
    p[0].1.give(&udp(7, 9, 5, 4));
    dp.poll();
    let masks: Vec<_> = dp.flows().map(|f| f.mask.get(Field::NwSrc)).collect();
    assert_eq!(masks, [5 << 8], "not the whole address");
}

#[test]
fn few_masks_end_the_pressure_without_help() {
    let (dp, clock, p) = by_hand(Config { max_masks: 8, ..Config::default() }, 2);
    let upcall = Masks::connect(&dp, p[1].0, by_port);
    (0..40).for_each(|sport| p[0].1.give(&udp(7, 9, sport * 31, 4)));
    turns(&dp, 5);
    let wide = |dp: &Datapath| dp.flows().filter(|f| f.mask.is_exact(Field::NwSrc)).map(|f| f.id).collect::<Vec<_>>();
    assert!(wide(&dp).len() > 30);
    // All but two go, as idle flows would.
    let kept = wide(&dp)[..2].to_vec();
    let idle: Vec<_> = dp.flows().map(|f| f.id).filter(|id| !kept.contains(id)).collect();
    dp.remove_all(&idle);
    dp.poll();
    assert_eq!(wide(&dp).len(), 2, "not at once");
    clock.advance(Duration::from_secs(11));
    turns(&dp, 3);
    assert_eq!(wide(&dp).len(), 0);
    (0..40).for_each(|_| p[0].1.give(&udp(7, 9, 31, 4)));
    turns(&dp, 5);
    assert_eq!((dp.flow_count(), wide(&dp).len()), (1, 0));
    assert_eq!(upcall.misses(), 41);
}

/// Answers that were on their way down while their flow went used to be sent up again, behind packets of
/// their connection that had come later.
#[test]
fn a_flow_that_goes_meanwhile_does_not_send_its_packets_back() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let frame = |ttl: u8, dst, number: u8| {
        let mut frame = udp(1, dst, 3, 4);
        (frame[22], frame[60]) = (ttl, number);
        frame
    };
    let weak = Arc::downgrade(&dp);
    let calls = Mutex::new(0);
    let upcall = Masks::connect(&dp, p[1].0, move |key| {
        if key.get(Field::NwDst) == 2 {
            return Some(exact(&[Field::NwDst, Field::NwTtl]));
        }
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        if *calls == 2 {
            // The second packet of a kind without flows is asked about last: by now, the answers for the
            // others are made.
            let dp = weak.upgrade().unwrap();
            let gone = dp.flush();
            assert_eq!(gone.iter().map(|f| f.stats.packets).sum::<u64>(), 2, "the second and third are counted");
        }
        None
    });
    let frames = [frame(64, 2, 1), frame(64, 2, 2), frame(64, 2, 3), frame(63, 2, 4), frame(9, 9, 5), frame(9, 9, 6)];
    frames.iter().for_each(|f| p[0].1.give(f));
    dp.poll();
    assert_eq!(p[1].1.take(), frames, "in their order");
    assert_eq!((dp.flow_count(), upcall.misses()), (1, 4), "the flow of the fourth was not there yet");
}

#[test]
fn ports_are_served_in_turn() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| None);
    (0..200).for_each(|n| p[0].1.give(&udp(1, 2, n, 4)));
    p[1].1.give(&udp(1, 2, 7, 4));
    dp.poll();
    let order: Vec<_> = upcall.seen.lock().unwrap().iter().map(|key| key.get(Field::InPortOxm)).collect();
    assert_eq!(order.iter().position(|&port| port == 2), Some(1), "behind one packet of the other port: {order:?}");
}

#[test]
fn a_port_without_room_drops_and_counts() {
    let (dp, _, p) = by_hand(Config { upcall_queue: 16, ..Config::default() }, 3);
    let upcall = Masks::connect(&dp, p[2].0, |_| None);
    (0..32).for_each(|n| p[0].1.give(&udp(1, 2, n, 4)));
    (0..3).for_each(|n| p[1].1.give(&udp(1, 2, n, 4)));
    dp.poll();
    let drops = |port: usize| dp.stats().ports[port].1.get(DropReason::UpcallQueueFull);
    assert_eq!((drops(0), drops(1)), (32 - 6, 0), "a third is the first port's; the second has room");
    assert_eq!((upcall.misses(), dp.stats().workers[0].lost), (9, 26));
}
