//! Shapers and backlogs without a port: what leaves when, against what the rates say.

use std::collections::VecDeque;

use packet::{Batch, Offload, Packet, Time};
use proptest::prelude::*;

use super::backlog::{Backlog, on_wire};
use super::*;

const MILLI: u64 = 1_000_000;

fn rates(min: u64, max: u64, priority: u64) -> QueueRates {
    QueueRates { min, max, burst: 0, priority }
}

fn limits(max: u64, queues: &[(u32, QueueRates)]) -> ShaperLimits {
    ShaperLimits { kind: "linux-htb", max, queues: queues.iter().copied().collect() }
}

/// A shaper with a backlog, and what it has sent.
struct Bed {
    shaper: Shaper,
    backlog: Backlog,
    /// Bytes by queue.
    sent: BTreeMap<u32, u64>,
    refused: usize,
    now: u64,
}

impl Bed {
    fn new(limits: ShaperLimits) -> Bed {
        let shaper = Shaper::new(limits, None, Time(0));
        Bed { backlog: Bed::backlog(&shaper), shaper, sent: BTreeMap::new(), refused: 0, now: 0 }
    }

    /// A backlog that other tests do not know of.
    fn backlog(shaper: &Shaper) -> Backlog {
        Backlog::beside(shaper, Box::leak(Box::default()))
    }

    fn packet(len: usize, queue: u32) -> Packet {
        let mut packet = Packet::from_slice(&vec![queue as u8; len]);
        packet.set_queue(queue);
        packet
    }

    fn add(&mut self, count: usize, len: usize, queue: u32) {
        for at in (0..count).step_by(32) {
            let mut batch: Batch = (at..count.min(at + 32)).map(|_| Bed::packet(len, queue)).collect();
            self.backlog.add(&self.shaper, &mut batch);
            self.refused += batch.len();
        }
    }

    /// Sends what may leave, and returns it.
    fn release(&mut self) -> Vec<Packet> {
        let mut sent = Vec::new();
        loop {
            let mut batch = Batch::new();
            self.backlog.release(&self.shaper, Time(self.now), &mut batch);
            let full = batch.is_full();
            for packet in batch {
                *self.sent.entry(packet.queue()).or_default() += packet.len() as u64;
                sent.push(packet);
            }
            if !full {
                return sent;
            }
        }
    }

    /// Keeps these queues full for so many ms.
    fn run(&mut self, millis: u64, queues: &[u32]) {
        for _ in 0..millis {
            queues.iter().for_each(|queue| self.add(100, 1000, *queue));
            self.release();
            self.now += MILLI;
        }
    }

    fn mbps(&self, queue: u32) -> f64 {
        self.sent.get(&queue).map_or(0.0, |bytes| *bytes as f64 * 8.0 / (self.now as f64 / 1e9) / 1e6)
    }
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.03, "{found}, {wanted} wanted");
}

#[test]
fn rates_are_right_from_a_megabit_to_ten_gigabits() {
    for mbps in [1, 10, 100, 1000, 10_000] {
        let mut bed = Bed::new(limits(mbps * 1_000_000, &[]));
        let step = 100;
        while bed.now < 4_000 * MILLI {
            bed.add((mbps as usize * step / 8000 * 2).clamp(3, 900), 1000, 0);
            bed.release();
            bed.now += step as u64 * 1000;
        }
        near(bed.mbps(0), mbps as f64);
    }
}

#[test]
fn a_queue_has_what_is_guaranteed_and_no_more_than_its_most() {
    let most = 100_000_000;
    let mut bed = Bed::new(limits(
        most,
        &[(1, rates(20_000_000, most, 9)), (2, rates(0, 30_000_000, 0)), (3, rates(0, most, 1))],
    ));
    bed.run(5_000, &[1, 2, 3]);
    near(bed.mbps(1), 20.0);
    near(bed.mbps(2), 30.0);
    near(bed.mbps(3), 50.0);
    bed.run(5_000, &[1]);
    // What the others do not want is the first one's: 20 for half of the time, and then 100.
    near(bed.mbps(1), 60.0);
}

#[test]
fn within_a_priority_queues_share_in_proportion_to_their_guarantees() {
    let most = 100_000_000;
    let queue = |min| rates(min, most, 0);
    let mut bed = Bed::new(limits(most, &[(1, queue(10_000_000)), (2, queue(30_000_000))]));
    bed.run(5_000, &[1, 2]);
    near(bed.mbps(1), 25.0);
    near(bed.mbps(2), 75.0);
}

#[test]
fn guarantees_beyond_the_rate_of_the_port_are_cut_in_proportion() {
    let mut bed =
        Bed::new(limits(30_000_000, &[(1, rates(40_000_000, u64::MAX, 0)), (2, rates(20_000_000, u64::MAX, 0))]));
    bed.run(5_000, &[1, 2]);
    near(bed.mbps(1), 20.0);
    near(bed.mbps(2), 10.0);
    // However many priorities are asked for, there are few to go through.
    let priorities: Vec<_> = (0..100).map(|number| (number, rates(0, 8, u64::from(number)))).collect();
    assert_eq!(*Shaper::new(limits(8, &priorities), None, Time(0)).priorities, [0, 1, 2, 3, 4, 5, 6, 7]);
    let mut extreme = Bed::new(limits(u64::MAX, &[(1, rates(u64::MAX, u64::MAX, 0)), (2, rates(u64::MAX, 0, 0))]));
    extreme.run(1, &[1, 2]);
    assert_eq!(extreme.refused, 0);
}

