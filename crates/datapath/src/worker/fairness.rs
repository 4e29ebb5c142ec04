//! Fair shares of a worker's time among its receive queues, by deficits as in deficit round robin.
//!
//! Every turn polls each queue that has packets, so a queue whose batches cost much takes time from the others. Most costs
//! are what the operator asks for. Some are what a sender causes: packets that no flow matches, packets of a port that asks
//! for more masks than it may have, and super-frames that are cut into tiny segments. A batch with such packets is
//! *charged* to its queue: what it costs above the cheapest batch of the other queues, and a quarter of that, is added to the
//! queue's deficit. So is all that is done with its packets when they come back from the slow path.
//!
//! A queue with a deficit of a turn or more is passed over. Each turn in which that happens lowers its deficit by the cost of
//! the cheapest batch of the others. So such a queue never gets much more time than another that has traffic, and the
//! packets for which there is no time are lost at its own device. Where only queues with a deficit have packets, all
//! deficits are reset: no time is left unused.
//!
//! A queue without a deficit pays for this with one comparison in each turn.

/// Turns in which a queue is passed over at most.
const MOST_TURNS: u64 = 32;

/// A queue's deficit, in cycles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deficit(u64);

/// What one worker compares its queues by.
#[derive(Debug, Default)]
pub struct Fairness {
    /// Cost of the cheapest batch that was not charged, in the last turn that had one; zero: there was none.
    before: u64,
    /// The same, in this turn so far.
    cheapest: u64,
    /// Whether a queue was passed over in this turn.
    passed_over: bool,
    /// Whether another had packets.
    polled: bool,
}

impl Fairness {
    /// Whether the queue is to be polled in this turn.
    #[inline(always)]
    pub fn admits(&mut self, deficit: &mut Deficit) -> bool {
        if deficit.0 == 0 || deficit.0 < self.before {
            return true;
        }
        deficit.0 = deficit.0.saturating_sub(self.before);
        self.passed_over = true;
        false
    }

    /// Whether a batch of this cost makes a deficit if it is to be charged. Without one to compare with, nobody
    /// else has traffic.
    #[inline(always)]
    pub fn is_costly(&self, cycles: u64) -> bool {
        self.before > 0 && cycles > self.fair()
    }

    fn fair(&self) -> u64 {
        self.before + self.before / 4
    }

    /// Records what a batch has cost, and charges it to its queue where it is to be `charged`.
    #[inline(always)]
    pub fn record_batch(&mut self, deficit: &mut Deficit, cycles: u64, charged: bool) {
        self.polled = true;
        if charged {
            self.charge(deficit, cycles.saturating_sub(self.fair()));
        } else if self.cheapest == 0 || cycles < self.cheapest {
            self.cheapest = cycles;
        }
    }

    /// Charges cycles to a queue, and an eighth of them for what this has pushed out of the caches. Without another queue to
    /// compare with, the deficit stays zero.
    #[inline(always)]
    pub fn charge(&self, deficit: &mut Deficit, cycles: u64) {
        // A batch during which the system has interrupted the worker may have taken any time.
        deficit.0 = (deficit.0 + cycles + cycles / 8).min(MOST_TURNS * self.before);
    }

    /// Ends the turn. Returns whether the deficits are to be reset: only queues that were passed over have packets.
    #[inline(always)]
    pub fn end_of_turn(&mut self) -> bool {
        let polled = std::mem::take(&mut self.polled);
        let cheapest = std::mem::take(&mut self.cheapest);
        if cheapest > 0 || !polled {
            self.before = cheapest;
        }
        std::mem::take(&mut self.passed_over) && !polled
    }
}

impl Deficit {
    /// Sets it to zero.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of two queues, of which the second costs more and misses. Returns how often each was polled.
    fn turns(count: u32, victim: impl Fn(u32) -> u64, attacker: u64) -> (u32, u32) {
        turns_with_returned(count, victim, attacker, 0)
    }

