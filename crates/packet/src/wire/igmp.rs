//! IGMP, the part that all versions share (RFC 2236 section 2).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split};

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Type.
    pub kind: u8,
    /// Maximum response time, in tenths of a second; zero in version 1.
    pub code: u8,
    /// Checksum over the message.
    pub checksum: U16,
    /// Group.
    pub group: [u8; 4],
}

/// A message with a whole header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
}

impl<'a> Packet<'a> {
    /// The message in `bytes`: at least 8.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, _) = split("IGMP", bytes)?;
        Ok(Packet { header })
    }

    /// Type.
    pub fn kind(&self) -> u8 {
        self.header.kind
    }

    /// Maximum response time.
    pub fn code(&self) -> u8 {
        self.header.code
    }

    /// Group.
    pub fn group(&self) -> Ipv4Addr {
        self.header.group.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_report() {
        let bytes = [0x16, 5, 0, 0, 224, 0, 0, 251];
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.kind(), packet.code(), packet.group()), (0x16, 5, Ipv4Addr::new(224, 0, 0, 251)));
        assert!(Packet::new_checked(&bytes[..7]).is_err());
    }
}
