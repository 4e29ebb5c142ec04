//! What all protocols ask of a frame: its addresses, one VLAN tag at most, its type and what follows.

use packet::wire::ethernet::Frame;
use packet::wire::vlan::Tag;
use packet::wire::{Error, ethertype};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A frame's payload and how it is addressed.
#[derive(Clone, Copy, Debug)]
pub struct Untagged<'a> {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// Tag control information of the outermost tag, where there is one.
    pub tci: Option<u16>,
    /// Ethernet type behind the tag.
    pub ethertype: u16,
    /// What follows the type, with padding.
    pub payload: &'a [u8],
}

impl<'a> Untagged<'a> {
    /// The frame in `bytes`, from its destination address on, without a check sequence.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Untagged<'a>, Error> {
        let frame = Frame::new_checked(bytes)?;
        let (dst, src) = (frame.dst(), frame.src());
        match frame.ethertype() {
            ethertype::VLAN | ethertype::SVLAN => {
                let tag = Tag::new_checked(frame.payload())?;
                let (ethertype, payload) = (tag.ethertype(), tag.payload());
                Ok(Untagged { dst, src, tci: Some(tag.tci()), ethertype, payload })
            }
            ethertype => Ok(Untagged { dst, src, tci: None, ethertype, payload: frame.payload() }),
        }
    }

    /// The frame's VLAN, 0 where it has none or only a priority.
    pub fn vid(&self) -> u16 {
        self.tci.unwrap_or(0) & 0xfff
    }
}

/// An address as `ovs-appctl` writes it.
#[derive(Clone, Copy, Debug)]
pub struct MacText(pub Mac);

impl std::fmt::Display for MacText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use packet::wire::build::ethernet;

    use super::*;

    #[test]
    fn one_tag_is_taken_off() {
        let bytes = ethernet([1; 6], [2; 6], &[(0x8100, 0xe007)], 0x8902, &[9, 8]);
        let frame = Untagged::new_checked(&bytes).unwrap();
        assert_eq!((frame.dst, frame.src, frame.tci, frame.vid()), ([1; 6], [2; 6], Some(0xe007), 7));
        assert_eq!((frame.ethertype, frame.payload), (0x8902, &[9, 8][..]));
        assert!(Untagged::new_checked(&bytes[..15]).is_err());
        let bytes = ethernet([1; 6], [2; 6], &[], 0x8809, &[]);
        assert_eq!(Untagged::new_checked(&bytes).unwrap().tci, None);
        assert_eq!(MacText([0, 1, 0xab, 3, 4, 5]).to_string(), "00:01:ab:03:04:05");
    }
}
