//! A worker's turn: commands, packets that came back from the slow path, each receive queue that is due and admitted,
//! and transmission of what waits.

use std::time::Duration;

use ports::offload::fine_frames;

use crate::action::PortNo;
use crate::sync::tsc;
use crate::worker::Worker;
use crate::worker::answers::RETURNED;

/// The longest interval between two housekeepings of the transmit queues (contract of [`ports::TxQueue::housekeep`]).
pub const HOUSEKEEP: Duration = Duration::from_millis(1);

/// The state of a turn.
struct Turn {
    /// Cycle counter at its start.
    start: u64,
    /// Whether the clock was read in it.
    clock_read: bool,
    /// Whether the turn before had packets.
    busy: bool,
    /// Cycle counter up to which all cycles are charged.
    since: u64,
    /// Packets received.
    received: usize,
    /// Other work, in packets.
    work: usize,
    /// Whether every queue, idle ones included, was checked.
    all_checked: bool,
}

impl Worker {
    /// Runs one turn. Returns how many packets were received.
    pub fn turn(&mut self) -> usize {
        let mut turn = self.begin_turn();
        // Packets that came back from the slow path are older than those in the receive queues, so they go first.
        turn.work = self.handle_commands();
        self.take_early_answers(&mut turn);
        self.check_idle_queues(&mut turn);
        let idle_checked = turn.all_checked;
        loop {
            turn.all_checked = idle_checked;
            let mut queue = 0;
            // Commands that are executed between two batches can add and remove queues.
            while queue < self.rx.len() {
                self.serve(queue, &mut turn);
                queue += 1;
            }
            if !self.fairness.end_of_turn() {
                break;
            }
            self.rx.iter_mut().for_each(|rx| rx.deficit.reset());
        }
        self.finish_turn(turn)
    }

    /// Begins a turn: announces a quiescent state to the RCU domain, and reads the clock, unless it was read just
    /// before.
    #[inline(always)]
    fn begin_turn(&mut self) -> Turn {
        let start = self.time_cache.start();
        self.reader.quiescent();
        let clock_read = self.time_cache.is_clock_due(start);
        if clock_read {
            let before = std::mem::replace(&mut self.executor.now, self.clock.now());
            // With a cached clock, this is the length of several turns, so packets are transmitted earlier than
            // necessary.
            self.executor.outputs.begin_turn(self.executor.now, self.executor.now.since(before));
        }
        Turn { start, clock_read, busy: self.empty_turns == 0, since: start, received: 0, work: 0, all_checked: false }
    }

    /// Processes what came back from the slow path, before the first queue is polled.
    #[inline(always)]
    fn take_early_answers(&mut self, turn: &mut Turn) {
        if !self.returned.is_empty() {
            turn.work += self.take_returned(RETURNED);
            turn.since = tsc::cycles();
        } else if turn.work > 0 {
            turn.since = tsc::cycles();
        }
    }

    /// Asks the kernel for parked queues with frames, if that is due.
    #[inline(always)]
    fn check_idle_queues(&mut self, turn: &mut Turn) {
        turn.all_checked = self.idle_queues.is_empty();
        if turn.clock_read && self.idle_queues.is_due(turn.busy, self.executor.now) {
            turn.all_checked = self.idle_queues.find_ready(&mut self.rx, self.executor.now);
            turn.since = tsc::cycles();
        }
    }

    /// Serves a queue, if it is due and admitted: recirculates deferred packets of its port, or polls it.
    #[inline(always)]
    fn serve(&mut self, queue: usize, turn: &mut Turn) {
        let admitted = self.fairness.admits(&mut self.rx[queue].deficit);
        if admitted && !self.deferred.is_empty() {
            let (in_port, start) = (self.rx[queue].port.no, tsc::cycles());
            if self.resume(in_port) {
                (turn.work, turn.all_checked) = (turn.work + 1, false);
                turn.since = self.charge_port(in_port, start);
                return;
            }
        }
        if !admitted || !self.rx[queue].is_due(turn.clock_read, turn.busy, self.executor.now) {
            turn.all_checked = false;
            return;
        }
        self.poll_and_charge(queue, turn);
        if !self.returned.is_empty() {
            turn.work += self.take_returned(RETURNED);
            turn.since = tsc::cycles();
        }
    }

