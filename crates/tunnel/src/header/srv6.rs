//! Segment routing over IPv6: packets of IP behind a routing header of IPv6, type 4 (RFC 8754), which names the segments that the packet
//! travels through.
//!
//! A packet is sent as by H.Encaps (RFC 8986 section 5.1) and received as by End.DT46 (section 4.8). As in Open vSwitch, one that is sent has
//! a routing header also where it has one segment only. One that is received need not have one: H.Encaps.Red leaves it out for a single
//! segment, and a router before the last one may have removed it (section 4.16.1). Flags, tag and TLVs are passed over.

use std::net::Ipv6Addr;

use packet::wire::{ethertype, ip_proto};

use crate::Malformed;
use crate::header::{Header, Payload, Unwritable, Writer, first};

/// The protocol number of IPv4 in IP.
pub const IPV4: u8 = 4;
/// The protocol number of IPv6 in IP.
pub const IPV6: u8 = 41;
/// The type of the routing header.
const SEGMENT_ROUTING: u8 = 4;
/// Bytes before the segments.
const FIXED: usize = 8;

/// Segments, equal where the way is.
#[derive(Clone, Copy, Debug)]
pub enum Segments<'a> {
    /// In the order in which they are travelled through.
    Path(&'a [Ipv6Addr]),
    /// As on the wire, which has the last one first.
    Wire(&'a [[u8; 16]]),
}

impl<'a> Segments<'a> {
    /// How many there are.
    pub fn len(self) -> usize {
        match self {
            Segments::Path(all) => all.len(),
            Segments::Wire(all) => all.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The segments in the order in which they are travelled through.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Ipv6Addr> + 'a {
        let (path, wire) = match self {
            Segments::Path(all) => (all, &[][..]),
            Segments::Wire(all) => (&[][..], all),
        };
        path.iter().copied().chain(wire.iter().rev().map(|octets| Ipv6Addr::from(*octets)))
    }
}

impl PartialEq for Segments<'_> {
    fn eq(&self, other: &Segments<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Segments<'_> {}

/// Reads the extension headers of a packet of IPv6 whose next header is `next`, as [`crate::header::read`] does.
pub(crate) fn read(mut next: u8, bytes: &[u8]) -> Result<(Header<'_>, usize), Malformed> {
    let mut segments = Segments::Wire(&[]);
    let mut at = 0;
    loop {
        match next {
            IPV4 => return Ok((Header::Srv6 { segments, payload: Payload::Packet(ethertype::IPV4) }, at)),
            IPV6 => return Ok((Header::Srv6 { segments, payload: Payload::Packet(ethertype::IPV6) }, at)),
            ip_proto::ROUTING | ip_proto::HOP_BY_HOP | ip_proto::DEST_OPTIONS => {
                let rest = bytes.get(at..).unwrap_or_default();
                let &[after, words, ..] = first::<8>(rest)?;
                let header = rest.get(..8 + 8 * usize::from(words)).ok_or(Malformed::Truncated)?;
                if next == ip_proto::ROUTING {
                    segments = read_segments(header)?;
                }
                at += header.len();
                next = after;
            }
            ip_proto::FRAGMENT => return Err(Malformed::Fragment),
            _ => return Err(Malformed::Payload),
        }
    }
}

/// Reads a whole routing header.
fn read_segments(header: &[u8]) -> Result<Segments<'_>, Malformed> {
    let &[_, _, kind, left, last, ..] = first::<FIXED>(header)?;
    // Whoever does not know a type passes over a header that has no segments left (RFC 8200 section 4.4).
    if left != 0 {
        return Err(Malformed::Carrier);
    }
    if kind != SEGMENT_ROUTING {
        return Ok(Segments::Wire(&[]));
    }
    let segments = header[FIXED..].as_chunks::<16>().0.get(..=usize::from(last)).ok_or(Malformed::Length)?;
    Ok(Segments::Wire(segments))
}

/// The protocol number of a payload in IP.
pub(crate) fn next(payload: Payload) -> Result<u8, Unwritable> {
    match payload {
        Payload::Packet(ethertype::IPV4) => Ok(IPV4),
        Payload::Packet(ethertype::IPV6) => Ok(IPV6),
        _ => Err(Unwritable::Payload),
    }
}

/// Writes a routing header, at the start of the way; none where there are no segments.
pub(crate) fn write(out: &mut Writer<'_>, segments: Segments<'_>, payload: Payload) -> Result<(), Unwritable> {
    let next = next(payload)?;
    let Some(last) = segments.len().checked_sub(1) else { return Ok(()) };
    let words = u8::try_from(2 * segments.len()).map_err(|_| Unwritable::TooLong)?;
    out.put(&[next, words, SEGMENT_ROUTING, last as u8, last as u8, 0, 0, 0])?;
    segments.iter().rev().try_for_each(|segment| out.put(&segment.octets()))
}
