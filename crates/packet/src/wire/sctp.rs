//! SCTP's common header (RFC 9260 section 3.1).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, crc32c, split};

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src: U16,
    /// Destination port.
    pub dst: U16,
    /// Verification tag.
    pub tag: U32,
    /// CRC32c of the packet with this field zero, least significant byte first.
    pub checksum: [u8; 4],
}

/// A packet with a whole common header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`: at least 12.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, _) = split("SCTP", bytes)?;
        Ok(Packet { header, bytes })
    }

    /// Source port.
    pub fn src(&self) -> u16 {
        self.header.src.get()
    }

    /// Destination port.
    pub fn dst(&self) -> u16 {
        self.header.dst.get()
    }

    /// Chunks.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[size_of::<Header>()..]
    }

    /// The right checksum, as it lies in the packet.
    pub fn compute_checksum(&self) -> [u8; 4] {
        let start = Header { checksum: [0; 4], ..*self.header };
        crc32c::extend(crc32c::crc32c(start.as_bytes()), self.payload()).to_le_bytes()
    }

    /// Whether the checksum is right.
    pub fn verify_checksum(&self) -> bool {
        self.compute_checksum() == self.header.checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_verifies() {
        let mut bytes = [0, 80, 1, 0xbb, 0, 0, 0, 5, 0, 0, 0, 0, 3, 0, 0, 4];
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.src(), packet.dst(), packet.payload()), (80, 443, &[3, 0, 0, 4][..]));
        assert!(!packet.verify_checksum());
        let checksum = packet.compute_checksum();
        assert_eq!(u32::from_le_bytes(checksum), crc32c::crc32c(&bytes));
        bytes[8..12].copy_from_slice(&checksum);
        assert!(Packet::new_checked(&bytes).unwrap().verify_checksum());
        assert!(Packet::new_checked(&bytes[..11]).is_err());
    }
}
