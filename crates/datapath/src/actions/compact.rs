//! Compact rewrites: the form that the most frequent programs take, where each packet of a batch belongs to another
//! flow.
//!
//! A router writes both Ethernet addresses and decrements the TTL; a switch pushes or removes a VLAN tag. Such a
//! program is a masked store of the frame's first 16 bytes, addresses and tag, and of a word with TTL and checksum. It
//! reads all that it needs from the frame itself: no key is extracted, and no steps are gone through. A flood is a list
//! of ports that get copies, and changes nothing.
//!
//! Each worker keeps the compact rewrites that its packets need in a [`RewriteTable`], and the number of one takes the
//! place of a flow's action in its caches. So neither the flow nor its program is read, and flows that do the same share
//! a cache line.

use packet::flow::extract::{Layers, VlanLimit, extract};
use packet::{Key, Offload, Packet};

use super::rewrite::{Rewriter, ip_ttl, ip_ttl_word, pop_vlan, push_vlan, shift_offload};
use crate::action::PortNo;

/// Bytes of the two Ethernet addresses.
const ADDRESSES: usize = 12;

/// Bytes of a frame with a VLAN tag and an IPv4 header. Shorter frames are unusual.
const MIN_FRAME: usize = 14 + TAG + 20;

/// Bytes of a VLAN tag.
const TAG: usize = 4;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// What becomes of the VLAN tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum TagChange {
    None,
    Push,
    Pop,
    /// The outermost tag is removed, and another one is pushed.
    Replace,
}

/// The first bytes of a frame, as they lie in memory: the addresses, and a tag or whatever else comes behind them.
type Front = u128;

/// The bits of a front behind the addresses.
const BEHIND_ADDRESSES: Front = front([0; 6], [0; 6], [0xff; TAG]);

const fn front([a, b, c, d, e, f]: [u8; 6], [g, h, i, j, k, l]: [u8; 6], [m, n, o, p]: [u8; TAG]) -> Front {
    u128::from_ne_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
}

/// A compact rewrite, and the port that the packet is sent to; or a flood. It is one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub struct CompactRewrite {
    /// The bits of the frame's front that stay, wherever the frame begins afterwards.
    keep: Front,
    /// The addresses and the tag that are written; zeros where bits stay.
    written: Front,
    /// The output port.
    port: PortNo,
    /// The TTL, and which of its bits are written.
    ttl: (u8, u8),
    tag_change: TagChange,
    /// By how many bytes the front moves towards the frame's end.
    shift: i8,
    /// How many ports get copies.
    copy_count: u8,
    /// The ports that get copies, in order, before the packet is sent itself.
    copies: [PortNo; MAX_COPIES],
}

/// Most ports that get copies.
const MAX_COPIES: usize = 5;

impl CompactRewrite {
    /// Sends to this port, without a change.
    pub fn to(port: PortNo) -> CompactRewrite {
        CompactRewrite {
            keep: Front::MAX,
            written: 0,
            port,
            ttl: (0, 0),
            tag_change: TagChange::None,
            shift: 0,
            copy_count: 0,
            copies: [PortNo(0); MAX_COPIES],
        }
    }

    /// Sends a copy to this port behind what is done so far, if that has a compact form: it is nothing but other copies.
    pub fn copy_to(&mut self, port: PortNo) -> Option<()> {
        let rewrites = self.keep != Front::MAX || self.ttl.1 != 0 || self.tag_change != TagChange::None;
        if rewrites {
            return None;
        }
        *self.copies.get_mut(usize::from(self.copy_count))? = port;
        self.copy_count += 1;
        Some(())
    }

    /// The ports that get copies, in order. If there are any, the packet is not rewritten.
    #[inline(always)]
    pub fn copies(&self) -> &[PortNo] {
        &self.copies[..usize::from(self.copy_count).min(MAX_COPIES)]
    }

