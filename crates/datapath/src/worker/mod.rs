//! Workers: one forwards on one core, and does nothing else.
//!
//! A worker is a plain object that whoever owns it runs turn by turn: its thread, or
//! [`Datapath::poll`](crate::Datapath::poll). What others want of it they leave in its [`Mailbox`], which
//! it empties between turns, and in long ones between batches; looking costs it one load.

pub mod fairness;
pub mod idle_policy;
pub mod idle_queues;
pub mod mailbox;
pub mod rx_queue;
pub mod setup;
pub mod time_cache;
pub mod waker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use packet::flow::extract::extract;
use packet::{Clock, Packet, Time};
use ports::offload::fine_frames;

use crate::action::PortNo;
use crate::actions::execute::{Executor, KeyView};
use crate::actions::program::Program;
use crate::classify::Table;
use crate::classify::batch::Caches;
use crate::drop::DropReason;
use crate::pipeline::batch::InFlight;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::recirculation::Pass;
use crate::pipeline::storm::{Deferred, SLICE};
use crate::slowpath::queue::{Answer, Answered, CameBack, Channel};
use crate::sync::rcu::Reader;
use crate::sync::tsc;
use crate::worker::fairness::Fairness;
use crate::worker::idle_policy::IdlePolicy;
use crate::worker::idle_queues::IdleQueues;
use crate::worker::mailbox::{Command, GivenBack, Mailbox};
use crate::worker::rx_queue::Rx;
use crate::worker::time_cache::TimeCache;

/// Turns without a packet before a worker sleeps.
const EMPTY_TURNS: u32 = 64;

/// How often transmit queues are reaped at least while something may be on its way (contract of
/// [`ports::TxQueue::housekeep`]).
const HOUSEKEEP: Duration = Duration::from_millis(1);

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
    pub in_flight: InFlight,
    /// What happens to packets.
    pub executor: Executor,
    /// Packets that are recirculated in later turns, by the port that they have come in on.
    pub deferred: Vec<Deferred>,
    /// Batches whose packets have become many by recirculation.
    pub storms: u64,
    /// What it polls.
    pub rx: Vec<Rx>,
    /// What it does not poll until there are frames.
    pub idle_queues: IdleQueues,
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
    pub idle_policy: IdlePolicy,
    /// When the transmit queues were reaped last.
    pub housekept: Time,
    /// How often it looks at clocks.
    pub time_cache: TimeCache,
}

