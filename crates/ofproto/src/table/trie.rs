//! A binary trie over the prefixes of a 32-bit field, in host order with the first bit on the left.
//!
//! It answers how many leading bits of a value have to be looked at to tell which prefix lengths in
//! use could match it. The classifier needs this to skip subtables without matching all of an address
//! (docs/decisions: "wildcards as OVS computes them").

/// The bits of a lookup that are known, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Leading bits of the value that the answer depends on.
    pub bits: u8,
    /// Bit `n - 1` is set when a prefix of length `n` in the trie covers the value.
    pub lengths: u32,
}

impl Answer {
    /// Whether some prefix of this length covers the value. Length zero is not tracked.
    pub fn covers(&self, len: u8) -> bool {
        debug_assert!(len > 0);
        self.lengths & 1 << (len - 1) != 0
    }
}

/// The trie. Each prefix is counted, so that equal ones may be added and removed independently.
///
/// A table of a million rules has millions of nodes, and a walk waits for each of them to come from memory. So they are
/// small, lie in one vector, and name each other by number.
#[derive(Debug)]
pub struct Trie {
    nodes: Vec<Node>,
    root: u32,
    /// The first of the nodes that are free; each names the next one as its first child.
    free: u32,
}

/// The number of no node.
const NONE: u32 = u32::MAX;

/// A path-compressed edge: `len` bits, left-aligned in `bits`, lead here from the parent.
#[derive(Clone, Copy, Debug)]
struct Node {
    bits: u32,
    /// Prefixes that end exactly here.
    rules: u32,
    children: [u32; 2],
    len: u8,
}

impl Node {
    /// What leads to a prefix of `len` bits from bit `at` on.
    fn leaf(prefix: u32, at: u8, len: u8) -> Node {
        Node { bits: keep(shl(prefix, at), len - at), len: len - at, rules: 1, children: [NONE; 2] }
    }

    fn is_leaf(&self) -> bool {
        self.children == [NONE; 2]
    }

    /// How many bits of the edge equal those of `value` from bit `at` on.
    fn equal_bits(&self, value: u32, at: u8) -> u8 {
        ((self.bits ^ shl(value, at)).leading_zeros() as u8).min(self.len)
    }
}

fn shl(value: u32, n: u8) -> u32 {
    value.checked_shl(n.into()).unwrap_or(0)
}

/// The first `n` bits of `value`.
fn keep(value: u32, n: u8) -> u32 {
    value & !u32::MAX.checked_shr(n.into()).unwrap_or(0)
}

fn bit(value: u32, at: u8) -> usize {
    (shl(value, at) >> 31) as usize
}

impl Default for Trie {
    fn default() -> Trie {
        Trie { nodes: Vec::new(), root: NONE, free: NONE }
    }
}

impl Trie {
    /// Adds a prefix of `len` bits, 1 to 32.
    pub fn insert(&mut self, prefix: u32, len: u8) {
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
            let side = bit(prefix, at);
            parent = Some((number, side));
            number = node.children[side];
        }
        let leaf = self.add(Node::leaf(prefix, at, len));
        self.set_child(parent, leaf);
    }

    /// Removes a prefix that was inserted before.
    pub fn remove(&mut self, prefix: u32, len: u8) {
        self.root = self.remove_below(self.root, prefix, 0, len);
        if self.root == NONE {
            *self = Trie::default();
        }
    }

    /// What the trie says about the first `width` bits of `value`.
    pub fn lookup(&self, value: u32, width: u8) -> Answer {
        let (mut at, mut lengths) = (0, 0);
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
                lengths |= 1 << (at - 1);
            }
            if at >= width {
                return Answer { bits: width, lengths };
            }
            last = Some(node);
            number = node.children[bit(value, at)];
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

    fn add(&mut self, node: Node) -> u32 {
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
    fn split(&mut self, number: u32, equal: u8, prefix: u32, at: u8, len: u8) -> u32 {
        let old = &mut self.nodes[number as usize];
        let side = bit(old.bits, equal);
        let mut above =
            Node { bits: keep(old.bits, equal), len: equal, rules: u32::from(at == len), children: [NONE; 2] };
        old.bits = shl(old.bits, equal);
        old.len -= equal;
        above.children[side] = number;
        if at < len {
            above.children[1 - side] = self.add(Node::leaf(prefix, at, len));
        }
        self.add(above)
    }

    /// Removes a prefix from a subtree. Returns what takes the place of its root.
    fn remove_below(&mut self, number: u32, prefix: u32, at: u8, len: u8) -> u32 {
        let Some(&node) = self.nodes.get(number as usize) else { return number };
        if node.equal_bits(prefix, at) < node.len || at + node.len > len {
            return number;
        }
        let at = at + node.len;
        if at == len {
            let rules = &mut self.nodes[number as usize].rules;
            *rules = rules.saturating_sub(1);
        } else {
            let side = bit(prefix, at);
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
        merged.bits = node.bits | merged.bits >> node.len;
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
        let mut trie = Trie::default();
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
        let mut trie = Trie::default();
        trie.insert(0xc000_0000, 8);
        for n in 0..1000u32 {
            trie.insert(n << 8, 24);
            trie.remove(n << 8, 24);
        }
        assert_eq!(trie.nodes.len(), 3, "one that stays, one that came and went, and where they parted");
    }

    proptest! {
        /// Every value that agrees in the reported bits gets the same prefix lengths.
        #[test]
        fn lengths_depend_on_reported_bits_only(
            prefixes in proptest::collection::vec((any::<u32>(), 1u8..=32), 0..20),
            removed in 0usize..20, value: u32, noise: u32, near in 0usize..20,
        ) {
            let mut trie = Trie::default();
            // Few distinct high bytes, so that prefixes nest.
            let prefixes: Vec<(u32, u8)> =
                prefixes.into_iter().map(|(p, n)| (keep(p & 0x83ff_ffff, n), n)).collect();
            for &(p, n) in &prefixes {
                trie.insert(p, n);
            }
            let gone = removed.min(prefixes.len());
            for &(p, n) in &prefixes[..gone] {
                trie.remove(p, n);
            }
            let left = &prefixes[gone..];
            let value = prefixes.get(near).map_or(value, |&(p, n)| p | value.checked_shr(n.into()).unwrap_or(0));
            let lengths = |v: u32| left.iter().fold(0, |l, &(p, n)| l | u32::from(keep(v, n) == p) << (n - 1));
            let answer = trie.lookup(value, 32);
            prop_assert_eq!(answer.lengths, lengths(value));
            let other = keep(value, answer.bits) | noise.checked_shr(answer.bits.into()).unwrap_or(0);
            prop_assert_eq!(answer.lengths, lengths(other));
        }
    }
}
