//! Limits the number of connections to one listener: above the limit, a silent connection is closed for a new one.
//!
//! A peer costs a descriptor and memory from the moment it has connected, whether it sends anything or not. The
//! connection to close is chosen in this order:
//!
//! 1. the oldest of those that have not sent a whole message within a second, even if single bytes still arrive;
//! 2. if more than half of all connections have not sent a message yet: the oldest of these. So a flood of new
//!    connections does not displace the others, and a few that come at once do not displace each other;
//! 3. of those whose requests are all answered, the one that has been silent for longest;
//! 4. the oldest of those that have not sent a message yet;
//! 5. of those that have read nothing of their answers for a second, the one that stalled first.
//!
//! A connection is never closed while its request is being worked on, nor while it reads the answer. If all are in
//! that state, a new connection waits in the socket's queue.
//!
//! What is kept for all connections together can be limited as well ([`Connections::with_memory`]). Above that limit, the
//! connection is closed for which something is kept and that has taken or sent nothing for longest.
//!
//! Everything here is used by one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

/// A peer that has neither completed a message nor read any of its answer for this long counts as silent.
const SILENCE: Duration = Duration::from_secs(1);

/// The connections to a listener.
pub struct Connections(Rc<Slots>);

struct Slots {
    limit: usize,
    /// Bytes that may be kept for all peers together.
    memory: usize,
    /// In the order in which they connected.
    peers: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// Number of the last event: orders connecting and becoming idle in time.
    events: Cell<u64>,
    /// Notified when a connection has ended, or may be closed from now on.
    changed: Notify,
}

struct Peer {
    activity: Cell<Activity>,
    closing: Notify,
    /// Bytes that are kept for it, and the event at which that changed last.
    kept: Cell<(usize, u64)>,
}

/// What a peer does.
#[derive(Clone, Copy, Debug)]
enum Activity {
    /// It has not sent a whole message since it connected, at this time.
    New(Instant),
    /// All its requests are answered, since the event of this number.
    Idle(u64),
    /// It is being answered, and last read some of the answer at this time.
    Answered(Instant),
    /// Its request is being worked on.
    Working,
}

/// In which order peers are closed; within a step, the lowest number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClosingOrder {
    Silent(u64),
    OfMany(u64),
    Idle(u64),
    New(u64),
    Stalled(Instant),
}

impl Activity {
    /// Where a peer that connected with this event number is in the order; `None`: it is not to be closed. `flood`:
    /// most connections are new.
    fn closing_order(self, number: u64, flood: bool, now: Instant) -> Option<ClosingOrder> {
        let is_recent = |since| now.saturating_duration_since(since) < SILENCE;
        match self {
            Activity::New(since) if !is_recent(since) => Some(ClosingOrder::Silent(number)),
            Activity::New(_) if flood => Some(ClosingOrder::OfMany(number)),
            Activity::New(_) => Some(ClosingOrder::New(number)),
            Activity::Idle(event) => Some(ClosingOrder::Idle(event)),
            Activity::Answered(since) if !is_recent(since) => Some(ClosingOrder::Stalled(since)),
            Activity::Answered(_) | Activity::Working => None,
        }
    }
}

impl Connections {
    /// None yet, and never more than `limit`.
    pub fn new(limit: usize) -> Connections {
        Connections::with_memory(limit, usize::MAX)
    }

    /// The same, with a limit of the bytes that are [kept](Slot::keep) for all of them together.
    pub fn with_memory(limit: usize, memory: usize) -> Connections {
        let (peers, events, changed) = (RefCell::default(), Cell::default(), Notify::new());
        Connections(Rc::new(Slots { limit, memory, peers, events, changed }))
    }

    /// Waits until another connection can be taken.
    pub async fn room(&self) {
        while self.is_full() && self.0.closable(Instant::now()).is_none() {
            // No event marks the moment at which a peer has stalled for long enough.
            let _ = timeout(SILENCE, self.0.changed.notified()).await;
        }
    }

    fn is_full(&self) -> bool {
        self.0.peers.borrow().len() >= self.0.limit
    }

    /// A slot for a new connection. If all are taken, another connection is told to close. `None` if there is no
    /// [`room`](Connections::room).
    pub fn admit(&self) -> Option<Slot> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<Slot> {
        if self.is_full() {
            let number = self.0.closable(now)?;
            // It counts as closed from now on: its task ends when it next runs.
            self.0.close(number);
        }
        let number = self.0.event();
        let (activity, kept) = (Cell::new(Activity::New(now)), Cell::default());
        let peer = Rc::new(Peer { activity, closing: Notify::new(), kept });
        self.0.peers.borrow_mut().insert(number, peer.clone());
        Some(Slot { slots: self.0.clone(), number, peer })
    }
}

impl Slots {
    fn event(&self) -> u64 {
        self.events.set(self.events.get() + 1);
        self.events.get()
    }

    /// Tells a connection to close.
    fn close(&self, number: u64) {
        let leaves = self.peers.borrow_mut().remove(&number);
        leaves.inspect(|peer| peer.closing.notify_one());
    }

    /// The connection to close next, other than `but`, where more is kept than may be.
    fn too_much(&self, but: u64) -> Option<u64> {
        let peers = self.peers.borrow();
        let kept: usize = peers.values().map(|peer| peer.kept.get().0).sum();
        let others = peers.iter().filter(|(number, peer)| **number != but && peer.kept.get().0 > 0);
        others.min_by_key(|(_, peer)| peer.kept.get().1).map(|(&number, _)| number).filter(|_| kept > self.memory)
    }

