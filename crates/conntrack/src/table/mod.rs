//! The connections, shared by all threads.
//!
//! A packet's connection is found by its tuple, in either direction, without a lock and without an epoch: the index leads to
//! slots, and a slot's generation tells whether what was read of it belongs together. As long as nothing is translated, both
//! directions have one hash and one entry; a translated connection has an entry for each.
//!
//! Connections are made and removed under the lock of the shard that their hash belongs to, or of two shards, the one
//! with the lower number first; then a slot's own lock bit. So a connection is made and removed exactly once, and two connections never have a direction in common:
//! inserting the tuple of the replies is the lease of a translated port.
//!
//! | module | what it is |
//! |---|---|
//! | `arena` | Slots by number |
//! | `index` | From a hash to slots |
//! | [`limits`] | How many connections there may be |
//! | [`policies`] | Timeout policies by number |
//! | [`remembered`] | Packets of a connection that is known already |
//! | [`slot`] | A connection's memory |
//! | `wheel` | When connections are looked at whether they have ended |

mod arena;
mod index;
pub mod limits;
pub mod policies;
pub mod remembered;
pub mod slot;
mod wheel;

use crossbeam_utils::CachePadded;
use packet::Time;
use packet::flow::Hasher;

use crate::protocol::tcp::Segment;
use crate::protocol::{Invalid, Update};
use crate::sync::{Mutex, MutexGuard};
use crate::timeout::Timeout;
use crate::tuple::Tuple;
use arena::Arena;
use index::{Growth, Index, NoPlace};
use limits::Limits;
use policies::Policies;
use slot::{Brief, Contents, Locked, Protocol, flags, generation};
use wheel::Wheel;

/// Shards.
#[cfg(not(loom))]
const SHARDS: usize = 64;
#[cfg(loom)]
const SHARDS: usize = 2;

/// Buckets into which connections are counted for operators.
pub const BUCKETS: usize = SHARDS;

/// Nanoseconds of a tick of the deadlines.
const TICK: u64 = 100_000_000;

/// Connections that are looked at while a shard's lock is held.
const EXPIRE_BATCH: usize = 32;

/// Unanswered connections that a shard remembers for early drop.
const CANDIDATES: usize = 64;

/// Bytes of a connection without NAT: its slot, and its share of the index, whose buckets of 64 bytes have four entries on average
/// at least, and an eighth more for those that overflow.
pub const CONNECTION_BYTES: usize = size_of::<slot::Slot>() + 64 / index::LOAD * 9 / 8;

#[cfg(not(loom))]
const _: () = assert!(CONNECTION_BYTES <= 256);

/// Names a connection. It stays valid, and names no other, when the connection is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reference {
    slot: u32,
    generation: u32,
}

/// A packet's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which it is.
    pub connection: Reference,
    /// Whether the packet goes in the direction of replies.
    pub reply: bool,
    /// Changes with every change of mark, label, flags, and of the protocol's state.
    pub version: u64,
}

impl Found {
    /// A connection as it was made.
    pub(crate) fn new(connection: Reference) -> Found {
        Found { connection, reply: false, version: slot::first_version(connection.generation) }
    }
}

/// Why there is no new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The original direction belongs to a connection that another packet has made.
    #[error("the connection is there already")]
    Exists(Found),
    /// The direction of replies belongs to another connection.
    #[error("another connection has the translated addresses and ports")]
    ReplyTaken,
    /// There are as many connections as there may be.
    #[error("too many connections")]
    Full,
    /// The zone has as many connections as it may have.
    #[error("too many connections in the zone")]
    ZoneFull,
}

/// Counts since the table was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections made.
    pub made: u64,
    /// Connections removed, for whatever reason.
    pub removed: u64,
    /// Of these, connections that were removed to make room for others.
    pub dropped_early: u64,
}

/// What a round of expiry has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expired {
    /// Connections looked at.
    pub looked_at: usize,
    /// Connections removed.
    pub removed: usize,
    /// Whether every shard has been looked at.
    pub finished: bool,
}

struct Shard {
    index: Index,
    owned: Mutex<Owned>,
}

/// What belongs to the holder of a shard's lock.
struct Owned {
    growth: Growth,
    free: Vec<u32>,
    wheel: Wheel,
    /// Connections that were unanswered when they were made, oldest first.
    candidates: std::collections::VecDeque<Reference>,
    counts: Counts,
}

