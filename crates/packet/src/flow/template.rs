//! Frames whose key can be read off a few words of the frame as it is.
//!
//! Most frames have one of a few header [`Template`]s: Ethernet, at most two VLAN tags, IPv4 without options
//! that is not a fragment or IPv6 without extension headers, then UDP or TCP, or ICMP in IPv4, each header
//! whole; or ARP; or a protocol of which nothing is parsed. For these [`extract`](super::extract()) only moves
//! bytes. So whether two frames of one template have equal keys under a mask can be told by comparing the
//! frames under another mask, made from it once: the [`Window`].
//!
//! A window also compares the bytes that make the frame one of its template. What remains to be checked
//! for each frame is that its lengths fit ([`Layout::fits`]).

use super::extract::VlanLimit;
use super::key::Mask;

/// Words of frame that a window compares.
pub const WINDOW_WORDS: usize = 6;
/// Bytes of frame that a window compares.
pub const WINDOW: usize = WINDOW_WORDS * 8;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
/// Type of a VLAN tag (IEEE 802.1Q).
pub const TAG: u16 = 0x8100;
/// Type of a provider's VLAN tag (IEEE 802.1Q), which is followed by another tag in frames of a template.
const PROVIDER_TAG: u16 = 0x88a8;
/// Where the outer tag lies, or the frame's type where there is no tag.
pub const TAG_AT: usize = 12;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The smallest Ethernet type: smaller ones are lengths (IEEE 802.3 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// Ethernet types behind which something is parsed that is in none of the templates: further tags, labels, NSH, PBB.
const PARSED: [u16; 6] = [TAG, PROVIDER_TAG, 0x8847, 0x8848, 0x894f, 0x88e7];
/// LLC and SNAP headers with organisation zero: an Ethernet type follows (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// ARP for Ethernet and IPv4 (RFC 826).
const ARP_HEAD: [u16; 3] = [1, 0x0800, 0x0604];

/// Which headers a frame has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Template(u8);

/// Where the headers of a template lie, in bytes from the start of the frame, and what they need. All of it can be
/// checked without a branch that depends on the template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Where the IP or ARP header begins, or whatever else comes behind the Ethernet type.
    pub l3: u32,
    /// VLAN tags.
    pub tags: u32,
    /// Where the TCP, UDP or ICMP header begins.
    pub l4: u32,
    /// Where the length field of the IP header lies.
    pub length: u32,
    /// Where the word with the TCP header's length and flags lies.
    pub tcp: u32,
    /// Bits of the length field; none where there is no such header.
    pub length_mask: u16,
    /// Bits of that word of TCP; none where there is no such header, and another word.
    pub tcp_mask: u16,
    /// Bits of the word at [`TAG_AT`] that must be those of [`TAG`]: all where no window has them.
    pub tag_mask: u16,
    /// Bytes of the IP packet that its length does not count.
    pub uncounted: u32,
    /// Least length of the IP packet, but for the TCP header.
    pub min_ip: u32,
    /// Least length of the TCP header, in words of four bytes.
    pub tcp_words: u32,
    /// Least length of the frame.
    pub min_frame: u32,
    /// Neither of the latter two masks has a bit.
    pub is_plain: bool,
}

/// What comes behind the Ethernet header and the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Udp,
    UdpV6,
    Tcp,
    TcpV6,
    /// A protocol of which nothing is parsed.
    Other,
    /// A length and then LLC without an Ethernet type.
    Llc,
    Arp,
    Icmp,
}

impl Kind {
    const ALL: [Kind; 8] =
        [Kind::Udp, Kind::UdpV6, Kind::Tcp, Kind::TcpV6, Kind::Other, Kind::Llc, Kind::Arp, Kind::Icmp];
}

const _: () = {
    let mut i = 0;
    while i < Kind::ALL.len() {
        assert!(Kind::ALL[i] as usize == i, "ALL is in the order of the numbers");
        i += 1;
    }
};

/// Which VLAN tags are before that. Two tags are told apart by the outer one's type, so that their types are the same
/// in all frames of a template.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tagging {
    None,
    One,
    Two,
    /// The outer one is a provider's.
    TwoOfProvider,
}

impl Tagging {
    const ALL: [Tagging; 4] = [Tagging::None, Tagging::One, Tagging::Two, Tagging::TwoOfProvider];
}

