//! A handler: takes what has missed from the channels of its workers, asks the slow path, installs flows, and sends the
//! packets back with their answers.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

use packet::{BATCH_SIZE, Clock, Key, Packet, Time};
use parking_lot::Mutex;
use ports::Offloads;
use ports::offload::complete;
use smallvec::SmallVec;

use crate::action::{Action, Punt};
use crate::actions::program::Program;
use crate::classify::{Installed, NewFlow, Requester, Table, prefetch};
use crate::drop::DropReason;
use crate::error::Error;
use crate::pipeline::recirculation::Pass;
use crate::slowpath::channel::{Answer, Answered, Channel, Charge, Outstanding, Returned, ReturnedItem, ToHandler};
use crate::slowpath::flow_log;
use crate::slowpath::new_flows::NewFlows;
use crate::slowpath::round_robin::RoundRobin;
use crate::sync::rcu::Reader;
use crate::upcall::{FlowStats, Miss, Upcall, Verdict};

/// Changes of the set of channels that a handler serves: workers come and go, and a channel can move from one handler
/// to another.
///
/// At most one handler serves a channel at any time: the owner of its [`Served`]. Items that a handler has taken from
/// a channel and not answered yet move with it, so that its packets stay in order.
#[derive(Default)]
pub struct ChannelList {
    changed: AtomicBool,
    changes: Mutex<Vec<Change>>,
}

enum Change {
    Add(Served),
    Release(Arc<Channel>, Sender<Served>),
}

impl ChannelList {
    /// Has the handler serve a channel.
    pub fn add(&self, served: Served) {
        self.change(Change::Add(served));
    }

    /// Has the handler stop serving a channel, between two batches. The receiver gets it with the items that wait in
    /// it.
    pub fn release(&self, channel: &Arc<Channel>) -> Receiver<Served> {
        let (reply, released) = mpsc::channel();
        self.change(Change::Release(channel.clone(), reply));
        released
    }

    fn change(&self, change: Change) {
        self.changes.lock().push(change);
        self.changed.store(true, Ordering::SeqCst);
    }
}

/// The handler's end of a channel.
pub struct Served {
    channel: Arc<Channel>,
    /// Items that were taken from the queue and wait for their turn.
    backlog: RoundRobin<ToHandler>,
}

impl Served {
    /// The handler's end of a new channel.
    pub fn new(channel: Arc<Channel>) -> Served {
        Served { channel, backlog: RoundRobin::default() }
    }
}

/// A handler of the slow path, with the channels that it serves.
pub struct Handler {
    /// Pending changes of its channels.
    pub channel_list: Arc<ChannelList>,
    /// The channels that it serves.
    pub channels: Vec<Served>,
    /// Its place in the RCU domain; offline but for look-ups.
    pub reader: Reader,
    /// Where flows are installed.
    pub table: Arc<Table>,
    /// The slow path, once it is connected.
    pub upcall: Arc<OnceLock<Arc<dyn Upcall>>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Actions of recent answers, and their programs, which flows and answers with equal actions share.
    pub recent: ProgramCache,
    /// Flows that it has made for the batch that it is answering.
    pub new_flows: NewFlows,
}

/// How often a flow is offered to the table at most. Where something has changed each time, it is left to the next packet.
const OFFERS: usize = 3;

/// Actions, and what they are compiled to.
type Compiled = (Arc<[Action]>, Arc<Program>);

/// See [`Handler::recent`].
#[derive(Default)]
pub struct ProgramCache {
    known: [Option<Compiled>; 8],
    next: usize,
}

impl ProgramCache {
    /// Shared actions that equal these, and their program.
    fn share(&mut self, actions: Arc<[Action]>) -> Compiled {
        let mut known = self.known.iter().flatten();
        if let Some(known) = known.find(|(known, _)| Arc::ptr_eq(known, &actions) || known[..] == actions[..]) {
            return known.clone();
        }
        let program = Arc::new(Program::compile(&actions));
        let new = (actions, program);
        self.known[self.next] = Some(new.clone());
        self.next = (self.next + 1) % self.known.len();
        new
    }
}

