//! Workers that come and go, and receive queues that change hands.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{MemPort, ToPort, by_hand, eventually, flow, udp};
use datapath::sync::clock::MonotonicClock;
use datapath::{Action, AutoBalance, Config, Datapath, Error, RxPolicy};
use packet::{Field, Packet};

fn started(config: Config) -> Arc<Datapath> {
    let dp = Datapath::new(config, Arc::new(MonotonicClock::new()));
    dp.start().unwrap();
    dp
}

fn give(port: &MemPort, queue: usize, sport: u16, number: u32) {
    let mut frame = udp(1, 2, sport, 4);
    frame[50..54].copy_from_slice(&number.to_be_bytes());
    port.queues[queue].lock().unwrap().push_back(Packet::from_slice(&frame));
}

/// Queue (as the source port) and number of each frame.
fn numbers(port: &MemPort) -> Vec<(u16, u32)> {
    let number = |f: &Vec<u8>| (u16::from_be_bytes([f[34], f[35]]), u32::from_be_bytes([f[50], f[51], f[52], f[53]]));
    port.take().iter().map(number).collect()
}

#[test]
fn queues_move_to_the_workers_that_there_are() {
    let dp = Datapath::new(Config { workers: vec![0], ..Config::default() }, Arc::new(MonotonicClock::new()));
    let a = MemPort::with("a", 4, usize::MAX, None);
    dp.add_port(a.clone()).unwrap();
    let workers = || dp.rx_assignments().iter().map(|rx| rx.worker).collect::<Vec<_>>();
    let cores = || dp.stats().workers.iter().map(|w| (w.number, w.core)).collect::<Vec<_>>();
    assert_eq!(workers(), [0, 0, 0, 0]);
    dp.set_rx_policy(RxPolicy::RoundRobin, true);
    dp.set_workers(&[0, 1]).unwrap();
    assert_eq!((workers(), cores()), (vec![0, 1, 0, 1], vec![(0, Some(0)), (1, Some(1))]));
    dp.set_workers(&[1]).unwrap();
    assert_eq!((workers(), cores()), (vec![1; 4], vec![(1, Some(1))]));
    dp.set_workers(&[]).unwrap();
    assert_eq!((workers(), cores()), (vec![0; 4], vec![(0, None)]));
    dp.set_workers(&[2, 3, 1]).unwrap();
    assert_eq!(cores().len(), 3);
}

#[test]
fn busy_queues_part_by_themselves() {
    let (dp, clock, out) = by_hand(Config { workers: vec![0, 1], ..Config::default() }, 1);
    let a = MemPort::with("a", 4, usize::MAX, None);
    let port = dp.add_port(a.clone()).unwrap();
    dp.install(flow(port, 0, &[], vec![Action::Output(out[0].0)])).unwrap();
    let workers = || dp.rx_assignments().iter().filter(|rx| rx.port == port).map(|rx| rx.worker).collect::<Vec<_>>();
    let before = workers();
    let together: Vec<usize> = (0..4).filter(|&queue| before[queue] == before[0]).collect();
    assert_eq!(together.len(), 2, "{before:?}");
    dp.set_auto_balance(AutoBalance { enabled: true, load: 0, improvement: 0, minutes: 2 });
    let mut given = 0;
    for step in 0..25 {
        for number in 0..20 {
            together.iter().for_each(|&queue| give(&a, queue, 5, number));
            given += together.len();
        }
        dp.poll();
        dp.balance();
        assert_eq!(workers(), before, "not before two minutes have passed: step {step}");
        clock.advance(Duration::from_secs(5));
    }
    dp.poll();
    dp.balance();
    let after = workers();
    assert_ne!(after[together[0]], after[together[1]], "{after:?}");
    assert_eq!(out[0].1.sent(), given);
}

