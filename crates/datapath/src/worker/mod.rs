//! Workers: one forwards on one core, and does nothing else.
//!
//! A worker is a plain object that whoever owns it runs turn by turn: its thread, or
//! [`Datapath::poll`](crate::Datapath::poll). What others want of it they leave in its [`Mailbox`], which
//! it empties between turns, and in long ones between batches; looking costs it one load.

pub mod fairness;
pub mod idle_policy;
pub mod idle_queues;
pub mod time_cache;
pub mod waker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use packet::flow::extract::{VlanLimit, extract};
use packet::{Clock, Packet, Time};
use parking_lot::Mutex;
use ports::RxQueue;
use ports::offload::fine_frames;

use crate::action::PortNo;
use crate::actions::execute::{Actor, Metadata, Recirculated, View};
use crate::actions::program::Program;
use crate::classify::Table;
use crate::classify::batch::Caches;
use crate::classify::mixed::Recent;
use crate::drop::DropReason;
use crate::pipeline::forward::{Frames, SLICE};
use crate::pipeline::passes::Pass;
use crate::pipeline::port::{PortShared, Queue, SharedQueue};
use crate::slowpath::queue::{Answer, Answered, Channel};
use crate::sync::counters::Counter;
use crate::sync::rcu::Reader;
use crate::sync::{self, tsc};
use crate::worker::fairness::{Debt, Fairness};
use crate::worker::idle_policy::Patience;
use crate::worker::idle_queues::{Parking, Ticket};
use crate::worker::time_cache::Pace;
use crate::worker::waker::Waker;

/// Turns without a packet before a worker sleeps.
const EMPTY_TURNS: u32 = 64;

/// How often transmit queues are reaped at least while something may be on its way (contract of
/// [`ports::TxQueue::housekeep`]).
const HOUSEKEEP: Duration = Duration::from_millis(1);

/// The share of the time for which a queue has been empty that passes before another look at it, if that is
/// dear and the worker busy; and the most.
const PATIENCE: u32 = 16;
const LONGEST_PATIENCE: Duration = Duration::from_micros(100);

/// How long a busy worker does not look at what has been empty for so long, and is dear to look at.
pub fn longest_wait(empty_for: Duration) -> Duration {
    (empty_for / PATIENCE).min(LONGEST_PATIENCE)
}

/// Something that a worker is asked to do.
pub enum Command {
    /// Forward from and to a port.
    AddPort { port: Arc<PortShared>, tx: Queue, rx: Vec<Rx> },
    /// Receive from these queues, of a port that it sends to already.
    TakeRx { rx: Vec<Rx> },
    /// Give these receive queues of a port away, once none of its packets is up.
    GiveRx { port: PortNo, queues: Vec<usize>, reply: Sender<Vec<Rx>> },
    /// Share the transmit queue of a port with another worker.
    ShareTx { port: PortNo, reply: Sender<Option<SharedQueue>> },
    /// Send to a port by another queue.
    ReplaceTx { port: PortNo, tx: Queue },
    /// Forget the locks of transmit queues that nobody shares any more.
    ReclaimTx,
    /// Say when no packet is up.
    Drain { reply: Sender<()> },
    /// Give the queues of ports back.
    RemovePorts { ports: Arc<[PortNo]>, reply: Sender<GivenBack> },
    /// Run a program on a packet.
    Execute { packet: Packet, metadata: Metadata, program: Box<Program> },
    /// Change the flush interval.
    SetFlushInterval(Duration),
    /// Say whether a turn since the last report has found nothing to do, in any queue, nor any turn after it, and
    /// no packet is up in the slow path.
    Report(Sender<bool>),
    /// Change the longest sleep.
    SetMaxSleep(Duration),
    /// Change how many flows the exact-match cache remembers.
    SetExactOneIn(u32),
    /// Change how many VLAN tags are parsed.
    SetVlanLimit(VlanLimit),
    /// Change how many flows it can remember at most. What it remembered is forgotten.
    SetExactEntries(usize),
}

/// The queues of ports that a worker has stopped using, to be dropped.
#[derive(Default)]
pub struct GivenBack {
    /// To receive from.
    pub rx: Vec<Rx>,
    /// To send to.
    pub tx: Vec<Queue>,
}

