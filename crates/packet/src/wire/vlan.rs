//! 802.1Q and 802.1ad tags.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split};

/// A tag as it follows its TPID, with the type of what it encloses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Priority (3 bits), drop eligible (1), VLAN id (12).
    pub tci: U16,
    /// Ethernet type, length, or the TPID of the next tag.
    pub ethertype: U16,
}

/// What a TPID of 0x8100 or 0x88a8 announces.
#[derive(Clone, Copy, Debug)]
pub struct Tag<'a> {
    header: &'a Header,
    payload: &'a [u8],
}

impl<'a> Tag<'a> {
    /// The tag in the bytes behind its TPID.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Tag<'a>, Error> {
        let (header, payload) = split("VLAN tag", bytes)?;
        Ok(Tag { header, payload })
    }

    /// The whole tag control information.
    pub fn tci(&self) -> u16 {
        self.header.tci.get()
    }

    /// VLAN id.
    pub fn vid(&self) -> u16 {
        self.tci() & 0xfff
    }

    /// Priority code point.
    pub fn pcp(&self) -> u8 {
        (self.tci() >> 13) as u8
    }

    /// Drop eligible indicator, the former canonical format indicator.
    pub fn dei(&self) -> bool {
        self.tci() & 0x1000 != 0
    }

    /// Type of what follows.
    pub fn ethertype(&self) -> u16 {
        self.header.ethertype.get()
    }

    /// What follows.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_control_word() {
        let tag = Tag::new_checked(&[0xb1, 0x23, 0x08, 0x00, 9]).unwrap();
        assert_eq!((tag.pcp(), tag.dei(), tag.vid()), (5, true, 0x123));
        assert_eq!((tag.ethertype(), tag.payload()), (0x0800, &[9][..]));
        assert!(Tag::new_checked(&[0xb1, 0x23, 0x08]).is_err());
    }
}
