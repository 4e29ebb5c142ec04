//! A plan: which bits of raw frames the flows of a recirculation stage match.
//!
//! It is made when the stage's list of subtables is published. For each [`Template`] it has a pattern: the bits of a
//! frame that any of the stage's flows matches. Frames that agree in these bits belong to the same flow. So they need
//! neither be parsed nor looked up one by one. For packets that fit no template but have an
//! [`Outline`], it has the words that any flow matches, and for all others the words of their keys.

use std::sync::atomic::{AtomicU64, Ordering};

use packet::Mask;
use packet::flow::block::Common;
use packet::flow::extract::SimpleMark;
use packet::flow::hash::Hasher;
use packet::flow::outline::{Outline, OutlineKind, WORDS, Word};
use packet::flow::template::{Layout, Template, WINDOW, WINDOW_WORDS, Window};
use packet::flow::{Block, BlockId, Blocks, VLAN_PRESENT};
use packet::{Field, Key};
use smallvec::SmallVec;

use crate::classify::cpu::simd::Line;
use crate::classify::places::{MAX_PARTS, MetadataPart, NO_PLACE, Places, occupied_of, places_of};
use crate::pipeline::metadata::{TUNNEL_BLOCKS, half_words_of, half_words_of_tunnel};

/// A line, aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Aligned(pub Line);

/// Which bits of the frames of one template are compared.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pattern {
    /// The bits that some flow matches.
    pub mask: Aligned,
    /// The bits that tell the template.
    pub parse: Aligned,
    /// Or-ed with the masked bytes: the [`Origin`], where the mask has no bits.
    pub salt: Aligned,
    /// Offset of the line in the frame.
    pub at: u32,
    /// Where the headers are.
    pub layout: Layout,
    /// Offsets in the line of the parts of the metadata of recirculated packets; [`NO_PLACE`] for those that lines do not have.
    pub places: Places,
    /// Whether the line has all that tells a connection's direction, and that flows of later stages match: see
    /// [`Plan::tracked`].
    pub tells_connections: bool,
}

const _: () = assert!(size_of::<Pattern>() == 256);

/// The patterns of a stage.
pub struct Plan {
    /// [`NO_PATTERN`], and then those that there are.
    patterns: Box<[Pattern]>,
    /// Their indices by the templates' numbers, so that one is found without a branch; zero where there is none.
    by_template: [u8; 256],
    /// How lines are made of packets without a pattern that have an outline, by its kind.
    outline_patterns: Option<Box<[OutlinePattern; OutlineKind::COUNT]>>,
    /// How lines are made of the keys of other packets without a pattern.
    key_pattern: Option<Box<KeyPattern>>,
    /// The metadata that flows of a later stage match. It is part of the line.
    pub metadata: SmallVec<[MetadataPart; 4]>,
    /// Whether packets are those that come out of a tunnel. Others of the stage, such as injected ones, may have metadata that lines do
    /// not have.
    pub is_of_tunnel: bool,
    /// Part of the hashes of lines that have metadata: tells where in the line it is. Lines that were made when flows looked at other
    /// metadata, or at more of the headers, have it in other places, and must not be taken for those of today. Headers need no such
    /// thing: they are always in the same place.
    pub metadata_salt: u64,
    /// Whether all flows of the port qualify for the simple match: they match nothing but a [`SimpleMark`].
    pub simple: bool,
    /// Where packets of the port are tracked: the bits of headers that are compared so that lines tell connections, and
    /// what flows of later stages match.
    pub tracked: Option<Box<Mask>>,
    /// Differs from that of every other plan.
    pub serial: u64,
}

/// How many templates have ports.
const TELLING: usize = Template::COUNT / 2;

