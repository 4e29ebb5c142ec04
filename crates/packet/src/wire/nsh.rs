//! Network service header (RFC 8300).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, split, take};

/// Base header and service path header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (2 bits), OAM (1), unassigned (1), TTL (6), length in 32-bit words (6).
    pub version_ttl_len: U16,
    /// Metadata type.
    pub md_type: u8,
    /// Next protocol.
    pub next: u8,
    /// Service path identifier (24 bits), service index (8).
    pub path: U32,
}

/// A header of version 0 with all that its length says.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a Header,
    context: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The header at the start of `bytes`.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Packet<'a>, Error> {
        let (header, rest) = split::<Header>("NSH", bytes)?;
        let word = header.version_ttl_len.get();
        if word >> 14 != 0 {
            return Err(Error::Malformed { layer: "NSH", what: "version is not zero" });
        }
        let Some(context_len) = (usize::from(word & 0x3f) * 4).checked_sub(size_of::<Header>()) else {
            return Err(Error::Malformed { layer: "NSH", what: "length below 8 bytes" });
        };
        if header.md_type == 1 && context_len != 16 {
            return Err(Error::Malformed { layer: "NSH", what: "metadata type 1 with a length other than 24 bytes" });
        }
        Ok(Packet { header, context: take("NSH", rest, context_len)? })
    }

    /// OAM bit and the unassigned bit.
    pub fn flags(&self) -> u8 {
        (self.header.version_ttl_len.get() >> 12) as u8 & 3
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        (self.header.version_ttl_len.get() >> 6) as u8 & 0x3f
    }

    /// Metadata type.
    pub fn md_type(&self) -> u8 {
        self.header.md_type
    }

    /// Next protocol.
    pub fn next(&self) -> u8 {
        self.header.next
    }

    /// Service path identifier and service index.
    pub fn path(&self) -> u32 {
        self.header.path.get()
    }

    /// The four context words of metadata type 1.
    pub fn context(&self) -> Option<[u32; 4]> {
        let words = <[U32; 4]>::ref_from_bytes(self.context).ok()?;
        (self.md_type() == 1).then(|| words.map(U32::get))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_metadata_type_1() {
        let mut bytes = [0x2f, 0xc6, 1, 3, 0, 0, 9, 255, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4];
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.flags(), packet.ttl(), packet.md_type(), packet.next()), (2, 63, 1, 3));
        assert_eq!((packet.path(), packet.context()), (0x9ff, Some([1, 2, 3, 4])));
        assert!(Packet::new_checked(&bytes[..23]).is_err());
        bytes[1] = 0xc2; // length 8
        assert!(Packet::new_checked(&bytes).is_err());
        bytes[2] = 2;
        assert_eq!(Packet::new_checked(&bytes).unwrap().context(), None);
        bytes[1] = 0xc1; // length 4
        assert!(Packet::new_checked(&bytes).is_err());
        bytes[0] = 0x40; // version 1
        assert!(Packet::new_checked(&bytes).is_err());
    }
}
