//! ARP and RARP for Ethernet and IPv4 (RFC 826, RFC 903).

use std::fmt;
use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, ethertype, split};

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Hardware type: 1 for Ethernet.
    pub hardware: U16,
    /// Protocol: 0x0800 for IPv4.
    pub protocol: U16,
    /// Length of hardware addresses: 6.
    pub hardware_len: u8,
    /// Length of protocol addresses: 4.
    pub protocol_len: u8,
    /// 1 request, 2 reply, 3 reverse request, 4 reverse reply.
    pub opcode: U16,
    /// Sender hardware address.
    pub sha: [u8; 6],
    /// Sender protocol address.
    pub spa: [u8; 4],
    /// Target hardware address.
    pub tha: [u8; 6],
    /// Target protocol address.
    pub tpa: [u8; 4],
}

impl Header {
    /// A message for Ethernet and IPv4.
    pub fn new(opcode: u16, sha: [u8; 6], spa: Ipv4Addr, tha: [u8; 6], tpa: Ipv4Addr) -> Header {
        Header {
            hardware: 1.into(),
            protocol: ethertype::IPV4.into(),
            hardware_len: 6,
            protocol_len: 4,
            opcode: opcode.into(),
            sha,
            spa: spa.octets(),
            tha,
            tpa: tpa.octets(),
        }
    }
}

/// A message for Ethernet and IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
}

impl<'a> Packet<'a> {
    /// The message in `bytes`, if it is for Ethernet and IPv4.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, _) = split::<Header>("ARP", bytes)?;
        let kind = (header.hardware.get(), header.protocol.get(), header.hardware_len, header.protocol_len);
        if kind != (1, ethertype::IPV4, 6, 4) {
            return Err(Error::Malformed { layer: "ARP", what: "not for Ethernet and IPv4" });
        }
        Ok(Packet { header })
    }

    /// Operation.
    pub fn opcode(&self) -> u16 {
        self.header.opcode.get()
    }

    /// Sender hardware address.
    pub fn sha(&self) -> [u8; 6] {
        self.header.sha
    }

    /// Sender protocol address.
    pub fn spa(&self) -> Ipv4Addr {
        self.header.spa.into()
    }

    /// Target hardware address.
    pub fn tha(&self) -> [u8; 6] {
        self.header.tha
    }

    /// Target protocol address.
    pub fn tpa(&self) -> Ipv4Addr {
        self.header.tpa.into()
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ARP op {} {} -> {}", self.opcode(), self.spa(), self.tpa())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emits_and_reads_back() {
        let sent = Header::new(2, [1; 6], [10, 0, 0, 1].into(), [2; 6], [10, 0, 0, 2].into());
        let packet = Packet::new_checked(sent.as_bytes()).unwrap();
        assert_eq!((packet.opcode(), packet.sha(), packet.tha()), (2, [1; 6], [2; 6]));
        assert_eq!(packet.to_string(), "ARP op 2 10.0.0.1 -> 10.0.0.2");
    }

    #[test]
    fn refuses_other_address_families() {
        let mut bytes = Header::new(1, [1; 6], [0; 4].into(), [0; 6], [0; 4].into()).as_bytes().to_vec();
        assert!(Packet::new_checked(&bytes[..27]).is_err());
        for at in [0, 2, 4, 5] {
            bytes[at] ^= 1;
            assert!(Packet::new_checked(&bytes).is_err());
            bytes[at] ^= 1;
        }
    }
}
