//! An OpenFlow connection to a controller or a management client: bytes in, bytes out.
//!
//! A [`Session`] does no I/O and reads no clock. Whoever owns the socket gives it what was received
//! ([`receive`](Session::receive)), calls [`poll`](Session::poll) when it is woken or a timeout is due,
//! and sends [`output`](Session::output). When [`closed`](Session::closed) says why, what is left of the output
//! is sent and the socket closed.
//!
//! A peer that does not read costs bounded memory: beyond [`OUTPUT_LIMIT`] nothing more of it is read or
//! answered ([`wants_input`](Session::wants_input)), long answers are made as it takes them (`reply`), and
//! events wait in a bounded mailbox. Nor is anything read while the workers are behind with the packets that controllers
//! have sent. What it sends for later use is bounded, too: bundles in bytes, requests in
//! pieces by what is kept of them.
//!
//! | module | what it is |
//! |---|---|
//! | `requests` | What each message asks for, and the answer |
//! | `reply` | Long answers, made piece by piece |
//! | `features` | The answer about table features |
//! | `flush` | Ending connections |
//! | `flow_mod_count` | How many flow-mods have come, for a log |
//! | `flow_monitors` | Flow monitors, and what they are told |
//! | `monitor_requests` | Requests about them |
//! | `bundles` | Bundles that are not committed yet |
//! | `mailbox` | Events that wait for the peer |
//! | `packet_ins` | Those of them that are packets |
//! | `direct` | Those that are sent while the session waits |
//! | `roles` | The roles of a bridge's controllers |
//! | `budget` | What all peers together may make the switch hold |
//! | `event_memory` | What is kept of events and answers for all connections together |

pub(crate) mod budget;
mod bundles;
mod direct;
pub(crate) mod event_memory;
mod features;
mod flow_mod_count;
mod flow_monitors;
mod flush;
mod mailbox;
mod monitor_requests;
mod packet_ins;
mod reply;
mod requests;
mod roles;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use openflow::codec::{self, DecodeOptions, Encoded, encode_all, error_message};
use openflow::stats::{SwitchDesc, TableFeatures};
use openflow::switch::RoleMsg;
use openflow::{
    AsyncConfig, Body, Dialect, ErrorCode, ErrorMsg, FlowFormat, Hello, Message, MultipartReply, OfError,
    PacketInFormat, RequestForward, Role, Version, Versions,
};
use packet::Time;

use crate::bridge::{Bridge, Piecewise};
use crate::events::{ForwardedRequest, SubscriptionId};
use bundles::Bundles;
use direct::Onlookers;
use flow_mod_count::FlowModCount;
use flow_monitors::FlowMonitors;
use mailbox::{Event, Interest, Mailbox};
use reply::{Reply, Step};
use roles::Member;

pub use crate::events::Waker;
pub use direct::{DirectSend, Snoop, Tracer};
pub use mailbox::Dropped;
pub use packet_ins::{PACKET_IN_QUEUE, PacketInLimit};
pub use roles::Roles;

/// Bytes of output that wait before no more requests are taken. One answer can exceed it.
pub const OUTPUT_LIMIT: usize = 1 << 20;

/// Bytes of output that wait before no more of a long answer is made.
const REPLY_LIMIT: usize = 64 << 10;

/// Most steps on long answers that one call takes. With the limit above, they take a millisecond or two, so that a thread
/// with many connections serves each of them soon.
const STEPS: usize = 8;

/// Most messages that one call handles, for the same reason: a peer can send thousands at once.
const MESSAGES: usize = 64;

/// How long one call handles messages and makes answers, after which it ends with what it is at: a packet that is sent through all
/// tables, or a change of thousands of flows, takes as long as thousands of other messages.
const TURN: Duration = Duration::from_millis(1);

/// Bytes of a packet that misses which a controller gets, unless it says otherwise.
const DEFAULT_MISS_SEND_LEN: u16 = 128;

/// Bytes of output that wait before no more events are taken out of the mailbox.
const EVENT_LIMIT: usize = 64 << 10;

