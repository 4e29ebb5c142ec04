//! The control plane and a worker's turns, looked into.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use packet::{BATCH_SIZE, Time};
use ports::registry::{Env, PortSpec, open};

use crate::config::Config;
use crate::control::runtime::Inline;
use crate::datapath::Datapath;
use crate::error::Error;
use crate::slowpath::queue::Handler;
use crate::sync::clock::ManualClock;
use crate::worker::mailbox::{Command, Mailbox};

thread_local! {
    /// How many more threads the system lets this one start.
    static ALLOWED: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Takes one of the threads that are allowed.
pub(in crate::control) fn may_start() -> std::io::Result<()> {
    let left = ALLOWED.get().checked_sub(1).ok_or(std::io::ErrorKind::WouldBlock)?;
    ALLOWED.set(left);
    Ok(())
}

fn cores(dp: &Datapath) -> Vec<Option<usize>> {
    dp.pool.read().iter().map(|(_, worker)| worker.core).collect()
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_and_the_others_go_on() {
    let core = rustix::thread::sched_getcpu();
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    // Neither worker nor handler; then the worker alone.
    for allowed in [0, 1] {
        ALLOWED.set(allowed);
        assert!(matches!(dp.start(), Err(Error::Thread { .. })));
        assert_eq!((cores(&dp).len(), dp.poll()), (1, BATCH_SIZE), "whoever calls still drives them");
    }
    ALLOWED.set(usize::MAX);
    dp.start().unwrap();
    let received = || dp.stats().workers.iter().map(|stats| stats.received).sum::<u64>();
    let goes_on = || {
        let before = received();
        while received() == before {
            std::thread::yield_now();
        }
    };
    goes_on();
    ALLOWED.set(0);
    assert!(matches!(dp.set_workers(&[core]), Err(Error::Thread { .. })));
    assert_eq!(cores(&dp), [None], "the one that there was");
    goes_on();
    ALLOWED.set(1);
    dp.set_workers(&[core]).unwrap();
    assert_eq!(cores(&dp), [Some(core)], "tried again");
    goes_on();
    dp.stop();
}

#[test]
fn what_is_done_with_returned_packets_is_charged_to_their_port() {
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    let mut control = dp.control.lock();
    let Inline { workers, handlers } = control.inline();
    let worker = workers.values_mut().next().unwrap();
    assert_eq!(worker.turn(), BATCH_SIZE);
    let spent = worker.rx[0].cycles.get();
    // Nobody has connected a slow path.
    assert_eq!(handlers.iter_mut().map(Handler::serve).sum::<usize>(), BATCH_SIZE);
    assert_eq!(worker.take_returned(), BATCH_SIZE);
    assert!(spent > 0 && worker.rx[0].cycles.get() > spent);
    worker.reader.offline();
}

/// A flow that drops what comes from a port.
fn dropping(port: crate::action::PortNo) -> crate::upcall::FlowSpec {
    use packet::{Field, Key, Mask};
    let mut key = Key::new();
    key.common_mut().in_port = port.0.into();
    let mut mask = Box::new(Mask::wildcard());
    [Field::InPortOxm, Field::RecircId].into_iter().for_each(|field| mask.set_exact(field));
    crate::upcall::FlowSpec { key: Box::new(key), mask, actions: Vec::new(), tag: Arc::new(()) }
}

#[test]
fn ports_that_are_removed_together_wait_for_the_workers_once_and_not_each() {
    let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
    let ports: Vec<_> = (1..=101)
        .map(|n| {
            let device = open(&PortSpec::new(&format!("p{n}"), "dummy"), &env).unwrap();
            let port = dp.add_port(device).unwrap();
            dp.install(dropping(port)).unwrap();
            port
        })
        .collect();
    // Each port's list of flows is retired, which begins a grace period that nobody waits for.
    let waits = |removed: &[crate::action::PortNo]| {
        let before = dp.resources.domain.begin();
        assert_eq!(dp.remove_ports(removed).unwrap().len(), removed.len(), "the flow of each");
        dp.resources.domain.begin() - before - 1 - removed.len() as u64
    };
    assert_eq!((waits(&ports[..1]), waits(&ports[1..100])), (1, 1));
    assert!(dp.remove_ports(&[ports[100], ports[0]]).is_err());
    assert_eq!(dp.ports().len(), 1, "all stay where one does not exist");
}

#[test]
fn ports_that_are_removed_together_are_one_message_to_each_worker() {
    let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
    let device = |n: u32| open(&PortSpec::new(&format!("p{n}"), "dummy"), &env).unwrap();
    let ports: Vec<_> = (1..=100).map(|n| dp.add_port(device(n)).unwrap()).collect();
    // A worker that dies of each message, which ends the wait for its answer.
    let mailbox = Arc::new(Mailbox::new(Arc::default()));
    dp.pool.write().get_mut(0).unwrap().mailbox = mailbox.clone();
    let messages = std::thread::scope(|scope| {
        let removal = scope.spawn(|| dp.remove_ports(&ports).map(drop));
        let mut messages = 0;
        while !removal.is_finished() {
            messages += mailbox.take().len();
            std::thread::yield_now();
        }
        removal.join().unwrap().unwrap();
        messages
    });
    assert_eq!(messages, 1);
}

/// A queue with a frame in each turn, which does something else beside.
struct Queue<F>(F);

impl<F: FnMut() + Send> ports::RxQueue for Queue<F> {
    fn receive(&mut self, batch: &mut packet::Batch, _: Time) -> usize {
        self.0();
        batch.push(packet::Packet::from_slice(&[0; 60]));
        1
    }
}

#[test]
fn who_waits_for_a_worker_waits_for_a_batch_and_not_for_a_turn_of_a_thousand_queues() {
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    let port = dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    dp.install(dropping(port)).unwrap();
    let mut control = dp.control.lock();
    let workers = &mut control.inline().workers;
    let worker = workers.values_mut().next().unwrap();
    let (asked, answers) = mpsc::channel();
    let (mailbox, domain) = (worker.mailbox.clone(), dp.resources.domain.clone());
    let epoch = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let begun = epoch.clone();
    let asks = move || {
        mailbox.post(Command::Report(asked.clone()));
        begun.store(domain.begin(), Ordering::SeqCst);
    };
    let (domain, seen) = (dp.resources.domain.clone(), Arc::new(AtomicBool::new(false)));
    let noted = seen.clone();
    let looks = move || {
        let passed = domain.passed(epoch.load(Ordering::SeqCst));
        noted.store(answers.try_iter().count() == 1 && passed, Ordering::SeqCst);
    };
    let shared = worker.rx[0].port.clone();
    let rx =
        |index, queue: Box<dyn ports::RxQueue>| crate::worker::rx_queue::Rx::new(&shared, index, queue, Arc::default());
    let queues = [rx(1, Box::new(Queue(asks))), rx(2, Box::new(Queue(looks)))];
    worker.rx.extend(queues);
    worker.turn();
    assert!(seen.load(Ordering::SeqCst), "the queue after the one during whose batch it was left");
    worker.reader.offline();
}

#[test]
fn who_waits_for_a_worker_waits_for_a_packet_from_the_slow_path_and_not_for_all() {
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    let mut control = dp.control.lock();
    let Inline { workers, handlers } = control.inline();
    let worker = workers.values_mut().next().unwrap();
    assert_eq!(worker.turn(), BATCH_SIZE);
    assert_eq!(handlers.iter_mut().map(Handler::serve).sum::<usize>(), BATCH_SIZE);
    let (asked, answers) = mpsc::channel();
    worker.mailbox.post(Command::Report(asked));
    let epoch = dp.resources.domain.begin();
    worker.take_returned();
    assert!(answers.try_recv().is_ok() && dp.resources.domain.passed(epoch));
    worker.reader.offline();
}

/// A super-frame of TCP, to be cut into segments of this size.
fn super_frame(gso_size: u16) -> packet::Packet {
    let mut frame = vec![0; 54 + 60_000];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&60_040u16.to_be_bytes());
    (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
    let mut packet = packet::Packet::from_slice(&frame);
    *packet.offload_mut() = packet::Offload {
        flags: packet::Offload::NEEDS_CSUM,
        gso_type: packet::Offload::GSO_TCPV4,
        hdr_len: 54,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
    };
    packet
}

/// Whether a port whose super-frames become segments of this size is passed over in the turn after them.
fn is_charged_for_segments(gso_size: u16) -> bool {
    let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
    let add = |name| {
        let port = dp.add_port(open(&PortSpec::new(name, "dummy"), &env).unwrap()).unwrap();
        (port, env.dummies.find(name).unwrap())
    };
    let [(out, _), (victim, quiet), (attacker, loud)] = ["out", "victim", "attacker"].map(add);
    for port in [victim, attacker] {
        let output = crate::action::Action::Output(out);
        dp.install(crate::upcall::FlowSpec { actions: vec![output], ..dropping(port) }).unwrap();
    }
    let mut control = dp.control.lock();
    let workers = &mut control.inline().workers;
    let worker = workers.values_mut().next().unwrap();
    let mut turn = |loud_frames: usize| {
        assert!(quiet.inject(&[0; 60]));
        for _ in 0..loud_frames {
            assert!(loud.inject_packet(0, super_frame(gso_size)));
        }
        worker.turn()
    };
    // The first shows what is cheap.
    assert_eq!((turn(0), turn(4)), (1, 5));
    let polled = turn(4);
    worker.reader.offline();
    assert!(matches!(polled, 1 | 5), "the victim is served: {polled}");
    polled == 1
}

#[test]
fn tiny_segments_are_charged_to_the_port_of_their_frame() {
    // Who is charged is told by cycles, of which a machine that is busy takes some for itself.
    let mostly = |gso_size| (0..9).filter(|_| is_charged_for_segments(gso_size)).count() > 4;
    assert!(mostly(48) && !mostly(1448));
}

#[test]
fn recirculation_storms_are_charged_to_their_port() {
    use crate::action::Action;
    use crate::upcall::FlowSpec;
    use packet::{Field, Key, Mask};
    for copies in [1, 7] {
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
        let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
        let port = dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
        for id in 0..7 {
            let mut key = Key::new();
            (key.common_mut().in_port, key.common_mut().recirc_id) = (port.0.into(), id.into());
            let mut mask = Box::new(Mask::wildcard());
            [Field::InPortOxm, Field::RecircId].into_iter().for_each(|field| mask.set_exact(field));
            let actions = vec![Action::Recirc(id + 1); if id == 0 { copies } else { 1 }];
            dp.install(FlowSpec { key: Box::new(key), mask, actions, tag: Arc::new(()) }).unwrap();
        }
        let mut control = dp.control.lock();
        let workers = &mut control.inline().workers;
        let worker = workers.values_mut().next().unwrap();
        assert_eq!(worker.turn(), BATCH_SIZE);
        assert_eq!(worker.storms, u64::from(copies > 6), "{copies} copies");
        // The rest waits, and the port is not polled before it is through.
        assert_eq!((worker.parked.len(), worker.turn()), if copies > 6 { (1, 0) } else { (0, BATCH_SIZE) });
        worker.reader.offline();
    }
}
