//! What the flows of an input port can look at, in terms of frames as they are.
//!
//! A plan is made when the port's list of subtables is published. For each [`Template`] it has a pattern:
//! the bits of a frame that any of the port's flows can tell apart. Frames that are equal in the pattern belong
//! to the same flow, so they need neither be parsed nor looked up one by one.

use packet::Mask;
use packet::flow::block::Common;
use packet::flow::extract::SimpleMark;
use packet::flow::template::{Layout, Template, WINDOW, WINDOW_WORDS, Window};
use packet::flow::{Block, VLAN_PRESENT};
use packet::{Field, Key};

use crate::classify::cpu::simd::Line;

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
}

const _: () = assert!(size_of::<Pattern>() == 256);

/// The patterns of an input port.
pub struct Plan {
    patterns: [Option<Box<Pattern>>; Template::COUNT],
    /// The port's flows all qualify for the simple match: they look at nothing but a [`SimpleMark`].
    pub simple: bool,
}

/// What a line says beside the bytes of the frame, in its last four bytes. From the lowest bit on: where in the line
/// its [`core`](Origin::core) begins, where in the frame the line does, the template, and the input port plus one.
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
    /// Of the port's number plus one.
    const PORT_BITS: u32 = u16::BITS + 1;

    // The bit that each part begins with, but for the first.
    const AT: u32 = Origin::CORE_BITS;
    const TEMPLATE: u32 = Origin::AT + Origin::AT_BITS;
    const PORT: u32 = Origin::TEMPLATE + Origin::TEMPLATE_BITS;

    /// In place of a core's beginning: there is none.
    const NO_CORE: u32 = (1 << Origin::CORE_BITS) - 1;

    fn new(port: u16, template: Template, at: u32, core: Option<usize>) -> Origin {
        debug_assert!(at < 1 << Origin::AT_BITS, "no window begins so far from the frame's start");
        let core = core.map_or(Origin::NO_CORE, |core| core as u32);
        let template = (template.number() as u32) << Origin::TEMPLATE;
        Origin((u32::from(port) + 1) << Origin::PORT | template | at << Origin::AT | core)
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
const _: () = assert!(Origin::PORT + Origin::PORT_BITS <= u32::BITS);

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

/// Where in its lines the core of a window begins.
fn core_of(window: &Window) -> Option<usize> {
    let bytes = |words: &[u64; WINDOW_WORDS]| -> [u8; WINDOW] { zerocopy::transmute!(*words) };
    let (mask, fixed) = (bytes(&window.mask), bytes(&window.fixed));
    let varies = |&i: &usize| mask[i] & !fixed[i] != 0;
    let first = (0..WINDOW).find(varies).unwrap_or(0).min(WINDOW - CORE);
    let last = (0..WINDOW).rev().find(varies).unwrap_or(0);
    (last < first + CORE).then_some(first)
}

impl Plan {
    /// The plan of a port whose flows look at nothing beyond `union`.
    pub fn new(port: u16, union: &Mask) -> Plan {
        let mut patterns = [const { None }; Template::COUNT];
        for template in Template::all() {
            patterns[template.number()] = template.window(union).map(|w| Box::new(Pattern::new(port, template, &w)));
        }
        Plan { patterns, simple: is_simple(union) }
    }

    /// A plan that says nothing: every packet is to be looked up by its key.
    pub fn none() -> Plan {
        Plan { patterns: [const { None }; Template::COUNT], simple: false }
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
    fn new(port: u16, template: Template, window: &Window) -> Pattern {
        let line = |words: &[u64; WINDOW_WORDS]| {
            let mut line = [0; 8];
            line[..WINDOW_WORDS].copy_from_slice(words);
            Aligned(line)
        };
        Pattern {
            mask: line(&window.mask),
            parse: line(&window.parse),
            salt: Aligned(Origin::new(port, template, window.at, core_of(window)).line()),
            at: window.at,
            layout: window.layout,
        }
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
