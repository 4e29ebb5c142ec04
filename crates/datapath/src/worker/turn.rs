//! A worker's turn: mail, what came back from the slow path, each queue that is due and admitted, and what is left to send.

use std::time::Duration;

use ports::offload::fine_frames;

use crate::action::PortNo;
use crate::sync::tsc;
use crate::worker::Worker;

/// How often transmit queues are reaped at least while something may be on its way (contract of
/// [`ports::TxQueue::housekeep`]).
pub const HOUSEKEEP: Duration = Duration::from_millis(1);

/// What a turn has come to so far.
struct Turn {
    /// When it began, by the cycle counter.
    start: u64,
    /// The clock was read in it.
    look: bool,
    /// The turn before had packets.
    busy: bool,
    /// Until when cycles have been charged to somebody.
    since: u64,
    /// Packets received.
    received: usize,
    /// What else there was to do.
    work: usize,
    /// Each queue, idle ones as well, has been looked at.
    whole: bool,
}

impl Worker {
    /// One turn: everything that is there to be done, once. Returns how many packets were received.
    pub fn turn(&mut self) -> usize {
        let mut turn = self.begin_turn();
        // What came back from the slow path goes before what is newer.
        turn.work = self.handle_commands();
        self.take_early_answers(&mut turn);
        self.check_idle_queues(&mut turn);
        let all_looked_at = turn.whole;
        loop {
            turn.whole = all_looked_at;
            let mut queue = 0;
            // Commands that are handled between two batches add queues and take some away.
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

    /// Begins a turn: nothing is held of the flow table, and the clock is read, unless turns follow each other closely.
    #[inline(always)]
    fn begin_turn(&mut self) -> Turn {
        let start = self.time_cache.start();
        self.reader.quiescent();
        let look = self.time_cache.is_clock_due(start);
        if look {
            let before = std::mem::replace(&mut self.executor.now, self.clock.now());
            // Of several turns where they follow each other: packets are sent the sooner for it.
            self.executor.outputs.turn(self.executor.now.since(before));
        }
        Turn { start, look, busy: self.empty_turns == 0, since: start, received: 0, work: 0, whole: false }
    }

    /// Takes what the slow path has answered before the first queue is polled.
    #[inline(always)]
    fn take_early_answers(&mut self, turn: &mut Turn) {
        if self.channel.has_returned() {
            turn.work += self.take_returned();
            turn.since = tsc::cycles();
        } else if turn.work > 0 {
            turn.since = tsc::cycles();
        }
    }

    /// Asks for the queues that are not polled one by one, now and then.
    #[inline(always)]
    fn check_idle_queues(&mut self, turn: &mut Turn) {
        turn.whole = self.idle_queues.is_empty();
        if turn.look && self.idle_queues.is_due(turn.busy, self.executor.now) {
            turn.whole = self.idle_queues.look(&mut self.rx, self.executor.now);
            turn.since = tsc::cycles();
        }
    }

    /// Serves a queue, if it is its turn: what is deferred of its port, or a batch of what it has received.
    #[inline(always)]
    fn serve(&mut self, queue: usize, turn: &mut Turn) {
        let admitted = self.fairness.admits(&mut self.rx[queue].deficit);
        if admitted && !self.deferred.is_empty() {
            let (in_port, start) = (self.rx[queue].port.no, tsc::cycles());
            if self.resume(in_port) {
                (turn.work, turn.whole) = (turn.work + 1, false);
                turn.since = self.charge_port(in_port, start);
                return;
            }
        }
        if !admitted || !self.rx[queue].is_due(turn.look, turn.busy, self.executor.now) {
            turn.whole = false;
            return;
        }
        self.poll_and_charge(queue, turn);
        if self.channel.has_returned() {
            turn.work += self.take_returned();
            turn.since = tsc::cycles();
        }
    }

    /// Polls a queue once, forwards what it has, and charges it for that.
    #[inline(always)]
    fn poll_and_charge(&mut self, queue: usize, turn: &mut Turn) {
        let (missed, storms, fine) = (self.executor.misses.missed, self.storms, fine_frames());
        let count = self.forward(queue);
        self.rx[queue].looked(count, self.executor.now);
        let until = tsc::cycles();
        if count > 0 {
            turn.received += count;
            let cycles = until.wrapping_sub(turn.since);
            self.rx[queue].cycles.add(cycles);
            let charged = self.executor.misses.missed != missed
                || self.storms != storms
                || self.fairness.is_costly(cycles)
                    && (fine_frames() != fine || self.is_under_pressure(self.rx[queue].port.no));
            self.fairness.record_batch(&mut self.rx[queue].deficit, cycles, charged);
        }
        turn.since = until;
        if count > 0 && self.is_waited_for() {
            // Queues may come and go: whether each was looked at is not known.
            (turn.work, turn.whole) = (turn.work + self.handle_waiting(), false);
            turn.since = tsc::cycles();
        }
    }

    /// Ends a turn: sends what waits, gives away what was asked for, and counts.
    #[inline(always)]
    fn finish_turn(&mut self, turn: Turn) -> usize {
        let Turn { start, since, received, work, whole, .. } = turn;
        if !self.deferred.is_empty() {
            self.recirculate_strays();
        }
        if !(self.leaving.is_empty() && self.draining.is_empty()) {
            self.hand_over();
        }
        self.executor.outputs.end_of_batch(self.executor.now);
        if self.executor.now.since(self.housekept) >= HOUSEKEEP {
            self.housekept = self.executor.now;
            self.executor.outputs.housekeep(self.executor.now);
            if self.deferred.is_empty() {
                self.idle_queues.tidy(&mut self.rx, self.executor.now);
            }
        }
        let counters = &self.executor.counters;
        // What comes behind the last batch counts to the next turn, where one follows.
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
            self.idle |= whole;
            counters.idle_cycles.add(cycles);
        }
        received
    }

    /// Whether somebody waits for this worker: has left a command, or waits for it to hold no reference.
    #[inline(always)]
    pub fn is_waited_for(&self) -> bool {
        self.mailbox.has_mail() || self.reader.is_behind()
    }

    /// Does within a turn, between two batches, what is otherwise done at its start: a turn is long where each of many
    /// queues has frames that are flooded to as many ports, and whoever waits would wait for all of them. Returns how many
    /// packets that handled.
    #[cold]
    pub fn handle_waiting(&mut self) -> usize {
        self.reader.quiescent();
        self.handle_commands()
    }

    /// Whether packets of this port ask for more masks than it may have.
    fn is_under_pressure(&self, in_port: PortNo) -> bool {
        self.table.list_of_port(in_port, self.reader.pin()).is_some_and(|list| list.under_pressure)
    }
}
