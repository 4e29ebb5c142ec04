//! A worker's end: what it notes in a turn.

use std::sync::Arc;

use packet::Time;

use super::history::Iteration;
use super::metrics::{Metric, PerfMetrics};
use super::supervision::Supervisor;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// What a worker measures, and the turn that it is in.
pub struct WorkerPerf {
    metrics: Arc<PerfMetrics>,
    supervisor: Option<Box<Supervisor>>,
    turn: Iteration,
    millisecond: Iteration,
    /// Turns so far.
    turns: u64,
}

impl WorkerPerf {
    /// A worker's end that counts there, and has turns supervised or not.
    pub fn new(metrics: Arc<PerfMetrics>, supervisor: Option<Box<Supervisor>>) -> WorkerPerf {
        let (turn, millisecond) = (Iteration::default(), Iteration::default());
        WorkerPerf { metrics, supervisor, turn, millisecond, turns: 0 }
    }

    /// Where it counts.
    pub fn metrics(&self) -> &Arc<PerfMetrics> {
        &self.metrics
    }

    /// Notes a batch that was received, and how many frames wait in the queue behind it, where that is a guest's.
    #[cold]
    #[inline(never)]
    pub fn note_batch(&mut self, packets: usize, guest_waiting: Option<usize>) {
        self.turn.batches += 1;
        if let Some(waiting) = guest_waiting {
            self.turn.guest_queue = self.turn.guest_queue.max((packets + waiting) as u64);
        }
        self.metrics.add(Metric::ReceiveBatch, packets as u64);
    }

    /// Notes an upcall whose answer was taken, so many cycles after its packet had gone up.
    pub fn note_upcall(&mut self, cycles: u64) {
        self.turn.upcalls += 1;
        self.turn.upcall_cycles += cycles;
        self.metrics.add(Metric::UpcallCycles, cycles);
    }

    /// Notes the end of a turn of so many cycles. `busy`: it had packets.
    #[cold]
    #[inline(never)]
    pub fn end_turn(&mut self, received: usize, cycles: u64, busy: bool, now: Time) {
        self.turns += 1;
        let (packets, busy_cycles) = (received as u64, if busy { cycles } else { 0 });
        let turn = Iteration {
            timestamp: self.turns,
            iterations: 1,
            cycles,
            busy_cycles,
            packets,
            ..std::mem::take(&mut self.turn)
        };
        self.metrics.add(Metric::TurnCycles, cycles);
        self.metrics.add(Metric::TurnPackets, packets);
        self.metrics.add(Metric::TurnGuestQueue, turn.guest_queue);
        self.metrics.add(Metric::TurnUpcalls, turn.upcalls);
        if let Some(each) = cycles.checked_div(packets) {
            self.metrics.add(Metric::CyclesPerPacket, each);
        }
        self.metrics.totals.add(&Iteration { timestamp: 0, ..turn });
        self.metrics.turns.push(&turn);
        let millisecond = now.0 / MILLISECOND;
        if millisecond != self.millisecond.timestamp {
            if self.millisecond.iterations > 0 {
                self.metrics.milliseconds.push(&self.millisecond);
            }
            self.millisecond = Iteration { timestamp: millisecond, ..Iteration::default() };
        }
        self.millisecond.add(&turn);
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.check(&turn, &self.metrics);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn turns_and_milliseconds_add_up() {
        let metrics = Arc::new(PerfMetrics::default());
        let mut perf = WorkerPerf::new(metrics.clone(), None);
        for turn in 0..10u64 {
            if turn % 2 == 0 {
                perf.note_batch(8, Some(40));
                perf.note_batch(24, Some(2));
                perf.note_batch(0, None);
                perf.note_upcall(5000);
            }
            perf.end_turn(if turn % 2 == 0 { 32 } else { 0 }, 640, turn % 2 == 0, Time(turn * MILLISECOND / 2));
        }
        let totals = metrics.totals();
        assert_eq!((totals.iterations, totals.cycles, totals.busy_cycles), (10, 6400, 3200));
        assert_eq!((totals.packets, totals.batches, totals.upcalls, totals.upcall_cycles), (160, 15, 5, 25_000));
        let of = |metric| (metrics.histogram(metric).count(), metrics.histogram(metric).sum);
        assert_eq!(of(Metric::TurnCycles), (10, 6400));
        assert_eq!(of(Metric::TurnPackets), (10, 160));
        assert_eq!(of(Metric::CyclesPerPacket), (5, 100), "of turns that had packets");
        assert_eq!(of(Metric::ReceiveBatch), (15, 160));
        assert_eq!((of(Metric::TurnGuestQueue), totals.guest_queue), ((10, 240), 240), "the fullest one of each turn");
        assert_eq!((of(Metric::TurnUpcalls), of(Metric::UpcallCycles)), ((10, 5), (5, 25_000)));
        let turns = metrics.latest_turns(3);
        assert_eq!(
            turns.iter().map(|turn| (turn.timestamp, turn.packets)).collect::<Vec<_>>(),
            [(10, 0), (9, 32), (8, 0)]
        );
        let whole = metrics.latest_milliseconds(9);
        assert_eq!(
            whole.iter().map(|ms| (ms.timestamp, ms.iterations, ms.packets)).collect::<Vec<_>>(),
            [(3, 2, 32), (2, 2, 32), (1, 2, 32), (0, 2, 32)]
        );
    }
}
