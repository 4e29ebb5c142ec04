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

    /// Bytes of the whole header.
    pub fn header_len(&self) -> usize {
        size_of::<Header>() + self.context.len()
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

/// Values of the next protocol field (RFC 8300 section 2.2).
pub mod next {
    /// IPv4.
    pub const IPV4: u8 = 1;
    /// IPv6.
    pub const IPV6: u8 = 2;
    /// A frame of Ethernet.
    pub const ETHERNET: u8 = 3;
    /// Another NSH.
    pub const NSH: u8 = 4;
    /// MPLS.
    pub const MPLS: u8 = 5;
}

/// A header to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// OAM bit and the unassigned bit.
    pub flags: u8,
    /// Time to live, 6 bits.
    pub ttl: u8,
    /// Next protocol: see [`next`].
    pub next: u8,
    /// Service path identifier and service index.
    pub path: u32,
    /// What follows.
    pub metadata: Metadata,
}

/// The metadata of a [`Repr`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Metadata {
    /// Type 1: four context words.
    Fixed([u32; 4]),
    /// Type 2: options, each padded to whole words.
    Options(Vec<u8>),
}

impl Metadata {
    /// Most bytes of options: the length field counts at most 63 words.
    pub const MAX_OPTIONS: usize = 63 * 4 - size_of::<Header>();

    /// The number of the type.
    pub fn md_type(&self) -> u8 {
        match self {
            Metadata::Fixed(_) => 1,
            Metadata::Options(_) => 2,
        }
    }
}

impl Repr {
    /// The bytes. Options that are longer than [`MAX_OPTIONS`](Metadata::MAX_OPTIONS) are left out, and those that are no
    /// whole words are padded.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut metadata = match &self.metadata {
            Metadata::Fixed(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
            Metadata::Options(options) if options.len() > Metadata::MAX_OPTIONS => Vec::new(),
            Metadata::Options(options) => options.clone(),
        };
        metadata.resize(metadata.len().next_multiple_of(4), 0);
        let words = (size_of::<Header>() + metadata.len()) / 4;
        let word = u16::from(self.flags & 3) << 12 | u16::from(self.ttl & 0x3f) << 6 | words as u16;
        let header = Header {
            version_ttl_len: word.into(),
            md_type: self.metadata.md_type(),
            next: self.next,
            path: self.path.into(),
        };
        [header.as_bytes(), &metadata].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let fixed = Metadata::Fixed([1, 2, 3, 0xffff_ffff]);
        let options = Metadata::Options(vec![0x10, 0, 10, 4, 1, 2, 3, 4]);
        for metadata in [fixed, options, Metadata::Options(Vec::new())] {
            let repr = Repr { flags: 2, ttl: 63, next: next::ETHERNET, path: 0x1234ff, metadata };
            let bytes = repr.to_bytes();
            let packet = Packet::new_checked(&bytes).unwrap();
            assert_eq!((packet.flags(), packet.ttl(), packet.next(), packet.path()), (2, 63, 3, 0x1234ff));
            assert_eq!((packet.md_type(), packet.header_len()), (repr.metadata.md_type(), bytes.len()));
            let read = match packet.context() {
                Some(words) => Metadata::Fixed(words),
                None => Metadata::Options(bytes[size_of::<Header>()..].to_vec()),
            };
            assert_eq!(read, repr.metadata);
        }
        // Too many options leave a header that is valid, and odd ones are padded.
        for (len, whole) in [(Metadata::MAX_OPTIONS, 252), (Metadata::MAX_OPTIONS + 1, 8), (5, 16)] {
            let metadata = Metadata::Options(vec![1; len]);
            let bytes = Repr { flags: 0, ttl: 1, next: 1, path: 0, metadata }.to_bytes();
            assert_eq!(Packet::new_checked(&bytes).unwrap().header_len(), whole);
        }
    }

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