/// All connections.
pub struct Table {
    hasher: Hasher,
    arena: Arena,
    shards: Box<[CachePadded<Shard>]>,
    /// Counts and limits of connections.
    pub limits: Limits,
    /// Timeout policies.
    pub policies: Policies,
}

/// The tick in which a time lies. Zero is before all.
#[inline(always)]
pub fn tick(now: Time) -> u32 {
    u32::try_from(now.0 / TICK).unwrap_or(u32::MAX)
}

/// The tick from which a connection has ended whose last packet came now.
fn deadline(now: Time, seconds: u32) -> u32 {
    remembered::Moment::of(now).deadline(seconds)
}

impl Table {
    /// An empty table, for so many connections. The secret is 128 random bits: without it, nobody can choose packets whose hashes
    /// collide.
    pub fn new(limit: u32, secret: [u64; 2]) -> Table {
        let shard = || {
            CachePadded::new(Shard {
                index: Index::new(),
                owned: Mutex::new(Owned {
                    growth: Growth::default(),
                    free: Vec::new(),
                    wheel: Wheel::new(),
                    candidates: std::collections::VecDeque::new(),
                    counts: Counts::default(),
                }),
            })
        };
        Table {
            hasher: Hasher::new(secret),
            arena: Arena::new(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            limits: Limits::new(limit),
            policies: Policies::new(),
        }
    }

    /// The keyed hash of a tuple, the same in both directions.
    #[inline]
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        tuple.hash(&self.hasher)
    }

    /// The keyed hash function, for choices that nobody shall foresee.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The bucket of a connection with this original direction: that of its shard.
    pub fn bucket(&self, orig: &Tuple) -> usize {
        shard_of(self.hash(orig))
    }

