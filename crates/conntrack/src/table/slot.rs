//! A connection's memory: three lines of the cache.
//!
//! | line | words | who reads it |
//! |---|---|---|
//! | 0 | version, both directions of IPv4, ports, class and deadline, protocol's state | every packet |
//! | 1 | label, mark, flags, policy, links, the parent | packets that go through the pipeline, dumps |
//! | 2 | both directions' addresses of IPv6 | packets of IPv6 |
//!
//! Who may touch which word, and when:
//!
//! - `version` holds a generation (odd while the slot is a connection), a count of changes, and a lock bit. A slot is
//!   taken and given back by whoever holds its shard's lock; all else that is written under the lock bit.
//! - What names the connection (`v4`, `ports`, the class, `v6`, the parent) is written while the generation is even, by the one thread that
//!   has the slot, and does not change while it is odd. A reader compares it, and looks whether the generation is still the
//!   same: what it read then belongs to that connection. No reader waits.
//! - Label, mark and flags are written under the lock bit, which adds to the count of changes; a reader that finds
//!   another version afterwards reads again. So does a change of `state`, unless a window of TCP has grown and nothing else.
//! - The deadline and `sent` are written by packets, with a compare-and-exchange that includes the old value. `state` is
//!   written under the lock bit, and carries 12 bits of the generation.
//! - `links` and the scheduled tick belong to the timer wheel, and are touched under the shard's lock only.
//!
//! Memory of slots is not returned while the table lives, so that a stale number leads to a slot, and its generation
//! tells that it is another connection.

use std::cell::Cell;

use crate::protocol::simple::Seen;
use crate::protocol::tcp::Ends;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};
use crate::tuple::Tuple;

/// The words of a slot. All zero is a free slot.
#[repr(C, align(64))]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
pub(super) struct Slot {
    /// Generation (32 bits), changes (31), lock (1).
    version: AtomicU64,
    /// Addresses of IPv4, as [`Tuple::v4`], of the original direction and of the replies.
    v4: [AtomicU64; 2],
    /// Ports of the original direction in the high half, of the replies in the low half.
    ports: AtomicU64,
    /// Class of both directions in the high half, deadline in ticks in the low half.
    class_deadline: AtomicU64,
    /// 12 bits of the generation, 52 of the protocol's state.
    state: AtomicU64,
    /// TCP: what packets of each direction change.
    sent: [AtomicU64; 2],

    label: [AtomicU64; 2],
    /// Mark in the high half, flags in the low half.
    mark_flags: AtomicU64,
    /// Timeout policy in the high half, the tick at which the timer wheel looks next in the low half.
    policy_scheduled: AtomicU64,
    /// Next and previous of the timer wheel's list, each the number of a slot and one; zero for none.
    links: AtomicU64,
    /// Slot of the parent's tuple and one in the low half; [`Skew::last`] of both directions, 16 bits each, above.
    parent: AtomicU64,
    /// [`Skew::total`] of the original direction (high half) and of the replies.
    skew: AtomicU64,
    /// [`Skew::position`] of both directions.
    positions: AtomicU64,

    /// As [`Tuple::v6`], of both directions.
    v6: [AtomicU64; 8],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 192);

/// Bits of a connection's flags.
pub mod flags {
    /// The source is translated.
    pub const SNAT: u32 = 1;
    /// The destination is translated.
    pub const DNAT: u32 = 1 << 1;
    /// A helper expected the connection.
    pub const RELATED: u32 = 1 << 2;
    /// The FTP helper looks at it.
    pub const FTP: u32 = 1 << 3;
    /// The TFTP helper looks at it.
    pub const TFTP: u32 = 1 << 4;
}

/// The state of a connection's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp(Ends),
    /// Any other.
    Simple(Seen),
}

impl Protocol {
    /// Whether packets of both directions have been seen.
    pub fn is_replied(&self) -> bool {
        match self {
            Protocol::Tcp(ends) => ends.0[1].state != crate::protocol::tcp::State::Closed,
            Protocol::Simple(seen) => *seen == Seen::Both,
        }
    }
}

/// What a connection is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contents {
    /// The original direction.
    pub orig: Tuple,
    /// The direction of replies, as they come in: the reverse of the original one, where nothing is translated.
    pub reply: Tuple,
    /// The protocol's state.
    pub protocol: Protocol,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// See [`flags`].
    pub flags: u32,
    /// Timeout policy, see [`Policies`](super::policies::Policies).
    pub policy: u16,
    /// The original direction of the connection that made this one expected.
    pub parent: Option<Tuple>,
    /// What is added to the sequence numbers of both directions, where a helper has changed the length of what was sent.
    pub skew: [Skew; 2],
}

