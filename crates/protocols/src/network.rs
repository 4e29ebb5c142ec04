//! A network for simulations: frames that are lost, delayed and sent twice, as a seed says.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_time::Time;

use crate::random::Random;

/// What links do to frames.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Part of the frames that do not arrive.
    pub loss: f64,
    /// Longest time that a frame is on its way; frames overtake each other.
    pub delay: Duration,
    /// Part of the frames that arrive twice.
    pub duplicate: f64,
}

impl Faults {
    /// Frames arrive once and at once.
    pub const NONE: Faults = Faults { loss: 0.0, delay: Duration::ZERO, duplicate: 0.0 };
    /// Nothing arrives.
    pub const ALL_LOST: Faults = Faults { loss: 1.0, delay: Duration::ZERO, duplicate: 0.0 };
}

/// Frames on their way to destinations of type `D`.
pub struct Network<D> {
    random: Random,
    /// By time of arrival and a number that keeps the order of frames that arrive together.
    frames: BTreeMap<(Time, u64), (D, Vec<u8>)>,
    sent: u64,
}

impl<D: Copy> Network<D> {
    /// A network without frames.
    pub fn new(seed: u64) -> Network<D> {
        Network { random: Random::new(seed), frames: BTreeMap::new(), sent: 0 }
    }

    /// Sends a frame.
    pub fn send(&mut self, now: Time, to: D, frame: &[u8], faults: &Faults) {
        let copies = 1 + u64::from(self.happens(faults.duplicate));
        for _ in 0..copies {
            if self.happens(faults.loss) {
                continue;
            }
            let delay = Duration::from_nanos(self.random.below(faults.delay.as_nanos() as u64 + 1));
            self.sent += 1;
            self.frames.insert((now + delay, self.sent), (to, frame.to_vec()));
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        (self.random.below(1_000_000) as f64) < probability * 1_000_000.0
    }

    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Time> {
        self.frames.first_key_value().map(|((at, _), _)| *at)
    }

    /// A frame that has arrived by `now`.
    pub fn arrive(&mut self, now: Time) -> Option<(D, Vec<u8>)> {
        self.next_arrival().filter(|at| *at <= now)?;
        self.frames.pop_first().map(|(_, frame)| frame)
    }
}
