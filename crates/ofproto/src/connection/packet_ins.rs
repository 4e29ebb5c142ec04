//! Packet-ins that wait for a connection: their input ports take turns, and a rate can limit them.
//!
//! As in OVS, when there are too many, the port that has most of them loses its oldest: a port whose packets flood the
//! controller hurts itself, and what another one has to tell gets through.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use openflow::PacketIn;
use packet::{Field, Time};

/// How many packet-ins wait by default. More than in OVS (100), where those of one instant wait elsewhere before.
pub const PACKET_IN_QUEUE: usize = 256;

/// Most bytes of packets that wait.
const MAX_BYTES: usize = 4 << 20;

/// How many packet-ins a connection gets (ovs-vswitchd.conf.db(5), `controller_rate_limit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInLimit {
    /// For each second, at least one.
    pub rate: u32,
    /// At once after a pause, at least one. As many wait beyond those.
    pub burst: u32,
}

/// What one packet-in takes: a token, in parts of which a rate of one gains one each nanosecond.
const TOKEN: u64 = 1_000_000_000;

/// The packet-ins of one limit.
pub(super) struct PacketIns {
    limit: Option<TokenBucket>,
    /// Most that wait.
    most: usize,
    /// By input port, each with its number among the events of the connection.
    by_port: BTreeMap<u32, VecDeque<(u64, Box<PacketIn>)>>,
    count: usize,
    /// Of their packets, and what goes with them.
    bytes: usize,
    /// The port that had its turn last.
    last: u32,
}

struct TokenBucket {
    limit: PacketInLimit,
    /// Parts of tokens.
    parts: u64,
    /// When they were counted.
    counted: Time,
}

impl TokenBucket {
    fn most(&self) -> u64 {
        u64::from(self.limit.burst.max(1)) * TOKEN
    }

    fn refill(&mut self, now: Time) {
        let gained = (now.since(self.counted).as_nanos() as u64).saturating_mul(self.limit.rate.max(1).into());
        self.parts = self.parts.saturating_add(gained).min(self.most());
        self.counted = self.counted.max(now);
    }
}

impl PacketIns {
    /// None yet, and all the tokens that there can be. `most` wait at a time.
    pub fn new(limit: Option<PacketInLimit>, most: usize) -> PacketIns {
        let limit = limit.map(|limit| TokenBucket { limit, parts: 0, counted: Time(0) });
        let limit = limit.map(|bucket| TokenBucket { parts: bucket.most(), ..bucket });
        PacketIns { limit, most, by_port: BTreeMap::new(), count: 0, bytes: 0, last: 0 }
    }

    /// The memory that they take.
    pub fn memory(&self) -> usize {
        self.count * size_of::<PacketIn>() + self.bytes
    }

    /// Has other limits from now on. Tokens stay, as far as there may be so many. Returns how many packet-ins were dropped for it.
    #[must_use]
    pub fn set_limit(&mut self, limit: Option<PacketInLimit>, most: usize) -> usize {
        let parts = self.limit.as_ref().map_or(u64::MAX, |bucket| bucket.parts);
        let counted = self.limit.as_ref().map_or(Time(0), |bucket| bucket.counted);
        let bucket = limit.map(|limit| TokenBucket { limit, parts: 0, counted });
        self.limit = bucket.map(|bucket| TokenBucket { parts: parts.min(bucket.most()), ..bucket });
        self.most = most;
        self.make_room()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.by_port = BTreeMap::new();
        (self.count, self.bytes) = (0, 0);
    }

    /// How many wait at most.
    fn room(&self) -> usize {
        let tokens = |bucket: &TokenBucket| (bucket.most() + bucket.parts) / TOKEN;
        self.limit.as_ref().map_or(self.most, |bucket| self.most.min(tokens(bucket) as usize))
    }

    /// Adds the event with this number. Returns how many were dropped for it; it may be one of them.
    #[must_use]
    pub fn push(&mut self, number: u64, packet_in: Box<PacketIn>) -> usize {
        let (port, size) = (packet_in.metadata.key.get(Field::InPortOxm) as u32, size(&packet_in));
        self.by_port.entry(port).or_default().push_back((number, packet_in));
        self.count += 1;
        self.bytes += size;
        self.make_room()
    }

