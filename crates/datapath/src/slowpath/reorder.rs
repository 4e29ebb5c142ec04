//! The reorder guard: the connections with packets in the slow path (see `slowpath/queue.rs`), and the packets that
//! must not overtake those.
//!
//! It is a hash table with linear probing, by connection hash, with at least twice as many slots as packets can be in
//! the slow path. Two connections are confused only if all 32 bits of their hashes are equal. The packets that wait
//! for a connection are a linked list in its slot, in order.
//!
//! The table is as large as the slow path is deep, and each packet of a port that has some there is looked for in it. Most
//! are not in it, and a small table of how many connections there are with some bits of a hash says so without a look at
//! the large one, which is in no near cache.

use crate::pipeline::recirculation::RecirculatedPacket;

/// A slot of the table.
#[derive(Clone, Copy)]
struct Connection {
    connection: u32,
    /// How many of its packets are in the slow path. Zero: the slot is free.
    up: u32,
    /// The channel that they have gone by.
    channel: u8,
    /// The first and the last packet that wait for them.
    first: u32,
    last: u32,
}

const EMPTY: Connection = Connection { connection: 0, up: 0, channel: 0, first: NONE, last: NONE };

/// No packet.
const NONE: u32 = u32::MAX;

/// A waiting packet, or a free element.
struct Waiting {
    packet: Option<RecirculatedPacket>,
    /// The next packet of the connection, or the next free element.
    next: u32,
}

/// Of so many buckets, the highest bits of a hash select one.
const BUCKETS: usize = 2048;

/// The connections with packets in the slow path.
pub struct ReorderGuard {
    /// How many of them there are for each [`bucket`](bucket_of) of hashes.
    buckets: Box<[u32; BUCKETS]>,
    slots: Box<[Connection]>,
    waiting: Vec<Waiting>,
    free: u32,
}

impl ReorderGuard {
    /// A guard for at most `max_up` packets in the slow path.
    pub fn new(max_up: usize) -> ReorderGuard {
        let slots = vec![EMPTY; (2 * max_up).next_power_of_two().max(2)].into();
        ReorderGuard { buckets: Box::new([0; BUCKETS]), slots, waiting: Vec::new(), free: NONE }
    }

    /// The slot of a connection, or the free one where it belongs.
    fn slot_of(&self, connection: u32) -> usize {
        let mut at = connection as usize & (self.slots.len() - 1);
        while self.slots[at].up != 0 && self.slots[at].connection != connection {
            at = self.next_slot(at);
        }
        at
    }

    fn next_slot(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// Whether a packet of this connection has to wait: an earlier one is in the slow path, and this one has a flow,
    /// so it would overtake that one, or others wait already, which it would overtake.
    pub fn has_to_wait(&self, connection: u32, has_flow: bool) -> bool {
        if self.buckets[bucket_of(connection)] == 0 {
            return false;
        }
        let slot = &self.slots[self.slot_of(connection)];
        slot.up != 0 && (has_flow || slot.first != NONE)
    }

    /// Records that a packet goes to the slow path. There must be room for it. Returns the channel that it goes by: that
    /// of the packets before it, or else `channel`.
    pub fn add(&mut self, connection: u32, channel: u8) -> u8 {
        let at = self.slot_of(connection);
        let slot = &mut self.slots[at];
        if slot.up == 0 {
            (slot.connection, slot.channel) = (connection, channel);
            self.buckets[bucket_of(connection)] += 1;
        }
        slot.up += 1;
        slot.channel
    }

    /// Appends a packet to those that wait for the connection. At least one of its packets must be in the slow path.
    pub fn wait(&mut self, connection: u32, packet: RecirculatedPacket) {
        let waiting = Waiting { packet: Some(packet), next: NONE };
        let new = match self.waiting.get_mut(self.free as usize) {
            Some(place) => std::mem::replace(&mut self.free, std::mem::replace(place, waiting).next),
            None => {
                self.waiting.push(waiting);
                self.waiting.len() as u32 - 1
            }
        };
        let slot = self.slot_of(connection);
        let slot = &mut self.slots[slot];
        debug_assert!(slot.up > 0);
        let last = std::mem::replace(&mut slot.last, new);
        match self.waiting.get_mut(last as usize) {
            Some(last) => last.next = new,
            None => slot.first = new,
        }
    }

    /// Records that a packet is back from the slow path. If it was the connection's last one there, passes the
    /// packets that have waited to `release`, in order.
    pub fn remove(&mut self, connection: u32, mut release: impl FnMut(RecirculatedPacket)) {
        let at = self.slot_of(connection);
        let slot = &mut self.slots[at];
        debug_assert!(slot.up > 0);
        slot.up -= 1;
        if slot.up > 0 {
            return;
        }
        let mut next = slot.first;
        self.buckets[bucket_of(connection)] -= 1;
        self.remove_slot(at);
        while let Some(place) = self.waiting.get_mut(next as usize) {
            place.packet.take().into_iter().for_each(&mut release);
            let at = std::mem::replace(&mut next, place.next);
            place.next = std::mem::replace(&mut self.free, at);
        }
    }

    /// Frees a slot, and moves those entries behind it that would not be found any more (Knuth, "The Art of Computer
    /// Programming", 6.4, algorithm R).
    fn remove_slot(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            self.slots[hole] = EMPTY;
            loop {
                at = self.next_slot(at);
                if self.slots[at].up == 0 {
                    return;
                }
                let home = self.slots[at].connection as usize & mask;
                // The probe sequence of this entry passes the free slot.
                if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                    break;
                }
            }
            self.slots[hole] = self.slots[at];
            hole = at;
        }
    }
}