/// How lines are made of frames whose headers are unusual, of which no template says where they are, but an
/// [`Outline`]. Such a line has the outline's values, and those words of the frame that some flow matches.
#[derive(Clone, Copy)]
struct OutlinePattern {
    words: [Word; WORDS],
    /// The bits of the values.
    values: u64,
    /// Or-ed with the values: which words these are. A line that was made when flows looked at other words has them in
    /// other places, and must not be taken for one of these.
    signature: u64,
    /// Zero where no line can be made.
    origin: Origin,
}

const _: () = assert!(1 + WORDS == WINDOW_WORDS, "the values and the words are what is compared of a line");

impl OutlinePattern {
    /// The pattern of packets of which no line can be made.
    const NONE: OutlinePattern =
        OutlinePattern { words: [Word::NONE; WORDS], values: 0, signature: 0, origin: Origin(0) };

    fn new(list: u16, kind: OutlineKind, union: &Mask) -> OutlinePattern {
        kind.words(union).map_or(OutlinePattern::NONE, |compared| OutlinePattern {
            words: compared.words,
            values: compared.values,
            signature: compared.signature,
            origin: Origin::new(list, OF_OUTLINE + kind.number(), 0, None),
        })
    }
}

/// How lines are made of extracted keys: for frames that have no outline either. Such a line has those words of the key
/// that some flow matches.
struct KeyPattern {
    /// The words' numbers, counted over the blocks that are extracted from frames, and their masks.
    words: SmallVec<[(u8, u64); WINDOW_WORDS - 1]>,
    /// Or-ed with the masked words: behind them, which words they are, and the [`Origin`]. A line that was made when
    /// flows looked at other words has them in other places, and must not be taken for one of these.
    salt: Aligned,
}

/// The blocks of a key that come from the frame.
const FRAME_BLOCKS: [BlockId; 3] = [BlockId::Common, BlockId::L3, BlockId::Encap];
const BLOCK_WORDS: usize = size_of::<Block>() / 8;
/// Words of the common block before the metadata.
const COMMON_WORDS: usize = std::mem::offset_of!(Common, in_port) / 8;

/// The number of lines that are made of keys, among those of the templates.
const OF_KEY: usize = Template::COUNT;

/// The first number of the lines that are made of frames with an outline.
const OF_OUTLINE: usize = OF_KEY + 1;

/// The origin of a line, in its last four bytes. From the lowest bit on, it has: the offset of the
/// [`core`](Origin::core) in the line, half the offset of the line in the frame, the template, and the number of the list
/// of flows plus one. It is never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Origin(pub u32);

/// Bytes of a core.
pub const CORE: usize = 16;

/// The core of a line.
pub type Core = [u64; CORE / 8];

impl Origin {
    // How many bits each part has, the lowest first.
    const CORE_BITS: u32 = 6;
    /// Bits of half the offset of the line, which is even.
    const AT_BITS: u32 = 3;
    const TEMPLATE_BITS: u32 = 6;
    /// Bits of the list's number plus one.
    const LIST_BITS: u32 = u16::BITS + 1;

    // The lowest bit of each part but the first.
    const AT: u32 = Origin::CORE_BITS;
    const TEMPLATE: u32 = Origin::AT + Origin::AT_BITS;
    const LIST: u32 = Origin::TEMPLATE + Origin::TEMPLATE_BITS;

    /// The offset that says that there is no core.
    const NO_CORE: u32 = (1 << Origin::CORE_BITS) - 1;

    fn new(list: u16, template: usize, at: u32, core: Option<usize>) -> Origin {
        let half = at / 2;
        debug_assert!(2 * half == at && half < 1 << Origin::AT_BITS, "no window begins so far from the frame's start");
        let core = core.map_or(Origin::NO_CORE, |core| core as u32);
        let template = (template as u32) << Origin::TEMPLATE;
        Origin((u32::from(list) + 1) << Origin::LIST | template | half << Origin::AT | core)
    }

    /// Offset of the core in the line, or [`NO_CORE`](Origin::NO_CORE).
    #[inline(always)]
    fn core_begin(self) -> u32 {
        self.0 & ((1 << Origin::CORE_BITS) - 1)
    }

