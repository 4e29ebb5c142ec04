//! Misses that come together are answered as if they came one by one.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{by_hand, udp};
use datapath::{Action, Config, Datapath, DropReason, FlowTag, Miss, PortNo, Punt, RemovedFlow, Upcall, Verdict};
use packet::{Field, Key, Mask, Packet, Time};
use proptest::prelude::*;

/// A slow path whose verdict depends on the destination port, and so does what it looks at.
struct ByPort {
    out: [PortNo; 2],
    /// The keys that it was asked about.
    asked: Mutex<Vec<Key>>,
}

/// The fields that the verdict on packets to a port depends on, besides the port. `None`: no flow is installed.
fn looked_at(port: u128) -> Option<&'static [Field]> {
    match port {
        0 => Some(&[]),
        1 => Some(&[Field::NwSrc]),
        2 => Some(&[Field::NwSrc, Field::UdpSrc]),
        _ => None,
    }
}

impl Upcall for ByPort {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        for miss in misses {
            let key = &*miss.key;
            self.asked.lock().unwrap().push(key.clone());
            let port = key.get(Field::UdpDst);
            let out = match looked_at(port) {
                Some(fields) => fields.iter().map(|&field| key.get(field)).sum::<u128>() % 2,
                None => key.get(Field::NwSrc) % 2,
            };
            let actions = vec![Action::Output(self.out[out as usize])];
            miss.verdict = match looked_at(port) {
                Some(fields) => {
                    let mut mask = Mask::wildcard();
                    [Field::DlType, Field::NwProto, Field::UdpDst]
                        .iter()
                        .chain(fields)
                        .for_each(|&f| mask.set_exact(f));
                    Verdict::Install { mask: Arc::new(mask), actions: actions.into(), tag: Arc::new(()) }
                }
                None if port == 3 => Verdict::Execute(actions),
                None => Verdict::Drop(DropReason::Rule),
            };
        }
    }

    fn punt(&self, _: &Packet, _: &Key, _: &Punt, _: Time) {}
}

/// What came of some frames.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// What each port sent, of each connection in order.
    sent: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Packets and bytes of each flow.
    flows: BTreeMap<String, (u64, u64)>,
    asked: usize,
    dropped: u64,
}

struct Bed {
    dp: Arc<Datapath>,
    ports: Vec<(PortNo, Arc<common::MemPort>)>,
    upcall: Arc<ByPort>,
}

impl Bed {
    fn new() -> Bed {
        let (dp, _, ports) = by_hand(Config::default(), 3);
        let upcall = Arc::new(ByPort { out: [ports[1].0, ports[2].0], asked: Mutex::default() });
        dp.set_upcall(upcall.clone());
        Bed { dp, ports, upcall }
    }

    fn outcome(&self) -> Outcome {
        let sent = self.ports.iter().map(|(_, port)| {
            let mut by_connection = BTreeMap::<_, Vec<u8>>::new();
            for frame in port.take() {
                by_connection.entry(frame[26..38].to_vec()).or_default().push(frame[63]);
            }
            by_connection
        });
        let flow = |flow: datapath::FlowDump| {
            let fields = [Field::NwSrc, Field::UdpSrc, Field::UdpDst].map(|f| flow.key.get(f));
            (format!("{fields:?}"), (flow.stats.packets, flow.stats.bytes))
        };
        Outcome {
            sent: sent.collect(),
            flows: self.dp.flows().map(flow).collect(),
            asked: self.upcall.asked.lock().unwrap().len(),
            dropped: self.dp.stats().workers[0].drops.total(),
        }
    }
}

proptest! {
    #[test]
    fn misses_of_a_batch_are_answered_as_if_they_came_one_by_one(
        batches in prop::collection::vec(prop::collection::vec((0..3u32, 0..3u16, 0..5u16), 1..80), 1..4),
    ) {
        let (together, alone) = (Bed::new(), Bed::new());
        let mut number = 0u8;
        for frames in batches {
            for (src, sport, dport) in frames {
                let mut frame = udp(src, 9, sport, dport);
                (frame[63], number) = (number, number.wrapping_add(1));
                alone.ports[0].1.give(&frame);
                alone.dp.poll();
                together.ports[0].1.give(&frame);
            }
            while together.dp.poll() > 0 {}
            prop_assert_eq!(together.outcome(), alone.outcome());
        }
    }
}

