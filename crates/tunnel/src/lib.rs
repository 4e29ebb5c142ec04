//! Headers of tunnels: VXLAN with its extensions, Geneve, GRE, ERSPAN, GTP-U, LISP and bareudp, over IPv4 and IPv6, and segment routing over
//! IPv6.
//!
//! | module | what it knows |
//! |---|---|
//! | [`header`] | the header of each protocol, from bytes and to bytes |
//! | [`srv6`] | the routing header of segment routing |
//! | [`options`] | the options of Geneve |
//! | [`fields`] | which fields stand for them (tun_metadata0 to 63), and their values |
//! | [`outer`] | the IP and UDP headers below, [`outer::encapsulate`] and [`outer::decapsulate`] |
//! | [`ecn`] | what becomes of congestion marks (RFC 6040) |
//! | [`metadata`] | what a packet carries along from its tunnel, or towards it |
//! | [`plain`] | both at once, for received packets like most |
//! | [`config`] | the options of a tunnel port, from text and to text |
//! | [`send`] | from a port and metadata to headers |
//! | [`matching`] | which port a packet has come through |
//!
//! Nothing here knows a datapath, flows, routes or neighbours, or reads a clock. Packets are read and written without allocating memory;
//! configuration allocates. What a stranger has sent is read with checks: whatever it is, the result is a packet that keeps within its frame, or a [`Malformed`] that says what is wrong.
//!
//! Numbers are in host byte order; headers are in network byte order.

pub mod config;
pub mod ecn;
pub mod fields;
pub mod header;
pub mod matching;
pub mod metadata;
pub mod options;
pub mod outer;
pub mod plain;
pub mod send;
pub use header::srv6;

/// Why a packet that came through a tunnel is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Malformed {
    /// A header is not whole.
    #[error("header not whole")]
    Truncated,
    /// A length field says more than there is, or less than its header has.
    #[error("lengths that contradict each other")]
    Length,
    /// Another version than those that are known.
    #[error("unknown version")]
    Version,
    /// A flag is set that is reserved or not known, or one is missing that has to be set.
    #[error("unknown or missing flag")]
    Flags,
    /// The payload is of a protocol that the tunnel does not carry.
    #[error("unknown payload protocol")]
    Payload,
    /// An option is not whole.
    #[error("option not whole")]
    Option,
    /// An option that is critical and not known (RFC 8926 section 3.5).
    #[error("unknown critical option")]
    Critical,
    /// A wrong checksum of IP, UDP or GRE.
    #[error("wrong checksum")]
    Checksum,
    /// A fragment of the outer packet.
    #[error("fragment of the outer packet")]
    Fragment,
    /// Neither IPv4 nor IPv6, or not the protocol that carries the tunnel; of SRv6 also a packet that has segments left, and so is on its
    /// way to another end.
    #[error("not the protocol that carries the tunnel")]
    Carrier,
    /// The outer packet met congestion, and the inner one cannot say so (RFC 6040 section 4.2).
    #[error("congestion that the inner packet cannot tell")]
    Congestion,
}
