//! Where the headers of an IP packet are that has none of the [templates](super::template).
//!
//! Options, fragments, an extension header of IPv6, tags of other types, and protocols that are rare have the fields of a
//! key at other offsets than most packets. An [`Outline`] has these offsets, and those few values that do not lie in the
//! frame as they are in the key. It is found without a branch that depends on the headers, because packets of different
//! kinds may alternate unpredictably. [`OutlineKind::words`] says which words of the frame have to be compared so
//! that packets that are equal in them have equal keys under a mask.
//!
//! Packets with more than one extension header, and those whose headers are not whole, have no outline.

use std::hint::select_unpredictable;

use super::extract::VlanLimit;
use super::key::Mask;
use super::{VLAN_PRESENT, frag};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Types of VLAN tags (IEEE 802.1Q).
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Where the outer tag lies, or the frame's type where there is no tag.
const TAG_AT: usize = 12;
/// Bytes of Ethernet and IPv4 headers: no frame with an outline is shorter.
const MIN_FRAME: usize = 34;

/// IPv6 extension headers (RFC 8200 section 4).
mod extension {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTH: u8 = 51;
    pub const DESTINATION: u8 = 60;
}

/// What the fields behind the IP header are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Upper {
    /// None: a later fragment, a header that is not whole, or a protocol of which nothing is parsed.
    None,
    /// Two ports.
    Ports,
    /// Two ports, and flags.
    Tcp,
    /// Type and code, one byte each.
    TypeAndCode,
}

/// A protocol: its fields, and the least length of its header.
#[derive(Clone, Copy)]
struct Protocol {
    upper: Upper,
    least: u8,
}

/// By number (IANA protocol numbers).
static PROTOCOLS: [Protocol; 256] = {
    let mut all = [Protocol { upper: Upper::None, least: 0 }; 256];
    // ICMP, IGMP, ICMPv6.
    (all[1], all[2], all[58]) = {
        let icmp = Protocol { upper: Upper::TypeAndCode, least: 8 };
        (icmp, icmp, icmp)
    };
    all[6] = Protocol { upper: Upper::Tcp, least: 20 };
    all[17] = Protocol { upper: Upper::Ports, least: 8 };
    // SCTP (RFC 9260 section 3.1).
    all[132] = Protocol { upper: Upper::Ports, least: 12 };
    all
};

/// The bits of TCP flags in the word that has them, by the kind's number.
static FLAGS: [u16; OutlineKind::COUNT] = {
    let mut flags = [0; OutlineKind::COUNT];
    flags[Upper::Tcp as usize] = 0x0fff;
    flags[OutlineKind::UPPER as usize + Upper::Tcp as usize] = 0x0fff;
    flags
};

/// Least length of a TCP header, in words of four bytes (RFC 9293 section 3.1).
const TCP_WORDS: u32 = 5;

/// IP version and upper protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutlineKind(u8);

impl OutlineKind {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// How many there are for each version.
    const UPPER: u8 = 4;

    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = OutlineKind> {
        (0..OutlineKind::COUNT as u8).map(OutlineKind)
    }

    /// Its number, below [`COUNT`](OutlineKind::COUNT).
    #[inline(always)]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    fn is_ipv6(self) -> bool {
        self.0 >= OutlineKind::UPPER
    }

    fn upper(self) -> Upper {
        [Upper::None, Upper::Ports, Upper::Tcp, Upper::TypeAndCode][usize::from(self.0 % OutlineKind::UPPER)]
    }
}

/// Where a header begins that the offset of a word counts from: its index in [`Outline::starts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Start {
    /// The frame.
    Frame,
    /// The IP header.
    L3,
    /// The header behind it.
    L4,
}

/// Eight bytes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// What the offset counts from.
    pub start: Start,
    /// The offset.
    pub at: u8,
    /// The bits to compare, as the bytes lie in memory.
    pub mask: u64,
}