/// The bucket of a connection: by bits that do not say where it is in the table.
fn bucket_of(connection: u32) -> usize {
    connection as usize >> (u32::BITS - BUCKETS.ilog2())
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use packet::{Key, Packet};
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::metadata::OwnMetadata;

    fn packet(number: u32) -> RecirculatedPacket {
        let packet = Packet::from_slice(&number.to_be_bytes());
        RecirculatedPacket {
            packet,
            metadata: OwnMetadata::of(&Key::new(), &mut Vec::new()),
            pass: crate::pipeline::recirculation::Pass::FIRST,
            counted: false,
        }
    }

    const MAX_UP: usize = 12;

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Add(u32),
        Wait(u32),
        Remove(u32),
    }

    fn event() -> impl Strategy<Value = Event> {
        // Many connections have the same first slot, among them the last slot, from which probing continues at the
        // first one.
        let connection = prop_oneof![0..6u32, (0..4u32).prop_map(|n| n << 5 | 31), (0..4u32).prop_map(|n| n << 5)];
        (0..3, connection).prop_map(|(what, connection)| match what {
            0 => Event::Add(connection),
            1 => Event::Wait(connection),
            _ => Event::Remove(connection),
        })
    }

    proptest! {
        #[test]
        fn as_a_map_of_queues(steps in proptest::collection::vec(event(), 1..if cfg!(miri) { 50 } else { 200 })) {
            let mut connections = ReorderGuard::new(MAX_UP);
            let mut plain: HashMap<u32, (u32, VecDeque<u32>)> = HashMap::new();
            let mut channels: HashMap<u32, u8> = HashMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u32;
                let used = plain.values().map(|(up, waiting)| *up as usize + waiting.len()).sum::<usize>();
                match step {
                    Event::Add(connection) if used < MAX_UP => {
                        let channel = connections.add(connection, number as u8);
                        let (up, _) = plain.entry(connection).or_default();
                        let of_connection = *channels.entry(connection).or_insert(channel);
                        prop_assert_eq!(channel, if *up == 0 { number as u8 } else { of_connection });
                        channels.insert(connection, channel);
                        *up += 1;
                    }
                    Event::Wait(connection) if used < MAX_UP && plain.contains_key(&connection) => {
                        connections.wait(connection, packet(number));
                        plain.get_mut(&connection).unwrap().1.push_back(number);
                    }
                    Event::Remove(connection) if plain.contains_key(&connection) => {
                        let mut released = Vec::new();
                        connections.remove(connection, |waited| {
                            released.push(u32::from_be_bytes(waited.packet.data().try_into().unwrap()));
                        });
                        let (up, _) = plain.get_mut(&connection).unwrap();
                        *up -= 1;
                        let expected = if *up == 0 { plain.remove(&connection).unwrap().1 } else { VecDeque::new() };
                        prop_assert_eq!(released, Vec::from(expected));
                    }
                    _ => {}
                }
                for connection in (0..6).chain((0..4).flat_map(|n| [n << 5 | 31, n << 5])) {
                    let known = plain.get(&connection);
                    prop_assert_eq!(connections.has_to_wait(connection, true), known.is_some());
                    let has_waiting = known.is_some_and(|(_, waiting)| !waiting.is_empty());
                    prop_assert_eq!(connections.has_to_wait(connection, false), has_waiting);
                }
            }
        }
    }

    #[test]
    fn places_are_used_again() {
        let mut connections = ReorderGuard::new(3);
        for _ in 0..5 {
            connections.add(7, 0);
            (0..3).for_each(|n| connections.wait(7, packet(n)));
            let mut released = 0;
            connections.remove(7, |_| released += 1);
            assert_eq!((released, connections.waiting.len()), (3, 3));
        }
    }
}
