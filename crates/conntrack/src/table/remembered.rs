//! Packets of a connection that is known already: a datapath that has tracked one packet of a direction remembers the connection,
//! and asks with the next ones whether all is as before. The first line of the slot has what is needed for that.
//!
//! The version of a slot counts changes of mark, label, flags and of the protocol's state, and never comes back. As long as it is the
//! one that was remembered, a packet that changes no state gets the verdict that the packet before got. What is left to do is the
//! sequence window of TCP, and to put off the end.
//!
//! A packet that does not pass has changed nothing, and is tracked.

use packet::Time;

use super::policies::{POLICIES, Policies};
use super::slot::{Protocol, Slot, flags};
use super::{Found, Reference, TICK, Table};
use crate::protocol::Update;
use crate::protocol::tcp::{Ends, Segment, Shifts};
use crate::timeout::{ALL, TIMEOUTS, Timeout};

/// A direction of a connection in which packets may pass that change nothing: those of TCP while both ends are established, of
/// other protocols as soon as another packet in this direction is what the last one was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remembered {
    version: u64,
    slot: u32,
    /// The policy and the timeout: [`Remembered::timeout_of`].
    timeout: u16,
    /// The window scales of TCP, which a version stands for, too.
    shifts: Shifts,
    reply: bool,
}

const _: () = assert!(size_of::<Remembered>() == 16);

impl Remembered {
    const TIMEOUT_BITS: u32 = 4;

    /// A policy and a timeout in one word.
    fn timeout_of(policy: u16, timeout: Timeout) -> u16 {
        const { assert!(TIMEOUTS <= 1 << Remembered::TIMEOUT_BITS) };
        const { assert!(POLICIES <= 1 << (u16::BITS - Remembered::TIMEOUT_BITS)) };
        // One that does not exist is the default.
        let policy = if usize::from(policy) < POLICIES { policy } else { 0 };
        policy << Remembered::TIMEOUT_BITS | timeout as u16
    }
}

/// A time, in the ticks of deadlines. Computed once for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The tick in which it lies.
    tick: u32,
    /// The first tick that does not begin before it.
    next: u32,
}

impl Moment {
    /// The moment of a time.
    pub fn of(now: Time) -> Moment {
        let ticks = |ticks: u64| u32::try_from(ticks).unwrap_or(u32::MAX);
        Moment { tick: ticks(now.0 / TICK), next: ticks(now.0.div_ceil(TICK)) }
    }

    /// The tick from which a connection has ended whose last packet comes at this moment.
    #[inline(always)]
    pub(super) fn deadline(self, seconds: u32) -> u32 {
        self.next.saturating_add(seconds.saturating_mul((1_000_000_000 / TICK) as u32))
    }
}

/// Where a connection is in memory, if it is still there.
#[derive(Clone, Copy)]
pub struct Place<'a>(&'a Slot);

/// The deadlines that packets of one batch put off to.
pub struct Deadlines {
    moment: Moment,
    /// The policy and the timeout that `deadline` is for: mostly those of all packets. One bit more where there is none yet.
    of: u32,
    deadline: u32,
    /// The deadline, where connections that have it pass: mostly, it was put off to that a moment ago. One bit more where none passes.
    usual: u64,
    /// How many deadlines there are that pass, from the tick after this one on.
    passing: u32,
}

impl Deadlines {
    /// For packets that come now.
    pub fn new(moment: Moment) -> Deadlines {
        Deadlines { moment, of: u32::MAX, deadline: 0, usual: u64::MAX, passing: 0 }
    }

    /// Makes them those of packets of a remembered connection.
    #[inline(always)]
    fn set(&mut self, policies: &Policies, remembered: &Remembered) {
        if self.of != remembered.timeout.into() {
            self.change(policies, remembered.timeout);
        }
    }