const _: () = {
    let mut i = 0;
    while i < Tagging::ALL.len() {
        assert!(Tagging::ALL[i] as usize == i, "ALL is in the order of the numbers");
        i += 1;
    }
};

impl Template {
    /// How many there are.
    pub const COUNT: usize = Kind::ALL.len() * Tagging::ALL.len();

    #[cfg(test)]
    const fn new(kind: Kind, tagging: Tagging) -> Template {
        Template((tagging as usize * Kind::ALL.len()) as u8 | kind as u8)
    }

    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Template> {
        (0..Template::COUNT as u8).map(Template)
    }

    /// Its number, below [`Template::COUNT`].
    #[inline(always)]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// Whether its frames have a header of TCP or UDP.
    pub const fn has_ports(self) -> bool {
        matches!(self.kind(), Kind::Udp | Kind::UdpV6 | Kind::Tcp | Kind::TcpV6)
    }

    /// How many VLAN tags its frames have.
    #[inline(always)]
    pub const fn tags(self) -> usize {
        match self.tagging() {
            Tagging::None => 0,
            Tagging::One => 1,
            Tagging::Two | Tagging::TwoOfProvider => 2,
        }
    }

    const fn tagging(self) -> Tagging {
        Tagging::ALL[self.0 as usize / Kind::ALL.len() % Tagging::ALL.len()]
    }

    const fn kind(self) -> Kind {
        Kind::ALL[self.0 as usize % Kind::ALL.len()]
    }

    /// A layout that no frame fits.
    pub const NO_LAYOUT: Layout = Layout {
        l3: 0,
        tags: 0,
        l4: 0,
        length: 0,
        tcp: 0,
        length_mask: 0,
        tcp_mask: 0,
        tag_mask: 0,
        uncounted: 0,
        min_ip: u32::MAX,
        tcp_words: 0,
        min_frame: TAG_AT as u32 + 2,
        is_plain: false,
    };

    /// Where the headers are.
    pub const fn layout(self) -> Layout {
        let l3 = 14 + 4 * self.tags() as u32;
        let (header, length, uncounted, length_mask) = match self.kind() {
            Kind::Udp | Kind::Tcp | Kind::Icmp => (20, 2, 0, u16::MAX),
            Kind::UdpV6 | Kind::TcpV6 => (40, 4, 40, u16::MAX),
            Kind::Arp => (28, 0, 0, 0),
            Kind::Other | Kind::Llc => (0, 0, 0, 0),
        };
        let is_tcp = matches!(self.kind(), Kind::Tcp | Kind::TcpV6);
        let behind = match self.kind() {
            Kind::Udp | Kind::UdpV6 | Kind::Icmp => 8,
            _ => 0,
        };
        let min_ip = if length_mask == 0 { 0 } else { header + behind };
        let (tcp_mask, tcp_words) = if is_tcp { (u16::MAX, TCP_WORDS) } else { (0, 0) };
        let whole = l3 + header + behind + 4 * tcp_words;
        Layout {
            l3,
            tags: self.tags() as u32,
            l4: l3 + header,
            length: l3 + length,
            tcp: if is_tcp { l3 + header + 12 } else { l3 + length },
            length_mask,
            tcp_mask,
            tag_mask: 0,
            uncounted,
            min_ip,
            tcp_words,
            // Shorter frames have no template, even where they have all headers.
            min_frame: if whole < HEAD { HEAD } else { whole },
            is_plain: !is_tcp,
        }
    }

    /// The template that the first bytes of a frame say it has. Its lengths are not looked at. Frames with more tags
    /// than are parsed have none. For frames that mostly have the template of those before: its branches are foreseen.
    #[inline(always)]
    pub fn of(frame: &[u8], vlan_limit: VlanLimit) -> Option<Template> {
        let head = frame.first_chunk::<{ HEAD as usize }>()?;
        let (tagging, l3) = tagging_of(head, vlan_limit);
        let kind = match word(head, l3 - 2) {
            IPV4 if head[l3] != 0x45 || word(head, l3 + 6) & 0x3fff != 0 => None,
            IPV4 => match head[l3 + 9] {
                UDP => Some(Kind::Udp),
                TCP => Some(Kind::Tcp),
                ICMP => Some(Kind::Icmp),
                _ => None,
            },
            IPV6 => match head[l3 + 6] {
                UDP => Some(Kind::UdpV6),
                TCP => Some(Kind::TcpV6),
                _ => None,
            },
            ARP | RARP => ([0, 2, 4].map(|at| word(head, l3 + at)) == ARP_HEAD).then_some(Kind::Arp),
            other => Template::of_other(other, &head[l3..]),
        };
        kind.map(|kind| Template(tagging * Kind::ALL.len() as u8 + kind as u8))
    }

