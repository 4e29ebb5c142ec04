//! Packets that become many by recirculation: a slice of them in each turn, so that other ports have theirs.

use packet::BATCH_SIZE;

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::recirculation::{Deferred, MAX_WAITING};
use crate::worker::Worker;

/// Recirculated packets that are handled in one go, before other ports have their turn: more than a batch becomes that does
/// not multiply.
pub const SLICE: u64 = 8 * BATCH_SIZE as u64;

impl Worker {
    /// Takes recirculated packets, which `received` packets of one port have become, through the stages: all of them,
    /// or if they are a storm, a slice.
    #[inline(never)]
    pub fn recirculate_slice(&mut self, received: usize) {
        let done = self.recirculate_until(SLICE);
        // Packets that do not multiply are not more than that.
        self.storms += u64::from(done > received as u64 * u64::from(self.executor.max_depth));
    }

    /// Recirculates this many packets, or little more, and defers the others. Returns how many.
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

    /// Leaves what is still to be recirculated for later turns, each port's for itself. As with the way up
    /// (`slowpath/queue.rs`), a port may have half as many packets there as there is room for.
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
            // For each packet, half of what is free is more than the port has.
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

    /// Goes on with a slice of what is deferred of a port, if anything is.
    #[inline(never)]
    pub fn resume(&mut self, in_port: PortNo) -> bool {
        let Some(at) = self.deferred.iter().position(|of_port| of_port.in_port == in_port) else { return false };
        let of_port = self.deferred.swap_remove(at);
        of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
        self.recirculate_until(SLICE);
        self.executor.misses.notify();
        true
    }

    /// Takes all recirculated packets through the stages, deferred ones as well.
    pub fn recirculate(&mut self) {
        loop {
            while self.recirculate_batch().is_some() {}
            let Some(of_port) = self.deferred.pop() else { return };
            of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
        }
    }

    /// Takes those through that came in on ports which are not polled here any more.
    #[cold]
    pub fn recirculate_strays(&mut self) {
        let Worker { deferred, rx, idle_queues, executor, .. } = self;
        // Those of a port that is only idle wait for its turns.
        for of_port in deferred.iter() {
            if !rx.iter().any(|rx| rx.port.no == of_port.in_port) {
                idle_queues.recall(of_port.in_port, rx, executor.now);
            }
        }
        let is_stray = |of_port: &mut Deferred| !rx.iter().any(|rx| rx.port.no == of_port.in_port);
        let strays = deferred.extract_if(.., is_stray).collect::<Vec<_>>();
        for of_port in strays {
            of_port.batches.into_iter().for_each(|batch| self.executor.recirculation.put_last(batch));
            while self.recirculate_batch().is_some() {}
        }
        self.executor.misses.notify();
    }

    /// The worker ends: what was still to be recirculated ends with it, and is counted.
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
