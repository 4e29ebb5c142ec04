//! The filter of a port and its receive queues: rules, and behind them an XDP program.
//!
//! Sharing between threads: the rule set is read by all workers of the port's queues, and changed by none but for its
//! token buckets. Counters: see [`crate::counters`]. What a [`PortFilter`] knows of its queues' counters is behind a lock
//! that no worker takes.

use std::sync::Arc;

use datapath::classify::bits;
use datapath::pipeline::batch::all;
use datapath::pipeline::ingress::Filter;
use packet::{Packet, Time};
use parking_lot::Mutex;

use crate::counters::{QueueCounters, RuleCounts};
use crate::ebpf::PortProgram;
use crate::ebpf::port_program::QueueProgram;
use crate::rule_set::RuleSet;

/// The rule set in force at a port, and the program that decides about the frames that it lets pass.
#[derive(Debug)]
pub struct PortFilter {
    rules: Arc<RuleSet>,
    program: Option<Arc<PortProgram>>,
    counts: Mutex<Counts>,
}

/// What has been counted.
#[derive(Debug)]
struct Counts {
    /// By queues that are no more.
    ended: Vec<RuleCounts>,
    queues: Vec<CountedQueue>,
}

/// The counters of a receive queue.
#[derive(Clone, Debug)]
struct CountedQueue {
    counters: Arc<QueueCounters>,
    /// The rule set that it counts for. It is kept here so that no worker is the last to drop it, which takes time.
    rules: Arc<RuleSet>,
    /// Which of this port's rules each of the queue's rules is; `None` where these are the same rules.
    places: Option<Arc<[Option<usize>]>>,
}

impl PortFilter {
    /// The filter of these rules, with all counters at zero.
    pub fn new(rules: RuleSet) -> PortFilter {
        let counts = Counts { ended: vec![RuleCounts::default(); rules.rules().len()], queues: Vec::new() };
        PortFilter { rules: Arc::new(rules), program: None, counts: Mutex::new(counts) }
    }

    /// The same rules, which count on, with another program or none.
    pub fn with_program(&self, program: Option<Arc<PortProgram>>) -> PortFilter {
        let counts = self.counts.lock();
        let counts = Counts { ended: counts.ended.clone(), queues: counts.queues.clone() };
        PortFilter { rules: self.rules.clone(), program, counts: Mutex::new(counts) }
    }

