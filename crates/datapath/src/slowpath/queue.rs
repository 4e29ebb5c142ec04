//! Stage 3, miss: packets that no flow matches, on their way to the slow path and back.
//!
//! Each worker has a channel to one handler thread: a bounded queue up to the handler, and a queue of the same size
//! back down. Every packet that goes up comes down, so the worker alone counts what is outstanding, without atomics.
//!
//! *Fairness.* An input port may have at most half as many packets outstanding as there are free places. So however
//! many ports flood, there is room for a packet of a quiet one. The handler serves the ports in turn
//! ([`round_robin`](super::round_robin)): a packet of a quiet port waits for one packet of each other port, not for
//! all of theirs. What a flood costs the worker itself is bounded by [`fairness`](crate::worker::fairness).
//!
//! *Order.* While a packet is in the slow path, later packets of its connection must not overtake it, even if a flow
//! for them has been installed meanwhile. The [reorder guard](super::reorder) knows the connections with packets in
//! the slow path. Later packets of these that have a flow wait at the worker until all earlier ones are back. They
//! stay there, so the slow path catches up with a connection however fast it is. The same holds in a batch in which
//! an earlier packet of the connection misses (`hold_back` in `pipeline/forward.rs`). Ports with nothing outstanding
//! do not pay for any of this.
//!
//! A returned packet carries its actions. So no change of its flow can send it up again, behind later packets.
//! Packets that have waited are classified again. If the flow that had counted such a packet is gone by then, or if
//! there is no room for it to wait, it is counted twice.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;
use packet::flow::extract::Layers;
use packet::{BATCH_SIZE, Clock, Key, Packet, Time};
use parking_lot::Mutex;
use ports::Offloads;
use ports::offload::complete;

use crate::action::{Action, PortNo, Punt};
use crate::actions::program::Program;
use crate::classify::{Requester, Table};
use crate::drop::DropReason;
use crate::pipeline::recirculation::{Pass, RecirculatedPacket, Recirculation};
use crate::pipeline::tx::Outputs;
use crate::slowpath::flow_log;
use crate::slowpath::reorder::ReorderGuard;
use crate::slowpath::round_robin::RoundRobin;
use crate::sync::rcu::Reader;
use crate::upcall::{Miss, Upcall, Verdict};
use crate::worker::waker::Waker;

/// An item of the queue up to the handler.
pub(crate) enum ToHandler {
    Miss(Outstanding),
    Punt { packet: Packet, key: Box<Key>, punt: Arc<Punt> },
}

impl ToHandler {
    /// The input port that it is counted for.
    pub(crate) fn port(&self) -> usize {
        let (ToHandler::Miss(Outstanding { key, .. }) | ToHandler::Punt { key, .. }) = self;
        port_index(crate::upcall::in_port(key))
    }
}

/// A missed packet, with what its worker needs when the packet comes back.
pub(crate) struct Outstanding {
    packet: Packet,
    key: Box<Key>,
    layers: Layers,
    hash: u64,
    /// Its pass through classification.
    pass: Pass,
    /// Hash of its connection.
    connection: u32,
}

/// An item of the queue down to the worker.
pub struct Returned {
    /// The input port.
    pub in_port: PortNo,
    connection: Option<u32>,
    /// The packet with its answer, or the key of a punted packet.
    pub what: ReturnedItem,
}

/// What comes down for a packet.
pub enum ReturnedItem {
    /// It missed, and has an answer.
    Answered(Answered),
    /// It was punted, and the slow path keeps it. Its key can be reused.
    Punted(Box<Key>),
}

/// A missed packet with its answer.
pub struct Answered {
    /// The frame.
    pub packet: Packet,
    /// Its key.
    pub key: Box<Key>,
    /// Its header offsets.
    pub layers: Layers,
    /// Its pass through classification.
    pub pass: Pass,
    /// What to do with the packet.
    pub answer: Answer,
}

/// What to do with a missed packet.
pub enum Answer {
    /// Run this program.
    Run(Arc<Program>),
    /// Drop it.
    Drop(DropReason),
}

