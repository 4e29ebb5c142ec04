//! The MAC addresses of next hops, by bridge and IP address.
//!
//! They are learnt from what neighbours say, and forgotten some time after they were used or heard of last. Those of the kernel are
//! known for as long as it says. There are at most so many: a new one then takes the place of the one that would be forgotten
//! first. Those that the kernel or an operator has set are not pushed out by ones that were heard of.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use weir_time::Time;

/// A MAC address.
pub type Mac = [u8; 6];

/// How long a neighbour is known after it was used or heard of last, unless that is changed.
pub const AGING: Duration = Duration::from_secs(15 * 60);
/// The longest such time.
pub const MAX_AGING: Duration = Duration::from_secs(3600);

/// Who has told of a neighbour. Of two who tell the same, the later one here counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Told {
    /// A packet of the neighbour, or one that says it is.
    Heard,
    /// The kernel. It says when this is no longer so.
    Kernel,
    /// An operator.
    Set,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Mac,
    told: Told,
    expires: Time,
    /// The order in which neighbours came that expire at the same time.
    number: u64,
}

/// What a neighbour is found by, and its place in a listing: its bridge and IP address.
pub type Key = (Box<str>, IpAddr);

/// When what the kernel has told is forgotten.
const NEVER: Time = Time(u64::MAX);

/// How many changes are remembered for [`Neighbours::take_changed`].
const MOST_CHANGES: usize = 1024;

/// All neighbours.
#[derive(Debug)]
pub struct Neighbours {
    known: BTreeMap<Key, Neighbour>,
    /// The same, in the order in which they are pushed out.
    order: BTreeSet<(Told, Time, u64, Key)>,
    limit: usize,
    aging: Duration,
    generation: u64,
    /// Whose addresses have changed since that was asked last; `None`: too many.
    changed: Option<HashSet<IpAddr>>,
    number: u64,
}

impl Neighbours {
    /// None yet, and at most so many.
    pub fn new(limit: usize) -> Neighbours {
        Neighbours {
            known: BTreeMap::new(),
            order: BTreeSet::new(),
            limit: limit.max(1),
            aging: AGING,
            generation: 0,
            changed: Some(HashSet::new()),
            number: 0,
        }
    }

