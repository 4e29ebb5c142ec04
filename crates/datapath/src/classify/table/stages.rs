//! Which list of flows is for the packets of a stage.
//!
//! Packets that a port has received look at the port's own list, which has the port's number. The flows of each
//! recirculation id have a list of their own, so that the stages do not share one limit of masks, nor one plan. There are
//! as many lists for later stages as there are for ports; flows of stages beyond that lie in their port's list, where
//! their masks tell them apart: those are looked up by their keys alone.
//!
//! Who touches what: the writer of the flow table changes the sets; workers read single words of them. A word has all that
//! a reader compares, so it is never seen half written. The number of a list is given to another stage only when no worker
//! can be using what it has read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::classify::mem::region::{Region, Zero};
use crate::pipeline::recirculation::RecircStage;
use crate::sync::rcu::Domain;

/// Port numbers are below this. Keys with an input port that is not (a controller's, none) share the list
/// of port zero, which does not exist.
pub const MAX_PORTS: usize = 1 << 15;

/// Lists of later stages, which have the numbers behind those of ports.
const STAGES: usize = MAX_PORTS;
/// Places in a set.
const WAYS: usize = 8;
/// Sets: twice as many places as lists.
const SETS: usize = 2 * STAGES / WAYS;

/// Numbers that a list can have.
pub const LISTS: usize = MAX_PORTS + STAGES;

/// Where the lists of some stages are. One cache line.
#[repr(C, align(64))]
struct Set([AtomicU64; WAYS]);

// SAFETY: zeros are a set in which no place is used, and nothing has to be dropped.
unsafe impl Zero for Set {}

/// The lists of later stages, as workers find them.
pub struct Stages {
    sets: Region<Set>,
}

/// The numbers that are free: the writer's.
#[derive(Default)]
pub struct FreeLists {
    /// Lists that were given away, ever.
    given: usize,
    /// Free at once.
    free: Vec<u16>,
    /// Free when every worker has reached an epoch.
    pending: VecDeque<(u64, u16)>,
}

/// A place's word: the list's number, the input port, the recirculation id. Never zero, for the number is not.
fn word(stage: RecircStage, list: u16) -> u64 {
    u64::from(list) << 48 | key(stage)
}

fn key(stage: RecircStage) -> u64 {
    u64::from(stage.in_port.0 as u16) << 32 | u64::from(stage.recirc_id)
}

const KEY: u64 = (1 << 48) - 1;

impl Default for Stages {
    /// No later stages.
    fn default() -> Stages {
        Stages { sets: Region::new(SETS) }
    }
}

impl Stages {
    #[inline(always)]
    fn set(&self, stage: RecircStage) -> &Set {
        // Ids are given by the layer above, and no packet chooses among more of them than it has made.
        let hash = key(stage).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.sets.slice()[hash as usize % SETS]
    }

    /// The list of a later stage, if it has one.
    #[inline(always)]
    pub fn find(&self, stage: RecircStage) -> Option<u16> {
        let key = key(stage);
        let words = self.set(stage).0.iter().map(|place| place.load(Ordering::Acquire));
        words.into_iter().find(|word| word & KEY == key && *word != 0).map(|word| (word >> 48) as u16)
    }

    /// Gives a list to a stage that has none. `None` where there is no more, or its set is full.
    pub fn assign(&self, stage: RecircStage, lists: &mut FreeLists, domain: &Domain) -> Option<u16> {
        let place = self.set(stage).0.iter().find(|place| place.load(Ordering::Relaxed) == 0)?;
        let list = lists.take(domain)?;
        place.store(word(stage, list), Ordering::Release);
        Some(list)
    }

    /// Takes the list of a stage away, which has no flows any more.
    pub fn release(&self, stage: RecircStage, lists: &mut FreeLists, domain: &Domain) {
        let Some(list) = self.find(stage) else { return };
        let word = word(stage, list);
        let place = self.set(stage).0.iter().find(|place| place.load(Ordering::Relaxed) == word);
        if let Some(place) = place {
            place.store(0, Ordering::Release);
            lists.pending.push_back((domain.begin(), list));
        }
    }
}

impl FreeLists {
    fn take(&mut self, domain: &Domain) -> Option<u16> {
        while let Some(&(_, list)) = self.pending.front().filter(|(epoch, _)| domain.passed(*epoch)) {
            self.pending.pop_front();
            self.free.push(list);
        }
        self.free.pop().or_else(|| {
            let fresh = MAX_PORTS + self.given;
            self.given += usize::from(self.given < STAGES);
            u16::try_from(fresh).ok().filter(|_| fresh < LISTS)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::action::PortNo;

    fn stage(n: u32) -> RecircStage {
        RecircStage { in_port: PortNo(n % 7 + 1), recirc_id: n + 1 }
    }

    #[test]
    fn each_stage_has_a_list_of_its_own_until_there_are_no_more() {
        let (stages, mut lists, domain) = (Stages::default(), FreeLists::default(), Domain::new(1));
        let many = if cfg!(miri) { 300 } else { 2 * STAGES as u32 };
        let given: Vec<_> = (0..many).map(|n| stages.assign(stage(n), &mut lists, &domain)).collect();
        let numbers: HashSet<u16> = given.iter().flatten().copied().collect();
        assert_eq!(numbers.len(), given.iter().flatten().count(), "no number twice");
        assert!(numbers.iter().all(|&list| usize::from(list) >= MAX_PORTS));
        assert!(numbers.len() > many as usize / 3 && numbers.len() <= STAGES);
        for n in 0..many {
            assert_eq!(stages.find(stage(n)), given[n as usize]);
        }
        let other = RecircStage { in_port: PortNo(8), recirc_id: 1 };
        assert_eq!(stages.find(other), None);
    }

    #[test]
    fn a_number_is_given_again_only_when_no_worker_can_be_using_it() {
        let (stages, mut lists, domain) =
            (Stages::default(), FreeLists::default(), std::sync::Arc::new(Domain::new(1)));
        let mut reader = domain.readers().pop().unwrap();
        reader.quiescent();
        let first = stages.assign(stage(0), &mut lists, &domain).unwrap();
        stages.release(stage(0), &mut lists, &domain);
        assert_eq!(stages.find(stage(0)), None);
        let second = stages.assign(stage(1), &mut lists, &domain).unwrap();
        assert_ne!(first, second, "the worker may have read the first one");
        reader.quiescent();
        assert_eq!(stages.assign(stage(2), &mut lists, &domain), Some(first));
        reader.offline();
    }
}