    /// Removes the outermost tag behind what is done so far, if that has a compact form.
    pub fn pop_vlan(&mut self) -> Option<()> {
        if self.copy_count > 0 || self.tag_change != TagChange::None {
            return None;
        }
        (self.tag_change, self.shift) = (TagChange::Pop, TAG as i8);
        self.keep &= !BEHIND_ADDRESSES;
        Some(())
    }

    /// Pushes a tag behind what is done so far, if that has a compact form.
    pub fn push_vlan(&mut self, tpid: u16, tci: u16) -> Option<()> {
        (self.tag_change, self.shift) = match self.tag_change {
            _ if self.copy_count > 0 => return None,
            TagChange::None => (TagChange::Push, -(TAG as i8)),
            TagChange::Pop => (TagChange::Replace, 0),
            TagChange::Push | TagChange::Replace => return None,
        };
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
        self.keep &= !BEHIND_ADDRESSES;
        self.written |= front([0; 6], [0; 6], [a, b, c, d]);
        Some(())
    }

    /// Writes fields, if these are no more than Ethernet addresses and TTL.
    pub fn set(&mut self, rewriter: &Rewriter) -> Option<()> {
        let (value, mask) = rewriter.addresses_and_ttl().filter(|_| self.copy_count == 0)?;
        let front = |(dst, src)| front(dst, src, [0; TAG]);
        let (written, bits) = (front(value.addresses), front(mask.addresses));
        (self.keep, self.written) = (self.keep & !bits, self.written & !bits | written);
        self.ttl = (self.ttl.0 & !mask.ttl | value.ttl, self.ttl.1 | mask.ttl);
        Some(())
    }

    /// Whether it pushes or removes a tag.
    pub fn changes_tags(&self) -> bool {
        self.tag_change != TagChange::None
    }

    /// This one, then another one, which packets are sent by. Neither is a flood, and this one changes no tags.
    pub fn then(&self, next: &CompactRewrite) -> CompactRewrite {
        debug_assert!(!self.changes_tags() && self.copies().is_empty() && next.copies().is_empty());
        CompactRewrite {
            keep: self.keep & next.keep,
            written: self.written & next.keep | next.written,
            ttl: (self.ttl.0 & !next.ttl.1 | next.ttl.0, self.ttl.1 | next.ttl.1),
            ..*next
        }
    }

    /// The output port.
    #[inline(always)]
    pub fn port(&self) -> PortNo {
        self.port
    }

    /// By how many bytes a packet grows.
    #[inline(always)]
    pub fn growth(&self) -> u32 {
        if self.tag_change == TagChange::Push { TAG as u32 } else { 0 }
    }

    /// Rewrites a packet, which has the headroom to grow. `key` is for an extraction, where that is needed.
    #[inline(always)]
    pub fn apply(&self, packet: &mut Packet, key: &mut Key, vlan_limit: VlanLimit) {
        if !self.apply_to_usual(packet) {
            self.apply_to_unusual(packet, key, vlan_limit);
        }
    }

    /// Rewrites a packet whose headers are where they mostly are. It is no flood. `false`, and no change, where they are not, or there is
    /// no room before them.
    #[inline(always)]
    pub fn apply_to_usual(&self, packet: &mut Packet) -> bool {
        // For a tag that is pushed the headroom has to be there, and for one that is popped its length has to be counted.
        let headroom = packet.headroom().wrapping_add_signed(self.shift.into());
        let Some(head) = packet.data_mut().first_chunk_mut::<MIN_FRAME>() else { return false };
        if self.tag_change == TagChange::None {
            if self.ttl.1 != 0 && !self.write_ttl(packet) {
                return false;
            }
            if let Some(front) = packet.data_mut().first_chunk_mut() {
                *front = self.front(*front).to_ne_bytes();
            }
            return true;
        }
        // 1. Does the frame have what is to be rewritten?
        let replaces = matches!(self.tag_change, TagChange::Pop | TagChange::Replace);
        if headroom > usize::from(u16::MAX) || replaces && !is_tagged(head) {
            return false;
        }
        let front = head.first_chunk().map_or(0, |front| self.front(*front)).to_ne_bytes();
        // 2. TTL and checksum, where they are.
        if self.ttl.1 != 0 && !self.write_ttl(packet) {
            return false;
        }
        // 3. The first bytes, where they will be.
        let moved = packet.move_front(self.shift.into());
        debug_assert!(moved.is_some(), "there is room");
        if self.tag_change == TagChange::Pop {
            // What followed the tag is where it belongs already.
            let addresses = packet.data_mut().first_chunk_mut::<ADDRESSES>();
            addresses.into_iter().for_each(|addresses| addresses.copy_from_slice(&front[..ADDRESSES]));
        } else if let Some(to) = packet.data_mut().first_chunk_mut() {
            *to = front;
        }
        if *packet.offload() != Offload::NONE {
            self.shift_offload(packet);
        }
        true
    }

