//! Workers and handlers on threads of their own.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{MemPort, ToPort, eventually, flow, udp};
use datapath::sync::clock::MonotonicClock;
use datapath::{Action, Config, Datapath, DropReason};
use packet::Field;

/// Ends a thread that goes on until it is told: also where the test fails, which would wait for it otherwise.
#[derive(Default)]
struct Stop(AtomicBool);

/// Tells it when the scope ends.
struct AtTheEnd<'a>(&'a Stop);

impl Stop {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.now();
    }
}

fn started(config: Config) -> Arc<Datapath> {
    let dp = Datapath::new(config, Arc::new(MonotonicClock::new()));
    dp.start().unwrap();
    dp
}

#[test]
fn an_idle_worker_sleeps_and_wakes() {
    let event = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
    let dp = started(Config::default());
    // The other has no receive queue, so that none has to be polled.
    let (a, b) = (MemPort::with("a", 1, usize::MAX, Some(event)), MemPort::with("b", 0, usize::MAX, None));
    let (in_port, out) = (dp.add_port(a.clone()).unwrap(), dp.add_port(b.clone()).unwrap());
    dp.install(flow(in_port, 0, &[], vec![Action::Output(out)])).unwrap();
    eventually("sleep", || dp.stats().workers[0].sleeps > 0);
    std::thread::sleep(Duration::from_millis(30));
    dp.reset_stats();
    std::thread::sleep(Duration::from_millis(50));
    let idle = dp.stats().workers[0].turns;
    assert!(idle < 100, "{idle} turns while every queue can be waited for");
    // Frames wake it, and so do commands: nothing else would end its sleep.
    let sleeps = dp.stats().workers[0].sleeps;
    a.give(&udp(1, 2, 3, 4));
    eventually("forwarding", || b.sent() == 1);
    eventually("sleep again", || dp.stats().workers[0].sleeps > sleeps);
    let remover = std::thread::spawn({
        let dp = dp.clone();
        move || dp.remove_port(out).unwrap()
    });
    eventually("the removal", || remover.is_finished());
    remover.join().unwrap();
}

#[test]
fn without_sleep_a_worker_spins() {
    let dp = started(Config { max_sleep: Duration::ZERO, ..Config::default() });
    eventually("turns", || dp.stats().workers[0].turns > 1000);
    assert_eq!(dp.stats().workers[0].sleeps, 0);
}

#[test]
fn ports_come_and_go_under_traffic() {
    let dp = started(Config { workers: vec![0, 0], ..Config::default() });
    let (a, b) = (MemPort::with("a", 2, usize::MAX, None), MemPort::with("b", 1, 1, None));
    let (in_port, out) = (dp.add_port(a.clone()).unwrap(), dp.add_port(b.clone()).unwrap());
    assert_eq!(dp.rx_assignments().iter().map(|r| r.worker).collect::<Vec<_>>(), [0, 1, 0]);
    dp.install(flow(in_port, 0, &[], vec![Action::Output(out)])).unwrap();
    let stop = Stop::default();
    let given = std::thread::scope(|scope| {
        let _end = AtTheEnd(&stop);
        let sender = scope.spawn(|| {
            let mut given = 0;
            while !stop.is_set() {
                a.give(&udp(1, 2, 3, 4));
                given += 1;
                std::thread::yield_now();
            }
            given
        });
        for n in 0..20 {
            let other = MemPort::new(&format!("other{n}"));
            let no = dp.add_port(other.clone()).unwrap();
            let id = dp.install(flow(no, 0, &[], vec![Action::Output(out)])).unwrap();
            other.give(&udp(9, 9, 9, 9));
            eventually("the other port's packet", || dp.flow_stats(id).unwrap().packets == 1);
            let removed = dp.remove_port(no).unwrap();
            assert_eq!((removed.len(), removed[0].stats.packets), (1, 1));
            assert_eq!(Arc::strong_count(&other), 1);
        }
        stop.now();
        sender.join().unwrap()
    });
    eventually("all packets", || b.sent() == given + 20);
    assert!(dp.stats().workers.iter().all(|w| w.drops.total() == 0));
}

