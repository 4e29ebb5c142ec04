//! Deferred freeing by quiescent states (RCU): readers pay nothing for a look-up, and memory that was unlinked is
//! freed when every reader has been outside of its references once.
//!
//! Each reader is a thread that works in turns. At the start of a turn it copies the domain's epoch into
//! its own slot, which says "I hold no reference from before". A writer unlinks an object, raises the
//! epoch, and may free the object when every slot is zero (offline) or has reached the new epoch.
//!
//! Shared memory: `epoch` is incremented by writers and read by all; a slot is written by its reader alone and read
//! by writers. A [`Guard`] borrows its [`Reader`], and announcing a quiescent state needs the reader exclusively, so
//! no reference obtained through a guard can outlive the turn.

#![allow(unsafe_code)]

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use crate::sync::back_off;

/// Slot value of a reader that holds no references and will take none before it comes online.
const OFFLINE: u64 = 0;

/// A set of readers, and what waits for them.
pub struct Domain {
    epoch: CachePadded<AtomicU64>,
    slots: Box<[CachePadded<AtomicU64>]>,
    /// Unlinked objects, with the epoch that every reader has to reach first.
    garbage: Mutex<Vec<(u64, Box<dyn Send>)>>,
}

impl Domain {
    /// A domain for `readers` readers, all offline.
    pub fn new(readers: usize) -> Domain {
        let slots = (0..readers).map(|_| CachePadded::new(AtomicU64::new(OFFLINE))).collect();
        Domain { epoch: CachePadded::new(AtomicU64::new(1)), slots, garbage: Mutex::new(Vec::new()) }
    }

    /// The readers. Called once.
    pub fn readers(self: &Arc<Domain>) -> Vec<Reader> {
        assert_eq!(Arc::strong_count(self), 1, "readers are made before the domain is shared");
        (0..self.slots.len()).map(|slot| Reader { domain: self.clone(), slot, online: false }).collect()
    }

    /// Starts a grace period: everything that was unlinked before is unused once this epoch has
    /// [`passed`](Domain::passed).
    pub fn begin(&self) -> u64 {
        // Orders the unlinking before the reads of the slots, against the fence in `Reader::quiescent`.
        fence(Ordering::SeqCst);
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        epoch
    }

    /// Whether every reader has announced a quiescent state since [`begin`](Domain::begin) gave this epoch.
    pub fn passed(&self, epoch: u64) -> bool {
        self.slots.iter().all(|slot| {
            let seen = slot.load(Ordering::Acquire);
            seen == OFFLINE || seen >= epoch
        })
    }

    /// Waits until every reader has announced a quiescent state. Must not be called by an online reader.
    pub fn synchronize(&self) {
        let epoch = self.begin();
        let mut spins = 0u32;
        while !self.passed(epoch) {
            spins += 1;
            back_off(spins);
        }
    }

    /// Drops `object`, which has been unlinked, after a grace period.
    pub fn retire(&self, object: Box<dyn Send>) {
        let epoch = self.begin();
        self.garbage.lock().push((epoch, object));
    }

    /// Drops what no reader can see any more. Cheap where there is nothing.
    pub fn collect(&self) {
        let mut dead = Vec::new();
        let mut garbage = self.garbage.lock();
        if let Some(oldest) = self.slots.iter().map(|s| s.load(Ordering::Acquire)).filter(|&s| s != OFFLINE).min() {
            // The garbage is in the order of its epochs but for a race between two writers.
            let mut i = 0;
            while i < garbage.len() {
                if garbage[i].0 <= oldest { dead.push(garbage.swap_remove(i)) } else { i += 1 }
            }
        } else {
            dead.append(&mut garbage);
        }
        drop(garbage);
        // Dropped without the lock, since dropping an object may take long.
        drop(dead);
    }
}

/// A thread's place in a domain.
pub struct Reader {
    domain: Arc<Domain>,
    slot: usize,
    online: bool,
}

