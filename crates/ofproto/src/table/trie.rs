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
#[derive(Debug, Default)]
pub struct Trie {
    root: Option<Box<Node>>,
}

/// A path-compressed edge: `len` bits, left-aligned in `bits`, lead here from the parent.
#[derive(Debug)]
struct Node {
    bits: u32,
    len: u8,
    /// Prefixes that end exactly here.
    rules: u32,
    children: [Option<Box<Node>>; 2],
}

impl Node {
    fn leaf(prefix: u32, at: u8, len: u8) -> Box<Node> {
        let bits = keep(shl(prefix, at), len - at);
        Box::new(Node { bits, len: len - at, rules: 1, children: [None, None] })
    }

    fn is_leaf(&self) -> bool {
        self.children.iter().all(Option::is_none)
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

impl Trie {
    /// Adds a prefix of `len` bits, 1 to 32.
    pub fn insert(&mut self, prefix: u32, len: u8) {
        let mut edge = &mut self.root;
        let mut at = 0;
        while let Some(node) = edge {
            let equal = node.equal_bits(prefix, at).min(len - at);
            at += equal;
            if equal < node.len {
                split(node, equal, prefix, at, len);
                return;
            }
            if at == len {
                node.rules += 1;
                return;
            }
            edge = &mut edge.as_mut().expect("just seen").children[bit(prefix, at)];
        }
        *edge = Some(Node::leaf(prefix, at, len));
    }

    /// Removes a prefix that was inserted before.
    pub fn remove(&mut self, prefix: u32, len: u8) {
        remove_below(&mut self.root, prefix, 0, len);
    }

    /// What the trie says about the first `width` bits of `value`.
    pub fn lookup(&self, value: u32, width: u8) -> Answer {
        let (mut at, mut lengths) = (0, 0);
        let mut edge = self.root.as_deref();
        let mut last = None;
        while let Some(node) = edge {
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
            edge = node.children[bit(value, at)].as_deref();
        }
        // The branch that is not there: one more bit excludes its sibling, where there is one.
        let sibling = last.is_some_and(|node| !node.is_leaf());
        Answer { bits: at + u8::from(sibling), lengths }
    }

    /// Whether no prefix is left.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }
}

/// Splits the edge of `node` after `equal` bits, and adds the branch for `prefix` unless it ends there.
fn split(node: &mut Box<Node>, equal: u8, prefix: u32, at: u8, len: u8) {
    let parent = Node { bits: keep(node.bits, equal), len: equal, rules: u32::from(at == len), children: [None, None] };
    let mut old = std::mem::replace(node, Box::new(parent));
    let side = bit(old.bits, equal);
    old.bits = shl(old.bits, equal);
    old.len -= equal;
    node.children[side] = Some(old);
    if at < len {
        node.children[1 - side] = Some(Node::leaf(prefix, at, len));
    }
}

fn remove_below(edge: &mut Option<Box<Node>>, prefix: u32, at: u8, len: u8) {
    let Some(node) = edge else { return };
    if node.equal_bits(prefix, at) < node.len || at + node.len > len {
        return;
    }
    let at = at + node.len;
    if at == len {
        node.rules = node.rules.saturating_sub(1);
    } else {
        remove_below(&mut node.children[bit(prefix, at)], prefix, at, len);
    }
    prune(edge);
}

/// Drops a node that no prefix ends at and that has no two branches, merging its only child into it.
fn prune(edge: &mut Option<Box<Node>>) {
    let Some(node) = edge else { return };
    if node.rules > 0 || node.children.iter().all(Option::is_some) {
        return;
    }
    let child = node.children.iter_mut().find_map(Option::take);
    *edge = child.map(|mut child| {
        child.bits = node.bits | child.bits >> node.len;
        child.len += node.len;
        child
    });
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