/// What others leave for a worker.
pub struct Mailbox {
    pending: sync::atomic::AtomicBool,
    commands: Mutex<Vec<Command>>,
    /// Wakes the worker.
    pub waker: Arc<Waker>,
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(waker: Arc<Waker>) -> Mailbox {
        Mailbox { pending: sync::atomic::AtomicBool::new(false), commands: Mutex::new(Vec::new()), waker }
    }

    /// Leaves a command, in order, and wakes the worker.
    pub fn post(&self, command: Command) {
        self.commands.lock().push(command);
        self.pending.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    #[inline(always)]
    fn has_mail(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes what was left, in order.
    pub fn take(&self) -> Vec<Command> {
        // Cleared first: a command that is posted meanwhile is taken now or seen in the next turn.
        self.pending.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.commands.lock())
    }
}

/// A receive queue and its port.
pub struct Rx {
    /// The port.
    pub port: Arc<PortShared>,
    /// The queue's number.
    pub index: usize,
    /// The queue.
    pub queue: Box<dyn RxQueue>,
    /// Cycles spent on its packets. Written by the worker that has the queue.
    pub cycles: Arc<Counter>,
    /// What it owes to the worker's other queues.
    pub debt: Debt,
    /// What its last batches were like.
    pub recent: Recent,
    /// It was empty when it was looked at last.
    empty: bool,
    /// To look at it when it is empty may cost a system call: there is a descriptor to wait for.
    dear: bool,
    /// When it was not empty last.
    received: Time,
    /// When an empty one that is dear is worth another look.
    next_look: Time,
    /// See [`Parking`].
    pub ticket: Ticket,
}

impl Rx {
    /// A queue of a port, not yet looked at.
    pub fn new(port: &Arc<PortShared>, index: usize, queue: Box<dyn RxQueue>, cycles: Arc<Counter>) -> Rx {
        let dear = queue.wait_fd().is_some();
        let (received, next_look) = (Time(0), Time(0));
        let (debt, recent, empty) = (Debt::default(), Recent::default(), false);
        let ticket = Ticket::default();
        Rx { port: port.clone(), index, queue, cycles, debt, recent, empty, dear, received, next_look, ticket }
    }

    /// There are frames to be expected in it.
    pub fn awaits_frames(&mut self) {
        self.empty = false;
    }

    /// It was empty when it was looked at last.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// When it was not empty last.
    pub fn empty_since(&self) -> Time {
        self.received
    }

    /// To look at it when it is empty may cost a system call.
    pub fn is_dear(&self) -> bool {
        self.dear
    }

    /// Whether to poll it in this turn. Queues with packets do not pay for those without: these are polled in turns
    /// that `look` at the clock, and in idle ones unless that is dear. While other queues keep the worker
    /// `busy`, a dear one waits for the longer, the longer it has been empty.
    #[inline(always)]
    fn is_due(&self, look: bool, busy: bool, now: Time) -> bool {
        if !self.empty {
            return true;
        }
        if self.dear { look && (!busy || now >= self.next_look) } else { look || !busy }
    }

