//! Packets that leave a tunnel: by whole batches, where nothing is left to do for them, and one by one otherwise.

use packet::{BATCH_SIZE, Batch, Offload, Packet};
use ports::offload::unfinish_tcp;

use crate::action::{Decapsulation, PortNo};
use crate::actions::execute::Executor;
use crate::actions::tunnel::complete_outer;
use crate::drop::DropReason;
use crate::pipeline::join_policy::LONG;
use crate::pipeline::recirculation::{Pass, RecircStage};

impl Executor {
    /// Takes the headers of a tunnel away, and sends the packet round again.
    #[inline]
    pub fn pop_tunnel(&mut self, pop: &Decapsulation, packet: Packet, in_port: PortNo, next: Pass) {
        self.pop_one(pop, packet, in_port, next, false);
        self.recirculation.finish_joining();
    }

    /// `may_join`: it may be a segment that others follow.
    #[inline]
    fn pop_one(&mut self, pop: &Decapsulation, packet: Packet, in_port: PortNo, next: Pass, may_join: bool) {
        self.tunnelled_from = in_port;
        let rest = packet.offload();
        if (rest.is_gso() || rest.needs_csum()) && !is_of_inner(&packet) {
            return self.pop_unfinished(pop, packet, in_port, next, may_join);
        }
        self.pop_finished(pop, packet, in_port, next, may_join);
    }

    /// As [`pop_tunnel`](Executor::pop_tunnel), for a batch.
    pub fn pop_batch(&mut self, pop: &Decapsulation, packets: &mut Batch, in_port: PortNo, next: Pass) {
        let is_usual = |packet: &Packet| !packet.offload().is_gso() && !packet.offload().needs_csum();
        let waiting = self.recirculation.waiting() + packets.len();
        let long = packets.iter().filter(|packet| packet.len() >= LONG).count();
        let joins = self.join_policy.tries(long, || self.outputs.has_taker_of_super_frames());
        let is_refused = next.refusal(self.max_depth, waiting).is_some();
        if joins || pop.erspan.is_some() || !packets.iter().all(is_usual) || is_refused {
            let joined = self.counters.joined.get();
            for packet in packets.drain(..) {
                let may_join = joins && packet.len() >= LONG;
                self.pop_one(pop, packet, in_port, next, may_join);
            }
            self.recirculation.finish_joining();
            if joins {
                self.join_policy.record(long, (self.counters.joined.get() - joined) as usize);
            }
            return;
        }
        self.tunnelled_from = in_port;
        let stage = RecircStage { in_port: pop.port, recirc_id: 0 };
        let mut batch = self.recirculation.empty(stage, next);
        let (mut lost, mut left) = (0u32, 0);
        let mut reasons = [DropReason::TunnelHeader; BATCH_SIZE];
        for (at, packet) in packets.iter_mut().enumerate() {
            // Packets stay where they are, and what is known of them is written where it belongs: nothing is read soon that was just
            // written in other pieces.
            if pop.pop_plain(packet, batch.metadata.tunnel_mut(left)).is_some() {
                batch.metadata.finish_plain(left, pop.port);
                left += 1;
                continue;
            }
            if pop.pop_more(packet, &mut batch.metadata, left).is_some() {
                left += 1;
                continue;
            }
            match pop.pop(packet, batch.metadata.tunnel_mut(left), &mut self.tunnelled.rest) {
                Ok(_) => {
                    batch.metadata.finish_tunnelled(left, pop.port, &self.tunnelled.rest);
                    left += 1;
                }
                Err(reason) => {
                    lost |= 1 << at;
                    reasons[at] = reason;
                }
            }
        }
        if lost != 0 {
            self.drop_some(lost, &reasons, packets, in_port);
        }
        std::mem::swap(&mut batch.packets, packets);
        match batch.packets.is_empty() {
            true => self.recirculation.reuse(batch),
            false => self.recirculation.put_last(batch),
        }
    }

    /// Drops the packets whose bits are set in `which`, each for its own reason.
    #[cold]
    fn drop_some(&mut self, which: u32, reasons: &[DropReason; BATCH_SIZE], packets: &mut Batch, in_port: PortNo) {
        let all = std::mem::take(packets);
        for (at, packet) in all.into_iter().enumerate() {
            if which >> at & 1 == 0 {
                packets.push(packet);
            } else {
                self.outputs.retire_one(packet, reasons[at], in_port);
            }
        }
    }

    #[inline]
    fn pop_finished(&mut self, pop: &Decapsulation, mut packet: Packet, in_port: PortNo, next: Pass, may_join: bool) {
        if let Some(reason) = self.refuses(next) {
            return self.outputs.retire_one(packet, reason, in_port);
        }
        match pop.pop(&mut packet, &mut self.tunnelled.block, &mut self.tunnelled.rest) {
            Ok(port) => {
                if may_join && *packet.offload() == Offload::NONE {
                    unfinish_tcp(&mut packet);
                }
                if self.recirculation.push_tunnelled(port, next, packet, &self.tunnelled) {
                    self.counters.joined.add(1);
                }
            }
            Err(reason) => self.outputs.retire_one(packet, reason, in_port),
        }
    }

    #[cold]
    fn pop_unfinished(&mut self, pop: &Decapsulation, packet: Packet, in_port: PortNo, next: Pass, may_join: bool) {
        let (memory, mut parts) = (packet.memory(), 0);
        // The parts of a super-frame follow each other in any case.
        let may_join = may_join || packet.offload().is_gso();
        let result = complete_outer(packet, memory, &mut |part| {
            parts += 1;
            self.pop_finished(pop, part, in_port, next, may_join);
        });
        self.count_segments(parts, result, in_port);
    }
}

/// Whether the work that is left to do is about what is beyond the outer headers of UDP or GRE. A super-frame of a stack that ends
/// tunnels itself is cut by its inner headers: it leaves the tunnel whole.
fn is_of_inner(packet: &Packet) -> bool {
    if !packet.offload().needs_csum() {
        return false;
    }
    let above = match packet.data().get(12..15) {
        Some([0x08, 0x00, version]) => 14 + usize::from(version & 0xf) * 4,
        Some([0x86, 0xdd, _]) => 14 + 40,
        _ => return false,
    };
    usize::from(packet.offload().csum_start) > above
}
