//! Stage 3, miss: packets that no flow matches, on their way to the slow path and back.
//!
//! Each worker has channels to handler threads ([`channel`](super::channel)): queues up to the handlers, and one back
//! down. Every packet that goes up comes down, so the worker alone counts and bounds what is outstanding, without
//! atomics. Where there are several handlers, a packet's connection says by which channel it goes.
//!
//! *Fairness.* An input port may have at most half as many packets outstanding as there are free places, and half as
//! many bytes. So however many ports flood, there is room for a packet of a quiet one. The handler serves the ports in
//! turn ([`round_robin`](super::round_robin)): a packet of a quiet port waits for one packet of each other port, not for
//! all of theirs. What a flood costs the worker itself is bounded by [`fairness`](crate::worker::fairness).
//!
//! *Depth.* A port that had nothing outstanding can send a burst, for which the queue is deep. A port that fills its
//! share *floods*: until nothing of it is outstanding any more, it has at most [`FLOOD`] packets there. More would not
//! get more of them through, and their keys and frames would not stay in the processor's caches.
//!
//! *Buffers.* Packets in the slow path keep others from using their buffers, which ports share. So they may keep no more
//! than [`KEPT_BYTES`] of these. Further packets are copied to buffers on the heap, which are as large as they need.
//!
//! *Order.* While a packet is in the slow path, later packets of its connection must not overtake it, even if a flow
//! for them has been installed meanwhile. The [reorder guard](super::reorder) knows the connections with packets in
//! the slow path. Later packets of these that have a flow wait at the worker until all earlier ones are back. They
//! stay there, so the slow path catches up with a connection however fast it is. The same holds in a batch in which
//! an earlier packet of the connection misses (`hold_back` in `pipeline/forward.rs`). Ports with nothing outstanding
//! do not pay for any of this.
//!
//! A returned packet carries its actions. So no change of its flow can send it up again, behind later packets.
//! Packets that have waited are classified again. Each of them says whether a flow has counted it already: that flow
//! may be gone by then, and neither another one nor the slow path counts the packet again. A packet that has to wait
//! and finds no room was counted by its flow before it is dropped, as one that an output port drops.

use std::sync::Arc;

use packet::buffer::heap::{self, HEAP};
use packet::flow::extract::Layers;
use packet::{Key, Packet};

use crate::action::{PortNo, Punt};
use crate::classify::bits;
use crate::drop::DropReason;
use crate::pipeline::recirculation::{Pass, RecirculatedPacket, Recirculation};
use crate::pipeline::tx::Outputs;
use crate::slowpath::channel::{
    CHANNELS, Channels, Charge, Notifier, Outstanding, Returned, ServingHandlers, ToHandler, port_index,
};
use crate::slowpath::reorder::ReorderGuard;
use crate::slowpath::return_queue::Cursor;
use crate::sync::tsc;

/// Most outstanding packets of a port that floods.
pub const FLOOD: usize = 512;

/// Samples have one of so many parts of their port's share.
const SAMPLES: usize = 4;
/// Samples for which handlers are woken before it is time.
const SAMPLES_AT_ONCE: usize = 32;

/// Most bytes of ports' buffers that outstanding packets of one worker keep.
pub const KEPT_BYTES: usize = 4 << 20;

/// Most bytes that the outstanding packets of one worker take, for each of its queue's places, and at least.
const BYTES_PER_PLACE: usize = 2048;
const MIN_BYTES: usize = 1 << 20;

/// Most keys that are kept for reuse.
const SPARE_KEYS: usize = 2048;

/// The worker's end.
pub struct MissQueue {
    channels: Channels,
    /// Wake the handlers that serve them.
    notifiers: [Arc<Notifier>; CHANNELS],
    /// How many of them are used: no more than there are handlers.
    used: usize,
    /// Most packets that may be outstanding.
    places: usize,
    /// Which of them is next to have what came down taken.
    returned: Cursor,
    /// Packets that are in the slow path, or wait for such packets.
    outstanding: Load,
    /// The same by input port.
    by_port: Vec<PortLoad>,
    /// Bytes of ports' buffers that they keep.
    kept: usize,
    /// The connections of these packets, except for punted ones.
    connections: ReorderGuard,
    /// Keys of packets that have come back, for reuse.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    spare: Vec<Box<Key>>,
    /// All packets that have missed, including those for which there was no room.
    pub missed: u64,
    /// Whether it is measured how long answers take.
    pub measures: bool,
    /// The channels by which something was sent up since their handlers were notified, as a set.
    notify_pending: u32,
    /// The same of samples, for which no handler is woken at once, and how many these are.
    samples_pending: (u32, usize),
}

