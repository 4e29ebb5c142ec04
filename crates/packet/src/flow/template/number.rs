//! Which template a frame has: one frame after the other, or those of a batch together.

use std::hint::select_unpredictable;

use super::super::extract::{MAX_VLANS, VlanLimit};
use super::{Kind, TAG, TAG_AT, Tagging, Template};
use crate::buffer::{BATCH_SIZE, Packet, prefetch};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
/// Type of a provider's VLAN tag (IEEE 802.1Q), which is followed by another tag in frames of a template.
const PROVIDER_TAG: u16 = 0x88a8;

// IP protocols, and extension headers of IPv6 (RFC 8200 section 4).
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
const DESTINATION: u8 = 60;

/// The smallest Ethernet type: smaller ones are lengths (IEEE 802.3 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;
/// Ethernet types behind which something is parsed that is in none of the templates: further tags, labels, NSH, PBB.
const PARSED: [u16; 6] = [TAG, PROVIDER_TAG, 0x8847, 0x8848, 0x894f, 0x88e7];
/// LLC and SNAP headers with organisation zero: an Ethernet type follows (RFC 1042).
pub(super) const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// ARP for Ethernet and IPv4 (RFC 826).
const ARP_HEAD: [u16; 3] = [1, 0x0800, 0x0604];

/// Least length of a TCP header, in words of four bytes (RFC 9293 3.1).
pub(super) const TCP_WORDS: u32 = 5;

/// The shortest frame of a template: Ethernet, IPv4 and UDP, or ARP. Shorter ones are extracted.
pub(super) const HEAD: usize = 42;

/// The number of a frame without a template, or a greater one.
const NO_TEMPLATE: u8 = 0x80;

impl Template {
    /// The template that the first bytes of a frame say it has. Its lengths are not looked at. Frames with more tags
    /// than are parsed have none. For frames that mostly have the template of those before: its branches are foreseen.
    #[inline(always)]
    pub fn of(frame: &[u8], vlan_limit: VlanLimit) -> Option<Template> {
        let head = frame.first_chunk::<HEAD>()?;
        let (tagging, l3) = tagging_of(head, vlan_limit);
        let kind = match word(head, l3 - 2) {
            IPV4 if head[l3] != 0x45 || word(head, l3 + 6) & 0x3fff != 0 => {
                return Template::of_number(unusual_ipv4(head, tagging, l3));
            }
            IPV4 => match head[l3 + 9] {
                UDP => Some(Kind::Udp),
                TCP => Some(Kind::Tcp),
                ICMP => Some(Kind::Icmp),
                _ => None,
            },
            IPV6 => match head[l3 + 6] {
                UDP => Some(Kind::UdpV6),
                TCP => Some(Kind::TcpV6),
                ICMPV6 => return Template::of_number(UNUSUAL_BY_TAGGING[usize::from(tagging)] | unusual(Kind::IcmpV6)),
                _ => return Template::of_number(unusual_ipv6(frame, tagging, l3)),
            },
            ARP | RARP => ([0, 2, 4].map(|at| word(head, l3 + at)) == ARP_HEAD).then_some(Kind::Arp),
            other => Template::of_other(other, &head[l3..]),
        };
        kind.map(|kind| Template(tagging * Kind::USUAL as u8 + kind as u8))
    }

