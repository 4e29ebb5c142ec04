//! Maps a recirculation stage to its list of flows.
//!
//! Packets that a port has received are looked up in the port's own list, which has the port's number. The flows of
//! each recirculation id have a list of their own, so that stages share neither the limit of masks nor a plan. There
//! are as many lists for later stages as for ports. Flows of further stages are added to their port's list. These are
//! looked up by their keys only, which contain the recirculation id.
//!
//! Packets that come out of a tunnel carry metadata, and so those of its port are of a later stage, too, though their recirculation id
//! is zero.
//!
//! Shared memory: the writer of the flow table changes the sets; workers read single words of them. A word contains
//! everything that a reader compares, so it is never seen half written. A list's number is reused only when no worker
//! can be using it any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::action::PortNo;
use crate::classify::mem::region::{Region, Zero};
use crate::pipeline::recirculation::RecircStage;
use crate::sync::rcu::Domain;

/// Port numbers are below this. Keys with a larger input port (a controller's, none) share the list of port zero,
/// which does not exist. Few in Miri, which takes seconds to make thousands of lists.
pub const MAX_PORTS: usize = if cfg!(miri) { 1 << 6 } else { 1 << 15 };

/// Lists of later stages. Their numbers follow those of ports.
const STAGES: usize = MAX_PORTS;
/// Slots in a set.
const WAYS: usize = 8;
/// Sets. There are twice as many slots as lists.
const SETS: usize = 2 * STAGES / WAYS;

/// Number of lists.
pub const LISTS: usize = MAX_PORTS + STAGES;

/// The number of a port's list.
pub fn list_index(in_port: PortNo) -> u16 {
    u16::try_from(in_port.0).ok().filter(|&index| usize::from(index) < MAX_PORTS).unwrap_or(0)
}

/// The lists of some stages: a cache line of slots.
#[repr(C, align(64))]
struct Set([AtomicU64; WAYS]);

// SAFETY: all-zero bytes are a valid set, in which no slot is used, and a set need not be dropped.
unsafe impl Zero for Set {}

/// The map from later stages to their lists.
pub struct Stages {
    sets: Region<Set>,
    /// The ports whose packets come out of a tunnel, one bit each.
    tunnels: Box<[AtomicU64]>,
}

/// The numbers that are free. For the writer alone.
#[derive(Default)]
pub struct FreeLists {
    /// Numbers that were ever assigned.
    given: usize,
    /// Numbers that can be reused now.
    free: Vec<u16>,
    /// Numbers that can be reused when every worker has reached an RCU epoch.
    pending: VecDeque<(u64, u16)>,
}

/// The word of a slot: list number, input port, recirculation id. Never zero, since the list number is not.
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
        Stages { sets: Region::new(SETS), tunnels: (0..MAX_PORTS / 64).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Stages {
    #[inline(always)]
    fn set(&self, stage: RecircStage) -> &Set {
        // Recirculation ids are assigned by the layer above, so no sender can choose stages that collide.
        let hash = key(stage).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.sets.slice()[hash as usize % SETS]
    }

    /// Whether a stage may have a list of its own. Stages of input ports that do not exist have few packets, and get
    /// none.
    #[inline(always)]
    pub fn is_later(&self, stage: RecircStage) -> bool {
        let port = list_index(stage.in_port);
        port != 0 && (stage.recirc_id != 0 || self.bit_of(port).load(Ordering::Relaxed) >> (port % 64) & 1 != 0)
    }

    /// Says whether packets of a port come out of a tunnel. There must be no flows of it.
    pub fn set_tunnel(&self, port: PortNo, is_tunnel: bool) {
        let port = list_index(port);
        let bit = 1 << (port % 64);
        if is_tunnel {
            self.bit_of(port).fetch_or(bit, Ordering::Relaxed);
        } else {
            self.bit_of(port).fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn bit_of(&self, port: u16) -> &AtomicU64 {
        &self.tunnels[usize::from(port) / 64]
    }

    /// The list of a later stage, if it has one.
    #[inline(always)]
    pub fn find(&self, stage: RecircStage) -> Option<u16> {
        let key = key(stage);
        let words = self.set(stage).0.iter().map(|place| place.load(Ordering::Acquire));
        words.into_iter().find(|word| word & KEY == key && *word != 0).map(|word| (word >> 48) as u16)
    }

    /// Assigns a list to a stage that has none. `None` where no list is left, or the stage's set is full.
    pub fn assign(&self, stage: RecircStage, lists: &mut FreeLists, domain: &Domain) -> Option<u16> {
        let place = self.set(stage).0.iter().find(|place| place.load(Ordering::Relaxed) == 0)?;
        let list = lists.take(domain)?;
        place.store(word(stage, list), Ordering::Release);
        Some(list)
    }

    /// Releases the list of a stage that has no flows any more.
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
        let many = 2 * STAGES as u32;
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
