//! The end of packets that are not sent. Nothing is dropped anywhere else in the datapath, but in a port's own queue, which
//! counts it (`refused` in the account of packets).

use packet::{Batch, Packet};

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::tx::Outputs;

impl Outputs {
    /// Ends the lives of packets, counted for the worker and for `port`: the one that they would have left by where a
    /// reason is of the output, and otherwise the one that they have come in on.
    #[inline]
    pub fn retire(&self, packets: impl Iterator<Item = Packet>, reason: DropReason, port: PortNo) {
        let count = packets.map(drop).count();
        self.count_drops(count as u64, reason, port);
    }

    /// As [`retire`](Outputs::retire), for a whole batch, which is given back to its memory at once.
    #[inline]
    pub fn retire_batch(&self, batch: &mut Batch, reason: DropReason, port: PortNo) {
        self.count_drops(batch.len() as u64, reason, port);
        packet::buffer::release(batch);
    }

    /// As [`retire`](Outputs::retire), for one packet.
    #[inline]
    pub fn retire_one(&self, packet: Packet, reason: DropReason, port: PortNo) {
        self.count_drops(1, reason, port);
        drop(packet);
    }

    /// Counts packets that have ended already, or that could not be made.
    #[inline]
    pub fn count_drops(&self, count: u64, reason: DropReason, port: PortNo) {
        self.counters().drops.add(reason, count);
        if let Some(shared) = self.port(port) {
            shared.drops[self.worker()].add(reason, count);
        }
    }
}
