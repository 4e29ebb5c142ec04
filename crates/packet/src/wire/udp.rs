//! UDP (RFC 768).

use std::fmt;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split};

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src: U16,
    /// Destination port.
    pub dst: U16,
    /// Bytes of header and data.
    pub len: U16,
    /// Checksum over pseudo header and datagram; zero for none.
    pub checksum: U16,
}

/// A datagram with a whole header.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    header: &'a Header,
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The datagram in `bytes`. Its length field is not looked at: a first fragment holds less.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Datagram<'a>, Error> {
        let (header, payload) = split("UDP", bytes)?;
        Ok(Datagram { header, payload })
    }

    /// Source port.
    pub fn src(&self) -> u16 {
        self.header.src.get()
    }

    /// Destination port.
    pub fn dst(&self) -> u16 {
        self.header.dst.get()
    }

    /// Bytes of header and data, as the header says.
    pub fn len(&self) -> u16 {
        self.header.len.get()
    }

    /// Whether the header says that there are no data.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) <= size_of::<Header>()
    }

    /// All bytes behind the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} -> {} len {}", self.src(), self.dst(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ports_and_length() {
        let bytes = [0, 53, 0x30, 0x39, 0, 9, 0, 0, 7];
        let datagram = Datagram::new_checked(&bytes).unwrap();
        assert_eq!((datagram.to_string().as_str(), datagram.payload()), ("UDP 53 -> 12345 len 9", &[7][..]));
        assert!(!datagram.is_empty());
        assert!(Datagram::new_checked(&bytes[..7]).is_err());
    }
}
