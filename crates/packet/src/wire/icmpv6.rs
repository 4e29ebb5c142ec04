//! ICMPv6 (RFC 4443).

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, checksum, ip_proto, split};

/// Echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Neighbour solicitation (RFC 4861).
pub const NEIGHBOR_SOLICIT: u8 = 135;
/// Neighbour advertisement (RFC 4861).
pub const NEIGHBOR_ADVERT: u8 = 136;

/// The header with the first word of the message body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum over pseudo header and message.
    pub checksum: U16,
    /// By type.
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
        let (header, _) = split("ICMPv6", bytes)?;
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

    /// First word of the body.
    pub fn rest(&self) -> [u8; 4] {
        self.header.rest
    }

    /// What follows the header and the first word of the body.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[size_of::<Header>()..]
    }

    /// Whether the checksum is right, in a packet between these addresses.
    pub fn verify_checksum(&self, src: Ipv6Addr, dst: Ipv6Addr) -> bool {
        let sum = checksum::pseudo_v6(src, dst, ip_proto::ICMPV6, self.bytes.len() as u32);
        sum.add_bytes(self.bytes).finish() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_verifies() {
        // ::1 -> ::1: 1 + 1 + 8 + 58 + 0x8000 + 0x0a0b, complemented.
        let bytes = [128, 0, 0x75, 0xb0, 0x0a, 0x0b, 0, 0];
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.kind(), packet.code(), packet.rest()), (ECHO_REQUEST, 0, [0x0a, 0x0b, 0, 0]));
        assert!(packet.verify_checksum(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST));
        assert!(!packet.verify_checksum(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED));
        assert!(Packet::new_checked(&bytes[..7]).is_err());
    }
}