    #[inline(never)]
    fn change(&mut self, policies: &Policies, timeout: u16) {
        self.of = timeout.into();
        let number = usize::from(timeout) & ((1 << Remembered::TIMEOUT_BITS) - 1);
        let seconds = policies.seconds(timeout >> Remembered::TIMEOUT_BITS, ALL[number.min(TIMEOUTS - 1)]);
        self.deadline = self.moment.deadline(seconds);
        // Another thread's clock may be a tick ahead.
        self.passing = self.deadline.saturating_add(1).saturating_sub(self.moment.tick);
        self.usual = if self.lets_pass(self.deadline) { self.deadline.into() } else { u64::MAX };
    }

    /// Whether a connection passes with what its first line says, before anything was stored.
    #[inline(always)]
    fn let_pass(&self, class_deadline: u64) -> bool {
        self.is_usual(class_deadline) || self.lets_pass(class_deadline as u32)
    }

    /// Whether the deadline is neither over nor put off.
    #[inline(always)]
    fn is_usual(&self, class_deadline: u64) -> bool {
        class_deadline & 0xffff_ffff == self.usual
    }

    /// Whether a connection with this deadline passes: its time is not over, and its policy has not got so much shorter that the
    /// timer wheel has to know.
    #[inline(always)]
    fn lets_pass(&self, deadline: u32) -> bool {
        deadline.wrapping_sub(self.moment.tick).wrapping_sub(1) < self.passing
    }
}

impl Table {
    /// Remembers the direction of a connection in which a packet was found. `None` where the connection has changed since, has
    /// a helper, or the next packet may change its state.
    pub fn remember(&self, found: &Found) -> Option<Remembered> {
        let Found { connection: Reference { slot: number, generation }, reply, version } = *found;
        let (contents, now) = self.read(found.connection)?;
        if now.version != version || super::generation(version) != generation {
            return None;
        }
        if contents.flags & (flags::FTP | flags::TFTP) != 0 {
            return None;
        }
        let mut shifts = Shifts::default();
        let timeout = match contents.protocol {
            Protocol::Tcp(ends) => {
                shifts = ends.shifts(reply);
                ends.are_established().then_some(Timeout::TcpEstablished)
            }
            Protocol::Simple(seen) => match seen.step(contents.orig.is_icmp(), reply) {
                (after, Update::New { timeout } | Update::Established { timeout }) if after == seen => timeout,
                _ => None,
            },
        }?;
        let timeout = Remembered::timeout_of(contents.policy, timeout);
        Some(Remembered { version, slot: number, timeout, shifts, reply })
    }

