//! A binary trie over the prefixes of a field of 32 or 128 bits, in host order with the first bit on the left.
//!
//! It answers how many leading bits of a value have to be looked at to tell which prefix lengths in
//! use could match it. The classifier needs this to skip subtables without matching all of an address
//! (docs/decisions: "wildcards as OVS computes them").

use std::fmt::Debug;
use std::ops::{BitAnd, BitOr, BitXor, Not};

/// A value of a field with a trie.
pub trait Word:
    Copy + Debug + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
    /// Number of bits.
    const BITS: u8;
    /// No bit.
    const ZERO: Self;
    /// All bits.
    const ALL: Self;

    /// Moved to the left; nothing is left of it when that is by all bits or more.
    fn shl(self, n: u8) -> Self;
    /// Moved to the right, likewise.
    fn shr(self, n: u8) -> Self;
    /// Number of leading bits that are zero.
    fn leading_zeros(self) -> u8;

    /// The first `n` bits.
    fn keep(self, n: u8) -> Self {
        self & !Self::ALL.shr(n)
    }

    /// The bit at a place, from the left.
    fn bit(self, at: u8) -> usize {
        usize::from(at < Self::BITS && self.shl(at).leading_zeros() == 0)
    }

    /// The bit that stands for prefixes of a length of one or more.
    fn length(len: u8) -> Self {
        debug_assert!(len > 0);
        let first = Self::ALL & !Self::ALL.shr(1);
        first.shr(Self::BITS - len)
    }
}

macro_rules! word {
    ($($of:ty)*) => {$(
        impl Word for $of {
            const BITS: u8 = <$of>::BITS as u8;
            const ZERO: $of = 0;
            const ALL: $of = <$of>::MAX;

            fn shl(self, n: u8) -> $of {
                self.checked_shl(n.into()).unwrap_or(0)
            }

            fn shr(self, n: u8) -> $of {
                self.checked_shr(n.into()).unwrap_or(0)
            }

            fn leading_zeros(self) -> u8 {
                <$of>::leading_zeros(self) as u8
            }
        }
    )*};
}

word!(u32 u128);

/// The bits of a lookup that are known, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<W> {
    /// Leading bits of the value that the answer depends on.
    pub bits: u8,
    /// Bit `n - 1` is set when a prefix of length `n` in the trie covers the value.
    pub lengths: W,
}

impl<W: Word> Answer<W> {
    /// Whether some prefix of this length covers the value. Length zero is not tracked.
    pub fn covers(&self, len: u8) -> bool {
        self.lengths & W::length(len) != W::ZERO
    }
}

/// The trie. Each prefix is counted, so that equal ones may be added and removed independently.
///
/// A table of a million rules has as many prefixes, and a walk waits for each node to come from memory. So the lower part
/// of the trie is not made of nodes: up to [`ROOM`] prefixes lie in a bucket, which says of a value what nodes would say.
/// Then few nodes are left, which stay in the processor's cache, and a prefix takes a third of the memory. To look through a bucket is
/// cheaper than to wait for the nodes. Nodes and buckets
/// lie in a vector each, and name each other by number.
#[derive(Debug)]
pub struct Trie<W> {
    nodes: Vec<Node<W>>,
    buckets: Vec<Bucket<W>>,
    root: u32,
    /// The first of the nodes that are free; each names the next one as its first child.
    free_node: u32,
    /// The first of the buckets that are free; each names the next one as its first count.
    free_bucket: u32,
}

/// The number of no node and no bucket.
const NONE: u32 = u32::MAX;

/// Set in the number of a bucket where a node's number could be, too.
const BUCKET: u32 = 1 << 31;

/// Most prefixes in a bucket.
const ROOM: usize = 64;

/// What a number stands for.
enum Child {
    None,
    Node(usize),
    Bucket(usize),
}

impl Child {
    fn of(number: u32) -> Child {
        match number {
            NONE => Child::None,
            _ if number & BUCKET != 0 => Child::Bucket((number & !BUCKET) as usize),
            _ => Child::Node(number as usize),
        }
    }
}

