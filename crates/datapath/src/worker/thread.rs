//! A worker's thread: it runs turn after turn, and sleeps when there is nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::worker::Worker;
use crate::worker::time_cache::TimeCache;
use crate::worker::turn::HOUSEKEEP;

/// Turns without a packet before a worker sleeps.
const EMPTY_TURNS: u32 = 64;

impl Worker {
    /// Runs until `stop`: the body of a worker's thread.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.time_cache = TimeCache::new(true);
        while !stop.load(Ordering::Relaxed) {
            if self.turn() == 0 {
                // Whoever shares the core, a handler perhaps, has more of it.
                std::hint::spin_loop();
            }
            if self.empty_turns >= EMPTY_TURNS {
                self.idle_policy.on_idle(self.executor.now);
                if self.may_rest() {
                    self.rest(stop);
                }
            }
        }
        self.executor.outputs.flush(self.executor.now);
        self.executor.misses.notify_of_samples();
        self.reader.offline();
    }

    /// Whether the worker may sleep.
    fn may_rest(&self) -> bool {
        let outputs = &self.executor.outputs;
        let awaited =
            !outputs.clock_is_stopped() && (outputs.is_due_soon() || !self.idle_policy.may_sleep(self.executor.now));
        !awaited && !self.max_sleep.is_zero() && self.draining.is_empty()
    }

    /// Whether it has queues of which nobody tells when they have frames.
    fn has_to_poll(&self) -> bool {
        self.rx.iter().any(|rx| rx.queue.wait_fd().is_none() && rx.queue.next_due().is_none())
    }

    /// Sleeps until there is something to do.
    fn rest(&mut self, stop: &AtomicBool) {
        self.idle_policy.on_sleep();
        self.executor.misses.notify_of_samples();
        // No packet waits for transmission while the worker sleeps.
        self.executor.outputs.flush(self.executor.now);
        let sent_lately = self.executor.outputs.sent_lately;
        self.executor.outputs.housekeep(self.executor.now);
        self.housekept = self.executor.now;

        let due = self.rx.iter().filter_map(|rx| rx.queue.next_due()).min();
        let limits = [
            self.has_to_poll().then(|| self.idle_policy.sleep_between_looks(self.executor.now, self.max_sleep)),
            due.map(|due| due.since(self.executor.now)),
            sent_lately.then_some(HOUSEKEEP),
            // The clock is stopped: it may be set forward.
            self.executor.outputs.has_backlog().then_some(HOUSEKEEP),
        ];
        let timeout = limits.into_iter().flatten().min();

        let start = self.clock.now();
        // Counted before the sleep, which may be long.
        self.executor.counters.sleeps.add(1);
        self.reader.offline();
        let (mailbox, returned) = (&self.mailbox, &self.returned);
        let fds = self.rx.iter().filter_map(|rx| rx.queue.wait_fd()).chain(self.idle_queues.wait_fd());
        mailbox.waker.sleep(fds, timeout, || mailbox.has_mail() || !returned.is_empty() || stop.load(Ordering::SeqCst));
        self.reader.quiescent();
        // The clock is read again, so that this sleep does not count as the length of a turn.
        self.executor.now = self.clock.now();
        let slept = self.executor.now.since(start);
        self.idle_policy.on_wake_up(slept);
        self.executor.counters.slept_nanos.add(slept.as_nanos() as u64);
        self.time_cache = TimeCache::new(true);
        // One turn without packets is enough to sleep again.
        self.empty_turns = EMPTY_TURNS - 1;
    }
}