    /// The number of the template.
    #[inline(always)]
    fn template(self) -> usize {
        (self.0 >> Origin::TEMPLATE) as usize & ((1 << Origin::TEMPLATE_BITS) - 1)
    }

    /// The origin of a line.
    #[inline(always)]
    pub fn of(line: &Line) -> Origin {
        let [.., a, b, c, d] = line[7].to_ne_bytes();
        Origin(u32::from_ne_bytes([a, b, c, d]))
    }

    /// A line with this origin and zeros.
    const fn line(self) -> Line {
        let [a, b, c, d] = self.0.to_ne_bytes();
        [0, 0, 0, 0, 0, 0, 0, u64::from_ne_bytes([0, 0, 0, 0, a, b, c, d])]
    }

    /// The core of a line: its only bytes that can differ between lines of its origin, if these are few enough.
    #[inline(always)]
    pub fn core(self, line: &Line) -> Option<Core> {
        self.core_in(zerocopy::transmute_ref!(line))
    }

    /// As [`core`](Origin::core), for bytes that need not be masked.
    #[inline(always)]
    pub fn core_in(self, bytes: &[u8; 64]) -> Option<Core> {
        let core = bytes.get(self.core_begin() as usize..)?.first_chunk::<CORE>()?;
        Some(zerocopy::transmute!(*core))
    }

    /// Where the core lies, for lines of an origin that has one.
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

const _: () = assert!(FRAME_BLOCKS.len() * BLOCK_WORDS <= u64::BITS as usize, "a word has a bit for each");
const _: () = assert!(OF_OUTLINE + OutlineKind::COUNT <= 1 << Origin::TEMPLATE_BITS);
const _: () = assert!(Origin::NO_CORE as usize > 64 - CORE, "what lies there is no core");
const _: () = assert!(Origin::LIST + Origin::LIST_BITS <= u32::BITS);

/// Offset of the core in lines of 64 bytes, which have all of it.
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

/// Offset of the core in the lines of a window that have metadata where `has_metadata` says so.
fn core_of(window: &Window, has_metadata: &[bool; WINDOW]) -> Option<usize> {
    let occupied = occupied_of(window);
    let varies = |&i: &usize| occupied[i] || has_metadata[i];
    let first = (0..WINDOW).find(varies).unwrap_or(0).min(WINDOW - CORE);
    let last = (0..WINDOW).rev().find(varies).unwrap_or(0);
    (last < first + CORE).then_some(first)
}

impl Plan {
    /// The plan of a list whose flows match nothing beyond `union`, for packets that a port has received. Fields with
    /// one value for all of these, such as recirc_id, are left out.
    pub fn new(list: u16, union: &Mask) -> Plan {
        Plan::with_metadata(list, union, SmallVec::new(), None)
    }

    /// As [`new`](Plan::new), for a port whose packets are tracked: lines also tell the directions of connections, and
    /// what `later` has, the bits of headers that flows of later stages match.
    pub fn of_tracked(list: u16, union: &Mask, later: &Mask) -> Plan {
        Plan::with_metadata(list, union, SmallVec::new(), Some(tracked(union, later)))
    }

    /// As [`new`](Plan::new), for recirculated packets. Their metadata is part of the line, except for the input port
    /// and the recirculation id, which all of them have in common.
    pub fn of_later_stage(list: u16, union: &Mask) -> Plan {
        let parts = half_words_of(union).map(|(number, mask)| MetadataPart::new(number, mask, true));
        Plan::with_metadata(list, union, parts.collect(), None)
    }