    /// Polls a queue once, forwards its packets, and charges it for them.
    #[inline(always)]
    fn poll_and_charge(&mut self, queue: usize, turn: &mut Turn) {
        let (missed, storms, fine) = (self.executor.misses.missed, self.storms, fine_frames());
        let unestablished = self.executor.unestablished_cycles;
        let count = self.forward(queue);
        self.rx[queue].record_poll(count, self.executor.now);
        let until = tsc::cycles();
        if count > 0 {
            turn.received += count;
            if let Some(perf) = &mut self.perf {
                perf.note_batch(count, self.rx[queue].queue.guest_waiting());
            }
            let cycles = until.wrapping_sub(turn.since);
            self.rx[queue].cycles.add(cycles);
            let unestablished = self.executor.unestablished_cycles.wrapping_sub(unestablished).min(cycles);
            let charged = self.executor.misses.missed != missed
                || self.storms != storms
                || self.fairness.is_costly(cycles)
                    && (fine_frames() != fine || self.is_under_pressure(self.rx[queue].port.no));
            let deficit = &mut self.rx[queue].deficit;
            self.fairness.record_batch(deficit, cycles - unestablished, charged);
            if unestablished > 0 {
                self.fairness.charge(deficit, unestablished);
            }
        }
        turn.since = until;
        if count > 0 && self.is_waited_for() {
            // Queues may have come and gone, so it is not known whether each was checked.
            (turn.work, turn.all_checked) = (turn.work + self.handle_waiting(), false);
            turn.since = tsc::cycles();
        }
    }

    /// Ends a turn: transmits what is due, gives away queues that may leave, and updates the counters.
    #[inline(always)]
    fn finish_turn(&mut self, turn: Turn) -> usize {
        let Turn { start, since, received, work, all_checked, .. } = turn;
        if !self.deferred.is_empty() {
            self.recirculate_orphans();
        }
        if !(self.leaving.is_empty() && self.draining.is_empty()) {
            self.hand_over();
        }
        self.executor.outputs.end_of_batch(self.executor.now);
        if self.executor.now.since(self.housekept) >= HOUSEKEEP {
            self.housekept = self.executor.now;
            self.executor.misses.notify_of_samples();
            self.executor.outputs.housekeep(self.executor.now);
            if self.deferred.is_empty() {
                self.idle_queues.tidy(&mut self.rx, self.executor.now);
            }
        }
        let counters = &self.executor.counters;
        // The time after the last batch counts for the next turn, where one follows immediately.
        let last = if since == start { tsc::cycles() } else { since };
        let cycles = self.time_cache.end(last).wrapping_sub(start);
        counters.turns.add(1);
        if work + received > 0 {
            (self.empty_turns, self.idle) = (0, false);
            self.idle_policy.on_work(self.executor.now);
            counters.busy_turns.add(1);
            counters.busy_cycles.add(cycles);
        } else {
            self.empty_turns = self.empty_turns.saturating_add(1);
            self.idle |= all_checked;
            counters.idle_cycles.add(cycles);
        }
        if let Some(perf) = &mut self.perf {
            perf.end_turn(received, cycles, work + received > 0, self.executor.now);
        }
        received
    }

    /// Whether another thread waits for this worker: for a command, or for a quiescent state.
    #[inline(always)]
    pub fn is_waited_for(&self) -> bool {
        self.mailbox.has_mail() || self.reader.is_behind()
    }

    /// Does, between two batches of a turn, what is otherwise done at its start. A turn is long where each of many
    /// queues has frames that are flooded to as many ports, and other threads must not wait for all of them. Returns
    /// how many packets that processed.
    #[cold]
    pub fn handle_waiting(&mut self) -> usize {
        self.reader.quiescent();
        self.handle_commands()
    }

    /// Whether the port is under mask pressure: its packets ask for more masks than it may have.
    fn is_under_pressure(&self, in_port: PortNo) -> bool {
        self.table.list_of_port(in_port, self.reader.pin()).is_some_and(|list| list.under_pressure)
    }
}
