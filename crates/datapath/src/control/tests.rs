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
use crate::slowpath::channel::CHANNELS;
use crate::slowpath::handler::Handler;
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
        assert_eq!((cores(&dp).len(), dp.poll()), (1, BATCH_SIZE), "the caller still drives them");
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
    // No slow path is connected.
    assert_eq!(handlers.iter_mut().map(Handler::serve).sum::<usize>(), BATCH_SIZE);
    assert_eq!(worker.take_returned(usize::MAX), BATCH_SIZE);
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
    // Each port's list of flows is retired, which begins a grace period that is not waited for.
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
    // A worker that panics at each command, which ends the wait for its reply.
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
fn a_command_waits_for_a_batch_and_not_for_a_turn_of_a_thousand_queues() {
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
    let dp_port = worker.rx[0].port.clone();
    let rx = |index, queue: Box<dyn ports::RxQueue>| {
        crate::worker::rx_queue::Rx::new(&dp_port, index, queue, Arc::default())
    };
    let queues = [rx(1, Box::new(Queue(asks))), rx(2, Box::new(Queue(looks)))];
    worker.rx.extend(queues);
    worker.turn();
    assert!(seen.load(Ordering::SeqCst), "the queue after the one during whose batch it was left");
    worker.reader.offline();
}

#[test]
fn a_command_waits_for_one_packet_from_the_slow_path_and_not_for_all() {
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
    worker.take_returned(usize::MAX);
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
    // Charges depend on cycles, of which a busy machine takes some for itself.
    let mostly = |gso_size| (0..9).filter(|_| is_charged_for_segments(gso_size)).count() > 4;
    assert!(mostly(48) && !mostly(1448));
}

/// A source of packets of which each is recirculated six times, in so many copies.
fn storm(dp: &Datapath, copies: usize) -> crate::action::PortNo {
    use crate::action::Action;
    use packet::{Field, Key, Mask};
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    let port = dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    for id in 0..7 {
        let mut key = Key::new();
        (key.common_mut().in_port, key.common_mut().recirc_id) = (port.0.into(), id.into());
        let mut mask = Box::new(Mask::wildcard());
        [Field::InPortOxm, Field::RecircId].into_iter().for_each(|field| mask.set_exact(field));
        let actions = vec![Action::Recirc(id + 1); if id == 0 { copies } else { 1 }];
        dp.install(crate::upcall::FlowSpec { key: Box::new(key), mask, actions, tag: Arc::new(()) }).unwrap();
    }
    port
}

#[test]
fn recirculation_storms_are_charged_to_their_port() {
    for copies in [1, 7] {
        let dp = Datapath::new(Config { max_depth: 6, ..Config::default() }, Arc::new(ManualClock::new(Time(1))));
        storm(&dp, copies);
        let mut control = dp.control.lock();
        let workers = &mut control.inline().workers;
        let worker = workers.values_mut().next().unwrap();
        assert_eq!(worker.turn(), BATCH_SIZE);
        assert_eq!(worker.storms, u64::from(copies > 6), "{copies} copies");
        // The rest waits, and the port is not polled before it is through.
        assert_eq!((worker.deferred.len(), worker.turn()), if copies > 6 { (1, 0) } else { (0, BATCH_SIZE) });
        worker.reader.offline();
    }
}

#[test]
fn what_is_left_of_a_storm_is_counted_when_its_worker_ends() {
    use crate::account::Account;
    use crate::drop::DropReason;
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    storm(&dp, 7);
    let mut control = dp.control.lock();
    let (_, mut worker) = control.inline().workers.pop_first().unwrap();
    worker.turn();
    let counters = worker.executor.counters.clone();
    let deferred = worker.deferred.iter().map(|of_port| of_port.packets as u64).sum::<u64>();
    let account = || Account::of(std::iter::once(&counters.read()));
    let before = account();
    assert!(deferred > 0 && before.came() - before.went() == deferred, "{deferred} are deferred: {before}");
    worker.reader.offline();
    worker.end();
    let after = account();
    let storm = |account: &Account| account.drops.get(DropReason::RecirculationStorm);
    assert_eq!((after.came() - after.went(), storm(&after) - storm(&before)), (0, deferred), "{after}");
}

/// A slow path that drops each packet, after it has written down its number.
#[derive(Default)]
struct Numbers(parking_lot::Mutex<Vec<u32>>);

impl crate::upcall::Upcall for Numbers {
    fn misses(&self, misses: &mut [crate::upcall::Miss], _: Time) {
        for miss in misses {
            let number = miss.packet.data()[50..54].try_into().unwrap();
            self.0.lock().push(u32::from_be_bytes(number));
            miss.verdict = crate::upcall::Verdict::Drop(crate::drop::DropReason::Rule);
        }
    }