    /// As [`turns`], where each batch of the second costs as much again as `returned`, when it comes back.
    fn turns_with_returned(count: u32, victim: impl Fn(u32) -> u64, attacker: u64, returned: u64) -> (u32, u32) {
        let (mut fairness, mut deficits, mut polls) = (Fairness::default(), [Deficit::default(); 2], (0, 0));
        for turn in 0..count {
            if fairness.admits(&mut deficits[0]) && victim(turn) > 0 {
                fairness.record_batch(&mut deficits[0], victim(turn), false);
                polls.0 += 1;
            }
            if fairness.admits(&mut deficits[1]) {
                fairness.record_batch(&mut deficits[1], attacker, true);
                fairness.charge(&mut deficits[1], returned);
                polls.1 += 1;
            }
            if fairness.end_of_turn() {
                deficits.iter_mut().for_each(Deficit::reset);
            }
        }
        polls
    }

    #[test]
    fn a_flood_costs_no_more_than_its_share() {
        let (victim, attacker) = turns(10_000, |_| 3_000, 60_000);
        assert_eq!(victim, 10_000);
        let time = f64::from(attacker) * 60_000.0 / (f64::from(victim) * 3_000.0);
        assert!((0.9..1.3).contains(&time), "{time} times the time of the other");
        assert_eq!(turns(1000, |_| 3_000, 3_700), (1000, 1000), "little more than the other: no deficit");
    }

    #[test]
    fn little_that_comes_back_costs_little() {
        // A turn's worth in ten turns.
        let (victim, other) = turns_with_returned(1000, |_| 3_000, 3_000, 300);
        assert!(victim == 1000 && (900..920).contains(&other), "{other}");
    }

    /// Batches of the victim that miss as well do not free the other.
    #[test]
    fn a_victim_may_miss_now_and_then() {
        let (mut fairness, mut deficits, mut polls) = (Fairness::default(), [Deficit::default(); 2], (0, 0));
        for turn in 0..10_000 {
            if fairness.admits(&mut deficits[0]) {
                fairness.record_batch(&mut deficits[0], 3_000, turn % 2 == 0);
                polls.0 += 1;
            }
            if fairness.admits(&mut deficits[1]) {
                fairness.record_batch(&mut deficits[1], 60_000, true);
                polls.1 += 1;
            }
            if fairness.end_of_turn() {
                deficits.iter_mut().for_each(Deficit::reset);
            }
        }
        let time = f64::from(polls.1) * 60_000.0 / (f64::from(polls.0) * 3_000.0);
        assert!(polls.0 == 10_000 && (0.9..1.3).contains(&time), "{time} times the time of the other");
    }

    #[test]
    fn what_comes_back_costs_as_well() {
        let (victim, attacker) = turns_with_returned(10_000, |_| 3_000, 20_000, 40_000);
        let time = f64::from(attacker) * 60_000.0 / (f64::from(victim) * 3_000.0);
        assert!((0.9..1.3).contains(&time), "{time} times the time of the other");
    }

    #[test]
    fn an_interruption_makes_a_bounded_deficit() {
        let (mut fairness, mut deficit) = (Fairness::default(), Deficit::default());
        fairness.record_batch(&mut Deficit::default(), 3_000, false);
        fairness.end_of_turn();
        fairness.record_batch(&mut deficit, 20_000_000, true);
        let turns = (0..).take_while(|_| {
            fairness.record_batch(&mut Deficit::default(), 3_000, false);
            let admitted = fairness.admits(&mut deficit);
            fairness.end_of_turn();
            !admitted
        });
        assert_eq!(turns.count(), 32);
    }

    #[test]
    fn idle_time_is_not_kept_from_anybody() {
        assert_eq!(turns(1000, |_| 0, 60_000).1, 1000);
        let (_, attacker) = turns(1000, |turn| if turn < 10 { 3_000 } else { 0 }, 60_000);
        assert!(attacker > 980, "{attacker}: the deficit ends with the others' traffic");
    }
}