    /// The filter of these rules in the place of another one, with its program. A rule that was there before has counted what it had
    /// counted there, and counts on what queues with the other filter still bring.
    pub fn replacing(rules: RuleSet, before: &PortFilter) -> PortFilter {
        let mut free: Vec<bool> = vec![true; rules.rules().len()];
        let same = |rule: &crate::Rule| {
            let place = rules.rules().iter().zip(&free).position(|(new, free)| *free && new.is_same(rule))?;
            free[place] = false;
            Some(place)
        };
        let places: Arc<[Option<usize>]> = before.rules.rules().iter().map(same).collect();
        let counts = before.counts.lock();
        let mut ended = vec![RuleCounts::default(); rules.rules().len()];
        add_at(&mut ended, &places, counts.ended.iter().copied());
        let moved = |queue: &CountedQueue| CountedQueue {
            places: Some(match &queue.places {
                None => places.clone(),
                Some(earlier) => earlier.iter().map(|place| place.and_then(|place| places[place])).collect(),
            }),
            ..queue.clone()
        };
        let queues = counts.queues.iter().map(moved).collect();
        drop(counts);
        let program = before.program.clone();
        PortFilter { rules: Arc::new(rules), program, counts: Mutex::new(Counts { ended, queues }) }
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The program.
    pub fn program(&self) -> Option<&Arc<PortProgram>> {
        self.program.as_ref()
    }

    /// A filter for one of the port's receive queues.
    pub fn for_queue(&self) -> QueueFilter {
        let program = self.program.as_ref().map(PortProgram::for_queue);
        QueueFilter { rules: self.rules.clone(), counters: self.for_offload(), program }
    }

    /// Counters for what is counted elsewhere, as for a further receive queue: see [`crate::offload`].
    pub fn for_offload(&self) -> Arc<QueueCounters> {
        let mut counts = self.counts.lock();
        counts.fold_ended();
        let counters = Arc::new(QueueCounters::new(self.rules.rules().len()));
        let queue = CountedQueue { counters: counters.clone(), rules: self.rules.clone(), places: None };
        counts.queues.push(queue);
        counters
    }

    /// What each rule has counted, on all queues together.
    pub fn counts(&self) -> Vec<RuleCounts> {
        let mut counts = self.counts.lock();
        counts.fold_ended();
        let mut sum = counts.ended.clone();
        counts.queues.iter().for_each(|queue| queue.add_to(&mut sum));
        sum
    }
}

impl Counts {
    /// Adds up the counters that no worker has any more, so that queues that come and go take no memory.
    fn fold_ended(&mut self) {
        let Counts { ended, queues } = self;
        queues.retain(|queue| {
            // Another filter that replaces this one may hold them, too; then the last one does it.
            let is_used = Arc::strong_count(&queue.counters) > 1;
            if !is_used {
                queue.add_to(ended);
            }
            is_used
        });
    }
}

impl CountedQueue {
    fn add_to(&self, sum: &mut [RuleCounts]) {
        debug_assert_eq!(self.rules.rules().len(), self.counters.read().count());
        match &self.places {
            None => sum.iter_mut().zip(self.counters.read()).for_each(|(sum, counts)| sum.add(counts)),
            Some(places) => add_at(sum, places, self.counters.read()),
        }
    }
}

/// Adds counts of other rules at the places of the same ones.
fn add_at(sum: &mut [RuleCounts], places: &[Option<usize>], counts: impl Iterator<Item = RuleCounts>) {
    for (place, counts) in places.iter().zip(counts) {
        if let Some(place) = *place {
            sum[place].add(counts);
        }
    }
}

/// The filter of a receive queue, for its worker.
#[derive(Debug)]
pub struct QueueFilter {
    // Dropped before the counters: who finds that nobody else has those may drop the last of the rule set.
    rules: Arc<RuleSet>,
    counters: Arc<QueueCounters>,
    program: Option<QueueProgram>,
}

impl Filter for QueueFilter {
    fn refused(&mut self, packets: &[Packet], now: Time) -> u32 {
        let mut refused = self.rules.refused(packets, now, |rule, counts| self.counters.add(rule, counts));
        let Some(program) = &self.program else { return refused };
        for i in bits(all(packets.len()) & !refused) {
            refused |= u32::from(program.refuses(packets[i].data(), now.0)) << i;
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> PortFilter {
        PortFilter::new(RuleSet::compile(text).unwrap())
    }

    /// An IPv4 frame to 10.0.0.`last`.
    fn to(last: u8) -> Packet {
        let mut frame = [0; 60];
        (frame[12], frame[14], frame[30], frame[33]) = (8, 0x45, 10, last);
        Packet::from_slice(&frame)
    }

    fn counts(filter: &PortFilter) -> Vec<(u64, u64, u64)> {
        filter.counts().iter().map(|c| (c.packets, c.bytes, c.dropped)).collect()
    }

    #[test]
    fn the_first_match_decides_and_counts() {
        let filter = filter("pass dst host 10.0.0.1; drop dst net 10.0.0.0/30; limit 10 ip[19] & 0xf0 = 0x10");
        let mut queue = filter.for_queue();
        let batch: Vec<_> = [1, 2, 3, 4, 0x10, 0x11, 1].map(to).into();
        assert_eq!(queue.refused(&batch, Time(5)), 0b010_0110);
        assert_eq!(counts(&filter), [(2, 120, 0), (2, 120, 2), (2, 120, 1)]);
        assert_eq!(queue.refused(&[], Time(5)), 0);
        let whole: Vec<_> = (0..32).map(|_| to(2)).collect();
        assert_eq!(queue.refused(&whole, Time(5)), u32::MAX);
    }

    #[test]
    fn a_program_decides_about_what_the_rules_let_pass() {
        use crate::ebpf::VerdictCounts;
        use crate::ebpf::assembler::{assemble, exit, set};
        let program = |verdict: i32, path: &str| {
            let machine = assemble(&[set(0, verdict), exit()], Vec::new()).unwrap();
            Some(Arc::new(PortProgram::new(machine, path)))
        };
        let first = filter("drop dst host 10.0.0.1").with_program(program(2, "pass.o"));
        let mut queue = first.for_queue();
        assert_eq!(queue.refused(&[to(1), to(2), to(3)], Time(0)), 0b001);
        let counts = |filter: &PortFilter| filter.program().map(|program| program.counts());
        assert_eq!(counts(&first), Some(VerdictCounts { passed: 2, ..VerdictCounts::default() }));
        let second = PortFilter::replacing(RuleSet::compile("pass").unwrap(), &first);
        assert_eq!(second.for_queue().refused(&[to(1)], Time(0)), 0);
        assert_eq!(counts(&second), Some(VerdictCounts { passed: 3, ..VerdictCounts::default() }), "it stays");
        let third = PortFilter::replacing(RuleSet::compile("").unwrap(), &second).with_program(program(1, "drop.o"));
        assert_eq!(third.for_queue().refused(&[to(1), to(2)], Time(0)), 0b11);
        assert_eq!(counts(&third), Some(VerdictCounts { dropped: 2, ..VerdictCounts::default() }));
        assert_eq!(third.program().unwrap().path(), "drop.o");
    }

    #[test]
    fn queues_count_together_and_share_a_limit() {
        let filter = filter("limit 20");
        let (mut a, mut b) = (filter.for_queue(), filter.for_queue());
        assert_eq!((a.refused(&[to(1)], Time(0)), b.refused(&[to(1), to(1)], Time(0))), (0, 0b10));
        assert_eq!(counts(&filter), [(3, 180, 1)]);
        drop(a);
        assert_eq!(counts(&filter), [(3, 180, 1)], "what a queue has counted stays when it goes");
        for _ in 0..10 {
            filter.for_queue();
        }
        assert!(filter.counts.lock().queues.len() <= 2, "and takes no memory");
    }

    #[test]
    fn rules_that_stay_count_on_while_others_come_and_go() {
        let first = filter("drop dst host 10.0.0.1; drop dst host 10.0.0.2");
        let mut queue = first.for_queue();
        queue.refused(&[to(1), to(2), to(2)], Time(0));
        let rules = |text: &str| RuleSet::compile(text).unwrap();
        let second = PortFilter::replacing(rules("pass dst host 10.0.0.3; drop dst host 10.0.0.2"), &first);
        // The worker has the old filter still.
        queue.refused(&[to(1), to(2)], Time(0));
        drop(first);
        assert_eq!(counts(&second), [(0, 0, 0), (3, 180, 3)]);
        let third = PortFilter::replacing(rules("drop dst host 10.0.0.2;drop dst host 10.0.0.2"), &second);
        drop((second, queue));
        let mut queue = third.for_queue();
        queue.refused(&[to(2)], Time(0));
        assert_eq!(counts(&third), [(4, 240, 4), (0, 0, 0)]);
        assert_eq!(third.counts.lock().queues.len(), 1);
    }
}
