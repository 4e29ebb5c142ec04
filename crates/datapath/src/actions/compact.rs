//! Compact rewrites: the form that the most frequent programs take, where each packet of a batch belongs to another
//! flow.
//!
//! A router writes both Ethernet addresses and decrements the TTL; a switch pushes or removes a VLAN tag. Such a
//! program is a masked store of the first 12 bytes of the frame, a store of the tag, and a TTL with its checksum. It
//! reads all that it needs from the frame itself: no key is extracted, and the steps are not gone through. All of it
//! is in the first cache line of its [`Program`](super::program::Program).
//!
//! A frame that is not what a compact rewrite is made for, such as one with IP options, is left as it is, and its
//! program is executed step by step. That has the same result for all other frames, too.

use packet::{Offload, Packet};
use zerocopy::IntoBytes;

use super::program::Step;
use super::rewrite::{Rewriter, ip_ttl, shift_offload};
use crate::action::PortNo;

/// Bytes of the two Ethernet addresses.
const ADDRESSES: usize = 12;

/// Bytes of a frame with a VLAN tag and an IPv4 header. Shorter frames are rewritten step by step.
const MIN_FRAME: usize = 14 + TAG + 20;

/// Bytes of a VLAN tag.
const TAG: usize = 4;

const IPV4: u16 = 0x0800;

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

/// A compact rewrite, and the port that the packet is sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactRewrite {
    /// The Ethernet addresses that are written, as they lie in memory: the first eight bytes, and the other four.
    /// Zeros where `keep` has ones.
    addresses: (u64, u32),
    /// The bits of the addresses that stay.
    keep: (u64, u32),
    /// The tag that is pushed, as it lies in memory.
    tag: u32,
    /// The output port.
    port: PortNo,
    /// The TTL, and which of its bits are written.
    ttl: (u8, u8),
    tag_change: TagChange,
}

impl CompactRewrite {
    /// The compact form of a program with these steps, whose packet is then sent to `port`.
    pub fn new(steps: &[Step], port: PortNo) -> Option<CompactRewrite> {
        let mut rewrite = CompactRewrite {
            addresses: (0, 0),
            keep: (u64::MAX, u32::MAX),
            tag: 0,
            port,
            ttl: (0, 0),
            tag_change: TagChange::None,
        };
        for step in steps {
            match step {
                Step::Rewrite(rewriter) => rewrite.add(rewriter)?,
                Step::PopVlan if rewrite.tag_change == TagChange::None => rewrite.tag_change = TagChange::Pop,
                Step::PushVlan { tpid, tci } => {
                    rewrite.tag_change = match rewrite.tag_change {
                        TagChange::None => TagChange::Push,
                        TagChange::Pop => TagChange::Replace,
                        TagChange::Push | TagChange::Replace => return None,
                    };
                    let [a, b] = tpid.to_be_bytes();
                    let [c, d] = tci.to_be_bytes();
                    rewrite.tag = u32::from_ne_bytes([a, b, c, d]);
                }
                _ => return None,
            }
        }
        Some(rewrite)
    }