    /// Takes note of what a poll has found.
    #[inline(always)]
    pub fn looked(&mut self, count: usize, now: Time) {
        self.empty = count == 0;
        if !self.empty {
            self.received = now;
        } else if self.dear {
            self.next_look = now + longest_wait(now.since(self.received));
        }
    }
}

/// Receive queues of a port that are on their way to other workers. While they wait for packets that are
/// up, none of the port's is polled: otherwise the wait might never end.
pub struct Leaving {
    port: PortNo,
    /// What leaves.
    rx: Vec<Rx>,
    /// What stays.
    kept: Vec<Rx>,
    reply: Sender<Vec<Rx>>,
}

/// A worker.
pub struct Worker {
    /// Its number.
    pub number: usize,
    /// Its place in the RCU domain.
    pub reader: Reader,
    /// The flows.
    pub table: Arc<Table>,
    /// What it remembers of flows.
    pub caches: Caches,
    /// The batch at work.
    pub frames: Frames,
    /// What happens to packets.
    pub actor: Actor,
    /// Packets that are recirculated in later turns, by the port that they have come in on. While a port has some, it is
    /// not polled.
    pub parked: Vec<(PortNo, VecDeque<Recirculated>)>,
    /// Batches whose packets have become many by recirculation.
    pub storms: u64,
    /// What it polls.
    pub rx: Vec<Rx>,
    /// What it does not poll until there are frames.
    pub parking: Parking,
    /// Whether what it polls shares its time.
    pub fairness: Fairness,
    /// What it is about to give away.
    pub leaving: Vec<Leaving>,
    /// Who waits for all packets to have come back.
    pub draining: Vec<Sender<()>>,
    /// What it is asked to do.
    pub mailbox: Arc<Mailbox>,
    /// To and from the slow path.
    pub channel: Arc<Channel>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Longest sleep where a queue has to be polled; zero: none.
    pub max_sleep: Duration,
    /// Turns without a packet since the last one with.
    pub empty_turns: u32,
    /// See [`Command::Report`].
    pub idle: bool,
    /// What it has learnt about sleep.
    pub patience: Patience,
    /// When the transmit queues were reaped last.
    pub housekept: Time,
    /// How often it looks at clocks.
    pub pace: Pace,
}

impl Worker {
    /// One turn: everything that is there to be done, once. Returns how many packets were received.
    pub fn turn(&mut self) -> usize {
        let start = self.pace.start();
        self.reader.quiescent();
        let look = self.pace.is_clock_due(start);
        if look {
            let before = std::mem::replace(&mut self.actor.now, self.clock.now());
            // Of several turns where they follow each other: packets are sent the sooner for it.
            self.actor.outputs.turn(self.actor.now.since(before));
        }

        // What came back from the slow path goes before what is newer.
        let mut work = self.obey();
        let has_returned = self.channel.has_returned();
        if has_returned {
            work += self.take_returned();
        }
        let mut received = 0;
        let mut since = if work == 0 && !has_returned { start } else { tsc::cycles() };
        let busy = self.empty_turns == 0;
        let mut all_looked_at = self.parking.is_empty();
        if look && self.parking.is_due(busy, self.actor.now) {
            all_looked_at = self.parking.look(&mut self.rx, self.actor.now);
            since = tsc::cycles();
        }
        let mut whole;
        loop {
            whole = all_looked_at;
            let mut next = 0;
            while next < self.rx.len() {
                let queue = next;
                next += 1;
                let admitted = self.fairness.admits(&mut self.rx[queue].debt);
                if admitted && !self.parked.is_empty() {
                    let (in_port, start) = (self.rx[queue].port.no, tsc::cycles());
                    if self.unpark(in_port) {
                        (work, whole) = (work + 1, false);
                        since = self.bill(in_port, start);
                        continue;
                    }
                }
                if !admitted || !self.rx[queue].is_due(look, busy, self.actor.now) {
                    whole = false;
                    continue;
                }
                let (missed, storms, fine) = (self.actor.misses.missed, self.storms, fine_frames());
                let count = self.forward(queue);
                self.rx[queue].looked(count, self.actor.now);
                let until = tsc::cycles();
                if count > 0 {
                    received += count;
                    let cycles = until.wrapping_sub(since);
                    self.rx[queue].cycles.add(cycles);
                    let charged = self.actor.misses.missed != missed
                        || self.storms != storms
                        || self.fairness.is_dear(cycles)
                            && (fine_frames() != fine || self.is_pressed(self.rx[queue].port.no));
                    self.fairness.charge(&mut self.rx[queue].debt, cycles, charged);
                }
                since = until;
                if count > 0 && self.is_waited_for() {
                    // Queues may come and go: whether each was looked at is not known.
                    (work, whole) = (work + self.oblige(), false);
                    since = tsc::cycles();
                }
                if self.channel.has_returned() {
                    work += self.take_returned();
                    since = tsc::cycles();
                }
            }
            if !self.fairness.end_of_turn() {
                break;
            }
            self.rx.iter_mut().for_each(|rx| rx.debt.forgive());
        }
        if !self.parked.is_empty() {
            self.recirculate_strays();
        }
        if !(self.leaving.is_empty() && self.draining.is_empty()) {
            self.let_go();
        }
        work += received;
        self.actor.outputs.end_of_batch(self.actor.now);
        if self.actor.now.since(self.housekept) >= HOUSEKEEP {
            self.housekept = self.actor.now;
            self.actor.outputs.housekeep(self.actor.now);
            if self.parked.is_empty() {
                self.parking.tidy(&mut self.rx, self.actor.now);
            }
        }

        let counters = &self.actor.counters;
        // What comes behind the last batch counts to the next turn, where one follows.
        let last = if since == start { tsc::cycles() } else { since };
        let cycles = self.pace.end(last).wrapping_sub(start);
        counters.turns.add(1);
        if work > 0 {
            (self.empty_turns, self.idle) = (0, false);
            self.patience.work(self.actor.now);
            counters.busy_turns.add(1);
            counters.busy_cycles.add(cycles);
        } else {
            self.empty_turns = self.empty_turns.saturating_add(1);
            self.idle |= whole;
            counters.idle_cycles.add(cycles);
        }
        received
    }