/// A dry run says what would be gained: less than asked for, and nothing moves.
#[test]
fn queues_that_are_spread_well_stay() {
    let (dp, clock, out) = by_hand(Config { workers: vec![0, 1], ..Config::default() }, 1);
    let a = MemPort::with("a", 4, usize::MAX, None);
    let port = dp.add_port(a.clone()).unwrap();
    dp.install(flow(port, 0, &[], vec![Action::Output(out[0].0)])).unwrap();
    let workers = || dp.rx_assignments().iter().filter(|rx| rx.port == port).map(|rx| rx.worker).collect::<Vec<_>>();
    let before = workers();
    // One busy queue for each worker: no assignment is better.
    let busy = [0, 1].map(|worker| before.iter().position(|&w| w == worker).unwrap());
    dp.set_auto_balance(AutoBalance { enabled: true, load: 0, improvement: 100, minutes: 1 });
    for _ in 0..40 {
        for number in 0..20 {
            busy.iter().for_each(|&queue| give(&a, queue, 5, number));
        }
        dp.poll();
        clock.advance(Duration::from_secs(5));
        dp.balance();
        assert_eq!(workers(), before);
    }
    assert_eq!(out[0].1.sent(), 40 * 40);
}

#[test]
fn queues_are_pinned_to_cores() {
    let config = Config { workers: vec![0, 1], ..Config::default() };
    let (dp, _, _) = by_hand(config, 0);
    let port = dp.add_port(MemPort::with("a", 4, usize::MAX, None)).unwrap();
    let place = || dp.rx_assignments().iter().map(|rx| (rx.worker, rx.pinned)).collect::<Vec<_>>();
    dp.set_rx_affinity(port, BTreeMap::from([(3, 0)])).unwrap();
    assert_eq!(place(), [(1, false), (1, false), (1, false), (0, true)]);
    dp.set_rx_policy(RxPolicy::RoundRobin, false);
    assert_eq!(place(), [(0, false), (1, false), (0, false), (0, true)]);
    dp.set_rx_affinity(port, BTreeMap::new()).unwrap();
    assert_eq!(place(), [(0, false), (1, false), (0, false), (1, false)]);
    assert!(matches!(dp.set_rx_affinity(datapath::PortNo(9), BTreeMap::new()), Err(Error::NoSuchPort(_))));
}

/// Each worker counts for itself; who reads gets the sum.
#[test]
fn counters_of_a_flow_are_the_sum_over_workers() {
    let (dp, clock, out) = by_hand(Config { workers: vec![0, 1], ..Config::default() }, 1);
    let a = MemPort::with("a", 2, usize::MAX, None);
    let port = dp.add_port(a.clone()).unwrap();
    let id = dp.install(flow(port, 0, &[], vec![Action::Output(out[0].0)])).unwrap();
    for (queue, count) in [(0, 3), (1, 5)] {
        clock.advance(Duration::from_millis(7));
        (0..count).for_each(|number| give(&a, queue, 5, number));
        dp.poll();
    }
    let received: Vec<u64> = dp.stats().workers.iter().map(|worker| worker.received).collect();
    assert_eq!(received.iter().sum::<u64>(), 8);
    assert!(received.contains(&3) && received.contains(&5), "one queue for each worker: {received:?}");
    let stats = dp.flow_stats(id).unwrap();
    assert_eq!((stats.packets, stats.bytes), (8, 8 * 64));
    assert!(dp.now().since(stats.used) < Duration::from_millis(2), "{stats:?}");
}

#[test]
fn what_ended_workers_counted_is_not_lost() {
    let (dp, _, ports) = by_hand(Config { workers: vec![0], ..Config::default() }, 2);
    let (input, a) = &ports[0];
    let id = dp.install(flow(*input, 0, &[], vec![Action::Output(ports[1].0)])).unwrap();
    let drops = || dp.stats().ports.iter().map(|(_, drops)| drops.total()).sum::<u64>();
    for round in 1..=5u32 {
        give(a, 0, 1, round);
        dp.poll();
        dp.set_workers(&[(round % 2) as usize]).unwrap();
        assert_eq!(dp.flow_stats(id).unwrap().packets, u64::from(round));
        let stats = dp.stats();
        let received = stats.ended.received + stats.workers.iter().map(|w| w.received).sum::<u64>();
        assert_eq!(received, u64::from(round));
    }
    // A flow that is new to a worker's counters, and a drop.
    dp.remove(id).unwrap();
    let id = dp.install(flow(*input, 0, &[], vec![])).unwrap();
    assert_eq!(dp.flow_stats(id).unwrap().packets, 0);
    a.up.store(false, Ordering::Relaxed);
    dp.refresh_port(*input).unwrap();
    give(a, 0, 1, 9);
    dp.poll();
    dp.set_workers(&[7]).unwrap();
    assert_eq!(drops(), 1);
    dp.reset_stats();
    assert_eq!((drops(), dp.stats().ended.received), (0, 0));
}

