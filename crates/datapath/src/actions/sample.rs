//! Samples: which packets the action `sample` takes.
//!
//! A worker has a distance to its next sample, drawn from the exponential distribution, and each packet at a sampling
//! step comes nearer by the step's stride, -ln(1 - p) for the probability p. So each packet is taken with probability p,
//! independently of all others and of the order in which steps with other probabilities have their packets; periodic
//! traffic is not aliased. A random number is drawn for each sample, not for each packet: packets that are not taken
//! cost a subtraction for a whole run.

/// Units of distance for a mean distance.
const MEAN: f64 = (1u64 << 56) as f64;

/// Which part of the packets a sampling step takes.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// By how much a packet comes nearer to the next sample.
    stride: u64,
}

impl Sampling {
    /// Takes none.
    pub const NONE: Sampling = Sampling { stride: 0 };

    /// Takes `probability` of `u32::MAX` packets.
    pub fn new(probability: u32) -> Sampling {
        Sampling::with(f64::from(probability) / f64::from(u32::MAX))
    }

    /// Takes one of so many packets; zero for none.
    pub fn one_in(packets: u32) -> Sampling {
        if packets == 0 { Sampling::NONE } else { Sampling::with(1.0 / f64::from(packets)) }
    }

    fn with(probability: f64) -> Sampling {
        // Infinite for all packets: the conversion saturates.
        let stride = -(-probability).ln_1p() * MEAN;
        Sampling { stride: stride as u64 }
    }
}

/// A worker's distance to its next sample.
#[derive(Debug)]
pub struct Sampler {
    /// At least one.
    distance: u64,
    /// State of the generator (SplitMix64).
    state: u64,
}

impl Sampler {
    /// A sampler with a secret.
    pub fn new(seed: u64) -> Sampler {
        let mut sampler = Sampler { distance: 1, state: seed };
        sampler.distance = sampler.draw();
        sampler
    }

    /// Takes the next sample of `packets` packets: returns how many of them come before it. `None` where it is not among
    /// them. After a sample, it is to be asked about those behind it.
    #[inline(always)]
    pub fn next(&mut self, sampling: Sampling, packets: usize) -> Option<usize> {
        if self.takes_none(sampling, packets) {
            self.pass(sampling, packets);
            return None;
        }
        self.take(sampling, packets)
    }

    /// Whether none of `packets` packets would be taken. [`pass`](Sampler::pass) passes them then.
    #[inline(always)]
    pub fn takes_none(&self, sampling: Sampling, packets: usize) -> bool {
        self.distance > sampling.stride.saturating_mul(packets as u64)
    }

    /// Passes packets of which none is taken.
    #[inline(always)]
    pub fn pass(&mut self, sampling: Sampling, packets: usize) {
        debug_assert!(self.takes_none(sampling, packets));
        self.distance -= sampling.stride * packets as u64;
    }

    #[cold]
    fn take(&mut self, sampling: Sampling, packets: usize) -> Option<usize> {
        if packets == 0 {
            return None;
        }
        let before = (self.distance - 1).checked_div(sampling.stride)?;
        self.distance = self.draw();
        Some(before as usize)
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // Above zero, and one at most.
        let uniform = ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64;
        ((-uniform.ln() * MEAN) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(probability: f64) -> Sampling {
        Sampling::new((probability * f64::from(u32::MAX)) as u32)
    }

    /// The numbers of the packets that are taken, of `runs` with so many packets each.
    fn taken(sampler: &mut Sampler, sampling: Sampling, runs: impl Iterator<Item = usize>) -> Vec<usize> {
        let (mut found, mut first) = (Vec::new(), 0);
        for run in runs {
            let mut at = 0;
            while let Some(before) = sampler.next(sampling, run - at) {
                at += before + 1;
                assert!(at <= run);
                found.push(first + at - 1);
            }
            first += run;
        }
        found
    }

    #[test]
    fn as_many_as_the_probability_says_and_not_in_step() {
        for probability in [0.9, 0.5, 0.1, 0.01, 0.001] {
            let n = 1_000_000usize;
            let found = taken(&mut Sampler::new(1), sampling(probability), std::iter::repeat_n(1, n));
            let (expected, deviation) = (n as f64 * probability, (n as f64 * probability * (1.0 - probability)).sqrt());
            assert!((found.len() as f64 - expected).abs() < 5.0 * deviation, "{probability}: {}", found.len());
            // Of traffic that repeats itself every ten packets, each place has its share.
            for place in 0..10 {
                let here = found.iter().filter(|&&at| at % 10 == place).count() as f64;
                assert!((here - expected / 10.0).abs() < 5.0 * deviation / 3.0, "{probability}, {place}: {here}");
            }
        }
    }

    #[test]
    fn runs_are_as_their_packets() {
        let sampling = sampling(0.07);
        let one_by_one = taken(&mut Sampler::new(3), sampling, std::iter::repeat_n(1, 3200));
        let in_runs = taken(&mut Sampler::new(3), sampling, std::iter::repeat_n(32, 100));
        let mixed = taken(&mut Sampler::new(3), sampling, (0..100).flat_map(|n| [n % 32, 32 - n % 32]));
        assert_eq!(one_by_one, in_runs);
        assert_eq!(one_by_one, mixed);
        assert!(one_by_one.len() > 100);
    }

    #[test]
    fn packets_that_are_passed_are_those_that_are_not_taken() {
        let sampling = sampling(0.03);
        let (mut plain, mut passing) = (Sampler::new(9), Sampler::new(9));
        let mut passed = 0;
        for packets in (0..2000).map(|n| n % 33) {
            if passing.takes_none(sampling, packets) {
                passing.pass(sampling, packets);
                passed += 1;
                assert_eq!(plain.next(sampling, packets), None);
                continue;
            }
            let mut rest = packets;
            loop {
                let (a, b) = (plain.next(sampling, rest), passing.next(sampling, rest));
                assert_eq!(a, b);
                let Some(before) = a else { break };
                rest -= before + 1;
            }
        }
        assert!((1000..1700).contains(&passed), "{passed}");
    }

    #[test]
    fn steps_with_other_probabilities_do_not_disturb() {
        let (often, seldom) = (sampling(0.5), sampling(0.01));
        let mut sampler = Sampler::new(5);
        let (mut of_often, mut of_seldom) = (0, 0);
        for _ in 0..200_000 {
            of_often += usize::from(sampler.next(often, 1).is_some());
            of_seldom += usize::from(sampler.next(seldom, 1).is_some());
        }
        assert!((99_000..101_000).contains(&of_often), "{of_often}");
        assert!((1_780..2_220).contains(&of_seldom), "{of_seldom}");
    }

    #[test]
    fn all_and_none_and_hardly_any() {
        let mut sampler = Sampler::new(0);
        let all = Sampling::new(u32::MAX);
        assert_eq!(taken(&mut sampler, all, [32, 0, 1].into_iter()).len(), 33);
        let none = Sampling::new(0);
        assert_eq!(taken(&mut sampler, none, std::iter::repeat_n(32, 100_000)), []);
        let one_in_all = Sampling::new(1);
        assert!(one_in_all.stride > 1 << 23, "as fine as the probability");
    }
}
