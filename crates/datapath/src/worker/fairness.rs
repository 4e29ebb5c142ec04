//! Fair shares of a worker's time for its receive queues, by deficits as in deficit round robin.
//!
//! Every turn polls each queue that has packets, so a queue with costly batches takes time from the others. Most
//! costs are what the operator configured. Some are caused by a sender: packets that no flow matches, packets of a
//! port that asks for more masks than it may have, recirculation storms, super-frames that are cut into tiny
//! segments, and packets that are tracked and belong to no established connection.
//!
//! A batch with such packets is *charged* to its queue: the queue's deficit grows by the part of its cost that
//! exceeds one and a quarter times that of the cheapest batch of the other queues. What is done with its packets when
//! they come back from the slow path is charged as well. Of tracking, only what those packets cost is charged: a server's
//! port has a few of them in many batches.
//!
//! A queue whose deficit is at least one turn is passed over. Each such turn lowers its deficit by the cost of the
//! cheapest batch of the others. So the queue gets less time than another queue with traffic, which loses little by it.
//! Packets for which there is no time are lost at its own device. Where only queues with a deficit have packets, all deficits are
//! reset, so no time is left unused.
//!
//! A queue without a deficit costs one comparison in each turn.

/// The largest deficit, in turns: several times what a batch costs whose packets all miss, and all that is done in one go
/// with packets that come back.
const MAX_DEFICIT_TURNS: u64 = 128;

/// A queue's deficit, in cycles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deficit(u64);

/// The costs by which one worker compares its queues.
#[derive(Debug, Default)]
pub struct Fairness {
    /// Cost of the cheapest uncharged batch of the last turn that had one; zero: there was none yet.
    cheapest_before: u64,
    /// The same for this turn so far.
    cheapest: u64,
    /// Whether a queue was passed over in this turn.
    passed_over: bool,
    /// Whether a queue that was not passed over had packets.
    polled: bool,
}

impl Fairness {
    /// Whether the queue is polled in this turn.
    #[inline(always)]
    pub fn admits(&mut self, deficit: &mut Deficit) -> bool {
        if deficit.0 == 0 || deficit.0 < self.cheapest_before {
            return true;
        }
        deficit.0 = deficit.0.saturating_sub(self.cheapest_before);
        self.passed_over = true;
        false
    }

    /// Whether a batch of this cost would raise a deficit if it is charged. Without a batch to compare with, no other
    /// queue has traffic.
    #[inline(always)]
    pub fn is_costly(&self, cycles: u64) -> bool {
        self.cheapest_before > 0 && cycles > self.fair()
    }

    fn fair(&self) -> u64 {
        self.cheapest_before + self.cheapest_before / 4
    }

    /// Records the cost of a batch, and charges it to its queue if `charged`.
    #[inline(always)]
    pub fn record_batch(&mut self, deficit: &mut Deficit, cycles: u64, charged: bool) {
        self.polled = true;
        if charged {
            self.charge(deficit, cycles.saturating_sub(self.fair()));
        } else if self.cheapest == 0 || cycles < self.cheapest {
            self.cheapest = cycles;
        }
    }

    /// Charges cycles to a queue, and half of them on top: the work evicts cache lines, so that packets of other queues
    /// take longer. Without another queue to compare with, the deficit stays zero.
    #[inline(always)]
    pub fn charge(&self, deficit: &mut Deficit, cycles: u64) {
        // The cost is bounded, since the system may interrupt the worker in a batch for any time.
        deficit.0 = (deficit.0 + cycles + cycles / 2).min(MAX_DEFICIT_TURNS * self.cheapest_before);
    }

    /// Ends the turn. Returns whether the deficits have to be reset: only queues that were passed over have packets.
    #[inline(always)]
    pub fn end_of_turn(&mut self) -> bool {
        let polled = std::mem::take(&mut self.polled);
        let cheapest = std::mem::take(&mut self.cheapest);
        if cheapest > 0 || !polled {
            self.cheapest_before = cheapest;
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
        assert!((0.6..0.8).contains(&time), "{time} times the time of the other");
        assert_eq!(turns(1000, |_| 3_000, 3_700), (1000, 1000), "little more than the other: no deficit");
    }

    #[test]
    fn little_that_comes_back_costs_little() {
        // A tenth of a turn's cost in each turn.
        let (victim, other) = turns_with_returned(1000, |_| 3_000, 3_000, 300);
        assert!(victim == 1000 && (860..880).contains(&other), "{other}");
    }

    /// A victim whose batches also miss sometimes does not relieve the attacker of its deficit.
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
        assert!(polls.0 == 10_000 && (0.6..0.8).contains(&time), "{time} times the time of the other");
    }

    #[test]
    fn what_comes_back_costs_as_well() {
        let (victim, attacker) = turns_with_returned(10_000, |_| 3_000, 20_000, 40_000);
        let time = f64::from(attacker) * 60_000.0 / (f64::from(victim) * 3_000.0);
        assert!((0.6..0.8).contains(&time), "{time} times the time of the other");
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
        assert_eq!(turns.count(), 128);
    }

    #[test]
    fn idle_time_is_not_kept_from_anybody() {
        assert_eq!(turns(1000, |_| 0, 60_000).1, 1000);
        let (_, attacker) = turns(1000, |turn| if turn < 10 { 3_000 } else { 0 }, 60_000);
        assert!(attacker > 980, "{attacker}: the deficit ends with the others' traffic");
    }
}