#[test]
fn queues_are_bounded_and_keep_their_order() {
    let mut bed = Bed::new(limits(8, &[(1, rates(0, 8, 0)), (2, rates(0, 8, 0)), (3, rates(0, 8, 0))]));
    bed.add(1500, 100, 1);
    assert_eq!(bed.refused, 500);
    // As many units as a packet of 64 KiB has bytes for.
    bed.add(40, 65_000, 2);
    assert_eq!(bed.refused, 500 + 9);
    // The port is full, but a few packets find room.
    bed.add(200, 100, 3);
    assert!((509 + 100..509 + 197).contains(&bed.refused), "{}", bed.refused);
    bed.add(10, 100, 0);
    assert_eq!(bed.shaper.state(Time(0)).queues[0].stats.as_ref().unwrap().errors, 6);
    let mut all = Batch::new();
    let mut count = 0;
    while {
        bed.backlog.drain(&mut all);
        !all.is_empty()
    } {
        count += all.len();
        all.clear();
    }
    assert!(bed.backlog.is_empty());
    assert_eq!(count + bed.refused, 1500 + 40 + 200 + 10);
}

#[test]
fn a_queue_in_debt_has_its_share_and_no_more() {
    // Frames of 64 KiB beside short ones, with the same guarantee.
    let most = 100_000_000;
    let mut bed = Bed::new(limits(most, &[(1, rates(1_000_000, most, 0)), (2, rates(1_000_000, most, 0))]));
    for _ in 0..2_000 {
        bed.add(3, 65_000, 1);
        bed.add(60, 1000, 2);
        bed.release();
        bed.now += MILLI / 2;
    }
    near(bed.mbps(1), 50.0);
    near(bed.mbps(2), 50.0);
}

#[test]
fn super_frames_count_as_their_segments() {
    // Ethernet, IPv4, TCP with twelve bytes of options, and ten segments and a piece.
    let mut packet = Bed::packet(66 + 14_480 + 10, 0);
    packet.data_mut()[34 + 12] = 8 << 4;
    let tcp = Offload { gso_type: Offload::GSO_TCPV4, gso_size: 1448, csum_start: 34, ..Offload::NONE };
    let wire = |packet: &mut Packet, offload| {
        *packet.offload_mut() = offload;
        on_wire(packet)
    };
    assert_eq!(wire(&mut packet, tcp), 10 * 1514 + 66 + 10);
    assert_eq!(
        wire(&mut packet, Offload { gso_type: Offload::GSO_UDP_L4, gso_size: 7257, ..tcp }),
        14_556 + 2 * 42 - 42
    );
    assert_eq!(wire(&mut packet, Offload::NONE), 14_556);
    // Guests may say what they like.
    assert_eq!(wire(&mut packet, Offload { gso_size: 0, ..tcp }), 14_556);
    assert_eq!(wire(&mut packet, Offload { csum_start: u16::MAX, ..tcp }), 14_556);
}

#[test]
fn all_ports_together_are_bounded_and_none_is_kept_out() {
    let all = Box::leak(Box::default());
    let queues: Vec<_> = (0..2).map(|number| (number, rates(0, 8, 0))).collect();
    let shaper = Shaper::new(limits(8, &queues), None, Time(0));
    let mut backlogs: Vec<_> = (0..6).map(|_| Backlog::beside(&shaper, all)).collect();
    let mut room = Vec::new();
    for backlog in &mut backlogs {
        let mut refused = 0;
        for queue in [0, 1] {
            for _ in 0..32 {
                let mut batch: Batch = (0..32).map(|_| Bed::packet(100, queue)).collect();
                backlog.add(&shaper, &mut batch);
                refused += batch.len();
            }
        }
        backlog.release(&shaper, Time(0), &mut Batch::new());
        room.push(2 * 32 * 32 - refused);
    }
    assert_eq!(room[..4], [2000; 4]);
    // What the process has left, but for packets that were sent at once; and then the few that find room in any case.
    assert!((192..192 + 4 * 32).contains(&room[4]) && room[5] == 8, "{room:?}");
    drop(backlogs);
    assert_eq!(all.load(Relaxed), 0);
}

