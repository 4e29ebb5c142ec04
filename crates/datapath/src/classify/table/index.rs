//! Indexes of the flows by some of the bits that they match: whoever asks which flows a rule can be about finds them
//! without looking at all.
//!
//! An index is for rules of one kind: it has the bits that they match. A flow is in it under the values that it has in
//! those of these bits that its own mask has, too, and under its subtable. So a rule finds the flows of each subtable
//! that agree with it by one look-up. Flows with equal values are a chain, however many they are, so that inserting and
//! removing one takes a few steps at most.
//!
//! Everything in here is changed and read under the table's mutex. An index is made when it is asked for, filled by a
//! walk over all flows, and kept up to date from its beginning. So it has every flow as soon as that walk has ended.

use std::time::Duration;

use hashbrown::HashMap;
use packet::flow::BlockId;
use packet::flow::hash::Hasher;
use packet::{Field, Key, Mask, Time};

use super::flow_ref::FlowRef;
use super::subtable::Subtable;

/// Most indexes. Each takes about 16 bytes for a flow, and some of the time that it takes to insert one.
const MOST: usize = 4;

/// An index that nobody has asked for so long is dropped.
const KEPT: Duration = Duration::from_secs(60);

/// An index is not given up for another one if it was used so recently.
const IN_USE: Duration = Duration::from_secs(2);

/// An index with more flows than this for each of its heads is dropped, since its chains get long.
const CROWDED: usize = 4;

/// Links in a block.
const BLOCK: usize = 1 << 10;

/// Fields that most rules match and that tell few flows apart. Without them, fewer kinds of rules are different.
const COARSE: [Field; 4] = [Field::PacketType, Field::DlType, Field::NwProto, Field::NwFrag];

/// All indexes.
#[derive(Default)]
pub(in crate::classify) struct Indexes {
    all: Vec<Index>,
    /// The number of the next index.
    next: u64,
}

/// An index for rules of one kind.
pub(in crate::classify) struct Index {
    /// Its number. None is used twice.
    number: u64,
    /// The bits that rules match.
    bits: Mask,
    /// The first flow of each chain. A power of two.
    heads: Box<[FlowRef]>,
    /// By flow number.
    links: Vec<Option<Box<[Link]>>>,
    /// By address of the subtable.
    subtables: HashMap<usize, Projected>,
    flows: usize,
    used: Time,
    /// Whether every flow is in it.
    pub is_complete: bool,
}

/// Where a flow is in its chain.
#[derive(Clone, Copy)]
struct Link {
    hash: u32,
    /// [`ABSENT`] where the flow is not in the index.
    next: u32,
    previous: u32,
}

const ABSENT: Link = Link { hash: 0, next: u32::MAX, previous: 0 };

/// The index's bits that flows of one subtable match.
struct Projected {
    words: Vec<(BlockId, usize, u64)>,
    /// Tells subtables apart.
    seed: u64,
}

/// A place in a chain: the flow that is to be looked at next.
#[derive(Clone, Copy)]
pub(in crate::classify) struct Cursor {
    hash: u32,
    flow: FlowRef,
}

/// The bits by which flows are found that a rule with this mask can be about; `None` where there are none.
///
/// Only whole groups of four bits are used, so that prefixes of nearly the same length share an index.
pub(in crate::classify) fn indexed_bits(mask: &Mask) -> Option<Mask> {
    let mut bits = Mask::wildcard();
    for block in mask.blocks().iter() {
        let words = mask.0.block(block).words().map(whole_nibbles);
        if words != [0; 8] {
            *bits.0.block_mut(block).words_mut() = words;
        }
    }
    let is_empty = |mask: &Mask| mask.blocks().iter().all(|block| mask.0.block(block).is_zero());
    let mut fine = bits.clone();
    COARSE.into_iter().for_each(|field| fine.clear(field));
    [fine, bits].into_iter().find(|bits| !is_empty(bits))
}