    /// A number that is another one after each change of what is found.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The neighbours of which what is found has changed since the last call; `None` where these are too many to be named. There is one who asks.
    pub fn take_changed(&mut self) -> Option<HashSet<IpAddr>> {
        self.changed.replace(HashSet::new())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// How long neighbours are known.
    pub fn aging(&self) -> Duration {
        self.aging
    }

    /// Changes how long neighbours are known: from a second to [`MAX_AGING`]. Those that would be known for longer are not. Whether the
    /// time is one that can be.
    pub fn set_aging(&mut self, aging: Duration, now: Time) -> bool {
        if aging < Duration::from_secs(1) || aging > MAX_AGING {
            return false;
        }
        self.aging = aging;
        let latest = now + aging;
        let too_long = |known: &Neighbour| known.told != Told::Kernel && known.expires > latest;
        let keys: Vec<Key> =
            self.known.iter().filter(|(_, known)| too_long(known)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.put_off(key, latest));
        true
    }

    /// Notes the address of a neighbour. Whether there was room: where as many are set as there can be, one that was heard of finds
    /// none.
    pub fn set(&mut self, bridge: &str, ip: IpAddr, mac: Mac, told: Told, now: Time) -> bool {
        let key: Key = (bridge.into(), ip);
        let expires = if told == Told::Kernel { NEVER } else { now + self.aging };
        let same = |known: &Neighbour| known.expires > now && known.mac == mac && known.told >= told;
        if self.known.get(&key).is_some_and(same) {
            self.put_off(&key, expires);
            return true;
        }
        self.remove(&key);
        if self.known.len() >= self.limit {
            let Some((first, .., key)) = self.order.first().cloned() else { return false };
            if first > told {
                return false;
            }
            self.remove(&key);
        }
        self.note(ip);
        self.number += 1;
        let number = self.number;
        self.order.insert((told, expires, number, key.clone()));
        self.known.insert(key, Neighbour { mac, told, expires, number });
        true
    }

    /// A packet of a neighbour has come from this address. Where it was heard of before, that is its address now; packets alone make
    /// nobody known, and change nothing that the kernel or an operator has told.
    pub fn see(&mut self, bridge: &str, ip: IpAddr, mac: Mac, now: Time) {
        let heard = |known: &&Neighbour| known.told == Told::Heard && known.expires > now;
        if self.known.get(&(bridge.into(), ip)).filter(heard).is_some() {
            self.set(bridge, ip, mac, Told::Heard, now);
        }
    }

    /// The address of a neighbour.
    pub fn look(&self, bridge: &str, ip: IpAddr, now: Time) -> Option<Mac> {
        self.known.get(&(bridge.into(), ip)).filter(|known| known.expires > now).map(|known| known.mac)
    }

    /// The address of a neighbour, which is used: it is known for longer then.
    pub fn find(&mut self, bridge: &str, ip: IpAddr, now: Time) -> Option<Mac> {
        let key: Key = (bridge.into(), ip);
        let mac = self.known.get(&key).filter(|known| known.expires > now)?.mac;
        self.put_off(&key, now + self.aging);
        Some(mac)
    }

    /// Forgets a neighbour if it is this one that has told of it last.
    pub fn remove_told(&mut self, bridge: &str, ip: IpAddr, told: Told) {
        let key: Key = (bridge.into(), ip);
        if self.known.get(&key).is_some_and(|known| known.told == told) {
            self.remove(&key);
        }
    }

    /// Forgets those whose time is over.
    pub fn expire(&mut self, now: Time) {
        for told in [Told::Heard, Told::Set] {
            let empty = (Box::from(""), IpAddr::from([0; 4]));
            while let Some((_, _, _, key)) = self
                .order
                .range((told, Time(0), 0, empty.clone())..)
                .next()
                .filter(|(other, expires, ..)| *other == told && *expires <= now)
                .cloned()
            {
                self.remove(&key);
            }
        }
    }

    /// Forgets all of a bridge, or all; but not what the kernel has told.
    pub fn flush(&mut self, bridge: Option<&str>) {
        if let Some(bridge) = bridge {
            let first: Key = (bridge.into(), IpAddr::from([0; 4]));
            if self.known.range(first..).next().is_none_or(|((name, _), _)| **name != *bridge) {
                return;
            }
        }
        let is_meant = |key: &Key, told: Told| told != Told::Kernel && bridge.is_none_or(|bridge| *key.0 == *bridge);
        let before = self.known.len();
        self.known.retain(|key, known| !is_meant(key, known.told));
        self.order.retain(|(told, .., key)| !is_meant(key, *told));
        if self.known.len() != before {
            self.generation += 1;
            self.changed = None;
        }
    }

    /// Each neighbour: bridge, address, MAC address, and whether its time is over.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = (&str, IpAddr, Mac, bool)> {
        self.after(None, now).map(|((bridge, ip), mac, is_over)| (&**bridge, *ip, mac, is_over))
    }