    /// Has the line fetched into the cache at which the look-up of a hash begins.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        packet::buffer::prefetch(self.shard(hash).index.line(hash as u32));
    }

    /// Has the lines fetched that a packet with this hash needs of its connection, where there is one. Reads the line of
    /// [`prefetch`](Table::prefetch).
    #[inline]
    pub fn prefetch_connection(&self, hash: u64) {
        let slot = self.shard(hash).index.peek(hash as u32).and_then(|slot| self.arena.try_get(slot));
        if let Some(slot) = slot {
            slot.prefetch();
        }
    }

    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[shard_of(hash)]
    }

    /// The connection that a packet with this tuple belongs to. One whose time is over counts as gone.
    #[inline]
    pub fn find(&self, tuple: &Tuple, now: Time) -> Option<Found> {
        self.find_hashed(tuple, self.hash(tuple), now)
    }

    /// As [`find`](Table::find), for a tuple whose hash is known.
    #[inline]
    pub fn find_hashed(&self, tuple: &Tuple, hash: u64, now: Time) -> Option<Found> {
        let now = tick(now);
        self.shard(hash).index.find(hash as u32, |slot| {
            let there = self.arena.get(slot);
            // What a verdict needs comes while the tuple is compared.
            there.prefetch_metadata();
            let (version, reply, deadline) = there.find(tuple)?;
            let connection = Reference { slot, generation: generation(version) };
            (deadline > now).then_some(Found { connection, reply, version })
        })
    }

    /// As [`find`](Table::find), whether or not its time is over.
    fn find_any(&self, tuple: &Tuple, hash: u64) -> Option<(Found, u32)> {
        self.shard(hash).index.find(hash as u32, |slot| {
            let (version, reply, deadline) = self.arena.get(slot).find(tuple)?;
            let connection = Reference { slot, generation: generation(version) };
            Some((Found { connection, reply, version }, deadline))
        })
    }

    /// Whether the connection is still as it was when it was found: neither mark, label, flags nor the protocol's state
    /// have changed.
    #[inline]
    pub fn is_current(&self, found: &Found) -> bool {
        self.arena.try_get(found.connection.slot).is_some_and(|slot| slot.version() == found.version)
    }

    /// Makes a connection, unless one of its directions belongs to another.
    ///
    /// Where the flags have neither SNAT nor DNAT, the direction of replies has to be the reverse of the original one.
    pub fn insert(&self, new: &Contents, timeout: Timeout, now: Time) -> Result<Reference, Refused> {
        self.insert_until(new, deadline(now, self.policies.seconds(new.policy, timeout)), now)
    }

    /// As [`insert`](Table::insert), a connection that was saved and has so many ticks left.
    pub fn restore(&self, saved: &Contents, left: u32, now: Time) -> Result<Reference, Refused> {
        self.insert_until(saved, tick(now).saturating_add(left), now)
    }

    fn insert_until(&self, new: &Contents, deadline: u32, now: Time) -> Result<Reference, Refused> {
        let zone = new.orig.zone();
        self.limits.take(zone)?;
        let made = self.insert_counted(new, deadline, now);
        if made.is_err() {
            self.limits.give(zone);
        }
        made
    }

    fn insert_counted(&self, new: &Contents, deadline: u32, now: Time) -> Result<Reference, Refused> {
        let hashes = [self.hash(&new.orig), self.hash(&new.reply)];
        // Connections whose time is over may be in the way: one for each direction.
        for _ in 0..4 {
            let mut guards = self.lock(hashes);
            let in_the_way = self.find_any(&new.orig, hashes[0]);
            let in_the_way = in_the_way.or_else(|| self.find_any(&new.reply, hashes[1]));
            match in_the_way {
                None => return self.insert_locked(&mut guards, hashes, new, deadline, now),
                Some((found, deadline)) if deadline > tick(now) => {
                    let same = self.arena.get(found.connection.slot).find(&new.orig).is_some();
                    return Err(if same { Refused::Exists(found) } else { Refused::ReplyTaken });
                }
                Some((found, _)) => {
                    drop(guards);
                    self.remove(found.connection);
                }
            }
        }
        Err(Refused::ReplyTaken)
    }

    fn insert_locked(
        &self,
        guards: &mut Guards<'_>,
        hashes: [u64; 2],
        new: &Contents,
        deadline: u32,
        now: Time,
    ) -> Result<Reference, Refused> {
        let number = self.arena.take(&mut guards.of(0).free).ok_or(Refused::Full)?;
        let parent = match &new.parent {
            None => None,
            Some(tuple) => match self.arena.take(&mut guards.of(0).free) {
                Some(kept) => {
                    self.arena.get(kept).keep(tuple);
                    Some(kept)
                }
                None => {
                    self.arena.give(&mut guards.of(0).free, number);
                    return Err(Refused::Full);
                }
            },
        };
        let slot = self.arena.get(number);
        let generation = slot.fill(new, deadline, parent);
        let connection = Reference { slot: number, generation };
        // The direction of replies first: whoever finds the original one may send, and be answered.
        let mut entered = self.enter(guards, 1, hashes, number);
        if entered.is_ok() && hashes[0] != hashes[1] {
            entered = self.enter(guards, 0, hashes, number);
            if entered.is_err() {
                self.shard(hashes[1]).index.remove(&mut guards.of(1).growth, hashes[1] as u32, number);
            }
        }
        if let Err(NoPlace) = entered {
            slot.lock(generation).map(Locked::end);
            let free = &mut guards.of(0).free;
            self.arena.give(free, number);
            parent.into_iter().for_each(|kept| self.arena.give(free, kept));
            return Err(Refused::Full);
        }
        let owned = guards.of(0);
        owned.wheel.add(&self.arena, number, deadline, tick(now));
        owned.counts.made += 1;
        if owned.candidates.len() < CANDIDATES {
            owned.candidates.push_back(connection);
        }
        Ok(connection)
    }

    fn enter(&self, guards: &mut Guards<'_>, which: usize, hashes: [u64; 2], slot: u32) -> Result<(), NoPlace> {
        let hash = hashes[which];
        self.shard(hash).index.insert(&mut guards.of(which).growth, hash as u32, slot)
    }

    /// Removes a connection; whether it was there.
    pub fn remove(&self, connection: Reference) -> bool {
        self.remove_if(connection, |_| true)
    }

    /// Removes a connection if `condition` holds for its deadline, under its shard's lock; whether it did.
    fn remove_if(&self, connection: Reference, condition: impl Fn(u32) -> bool) -> bool {
        let Reference { slot: number, generation } = connection;
        let Some(slot) = self.arena.try_get(number) else { return false };
        let Some([orig, reply]) = slot.tuples(generation) else { return false };
        let hashes = [self.hash(&orig), self.hash(&reply)];
        let mut guards = self.lock(hashes);
        // Generations end under the lock of the original direction's shard.
        let Some(locked) = slot.lock(generation) else { return false };
        if !condition(slot.deadline()) {
            return false;
        }
        self.shard(hashes[0]).index.remove(&mut guards.of(0).growth, hashes[0] as u32, number);
        if hashes[0] != hashes[1] {
            self.shard(hashes[1]).index.remove(&mut guards.of(1).growth, hashes[1] as u32, number);
        }
        let owned = guards.of(0);
        owned.wheel.remove(&self.arena, number);
        let parent = locked.end();
        self.arena.give(&mut owned.free, number);
        parent.into_iter().for_each(|kept| self.arena.give(&mut owned.free, kept));
        owned.counts.removed += 1;
        drop(guards);
        self.limits.give(orig.zone());
        true
    }

    /// Removes an unanswered connection, one of the oldest, of the shard of this hash, to make room for another. Looks at a few only.
    pub fn drop_early(&self, hash: u64) -> bool {
        for _ in 0..8 {
            let Some(candidate) = self.shard(hash).owned.lock().candidates.pop_front() else { return false };
            let unanswered = |c: &Contents| !c.protocol.is_replied();
            if self.read(candidate).is_some_and(|(contents, _)| unanswered(&contents)) && self.remove(candidate) {
                self.shard(hash).owned.lock().counts.dropped_early += 1;
                return true;
            }
        }
        false
    }

    /// The connection as it is now, with its version.
    pub fn read(&self, connection: Reference) -> Option<(Contents, Found)> {
        let slot = self.arena.try_get(connection.slot)?;
        let (contents, version) = slot.read(connection.generation, |kept| self.arena.get(kept).kept())?;
        Some((contents, Found { connection, reply: false, version }))
    }

    /// What the verdict on a packet needs of a connection, as it is now.
    #[inline(always)]
    pub fn brief(&self, connection: Reference) -> Option<Brief> {
        let slot = self.arena.try_get(connection.slot)?;
        slot.brief(connection.generation, |kept| self.arena.get(kept).kept())
    }

    /// Seconds until the connection ends without another packet; zero for one that has ended.
    pub fn seconds_left(&self, connection: Reference, now: Time) -> Option<u32> {
        let ticks = self.ticks_left(connection, now)?;
        Some((u64::from(ticks) * TICK / 1_000_000_000) as u32)
    }

    /// As [`seconds_left`](Table::seconds_left), in tenths of a second.
    pub fn ticks_left(&self, connection: Reference, now: Time) -> Option<u32> {
        let slot = self.arena.try_get(connection.slot)?;
        let deadline = slot.deadline();
        slot.tuples(connection.generation)?;
        Some(deadline.saturating_sub(tick(now)))
    }

    /// Whether the time of a connection is over, or it is gone.
    pub fn has_ended(&self, connection: Reference, now: Time) -> bool {
        let Some(slot) = self.arena.try_get(connection.slot) else { return true };
        let deadline = slot.deadline();
        slot.tuples(connection.generation).is_none() || deadline <= tick(now)
    }

    /// Sets bits of mark and label: each pair is value and mask. What they are then; `None` where the connection is gone.
    /// Those of a connection that a helper expected stay as they are.
    pub fn mark(
        &self,
        connection: Reference,
        mark: Option<(u32, u32)>,
        label: Option<(u128, u128)>,
    ) -> Option<(u32, u128)> {
        let slot = self.arena.try_get(connection.slot)?;
        let before = self.brief(connection)?;
        let masked = |m: u32| mark.map_or(m, |(value, mask)| m & !mask | value & mask);
        let masked_label = |l: u128| label.map_or(l, |(value, mask)| l & !mask | value & mask);
        let expected = before.flags & flags::RELATED != 0;
        if expected || masked(before.mark) == before.mark && masked_label(before.label) == before.label {
            return Some((before.mark, before.label));
        }
        let locked = slot.lock(connection.generation)?;
        let (mark, flags) = locked.mark_flags();
        let (mark, label) = (masked(mark), masked_label(locked.label()));
        locked.set_mark_flags(mark, flags);
        locked.set_label(label);
        Some((mark, label))
    }

    /// Notes that a helper has changed the length of a segment by so many bytes, whose end is the sender's `position`. The
    /// connection is the one that was found: its direction is the segment's.
    pub fn change_skew(&self, found: &Found, by: i16, position: u32) -> bool {
        let slot = self.arena.try_get(found.connection.slot);
        let locked = slot.and_then(|slot| slot.lock(found.connection.generation));
        locked.map(|locked| locked.change_skew(found.reply, by, position)).is_some()
    }

    /// Adds bits to a connection's [`flags`](slot::flags); whether it is there.
    pub fn add_flags(&self, connection: Reference, bits: u32) -> bool {
        let slot = self.arena.try_get(connection.slot);
        slot.and_then(|slot| slot.lock(connection.generation)).map(|locked| locked.add_flags(bits)).is_some()
    }

    /// A segment of a connection of TCP: what it is to it. `None` where the connection is gone.
    ///
    /// A segment that changes nothing but what its own direction has sent takes no lock.
    pub fn step_tcp(&self, found: &Found, segment: &Segment, liberal: bool, now: Time) -> Option<Update> {
        let Reference { slot: number, generation } = found.connection;
        let slot = self.arena.try_get(number)?;
        let (mut ends, state, sent) = slot.ends(generation)?;
        let update = ends.step(found.reply, segment, liberal);
        let same_state = ends.state_bits() == state & ((1 << 52) - 1)
            && ends.sent_bits(!found.reply) == sent[usize::from(!found.reply)];
        let own = usize::from(found.reply);
        let update = if same_state && slot.exchange_sent(found.reply, sent[own], ends.sent_bits(found.reply)) {
            update
        } else {
            self.step_tcp_locked(slot.lock(generation)?, slot, found.reply, segment, liberal)
        };
        self.touch(found.connection, update, now);
        Some(update)
    }

    fn step_tcp_locked(
        &self,
        locked: Locked<'_>,
        slot: &slot::Slot,
        reply: bool,
        segment: &Segment,
        liberal: bool,
    ) -> Update {
        loop {
            let (mut ends, sent) = locked.ends();
            let update = ends.step(reply, segment, liberal);
            // Packets of both directions go on, and change what they have sent.
            let stored = [false, true]
                .iter()
                .all(|&reply| slot.exchange_sent(reply, sent[usize::from(reply)], ends.sent_bits(reply)));
            if stored {
                locked.set_state(&Protocol::Tcp(ends));
                return update;
            }
        }
    }

    /// A packet of a connection of another protocol than TCP. `None` where the connection is gone.
    pub fn step_simple(&self, tuple: &Tuple, found: &Found, now: Time) -> Option<Update> {
        let Reference { slot: number, generation } = found.connection;
        let slot = self.arena.try_get(number)?;
        let before = slot.seen(generation)?;
        let (after, mut update) = before.step(tuple.is_icmp(), found.reply);
        if after != before {
            let locked = slot.lock(generation)?;
            let after;
            (after, update) = locked.seen().step(tuple.is_icmp(), found.reply);
            locked.set_state(&Protocol::Simple(after));
        }
        self.touch(found.connection, update, now);
        Some(update)
    }

    /// Puts off the end of a connection, as a packet says.
    #[inline]
    fn touch(&self, connection: Reference, update: Update, now: Time) {
        let (Update::New { timeout: Some(timeout) } | Update::Established { timeout: Some(timeout) }) = update else {
            return;
        };
        let slot = self.arena.get(connection.slot);
        let deadline = deadline(now, self.policies.seconds(slot.policy(), timeout));
        if slot.deadline() == deadline {
            return;
        }
        slot.set_deadline(connection.generation, deadline);
        // Much earlier than the wheel would look: when a connection closes.
        const LATE: u32 = 300;
        if slot.scheduled() > deadline.saturating_add(LATE) {
            self.reschedule(connection, now);
        }
    }

    fn reschedule(&self, connection: Reference, now: Time) {
        let slot = self.arena.get(connection.slot);
        let Some([orig, _]) = slot.tuples(connection.generation) else { return };
        let mut owned = self.shard(self.hash(&orig)).owned.lock();
        if slot.tuples(connection.generation).is_some() && slot.scheduled() != 0 {
            owned.wheel.remove(&self.arena, connection.slot);
            owned.wheel.add(&self.arena, connection.slot, slot.deadline(), tick(now));
        }
    }

    /// Removes connections whose time is over. Looks at `budget` connections at most, give or take a few, beginning with the shard
    /// `shard`, which is advanced; no lock is held for more than [`EXPIRE_BATCH`] of them.
    pub fn expire(&self, shard: &mut usize, budget: usize, now: Time) -> Expired {
        let mut done = Expired::default();
        for _ in 0..self.shards.len() {
            loop {
                if done.looked_at >= budget {
                    return done;
                }
                let looked_at = self.expire_some(*shard % self.shards.len(), now, &mut done);
                done.looked_at += looked_at;
                if looked_at < EXPIRE_BATCH {
                    break;
                }
            }
            *shard = (*shard + 1) % self.shards.len();
        }
        done.finished = true;
        done
    }

    fn expire_some(&self, shard: usize, now: Time, done: &mut Expired) -> usize {
        let mut over: [Option<Reference>; EXPIRE_BATCH] = [None; EXPIRE_BATCH];
        let mut looked_at = 0;
        let mut owned = self.shards[shard].owned.lock();
        while looked_at < EXPIRE_BATCH
            && let Some(number) = owned.wheel.pop(&self.arena, tick(now))
        {
            let slot = self.arena.get(number);
            let deadline = slot.deadline();
            if deadline <= tick(now) {
                over[looked_at] = Some(Reference { slot: number, generation: generation(slot.version()) });
            }
            // A connection whose time is over is removed below, but for a packet that comes in between.
            owned.wheel.add(&self.arena, number, deadline.max(tick(now)), tick(now));
            looked_at += 1;
        }
        drop(owned);
        for connection in over.into_iter().flatten() {
            done.removed += usize::from(self.remove_if(connection, |deadline| deadline <= tick(now)));
        }
        looked_at
    }

    /// Calls `each` with the connections from `cursor` on, which is advanced, until it has looked at `budget` places; whether
    /// there are more. No lock is held. A connection that is there all the time comes exactly once.
    pub fn dump(&self, cursor: &mut u32, budget: usize, mut each: impl FnMut(Reference, &Contents)) -> bool {
        let used = self.arena.used();
        let end = cursor.saturating_add(u32::try_from(budget).unwrap_or(u32::MAX)).min(used);
        while *cursor < end {
            let number = *cursor;
            *cursor += 1;
            let Some(slot) = self.arena.try_get(number) else { continue };
            let connection = Reference { slot: number, generation: generation(slot.version()) };
            if connection.generation & 1 == 1
                && let Some((contents, _)) = self.read(connection)
            {
                each(connection, &contents);
            }
        }
        *cursor < used
    }

    /// As [`dump`](Table::dump): removes the connections for which `which` holds, and counts them in `removed`.
    pub fn flush(
        &self,
        cursor: &mut u32,
        budget: usize,
        removed: &mut u64,
        mut which: impl FnMut(&Contents) -> bool,
    ) -> bool {
        self.dump(cursor, budget, |connection, contents| {
            if which(contents) {
                *removed += u64::from(self.remove(connection));
            }
        })
    }

    /// Counts since the table was made. Those of shards are not of one moment.
    pub fn counts(&self) -> Counts {
        self.shards.iter().map(|shard| shard.owned.lock().counts).fold(Counts::default(), |a, b| Counts {
            made: a.made + b.made,
            removed: a.removed + b.removed,
            dropped_early: a.dropped_early + b.dropped_early,
        })
    }

    /// Locks the shards of both directions, the one with the lower number first.
    fn lock(&self, hashes: [u64; 2]) -> Guards<'_> {
        let [a, b] = hashes.map(shard_of);
        let lock = |shard: usize| self.shards[shard].owned.lock();
        match a.cmp(&b) {
            std::cmp::Ordering::Equal => Guards { first: lock(a), second: None },
            std::cmp::Ordering::Less => {
                let first = lock(a);
                Guards { first, second: Some(lock(b)) }
            }
            std::cmp::Ordering::Greater => {
                let second = lock(b);
                Guards { first: lock(a), second: Some(second) }
            }
        }
    }
}

