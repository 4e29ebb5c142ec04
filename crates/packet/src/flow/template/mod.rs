//! Frames whose key can be read off a few words of the frame as it is.
//!
//! Most frames have one of a few header [`Template`]s: Ethernet, at most two VLAN tags, IPv4 without options
//! that is not a fragment or IPv6 without extension headers, then UDP or TCP, or ICMP in IPv4, each header
//! whole; or ARP; or a protocol of which nothing is parsed. For these [`extract`](super::extract()) only moves
//! bytes. So whether two frames of one template have equal keys under a mask can be told by comparing the
//! frames under another mask, made from it once: the [`Window`].
//!
//! There are more templates for what is rarer, with at most one tag: one word of IPv4 options, as the router alert of IGMP
//! is; one short extension header of IPv6; fragments; ICMPv6. Of what is left, an [outline](super::outline) says where
//! headers are.
//!
//! A window also compares the bytes that make the frame one of its template. What remains to be checked
//! for each frame is that its lengths fit ([`Layout::fits`]), and now and then a word ([`Layout::is_right`]).

mod number;
#[cfg(test)]
mod tests;

use super::key::Mask;
pub use number::numbers_of;
use number::{HEAD, TCP_WORDS};

/// Words of frame that a window compares.
pub const WINDOW_WORDS: usize = 6;
/// Bytes of frame that a window compares.
pub const WINDOW: usize = WINDOW_WORDS * 8;

/// Type of a VLAN tag (IEEE 802.1Q).
pub const TAG: u16 = 0x8100;
/// Where the outer tag lies, or the frame's type where there is no tag.
pub const TAG_AT: usize = 12;
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
    /// Where a word lies that is looked at because no window tells what it must be; or any other.
    pub check_at: u32,
    /// Its bits that count, if there is such a word.
    pub check_mask: u16,
    /// What they are compared with.
    pub check_value: u16,
    /// Whether they must differ from that, or be equal.
    pub check_differs: bool,
    /// Bytes of the IP packet that its length does not count.
    pub uncounted: u32,
    /// Least length of the IP packet, but for the TCP header.
    pub min_ip: u32,
    /// Least length of the TCP header, in words of four bytes.
    pub tcp_words: u32,
    /// Least length of the frame.
    pub min_frame: u32,
    /// There is neither a TCP header nor a word to be looked at.
    pub is_plain: bool,
}

/// What comes behind the Ethernet header and the tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    // The rest is unusual.
    OptionUdp,
    OptionTcp,
    OptionIcmp,
    OptionIgmp,
    FirstUdp,
    FirstTcp,
    FirstIcmp,
    Later,
    IcmpV6,
    ExtendedUdpV6,
    ExtendedTcpV6,
    ExtendedIcmpV6,
    FirstUdpV6,
    FirstTcpV6,
    FirstIcmpV6,
    LaterV6,
}

/// How an IP packet of a template is different from most.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// One word of options (IPv4), or an extension header of eight bytes (IPv6) that is not a fragment's.
    Extended,
    /// The first fragment.
    First,
    /// A later fragment, of any protocol.
    Later,
}

/// The header behind that of IP, of which fields are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upper {
    None,
    Udp,
    Tcp,
    /// Type and code, one byte each: ICMP, ICMPv6, IGMP.
    Icmp,
}

/// What kind of IP packet.
#[derive(Clone, Copy)]
struct Ip {
    is_v6: bool,
    variant: Variant,
    upper: Upper,
}

impl Kind {
    const ALL: [Kind; 24] = [
        Kind::Udp,
        Kind::UdpV6,
        Kind::Tcp,
        Kind::TcpV6,
        Kind::Other,
        Kind::Llc,
        Kind::Arp,
        Kind::Icmp,
        Kind::OptionUdp,
        Kind::OptionTcp,
        Kind::OptionIcmp,
        Kind::OptionIgmp,
        Kind::FirstUdp,
        Kind::FirstTcp,
        Kind::FirstIcmp,
        Kind::Later,
        Kind::IcmpV6,
        Kind::ExtendedUdpV6,
        Kind::ExtendedTcpV6,
        Kind::ExtendedIcmpV6,
        Kind::FirstUdpV6,
        Kind::FirstTcpV6,
        Kind::FirstIcmpV6,
        Kind::LaterV6,
    ];