/// The groups of four bits that are all set.
fn whole_nibbles(word: u64) -> u64 {
    let all = word & word >> 1 & word >> 2 & word >> 3 & 0x1111_1111_1111_1111;
    all * 0xf
}

impl Projected {
    fn new(bits: &Mask, subtable: &Subtable, address: usize, hasher: &Hasher) -> Projected {
        let words = bits.blocks().iter().flat_map(|block| {
            let (rules, flows) = (bits.0.block(block).words(), subtable.mask.0.block(block).words());
            (0..8).map(move |word| (block, word, rules[word] & flows[word])).filter(|(_, _, bits)| *bits != 0)
        });
        Projected { words: words.collect(), seed: hasher.pair([address as u64, 0], 0) }
    }

    /// Hash of the values that a key has in these bits.
    fn hash(&self, hasher: &Hasher, key: &Key) -> u32 {
        let add = |hash, &(block, word, bits): &(BlockId, usize, u64)| {
            hasher.pair([hash, key.block(block).words()[word] & bits], 0)
        };
        self.words.iter().fold(self.seed, add) as u32
    }
}

fn address(subtable: &Subtable) -> usize {
    std::ptr::from_ref(subtable).addr()
}

impl Indexes {
    /// The number of the index for rules that match these bits. Where there is none, one is made for so many flows, with
    /// none in it yet. `None` where there are too many.
    pub fn get_or_make(&mut self, bits: &Mask, flows: usize, now: Time) -> Option<u64> {
        if let Some(index) = self.all.iter_mut().find(|index| index.bits == *bits) {
            index.used = now;
            return Some(index.number);
        }
        if self.all.len() == MOST {
            let (oldest, index) = self.all.iter().enumerate().min_by_key(|(_, index)| index.used)?;
            if now.since(index.used) < IN_USE {
                return None;
            }
            self.all.swap_remove(oldest);
        }
        self.next += 1;
        self.all.push(Index {
            number: self.next,
            bits: bits.clone(),
            heads: vec![FlowRef::NONE; (flows + flows / 2).max(64).next_power_of_two()].into(),
            links: Vec::new(),
            subtables: HashMap::new(),
            flows: 0,
            used: now,
            is_complete: false,
        });
        Some(self.next)
    }

    /// The index with this number, unless it has been dropped.
    pub fn get(&mut self, number: u64) -> Option<&mut Index> {
        self.all.iter_mut().find(|index| index.number == number)
    }

    /// Adds a new flow to each index.
    #[inline]
    pub fn insert(&mut self, flow: FlowRef, subtable: &Subtable, key: &Key, hasher: &Hasher) {
        if self.all.is_empty() {
            return;
        }
        self.all.iter_mut().for_each(|index| index.insert(flow, subtable, key, hasher));
        self.all.retain(|index| index.flows <= CROWDED * index.heads.len());
    }

    /// Removes a flow from each index.
    #[inline]
    pub fn remove(&mut self, flow: FlowRef) {
        self.all.iter_mut().for_each(|index| index.remove(flow));
    }

    /// Forgets a subtable without flows.
    pub fn forget(&mut self, subtable: &Subtable) {
        self.all.iter_mut().for_each(|index| drop(index.subtables.remove(&address(subtable))));
    }

