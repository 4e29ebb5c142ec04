//! What the flows of a stage can look at, in terms of frames as they are.
//!
//! A plan is made when the stage's list of subtables is published. For each [`Template`] it has a pattern:
//! the bits of a frame that any of the stage's flows can tell apart. Frames that are equal in the pattern belong
//! to the same flow, so they need neither be parsed nor looked up one by one.

use packet::Mask;
use packet::flow::block::Common;
use packet::flow::extract::SimpleMark;
use packet::flow::template::{Layout, Template, WINDOW, WINDOW_WORDS, Window};
use packet::flow::{Block, VLAN_PRESENT};
use packet::{Field, Key};
use smallvec::SmallVec;

use crate::classify::cpu::simd::Line;
use crate::pipeline::metadata::half_words_of;

/// A line of its own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Aligned(pub Line);

/// What is compared of the frames of one template.
#[repr(C)]
pub struct Pattern {
    /// The bits that matter.
    pub mask: Aligned,
    /// Those that say which template it is.
    pub parse: Aligned,
    /// Added to what was masked: the [`Origin`], where the mask has no bits.
    pub salt: Aligned,
    /// Where the line begins in the frame.
    pub at: u32,
    /// Where the headers are.
    pub layout: Layout,
    /// Where in the line the metadata of packets begins that go round again: behind the last byte of header that matters.
    pub metadata_at: u8,
}

const _: () = assert!(size_of::<Pattern>() == 256);

/// Four bytes of metadata that flows of a later stage look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataBits {
    /// Which, as [`Metadata`](crate::pipeline::metadata::Metadata) numbers them.
    pub number: u8,
    /// The bits.
    pub mask: u32,
}

/// The patterns of a stage.
pub struct Plan {
    patterns: [Option<Box<Pattern>>; Template::COUNT],
    /// What flows of a later stage look at beside frames. It is part of the line.
    pub metadata: SmallVec<[MetadataBits; 4]>,
    /// The port's flows all qualify for the simple match: they look at nothing but a [`SimpleMark`].
    pub simple: bool,
}

/// What a line says beside the bytes of the frame, in its last four bytes. From the lowest bit on: where in the line
/// its [`core`](Origin::core) begins, where in the frame the line does, the template, and the number of the list of flows plus one.
/// Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Origin(pub u32);

/// Bytes of a line's core.
pub const CORE: usize = 16;

/// A line's core.
pub type Core = [u64; CORE / 8];

impl Origin {
    // How many bits each part has, the lowest first.
    const CORE_BITS: u32 = 6;
    const AT_BITS: u32 = 5;
    const TEMPLATE_BITS: u32 = 4;
    /// Of the list's number plus one.
    const LIST_BITS: u32 = u16::BITS + 1;

    // The bit that each part begins with, but for the first.
    const AT: u32 = Origin::CORE_BITS;
    const TEMPLATE: u32 = Origin::AT + Origin::AT_BITS;
    const LIST: u32 = Origin::TEMPLATE + Origin::TEMPLATE_BITS;

    /// In place of a core's beginning: there is none.
    const NO_CORE: u32 = (1 << Origin::CORE_BITS) - 1;

    fn new(list: u16, template: Template, at: u32, core: Option<usize>) -> Origin {
        debug_assert!(at < 1 << Origin::AT_BITS, "no window begins so far from the frame's start");
        let core = core.map_or(Origin::NO_CORE, |core| core as u32);
        let template = (template.number() as u32) << Origin::TEMPLATE;
        Origin((u32::from(list) + 1) << Origin::LIST | template | at << Origin::AT | core)
    }

    /// Where in the line its core begins, or [`NO_CORE`](Origin::NO_CORE).
    #[inline(always)]
    fn core_begin(self) -> u32 {
        self.0 & ((1 << Origin::CORE_BITS) - 1)
    }

    /// The number of the template.
    #[inline(always)]
    fn template(self) -> usize {
        (self.0 >> Origin::TEMPLATE) as usize & ((1 << Origin::TEMPLATE_BITS) - 1)
    }

    /// Of a line.
    #[inline(always)]
    pub fn of(line: &Line) -> Origin {
        let [.., a, b, c, d] = line[7].to_ne_bytes();
        Origin(u32::from_ne_bytes([a, b, c, d]))
    }

    /// The line that has nothing else.
    fn line(self) -> Line {
        let [a, b, c, d] = self.0.to_ne_bytes();
        [0, 0, 0, 0, 0, 0, 0, u64::from_ne_bytes([0, 0, 0, 0, a, b, c, d])]
    }

