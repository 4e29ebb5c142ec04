//! The interfaces of a network namespace, as the kernel tells of them.
//!
//! ```text
//! kernel ──events (RTNLGRP_LINK)──▶ socket buffer ──catch_up──▶ entries ──▶ Interface::{known, link, is_gone}
//!    └─────one dump at the start, and after an overflow────────────┘
//! ```
//!
//! No thread serves a table. The kernel puts an event into the socket's buffer before the change that it tells of
//! is over, so whoever asks takes over what waits there first, and sees every change that was over before. It
//! costs one system call a millisecond at most, however many interfaces are asked after, and an interface that
//! flaps costs what its events do. Who has nobody to ask for waits for the next event ([`LinkTable::wait`]).
//!
//! Sharing between threads: everything here may be used by any thread. Locks, in the order in which they are
//! taken: `state`, `requests`, an entry's facts.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags};

use super::ethtool::Driver;
use super::netlink::{Event, Events, Netlink};
use super::{Facts, ethtool};
use crate::Features;

/// Who asks more often than this is told what was known before.
const FRESH: Duration = Duration::from_millis(1);

/// Changes within this time are one to who waits for them.
const TOGETHER: Duration = Duration::from_millis(10);

/// However fast events are lost, all interfaces are asked for no more often than this.
const BETWEEN_DUMPS: Duration = Duration::from_millis(50);

/// One interface from its coming to its going, which nothing else is ever called: an interface of the same name or
/// index that comes later has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(u64);

/// An interface from its coming to its going.
pub(super) struct TrackedLink {
    pub id: LinkId,
    pub index: u32,
    facts: Mutex<Arc<Facts>>,
    /// How often something was told of it.
    told: AtomicU64,
    /// Speed and duplex, and what `told` was when the driver was asked.
    features: Mutex<Option<(u64, Features)>>,
    /// What the driver says of itself, once it was asked for.
    pub driver: OnceLock<Driver>,
    gone: AtomicBool,
}

impl TrackedLink {
    fn new(facts: Facts) -> Arc<TrackedLink> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (id, index) = (LinkId(NEXT.fetch_add(1, Relaxed)), facts.index);
        Arc::new(TrackedLink {
            id,
            index,
            facts: Mutex::new(Arc::new(facts)),
            told: AtomicU64::new(0),
            features: Mutex::new(None),
            driver: OnceLock::new(),
            gone: AtomicBool::new(false),
        })
    }

    /// Speed and duplex, for which the driver is asked once after each change of the interface: with its link
    /// they change, and are told of with it.
    pub fn features(&self, ask: impl FnOnce(&str) -> Features) -> Features {
        let told = self.told.load(Relaxed);
        let mut features = self.features.lock();
        match *features {
            Some((at, known)) if at == told => known,
            _ => features.insert((told, ask(&self.facts().name))).1,
        }
    }

    pub fn facts(&self) -> Arc<Facts> {
        self.facts.lock().clone()
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }
}

/// The interfaces of one network namespace. There is one table for each, as long as somebody uses it.
pub struct LinkTable {
    state: Mutex<KnownLinks>,
    /// The socket of events, to be waited for without the lock.
    told: OwnedFd,
    requests: Mutex<Netlink>,
    /// Both sockets, and this one, fix the namespace.
    pub(super) ethtool: ethtool::Socket,
}

/// Device and inode of a network namespace's file.
type NamespaceId = (u64, u64);

struct KnownLinks {
    events: Events,
    by_index: HashMap<u32, Arc<TrackedLink>>,
    by_name: HashMap<String, Arc<TrackedLink>>,
    /// When what waited was taken over last.
    caught_up: Instant,
    /// When all interfaces were asked for last.
    dumped: Option<Instant>,
    /// Events were lost since.
    behind: bool,
}

