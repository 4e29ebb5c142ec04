//! Stage 3, miss: packets that no flow matches, on their way to the slow path and back.
//!
//! Each worker has a channel to one handler thread: a bounded queue up to the handler, and a queue of the same size
//! back down. Every packet that goes up comes down, so the worker alone counts what is outstanding, without atomics.
//!
//! *Fairness.* An input port may have at most half as many packets outstanding as there are free places. So however
//! many ports flood, there is room for a packet of a quiet one. The handler serves the ports in turn
//! ([`round_robin`](super::round_robin)): a packet of a quiet port waits for one packet of each other port, not for
//! all of theirs. What a flood costs the worker itself is bounded by [`fairness`](crate::worker::fairness).
//!
//! *Order.* While a packet is in the slow path, later packets of its connection must not overtake it, even if a flow
//! for them has been installed meanwhile. The [reorder guard](super::reorder) knows the connections with packets in
//! the slow path. Later packets of these that have a flow wait at the worker until all earlier ones are back. They
//! stay there, so the slow path catches up with a connection however fast it is. The same holds in a batch in which
//! an earlier packet of the connection misses (`hold_back` in `pipeline/forward.rs`). Ports with nothing outstanding
//! do not pay for any of this.
//!
//! A returned packet carries its actions. So no change of its flow can send it up again, behind later packets.
//! Packets that have waited are classified again. If the flow that had counted such a packet is gone by then, or if
//! there is no room for it to wait, it is counted twice.

use std::sync::Arc;

use packet::flow::extract::Layers;
use packet::{Key, Packet};

use crate::action::{PortNo, Punt};
use crate::drop::DropReason;
use crate::pipeline::recirculation::{Pass, RecirculatedPacket, Recirculation};
use crate::pipeline::tx::Outputs;
use crate::slowpath::channel::{Channel, Notifier, Outstanding, Returned, ToHandler, port_index};
use crate::slowpath::reorder::ReorderGuard;

/// The worker's end.
pub struct MissQueue {
    channel: Arc<Channel>,
    notifier: Arc<Notifier>,
    /// Packets that are in the slow path, or wait for such packets.
    outstanding: usize,
    /// Their number by input port.
    by_port: Vec<u32>,
    /// The connections of these packets, except for punted ones.
    connections: ReorderGuard,
    /// Keys of packets that have come back, for reuse.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    spare: Vec<Box<Key>>,
    /// All packets that have missed, including those for which there was no room.
    pub missed: u64,
    /// Whether something was sent up since the handler was notified.
    pub notify_pending: bool,
}

impl MissQueue {
    /// The worker's end of `channel`.
    pub fn new(channel: Arc<Channel>, notifier: Arc<Notifier>) -> MissQueue {
        let connections = ReorderGuard::new(channel.up.capacity());
        let (by_port, spare) = (Vec::new(), Vec::new());
        MissQueue { channel, notifier, outstanding: 0, by_port, connections, spare, missed: 0, notify_pending: false }
    }

    /// Whether packets from this port are outstanding.
    #[inline(always)]
    pub fn has_outstanding(&self, in_port: PortNo) -> bool {
        self.outstanding != 0 && self.of_port(in_port) != 0
    }

    /// Whether no packet is outstanding.
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether a packet of this connection has to wait for earlier ones. `has_flow`: it has a flow.
    pub fn has_to_wait(&self, connection: u32, has_flow: bool) -> bool {
        self.connections.has_to_wait(connection, has_flow)
    }

    /// Lets a packet wait that has to, and for which the port has room.
    pub fn wait(&mut self, connection: u32, packet: RecirculatedPacket) {
        self.count(packet.metadata.in_port());
        self.connections.wait(connection, packet);
    }

    fn of_port(&self, in_port: PortNo) -> usize {
        self.by_port.get(port_index(in_port)).copied().unwrap_or(0) as usize
    }