impl Contents {
    /// A connection that is not translated, and has neither mark nor label.
    pub fn new(orig: Tuple, protocol: Protocol) -> Contents {
        let (reply, skew) = (orig.reverse(), [Skew::default(); 2]);
        Contents { orig, reply, protocol, mark: 0, label: 0, flags: 0, policy: 0, parent: None, skew }
    }
}

/// What the verdict on a packet needs of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brief {
    /// The original direction.
    pub orig: Tuple,
    /// The direction of replies, where it is not the reverse.
    pub translated: Option<Tuple>,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// See [`flags`].
    pub flags: u32,
    /// As [`Contents::parent`].
    pub parent: Option<Tuple>,
    /// As [`Contents::skew`], where it is not zero.
    pub skew: Option<[Skew; 2]>,
}

impl Brief {
    /// The direction of replies.
    pub fn reply(&self) -> Tuple {
        self.translated.unwrap_or_else(|| self.orig.reverse())
    }
}

impl From<&Contents> for Brief {
    fn from(contents: &Contents) -> Brief {
        let Contents { orig, reply, mark, label, flags, parent, skew, .. } = *contents;
        let translated = (flags & (flags::SNAT | flags::DNAT) != 0).then_some(reply);
        let skew = (skew != [Skew::default(); 2]).then_some(skew);
        Brief { orig, translated, mark, label, flags, parent, skew }
    }
}

/// By how much the sequence numbers of a direction are shifted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skew {
    /// Bytes that were added, less those that were taken away.
    pub total: i32,
    /// Those of the last change.
    pub last: i16,
    /// The sender's sequence number of the first byte behind the last change.
    pub position: u32,
}

impl Skew {
    /// What is added to a sequence number of the sender.
    pub fn of_sequence(&self, seq: u32) -> i32 {
        // A segment from before the last change is a retransmission.
        let before = (seq.wrapping_sub(self.position) as i32) < 0;
        if before { self.before() } else { self.total }
    }

    /// What the sender calls a number that the receiver acknowledges.
    pub fn as_sent(&self, received: u32) -> u32 {
        let before = (received.wrapping_sub(self.position.wrapping_add_signed(self.total)) as i32) < 0;
        received.wrapping_sub(if before { self.before() } else { self.total } as u32)
    }

    /// What was added before the last change.
    fn before(&self) -> i32 {
        self.total.wrapping_sub(self.last.into())
    }

    /// After a change of `by` bytes in a segment that ends before the sender's `position`. A change of a segment that is sent again
    /// counts once.
    #[must_use]
    pub fn changed(&self, by: i16, position: u32) -> Skew {
        let again = self.last != 0 && (position.wrapping_sub(self.position) as i32) <= 0;
        if again { *self } else { Skew { total: self.total.wrapping_add(by.into()), last: by, position } }
    }
}

const LOCK: u64 = 1;
const CHANGE: u64 = 2;
const GENERATION_SHIFT: u32 = 32;
const STATE_BITS: u64 = (1 << 52) - 1;
/// Of the state of TCP: both windows.
const WINDOW_BITS: u64 = 0xffff_ffff;

/// The generation of a version.
#[inline(always)]
pub(super) fn generation(version: u64) -> u32 {
    (version >> GENERATION_SHIFT) as u32
}

/// The version that a connection of a generation begins with.
pub(super) fn first_version(generation: u32) -> u64 {
    u64::from(generation) << GENERATION_SHIFT
}

/// A slot's lock bit, held. The version is told by which the slot was locked.
pub(super) struct Locked<'a> {
    slot: &'a Slot,
    version: u64,
    /// Whether anything has changed that a version stands for.
    changed: Cell<bool>,
}

/// What an established packet reads of a connection's first line.
pub(super) struct Line {
    pub(super) state: u64,
    /// What packets of its direction change, and those of the other one.
    pub(super) sent: [u64; 2],
    pub(super) class_deadline: u64,
}