impl Reader {
    /// Announces that no reference is held, and that references will be taken from now on.
    #[inline]
    pub fn quiescent(&mut self) {
        let epoch = self.domain.epoch.load(Ordering::Acquire);
        let slot = &self.domain.slots[self.slot];
        if self.online && slot.load(Ordering::Relaxed) == epoch {
            return;
        }
        slot.store(epoch, Ordering::Release);
        self.online = true;
        // Orders the announcement before the reads of the turn: either a writer sees this reader online,
        // or the reader sees what the writer has unlinked.
        fence(Ordering::SeqCst);
    }

    /// Whether [`quiescent`](Reader::quiescent) would announce anything new.
    #[inline(always)]
    pub fn is_behind(&self) -> bool {
        self.domain.slots[self.slot].load(Ordering::Relaxed) != self.domain.epoch.load(Ordering::Relaxed)
    }

    /// Announces that no reference is held and none will be taken until the next
    /// [`quiescent`](Reader::quiescent): before sleeping.
    pub fn offline(&mut self) {
        self.online = false;
        self.domain.slots[self.slot].store(OFFLINE, Ordering::Release);
    }

    /// Permission to dereference protected pointers until the reader is quiescent again.
    ///
    /// Panics when the reader is offline.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        assert!(self.online, "an offline reader cannot take references");
        Guard { _reader: self }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.offline();
    }
}

/// Proof that the current thread is an online reader for as long as `'a`.
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    _reader: &'a Reader,
}

impl<'a> Guard<'a> {
    /// Extends a reference to something that is retired through the guard's domain before it is freed.
    ///
    /// # Safety
    /// `object` must have been reachable during this turn, and its memory must be released only after a grace period
    /// of the guard's domain that starts after it was unlinked.
    #[inline(always)]
    pub unsafe fn protect<T>(self, object: *const T) -> &'a T {
        // SAFETY: the caller promises that the object is retired through this guard's domain before it is freed. The reader
        // announces no quiescent state while the guard borrows it, so the object is not freed during 'a.
        unsafe { &*object }
    }
}

/// A pointer to an object, or to none, that readers follow while a writer replaces it.
///
/// All accesses must be with guards and domains that belong together; the users in this crate have one
/// domain.
pub struct Protected<T: Send + Sync + 'static> {
    pointer: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Protected<T> {
    /// Points to `object`.
    pub fn new(object: Option<Box<T>>) -> Protected<T> {
        Protected { pointer: AtomicPtr::new(into_raw(object)) }
    }

    /// The present object.
    #[inline(always)]
    pub fn load<'a>(&self, guard: Guard<'a>) -> Option<&'a T> {
        let object = self.pointer.load(Ordering::Acquire);
        // SAFETY: the pointer was loaded while the guard's reader was online, and `replace` retires what it unlinks through
        // the domain, so the object lives at least as long as the guard.
        (!object.is_null()).then(|| unsafe { guard.protect(object) })
    }

    /// Publishes `object` and retires the one before.
    pub fn replace(&self, object: Option<Box<T>>, domain: &Domain) {
        let old = self.pointer.swap(into_raw(object), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: `old` came from `Box::into_raw`, it is unlinked, so no new reader can reach it, and it is made a box again
            // only here. The domain drops it after those readers that may still use it have passed a quiescent state.
            domain.retire(unsafe { Box::from_raw(old) });
        }
    }

    /// The present object, for the only thread that replaces objects.
    ///
    /// # Safety
    /// [`replace`](Protected::replace) must not be called while the reference lives.
    pub unsafe fn for_writer(&self) -> Option<&T> {
        let object = self.pointer.load(Ordering::Acquire);
        // SAFETY: the object is retired only when it is replaced, and the caller promises that it is not replaced
        // meanwhile.
        (!object.is_null()).then(|| unsafe { &*object })
    }
}