impl Word {
    /// Of which nothing is compared.
    pub const NONE: Word = Word { start: Start::Frame, at: 0, mask: 0 };
}

/// Most words of a frame that are compared, beside [`Outline::values`].
pub const WORDS: usize = 5;

/// What to compare of packets of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutlineWords {
    /// Words of the frame. Those with bits lie within headers that any packet of the kind has.
    pub words: [Word; WORDS],
    /// The bits of [`Outline::values`] to compare.
    pub values: u64,
    /// Says which words these are, in bits that no values have: lines that were made of other words differ in it.
    pub signature: u64,
}

// The lowest bit of each part of the values, and of the signature above them.
const INNER_TAG: u32 = 16;
const TCP_FLAGS: u32 = 32;
const FRAGMENT: u32 = 44;
const PROTOCOL: u32 = 46;
const SIGNATURE: u32 = 54;

/// Where the headers of a packet are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outline {
    /// Which fields it has.
    pub kind: OutlineKind,
    /// Offsets of headers, by [`Start`].
    pub starts: [u32; 3],
    /// VLAN tags, TCP flags, fragment bits and protocol.
    pub values: u64,
    /// TCP flags.
    pub tcp_flags: u16,
}

/// What comes before the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The IP version, by the Ethernet type. Neither where it is another protocol.
    pub is_ipv4: bool,
    /// See above.
    pub is_ipv6: bool,
    l3: u32,
    /// The tags' part of the values.
    tags: u64,
}

impl Envelope {
    /// Before neither.
    pub const NONE: Envelope = Envelope { is_ipv4: false, is_ipv6: false, l3: 0, tags: 0 };

    /// That of a frame; VLAN tags beyond `vlan_limit` are payload.
    #[inline(always)]
    pub fn of(frame: &[u8], vlan_limit: VlanLimit) -> Option<Envelope> {
        let head = frame.first_chunk::<MIN_FRAME>()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let is_tag = |at: usize| (word(at) == TAGS[0]) | (word(at) == TAGS[1]);
        let outer = is_tag(TAG_AT);
        let inner = outer & is_tag(TAG_AT + 4) & (vlan_limit.tags() > 1);
        let tci = |at: usize, is_there| select_unpredictable(is_there, u64::from(word(at + 2) | VLAN_PRESENT), 0);
        let l3 = 14 + 4 * (usize::from(outer) + usize::from(inner));
        let dl_type = word(l3 - 2);
        Some(Envelope {
            is_ipv4: dl_type == IPV4,
            is_ipv6: dl_type == IPV6,
            l3: l3 as u32,
            tags: tci(TAG_AT, outer) | tci(TAG_AT + 4, inner) << INNER_TAG,
        })
    }
}

/// What follows an IP header and its options or extension header.
struct Payload {
    protocol: u8,
    nw_frag: u8,
    at: u32,
    /// First byte behind the packet: what follows in the frame is padding.
    end: u32,
}