    /// Whether there is room for one more packet from this port to go up or to wait.
    pub fn has_room(&self, in_port: PortNo) -> bool {
        let free = self.channel.up.capacity().saturating_sub(self.outstanding);
        free > 0 && self.of_port(in_port) < free.div_ceil(2)
    }

    /// Sends a missed packet up. Returns it where the port has no room left.
    #[allow(clippy::too_many_arguments, reason = "what the fast path knows about a packet")]
    pub fn miss(
        &mut self,
        packet: Packet,
        key: &Key,
        layers: Layers,
        hash: u64,
        pass: Pass,
        connection: u32,
    ) -> Result<(), Packet> {
        let in_port = crate::upcall::in_port(key);
        if !self.has_room(in_port) {
            return Err(packet);
        }
        let mut own = self.spare.pop().unwrap_or_default();
        Key::clone_from(&mut own, key);
        let up = ToHandler::Miss(Outstanding { packet, key: own, layers, hash, pass, connection });
        match self.channel.up.push(up) {
            Ok(()) => {
                self.connections.add(connection);
                self.count_up(in_port);
                Ok(())
            }
            Err(ToHandler::Miss(miss)) => Err(miss.packet),
            Err(ToHandler::Punt { packet, .. }) => Err(packet),
        }
    }

    /// Sends a punted packet up; drops it where the port has no room left.
    pub fn punt(&mut self, packet: Packet, key: &Key, punt: Arc<Punt>, outputs: &Outputs) {
        let in_port = crate::upcall::in_port(key);
        if !self.has_room(in_port) {
            return outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port);
        }
        let mut own = self.spare.pop().unwrap_or_default();
        Key::clone_from(&mut own, key);
        match self.channel.up.push(ToHandler::Punt { packet, key: own, punt }) {
            Ok(()) => self.count_up(in_port),
            Err(ToHandler::Punt { packet, .. } | ToHandler::Miss(Outstanding { packet, .. })) => {
                outputs.retire_one(packet, DropReason::UpcallQueueFull, in_port);
            }
        }
    }

    /// Keys for reuse, of packets that have come back.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    pub fn spare_keys(&mut self) -> &mut Vec<Box<Key>> {
        &mut self.spare
    }

    /// Keeps the key of a packet that has come back for reuse.
    pub fn reuse(&mut self, key: Box<Key>) {
        self.spare.push(key);
    }

    fn count_up(&mut self, in_port: PortNo) {
        self.count(in_port);
        self.notify_pending = true;
    }

    fn count(&mut self, in_port: PortNo) {
        let at = port_index(in_port);
        if self.by_port.len() <= at {
            self.by_port.resize(at + 1, 0);
        }
        self.by_port[at] += 1;
        self.outstanding += 1;
    }

    /// Sets the notifier of another handler, which serves the channel from now on. That one is woken, since this
    /// worker may have woken the former one last.
    pub fn set_notifier(&mut self, notifier: Arc<Notifier>) {
        self.notifier = notifier;
        self.notifier.notify();
    }

    /// Whether this notifier is in use.
    #[cfg(test)]
    pub fn notifies(&self, notifier: &Arc<Notifier>) -> bool {
        Arc::ptr_eq(&self.notifier, notifier)
    }

    /// Wakes the handler if something was sent up since it was notified.
    #[inline]
    pub fn notify(&mut self) {
        if self.notify_pending {
            self.notify_pending = false;
            self.notifier.notify();
        }
    }

    /// Takes the next item that came down. Packets that have waited for it are appended to `again`.
    pub fn take_returned(&mut self, again: &mut Recirculation) -> Option<Returned> {
        let MissQueue { channel, outstanding, by_port, connections, spare, .. } = self;
        let returned = channel.down.pop()?;
        let mut count = |in_port| {
            *outstanding -= 1;
            by_port[port_index(in_port)] -= 1;
        };
        count(returned.in_port);
        if let Some(connection) = returned.connection {
            connections.remove(connection, |packet| {
                count(packet.metadata.in_port());
                spare.extend(again.push_packet(packet));
            });
        }
        Some(returned)
    }
}
