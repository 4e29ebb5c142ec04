//! The metadata of recirculated packets, in arrays beside the batch.
//!
//! Metadata are the fields of a key that do not come from the frame. Input port, recirculation id, packet type, hash,
//! mark and priority are the last three words of a key's common block. Connection tracking and the tunnel have blocks
//! of their own, for which memory is allocated only at a worker's first packet that has such a block.

use packet::flow::{Block, BlockId, Blocks, block};
use packet::{BATCH_SIZE, Key};

use crate::classify::cpu::simd::Simd;
use crate::port_no::PortNo;

/// The blocks of a key that do not come from the frame.
pub const CARRIED_BLOCKS: [BlockId; 6] =
    [BlockId::Ct, BlockId::Tunnel, BlockId::TunMeta0, BlockId::TunMeta1, BlockId::TunMeta2, BlockId::TunMeta3];

/// Those of them that say what the headers of a tunnel said.
pub const TUNNEL_BLOCKS: [BlockId; 5] =
    [BlockId::Tunnel, BlockId::TunMeta0, BlockId::TunMeta1, BlockId::TunMeta2, BlockId::TunMeta3];

/// Where metadata begins in the common block, in words.
const FIRST_WORD: usize = std::mem::offset_of!(packet::flow::block::Common, in_port) / 8;
const COMMON_WORDS: usize = 8 - FIRST_WORD;

const _: () = assert!(std::mem::offset_of!(packet::flow::block::Common, in_port) == 40, "the last 24 bytes");

/// Half words of metadata, as [`Metadata::half_word`] numbers them.
pub const HALF_WORDS: usize = 2 * COMMON_WORDS + CARRIED_BLOCKS.len() * BLOCK_HALF_WORDS;
/// Half words of a block.
const BLOCK_HALF_WORDS: usize = 16;
/// The number of the packet type.
pub const PACKET_TYPE: usize = 2;

/// The part of a key's metadata that lies in the common block.
type Common = [u64; COMMON_WORDS];

/// The blocks of one packet, of which only those that are present mean anything.
type CarriedBlocks = [Block; CARRIED_BLOCKS.len()];

/// What the headers of a tunnel said about a packet that has left it.
pub struct Tunnelled {
    /// All but the options.
    pub block: block::Tunnel,
    /// The rest.
    pub rest: TunnelledRest,
}

/// What of [`Tunnelled`] has no place in the tunnel's block.
pub struct TunnelledRest {
    /// The options.
    pub options: TunnelOptions,
    /// The packet type of what was carried.
    pub packet_type: u32,
}

/// The options of a packet that has left a tunnel.
pub struct TunnelOptions {
    bytes: [u8; OPTIONS],
    len: u8,
}

/// Bytes of the blocks that options lie in: as they were on the wire, and their length in the last byte.
const OPTIONS: usize = 256;
/// The upper half of a tunnel's number, in its block, in half words.
const TUN_ID: usize = std::mem::offset_of!(block::Tunnel, tun_id) / 4;

/// The places of a tunnel's block, and of the first block of options.
const TUNNEL: usize = 1;
const FIRST_OPTIONS: usize = 2;

impl Default for Tunnelled {
    fn default() -> Tunnelled {
        let options = TunnelOptions { bytes: [0; OPTIONS], len: 0 };
        Tunnelled { block: zerocopy::FromZeros::new_zeroed(), rest: TunnelledRest { options, packet_type: 0 } }
    }
}

impl TunnelOptions {
    /// Sets the options, of at most 252 bytes.
    #[inline(always)]
    pub fn set(&mut self, options: &[u8]) {
        self.len = 0;
        if !options.is_empty() {
            self.copy(options);
        }
    }

    #[inline(never)]
    fn copy(&mut self, options: &[u8]) {
        let Some(place) = self.bytes[..OPTIONS - 1].get_mut(..options.len()) else { return };
        place.copy_from_slice(options);
        self.bytes[options.len()..].fill(0);
        self.len = options.len() as u8;
        self.bytes[OPTIONS - 1] = self.len;
    }
}

/// The metadata of a batch.
pub struct Metadata {
    common: [Common; BATCH_SIZE],
    /// Which further blocks each packet has.
    present: [Blocks; BATCH_SIZE],
    /// These blocks. Allocated at the first packet that has any, and kept.
    blocks: Option<Box<[CarriedBlocks; BATCH_SIZE]>>,
}