impl Outline {
    /// That of an IPv4 packet, if its header is valid as an extraction has it (RFC 791 section 3.1).
    #[inline(always)]
    pub fn of_ipv4(frame: &[u8], envelope: Envelope) -> Option<Outline> {
        let header = frame.get(envelope.l3 as usize..)?.first_chunk::<20>()?;
        let size = frame.len() as u32 - envelope.l3;
        let length = u32::from(header[0] & 0xf) * 4;
        let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
        let is_long_enough = (length >= 20) & (length <= total) & (total <= size);
        if !(is_long_enough & (size.wrapping_sub(total) <= u32::from(u16::MAX))) {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let (is_any, is_later) = (fragment & 0x3fff != 0, fragment & 0x1fff != 0);
        let payload = Payload {
            protocol: header[9],
            nw_frag: fragment_bits(is_any, is_later),
            at: envelope.l3 + length,
            end: envelope.l3 + total,
        };
        Outline::new(frame, envelope, 0, payload)
    }

    /// That of an IPv6 packet with at most one extension header, if these are whole (RFC 8200 sections 3 and 4).
    #[inline(always)]
    pub fn of_ipv6(frame: &[u8], envelope: Envelope) -> Option<Outline> {
        // With what may be an extension header.
        let header = frame.get(envelope.l3 as usize..)?.first_chunk::<48>()?;
        let end = envelope.l3 + 40 + u32::from(u16::from_be_bytes([header[4], header[5]]));
        let (size, next) = (frame.len() as u32, header[6]);
        let is_fragment = next == extension::FRAGMENT;
        let is_extended = is_fragment | is_option(next);
        let length = 8 + 8 * select_unpredictable(is_fragment, 0, u32::from(header[41]));
        let at = envelope.l3 + 40 + select_unpredictable(is_extended, length, 0);
        let fragment = select_unpredictable(is_fragment, u16::from_be_bytes([header[42], header[43]]), 0);
        let (is_any, is_later) = (fragment != 0, fragment & 0xfff8 != 0);
        // A later fragment keeps the number of its header: what is behind that cannot be known.
        let protocol = select_unpredictable(is_extended & !is_later, header[40], next);
        let is_one = is_later | !(is_option(protocol) | (protocol == extension::FRAGMENT));
        let is_whole = (at <= end) & (end <= size) & (size.wrapping_sub(end) <= u32::from(u16::MAX));
        if !(is_whole & is_one & (protocol != extension::AUTH)) {
            return None;
        }
        let payload = Payload { protocol, nw_frag: fragment_bits(is_any, is_later), at, end };
        Outline::new(frame, envelope, OutlineKind::UPPER, payload)
    }

    /// `at` of the payload is not behind its end, and that is not behind the frame's. `version`: the first of the
    /// version's kinds.
    #[inline(always)]
    fn new(frame: &[u8], envelope: Envelope, version: u8, payload: Payload) -> Option<Outline> {
        let Payload { protocol, nw_frag, at, end } = payload;
        let Protocol { upper, least } = PROTOCOLS[usize::from(protocol)];
        let size = end - at;
        // The word with the TCP header's length, or any other.
        let word_at = (at as usize + 12).min(frame.len() - 2);
        let word = u16::from_be_bytes(*frame.get(word_at..)?.first_chunk()?);
        let words = u32::from(word >> 12);
        let is_tcp = upper as u8 == Upper::Tcp as u8;
        let is_whole = (size >= u32::from(least)) & (!is_tcp | ((words >= TCP_WORDS) & (4 * words <= size)));
        let is_parsed = is_whole & (nw_frag & frag::LATER == 0);
        let kind = OutlineKind(version + select_unpredictable(is_parsed, upper as u8, Upper::None as u8));
        // From a table, not by a question, which the compiler would make a branch of.
        let tcp_flags = word & FLAGS[kind.number() % FLAGS.len()];
        let values = envelope.tags
            | u64::from(tcp_flags) << TCP_FLAGS
            | u64::from(nw_frag) << FRAGMENT
            | u64::from(protocol) << PROTOCOL;
        Some(Outline { kind, starts: [0, envelope.l3, at], values, tcp_flags })
    }
}

#[inline(always)]
fn is_option(next: u8) -> bool {
    (next == extension::HOP_BY_HOP) | (next == extension::ROUTING) | (next == extension::DESTINATION)
}

#[inline(always)]
fn fragment_bits(is_any: bool, is_later: bool) -> u8 {
    (u8::from(is_any) * frag::ANY) | (u8::from(is_later) * frag::LATER)
}

impl OutlineKind {
    /// What to compare of packets of this kind, so that those that are equal have equal keys under `mask`. `None` where
    /// it would take too many words, or fields that an outline does not have.
    pub fn words(self, mask: &Mask) -> Option<OutlineWords> {
        let (common, l3) = (mask.0.common(), mask.0.l3());
        if common.vlan.iter().any(|tag| tag.tpid.get() != 0) || self.is_ipv6() && !self.has_fields_of_ipv6(mask) {
            return None;
        }
        let word = |start, at, bytes: [u8; 8]| Word { start, at, mask: u64::from_ne_bytes(bytes) };
        let [[a, b, c, d, e, f], [g, h, i, j, k, l]] = [common.dl_dst, common.dl_src];
        let (source, destination) = (common.nw_src.get(), common.nw_dst.get());
        let [first, second] = match self.upper() {
            Upper::None => [[0; 2]; 2],
            Upper::Ports | Upper::Tcp => [common.tp_src, common.tp_dst].map(|port| port.get().to_be_bytes()),
            Upper::TypeAndCode => [[common.tp_src.get() as u8, common.tp_dst.get() as u8], [0; 2]],
        };
        let upper = [first[0], first[1], second[0], second[1], 0, 0, 0, 0];
        let mut all = vec![
            word(Start::Frame, 0, [a, b, c, d, e, f, g, h]),
            word(Start::Frame, 4, [0, 0, 0, 0, i, j, k, l]),
            word(Start::L4, 0, upper),
        ];
        if self.is_ipv6() {
            let label = (u32::from(common.nw_tos) << 20 | l3.ipv6_label.get() & 0xf_ffff).to_be_bytes();
            all.push(word(Start::L3, 0, [label[0], label[1], label[2], label[3], 0, 0, 0, common.nw_ttl]));
            let addresses = [(8, l3.ipv6_src), (24, l3.ipv6_dst)];
            for (at, address) in addresses {
                let (halves, _) = address.as_chunks::<8>();
                all.extend(halves.iter().zip([at, at + 8]).map(|(half, at)| word(Start::L3, at, *half)));
            }
        } else {
            all.push(word(Start::L3, 1, [common.nw_tos, 0, 0, 0, 0, 0, 0, common.nw_ttl]));
            let addresses = (u64::from(source) << 32 | u64::from(destination)).to_be_bytes();
            all.push(word(Start::L3, 12, addresses));
        }
        let tcp_flags = if self.upper() == Upper::Tcp { common.tcp_flags.get() & 0x0fff } else { 0 };
        let [outer, inner] = common.vlan.map(|tag| u64::from(tag.tci.get()));
        let mut out = OutlineWords {
            words: [Word::NONE; WORDS],
            values: outer
                | inner << INNER_TAG
                | u64::from(tcp_flags) << TCP_FLAGS
                | u64::from(common.nw_frag & (frag::ANY | frag::LATER)) << FRAGMENT
                | u64::from(common.nw_proto) << PROTOCOL,
            signature: 0,
        };
        let mut places = out.words.iter_mut();
        for (number, word) in all.into_iter().enumerate().filter(|(_, word)| word.mask != 0) {
            *places.next()? = word;
            out.signature |= 1 << number << SIGNATURE;
        }
        Some(out)
    }

