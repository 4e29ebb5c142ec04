//! The one place where packets are dropped: every packet that is not sent ends here, is counted, and shown to taps. Only a
//! port's own transmit queue drops packets elsewhere, and counts them itself (`refused` in the account of packets).
//!
//! What has been shown already, as the verdict on a packet that came in, has functions of its own, which do not look for a tap.

use packet::{Batch, Packet};

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::port::DpPort;
use crate::pipeline::tx::Outputs;

impl Outputs {
    /// Drops packets, and counts them for the worker and for `port`: the output port, if the reason
    /// [is of that](DropReason::is_of_output_port), otherwise the input port.
    #[inline]
    pub fn retire(&self, packets: impl Iterator<Item = Packet>, reason: DropReason, port: PortNo) {
        if self.is_tapped() {
            return packets.for_each(|packet| self.retire_one(packet, reason, port));
        }
        self.retire_shown(packets, reason, port);
    }

    /// As [`retire`](Outputs::retire), for a whole batch, whose buffers are freed together.
    #[inline]
    pub fn retire_batch(&self, batch: &mut Batch, reason: DropReason, port: PortNo) {
        if let Some((taps, now)) = self.taps() {
            taps.show_dropped(batch, reason, port, self.at_flow, now);
        }
        self.retire_batch_shown(batch, reason, port);
    }

    /// As [`retire`](Outputs::retire), for one packet.
    #[inline]
    pub fn retire_one(&self, packet: Packet, reason: DropReason, port: PortNo) {
        self.show_dropped(&packet, reason, port);
        self.retire_one_shown(packet, reason, port);
    }

    /// As [`retire`](Outputs::retire), where taps know it already.
    #[inline]
    pub fn retire_shown(&self, packets: impl Iterator<Item = Packet>, reason: DropReason, port: PortNo) {
        let count = packets.map(drop).count();
        self.count_drops(count as u64, reason, port);
    }

    /// As [`retire_batch`](Outputs::retire_batch), where taps know it already.
    #[inline]
    pub fn retire_batch_shown(&self, batch: &mut Batch, reason: DropReason, port: PortNo) {
        self.count_drops(batch.len() as u64, reason, port);
        packet::buffer::release(batch);
    }

    /// As [`retire_one`](Outputs::retire_one), where taps know it already.
    #[inline]
    pub fn retire_one_shown(&self, packet: Packet, reason: DropReason, port: PortNo) {
        self.count_drops(1, reason, port);
        drop(packet);
    }

    /// Whether each of these ports drops all of the packets because it is down. Then no copies have to be made for them:
    /// see [`count_copies_for_down`](Outputs::count_copies_for_down). Where there is a tap, they are made, to be shown.
    #[inline(always)]
    pub fn are_down(&self, ports: &[PortNo], packets: &[Packet]) -> bool {
        let all = ports.iter().all(|&port| {
            let down = |port: &DpPort| !port.is_up() && packets.iter().all(|packet| packet.len() <= port.max_frame());
            self.port(port).is_some_and(|port| down(port))
        });
        all && !self.is_tapped()
    }

    /// Counts copies for a port that is down as if they had been made and dropped there.
    #[inline]
    pub fn count_copies_for_down(&self, count: u64, port: PortNo) {
        self.counters().copied.add(count);
        self.count_drops(count, DropReason::PortDown, port);
    }

    /// Counts drops of packets that are freed already or could not be allocated.
    #[inline]
    pub fn count_drops(&self, count: u64, reason: DropReason, port: PortNo) {
        self.counters().drops.add(reason, count);
        if let Some(shared) = self.port(port) {
            shared.drops[self.worker()].add(reason, count);
        }
    }
}
