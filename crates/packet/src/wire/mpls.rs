//! MPLS label stack entries (RFC 3032).

use super::{Error, split};

/// A label stack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelStackEntry(
    /// Label (20 bits), traffic class (3), bottom of stack (1), time to live (8).
    pub u32,
);

impl LabelStackEntry {
    /// An entry of these parts; bits beyond their widths are cut off.
    pub fn new(label: u32, tc: u8, bottom: bool, ttl: u8) -> LabelStackEntry {
        LabelStackEntry((label & 0xf_ffff) << 12 | u32::from(tc & 7) << 9 | u32::from(bottom) << 8 | u32::from(ttl))
    }

    /// The entry at the start of `bytes`, and what follows it.
    pub fn new_checked(bytes: &[u8]) -> Result<(LabelStackEntry, &[u8]), Error> {
        let (entry, rest) = split::<[u8; 4]>("MPLS", bytes)?;
        Ok((LabelStackEntry(u32::from_be_bytes(*entry)), rest))
    }

    /// Label.
    pub fn label(self) -> u32 {
        self.0 >> 12
    }

    /// Traffic class.
    pub fn tc(self) -> u8 {
        (self.0 >> 9) as u8 & 7
    }

    /// Whether this is the last entry.
    pub fn bottom(self) -> bool {
        self.0 & 0x100 != 0
    }

    /// Time to live.
    pub fn ttl(self) -> u8 {
        self.0 as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_entry() {
        let entry = LabelStackEntry::new(0x12345, 5, true, 64);
        assert_eq!((entry.label(), entry.tc(), entry.bottom(), entry.ttl()), (0x12345, 5, true, 64));
        assert_eq!(LabelStackEntry::new_checked(&[0x12, 0x34, 0x5b, 0x40, 1]), Ok((entry, &[1][..])));
        assert!(LabelStackEntry::new_checked(&[1, 2, 3]).is_err());
    }
}
