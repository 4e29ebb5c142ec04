//! Events of the bridge for a connection: filtered when they happen, and kept until there is room to send them.
//!
//! The bridge's threads put events in, and the connection's thread takes them out. Memory is bounded. Packet-ins can be
//! limited to a rate, and when there are too many, those of the port that has most are dropped (`packet_ins`); as in OVS,
//! those of packets that missed and those that an action asked for do not take each other's place. The other events are fewer
//! and matter more, so they have a limit of their own, and the latest are dropped above it. Whatever is dropped is counted.
//! What all connections together have is bounded, too ([`EventMemory`]). While the connection waits, the first packet-in needs not
//! wait for its thread (`direct`).

use std::collections::VecDeque;
use std::sync::Arc;

use openflow::switch::RoleStatus;
use openflow::{
    AsyncConfig, FlowMonitorRequest, FlowRemoved, OfError, PacketIn, PacketInReason, PortStatus, Role, TableStatus,
    Version,
};
use packet::Time;
use parking_lot::{Mutex, MutexGuard};

use super::direct::{Direct, Outcome};
use super::event_memory::{EventMemory, Holder};
use super::flow_monitors::FlowMonitors;
use super::packet_ins::{PacketInLimit, PacketIns};
use super::roles::{Member, RoleListener, Roles};
use crate::events::{Audience, ForwardedRequest, PacketInEvent, Subscriber, Waker};
use crate::model::flow_changes::{FlowChanges, FlowWatcher};

/// Most other events that wait.
pub(super) const MAX_OTHERS: usize = 16_384;

/// Most bytes of forwarded requests that wait.
pub(super) const MAX_FORWARDED: usize = 4 << 20;

/// An event on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    PacketIn(Box<PacketIn>),
    FlowRemoved(FlowRemoved),
    PortStatus(PortStatus),
    /// A whole message.
    Message(Vec<u8>),
    RoleStatus(RoleStatus),
    TableStatus(TableStatus),
    /// A request of another connection, as it came.
    RequestForward(Arc<[u8]>),
}