/// A path-compressed edge: `len` bits, left-aligned in `bits`, lead here from the parent.
///
/// At least two of these hold: prefixes end here, there is a first child, there is a second one.
#[derive(Clone, Copy, Debug)]
struct Node<W> {
    bits: W,
    /// Prefixes that end exactly here.
    rules: u32,
    children: [u32; 2],
    len: u8,
}

impl<W: Word> Node<W> {
    /// How many bits of the edge equal those of `value` from bit `at` on.
    fn equal_bits(&self, value: W, at: u8) -> u8 {
        (self.bits ^ value.shl(at)).leading_zeros().min(self.len)
    }
}

/// A few prefixes, at least one, which agree in the bits that lead here and in the next one. Each is there once.
#[derive(Clone, Copy, Debug)]
struct Bucket<W> {
    values: [W; ROOM],
    /// How often each was added.
    counts: [u32; ROOM],
    lens: [u8; ROOM],
    used: u8,
}

impl<W: Word> Bucket<W> {
    const EMPTY: Bucket<W> = Bucket { values: [W::ZERO; ROOM], counts: [0; ROOM], lens: [0; ROOM], used: 0 };

    fn of(prefix: W, len: u8, count: u32) -> Bucket<W> {
        let mut bucket = Bucket::EMPTY;
        bucket.push(prefix, len, count);
        bucket
    }

    fn used(&self) -> usize {
        self.used.into()
    }

    /// Appends a prefix that is not there yet, where there is room.
    fn push(&mut self, prefix: W, len: u8, count: u32) {
        let at = self.used();
        (self.values[at], self.lens[at], self.counts[at]) = (prefix, len, count);
        self.used += 1;
    }

    fn entries(&self) -> impl Iterator<Item = (W, u8, u32)> {
        (0..self.used()).map(|i| (self.values[i], self.lens[i], self.counts[i]))
    }

    fn position(&self, prefix: W, len: u8) -> Option<usize> {
        (0..self.used()).find(|&i| self.values[i] == prefix && self.lens[i] == len)
    }

    /// Counts a prefix once more. False where there is no room for it.
    fn add(&mut self, prefix: W, len: u8) -> bool {
        match self.position(prefix, len) {
            Some(i) => self.counts[i] += 1,
            None if self.used() < ROOM => self.push(prefix, len, 1),
            None => return false,
        }
        true
    }

    /// Counts a prefix once less. Whether it was the last time.
    fn take(&mut self, prefix: W, len: u8) -> bool {
        let Some(i) = self.position(prefix, len) else { return false };
        self.counts[i] -= 1;
        if self.counts[i] > 0 {
            return false;
        }
        let last = self.used() - 1;
        (self.values[i], self.lens[i], self.counts[i]) = (self.values[last], self.lens[last], self.counts[last]);
        self.used -= 1;
        true
    }

    /// The bits in which all prefixes agree.
    fn common_len(&self) -> u8 {
        let equal = |(value, len, _): (W, u8, u32)| (value ^ self.values[0]).leading_zeros().min(len);
        self.entries().map(equal).min().unwrap_or(0)
    }

    /// What nodes in the bucket's place would say.
    fn lookup(&self, value: W, mut lengths: W) -> Answer<W> {
        // The longest prefix that covers the value, and where the value goes furthest along with one that does not.
        let (mut longest, mut nearest, mut others) = (0, W::ALL, false);
        for (&prefix, &len) in self.values.iter().zip(&self.lens).take(self.used()) {
            let difference = prefix ^ value;
            if difference.shr(W::BITS - len) == W::ZERO {
                lengths = lengths | W::length(len);
                longest = longest.max(len);
            } else {
                (nearest, others) = (nearest.min(difference), true);
            }
        }
        let equal = nearest.leading_zeros();
        // The bit that differs is the last one that counts.
        let bits = if others && equal >= longest { equal + 1 } else { longest };
        Answer { bits, lengths }
    }
}

impl<W> Default for Trie<W> {
    fn default() -> Trie<W> {
        Trie { nodes: Vec::new(), buckets: Vec::new(), root: NONE, free_node: NONE, free_bucket: NONE }
    }
}

/// Where a number is kept: a side of a node, or the root.
type Link = Option<(usize, usize)>;