#[test]
fn there_are_only_so_many_places() {
    let (dp, _, _) = by_hand(Config { workers: vec![0], max_workers: 3, ..Config::default() }, 1);
    assert!(matches!(dp.set_workers(&[1, 2, 3]), Err(Error::TooManyWorkers(3))));
    assert_eq!(dp.stats().workers.iter().map(|w| w.core).collect::<Vec<_>>(), [Some(0)], "as it was");
    dp.set_workers(&[0, 1, 2]).unwrap();
    dp.set_workers(&[2]).unwrap();
    dp.set_workers(&[0, 1, 2]).unwrap();
}

#[test]
fn a_worker_on_a_core_that_does_not_exist_changes_nothing() {
    let dp = started(Config::default());
    assert!(matches!(dp.set_workers(&[0, 1023]), Err(Error::Thread { .. })));
    assert_eq!(dp.stats().workers.iter().map(|w| w.core).collect::<Vec<_>>(), [None]);
}

#[test]
fn packets_that_are_up_come_back_before_a_queue_moves() {
    let (dp, _, ports) = by_hand(Config { workers: vec![0], ..Config::default() }, 2);
    let slow = ToPort::new(ports[1].0, Field::NwSrc, true);
    dp.set_upcall(slow.clone());
    for n in 0..3 {
        give(&ports[0].1, 0, 1, n);
    }
    dp.poll();
    give(&ports[0].1, 0, 1, 3);
    dp.set_workers(&[1]).unwrap();
    dp.poll();
    assert_eq!(numbers(&ports[1].1), [(1, 0), (1, 1), (1, 2), (1, 3)]);
}

/// Frames with numbers go in at three queues while workers come and go.
fn traffic_while_workers_change(max_tx: usize) {
    let sets: [&[usize]; 6] = [&[0, 1], &[1], &[0, 0, 1], &[0], &[], &[1, 1]];
    traffic_while(max_tx, &[0], |dp, step| {
        dp.set_workers(sets[step % sets.len()]).unwrap();
        dp.rebalance();
    });
}

/// Frames with numbers go in at three queues while `change` is called again and again; a single queue out, or one for each
/// worker. Some of them miss.
fn traffic_while(max_tx: usize, workers: &[usize], change: impl Fn(&Datapath, usize) + Sync) {
    const FRAMES: u32 = 30_000;
    const CONNECTION: u32 = 100;
    let config = Config { workers: workers.to_vec(), upcall_queue: 1 << 18, ..Config::default() };
    let dp = started(Config { max_sleep: Duration::from_micros(50), ..config });
    let (a, b) = (MemPort::with("a", 3, usize::MAX, None), MemPort::with("b", 1, max_tx, None));
    let (input, out) = (dp.add_port(a.clone()).unwrap(), dp.add_port(b.clone()).unwrap());
    dp.set_upcall(ToPort::new(out, Field::UdpSrc, true));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for queue in 0..3 {
            let a = &a;
            scope.spawn(move || {
                for n in 0..FRAMES {
                    // So many that misses find room in the queue to the slow path.
                    while a.queues[queue].lock().unwrap().len() > 256 {
                        std::thread::yield_now();
                    }
                    // A new connection now and then, whose first frames miss.
                    give(a, queue, (queue as u16) << 12 | (n / CONNECTION) as u16, n % CONNECTION);
                }
            });
        }
        let (dp, stop, change) = (&dp, &stop, &change);
        scope.spawn(move || {
            for step in 0.. {
                change(dp, step);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(move || {
            // A busy machine may take long, but frames that are lost never come.
            let (mut seen, mut since) = (0, std::time::Instant::now());
            while b.sent() < 3 * FRAMES as usize && since.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
                if b.sent() > seen {
                    (seen, since) = (b.sent(), std::time::Instant::now());
                }
            }
            stop.store(true, Ordering::Relaxed);
            let drops: Vec<_> = dp.stats().ports.iter().flat_map(|(_, d)| d.iter().collect::<Vec<_>>()).collect();
            assert_eq!(drops, [], "lost");
            let mut next = BTreeMap::new();
            for (connection, number) in numbers(&b) {
                let next = next.entry(connection).or_insert(0);
                assert_eq!(number, *next, "connection {connection:#x}: lost, doubled or overtaken");
                *next += 1;
            }
            assert_eq!(next.values().sum::<u32>(), 3 * FRAMES);
        });
    });
    let stats = dp.stats();
    let received = stats.ended.received + stats.workers.iter().map(|w| w.received).sum::<u64>();
    assert_eq!(received, u64::from(3 * FRAMES));
    assert_eq!(dp.remove_port(input).map(drop).ok(), Some(()));
    dp.remove_port(out).unwrap();
    assert_eq!(Arc::strong_count(&a), 1, "no worker has kept a queue");
}

