//! ICMP (RFC 792).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, checksum, split};

/// Echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Echo request.
pub const ECHO_REQUEST: u8 = 8;

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum over the message.
    pub checksum: U16,
    /// Identifier and sequence number of an echo; otherwise by type.
    pub rest: [u8; 4],
}

/// A message with a whole header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The message in `bytes`: at least 8.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, _) = split("ICMP", bytes)?;
        Ok(Packet { header, bytes })
    }

    /// Type.
    pub fn kind(&self) -> u8 {
        self.header.kind
    }

    /// Code.
    pub fn code(&self) -> u8 {
        self.header.code
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[size_of::<Header>()..]
    }

    /// Whether the checksum is right.
    pub fn verify_checksum(&self) -> bool {
        checksum::checksum(self.bytes) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_verifies() {
        let mut bytes = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.kind(), packet.code(), packet.payload()), (ECHO_REQUEST, 0, &[][..]));
        assert!(packet.verify_checksum());
        bytes[1] = 1;
        assert!(!Packet::new_checked(&bytes).unwrap().verify_checksum());
        assert!(Packet::new_checked(&bytes[..7]).is_err());
    }
}
