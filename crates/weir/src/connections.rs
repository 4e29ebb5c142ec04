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
//! 5. of those that have read nothing of their answers for a second, the one that stalled first. If more than half of all
//!    connections have answers to read, a twentieth of a second is enough: otherwise a thousand peers that do not read
//!    would be let in a few in a second, and whoever comes behind them would wait.
//!
//! A connection is never closed while its request is being worked on, nor while it reads the answer. If all are in
//! that state, a new connection waits. It gets the place of the next one that has its answer, even if that one has asked
//! for more already: peers that always ask for more would keep all places otherwise.
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

/// The same for a peer that reads nothing, where most have something to read.
const SILENCE_OF_MANY: Duration = Duration::from_millis(50);

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
    /// A new connection waits for room.
    is_awaited: Cell<bool>,
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

/// What more than half of all peers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Most {
    New,
    Answered,
    Various,
}

impl Activity {
    /// Where a peer that connected with this event number is in the order; `None`: it is not to be closed.
    fn closing_order(self, number: u64, most: Most, now: Instant) -> Option<ClosingOrder> {
        let is_within = |since, time| now.saturating_duration_since(since) < time;
        let silence = if most == Most::Answered { SILENCE_OF_MANY } else { SILENCE };
        match self {
            Activity::New(since) if !is_within(since, SILENCE) => Some(ClosingOrder::Silent(number)),
            Activity::New(_) if most == Most::New => Some(ClosingOrder::OfMany(number)),
            Activity::New(_) => Some(ClosingOrder::New(number)),
            Activity::Idle(event) => Some(ClosingOrder::Idle(event)),
            Activity::Answered(since) if !is_within(since, silence) => Some(ClosingOrder::Stalled(since)),
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
        let (peers, events, changed, is_awaited) =
            (RefCell::default(), Cell::default(), Notify::new(), Cell::default());
        Connections(Rc::new(Slots { limit, memory, peers, events, changed, is_awaited }))
    }

    /// A slot for a new connection, when there is room. If all are taken, another connection is told to close.
    ///
    /// To be called with a connection that has been accepted: whether there will be room for one that has yet to come, nobody
    /// can say.
    pub async fn admit(&self) -> Slot {
        loop {
            if let Some(slot) = self.admit_at(Instant::now()) {
                return slot;
            }
            self.0.is_awaited.set(true);
            // No event marks the moment at which a peer has stalled for long enough.
            let _ = timeout(SILENCE_OF_MANY, self.0.changed.notified()).await;
            self.0.is_awaited.set(false);
        }
    }

    fn admit_at(&self, now: Instant) -> Option<Slot> {
        if self.0.is_full() {
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
    fn is_full(&self) -> bool {
        self.peers.borrow().len() >= self.limit
    }

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
        let is_new = |activity: &Activity| matches!(activity, Activity::New(_));
        let is_answered = |activity: &Activity| matches!(activity, Activity::Answered(_));
        let are_most = |kind: fn(&Activity) -> bool| {
            peers.values().filter(|peer| kind(&peer.activity.get())).count() > self.limit / 2
        };
        let most = if are_most(is_new) {
            Most::New
        } else if are_most(is_answered) {
            Most::Answered
        } else {
            Most::Various
        };
        let candidates = peers
            .iter()
            .filter_map(|(&number, peer)| Some((peer.activity.get().closing_order(number, most, now)?, number)));
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

    /// Whether the connection is to be closed.
    pub fn is_lost(&self) -> bool {
        !self.slots.peers.borrow().contains_key(&self.number)
    }

    /// The peer has sent a message, and has its answer.
    pub fn idle(&self) {
        self.peer.activity.set(Activity::Idle(self.slots.event()));
        // Until the one that waits is asked, this one may be worked for again.
        if self.slots.is_full() && self.slots.is_awaited.replace(false) {
            self.slots.close(self.number);
        }
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
        !slot.is_lost()
    }

    fn admit(connections: &Connections) -> Option<Slot> {
        connections.admit_at(Instant::now())
    }

    #[test]
    fn the_silent_make_room_in_order() {
        let connections = Connections::new(6);
        let slots: Vec<_> = (0..6).map(|_| admit(&connections).unwrap()).collect();
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
        let slots: Vec<_> = (0..6).map(|_| admit(&connections).unwrap()).collect();
        slots.iter().for_each(Slot::idle);
        let now = Instant::now();
        let flood: Vec<_> = (0..100).map(|_| connections.admit_at(now).unwrap()).collect();
        assert_eq!(lost(&slots), [0, 1, 2, 3]);
        assert_eq!(lost(&flood).len(), 96);
        assert!(flood[96..].iter().all(is_in), "the last ones have time to speak");
    }

    #[test]
    fn many_that_do_not_read_have_little_time() {
        let connections = Connections::new(6);
        let slots: Vec<_> = (0..6).map(|_| admit(&connections).unwrap()).collect();
        slots[..3].iter().for_each(Slot::working);
        slots[3..].iter().for_each(Slot::answered);
        let later = Instant::now() + SILENCE_OF_MANY;
        assert!(connections.admit_at(later).is_none(), "few do not read");
        slots[0].answered();
        assert!(connections.admit_at(Instant::now() - SILENCE_OF_MANY).is_none());
        let new = connections.admit_at(later).unwrap();
        assert!(is_in(&new));
        assert_eq!(lost(&slots), [3]);
    }

    #[test]
    fn who_always_asks_for_more_gives_way_to_one_that_waits() {
        let connections = Connections::new(2);
        let slots: Vec<_> = (0..2).map(|_| admit(&connections).unwrap()).collect();
        let asks_again = |slot: &Slot| {
            slot.idle();
            slot.working();
        };
        slots.iter().for_each(asks_again);
        assert!(lost(&slots).is_empty(), "nobody waits");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let new = runtime.block_on(async {
            let waits = timeout(Duration::from_secs(10), connections.admit());
            let (new, ()) = tokio::join!(waits, async { slots.iter().for_each(asks_again) });
            new.expect("one of them gives way")
        });
        assert!(is_in(&new));
        assert_eq!(lost(&slots), [0], "one is enough");
    }

    #[test]
    fn who_has_been_deaf_for_longest_makes_room_for_what_is_kept_for_others() {
        let connections = Connections::with_memory(6, 100);
        let slots: Vec<_> = (0..6).map(|_| admit(&connections).unwrap()).collect();
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
        let first = admit(&connections).unwrap();
        let second = admit(&connections).unwrap();
        first.idle();
        assert!(!is_in(&first) && is_in(&second));
        drop(first);
        assert!(is_in(&second));
    }
}
