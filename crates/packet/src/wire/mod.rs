//! Wire formats, one file each.
//!
//! Every file has the same parts in the same order: the header as it lies in memory (a `zerocopy`
//! structure, for reading, writing in place and emitting), a checked view (`new_checked`), accessors, and
//! tests. A view never reads outside the bytes that it was given; its accessors return numbers in host
//! byte order. [`build`] puts whole packets together.

pub mod arp;
pub mod build;
pub mod checksum;
pub mod crc32c;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mpls;
pub mod nd;
pub mod nsh;
pub mod pbb;
pub mod sctp;
pub mod tcp;
pub mod udp;
pub mod vlan;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Why bytes are not the header that they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header says or needs.
    #[error("{layer}: {have} bytes, at least {need} needed")]
    Truncated {
        /// Name of the format.
        layer: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A value that the format does not allow.
    #[error("{layer}: {what}")]
    Malformed {
        /// Name of the format.
        layer: &'static str,
        /// What is wrong.
        what: &'static str,
    },
}

/// Ethernet types (IEEE 802 numbers).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP.
    pub const RARP: u16 = 0x8035;
    /// A whole frame of Ethernet, in a tunnel (RFC 1701, RFC 6558).
    pub const TEB: u16 = 0x6558;
    /// 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad service tag.
    pub const SVLAN: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS unicast.
    pub const MPLS: u16 = 0x8847;
    /// MPLS multicast.
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// 802.1ah backbone service instance tag.
    pub const PBB: u16 = 0x88e7;
    /// Network service header.
    pub const NSH: u16 = 0x894f;
    /// The smallest value that is a type and not an 802.3 length.
    pub const MIN: u16 = 0x0600;
}

/// IP protocol numbers (IANA).
pub mod ip_proto {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// Generic routing encapsulation.
    pub const GRE: u8 = 47;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Authentication header.
    pub const AUTH: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DEST_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Splits the header `T` off the front of `bytes`.
fn split<'a, T>(layer: &'static str, bytes: &'a [u8]) -> Result<(&'a T, &'a [u8]), Error>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(bytes).map_err(|_| Error::Truncated { layer, need: size_of::<T>(), have: bytes.len() })
}

/// The first `need` bytes.
fn take<'a>(layer: &'static str, bytes: &'a [u8], need: usize) -> Result<&'a [u8], Error> {
    bytes.get(..need).ok_or(Error::Truncated { layer, need, have: bytes.len() })
}