/// What a connection is for (OVS's "primary" and "service" connections).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// A primary controller: it gets asynchronous messages at once.
    Controller,
    /// A service controller, or a client of BRIDGE.mgmt: none until it sets a miss_send_len.
    Service,
}

/// How a connection is to behave.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it is for.
    pub kind: ConnectionKind,
    /// Versions that may be negotiated; those that the codec does not support are left out.
    pub versions: Versions,
    /// After so long without a message an echo is sent, after as long again the connection closed. `None`
    /// for never.
    pub probe_interval: Option<Duration>,
    /// How many packet-ins the peer gets; `None`: as many as it takes.
    pub packet_in_limit: Option<PacketInLimit>,
    /// How many packet-ins of each of the two kinds (missed, and sent by an action) wait for the peer at most.
    pub packet_in_queue: usize,
    /// The peer gets messages that it has not asked for before it says which it wants.
    pub async_messages: bool,
    /// Answer to a description request, where the bridge's configuration says nothing else.
    pub desc: SwitchDesc,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// No version in common.
    #[error("no OpenFlow version in common: the peer offers {peer}, allowed are {allowed}")]
    Version {
        /// The peer's.
        peer: Versions,
        /// Ours.
        allowed: Versions,
    },
    /// The first message was not a hello.
    #[error("the peer began with a message of type {0} instead of a hello")]
    NoHello(u8),
    /// The peer refused the version.
    #[error("the peer refused to connect: {0}")]
    Refused(ErrorCode),
    /// What came is not OpenFlow.
    #[error(transparent)]
    Frame(#[from] codec::FrameError),
    /// Nothing came for twice the probe interval.
    #[error("no response to inactivity probe")]
    Inactive,
    /// Too much was kept for all connections, and most of it for this one.
    #[error("more is kept for OpenFlow peers than may be, and most for this one, which reads too slowly")]
    TooSlow,
}

/// A barrier request that waits for changes to be in force.
struct Barrier {
    version: Version,
    xid: u32,
    dialect: Dialect,
    changes: u64,
}