/// A worker that is at work sees the port only after its turn. What its turn receives could meet a flow to the port.
#[test]
fn a_port_is_there_for_each_worker_when_it_was_added() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    dp.add_port(a.clone()).unwrap();
    // The worker waits for this lock in the middle of a turn.
    let receiving = a.queues[0].lock().unwrap();
    eventually("a turn that waits", || a.waits.load(Ordering::SeqCst) > 0);
    let adder = std::thread::spawn({
        let (dp, b) = (dp.clone(), b.clone());
        move || dp.add_port(b).unwrap()
    });
    eventually("the port in the table", || dp.ports().len() == 2);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!adder.is_finished());
    drop(receiving);
    adder.join().unwrap();
}

#[test]
fn settled_means_that_the_slow_path_is_through() {
    let dp = started(Config { workers: vec![0, 0], ..Config::default() });
    let (a, b, out) = (MemPort::new("a"), MemPort::new("b"), MemPort::new("out"));
    let no = [&a, &b, &out].map(|p| dp.add_port(p.clone()).unwrap());
    // Each packet is a miss of its own, and each takes a while.
    dp.set_upcall(ToPort::slow(no[2], Field::NwDst, false, Duration::from_micros(60)));
    for n in 0..40 {
        a.give(&udp(n, n, 3, 4));
        b.give(&udp(n, n, 5, 6));
    }
    assert!(!dp.settle(Duration::from_millis(1)), "not all at once");
    assert!(dp.settle(Duration::from_secs(60)));
    assert_eq!(out.sent(), 80);
    assert!(dp.settle(Duration::from_secs(60)), "nothing to wait for");
}

#[test]
fn without_threads_settling_drives_the_workers() {
    let dp = Datapath::new(Config::default(), Arc::new(MonotonicClock::new()));
    let (a, out) = (MemPort::new("a"), MemPort::new("out"));
    let no = [&a, &out].map(|p| dp.add_port(p.clone()).unwrap());
    dp.set_upcall(ToPort::new(no[1], Field::NwDst, true));
    (0..40).for_each(|n| a.give(&udp(1, n, 3, 4)));
    assert!(dp.settle(Duration::from_secs(60)));
    assert_eq!(out.sent(), 40);
}

/// More than the slow path answers meanwhile, and no more than a port's share of the queue.
#[test]
fn a_burst_of_new_connections_gets_through_in_order() {
    const CONNECTIONS: u32 = 2_500;
    for handlers in [1, 3] {
        let dp = started(Config { handlers, ..Config::default() });
        let (a, out) = (MemPort::new("a"), MemPort::new("out"));
        let no = [&a, &out].map(|p| dp.add_port(p.clone()).unwrap());
        dp.set_upcall(ToPort::slow(no[1], Field::NwDst, true, Duration::from_micros(20)));
        for half in 0..2 {
            for n in 0..CONNECTIONS {
                let mut frame = udp(1, n, 3, 4);
                frame[63] = half;
                a.queues[0].lock().unwrap().push_back(packet::Packet::from_slice(&frame));
            }
        }
        a.give(&udp(1, 0, 3, 4));
        eventually("all packets", || out.sent() == 2 * CONNECTIONS as usize + 1);
        let mut halves = vec![Vec::new(); CONNECTIONS as usize];
        for frame in out.take() {
            let n = u32::from_be_bytes(frame[30..34].try_into().unwrap());
            halves[n as usize].push(frame[63]);
        }
        assert!(halves[1..].iter().all(|halves| halves[..] == [0, 1]), "{handlers} handlers");
    }
}

