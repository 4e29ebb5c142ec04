//! The state machines of protocols: what a packet is to its connection, and what it makes of it. They are pure: no time,
//! no memory but what is passed in.
//!
//! | module | what it is |
//! |---|---|
//! | [`simple`] | UDP, SCTP, ICMP, ICMPv6 and other protocols |
//! | [`tcp`] | TCP: states and sequence windows |

pub mod simple;
pub mod tcp;

use crate::timeout::Timeout;

/// What a packet is to its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// It belongs to a connection that has not been answered.
    New {
        /// The connection ends this long after the packet; `None` where the packet is no sign of life.
        timeout: Option<Timeout>,
    },
    /// It belongs to an established connection.
    Established {
        /// As in [`New`](Update::New).
        timeout: Option<Timeout>,
    },
    /// It begins another connection between the same ports; the one before has ended.
    Reopened,
    /// It is not valid for the connection, which stays as it is.
    Invalid(Invalid),
}

/// Why a packet is not valid for its connection, or for any. The name is that of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Invalid {
    /// TCP flags that no end sends: SYN with FIN, nothing at all, and others.
    #[error("TCP flags that cannot be together")]
    TcpFlags,
    /// A TCP sequence or acknowledgement number outside of the windows.
    #[error("TCP segment outside of the windows")]
    TcpWindow,
    /// A packet that cannot begin a connection, and belongs to none.
    #[error("does not begin a connection")]
    NotFirst,
    /// An ICMP error that belongs to no connection.
    #[error("ICMP error about no known connection")]
    NoConnection,
}