#[test]
fn nothing_is_lost_or_overtaken_while_workers_change() {
    traffic_while_workers_change(usize::MAX);
}

#[test]
fn nor_when_they_share_a_transmit_queue() {
    traffic_while_workers_change(1);
}

#[test]
fn nor_when_some_do() {
    traffic_while_workers_change(2);
}

#[test]
fn nor_while_handlers_change() {
    traffic_while(usize::MAX, &[0, 1, 1], |dp, step| dp.set_handlers([2, 3, 1, 16, 2][step % 5]).unwrap());
}

/// All workers send by all queues for some time, and some come then, or end.
#[test]
fn nor_while_the_steering_of_a_port_changes() {
    let sets: [&[usize]; 5] = [&[0, 1], &[1], &[0, 0, 1], &[], &[1, 1]];
    for max_tx in [3, usize::MAX] {
        traffic_while(max_tx, &[0, 1], |dp, step| {
            dp.set_tx_steering(datapath::PortNo(2), step % 3 > 0).unwrap();
            dp.set_workers(sets[step / 2 % sets.len()]).unwrap();
        });
    }
    let dp = started(Config::default());
    assert!(matches!(dp.set_tx_steering(datapath::PortNo(9), true), Err(Error::NoSuchPort(_))));
}

#[test]
fn nor_while_both_do() {
    traffic_while(2, &[0], |dp, step| {
        dp.set_handlers([3, 1, 2][step % 3]).unwrap();
        dp.set_workers([&[0, 1, 1][..], &[1], &[0, 1]][step / 3 % 3]).unwrap();
    });
}

#[test]
fn the_flow_limit_moves() {
    let (dp, _, ports) = by_hand(Config { max_flows: 1, ..Config::default() }, 1);
    let spec = |n| flow(ports[0].0, 0, &[(Field::NwSrc, n)], vec![]);
    dp.install(spec(1)).unwrap();
    assert!(matches!(dp.install(spec(2)), Err(Error::TooManyFlows(1))));
    dp.set_max_flows(2);
    dp.install(spec(2)).unwrap();
    dp.set_max_flows(1);
    assert!(matches!(dp.install(spec(3)), Err(Error::TooManyFlows(1))));
    assert_eq!(dp.flow_count(), 2, "those that are there stay");
}

#[test]
fn sleep_can_be_switched_off() {
    let dp = started(Config { max_sleep: Duration::from_micros(100), ..Config::default() });
    dp.add_port(MemPort::new("a")).unwrap();
    eventually("sleep", || dp.stats().workers[0].sleeps > 0);
    dp.set_max_sleep(Duration::ZERO);
    dp.barrier();
    eventually("no more sleep", || {
        let before = dp.stats().workers[0].sleeps;
        std::thread::sleep(Duration::from_millis(5));
        dp.stats().workers[0].sleeps == before
    });
}
