//! Ports by the number of their entries: which has most, in steps as many as the logarithm of how many ports there are.
//!
//! A binary heap. Of ports with equally many, which comes first depends on the order of the changes only.

use hashbrown::HashMap;
use openflow::OfPort;

/// The ports with entries.
#[derive(Default)]
pub(crate) struct Ranks {
    /// Each port with its count: none has more than the one at half its place, counted from one.
    heap: Vec<(usize, OfPort)>,
    /// Where each port is.
    places: HashMap<OfPort, usize, foldhash::fast::RandomState>,
}

impl Ranks {
    /// The port with most entries.
    pub fn most(&self) -> Option<OfPort> {
        self.heap.first().map(|&(_, port)| port)
    }

    /// Says how many entries a port has now. Without any, it is forgotten.
    pub fn set(&mut self, port: OfPort, count: usize) {
        match (self.places.get(&port).copied(), count) {
            (None, 0) => {}
            (Some(place), 0) => self.remove(place),
            (Some(place), _) => {
                self.heap[place].0 = count;
                self.settle(place);
            }
            (None, _) => {
                self.heap.push((count, port));
                self.places.insert(port, self.heap.len() - 1);
                self.settle(self.heap.len() - 1);
            }
        }
    }

    fn remove(&mut self, place: usize) {
        let last = self.heap.len() - 1;
        self.swap(place, last);
        let gone = self.heap.pop();
        gone.map(|(_, port)| self.places.remove(&port));
        if place < last {
            self.settle(place);
        }
    }

    /// Moves what is at a place, and may be in the wrong order, to where it belongs.
    fn settle(&mut self, mut place: usize) {
        let from = place;
        while place > 0 && self.heap[(place - 1) / 2].0 < self.heap[place].0 {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        if place < from {
            return;
        }
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let count = |place: usize| self.heap.get(place).map(|&(count, _)| count);
            let larger = if count(right) > count(left) { right } else { left };
            if count(larger) <= count(place) {
                return;
            }
            self.swap(place, larger);
            place = larger;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places.insert(self.heap[place].1, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_one_has_most(changes in prop::collection::vec((0u32..12, 0usize..6), 1..200)) {
            let mut ranks = Ranks::default();
            let mut counts = std::collections::BTreeMap::new();
            for (port, count) in changes {
                ranks.set(OfPort(port), count);
                counts.insert(port, count);
                let most = counts.values().copied().max().unwrap_or(0);
                match ranks.most() {
                    Some(port) => prop_assert_eq!(counts[&port.0], most),
                    None => prop_assert_eq!(most, 0),
                }
                prop_assert_eq!(ranks.heap.len(), counts.values().filter(|&&count| count > 0).count());
                for (place, (_, port)) in ranks.heap.iter().enumerate() {
                    prop_assert_eq!(ranks.places.get(port), Some(&place));
                }
            }
        }
    }
}
