//! The insertion policy of a cache: which of the flows that tier 2 finds are inserted.

/// Selects one in so many flows at random, so that flows with much traffic are inserted sooner.
pub struct InsertionPolicy {
    /// One in so many; zero: none.
    one_in: u32,
    state: u32,
}

impl InsertionPolicy {
    /// Selects every flow.
    pub fn new() -> InsertionPolicy {
        InsertionPolicy { one_in: 1, state: 0x9e37_79b9 }
    }

    /// Selects one in so many from now on; zero: none.
    pub fn set_one_in(&mut self, one_in: u32) {
        self.one_in = one_in;
    }

    /// Whether any flow is selected.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.one_in != 0
    }

    /// Whether to insert the next flow.
    #[inline(always)]
    pub fn should_insert(&mut self) -> bool {
        if self.one_in <= 1 {
            return self.one_in == 1;
        }
        self.next().is_multiple_of(self.one_in)
    }

    /// A random number: xorshift32 (Marsaglia 2003).
    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_is_chosen() {
        const DRAWS: usize = if cfg!(miri) { 1000 } else { 10_000 };
        let mut insertion = InsertionPolicy::new();
        let mut drawn = |one_in| {
            insertion.set_one_in(one_in);
            (0..DRAWS).filter(|_| insertion.should_insert()).count()
        };
        assert_eq!((drawn(0), drawn(1)), (0, DRAWS));
        assert!((DRAWS * 8 / 100..DRAWS * 12 / 100).contains(&drawn(10)));
    }
}
