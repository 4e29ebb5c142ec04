//! The first of many prefixes that holds an address.
//!
//! There is a hash table for each length of prefix, and a binary search over the lengths (Waldvogel, Varghese, Turner and
//! Plattner, "Scalable High Speed IP Routing Lookups", 1997): a hit says that only longer prefixes are of interest, a
//! miss that only shorter ones are. So that the search finds long prefixes, they leave *markers* at the lengths on the
//! way to their own. What a table has of a prefix or marker is the first rule whose prefix holds it, however short
//! that prefix is; so the last hit is the answer, and a look-up takes at most 6 probes in IPv4 and 8 in IPv6, whatever
//! the number of prefixes. A few prefixes are compared one by one, which takes less.
//!
//! The addresses that are looked up come from anybody, but what is in the tables comes from the operator: nobody else
//! can lengthen a chain.

use std::hash::Hash;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// An address as a number.
pub trait Address: Copy + Eq + Hash {
    /// How many bits it has.
    const BITS: u8;

    /// The address with its first `len` bits, at least one of them, and zeros behind.
    fn first_bits(self, len: u8) -> Self;
}

impl Address for u32 {
    const BITS: u8 = 32;

    #[inline(always)]
    fn first_bits(self, len: u8) -> u32 {
        self & u32::MAX.unbounded_shl(32 - u32::from(len))
    }
}

impl Address for u128 {
    const BITS: u8 = 128;

    #[inline(always)]
    fn first_bits(self, len: u8) -> u128 {
        self & u128::MAX.unbounded_shl(128 - u32::from(len))
    }
}

/// No rule.
const NONE: u32 = u32::MAX;

type Rules<A> = HashMap<A, u32, FixedState>;

/// So many prefixes are compared one by one.
const FEW: usize = 4;

/// Prefixes of one kind.
#[derive(Debug)]
pub struct PrefixTable<A> {
    /// The lengths that there are, ascending, each with its prefixes and markers: the first rule that holds them, or
    /// [`NONE`].
    lengths: Box<[(u8, Rules<A>)]>,
    /// All prefixes, with their lengths and rules, where they are [`FEW`]; else empty.
    few: Box<[(A, u8, u32)]>,
}

impl<A: Address> PrefixTable<A> {
    /// A table of prefixes with their lengths, from 1, and rules.
    pub fn new(prefixes: &[(A, u8, u32)]) -> PrefixTable<A> {
        let mut known: Vec<u8> = prefixes.iter().map(|&(_, len, _)| len).collect();
        known.sort_unstable();
        known.dedup();
        let mut own: Vec<Rules<A>> = known.iter().map(|_| Rules::default()).collect();
        for &(address, len, rule) in prefixes {
            let place = known.partition_point(|&known| known < len);
            let first = own[place].entry(address.first_bits(len)).or_insert(rule);
            *first = rule.min(*first);
        }
        let mut with_markers = own.clone();
        for &(address, len, _) in prefixes {
            let place = known.partition_point(|&known| known < len);
            for marker in markers(known.len(), place) {
                with_markers[marker].entry(address.first_bits(known[marker])).or_insert(NONE);
            }
        }
        for (place, rules) in with_markers.iter_mut().enumerate() {
            for (address, rule) in rules {
                let holding = known.iter().zip(&own).take(place + 1);
                let found = holding.filter_map(|(&len, own)| own.get(&address.first_bits(len)).copied());
                *rule = found.min().unwrap_or(NONE);
            }
        }
        let own = prefixes.iter().map(|&(address, len, rule)| (address.first_bits(len), len, rule));
        let few = if prefixes.len() <= FEW { own.collect() } else { Box::default() };
        PrefixTable { lengths: known.into_iter().zip(with_markers).collect(), few }
    }