/// Packets, and what they take.
#[derive(Clone, Copy, Default)]
struct Load {
    packets: usize,
    bytes: usize,
}

impl Load {
    fn add(&mut self, charge: Charge) {
        self.packets += 1;
        self.bytes += charge.bytes as usize;
    }

    fn remove(&mut self, charge: Charge) {
        self.packets -= 1;
        self.bytes -= charge.bytes as usize;
    }
}

/// The buffer in which there is room for a packet.
#[derive(Clone, Copy)]
enum Room {
    /// Its own.
    AsItIs,
    /// One of the heap.
    ForCopy,
}

/// What is outstanding of a port.
#[derive(Clone, Copy, Default)]
struct PortLoad {
    load: Load,
    /// How many of these packets others may have to wait for: all but those that were punted.
    guarded: usize,
    /// Whether it has filled its share since nothing of it was outstanding.
    floods: bool,
}

impl MissQueue {
    /// The worker's end of its channels, for at most so many outstanding packets.
    pub fn new(channels: Channels, serving: ServingHandlers, places: usize) -> MissQueue {
        let places = places.max(2);
        let connections = ReorderGuard::new(places);
        let ServingHandlers { notifiers, used } = serving;
        MissQueue {
            channels,
            notifiers,
            used,
            places,
            returned: Cursor::default(),
            outstanding: Load::default(),
            by_port: Vec::new(),
            kept: 0,
            connections,
            spare: Vec::new(),
            missed: 0,
            measures: false,
            notify_pending: 0,
            samples_pending: (0, 0),
        }
    }

    /// Whether packets from this port are outstanding that later ones of their connections have to wait for.
    #[inline(always)]
    pub fn has_guarded(&self, in_port: PortNo) -> bool {
        self.outstanding.packets != 0 && self.of_port(in_port).guarded != 0
    }

    /// Whether packets from this port are outstanding.
    pub fn has_outstanding(&self, in_port: PortNo) -> bool {
        self.outstanding.packets != 0 && self.of_port(in_port).load.packets != 0
    }

    /// Whether no packet is outstanding.
    pub fn is_empty(&self) -> bool {
        self.outstanding.packets == 0
    }

    /// Whether a packet of this connection has to wait for earlier ones. `has_flow`: it has a flow.
    pub fn has_to_wait(&self, connection: u32, has_flow: bool) -> bool {
        self.connections.has_to_wait(connection, has_flow)
    }

    /// Lets a packet wait that has to. Returns it where the port has no room left.
    pub fn wait(&mut self, connection: u32, mut packet: RecirculatedPacket) -> Result<(), Packet> {
        let in_port = packet.metadata.in_port();
        packet.packet = self.admit(in_port, packet.packet)?;
        self.by_port[port_index(in_port)].guarded += 1;
        self.connections.wait(connection, packet);
        Ok(())
    }

    fn of_port(&self, in_port: PortNo) -> PortLoad {
        self.by_port.get(port_index(in_port)).copied().unwrap_or_default()
    }

    /// Whether the port has room for this packet.
    #[inline]
    pub fn has_room(&mut self, in_port: PortNo, packet: &Packet) -> bool {
        self.find_room(in_port, packet).is_some()
    }

    /// Finds room for a packet of this port, if there is any.
    #[inline]
    fn find_room(&mut self, in_port: PortNo, packet: &Packet) -> Option<Room> {
        let at = port_index(in_port);
        if self.by_port.len() <= at {
            self.by_port.resize(at + 1, PortLoad::default());
        }
        let PortLoad { load, floods, .. } = self.by_port[at];
        if load.packets >= self.share(floods) {
            self.by_port[at].floods = true;
            return None;
        }
        let charge = Charge::of(packet);
        let copied = charge.kept && self.kept + charge.bytes as usize > KEPT_BYTES;
        let bytes = if copied { heap::HEADROOM + packet.len() } else { charge.bytes as usize };
        let free = (self.places * BYTES_PER_PLACE).max(MIN_BYTES).saturating_sub(self.outstanding.bytes);
        (load.bytes + bytes <= free.div_ceil(2)).then_some(if copied { Room::ForCopy } else { Room::AsItIs })
    }

