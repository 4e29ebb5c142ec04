//! IPv6 and its extension headers (RFC 8200).

use std::fmt;
use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, ip_proto, split, take};

/// The fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_label: U32,
    /// Bytes behind this header.
    pub payload_len: U16,
    /// Protocol of the next header.
    pub next: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: [u8; 16],
    /// Destination.
    pub dst: [u8; 16],
}

impl Header {
    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_label.get() >> 20) as u8
    }

    /// Writes DSCP and ECN.
    pub fn set_traffic_class(&mut self, class: u8) {
        let others = self.version_class_label.get() & !(0xff << 20);
        self.version_class_label.set(others | u32::from(class) << 20);
    }
}

/// The fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// Protocol of the next header.
    pub next: u8,
    /// Zero.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), reserved (2), more fragments (1).
    pub offset_flags: U16,
    /// Identification.
    pub id: U32,
}

/// A packet whose length is consistent.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`, behind which there may be padding. The version is not looked at: as in Open
    /// vSwitch the Ethernet type decides.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, rest) = split::<Header>("IPv6", bytes)?;
        Ok(Packet { header, payload: take("IPv6", rest, header.payload_len.get().into())? })
    }

    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        self.header.traffic_class()
    }

    /// Flow label.
    pub fn flow_label(&self) -> u32 {
        self.header.version_class_label.get() & 0xf_ffff
    }

    /// Protocol of the first header behind the fixed one.
    pub fn next(&self) -> u8 {
        self.header.next
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.header.hop_limit
    }

    /// Source.
    pub fn src(&self) -> Ipv6Addr {
        self.header.src.into()
    }

    /// Destination.
    pub fn dst(&self) -> Ipv6Addr {
        self.header.dst.into()
    }

    /// Extension headers and upper layer, without padding of the frame.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The chain of headers.
    pub fn headers(&self) -> Headers<'a> {
        Headers { next: Some(self.next()), rest: self.payload }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv6 {} -> {} next {} len {}", self.src(), self.dst(), self.next(), self.payload.len())
    }
}

/// One header of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainedHeader<'a> {
    /// An extension header other than the fragment header: its protocol number and bytes.
    Extension(u8, &'a [u8]),
    /// The fragment header.
    Fragment(&'a Fragment),
    /// The end: a protocol that is no extension header, and its bytes.
    Upper(u8, &'a [u8]),
}

/// Iterator over the chain of headers. The last item is [`ChainedHeader::Upper`], an error, or the fragment header of
/// a fragment other than the first.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    next: Option<u8>,
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<ChainedHeader<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let proto = self.next.take()?;
        Some(self.step(proto))
    }
}

impl<'a> Headers<'a> {
    fn step(&mut self, proto: u8) -> Result<ChainedHeader<'a>, Error> {
        const LAYER: &str = "IPv6 extension header";
        if proto == ip_proto::FRAGMENT {
            let (fragment, rest) = split::<Fragment>(LAYER, self.rest)?;
            *self = Headers { next: (fragment.offset() == 0).then_some(fragment.next), rest };
            return Ok(ChainedHeader::Fragment(fragment));
        }
        let start = || take(LAYER, self.rest, 8);
        let len = match proto {
            ip_proto::HOP_BY_HOP | ip_proto::ROUTING | ip_proto::DEST_OPTIONS => (usize::from(start()?[1]) + 1) * 8,
            ip_proto::AUTH => (usize::from(start()?[1]) + 2) * 4,
            _ => return Ok(ChainedHeader::Upper(proto, self.rest)),
        };
        let header = take(LAYER, self.rest, len)?;
        *self = Headers { next: Some(header[0]), rest: &self.rest[len..] };
        Ok(ChainedHeader::Extension(proto, header))
    }
}

impl Fragment {
    /// Offset, in bytes.
    pub fn offset(&self) -> usize {
        usize::from(self.offset_flags.get() & 0xfff8)
    }

    /// Whether more fragments follow.
    pub fn more(&self) -> bool {
        self.offset_flags.get() & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            version_class_label: 0x6b81_2345.into(),
            payload_len: (payload.len() as u16).into(),
            next,
            hop_limit: 64,
            src: Ipv6Addr::LOCALHOST.octets(),
            dst: [0xfe; 16],
        };
        [header.as_bytes(), payload, &[0xee; 3]].concat()
    }

    #[test]
    fn reads_the_fixed_header() {
        let bytes = packet(17, &[1, 2, 3]);
        let ip = Packet::new_checked(&bytes).unwrap();
        assert_eq!((ip.traffic_class(), ip.flow_label(), ip.hop_limit()), (0xb8, 0x12345, 64));
        assert_eq!(ip.headers().collect::<Vec<_>>(), [Ok(ChainedHeader::Upper(17, &[1, 2, 3]))]);
        assert!(ip.to_string().starts_with("IPv6 ::1 -> fefe:"));
        assert!(Packet::new_checked(&bytes[..42]).is_err());
    }

    #[test]
    fn walks_extension_headers() {
        let mut payload = vec![51, 0, 0, 0, 0, 0, 0, 0]; // hop-by-hop
        payload.extend([44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // AH of 12 bytes
        payload.extend([6, 0, 0, 1, 0, 0, 0, 9]); // first fragment
        payload.extend([7; 4]);
        let bytes = packet(0, &payload);
        let steps: Vec<_> = Packet::new_checked(&bytes).unwrap().headers().map(Result::unwrap).collect();
        assert_eq!(steps.len(), 4);
        assert_eq!(steps[1], ChainedHeader::Extension(51, &payload[8..20]));
        assert!(matches!(steps[2], ChainedHeader::Fragment(f) if f.more() && f.offset() == 0 && f.id.get() == 9));
        assert_eq!(steps[3], ChainedHeader::Upper(6, &[7; 4]));
    }

    #[test]
    fn stops_at_later_fragments_and_broken_headers() {
        let bytes = packet(44, &[6, 0, 0, 8, 0, 0, 0, 0, 1]);
        let steps: Vec<_> = Packet::new_checked(&bytes).unwrap().headers().collect();
        assert!(matches!(steps[..], [Ok(ChainedHeader::Fragment(f))] if f.offset() == 8));
        let bytes = packet(60, &[6, 1, 0, 0, 0, 0, 0, 0]);
        let steps: Vec<_> = Packet::new_checked(&bytes).unwrap().headers().collect();
        assert!(matches!(steps[..], [Err(Error::Truncated { need: 16, have: 8, .. })]));
    }
}
