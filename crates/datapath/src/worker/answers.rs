//! What a worker does with packets that come back from the slow path.

use packet::BATCH_SIZE;

use crate::action::PortNo;
use crate::actions::execute::KeyView;
use crate::classify::FlowRef;
use crate::drop::DropReason;
use crate::pipeline::storm::SLICE;
use crate::slowpath::channel::{Answer, Answered, ReturnedItem};
use crate::sync::tsc;
use crate::worker::Worker;

/// How many packets that came back a worker processes before it polls a queue again.
pub const RETURNED: usize = 4 * BATCH_SIZE;

impl Worker {
    /// Processes what came back from the slow path, at most so many packets, and charges it to their input ports.
    /// Returns how many answers there were.
    #[inline(never)]
    pub fn take_returned(&mut self, most: usize) -> usize {
        let mut count = 0;
        let (mut since, mut of) = (tsc::cycles(), None);
        for _ in 0..most {
            let Some(returned) = self.executor.misses.take_returned(&mut self.executor.recirculation) else { break };
            if let Some(before) = of.replace(returned.in_port)
                && before != returned.in_port
            {
                since = self.charge_port(before, since);
            }
            match returned.what {
                ReturnedItem::Answered(answered) => {
                    count += 1;
                    self.act_on_answer(answered);
                }
                ReturnedItem::Punted(key) => {
                    self.executor.counters.punted.add(1);
                    self.executor.misses.reuse(key);
                }
            }
            if self.is_waited_for() {
                if let Some(last) = of.take() {
                    self.charge_port(last, since);
                }
                count += self.handle_waiting();
                since = tsc::cycles();
            }
        }
        if let Some(last) = of {
            since = self.charge_port(last, since);
        }
        if count > 0 {
            // Packets that have waited for these are processed as well.
            let before = self.executor.counters.recirculated.get();
            while self.executor.counters.recirculated.get() - before < SLICE
                && let Some(in_port) = self.recirculate_batch()
            {
                since = self.charge_port(in_port, since);
            }
            self.defer();
            self.executor.misses.notify();
        }
        count
    }

    /// Charges the cycles since `since` to the queues of a port, in equal parts: of a port at which packets come out of tunnels, to those
    /// that such packets have come in at last. Returns the cycle counter.
    pub fn charge_port(&mut self, in_port: PortNo, since: u64) -> u64 {
        let until = tsc::cycles();
        let has_queues = self.rx.iter().any(|rx| rx.port.no == in_port);
        let in_port = if has_queues { in_port } else { self.executor.tunnelled_from };
        let queues = self.rx.iter().filter(|rx| rx.port.no == in_port).count().max(1);
        let cycles = until.wrapping_sub(since) / queues as u64;
        for rx in self.rx.iter_mut().filter(|rx| rx.port.no == in_port) {
            rx.cycles.add(cycles);
            self.fairness.charge(&mut rx.deficit, cycles);
        }
        until
    }

    fn act_on_answer(&mut self, answered: Answered) {
        if let Some(perf) = &mut self.perf
            && answered.sent_at != 0
        {
            perf.note_upcall(tsc::cycles().saturating_sub(answered.sent_at));
        }
        if self.executor.outputs.is_tapped() {
            self.show_answered(&answered);
        }
        let executor = &mut self.executor;
        let Answered { packet, mut key, layers, pass, answer, .. } = answered;
        let in_port = crate::upcall::in_port(&key);
        match answer {
            Answer::Drop(reason) => {
                let counter =
                    if reason == DropReason::UpcallError { &executor.counters.lost } else { &executor.counters.misses };
                counter.add(1);
                executor.outputs.retire_one_shown(packet, reason, in_port);
            }
            Answer::Run(program) => {
                executor.counters.misses.add(1);
                if let Some(reason) = program.only_drops() {
                    executor.outputs.retire_one_shown(packet, reason, in_port);
                    return executor.misses.reuse(key);
                }
                executor.run(&program, packet, &mut KeyView::new(&mut key, layers), pass.of(&program));
            }
        }
        executor.misses.reuse(key);
    }

    /// Shows taps a packet that has missed, now that it is known what becomes of it.
    #[cold]
    fn show_answered(&mut self, Answered { packet, key, answer, .. }: &Answered) {
        let reason = match answer {
            Answer::Drop(reason) => Some(*reason),
            Answer::Run(program) => program.only_drops(),
        };
        // The flow that was made for it, unless it was made for this packet alone, or has gone already.
        let flow = self.table.find(key, self.reader.pin());
        self.executor.outputs.at_flow = flow.and_then(|id| self.table.arena.find(id)).unwrap_or(FlowRef::NONE);
        if let Some((taps, now)) = self.executor.outputs.taps() {
            let at = (crate::upcall::in_port(key), key.common().recirc_id.get());
            taps.show_answered(packet, at, flow, reason, now);
        }
    }
}