    /// What becomes of the front of a frame.
    #[inline(always)]
    fn front(&self, front: [u8; size_of::<Front>()]) -> Front {
        Front::from_ne_bytes(front) & self.keep | self.written
    }

    /// Writes the TTL, and the checksum, if the IP header is valid, as an extraction has it, has no options, and lies
    /// behind at most one tag.
    #[inline(always)]
    fn write_ttl(&self, packet: &mut Packet) -> bool {
        let size = packet.len();
        let Some(head) = packet.data_mut().first_chunk_mut::<MIN_FRAME>() else { return false };
        let total = usize::from(word(head, 16));
        // The most frequent frames, with few questions: IPv4 without a tag, and not larger than any packet.
        let is_ipv4 = (word(head, 12) == IPV4) & (head[14] == 0x45);
        if is_ipv4 & (size <= usize::from(u16::MAX)) & (total.wrapping_sub(20) <= size - 34) {
            write_ttl_at(head, 22, |ttl| ip_ttl_word(ttl, self.ttl.0, self.ttl.1));
            return true;
        }
        self.write_ttl_of_others(head, size)
    }

    /// [`write_ttl`](CompactRewrite::write_ttl), for packets that are not the most frequent ones.
    #[inline(never)]
    fn write_ttl_of_others(&self, head: &mut [u8; MIN_FRAME], size: usize) -> bool {
        let (value, mask) = self.ttl;
        let l3 = if is_tagged(head) { 14 + TAG } else { 14 };
        let fits = |length: usize| (size - l3).wrapping_sub(length) <= usize::from(u16::MAX);
        match word(head, l3 - 2) {
            IPV4 => {
                let total = usize::from(word(head, l3 + 2));
                if head[l3] != 0x45 || total < 20 || !fits(total) {
                    return false;
                }
                write_ttl_at(head, l3 + 8, |ttl| ip_ttl_word(ttl, value, mask));
            }
            IPV6 if fits(40 + usize::from(word(head, l3 + 4))) => {
                head[l3 + HOP_LIMIT] = head[l3 + HOP_LIMIT] & !mask | value;
            }
            _ => return false,
        }
        true
    }

    /// The headers behind the tag have moved.
    #[cold]
    fn shift_offload(&self, packet: &mut Packet) {
        if matches!(self.tag_change, TagChange::Pop | TagChange::Replace) {
            shift_offload(packet, -(TAG as i16));
        }
        if matches!(self.tag_change, TagChange::Push | TagChange::Replace) {
            shift_offload(packet, TAG as i16);
        }
    }