    /// Drops those that are too many.
    fn make_room(&mut self) -> usize {
        let before = self.count;
        while (self.count > self.room() || self.bytes > MAX_BYTES)
            && let Some(port) = self.by_port.iter().max_by_key(|(_, waiting)| waiting.len()).map(|(&port, _)| port)
        {
            self.remove(port);
        }
        before - self.count
    }

    /// The number of the packet-in whose turn it is, if one may be sent.
    pub fn next(&mut self, now: Time) -> Option<u64> {
        if let Some(bucket) = &mut self.limit {
            bucket.refill(now);
            if bucket.parts < TOKEN {
                return None;
            }
        }
        let (_, waiting) = self.by_port.get_key_value(&self.next_port()?)?;
        waiting.front().map(|&(number, _)| number)
    }

    /// Takes the packet-in whose turn it is.
    pub fn take(&mut self) -> Option<Box<PacketIn>> {
        self.last = self.next_port()?;
        if let Some(bucket) = &mut self.limit {
            bucket.parts = bucket.parts.saturating_sub(TOKEN);
        }
        self.remove(self.last)
    }

    /// When the next one may be sent that waits for a token.
    pub fn due(&self) -> Option<Time> {
        let bucket = self.limit.as_ref().filter(|_| self.count > 0)?;
        let lacks = TOKEN.saturating_sub(bucket.parts);
        Some(bucket.counted + Duration::from_nanos(lacks.div_ceil(bucket.limit.rate.max(1).into())))
    }

    fn next_port(&self) -> Option<u32> {
        let after = self.by_port.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        after.or_else(|| self.by_port.first_key_value()).map(|(&port, _)| port)
    }

    /// Removes the oldest of a port.
    fn remove(&mut self, port: u32) -> Option<Box<PacketIn>> {
        let waiting = self.by_port.get_mut(&port)?;
        let (_, packet_in) = waiting.pop_front()?;
        if waiting.is_empty() {
            self.by_port.remove(&port);
        }
        self.count -= 1;
        self.bytes -= size(&packet_in);
        Some(packet_in)
    }
}

/// What a packet-in holds beside itself.
fn size(packet_in: &PacketIn) -> usize {
    packet_in.data.len() + packet_in.userdata.len() + packet_in.continuation.len()
}

#[cfg(test)]
mod tests {
    use openflow::{Match, PacketInFormat, PacketInReason, TableId};

    use super::*;

    fn packet_in(port: u32) -> Box<PacketIn> {
        let mut metadata = Match::any();
        metadata.set(Field::InPortOxm, port.into());
        Box::new(PacketIn {
            format: PacketInFormat::Standard,
            buffer_id: None,
            total_len: 0,
            reason: PacketInReason::Action,
            table: TableId(0),
            cookie: None,
            metadata,
            data: Vec::new(),
            userdata: Vec::new(),
            continuation: Vec::new(),
        })
    }

    /// Numbers of those that may be sent now.
    fn taken(packet_ins: &mut PacketIns, now: Time) -> Vec<u64> {
        std::iter::from_fn(|| {
            let number = packet_ins.next(now)?;
            packet_ins.take().map(|_| number)
        })
        .collect()
    }

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn a_port_that_floods_hurts_itself() {
        let mut packet_ins = PacketIns::new(None, PACKET_IN_QUEUE);
        let many = 3 * PACKET_IN_QUEUE as u64;
        for number in 0..many {
            let port = if number == 7 { 2 } else { 1 };
            assert_eq!(packet_ins.push(number, packet_in(port)), usize::from(number >= PACKET_IN_QUEUE as u64));
        }
        let taken = taken(&mut packet_ins, at(0));
        let rest = many - PACKET_IN_QUEUE as u64 + 1..many;
        assert!(taken.iter().copied().eq([rest.start, 7].into_iter().chain(rest.skip(1))), "{taken:?}");
        assert_eq!(packet_ins.due(), None);
    }