#[test]
fn a_flooding_port_leaves_room_for_others() {
    let dp = started(Config { upcall_queue: 64, ..Config::default() });
    let (flood, quiet, out) = (MemPort::new("flood"), MemPort::new("quiet"), MemPort::new("out"));
    let no = [&flood, &quiet, &out].map(|p| dp.add_port(p.clone()).unwrap());
    dp.set_upcall(ToPort::slow(no[2], Field::NwDst, false, Duration::from_micros(60)));
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let _end = AtTheEnd(&stop);
        scope.spawn(|| {
            let mut n = 0;
            while !stop.is_set() {
                (0..32).for_each(|_| flood.give(&udp(n, n, 3, 4)));
                n += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let drops =
            |port| dp.stats().ports.iter().find(|(no, _)| *no == port).unwrap().1.get(DropReason::UpcallQueueFull);
        eventually("overflow", || drops(no[0]) > 0);
        for n in 0..20 {
            quiet.give(&udp(7, n, 3, 4));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(drops(no[1]), 0);
        stop.now();
    });
}

/// New connections in numbers fill the port's share of the queue; connections that have a flow are not taken for them.
#[test]
fn a_flood_leaves_the_known_connections_of_its_port_alone() {
    let dp = started(Config::default());
    let (a, b, out) = (MemPort::new("a"), MemPort::new("b"), MemPort::new("out"));
    let no = [&a, &b, &out].map(|p| dp.add_port(p.clone()).unwrap());
    dp.set_upcall(ToPort::slow(no[2], Field::NwDst, false, Duration::from_micros(60)));
    dp.install(flow(no[0], 0, &[(Field::UdpDst, 4)], vec![Action::Output(no[1])])).unwrap();
    let drops = || dp.stats().ports.iter().find(|(port, _)| *port == no[0]).unwrap().1.get(DropReason::UpcallQueueFull);
    let (mut new, mut known) = (0, 0);
    while known < 20_000 {
        (0..24).for_each(|_| {
            a.give(&udp(1, new, 3, 5));
            new += 1;
        });
        (0..8).for_each(|_| {
            a.give(&udp(7, known, 3, 4));
            known += 1;
        });
        eventually("room in the source", || a.queues[0].lock().unwrap().len() < 256);
    }
    assert!(drops() > 0, "the flood is more than the slow path can answer");
    eventually("all packets of known connections", || b.sent() == known as usize);
}

/// However fast a connection is, its packets do not go to the slow path for ever because others of it are there.
#[test]
fn packets_that_have_a_flow_wait_for_those_that_are_up() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    let no = [&a, &b].map(|p| dp.add_port(p.clone()).unwrap());
    let upcall = ToPort::slow(no[1], Field::NwDst, false, Duration::from_millis(300));
    dp.set_upcall(upcall.clone());
    let give = |n: u16| {
        let mut frame = udp(1, 2, 3, 4);
        frame[60..62].copy_from_slice(&n.to_be_bytes());
        a.give(&frame);
    };
    give(0);
    eventually("a miss", || upcall.calls.load(Ordering::SeqCst) == 1);
    let id = dp.install(flow(no[0], 0, &[], vec![Action::Output(no[1])])).unwrap();
    (1..400).for_each(give);
    eventually("all packets", || b.sent() == 400);
    let order: Vec<u16> = b.take().iter().map(|f| u16::from_be_bytes([f[60], f[61]])).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!((dp.stats().workers[0].misses, dp.flow_stats(id).unwrap().packets), (1, 399));
    assert!(dp.settle(Duration::from_secs(60)), "nothing is left behind");
}

#[test]
fn packets_of_a_connection_stay_in_order_while_their_flow_is_installed() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    let (in_port, out) = (dp.add_port(a.clone()).unwrap(), dp.add_port(b.clone()).unwrap());
    dp.set_upcall(ToPort::slow(out, Field::NwDst, true, Duration::from_micros(300)));
    for round in 0..20 {
        for n in 0..200u16 {
            let mut frame = udp(1, round, 3, 4);
            frame[60..62].copy_from_slice(&n.to_be_bytes());
            a.give(&frame);
            if n % 8 == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        eventually("all packets", || b.sent() == 200);
        let order: Vec<u16> = b.take().iter().map(|f| u16::from_be_bytes([f[60], f[61]])).collect();
        assert!(order.is_sorted(), "{order:?}");
    }
    assert_eq!(dp.flow_count(), 20);
    let _ = in_port;
}

#[test]
fn after_removal_no_packet_uses_the_flow() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    let no = [&a, &b].map(|p| dp.add_port(p.clone()).unwrap());
    let id = dp.install(flow(no[0], 0, &[], vec![Action::Output(no[1])])).unwrap();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let _end = AtTheEnd(&stop);
        scope.spawn(|| {
            while !stop.is_set() {
                a.give(&udp(1, 2, 3, 4));
                std::thread::yield_now();
            }
        });
        eventually("forwarding", || b.sent() > 100);
        let gone = dp.remove(id).unwrap();
        let sent = b.sent();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((b.sent(), gone.stats.packets), (sent, sent as u64));

        stop.now();
    });
}

