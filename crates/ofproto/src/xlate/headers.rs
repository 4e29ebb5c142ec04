//! VLAN tags and MPLS labels of a key: counting, pushing and popping.

use std::ops::{Deref, DerefMut};

use packet::flow::block::Vlan;
use packet::flow::extract::MAX_VLANS;
use packet::flow::{BlockId, Blocks, VLAN_PRESENT};
use packet::{Field, Key, Mask};
use smallvec::SmallVec;

/// Labels that a key holds.
pub(super) const MAX_LABELS: usize = 3;

/// VLAN tags under those of the key: so that no loop of pushes makes frames longer and longer.
const MAX_COVERED: usize = 16;

/// Bottom of stack.
pub(super) const BOS: u32 = 0x100;

/// The words of a key's common block that come from the packet, and its other blocks that do.
const PACKET_WORDS: usize = std::mem::offset_of!(packet::flow::block::Common, in_port) / 8;
const PACKET_BLOCKS: [BlockId; 2] = [BlockId::L3, BlockId::Encap];

/// A key during translation, with the VLAN tags that it has no room for.
///
/// A key holds the two outermost tags. A tag that a push moves out of the key is not matched any more, but the packet
/// still has it, and it is in the key again when another tag is popped.
#[derive(Clone)]
pub(super) struct Headers {
    pub key: Key,
    /// Outermost first. Empty unless the key is full.
    pub covered: SmallVec<[Vlan; 1]>,
}

impl Headers {
    /// What is known of a packet that was just parsed. A tag that the key has no room for is payload.
    pub fn new(key: Key) -> Headers {
        Headers { key, covered: SmallVec::new() }
    }

    /// All tags, outermost first.
    pub fn tags(&self) -> SmallVec<[Vlan; 3]> {
        let in_key = vlan_count(&self.key);
        // With a tag taken out of the key by a set-field, nothing below it counts.
        let covered = if in_key == MAX_VLANS { &self.covered[..] } else { &[] };
        self.common().vlan[..in_key].iter().chain(covered).copied().collect()
    }

    /// Replaces all tags.
    pub fn set_tags(&mut self, tags: impl IntoIterator<Item = Vlan>) {
        let mut tags = tags.into_iter();
        self.common_mut().vlan = std::array::from_fn(|_| tags.next().unwrap_or(no_tag()));
        self.covered = tags.collect();
    }
}