    /// The neighbours after a place in the order of listings, or all: those that are known all the time come once, however they
    /// change between two calls.
    pub fn after<'a>(&'a self, place: Option<&Key>, now: Time) -> impl Iterator<Item = (&'a Key, Mac, bool)> + use<'a> {
        let from = place.map_or(Unbounded, Excluded);
        self.known.range::<Key, _>((from, Unbounded)).map(move |(key, known)| (key, known.mac, known.expires <= now))
    }

    fn remove(&mut self, key: &Key) {
        if let Some(Neighbour { told, expires, number, .. }) = self.known.remove(key) {
            self.order.remove(&(told, expires, number, key.clone()));
            self.note(key.1);
        }
    }

    /// What is found of this neighbour has changed.
    fn note(&mut self, ip: IpAddr) {
        self.generation += 1;
        if let Some(changed) = &mut self.changed {
            changed.insert(ip);
            if changed.len() > MOST_CHANGES {
                self.changed = None;
            }
        }
    }

    fn put_off(&mut self, key: &Key, expires: Time) {
        let Some(known) = self.known.get_mut(key).filter(|known| known.told != Told::Kernel) else { return };
        let Some((.., kept)) = self.order.take(&(known.told, known.expires, known.number, key.clone())) else { return };
        known.expires = expires;
        self.order.insert((known.told, expires, known.number, kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_neighbour_is_known_for_some_time_after_it_was_used() {
        let mut all = Neighbours::new(10);
        assert!(all.set("br0", ip(1), [1; 6], Told::Heard, at(0)));
        assert_eq!((all.find("br0", ip(1), at(899)), all.find("br1", ip(1), at(0))), (Some([1; 6]), None));
        assert_eq!(all.find("br0", ip(1), at(1798)), Some([1; 6]), "it was used");
        let before = all.generation();
        assert!(all.set("br0", ip(1), [1; 6], Told::Heard, at(1799)));
        assert_eq!(all.generation(), before, "nothing has changed");
        assert!(all.set("br0", ip(1), [2; 6], Told::Heard, at(1799)));
        assert_ne!(all.generation(), before);
        assert_eq!(all.find("br0", ip(1), at(2699)), None);
        assert_eq!(all.iter(at(2699)).collect::<Vec<_>>(), [("br0", ip(1), [2; 6], true)]);
        all.expire(at(2699));
        assert!(all.is_empty());
    }

    #[test]
    fn packets_tell_of_those_that_were_heard_of() {
        let mut all = Neighbours::new(10);
        all.see("br0", ip(1), [1; 6], at(0));
        assert!(all.is_empty());
        all.set("br0", ip(1), [1; 6], Told::Heard, at(0));
        all.set("br0", ip(2), [2; 6], Told::Kernel, at(0));
        all.set("br0", ip(3), [3; 6], Told::Set, at(0));
        (1..4).for_each(|last| all.see("br0", ip(last), [9; 6], at(10)));
        assert_eq!([1, 2, 3].map(|last| all.look("br0", ip(last), at(909))), [Some([9; 6]), Some([2; 6]), None]);
        all.see("br0", ip(1), [8; 6], at(910));
        assert_eq!(all.look("br0", ip(1), at(911)), None, "its time was over");
    }

    #[test]
    fn whose_address_has_changed_is_told_once() {
        let mut all = Neighbours::new(4096);
        let mut told = |change: &dyn Fn(&mut Neighbours)| {
            change(&mut all);
            all.take_changed().map(|ips| ips.into_iter().collect::<BTreeSet<_>>())
        };
        let some = |ips: &[IpAddr]| Some(ips.iter().copied().collect::<BTreeSet<_>>());
        let set = |all: &mut Neighbours, last| assert!(all.set("br0", ip(last), [last; 6], Told::Heard, at(0)));
        assert_eq!(told(&|all| [1, 2, 2].into_iter().for_each(|last| set(all, last))), some(&[ip(1), ip(2)]));
        assert_eq!(told(&|all| set(all, 1)), some(&[]));
        assert_eq!(told(&|all| assert!(all.set("br1", ip(1), [9; 6], Told::Heard, at(0)))), some(&[ip(1)]));
        assert_eq!(told(&|all| all.remove_told("br0", ip(2), Told::Heard)), some(&[ip(2)]));
        assert_eq!(told(&|all| all.expire(at(900))), some(&[ip(1)]));
        assert_eq!(told(&|all| all.flush(None)), some(&[]));
        set(&mut all, 1);
        all.flush(Some("br0"));
        assert_eq!(all.take_changed(), None);
        for n in 0..=MOST_CHANGES as u32 {
            assert!(all.set("br0", IpAddr::V4(n.into()), [1; 6], Told::Heard, at(0)));
        }
        assert_eq!((all.take_changed(), all.take_changed()), (None, Some(HashSet::new())));
    }

    #[test]
    fn a_shorter_time_holds_for_all() {
        let mut all = Neighbours::new(10);
        all.set("br0", ip(1), [1; 6], Told::Heard, at(0));
        assert!(!all.set_aging(Duration::ZERO, at(0)) && !all.set_aging(Duration::from_secs(3601), at(0)));
        assert!(all.set_aging(Duration::from_secs(5), at(0)));
        assert_eq!(all.find("br0", ip(1), at(5)), None);
    }

    #[test]
    fn who_is_heard_of_pushes_out_nobody_that_is_set() {
        let mut all = Neighbours::new(2);
        assert!(all.set("br0", ip(1), [1; 6], Told::Set, at(0)));
        assert!(all.set("br0", ip(2), [2; 6], Told::Heard, at(1)));
        assert!(all.set("br0", ip(3), [3; 6], Told::Heard, at(2)));
        assert_eq!((all.len(), all.find("br0", ip(2), at(2))), (2, None), "the one that was heard of first");
        assert!(all.set("br0", ip(4), [4; 6], Told::Set, at(3)));
        assert!(!all.set("br0", ip(5), [5; 6], Told::Heard, at(4)));
        assert_eq!([1, 4].map(|last| all.find("br0", ip(last), at(4))), [Some([1; 6]), Some([4; 6])]);
        all.flush(Some("br1"));
        assert_eq!(all.len(), 2);
        all.flush(Some("br0"));
        assert!(all.is_empty() && all.set("br0", ip(5), [5; 6], Told::Heard, at(4)));
    }

    #[test]
    fn what_the_kernel_has_told_holds_until_it_says_otherwise() {
        let mut all = Neighbours::new(3);
        assert!(all.set("br0", ip(1), [1; 6], Told::Kernel, at(0)));
        assert!(all.set_aging(Duration::from_secs(5), at(0)));
        assert_eq!(all.find("br0", ip(1), at(10)), Some([1; 6]));
        all.expire(at(10_000));
        all.flush(None);
        let before = all.generation();
        assert!(all.set("br0", ip(1), [1; 6], Told::Heard, at(10_000)));
        assert_eq!((all.find("br0", ip(1), at(20_000)), all.generation()), (Some([1; 6]), before), "it says the same");
        assert!(all.set("br0", ip(2), [2; 6], Told::Heard, at(20_000)));
        all.remove_told("br0", ip(2), Told::Kernel);
        all.remove_told("br0", ip(1), Told::Kernel);
        assert_eq!([1, 2].map(|last| all.find("br0", ip(last), at(20_000))), [None, Some([2; 6])]);
        assert!(
            all.set("br0", ip(3), [3; 6], Told::Kernel, at(20_000))
                && all.set("br0", ip(3), [3; 6], Told::Set, at(20_000))
        );
        all.remove_told("br0", ip(3), Told::Kernel);
        assert_eq!(all.find("br0", ip(3), at(20_001)), Some([3; 6]), "an operator has said so, too");
    }

    #[test]
    fn a_listing_goes_on_where_it_was() {
        let mut all = Neighbours::new(10);
        for last in 1..6 {
            all.set("br0", ip(last), [last; 6], Told::Heard, at(0));
        }
        let (mut place, mut seen) = (None, Vec::new());
        loop {
            let next = all.after(place.as_ref(), at(0)).next().map(|(key, mac, _)| (key.clone(), mac));
            let Some((key, mac)) = next else { break };
            seen.push(mac[0]);
            place = Some(key);
            all.set("br0", ip(1), [9; 6], Told::Heard, at(1));
        }
        assert_eq!(seen, [1, 2, 3, 4, 5]);
    }

    proptest! {
        /// Against a list of all, in which the one to push out is searched for.
        #[test]
        fn finds_what_a_list_finds(
            steps in prop::collection::vec((0u8..6, 0u8..3, any::<bool>(), 0u8..3, 0u64..400), 0..80),
        ) {
            let (mut all, mut list) = (Neighbours::new(3), Vec::<(u8, Mac, Told, u64, u64)>::new());
            let mut now = 0;
            for (n, (last, mac, set, what, pass)) in (0u64..).zip(steps) {
                now += pass;
                let known = list.iter().position(|known| known.0 == last && known.3 > now);
                match what {
                    0 => {
                        prop_assert_eq!(all.find("br0", ip(last), at(now)), known.map(|i| list[i].1));
                        known.into_iter().for_each(|i| list[i].3 = now + 900);
                    }
                    1 => {
                        all.expire(at(now));
                        list.retain(|known| known.3 > now);
                        prop_assert_eq!(all.len(), list.len());
                    }
                    _ => {
                        let told = if set { Told::Set } else { Told::Heard };
                        let there = all.set("br0", ip(last), [mac; 6], told, at(now));
                        match known {
                            Some(i) if list[i].1 == [mac; 6] && list[i].2 >= told => list[i].3 = now + 900,
                            _ => {
                                list.retain(|known| known.0 != last);
                                let first = (0..list.len()).min_by_key(|&i| (list[i].2, list[i].3, list[i].4));
                                let full = list.len() == 3;
                                let refused = full && first.is_some_and(|i| list[i].2 > told);
                                prop_assert_eq!(there, !refused);
                                if !refused {
                                    first.filter(|_| full).map(|i| list.swap_remove(i));
                                    list.push((last, [mac; 6], told, now + 900, n));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