impl LinkTable {
    /// The table of this thread's network namespace.
    pub fn current() -> io::Result<Arc<LinkTable>> {
        static TABLES: Mutex<Vec<(NamespaceId, Weak<LinkTable>)>> = Mutex::new(Vec::new());
        // The number of a namespace is not used again while a socket of its table keeps it.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map(|file| (file.dev(), file.ino()));
        let Ok(namespace) = namespace else { return LinkTable::open().map(Arc::new) };
        let mut tables = TABLES.lock();
        tables.retain(|(_, table)| table.strong_count() > 0);
        let known = tables.iter().find(|(of, _)| *of == namespace).and_then(|(_, table)| table.upgrade());
        if let Some(table) = known {
            return Ok(table);
        }
        let table = Arc::new(LinkTable::open()?);
        tables.push((namespace, Arc::downgrade(&table)));
        Ok(table)
    }

    fn open() -> io::Result<LinkTable> {
        // Listening before asking: what changes in between is told.
        let events = Events::open()?;
        let told = events.readable()?;
        let (by_index, by_name) = (HashMap::new(), HashMap::new());
        let state = KnownLinks { events, by_index, by_name, caught_up: Instant::now(), dumped: None, behind: true };
        let requests = Mutex::new(Netlink::open()?);
        let table = LinkTable { state: Mutex::new(state), told, requests, ethtool: ethtool::Socket::open()? };
        table.state.lock().ask_for_all(&mut table.requests())?;
        Ok(table)
    }

    /// Which interface has this name now.
    pub fn find(&self, name: &str) -> Option<LinkId> {
        self.catch_up(false);
        self.state.lock().by_name.get(name).map(|entry| entry.id)
    }

    /// Waits until the kernel tells of a change, `end` is readable or closed, or the time is over. Returns `false` where
    /// `end` was. Changes that come soon after the first are waited for, too, so that many make one.
    pub fn wait(&self, end: BorrowedFd<'_>, at_most: Duration) -> io::Result<bool> {
        let told = |wait: Duration, also: bool| {
            let mut fds = [PollFd::from_borrowed_fd(end, PollFlags::IN), PollFd::new(&self.told, PollFlags::IN)];
            let count = 1 + usize::from(also);
            match rustix::event::poll(&mut fds[..count], Some(&wait.try_into().unwrap_or_default())) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(fds.map(|fd| !fd.revents().is_empty())),
                Err(e) => Err(io::Error::from(e)),
            }
        };
        let [mut ended, changed] = told(at_most, true)?;
        if changed && !ended {
            [ended, _] = told(TOGETHER, false)?;
            self.catch_up(true);
        }
        Ok(!ended)
    }

    /// The interface of this name. One that is not in the table is asked for: the name may be one of the other
    /// names of an interface.
    pub(super) fn find_or_ask(&self, name: &str) -> io::Result<Option<Arc<TrackedLink>>> {
        self.catch_up(true);
        let found = self.state.lock().by_name.get(name).cloned();
        if found.is_some() {
            return Ok(found);
        }
        let answer = self.requests().get_by_name(name);
        let facts = match answer {
            Ok(facts) => facts,
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut state = self.state.lock();
        state.take_over(&self.requests);
        Ok(state.by_index.get(&facts.index).cloned())
    }

    /// For a request.
    pub(super) fn requests(&self) -> MutexGuard<'_, Netlink> {
        self.requests.lock()
    }

    /// Takes over the changes that the kernel has told of, unless that was done a moment ago and `now` does not
    /// insist.
    pub(super) fn catch_up(&self, now: bool) {
        let mut state = self.state.lock();
        if now || state.caught_up.elapsed() >= FRESH {
            state.take_over(&self.requests);
        }
    }
}

impl KnownLinks {
    fn take_over(&mut self, requests: &Mutex<Netlink>) {
        self.read_events();
        if self.behind
            && self.dumped.is_none_or(|at| at.elapsed() >= BETWEEN_DUMPS)
            && let Err(error) = self.ask_for_all(&mut requests.lock())
        {
            tracing::warn!("cannot ask for the network interfaces: {error}");
        }
        self.caught_up = Instant::now();
    }