impl Deref for Headers {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

impl DerefMut for Headers {
    fn deref_mut(&mut self) -> &mut Key {
        &mut self.key
    }
}

/// Number of VLAN tags.
pub(super) fn vlan_count(key: &Key) -> usize {
    key.common().vlan.iter().take_while(|tag| tag.tci.get() & VLAN_PRESENT != 0).count()
}

/// As [`vlan_count`], and has `wc` match the bits that it depends on.
pub(super) fn vlan_count_wc(key: &Key, wc: &mut Mask) -> usize {
    let count = vlan_count(key);
    for tag in wc.0.common_mut().vlan.iter_mut().take(count + 1) {
        tag.tci = (tag.tci.get() | VLAN_PRESENT).into();
    }
    count
}

const EXACT_TAG: u16 = 0xffff;

fn match_tag(wc: &mut Mask, n: usize) {
    wc.0.common_mut().vlan[n] = Vlan { tpid: EXACT_TAG.into(), tci: EXACT_TAG.into() };
}

fn no_tag() -> Vlan {
    Vlan { tpid: 0.into(), tci: 0.into() }
}

/// Removes the outermost tag.
pub(super) fn pop_vlan(headers: &mut Headers, wc: &mut Mask) {
    // The removed one, too: another one with its value may be pushed later, and then nothing else shows what became of it.
    for n in 0..vlan_count_wc(headers, wc).min(2) {
        match_tag(wc, n);
    }
    let tags = headers.tags();
    headers.set_tags(tags.into_iter().skip(1));
}

/// Adds an empty outermost tag. False where there are too many.
pub(super) fn push_vlan(headers: &mut Headers, wc: &mut Mask, tpid: u16) -> bool {
    if headers.covered.len() >= MAX_COVERED {
        return false;
    }
    for n in 0..vlan_count_wc(headers, wc) {
        match_tag(wc, n);
    }
    let tags = headers.tags();
    headers.set_tags([Vlan { tpid: tpid.into(), tci: VLAN_PRESENT.into() }].into_iter().chain(tags));
    true
}

/// Whether the key is that of an MPLS packet.
pub(super) fn is_mpls(key: &Key) -> bool {
    is_mpls_type(key.common().dl_type.get())
}

/// Whether this Ethernet type is one of MPLS.
pub(super) fn is_mpls_type(dl_type: u16) -> bool {
    matches!(dl_type, 0x8847 | 0x8848)
}

/// The label stack entries.
pub(super) fn labels(key: &Key) -> [u32; MAX_LABELS] {
    key.encap().mpls_lse.map(|lse| lse.get())
}

/// Writes the label stack entries.
pub(super) fn set_labels(key: &mut Key, lse: [u32; MAX_LABELS]) {
    key.encap_mut().mpls_lse = lse.map(Into::into);
}

/// Number of labels in the key: up to the bottom of the stack.
pub(super) fn label_count(key: &Key) -> usize {
    if !is_mpls(key) {
        return 0;
    }
    let lse = labels(key);
    match lse.iter().position(|lse| lse & BOS != 0) {
        Some(bottom) => bottom + 1,
        None => lse.iter().filter(|&&lse| lse != 0).count(),
    }
}

/// As [`label_count`], and has `wc` match the bits that it depends on.
pub(super) fn label_count_wc(key: &Key, wc: &mut Mask) -> usize {
    if is_mpls(key) {
        let lse = labels(key);
        let looked_at = lse.iter().position(|lse| lse & BOS != 0).map_or(MAX_LABELS, |bottom| bottom + 1);
        for bits in wc.0.encap_mut().mpls_lse.iter_mut().take(looked_at) {
            *bits = (bits.get() | BOS).into();
        }
    }
    label_count(key)
}

fn match_labels(wc: &mut Mask, range: std::ops::Range<usize>) {
    if !range.is_empty() {
        wc.0.encap_mut().mpls_lse[range].fill(u32::MAX.into());
    }
}

/// As [`push_mpls`], for a label that comes before a whole packet: of what it carries, only the version of IP counts.
pub(super) fn put_label(key: &mut Key, n: usize, ethertype: u16, wc: &mut Mask) {
    if n == 0 {
        (key.common_mut().nw_tos, key.common_mut().nw_ttl) = (0, 0);
        let mut unread = Mask::wildcard();
        return push_mpls(key, n, ethertype, &mut unread);
    }
    push_mpls(key, n, ethertype, wc);
}

/// Forgets all headers of the packet.
pub(super) fn clear_packet(headers: &mut Headers) {
    headers.common_words_mut()[..PACKET_WORDS].fill(0);
    headers.covered.clear();
    let present = headers.present();
    for block in PACKET_BLOCKS.into_iter().filter(|&block| present.has(block)) {
        headers.key.block_mut(block).0.fill(0);
    }
}

/// Forgets the network service header.
pub(super) fn clear_nsh(key: &mut Key) {
    let header = key.encap_mut();
    (header.nsh_flags, header.nsh_ttl, header.nsh_mdtype, header.nsh_np) = (0, 0, 0, 0);
    header.nsh_path = 0.into();
    header.nsh_c.fill(0.into());
}

/// Copies all headers of the packet.
pub(super) fn copy_packet(from: &Headers, to: &mut Headers) {
    to.common_words_mut()[..PACKET_WORDS].copy_from_slice(&from.common_words()[..PACKET_WORDS]);
    to.covered.clone_from(&from.covered);
    let present = Blocks(from.present().0 | to.present().0);
    for block in PACKET_BLOCKS.into_iter().filter(|&block| present.has(block)) {
        *to.key.block_mut(block) = *from.block(block);
    }
}

/// Adds a label on top of `n` others: a copy of the topmost, or the explicit null label with TTL and
/// traffic class of the IP header (RFC 3032 section 2.1, OpenFlow 1.3 section 5.12.1).
pub(super) fn push_mpls(key: &mut Key, n: usize, ethertype: u16, wc: &mut Mask) {
    let mut lse = labels(key);
    if n > 0 {
        match_labels(wc, 0..n);
        lse.copy_within(..MAX_LABELS - 1, 1);
        lse[0] = lse[1] & !BOS;
    } else {
        let common = key.common();
        let is_ip = matches!(common.dl_type.get(), 0x0800 | 0x86dd);
        let label = if common.dl_type.get() == 0x86dd { 2 } else { 0 };
        let (mut tc, mut ttl) = (0, 64);
        if is_ip {
            wc.set_exact(Field::NwTos);
            wc.set_exact(Field::NwTtl);
            // The traffic class has the low three bits of the DSCP, as OVS has it.
            tc = u32::from(common.nw_tos >> 2) & 7;
            if common.nw_ttl != 0 {
                ttl = common.nw_ttl.into();
            }
        }
        lse = [label << 12 | tc << 9 | BOS | ttl, 0, 0];
        clear_l3(key);
    }
    set_labels(key, lse);
    key.common_mut().dl_type = ethertype.into();
}

/// Removes the topmost of `n` labels. False where it cannot be: there is none, or the key does not
/// hold the whole stack.
pub(super) fn pop_mpls(key: &mut Key, n: usize, ethertype: u16, wc: &mut Mask) -> bool {
    let mut lse = labels(key);
    if n == 0 || n == MAX_LABELS && lse[n - 1] & BOS == 0 {
        return false;
    }
    match_labels(wc, 1..n);
    lse.copy_within(1.., 0);
    lse[n - 1] = 0;
    set_labels(key, lse);
    key.common_mut().dl_type = ethertype.into();
    true
}

/// Forgets the L3 and L4 headers, which labels now hide.
fn clear_l3(key: &mut Key) {
    let common = key.common_mut();
    (common.nw_frag, common.nw_proto, common.nw_tos, common.nw_ttl) = (0, 0, 0, 0);
    (common.nw_src, common.nw_dst) = (0.into(), 0.into());
    (common.tp_src, common.tp_dst, common.tcp_flags) = (0.into(), 0.into(), 0.into());
    common.dp_hash = 0.into();
    if key.present().has(BlockId::L3) {
        key.block_mut(BlockId::L3).0.fill(0);
    }
    if key.present().has(BlockId::Encap) {
        key.block_mut(BlockId::Encap).0.fill(0);
    }
}