    /// Where the connection is. The line that its packets need is on the way into the cache.
    #[inline(always)]
    pub fn prefetch_slot(&self, remembered: &Remembered) -> Option<Place<'_>> {
        let slot = self.arena.try_get(remembered.slot)?;
        packet::buffer::prefetch(slot);
        Some(Place(slot))
    }

    /// A packet of any protocol but TCP: whether its verdict is that of the last packet. Then the end is put off, as
    /// tracking the packet does.
    #[inline]
    pub fn pass_simple(&self, remembered: &Remembered, now: Moment) -> bool {
        let Some(place) = self.prefetch_slot(remembered) else { return false };
        self.pass_simple_at::<true>(place, remembered, &mut Deadlines::new(now))
    }

    /// The same, for a connection whose place is known. Without `PUTS_OFF`, nothing is noted of the packet: for who has to ask of several
    /// connections first.
    #[inline(always)]
    pub fn pass_simple_at<const PUTS_OFF: bool>(
        &self,
        Place(slot): Place<'_>,
        remembered: &Remembered,
        now: &mut Deadlines,
    ) -> bool {
        let Some(line) = slot.line(remembered.version, remembered.reply) else { return false };
        now.set(&self.policies, remembered);
        if !now.let_pass(line.class_deadline) {
            return false;
        }
        if PUTS_OFF {
            put_off(slot, line.class_deadline, now);
        }
        true
    }

    /// As [`pass_simple`](Table::pass_simple), a segment of TCP: it has to lie within the windows, and neither to open, close nor
    /// reset the connection, nor to offer a larger window than any before.
    #[inline]
    pub fn pass_tcp(&self, remembered: &Remembered, segment: &Segment, liberal: bool, now: Moment) -> bool {
        let Some(place) = self.prefetch_slot(remembered) else { return false };
        self.pass_tcp_at::<true>(place, remembered, segment, liberal, &mut Deadlines::new(now))
    }

    /// The same, for a connection whose place is known. `PUTS_OFF`: see [`pass_simple_at`](Table::pass_simple_at).
    #[inline(always)]
    pub fn pass_tcp_at<const PUTS_OFF: bool>(
        &self,
        Place(slot): Place<'_>,
        remembered: &Remembered,
        segment: &Segment,
        liberal: bool,
        now: &mut Deadlines,
    ) -> bool {
        let Some(line) = slot.line(remembered.version, remembered.reply) else { return false };
        now.set(&self.policies, remembered);
        if !now.let_pass(line.class_deadline) {
            return false;
        }
        let Remembered { reply, shifts, .. } = *remembered;
        let Some(sent) = Ends::pass(line.state, line.sent, reply, shifts, segment, liberal) else { return false };
        if PUTS_OFF {
            if !slot.exchange_sent(reply, line.sent[0], sent) {
                return false;
            }
            put_off(slot, line.class_deadline, now);
        }
        true
    }
}