    /// How many packets of a port may be outstanding.
    #[inline]
    fn share(&self, floods: bool) -> usize {
        let free = self.places.saturating_sub(self.outstanding.packets);
        free.div_ceil(2).min(if floods { FLOOD } else { usize::MAX })
    }

    /// Whether a sample of a packet of this port may go up. Samples have a part of the port's share, so that however many
    /// are asked for, packets that have no flow find room.
    pub fn has_room_for_sample(&self, in_port: PortNo, packet: &Packet) -> bool {
        let PortLoad { load, floods, .. } = self.of_port(in_port);
        let bytes = (self.places * BYTES_PER_PLACE).max(MIN_BYTES).saturating_sub(self.outstanding.bytes);
        let (most, most_bytes) = ((self.share(floods) / SAMPLES).max(1), bytes / 2 / SAMPLES);
        load.packets < most && load.bytes + packet.len() <= most_bytes
    }

    /// Counts one more packet from this port as outstanding, and puts it into the buffer in which it may be. Returns it
    /// where the port has no room left.
    fn admit(&mut self, in_port: PortNo, packet: Packet) -> Result<Packet, Packet> {
        let Some(room) = self.find_room(in_port, &packet) else { return Err(packet) };
        let packet = match room {
            Room::AsItIs => packet,
            Room::ForCopy => packet.duplicate_in(&HEAP).ok_or(packet)?,
        };
        let charge = Charge::of(&packet);
        self.by_port[port_index(in_port)].load.add(charge);
        self.outstanding.add(charge);
        self.kept += charge.kept_bytes();
        Ok(packet)
    }

    /// Sends a missed packet up. `counted`: a flow has counted it. Returns it where the port has no room left.
    #[allow(clippy::too_many_arguments, reason = "what the fast path knows about a packet")]
    pub fn miss(
        &mut self,
        packet: Packet,
        key: &Key,
        layers: Layers,
        hash: u64,
        pass: Pass,
        connection: u32,
        counted: bool,
    ) -> Result<(), Packet> {
        let in_port = crate::upcall::in_port(key);
        let packet = self.admit(in_port, packet)?;
        self.by_port[port_index(in_port)].guarded += 1;
        let key = self.own(key);
        let channel = self.connections.add(connection, self.channel_of(connection));
        let sent_at = if self.measures { tsc::cycles() } else { 0 };
        let miss = Outstanding { packet, key, layers, hash, pass, connection, counted, sent_at };
        self.send_up(channel, ToHandler::Miss(miss));
        Ok(())
    }

    /// Whether all packets go by one channel, whatever their connection is.
    pub fn has_one_channel(&self) -> bool {
        self.used == 1
    }