/// A worker's queues to and from its handler.
pub struct Channel {
    up: ArrayQueue<ToHandler>,
    down: ArrayQueue<Returned>,
    /// Wakes the worker.
    worker: Arc<Waker>,
}

impl Channel {
    /// Queues of this many packets.
    pub fn new(size: usize, worker: Arc<Waker>) -> Channel {
        let size = size.max(2);
        Channel { up: ArrayQueue::new(size), down: ArrayQueue::new(size), worker }
    }

    /// Whether the queue down to the worker has items.
    #[inline(always)]
    pub fn has_returned(&self) -> bool {
        !self.down.is_empty()
    }

    /// Whether the queue up to the handler has items.
    pub fn has_upcalls(&self) -> bool {
        !self.up.is_empty()
    }
}

/// Wakes a handler thread.
#[derive(Default)]
pub struct Notifier {
    sleeping: AtomicBool,
    /// The thread that sleeps now, or has slept last.
    thread: Mutex<Option<Thread>>,
}

impl Notifier {
    /// Wakes the thread if it sleeps.
    pub fn notify(&self) {
        if self.sleeping.load(Ordering::SeqCst)
            && self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Sleeps until [`notify`](Notifier::notify) or for `timeout`, unless `has_work`.
    pub fn wait(&self, timeout: std::time::Duration, has_work: impl Fn() -> bool) {
        *self.thread.lock() = Some(std::thread::current());
        self.sleeping.store(true, Ordering::SeqCst);
        if !has_work() {
            std::thread::park_timeout(timeout);
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// The worker's end.
pub struct MissQueue {
    channel: Arc<Channel>,
    notifier: Arc<Notifier>,
    /// Packets that are in the slow path, or wait for such packets.
    outstanding: usize,
    /// Their number by input port.
    by_port: Vec<u32>,
    /// The connections of these packets, except for punted ones.
    connections: ReorderGuard,
    /// Keys of packets that have come back, for reuse.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    spare: Vec<Box<Key>>,
    /// All packets that have missed, including those for which there was no room.
    pub missed: u64,
    /// Whether something was sent up since the handler was notified.
    pub notify_pending: bool,
}

impl MissQueue {
    /// The worker's end of `channel`.
    pub fn new(channel: Arc<Channel>, notifier: Arc<Notifier>) -> MissQueue {
        let connections = ReorderGuard::new(channel.up.capacity());
        let (by_port, spare) = (Vec::new(), Vec::new());
        MissQueue { channel, notifier, outstanding: 0, by_port, connections, spare, missed: 0, notify_pending: false }
    }

    /// Whether packets from this port are outstanding.
    #[inline(always)]
    pub fn has_outstanding(&self, in_port: PortNo) -> bool {
        self.outstanding != 0 && self.of_port(in_port) != 0
    }

    /// Whether no packet is outstanding.
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether a packet of this connection has to wait for earlier ones. `has_flow`: it has a flow.
    pub fn has_to_wait(&self, connection: u32, has_flow: bool) -> bool {
        self.connections.has_to_wait(connection, has_flow)
    }

    /// Lets a packet wait that has to, and for which the port has room.
    pub fn wait(&mut self, connection: u32, packet: RecirculatedPacket) {
        self.count(packet.metadata.in_port());
        self.connections.wait(connection, packet);
    }

    fn of_port(&self, in_port: PortNo) -> usize {
        self.by_port.get(port_index(in_port)).copied().unwrap_or(0) as usize
    }

    /// Whether there is room for one more packet from this port to go up or to wait.
    pub fn has_room(&self, in_port: PortNo) -> bool {
        let free = self.channel.up.capacity().saturating_sub(self.outstanding);
        free > 0 && self.of_port(in_port) < free.div_ceil(2)
    }

    /// Sends a missed packet up. Returns it where the port has no room left.
    #[allow(clippy::too_many_arguments, reason = "what the fast path knows about a packet")]
    pub fn miss(
        &mut self,
        packet: Packet,
        key: &Key,
        layers: Layers,
        hash: u64,
        pass: Pass,
        connection: u32,
    ) -> Result<(), Packet> {
        let in_port = crate::upcall::in_port(key);
        if !self.has_room(in_port) {
            return Err(packet);
        }
        let mut own = self.spare.pop().unwrap_or_default();
        Key::clone_from(&mut own, key);
        let up = ToHandler::Miss(Outstanding { packet, key: own, layers, hash, pass, connection });
        match self.channel.up.push(up) {
            Ok(()) => {
                self.connections.add(connection);
                self.count_up(in_port);
                Ok(())
            }
            Err(ToHandler::Miss(miss)) => Err(miss.packet),
            Err(ToHandler::Punt { packet, .. }) => Err(packet),
        }
    }

    /// Sends a punted packet up; drops it where the port has no room left.
    pub fn punt(&mut self, packet: Packet, key: &Key, punt: Arc<Punt>, outputs: &Outputs) {
        let in_port = crate::upcall::in_port(key);
        if !self.has_room(in_port) {
            return outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port);
        }
        let mut own = self.spare.pop().unwrap_or_default();
        Key::clone_from(&mut own, key);
        match self.channel.up.push(ToHandler::Punt { packet, key: own, punt }) {
            Ok(()) => self.count_up(in_port),
            Err(ToHandler::Punt { packet, .. } | ToHandler::Miss(Outstanding { packet, .. })) => {
                outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port);
            }
        }
    }

    /// Keys for reuse, of packets that have come back.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    pub fn spare_keys(&mut self) -> &mut Vec<Box<Key>> {
        &mut self.spare
    }

    /// Keeps the key of a packet that has come back for reuse.
    pub fn reuse(&mut self, key: Box<Key>) {
        self.spare.push(key);
    }

    fn count_up(&mut self, in_port: PortNo) {
        self.count(in_port);
        self.notify_pending = true;
    }

    fn count(&mut self, in_port: PortNo) {
        let at = port_index(in_port);
        if self.by_port.len() <= at {
            self.by_port.resize(at + 1, 0);
        }
        self.by_port[at] += 1;
        self.outstanding += 1;
    }

    /// Sets the notifier of another handler, which serves the channel from now on. That one is woken, since this
    /// worker may have woken the former one last.
    pub fn set_notifier(&mut self, notifier: Arc<Notifier>) {
        self.notifier = notifier;
        self.notifier.notify();
    }

    /// Whether this notifier is in use.
    #[cfg(test)]
    pub fn notifies(&self, notifier: &Arc<Notifier>) -> bool {
        Arc::ptr_eq(&self.notifier, notifier)
    }

    /// Wakes the handler if something was sent up since it was notified.
    #[inline]
    pub fn notify(&mut self) {
        if self.notify_pending {
            self.notify_pending = false;
            self.notifier.notify();
        }
    }

    /// Takes the next item that came down. Packets that have waited for it are appended to `again`.
    pub fn take_returned(&mut self, again: &mut Recirculation) -> Option<Returned> {
        let MissQueue { channel, outstanding, by_port, connections, spare, .. } = self;
        let returned = channel.down.pop()?;
        let mut count = |in_port| {
            *outstanding -= 1;
            by_port[port_index(in_port)] -= 1;
        };
        count(returned.in_port);
        if let Some(connection) = returned.connection {
            connections.remove(connection, |packet| {
                count(packet.metadata.in_port());
                spare.extend(again.push_packet(packet));
            });
        }
        Some(returned)
    }
}

/// Input ports that are not datapath ports (a controller's, none) share index zero.
fn port_index(in_port: PortNo) -> usize {
    if (in_port.0 as usize) < crate::classify::table::stages::MAX_PORTS { in_port.0 as usize } else { 0 }
}

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
                match self.table.install(key, mask, actions.clone(), tag.clone(), now, Requester::Miss) {
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
