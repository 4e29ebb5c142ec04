//! Packet-ins that are sent by the thread that makes them, while the connection's own thread waits and has nothing to send: to wake it
//! takes as long as all the rest.
//!
//! A session that waits *opens* the direct way ([`Session::rest`]), and closes it before it does anything else. In between, a packet-in
//! that finds nothing before it in the mailbox is encoded and sent under the mailbox's lock. What the peer doesn't take at once is left to
//! the session, as is everything else that it is to be told.

use std::sync::Arc;

use openflow::codec::{DecodeOptions, encode};
use openflow::{Body, Dialect, Message, PacketIn, PacketInFormat, Version};

use super::{Session, Settings, Traffic};

/// The peer of a connection, as other threads than the connection's own reach it.
pub trait DirectSend: Send + Sync {
    /// Whether something may be sent at once. It is, then.
    fn may_send(&self) -> bool;

    /// Sends as many of the bytes as the peer takes at once, and says how many those are. It doesn't wait.
    fn send(&self, bytes: &[u8]) -> usize;
}

/// Is given each message that goes or comes after the hellos.
pub type Snoop = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Is told what happens on a connection, from the hellos on.
pub type Tracer = Arc<dyn Fn(Traffic<'_>) + Send + Sync>;

/// Who looks on.
#[derive(Clone, Default)]
pub(super) struct Onlookers {
    pub snoop: Option<Snoop>,
    pub tracer: Option<Tracer>,
}

impl Onlookers {
    pub fn trace(&self, traffic: Traffic<'_>) {
        if let Some(tracer) = &self.tracer {
            tracer(traffic);
        }
    }

    pub fn copy(&self, message: &[u8]) {
        if let Some(snoop) = &self.snoop {
            snoop(message);
        }
    }

    /// A message goes out.
    pub fn sent(&self, message: &[u8]) {
        self.copy(message);
        self.trace(Traffic::Sent(message));
    }
}

/// What it takes to send a packet-in without the session.
#[derive(Clone)]
pub(super) struct Direct {
    pub peer: Arc<dyn DirectSend>,
    pub onlookers: Onlookers,
    pub version: Version,
    pub format: PacketInFormat,
    pub options: DecodeOptions,
}

/// What has become of a packet-in.
pub(super) enum Outcome {
    /// The peer has it.
    Sent,
    /// The peer has the beginning of it. This is the rest.
    Partly(Vec<u8>),
    /// It is left to the session.
    Left(Box<PacketIn>),
}

impl Direct {
    pub fn send(&self, mut packet_in: Box<PacketIn>) -> Outcome {
        if !self.peer.may_send() {
            return Outcome::Left(packet_in);
        }
        packet_in.format = self.format;
        let body = Body::PacketIn(packet_in);
        let message = Message { version: self.version, xid: 0, dialect: Dialect::Standard, body };
        let mut bytes = match (encode(&message, self.options), message.body) {
            (Ok(bytes), _) => bytes,
            // The session says why not.
            (Err(_), Body::PacketIn(packet_in)) => return Outcome::Left(packet_in),
            (Err(_), _) => return Outcome::Sent,
        };
        self.onlookers.sent(&bytes);
        let taken = self.peer.send(&bytes);
        if taken >= bytes.len() {
            return Outcome::Sent;
        }
        bytes.drain(..taken);
        Outcome::Partly(bytes)
    }
}

impl Session {
    /// Lets packet-ins be sent to `peer` by the threads that make them, whenever this session [`rest`](Session::rest)s.
    pub fn set_direct(&mut self, peer: Arc<dyn DirectSend>) {
        self.direct = Some(peer);
    }

    /// Has these settings of `new` from now on: how long a peer may be silent, and which packet-ins it gets. The others are those of a new
    /// connection.
    pub fn reconfigure(&mut self, new: &Settings) {
        self.rise();
        self.settings.probe_interval = new.probe_interval;
        (self.settings.packet_in_limit, self.settings.packet_in_queue) = (new.packet_in_limit, new.packet_in_queue);
        self.mailbox.set_limit(new.packet_in_limit, new.packet_in_queue);
    }

    /// To be called when there is nothing to do before something comes: from now on until the next call of [`receive`](Session::receive) or
    /// [`poll`](Session::poll), packet-ins may be sent directly. A connection whose packet-ins are limited, or that is not read from,
    /// sends none that way.
    pub fn rest(&mut self) {
        let is_busy = !self.output.is_empty() || self.has_work() || !self.wants_input() || self.holds_packet_ins;
        let (Some(peer), Some(version)) = (&self.direct, self.version) else { return };
        if is_busy || self.settings.packet_in_limit.is_some() || !self.interest().listening {
            return;
        }
        self.mailbox.open(Direct {
            peer: peer.clone(),
            onlookers: self.onlookers.clone(),
            version,
            format: self.packet_in_format,
            options: self.options,
        });
    }

    /// Ends the rest. What a peer has not taken of a packet-in is first in the output.
    pub(super) fn rise(&mut self) {
        let rest = self.mailbox.close();
        self.output.extend_from_slice(&rest);
    }
}
