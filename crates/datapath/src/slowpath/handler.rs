//! A handler: takes what has missed from the channels of its workers, asks the slow path, installs flows, and sends the
//! packets back with their answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

use packet::{BATCH_SIZE, Clock, Key, Packet, Time};
use parking_lot::Mutex;
use ports::Offloads;
use ports::offload::complete;

use crate::action::{Action, Punt};
use crate::actions::program::Program;
use crate::classify::{Requester, Table};
use crate::drop::DropReason;
use crate::error::Error;
use crate::pipeline::recirculation::Pass;
use crate::slowpath::channel::{Answer, Answered, Channel, Outstanding, Returned, ReturnedItem, ToHandler};
use crate::slowpath::flow_log;
use crate::slowpath::round_robin::RoundRobin;
use crate::sync::rcu::Reader;
use crate::upcall::{Miss, Upcall, Verdict};

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
}

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
    fn share(&mut self, actions: impl AsRef<[Action]> + Into<Arc<[Action]>>) -> Compiled {
        if let Some(known) = self.known.iter().flatten().find(|(known, _)| known[..] == *actions.as_ref()) {
            return known.clone();
        }
        let program = Arc::new(Program::compile(actions.as_ref()));
        let new = (actions.into(), program);
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
                ToHandler::Miss(Outstanding { packet, key, layers, hash, pass, connection }) => {
                    let miss = Miss { packet, key, layers, hash, verdict: Verdict::Pending };
                    batch.push(Pending { miss: Some(miss), answer: None, pass, connection });
                }
                ToHandler::Punt { packet, key, punt } => {
                    if let Some(upcall) = self.upcall.get() {
                        hand_over(upcall.as_ref(), packet, &key, &punt, now);
                    }
                    let in_port = crate::upcall::in_port(&key);
                    let returned = Returned { in_port, connection: None, what: ReturnedItem::Punted(key) };
                    let _ = channel.down.push(returned);
                }
            }
        }
        if !batch.is_empty() {
            self.answer(&mut batch, now);
        }
        for pending in batch {
            // This queue is as large as the queue up, so there is room for everything that went up.
            let _ = channel.down.push(pending.into_returned());
        }
        channel.worker.wake();
        handled
    }

    /// Finds an answer for each packet of a batch.
    fn answer(&mut self, batch: &mut [Pending], now: Time) {
        // 1. Answer the packets for which a flow has been installed since they missed.
        self.answer_from_table(batch, now);
        // 2. Ask the slow path about the first of the packets with equal keys.
        let is_first = |batch: &[Pending], i: usize| {
            let miss = batch[i].miss.as_ref();
            !batch[..i].iter().any(|other| {
                let same = |a: &Miss, b: &Miss| a.hash == b.hash && a.key == b.key;
                other.answer.is_none() && other.miss.as_ref().zip(miss).is_some_and(|(a, b)| same(a, b))
            })
        };
        let open = (0..batch.len()).filter(|&i| batch[i].answer.is_none());
        let first: Vec<usize> = open.filter(|&i| is_first(batch, i)).collect();
        let all = batch.iter().filter(|p| p.answer.is_none()).count();
        self.decide(batch, &first, now);
        // 3. Answer the other packets: they now have a flow, unless the verdict on the first one was for that packet
        //    alone.
        if first.len() < all {
            self.answer_from_table(batch, now);
            let rest: Vec<usize> = (0..batch.len()).filter(|&i| batch[i].answer.is_none()).collect();
            self.decide(batch, &rest, now);
        }
    }

    /// Answers the packets that have a flow now. They are counted for it here, so their worker need not look at the
    /// flow again.
    fn answer_from_table(&mut self, batch: &mut [Pending], now: Time) {
        self.reader.quiescent();
        let guard = self.reader.pin();
        for pending in batch.iter_mut().filter(|p| p.answer.is_none()) {
            let miss = pending.miss.as_ref().expect("there until it is returned");
            let actions = self.table.find_and_count(&miss.key, miss.packet.len() as u64, now, guard);
            pending.answer = actions.map(|actions| Answer::Run(self.recent.share(actions).1));
        }
        self.reader.offline();
    }

    /// Asks the slow path about some of the batch.
    fn decide(&mut self, batch: &mut [Pending], which: &[usize], now: Time) {
        let Some(upcall) = self.upcall.get().filter(|_| !which.is_empty()).cloned() else {
            which.iter().for_each(|&i| batch[i].answer = Some(Answer::Drop(DropReason::UpcallError)));
            return;
        };
        let mut misses: Vec<Miss> = which.iter().filter_map(|&i| batch[i].miss.take()).collect();
        if flow_log::is_on() {
            misses.iter().for_each(|miss| flow_log::missed(&miss.key));
        }
        upcall.misses(&mut misses, now);
        for (&i, mut miss) in which.iter().zip(misses) {
            let verdict = std::mem::take(&mut miss.verdict);
            batch[i].answer = Some(self.apply(verdict, &miss.key, now, upcall.as_ref()));
            batch[i].miss = Some(miss);
        }
    }

    fn apply(&mut self, verdict: Verdict, key: &Key, now: Time, upcall: &dyn Upcall) -> Answer {
        match verdict {
            Verdict::Pending => Answer::Drop(DropReason::UpcallError),
            Verdict::Drop(reason) => Answer::Drop(reason),
            Verdict::Execute(actions) => Answer::Run(Arc::new(Program::compile(&actions))),
            Verdict::Install { mask, actions, tag } => {
                let (actions, program) = self.recent.share(actions);
                let installed = match upcall.version_of(&tag, key, &mask) {
                    Some(version) => {
                        let (table, requester) = (&self.table, Requester::Miss);
                        let is_current = || upcall.is_current(version);
                        table.install_current(key, mask, actions.clone(), tag.clone(), now, requester, is_current)
                    }
                    None => Err(Error::OutOfDate),
                };
                match installed {
                    Ok(installed) => {
                        upcall.installed(&tag);
                        if !installed.existed
                            && flow_log::is_on()
                            && let Some(flow) = self.table.dump(installed.id)
                        {
                            flow_log::flow_added(flow.id, key, &flow.mask, &actions);
                        }
                        // The packet gets the actions that were decided on for it, even if the flow changes before
                        // its worker has it. The slow path has counted it.
                        Answer::Run(program)
                    }
                    Err(refused) => {
                        tracing::debug!("flow not installed: {refused}");
                        Answer::Run(program)
                    }
                }
            }
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

/// A missed packet that the handler is answering.
struct Pending {
    miss: Option<Miss>,
    answer: Option<Answer>,
    pass: Pass,
    connection: u32,
}

impl Pending {
    fn into_returned(self) -> Returned {
        let Miss { packet, key, layers, .. } = self.miss.expect("there until it is returned");
        let answer = self.answer.unwrap_or(Answer::Drop(DropReason::UpcallError));
        let in_port = crate::upcall::in_port(&key);
        let answered = Answered { packet, key, layers, pass: self.pass, answer };
        Returned { in_port, connection: Some(self.connection), what: ReturnedItem::Answered(answered) }
    }
}