    fn punt(&self, _: &packet::Packet, _: &packet::Key, _: &crate::action::Punt, _: Time) {}
}

#[test]
fn packets_that_wait_at_a_handler_go_with_their_channel_to_another() {
    let config = Config { workers: vec![0, 1], ..Config::default() };
    let (dp, env) = (Datapath::new(config, Arc::new(ManualClock::new(Time(1)))), Env::default());
    let port = dp.add_port(open(&PortSpec::new("p1", "dummy"), &env).unwrap()).unwrap();
    dp.set_rx_affinity(port, [(0, 1)].into()).unwrap();
    let (device, slow_path) = (env.dummies.find("p1").unwrap(), Arc::new(Numbers::default()));
    dp.set_upcall(slow_path.clone());
    let mut control = dp.control.lock();
    let mut next = 0;
    // Misses of which one batch is answered, and the others wait at the handler.
    let mut go_up = |control: &mut crate::control::plane::ControlPlane, handler: usize| {
        let Inline { workers, handlers } = control.inline();
        let worker = workers.get_mut(&1).unwrap();
        for _ in 0..3 {
            for _ in 0..BATCH_SIZE {
                let mut frame = vec![0; 64];
                frame[12] = 0x99;
                frame[50..54].copy_from_slice(&u32::to_be_bytes(next));
                next += 1;
                assert!(device.inject(&frame));
            }
            assert_eq!(worker.turn(), BATCH_SIZE);
        }
        worker.reader.offline();
        assert_eq!(handlers[handler].serve(), BATCH_SIZE);
    };
    go_up(&mut control, 0);
    control.set_handlers(2).unwrap();
    let serve_all = |control: &mut crate::control::plane::ControlPlane| {
        control.inline().handlers.iter_mut().map(Handler::serve).collect::<Vec<_>>()
    };
    assert_eq!(serve_all(&mut control), [0, BATCH_SIZE], "the channel of worker 1 is handler 1's now");
    go_up(&mut control, 1);
    control.set_handlers(1).unwrap();
    while serve_all(&mut control).iter().sum::<usize>() > 0 {}
    assert_eq!(*slow_path.0.lock(), (0..next).collect::<Vec<_>>(), "lost, doubled or overtaken");
    let worker = control.inline().workers.get_mut(&1).unwrap();
    worker.reader.quiescent();
    worker.take_returned(usize::MAX);
    assert!(worker.executor.misses.is_empty(), "all are back");
    worker.reader.offline();
}

#[test]
fn a_worker_wakes_the_handler_that_serves_it() {
    let config = Config { workers: vec![0, 1, 2], handlers: 3, ..Config::default() };
    let dp = Datapath::new(config, Arc::new(ManualClock::new(Time(1))));
    let mut control = dp.control.lock();
    for count in [3, 1, 2, 16, 1, 3] {
        control.set_handlers(count).unwrap();
        assert_eq!((control.handlers(), control.inline().handlers.len()), (count, count));
        for worker in 0..3 {
            for channel in 0..CHANNELS {
                let notifier = control.notifier_of(worker, channel);
                let misses = &control.inline().workers[&worker].executor.misses;
                assert!(misses.notifies(channel, &notifier), "{count}: {worker}, {channel}");
            }
        }
    }
    control.set_handlers(0).unwrap();
    assert_eq!(control.handlers(), 1, "there is always one");
    control.set_handlers(1000).unwrap();
    assert_eq!(control.handlers(), 16, "no more than there can be workers");
}

#[test]
fn a_handler_that_cannot_be_started_is_an_error_and_the_others_go_on() {
    let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
    let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
    dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
    dp.start().unwrap();
    // No slow path is connected, so all misses are lost.
    let answered = || dp.stats().workers.iter().map(|stats| stats.lost).sum::<u64>();
    let goes_on = || {
        let before = answered();
        while answered() == before {
            std::thread::yield_now();
        }
    };
    ALLOWED.set(1);
    assert!(matches!(dp.set_handlers(3), Err(Error::Thread { .. })));
    assert_eq!(dp.handlers(), 1, "not two either");
    goes_on();
    ALLOWED.set(usize::MAX);
    dp.set_handlers(3).unwrap();
    assert_eq!(dp.handlers(), 3, "tried again");
    goes_on();
    dp.set_handlers(2).unwrap();
    goes_on();
    dp.stop();
    assert_eq!((dp.handlers(), dp.control.lock().inline().handlers.len()), (2, 2));
}