impl Default for Metadata {
    /// The metadata of an empty batch.
    fn default() -> Metadata {
        Metadata { common: [[0; COMMON_WORDS]; BATCH_SIZE], present: [Blocks::COMMON; BATCH_SIZE], blocks: None }
    }
}

impl Metadata {
    /// Copies the metadata of a packet's key, with another recirculation id.
    #[inline(always)]
    pub fn take(&mut self, i: usize, key: &Key, recirc_id: u32) {
        self.common[i] = common_of(key, recirc_id);
        self.present[i] = Blocks::COMMON;
        if carries_blocks(key) {
            self.take_blocks(i, key);
        }
    }

    /// As [`take`](Metadata::take), for a packet that has left a tunnel whose port receives it.
    #[inline(always)]
    pub fn take_tunnelled(&mut self, i: usize, in_port: PortNo, tunnelled: &Tunnelled) {
        *self.tunnel_mut(i) = tunnelled.block;
        self.finish_tunnelled(i, in_port, &tunnelled.rest);
    }

    /// The place for what the headers of a tunnel said about a packet, all but the options.
    /// [`finish_tunnelled`](Metadata::finish_tunnelled) has to follow.
    #[inline(always)]
    pub fn tunnel_mut(&mut self, i: usize) -> &mut block::Tunnel {
        zerocopy::transmute_mut!(&mut self.blocks.get_or_insert_with(no_blocks)[i][TUNNEL])
    }

    /// As [`take_tunnelled`](Metadata::take_tunnelled), where the tunnel's block is in place.
    #[inline(always)]
    pub fn finish_tunnelled(&mut self, i: usize, in_port: PortNo, rest: &TunnelledRest) {
        self.finish_plain(i, in_port);
        let [a, b, c, d] = rest.packet_type.to_be_bytes();
        self.common[i][PACKET_TYPE / 2] = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        if rest.options.len != 0 {
            self.take_options(i, &rest.options);
        }
    }

    /// As [`finish_tunnelled`](Metadata::finish_tunnelled), for a frame of Ethernet that came without options.
    #[inline(always)]
    pub fn finish_plain(&mut self, i: usize, in_port: PortNo) {
        let [a, b, c, d] = in_port.0.to_be_bytes();
        self.common[i] = [0; COMMON_WORDS];
        self.common[i][0] = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        self.present[i] = Blocks::COMMON.with(BlockId::Tunnel);
    }

    /// As [`finish_plain`](Metadata::finish_plain), for one that came with options, at most 252 bytes of them.
    #[inline]
    pub fn finish_with_options(&mut self, i: usize, in_port: PortNo, options: &[u8]) {
        self.finish_plain(i, in_port);
        if options.is_empty() {
            return;
        }
        let blocks = &mut self.blocks.get_or_insert_with(no_blocks)[i];
        let mut rest = options;
        for (at, Block(bytes)) in blocks[FIRST_OPTIONS..].iter_mut().enumerate() {
            let (part, later) = rest.split_at(rest.len().min(bytes.len()));
            bytes[..part.len()].copy_from_slice(part);
            bytes[part.len()..].fill(0);
            rest = later;
            self.present[i] = self.present[i].with(CARRIED_BLOCKS[FIRST_OPTIONS + at]);
        }
        if let Some(Block(last)) = blocks.last_mut() {
            last[63] = options.len() as u8;
        }
    }

    #[inline(never)]
    fn take_options(&mut self, i: usize, options: &TunnelOptions) {
        let blocks = self.blocks.get_or_insert_with(no_blocks);
        for (at, bytes) in options.bytes.as_chunks::<64>().0.iter().enumerate() {
            blocks[i][FIRST_OPTIONS + at] = Block(*bytes);
            self.present[i] = self.present[i].with(CARRIED_BLOCKS[FIRST_OPTIONS + at]);
        }
    }

