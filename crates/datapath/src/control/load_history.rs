//! How busy queues and workers were in the last minute, in steps of five seconds.

use std::collections::VecDeque;
use std::time::Duration;

/// Length of a step.
pub const STEP: Duration = Duration::from_secs(5);
/// Steps that are stored: a minute.
const STEPS: usize = 12;

/// The last minute of a counter that only grows.
#[derive(Default)]
pub struct LoadHistory {
    last: u64,
    steps: VecDeque<u64>,
}

impl LoadHistory {
    /// The history of a counter that has reached `now`.
    pub fn starting_at(now: u64) -> LoadHistory {
        LoadHistory { last: now, steps: VecDeque::new() }
    }

    /// Ends a step.
    pub fn step(&mut self, now: u64) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(now.wrapping_sub(self.last));
        self.last = now;
    }

    /// What was counted in the last `steps` steps.
    fn recent(&self, steps: usize) -> u64 {
        self.steps.iter().rev().take(steps).sum()
    }

    /// What was counted in the last minute, or the part of it since the start.
    pub fn sum(&self) -> u64 {
        self.recent(STEPS)
    }

    /// The least share of `whole` in any of the last minute's steps, in percent.
    pub fn least_percent_of(&self, whole: &LoadHistory) -> Option<u8> {
        let shares = self.steps.iter().rev().zip(whole.steps.iter().rev());
        shares.map(|(&part, &whole)| (u128::from(part) * 100 / u128::from(whole.max(1))).min(100) as u8).min()
    }

    /// This counter as a share of `whole` over those of the last `steps` steps that both have, in percent.
    /// `None` before the first step has ended.
    pub fn percent_of(&self, whole: &LoadHistory, steps: usize) -> Option<u8> {
        let steps = steps.min(self.steps.len()).min(whole.steps.len());
        let (part, whole) = (self.recent(steps), whole.recent(steps));
        (steps > 0 && whole > 0).then(|| (u128::from(part) * 100 / u128::from(whole)).min(100) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_that_both_were_there() {
        let (mut queue, mut whole) = (LoadHistory::starting_at(0), LoadHistory::starting_at(0));
        assert_eq!(queue.percent_of(&whole, 12), None);
        whole.step(1000);
        assert_eq!(queue.percent_of(&whole, 12), None);
        whole.step(2000);
        queue.step(250);
        assert_eq!(queue.percent_of(&whole, 12), Some(25));
        assert_eq!(queue.least_percent_of(&whole), Some(25));
        for i in 0..20 {
            whole.step(3000 + i * 1000);
            queue.step(250);
        }
        assert_eq!(queue.percent_of(&whole, 12), Some(0), "a minute later it is forgotten");
    }
}