    /// Whether there is no prefix.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The first rule whose prefix holds the address.
    #[inline]
    pub fn first(&self, address: A) -> Option<u32> {
        if !self.few.is_empty() {
            let holding = self.few.iter().filter(|(prefix, len, _)| address.first_bits(*len) == *prefix);
            return holding.map(|&(_, _, rule)| rule).min();
        }
        let (mut low, mut high, mut best) = (0, self.lengths.len(), NONE);
        while low < high {
            let middle = (low + high) / 2;
            let (len, rules) = &self.lengths[middle];
            match rules.get(&address.first_bits(*len)) {
                Some(&rule) => (best, low) = (rule, middle + 1),
                None => high = middle,
            }
        }
        (best != NONE).then_some(best)
    }

    /// The same for an address of which only the first `bits` are known: only prefixes that are no longer count.
    #[cold]
    pub fn first_of_part(&self, address: A, bits: u8) -> Option<u32> {
        let short_enough = self.lengths.iter().rev().skip_while(|(len, _)| *len > bits);
        let found = short_enough.filter_map(|(len, rules)| rules.get(&address.first_bits(*len)).copied()).next();
        found.filter(|&rule| rule != NONE)
    }
}

/// The places that a search among `count` lengths hits on its way to that at `place`.
fn markers(count: usize, place: usize) -> impl Iterator<Item = usize> {
    let (mut low, mut high) = (0, count);
    std::iter::from_fn(move || {
        while low < high {
            let middle = (low + high) / 2;
            match middle.cmp(&place) {
                std::cmp::Ordering::Less => {
                    low = middle + 1;
                    return Some(middle);
                }
                std::cmp::Ordering::Equal => return None,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition.
    fn first_by_walk<A: Address>(prefixes: &[(A, u8, u32)], address: A, bits: u8) -> Option<u32> {
        let holds =
            |&&(prefix, len, _): &&(A, u8, u32)| len <= bits && prefix.first_bits(len) == address.first_bits(len);
        prefixes.iter().filter(holds).map(|&(_, _, rule)| rule).min()
    }

    /// Addresses that share many of their first bits.
    fn any_address() -> impl Strategy<Value = u128> {
        (0..6_u32, 0..4_u128, 0..128_u32).prop_map(|(shift, low, at)| (0xa5 << 120 >> shift) ^ (low << at))
    }

    proptest! {
        #[test]
        fn a_table_finds_what_a_walk_finds(
            prefixes in prop_oneof![
                proptest::collection::vec((any_address(), 1..=128_u8), 0..60),
                proptest::collection::vec((any_address(), 1..=128_u8), 0..=FEW),
            ],
            addresses in proptest::collection::vec(any_address(), 1..30),
            bits in proptest::sample::select(vec![0_u8, 32, 64, 96]),
        ) {
            let six: Vec<_> = prefixes.iter().enumerate().map(|(i, &(a, len))| (a, len, i as u32)).collect();
            let four: Vec<_> =
                six.iter().map(|&(a, len, rule)| ((a >> 96) as u32, len % 32 + 1, rule)).collect();
            let (table6, table4) = (PrefixTable::new(&six), PrefixTable::new(&four));
            for address in addresses.into_iter().chain(prefixes.iter().map(|&(a, _)| a)) {
                prop_assert_eq!(table6.first(address), first_by_walk(&six, address, 128));
                prop_assert_eq!(table6.first_of_part(address, bits), first_by_walk(&six, address, bits));
                let address = (address >> 96) as u32;
                prop_assert_eq!(table4.first(address), first_by_walk(&four, address, 32));
            }
        }
    }

    #[test]
    fn a_long_prefix_leaves_its_markers_and_no_more() {
        // All lengths of IPv4: the search for a host's hits 17, 25, 29, 31 and 32.
        assert_eq!(markers(32, 31).collect::<Vec<_>>(), [16, 24, 28, 30]);
        assert_eq!(markers(32, 16).count(), 0);
        assert!((0..128).all(|place| markers(128, place).count() <= 7));
    }
}
