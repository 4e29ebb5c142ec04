//! From frame to flow key.
//!
//! [`extract`] tries the plain cases first: Ethernet, at most one VLAN tag, IPv4 without options that is
//! not a fragment, UDP or TCP. One length check covers every load, and the members of
//! [`Common`](super::block::Common) are written as five whole words. Everything else takes the general
//! path in `general.rs`, which is exact for frames of any length and content.
//!
//! The semantics are those of ovs-fields(7): see the notes at each protocol. A second
//! extractor in `reference.rs`, written without regard to speed, has to agree.

mod general;
mod ipv6;
mod l4;
mod load;

use super::VLAN_PRESENT;
use super::key::Key;
use load::{le16, le32, le64};

/// The most VLAN tags that are parsed into the key; a further tag's TPID becomes dl_type.
pub const MAX_VLANS: usize = 2;

/// How many VLAN tags of a frame are parsed into its key (`vlan-limit` of the database). A further tag is payload, as
/// OVS has it. Only frames with two tags are read differently under different limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VlanLimit {
    /// The outer tag only.
    One = 1,
    /// [`MAX_VLANS`].
    #[default]
    Two = 2,
}

impl VlanLimit {
    /// Every limit there is.
    pub const ALL: [VlanLimit; 2] = [VlanLimit::One, VlanLimit::Two];

    /// The limit that `vlan-limit` sets: zero is for as many as there can be.
    pub const fn of(tags: u8) -> VlanLimit {
        if tags == 1 { VlanLimit::One } else { VlanLimit::Two }
    }

    /// How many tags.
    #[inline(always)]
    pub const fn tags(self) -> usize {
        self as usize
    }
}

/// The most MPLS label stack entries that are parsed into the key.
pub const MAX_LABELS: usize = 3;

/// The most IPv6 extension headers that are walked. A packet with more counts as malformed, so that the
/// work for each packet is bounded.
pub const MAX_EXTENSION_HEADERS: usize = 16;

/// The most MPLS label stack entries that are skipped in search of the L3 header.
pub const MAX_LABEL_STACK: usize = 16;

/// Where the headers of a frame are. Offsets count from the first byte of the frame.
///
/// An offset that is not [`Layers::NONE`] promises that the header it points to is whole and is the one
/// that the key's fields came from, so that an action can rewrite it without parsing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// First MPLS label stack entry, or [`Layers::NONE`].
    pub l2_5: u16,
    /// First byte behind Ethernet header, VLAN tags, SNAP header and MPLS labels. [`Layers::NONE`] where
    /// dl_type says IPv4, IPv6 or ARP and the header is not whole or not valid.
    pub l3: u16,
    /// First byte of the L4 header, or [`Layers::NONE`]: later fragments have none. A TCP, UDP, SCTP,
    /// ICMP, IGMP or ICMPv6 header is whole; for other protocols it is the IP payload, maybe empty.
    pub l4: u16,
    /// VLAN tags that were parsed into the key.
    pub vlans: u8,
}

impl Layers {
    /// The header is absent or not whole.
    pub const NONE: u16 = u16::MAX;

    /// No header found.
    pub const EMPTY: Layers = Layers { l2_5: Layers::NONE, l3: Layers::NONE, l4: Layers::NONE, vlans: 0 };
}

/// Fills in all members of `key` that come from the packet itself, for a frame that starts with an
/// Ethernet header, and says where its headers are. VLAN tags beyond `vlan_limit` are payload.
///
/// The caller has called [`Key::reset`] and sets the metadata (in_port, recirc_id, packet_type, dp_hash,
/// pkt_mark, skb_priority, and the blocks Ct, Tunnel, Pipeline, Regs, TunMeta) before or after: these are
/// neither read nor written. The packet's part of the common block is overwritten whole, with zeros where
/// the frame has no such header. The L3 and Encap blocks become present only where the frame needs them.
#[inline]
pub fn extract(frame: &[u8], key: &mut Key, vlan_limit: VlanLimit) -> Layers {
    let plain = match frame.first_chunk() {
        Some(head) => plain_untagged(head, frame.len(), key),
        None => None,
    };
    match plain.or_else(|| plain_tagged(frame, key)) {
        Some(layers) => layers,
        None => general::ethernet(frame, key, vlan_limit),
    }
}

/// As [`extract`], without trying the plain cases first: for frames that are known to be none.
#[inline]
pub fn extract_unusual(frame: &[u8], key: &mut Key, vlan_limit: VlanLimit) -> Layers {
    general::ethernet(frame, key, vlan_limit)
}

/// As [`extract`], for a packet without an Ethernet header: packet_type (1, `ethertype`).
pub fn extract_l3(packet: &[u8], ethertype: u16, key: &mut Key) -> Layers {
    general::without_ethernet(packet, ethertype, key)
}