    /// Whether a packet has left the tunnel with the same headers as this one.
    pub fn is_tunnelled_by(&self, i: usize, tunnelled: &Tunnelled) -> bool {
        let Some(blocks) = &self.blocks else { return false };
        let has_options = self.present[i].has(CARRIED_BLOCKS[FIRST_OPTIONS]);
        let same_options = || {
            let options = tunnelled.rest.options.bytes.as_chunks::<64>().0;
            options.iter().zip(&blocks[i][FIRST_OPTIONS..]).all(|(bytes, block)| block.0 == *bytes)
        };
        self.present[i].has(BlockId::Tunnel)
            && blocks[i][TUNNEL] == Block(zerocopy::transmute!(tunnelled.block))
            && self.packet_type(i) == tunnelled.rest.packet_type
            && has_options == (tunnelled.rest.options.len != 0)
            && (!has_options || same_options())
    }

    #[inline(never)]
    fn take_blocks(&mut self, i: usize, key: &Key) {
        let blocks = self.blocks.get_or_insert_with(no_blocks);
        let mut present = Blocks::COMMON;
        for (at, id) in CARRIED_BLOCKS.into_iter().enumerate().filter(|&(_, id)| key.present().has(id)) {
            blocks[i][at] = *key.block(id);
            present = present.with(id);
        }
        self.present[i] = present;
    }

    /// Resets a key to the metadata of a packet. An extraction completes it.
    #[inline(always)]
    pub fn start(&self, i: usize, key: &mut Key) {
        key.reset();
        key.common_words_mut()[FIRST_WORD..].copy_from_slice(&self.common[i]);
        if self.present[i].0 != Blocks::COMMON.0 {
            self.start_blocks(i, key);
        }
    }

    #[inline(never)]
    fn start_blocks(&self, i: usize, key: &mut Key) {
        let Some(blocks) = &self.blocks else { return };
        for (at, id) in CARRIED_BLOCKS.into_iter().enumerate().filter(|&(_, id)| self.present[i].has(id)) {
            *key.block_mut(id) = blocks[i][at];
        }
    }

    /// Whether two packets have the same metadata.
    #[inline(always)]
    pub fn is_same<S: Simd>(&self, simd: S, i: usize, j: usize) -> bool {
        let common = self.common[i].iter().zip(&self.common[j]).fold(0, |differ, (a, b)| differ | a ^ b);
        common == 0
            && self.present[i].0 == self.present[j].0
            && (self.present[i].0 == Blocks::COMMON.0 || self.has_same_blocks(simd, i, j))
    }

    #[inline(always)]
    fn has_same_blocks<S: Simd>(&self, simd: S, i: usize, j: usize) -> bool {
        match &self.blocks {
            Some(blocks) if self.present[i].0 == Blocks::COMMON.with(BlockId::Tunnel).0 => {
                let (one, other) = (simd.load_bytes(&blocks[i][TUNNEL].0), simd.load_bytes(&blocks[j][TUNNEL].0));
                !simd.differs_at_all(one, other)
            }
            _ => self.has_same_of_any(i, j),
        }
    }

    #[inline(never)]
    fn has_same_of_any(&self, i: usize, j: usize) -> bool {
        let has = |at: usize| self.present[i].has(CARRIED_BLOCKS[at]);
        let Some(blocks) = &self.blocks else { return true };
        (0..CARRIED_BLOCKS.len()).filter(|&at| has(at)).all(|at| blocks[i][at] == blocks[j][at])
    }

    /// Whether a packet is an Ethernet frame (packet type zero).
    #[inline(always)]
    pub fn is_ethernet(&self, i: usize) -> bool {
        self.packet_type(i) == 0
    }

    /// Whether a packet is an Ethernet frame that has just come out of a tunnel: it has no metadata but the tunnel's, and the upper half of that one's number
    /// is zero, as that of each tunnel is whose headers are read.
    #[inline(always)]
    pub fn is_out_of_tunnel(&self, i: usize) -> bool {
        let Some(blocks) = &self.blocks else { return false };
        let others = self.common[i][1..].iter().fold(0, |others, word| others | word);
        let upper = half(blocks[i][TUNNEL].words()[TUN_ID / 2], TUN_ID);
        let present = self.present[i];
        others == 0 && upper == 0 && present.has(BlockId::Tunnel) && !present.has(BlockId::Ct)
    }

    #[inline(always)]
    fn packet_type(&self, i: usize) -> u32 {
        u32::from_be(half(self.common[i][PACKET_TYPE / 2], PACKET_TYPE))
    }