    /// The first so many are usual: there are templates with each tagging.
    const USUAL: usize = 8;

    /// How many are not: there are templates with at most one tag.
    const UNUSUAL: usize = Kind::ALL.len() - Kind::USUAL;

    /// What kind of IP packet it is, if it is one.
    const fn ip(self) -> Option<Ip> {
        use Upper::{Icmp, None, Tcp, Udp};
        use Variant::{Extended, First, Later, Plain};
        let (is_v6, variant, upper) = match self {
            Kind::Other | Kind::Llc | Kind::Arp => return Option::None,
            Kind::Udp => (false, Plain, Udp),
            Kind::Tcp => (false, Plain, Tcp),
            Kind::Icmp => (false, Plain, Icmp),
            Kind::OptionUdp => (false, Extended, Udp),
            Kind::OptionTcp => (false, Extended, Tcp),
            Kind::OptionIcmp | Kind::OptionIgmp => (false, Extended, Icmp),
            Kind::FirstUdp => (false, First, Udp),
            Kind::FirstTcp => (false, First, Tcp),
            Kind::FirstIcmp => (false, First, Icmp),
            Kind::Later => (false, Later, None),
            Kind::UdpV6 => (true, Plain, Udp),
            Kind::TcpV6 => (true, Plain, Tcp),
            Kind::IcmpV6 => (true, Plain, Icmp),
            Kind::ExtendedUdpV6 => (true, Extended, Udp),
            Kind::ExtendedTcpV6 => (true, Extended, Tcp),
            Kind::ExtendedIcmpV6 => (true, Extended, Icmp),
            Kind::FirstUdpV6 => (true, First, Udp),
            Kind::FirstTcpV6 => (true, First, Tcp),
            Kind::FirstIcmpV6 => (true, First, Icmp),
            Kind::LaterV6 => (true, Later, None),
        };
        Some(Ip { is_v6, variant, upper })
    }
}

const _: () = {
    let mut i = 0;
    while i < Kind::ALL.len() {
        assert!(Kind::ALL[i] as usize == i, "ALL is in the order of the numbers");
        i += 1;
    }
};

impl Ip {
    /// Bytes of its headers, before the upper one.
    const fn header(self) -> u32 {
        match (self.is_v6, self.variant) {
            (false, Variant::Extended) => 24,
            (false, _) => 20,
            (true, Variant::Plain) => 40,
            (true, _) => 48,
        }
    }
}