/// What the simple-match tier looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SimpleMark {
    /// dl_type, host byte order.
    pub dl_type: u16,
    /// TCI of the outer tag with the present bit, host byte order; zero without a tag.
    pub vlan_tci: u16,
    /// Fragment bits, see [`super::frag`].
    pub nw_frag: u8,
}

/// The dl_type, outer vlan_tci and nw_frag that [`extract`] would find, for less work.
#[inline]
pub fn simple_mark(frame: &[u8], vlan_limit: VlanLimit) -> SimpleMark {
    // An IPv4 header whose fragment word is zero has no fragment bits, be it valid or not.
    if let Some(head) = frame.first_chunk::<26>() {
        if le16(head, 12) == IPV4 && le16(head, 20) & FRAGMENT == 0 {
            return SimpleMark { dl_type: 0x0800, vlan_tci: 0, nw_frag: 0 };
        }
        if le16(head, 12) == VLAN && le16(head, 16) == IPV4 && le16(head, 24) & FRAGMENT == 0 {
            return SimpleMark { dl_type: 0x0800, vlan_tci: le16(head, 14).swap_bytes() | VLAN_PRESENT, nw_frag: 0 };
        }
    }
    general::simple_mark(frame, vlan_limit)
}

// Constants as little-endian loads see them.
const IPV4: u16 = u16::from_le_bytes([0x08, 0x00]);
const VLAN: u16 = u16::from_le_bytes([0x81, 0x00]);
const FRAGMENT: u16 = u16::from_le_bytes([0x3f, 0xff]);
const TCP_FLAGS: u16 = u16::from_le_bytes([0x0f, 0xff]);
const TAG_PRESENT: u32 = u32::from_le_bytes([0, 0, 0x10, 0]);

/// Bytes of Ethernet, IPv4 and TCP headers without options.
const UNTAGGED: usize = 14 + 20 + 20;
/// The same with one VLAN tag.
const TAGGED: usize = UNTAGGED + 4;

#[inline(always)]
fn plain_untagged(head: &[u8; UNTAGGED], len: usize, key: &mut Key) -> Option<Layers> {
    if le16(head, 12) != IPV4 {
        return None;
    }
    plain_ipv4::<14, UNTAGGED>(head, len, 0, key)
}

#[inline(always)]
fn plain_tagged(frame: &[u8], key: &mut Key) -> Option<Layers> {
    let head = frame.first_chunk::<TAGGED>()?;
    if le16(head, 12) != VLAN || le16(head, 16) != IPV4 {
        return None;
    }
    plain_ipv4::<18, TAGGED>(head, frame.len(), le32(head, 12) | TAG_PRESENT, key)
}

/// Writes the packet's part of the common block for an IPv4 packet at offset `L3`, if it is a plain one.
///
/// `head` is the start of a frame of `len` bytes; `tag` is the VLAN tag as it lies in the frame.
#[inline(always)]
fn plain_ipv4<const L3: usize, const HEAD: usize>(
    head: &[u8; HEAD],
    len: usize,
    tag: u32,
    key: &mut Key,
) -> Option<Layers> {
    // 1. No options, not a fragment, a total length that the frame holds with at most 65535 bytes of
    //    padding (the subtraction wraps where the frame is too short).
    let total = usize::from(le16(head, L3 + 2).swap_bytes());
    let padding = (len - L3).wrapping_sub(total);
    if head[L3] != 0x45 || le16(head, L3 + 6) & FRAGMENT != 0 || padding > usize::from(u16::MAX) {
        return None;
    }

    // 2. A whole L4 header.
    let proto = head[L3 + 9];
    let tcp_flags = match proto {
        17 if total >= 28 => 0,
        6 => {
            let header = usize::from(head[L3 + 32] >> 4) * 4;
            if header < 20 || 20 + header > total {
                return None;
            }
            le16(head, L3 + 32) & TCP_FLAGS
        }
        _ => return None,
    };

    // 3. Five words, in the order of the members of `Common`.
    let words = key.common_words_mut();
    words[0] = le64(head, 0).to_le();
    words[1] = (u64::from(le32(head, 8)) | u64::from(IPV4) << 32 | u64::from(proto) << 56).to_le();
    words[2] = (u64::from(head[L3 + 1])
        | u64::from(head[L3 + 8]) << 8
        | u64::from(tcp_flags) << 16
        | u64::from(le32(head, L3 + 12)) << 32)
        .to_le();
    words[3] = le64(head, L3 + 16).to_le();
    words[4] = u64::from(tag).to_le();
    Some(Layers { l2_5: Layers::NONE, l3: L3 as u16, l4: L3 as u16 + 20, vlans: u8::from(tag != 0) })
}

#[cfg(test)]
mod scapy;
#[cfg(test)]
mod tests;