#[test]
fn counters_and_buckets_of_queues_that_stay_go_on() {
    let before = limits(8_000, &[(1, rates(0, 8_000, 0)), (2, rates(0, 8_000, 0))]);
    let mut bed = Bed::new(before);
    bed.add(10, 1500, 1);
    assert_eq!(bed.release().len(), 2);
    let after = limits(8_000, &[(1, rates(0, 8_000, 0)), (2, rates(0, 4_000, 0))]);
    let shaper = Shaper::new(after, Some(&bed.shaper), Time(0));
    let stats = |shaper: &Shaper, at: usize| *shaper.state(Time(0)).queues[at].stats.as_ref().unwrap();
    assert_eq!((stats(&shaper, 1).packets, stats(&shaper, 2).packets), (2, 0));
    let mut batch: Batch = (0..2).map(|_| Bed::packet(1500, 1)).collect();
    let mut backlog = Bed::backlog(&shaper);
    backlog.add(&shaper, &mut batch);
    backlog.release(&shaper, Time(0), &mut batch);
    assert_eq!(batch.len(), 0, "the bucket of this queue is empty");
}

#[test]
fn thousands_of_queues_each_have_their_turn() {
    let queues: Vec<_> = (0..4000).map(|number| (number, rates(0, 1_000_000_000, u64::from(number % 8 / 7)))).collect();
    let mut bed = Bed::new(limits(1_000_000_000, &queues));
    (0..4000).for_each(|queue| bed.add(2, 1000, queue));
    assert_eq!(bed.refused, 0);
    while !bed.backlog.is_empty() {
        bed.release();
        bed.now += MILLI;
        assert!(bed.now < 100 * MILLI, "8000 packets take 64 ms");
    }
    assert_eq!(bed.sent.len(), 4000);
}

#[test]
fn workers_together_send_no_more_than_the_port_has() {
    let shaper = Shaper::new(limits(8_000_000, &[]), None, Time(0));
    let sent: u64 = std::thread::scope(|scope| {
        let worker = || {
            let (mut backlog, mut sent) = (Bed::backlog(&shaper), 0);
            for _ in 0..20 {
                let mut batch: Batch = (0..32).map(|_| Bed::packet(100, 0)).collect();
                backlog.add(&shaper, &mut batch);
                backlog.release(&shaper, Time(0), &mut batch);
                sent += batch.iter().filter(|packet| packet.len() == 100).count() as u64 * 100;
            }
            sent
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    // The port's burst of 4 ms, and what the queue is guaranteed beyond that.
    assert!((4_000..=4_000 + 2 * 1518).contains(&sent), "{sent}");
}

proptest! {
    /// Whatever comes: nothing is lost or overtaken, the port and each queue keep to their most, and a queue that always has
    /// packets has what is guaranteed to it.
    #[test]
    fn rates_and_order_hold_whatever_comes(
        max in 1_000_000u64..100_000_000,
        queues in prop::collection::btree_map(0u32..4, (0u64..50_000_000, 1_000_000u64..100_000_000, 0u64..3), 1..4),
        steps in prop::collection::vec((0u64..3 * MILLI, prop::collection::vec((0u32..5, 60usize..3000), 0..40)), 1..60),
    ) {
        let all: Vec<_> = queues.iter().map(|(number, (min, max, priority))| (*number, rates(*min, *max, *priority))).collect();
        let mut bed = Bed::new(limits(max, &all));
        let mut waiting: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
        let (mut came, mut left) = (0, 0);
        let mut always: BTreeMap<usize, bool> = (0..bed.shaper.queues.len()).map(|queue| (queue, true)).collect();
        let mut sent = vec![0u64; bed.shaper.queues.len()];
        for (pause, packets) in steps {
            bed.now += pause;
            for (number, len) in packets {
                let queue = bed.shaper.queue_for(number);
                let refused = bed.refused;
                bed.add(1, len, number);
                came += 1;
                if bed.refused == refused {
                    waiting.entry(queue).or_default().push_back(len);
                }
            }
            for packet in bed.release() {
                let queue = bed.shaper.queue_for(packet.queue());
                prop_assert_eq!(waiting.get_mut(&queue).and_then(VecDeque::pop_front), Some(packet.len()));
                sent[queue] += packet.len() as u64;
                left += 1;
            }
            for (queue, always) in &mut always {
                *always &= waiting.get(queue).is_some_and(|waiting| !waiting.is_empty());
            }
        }
        let still: usize = waiting.values().map(VecDeque::len).sum();
        prop_assert_eq!(came, left + bed.refused + still);
        prop_assert_eq!(bed.backlog.is_empty(), still == 0);
        // Bytes of a rate in the time that has passed, with what a bucket holds at first and a packet that is longer than a frame.
        let most = |rate: u64, burst: u64| rate * bed.now / 1_000_000_000 / 8 + burst.max(3036) + rate / 2000 + 3000;
        let guarantees: u64 = bed.shaper.queues.iter().map(|queue| (queue.rates.min / 2000).max(3036) + 3000).sum();
        prop_assert!(sent.iter().sum::<u64>() <= most(max, 0) + guarantees);
        for (queue, sent) in sent.iter().enumerate() {
            let QueueRates { min, max: highest, .. } = bed.shaper.queues[queue].rates;
            prop_assert!(*sent <= most(highest.max(min), 0) + min / 2000 + 6036, "queue {} sent {}", queue, sent);
            if always[&queue] {
                prop_assert!(*sent + 3036 >= min * bed.now / 1_000_000_000 / 8, "queue {} sent {} of {}", queue, sent, min);
            }
        }
    }
}