    /// Calls `take` with a half word of each of some packets: as [`half_word`](Metadata::half_word), without what is the same for all.
    #[inline(always)]
    pub fn each_half_word(&self, number: usize, of: impl Iterator<Item = usize>, mut take: impl FnMut(usize, u32)) {
        match (number.checked_sub(2 * COMMON_WORDS), &self.blocks) {
            (None, _) => of.for_each(|i| take(i, half(self.common[i][number / 2], number))),
            (Some(number), Some(blocks)) => {
                let (block, word) = (number / BLOCK_HALF_WORDS, number % BLOCK_HALF_WORDS / 2);
                of.for_each(|i| {
                    let has = self.present[i].has(CARRIED_BLOCKS[block]);
                    take(i, if has { half(blocks[i][block].words()[word], number) } else { 0 });
                });
            }
            (Some(_), None) => of.for_each(|i| take(i, 0)),
        }
    }

    /// Four bytes of a packet's metadata, in memory order. They are numbered from the input port in the common block
    /// on; those of each further block follow.
    #[inline(always)]
    pub fn half_word(&self, i: usize, number: usize) -> u32 {
        match number.checked_sub(2 * COMMON_WORDS) {
            None => half(self.common[i][number / 2], number),
            Some(number) => {
                let at = number / BLOCK_HALF_WORDS;
                match &self.blocks {
                    Some(blocks) if self.present[i].has(CARRIED_BLOCKS[at]) => {
                        half(blocks[i][at].words()[number % BLOCK_HALF_WORDS / 2], number)
                    }
                    _ => 0,
                }
            }
        }
    }
}

fn common_of(key: &Key, recirc_id: u32) -> Common {
    let mut common: Common = std::array::from_fn(|i| key.common_words()[FIRST_WORD + i]);
    // Two numbers in network byte order: the port, then the recirculation id.
    let [a, b, c, d, ..] = common[0].to_ne_bytes();
    let [e, f, g, h] = recirc_id.to_be_bytes();
    common[0] = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    common
}

/// Whether a key has metadata outside of its common block.
#[inline(always)]
fn carries_blocks(key: &Key) -> bool {
    const ANY: u16 = {
        let (mut any, mut i) = (0, 0);
        while i < CARRIED_BLOCKS.len() {
            any |= 1 << CARRIED_BLOCKS[i] as u16;
            i += 1;
        }
        any
    };
    key.present().0 & ANY != 0
}

#[cold]
fn no_blocks() -> Box<[CarriedBlocks; BATCH_SIZE]> {
    Box::new([[Block::ZERO; CARRIED_BLOCKS.len()]; BATCH_SIZE])
}

/// The first or second half of a word, in memory order.
#[inline(always)]
fn half(word: u64, number: usize) -> u32 {
    let is_first = number.is_multiple_of(2);
    let is_low = is_first == cfg!(target_endian = "little");
    if is_low { word as u32 } else { (word >> 32) as u32 }
}

/// The half words of a mask's metadata, numbered as those of packets. Left out are the input port and the
/// recirculation id, which all packets of a stage have in common, and the packet type, which is checked separately.
pub fn half_words_of(mask: &packet::Mask) -> impl Iterator<Item = (usize, u32)> + '_ {
    let of_block = |id: BlockId| mask.0.block(id).words();
    (PACKET_TYPE + 1..HALF_WORDS).filter_map(move |number| {
        let bits = match number.checked_sub(2 * COMMON_WORDS) {
            None => half(of_block(BlockId::Common)[FIRST_WORD + number / 2], number),
            Some(of_blocks) => {
                let id = CARRIED_BLOCKS[of_blocks / BLOCK_HALF_WORDS];
                half(of_block(id)[of_blocks % BLOCK_HALF_WORDS / 2], number)
            }
        };
        (bits != 0).then_some((number, bits))
    })
}

/// As [`half_words_of`], for packets that have just come out of a tunnel: without what is zero for all of these
/// ([`Metadata::is_out_of_tunnel`]).
pub fn half_words_of_tunnel(mask: &packet::Mask) -> impl Iterator<Item = (usize, u32)> + '_ {
    let of_tunnel = 2 * COMMON_WORDS + TUNNEL * BLOCK_HALF_WORDS;
    half_words_of(mask).filter(move |&(number, _)| number >= of_tunnel && number != of_tunnel + TUN_ID)
}