    /// The only bytes of a line that are not the same in all lines of its origin, where they are that few.
    #[inline(always)]
    pub fn core(self, line: &Line) -> Option<Core> {
        self.core_in(zerocopy::transmute_ref!(line))
    }

    /// As [`core`](Origin::core), of bytes that need not be masked.
    #[inline(always)]
    pub fn core_in(self, bytes: &[u8; 64]) -> Option<Core> {
        let core = bytes.get(self.core_begin() as usize..)?.first_chunk::<CORE>()?;
        Some(zerocopy::transmute!(*core))
    }

    /// Where the core lies, for many lines of an origin that has one.
    #[inline(always)]
    pub fn core_at(self) -> CoreAt {
        CoreAt(self.core_begin().min(64 - CORE as u32))
    }

    /// Whether its lines have a core.
    #[inline(always)]
    pub fn has_core(self) -> bool {
        self.core_begin() != Origin::NO_CORE
    }
}

const _: () = assert!(Template::COUNT <= 1 << Origin::TEMPLATE_BITS);
const _: () = assert!(Origin::NO_CORE as usize > 64 - CORE, "what lies there is no core");
const _: () = assert!(Origin::LIST + Origin::LIST_BITS <= u32::BITS);

/// Where in lines of 64 bytes their core begins. It ends within them.
#[derive(Clone, Copy)]
pub struct CoreAt(u32);

impl CoreAt {
    /// The core.
    #[inline(always)]
    pub fn of(self, line: &Line) -> Core {
        let bytes: &[u8; 64] = zerocopy::transmute_ref!(line);
        let at = self.0 as usize;
        zerocopy::transmute!(*bytes[at..at + CORE].first_chunk::<CORE>().expect("that many bytes"))
    }
}

/// The bytes of a window's words, as they lie in memory.
fn bytes_of(words: &[u64; WINDOW_WORDS]) -> [u8; WINDOW] {
    zerocopy::transmute!(*words)
}

/// Where in its lines the core of a window begins, with so many bytes of metadata from `metadata_at` on.
fn core_of(window: &Window, metadata_at: usize, metadata: usize) -> Option<usize> {
    let (mask, fixed) = (bytes_of(&window.mask), bytes_of(&window.fixed));
    let is_metadata = |i: usize| (metadata_at..metadata_at + metadata).contains(&i);
    let varies = |&i: &usize| mask[i] & !fixed[i] != 0 || is_metadata(i);
    let first = (0..WINDOW).find(varies).unwrap_or(0).min(WINDOW - CORE);
    let last = (0..WINDOW).rev().find(varies).unwrap_or(0);
    (last < first + CORE).then_some(first)
}

impl Plan {
    /// The plan of a list whose flows look at nothing beyond `union`, for packets as a port has received them. What has one
    /// value for all of those, such as recirc_id, is not looked at.
    pub fn new(list: u16, union: &Mask) -> Plan {
        Plan::with_metadata(list, union, SmallVec::new())
    }

    /// As [`new`](Plan::new), for packets that go round again. They have metadata, of which all have the input port and the
    /// recirculation id in common.
    pub fn of_later_stage(list: u16, union: &Mask) -> Plan {
        let bits = half_words_of(union).map(|(number, mask)| MetadataBits { number: number as u8, mask });
        Plan::with_metadata(list, union, bits.collect())
    }

    fn with_metadata(list: u16, union: &Mask, metadata: SmallVec<[MetadataBits; 4]>) -> Plan {
        let mut patterns = [const { None }; Template::COUNT];
        for template in Template::all() {
            let pattern = template.window(union).and_then(|w| Pattern::new(list, template, &w, metadata.len()));
            patterns[template.number()] = pattern.map(Box::new);
        }
        Plan { patterns, simple: metadata.is_empty() && is_simple(union), metadata }
    }

    /// A plan that says nothing: every packet is to be looked up by its key.
    pub fn none() -> Plan {
        Plan { patterns: [const { None }; Template::COUNT], metadata: SmallVec::new(), simple: false }
    }

    /// The pattern of lines of this origin.
    #[inline(always)]
    pub fn pattern_of(&self, origin: Origin) -> Option<&Pattern> {
        let pattern = self.patterns.get(origin.template())?.as_deref()?;
        (Origin::of(&pattern.salt.0) == origin).then_some(pattern)
    }

    /// The pattern of a template.
    #[inline(always)]
    pub fn pattern(&self, template: Template) -> Option<&Pattern> {
        self.patterns[template.number()].as_deref()
    }
}