    fn read_events(&mut self) {
        let KnownLinks { events, by_index, by_name, behind, .. } = self;
        while events.next(|event| match event {
            Event::Link(index, body) => {
                let entry = by_index.get(&index).cloned();
                let mut facts = entry.as_ref().map(|entry| Facts::clone(&entry.facts())).unwrap_or_default();
                Event::update(body, &mut facts);
                put(by_index, by_name, entry, facts);
            }
            Event::Gone(index) => remove(by_index, by_name, index),
            Event::Overflow => *behind = true,
        }) {}
    }

    /// Asks for all interfaces by one request.
    fn ask_for_all(&mut self, requests: &mut Netlink) -> io::Result<()> {
        self.dumped = Some(Instant::now());
        let all = requests.get_all()?;
        self.behind = false;
        let there: std::collections::HashSet<u32> = all.iter().map(|facts| facts.index).collect();
        let gone: Vec<u32> = self.by_index.keys().copied().filter(|index| !there.contains(index)).collect();
        gone.into_iter().for_each(|index| remove(&mut self.by_index, &mut self.by_name, index));
        for facts in all {
            let entry = self.by_index.get(&facts.index).cloned();
            put(&mut self.by_index, &mut self.by_name, entry, facts);
        }
        // What changed while the answer was made is told.
        self.read_events();
        Ok(())
    }
}

type ByIndex = HashMap<u32, Arc<TrackedLink>>;
type ByName = HashMap<String, Arc<TrackedLink>>;

/// Notes what is known of an interface that is there; of a new one where it has no entry.
fn put(by_index: &mut ByIndex, by_name: &mut ByName, entry: Option<Arc<TrackedLink>>, facts: Facts) {
    let (name, index) = (facts.name.clone(), facts.index);
    let entry = match entry {
        Some(entry) => {
            let before = std::mem::replace(&mut *entry.facts.lock(), Arc::new(facts));
            entry.told.fetch_add(1, Relaxed);
            if before.name != name {
                forget_name(by_name, &before.name, &entry);
            }
            entry
        }
        None => {
            let entry = TrackedLink::new(facts);
            by_index.insert(index, entry.clone());
            entry
        }
    };
    if by_name.get(&name).is_none_or(|other| other.id != entry.id) {
        by_name.insert(name, entry);
    }
}

fn remove(by_index: &mut ByIndex, by_name: &mut ByName, index: u32) {
    if let Some(entry) = by_index.remove(&index) {
        entry.gone.store(true, Relaxed);
        let name = entry.facts().name.clone();
        forget_name(by_name, &name, &entry);
    }
}

