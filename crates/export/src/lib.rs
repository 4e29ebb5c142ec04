//! Samples and flow records for collectors: sFlow version 5, NetFlow version 5 and IPFIX (RFC 7011).
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | What a bridge exports, and to whom |
//! | [`exporter`] | All of it together: takes samples, and does what the time asks for |
//! | [`fuzz`] | Entry for fuzzing |
//! | [`queue`] | Where samples wait for the exporter, bounded |
//! | [`sflow`] | The agent of a bridge, and its datagrams |
//! | [`netflow`] | The flows of a bridge, and NetFlow's packets |
//! | [`ipfix`] | The flow caches of a bridge, and IPFIX's messages |
//! | [`tunnel`] | What all of them say about a tunnel |
//! | [`target`] | Addresses of collectors, from text |
//! | [`collectors`] | Sockets to collectors: the only module that does I/O |
//! | [`bytes`] | Numbers in network byte order |
//!
//! Nothing here knows a datapath or OpenFlow, or reads a clock: times are passed in. What is kept is bounded, whatever
//! is sampled, and a sample costs a constant amount of work. No datagram is longer than [`MAX_DATAGRAM`].

pub mod bytes;
pub mod collectors;
pub mod exporter;
pub mod fuzz;
pub mod ipfix;
pub mod netflow;
pub mod queue;
pub mod settings;
pub mod sflow;
pub mod target;
pub mod tunnel;

use std::time::Duration;

use packet::Time;

/// Most bytes of UDP payload that are sent to a collector at once: they fit in a frame of Ethernet, with headers of
/// IPv6 and of a tunnel before them.
pub const MAX_DATAGRAM: usize = 1400;

/// A point in time, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moment {
    /// By the switch's clock.
    pub now: Time,
    /// Since the start of 1970.
    pub wall: Duration,
}

/// How many collectors got a datagram, and how many did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sent {
    /// Those that it was sent to.
    pub taken: u64,
    /// Those that it could not be sent to.
    pub failed: u64,
    /// Those whose hosts have refused a datagram before.
    pub refused: u64,
}

/// What takes datagrams.
pub trait Sink {
    /// Sends a datagram to every collector. Never blocks.
    fn send(&mut self, datagram: &[u8]) -> Sent;
}

impl Sink for Vec<Vec<u8>> {
    fn send(&mut self, datagram: &[u8]) -> Sent {
        self.push(datagram.to_vec());
        Sent { taken: 1, ..Sent::default() }
    }
}