    /// Whether an outline has all fields of an IPv6 packet that are matched: it has neither what there is of extension
    /// headers nor, where the packet may have them, the fields of neighbour discovery.
    fn has_fields_of_ipv6(self, mask: &Mask) -> bool {
        let (l3, encap) = (mask.0.l3(), mask.0.encap());
        let discovers = l3.nd_target != [0; 16]
            || (l3.arp_sha, l3.arp_tha) != ([0; 6], [0; 6])
            || encap.nd_reserved.get() != 0
            || encap.nd_options_type != 0;
        encap.ipv6_exthdr.get() == 0 && !(discovers && self.upper() == Upper::TypeAndCode)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{BlockId, Key, extract};
    use super::*;

    /// IP packets of all kinds, whole or nearly so.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let head = (0..6usize, any::<bool>(), 0..12usize, any::<[u8; 6]>());
        (head, proptest::collection::vec(any::<u8>(), 140), 0..8usize, 0..3u8).prop_map(
            |((tags, is_v6, protocol, odd), mut f, cut, small)| {
                f.iter_mut().for_each(|b| *b &= [1, 3, 0xff][usize::from(small)]);
                let tags: &[[u8; 2]] = [
                    &[][..],
                    &[[0x81, 0]],
                    &[[0x88, 0xa8]],
                    &[[0x88, 0xa8], [0x81, 0]],
                    &[[0x88, 0xa8], [0x88, 0xa8]],
                    &[[0x81, 0], [0x91, 0]],
                ][tags];
                let mut at = 12;
                for tag in tags {
                    f[at..at + 2].copy_from_slice(tag);
                    at += 4;
                }
                f[at..at + 2].copy_from_slice(if is_v6 { &[0x86, 0xdd] } else { &[8, 0] });
                let l3 = at + 2;
                let protocol = [6, 17, 1, 2, 58, 132, 50, 51, 59, 47, 0, 44][protocol];
                let tcp = [0x50, 0x60, 0x40, 0xf0][usize::from(odd[0] & 3)];
                if is_v6 {
                    let option = [0, 43, 44, 60, 51, 44, 0, protocol][usize::from(odd[1] & 7)];
                    f[l3..l3 + 4].copy_from_slice(&[0x60 | odd[3] & 0xf, odd[3] & 0x30, 0, odd[4] & 3]);
                    f[l3 + 4..l3 + 6].copy_from_slice(&[0, odd[2] & 0x7f]);
                    f[l3 + 6] = option;
                    let is_option = odd[1] & 7 != 7;
                    let l4 = l3 + 40 + if is_option { 8 * (1 + usize::from(odd[3] >> 7)) } else { 0 };
                    if is_option {
                        let offset = [[0, 0], [0, 1], [0, 8], [1, 1]][usize::from(odd[4] >> 6)];
                        f[l3 + 40..l3 + 44].copy_from_slice(&[protocol, odd[3] >> 7, offset[0], offset[1]]);
                    }
                    f[l4 + 12] = tcp;
                } else {
                    let words = [5, 6, 7, 15, 4, 5, 5, 5][usize::from(odd[1] & 7)];
                    f[l3..l3 + 2].copy_from_slice(&[0x40 | words, odd[3] & 7]);
                    f[l3 + 2..l3 + 4].copy_from_slice(&[0, odd[2] & 0x7f]);
                    let fragment = [[0, 0], [0x40, 0], [0x20, 0], [0, 1], [0x20, 5], [0, 0], [0, 0], [0x80, 0]];
                    f[l3 + 6..l3 + 8].copy_from_slice(&fragment[usize::from(odd[4] >> 5)]);
                    f[l3 + 9] = protocol;
                    f[l3 + usize::from(words) * 4 + 12] = tcp;
                }
                f.truncate(f.len() - [0, 0, 0, 5, 30, 60, 90, 110][cut]);
                f
            },
        )
    }

