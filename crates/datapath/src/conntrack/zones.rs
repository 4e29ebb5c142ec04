//! The timeout policies of zones (CT_Zone.timeout_policy), by number.
//!
//! Zones with equal timeouts share a policy, and so its number. A policy that no zone has any more stays as it is until its
//! number is wanted for another: connections that were made under it keep their timeouts for about as long. Numbers are used
//! again in the order in which they became free.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use ::conntrack::table::policies::Policies;
use ::conntrack::timeout::Timeouts;
use parking_lot::Mutex;

use super::Conntrack;

/// The policies that zones have, or had.
#[derive(Default)]
pub struct ZonePolicies(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The numbers of the policies that zones have.
    in_use: HashMap<Timeouts, u16>,
    /// Numbers that were in use, the one that has been free for longest first.
    free: VecDeque<u16>,
}

/// What has become of the policies of zones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoliciesSet {
    /// The number of each zone's policy, for [`Request::policy`](::conntrack::Request::policy).
    pub numbers: HashMap<u16, u16>,
    /// Zones that have the default, for there are as many policies as there can be.
    pub refused: Vec<u16>,
}

impl Conntrack {
    /// The number of a policy with these timeouts, for connections that were made under it in another process; `None` where there
    /// are as many as there can be. Unless a zone has it, the number is used again like that of a policy which no zone has any more.
    pub fn policy_with(&self, timeouts: &Timeouts) -> Option<u16> {
        let mut known = self.zones.0.lock();
        if let Some(number) = known.in_use.get(timeouts) {
            return Some(*number);
        }
        let number = known.begin(&self.tracker.table.policies, timeouts)?;
        known.in_use.remove(timeouts);
        known.free.push_back(number);
        Some(number)
    }

    /// Makes policies with the timeouts of these zones, and forgets all others.
    pub fn set_zone_policies(&self, wanted: &BTreeMap<u16, Timeouts>) -> PoliciesSet {
        self.zones.0.lock().set(&self.tracker.table.policies, wanted)
    }
}

impl Known {
    fn set(&mut self, policies: &Policies, wanted: &BTreeMap<u16, Timeouts>) -> PoliciesSet {
        // What is not wanted any more first, so that its number is free where there is no other.
        let kept: HashSet<_> = wanted.values().collect();
        let mut ended: Vec<_> =
            self.in_use.extract_if(|timeouts, _| !kept.contains(timeouts)).map(|(_, number)| number).collect();
        ended.sort_unstable();
        self.free.extend(ended);
        let mut set = PoliciesSet::default();
        for (zone, timeouts) in wanted {
            match self.in_use.get(timeouts).copied().or_else(|| self.begin(policies, timeouts)) {
                Some(number) => {
                    set.numbers.insert(*zone, number);
                }
                None => set.refused.push(*zone),
            }
        }
        set
    }

    /// Takes a number for a policy: one that was never used, as long as there is one.
    fn begin(&mut self, policies: &Policies, timeouts: &Timeouts) -> Option<u16> {
        // The tracker's first policy is the default.
        let next = 1 + self.in_use.len() + self.free.len();
        let number = policies.set(next as u32, timeouts).or_else(|| {
            let number = self.free.pop_front()?;
            policies.set(number.into(), timeouts)
        })?;
        self.in_use.insert(*timeouts, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use ::conntrack::timeout::Timeout;

    use super::*;

    fn timeouts(seconds: u32) -> Timeouts {
        let mut timeouts = Timeouts::default();
        timeouts.set(Timeout::UdpFirst, seconds);
        timeouts
    }

    fn seconds(conntrack: &Conntrack, number: u16) -> u32 {
        conntrack.tracker.table.policies.seconds(number, Timeout::UdpFirst)
    }

    #[test]
    fn zones_with_equal_timeouts_share_a_policy() {
        let conntrack = Conntrack::new(100, [1, 2]);
        let wanted = BTreeMap::from([(1, timeouts(5)), (2, timeouts(6)), (3, timeouts(5))]);
        let first = conntrack.set_zone_policies(&wanted);
        assert_eq!(first.refused, []);
        assert_eq!(first.numbers.len(), 3);
        assert_eq!([1, 2, 3].map(|zone| seconds(&conntrack, first.numbers[&zone])), [5, 6, 5]);
        assert_eq!(first.numbers[&1], first.numbers[&3]);
        assert_eq!(conntrack.set_zone_policies(&wanted), first);
        // What others have keeps its number.
        let then = conntrack.set_zone_policies(&BTreeMap::from([(2, timeouts(6)), (1, timeouts(7))]));
        assert_eq!(then.numbers[&2], first.numbers[&2]);
        assert_eq!([1, 2].map(|zone| seconds(&conntrack, then.numbers[&zone])), [7, 6]);
        assert!(!then.numbers.contains_key(&3));
        assert!(then.numbers.values().all(|number| *number != 0), "the default is nobody's");
    }

    #[test]
    fn numbers_are_used_again_when_there_are_no_others() {
        let conntrack = Conntrack::new(100, [1, 2]);
        let set = |seconds| conntrack.set_zone_policies(&BTreeMap::from([(1, timeouts(seconds))])).numbers[&1];
        let old = set(1_000_000);
        // Connections that were made under the old one keep it through many changes.
        for change in 0..4000 {
            assert_eq!(seconds(&conntrack, set(change)), change);
            assert_eq!(seconds(&conntrack, old), 1_000_000);
        }
        for change in 4000..9000 {
            assert_eq!(seconds(&conntrack, set(change)), change);
        }
        let many: BTreeMap<_, _> = (0..5000).map(|zone| (zone, timeouts(zone.into()))).collect();
        let PoliciesSet { numbers, refused } = conntrack.set_zone_policies(&many);
        assert_eq!((refused.len(), refused[0]), (5000 - 4095, 4095));
        assert_eq!([0, 4094].map(|zone| seconds(&conntrack, numbers[&zone])), [0, 4094]);
    }

    #[test]
    fn a_policy_of_another_process_is_one_of_a_zone_or_is_there_until_its_number_is_wanted() {
        let conntrack = Conntrack::new(10, [1, 2]);
        let first = conntrack.set_zone_policies(&BTreeMap::from([(3, timeouts(7))])).numbers[&3];
        assert_eq!(conntrack.policy_with(&timeouts(7)), Some(first));
        let other = conntrack.policy_with(&timeouts(8)).unwrap();
        assert_ne!(other, first);
        assert_eq!(conntrack.tracker.table.policies.timeouts(other), Some(timeouts(8)));
        let set = conntrack.set_zone_policies(&BTreeMap::from([(3, timeouts(7)), (4, timeouts(9))]));
        assert!(![other, first].contains(&set.numbers[&4]));
        assert_eq!(conntrack.tracker.table.policies.timeouts(other), Some(timeouts(8)));
    }
}