/// Puts the end of a connection off, ten times a second at most.
#[inline(always)]
fn put_off(slot: &Slot, class_deadline: u64, now: &Deadlines) {
    if !now.is_usual(class_deadline) && now.deadline > class_deadline as u32 {
        // Whoever was faster has stored a deadline as good as this, or that of another state.
        slot.exchange_deadline(class_deadline, now.deadline);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::table::slot::Contents;
    use crate::table::{Refused, first_state};
    use crate::timeout::Timeouts;
    use crate::tuple::Tuple;
    use crate::tuple::tests::v4;
    use packet::wire::tcp::flags::{ACK, FIN, SYN};
    use std::time::Duration;

    fn at(tenths: u64) -> Time {
        Time(1_000_000_000) + Duration::from_millis(100 * tenths)
    }

    fn insert(table: &Table, orig: Tuple, flags: u32) -> Result<Reference, Refused> {
        let syn = Segment { flags: SYN, window: 1000, ..Segment::default() };
        let segment = (orig.proto() == 6).then_some(syn);
        let (protocol, timeout) = first_state(&orig, segment.as_ref()).unwrap();
        table.insert(&Contents { flags, ..Contents::new(orig, protocol) }, timeout, at(0))
    }

    /// A connection of UDP that was answered.
    fn udp(table: &Table) -> (Tuple, Remembered) {
        let tuple = v4([10, 0, 0, 1], 1000, [10, 9, 9, 9], 53, 17);
        insert(table, tuple, 0).unwrap();
        let back = table.find(&tuple.reverse(), at(0)).unwrap();
        assert_eq!(table.remember(&back), None, "it would be established");
        table.step_simple(&tuple.reverse(), &back, at(0)).unwrap();
        assert_eq!(table.remember(&back), None, "it has changed since");
        let remembered = table.remember(&table.find(&tuple, at(0)).unwrap()).unwrap();
        (tuple, remembered)
    }

    #[test]
    fn passes_until_the_time_is_over_and_puts_it_off() {
        let table = Table::new(10, [1, 2]);
        let (tuple, remembered) = udp(&table);
        let may_pass = |tenths| {
            let place = table.prefetch_slot(&remembered).unwrap();
            table.pass_simple_at::<false>(place, &remembered, &mut Deadlines::new(Moment::of(at(tenths))))
        };
        for tenths in [0, 1, 250, 549, 848] {
            assert!(may_pass(tenths) && table.pass_simple(&remembered, Moment::of(at(tenths))));
            let connection = table.find(&tuple, at(tenths)).unwrap().connection;
            assert_eq!(table.seconds_left(connection, at(tenths)), Some(30));
        }
        assert!(table.pass_simple(&remembered, Moment::of(at(847))), "another thread's clock");
        assert!(table.find(&tuple, at(1147)).is_some(), "which does not bring the end nearer");
        assert!(!may_pass(1148) && !table.pass_simple(&remembered, Moment::of(at(1148))));
        assert!(table.find(&tuple, at(1147)).is_some(), "nothing has changed");
    }

    /// A deadline that is what a packet would put it off to is no sign that the connection has not ended: with a timeout of zero, both
    /// are now.
    #[test]
    fn nothing_passes_with_a_timeout_of_zero() {
        let table = Table::new(10, [1, 2]);
        let (_, remembered) = udp(&table);
        let mut timeouts = Timeouts::default();
        timeouts.set(Timeout::UdpMultiple, 0);
        table.policies.set(0, &timeouts).unwrap();
        // The connection ends at tick 310.
        let end = Moment::of(at(300));
        let deadline = table.arena.get(remembered.slot).deadline();
        assert_eq!((end.tick, end.deadline(0)), (deadline, deadline));
        assert!(!table.pass_simple(&remembered, end));
    }

    /// Whatever verdicts depend on has another version afterwards.
    #[test]
    fn any_change_of_the_connection_is_noticed() {
        let changes: [fn(&Table, Reference); 7] = [
            |table, connection| assert!(table.mark(connection, Some((1, 1)), None).is_some()),
            |table, connection| assert!(table.mark(connection, None, Some((1 << 127, 1 << 127))).is_some()),
            |table, connection| assert!(table.add_flags(connection, flags::FTP)),
            |table, connection| {
                let found = table.read(connection).unwrap().1;
                assert!(table.change_skew(&found, 3, 100));
            },
            |table, connection| assert!(table.remove(connection)),
            |table, connection| {
                // The same connection again, in the same slot.
                let orig = table.read(connection).unwrap().0.orig;
                assert!(table.remove(connection));
                let again = insert(table, orig, 0).unwrap();
                assert_eq!(again.slot, connection.slot);
            },
            |table, _| {
                let mut timeouts = Timeouts::default();
                timeouts.set(Timeout::UdpMultiple, 5);
                table.policies.set(0, &timeouts).unwrap();
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let table = Table::new(10, [1, 2]);
            let (tuple, remembered) = udp(&table);
            assert!(table.pass_simple(&remembered, Moment::of(at(1))));
            change(&table, table.find(&tuple, at(1)).unwrap().connection);
            let before = table.find(&tuple, at(1)).map(|found| table.read(found.connection));
            assert!(!table.pass_simple(&remembered, Moment::of(at(1))), "change {i}");
            assert_eq!(table.find(&tuple, at(1)).map(|found| table.read(found.connection)), before);
        }
    }

    #[test]
    fn helpers_see_every_packet() {
        let table = Table::new(10, [1, 2]);
        let tuple = v4([10, 0, 0, 1], 1000, [10, 9, 9, 9], 69, 17);
        insert(&table, tuple, flags::TFTP).unwrap();
        let found = || table.find(&tuple.reverse(), at(0)).unwrap();
        table.step_simple(&tuple.reverse(), &found(), at(0)).unwrap();
        assert_eq!(table.remember(&found()), None);
    }

    #[test]
    fn unanswered_udp_passes_in_its_direction() {
        let table = Table::new(10, [1, 2]);
        let tuple = v4([10, 0, 0, 1], 1000, [10, 9, 9, 9], 514, 17);
        insert(&table, tuple, 0).unwrap();
        let found = || table.find(&tuple, at(0)).unwrap();
        assert_eq!(table.remember(&found()), None, "the second packet changes the timeout");
        table.step_simple(&tuple, &found(), at(0)).unwrap();
        let remembered = table.remember(&found()).unwrap();
        assert!(table.pass_simple(&remembered, Moment::of(at(300))));
        let connection = found().connection;
        assert_eq!(table.seconds_left(connection, at(300)), Some(60));
        table.step_simple(&tuple.reverse(), &Found { reply: true, ..found() }, at(300)).unwrap();
        assert!(!table.pass_simple(&remembered, Moment::of(at(300))), "it is established now");
    }

    /// What a segment of TCP has sent is stored; windows that grow, FIN and segments outside of the windows go the long way.
    #[test]
    fn segments_within_the_windows_pass() {
        let table = Table::new(10, [1, 2]);
        let tuple = v4([10, 0, 0, 1], 1000, [10, 9, 9, 9], 80, 6);
        let connection = insert(&table, tuple, 0).unwrap();
        let segment = |flags, seq, ack, len| Segment { seq, ack, flags, window: 1000, len, scale: None };
        let found = || table.find(&tuple, at(0)).unwrap();
        let step = |reply, segment: &Segment| {
            table.step_tcp(&Found { reply, ..found() }, segment, false, at(0)).unwrap();
        };
        step(true, &segment(SYN | ACK, 100, 1, 0));
        assert_eq!(table.remember(&found()), None, "the handshake is not over");
        step(false, &segment(ACK, 1, 101, 0));
        let there = table.remember(&found()).unwrap();
        let back = table.remember(&Found { reply: true, ..found() }).unwrap();
        let now = Moment::of(at(10));
        // Asked before, nothing changes.
        let pass = |remembered: &Remembered, segment: &Segment| {
            let place = table.prefetch_slot(remembered).unwrap();
            let before = table.read(connection).unwrap();
            let may = table.pass_tcp_at::<false>(place, remembered, segment, false, &mut Deadlines::new(now));
            assert_eq!(table.read(connection).unwrap(), before);
            let passes = table.pass_tcp(remembered, segment, false, now);
            assert_eq!(may, passes);
            passes
        };
        assert!(pass(&there, &segment(ACK, 1, 101, 300)));
        assert!(pass(&back, &segment(ACK, 101, 301, 500)));
        assert_eq!(table.seconds_left(connection, at(10)), Some(24 * 60 * 60));
        let Protocol::Tcp(Ends([a, b])) = table.read(connection).unwrap().0.protocol else { panic!("TCP") };
        assert_eq!((a.sent, a.limit, b.sent, b.limit), (301, 1301, 601, 1101));
        let before = table.read(connection).unwrap();
        for (segment, why) in [
            (segment(ACK | FIN, 301, 601, 0), "FIN"),
            (segment(SYN, 301, 601, 0), "SYN"),
            (segment(0, 301, 601, 0), "no ACK"),
            (segment(ACK, 301, 601, 1001), "too much"),
            (segment(ACK, 301, 601 + 70_000, 0), "acknowledges what was not sent"),
            (Segment { window: 1001, ..segment(ACK, 301, 601, 0) }, "a larger window"),
        ] {
            assert!(!pass(&there, &segment), "{why}");
            assert_eq!(table.read(connection).unwrap(), before);
        }
        assert!(table.pass_tcp(&there, &segment(ACK, 301, 601, 1001), true, now), "liberal");
        assert!(pass(&back, &segment(ACK, 601, 1302, 0)));
        step(false, &Segment { window: 1001, ..segment(ACK, 1302, 601, 0) });
        assert!(pass(&there, &segment(ACK, 1302, 601, 0)), "a window has grown, and nothing else has changed");
        step(false, &segment(ACK | FIN, 1302, 601, 0));
        assert!(!pass(&there, &segment(ACK, 1303, 601, 0)) && !pass(&back, &segment(ACK, 601, 1303, 0)));
    }
}
