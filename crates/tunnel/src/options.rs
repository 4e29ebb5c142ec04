//! Options of Geneve (RFC 8926 section 3.5): class (16 bits), type (8, the highest of which says that the option is critical),
//! reserved (3), length of the value in words of four bytes (5), value.

use crate::Malformed;

/// Most bytes of all options of a packet.
pub const MAX_LEN: usize = 252;

/// An option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneveOption<'a> {
    /// Who has defined the type.
    pub class: u16,
    /// Type.
    pub kind: u8,
    /// Value: a multiple of four bytes, at most 124.
    pub value: &'a [u8],
}

impl GeneveOption<'_> {
    /// Whether a packet has to be dropped by whoever does not know the option.
    pub fn is_critical(&self) -> bool {
        self.kind & 0x80 != 0
    }
}

/// The options of a packet, one after the other. Ends after one that is not whole.
#[derive(Clone, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// The options in these bytes.
    pub fn of(bytes: &'a [u8]) -> Options<'a> {
        Options(bytes)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<GeneveOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        let Some((&[a, b, kind, len], rest)) = bytes.split_first_chunk() else { return Some(Err(Malformed::Option)) };
        let Some((value, rest)) = rest.split_at_checked(usize::from(len & 0x1f) * 4) else {
            return Some(Err(Malformed::Option));
        };
        self.0 = rest;
        Some(Ok(GeneveOption { class: u16::from_be_bytes([a, b]), kind, value }))
    }
}

/// Whether each option is whole; and whether one is critical.
pub fn check(bytes: &[u8]) -> Result<bool, Malformed> {
    Options::of(bytes).try_fold(false, |critical, option| Ok(critical | option?.is_critical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_to_be_whole() {
        let bytes = [1, 2, 3, 1, 9, 9, 9, 9, 0, 7, 0x80, 0xe0];
        let options: Vec<_> = Options::of(&bytes).collect();
        let first = GeneveOption { class: 0x102, kind: 3, value: &[9; 4] };
        assert_eq!(options, [Ok(first), Ok(GeneveOption { class: 7, kind: 0x80, value: &[] })]);
        assert_eq!((check(&bytes), check(&bytes[..8])), (Ok(true), Ok(false)));
        for len in [1, 4, 5, 7, 9, 11] {
            assert_eq!(check(&bytes[..len]), Err(Malformed::Option), "{len} bytes");
        }
    }
}