impl Handler {
    /// Whether there is anything to do.
    pub fn has_work(&self) -> bool {
        let waits = |served: &Served| served.channel.has_upcalls() || !served.backlog.is_empty();
        self.channel_list.changed.load(Ordering::SeqCst) || self.channels.iter().any(waits)
    }

    /// Serves each channel once, and returns how many packets were handled.
    pub fn serve(&mut self) -> usize {
        self.change_channels();
        let now = self.clock.now();
        let handled = (0..self.channels.len()).map(|i| self.serve_channel(i, now)).sum();
        if handled > 0 && self.table.has_evicted() {
            let evicted = self.table.take_evicted();
            if let Some(upcall) = self.upcall.get().filter(|_| !evicted.is_empty()) {
                upcall.evicted(evicted);
            }
        }
        handled
    }

    /// Applies the pending changes of its channels.
    pub fn change_channels(&mut self) {
        if !self.channel_list.changed.swap(false, Ordering::SeqCst) {
            return;
        }
        for change in std::mem::take(&mut *self.channel_list.changes.lock()) {
            match change {
                Change::Add(served) => self.channels.push(served),
                Change::Release(channel, reply) => {
                    let at = self.channels.iter().position(|served| Arc::ptr_eq(&served.channel, &channel));
                    if let Some(at) = at {
                        // The requester may have dropped the receiver.
                        let _ = reply.send(self.channels.remove(at));
                    }
                }
            }
        }
    }

    fn serve_channel(&mut self, index: usize, now: Time) -> usize {
        let Served { channel, backlog } = &mut self.channels[index];
        while let Some(up) = channel.up.pop() {
            backlog.push(up.port(), up);
        }
        if backlog.is_empty() {
            return 0;
        }
        let channel = channel.clone();
        let mut batch: Vec<Pending> = Vec::with_capacity(BATCH_SIZE);
        let mut handled = 0;
        while handled < BATCH_SIZE
            && let Some(up) = self.channels[index].backlog.pop()
        {
            handled += 1;
            match up {
                ToHandler::Miss(Outstanding { packet, key, layers, hash, pass, connection, counted, sent_at }) => {
                    let miss = Miss { packet, key, layers, hash, counted, verdict: Verdict::Pending };
                    batch.push(Pending { miss, answer: None, asked_for: None, pass, connection, sent_at });
                }
                ToHandler::Punt { packet, key, punt } => {
                    let charge = Charge::of(&packet);
                    if let Some(upcall) = self.upcall.get() {
                        hand_over(upcall.as_ref(), packet, &key, &punt, now);
                    }
                    let in_port = crate::upcall::in_port(&key);
                    let returned = Returned { in_port, connection: None, charge, what: ReturnedItem::Punted(key) };
                    channel.send_down(returned);
                }
            }
        }
        if !batch.is_empty() {
            self.answer(&mut batch, now);
        }
        for pending in batch {
            channel.send_down(pending.into_returned());
        }
        channel.worker.wake();
        handled
    }