    /// Rewrites any packet.
    #[cold]
    #[inline(never)]
    fn apply_to_unusual(&self, packet: &mut Packet, key: &mut Key, vlan_limit: VlanLimit) {
        let (value, mask) = self.ttl;
        if mask != 0 {
            key.reset();
            let layers = extract(packet.data(), key, vlan_limit);
            let at = usize::from(layers.l3);
            // Not behind labels.
            if layers.l2_5 == Layers::NONE
                && layers.l3 != Layers::NONE
                && let Some(header) = packet.data_mut().get_mut(at..)
            {
                match key.common().dl_type.get() {
                    IPV4 => header.first_chunk_mut().into_iter().for_each(|header| ip_ttl(header, value, mask)),
                    IPV6 => header[HOP_LIMIT] = header[HOP_LIMIT] & !mask | value,
                    _ => {}
                }
            }
        }
        if let Some(addresses) = packet.data_mut().first_chunk_mut::<ADDRESSES>() {
            let mut bytes = [0; size_of::<Front>()];
            bytes[..ADDRESSES].copy_from_slice(addresses);
            addresses.copy_from_slice(&self.front(bytes).to_ne_bytes()[..ADDRESSES]);
        }
        if matches!(self.tag_change, TagChange::Pop | TagChange::Replace) {
            pop_vlan(packet);
        }
        if matches!(self.tag_change, TagChange::Push | TagChange::Replace) {
            let [.., a, b, c, d] = self.written.to_ne_bytes();
            let pushed = push_vlan(packet, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            debug_assert!(pushed, "there is headroom");
        }
    }
}

/// Offset of the hop limit in an IPv6 header.
const HOP_LIMIT: usize = 7;

/// Most rewrites of a [`RewriteTable`]: more than most networks have next hops, and few enough for the second-level
/// cache.
const MAX_REWRITES: usize = 1024;

/// Slots of a table's index.
const SLOTS: usize = 4 * MAX_REWRITES;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// How many slots are looked at for one rewrite.
const PROBES: usize = 8;

/// How many rewrites may find no room before a worker forgets all of them.
const MAX_REFUSED: u32 = 1 << 16;

/// The compact rewrites that a worker's packets need, each of them once. A rewrite is never changed, so a number means
/// the same until the table is emptied, and the worker's caches with it.
pub struct RewriteTable {
    /// By their numbers, without gaps, so that few of them are in few cache lines.
    rewrites: Vec<CompactRewrite>,
    /// Numbers plus one, by hash; zero where there is none.
    slots: Box<[u16]>,
    /// How many rewrites have found no room.
    refused: u32,
}

const _: () = assert!(MAX_REWRITES < u16::MAX as usize);

impl Default for RewriteTable {
    fn default() -> RewriteTable {
        RewriteTable { rewrites: Vec::with_capacity(MAX_REWRITES), slots: vec![0; SLOTS].into(), refused: 0 }
    }
}

impl RewriteTable {
    /// The rewrites by their numbers.
    #[inline(always)]
    pub fn rewrites(&self) -> &[CompactRewrite] {
        &self.rewrites
    }

    /// The number of a rewrite, which is added where it is new; or `None` where there is no room for it.
    pub fn number(&mut self, rewrite: &CompactRewrite) -> Option<u32> {
        let first = rewrite.hash();
        for at in (first..first + PROBES).map(|at| at % SLOTS) {
            match usize::from(self.slots[at]).checked_sub(1) {
                Some(number) if self.rewrites[number] == *rewrite => return Some(number as u32),
                Some(_) => {}
                None if self.rewrites.len() == MAX_REWRITES => break,
                None => {
                    self.rewrites.push(*rewrite);
                    self.slots[at] = self.rewrites.len() as u16;
                    return Some(self.rewrites.len() as u32 - 1);
                }
            }
        }
        self.refused = self.refused.saturating_add(1);
        None
    }

    /// Empties the table. From then on, numbers mean something else.
    pub fn clear(&mut self) {
        self.rewrites.clear();
        self.slots.fill(0);
        self.refused = 0;
    }

    /// Whether so many rewrites have found no room that those that are there are probably old.
    #[inline(always)]
    pub fn is_worn_out(&self) -> bool {
        self.refused >= MAX_REFUSED
    }
}

impl CompactRewrite {
    /// Where it is looked for first. Rewrites come from rules, so no sender chooses them.
    fn hash(&self) -> usize {
        let [[a, b], [c, d]]: [[u64; 2]; 2] = zerocopy::transmute!([self.keep, self.written]);
        let tags_and_ttl = u64::from(self.ttl.0) << 16 | u64::from(self.ttl.1) << 8 | self.tag_change as u64;
        let words = [a, b, c, d, u64::from(self.port.0), tags_and_ttl];
        let copies = self.copies().iter().map(|port| u64::from(port.0));
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        (words.into_iter().chain(copies).fold(0, mix).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS))
            as usize
    }
}