    /// The connection to close next.
    fn closable(&self, now: Instant) -> Option<u64> {
        let peers = self.peers.borrow();
        let is_new = |peer: &&Rc<Peer>| matches!(peer.activity.get(), Activity::New(_));
        let flood = peers.values().filter(is_new).count() > self.limit / 2;
        let candidates = peers
            .iter()
            .filter_map(|(&number, peer)| Some((peer.activity.get().closing_order(number, flood, now)?, number)));
        candidates.min().map(|(_, number)| number)
    }
}

/// A connection's slot. Dropping it frees the slot.
pub struct Slot {
    slots: Rc<Slots>,
    number: u64,
    peer: Rc<Peer>,
}

impl Slot {
    /// Returns when the connection is to be closed, to make room.
    pub async fn lost(&self) {
        self.peer.closing.notified().await;
    }

    /// The peer has sent a message, and has its answer.
    pub fn idle(&self) {
        self.peer.activity.set(Activity::Idle(self.slots.event()));
        self.slots.changed.notify_one();
    }

    /// The peer's request is being worked on.
    pub fn working(&self) {
        self.peer.activity.set(Activity::Working);
    }

    /// So many bytes are kept for the peer: of its request, or of the answer. Said again whenever it has sent or taken some.
    /// If that is too much for all together, others are told to close.
    pub fn keep(&self, bytes: usize) {
        let before = self.peer.kept.replace((bytes, self.slots.event())).0;
        while bytes > before
            && let Some(number) = self.slots.too_much(self.number)
        {
            self.slots.close(number);
        }
    }

    /// An answer begins, or the peer has read some of it.
    pub fn answered(&self) {
        self.peer.activity.set(Activity::Answered(Instant::now()));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.peers.borrow_mut().remove(&self.number);
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the slots are told to close.
    fn lost(slots: &[Slot]) -> Vec<usize> {
        let numbers = |(at, slot): (usize, &Slot)| (!is_in(slot)).then_some(at);
        slots.iter().enumerate().filter_map(numbers).collect()
    }

    fn is_in(slot: &Slot) -> bool {
        slot.slots.peers.borrow().contains_key(&slot.number)
    }

    #[test]
    fn the_silent_make_room_in_order() {
        let connections = Connections::new(6);
        let slots: Vec<_> = (0..6).map(|_| connections.admit().unwrap()).collect();
        slots[4].idle();
        slots[3].idle();
        slots[4].idle();
        slots[2].answered();
        slots[1].working();
        let soon = Instant::now();
        let late = soon + 2 * SILENCE;
        let mut new = Vec::new();
        for (now, expected) in [(late, vec![0]), (soon, vec![0, 3]), (soon, vec![0, 3, 4]), (soon, vec![0, 3, 4, 5])] {
            new.push(connections.admit_at(now).unwrap());
            new.last().unwrap().working();
            assert_eq!(lost(&slots), expected);
        }
        assert!(connections.admit_at(soon).is_none(), "it takes its answer");
        new.push(connections.admit_at(late).unwrap());
        new[4].working();
        assert_eq!(lost(&slots), [0, 2, 3, 4, 5]);
        assert!(connections.admit_at(late).is_none(), "a request that is under way is not given up");
        assert!(new.iter().all(is_in));
        drop(new.pop());
        assert!(connections.admit_at(late).is_some());
    }

    #[test]
    fn a_flood_takes_half_and_a_few_take_turns() {
        let connections = Connections::new(6);
        let slots: Vec<_> = (0..6).map(|_| connections.admit().unwrap()).collect();
        slots.iter().for_each(Slot::idle);
        let now = Instant::now();
        let flood: Vec<_> = (0..100).map(|_| connections.admit_at(now).unwrap()).collect();
        assert_eq!(lost(&slots), [0, 1, 2, 3]);
        assert_eq!(lost(&flood).len(), 96);
        assert!(flood[96..].iter().all(is_in), "the last ones have time to speak");
    }

    #[test]
    fn who_has_been_deaf_for_longest_makes_room_for_what_is_kept_for_others() {
        let connections = Connections::with_memory(6, 100);
        let slots: Vec<_> = (0..6).map(|_| connections.admit().unwrap()).collect();
        slots[1..5].iter().for_each(|slot| slot.keep(25));
        assert!(lost(&slots).is_empty(), "all that there may be");
        // It has taken some of its answer, of which as much is kept as before.
        slots[1].keep(25);
        slots[0].keep(1);
        assert_eq!(lost(&slots), [2]);
        slots[0].keep(26);
        assert_eq!(lost(&slots), [2, 3]);
        slots[0].keep(0);
        // More than there may be is had alone; for whom nothing is kept, has nothing to give.
        slots[1].keep(101);
        assert_eq!(lost(&slots), [2, 3, 4]);
    }

    #[test]
    fn a_closed_connection_does_not_free_the_slot_of_another() {
        let connections = Connections::new(1);
        let first = connections.admit().unwrap();
        let second = connections.admit().unwrap();
        first.idle();
        assert!(!is_in(&first) && is_in(&second));
        drop(first);
        assert!(is_in(&second));
    }
}