    /// Finds an answer for each packet of a batch, in order, as if they came one by one: a packet is answered by a flow
    /// that has been installed since it missed, or for a packet before it, and the slow path is asked about the others.
    fn answer(&mut self, batch: &mut [Pending], now: Time) {
        // 1. Answer the packets for which a flow has been installed since they missed.
        self.answer_from_table(batch, now);
        // 2. Ask about the others, unless the flow of one before matches them.
        let Some(upcall) = self.upcall.get().cloned() else {
            let unanswered = batch.iter_mut().filter(|p| p.answer.is_none());
            return unanswered.for_each(|p| p.answer = Some(Answer::Drop(DropReason::UpcallError)));
        };
        // 3. Install the flows that were asked for: all at a time, unless one may match a later packet.
        self.new_flows.clear();
        let mut installed = 0;
        for number in 0..batch.len() {
            if batch[number].answer.is_some() {
                continue;
            }
            if self.new_flows.may_match(&self.table.hasher, &batch[number].miss.key) {
                self.install(&mut batch[installed..number], now, upcall.as_ref());
                installed = number;
                batch[number].answer = self.answer_now(&batch[number].miss, now);
                if batch[number].answer.is_some() {
                    continue;
                }
            }
            if self.decide(&mut batch[number], now, upcall.as_ref()) {
                self.install(&mut batch[installed..=number], now, upcall.as_ref());
                installed = number + 1;
            }
        }
        self.install(&mut batch[installed..], now, upcall.as_ref());
    }

    /// Answers the packets that have a flow now. They are counted for it here, so their worker need not look at the
    /// flow again.
    fn answer_from_table(&mut self, batch: &mut [Pending], now: Time) {
        // The keys are in the caches of the worker's core.
        batch.iter().for_each(|pending| prefetch_key(&pending.miss.key));
        self.reader.quiescent();
        let guard = self.reader.pin();
        batch.iter().for_each(|pending| self.table.prefetch(&pending.miss.key, guard));
        for pending in batch.iter_mut().filter(|p| p.answer.is_none()) {
            let found = self.table.find(&pending.miss.key, guard);
            let actions = found.and_then(|id| self.table.count_answered(id, pending.miss.stats(now)));
            pending.answer = actions.map(|actions| Answer::Run(self.recent.share(actions).1));
        }
        self.reader.offline();
    }

    /// Answers a packet by a flow that was installed a moment ago, if there is one.
    fn answer_now(&mut self, miss: &Miss, now: Time) -> Option<Answer> {
        self.reader.quiescent();
        let found = self.table.find(&miss.key, self.reader.pin());
        self.reader.offline();
        let actions = self.table.count_answered(found?, miss.stats(now))?;
        Some(Answer::Run(self.recent.share(actions).1))
    }

    /// Asks the slow path about a packet. Returns whether the flow that it asks for is to be installed at once: the upper
    /// layer's state has just changed, perhaps by this packet, and may change again with the next one.
    fn decide(&mut self, pending: &mut Pending, now: Time, upcall: &dyn Upcall) -> bool {
        let miss = &mut pending.miss;
        if flow_log::is_on() {
            flow_log::missed(&miss.key);
        }
        upcall.misses(std::slice::from_mut(miss), now);
        let mut has_changed = false;
        let answer = match std::mem::take(&mut miss.verdict) {
            Verdict::Pending => Answer::Drop(DropReason::UpcallError),
            Verdict::Drop(reason) => Answer::Drop(reason),
            Verdict::Execute(actions) => Answer::Run(Arc::new(Program::compile(&actions))),
            Verdict::Install { mask, actions, tag } => {
                let compiled = self.recent.share(actions);
                // The packet gets the actions that were decided on for it, even if the flow changes before its worker
                // has it. The slow path has counted it.
                let program = compiled.1.clone();
                let flow = NewFlow::new(&self.table.hasher, &miss.key, mask, compiled, tag);
                self.new_flows.add(flow.mask(), flow.hash());
                let version = upcall.version_of(flow.tag(), &miss.key, flow.mask());
                has_changed = version != std::mem::replace(&mut self.new_flows.version, version);
                pending.asked_for = Some((flow, version));
                Answer::Run(program)
            }
        };
        pending.answer = Some(answer);
        has_changed
    }