impl<W: Word> Trie<W> {
    /// Adds a prefix of `len` bits, at least one.
    pub fn insert(&mut self, prefix: W, len: u8) {
        let (mut at, mut link, mut number) = (0, None, self.root);
        loop {
            match Child::of(number) {
                Child::None => {
                    let bucket = self.add_bucket(Bucket::of(prefix, len, 1));
                    return self.set(link, bucket);
                }
                Child::Bucket(bucket) => {
                    if self.buckets[bucket].add(prefix, len) {
                        return;
                    }
                    number = self.split_bucket(bucket, at);
                    self.set(link, number);
                }
                Child::Node(n) => {
                    let node = &mut self.nodes[n];
                    let equal = node.equal_bits(prefix, at).min(len - at);
                    at += equal;
                    if equal < node.len {
                        let above = self.split_edge(n, equal, prefix, at, len);
                        return self.set(link, above);
                    }
                    if at == len {
                        node.rules += 1;
                        return;
                    }
                    let side = prefix.bit(at);
                    link = Some((n, side));
                    number = node.children[side];
                }
            }
        }
    }

    /// Removes a prefix that was inserted before.
    pub fn remove(&mut self, prefix: W, len: u8) {
        // Where the number at hand is kept, and where that of the node is which keeps it.
        let (mut above, mut link, mut number): (Link, Link, u32) = (None, None, self.root);
        let (mut at, mut node_end) = (0, 0);
        loop {
            match Child::of(number) {
                Child::None => return,
                Child::Bucket(bucket) => {
                    if !self.buckets[bucket].take(prefix, len) {
                        return;
                    }
                    if self.buckets[bucket].used == 0 {
                        self.release_bucket(bucket);
                        self.set(link, NONE);
                    }
                    if let Some((node, _)) = link {
                        self.tidy(above, node, prefix.keep(node_end), node_end);
                    }
                    break;
                }
                Child::Node(n) => {
                    let node = &mut self.nodes[n];
                    if node.equal_bits(prefix, at) < node.len || at + node.len > len {
                        return;
                    }
                    at += node.len;
                    if at == len {
                        node.rules = node.rules.saturating_sub(1);
                        self.tidy(link, n, prefix, len);
                        break;
                    }
                    let side = prefix.bit(at);
                    (above, link, number, node_end) = (link, Some((n, side)), node.children[side], at);
                }
            }
        }
        if self.root == NONE {
            *self = Trie::default();
        }
    }

    /// What the trie says about `value`.
    pub fn lookup(&self, value: W) -> Answer<W> {
        let (mut at, mut lengths) = (0, W::ZERO);
        let mut number = self.root;
        loop {
            match Child::of(number) {
                // One more bit excludes the sibling, which is there where a node is above.
                Child::None => return Answer { bits: at + u8::from(number != self.root), lengths },
                Child::Bucket(bucket) => return self.buckets[bucket].lookup(value, lengths),
                Child::Node(n) => {
                    let node = &self.nodes[n];
                    let equal = node.equal_bits(value, at);
                    at += equal;
                    if equal < node.len {
                        // The bit that differs is the last one that counts.
                        return Answer { bits: at + 1, lengths };
                    }
                    if node.rules > 0 {
                        lengths = lengths | W::length(at);
                    }
                    number = node.children[value.bit(at)];
                }
            }
        }
    }

    /// Whether no prefix is left.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }

    fn add_node(&mut self, node: Node<W>) -> u32 {
        let number = self.free_node;
        if number == NONE {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        self.free_node = self.nodes[number as usize].children[0];
        self.nodes[number as usize] = node;
        number
    }

    fn release_node(&mut self, number: usize) {
        self.nodes[number].children[0] = self.free_node;
        self.free_node = number as u32;
    }

    fn add_bucket(&mut self, bucket: Bucket<W>) -> u32 {
        let number = self.free_bucket;
        if number == NONE {
            self.buckets.push(bucket);
            return (self.buckets.len() as u32 - 1) | BUCKET;
        }
        self.free_bucket = self.buckets[number as usize].counts[0];
        self.buckets[number as usize] = bucket;
        number | BUCKET
    }

    fn release_bucket(&mut self, number: usize) {
        self.buckets[number].counts[0] = self.free_bucket;
        self.free_bucket = number as u32;
    }

    /// Sets the number that is kept in a place.
    fn set(&mut self, link: Link, number: u32) {
        match link {
            Some((node, side)) => self.nodes[node].children[side] = number,
            None => self.root = number,
        }
    }

    /// Splits the edge of a node after `equal` bits, and adds the branch for `prefix` unless it ends there. Returns the
    /// node that comes before.
    fn split_edge(&mut self, number: usize, equal: u8, prefix: W, at: u8, len: u8) -> u32 {
        let old = &mut self.nodes[number];
        let side = old.bits.bit(equal);
        let mut above =
            Node { bits: old.bits.keep(equal), len: equal, rules: u32::from(at == len), children: [NONE; 2] };
        old.bits = old.bits.shl(equal);
        old.len -= equal;
        above.children[side] = number as u32;
        if at < len {
            above.children[1 - side] = self.add_bucket(Bucket::of(prefix, len, 1));
        }
        self.add_node(above)
    }

    /// Makes a node of a full bucket below bit `at`, and buckets of what is left of it.
    fn split_bucket(&mut self, number: usize, at: u8) -> u32 {
        let old = self.buckets[number];
        let end = old.common_len();
        let mut node =
            Node { bits: old.values[0].shl(at).keep(end - at), len: end - at, rules: 0, children: [NONE; 2] };
        let mut sides = [Bucket::EMPTY; 2];
        for (prefix, len, count) in old.entries() {
            if len == end { node.rules = count } else { sides[prefix.bit(end)].push(prefix, len, count) }
        }
        self.release_bucket(number);
        for (child, bucket) in node.children.iter_mut().zip(sides).filter(|(_, bucket)| bucket.used > 0) {
            *child = self.add_bucket(bucket);
        }
        self.add_node(node)
    }

    /// Brings a node in order from which something was taken, and to which `link` and the first `end` bits of `prefix`
    /// lead: a node that has nothing but a child gives way to it, one that has little below it to a bucket.
    fn tidy(&mut self, link: Link, number: usize, prefix: W, end: u8) {
        let node = self.nodes[number];
        let only = match node.children {
            [child, NONE] | [NONE, child] if node.rules == 0 => child,
            _ => NONE,
        };
        if let Child::Node(child) = Child::of(only) {
            let merged = &mut self.nodes[child];
            merged.bits = node.bits | merged.bits.shr(node.len);
            merged.len += node.len;
            self.set(link, only);
            return self.release_node(number);
        }
        let mut used = usize::from(node.rules > 0);
        for child in node.children {
            used += match Child::of(child) {
                Child::None => 0,
                Child::Bucket(bucket) => self.buckets[bucket].used(),
                Child::Node(_) => return,
            };
        }
        // A little less than what makes a bucket split, so that one prefix that comes and goes does not do both.
        if only == NONE && used > ROOM / 2 {
            return;
        }
        let mut all = Bucket::EMPTY;
        if node.rules > 0 {
            all.push(prefix, end, node.rules);
        }
        for child in node.children {
            if let Child::Bucket(bucket) = Child::of(child) {
                self.buckets[bucket].entries().for_each(|(prefix, len, count)| all.push(prefix, len, count));
                self.release_bucket(bucket);
            }
        }
        let bucket = self.add_bucket(all);
        self.set(link, bucket);
        self.release_node(number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_needed() {
        let mut trie = Trie::<u32>::default();
        assert_eq!(trie.lookup(0x0a00_0001), Answer { bits: 0, lengths: 0 });
        trie.insert(0x0a00_0000, 8);
        // 11.0.0.1 differs in the eighth bit.
        assert_eq!(trie.lookup(0x0b00_0001).bits, 8);
        assert_eq!(trie.lookup(0x8b00_0001).bits, 1);
        let inside = trie.lookup(0x0a01_0001);
        assert_eq!((inside.bits, inside.covers(8)), (8, true));
        trie.insert(0x0a01_0000, 16);
        let both = trie.lookup(0x0a01_0001);
        assert_eq!((both.bits, both.covers(8), both.covers(16)), (16, true, true));
        assert_eq!(trie.lookup(0x0a02_0001).bits, 15);
        trie.remove(0x0a00_0000, 8);
        trie.remove(0x0a01_0000, 16);
        assert!(trie.is_empty());
    }

    #[test]
    fn memory_of_removed_prefixes_is_used_again() {
        let mut trie = Trie::<u32>::default();
        trie.insert(0xc000_0000, 8);
        let mut most = (0, 0);
        for round in 0..12u32 {
            (0..1000u32).for_each(|n| trie.insert((n << 8).rotate_left(round), 32));
            assert!(round == 0 || (trie.nodes.len(), trie.buckets.len()) == most, "round {round}");
            most = (trie.nodes.len(), trie.buckets.len());
            (0..1000u32).for_each(|n| trie.remove((n << 8).rotate_left(round), 32));
        }
        assert!(most.0 < 400 && most.1 < 400, "{most:?}");
        trie.remove(0xc000_0000, 8);
        assert!(trie.is_empty() && trie.nodes.is_empty() && trie.buckets.is_empty());
    }

    /// What a trie of these prefixes, of which the first ones are removed again, says of a value.
    fn check<W: Word>(prefixes: &[(W, u8)], removed: usize, value: W, noise: W) -> Result<(), TestCaseError> {
        let mut trie = Trie::default();
        for &(p, n) in prefixes {
            trie.insert(p, n);
        }
        let gone = removed.min(prefixes.len());
        for &(p, n) in &prefixes[..gone] {
            trie.remove(p, n);
        }
        let left = &prefixes[gone..];
        let covering = |v: W| left.iter().filter(move |&&(p, n)| v.keep(n) == p);
        let lengths = |v: W| covering(v).fold(W::ZERO, |lengths, &(_, n)| lengths | W::length(n));
        let answer = trie.lookup(value);
        prop_assert_eq!(answer.lengths, lengths(value));
        let other = value.keep(answer.bits) | noise.shr(answer.bits);
        prop_assert_eq!(answer.lengths, lengths(other));
        // One bit more than the value has in common with any prefix that goes on from there.
        let common = |&(p, n): &(W, u8)| (p ^ value).leading_zeros().min(n);
        let most = left.iter().map(common).max().unwrap_or(0);
        let goes_on = left.iter().any(|prefix| common(prefix) == most && prefix.1 > most);
        prop_assert_eq!(answer.bits, most + u8::from(goes_on));
        left.iter().for_each(|&(p, n)| trie.remove(p, n));
        prop_assert!(trie.is_empty());
        Ok(())
    }

    proptest! {
        /// Every value that agrees in the reported bits gets the same prefix lengths.
        #[test]
        fn lengths_depend_on_reported_bits_only(
            prefixes in proptest::collection::vec((any::<u32>(), 1u8..=32), 0..500),
            removed in 0usize..500, value: u32, noise: u32, near in 0usize..500,
        ) {
            // Few distinct high bytes, so that prefixes nest.
            let prefixes: Vec<_> = prefixes.into_iter().map(|(p, n)| ((p & 0x83ff_ffff).keep(n), n)).collect();
            let value = prefixes.get(near).map_or(value, |&(p, n)| p | value.shr(n));
            check(&prefixes, removed, value, noise)?;
        }

        #[test]
        fn long_prefixes_as_well(
            prefixes in proptest::collection::vec((any::<u128>(), 1u8..=128), 0..500),
            removed in 0usize..500, value: u128, noise: u128, near in 0usize..500,
        ) {
            let few = !(u128::MAX >> 1 & u128::MAX << 100);
            let prefixes: Vec<_> = prefixes.into_iter().map(|(p, n)| ((p & few).keep(n), n)).collect();
            let value = prefixes.get(near).map_or(value, |&(p, n)| p | value.shr(n));
            check(&prefixes, removed, value, noise)?;
        }

        /// Prefixes that lie close together, some of them equal, so that buckets split at every length.
        #[test]
        fn crowded_prefixes_as_well(
            prefixes in proptest::collection::vec((0u32..256, 20u8..=32), 0..600),
            removed in 0usize..600, value in 0u32..256, noise: u32,
        ) {
            let prefixes: Vec<_> = prefixes.into_iter().map(|(p, n)| ((0x0a01_0000 | p << 4).keep(n), n)).collect();
            check(&prefixes, removed, 0x0a01_0000 | value << 4, noise)?;
        }
    }
}
