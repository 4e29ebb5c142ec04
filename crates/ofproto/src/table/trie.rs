//! A binary trie over the prefixes of a field of 32 or 128 bits, in host order with the first bit on the left.
//!
//! It answers how many leading bits of a value have to be looked at to tell which prefix lengths in
//! use could match it. The classifier needs this to skip subtables without matching all of an address
//! (docs/decisions: "wildcards as OVS computes them").

use std::fmt::Debug;
use std::ops::{BitAnd, BitOr, BitXor, Not};

/// A value of a field with a trie.
pub trait Word:
    Copy + Debug + Eq + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
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
/// A table of a million rules has millions of nodes, and a walk waits for each of them to come from memory. So they are
/// small, lie in one vector, and name each other by number.
#[derive(Debug)]
pub struct Trie<W> {
    nodes: Vec<Node<W>>,
    root: u32,
    /// The first of the nodes that are free; each names the next one as its first child.
    free: u32,
}

/// The number of no node.
const NONE: u32 = u32::MAX;

/// A path-compressed edge: `len` bits, left-aligned in `bits`, lead here from the parent.
#[derive(Clone, Copy, Debug)]
struct Node<W> {
    bits: W,
    /// Prefixes that end exactly here.
    rules: u32,
    children: [u32; 2],
    len: u8,
}

impl<W: Word> Node<W> {
    /// What leads to a prefix of `len` bits from bit `at` on.
    fn leaf(prefix: W, at: u8, len: u8) -> Node<W> {
        Node { bits: prefix.shl(at).keep(len - at), len: len - at, rules: 1, children: [NONE; 2] }
    }

    fn is_leaf(&self) -> bool {
        self.children == [NONE; 2]
    }

    /// How many bits of the edge equal those of `value` from bit `at` on.
    fn equal_bits(&self, value: W, at: u8) -> u8 {
        (self.bits ^ value.shl(at)).leading_zeros().min(self.len)
    }
}

impl<W> Default for Trie<W> {
    fn default() -> Trie<W> {
        Trie { nodes: Vec::new(), root: NONE, free: NONE }
    }
}

impl<W: Word> Trie<W> {
    /// Adds a prefix of `len` bits, at least one.
    pub fn insert(&mut self, prefix: W, len: u8) {
        let (mut at, mut parent, mut number) = (0, None, self.root);
        while number != NONE {
            let node = &mut self.nodes[number as usize];
            let equal = node.equal_bits(prefix, at).min(len - at);
            at += equal;
            if equal < node.len {
                let above = self.split(number, equal, prefix, at, len);
                return self.set_child(parent, above);
            }
            if at == len {
                node.rules += 1;
                return;
            }
            let side = prefix.bit(at);
            parent = Some((number, side));
            number = node.children[side];
        }
        let leaf = self.add(Node::leaf(prefix, at, len));
        self.set_child(parent, leaf);
    }

    /// Removes a prefix that was inserted before.
    pub fn remove(&mut self, prefix: W, len: u8) {
        self.root = self.remove_below(self.root, prefix, 0, len);
        if self.root == NONE {
            *self = Trie::default();
        }
    }

    /// What the trie says about the first `width` bits of `value`.
    pub fn lookup(&self, value: W, width: u8) -> Answer<W> {
        let (mut at, mut lengths) = (0, W::ZERO);
        let mut number = self.root;
        let mut last = None;
        while let Some(node) = self.nodes.get(number as usize) {
            let equal = node.equal_bits(value, at);
            at += equal;
            if equal < node.len {
                // The bit that differs is the last one that counts.
                return Answer { bits: at + 1, lengths };
            }
            if node.rules > 0 {
                lengths = lengths | W::length(at);
            }
            if at >= width {
                return Answer { bits: width, lengths };
            }
            last = Some(node);
            number = node.children[value.bit(at)];
        }
        // The branch that is not there: one more bit excludes its sibling, where there is one.
        let sibling = last.is_some_and(|node| !node.is_leaf());
        Answer { bits: at + u8::from(sibling), lengths }
    }

    /// Whether no prefix is left.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }

    fn add(&mut self, node: Node<W>) -> u32 {
        let number = self.free;
        if number == NONE {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        self.free = self.nodes[number as usize].children[0];
        self.nodes[number as usize] = node;
        number
    }

    fn release(&mut self, number: u32) {
        self.nodes[number as usize].children[0] = self.free;
        self.free = number;
    }

    /// Sets a child of a node, or the root.
    fn set_child(&mut self, parent: Option<(u32, usize)>, child: u32) {
        match parent {
            Some((parent, side)) => self.nodes[parent as usize].children[side] = child,
            None => self.root = child,
        }
    }

    /// Splits the edge of a node after `equal` bits, and adds the branch for `prefix` unless it ends there. Returns the
    /// node that comes before.
    fn split(&mut self, number: u32, equal: u8, prefix: W, at: u8, len: u8) -> u32 {
        let old = &mut self.nodes[number as usize];
        let side = old.bits.bit(equal);
        let mut above =
            Node { bits: old.bits.keep(equal), len: equal, rules: u32::from(at == len), children: [NONE; 2] };
        old.bits = old.bits.shl(equal);
        old.len -= equal;
        above.children[side] = number;
        if at < len {
            above.children[1 - side] = self.add(Node::leaf(prefix, at, len));
        }
        self.add(above)
    }

    /// Removes a prefix from a subtree. Returns what takes the place of its root.
    fn remove_below(&mut self, number: u32, prefix: W, at: u8, len: u8) -> u32 {
        let Some(&node) = self.nodes.get(number as usize) else { return number };
        if node.equal_bits(prefix, at) < node.len || at + node.len > len {
            return number;
        }
        let at = at + node.len;
        if at == len {
            let rules = &mut self.nodes[number as usize].rules;
            *rules = rules.saturating_sub(1);
        } else {
            let side = prefix.bit(at);
            let child = self.remove_below(node.children[side], prefix, at, len);
            self.nodes[number as usize].children[side] = child;
        }
        self.pruned(number)
    }

    /// What takes the place of a node: its only child where no prefix ends at it, and nothing where it has none.
    fn pruned(&mut self, number: u32) -> u32 {
        let node = self.nodes[number as usize];
        if node.rules > 0 || !node.children.contains(&NONE) {
            return number;
        }
        self.release(number);
        let Some(child) = node.children.into_iter().find(|&child| child != NONE) else { return NONE };
        let merged = &mut self.nodes[child as usize];
        merged.bits = node.bits | merged.bits.shr(node.len);
        merged.len += node.len;
        child
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_needed() {
        let mut trie = Trie::<u32>::default();
        assert_eq!(trie.lookup(0x0a00_0001, 32), Answer { bits: 0, lengths: 0 });
        trie.insert(0x0a00_0000, 8);
        // 11.0.0.1 differs in the eighth bit.
        assert_eq!(trie.lookup(0x0b00_0001, 32).bits, 8);
        assert_eq!(trie.lookup(0x8b00_0001, 32).bits, 1);
        let inside = trie.lookup(0x0a01_0001, 32);
        assert_eq!((inside.bits, inside.covers(8)), (8, true));
        trie.insert(0x0a01_0000, 16);
        let both = trie.lookup(0x0a01_0001, 32);
        assert_eq!((both.bits, both.covers(8), both.covers(16)), (16, true, true));
        assert_eq!(trie.lookup(0x0a02_0001, 32).bits, 15);
        trie.remove(0x0a00_0000, 8);
        trie.remove(0x0a01_0000, 16);
        assert!(trie.is_empty());
    }

    #[test]
    fn memory_of_removed_prefixes_is_used_again() {
        let mut trie = Trie::<u32>::default();
        trie.insert(0xc000_0000, 8);
        for n in 0..1000u32 {
            trie.insert(n << 8, 24);
            trie.remove(n << 8, 24);
        }
        assert_eq!(trie.nodes.len(), 3, "one that stays, one that came and went, and where they parted");
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
        let answer = trie.lookup(value, W::BITS);
        prop_assert_eq!(answer.lengths, lengths(value));
        let other = value.keep(answer.bits) | noise.shr(answer.bits);
        prop_assert_eq!(answer.lengths, lengths(other));
        Ok(())
    }

    proptest! {
        /// Every value that agrees in the reported bits gets the same prefix lengths.
        #[test]
        fn lengths_depend_on_reported_bits_only(
            prefixes in proptest::collection::vec((any::<u32>(), 1u8..=32), 0..20),
            removed in 0usize..20, value: u32, noise: u32, near in 0usize..20,
        ) {
            // Few distinct high bytes, so that prefixes nest.
            let prefixes: Vec<_> = prefixes.into_iter().map(|(p, n)| ((p & 0x83ff_ffff).keep(n), n)).collect();
            let value = prefixes.get(near).map_or(value, |&(p, n)| p | value.shr(n));
            check(&prefixes, removed, value, noise)?;
        }

        #[test]
        fn long_prefixes_as_well(
            prefixes in proptest::collection::vec((any::<u128>(), 1u8..=128), 0..20),
            removed in 0usize..20, value: u128, noise: u128, near in 0usize..20,
        ) {
            let few = !(u128::MAX >> 1 & u128::MAX << 100);
            let prefixes: Vec<_> = prefixes.into_iter().map(|(p, n)| ((p & few).keep(n), n)).collect();
            let value = prefixes.get(near).map_or(value, |&(p, n)| p | value.shr(n));
            check(&prefixes, removed, value, noise)?;
        }
    }
}