    /// Installs the flows that were asked for.
    fn install(&self, batch: &mut [Pending], now: Time, upcall: &dyn Upcall) {
        let mut flows: Vec<(&Key, NewFlow)> = Vec::with_capacity(batch.len());
        let mut versions: SmallVec<[Option<u64>; BATCH_SIZE]> = SmallVec::new();
        for Pending { miss, asked_for, .. } in batch {
            if let Some((flow, version)) = asked_for.take() {
                flows.push((&miss.key, flow));
                versions.push(version);
            }
        }
        let mut installed = Vec::with_capacity(flows.len());
        for offer in 1..=OFFERS {
            if flows.is_empty() {
                break;
            }
            if offer > 1 {
                let version_of = |(key, flow): &(&Key, NewFlow)| upcall.version_of(flow.tag(), key, flow.mask());
                versions = flows.iter().map(version_of).collect();
            }
            // Nearly always, all are of one version. The table asks about all of them at one time.
            let asked = Cell::new(None);
            let is_current = |number: usize| {
                let Some(version) = versions[number] else { return false };
                if let Some((known, is_current)) = asked.get()
                    && known == version
                {
                    return is_current;
                }
                let is_current = upcall.is_current(version);
                asked.set(Some((version, is_current)));
                is_current
            };
            let (mut added, mut refused) = (Vec::new(), 0u32);
            self.table.install_all(&flows, now, Requester::Miss, is_current, |number, result| match result {
                Ok(Installed { id, existed }) => {
                    installed.push((id, flows[number].1.tag().clone()));
                    if !existed && flow_log::is_on() {
                        added.push((id, number));
                    }
                }
                // What has changed since its version was asked for may be about other flows.
                Err(Error::OutOfDate) if versions[number].is_some() && offer < OFFERS => refused |= 1 << number,
                Err(refused) => tracing::debug!("flow not installed: {refused}"),
            });
            for (id, number) in added {
                if let Some(flow) = self.table.dump(id) {
                    flow_log::flow_added(id, flows[number].0, &flow.mask, &flow.actions);
                }
            }
            let mut numbers = 0..;
            flows.retain(|_| numbers.next().is_some_and(|number| refused >> number & 1 != 0));
        }
        if !installed.is_empty() {
            upcall.installed(&installed);
        }
    }
}

/// Passes a punted packet to the slow path in the form that it has on a wire: with complete checksums, and in
/// segments.
fn hand_over(upcall: &dyn Upcall, packet: Packet, key: &Key, punt: &Punt, now: Time) {
    let memory = packet.memory();
    let result = complete(packet, Offloads::default(), memory, &mut |part| upcall.punt(&part, key, punt, now));
    if let Err(error) = result {
        tracing::debug!("a punted packet cannot be finished: {error}");
    }
}

/// Prefetches what is read of each key.
fn prefetch_key(key: &Key) {
    prefetch(key.common());
    prefetch(key.present_address());
}

/// A missed packet that the handler is answering.
struct Pending {
    miss: Miss,
    answer: Option<Answer>,
    /// The flow that the slow path has asked for, until it is installed, and the version for which it is right.
    asked_for: Option<(NewFlow, Option<u64>)>,
    pass: Pass,
    connection: u32,
    sent_at: u64,
}

impl Miss {
    /// What the packet adds to the statistics of a flow.
    fn stats(&self, now: Time) -> FlowStats {
        if self.counted {
            return FlowStats { used: now, ..FlowStats::default() };
        }
        let tcp_flags = self.key.common().tcp_flags.get();
        FlowStats { packets: 1, bytes: self.packet.len() as u64, used: now, tcp_flags }
    }
}

impl Pending {
    fn into_returned(self) -> Returned {
        let Miss { packet, key, layers, .. } = self.miss;
        let answer = self.answer.unwrap_or(Answer::Drop(DropReason::UpcallError));
        let (in_port, charge) = (crate::upcall::in_port(&key), Charge::of(&packet));
        let answered = Answered { packet, key, layers, pass: self.pass, answer, sent_at: self.sent_at };
        Returned { in_port, connection: Some(self.connection), charge, what: ReturnedItem::Answered(answered) }
    }
}