impl Pattern {
    /// `None` where the line has no room for so many parts of metadata.
    fn new(list: u16, template: Template, window: &Window, metadata: usize) -> Option<Pattern> {
        let metadata_at = (0..WINDOW).rev().find(|&i| bytes_of(&window.mask)[i] != 0).map_or(0, |last| last + 1);
        let bytes = metadata * size_of::<u32>();
        if metadata_at + bytes > WINDOW {
            return None;
        }
        let core = core_of(window, metadata_at, bytes);
        let line = |words: &[u64; WINDOW_WORDS]| {
            let mut line = [0; 8];
            line[..WINDOW_WORDS].copy_from_slice(words);
            Aligned(line)
        };
        Some(Pattern {
            mask: line(&window.mask),
            parse: line(&window.parse),
            salt: Aligned(Origin::new(list, template, window.at, core).line()),
            at: window.at,
            layout: window.layout,
            metadata_at: metadata_at as u8,
        })
    }
}

/// Whether flows that look at nothing beyond `union` can be told apart by a packet's mark: they match on
/// dl_type, VLAN id and presence, and fragment bits at most. What has one value for all packets that come
/// from a port, such as recirc_id, may be matched as well.
pub(super) fn is_simple(union: &Mask) -> bool {
    let mut other = union.clone();
    for field in [Field::InPortOxm, Field::RecircId, Field::PacketType, Field::DlType, Field::NwFrag] {
        other.clear(field);
    }
    let tag = &mut other.0.common_mut().vlan[0];
    tag.tci.set(tag.tci.get() & !SIMPLE_TCI);
    other.blocks().count() == 0
}

/// The bits of the outer tag that a simple flow may match: VLAN id and presence.
const SIMPLE_TCI: u16 = VLAN_PRESENT | 0x0fff;

/// Writes a mark into a key that has no more than its metadata: enough for the look-up of a flow that is
/// simple.
pub fn set_mark(key: &mut Key, mark: SimpleMark) {
    let from_frame = std::mem::offset_of!(Common, in_port) / 8;
    key.common_words_mut()[..from_frame].fill(0);
    let common = key.common_mut();
    common.dl_type.set(mark.dl_type);
    common.vlan[0].tci.set(mark.vlan_tci);
    common.nw_frag = mark.nw_frag;
}

const _: () = assert!(std::mem::offset_of!(Common, in_port) % 8 == 0 && size_of::<Block>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(fields: &[(Field, u128)]) -> Mask {
        let mut mask = Mask::wildcard();
        fields.iter().for_each(|&(field, bits)| mask.add(field, bits));
        mask
    }

    /// A line leads to the pattern that it was made with, and to none of another port, or that begins elsewhere in
    /// the frame.
    #[test]
    fn origins_lead_to_their_patterns() {
        let near = [(Field::DlDst, u128::MAX)];
        let far = [(Field::Ipv6Dst, u128::MAX), (Field::TcpDst, u128::MAX)];
        let plan = Plan::new(1, &mask(&near));
        let (mut same_place, mut elsewhere) = (0, 0);
        for template in Template::all() {
            let pattern = plan.pattern(template).expect("all frames have a destination");
            let origin = Origin::of(&pattern.salt.0);
            assert!(std::ptr::eq(plan.pattern_of(origin).unwrap(), pattern));
            assert!(Plan::new(2, &mask(&near)).pattern_of(origin).is_none());
            assert!(Plan::none().pattern_of(origin).is_none());
            let other = Plan::new(1, &mask(&far));
            let Some(begins) = other.pattern(template).map(|pattern| pattern.at) else { continue };
            if begins == pattern.at {
                same_place += 1;
            } else {
                assert!(other.pattern_of(origin).is_none());
                elsewhere += 1;
            }
        }
        assert!(same_place > 0 && elsewhere > 0);
        assert!(plan.pattern_of(Origin::of(&[0; 8])).is_none());
    }

    #[test]
    fn what_is_simple() {
        let simple =
            [(Field::InPortOxm, u128::MAX), (Field::DlType, 0xffff), (Field::NwFrag, 3), (Field::VlanTci, 0x1fff)];
        assert!(is_simple(&mask(&[])) && is_simple(&mask(&simple)));
        for (field, bits) in [(Field::VlanTci, 0x2000), (Field::NwSrc, 1), (Field::Ipv6Src, 1), (Field::TunId, 1)] {
            assert!(!is_simple(&mask(&[(field, bits)])), "{field:?}");
            assert!(!is_simple(&mask(&[&simple[..], &[(field, bits)]].concat())), "{field:?}");
        }
    }
}