/// Another interface may have taken the name since.
fn forget_name(by_name: &mut ByName, name: &str, entry: &TrackedLink) {
    if by_name.get(name).is_some_and(|other| other.id == entry.id) {
        by_name.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    fn facts(index: u32, name: &str) -> Facts {
        Facts { index, name: name.into(), ..Facts::default() }
    }

    /// A table of nothing but what is put into it.
    #[derive(Default)]
    struct Model {
        by_index: ByIndex,
        by_name: ByName,
    }

    impl Model {
        fn put(&mut self, index: u32, name: &str) -> Arc<TrackedLink> {
            let entry = self.by_index.get(&index).cloned();
            put(&mut self.by_index, &mut self.by_name, entry, facts(index, name));
            self.by_index[&index].clone()
        }

        fn named(&self, name: &str) -> Option<u32> {
            self.by_name.get(name).map(|entry| entry.index)
        }
    }

    #[test]
    fn one_that_comes_back_under_its_old_index_is_another() {
        let mut model = Model::default();
        let first = model.put(5, "va");
        remove(&mut model.by_index, &mut model.by_name, 5);
        let second = model.put(5, "va");
        assert!(first.is_gone() && !second.is_gone() && first.id != second.id);
        assert_eq!(model.named("va"), Some(5));
    }

    #[test]
    fn names_that_are_exchanged_find_their_interfaces() {
        let mut model = Model::default();
        model.put(5, "va");
        model.put(6, "vb");
        for (index, name) in [(5, "t"), (6, "va"), (5, "vb")] {
            model.put(index, name);
        }
        assert_eq!((model.named("va"), model.named("vb"), model.named("t")), (Some(6), Some(5), None));
        remove(&mut model.by_index, &mut model.by_name, 6);
        assert_eq!((model.named("va"), model.named("vb")), (None, Some(5)));
    }

    #[test]
    fn the_driver_is_asked_once_after_each_change() {
        let mut model = Model::default();
        let entry = model.put(5, "va");
        let mut asked = 0;
        for round in 1..4 {
            for _ in 0..3 {
                let features = entry.features(|_| {
                    asked += 1;
                    Features { speed_mbps: asked, ..Features::default() }
                });
                assert_eq!(features.speed_mbps, round);
            }
            model.put(5, "va");
        }
    }

    #[test]
    fn one_namespace_has_one_table() {
        let (a, b) = (LinkTable::current().unwrap(), LinkTable::current().unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(a.find("lo"), b.find("lo"));
        assert!(a.find("lo").is_some() && a.find("weir-none0").is_none());
    }

    #[test]
    fn lost_events_are_made_up_for() {
        let table = LinkTable::current().unwrap();
        let state = &mut *table.state.lock();
        // As after an overflow: one interface went, and another came, and nobody was told.
        put(&mut state.by_index, &mut state.by_name, None, facts(u32::MAX, "weir-ghost"));
        let ghost = state.by_index[&u32::MAX].clone();
        remove(&mut state.by_index, &mut state.by_name, 1);
        (state.behind, state.dumped) = (true, None);
        state.take_over(&table.requests);
        assert!(ghost.is_gone() && !state.by_name.contains_key("weir-ghost"));
        assert_eq!(state.by_name["lo"].index, 1);
    }

    /// Longer than any test may take.
    const FOR_EVER: Duration = Duration::from_secs(86_400);

    /// A table whose socket of events is a pipe, and what tells by it; it knows nothing of `lo` until it catches up.
    fn told_by_pipe() -> (LinkTable, std::io::PipeWriter) {
        let (told, tell) = std::io::pipe().unwrap();
        let table = LinkTable { told: told.into(), ..LinkTable::open().unwrap() };
        {
            let state = &mut *table.state.lock();
            remove(&mut state.by_index, &mut state.by_name, 1);
            (state.behind, state.dumped) = (true, None);
        }
        (table, tell)
    }

    fn knows_lo(table: &LinkTable) -> bool {
        table.state.lock().by_name.contains_key("lo")
    }

    #[test]
    fn a_wait_ends_with_a_change_which_is_taken_over() {
        let ((table, mut tell), (end, _ends)) = (told_by_pipe(), std::io::pipe().unwrap());
        // Nothing is told, and no time is left.
        assert!(table.wait(end.as_fd(), Duration::ZERO).unwrap() && !knows_lo(&table));
        tell.write_all(b"!").unwrap();
        assert!(table.wait(end.as_fd(), FOR_EVER).unwrap() && knows_lo(&table));
    }

    #[test]
    fn a_wait_ends_with_the_one_who_waits() {
        let ((table, mut tell), (end, mut ends)) = (told_by_pipe(), std::io::pipe().unwrap());
        ends.write_all(b"!").unwrap();
        assert!(!table.wait(end.as_fd(), FOR_EVER).unwrap(), "its end is readable");
        let (end, ends) = std::io::pipe().unwrap();
        drop(ends);
        assert!(!table.wait(end.as_fd(), FOR_EVER).unwrap(), "or closed");
        tell.write_all(b"!").unwrap();
        assert!(!table.wait(end.as_fd(), FOR_EVER).unwrap(), "also where something has changed");
        assert!(!knows_lo(&table));
    }
}