impl Worker {
    /// One turn: everything that is there to be done, once. Returns how many packets were received.
    pub fn turn(&mut self) -> usize {
        let start = self.time_cache.start();
        self.reader.quiescent();
        let look = self.time_cache.is_clock_due(start);
        if look {
            let before = std::mem::replace(&mut self.executor.now, self.clock.now());
            // Of several turns where they follow each other: packets are sent the sooner for it.
            self.executor.outputs.turn(self.executor.now.since(before));
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
        let mut all_looked_at = self.idle_queues.is_empty();
        if look && self.idle_queues.is_due(busy, self.executor.now) {
            all_looked_at = self.idle_queues.look(&mut self.rx, self.executor.now);
            since = tsc::cycles();
        }
        let mut whole;
        loop {
            whole = all_looked_at;
            let mut next = 0;
            while next < self.rx.len() {
                let queue = next;
                next += 1;
                let admitted = self.fairness.admits(&mut self.rx[queue].deficit);
                if admitted && !self.deferred.is_empty() {
                    let (in_port, start) = (self.rx[queue].port.no, tsc::cycles());
                    if self.resume(in_port) {
                        (work, whole) = (work + 1, false);
                        since = self.bill(in_port, start);
                        continue;
                    }
                }
                if !admitted || !self.rx[queue].is_due(look, busy, self.executor.now) {
                    whole = false;
                    continue;
                }
                let (missed, storms, fine) = (self.executor.misses.missed, self.storms, fine_frames());
                let count = self.forward(queue);
                self.rx[queue].looked(count, self.executor.now);
                let until = tsc::cycles();
                if count > 0 {
                    received += count;
                    let cycles = until.wrapping_sub(since);
                    self.rx[queue].cycles.add(cycles);
                    let charged = self.executor.misses.missed != missed
                        || self.storms != storms
                        || self.fairness.is_costly(cycles)
                            && (fine_frames() != fine || self.is_pressed(self.rx[queue].port.no));
                    self.fairness.record_batch(&mut self.rx[queue].deficit, cycles, charged);
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
            self.rx.iter_mut().for_each(|rx| rx.deficit.reset());
        }
        if !self.deferred.is_empty() {
            self.recirculate_strays();
        }
        if !(self.leaving.is_empty() && self.draining.is_empty()) {
            self.let_go();
        }
        work += received;
        self.executor.outputs.end_of_batch(self.executor.now);
        if self.executor.now.since(self.housekept) >= HOUSEKEEP {
            self.housekept = self.executor.now;
            self.executor.outputs.housekeep(self.executor.now);
            if self.deferred.is_empty() {
                self.idle_queues.tidy(&mut self.rx, self.executor.now);
            }
        }

        let counters = &self.executor.counters;
        // What comes behind the last batch counts to the next turn, where one follows.
        let last = if since == start { tsc::cycles() } else { since };
        let cycles = self.time_cache.end(last).wrapping_sub(start);
        counters.turns.add(1);
        if work > 0 {
            (self.empty_turns, self.idle) = (0, false);
            self.idle_policy.on_work(self.executor.now);
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
        self.table.list_of_port(in_port, self.reader.pin()).is_some_and(|list| list.pressed)
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
                    self.executor.outputs.add(port, tx);
                }
                Command::TakeRx { rx } => self.receive_from(rx),
                Command::GiveRx { port, queues, reply } => {
                    let of_port = self.take_rx(port);
                    let (rx, kept) = of_port.into_iter().partition(|rx| queues.contains(&rx.index));
                    self.leaving.push(Leaving { port, rx, kept, reply });
                }
                Command::ShareTx { port, reply } => {
                    let _ = reply.send(self.executor.outputs.share(port));
                }
                Command::ReplaceTx { port, tx } => self.executor.outputs.replace(port, tx, self.executor.now),
                Command::ReclaimTx => self.executor.outputs.reclaim(),
                Command::Drain { reply } => self.draining.push(reply),
                Command::RemovePorts { ports, reply } => {
                    let mut given_back = GivenBack::default();
                    for &port in &*ports {
                        given_back.rx.extend(self.take_rx(port));
                        given_back.tx.extend(self.executor.outputs.remove(port, self.executor.now));
                    }
                    // Closed by whoever asked: tearing down takes time.
                    let _ = reply.send(given_back);
                }
                Command::SetNotifier(notifier) => self.executor.misses.set_notifier(notifier),
                Command::Execute { packet, metadata, program } => self.execute(packet, metadata, &program),
                Command::SetFlushInterval(interval) => self.executor.outputs.set_interval(interval, self.executor.now),
                Command::Report(reply) => {
                    // To be asked is no work, or a worker that is asked would never be idle.
                    count -= 1;
                    let _ = reply.send(std::mem::take(&mut self.idle) && self.executor.misses.is_empty());
                }
                Command::SetMaxSleep(max_sleep) => self.max_sleep = max_sleep,
                Command::SetExactOneIn(one_in) => self.caches.set_one_in(one_in),
                Command::SetVlanLimit(limit) => {
                    (self.in_flight.meta.vlan_limit, self.executor.vlan_limit) = (limit, limit);
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
            if let Err(rx) = self.idle_queues.park(rx) {
                self.rx.push(rx);
            }
        }
    }

    /// The receive queues of a port, no longer polled.
    fn take_rx(&mut self, port: PortNo) -> Vec<Rx> {
        let mut taken: Vec<Rx> = self.rx.extract_if(.., |rx| rx.port.no == port).collect();
        taken.iter_mut().for_each(|rx| self.idle_queues.forget(rx));
        taken.extend(self.idle_queues.take(port));
        taken
    }

    /// Gives away what may go now. What the queues' packets have come to is sent before, so that the next
    /// worker's come after them.
    #[cold]
    pub fn let_go(&mut self) {
        self.executor.outputs.flush(self.executor.now);
        for leaving in std::mem::take(&mut self.leaving) {
            if self.executor.misses.has_outstanding(leaving.port) {
                self.leaving.push(leaving);
                continue;
            }
            self.rx.extend(leaving.kept);
            // Whoever asked waits for it.
            let _ = leaving.reply.send(leaving.rx);
        }
        if self.executor.misses.is_empty() && self.deferred.is_empty() {
            for waiting in self.draining.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    fn execute(&mut self, packet: Packet, metadata: OwnMetadata, program: &Program) {
        self.executor.counters.injected.add(1);
        let mut key = self.executor.misses.spare_keys().pop().unwrap_or_default();
        metadata.start(&mut key);
        let layers = extract(packet.data(), &mut key, self.executor.vlan_limit);
        self.executor.run(program, packet, &mut KeyView::new(&mut key, layers), Pass::FIRST.of(program));
        self.executor.misses.reuse(key);
        self.executor.misses.notify();
    }

    /// Takes what came back from the slow path, at the expense of the ports that it came in on. Returns how many packets.
    #[inline(never)]
    pub fn take_returned(&mut self) -> usize {
        let mut count = 0;
        let (mut since, mut of) = (tsc::cycles(), None);
        while let Some(returned) = self.executor.misses.take_returned(&mut self.executor.recirculation) {
            if let Some(before) = of.replace(returned.in_port)
                && before != returned.in_port
            {
                since = self.bill(before, since);
            }
            match returned.what {
                CameBack::Answered(answered) => {
                    count += 1;
                    self.act_on(answered);
                }
                CameBack::Punted(key) => {
                    self.executor.counters.punted.add(1);
                    self.executor.misses.reuse(key);
                }
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
            let before = self.executor.counters.recirculated.get();
            while self.executor.counters.recirculated.get() - before < SLICE
                && let Some(in_port) = self.recirculate_batch()
            {
                since = self.bill(in_port, since);
            }
            self.defer();
            self.executor.misses.notify();
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
            self.fairness.charge(&mut rx.deficit, cycles);
        }
        until
    }

    fn act_on(&mut self, answered: Answered) {
        let executor = &mut self.executor;
        let Answered { packet, mut key, layers, pass, answer } = answered;
        let in_port = crate::upcall::in_port(&key);
        match answer {
            Answer::Drop(reason) => {
                let counter =
                    if reason == DropReason::UpcallError { &executor.counters.lost } else { &executor.counters.misses };
                counter.add(1);
                executor.outputs.retire_one(packet, reason, in_port);
            }
            Answer::Run(program) => {
                executor.counters.misses.add(1);
                executor.run(&program, packet, &mut KeyView::new(&mut key, layers), pass.of(&program));
            }
        }
        executor.misses.reuse(key);
    }

    /// Runs until `stop`: the body of a worker's thread.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.time_cache = TimeCache::new(true);
        while !stop.load(Ordering::Relaxed) {
            self.turn();
            if self.empty_turns >= EMPTY_TURNS && self.may_rest() {
                self.rest(stop);
            }
        }
        self.executor.outputs.flush(self.executor.now);
        self.reader.offline();
    }

    /// Whether there is nothing to stay awake for.
    fn may_rest(&self) -> bool {
        let outputs = &self.executor.outputs;
        let awaited =
            !outputs.stands_still() && (outputs.is_due_soon() || !self.idle_policy.may_sleep(self.executor.now));
        !awaited && !self.max_sleep.is_zero() && self.draining.is_empty()
    }

    /// Sleeps until there is something to do.
    fn rest(&mut self, stop: &AtomicBool) {
        self.idle_policy.on_sleep();
        // Nothing is stuck while the worker sleeps.
        self.executor.outputs.flush(self.executor.now);
        let sent_lately = self.executor.outputs.sent_lately;
        self.executor.outputs.housekeep(self.executor.now);
        self.housekept = self.executor.now;

        let polled = self.rx.iter().any(|rx| rx.queue.wait_fd().is_none() && rx.queue.next_due().is_none());
        let due = self.rx.iter().filter_map(|rx| rx.queue.next_due()).min();
        let limits = [
            polled.then_some(self.max_sleep),
            due.map(|due| due.since(self.executor.now)),
            sent_lately.then_some(HOUSEKEEP),
        ];
        let timeout = limits.into_iter().flatten().min();

        let start = self.clock.now();
        // Counted before, for a sleep may be long.
        self.executor.counters.sleeps.add(1);
        self.reader.offline();
        let (mailbox, channel) = (&self.mailbox, &self.channel);
        let fds = self.rx.iter().filter_map(|rx| rx.queue.wait_fd()).chain(self.idle_queues.wait_fd());
        mailbox
            .waker
            .sleep(fds, timeout, || mailbox.has_mail() || channel.has_returned() || stop.load(Ordering::SeqCst));
        self.reader.quiescent();
        // What is sent next does not wait for a turn as long as this sleep.
        self.executor.now = self.clock.now();
        self.executor.counters.slept_nanos.add(self.executor.now.since(start).as_nanos() as u64);
        self.time_cache = TimeCache::new(true);
        // One look at each queue, and back to sleep if there is nothing.
        self.empty_turns = EMPTY_TURNS - 1;
    }
}
