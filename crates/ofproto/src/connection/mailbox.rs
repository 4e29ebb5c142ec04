//! Events of the bridge for a connection: filtered when they happen, and kept until there is room to send them.
//!
//! The bridge's threads put events in, and the connection's thread takes them out. Memory is bounded. When there are
//! too many packet-ins, the oldest are dropped. The other events are fewer and matter more, so they have a limit of
//! their own, and the latest are dropped above it. Whatever is dropped is counted.

use std::collections::VecDeque;
use std::sync::Arc;

use openflow::{AsyncConfig, FlowRemoved, PacketIn, PacketInReason, PortStatus, Role};
use parking_lot::Mutex;

use super::roles::{Member, Roles};
use crate::events::{PacketInEvent, Subscriber, Waker};

/// Most packet-ins that wait.
pub(super) const MAX_PACKET_INS: usize = 256;
/// Most other events that wait.
pub(super) const MAX_OTHERS: usize = 16_384;

/// Decides whether a packet-in may be sent now: the hook for rate limits. False drops and counts it.
pub type PacketInLimit = Box<dyn FnMut(&PacketIn) -> bool + Send>;

/// An event on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    PacketIn(Box<PacketIn>),
    FlowRemoved(FlowRemoved),
    PortStatus(PortStatus),
}

/// What a connection wants to hear.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    /// Anything at all: negotiated, and for a service connection asked for.
    pub listening: bool,
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
    /// Packet-ins that the rate limit refused.
    pub limited: u64,
    /// Other messages for which there was no room.
    pub others: u64,
}

pub(super) struct Mailbox {
    roles: Arc<Roles>,
    member: Member,
    queue: Mutex<EventQueue>,
}

/// What waits, and what the connection wants.
struct EventQueue {
    interest: Interest,
    events: VecDeque<Event>,
    packet_ins: usize,
    dropped: Dropped,
    limit: Option<PacketInLimit>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub fn new(roles: Arc<Roles>, member: Member, interest: Interest) -> Mailbox {
        let queue = EventQueue {
            interest,
            events: VecDeque::new(),
            packet_ins: 0,
            dropped: Dropped::default(),
            limit: None,
            waker: None,
        };
        Mailbox { roles, member, queue: Mutex::new(queue) }
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

    pub fn set_limit(&self, limit: PacketInLimit) {
        self.queue.lock().limit = Some(limit);
    }

    pub fn dropped(&self) -> Dropped {
        self.queue.lock().dropped
    }

    /// The oldest event.
    pub fn take(&self) -> Option<Event> {
        let mut queue = self.queue.lock();
        let event = queue.events.pop_front()?;
        queue.packet_ins -= usize::from(matches!(event, Event::PacketIn(_)));
        Some(event)
    }

    /// Index into the pairs of an [`AsyncConfig`].
    fn side(&self) -> usize {
        usize::from(self.roles.role(self.member) == Role::Secondary)
    }

    /// Puts an event in that `wanted` accepts. `make` is called only then.
    fn post(&self, wanted: impl FnOnce(&Interest) -> bool, make: impl FnOnce(&Interest) -> Event) {
        let mut queue = self.queue.lock();
        if !queue.interest.listening || !wanted(&queue.interest) {
            return;
        }
        let event = make(&queue.interest);
        queue.push(event);
        let waker = queue.waker.clone();
        drop(queue);
        if let Some(wake) = waker {
            wake();
        }
    }
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        if let Event::PacketIn(packet) = &event {
            if let Some(limit) = &mut self.limit
                && !limit(packet)
            {
                self.dropped.limited += 1;
                return;
            }
            if self.packet_ins == MAX_PACKET_INS {
                self.drop_packet_in();
            }
            self.packet_ins += 1;
        } else if self.events.len() - self.packet_ins == MAX_OTHERS {
            self.dropped.others += 1;
            return;
        }
        self.events.push_back(event);
    }

    /// Drops the oldest packet-in.
    fn drop_packet_in(&mut self) {
        if let Some(at) = self.events.iter().position(|e| matches!(e, Event::PacketIn(_))) {
            self.events.remove(at);
            self.packet_ins -= 1;
            self.dropped.packet_ins += 1;
        }
    }
}

impl Subscriber for Mailbox {
    fn packet_in(&self, event: &PacketInEvent) {
        let side = self.side();
        let reason = |i: &Interest| match event.packet_in.reason {
            // OVS's own reason for a miss without a table-miss flow is filtered by the bit of a plain miss.
            PacketInReason::ImplicitMiss => PacketInReason::NoMatch,
            // What OpenFlow 1.3 calls a table-miss flow was a flow like any other before.
            PacketInReason::NoMatch if event.explicit_miss && i.implicit_misses => PacketInReason::Action,
            reason => reason,
        };
        let wanted = |i: &Interest| {
            i.config.packet_in[side] >> reason(i) as u32 & 1 != 0
                && event.controller_id == i.controller_id
                && (i.implicit_misses || !event.implicit_miss)
        };
        self.post(wanted, |i| Event::PacketIn(Box::new(PacketIn { reason: reason(i), ..event.packet_in.clone() })));
    }

    fn flow_removed(&self, removed: &FlowRemoved) {
        let side = self.side();
        let wanted = |i: &Interest| i.config.flow_removed[side] >> removed.reason as u32 & 1 != 0;
        self.post(wanted, |_| Event::FlowRemoved(removed.clone()));
    }

    fn port_status(&self, status: &PortStatus) {
        let side = self.side();
        let wanted = |i: &Interest| i.config.port_status[side] >> status.reason as u32 & 1 != 0;
        self.post(wanted, |_| Event::PortStatus(status.clone()));
    }
}