    /// As [`of_later_stage`](Plan::of_later_stage), for packets that come out of a tunnel, which have no other metadata than that of the tunnel. If they
    /// are tracked, `later` is what flows of later stages match of headers and of that metadata: see [`of_tracked`](Plan::of_tracked).
    pub fn of_tunnel(list: u16, union: &Mask, later: Option<&Mask>) -> Plan {
        let tracked = later.map(|later| tracked(union, later));
        let own: SmallVec<[_; MAX_PARTS]> = half_words_of_tunnel(union).map(|(number, _)| number).collect();
        let all = half_words_of_tunnel(tracked.as_deref().unwrap_or(union));
        let parts = all.map(|(number, mask)| MetadataPart::new(number, mask, own.contains(&number)));
        let mut parts: SmallVec<[MetadataPart; 4]> = parts.collect();
        // Lines that do not tell connections have no more than these.
        parts.sort_by_key(|part| !part.is_own);
        Plan { is_of_tunnel: true, ..Plan::with_metadata(list, union, parts, tracked) }
    }

    /// `metadata`: first that which flows of the list match.
    fn with_metadata(
        list: u16,
        union: &Mask,
        metadata: SmallVec<[MetadataPart; 4]>,
        tracked: Option<Box<Mask>>,
    ) -> Plan {
        let halves: SmallVec<[MetadataPart; 4]> = metadata.iter().flat_map(|part| part.halves()).collect();
        let (whole, has_halves) = (Plan::with_parts(list, union, metadata, tracked.clone()), halves.len());
        // Each part is work for each packet.
        if whole.metadata.len() == has_halves || whole.room() == (Template::COUNT, TELLING) {
            return whole;
        }
        let halved = Plan::with_parts(list, union, halves, tracked);
        if halved.room() > whole.room() { halved } else { whole }
    }

    /// How many templates have a pattern, and how many of these tell connections, of at most [`TELLING`].
    fn room(&self) -> (usize, usize) {
        let patterns = || self.patterns.iter().skip(1);
        let telling = if self.tracked.is_some() {
            patterns().filter(|pattern| pattern.tells_connections).count()
        } else {
            TELLING
        };
        (patterns().count(), telling)
    }

    fn with_parts(list: u16, union: &Mask, metadata: SmallVec<[MetadataPart; 4]>, tracked: Option<Box<Mask>>) -> Plan {
        let all: SmallVec<[_; MAX_PARTS]> = metadata.iter().copied().enumerate().collect();
        let own: SmallVec<[_; MAX_PARTS]> = all.iter().copied().filter(|(_, part)| part.is_own).collect();
        let (mut patterns, mut by_template) = (vec![NO_PATTERN], [0; 256]);
        for template in Template::all() {
            let pattern = |mask: &Mask, parts: &[_]| Pattern::new(list, template, &template.window(mask)?, parts);
            // Where the line has no room for all of it, connections are not told apart.
            let tracked = tracked.as_deref().filter(|_| template.has_ports());
            let tells = |mask: &Mask| Some(Pattern { tells_connections: true, ..pattern(mask, &all)? });
            if let Some(pattern) = tracked.and_then(tells).or_else(|| pattern(union, &own)) {
                by_template[template.number()] = patterns.len() as u8;
                patterns.push(pattern);
            }
        }
        let metadata_salt = metadata_salt(&patterns, &metadata);
        let is_of_port = metadata.is_empty();
        let key_pattern = if is_of_port { KeyPattern::new(list, union) } else { None };
        let outline_patterns = is_of_port.then(|| {
            let mut patterns = [OutlinePattern::NONE; OutlineKind::COUNT];
            OutlineKind::all().for_each(|kind| patterns[kind.number()] = OutlinePattern::new(list, kind, union));
            Box::new(patterns)
        });
        Plan {
            patterns: patterns.into(),
            by_template,
            outline_patterns,
            key_pattern: key_pattern.map(Box::new),
            simple: metadata.is_empty() && tracked.is_none() && is_simple(union),
            metadata,
            is_of_tunnel: false,
            metadata_salt,
            tracked,
            serial: next_serial(),
        }
    }