    /// The number of the template that [`of`](Template::of) finds, or a number from [`COUNT`](Template::COUNT) on. Frames
    /// of different protocols may take turns, so there is no branch for a question whose answer is often another one.
    #[inline(always)]
    pub fn number_of(frame: &[u8], vlan_limit: VlanLimit) -> u8 {
        let Some(head) = frame.first_chunk::<{ HEAD as usize }>() else { return NO_TEMPLATE };
        let (tagging, l3) = tagging_of(head, vlan_limit);
        let of_tagging = tagging * Kind::ALL.len() as u8;
        let dl_type = word(head, l3 - 2);
        let parsed = ParsedType::at(dl_type);
        if parsed.dl_type != dl_type {
            let kind = Template::of_other(dl_type, &head[l3..]);
            return kind.map_or(NO_TEMPLATE, |kind| of_tagging + kind as u8);
        }
        let first = head[l3..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let is_other = first & parsed.mask != parsed.value;
        let kind = KINDS[usize::from(parsed.row)][usize::from(head[l3 + usize::from(parsed.protocol_at)])];
        (of_tagging + kind) | (u8::from(is_other) * NO_TEMPLATE)
    }

    /// What a frame is that has this type, or length, and then neither IP nor ARP.
    #[cold]
    fn of_other(kind: u16, l3: &[u8]) -> Option<Kind> {
        match kind {
            length if length < ETHERTYPE_MIN => (!l3.starts_with(&SNAP)).then_some(Kind::Llc),
            parsed if PARSED.contains(&parsed) => None,
            _ => Some(Kind::Other),
        }
    }

    /// What to compare of frames of this template, so that those that are equal have equal keys under
    /// `mask`. `None` where it would take bytes that lie too far from each other.
    pub fn window(self, mask: &Mask) -> Option<Window> {
        let (mut parse, mut layout) = (self.parse_bits(), self.layout());
        let mut bits = self.mask_bits(mask);
        bits.iter_mut().zip(&parse).for_each(|(bits, parse)| *bits |= parse);
        let mut first = bits.iter().position(|&b| b != 0)?;
        let end = FRAME - bits.iter().rev().position(|&b| b != 0)?;
        if end > WINDOW && end - first > WINDOW && self.tags() == 1 && first == TAG_AT {
            // Ports over IPv6 with a tag. Its type is looked at aside.
            parse[TAG_AT..][..2].fill(0);
            bits[TAG_AT..][..2].fill(0);
            (layout.tag_mask, layout.is_plain) = (u16::MAX, false);
            first = TAG_AT + 2;
        }
        // The start of the frame where that is enough: it needs the fewest bytes. Otherwise an even offset, so that it
        // can be noted in few bits.
        let at = if end <= WINDOW { 0 } else { first & !1 };
        let words = |bytes: &[u8; FRAME]| {
            let mut words = [0; WINDOW_WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes[at..].as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            words
        };
        let fixed = if self.is_fixed() { parse } else { [0; FRAME] };
        let window =
            || Window { at: at as u32, mask: words(&bits), parse: words(&parse), fixed: words(&fixed), layout };
        (end - at <= WINDOW).then(window)
    }

    /// The bytes that make a frame one of this template are the same in all of them.
    const fn is_fixed(self) -> bool {
        !matches!(self.kind(), Kind::Other | Kind::Llc | Kind::Arp)
    }

    /// Bits of which a frame has the values of another of this template only if it is one as well.
    fn parse_bits(self) -> [u8; FRAME] {
        let mut bits = [0; FRAME];
        let l3 = self.layout().l3 as usize;
        for tag in 0..self.tags() {
            bits[TAG_AT + 4 * tag..][..2].fill(0xff);
        }
        bits[l3 - 2..l3].fill(0xff);
        match self.kind() {
            Kind::UdpV6 | Kind::TcpV6 => bits[l3 + 6] = 0xff,
            Kind::Udp | Kind::Tcp | Kind::Icmp => {
                bits[l3] = 0xff;
                bits[l3 + 6..l3 + 8].copy_from_slice(&[0x3f, 0xff]);
                bits[l3 + 9] = 0xff;
            }
            // With the opcode, which counts only if it is below 256.
            Kind::Arp => bits[l3..l3 + 8].fill(0xff),
            Kind::Llc => bits[l3..l3 + 6].fill(0xff),
            Kind::Other => {}
        }
        bits
    }

    /// The bits of a frame that the bits of `mask` come from. What is the same in all frames of this
    /// template comes from none.
    fn mask_bits(self, mask: &Mask) -> [u8; FRAME] {
        let mut bits = [0; FRAME];
        let (common, l3_block) = (mask.0.common(), mask.0.l3());
        let Layout { l3, l4, .. } = self.layout();
        let (l3, l4) = (l3 as usize, l4 as usize);
        let mut put = |at: usize, mask: &[u8]| {
            bits[at..at + mask.len()].iter_mut().zip(mask).for_each(|(bits, mask)| *bits |= mask);
        };
        put(0, &common.dl_dst);
        put(6, &common.dl_src);
        for tag in 0..self.tags() {
            // The bit that says that there is a tag does not come from the frame.
            let tci = common.vlan[tag].tci.get() & !super::VLAN_PRESENT;
            put(TAG_AT + 4 * tag + 2, &tci.to_be_bytes());
        }
        match self.kind() {
            Kind::UdpV6 | Kind::TcpV6 => {
                put(l3, &(u32::from(common.nw_tos) << 20 | l3_block.ipv6_label.get() & 0xf_ffff).to_be_bytes());
                put(l3 + 7, &[common.nw_ttl]);
                put(l3 + 8, &l3_block.ipv6_src);
                put(l3 + 24, &l3_block.ipv6_dst);
            }
            Kind::Udp | Kind::Tcp | Kind::Icmp => {
                put(l3 + 1, &[common.nw_tos]);
                put(l3 + 8, &[common.nw_ttl]);
                put(l3 + 12, &common.nw_src.get().to_be_bytes());
                put(l3 + 16, &common.nw_dst.get().to_be_bytes());
            }
            Kind::Arp => {
                put(l3 + 8, &l3_block.arp_sha);
                put(l3 + 14, &common.nw_src.get().to_be_bytes());
                put(l3 + 18, &l3_block.arp_tha);
                put(l3 + 24, &common.nw_dst.get().to_be_bytes());
            }
            Kind::Other | Kind::Llc => {}
        }
        match self.kind() {
            Kind::Udp | Kind::UdpV6 | Kind::Tcp | Kind::TcpV6 => {
                put(l4, &common.tp_src.get().to_be_bytes());
                put(l4 + 2, &common.tp_dst.get().to_be_bytes());
            }
            // Type and code.
            Kind::Icmp => put(l4, &[common.tp_src.get() as u8, common.tp_dst.get() as u8]),
            Kind::Other | Kind::Llc | Kind::Arp => {}
        }
        if matches!(self.kind(), Kind::Tcp | Kind::TcpV6) {
            put(l4 + 12, &(common.tcp_flags.get() & 0x0fff).to_be_bytes());
        }
        bits
    }
}

/// The number of the [`Tagging`], and where what follows the tags and the Ethernet type begins. Without a branch.
#[inline(always)]
fn tagging_of(head: &[u8; HEAD as usize], vlan_limit: VlanLimit) -> (u8, usize) {
    let outer = word(head, TAG_AT);
    let is_of_provider = outer == PROVIDER_TAG;
    let are_two = ((outer == TAG) | is_of_provider) & (word(head, TAG_AT + 4) == TAG) & (vlan_limit.tags() == MAX_TAGS);
    let tags = usize::from((outer == TAG) | are_two) + usize::from(are_two);
    ((tags + usize::from(are_two & is_of_provider)) as u8, 14 + 4 * tags)
}

#[inline(always)]
fn word(head: &[u8; HEAD as usize], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// An Ethernet type behind which more is parsed in frames of some template. What there is to ask comes from tables: of
/// comparisons that depend on each other, the compiler makes branches.
#[derive(Clone, Copy)]
struct ParsedType {
    dl_type: u16,
    /// The row of [`KINDS`].
    row: u8,
    /// Offset of the protocol behind the type.
    protocol_at: u8,
    /// Bits of the first eight bytes behind the type, as they lie in memory, that are the same in all templates.
    mask: u64,
    /// Their values.
    value: u64,
}

/// Kinds by protocol, for IPv4, IPv6 and ARP, where the protocol does not matter; or [`NO_TEMPLATE`].
static KINDS: [[u8; 256]; 3] = {
    let (mut v4, mut v6) = ([NO_TEMPLATE; 256], [NO_TEMPLATE; 256]);
    (v4[UDP as usize], v6[UDP as usize]) = (Kind::Udp as u8, Kind::UdpV6 as u8);
    (v4[TCP as usize], v6[TCP as usize]) = (Kind::Tcp as u8, Kind::TcpV6 as u8);
    v4[ICMP as usize] = Kind::Icmp as u8;
    [v4, v6, [Kind::Arp as u8; 256]]
};

/// A bit that the number of no template has.
const NO_TEMPLATE: u8 = 0x40;

impl ParsedType {
    const TABLE: [ParsedType; 16] = {
        let mut table = [ParsedType { dl_type: 0, row: 0, protocol_at: 0, mask: 0, value: 0 }; 16];
        let mut i = 0;
        while i < table.len() {
            // Where there is none, a type of another place.
            table[i].dl_type = i as u16 ^ 1;
            i += 1;
        }
        // No options, and not a fragment.
        let (mask, value) = ([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff], [0x45, 0, 0, 0, 0, 0, 0, 0]);
        let v4 = ParsedType::new(IPV4, 0, 9, mask, value);
        let v6 = ParsedType::new(IPV6, 1, 6, [0; 8], [0; 8]);
        let [[a, b], [c, d], [e, f]] =
            [ARP_HEAD[0].to_be_bytes(), ARP_HEAD[1].to_be_bytes(), ARP_HEAD[2].to_be_bytes()];
        let (mask, value) = ([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], [a, b, c, d, e, f, 0, 0]);
        let all = [v4, v6, ParsedType::new(ARP, 2, 0, mask, value), ParsedType::new(RARP, 2, 0, mask, value)];
        i = 0;
        while i < all.len() {
            let at = ParsedType::place(all[i].dl_type);
            assert!(table[at].dl_type == at as u16 ^ 1, "each has a place of its own");
            table[at] = all[i];
            i += 1;
        }
        table
    };

    const fn new(dl_type: u16, row: u8, protocol_at: u8, mask: [u8; 8], value: [u8; 8]) -> ParsedType {
        ParsedType { dl_type, row, protocol_at, mask: u64::from_ne_bytes(mask), value: u64::from_ne_bytes(value) }
    }

    #[inline(always)]
    const fn place(dl_type: u16) -> usize {
        ((dl_type ^ dl_type >> 8) & 15) as usize
    }

    /// The one with this type, if there is one, or another.
    #[inline(always)]
    fn at(dl_type: u16) -> &'static ParsedType {
        static TABLE: [ParsedType; 16] = ParsedType::TABLE;
        &TABLE[ParsedType::place(dl_type)]
    }
}

/// The most VLAN tags of a frame that has a template.
const MAX_TAGS: usize = super::extract::MAX_VLANS;

const _: () = assert!(MAX_TAGS == VlanLimit::Two as usize && Kind::ALL.len().is_power_of_two());
const _: () = assert!(Template::COUNT <= NO_TEMPLATE as usize);

/// Padding is known up to so many bytes.
const PADDING: u32 = u16::MAX as u32;

/// Least length of a TCP header, in words of four bytes (RFC 9293 3.1).
const TCP_WORDS: u32 = 5;

/// The shortest frame of a template: Ethernet, IPv4 and UDP, or ARP. Shorter ones are extracted.
const HEAD: u32 = 42;

/// Bytes that any template and mask can want, and some behind them.
const FRAME: usize = 192;

/// The part of a frame that decides, for frames of one template, about a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Where in the frame it begins.
    pub at: u32,
    /// The bits to compare, as the bytes lie in memory.
    pub mask: [u64; WINDOW_WORDS],
    /// Those of them that make the frame one of the template.
    pub parse: [u64; WINDOW_WORDS],
    /// Those of these that are the same in all frames of the template.
    pub fixed: [u64; WINDOW_WORDS],
    /// Where the headers are, and what is to be looked at beside the window.
    pub layout: Layout,
}

impl Layout {
    /// Whether the lengths of a frame of this template and at least [`min_frame`](Layout::min_frame) bytes are as they
    /// must be. `length` is the word at [`length`](Layout::length), `tcp` what the mask leaves of the one at
    /// [`tcp`](Layout::tcp); both in host byte order.
    #[inline(always)]
    pub fn fits(&self, frame: u32, length: u16, tcp: u16) -> bool {
        // The upper four bits are the length of the TCP header in words of four bytes.
        let words = u32::from(tcp >> 12);
        let (size, padding) = self.sizes(frame, length);
        let least = self.min_ip + 4 * words;
        (words >= self.tcp_words) & (size >= least) & (padding <= PADDING)
    }

