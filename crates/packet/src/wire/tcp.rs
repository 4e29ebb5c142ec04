//! TCP (RFC 9293).

use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split, take};

/// The header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src: U16,
    /// Destination port.
    pub dst: U16,
    /// Sequence number.
    pub seq: U32,
    /// Acknowledgement number.
    pub ack: U32,
    /// Header length in 32-bit words (4 bits), flags (12 bits, three of them reserved).
    pub offset_flags: U16,
    /// Window.
    pub window: U16,
    /// Checksum over pseudo header and segment.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

/// Flags, with their bits.
pub mod flags {
    /// No more data.
    pub const FIN: u16 = 1;
    /// Synchronise.
    pub const SYN: u16 = 1 << 1;
    /// Reset.
    pub const RST: u16 = 1 << 2;
    /// Push.
    pub const PSH: u16 = 1 << 3;
    /// Acknowledgement number is valid.
    pub const ACK: u16 = 1 << 4;
    /// Urgent pointer is valid.
    pub const URG: u16 = 1 << 5;
}

/// A segment with a whole header.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The segment in `bytes`, which hold the header with its options.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Segment<'a>, Error> {
        let (header, _) = split::<Header>("TCP", bytes)?;
        let segment = Segment { header, bytes };
        if segment.header_len() < size_of::<Header>() {
            return Err(Error::Malformed { layer: "TCP", what: "data offset below 20 bytes" });
        }
        take("TCP", bytes, segment.header_len())?;
        Ok(segment)
    }

    /// Source port.
    pub fn src(&self) -> u16 {
        self.header.src.get()
    }

    /// Destination port.
    pub fn dst(&self) -> u16 {
        self.header.dst.get()
    }

    /// All 12 bits of flags.
    pub fn flags(&self) -> u16 {
        self.header.offset_flags.get() & 0xfff
    }

    /// Bytes of header with options.
    pub fn header_len(&self) -> usize {
        usize::from(self.header.offset_flags.get() >> 12) * 4
    }

    /// Data.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..]
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP {} -> {} flags {:#05x} len {}", self.src(), self.dst(), self.flags(), self.payload().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 25] = [0, 80, 0x30, 0x39, 0, 0, 0, 1, 0, 0, 0, 2, 0x61, 0x12, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0xaa];

    #[test]
    fn reads_ports_flags_and_data() {
        let segment = Segment::new_checked(&BYTES).unwrap();
        assert_eq!(segment.to_string(), "TCP 80 -> 12345 flags 0x112 len 1");
        assert_eq!(segment.payload(), [0xaa]);
    }

    #[test]
    fn refuses_wrong_data_offsets() {
        assert!(Segment::new_checked(&BYTES[..23]).is_err());
        let mut bytes = BYTES;
        bytes[12] = 0x40;
        assert!(Segment::new_checked(&bytes).is_err());
        bytes[12] = 0x70;
        assert!(Segment::new_checked(&bytes).is_err());
    }
}