fn shard_of(hash: u64) -> usize {
    // The low half is the entry's, and says which bucket.
    (hash >> 32) as usize % SHARDS
}

/// Locks of the shards of the original direction and of the replies, which may be one.
struct Guards<'a> {
    first: MutexGuard<'a, Owned>,
    second: Option<MutexGuard<'a, Owned>>,
}

impl Guards<'_> {
    /// What belongs to the shard of the original direction (0) or of the replies (1).
    fn of(&mut self, which: usize) -> &mut Owned {
        match &mut self.second {
            Some(second) if which == 1 => second,
            _ => &mut self.first,
        }
    }
}

/// What a packet is that belongs to no connection: the beginning of one, or nothing valid.
pub fn first_state(tuple: &Tuple, segment: Option<&Segment>) -> Result<(Protocol, Timeout), Invalid> {
    use crate::protocol::simple::Seen;
    use crate::protocol::tcp::Ends;
    match (segment, tuple.icmp_type()) {
        (Some(segment), _) => Ok((Protocol::Tcp(Ends::begin(segment)?), Ends::FIRST_TIMEOUT)),
        (None, Some(kind)) if !crate::tuple::is_icmp_request(tuple.proto(), kind) => Err(Invalid::NotFirst),
        (None, kind) => Ok((Protocol::Simple(Seen::First), Seen::First.timeout(kind.is_some()))),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