    /// A plan without patterns: every packet is looked up by its key.
    pub fn none() -> Plan {
        Plan {
            patterns: [NO_PATTERN].into(),
            by_template: [0; 256],
            outline_patterns: None,
            key_pattern: None,
            metadata: SmallVec::new(),
            is_of_tunnel: false,
            metadata_salt: 0,
            simple: false,
            tracked: None,
            serial: next_serial(),
        }
    }

    /// The pattern of lines of this origin.
    #[inline(always)]
    pub fn pattern_of(&self, origin: Origin) -> Option<&Pattern> {
        let pattern = self.patterns.get(usize::from(*self.by_template.get(origin.template())?))?;
        (Origin::of(&pattern.salt.0) == origin).then_some(pattern)
    }

    /// Writes the line of a received packet without a pattern, which has this outline. `false` where flows look at fields
    /// that it does not have, or at too many.
    #[inline(always)]
    pub fn write_line_of_outline(&self, outline: &Outline, frame: &[u8], line: &mut Line) -> bool {
        let Some(pattern) = self.outline_patterns.as_deref().map(|patterns| &patterns[outline.kind.number()]) else {
            return false;
        };
        let Some(last) = frame.len().checked_sub(size_of::<u64>()) else { return false };
        line[0] = outline.values & pattern.values | pattern.signature;
        for (to, word) in line[1..].iter_mut().zip(&pattern.words) {
            // Words with bits are within the frame.
            let at = outline.starts[word.start as usize] as usize + usize::from(word.at);
            debug_assert!(at <= last || word.mask == 0);
            // SAFETY: the offset is at most that of the frame's last eight bytes, and the read may be unaligned.
            let bytes = unsafe { frame.as_ptr().add(at.min(last)).cast::<u64>().read_unaligned() };
            *to = bytes & word.mask;
        }
        [line[6], line[7]] = [0, pattern.origin.line()[7]];
        pattern.origin != Origin(0)
    }

    /// The line of a received packet without a pattern, which has this key; or `None` where flows look at too many
    /// fields.
    #[inline(always)]
    pub fn line_of_key(&self, key: &Key) -> Option<Aligned> {
        let pattern = self.key_pattern.as_deref()?;
        let mut line = pattern.salt;
        for (word, &(number, mask)) in line.0.iter_mut().zip(&pattern.words) {
            *word |= key_word(key, number) & mask;
        }
        Some(line)
    }

    /// Whether some packets without a pattern have a line.
    #[inline(always)]
    pub fn has_lines_of_unusual(&self) -> bool {
        self.outline_patterns.is_some()
    }

    /// Whether all packets without a pattern have a line.
    #[inline(always)]
    pub fn has_lines_of_keys(&self) -> bool {
        self.key_pattern.is_some()
    }

    /// The pattern of the template with this number, or [`NO_PATTERN`], without a branch.
    #[inline(always)]
    pub fn pattern_or_none(&self, number: u8) -> &Pattern {
        &self.patterns[usize::from(self.by_template[usize::from(number)])]
    }

