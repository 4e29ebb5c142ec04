//! Ethernet II and 802.3 with LLC and SNAP (IEEE 802.3, RFC 1042).

use std::fmt;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split};

/// The header, without preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Destination.
    pub dst: [u8; 6],
    /// Source.
    pub src: [u8; 6],
    /// Ethernet type, or the length of an 802.3 frame's payload where below 0x0600.
    pub ethertype: U16,
}

/// LLC and SNAP headers of a frame whose type field is a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Snap {
    /// Destination and source service access point, control: aa aa 03 for SNAP.
    pub llc: [u8; 3],
    /// Organisation; zero says that `ethertype` is one.
    pub organisation: [u8; 3],
    /// Ethernet type.
    pub ethertype: U16,
}

impl Snap {
    /// A SNAP header for an Ethernet type.
    pub fn new(ethertype: u16) -> Snap {
        Snap { llc: [0xaa, 0xaa, 0x03], organisation: [0; 3], ethertype: ethertype.into() }
    }

    /// The header at the start of the payload of an 802.3 frame.
    pub fn new_checked(bytes: &[u8]) -> Result<(&Snap, &[u8]), Error> {
        let (snap, payload) = split::<Snap>("SNAP", bytes)?;
        if snap.llc != [0xaa, 0xaa, 0x03] || snap.organisation != [0; 3] {
            return Err(Error::Malformed { layer: "SNAP", what: "not an encapsulated Ethernet type" });
        }
        Ok((snap, payload))
    }
}

/// A frame, without frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a Header,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame in `bytes`: at least 14 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        let (header, payload) = split("Ethernet", bytes)?;
        Ok(Frame { header, payload })
    }

    /// Destination.
    pub fn dst(&self) -> [u8; 6] {
        self.header.dst
    }

    /// Source.
    pub fn src(&self) -> [u8; 6] {
        self.header.src
    }

    /// Ethernet type, or a length where below 0x0600.
    pub fn ethertype(&self) -> u16 {
        self.header.ethertype.get()
    }

    /// What follows the header, with padding.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mac = |f: &mut fmt::Formatter<'_>, [a, b, c, d, e, g]: [u8; 6]| {
            write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
        };
        mac(f, self.src())?;
        f.write_str(" > ")?;
        mac(f, self.dst())?;
        write!(f, " type {:#06x} len {}", self.ethertype(), self.payload.len() + size_of::<Header>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 8, 0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0x9b];

    #[test]
    fn reads_what_is_there() {
        let frame = Frame::new_checked(&FRAME).unwrap();
        assert_eq!((frame.dst(), frame.src()), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]));
        assert_eq!(frame.to_string(), "07:08:09:0a:0b:0c > 01:02:03:04:05:06 type 0x0008 len 22");
        let (snap, payload) = Snap::new_checked(frame.payload()).unwrap();
        assert_eq!((*snap, payload), (Snap::new(0x809b), &[][..]));
    }

    #[test]
    fn refuses_short_and_foreign_headers() {
        let short = Frame::new_checked(&FRAME[..13]).unwrap_err();
        assert_eq!(short, Error::Truncated { layer: "Ethernet", need: 14, have: 13 });
        assert!(Snap::new_checked(&FRAME[..8]).is_err());
        assert!(Snap::new_checked(&FRAME[15..]).is_err());
    }
}