/// The metadata of a single packet: one that waits for earlier ones of its connection, or that the management
/// injects.
pub struct OwnMetadata {
    common: Common,
    /// The whole key, where the packet has further blocks.
    blocks: Option<Box<Key>>,
}

impl OwnMetadata {
    /// Copies the metadata of a key. `spare`: allocated keys that may be used for it.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    pub fn of(key: &Key, spare: &mut Vec<Box<Key>>) -> OwnMetadata {
        let blocks = carries_blocks(key).then(|| {
            let mut own = spare.pop().unwrap_or_default();
            Key::clone_from(&mut own, key);
            own
        });
        OwnMetadata { common: common_of(key, key.common().recirc_id.get()), blocks }
    }

    /// The input port.
    pub fn in_port(&self) -> PortNo {
        PortNo(u32::from_be(half(self.common[0], 0)))
    }

    /// The recirculation id.
    pub fn recirc_id(&self) -> u32 {
        u32::from_be(half(self.common[0], 1))
    }

    /// Resets a key to this metadata. An extraction completes it.
    pub fn start(&self, key: &mut Key) {
        key.reset();
        key.common_words_mut()[FIRST_WORD..].copy_from_slice(&self.common);
        if let Some(from) = &self.blocks {
            for id in CARRIED_BLOCKS.into_iter().filter(|&id| from.present().has(id)) {
                *key.block_mut(id) = *from.block(id);
            }
        }
    }

    /// The allocated key, for reuse.
    pub fn into_spare(self) -> Option<Box<Key>> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use packet::{Field, Mask};
    use proptest::prelude::*;

    use super::*;
    use crate::classify::cpu::simd::Portable;

    const FIELDS: [Field; 8] = [
        Field::InPortOxm,
        Field::PktMark,
        Field::DpHash,
        Field::SkbPriority,
        Field::CtMark,
        Field::CtZone,
        Field::TunId,
        Field::NwSrc,
    ];

    fn key(values: &[u8; 8]) -> Key {
        let mut key = Key::new();
        for (field, &value) in FIELDS.into_iter().zip(values) {
            if value != 0 {
                key.set(field, value.into());
            }
        }
        key
    }

    proptest! {
        /// A key that was reset to the metadata of another equals it in all metadata, but for the new recirculation
        /// id.
        #[test]
        fn what_is_taken_comes_back(values: [u8; 8], before: [u8; 8], i in 0..BATCH_SIZE, id: u32) {
            let mut metadata = Metadata::default();
            metadata.take(i, &key(&before), 1);
            metadata.take(i, &key(&values), id);
            let own = OwnMetadata::of(&key(&values), &mut Vec::new());
            let (mut started, mut by_itself) = (key(&before), key(&before));
            metadata.start(i, &mut started);
            own.start(&mut by_itself);
            for field in FIELDS[..7].iter().copied() {
                let expected = key(&values).get(field);
                prop_assert_eq!(started.get(field), expected, "{:?}", field);
                prop_assert_eq!(by_itself.get(field), expected, "{:?}", field);
            }
            prop_assert_eq!(started.common().recirc_id.get(), id);
            prop_assert_eq!((own.in_port().0, own.recirc_id()), (u32::from(values[0]), 0));
        }

        /// Half words under a mask tell packets apart exactly where the fields of the mask do.
        #[test]
        fn half_words_are_the_fields(a: [u8; 8], b: [u8; 8], matched: [bool; 8]) {
            let mut mask = Mask::wildcard();
            FIELDS.into_iter().zip(matched).filter(|m| m.1).for_each(|(field, _)| mask.set_exact(field));
            let mut metadata = Metadata::default();
            metadata.take(0, &key(&a), 7);
            metadata.take(1, &key(&b), 7);
            let same = half_words_of(&mask)
                .all(|(n, bits)| metadata.half_word(0, n) & bits == metadata.half_word(1, n) & bits);
            // The input port is that of the stage, and addresses come from the frame.
            let differs = (1..7).any(|f| matched[f] && a[f] != b[f]);
            prop_assert_eq!(same, !differs);
            prop_assert_eq!(metadata.is_same(Portable, 0, 1), a[..7] == b[..7] || {
                // A block of zeros that is present is not the same as none.
                metadata.common[0] == metadata.common[1] && metadata.present[0].0 == metadata.present[1].0
                    && metadata.has_same_blocks(Portable, 0, 1)
            });
        }
    }
}