    /// The pattern of a template.
    #[inline(always)]
    pub fn pattern(&self, template: Template) -> Option<&Pattern> {
        let index = usize::from(self.by_template[template.number()]);
        (index != 0).then(|| &self.patterns[index])
    }
}

/// The pattern of frames that have none. No frame fits it.
pub const NO_PATTERN: Pattern = Pattern {
    mask: Aligned([0; 8]),
    parse: Aligned([0; 8]),
    salt: Aligned(Origin(Origin::NO_CORE).line()),
    at: 0,
    layout: Template::NO_LAYOUT,
    places: [NO_PLACE; MAX_PARTS],
    tells_connections: false,
};

impl KeyPattern {
    /// `None` where the line has no room for all words.
    fn new(list: u16, union: &Mask) -> Option<KeyPattern> {
        let of_frame = |&number: &usize| !(COMMON_WORDS..BLOCK_WORDS).contains(&number);
        let all = (0..FRAME_BLOCKS.len() * BLOCK_WORDS).filter(of_frame);
        let masked = all.map(|number| (number as u8, key_word(&union.0, number as u8)));
        let words: SmallVec<[_; WINDOW_WORDS - 1]> = masked.filter(|&(_, mask)| mask != 0).collect();
        let mut salt = Aligned(Origin::new(list, OF_KEY, 0, None).line());
        // The last word that is compared.
        salt.0[WINDOW_WORDS - 1] = words.iter().fold(0, |numbers, &(number, _)| numbers | 1 << number);
        (words.len() < WINDOW_WORDS).then_some(KeyPattern { words, salt })
    }
}

/// The word with this number of the blocks that come from the frame.
#[inline(always)]
fn key_word(key: &Key, number: u8) -> u64 {
    let number = usize::from(number);
    key.block(FRAME_BLOCKS[number / BLOCK_WORDS % FRAME_BLOCKS.len()]).words()[number % BLOCK_WORDS]
}

impl Pattern {
    /// `None` where the line has no room for these parts of the metadata.
    fn new(list: u16, template: Template, window: &Window, parts: &[(usize, MetadataPart)]) -> Option<Pattern> {
        let (places, has_metadata) = places_of(window, parts)?;
        let core = core_of(window, &has_metadata);
        let line = |words: &[u64; WINDOW_WORDS]| {
            let mut line = [0; 8];
            line[..WINDOW_WORDS].copy_from_slice(words);
            Aligned(line)
        };
        Some(Pattern {
            mask: line(&window.mask),
            parse: line(&window.parse),
            salt: Aligned(Origin::new(list, template.number(), window.at, core).line()),
            at: window.at,
            layout: window.layout,
            places,
            tells_connections: false,
        })
    }
}

/// Whether flows that match nothing beyond `union` can be told apart by a packet's mark: they match at most dl_type,
/// VLAN id and presence, and fragment bits. Fields with one value for all packets from a port, such as recirc_id, may
/// be matched as well.
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

/// What lines tell of packets that are tracked, whose flows match `union`, and those of later stages `later`.
fn tracked(union: &Mask, later: &Mask) -> Box<Mask> {
    let mut tracked = union.clone();
    tracked.union(later);
    for field in [Field::NwSrc, Field::NwDst, Field::NwProto, Field::Ipv6Src, Field::Ipv6Dst] {
        tracked.set_exact(field);
    }
    [Field::TcpSrc, Field::TcpDst].into_iter().for_each(|field| tracked.set_exact(field));
    Box::new(tracked)
}

/// A hash of where the lines of these patterns have which metadata; zero where they have none. It need not be secret: no packet has a part in it.
fn metadata_salt(patterns: &[Pattern], metadata: &[MetadataPart]) -> u64 {
    if metadata.is_empty() {
        return 0;
    }
    let hasher = Hasher::new([0; 2]);
    let parts = metadata
        .iter()
        .map(|part| [part.number, part.len, part.rotation].map(u64::from))
        .map(|[a, b, c]| [a, b << 8 | c]);
    let origin = |pattern: &Pattern| u64::from(Origin::of(&pattern.salt.0).0);
    let places = patterns.iter().flat_map(|pattern| pattern.places.map(|place| [origin(pattern), place.into()]));
    parts.chain(places).fold(0, |salt, words| hasher.pair([salt ^ words[0], words[1]], 1))
}

/// The serial number of a new plan.
fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The part of a mask that is about what a port receives: headers of frames, and what those of a tunnel said about a packet. Not about metadata that
/// only the switch makes.
pub fn of_received(mask: &Mask) -> Mask {
    let mut received = mask.clone();
    received.0.keep(FRAME_BLOCKS.into_iter().chain(TUNNEL_BLOCKS).fold(Blocks::COMMON, Blocks::with));
    received.0.common_words_mut()[COMMON_WORDS..].fill(0);
    received
}

/// Whether `mask` has all bits that another mask has of a block, as far as it is about what a port receives.
pub fn covers_received(mask: &Mask, id: BlockId, bits: &Block) -> bool {
    let words = if id == BlockId::Common { COMMON_WORDS } else { BLOCK_WORDS };
    let known = mask.0.block(id).words();
    let is_received = FRAME_BLOCKS.contains(&id) || TUNNEL_BLOCKS.contains(&id);
    !is_received || bits.words()[..words].iter().zip(known).all(|(bits, known)| bits & !known == 0)
}

/// Writes a mark into a key that is reset to its metadata. That is enough to look up a simple flow.
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
    use proptest::prelude::*;