    fn mask() -> impl Strategy<Value = Mask> {
        let bits = prop_oneof![2 => Just(u64::MAX), 1 => any::<u64>()];
        proptest::collection::vec((0..16usize, prop_oneof![4 => Just(0usize), 2 => Just(1), 1 => Just(2)], bits), 0..6)
            .prop_map(|words| {
                let mut mask = Key::new();
                for (at, block, bits) in words {
                    let block = [BlockId::Common, BlockId::L3, BlockId::Encap][block];
                    mask.block_mut(block).words_mut()[at % 8] |= bits;
                }
                mask.common_mut().vlan.iter_mut().for_each(|tag| tag.tpid.set(0));
                Mask(mask)
            })
    }

    fn outline(frame: &[u8], limit: VlanLimit) -> Option<Outline> {
        let envelope = Envelope::of(frame, limit)?;
        match (envelope.is_ipv4, envelope.is_ipv6) {
            (true, _) => Outline::of_ipv4(frame, envelope),
            (_, true) => Outline::of_ipv6(frame, envelope),
            _ => None,
        }
    }

    /// What is compared of a frame.
    fn compared(frame: &[u8], outline: &Outline, words: &OutlineWords) -> (OutlineKind, u64, [u64; WORDS]) {
        let word = |word: Word| {
            let at = outline.starts[word.start as usize] as usize + usize::from(word.at);
            assert!(word.mask == 0 || at + 8 <= frame.len(), "words with bits are within the frame");
            frame.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap()) & word.mask)
        };
        (outline.kind, outline.values & words.values | words.signature, words.words.map(word))
    }

    fn key(frame: &[u8], limit: VlanLimit) -> Key {
        let mut key = Key::new();
        extract(frame, &mut key, limit);
        key
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 6000 }))]

        /// What the fast path relies on: packets of one kind are equal in its words exactly if their keys are equal
        /// under the mask.
        #[test]
        fn equal_words_are_equal_keys(
            a in frame(), mut b in frame(), mask in mask(), is_near in any::<bool>(),
            changes in proptest::collection::vec((0..80usize, any::<u8>()), 0..3),
            limit in prop::sample::select(VlanLimit::ALL.to_vec()),
        ) {
            if is_near {
                b.clone_from(&a);
                for (at, to) in changes {
                    b.get_mut(at).into_iter().for_each(|byte| *byte ^= to);
                }
            }
            let (Some(of_a), Some(of_b)) = (outline(&a, limit), outline(&b, limit)) else { return Ok(()) };
            let (key_a, key_b) = (key(&a, limit), key(&b, limit));
            prop_assert_eq!(of_a.tcp_flags, key_a.common().tcp_flags.get());
            if of_a.kind != of_b.kind {
                return Ok(());
            }
            let Some(words) = of_a.kind.words(&mask) else { return Ok(()) };
            let is_equal = compared(&a, &of_a, &words) == compared(&b, &of_b, &words);
            prop_assert_eq!(is_equal, key_a.matches(&key_b, &mask));
        }
    }

    /// Few frames are left for an extraction: those whose headers are not whole, and chains of extension headers.
    #[test]
    fn usual_oddities_have_outlines() {
        let v4 = |first: u8, fragment: [u8; 2], protocol: u8| {
            let mut f = vec![2; 12];
            f.extend([8, 0, first, 0, 0, 60, 0, 0, fragment[0], fragment[1], 64, protocol]);
            f.resize(14 + 60, 0);
            f
        };
        let v6 = |next: u8, extension: [u8; 8]| {
            let mut f = vec![2; 12];
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next, 64]);
            f.resize(14 + 40, 7);
            f.extend(extension);
            f.resize(14 + 60, 0);
            f
        };
        let found = [
            v4(0x46, [0, 0], 17),
            v4(0x4f, [0, 0], 2),
            v4(0x45, [0x20, 0], 17),
            v4(0x45, [0, 5], 6),
            v4(0x45, [0, 0], 47),
            v6(0, [58, 0, 5, 2, 0, 0, 0, 0]),
            v6(44, [17, 0, 0, 1, 0, 0, 0, 7]),
            v6(44, [17, 0, 0, 9, 0, 0, 0, 7]),
            v6(58, [128, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for frame in found {
            assert!(outline(&frame, VlanLimit::Two).is_some(), "{frame:x?}");
        }
        let others =
            [v4(0x44, [0, 0], 17), v6(0, [43, 0, 0, 0, 0, 0, 0, 0]), v6(51, [17; 8]), v6(0, [17, 9, 0, 0, 0, 0, 0, 0])];
        for frame in others {
            assert_eq!(outline(&frame, VlanLimit::Two), None, "{frame:x?}");
        }
    }
}
