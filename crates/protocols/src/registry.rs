//! Sessions of one protocol by a key of the caller's, and the order in which they are due.
//!
//! A session is due at its `next_wakeup`. The registry asks for that after each access that may have changed it
//! ([`Registry::update`], [`Registry::run`]) and keeps the answers in order, so that a turn of the caller costs what is
//! due and not what is there: with `n` sessions, O(log n) for each access and for each session that is due.

use std::collections::{BTreeMap, BTreeSet};

use weir_time::Time;

/// What a registry keeps.
pub trait Session {
    /// When the session has something to do next; `None` while nothing but a call to it can change that.
    fn next_wakeup(&self) -> Option<Time>;
}

/// Sessions by key.
#[derive(Debug)]
pub struct Registry<K, S> {
    sessions: BTreeMap<K, Scheduled<S>>,
    /// Exactly one pair for each session that has a wake-up: the one in its [`Scheduled::wakeup`].
    order: BTreeSet<(Time, K)>,
}

#[derive(Debug)]
struct Scheduled<S> {
    session: S,
    wakeup: Option<Time>,
}

impl<K: Ord + Copy, S: Session> Registry<K, S> {
    /// A registry without sessions.
    pub fn new() -> Registry<K, S> {
        Registry { sessions: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Adds a session. Returns the one that had the key before.
    pub fn insert(&mut self, key: K, session: S) -> Option<S> {
        let before = self.remove(key);
        let wakeup = session.next_wakeup();
        self.order.extend(wakeup.map(|wakeup| (wakeup, key)));
        self.sessions.insert(key, Scheduled { session, wakeup });
        before
    }

    /// Takes a session away.
    pub fn remove(&mut self, key: K) -> Option<S> {
        let Scheduled { session, wakeup } = self.sessions.remove(&key)?;
        if let Some(wakeup) = wakeup {
            self.order.remove(&(wakeup, key));
        }
        Some(session)
    }

    /// A session, to read.
    pub fn get(&self, key: K) -> Option<&S> {
        self.sessions.get(&key).map(|scheduled| &scheduled.session)
    }

    /// All sessions in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &S)> {
        self.sessions.iter().map(|(key, scheduled)| (*key, &scheduled.session))
    }

    /// Has `change` work on a session (a frame that was received, a new configuration), and schedules it again.
    /// Returns `None` where no session has the key.
    pub fn update<R>(&mut self, key: K, change: impl FnOnce(&mut S) -> R) -> Option<R> {
        let scheduled = self.sessions.get_mut(&key)?;
        let result = change(&mut scheduled.session);
        let wakeup = scheduled.session.next_wakeup();
        if wakeup != scheduled.wakeup {
            if let Some(before) = std::mem::replace(&mut scheduled.wakeup, wakeup) {
                self.order.remove(&(before, key));
            }
            self.order.extend(wakeup.map(|wakeup| (wakeup, key)));
        }
        Some(result)
    }

    /// When the first session is due.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.order.first().map(|(wakeup, _)| *wakeup)
    }

    /// Calls `run` for each session that is due at `now`, in the order in which they were due; each one once, also
    /// where it is due again at once.
    pub fn run(&mut self, now: Time, run: impl FnMut(K, &mut S)) {
        self.run_some(now, usize::MAX, run);
    }

    /// As [`run`](Registry::run), for no more than `limit` sessions: those that have been due for longest. The others stay due.
    pub fn run_some(&mut self, now: Time, limit: usize, mut run: impl FnMut(K, &mut S)) {
        let mut due = Vec::new();
        while let Some(&(wakeup, key)) = self.order.first()
            && wakeup <= now
            && due.len() < limit
        {
            self.order.pop_first();
            due.push(key);
        }
        for key in due {
            let Some(scheduled) = self.sessions.get_mut(&key) else { continue };
            run(key, &mut scheduled.session);
            scheduled.wakeup = scheduled.session.next_wakeup();
            self.order.extend(scheduled.wakeup.map(|wakeup| (wakeup, key)));
        }
    }
}

impl<K: Ord + Copy, S: Session> Default for Registry<K, S> {
    fn default() -> Self {
        Registry::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Due every `period` nanoseconds; counts how often it ran.
    struct Periodic {
        next: Option<Time>,
        period: u64,
        runs: u64,
    }

    impl Session for Periodic {
        fn next_wakeup(&self) -> Option<Time> {
            self.next
        }
    }

    fn every(period: u64) -> Periodic {
        Periodic { next: Some(Time(period)), period, runs: 0 }
    }

    fn turn(registry: &mut Registry<u32, Periodic>, now: Time) -> Vec<u32> {
        let mut ran = Vec::new();
        registry.run(now, |key, session| {
            session.runs += 1;
            session.next = Some(Time(now.0 + session.period));
            ran.push(key);
        });
        ran
    }

    #[test]
    fn a_thousand_sessions_cost_what_is_due() {
        let mut registry = Registry::new();
        for key in 0..1000 {
            registry.insert(key, every(1000 + u64::from(key)));
        }
        assert_eq!(registry.next_wakeup(), Some(Time(1000)));
        assert_eq!(turn(&mut registry, Time(999)), []);
        assert_eq!(turn(&mut registry, Time(1002)), [0, 1, 2]);
        assert_eq!(registry.next_wakeup(), Some(Time(1003)));
        assert_eq!(turn(&mut registry, Time(1999)).len(), 997);
        assert_eq!(registry.order.len(), 1000);
    }

    #[test]
    fn sessions_beyond_the_limit_stay_due() {
        let mut registry = Registry::new();
        for key in 0..10 {
            registry.insert(key, every(10 + u64::from(key)));
        }
        let mut ran = Vec::new();
        for _ in 0..4 {
            registry.run_some(Time(100), 3, |key, session| {
                session.next = Some(Time(1000));
                ran.push(key);
            });
        }
        assert_eq!(ran, (0..10).collect::<Vec<u32>>());
        assert_eq!(registry.next_wakeup(), Some(Time(1000)));
    }

    #[test]
    fn a_session_that_is_due_at_once_again_runs_once() {
        let mut registry = Registry::new();
        registry.insert(7, every(0));
        assert_eq!(turn(&mut registry, Time(5)), [7]);
        assert_eq!(registry.next_wakeup(), Some(Time(5)));
    }

    #[test]
    fn what_changes_or_goes_leaves_nothing_behind() {
        let mut registry = Registry::new();
        registry.insert(1, every(10));
        registry.insert(2, every(20));
        assert_eq!(registry.update(1, |session| session.next = None), Some(()));
        assert_eq!(registry.update(3, |_| ()), None);
        assert_eq!(registry.next_wakeup(), Some(Time(20)));
        assert!(registry.insert(2, every(30)).is_some());
        assert_eq!((registry.next_wakeup(), registry.order.len()), (Some(Time(30)), 1));
        assert!(registry.remove(2).is_some() && registry.remove(2).is_none());
        assert_eq!((registry.next_wakeup(), registry.len()), (None, 1));
        assert_eq!(registry.get(1).map(|session| session.runs), Some(0));
    }
}
