//! With a flush interval, packets wait for others; none waits for ever, whatever happens to its worker, its
//! port or its clock.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{MemPort, by_hand, eventually, flow, udp};
use datapath::sync::clock::ManualClock;
use datapath::{Action, Config, Datapath, PortNo};
use packet::{Clock, Time};

/// So long that no test sees its end.
const HOUR: Duration = Duration::from_secs(3600);

fn waiting_for(interval: Duration) -> Config {
    Config { tx_flush_interval: interval, ..Config::default() }
}

/// A clock that moves by a nanosecond with each reading: packets never come due.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Time {
        Time(1_000_000_000 + self.0.fetch_add(1, Ordering::SeqCst))
    }
}

type Switch = (Arc<Datapath>, Vec<(PortNo, Arc<MemPort>)>);

/// Two ports, the first of which sends to the second, and workers on threads.
fn on_threads(config: Config, clock: Arc<dyn Clock>) -> Switch {
    let dp = Datapath::new(config, clock);
    let ports: Vec<_> =
        ["a", "b"].map(MemPort::new).into_iter().map(|p| (dp.add_port(p.clone()).unwrap(), p)).collect();
    dp.install(flow(ports[0].0, 0, &[], vec![Action::Output(ports[1].0)])).unwrap();
    dp.start().unwrap();
    (dp, ports)
}

/// Three frames are received, and nothing is sent.
fn give_three((dp, ports): &Switch) {
    (0..3).for_each(|_| ports[0].1.give(&udp(1, 2, 3, 4)));
    eventually("reception", || dp.stats().workers.iter().map(|w| w.received).sum::<u64>() == 3);
    assert_eq!(ports[1].1.sent(), 0, "they wait");
}

#[test]
fn a_burst_leaves_before_its_first_packet_has_waited_too_long() {
    let (dp, clock, p) = by_hand(waiting_for(Duration::from_micros(50)), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let step = |micros, frames| {
        clock.advance(Duration::from_micros(micros));
        (0..frames).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
        dp.poll();
        (p[1].1.sent(), p[1].1.bursts.load(Ordering::SeqCst))
    };
    step(1, 0);
    assert_eq!(step(1, 1), (0, 0));
    assert_eq!(step(20, 1), (0, 0));
    assert_eq!(step(10, 1), (0, 0));
    assert_eq!(step(10, 0), (3, 1), "40 µs have passed, and the next turn may be too late");
    // A full burst does not wait.
    assert_eq!(step(1, 32), (35, 2));
    assert_eq!(step(48, 1), (35, 2), "its wait has just begun");
    assert_eq!(step(26, 0), (36, 3), "another turn like this would be one too many");
    let worker = &dp.stats().workers[0];
    assert_eq!((worker.sent, worker.batches_sent, worker.packets_per_batch()), (36, 3, 12.0));
}

#[test]
fn nothing_waits_for_a_clock_that_stands_still() {
    let (dp, clock, p) = by_hand(waiting_for(HOUR), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    clock.advance(Duration::from_micros(1));
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(p[1].1.sent(), 0);
    // The clock stops: what waits leaves, and what comes does not wait.
    dp.poll();
    assert_eq!(p[1].1.sent(), 1);
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(p[1].1.sent(), 2);

    let switch =
        on_threads(Config { max_sleep: Duration::ZERO, ..waiting_for(HOUR) }, Arc::new(ManualClock::new(Time(1))));
    switch.1[0].1.give(&udp(1, 2, 3, 4));
    eventually("sending", || switch.1[1].1.sent() == 1);
}

#[test]
fn what_waits_leaves_when_the_interval_changes() {
    let switch = on_threads(Config { max_sleep: Duration::ZERO, ..waiting_for(HOUR) }, Arc::new(Ticking::default()));
    give_three(&switch);
    switch.0.set_tx_flush_interval(HOUR / 2);
    eventually("sending", || switch.1[1].1.sent() == 3);
    assert_eq!(switch.1[1].1.bursts.load(Ordering::SeqCst), 1);
}

#[test]
fn what_waits_leaves_before_its_worker_sleeps() {
    let switch = on_threads(waiting_for(HOUR), Arc::new(Ticking::default()));
    switch.1[0].1.give(&udp(1, 2, 3, 4));
    eventually("sending", || switch.1[1].1.sent() == 1);
    // It is counted behind what leaves.
    eventually("sleeping", || switch.0.stats().workers[0].sleeps > 0);
}

#[test]
fn what_waits_leaves_when_its_worker_stops() {
    let switch = on_threads(Config { max_sleep: Duration::ZERO, ..waiting_for(HOUR) }, Arc::new(Ticking::default()));
    give_three(&switch);
    switch.0.stop();
    assert_eq!(switch.1[1].1.sent(), 3);
}

#[test]
fn what_waits_leaves_when_its_worker_goes() {
    let config = Config { max_sleep: Duration::ZERO, workers: vec![0], ..waiting_for(HOUR) };
    let switch = on_threads(config, Arc::new(Ticking::default()));
    give_three(&switch);
    switch.0.set_workers(&[1]).unwrap();
    assert_eq!(switch.1[1].1.sent(), 3);
}

#[test]
fn what_waits_leaves_when_its_port_goes() {
    let switch = on_threads(Config { max_sleep: Duration::ZERO, ..waiting_for(HOUR) }, Arc::new(Ticking::default()));
    give_three(&switch);
    switch.0.remove_port(switch.1[1].0).unwrap();
    assert_eq!(switch.1[1].1.sent(), 3);
}

#[test]
fn what_waits_leaves_when_the_port_it_came_from_goes() {
    let switch = on_threads(Config { max_sleep: Duration::ZERO, ..waiting_for(HOUR) }, Arc::new(Ticking::default()));
    give_three(&switch);
    switch.0.remove_port(switch.1[0].0).unwrap();
    switch.0.set_tx_flush_interval(Duration::ZERO);
    eventually("sending", || switch.1[1].1.sent() == 3);
}
