//! Recirculation storms: packets that multiply by recirculation. A worker handles a bounded slice of them in each
//! turn, so that other ports get their turn.

use packet::BATCH_SIZE;

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::recirculation::{Deferred, MAX_WAITING};
use crate::worker::Worker;

/// Recirculated packets that are handled in one slice: more than a batch without multiplying packets needs.
pub const SLICE: u64 = 8 * BATCH_SIZE as u64;

impl Worker {
    /// Takes the recirculated packets that `received` packets of one port have become through the stages: all of
    /// them, or one slice if there are more.
    #[inline(never)]
    pub fn recirculate_slice(&mut self, received: usize) {
        let done = self.recirculate_until(SLICE);
        // Without multiplication there cannot be more.
        self.storms += u64::from(done > received as u64 * u64::from(self.executor.max_depth));
    }

    /// Recirculates until `limit` is reached, and defers the remaining packets. Returns how many it has recirculated.
    fn recirculate_until(&mut self, limit: u64) -> u64 {
        let before = self.executor.counters.recirculated.get();
        loop {
            let done = self.executor.counters.recirculated.get() - before;
            if done >= limit || self.recirculate_batch().is_none() {
                if !self.executor.recirculation.is_empty() {
                    self.defer();
                }
                return done;
            }
        }
    }

    /// Leaves the packets that still wait for later turns, grouped by input port. As in the queue to the slow path
    /// (`slowpath/queue.rs`), a port may have at most half as many packets there as there is room for.
    #[cold]
    pub fn defer(&mut self) {
        let Worker { executor, deferred, .. } = self;
        let mut free = MAX_WAITING - deferred.iter().map(|of_port| of_port.packets).sum::<usize>().min(MAX_WAITING);
        while let Some(mut batch) = executor.recirculation.pop() {
            let in_port = batch.stage.in_port;
            let at = deferred.iter().position(|of_port| of_port.in_port == in_port).unwrap_or_else(|| {
                deferred.push(Deferred::new(in_port));
                deferred.len() - 1
            });
            let of_port = &mut deferred[at];
            // While half of the free room is more than the port has, one more packet is admitted.
            let mut room = 0;
            while room < batch.packets.len() && of_port.packets + room < (free - room).div_ceil(2) {
                room += 1;
            }
            executor.outputs.retire(batch.packets.drain(room..), DropReason::RecirculationStorm, in_port);
            if batch.packets.is_empty() {
                executor.recirculation.reuse(batch);
                continue;
            }
            (free, of_port.packets) = (free - room, of_port.packets + room);
            of_port.batches.push_back(batch);
        }
    }

    /// Recirculates a slice of a port's deferred packets. Returns whether there were any.
    #[inline(never)]
    pub fn resume(&mut self, in_port: PortNo) -> bool {
        let Some(at) = self.deferred.iter().position(|of_port| of_port.in_port == in_port) else { return false };
        let of_port = self.deferred.swap_remove(at);
        of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
        self.recirculate_until(SLICE);
        self.executor.misses.notify();
        true
    }

    /// Takes all recirculated packets through the stages, the deferred ones included.
    pub fn recirculate(&mut self) {
        loop {
            while self.recirculate_batch().is_some() {}
            let Some(of_port) = self.deferred.pop() else { return };
            of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
        }
    }

    /// Recirculates the deferred packets of input ports that this worker does not poll any more.
    #[cold]
    pub fn recirculate_orphans(&mut self) {
        let Worker { deferred, rx, idle_queues, executor, .. } = self;
        // A port whose queues are only parked is polled again.
        for of_port in deferred.iter() {
            if !rx.iter().any(|rx| rx.port.no == of_port.in_port) {
                idle_queues.recall(of_port.in_port, rx, executor.now);
            }
        }
        let is_orphan = |of_port: &mut Deferred| !rx.iter().any(|rx| rx.port.no == of_port.in_port);
        let orphans = deferred.extract_if(.., is_orphan).collect::<Vec<_>>();
        for of_port in orphans {
            of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
            while self.recirculate_batch().is_some() {}
        }
        self.executor.misses.notify();
    }

    /// Drops the packets that are still to be recirculated, as the worker ends.
    #[cold]
    pub fn retire_deferred(&mut self) {
        let Worker { executor, deferred, .. } = self;
        let of_ports = deferred.drain(..).flat_map(|of_port| of_port.batches);
        let mut batches: Vec<_> = of_ports.collect();
        while let Some(batch) = executor.recirculation.pop() {
            batches.push(batch);
        }
        for mut batch in batches {
            executor.outputs.retire_batch(&mut batch.packets, DropReason::RecirculationStorm, batch.stage.in_port);
        }
    }
}