/// Nobody has asked the slow path about these packets, whose answer might still be on its way.
#[test]
fn after_a_change_and_a_barrier_no_packet_is_sent_by_the_old_actions() {
    let dp = started(Config::default());
    let (a, b, c) = (MemPort::new("a"), MemPort::new("b"), MemPort::new("c"));
    let no = [&a, &b, &c].map(|p| dp.add_port(p.clone()).unwrap());
    let id = dp.install(flow(no[0], 0, &[], vec![Action::Output(no[1])])).unwrap();
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let _end = AtTheEnd(&stop);
        scope.spawn(|| {
            while !stop.is_set() {
                a.give(&udp(1, 2, 3, 4));
                std::thread::yield_now();
            }
        });
        eventually("forwarding", || b.sent() > 100);
        dp.modify(id, vec![Action::Output(no[2])]).unwrap();
        dp.barrier();
        let sent = b.sent();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(b.sent(), sent);
        eventually("forwarding to the other", || c.sent() > 0);
        stop.now();
    });
}

/// Also those that were found for a flow just before it went: they are counted for it, and done with as it says.
#[test]
fn packets_of_a_flow_that_goes_are_counted_once() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    let no = [&a, &b].map(|p| dp.add_port(p.clone()).unwrap());
    let upcall = ToPort::new(no[1], Field::NwDst, false);
    dp.set_upcall(upcall.clone());
    let stop = Stop::default();
    let of_flows = std::thread::scope(|scope| {
        let _end = AtTheEnd(&stop);
        scope.spawn(|| {
            // Each of another connection, so that none has to wait for others.
            let mut connection = 0;
            while !stop.is_set() {
                (0..32).for_each(|n| a.give(&udp(1, connection + n, 3, 4)));
                connection += 32;
                eventually("room", || a.queues[0].lock().unwrap().len() < 512);
                b.take();
            }
        });
        let mut of_flows = 0;
        for n in 0..3000 {
            let twice = vec![Action::Output(no[1]), Action::Output(no[1])];
            let id = dp.install(flow(no[0], 0, &[], twice)).unwrap();
            if n % 100 == 0 {
                eventually("a packet of the flow", || dp.flow_stats(id).unwrap().packets > 0);
            }
            of_flows += dp.remove(id).unwrap().stats.packets;
        }
        stop.now();
        of_flows
    });
    assert!(dp.settle(Duration::from_secs(60)));
    let worker = &dp.stats().workers[0];
    let of_upcall = upcall.misses.load(Ordering::SeqCst) as u64;
    assert!(of_flows > 0);
    assert_eq!(worker.received, of_flows + of_upcall + worker.lost);
}

#[test]
fn threads_stop_and_start_again() {
    let dp = started(Config::default());
    let (a, b) = (MemPort::new("a"), MemPort::new("b"));
    let (in_port, out) = (dp.add_port(a.clone()).unwrap(), dp.add_port(b.clone()).unwrap());
    dp.install(flow(in_port, 0, &[], vec![Action::Output(out)])).unwrap();
    a.give(&udp(1, 2, 3, 4));
    assert_eq!(dp.poll(), 0, "threads drive it");
    eventually("forwarding by threads", || b.sent() == 1);
    dp.stop();
    a.give(&udp(1, 2, 3, 4));
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!((b.sent(), dp.poll(), b.sent()), (1, 1, 2));
    dp.start().unwrap();
    a.give(&udp(1, 2, 3, 4));
    eventually("forwarding by threads", || b.sent() == 3);
}

#[test]
fn a_core_that_does_not_exist_is_an_error() {
    let dp = Datapath::new(Config { workers: vec![900], ..Config::default() }, Arc::new(MonotonicClock::new()));
    let error = dp.start().unwrap_err().to_string();
    assert!(error.contains("core 900"), "{error}");
    assert_eq!(dp.poll(), 0);
}
