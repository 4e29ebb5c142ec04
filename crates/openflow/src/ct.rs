//! Ending connections: NXT_CT_FLUSH and NXT_CT_FLUSH_ZONE.

use std::net::IpAddr;

/// Which connections are to end. The default is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CtFlush {
    /// Those of a zone.
    pub zone: Option<u16>,
    /// Those of a protocol; zero for any.
    pub ip_proto: u8,
    /// By their original direction.
    pub orig: CtTuple,
    /// By the direction of replies.
    pub reply: CtTuple,
}

/// Parts of a connection's direction. What is zero may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CtTuple {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Identifier of an ICMP query, its type and its code: all three count unless all are zero.
    pub icmp: (u16, u8, u8),
}