/// Which VLAN tags are before that. Two tags are told apart by the outer one's type, so that their types are the same
/// in all frames of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// How many there are of usual kinds.
    const USUAL: usize = Kind::USUAL * Tagging::ALL.len();

    /// How many there are.
    pub const COUNT: usize = Template::USUAL + 2 * Kind::UNUSUAL;

    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Template> {
        (0..Template::COUNT as u8).map(Template)
    }

    /// Its number, below [`Template::COUNT`].
    #[inline(always)]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// Whether its frames have a header of TCP or UDP, and nothing unusual before it.
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
        let number = self.0 as usize;
        if number < Template::USUAL {
            Tagging::ALL[number / Kind::USUAL]
        } else {
            Tagging::ALL[(number - Template::USUAL) / Kind::UNUSUAL % 2]
        }
    }

    const fn kind(self) -> Kind {
        let number = self.0 as usize;
        if number < Template::USUAL {
            Kind::ALL[number % Kind::USUAL]
        } else {
            Kind::ALL[Kind::USUAL + (number - Template::USUAL) % Kind::UNUSUAL]
        }
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
        check_at: TAG_AT as u32,
        check_mask: 0,
        check_value: 0,
        check_differs: false,
        uncounted: 0,
        min_ip: u32::MAX,
        tcp_words: 0,
        min_frame: TAG_AT as u32 + 2,
        is_plain: false,
    };

    /// Where the headers are.
    pub const fn layout(self) -> Layout {
        let l3 = 14 + 4 * self.tags() as u32;
        let none = Layout { l3, tags: self.tags() as u32, length: l3, tcp: l3, min_ip: 0, ..Template::NO_LAYOUT };
        let Some(ip) = self.kind().ip() else {
            let header = if matches!(self.kind(), Kind::Arp) { 28 } else { 0 };
            return Layout { l4: l3 + header, min_frame: min_frame(l3 + header), is_plain: true, ..none };
        };
        let header = ip.header();
        let (behind, tcp_words) = match ip.upper {
            Upper::Udp | Upper::Icmp => (8, 0),
            Upper::Tcp => (0, TCP_WORDS),
            Upper::None => (0, 0),
        };
        let (length, uncounted) = if ip.is_v6 { (l3 + 4, 40) } else { (l3 + 2, 0) };
        let layout = Layout {
            l4: l3 + header,
            length,
            tcp: if tcp_words > 0 { l3 + header + 12 } else { length },
            length_mask: u16::MAX,
            tcp_mask: if tcp_words > 0 { u16::MAX } else { 0 },
            uncounted,
            min_ip: header + behind,
            tcp_words,
            min_frame: min_frame(l3 + header + behind + 4 * tcp_words),
            is_plain: tcp_words == 0,
            ..none
        };
        match ip.variant {
            // The offset is not zero.
            Variant::Later => {
                let (check_at, check_mask) = if ip.is_v6 { (l3 + 42, 0xfff8) } else { (l3 + 6, 0x1fff) };
                Layout { check_at, check_mask, check_differs: true, is_plain: false, ..layout }
            }
            _ => layout,
        }
    }

    /// What to compare of frames of this template, so that those that are equal have equal keys under
    /// `mask`. `None` where it would take bytes that lie too far from each other.
    pub fn window(self, mask: &Mask) -> Option<Window> {
        let (mut parse, mut layout) = (self.parse_bits(), self.layout());
        if !self.has_fields(mask) {
            return None;
        }
        let mut bits = self.mask_bits(mask);
        bits.iter_mut().zip(&parse).for_each(|(bits, parse)| *bits |= parse);
        let mut first = bits.iter().position(|&b| b != 0)?;
        let end = FRAME - bits.iter().rev().position(|&b| b != 0)?;
        let has_check = layout.check_mask != 0;
        if end > WINDOW && end - first > WINDOW && self.tags() == 1 && first == TAG_AT && !has_check {
            // Ports over IPv6 with a tag. Its type is looked at aside.
            parse[TAG_AT..][..2].fill(0);
            bits[TAG_AT..][..2].fill(0);
            (layout.check_mask, layout.check_value, layout.is_plain) = (u16::MAX, TAG, false);
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
        // Extension headers are of several types.
        matches!(self.kind().ip(), Some(ip) if !(ip.is_v6 && matches!(ip.variant, Variant::Extended)))
    }

    /// Whether its frames are told by their window, or by what is looked at aside, for every field that `mask` has: what
    /// there is of extension headers and of neighbour discovery is not.
    fn has_fields(self, mask: &Mask) -> bool {
        let Some(Ip { is_v6: true, variant, upper }) = self.kind().ip() else { return true };
        let (l3, encap) = (mask.0.l3(), mask.0.encap());
        let discovers = l3.nd_target != [0; 16]
            || (l3.arp_sha, l3.arp_tha) != ([0; 6], [0; 6])
            || encap.nd_reserved.get() != 0
            || encap.nd_options_type != 0;
        (encap.ipv6_exthdr.get() == 0 || variant == Variant::Plain) && !(discovers && upper == Upper::Icmp)
    }

    /// Bits of which a frame has the values of another of this template only if it is one as well.
    fn parse_bits(self) -> [u8; FRAME] {
        let mut bits = [0; FRAME];
        let l3 = self.layout().l3 as usize;
        for tag in 0..self.tags() {
            bits[TAG_AT + 4 * tag..][..2].fill(0xff);
        }
        bits[l3 - 2..l3].fill(0xff);
        match (self.kind(), self.kind().ip()) {
            (_, Some(ip)) if ip.is_v6 => {
                bits[l3 + 6] = 0xff;
                match ip.variant {
                    Variant::Extended => bits[l3 + 40..l3 + 42].fill(0xff),
                    Variant::First => [l3 + 40, l3 + 42, l3 + 43].into_iter().for_each(|at| bits[at] = 0xff),
                    Variant::Plain | Variant::Later => {}
                }
            }
            (_, Some(ip)) => {
                bits[l3] = 0xff;
                if ip.variant != Variant::Later {
                    bits[l3 + 6..l3 + 8].copy_from_slice(&[0x3f, 0xff]);
                    bits[l3 + 9] = 0xff;
                }
            }
            // With the opcode, which counts only if it is below 256.
            (Kind::Arp, _) => bits[l3..l3 + 8].fill(0xff),
            (Kind::Llc, _) => bits[l3..l3 + 6].fill(0xff),
            _ => {}
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
        let Some(ip) = self.kind().ip() else {
            if self.kind() == Kind::Arp {
                put(l3 + 8, &l3_block.arp_sha);
                put(l3 + 14, &common.nw_src.get().to_be_bytes());
                put(l3 + 18, &l3_block.arp_tha);
                put(l3 + 24, &common.nw_dst.get().to_be_bytes());
            }
            return bits;
        };
        if ip.is_v6 {
            put(l3, &(u32::from(common.nw_tos) << 20 | l3_block.ipv6_label.get() & 0xf_ffff).to_be_bytes());
            put(l3 + 7, &[common.nw_ttl]);
            put(l3 + 8, &l3_block.ipv6_src);
            put(l3 + 24, &l3_block.ipv6_dst);
        } else {
            put(l3 + 1, &[common.nw_tos]);
            put(l3 + 8, &[common.nw_ttl]);
            put(l3 + 12, &common.nw_src.get().to_be_bytes());
            put(l3 + 16, &common.nw_dst.get().to_be_bytes());
            if ip.variant == Variant::Later {
                put(l3 + 9, &[common.nw_proto]);
            }
        }
        match ip.upper {
            Upper::Udp | Upper::Tcp => {
                put(l4, &common.tp_src.get().to_be_bytes());
                put(l4 + 2, &common.tp_dst.get().to_be_bytes());
            }
            Upper::Icmp => put(l4, &[common.tp_src.get() as u8, common.tp_dst.get() as u8]),
            Upper::None => {}
        }
        if ip.upper == Upper::Tcp {
            put(l4 + 12, &(common.tcp_flags.get() & 0x0fff).to_be_bytes());
        }
        bits
    }
}

/// The least length of frames whose headers have so many bytes. Shorter frames have no template, even where they have
/// all headers.
const fn min_frame(headers: u32) -> u32 {
    if headers < HEAD as u32 { HEAD as u32 } else { headers }
}

/// Padding is known up to so many bytes.
const PADDING: u32 = u16::MAX as u32;

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

    /// Whether the word at [`check_at`](Layout::check_at), in host byte order, is as it must be.
    #[inline(always)]
    pub fn is_right(&self, word: u16) -> bool {
        ((word ^ self.check_value) & self.check_mask != 0) == self.check_differs
    }

    /// Of the IP packet, and of what follows it. The latter wraps where the frame is too short.
    #[inline(always)]
    fn sizes(&self, frame: u32, length: u16) -> (u32, u32) {
        let size = u32::from(length & self.length_mask) + self.uncounted;
        (size, frame.wrapping_sub(self.l3).wrapping_sub(size))
    }
}