    #[test]
    fn no_more_wait_than_the_queue_has_room_for() {
        for most in [1, 5, 512] {
            let mut packet_ins = PacketIns::new(None, most);
            let dropped: usize = (0..600).map(|number| packet_ins.push(number, packet_in(1))).sum();
            assert_eq!((dropped, packet_ins.count), (600 - most, most));
        }
    }

    #[test]
    fn limits_change_while_packets_wait() {
        let mut packet_ins = PacketIns::new(None, 100);
        (0..50).for_each(|number| assert_eq!(packet_ins.push(number, packet_in(1)), 0));
        assert_eq!(packet_ins.set_limit(None, 40), 10);
        // Two tokens, and two that wait for more.
        assert_eq!(packet_ins.set_limit(Some(PacketInLimit { rate: 10, burst: 2 }), 40), 36);
        assert_eq!(taken(&mut packet_ins, at(0)), [46, 47]);
        // Tokens that are used do not come back with another limit.
        assert_eq!(packet_ins.set_limit(Some(PacketInLimit { rate: 20, burst: 4 }), 40), 0);
        assert_eq!(taken(&mut packet_ins, at(0)), [0; 0]);
        assert_eq!(taken(&mut packet_ins, at(50)), [48]);
        assert_eq!(packet_ins.set_limit(None, 40), 0);
        assert_eq!(taken(&mut packet_ins, at(50)), [49]);
    }

    #[test]
    fn large_packets_take_no_more_memory_than_there_is_for_them() {
        let mut packet_ins = PacketIns::new(None, PACKET_IN_QUEUE);
        let dropped = |packet_ins: &mut PacketIns, number, size| {
            packet_ins.push(number, Box::new(PacketIn { data: vec![0; size], ..*packet_in(1) }))
        };
        let sizes = [MAX_BYTES / 2, MAX_BYTES / 2, 1, MAX_BYTES, MAX_BYTES + 1, 1];
        let dropped: Vec<_> = (0..).zip(sizes).map(|(number, size)| dropped(&mut packet_ins, number, size)).collect();
        assert_eq!(dropped, [0, 0, 1, 2, 2, 0]);
        assert_eq!((taken(&mut packet_ins, at(0)), packet_ins.bytes), (vec![5], 0));
    }

    #[test]
    fn ports_take_turns() {
        let mut packet_ins = PacketIns::new(None, PACKET_IN_QUEUE);
        for (number, port) in [1, 1, 1, u32::MAX, u32::MAX, 5].into_iter().enumerate() {
            assert_eq!(packet_ins.push(number as u64, packet_in(port)), 0);
        }
        assert_eq!(taken(&mut packet_ins, at(0)), [0, 5, 3, 1, 4, 2]);
    }

    #[test]
    fn a_rate_is_kept_to() {
        let mut packet_ins = PacketIns::new(Some(PacketInLimit { rate: 100, burst: 3 }), PACKET_IN_QUEUE);
        let dropped: usize = (0..10).map(|number| packet_ins.push(number, packet_in(1))).sum();
        assert_eq!(dropped, 4, "three are sent, and as many wait");
        assert_eq!(taken(&mut packet_ins, at(1000)), [4, 5, 6]);
        assert_eq!(packet_ins.due(), Some(at(1010)));
        assert_eq!(taken(&mut packet_ins, at(1009)), [0; 0]);
        assert_eq!(packet_ins.due(), Some(at(1010)));
        assert_eq!(taken(&mut packet_ins, at(1010)), [7]);
        // Time that goes back gives nothing, and a long pause no more than a burst.
        assert_eq!(taken(&mut packet_ins, at(500)), [0; 0]);
        assert_eq!(taken(&mut packet_ins, at(1_000_000_000)), [8, 9]);
        let dropped: usize = (10..20).map(|number| packet_ins.push(number, packet_in(1))).sum();
        assert_eq!(dropped, 10 - 3 - 1, "one token is left");
    }
}