    fn of_number(number: u8) -> Option<Template> {
        (usize::from(number) < Template::COUNT).then_some(Template(number))
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
}

/// The number of the [`Tagging`], and where what follows the tags and the Ethernet type begins. Without a branch.
#[inline(always)]
fn tagging_of(head: &[u8; HEAD], vlan_limit: VlanLimit) -> (u8, usize) {
    let outer = word(head, TAG_AT);
    let is_of_provider = outer == PROVIDER_TAG;
    let are_two =
        ((outer == TAG) | is_of_provider) & (word(head, TAG_AT + 4) == TAG) & (vlan_limit.tags() == MAX_VLANS);
    let tags = usize::from((outer == TAG) | are_two) + usize::from(are_two);
    ((tags + usize::from(are_two & is_of_provider)) as u8, 14 + 4 * tags)
}

#[inline(always)]
fn word(head: &[u8; HEAD], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// The number of an IPv4 packet that is not of a usual kind, without a branch.
#[inline(always)]
fn unusual_ipv4(head: &[u8; HEAD], tagging: u8, l3: usize) -> u8 {
    let (first, fragment) = (head[l3], word(head, l3 + 6));
    let is_bare = first == 0x45;
    // At most one of them.
    let is_extended = (first == 0x46) & (fragment & 0x3fff == 0);
    let is_first = is_bare & (fragment & 0x3fff == 0x2000);
    let is_later = is_bare & (fragment & 0x1fff != 0);
    let row = usize::from(is_extended) + 2 * usize::from(is_first) + 3 * usize::from(is_later);
    UNUSUAL_BY_TAGGING[usize::from(tagging)] | UNUSUAL_KINDS_V4[row][usize::from(head[l3 + 9])]
}

/// As [`unusual_ipv4`], of an IPv6 packet with what may be an extension header.
#[inline(always)]
fn unusual_ipv6(frame: &[u8], tagging: u8, l3: usize) -> u8 {
    // The IPv6 header, and what may be an extension header or is anything else.
    let Some(header) = frame.get(l3..).and_then(|behind| behind.first_chunk::<48>()) else { return NO_TEMPLATE };
    let (next, fragment) = (header[6], u16::from_be_bytes([header[42], header[43]]));
    let is_fragment = next == FRAGMENT;
    let is_option = (next == HOP_BY_HOP) | (next == ROUTING) | (next == DESTINATION);
    // At most one of them.
    let is_extended = is_option & (header[41] == 0);
    let is_first = is_fragment & (fragment == 1);
    let is_later = is_fragment & (fragment & 0xfff8 != 0);
    let row = usize::from(is_extended) + 2 * usize::from(is_first) + 3 * usize::from(is_later);
    UNUSUAL_BY_TAGGING[usize::from(tagging)] | UNUSUAL_KINDS_V6[row][usize::from(header[40])]
}

/// The first number of unusual kinds, by the tagging's.
static UNUSUAL_BY_TAGGING: [u8; Tagging::ALL.len()] =
    [Template::USUAL as u8, (Template::USUAL + Kind::UNUSUAL) as u8, NO_TEMPLATE, NO_TEMPLATE];

/// What unusual kinds have as numbers, counted from the first one.
const fn unusual(kind: Kind) -> u8 {
    kind as u8 - Kind::USUAL as u8
}

/// Unusual kinds by variant and protocol.
static UNUSUAL_KINDS_V4: [[u8; 256]; 4] = {
    let mut kinds = [[NO_TEMPLATE; 256]; 4];
    kinds[1][UDP as usize] = unusual(Kind::OptionUdp);
    kinds[1][TCP as usize] = unusual(Kind::OptionTcp);
    kinds[1][ICMP as usize] = unusual(Kind::OptionIcmp);
    kinds[1][IGMP as usize] = unusual(Kind::OptionIgmp);
    kinds[2][UDP as usize] = unusual(Kind::FirstUdp);
    kinds[2][TCP as usize] = unusual(Kind::FirstTcp);
    kinds[2][ICMP as usize] = unusual(Kind::FirstIcmp);
    kinds[3] = [unusual(Kind::Later); 256];
    kinds
};

/// Unusual kinds by variant and what may be the protocol behind an extension header.
static UNUSUAL_KINDS_V6: [[u8; 256]; 4] = {
    let mut kinds = [[NO_TEMPLATE; 256]; 4];
    kinds[1][UDP as usize] = unusual(Kind::ExtendedUdpV6);
    kinds[1][TCP as usize] = unusual(Kind::ExtendedTcpV6);
    kinds[1][ICMPV6 as usize] = unusual(Kind::ExtendedIcmpV6);
    kinds[2][UDP as usize] = unusual(Kind::FirstUdpV6);
    kinds[2][TCP as usize] = unusual(Kind::FirstTcpV6);
    kinds[2][ICMPV6 as usize] = unusual(Kind::FirstIcmpV6);
    kinds[3] = [unusual(Kind::LaterV6); 256];
    kinds
};

/// How many packets ahead a frame is prefetched.
const AHEAD: usize = 4;

/// The numbers of a batch's templates, as [`Template::of`] finds them, or numbers from [`Template::COUNT`] on. Frames of
/// different protocols may take turns, so there is no branch for a question whose answer is often another one: the
/// same is asked of all frames at once, for which the compiler makes vectors.
#[inline(always)]
pub fn numbers_of(packets: &[Packet], vlan_limit: VlanLimit) -> [u8; BATCH_SIZE] {
    // In place of frames that are too short.
    static NONE: [u8; HEAD] = [0; HEAD];
    let count = packets.len().min(BATCH_SIZE);
    let mut heads = [&NONE; BATCH_SIZE];
    // 1. What may be tags.
    let (mut outer, mut inner) = ([0; BATCH_SIZE], [0; BATCH_SIZE]);
    for i in 0..count {
        if let Some(later) = packets.get(i + AHEAD) {
            prefetch(later.data().as_ptr());
        }
        let head = packets[i].data().first_chunk::<HEAD>().unwrap_or(&NONE);
        heads[i] = head;
        (outer[i], inner[i]) = (little(head, TAG_AT), little(head, TAG_AT + 4));
    }
    // 2. The tagging, and where what follows the tags begins.
    let (mut taggings, mut l3) = ([0; BATCH_SIZE], [0; BATCH_SIZE]);
    for i in 0..BATCH_SIZE {
        (taggings[i], l3[i]) = lanes::tagging(outer[i], inner[i], vlan_limit);
    }
    // 3. The type, and words of what may be an IP header.
    let (mut types, mut words) = ([0; BATCH_SIZE], [[0; BATCH_SIZE]; 3]);
    for i in 0..count {
        let (head, at) = (heads[i], usize::from(l3[i]).min(HEAD - 10));
        types[i] = little(head, at - 2);
        [words[0][i], words[1][i], words[2][i]] = [0, 6, 8].map(|offset| little(head, at + offset));
    }
    // 4. The number, as far as these words say it.
    let (mut numbers, mut extended, mut others) = ([0; BATCH_SIZE], 0u32, 0u32);
    for i in 0..BATCH_SIZE {
        let (is_v4, is_v6) = (types[i] == IPV4.swap_bytes(), types[i] == IPV6.swap_bytes());
        let kind = if is_v4 { lanes::ipv4(words[0][i], words[1][i], words[2][i]) } else { lanes::ipv6(words[1][i]) };
        numbers[i] = lanes::number(kind, taggings[i]);
        extended |= u32::from(is_v6 & lanes::is_extended(words[1][i])) << i;
        others |= u32::from(!(is_v4 | is_v6)) << i;
    }
    // 5. What is asked of some packets only.
    each(extended, |i| numbers[i] = unusual_ipv6(packets[i].data(), taggings[i] as u8, usize::from(l3[i])));
    each(others & (u32::MAX >> (BATCH_SIZE - count.max(1))), |i| {
        numbers[i] = other(heads[i], types[i].swap_bytes(), taggings[i] as u8, usize::from(l3[i]));
    });
    numbers
}

/// Calls a function with the numbers of the bits that are set.
#[inline(always)]
fn each(mut set: u32, mut with: impl FnMut(usize)) {
    while set != 0 {
        with(set.trailing_zeros() as usize);
        set &= set - 1;
    }
}

/// Two bytes as a little-endian machine has them in memory, so that vectors need not be swapped.
#[inline(always)]
fn little(head: &[u8; HEAD], at: usize) -> u16 {
    u16::from_le_bytes([head[at], head[at + 1]])
}

/// The number of a frame that has this type, or length, and then no IP header.
#[inline(always)]
fn other(head: &[u8; HEAD], dl_type: u16, tagging: u8, l3: usize) -> u8 {
    let of_tagging = tagging * Kind::USUAL as u8;
    let rest = &head[l3.min(HEAD)..];
    if (dl_type == ARP) | (dl_type == RARP) {
        // Tags take turns with none: no branch.
        let is_arp = rest.first_chunk() == Some(&ARP_HEAD_BYTES);
        return select_unpredictable(is_arp, of_tagging + Kind::Arp as u8, NO_TEMPLATE);
    }
    Template::of_other(dl_type, rest).map_or(NO_TEMPLATE, |kind| of_tagging + kind as u8)
}

/// What is done for each lane of vectors: arithmetic, and choices among values that are there. The words of frames are
/// [`little`].
mod lanes {
    use super::*;

    /// Says that a kind is an unusual one, whose number is in the lower bits.
    const UNUSUAL: u16 = 0x100;
    /// No kind.
    const NONE: u16 = NO_TEMPLATE as u16;

    /// The number of the [`Tagging`], and where what follows the tags begins.
    #[inline(always)]
    pub fn tagging(outer: u16, inner: u16, vlan_limit: VlanLimit) -> (u16, u16) {
        let (is_tag, is_of_provider) = (outer == TAG.swap_bytes(), outer == PROVIDER_TAG.swap_bytes());
        let are_two = (is_tag | is_of_provider) & (inner == TAG.swap_bytes()) & (vlan_limit.tags() == MAX_VLANS);
        let tags = u16::from(is_tag | are_two) + u16::from(are_two);
        (tags + u16::from(are_two & is_of_provider), 14 + 4 * tags)
    }

    /// The kind of an IPv4 packet, by three words of its header.
    #[inline(always)]
    pub fn ipv4(first: u16, fragment: u16, protocol: u16) -> u16 {
        let (first, protocol) = (first & 0xff, (protocol >> 8) as u8);
        let (is_udp, is_tcp, is_icmp) = (protocol == UDP, protocol == TCP, protocol == ICMP);
        let of = |udp, tcp, icmp, other| {
            if is_udp {
                udp
            } else if is_tcp {
                tcp
            } else if is_icmp {
                icmp
            } else {
                other
            }
        };
        let igmp = if protocol == IGMP { of_unusual(Kind::OptionIgmp) } else { NONE };
        let plain = of(Kind::Udp as u16, Kind::Tcp as u16, Kind::Icmp as u16, NONE);
        let option = of(of_unusual(Kind::OptionUdp), of_unusual(Kind::OptionTcp), of_unusual(Kind::OptionIcmp), igmp);
        let first_fragment =
            of(of_unusual(Kind::FirstUdp), of_unusual(Kind::FirstTcp), of_unusual(Kind::FirstIcmp), NONE);
        let is_any = fragment & 0x3fff_u16.swap_bytes() != 0;
        let is_later = fragment & 0x1fff_u16.swap_bytes() != 0;
        let bare = if is_later {
            of_unusual(Kind::Later)
        } else if is_any {
            first_fragment
        } else {
            plain
        };
        let with_option = if is_any { NONE } else { option };
        if first == 0x45 {
            bare
        } else if first == 0x46 {
            with_option
        } else {
            NONE
        }
    }

    /// The kind of an IPv6 packet without an extension header, by the word with the next header's number.
    #[inline(always)]
    pub fn ipv6(next: u16) -> u16 {
        let next = next as u8;
        let icmp = if next == ICMPV6 { of_unusual(Kind::IcmpV6) } else { NONE };
        let tcp = if next == TCP { Kind::TcpV6 as u16 } else { icmp };
        if next == UDP { Kind::UdpV6 as u16 } else { tcp }
    }

    /// Whether an extension header follows, by the same word.
    #[inline(always)]
    pub fn is_extended(next: u16) -> bool {
        let next = next as u8;
        (next == HOP_BY_HOP) | (next == ROUTING) | (next == DESTINATION) | (next == FRAGMENT)
    }

    /// The number of the template, or [`NO_TEMPLATE`] or a greater one.
    #[inline(always)]
    pub fn number(kind: u16, tagging: u16) -> u8 {
        let usual = tagging * Kind::USUAL as u16 + kind;
        let base = if tagging < 2 { Template::USUAL as u16 + Kind::UNUSUAL as u16 * tagging } else { NONE };
        (if kind < UNUSUAL { usual } else { base | kind & (UNUSUAL - 1) }) as u8
    }

    const fn of_unusual(kind: Kind) -> u16 {
        UNUSUAL | unusual(kind) as u16
    }
}

/// What the head of an ARP packet is in memory.
const ARP_HEAD_BYTES: [u8; 6] = {
    let [[a, b], [c, d], [e, f]] = [ARP_HEAD[0].to_be_bytes(), ARP_HEAD[1].to_be_bytes(), ARP_HEAD[2].to_be_bytes()];
    [a, b, c, d, e, f]
};

const _: () = assert!(MAX_VLANS == VlanLimit::Two as usize);
const _: () = assert!(Kind::UNUSUAL == 16 && Template::USUAL.is_multiple_of(16), "the numbers are or-ed");
const _: () = assert!(Template::COUNT <= NO_TEMPLATE as usize);