impl Slot {
    #[cfg(loom)]
    pub(super) fn new() -> Slot {
        let word = || AtomicU64::new(0);
        Slot {
            version: word(),
            v4: std::array::from_fn(|_| word()),
            ports: word(),
            class_deadline: word(),
            state: word(),
            sent: std::array::from_fn(|_| word()),
            label: std::array::from_fn(|_| word()),
            mark_flags: word(),
            policy_scheduled: word(),
            links: word(),
            parent: word(),
            skew: word(),
            positions: word(),
            v6: std::array::from_fn(|_| word()),
        }
    }

    /// The version as it is now. The caller reads what it says of after it.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether what was read since [`version`](Slot::version) gave `version` belongs to the same connection.
    #[inline(always)]
    pub(super) fn is_same(&self, version: u64) -> bool {
        // Orders the reads before that of the version, against the fence in `fill`.
        fence(Ordering::Acquire);
        generation(self.version.load(Ordering::Relaxed)) == generation(version)
    }

    /// Has the lines fetched that all packets need.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        packet::buffer::prefetch(&self.version);
        self.prefetch_metadata();
    }

    /// Has the line of mark and label fetched.
    #[inline(always)]
    pub(super) fn prefetch_metadata(&self) {
        packet::buffer::prefetch(&self.label);
    }

    /// Whether the slot is a connection with this direction: the version, whether it is the direction of replies, and the
    /// deadline.
    #[inline]
    pub(super) fn find(&self, tuple: &Tuple) -> Option<(u64, bool, u32)> {
        let version = self.version();
        if generation(version) & 1 == 0 {
            return None;
        }
        let class_deadline = self.class_deadline.load(Ordering::Relaxed);
        if (class_deadline >> 32) as u32 != tuple.class {
            return None;
        }
        let ports = self.ports.load(Ordering::Relaxed);
        let is = |reply: usize| {
            (ports >> (32 * (1 - reply))) as u32 == tuple.ports
                && self.v4[reply].load(Ordering::Relaxed) == tuple.v4
                && (!tuple.is_v6() || (0..4).all(|i| self.v6[4 * reply + i].load(Ordering::Relaxed) == tuple.v6[i]))
        };
        let reply = match (is(0), is(1)) {
            (true, _) => false,
            (_, true) => true,
            _ => return None,
        };
        self.is_same(version).then_some((version, reply, class_deadline as u32))
    }

    /// Both directions, of the connection of a generation.
    pub(super) fn tuples(&self, wanted: u32) -> Option<[Tuple; 2]> {
        let version = self.version();
        let tuples = [self.tuple(0), self.tuple(1)];
        (generation(version) == wanted && self.is_same(version)).then_some(tuples)
    }

    #[inline(always)]
    fn tuple(&self, reply: usize) -> Tuple {
        let class = (self.class_deadline.load(Ordering::Relaxed) >> 32) as u32;
        let ports = (self.ports.load(Ordering::Relaxed) >> (32 * (1 - reply))) as u32;
        let v6 = if class & 0xff == 6 {
            std::array::from_fn(|i| self.v6[4 * reply + i].load(Ordering::Relaxed))
        } else {
            [0; 4]
        };
        Tuple::from_words(self.v4[reply].load(Ordering::Relaxed), ports, class, v6)
    }

    /// Writes a tuple into a slot that is no connection.
    fn write_tuple(&self, reply: usize, tuple: &Tuple) {
        self.v4[reply].store(tuple.v4, Ordering::Relaxed);
        (0..4).for_each(|i| self.v6[4 * reply + i].store(tuple.v6[i], Ordering::Relaxed));
    }

    /// Keeps a tuple in a slot that stays free: that of a connection's parent.
    pub(super) fn keep(&self, tuple: &Tuple) {
        fence(Ordering::Release);
        self.write_tuple(0, tuple);
        self.ports.store(u64::from(tuple.ports) << 32, Ordering::Relaxed);
        self.class_deadline.store(u64::from(tuple.class) << 32, Ordering::Relaxed);
    }

    /// The tuple that was kept in a free slot.
    pub(super) fn kept(&self) -> Tuple {
        self.tuple(0)
    }

    /// Makes a free slot a connection; its generation. The caller has taken the slot, and holds its shard's lock.
    pub(super) fn fill(&self, new: &Contents, deadline: u32, parent: Option<u32>) -> u32 {
        let version = self.version.load(Ordering::Relaxed);
        debug_assert!(generation(version) & 1 == 0 && version & LOCK == 0);
        let now = generation(version).wrapping_add(1);
        // Whoever reads what follows sees that the generation before has ended.
        fence(Ordering::Release);
        self.write_tuple(0, &new.orig);
        self.write_tuple(1, &new.reply);
        self.ports.store(u64::from(new.orig.ports) << 32 | u64::from(new.reply.ports), Ordering::Relaxed);
        self.class_deadline.store(u64::from(new.orig.class) << 32 | u64::from(deadline), Ordering::Relaxed);
        self.state.store(tag(now) | state_bits(&new.protocol), Ordering::Relaxed);
        if let Protocol::Tcp(ends) = &new.protocol {
            self.sent[0].store(ends.sent_bits(false), Ordering::Relaxed);
            self.sent[1].store(ends.sent_bits(true), Ordering::Relaxed);
        }
        self.write_label(new.label);
        self.mark_flags.store(u64::from(new.mark) << 32 | u64::from(new.flags), Ordering::Relaxed);
        self.policy_scheduled.store(u64::from(new.policy) << 32, Ordering::Relaxed);
        self.parent.store(parent.map_or(0, |slot| u64::from(slot) + 1), Ordering::Relaxed);
        self.write_skew(&new.skew);
        self.version.store(first_version(now), Ordering::Release);
        now
    }

    fn write_label(&self, label: u128) {
        self.label[0].store((label >> 64) as u64, Ordering::Relaxed);
        self.label[1].store(label as u64, Ordering::Relaxed);
    }

    fn write_skew(&self, [orig, reply]: &[Skew; 2]) {
        let halves = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        self.skew.store(halves(orig.total as u32, reply.total as u32), Ordering::Relaxed);
        self.positions.store(halves(orig.position, reply.position), Ordering::Relaxed);
        let last = u32::from(orig.last as u16) << 16 | u32::from(reply.last as u16);
        let parent = self.parent.load(Ordering::Relaxed) as u32;
        self.parent.store(halves(last, parent), Ordering::Relaxed);
    }

    fn read_skew(&self) -> [Skew; 2] {
        let totals = self.skew.load(Ordering::Relaxed);
        let positions = self.positions.load(Ordering::Relaxed);
        let last = self.parent.load(Ordering::Relaxed);
        [32, 0].map(|shift| Skew {
            total: (totals >> shift) as i32,
            position: (positions >> shift) as u32,
            last: (last >> (32 + shift / 2)) as i16,
        })
    }

    /// Takes the lock bit, if the slot is still the connection of this generation.
    pub(super) fn lock(&self, wanted: u32) -> Option<Locked<'_>> {
        let mut version = self.version.load(Ordering::Relaxed);
        loop {
            if generation(version) != wanted {
                return None;
            }
            if version & LOCK != 0 {
                spin_loop();
                #[cfg(loom)]
                loom::thread::yield_now();
                version = self.version.load(Ordering::Relaxed);
                continue;
            }
            match self.version.compare_exchange_weak(version, version | LOCK, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    // Whoever reads what is written under the lock sees that it is held, or has been.
                    fence(Ordering::Release);
                    return Some(Locked { slot: self, version, changed: Cell::new(false) });
                }
                Err(now) => version = now,
            }
        }
    }

    /// The whole connection of a generation, with its version. The tuple of a parent is read by `parent`, from the slot that it is
    /// given.
    pub(super) fn read(&self, wanted: u32, parent: impl Fn(u32) -> Tuple) -> Option<(Contents, u64)> {
        self.consistent(wanted, || self.contents(&parent))
    }

    /// As [`read`](Slot::read), what a verdict needs.
    #[inline(always)]
    pub(super) fn brief(&self, wanted: u32, parent: impl Fn(u32) -> Tuple) -> Option<Brief> {
        self.consistent(wanted, || self.read_brief(&parent)).map(|(brief, _)| brief)
    }

    /// What `read` reads of the connection of a generation while nobody changes it, with the version.
    #[inline(always)]
    fn consistent<T>(&self, wanted: u32, read: impl Fn() -> T) -> Option<(T, u64)> {
        loop {
            let version = self.version();
            if generation(version) != wanted {
                return None;
            }
            if version & LOCK == 0 {
                let read = read();
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return Some((read, version));
                }
            }
            spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
    }

    #[inline(always)]
    fn read_brief(&self, parent: &impl Fn(u32) -> Tuple) -> Brief {
        let mark_flags = self.mark_flags.load(Ordering::Relaxed);
        let flags = mark_flags as u32;
        let last_parent = self.parent.load(Ordering::Relaxed);
        let skewed = last_parent >> 32 | self.skew.load(Ordering::Relaxed) | self.positions.load(Ordering::Relaxed);
        Brief {
            orig: self.tuple(0),
            translated: (flags & (flags::SNAT | flags::DNAT) != 0).then(|| self.tuple(1)),
            mark: (mark_flags >> 32) as u32,
            label: self.read_label(),
            flags,
            parent: (last_parent as u32).checked_sub(1).map(parent),
            skew: (skewed != 0).then(|| self.read_skew()),
        }
    }

    fn contents(&self, parent: &impl Fn(u32) -> Tuple) -> Contents {
        let Brief { orig, mark, label, flags, parent, .. } = self.read_brief(parent);
        let state = self.state.load(Ordering::Relaxed);
        Contents {
            orig,
            reply: self.tuple(1),
            protocol: self.protocol(&orig, state, self.sent()),
            mark,
            label,
            flags,
            policy: self.policy(),
            parent,
            skew: self.read_skew(),
        }
    }

    #[inline(always)]
    fn read_label(&self) -> u128 {
        let [high, low] = &self.label;
        u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed))
    }

    fn sent(&self) -> [u64; 2] {
        [self.sent[0].load(Ordering::Relaxed), self.sent[1].load(Ordering::Relaxed)]
    }

    fn protocol(&self, tuple: &Tuple, state: u64, sent: [u64; 2]) -> Protocol {
        if tuple.proto() == packet::wire::ip_proto::TCP {
            Protocol::Tcp(Ends::from_bits(state & STATE_BITS, sent))
        } else {
            Protocol::Simple(Seen::from_bits(state as u8))
        }
    }

    /// Both ends of a TCP connection, as they are now, if it is still of this generation: with the words that they come
    /// from.
    #[inline]
    pub(super) fn ends(&self, wanted: u32) -> Option<(Ends, u64, [u64; 2])> {
        let state = self.state.load(Ordering::Acquire);
        let sent = self.sent();
        (state & !STATE_BITS == tag(wanted)).then(|| (Ends::from_bits(state & STATE_BITS, sent), state, sent))
    }

    /// What has been seen of a connection of another protocol than TCP.
    #[inline]
    pub(super) fn seen(&self, wanted: u32) -> Option<Seen> {
        let state = self.state.load(Ordering::Acquire);
        (state & !STATE_BITS == tag(wanted)).then(|| Seen::from_bits(state as u8))
    }

    /// What the first line says of the connection, if it still has the version that it had once, and nobody holds its lock; to packets
    /// of this direction.
    #[inline(always)]
    pub(super) fn line(&self, version: u64, reply: bool) -> Option<Line> {
        let line = Line {
            state: self.state.load(Ordering::Relaxed),
            sent: [reply, !reply].map(|reply| self.sent[usize::from(reply)].load(Ordering::Relaxed)),
            class_deadline: self.class_deadline.load(Ordering::Relaxed),
        };
        // A version never comes back: what was read since it was seen first belongs to it. Orders as in `is_same`.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(line)
    }

    /// Stores what a packet of a direction has changed, if it is still as it was before.
    #[inline]
    pub(super) fn exchange_sent(&self, reply: bool, before: u64, after: u64) -> bool {
        let word = &self.sent[usize::from(reply)];
        before == after || word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The deadline, in ticks.
    pub(super) fn deadline(&self) -> u32 {
        self.class_deadline.load(Ordering::Relaxed) as u32
    }

    /// Sets the deadline, of the connection of a generation; the one that it replaces.
    #[inline]
    pub(super) fn set_deadline(&self, wanted: u32, deadline: u32) -> Option<u32> {
        loop {
            let before = self.class_deadline.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if generation(self.version.load(Ordering::Relaxed)) != wanted || before as u32 == deadline {
                return None;
            }
            // A packet that knows the state of before may be in the way.
            if self.exchange_deadline(before, deadline) {
                return Some(before as u32);
            }
        }
    }

    /// Sets the deadline, of the connection of which class and deadline were read; whether they were still the same.
    #[inline(always)]
    pub(super) fn exchange_deadline(&self, class_deadline: u64, deadline: u32) -> bool {
        let after = class_deadline >> 32 << 32 | u64::from(deadline);
        self.class_deadline.compare_exchange(class_deadline, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The timeout policy.
    #[inline]
    pub(super) fn policy(&self) -> u16 {
        (self.policy_scheduled.load(Ordering::Relaxed) >> 32) as u16
    }

    /// The tick at which the timer wheel looks at the connection.
    #[inline]
    pub(super) fn scheduled(&self) -> u32 {
        self.policy_scheduled.load(Ordering::Relaxed) as u32
    }

    /// Notes when the timer wheel looks next; zero for never. The caller holds the shard's lock.
    pub(super) fn set_scheduled(&self, tick: u32) {
        let policy = self.policy_scheduled.load(Ordering::Relaxed) & !0xffff_ffff;
        self.policy_scheduled.store(policy | u64::from(tick), Ordering::Relaxed);
    }

    /// Next and previous slot of the timer wheel's list. The caller holds the shard's lock.
    pub(super) fn links(&self) -> [u32; 2] {
        let links = self.links.load(Ordering::Relaxed);
        [(links >> 32) as u32, links as u32]
    }

    /// Sets both links. The caller holds the shard's lock.
    pub(super) fn set_links(&self, [next, previous]: [u32; 2]) {
        self.links.store(u64::from(next) << 32 | u64::from(previous), Ordering::Relaxed);
    }
}

impl Locked<'_> {
    /// Both ends, as they are now. Packets go on changing what they have sent.
    pub(super) fn ends(&self) -> (Ends, [u64; 2]) {
        let sent = self.slot.sent();
        (Ends::from_bits(self.slot.state.load(Ordering::Relaxed) & STATE_BITS, sent), sent)
    }

    /// What has been seen.
    pub(super) fn seen(&self) -> Seen {
        Seen::from_bits(self.slot.state.load(Ordering::Relaxed) as u8)
    }

    /// Stores the protocol's state, but what packets have sent. A window that has grown is no change of the connection.
    pub(super) fn set_state(&self, protocol: &Protocol) {
        let after = tag(generation(self.version)) | state_bits(protocol);
        let windows = if matches!(protocol, Protocol::Tcp(_)) { WINDOW_BITS } else { 0 };
        if (self.slot.state.load(Ordering::Relaxed) ^ after) & !windows != 0 {
            self.changed.set(true);
        }
        self.slot.state.store(after, Ordering::Release);
    }

    /// Mark and flags.
    pub(super) fn mark_flags(&self) -> (u32, u32) {
        let word = self.slot.mark_flags.load(Ordering::Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Sets mark and flags.
    pub(super) fn set_mark_flags(&self, mark: u32, flags: u32) {
        self.changed.set(true);
        self.slot.mark_flags.store(u64::from(mark) << 32 | u64::from(flags), Ordering::Relaxed);
    }

    /// The label.
    pub(super) fn label(&self) -> u128 {
        self.slot.read_label()
    }

    /// Sets the label.
    pub(super) fn set_label(&self, label: u128) {
        self.changed.set(true);
        self.slot.write_label(label);
    }

    /// Notes a change of the length of what a direction has sent.
    pub(super) fn change_skew(&self, reply: bool, by: i16, position: u32) {
        self.changed.set(true);
        let mut skew = self.slot.read_skew();
        let own = &mut skew[usize::from(reply)];
        *own = own.changed(by, position);
        self.slot.write_skew(&skew);
    }

    /// Adds bits to the flags.
    pub(super) fn add_flags(&self, bits: u32) {
        self.changed.set(true);
        self.slot.mark_flags.fetch_or(bits.into(), Ordering::Relaxed);
    }

    /// Ends the generation: the slot is no connection any more. The slot of its parent's tuple.
    pub(super) fn end(self) -> Option<u32> {
        let next = u64::from(generation(self.version).wrapping_add(1)) << GENERATION_SHIFT;
        let parent = (self.slot.parent.load(Ordering::Relaxed) as u32).checked_sub(1);
        self.slot.version.store(next, Ordering::Release);
        std::mem::forget(self);
        parent
    }
}

/// Gives the lock bit back, and counts a change where there was one.
impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let generation = self.version >> GENERATION_SHIFT << GENERATION_SHIFT;
        // The changes wrap around within their bits.
        let changes = self.version.wrapping_add(if self.changed.get() { CHANGE } else { 0 }) as u32;
        self.slot.version.store(generation | u64::from(changes), Ordering::Release);
    }
}

fn tag(generation: u32) -> u64 {
    u64::from(generation) << 52
}

fn state_bits(protocol: &Protocol) -> u64 {
    match protocol {
        Protocol::Tcp(ends) => ends.state_bits(),
        Protocol::Simple(seen) => *seen as u64,
    }
}
