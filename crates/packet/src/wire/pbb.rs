//! The backbone service instance tag of provider backbone bridges (IEEE 802.1Q section 9.7).

use super::{Error, split};

/// The tag control information that follows Ethernet type 0x88e7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ITag(
    /// Priority (3 bits), drop eligible (1), use customer addresses (1), reserved (3), I-SID (24).
    pub u32,
);

impl ITag {
    /// The tag at the start of `bytes`, and what follows it.
    pub fn new_checked(bytes: &[u8]) -> Result<(ITag, &[u8]), Error> {
        let (tag, rest) = split::<[u8; 4]>("I-TAG", bytes)?;
        Ok((ITag(u32::from_be_bytes(*tag)), rest))
    }

    /// Service instance.
    pub fn isid(self) -> u32 {
        self.0 & 0xff_ffff
    }

    /// Use customer addresses.
    pub fn uca(self) -> bool {
        self.0 & 0x0800_0000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_tag() {
        let (tag, rest) = ITag::new_checked(&[0x08, 1, 2, 3, 4]).unwrap();
        assert_eq!((tag.isid(), tag.uca(), rest), (0x010203, true, &[4][..]));
        assert!(ITag::new_checked(&[0; 3]).is_err());
    }
}