    /// Whether somebody waits for this worker: has left a command, or waits for it to hold no reference.
    #[inline(always)]
    fn is_waited_for(&self) -> bool {
        self.mailbox.has_mail() || self.reader.is_behind()
    }

    /// Does within a turn, between two batches, what is otherwise done at its start: a turn is long where each of many
    /// queues has frames that are flooded to as many ports, and whoever waits would wait for all of them. Returns how many
    /// packets that handled.
    #[cold]
    fn oblige(&mut self) -> usize {
        self.reader.quiescent();
        self.obey()
    }

    /// Whether packets of this port ask for more masks than it may have.
    fn is_pressed(&self, in_port: PortNo) -> bool {
        self.table.list(in_port, self.reader.pin()).is_some_and(|list| list.pressed)
    }

    /// Does what others have asked for. Returns how many packets that handled.
    pub fn obey(&mut self) -> usize {
        if !self.mailbox.has_mail() {
            return 0;
        }
        // What came before the commands goes before them.
        self.recirculate();
        let commands = self.mailbox.take();
        let mut count = commands.len();
        for command in commands {
            match command {
                Command::AddPort { port, tx, rx } => {
                    self.receive_from(rx);
                    self.actor.outputs.add(port, tx);
                }
                Command::TakeRx { rx } => self.receive_from(rx),
                Command::GiveRx { port, queues, reply } => {
                    let of_port = self.take_rx(port);
                    let (rx, kept) = of_port.into_iter().partition(|rx| queues.contains(&rx.index));
                    self.leaving.push(Leaving { port, rx, kept, reply });
                }
                Command::ShareTx { port, reply } => {
                    let _ = reply.send(self.actor.outputs.share(port));
                }
                Command::ReplaceTx { port, tx } => self.actor.outputs.replace(port, tx, self.actor.now),
                Command::ReclaimTx => self.actor.outputs.reclaim(),
                Command::Drain { reply } => self.draining.push(reply),
                Command::RemovePorts { ports, reply } => {
                    let mut given_back = GivenBack::default();
                    for &port in &*ports {
                        given_back.rx.extend(self.take_rx(port));
                        given_back.tx.extend(self.actor.outputs.remove(port, self.actor.now));
                    }
                    // Closed by whoever asked: tearing down takes time.
                    let _ = reply.send(given_back);
                }
                Command::Execute { packet, metadata, program } => self.execute(packet, &metadata, &program),
                Command::SetFlushInterval(interval) => self.actor.outputs.set_interval(interval, self.actor.now),
                Command::Report(reply) => {
                    // To be asked is no work, or a worker that is asked would never be idle.
                    count -= 1;
                    let _ = reply.send(std::mem::take(&mut self.idle) && self.actor.misses.is_empty());
                }
                Command::SetMaxSleep(max_sleep) => self.max_sleep = max_sleep,
                Command::SetExactOneIn(one_in) => self.caches.set_one_in(one_in),
                Command::SetVlanLimit(limit) => {
                    (self.frames.notes.vlan_limit, self.actor.vlan_limit) = (limit, limit);
                }
                Command::SetExactEntries(entries) => self.caches.resize(entries),
            }
        }
        self.recirculate();
        count
    }

    /// Receives from these queues from now on.
    fn receive_from(&mut self, queues: Vec<Rx>) {
        for rx in queues {
            // Parked, it is found as soon as it has frames.
            if let Err(rx) = self.parking.park(rx) {
                self.rx.push(rx);
            }
        }
    }

    /// The receive queues of a port, no longer polled.
    fn take_rx(&mut self, port: PortNo) -> Vec<Rx> {
        let mut taken: Vec<Rx> = self.rx.extract_if(.., |rx| rx.port.no == port).collect();
        taken.iter_mut().for_each(|rx| self.parking.forget(rx));
        taken.extend(self.parking.take(port));
        taken
    }