    /// Sends a punted packet up; drops it where the port has no room left.
    pub fn punt(&mut self, packet: Packet, key: &Key, punt: Arc<Punt>, connection: u32, outputs: &Outputs) {
        let in_port = crate::upcall::in_port(key);
        if punt.is_sample() && !self.has_room_for_sample(in_port, &packet) {
            return outputs.retire_one(packet, DropReason::SampleLost, in_port);
        }
        match self.admit(in_port, packet) {
            Ok(packet) => {
                let (key, channel, is_sample) = (self.own(key), self.channel_of(connection), punt.is_sample());
                self.channels[usize::from(channel)].up.push(ToHandler::Punt { packet, key, punt });
                if is_sample {
                    self.samples_pending = (self.samples_pending.0 | 1 << channel, self.samples_pending.1 + 1);
                }
                if !is_sample {
                    self.notify_pending |= 1 << channel;
                } else if self.samples_pending.1 >= SAMPLES_AT_ONCE {
                    self.notify_pending |= self.samples_pending.0;
                }
            }
            Err(packet) => outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port),
        }
    }

    /// An allocated copy of a key.
    fn own(&mut self, key: &Key) -> Box<Key> {
        let mut own = self.spare.pop().unwrap_or_default();
        Key::clone_from(&mut own, key);
        own
    }

    /// The channel for a connection of which nothing is in the slow path. The lower bits of its hash are those by
    /// which the reorder guard finds it.
    fn channel_of(&self, connection: u32) -> u8 {
        ((connection >> 16) as usize % self.used) as u8
    }

    fn send_up(&mut self, channel: u8, item: ToHandler) {
        self.channels[usize::from(channel)].up.push(item);
        self.notify_pending |= 1 << channel;
    }

    /// Keys for reuse, of packets that have come back.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    pub fn spare_keys(&mut self) -> &mut Vec<Box<Key>> {
        &mut self.spare
    }

    /// Keeps the key of a packet that has come back for reuse.
    pub fn reuse(&mut self, key: Box<Key>) {
        if self.spare.len() < SPARE_KEYS {
            self.spare.push(key);
        }
    }

    /// Sets the handlers that serve the channels from now on. They are woken, since this worker may have woken the
    /// former ones last. A connection with packets in the slow path stays with its channel.
    pub fn set_handlers(&mut self, serving: ServingHandlers) {
        (self.notifiers, self.used) = (serving.notifiers, serving.used);
        self.notifiers.iter().for_each(|notifier| notifier.notify());
    }

    /// Whether this handler is woken for a channel.
    #[cfg(test)]
    pub fn notifies(&self, channel: usize, notifier: &Arc<Notifier>) -> bool {
        Arc::ptr_eq(&self.notifiers[channel], notifier)
    }

    /// Wakes the handlers to which something was sent up since they were notified.
    #[inline]
    pub fn notify(&mut self) {
        if self.notify_pending != 0 {
            self.wake(self.notify_pending);
        }
    }

    /// Wakes the handlers that have not been told of samples, which is to be done now and then. To wake a thread takes as long as hundreds of packets, and
    /// nobody waits for a sample.
    #[inline]
    pub fn notify_of_samples(&mut self) {
        if self.samples_pending.0 != 0 {
            self.wake(self.samples_pending.0);
        }
    }

    fn wake(&mut self, channels: u32) {
        self.notify_pending &= !channels;
        self.samples_pending.0 &= !channels;
        if self.samples_pending.0 == 0 {
            self.samples_pending.1 = 0;
        }
        bits(channels).for_each(|channel| self.notifiers[channel].notify());
    }

    /// Takes the next item that came down. Packets that have waited for it are appended to `again`.
    pub fn take_returned(&mut self, again: &mut Recirculation) -> Option<Returned> {
        let MissQueue { channels, returned, outstanding, by_port, kept, connections, spare, .. } = self;
        let returned = channels[0].down.pop(returned)?;
        let mut discharge = |in_port, charge: Charge, guarded: bool| {
            outstanding.remove(charge);
            *kept -= charge.kept_bytes();
            let of_port = &mut by_port[port_index(in_port)];
            of_port.load.remove(charge);
            of_port.guarded -= usize::from(guarded);
            of_port.floods &= of_port.load.packets > 0;
        };
        discharge(returned.in_port, returned.charge, returned.connection.is_some());
        if let Some(connection) = returned.connection {
            connections.remove(connection, |packet| {
                discharge(packet.metadata.in_port(), Charge::of(&packet.packet), true);
                spare.extend(again.push_packet(packet));
            });
        }
        Some(returned)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use packet::buffer::pool::{Pool, PoolConfig};

    use super::*;
    use crate::slowpath::channel::{Answer, Answered, Channel, ReturnedItem};
    use crate::worker::waker::Waker;

    const PLACES: usize = 1 << 14;

    fn serving(used: usize) -> ServingHandlers {
        ServingHandlers { notifiers: Default::default(), used }
    }

    /// A queue, and its other end.
    fn queue() -> (MissQueue, Channels) {
        let channels = Channel::all(&Arc::new(Waker::default()));
        (MissQueue::new(channels.clone(), serving(1), PLACES), channels)
    }

    /// Whether there is room for a packet of a port to miss.
    fn miss(queue: &mut MissQueue, in_port: u32, connection: u32, packet: Packet) -> bool {
        let mut key = Key::new();
        key.common_mut().in_port = in_port.into();
        queue.miss(packet, &key, Layers::EMPTY, 0, Pass::FIRST, connection, false).is_ok()
    }

    /// How many packets miss one after the other before one finds no room.
    fn fill(queue: &mut MissQueue, in_port: u32, packet: impl Fn() -> Packet) -> usize {
        (0..).take_while(|&connection| miss(queue, in_port, connection, packet())).count()
    }

    #[test]
    fn no_handler_is_woken_for_each_sample() {
        let (mut queue, channels) = queue();
        let outputs =
            Outputs::new(0, std::time::Duration::ZERO, Default::default(), Arc::new(crate::bond::Bonds::new(1)));
        let sample = Arc::new(Punt::Sflow(crate::action::SflowPunt {
            bridge: 0,
            vlan_tci: 0,
            output: 0,
            tunnel: None,
            mpls: Vec::new(),
        }));
        let punt = |queue: &mut MissQueue, punt: &Arc<Punt>| {
            queue.punt(Packet::from_slice(&[0; 60]), &Key::new(), punt.clone(), 0, &outputs);
        };
        for _ in 1..SAMPLES_AT_ONCE {
            punt(&mut queue, &sample);
        }
        assert_eq!((queue.notify_pending, queue.samples_pending), (0, (1, SAMPLES_AT_ONCE - 1)));
        punt(&mut queue, &sample);
        assert_eq!(queue.notify_pending, 1, "there are many");
        queue.notify();
        assert_eq!((queue.notify_pending, queue.samples_pending), (0, (0, 0)));
        punt(&mut queue, &sample);
        queue.notify_of_samples();
        assert_eq!((queue.notify_pending, queue.samples_pending), (0, (0, 0)));
        // Who waits for an answer is served at once, and samples with it.
        punt(&mut queue, &sample);
        assert!(miss(&mut queue, 1, 0, Packet::from_slice(&[0; 60])));
        assert_eq!(queue.notify_pending, 1);
        queue.notify();
        assert_eq!((queue.notify_pending, queue.samples_pending), (0, (0, 0)));
        // Nobody waits behind a sample: the miss is from another port.
        assert!(queue.has_outstanding(PortNo(0)) && !queue.has_guarded(PortNo(0)) && queue.has_guarded(PortNo(1)));
        drop(channels);
    }

    /// Answers the first packet of a channel, and takes it back.
    fn answer(queue: &mut MissQueue, channel: &Channel) -> Option<Packet> {
        let ToHandler::Miss(miss) = channel.up.pop()? else { panic!("nothing was punted") };
        let Outstanding { packet, key, layers, pass, connection, .. } = miss;
        let (in_port, charge) = (crate::upcall::in_port(&key), Charge::of(&packet));
        let answered = Answered { packet, key, layers, pass, answer: Answer::Drop(DropReason::Rule), sent_at: 0 };
        let what = ReturnedItem::Answered(answered);
        channel.send_down(Returned { in_port, connection: Some(connection), charge, what });
        match queue.take_returned(&mut Recirculation::default())?.what {
            ReturnedItem::Answered(answered) => Some(answered.packet),
            ReturnedItem::Punted(_) => None,
        }
    }

    fn small() -> Packet {
        Packet::from_slice(&[0; 60])
    }

    #[test]
    fn a_burst_finds_room_and_a_flood_does_not_keep_it() {
        let (mut queue, channels) = queue();
        let burst = fill(&mut queue, 1, small);
        assert_eq!(burst, PLACES.div_ceil(3), "a third: half of what is free then");
        assert_eq!(fill(&mut queue, 2, small), (PLACES - burst).div_ceil(3), "another port has a burst as well");
        // From now on both flood, and their share is small, but that of a third port is not.
        while queue.of_port(PortNo(1)).load.packets > FLOOD {
            assert!(!miss(&mut queue, 1, 0, small()) && !miss(&mut queue, 2, 0, small()));
            assert!(answer(&mut queue, &channels[0]).is_some());
        }
        assert!(fill(&mut queue, 3, small) > 2 * FLOOD);
        // Nothing is outstanding any more.
        while answer(&mut queue, &channels[0]).is_some() {}
        assert!(queue.is_empty() && queue.kept == 0 && queue.outstanding.bytes == 0);
        assert_eq!(fill(&mut queue, 1, small), burst, "the next burst");
    }

    #[test]
    fn samples_leave_room_for_packets_that_miss() {
        let sample = |queue: &MissQueue, port: u32| queue.has_room_for_sample(PortNo(port), &small());
        let (mut only_samples, _channels) = queue();
        let taken = (0..).take_while(|&n| sample(&only_samples, 1) && miss(&mut only_samples, 1, n, small())).count();
        assert!((PLACES / 10..PLACES / 4).contains(&taken), "{taken}");
        let misses = fill(&mut only_samples, 1, small);
        assert!(misses > PLACES / 6, "{misses} besides {taken} samples");
        // In a flood there are samples of the port again when less of it waits, and of others all the time.
        assert!(!sample(&only_samples, 1) && sample(&only_samples, 2));
        // Even the smallest queue takes one.
        let channels = Channel::all(&Arc::new(Waker::default()));
        let mut smallest = MissQueue::new(channels, serving(1), 2);
        assert!(sample(&smallest, 1) && miss(&mut smallest, 1, 0, small()) && !sample(&smallest, 1));
    }

    /// Buffers that ports share, each for a whole super-frame.
    fn large_buffers() -> &'static Pool {
        Pool::new(PoolConfig { chunks: 256, chunk_size: 128 << 10, headroom: 256 }).unwrap()
    }

    #[test]
    fn waiting_frames_keep_few_of_the_buffers_that_ports_share() {
        let (pool, (mut queue, channels)) = (large_buffers(), queue());
        let frame = |n: u8| {
            let mut packet = pool.allocate().unwrap();
            packet.push_back(2000).unwrap().fill(n);
            *packet.offload_mut() = packet::Offload { gso_size: n.into(), ..packet::Offload::NONE };
            packet
        };
        for n in 0..250 {
            assert!(miss(&mut queue, 1, n, frame(n as u8)));
        }
        assert_eq!(pool.in_use(), KEPT_BYTES / pool.chunk_size());
        for n in 0..250u8 {
            let packet = answer(&mut queue, &channels[0]).unwrap();
            assert_eq!((packet.data(), packet.offload().gso_size), (&[n; 2000][..], n.into()));
            assert!(packet.headroom() >= heap::HEADROOM);
        }
        assert_eq!((pool.in_use(), queue.kept, queue.outstanding.bytes), (0, 0, 0));
    }

    #[test]
    fn large_frames_are_bounded_in_bytes() {
        let (pool, (mut queue, _channels)) = (large_buffers(), queue());
        let frame = || {
            let mut packet = pool.allocate().unwrap();
            let _ = packet.push_back(65_000).unwrap();
            packet
        };
        let bytes = PLACES * BYTES_PER_PLACE;
        let most = bytes / 65_000 / 3 + 1;
        let of_one = fill(&mut queue, 1, frame);
        assert!((most / 2..=most).contains(&of_one), "{of_one}");
        assert!(fill(&mut queue, 2, frame) > of_one / 2, "another port has its share");
        assert!(queue.outstanding.bytes < bytes && fill(&mut queue, 3, small) > 4000);
    }

    #[test]
    fn a_connection_stays_with_its_channel_while_packets_of_it_are_up() {
        let (mut queue, channels) = queue();
        let connection = |n: u32| n << 16;
        let channel = |queue: &mut MissQueue, n: u32| {
            assert!(miss(queue, 1, connection(n), small()));
            channels.iter().position(|channel| channel.has_upcalls())
        };
        assert_eq!(channel(&mut queue, 5), Some(0), "there is one handler");
        queue.set_handlers(serving(4));
        assert_eq!(channel(&mut queue, 5), Some(0), "behind the first one");
        while answer(&mut queue, &channels[0]).is_some() {}
        let mut used: Vec<_> = (4..8)
            .map(|n| {
                let channel = channel(&mut queue, n).unwrap();
                assert!(answer(&mut queue, &channels[channel]).is_some());
                channel
            })
            .collect();
        used.sort_unstable();
        assert_eq!(used, [0, 1, 2, 3]);
        assert!(queue.is_empty());
    }
}