impl<T: Send + Sync + 'static> Drop for Protected<T> {
    fn drop(&mut self) {
        let object = self.pointer.load(Ordering::Relaxed);
        if !object.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`. Its owner is dropped when no reader can reach it: it was never
            // shared, or it was retired through the domain and every reader has passed a quiescent state since.
            drop(unsafe { Box::from_raw(object) });
        }
    }
}

fn into_raw<T>(object: Option<Box<T>>) -> *mut T {
    object.map_or(std::ptr::null_mut(), Box::into_raw)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn garbage_waits_for_online_readers_only() {
        let domain = Arc::new(Domain::new(2));
        let mut readers = domain.readers();
        let dropped = Arc::new(AtomicUsize::new(0));
        let cell = Protected::new(Some(Box::new(Counted(dropped.clone()))));
        readers[0].quiescent();

        cell.replace(Some(Box::new(Counted(dropped.clone()))), &domain);
        domain.collect();
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "reader 0 has not moved on");

        readers[0].quiescent();
        domain.collect();
        assert_eq!(dropped.load(Ordering::SeqCst), 1);

        readers[0].offline();
        cell.replace(Some(Box::new(Counted(dropped.clone()))), &domain);
        domain.collect();
        assert_eq!(dropped.load(Ordering::SeqCst), 2, "no reader is online");
    }

    #[test]
    fn synchronize_waits_for_the_turn() {
        let domain = Arc::new(Domain::new(1));
        let mut reader = domain.readers().pop().unwrap();
        reader.quiescent();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                domain.synchronize();
                done.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!done.load(Ordering::SeqCst));
            // More than one turn, if the thread begins to wait only now.
            while !done.load(Ordering::SeqCst) {
                reader.quiescent();
                std::thread::yield_now();
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;

    /// Memory that is never freed, so that loom can see a use after the "free".
    struct Slot {
        freed: AtomicUsize,
    }

    fn race(turns: usize, sleep: bool) {
        loom::model(move || {
            let domain = Arc::new(Domain::new(1));
            let mut reader = domain.readers().pop().unwrap();
            let slots: Arc<[Slot; 2]> = Arc::new(std::array::from_fn(|_| Slot { freed: AtomicUsize::new(0) }));
            let current = Arc::new(AtomicUsize::new(0));
            let seen = (slots.clone(), current.clone());
            let thread = loom::thread::spawn(move || {
                let (slots, current) = seen;
                for _ in 0..turns {
                    reader.quiescent();
                    let slot = &slots[current.load(Ordering::Acquire)];
                    assert_eq!(slot.freed.load(Ordering::Relaxed), 0, "used after the grace period");
                    if sleep {
                        reader.offline();
                    }
                }
                reader.offline();
            });
            current.store(1, Ordering::Release);
            domain.synchronize();
            slots[0].freed.store(1, Ordering::Relaxed);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_reader_never_sees_freed_memory() {
        race(2, false);
    }

    #[test]
    fn nor_when_it_sleeps_between_turns() {
        race(2, true);
    }

    /// Says when it is dropped, in memory that is not freed.
    struct Object(Arc<Slot>);

    impl Drop for Object {
        fn drop(&mut self) {
            self.0.freed.store(1, Ordering::Relaxed);
        }
    }

    /// A replaced object is dropped by the thread that collects, which may be in the middle of a turn.
    #[test]
    fn what_is_retired_outlives_the_turn() {
        loom::model(|| {
            let domain = Arc::new(Domain::new(1));
            let mut reader = domain.readers().pop().unwrap();
            let object = || Object(Arc::new(Slot { freed: AtomicUsize::new(0) }));
            let cell = Arc::new(Protected::new(Some(Box::new(object()))));
            let shared = cell.clone();
            let thread = loom::thread::spawn(move || {
                for _ in 0..2 {
                    reader.quiescent();
                    let slot = shared.load(reader.pin()).unwrap().0.clone();
                    assert_eq!(slot.freed.load(Ordering::Relaxed), 0, "dropped while it was in use");
                }
                reader.offline();
            });
            cell.replace(Some(Box::new(object())), &domain);
            domain.collect();
            thread.join().unwrap();
            domain.collect();
            assert!(domain.garbage.lock().is_empty(), "no reader is online any more");
        });
    }
}
