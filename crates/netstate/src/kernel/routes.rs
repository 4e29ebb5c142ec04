//! The routes of the kernel, those of all tables, of which one counts for each mark and prefix.
//!
//! Open vSwitch does not look at rules, and takes all tables for one. So does this; but where several routes are for the same
//! addresses, it does not leave it to chance which of them counts: the main table comes before others, and a lower metric before a
//! higher one.
//!
//! The kernel tells of routes that come, and of most that go. It does not tell of those that go with an address or because a
//! device is down, and what it tells of multipath routes is ambiguous. Then [`KnownRoutes::is_stale`], and all routes have to be asked for.

use std::collections::{HashMap, HashSet};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::Seen;
use super::devices::{Changes, Devices};
use super::message::{self, Hop};
use crate::prefix::Prefix;
use crate::routes::{Origin, Route, Routes};

/// How many routes are kept. Further ones are not known.
pub(super) const MAX_ROUTES: usize = 1 << 20;

/// How many routes are kept that are for the same addresses: of more, those that count most.
const MAX_CANDIDATES: usize = 32;

/// How many routes are told while the lock is held.
const PORTION: usize = 512;

/// What routes compete for: mark, prefix, and whether it is the host's own.
type Key = (u32, Prefix, bool);

#[derive(Clone, Copy, Debug)]
struct Candidate {
    class: Class,
    hop: Hop,
    multipath: bool,
    seen: Seen,
}

/// In which table a route is, and which of that table's routes for the same addresses it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Class {
    table: u32,
    metric: u32,
    tos: u8,
}

impl Candidate {
    /// Who of several counts: the one with the lowest rank.
    fn rank(&self) -> impl Ord + use<> {
        let Class { table, metric, tos } = self.class;
        let table = match table as u8 {
            libc::RT_TABLE_LOCAL if table < 256 => 0,
            libc::RT_TABLE_MAIN if table < 256 => 1,
            libc::RT_TABLE_DEFAULT if table < 256 => 2,
            _ => u64::from(table) + 3,
        };
        (table, tos != 0, metric, self.seen)
    }
}

/// All routes.
#[derive(Debug, Default)]
pub(super) struct KnownRoutes {
    by_key: HashMap<Key, SmallVec<[Candidate; 1]>>,
    count: usize,
    changed: HashSet<Key>,
    /// Where some are not kept because there are too many for the same addresses.
    crowded: HashSet<Key>,
    next_hops_gone: HashSet<u32>,
    /// Whether what is known may not be what is so.
    pub is_stale: bool,
}

impl KnownRoutes {
    /// A route is there, as an event says, or the answer to a question for all. Whether there was room for it.
    pub fn put(&mut self, told: message::Route, seen: Seen, is_event: bool) -> bool {
        let (key, class) = key_of(&told);
        let Some(hop) = told.hop else { return true };
        let candidates = self.by_key.entry(key).or_default();
        if candidates.len() > 1 {
            // Their order may be another one now.
            self.changed.insert(key);
        }
        let mut others_of_class = false;
        for known in candidates.iter_mut().filter(|known| known.class == class) {
            if known.hop == hop && known.multipath == told.multipath {
                known.seen = seen;
                return true;
            }
            others_of_class = true;
        }
        // Which of the two comes first is not said, nor whether both are there.
        self.is_stale |= others_of_class && is_event;
        let candidate = Candidate { class, hop, multipath: told.multipath, seen };
        if candidates.len() >= MAX_CANDIDATES {
            self.crowded.insert(key);
            if let Some(last) = candidates.iter_mut().max_by_key(|known| known.rank())
                && last.rank() > candidate.rank()
            {
                *last = candidate;
                self.changed.insert(key);
            }
            return true;
        }
        if self.count >= MAX_ROUTES {
            if candidates.is_empty() {
                self.by_key.remove(&key);
            }
            return false;
        }
        self.count += 1;
        candidates.push(candidate);
        self.changed.insert(key);
        true
    }

    /// A route is there in the place of another one.
    pub fn replace(&mut self, told: message::Route, seen: Seen) -> bool {
        let (key, class) = key_of(&told);
        let hop = told.hop;
        let is_same = |known: &Candidate| Some(known.hop) == hop && known.multipath == told.multipath;
        // One of another kind may be in its place.
        for local in [false, true] {
            let key = (key.0, key.1, local);
            // Where there were several, just the first is replaced.
            let of_class =
                self.by_key.get(&key).map_or(0, |all| all.iter().filter(|known| known.class == class).count());
            self.is_stale |= of_class > 1;
            self.retain(key, |known| known.class != class || (local == told.local && is_same(known)));
        }
        self.put(told, seen, true)
    }