    /// As [`fits`](Layout::fits), where there is no TCP header.
    #[inline(always)]
    pub fn fits_without_tcp(&self, frame: u32, length: u16) -> bool {
        let (size, padding) = self.sizes(frame, length);
        size >= self.min_ip && padding <= PADDING
    }

    /// Of the IP packet, and of what follows it. The latter wraps where the frame is too short.
    #[inline(always)]
    fn sizes(&self, frame: u32, length: u16) -> (u32, u32) {
        let size = u32::from(length & self.length_mask) + self.uncounted;
        (size, frame.wrapping_sub(self.l3).wrapping_sub(size))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{BlockId, Key, VlanLimit, extract};
    use super::*;

    /// Frames near the edges of the templates.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let head = (0..5usize, 0..7usize, 0..4usize, any::<u8>(), 0..90usize);
        (head, proptest::collection::vec(any::<u8>(), 110), 0..24usize, 0..4u8).prop_map(
            |((tag, l3, proto, odd, size), mut f, cut, small)| {
                // Few values, so that frames are often equal in parts.
                f.iter_mut().for_each(|b| *b &= [1, 3, 0x1f, 0xff][usize::from(small)]);
                let at = [14, 18, 18, 22, 22][tag];
                if tag != 0 {
                    let is_provider = tag == 2 && odd & 7 == 0 || tag == 4;
                    f[12..14].copy_from_slice(&[[0x81, 0x00], [0x88, 0xa8]][usize::from(is_provider)]);
                }
                if tag > 2 {
                    let is_provider = odd & 31 == 8;
                    f[16..18].copy_from_slice(&[[0x81, 0x00], [0x88, 0xa8]][usize::from(is_provider)]);
                }
                let types = [
                    [0x08, 0x00],
                    [0x86, 0xdd],
                    [0x08, 0x00],
                    [0x86, 0xdd],
                    [0x08, 0x06],
                    [0x88, 0xcc],
                    [0, size as u8],
                ];
                f[at - 2..at].copy_from_slice(if odd & 15 == 1 {
                    &[[0x80, 0x35], [0x88, 0x47]][l3 % 2]
                } else {
                    &types[l3]
                });
                if l3 == 4 || l3 == 6 && odd & 3 == 1 {
                    let arp = [0, 1, 8, 0, 6, 4];
                    f[at..at + 6].copy_from_slice(if l3 == 4 && odd & 15 != 6 { &arp } else { &SNAP });
                    f[at + 6] &= if l3 == 4 { u8::from(odd & 15 == 7) } else { 0x0f };
                    f.truncate(f.len() - if odd & 0x10 == 0 { 0 } else { cut * 4 });
                    return f;
                }
                if l3 > 3 {
                    return f;
                }
                let proto = [17, 6, 17, 1][proto];
                let total = size as u16;
                if l3 % 2 == 0 {
                    f[at] = if odd & 15 == 2 { 0x46 } else { 0x45 };
                    f[at + 2..at + 4].copy_from_slice(&total.to_be_bytes());
                    f[at + 6..at + 8].copy_from_slice(&[if odd & 15 == 3 { 0x20 } else { odd & 0xc0 }, 0]);
                    f[at + 9] = proto;
                    f[at + 32] = if odd & 15 == 4 { 0x40 } else { 0x50 | odd >> 4 & 0x30 };
                } else {
                    f[at + 4..at + 6].copy_from_slice(&total.saturating_sub(20).to_be_bytes());
                    f[at + 6] = if odd & 15 == 5 { 43 } else { proto };
                    f[at + 52] = 0x50 | odd >> 4 & 0x30;
                }
                f.truncate(f.len() - if odd & 0x10 == 0 { 0 } else { cut * 4 });
                f
            },
        )
    }