impl Event {
    /// Bytes of a forwarded request.
    fn forwarded(&self) -> usize {
        match self {
            Event::RequestForward(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// What a connection wants to hear.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    /// Anything at all: negotiated, and for a service connection asked for.
    pub listening: bool,
    /// `None` until the hellos have been exchanged.
    pub version: Option<Version>,
    pub config: AsyncConfig,
    pub controller_id: u16,
    /// Packets that miss in a table without a table-miss flow: OpenFlow 1.0 to 1.2.
    pub implicit_misses: bool,
}

/// Counts of what did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Packet-ins for which there was no room.
    pub packet_ins: u64,
    /// Other messages for which there was no room.
    pub others: u64,
}

pub(super) struct Mailbox {
    memory: Arc<EventMemory>,
    roles: Arc<Roles>,
    member: Member,
    queue: Mutex<EventQueue>,
}

/// What waits, and what the connection wants.
struct EventQueue {
    interest: Interest,
    /// Packet-ins for packets that missed, and for others.
    packet_ins: [PacketIns; 2],
    /// The other events, each with its number.
    others: VecDeque<(u64, Event)>,
    monitors: FlowMonitors,
    /// Bytes of the forwarded requests among them.
    forwarded: usize,
    /// The number of the next event.
    next_number: u64,
    dropped: Dropped,
    waker: Option<Waker>,
    /// How a packet-in is sent at once, while the connection rests.
    direct: Option<Direct>,
    /// What the peer has not taken of such a one, which goes before everything else.
    unsent: Vec<u8>,
    /// Bytes of output that the peer has not taken yet.
    output: usize,
    /// What the memory was told of.
    held: usize,
    /// The connection is to be closed, since too much is kept for all. Nothing is put in any more.
    overflown: bool,
}

impl Mailbox {
    /// An empty one. `limit`, and how many packet-ins wait at most, are for each of the two kinds of packet-ins.
    pub fn new(
        memory: Arc<EventMemory>,
        (roles, member): (Arc<Roles>, Member),
        interest: Interest,
        monitors: FlowMonitors,
        (limit, most): (Option<PacketInLimit>, usize),
    ) -> Arc<Mailbox> {
        let queue = EventQueue {
            interest,
            packet_ins: [PacketIns::new(limit, most), PacketIns::new(limit, most)],
            others: VecDeque::new(),
            monitors,
            forwarded: 0,
            next_number: 0,
            dropped: Dropped::default(),
            waker: None,
            direct: None,
            unsent: Vec::new(),
            output: 0,
            held: 0,
            overflown: false,
        };
        let mailbox = Arc::new(Mailbox { memory: memory.clone(), roles, member, queue: Mutex::new(queue) });
        let holder: Arc<dyn Holder> = mailbox.clone();
        memory.join(Arc::downgrade(&holder));
        let listener: Arc<dyn RoleListener> = mailbox.clone();
        mailbox.roles.listen(member, Arc::downgrade(&listener));
        mailbox
    }

    pub fn set_interest(&self, interest: Interest) {
        self.queue.lock().interest = interest;
    }

    pub fn set_waker(&self, waker: Waker) {
        self.queue.lock().waker = Some(waker);
    }

    pub fn waker(&self) -> Option<Waker> {
        self.queue.lock().waker.clone()
    }

    pub fn dropped(&self) -> Dropped {
        self.queue.lock().dropped
    }

    /// Limits packet-ins otherwise from now on.
    pub fn set_limit(&self, limit: Option<PacketInLimit>, most: usize) {
        let mut queue = self.queue.lock();
        let EventQueue { packet_ins, dropped, .. } = &mut *queue;
        dropped.packet_ins += packet_ins.iter_mut().map(|kind| kind.set_limit(limit, most) as u64).sum::<u64>();
        queue.tell(&self.memory);
    }

    /// Lets packet-ins be sent directly until [`close`](Mailbox::close).
    pub fn open(&self, direct: Direct) {
        self.queue.lock().direct = Some(direct);
    }

    /// Lets nothing be sent directly any more, and takes what the peer has not taken of a message.
    pub fn close(&self) -> Vec<u8> {
        let mut queue = self.queue.lock();
        queue.direct = None;
        if queue.unsent.is_empty() {
            return Vec::new();
        }
        let unsent = std::mem::take(&mut queue.unsent);
        queue.tell(&self.memory);
        unsent
    }

    /// The oldest event, except that packet-ins wait for their turn, and altogether where they are not wanted.
    pub fn take(&self, now: Time, packet_ins: bool) -> Option<Event> {
        let mut queue = self.queue.lock();
        let event = queue.take(now, packet_ins);
        queue.tell(&self.memory);
        event
    }

    /// Says how many bytes of output the peer has not taken yet.
    pub fn set_output(&self, bytes: usize) {
        let grows = {
            let mut queue = self.queue.lock();
            let before = std::mem::replace(&mut queue.output, bytes);
            queue.monitors.set_output(bytes);
            queue.tell(&self.memory);
            bytes > before
        };
        if grows {
            self.memory.enforce();
        }
    }

    /// Changes the connection's flow monitors: all that is asked, or nothing.
    pub fn change_monitors(&self, version: Version, requests: &[FlowMonitorRequest]) -> Result<(), OfError> {
        let mut queue = self.queue.lock();
        let changed = queue.monitors.change(version, requests);
        queue.tell(&self.memory);
        changed
    }

    /// Whether there are flow monitors.
    pub fn has_monitors(&self) -> bool {
        !self.queue.lock().monitors.is_empty()
    }

    /// Whether the connection is to be closed, since too much is kept for all.
    pub fn has_overflown(&self) -> bool {
        self.queue.lock().overflown
    }

    /// When a packet-in that waits because of the limit may be taken.
    pub fn due(&self) -> Option<Time> {
        self.queue.lock().packet_ins.iter().filter_map(PacketIns::due).min()
    }

    /// Index into the pairs of an [`AsyncConfig`]. To be asked with the queue locked: once a role has changed and what waits is sent, nothing
    /// comes any more that was for the old one.
    fn side(&self) -> usize {
        usize::from(self.roles.role(self.member) == Role::Secondary)
    }

    /// Puts an event in that `wanted` accepts. `make` is called only then.
    fn post(&self, wanted: impl FnOnce(&Interest) -> bool, make: impl FnOnce(&Interest) -> Event) {
        self.post_to_all(|interest| interest.listening && wanted(interest), make);
    }

    /// As `post`, also to a connection that has not asked for events.
    fn post_to_all(&self, wanted: impl FnOnce(&Interest) -> bool, make: impl FnOnce(&Interest) -> Event) {
        let mut queue = self.queue.lock();
        if queue.overflown || !wanted(&queue.interest) {
            return;
        }
        let event = make(&queue.interest);
        let is_sent = queue.put(event);
        queue.tell(&self.memory);
        if is_sent {
            return;
        }
        let waker = queue.waker.clone();
        drop(queue);
        self.memory.enforce();
        if let Some(wake) = waker {
            wake();
        }
    }
}

impl FlowWatcher for Mailbox {
    fn note(&self, changes: &FlowChanges<'_>) {
        let mut queue = self.queue.lock();
        if !queue.overflown {
            queue.monitors.note(changes);
        }
    }

    fn settle(&self) {
        let mut queue = self.queue.lock();
        loop {
            let EventQueue { monitors, next_number, .. } = &mut *queue;
            if !monitors.settle_some(&mut || next(next_number)) {
                break;
            }
            // Who takes note of other changes waits with the tables locked.
            MutexGuard::bump(&mut queue);
        }
        queue.tell(&self.memory);
        let waker = queue.waker.clone().filter(|_| queue.monitors.has_messages());
        drop(queue);
        self.memory.enforce();
        if let Some(wake) = waker {
            wake();
        }
    }
}

impl Holder for Mailbox {
    fn held(&self) -> usize {
        self.queue.lock().held
    }

    fn overflow(&self) -> bool {
        let (is_first, waker) = {
            let mut queue = self.queue.lock();
            let is_first = !std::mem::replace(&mut queue.overflown, true);
            queue.packet_ins.iter_mut().for_each(PacketIns::clear);
            (queue.others, queue.forwarded) = (VecDeque::new(), 0);
            queue.monitors.clear();
            (queue.direct, queue.unsent) = (None, Vec::new());
            // The connection drops it as soon as it is woken.
            queue.output = 0;
            queue.tell(&self.memory);
            (is_first, queue.waker.clone())
        };
        if let Some(wake) = waker {
            wake();
        }
        is_first
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.memory.change(self.queue.get_mut().held, 0);
    }
}

impl EventQueue {
    /// Tells the memory what is kept by now.
    fn tell(&mut self, memory: &EventMemory) {
        let packet_ins: usize = self.packet_ins.iter().map(PacketIns::memory).sum();
        let others = self.others.len() * size_of::<(u64, Event)>() + self.monitors.memory();
        let held = packet_ins + others + self.forwarded + self.unsent.len() + self.output;
        memory.change(std::mem::replace(&mut self.held, held), held);
    }

    /// Sends a packet-in that nothing waits before, if the connection rests, and keeps what is not sent. Whether the peer has it all.
    fn put(&mut self, event: Event) -> bool {
        let waits = !self.others.is_empty()
            || self.monitors.has_messages()
            || self.packet_ins.iter().any(|kind| !kind.is_empty());
        let outcome = match (event, &self.direct) {
            (Event::PacketIn(packet_in), Some(direct)) if !waits => direct.send(packet_in),
            (event, _) => {
                self.push(event);
                return false;
            }
        };
        match outcome {
            Outcome::Sent => return true,
            Outcome::Partly(unsent) => (self.direct, self.unsent) = (None, unsent),
            Outcome::Left(packet_in) => self.push(Event::PacketIn(packet_in)),
        }
        false
    }

    fn push(&mut self, event: Event) {
        let number = next(&mut self.next_number);
        match event {
            Event::PacketIn(packet_in) => {
                let missed = matches!(packet_in.reason, PacketInReason::NoMatch | PacketInReason::ImplicitMiss);
                self.dropped.packet_ins += self.packet_ins[usize::from(!missed)].push(number, packet_in) as u64;
            }
            other if self.others.len() == MAX_OTHERS || self.forwarded + other.forwarded() > MAX_FORWARDED => {
                self.dropped.others += 1;
            }
            other => {
                self.forwarded += other.forwarded();
                self.others.push_back((number, other));
            }
        }
    }

    fn take(&mut self, now: Time, packet_ins: bool) -> Option<Event> {
        let [missed, asked] = &mut self.packet_ins;
        let other = self.others.front().map(|&(number, _)| number);
        let monitors = self.monitors.next(&mut || next(&mut self.next_number));
        let [first_missed, first_asked] = if packet_ins { [missed.next(now), asked.next(now)] } else { [None; 2] };
        let next = [first_missed, first_asked, other, monitors];
        let first = next.iter().flatten().min().copied()?;
        if monitors == Some(first) {
            return self.monitors.take().map(Event::Message);
        }
        if other == Some(first) {
            let (_, event) = self.others.pop_front()?;
            self.forwarded -= event.forwarded();
            return Some(event);
        }
        let packet_ins = if next[0] == Some(first) { missed } else { asked };
        packet_ins.take().map(Event::PacketIn)
    }
}

/// The next number.
fn next(number: &mut u64) -> u64 {
    *number += 1;
    *number - 1
}

impl Subscriber for Mailbox {
    fn packet_in(&self, event: &PacketInEvent) {
        let reason = |i: &Interest| match event.packet_in.reason {
            // OVS's own reason for a miss without a table-miss flow is filtered by the bit of a plain miss.
            PacketInReason::ImplicitMiss => PacketInReason::NoMatch,
            // What OpenFlow 1.3 calls a table-miss flow was a flow like any other before.
            PacketInReason::NoMatch if event.explicit_miss && i.implicit_misses => PacketInReason::Action,
            reason => reason,
        };
        let wanted = |i: &Interest| {
            i.config.packet_in[self.side()] >> reason(i) as u32 & 1 != 0
                && event.controller_id == i.controller_id
                && (i.implicit_misses || !event.implicit_miss)
        };
        self.post(wanted, |i| Event::PacketIn(Box::new(PacketIn { reason: reason(i), ..event.packet_in.clone() })));
    }

    fn flow_removed(&self, removed: &FlowRemoved) {
        let wanted = |i: &Interest| i.config.flow_removed[self.side()] >> removed.reason as u32 & 1 != 0;
        self.post(wanted, |_| Event::FlowRemoved(removed.clone()));
    }

    fn port_status(&self, status: &PortStatus, audience: Audience) {
        let hears = |i: &Interest| match audience {
            Audience::All => true,
            Audience::ButV1_0 => i.version != Some(Version::V1_0),
            Audience::OnlyV1_0 => i.version == Some(Version::V1_0),
        };
        let wanted = |i: &Interest| i.config.port_status[self.side()] >> status.reason as u32 & 1 != 0 && hears(i);
        self.post(wanted, |_| Event::PortStatus(status.clone()));
    }

    fn table_status(&self, status: &TableStatus) {
        let knows = |i: &Interest| i.version >= Some(Version::V1_4);
        let wanted = |i: &Interest| i.config.table_status[self.side()] >> status.reason as u32 & 1 != 0 && knows(i);
        self.post(wanted, |_| Event::TableStatus(*status));
    }

    fn request_forward(&self, request: &ForwardedRequest) {
        // Meters came with OpenFlow 1.3.
        let knows = |i: &Interest| request.reason == 0 || i.version >= Some(Version::V1_3);
        let wanted = |i: &Interest| i.config.requestforward[self.side()] >> request.reason & 1 != 0 && knows(i);
        self.post(wanted, |_| Event::RequestForward(request.bytes.clone()));
    }
}

impl RoleListener for Mailbox {
    /// As in OVS, it is told whether or not it has asked for it: it could not know otherwise that it is to change nothing any more.
    fn role_changed(&self, status: RoleStatus) {
        self.post_to_all(|i| i.version >= Some(Version::V1_3), |_| Event::RoleStatus(status));
    }
}
