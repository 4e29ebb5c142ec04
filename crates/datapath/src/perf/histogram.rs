//! Histograms with as many bins, at the same places, as those of OVS.

use std::sync::LazyLock;

use crate::sync::counters::Counter;

/// How many bins a histogram has. The last one is for what exceeds all walls.
pub const BINS: usize = 32;

/// The largest value of each bin but the last, rising.
pub type Walls = [u32; BINS - 1];

/// Walls at equal distances.
pub fn linear(least: u32, most: u32) -> Walls {
    std::array::from_fn(|i| least + i as u32 * (most - least) / (BINS as u32 - 2))
}

/// Walls at equal ratios. A wall of zero stands by itself before those from one on. Each wall is above the one before it.
pub fn logarithmic(least: u32, most: u32) -> Walls {
    let first = usize::from(least == 0);
    let (from, to) = (f64::from(least.max(1)).ln(), f64::from(most).ln());
    let steps = (BINS - 2 - first) as f64;
    let mut next = first as u32;
    let mut walls = std::array::from_fn(|i| {
        if i < first {
            return 0;
        }
        let wall = (from + (i - first) as f64 * (to - from) / steps).exp() as u32;
        let wall = wall.max(next);
        next = wall + 1;
        wall
    });
    // Rounding may have lost the last one a bit.
    walls[BINS - 2] = walls[BINS - 2].max(most);
    walls
}

/// A histogram, which one thread writes.
pub struct Histogram {
    walls: &'static LazyLock<Walls>,
    bins: [Counter; BINS],
    sum: Counter,
}

impl Histogram {
    /// An empty one with these walls.
    pub fn new(walls: &'static LazyLock<Walls>) -> Histogram {
        Histogram { walls, bins: std::array::from_fn(|_| Counter::default()), sum: Counter::default() }
    }

    /// Counts a value. Only for the owner.
    pub fn add(&self, value: u64) {
        let bin = self.walls.partition_point(|&wall| u64::from(wall) < value);
        self.bins[bin].add(1);
        self.sum.add(value);
    }

    /// What it has counted.
    pub fn read(&self) -> Bins {
        Bins { walls: **self.walls, counts: std::array::from_fn(|i| self.bins[i].get()), sum: self.sum.get() }
    }
}

/// What a histogram has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bins {
    /// The largest value of each bin but the last.
    pub walls: Walls,
    /// How many values are in each bin.
    pub counts: [u64; BINS],
    /// The sum of all values.
    pub sum: u64,
}

impl Bins {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TEN: LazyLock<Walls> = LazyLock::new(|| linear(0, 300));

    #[test]
    fn walls_are_those_of_ovs() {
        assert_eq!(linear(0, 30)[..4], [0, 1, 2, 3]);
        assert_eq!(linear(0, 30)[30], 30);
        assert_eq!(linear(100, 30_000)[..4], [100, 1096, 2093, 3090]);
        assert_eq!(linear(0, 32)[28..], [29, 30, 32]);
        assert_eq!(logarithmic(500, 24_000_000)[..5], [499, 716, 1025, 1469, 2104]);
        assert_eq!(logarithmic(500, 24_000_000)[30], 24_000_000);
        assert_eq!(logarithmic(0, 1000)[..6], [0, 1, 2, 3, 4, 5]);
        assert_eq!(logarithmic(0, 1000)[30], 1000);
        for walls in [logarithmic(0, 1000), logarithmic(0, 512), logarithmic(1000, 1_000_000), linear(0, 32)] {
            assert!(walls.windows(2).all(|pair| pair[0] < pair[1]), "{walls:?}");
        }
    }

    #[test]
    fn a_value_is_in_the_first_bin_whose_wall_it_does_not_exceed() {
        let histogram = Histogram::new(&TEN);
        [0, 1, 10, 11, 300, 301, u64::from(u32::MAX) + 1].iter().for_each(|&value| histogram.add(value));
        let Bins { counts, sum, .. } = histogram.read();
        assert_eq!(counts[..4], [1, 2, 1, 0]);
        assert_eq!(counts[30..], [1, 2]);
        assert_eq!((histogram.read().count(), sum), (7, 623 + u64::from(u32::MAX) + 1));
    }
}