    /// Adds what a set-field writes, if that is no more than Ethernet addresses and TTL.
    fn add(&mut self, rewriter: &Rewriter) -> Option<()> {
        let (value, mask) = rewriter.addresses_and_ttl()?;
        let split = |(dst, src): ([u8; 6], [u8; 6])| {
            let mut bytes = [0; 16];
            bytes[..6].copy_from_slice(&dst);
            bytes[6..ADDRESSES].copy_from_slice(&src);
            let [a, b] = zerocopy::transmute!(bytes);
            let [b, _]: [u32; 2] = zerocopy::transmute!(u64::to_ne_bytes(b));
            (a, b)
        };
        let (written, bits) = (split(value.addresses), split(mask.addresses));
        self.addresses = (self.addresses.0 & !bits.0 | written.0, self.addresses.1 & !bits.1 | written.1);
        self.keep = (self.keep.0 & !bits.0, self.keep.1 & !bits.1);
        self.ttl = (self.ttl.0 & !mask.ttl | value.ttl, self.ttl.1 | mask.ttl);
        Some(())
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

    /// Rewrites a packet, which has the headroom to grow. `false`, and no change, where the frame is not one that this
    /// is made for.
    #[must_use]
    #[inline(always)]
    pub fn apply(&self, packet: &mut Packet) -> bool {
        let size = packet.len();
        let Some(head) = packet.data_mut().first_chunk_mut::<MIN_FRAME>() else { return false };
        // 1. Does the frame have what is to be rewritten?
        let is_tagged = matches!(word(head, ADDRESSES), 0x8100 | 0x88a8);
        if matches!(self.tag_change, TagChange::Pop | TagChange::Replace) && !is_tagged {
            return false;
        }
        if self.ttl.1 != 0 {
            let l3 = if is_tagged { 14 + TAG } else { 14 };
            // A valid header without options, as an extraction has it.
            let total = usize::from(word(head, l3 + 2));
            let padding = (size - l3).wrapping_sub(total);
            let is_whole = total >= 20 && padding <= usize::from(u16::MAX);
            if word(head, l3 - 2) != IPV4 || head[l3] != 0x45 || !is_whole {
                return false;
            }
            // 2. TTL and checksum.
            let header = head[l3..].first_chunk_mut().expect("MIN_FRAME has room for it");
            ip_ttl(header, self.ttl.0, self.ttl.1);
        }
        // 3. The first bytes, where they will be.
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *head;
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]) & self.keep.0 | self.addresses.0;
        let second = u32::from_ne_bytes([i, j, k, l]) & self.keep.1 | self.addresses.1;
        match self.tag_change {
            TagChange::None => {}
            TagChange::Replace => {
                head[ADDRESSES..ADDRESSES + TAG].copy_from_slice(self.tag.as_bytes());
                moved(packet, -(TAG as i16));
                moved(packet, TAG as i16);
            }
            TagChange::Push => {
                let Some(_) = packet.push_front(TAG) else { return false };
                packet.data_mut()[ADDRESSES..ADDRESSES + TAG].copy_from_slice(self.tag.as_bytes());
                moved(packet, TAG as i16);
            }
            TagChange::Pop => {
                packet.pull_front(TAG);
                moved(packet, -(TAG as i16));
            }
        }
        let frame = packet.data_mut();
        frame[..8].copy_from_slice(first.as_bytes());
        frame[8..ADDRESSES].copy_from_slice(second.as_bytes());
        true
    }
}

/// The headers behind the tag have moved.
#[inline(always)]
fn moved(packet: &mut Packet, by: i16) {
    if *packet.offload() != Offload::NONE {
        shift_offload(packet, by);
    }
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
    use crate::actions::program::Program;

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
                frame[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
                frame[at + 8] = ttl;
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

        /// A packet is left as it is, or is what the steps make of it.
        #[test]
        fn is_what_the_steps_are(
            frame in frame(), actions in actions(), offload in offload(), headroom in 0..9usize,
            vlan_limit in prop::sample::select(VlanLimit::ALL.to_vec()),
        ) {
            let program = Program::compile(&actions);
            let Some(compact) = program.compact() else {
                // Without anything that is left to do, there is nothing to be compact.
                prop_assert!(false, "{actions:?} has a compact form");
                return Ok(());
            };
            prop_assert_eq!((compact.port(), compact.growth()), (OUTPUT, program.growth() * u32::from(!actions.contains(&Action::PopVlan))));
            let [mut one, mut other, untouched] = [(); 3].map(|()| packet(&frame, headroom, offload));
            if headroom < compact.growth() as usize {
                return Ok(());
            }
            if compact.apply(&mut one) {
                step_by_step(&program, &mut other, vlan_limit);
                prop_assert_eq!((parts(&one).0, parts(&one).1), (parts(&other).0, parts(&other).1));
            } else {
                prop_assert_eq!(parts(&one), parts(&untouched));
            }
        }

        /// Plain packets are rewritten by the compact form, with one tag and without.
        #[test]
        fn is_made_for_plain_packets(actions in actions(), tags in 0..3usize, ttl in any::<u8>(), size in 20..60u16) {
            let mut frame = vec![2; ADDRESSES];
            frame.extend([0x81, 0, 0, 10].repeat(tags).iter().chain(&[8, 0, 0x45, 0]));
            frame.extend(size.to_be_bytes().iter().chain(&[0, 0, 0x40, 0, ttl, 17]));
            frame.resize(frame.len() + usize::from(size) - 10, 0);
            prop_assume!(frame.len() >= MIN_FRAME);
            let program = Program::compile(&actions);
            let applied = program.compact().expect("it has one").apply(&mut packet(&frame, 4, Offload::NONE));
            prop_assert!(applied || !suits(&actions, tags));
        }
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
        assert!(!is_compact(&[output(), push(), output()]) && !is_compact(&[push(), Action::Recirc(1)]));
        assert!(!is_compact(&[push(), Action::Truncate { max_len: 60 }, output()]));
    }
}
