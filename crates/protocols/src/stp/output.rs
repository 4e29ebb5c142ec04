//! What a bridge of either protocol hands to whoever drives it.

use super::bpdu::Frame;

/// What [`run`](crate::rstp::Bridge::run) has decided. It is done in this order: a port must have stopped forwarding before
/// another one starts, and before a neighbour is told that it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output<S> {
    /// Ports whose state has changed; those that do not forward any longer come first.
    pub changes: Vec<Change<S>>,
    /// Numbers of ports behind which addresses and multicast groups that were learnt are forgotten.
    pub flush: Vec<u16>,
    /// Frames, and the numbers of the ports that send them.
    pub frames: Vec<(u16, Frame)>,
}

impl<S> Default for Output<S> {
    fn default() -> Output<S> {
        Output { changes: Vec::new(), flush: Vec::new(), frames: Vec::new() }
    }
}

impl<S> Output<S> {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.flush.is_empty() && self.frames.is_empty()
    }
}

/// A port's change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<S> {
    /// Number of the port.
    pub port: u16,
    /// The state before.
    pub from: S,
    /// The state now.
    pub to: S,
}

/// Frames of a port since it was added: `*_statistics` of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// BPDUs sent.
    pub sent: u64,
    /// Valid ones received.
    pub received: u64,
    /// Invalid ones received.
    pub errors: u64,
}

/// Why a port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Another port has that number.
    #[error("number {0} of a spanning tree is another port's")]
    NumberTaken(u16),
    /// No such number.
    #[error("{number} is no number of a port of a spanning tree: 1 to {greatest}")]
    NumberOutOfRange {
        /// What was asked for.
        number: u16,
        /// The greatest one.
        greatest: u16,
    },
    /// All numbers are taken.
    #[error("a bridge has at most {0} ports in a spanning tree")]
    TooManyPorts(u16),
}
