//! IPv4 (RFC 791).

use std::fmt;
use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, checksum, split, take};

/// More fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// Do not fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (4 bits) and header length in 32-bit words (4 bits).
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Flags (3 bits) and fragment offset in units of 8 bytes (13 bits).
    pub flags_offset: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub proto: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source.
    pub src: [u8; 4],
    /// Destination.
    pub dst: [u8; 4],
}

impl Header {
    /// Writes DSCP and ECN, and brings the checksum up to date.
    pub fn set_tos(&mut self, tos: u8) {
        if tos == self.tos {
            // A checksum without a change keeps its form of zero.
            return;
        }
        let word = |tos: u8| u16::from_be_bytes([self.version_ihl, tos]);
        let checksum = checksum::update16(self.checksum.get(), word(self.tos), word(tos));
        (self.tos, self.checksum) = (tos, checksum.into());
    }
}

/// A packet whose lengths are consistent.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`, behind which there may be padding. The version is not looked at: as in Open
    /// vSwitch the Ethernet type decides.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, _) = split::<Header>("IPv4", bytes)?;
        let total = usize::from(header.total_len.get());
        let packet = Packet { header, bytes: take("IPv4", bytes, total)? };
        if packet.header_len() < size_of::<Header>() {
            return Err(Error::Malformed { layer: "IPv4", what: "header length below 20 bytes" });
        }
        if packet.header_len() > total {
            return Err(Error::Malformed { layer: "IPv4", what: "total length below header length" });
        }
        Ok(packet)
    }

    /// Bytes of header with options.
    pub fn header_len(&self) -> usize {
        usize::from(self.header.version_ihl & 0xf) * 4
    }

    /// DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.header.tos
    }

    /// Bytes of header and payload.
    pub fn total_len(&self) -> usize {
        self.bytes.len()
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        self.header.ttl
    }

    /// Protocol of the payload.
    pub fn proto(&self) -> u8 {
        self.header.proto
    }

    /// Whether more fragments follow.
    pub fn more_fragments(&self) -> bool {
        self.header.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Offset of this fragment, in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.header.flags_offset.get() & 0x1fff) * 8
    }

    /// Source.
    pub fn src(&self) -> Ipv4Addr {
        self.header.src.into()
    }

    /// Destination.
    pub fn dst(&self) -> Ipv4Addr {
        self.header.dst.into()
    }

    /// Options, with their padding.
    pub fn options(&self) -> &'a [u8] {
        &self.bytes[size_of::<Header>()..self.header_len()]
    }

    /// Payload, without padding of the frame.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..]
    }

    /// Whether the header checksum is right.
    pub fn verify_checksum(&self) -> bool {
        checksum::checksum(&self.bytes[..self.header_len()]) == 0
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv4 {} -> {} proto {} len {}", self.src(), self.dst(), self.proto(), self.total_len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 10.0.0.1 -> 10.0.0.2, UDP, one option word, 4 bytes of payload, 2 of padding.
    const BYTES: [u8; 30] =
        [0x46, 0xb8, 0, 28, 0, 7, 0x20, 2, 64, 17, 0x43, 0x0d, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0, 5, 6, 7, 8, 0, 0];

    #[test]
    fn reads_options_fragment_and_payload() {
        let packet = Packet::new_checked(&BYTES).unwrap();
        assert_eq!(
            (packet.header_len(), packet.options(), packet.payload()),
            (24, &[1, 1, 1, 0][..], &[5, 6, 7, 8][..])
        );
        assert_eq!((packet.more_fragments(), packet.fragment_offset()), (true, 16));
        assert!(packet.verify_checksum());
        assert_eq!(packet.to_string(), "IPv4 10.0.0.1 -> 10.0.0.2 proto 17 len 28");
    }

    #[test]
    fn refuses_inconsistent_lengths() {
        let with = |at: usize, value: u8| {
            let mut bytes = BYTES;
            bytes[at] = value;
            Packet::new_checked(&bytes).is_ok()
        };
        assert!(with(3, 30) && !with(3, 31));
        assert!(with(3, 24) && !with(3, 23));
        assert!(!with(0, 0x44));
        assert!(Packet::new_checked(&BYTES[..27]).is_err());
    }
}