#[test]
fn what_falls_under_one_flow_is_asked_about_once() {
    let Bed { dp, ports, upcall } = Bed::new();
    (0..32).for_each(|n| ports[0].1.give(&udp(n, 9, n as u16, 0)));
    dp.poll();
    assert_eq!(upcall.asked.lock().unwrap().len(), 1);
    assert_eq!(ports[1].1.sent(), 32);
    assert_eq!(
        dp.flows().map(|flow| flow.stats.packets).collect::<Vec<_>>(),
        [31],
        "the slow path has counted the first"
    );
    // A verdict that is for one packet alone is asked for each time.
    (0..32).for_each(|_| ports[0].1.give(&udp(1, 9, 1, 3)));
    dp.poll();
    assert_eq!(upcall.asked.lock().unwrap().len(), 33);
}

/// A slow path whose flows match the source and the TTL, and which counts as it is told to.
#[derive(Default)]
struct ByTtl {
    out: Mutex<Option<PortNo>>,
    counted: AtomicU64,
}

impl Upcall for ByTtl {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        for miss in misses {
            self.counted.fetch_add(u64::from(!miss.counted), Ordering::Relaxed);
            let mut mask = Mask::wildcard();
            [Field::DlType, Field::NwSrc, Field::NwTtl].into_iter().for_each(|field| mask.set_exact(field));
            let actions = self.out.lock().unwrap().map(Action::Output).into_iter().collect();
            miss.verdict = Verdict::Install { mask: Arc::new(mask), actions, tag: Arc::new(()) };
        }
    }

    fn punt(&self, _: &Packet, _: &Key, _: &Punt, _: Time) {}

    fn evicted(&self, flows: Vec<RemovedFlow>) {
        self.counted.fetch_add(flows.iter().map(|flow| flow.stats.packets).sum(), Ordering::Relaxed);
    }
}

/// Packets of a connection have several flows, so some of them wait for others, and there is room for few flows.
#[test]
fn a_packet_that_waits_while_its_flow_is_evicted_is_counted_once() {
    for max_flows in [1, 3, 6] {
        let (dp, _, ports) = by_hand(Config { max_flows, ..Config::default() }, 2);
        let upcall = Arc::new(ByTtl { out: Mutex::new(Some(ports[1].0)), ..ByTtl::default() });
        dp.set_upcall(upcall.clone());
        let (mut state, mut given) = (88_172_645_463_325_252u64, 0);
        for _ in 0..400 {
            for _ in 0..32 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let mut frame = udp((state >> 20) as u32 % 3, 2, 3, 4);
                frame[22] = 60 + (state >> 40) as u8 % 3;
                ports[0].1.give(&frame);
                given += 1;
            }
            while dp.poll() > 0 {}
        }
        dp.hand_over_evicted();
        let counted = upcall.counted.load(Ordering::Relaxed) + dp.flows().map(|flow| flow.stats.packets).sum::<u64>();
        assert_eq!((ports[1].1.sent(), counted), (given, given as u64), "{max_flows} flows");
    }
}

/// A slow path whose state changes so many times while a flow is installed.
struct Changing {
    out: PortNo,
    version: AtomicU64,
    changes: AtomicU64,
}

impl Upcall for Changing {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        for miss in misses {
            let mut mask = Mask::wildcard();
            mask.set_exact(Field::NwSrc);
            let actions = [Action::Output(self.out)].into();
            miss.verdict = Verdict::Install { mask: Arc::new(mask), actions, tag: Arc::new(()) };
        }
    }

    fn punt(&self, _: &Packet, _: &Key, _: &Punt, _: Time) {}

    /// No change is about the flow.
    fn version_of(&self, _: &FlowTag, _: &Key, _: &Mask) -> Option<u64> {
        Some(self.version.load(Ordering::Relaxed))
    }

    fn is_current(&self, version: u64) -> bool {
        if self.changes.load(Ordering::Relaxed) > 0 {
            self.changes.fetch_sub(1, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        version == self.version.load(Ordering::Relaxed)
    }
}

/// As where another handler learns flows.
#[test]
fn changes_that_are_about_other_flows_do_not_keep_a_flow_away() {
    for (changes, flows) in [(0, 1), (2, 1), (3, 0)] {
        let (dp, _, ports) = by_hand(Config::default(), 2);
        let upcall = Changing { out: ports[1].0, version: AtomicU64::new(7), changes: AtomicU64::new(changes) };
        dp.set_upcall(Arc::new(upcall));
        ports[0].1.give(&udp(1, 2, 3, 4));
        dp.poll();
        assert_eq!((ports[1].1.sent(), dp.flow_count()), (1, flows), "{changes} changes");
        ports[0].1.give(&udp(1, 2, 3, 4));
        dp.poll();
        assert_eq!((ports[1].1.sent(), dp.flow_count()), (2, 1), "the next packet asks again");
    }
}