    /// A route has gone.
    pub fn remove(&mut self, told: &message::Route) {
        let (key, class) = key_of(told);
        let Some(candidates) = self.by_key.get(&key) else { return };
        let mut of_class = candidates.iter().filter(|known| known.class == class);
        let Some(first) = of_class.next() else { return };
        match told.hop {
            Some(hop) if !first.multipath && !told.multipath => {
                let before = self.count;
                self.retain(key, |known| known.class != class || known.hop != hop);
                self.is_stale |= self.count == before;
            }
            // The whole route.
            Some(hop) if first.hop == hop && first.multipath == told.multipath && of_class.next().is_none() => {
                self.retain(key, |known| known.class != class);
            }
            // One of its next hops, or all, or another one.
            Some(_) => self.is_stale = true,
            // It was of no use: not one of those that are known, unless that has changed meanwhile.
            None => self.is_stale |= key.2 == told.local,
        }
    }

    /// A next hop by whose number routes are told has gone.
    pub fn remove_next_hop(&mut self, number: u32) {
        self.next_hops_gone.insert(number);
    }

    /// Forgets the routes that were not seen since.
    pub fn sweep(&mut self, since: Seen) {
        self.retain_all(|known| known.seen >= since);
    }

    /// Looks at all routes where something has changed that they depend on.
    pub fn follow(&mut self, changes: &Changes) {
        let next_hops_gone = std::mem::take(&mut self.next_hops_gone);
        if !changes.concern_routes() && next_hops_gone.is_empty() {
            return;
        }
        let (mut concerned, mut is_stale) = (Vec::new(), false);
        for (key, candidates) in &self.by_key {
            for Candidate { hop, .. } in candidates {
                if changes.devices.contains(&hop.device) {
                    concerned.push(*key);
                }
                is_stale |= changes.down.contains(&hop.device)
                    || hop.source.is_some_and(|source| changes.addresses_gone.contains(&source))
                    || hop.number != 0 && next_hops_gone.contains(&hop.number);
            }
        }
        self.is_stale |= is_stale;
        self.changed.extend(concerned);
        if !changes.gone.is_empty() {
            self.retain_all(|known| changes.gone.get(&known.hop.device).is_none_or(|gone| known.seen > *gone));
        }
    }

    fn retain_all(&mut self, keep: impl Fn(&Candidate) -> bool) {
        let KnownRoutes { by_key, count, changed, crowded, is_stale, .. } = self;
        by_key.retain(|key, candidates| {
            let before = candidates.len();
            candidates.retain(|known| keep(known));
            if candidates.len() != before {
                *count -= before - candidates.len();
                changed.insert(*key);
                *is_stale |= crowded.remove(key);
            }
            !candidates.is_empty()
        });
    }

    fn retain(&mut self, key: Key, keep: impl Fn(&Candidate) -> bool) {
        let Some(candidates) = self.by_key.get_mut(&key) else { return };
        let before = candidates.len();
        candidates.retain(|known| keep(known));
        if candidates.len() != before {
            self.count -= before - candidates.len();
            self.changed.insert(key);
            self.is_stale |= self.crowded.remove(&key);
        }
        if candidates.is_empty() {
            self.by_key.remove(&key);
        }
    }

    /// Tells of the routes that have changed.
    pub fn tell(&mut self, routes: &RwLock<Routes>, devices: &Devices) {
        let changed: Vec<Key> = std::mem::take(&mut self.changed).into_iter().collect();
        // In portions, so that nobody waits for long.
        for portion in changed.chunks(PORTION) {
            let mut routes = routes.write();
            for key @ (mark, prefix, local) in portion {
                match self.best(key, devices, &routes) {
                    Some(route) => routes.insert(route),
                    None => drop(routes.remove(*mark, *prefix, origin(*local))),
                }
            }
        }
    }

    /// The route that counts: the first one whose device is known, and a source in it.
    fn best(&self, key: &Key, devices: &Devices, routes: &Routes) -> Option<Route> {
        let (mark, prefix, local) = *key;
        let mut candidates: SmallVec<[&Candidate; 4]> = self.by_key.get(key)?.iter().collect();
        candidates.sort_by_key(|known| known.rank());
        candidates.into_iter().find_map(|Candidate { hop, .. }| {
            let device = devices.name(hop.device)?;
            let to = prefix.address();
            let source = hop.source.or_else(|| routes.source(device, to, hop.gateway));
            let source = source.or_else(|| routes.any_source(device, to))?;
            Some(Route { mark, prefix, device: device.into(), gateway: hop.gateway, source, origin: origin(local) })
        })
    }

    /// How many routes are known.
    #[cfg(any(test, fuzzing))]
    pub fn count(&self) -> usize {
        assert_eq!(self.count, self.by_key.values().map(|candidates| candidates.len()).sum::<usize>());
        self.count
    }
}

fn key_of(told: &message::Route) -> (Key, Class) {
    let class = Class { table: told.table, metric: told.metric, tos: told.tos };
    ((told.mark, told.prefix, told.local), class)
}

fn origin(local: bool) -> Origin {
    if local { Origin::Local } else { Origin::Kernel }
}