    fn mask() -> impl Strategy<Value = Mask> {
        proptest::collection::vec((0..16usize, 0..2usize, prop_oneof![Just(u64::MAX), any::<u64>(), Just(0)]), 0..6)
            .prop_map(|words| {
                let mut mask = Key::new();
                for (at, block, bits) in words {
                    let block = [BlockId::Common, BlockId::L3][block];
                    mask.block_mut(block).words_mut()[at % 8] |= bits;
                }
                Mask(mask)
            })
    }

    fn compared(window: &Window, frame: &[u8], bits: &[u64; WINDOW_WORDS]) -> [u64; WINDOW_WORDS] {
        let mut padded = frame.to_vec();
        padded.resize(FRAME + WINDOW, 0xa5);
        std::array::from_fn(|i| {
            let at = window.at as usize + 8 * i;
            u64::from_ne_bytes(padded[at..at + 8].try_into().unwrap()) & bits[i]
        })
    }

    fn word(frame: &[u8], at: u32) -> u16 {
        u16::from_be_bytes(frame[at as usize..][..2].try_into().unwrap())
    }

    fn fits(layout: &Layout, frame: &[u8]) -> bool {
        let tcp = || word(frame, layout.tcp) & layout.tcp_mask;
        frame.len() >= layout.min_frame as usize
            && layout.fits(frame.len() as u32, word(frame, layout.length), tcp())
            && (word(frame, TAG_AT as u32) ^ TAG) & layout.tag_mask == 0
    }