/// What happens on a connection, for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic<'a> {
    /// A message goes out.
    Sent(&'a [u8]),
    /// A message has come.
    Received(&'a [u8]),
    /// The hellos have been exchanged.
    Negotiated {
        /// The version that was agreed on.
        version: Version,
        /// Those that are allowed here.
        allowed: Versions,
        /// Those that the peer offers.
        peer: Versions,
    },
}

/// A connection. See the [module](self).
pub struct Session {
    bridge: Bridge,
    settings: Settings,
    /// `None` until the hellos have been exchanged.
    version: Option<Version>,
    closed: Option<Closed>,
    input: BytesMut,
    output: BytesMut,
    /// An answer that is not complete. No further request is looked at before it is.
    reply: Option<Reply>,
    /// A delete of many flows that is not complete. No further request is looked at before it is.
    piecewise: Option<Piecewise>,
    /// A barrier that is not passed. No further request is looked at before it is.
    barrier: Option<Barrier>,
    /// The latest change, of this connection's at least, that datapath flows may depend on.
    changed: u64,
    next_xid: u32,
    /// Whole messages that have come, and when the last one did.
    messages: u64,
    last_heard: Time,
    probing: bool,
    /// For how long the peer had been silent when it was last probed, until somebody has asked.
    probed: Option<Duration>,
    roles: Arc<Roles>,
    member: Member,
    mailbox: Arc<Mailbox>,
    /// Packet-ins wait: the peer has sent more than was read.
    holds_packet_ins: bool,
    subscription: SubscriptionId,
    options: DecodeOptions,
    flow_format: FlowFormat,
    packet_in_format: PacketInFormat,
    miss_send_len: u16,
    controller_id: u16,
    async_config: AsyncConfig,
    bundles: Bundles,
    flow_mods: FlowModCount,
    has_monitors: bool,
    onlookers: Onlookers,
    /// How packet-ins are sent while nothing else is to be done.
    direct: Option<Arc<dyn DirectSend>>,
    /// The beginning of a request about tables, and its transaction id.
    pending_tables: Option<(u32, Vec<TableFeatures>)>,
}

impl Session {
    /// A connection that has just been made. Its hello waits in the output.
    pub fn new(bridge: Bridge, mut settings: Settings, roles: Arc<Roles>, now: Time) -> Session {
        settings.versions = Versions(settings.versions.0 & codec::SUPPORTED.0);
        let member = roles.join();
        let interest = Interest {
            listening: false,
            version: None,
            config: AsyncConfig::default(),
            controller_id: 0,
            implicit_misses: false,
        };
        let memory = bridge.event_memory();
        let waiting = (settings.packet_in_limit, settings.packet_in_queue);
        let monitors = FlowMonitors::new(bridge.flow_monitors());
        let mailbox = Mailbox::new(memory, (roles.clone(), member), interest, monitors, waiting);
        let subscription = bridge.subscribe(mailbox.clone());
        // OVS: a controller starts with 128, a service connection with zero, which keeps it quiet.
        let miss_send_len = if settings.kind == ConnectionKind::Controller { DEFAULT_MISS_SEND_LEN } else { 0 };
        let bundles = Bundles::new(bridge.bundle_memory());
        let mut session = Session {
            bridge,
            settings,
            version: None,
            closed: None,
            input: BytesMut::new(),
            output: BytesMut::new(),
            reply: None,
            piecewise: None,
            barrier: None,
            changed: 0,
            next_xid: 1,
            messages: 0,
            last_heard: now,
            probing: false,
            probed: None,
            roles,
            member,
            mailbox,
            holds_packet_ins: false,
            subscription,
            options: DecodeOptions::default(),
            flow_format: FlowFormat::default(),
            packet_in_format: PacketInFormat::default(),
            miss_send_len,
            controller_id: 0,
            async_config: AsyncConfig::default(),
            bundles,
            flow_mods: FlowModCount::default(),
            has_monitors: false,
            onlookers: Onlookers::default(),
            direct: None,
            pending_tables: None,
        };
        let versions = session.settings.versions;
        let highest = versions.iter().last().unwrap_or(Version::V1_0);
        let xid = session.xid();
        session.send(&Message::new(highest, xid, Body::Hello(Hello { versions })));
        session
    }

    /// Calls `waker` when there is something to [`poll`](Session::poll) for.
    pub fn set_waker(&self, waker: Waker) {
        self.mailbox.set_waker(waker);
    }

    /// Gives each message that goes or comes to `snoop` from now on.
    pub fn set_snoop(&mut self, snoop: Snoop) {
        self.onlookers.snoop = Some(snoop);
    }

    /// Tells `tracer` what happens from now on, and of the hello that waits in the output.
    pub fn set_tracer(&mut self, tracer: Tracer) {
        if self.messages == 0 && !self.output.is_empty() {
            tracer(Traffic::Sent(&self.output));
        }
        self.onlookers.tracer = Some(tracer);
    }

    /// Takes what was received, and answers.
    pub fn receive(&mut self, bytes: &[u8], now: Time) {
        self.rise();
        if self.closed.is_some() || self.mailbox.has_overflown() {
            // Part of a message may be missing.
            return;
        }
        self.input.extend_from_slice(bytes);
        self.process(now);
        self.mailbox.set_output(self.output.len());
    }

    /// Does what is due: requests that waited for room, events, the inactivity probe.
    pub fn poll(&mut self, now: Time) {
        self.rise();
        if self.mailbox.has_overflown() {
            // What waits to be sent is not taken, either.
            self.output = BytesMut::new();
            self.closed.get_or_insert(Closed::TooSlow);
        }
        if self.closed.is_none() {
            self.process(now);
            self.expire_bundles(now);
            self.send_events(now);
        }
        self.mailbox.set_output(self.output.len());
        let Some(interval) = self.settings.probe_interval.filter(|_| self.closed.is_none()) else { return };
        if !self.wants_input() {
            // What the peer may have to say is not read before it reads, so it is not silent.
            self.last_heard = now;
        }
        let idle = now.since(self.last_heard);
        if idle >= 2 * interval {
            self.closed = Some(Closed::Inactive);
        } else if idle >= interval && !self.probing && self.version.is_some() {
            (self.probing, self.probed) = (true, Some(idle));
            // As in Open vSwitch, a probe has no number of its own.
            let message = Message::new(self.version.unwrap_or(Version::V1_0), 0, Body::EchoRequest(Vec::new()));
            self.send(&message);
        }
    }

    /// For how long the peer had been silent, if it has been probed since the last call.
    pub fn has_probed(&mut self) -> Option<Duration> {
        self.probed.take()
    }

    /// When [`poll`](Session::poll) has to be called at the latest; `None` for when it is woken.
    pub fn next_timeout(&self) -> Option<Time> {
        // A packet-in that may be sent waits for the peer to read, if there is no room for it.
        let due = self.mailbox.due().filter(|_| self.has_room_for_events() && !self.holds_packet_ins);
        let interval = self.settings.probe_interval.filter(|_| self.closed.is_none());
        let probed = self.probing || self.version.is_none();
        let probe = interval.map(|interval| self.last_heard + if probed { 2 * interval } else { interval });
        // Nobody tells when the workers have caught up.
        let behind = self.bridge.has_packet_outs_enough().then_some(self.last_heard);
        let bundle = self.bundles.next_expiry(self.bridge.bundle_idle()).filter(|_| self.closed.is_none());
        due.into_iter().chain(probe).chain(behind).chain(bundle).chain(self.flow_mods.due()).min()
    }

    /// Packet-ins wait from now on, or no longer. A peer whose answers to packets are not read yet is given no more packets to answer:
    /// what it has to send would grow without end in its own queue, and what is for a port that sends little would come late.
    /// While they wait, those of the ports that have most are dropped.
    pub fn hold_packet_ins(&mut self, hold: bool) {
        self.holds_packet_ins = hold;
    }

    fn has_room_for_events(&self) -> bool {
        self.closed.is_none() && self.reply.is_none() && self.output.len() < EVENT_LIMIT
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Says that the first `n` bytes of the output have been sent. Then [`poll`](Session::poll), for what
    /// waited for room.
    pub fn sent(&mut self, n: usize) {
        self.output.advance(n.min(self.output.len()));
        self.mailbox.set_output(self.output.len());
        if self.output.is_empty() {
            // What a long answer took is given back.
            self.output = BytesMut::new();
        }
    }

    /// Whether more should be read from the peer: false while it does not read what it asked for, while it waits for a
    /// barrier, while the workers are behind with its packets, and while it has sent more than one call handles.
    pub fn wants_input(&self) -> bool {
        self.can_handle() && !self.has_message()
    }

    /// Whether there is a whole message in the input, or none that could be.
    fn has_message(&self) -> bool {
        codec::frame_len(&self.input).map_or(true, |len| len.is_some_and(|len| len <= self.input.len()))
    }

    /// Whether a message can be handled.
    fn can_handle(&self) -> bool {
        let busy = self.reply.is_some() || self.piecewise.is_some() || self.barrier.is_some();
        self.closed.is_none() && !busy && self.output.len() < OUTPUT_LIMIT && !self.bridge.has_packet_outs_enough()
    }

    /// Whether more of a long answer can be made, more flows deleted, or more messages handled, at once, by
    /// [`poll`](Session::poll).
    pub fn has_work(&self) -> bool {
        let can_go_on = self.piecewise.is_some() || self.can_answer() || self.can_handle() && self.has_message();
        self.closed.is_none() && can_go_on
    }

    /// Whether there is room for more of a long answer.
    fn can_answer(&self) -> bool {
        self.closed.is_none() && self.reply.is_some() && self.output.len() < REPLY_LIMIT
    }

    /// Why the connection ended, once it has.
    pub fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// The version that was agreed on.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// How many whole messages have come.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// How many flow-mods have come since the last report, in words, when it is time to say so, or when the connection
    /// ends.
    pub fn flow_mod_report(&mut self, now: Time, ends: bool) -> Option<String> {
        let due = ends || self.flow_mods.due().is_some_and(|due| due <= now);
        due.then(|| self.flow_mods.report(now)).flatten()
    }

    /// The controller's role.
    pub fn role(&self) -> Role {
        self.roles.role(self.member)
    }

    /// Whether the peer wants packets that miss in a table without a table-miss flow
    /// ([`Controllers::want_misses`](crate::Controllers)).
    pub fn wants_misses(&self) -> bool {
        let interest = self.interest();
        let side = usize::from(self.role() == Role::Secondary);
        interest.listening && interest.implicit_misses && interest.config.packet_in[side] & 1 != 0
    }

    /// Messages that did not get through.
    pub fn dropped(&self) -> Dropped {
        self.mailbox.dropped()
    }

    /// Handles whole messages in the input, as long as there is room for the answers. Only those are a sign of
    /// life: a peer that sends a byte now and then is silent.
    fn process(&mut self, now: Time) {
        let (mut steps, mut messages) = (STEPS, MESSAGES);
        let began = self.bridge.now();
        self.pass_barrier();
        self.go_on(&mut steps, began);
        while messages > 0 && self.can_handle() && self.has_time(began) {
            let len = match codec::frame_len(&self.input) {
                Err(e) => {
                    self.closed = Some(e.into());
                    break;
                }
                Ok(Some(len)) if len <= self.input.len() => len,
                Ok(_) => break,
            };
            let bytes = self.input.split_to(len);
            messages -= 1;
            self.messages += 1;
            self.last_heard = now;
            self.probing = false;
            self.onlookers.trace(Traffic::Received(&bytes));
            match self.version {
                None => self.greet(&bytes),
                Some(version) => {
                    self.onlookers.copy(&bytes);
                    self.handle(version, &bytes);
                }
            }
            if self.has_monitors {
                // What a request has changed is told before the answer to a later one.
                self.send_events(now);
            }
            self.go_on(&mut steps, began);
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Answers a barrier request whose changes are in force by now.
    fn pass_barrier(&mut self) {
        if let Some(Barrier { version, xid, dialect, .. }) =
            self.barrier.take_if(|barrier| self.bridge.has_passed(barrier.changes))
        {
            self.send_all_events(self.last_heard);
            self.send(&Message { version, xid, dialect, body: Body::BarrierReply });
        }
    }

    /// Goes on with a change that is not complete. False where there is none, or no more of it: to be called until then
    /// when the connection has ended. Dropped before, it is completed at once.
    pub fn change_more(&mut self) -> bool {
        let Some(piecewise) = &mut self.piecewise else { return false };
        let more = piecewise.go_on();
        if !more {
            self.piecewise = None;
        }
        self.changed = self.bridge.latest_change();
        more
    }

    /// Whether a call that began then may go on.
    fn has_time(&self, began: Time) -> bool {
        self.bridge.now().since(began) < TURN
    }

    /// Goes on with a change or an answer that is not complete, as long as there is room for it, and steps and time are left.
    fn go_on(&mut self, steps: &mut usize, began: Time) {
        while *steps > 0 && self.piecewise.is_some() && self.has_time(began) {
            // A piece of a change takes longer than one of an answer.
            *steps = steps.saturating_sub(STEPS / 2);
            self.change_more();
        }
        while self.can_answer()
            && *steps > 0
            && self.has_time(began)
            && let Some(mut reply) = self.reply.take()
        {
            *steps -= 1;
            let more = match (reply.pieces)() {
                Some(Step::Piece(piece, more)) => {
                    let body = Body::MultipartReply { more, reply: piece };
                    self.send(&Message { version: reply.version, xid: reply.xid, dialect: reply.dialect, body });
                    more
                }
                Some(Step::Working) => true,
                None => false,
            };
            self.reply = more.then_some(reply);
        }
    }

    /// The first message: a hello, or an error about ours.
    fn greet(&mut self, bytes: &[u8]) {
        let allowed = self.settings.versions;
        let peer = match codec::decode(bytes, self.options).map(|m| m.body) {
            Ok(Body::Hello(hello)) => hello.versions,
            Ok(Body::Error(e)) => return self.closed = Some(Closed::Refused(e.error)),
            _ => return self.closed = Some(Closed::NoHello(bytes[1])),
        };
        let Some(version) = peer.negotiate(allowed) else {
            let closed = Closed::Version { peer, allowed };
            // In the peer's latest version, which it surely reads; the text is for its log.
            let version = peer.iter().last().unwrap_or(Version::V1_0);
            let error = ErrorMsg {
                error: ErrorCode::Known(OfError::OFPHFC_INCOMPATIBLE),
                data: closed.to_string().into_bytes(),
            };
            let xid = self.xid();
            self.send(&Message::new(version, xid, Body::Error(error)));
            return self.closed = Some(closed);
        };
        self.onlookers.trace(Traffic::Negotiated { version, allowed, peer });
        self.version = Some(version);
        if self.settings.async_messages {
            self.async_config = default_async(version);
        }
        self.update_interest();
    }

    /// A message after the hellos.
    fn handle(&mut self, version: Version, bytes: &[u8]) {
        let xid = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if bytes[0] != version.wire() && bytes[1] != 0 {
            // In the version of the message, as OVS does: its sender may know no other.
            let version = Version::from_wire(bytes[0]).unwrap_or(version);
            return self.send(&error_message(version, xid, OfError::OFPBRC_BAD_VERSION, bytes));
        }
        let message = match codec::decode(bytes, self.options) {
            Ok(message) => message,
            Err(mut e) => {
                // What is wrong with the content of a message that is none for a switch does not matter.
                if codec::is_of_switches(version, e.kind) && e.error != OfError::OFPBRC_BAD_LEN {
                    e.error = OfError::OFPBRC_BAD_TYPE;
                }
                return self.send(&e.reply(version, bytes));
            }
        };
        let dialect = message.dialect;
        let forwarded = forwarded_reason(&message.body);
        match self.answer(message) {
            Ok(Some(body)) => self.send(&Message { version, xid, dialect, body }),
            Ok(None) => self.forward(forwarded, bytes),
            Err(error) => self.send(&error_message(version, xid, error, bytes)),
        }
    }

    /// Tells the other connections of a message that has changed groups or meters.
    fn forward(&self, reason: Option<u32>, bytes: &[u8]) {
        if let Some(reason) = reason {
            self.bridge.forward_request(self.subscription, &ForwardedRequest { reason, bytes: bytes.into() });
        }
    }

    /// Moves events into the output, but not between the messages of one answer.
    fn send_events(&mut self, now: Time) {
        while self.has_room_for_events() {
            match self.mailbox.take(now, !self.holds_packet_ins) {
                Some(event) => self.send_event(event),
                None => break,
            }
        }
    }

    /// Moves all events into the output that may be sent: those before a barrier come before its reply.
    fn send_all_events(&mut self, now: Time) {
        while let Some(event) = self.mailbox.take(now, true) {
            self.send_event(event);
        }
    }

    fn send_event(&mut self, event: Event) {
        let Some(version) = self.version else { return };
        // Flow-removed in NXM where the peer speaks it: struct ofp10_match could not say all.
        let nxm = version == Version::V1_0 && self.flow_format == FlowFormat::Nxm;
        let dialect = match event {
            Event::FlowRemoved(_) if nxm => Dialect::Nicira,
            _ => Dialect::Standard,
        };
        let body = match event {
            Event::PacketIn(mut packet_in) => {
                packet_in.format = self.packet_in_format;
                Body::PacketIn(packet_in)
            }
            Event::FlowRemoved(removed) => Body::FlowRemoved(Box::new(removed)),
            Event::PortStatus(status) => Body::PortStatus(status),
            Event::Message(message) => return self.put(&message),
            Event::RoleStatus(status) => Body::RoleStatus(status),
            Event::TableStatus(status) => Body::TableStatus(status),
            Event::RequestForward(bytes) => match codec::decode(&bytes, self.options).map(|message| message.body) {
                Ok(Body::GroupMod(change)) => Body::RequestForward(RequestForward::Group(change)),
                Ok(Body::MeterMod(change)) => Body::RequestForward(RequestForward::Meter(change)),
                _ => return,
            },
        };
        self.send(&Message { version, xid: 0, dialect, body });
    }

    /// Appends a message to the output. One that is too long to be a message (a packet-in of a frame of
    /// almost 64 kB) is left out.
    fn send(&mut self, message: &Message) {
        match encode_all(message, self.options) {
            Ok(Encoded { messages, left_out }) => {
                messages.iter().for_each(|part| self.put(part));
                if left_out > 0 && matches!(message.body, Body::MultipartReply { reply: MultipartReply::Flow(_), .. }) {
                    tracing::warn!(
                        target: "ofp_flow",
                        "Flow exceeded the maximum flow statistics reply size and was excluded from the response set"
                    );
                } else if left_out > 0 {
                    tracing::warn!("bridge {}: {left_out} entries of a reply fit into no message", self.bridge.name());
                }
            }
            Err(e) => tracing::warn!("bridge {}: cannot send: {e}", self.bridge.name()),
        }
    }

    /// Appends an encoded message to the output.
    fn put(&mut self, message: &[u8]) {
        self.onlookers.sent(message);
        self.output.extend_from_slice(message);
    }

    fn xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid.wrapping_sub(1)
    }

    fn interest(&self) -> Interest {
        let asked = self.settings.kind == ConnectionKind::Controller || self.miss_send_len != 0;
        Interest {
            listening: asked && self.version.is_some(),
            version: self.version,
            config: self.async_config,
            controller_id: self.controller_id,
            implicit_misses: self.version.is_some_and(|v| v < Version::V1_3),
        }
    }

    fn update_interest(&self) {
        self.mailbox.set_interest(self.interest());
    }

    /// The same of a connection that has got events. Those that wait were for what it wanted before, so they go before the answer to
    /// whatever it asks next.
    fn change_interest(&mut self) {
        self.update_interest();
        self.send_all_events(self.last_heard);
    }

    /// A role request.
    fn change_role(&mut self, request: RoleMsg, dialect: Dialect) -> Result<Body, OfError> {
        self.roles.change(self.member, request.role, request.generation_id)?;
        let role = if dialect == Dialect::Nicira { request.role } else { self.role() };
        Ok(Body::RoleReply(RoleMsg { role, generation_id: self.roles.generation() }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.has_monitors {
            self.bridge.unwatch_flows(self.subscription);
        }
        self.bridge.unsubscribe(self.subscription);
        self.roles.leave(self.member);
    }
}

/// OFPRFR_GROUP_MOD, OFPRFR_METER_MOD.
const GROUP_MOD: u32 = 0;
const METER_MOD: u32 = 1;

/// The reason for which a message is forwarded to other connections once it has been obeyed.
fn forwarded_reason(body: &Body) -> Option<u32> {
    match body {
        Body::GroupMod(_) => Some(GROUP_MOD),
        Body::MeterMod(_) => Some(METER_MOD),
        _ => None,
    }
}

/// What a controller gets before it says otherwise (OpenFlow 1.3.5 section 6.3.5 and 7.3.10): as primary or
/// equal all but packets with an invalid TTL, as secondary the changes of ports.
fn default_async(version: Version) -> AsyncConfig {
    let flow_removed = if version >= Version::V1_3 { 0xf } else { 0x7 };
    // No match, action, action set, group, packet-out.
    AsyncConfig {
        packet_in: [0b11_1011, 0],
        port_status: [0b111, 0b111],
        flow_removed: [flow_removed, 0],
        ..AsyncConfig::default()
    }
}