    use super::*;

    fn mask(fields: &[(Field, u128)]) -> Mask {
        let mut mask = Mask::wildcard();
        fields.iter().for_each(|&(field, bits)| mask.add(field, bits));
        mask
    }

    /// The origin of a line leads to the pattern that the line was made with, and not to one of another port or with
    /// another offset in the frame.
    #[test]
    fn origins_lead_to_their_patterns() {
        let near = [(Field::DlDst, u128::MAX)];
        let far = [(Field::Ipv6Dst, u128::MAX), (Field::TcpDst, u128::MAX)];
        let (plan, other) = (Plan::new(1, &mask(&near)), Plan::new(1, &mask(&far)));
        let of_another_port = Plan::new(2, &mask(&near));
        let (mut same_place, mut elsewhere) = (0, 0);
        for template in Template::all() {
            let pattern = plan.pattern(template).expect("all frames have a destination");
            let origin = Origin::of(&pattern.salt.0);
            assert!(std::ptr::eq(plan.pattern_of(origin).unwrap(), pattern));
            assert!(of_another_port.pattern_of(origin).is_none());
            assert!(Plan::none().pattern_of(origin).is_none());
            let of_key = plan.line_of_key(&Key::new()).expect("a plan for one field");
            assert!(Origin::of(&of_key.0) != origin && plan.pattern_of(Origin::of(&of_key.0)).is_none());
            for pattern in plan.outline_patterns.as_deref().expect("a plan of a port") {
                assert!(pattern.origin != origin && plan.pattern_of(pattern.origin).is_none());
                assert!(pattern.origin != Origin(0) && pattern.origin != Origin::of(&of_key.0));
            }
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

    /// What is compared of a line says which words it was made of: flows may look at others later.
    #[test]
    fn lines_of_other_words_differ() {
        let plans = [Field::NwSrc, Field::NwDst, Field::UdpSrc].map(|field| Plan::new(1, &mask(&[(field, u128::MAX)])));
        let compared = |plan: &Plan| {
            let line = plan.line_of_key(&Key::new()).expect("few fields");
            let of_outlines = plan.outline_patterns.as_deref().expect("a plan of a port");
            let [words @ .., _, _] = line.0;
            (words, of_outlines.map(|pattern| pattern.signature))
        };
        let [a, b, c] = plans.each_ref().map(compared);
        assert!(a.0 != b.0 && a.0 != c.0);
        // Destination and ports are in one word of a key.
        assert_eq!(b.0, c.0);
        // A later fragment has no ports, so no word of it is compared.
        let of_udp = 1;
        assert!(a.1[of_udp] != c.1[of_udp] && b.1[of_udp] != c.1[of_udp]);
        // Both addresses of IPv4 are in one word.
        assert_eq!(a.1, b.1);
    }

    proptest! {
        /// Metadata takes no byte of a line that headers or other metadata need. Lines that tell connections have all of it, others what flows of
        /// their own stage match.
        #[test]
        fn metadata_has_a_place_of_its_own(
            headers: [u16; 2], tunnel in prop::collection::vec((0..5usize, any::<u32>()), 0..6), later in 0..6usize,
        ) {
            let fields = [Field::TunId, Field::TunSrc, Field::TunDst, Field::TunFlags, Field::TunIpv6Src];
            let mut masks = headers.map(|headers| Mask::clone(&crate::classify::frame_tests::mask(headers)));
            for (i, &(field, bits)) in tunnel.iter().enumerate() {
                masks[usize::from(i >= later)].add(fields[field], bits.into());
            }
            let [union, later] = masks;
            let plan = Plan::of_tunnel(40_000, &union, Some(&later));
            let tracked = plan.tracked.as_deref().unwrap();
            for template in Template::all() {
                let Some(pattern) = plan.pattern(template) else { continue };
                let mask = if pattern.tells_connections { tracked } else { &union };
                let mut taken = occupied_of(&template.window(mask).unwrap());
                for (part, place) in plan.metadata.iter().zip(pattern.places) {
                    prop_assert_eq!(place != NO_PLACE, pattern.tells_connections || part.is_own);
                    if place != NO_PLACE {
                        let bytes = &mut taken[place.into()..(place + part.len).into()];
                        prop_assert!(bytes.iter().all(|&is| !is), "{:?}", pattern.places);
                        bytes.fill(true);
                    }
                }
                let origin = Origin::of(&pattern.salt.0);
                if origin.has_core() {
                    let core = origin.core_begin() as usize;
                    let is_outside = |(at, &is): (usize, &bool)| is && !(core..core + CORE).contains(&at);
                    prop_assert!(!taken.iter().enumerate().any(is_outside), "what differs lies in the core");
                }
            }
        }
    }

    /// Where flows of later stages match more than a line holds, lines still have what those of the tunnel's own stage match.
    #[test]
    fn later_stages_do_not_take_the_place_of_the_own_one() {
        let mut later = Mask::wildcard();
        for field in [Field::TunIpv6Src, Field::TunIpv6Dst, Field::TunSrc, Field::TunDst, Field::TunTtl] {
            later.set_exact(field);
        }
        let union = mask(&[(Field::TunFlags, u128::MAX)]);
        let plan = Plan::of_tunnel(40_000, &union, Some(&later));
        assert!(plan.metadata.len() >= MAX_PARTS);
        for template in Template::all() {
            let pattern = plan.pattern(template).expect("a line for flows of the tunnel");
            assert!(!pattern.tells_connections && pattern.places[0] != NO_PLACE);
        }
    }

    /// Both addresses of Ethernet and the five-tuple over IPv4 leave room for what tells a tunnel's other end: in the place of the Ethernet type and
    /// of lengths, and behind the ports.
    #[test]
    fn lines_have_room_for_a_tunnel() {
        let mut union = Mask::wildcard();
        for field in [Field::DlSrc, Field::DlDst, Field::TunId, Field::TunSrc, Field::TunDst, Field::TunFlags] {
            union.set_exact(field);
        }
        let plan = Plan::of_tunnel(40_000, &union, Some(&Mask::wildcard()));
        let telling = |template: &Template| plan.pattern(*template).is_some_and(|pattern| pattern.tells_connections);
        assert_eq!(plan.metadata.len(), 4);
        // UDP and TCP, whatever their tags.
        assert_eq!(Template::all().filter(telling).count(), 8);
        // All that flows of OVN look at: an option with its header, and its place among others.
        union.set_exact(Field::TunTos);
        union.0.block_mut(BlockId::TunMeta0).0[..8].fill(0xff);
        union.0.block_mut(BlockId::TunMeta3).0[63] = 0xff;
        let plan = Plan::of_tunnel(40_000, &union, Some(&Mask::wildcard()));
        let telling = |template: &Template| plan.pattern(*template).is_some_and(|pattern| pattern.tells_connections);
        assert_eq!(Template::all().filter(telling).count(), 8);
        assert_eq!(Template::all().filter(|template| template.has_ports()).count(), TELLING);
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