    fn fitting(frame: &[u8], limit: VlanLimit) -> Option<Template> {
        Template::of(frame, limit).filter(|template| fits(&template.layout(), frame))
    }

    fn key(frame: &[u8], limit: VlanLimit) -> Key {
        let mut key = Key::new();
        extract(frame, &mut key, limit);
        key
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 4000 }))]

        /// What the fast path relies on: of two frames, the first of a template and its lengths right, the
        /// second equal in the window and its lengths right, both are of the template, and their keys are
        /// equal under the mask; and different under it where the windows differ.
        #[test]
        fn equal_windows_are_equal_keys(
            mut a in frame(), mut b in frame(), mask in mask(), same in 0..240usize,
            changes in proptest::collection::vec((12..50usize, any::<u8>()), 1..3),
            limit in prop::sample::select(VlanLimit::ALL.to_vec()),
        ) {
            // Often nearly the same frame.
            let n = same.min(a.len()).min(b.len());
            b[..n].copy_from_slice(&a[..n]);
            if same > 120 {
                b.clone_from(&a);
                for (at, to) in changes {
                    b.get_mut(at).into_iter().for_each(|byte| *byte ^= to);
                }
            }
            if same > 100 && same < 180 {
                std::mem::swap(&mut a, &mut b);
            }
            let number = Template::number_of(&a, limit);
            let of = Template::of(&a, limit).map(Template::number);
            prop_assert_eq!(of, Some(usize::from(number)).filter(|&number| number < Template::COUNT));
            let Some(template) = fitting(&a, limit) else { return Ok(()) };
            let Some(window) = template.window(&mask) else { return Ok(()) };
            let layout = window.layout;
            prop_assert!(fits(&layout, &a));
            let flags = word(&a, layout.tcp) & layout.tcp_mask & 0x0fff;
            prop_assert_eq!(flags, key(&a, limit).common().tcp_flags.get());
            if !fits(&layout, &b) {
                return Ok(());
            }
            let of_template = compared(&window, &a, &window.parse) == compared(&window, &b, &window.parse);
            let is_of_template = fitting(&b, limit) == Some(template);
            // Where the bits that are parsed are not the same in all frames of the template, some differ in
            // nothing else.
            let fixed = window.fixed == window.parse;
            prop_assert!(fixed || window.fixed == [0; WINDOW_WORDS]);
            prop_assert!(!of_template || is_of_template, "the parsed bits decide about the template");
            prop_assert!(!fixed || of_template == is_of_template);
            if of_template {
                let equal = compared(&window, &a, &window.mask) == compared(&window, &b, &window.mask);
                let (a, b) = (key(&a, limit), key(&b, limit));
                prop_assert!(!equal || a.matches(&b, &mask));
                prop_assert!(equal || !fixed || !a.matches(&b, &mask));
            }
        }
    }

    #[test]
    fn a_tag_before_the_window_is_looked_at() {
        let mut mask = Mask::wildcard();
        mask.set_exact(super::super::Field::TcpDst);
        let mut tagged = vec![2; 12];
        tagged.extend([0x81, 0, 0, 10, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        tagged.extend([0xfd; 32]);
        tagged.extend([0, 7, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        let template = fitting(&tagged, VlanLimit::One).unwrap();
        let window = template.window(&mask).unwrap();
        assert!(window.at as usize > TAG_AT);
        // The type of a tag is among every 0x300th, too.
        let step = if cfg!(miri) { 0x300 } else { 1 };
        for kind in (0..=u16::MAX).step_by(step) {
            let mut frame = tagged.clone();
            frame[TAG_AT..][..2].copy_from_slice(&kind.to_be_bytes());
            assert_eq!(compared(&window, &frame, &window.parse), compared(&window, &tagged, &window.parse));
            assert_eq!(
                fits(&window.layout, &frame),
                fitting(&frame, VlanLimit::One) == Some(template),
                "type {kind:#x}"
            );
        }
    }

    /// With a limit of one tag, the inner one is payload.
    #[test]
    fn two_tags_count_where_they_are_parsed() {
        let mut frame = vec![2; 12];
        frame.extend([0x88, 0xa8, 0, 10, 0x81, 0, 0, 11, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP]);
        frame.resize(60, 0);
        let template = fitting(&frame, VlanLimit::Two).unwrap();
        assert_eq!((template.tags(), template.kind() == Kind::Udp), (2, true));
        assert_eq!(Template::of(&frame, VlanLimit::One), None);
        // Another type of the outer tag is another template.
        frame[12..14].copy_from_slice(&[0x81, 0]);
        let other = fitting(&frame, VlanLimit::Two).unwrap();
        assert_eq!((other.tags(), other.kind() == Kind::Udp, other == template), (2, true, false));
        // The inner tag is not a provider's.
        frame[16..18].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(Template::of(&frame, VlanLimit::Two), None);
    }

    #[test]
    fn windows_exist_for_usual_masks() {
        use super::super::Field::*;
        let window = |kind: Kind, tags: Tagging, fields: &[super::super::Field]| {
            let mut mask = Mask::wildcard();
            fields.iter().for_each(|&f| mask.set_exact(f));
            Template::new(kind, tags).window(&mask)
        };
        let everything_v4 = [DlDst, DlSrc, VlanTci, NwTos, NwTtl, NwSrc, NwDst, UdpSrc, UdpDst];
        assert!(Tagging::ALL.into_iter().all(|tags| window(Kind::Udp, tags, &everything_v4).is_some()));
        assert!(window(Kind::Tcp, Tagging::None, &[&everything_v4[..], &[TcpFlags]].concat()).is_some());
        let tuple_v6 = [Ipv6Src, Ipv6Dst, UdpSrc, UdpDst];
        assert_eq!(window(Kind::UdpV6, Tagging::None, &tuple_v6).map(|w| w.at), Some(12));
        assert_eq!(window(Kind::UdpV6, Tagging::None, &[&tuple_v6[..], &[DlDst]].concat()), None);
        let tagged = window(Kind::UdpV6, Tagging::One, &[&tuple_v6[..], &[VlanTci]].concat()).unwrap();
        assert_eq!((tagged.at, tagged.layout.tag_mask), (14, 0xffff));
    }
}