/// Writes the word with the TTL.
#[inline(always)]
fn write_ttl_at(head: &mut [u8; MIN_FRAME], at: usize, rewrite: impl FnOnce(u32) -> u32) {
    if let Some(ttl) = head[at..].first_chunk_mut() {
        *ttl = rewrite(u32::from_le_bytes(*ttl)).to_le_bytes();
    }
}

#[inline(always)]
fn is_tagged(head: &[u8; MIN_FRAME]) -> bool {
    matches!(word(head, ADDRESSES), 0x8100 | 0x88a8)
}

#[inline(always)]
fn word(head: &[u8; MIN_FRAME], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packet::Field;
    use packet::flow::extract::{VlanLimit, extract};
    use proptest::prelude::*;

    use super::*;
    use crate::action::{Action, Rewrite};
    use crate::actions::execute::follow;
    use crate::actions::program::{Program, Step};

    const OUTPUT: PortNo = PortNo(7);

    /// Frames of all kinds around those that compact rewrites are made for.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let head = (0..4usize, 0..8u8, any::<[u8; 4]>(), 0..=u8::MAX);
        (head, 0..70usize, prop::collection::vec(any::<u8>(), 80), any::<bool>()).prop_map(
            |((tags, odd, numbers, ttl), size, payload, is_cut)| {
                let mut frame = payload[..ADDRESSES].to_vec();
                for n in 0..tags {
                    let tpid = [[0x81, 0], [0x88, 0xa8], [0x91, 0]][usize::from(numbers[n] % 7 / 3)];
                    frame.extend(tpid.iter().chain(&[numbers[n], n as u8]));
                }
                let kind = match odd {
                    1 => [0x86, 0xdd],
                    2 => [0x08, 0x06],
                    3 => [0, size as u8],
                    _ => [0x08, 0x00],
                };
                frame.extend(kind);
                let at = frame.len();
                frame.extend(&payload[ADDRESSES..]);
                frame.truncate(at + size.max(20));
                frame[at] = if odd == 4 { 0x46 + numbers[3] % 4 } else { 0x45 };
                let length = if odd == 5 { u16::from(numbers[3] % 80) } else { size.max(20) as u16 };
                let at_length = if odd == 1 { at + 4 } else { at + 2 };
                let length = if odd == 1 { length.saturating_sub(40) } else { length };
                frame[at_length..at_length + 2].copy_from_slice(&length.to_be_bytes());
                frame[if odd == 1 { at + 7 } else { at + 8 }] = ttl;
                if is_cut {
                    frame.truncate(size);
                }
                frame
            },
        )
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let set = |field: Field, value: u128, mask: u128| {
            let mut rewrite = Rewrite::field(field, value & mask);
            rewrite.mask.clear(field);
            rewrite.mask.add(field, mask & field.info().max());
            Action::Set(Arc::new(rewrite))
        };
        let field = prop::sample::select(vec![Field::DlSrc, Field::DlDst, Field::NwTtl]);
        let mask = prop_oneof![3 => Just(u128::MAX), 1 => any::<u64>().prop_map(u128::from)];
        let both = (any::<u64>(), any::<u64>()).prop_map(|(src, dst)| {
            let mut rewrite = Rewrite::field(Field::DlSrc, src.into());
            rewrite.key.set(Field::DlDst, dst.into());
            rewrite.mask.set_exact(Field::DlDst);
            Action::Set(Arc::new(rewrite))
        });
        let rewrite = prop_oneof![
            (field, any::<u64>(), mask).prop_map(move |(field, value, mask)| set(field, value.into(), mask)),
            both,
        ];
        let push = (prop::sample::select(vec![0x8100u16, 0x88a8]), any::<u16>())
            .prop_map(|(tpid, tci)| Action::PushVlan { tpid, tci });
        let tags = prop_oneof![
            2 => Just(vec![]),
            2 => push.clone().prop_map(|push| vec![push]),
            2 => Just(vec![Action::PopVlan]),
            1 => push.prop_map(|push| vec![Action::PopVlan, push]),
        ];
        (prop::collection::vec(rewrite.clone(), 0..3), tags, prop::collection::vec(rewrite, 0..2))
            .prop_map(|(before, tags, behind)| [before, tags, behind, vec![Action::Output(OUTPUT)]].concat())
    }

    /// What the steps make of a packet.
    fn step_by_step(program: &Program, packet: &mut Packet, vlan_limit: VlanLimit) {
        let mut key = packet::Key::new();
        let mut layers = extract(packet.data(), &mut key, vlan_limit);
        for step in &program.steps {
            assert!(step.rewrite(packet, &mut key, &layers));
            follow(step, &mut layers);
        }
    }

    fn parts(packet: &Packet) -> (Vec<u8>, Offload, usize, usize) {
        (packet.data().to_vec(), *packet.offload(), packet.headroom(), packet.tailroom())
    }

    fn packet(frame: &[u8], headroom: usize, offload: Offload) -> Packet {
        let mut packet = packet::buffer::heap::packet(frame, headroom, 8);
        *packet.offload_mut() = offload;
        packet
    }

    fn offload() -> impl Strategy<Value = Offload> {
        let offload =
            |(flags, hdr_len, csum_start)| Offload { flags, hdr_len, csum_start, csum_offset: 6, ..Offload::NONE };
        prop_oneof![Just(Offload::NONE), (0..4u8, prop::sample::select(vec![0, 42u16]), 0..60u16).prop_map(offload)]
    }

    /// Whether a program of these actions is applied to plain IPv4 with so many tags.
    fn suits(actions: &[Action], tags: usize) -> bool {
        let pops = actions.contains(&Action::PopVlan);
        tags < 2 && (!pops || tags == 1)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 20_000 }))]

        /// A packet becomes what the steps make of it, whether its headers are usual or not.
        #[test]
        fn is_what_the_steps_are(
            frame in frame(), actions in actions(), offload in offload(), headroom in 0..9usize,
            vlan_limit in prop::sample::select(VlanLimit::ALL.to_vec()),
        ) {
            let program = Program::compile(&actions);
            let compact = program.compact().expect("all of these have a compact form");
            let growth = program.growth() * u32::from(!actions.contains(&Action::PopVlan));
            prop_assert_eq!((compact.port(), compact.growth()), (OUTPUT, growth));
            let [mut usual, mut unusual, mut other, untouched] = [(); 4].map(|()| packet(&frame, headroom, offload));
            if headroom < growth as usize {
                prop_assert!(!compact.apply_to_usual(&mut usual));
                prop_assert_eq!(parts(&usual), parts(&untouched));
                return Ok(());
            }
            step_by_step(&program, &mut other, vlan_limit);
            if compact.apply_to_usual(&mut usual) {
                prop_assert_eq!(parts(&usual), parts(&other));
            } else {
                prop_assert_eq!(parts(&usual), parts(&untouched));
            }
            compact.apply_to_unusual(&mut unusual, &mut packet::Key::new(), vlan_limit);
            prop_assert_eq!(parts(&unusual), parts(&other));
        }

        /// Steps behind a pop need no second extraction: where the first one found no L3 header, a second one finds none
        /// either, and all else where it is known to be.
        #[test]
        fn a_pop_uncovers_no_header(
            frame in frame(), headroom in 0..9usize, vlan_limit in prop::sample::select(VlanLimit::ALL.to_vec()),
        ) {
            let mut packet = packet(&frame, headroom, Offload::NONE);
            let mut layers = extract(packet.data(), &mut packet::Key::new(), vlan_limit);
            let had_none = layers.l3 == Layers::NONE;
            pop_vlan(&mut packet);
            follow(&Step::PopVlan, &mut layers);
            prop_assert!(!had_none || layers == extract(packet.data(), &mut packet::Key::new(), vlan_limit));
        }

        /// Plain packets, IPv4 and IPv6, are usual, with one tag and without.
        #[test]
        fn plain_packets_are_usual(
            actions in actions(), tags in 0..3usize, is_v6 in any::<bool>(), ttl in any::<u8>(), size in 20..60u16,
        ) {
            let mut frame = vec![2; ADDRESSES];
            frame.extend([0x81, 0, 0, 10].repeat(tags));
            let l3 = frame.len() + 2;
            if is_v6 {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0].iter().chain(&size.to_be_bytes()).chain(&[17, ttl]));
            } else {
                frame.extend([8, 0, 0x45, 0].iter().chain(&size.to_be_bytes()).chain(&[0, 0, 0x40, 0, ttl, 17]));
            }
            frame.resize(l3 + usize::from(size) + if is_v6 { 40 } else { 0 }, 0);
            prop_assume!(frame.len() >= MIN_FRAME);
            let program = Program::compile(&actions);
            let applied = program.compact().expect("it has one").apply_to_usual(&mut packet(&frame, 4, Offload::NONE));
            prop_assert!(applied || !suits(&actions, tags));
        }
    }

    /// Each rewrite has one number, and keeps it. Where too many find no room, the table has to be emptied.
    #[test]
    fn rewrites_have_numbers() {
        let mut table = RewriteTable::default();
        let rewrites: Vec<_> = (0..2 * MAX_REWRITES as u32).map(|port| CompactRewrite::to(PortNo(port))).collect();
        let numbers: Vec<_> = rewrites.iter().map(|rewrite| table.number(rewrite)).collect();
        let given = numbers.iter().flatten().count();
        assert!(numbers[..MAX_REWRITES / 2].iter().all(Option::is_some), "no room for the first few");
        assert!(given > MAX_REWRITES * 9 / 10 && given <= MAX_REWRITES, "{given}");
        for (rewrite, number) in rewrites.iter().zip(numbers) {
            assert_eq!(table.number(rewrite), number);
            assert!(number.is_none_or(|number| table.rewrites().get(number as usize) == Some(rewrite)));
        }
        assert!(!table.is_worn_out());
        let without = rewrites.iter().find(|rewrite| table.number(rewrite).is_none()).unwrap();
        (0..MAX_REFUSED).for_each(|_| assert_eq!(table.number(without), None));
        assert!(table.is_worn_out());
        table.clear();
        assert!(!table.is_worn_out() && table.number(without).is_some());
    }

    #[test]
    fn which_programs_are_compact() {
        let set = |field| Action::Set(Arc::new(Rewrite::field(field, 1)));
        let output = || Action::Output(OUTPUT);
        let push = || Action::PushVlan { tpid: 0x8100, tci: 1 };
        let is_compact = |list: &[Action]| Program::compile(list).compact().is_some();
        assert!(is_compact(&[
            set(Field::DlSrc),
            set(Field::DlDst),
            set(Field::NwTtl),
            Action::PopVlan,
            push(),
            output()
        ]));
        for other in
            [Field::NwDst, Field::UdpDst, Field::NwTos, Field::VlanTci, Field::PktMark, Field::TunId, Field::ArpTha]
        {
            assert!(!is_compact(&[set(Field::DlSrc), set(other), output()]), "{other:?}");
        }
        assert!(!is_compact(&[push(), push(), output()]) && !is_compact(&[push(), Action::PopVlan, output()]));
        assert!(!is_compact(&[Action::PopVlan, Action::PopVlan, output()]));
        // Floods, but not to too many ports.
        assert!(is_compact(&vec![output(); MAX_COPIES + 1]) && !is_compact(&vec![output(); MAX_COPIES + 2]));
        assert!(!is_compact(&[push(), output(), output()]) && !is_compact(&[output(), Action::PopVlan, output()]));
        assert!(!is_compact(&[output(), set(Field::DlSrc), output()]));
        assert!(!is_compact(&[Action::Truncate { max_len: 60 }, output(), output()]));
        assert!(!is_compact(&[output(), push(), output()]) && !is_compact(&[push(), Action::Recirc(1)]));
        assert!(!is_compact(&[push(), Action::Truncate { max_len: 60 }, output()]));
    }
}