    /// Gives away what may go now. What the queues' packets have come to is sent before, so that the next
    /// worker's come after them.
    #[cold]
    pub fn let_go(&mut self) {
        self.actor.outputs.flush(self.actor.now);
        for leaving in std::mem::take(&mut self.leaving) {
            if self.actor.misses.has_outstanding(leaving.port) {
                self.leaving.push(leaving);
                continue;
            }
            self.rx.extend(leaving.kept);
            // Whoever asked waits for it.
            let _ = leaving.reply.send(leaving.rx);
        }
        if self.actor.misses.is_empty() && self.parked.is_empty() {
            for waiting in self.draining.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    fn execute(&mut self, packet: Packet, metadata: &Metadata, program: &Program) {
        self.actor.counters.injected.add(1);
        let key = &mut self.frames.notes.keys[0];
        metadata.start(key);
        let layers = extract(packet.data(), key, self.actor.vlan_limit);
        self.actor.run(program, packet, &mut View::new(key, layers), Pass::FIRST.of(program));
        self.actor.misses.ring();
    }

    /// Takes what came back from the slow path, at the expense of the ports that it came in on. Returns how many packets.
    #[inline(never)]
    pub fn take_returned(&mut self) -> usize {
        let mut count = 0;
        let (mut since, mut of) = (tsc::cycles(), None);
        while let Some(returned) = self.actor.misses.take_returned(&mut self.actor.recirculated) {
            if let Some(before) = of.replace(returned.in_port)
                && before != returned.in_port
            {
                since = self.bill(before, since);
            }
            match returned.answered {
                Some(answered) => {
                    count += 1;
                    self.act_on(answered);
                }
                None => self.actor.counters.punted.add(1),
            }
            if self.is_waited_for() {
                if let Some(last) = of.take() {
                    self.bill(last, since);
                }
                count += self.oblige();
                since = tsc::cycles();
            }
        }
        if let Some(last) = of {
            since = self.bill(last, since);
        }
        if count > 0 {
            // Those that have waited for what came back, too.
            let before = self.actor.counters.recirculated.get();
            while self.actor.counters.recirculated.get() - before < SLICE
                && let Some(in_port) = self.recirculate_some()
            {
                since = self.bill(in_port, since);
            }
            self.park();
            self.actor.misses.ring();
        }
        count
    }

    /// Charges the queues of a port, in equal parts, for what was done since then. Returns what time it is.
    fn bill(&mut self, in_port: PortNo, since: u64) -> u64 {
        let until = tsc::cycles();
        let queues = self.rx.iter().filter(|rx| rx.port.no == in_port).count().max(1);
        let cycles = until.wrapping_sub(since) / queues as u64;
        for rx in self.rx.iter_mut().filter(|rx| rx.port.no == in_port) {
            rx.cycles.add(cycles);
            self.fairness.owe(&mut rx.debt, cycles);
        }
        until
    }

    fn act_on(&mut self, answered: Answered) {
        let actor = &mut self.actor;
        let Answered { packet, mut key, layers, pass, answer } = answered;
        let in_port = crate::upcall::in_port(&key);
        match answer {
            Answer::Drop(reason) => {
                let counter =
                    if reason == DropReason::UpcallError { &actor.counters.lost } else { &actor.counters.misses };
                counter.add(1);
                actor.outputs.drop(packet, reason, in_port);
            }
            Answer::Run(program) => {
                actor.counters.misses.add(1);
                actor.run(&program, packet, &mut View::new(&mut key, layers), pass.of(&program));
            }
        }
        actor.misses.reuse(key);
    }

    /// Runs until `stop`: the body of a worker's thread.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.pace = Pace::new(true);
        while !stop.load(Ordering::Relaxed) {
            self.turn();
            if self.empty_turns >= EMPTY_TURNS && self.may_rest() {
                self.rest(stop);
            }
        }
        self.actor.outputs.flush(self.actor.now);
        self.reader.offline();
    }

    /// Whether there is nothing to stay awake for.
    fn may_rest(&self) -> bool {
        let outputs = &self.actor.outputs;
        let awaited = !outputs.stands_still() && (outputs.is_due_soon() || !self.patience.is_over(self.actor.now));
        !awaited && !self.max_sleep.is_zero() && self.draining.is_empty()
    }

    /// Sleeps until there is something to do.
    fn rest(&mut self, stop: &AtomicBool) {
        self.patience.sleep();
        // Nothing is stuck while the worker sleeps.
        self.actor.outputs.flush(self.actor.now);
        let sent_lately = self.actor.outputs.sent_lately;
        self.actor.outputs.housekeep(self.actor.now);
        self.housekept = self.actor.now;

        let polled = self.rx.iter().any(|rx| rx.queue.wait_fd().is_none() && rx.queue.next_due().is_none());
        let due = self.rx.iter().filter_map(|rx| rx.queue.next_due()).min();
        let limits = [
            polled.then_some(self.max_sleep),
            due.map(|due| due.since(self.actor.now)),
            sent_lately.then_some(HOUSEKEEP),
        ];
        let timeout = limits.into_iter().flatten().min();

        let start = self.clock.now();
        // Counted before, for a sleep may be long.
        self.actor.counters.sleeps.add(1);
        self.reader.offline();
        let (mailbox, channel) = (&self.mailbox, &self.channel);
        let fds = self.rx.iter().filter_map(|rx| rx.queue.wait_fd()).chain(self.parking.wait_fd());
        mailbox
            .waker
            .sleep(fds, timeout, || mailbox.has_mail() || channel.has_returned() || stop.load(Ordering::SeqCst));
        self.reader.quiescent();
        // What is sent next does not wait for a turn as long as this sleep.
        self.actor.now = self.clock.now();
        self.actor.counters.slept_nanos.add(self.actor.now.since(start).as_nanos() as u64);
        self.pace = Pace::new(true);
        // One look at each queue, and back to sleep if there is nothing.
        self.empty_turns = EMPTY_TURNS - 1;
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A command that is left while the worker empties its mailbox is taken, or seen in the next turn.
    #[test]
    fn no_command_is_forgotten() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new(Arc::default()));
            let other = mailbox.clone();
            let poster = loom::thread::spawn(move || {
                other.post(Command::ReclaimTx);
                other.post(Command::ReclaimTx);
            });
            let mut taken = 0;
            if mailbox.has_mail() {
                taken += mailbox.take().len();
            }
            poster.join().unwrap();
            if mailbox.has_mail() {
                taken += mailbox.take().len();
            }
            assert_eq!(taken, 2);
            assert!(!mailbox.has_mail());
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use packet::Batch;
    use ports::{Env, PortSpec};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    struct Source(Option<OwnedFd>);

    impl RxQueue for Source {
        fn receive(&mut self, _: &mut Batch, _: Time) -> usize {
            0
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            self.0.as_ref().map(AsFd::as_fd)
        }
    }

    fn rx(fd: Option<OwnedFd>) -> Rx {
        let port = ports::registry::open(&PortSpec::new("null", "null"), &Env::default()).unwrap();
        Rx::new(&PortShared::new(PortNo(1), port, 1), 0, Box::new(Source(fd)), Arc::default())
    }

    #[test]
    fn an_empty_queue_waits_for_a_look_at_the_clock_beside_busy_ones() {
        let mut rx = rx(None);
        let due = |rx: &Rx, look, busy| rx.is_due(look, busy, Time(0));
        assert!(due(&rx, false, true), "nobody has looked yet");
        rx.looked(0, Time(0));
        assert_eq!([(false, true), (true, true), (false, false)].map(|(l, b)| due(&rx, l, b)), [false, true, true]);
        rx.looked(1, Time(0));
        assert!(due(&rx, false, true));
    }

    #[test]
    fn a_dear_queue_waits_the_longer_the_longer_it_has_been_empty() {
        let mut rx = rx(Some(eventfd(0, EventfdFlags::empty()).unwrap()));
        let at = |micros: u64| Time(micros * 1000);
        rx.looked(1, at(1000));
        rx.looked(0, at(1160));
        assert!(!rx.is_due(true, true, at(1169)) && rx.is_due(true, true, at(1170)), "a sixteenth of 160 µs");
        assert!(rx.is_due(true, false, at(1161)), "nothing else to do");
        assert!(!rx.is_due(false, false, at(1170)), "not in every turn");
        rx.looked(0, at(1_001_000));
        assert!(!rx.is_due(true, true, at(1_001_099)) && rx.is_due(true, true, at(1_001_100)), "100 µs at most");
    }
}
