//! Metadata in lines: which bytes of it the lines of a stage have, and where.

use packet::flow::template::{WINDOW, WINDOW_WORDS, Window};
use smallvec::SmallVec;

use crate::classify::cpu::simd::Line;

/// Offsets of parts of the metadata in a line.
pub type Places = [u8; MAX_PARTS];

/// How many parts of metadata a line has at most.
pub const MAX_PARTS: usize = 11;

/// The offset of what has no place in a line.
pub const NO_PLACE: u8 = size_of::<Line>() as u8;

/// The bytes of four of metadata that flows of a later stage match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataPart {
    /// The number of the four bytes, as in [`Metadata`](crate::pipeline::metadata::Metadata).
    pub number: u8,
    /// How many of them lines have: from the first one with matched bits to the last one.
    pub len: u8,
    /// By how many bits they are rotated, so that the first one that lines have comes first in memory.
    pub rotation: u8,
    /// Whether flows of this stage match it, not only those of later ones.
    pub is_own: bool,
    /// The bits that are matched.
    pub mask: u32,
    /// The bits of what lies behind it in the line, in the four bytes where it is written.
    behind: u32,
}

impl MetadataPart {
    /// `mask`: not zero.
    pub fn new(number: usize, mask: u32, is_own: bool) -> MetadataPart {
        let has_bits = mask.to_ne_bytes().map(|bits| bits != 0);
        let first = has_bits.iter().position(|&bits| bits).unwrap_or(0);
        let len = has_bits.iter().rposition(|&bits| bits).map_or(0, |last| last + 1 - first);
        let mut behind = [0xff; 4];
        behind[..len].fill(0);
        // The first byte in memory is the lowest one of a number, or the highest.
        let bits = 8 * first as u8;
        let rotation = if cfg!(target_endian = "little") { bits } else { (32 - bits) % 32 };
        let behind = u32::from_ne_bytes(behind);
        MetadataPart { number: number as u8, len: len as u8, rotation, is_own, mask, behind }
    }

    /// Three bytes as two and one, which find room more easily.
    pub fn halves(self) -> impl Iterator<Item = MetadataPart> {
        let masks = if self.len == 3 {
            let mut bytes = [self.mask.to_ne_bytes(); 2];
            let last = bytes[0].iter().rposition(|&bits| bits != 0).unwrap_or(0);
            bytes[0][last] = 0;
            bytes[1][..last].fill(0);
            bytes.map(u32::from_ne_bytes)
        } else {
            [self.mask, 0]
        };
        let part = move |mask| MetadataPart::new(self.number.into(), mask, self.is_own);
        masks.into_iter().filter(|&mask| mask != 0).map(part)
    }

    /// What is in a line where it is written: `value` is the four bytes of metadata, `before` what is there, both in memory order.
    #[inline(always)]
    pub fn written(&self, value: u32, before: u32) -> u32 {
        (value & self.mask).rotate_right(self.rotation.into()) | before & self.behind
    }
}

/// The bytes of a window's words, in memory order.
fn bytes_of(words: &[u64; WINDOW_WORDS]) -> [u8; WINDOW] {
    zerocopy::transmute!(*words)
}

/// Which bytes of a window's lines differ between frames.
pub fn occupied_of(window: &Window) -> [bool; WINDOW] {
    let (mask, fixed) = (bytes_of(&window.mask), bytes_of(&window.fixed));
    std::array::from_fn(|i| mask[i] & !fixed[i] != 0)
}

/// Where lines of a window have metadata: these parts of it, with their numbers. Right behind the headers, so that what differs lies close
/// together; where there is no room for it, wherever no byte of the headers differs between frames. `None` where there is no room for that either.
pub fn places_of(window: &Window, parts: &[(usize, MetadataPart)]) -> Option<(Places, [bool; WINDOW])> {
    let (mut places, mut has_metadata) = ([NO_PLACE; MAX_PARTS], [false; WINDOW]);
    let mut put = |number: usize, part: &MetadataPart, at: usize| -> Option<()> {
        *places.get_mut(number)? = at as u8;
        has_metadata.get_mut(at..)?.get_mut(..part.len.into())?.fill(true);
        Some(())
    };
    let behind = bytes_of(&window.mask).iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
    let bytes: usize = parts.iter().map(|(_, part)| usize::from(part.len)).sum();
    if behind + bytes <= WINDOW {
        let mut at = behind;
        for (number, part) in parts {
            put(*number, part, at)?;
            at += usize::from(part.len);
        }
        return Some((places, has_metadata));
    }
    let mut free = occupied_of(window).map(|is_occupied| !is_occupied);
    let mut largest_first: SmallVec<[_; MAX_PARTS]> = parts.iter().collect();
    largest_first.sort_by_key(|(_, part)| std::cmp::Reverse(part.len));
    for (number, part) in largest_first {
        // The smallest gap that it fits in.
        let gaps = (0..WINDOW).filter(|&i| free[i] && (i == 0 || !free[i - 1]));
        let sized = gaps.map(|at| (free[at..].iter().take_while(|&&is_free| is_free).count(), at));
        let (_, at) = sized.filter(|&(size, _)| size >= part.len.into()).min()?;
        free[at..][..part.len.into()].fill(false);
        put(*number, part, at)?;
    }
    Some((places, has_metadata))
}