    /// Takes out the indexes that nobody has asked for lately, to be dropped without the mutex.
    pub fn take_unused(&mut self, now: Time) -> Vec<Index> {
        self.all.extract_if(.., |index| now.since(index.used) > KEPT).collect()
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

impl Index {
    /// Adds a flow by its key, masked or not, unless it is there.
    pub fn insert(&mut self, flow: FlowRef, subtable: &Subtable, key: &Key, hasher: &Hasher) {
        let at = flow.index();
        if self.links.len() <= at / BLOCK {
            self.links.resize_with(at / BLOCK + 1, || None);
        }
        let block = self.links[at / BLOCK].get_or_insert_with(|| vec![ABSENT; BLOCK].into());
        if block[at % BLOCK].next != ABSENT.next {
            return;
        }
        let address = address(subtable);
        let projected = self.subtables.entry(address);
        let projected = projected.or_insert_with(|| Projected::new(&self.bits, subtable, address, hasher));
        let hash = projected.hash(hasher, key);
        let head = &mut self.heads[hash as usize & (self.heads.len() - 1)];
        let next = std::mem::replace(head, flow);
        block[at % BLOCK] = Link { hash, next: next.0, previous: 0 };
        if next != FlowRef::NONE {
            self.link(next).previous = flow.0;
        }
        self.flows += 1;
    }

    /// Whether a flow is in it.
    pub fn has(&self, flow: FlowRef) -> bool {
        self.find(flow).is_some()
    }

    fn find(&self, flow: FlowRef) -> Option<&Link> {
        let at = flow.index();
        let link = &self.links.get(at / BLOCK)?.as_ref()?[at % BLOCK];
        (link.next != ABSENT.next).then_some(link)
    }

    fn remove(&mut self, flow: FlowRef) {
        let Some(&Link { hash, next, previous }) = self.find(flow) else { return };
        match previous {
            0 => self.heads[hash as usize & (self.heads.len() - 1)] = FlowRef(next),
            _ => self.link(FlowRef(previous)).next = next,
        }
        if next != 0 {
            self.link(FlowRef(next)).previous = previous;
        }
        *self.link(flow) = ABSENT;
        self.flows -= 1;
    }

    fn link(&mut self, flow: FlowRef) -> &mut Link {
        let at = flow.index();
        &mut self.links[at / BLOCK].as_mut().expect("flows of a chain have links")[at % BLOCK]
    }

    /// How many subtables a look-up visits.
    pub fn subtables(&self) -> usize {
        self.subtables.len()
    }

    /// Appends where the chains of the flows begin that can agree with a value. They have other flows, too.
    pub fn look_up(&self, value: &Key, hasher: &Hasher, chains: &mut Vec<Cursor>) {
        for projected in self.subtables.values() {
            let hash = projected.hash(hasher, value);
            let flow = self.heads[hash as usize & (self.heads.len() - 1)];
            if flow != FlowRef::NONE {
                chains.push(Cursor { hash, flow });
            }
        }
    }

    /// The flow at a place, if it can agree with the value, and the next place. `None` where the place has been lost
    /// since the mutex was held last: the flow was removed. A flow that has come back is at the beginning of its chain, and all
    /// that was after it is so still.
    pub fn follow(&self, at: Cursor) -> Option<(Option<FlowRef>, Option<Cursor>)> {
        let link = self.find(at.flow)?;
        if (link.hash ^ at.hash) as usize & (self.heads.len() - 1) != 0 {
            return None;
        }
        let next = (link.next != 0).then_some(Cursor { flow: FlowRef(link.next), ..at });
        Some(((link.hash == at.hash).then_some(at.flow), next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_rules_that_tell_flows_apart_alike_share_an_index() {
        let bits = |fields: &[(Field, u128)]| {
            let mut mask = Mask::wildcard();
            fields.iter().for_each(|&(field, bits)| mask.add(field, bits));
            indexed_bits(&mask)
        };
        let (ip, udp) = ((Field::DlType, 0xffff), (Field::NwProto, 0xff));
        let source = |bits: u128| (Field::NwSrc, bits);
        let whole = bits(&[source(0xffff_ffff)]);
        assert!(whole.is_some() && whole == bits(&[ip, udp, source(0xffff_ffff)]));
        assert_eq!(bits(&[source(0xffff_fe00)]), bits(&[source(0xffff_f000)]));
        assert_ne!(bits(&[source(0xffff_0000)]), whole);
        assert_eq!(bits(&[source(0x8000_0000)]), None);
        assert!(bits(&[ip, udp]).is_some_and(|bits| bits.is_exact(Field::DlType)), "nothing else is there");
        let id = bits(&[(Field::VlanTci, 0x1fff)]).unwrap();
        assert_eq!(id.get(Field::VlanTci), 0xfff);
    }
}
