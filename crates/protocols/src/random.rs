//! Numbers for jitter and discriminators, from a seed of the caller's: the same seed gives the same numbers. They are
//! not for secrets.

/// A sequence of numbers (SplitMix64, Steele and others 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`; 0 where that is 0. The highest part of the next number selects it, so that small
    /// bounds are met evenly.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference_and_within_bounds() {
        // First outputs of SplitMix64 with seed 0, from its reference implementation.
        let mut random = Random::new(0);
        assert_eq!([random.next_u64(), random.next_u64()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut seen = [false; 26];
        (0..1000).for_each(|_| seen[random.below(26) as usize] = true);
        assert_eq!((seen, random.below(0)), ([true; 26], 0));
    }
}
