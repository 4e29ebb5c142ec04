//! What each worker counts for each flow.
//!
//! Where every packet is of another flow, each costs a line of counters that is in no cache, and writing it back. So
//! only the lower bits lie where packets are counted, 16 bytes for each flow, four flows to a line. Whenever the
//! highest of these changes, the worker notes the whole number in a second array, which few packets touch. Nothing is
//! ever reset, so that a reader needs the whole number as it was not long ago, and the lower bits as they are now: the
//! sum is exact, whichever of the two changed meanwhile. The time of the last packet is what is near the worker's time
//! by its lower bits.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use packet::Time;

use super::flow_ref::FlowRef;
use crate::classify::mem::region::{Region, Zero};
use crate::upcall::FlowStats;

/// Memory for each flow: the lower bits, and the whole numbers, though only flows with many packets touch these.
pub const COUNTERS_BYTES: usize = size_of::<Counters>() + size_of::<Totals>();

/// The lower bits of what a worker has counted for a flow. Written by this worker alone, but for the epoch.
#[repr(C, align(16))]
pub struct Counters {
    /// [`packed`], lower 48 bits, above the TCP flags.
    count_and_flags: AtomicU64,
    /// In [`TICK`]s.
    used: AtomicU32,
    /// Raised by the writer whenever the flow dies or does something else from now on: what a cache
    /// knows of the flow holds as long as this is what it was.
    epoch: AtomicU32,
}

const _: () = assert!(size_of::<Counters>() == 16);

// SAFETY: all of its members are numbers.
unsafe impl Zero for Counters {}

/// Bits of a [`Time`] that are not counted: 1 ms. 32 bits of ticks last for 52 days.
const TICK: u32 = 20;

/// Ticks by which a flow's time may be later than the worker's that was read before it: a minute, in which a reader
/// does nothing else.
const AHEAD: u32 = 1 << 16;

/// What was counted, in full, as of when [`carry_is_due`] said so last.
#[repr(C, align(16))]
struct Totals {
    bytes: AtomicU64,
    packets: AtomicU64,
}

const _: () = assert!(size_of::<Totals>() == 16);

// SAFETY: all of its members are numbers.
unsafe impl Zero for Totals {}

/// Bits of packets in a number that has packets and bytes.
const PACKETS_BITS: u32 = 16;
/// Bits of packets and bytes in such a number.
const BITS: u32 = 48;
const FLAGS_BITS: u32 = 64 - BITS;

/// The first number from `total` on whose lower `bits` bits are those of `low`.
#[inline(always)]
fn extended(total: u64, low: u64, bits: u32) -> u64 {
    total + (low.wrapping_sub(total) & ((1 << bits) - 1))
}

/// Packets and bytes as one number, so that one addition counts both: bytes times 65 536, and packets.
#[inline(always)]
const fn packed(packets: u64, bytes: u64) -> u64 {
    packets.wrapping_add(bytes << PACKETS_BITS)
}

/// Whether the totals are to be noted when one such number, above TCP flags, becomes another: whenever the highest bit
/// of its packets or of all of it changes.
#[inline(always)]
const fn carry_is_due(was: u64, is: u64) -> bool {
    (was ^ is) & (1 << 63 | 1 << (FLAGS_BITS + PACKETS_BITS - 1)) != 0
}

impl Counters {
    /// Changes when the flow dies or does something else. To be read before the flow is.
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Has caches forget what they know of the flow. The writer's.
    pub(in crate::classify) fn invalidate_caches(&self) {
        #[cfg(test)]
        WRITES.with(|work| work.epochs_raised.set(work.epochs_raised.get() + 1));
        self.epoch.store(self.epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A worker's counters of all flows. They lie one behind the other, on huge pages, so that it takes no further line to
/// find them. No two workers' share a line, nor a pair of lines that the processor asks for together: each writes to
/// its own with every batch.
#[repr(align(128))]
pub(in crate::classify) struct WorkerFlowCounters {
    counters: Region<Counters>,
    totals: Region<Totals>,
    /// The worker's time when it received last, in ticks. A flow's time is told right while it is less than 52 days
    /// before this.
    latest: AtomicU64,
}

impl WorkerFlowCounters {
    /// For this many flows.
    pub fn new(flows: usize) -> WorkerFlowCounters {
        WorkerFlowCounters { counters: Region::new(flows), totals: Region::new(flows), latest: AtomicU64::new(0) }
    }

    /// For use.
    #[inline(always)]
    pub fn flow_counters(&self) -> FlowCounters<'_> {
        FlowCounters { counters: self.counters.slice(), all: self }
    }

    /// BatchMeta the whole numbers of a flow. The worker's.
    #[cold]
    #[inline(never)]
    fn carry(&self, flow: FlowRef) {
        let (packets, bytes, _) = self.flow_counters().whole(flow);
        let totals = &self.totals.slice()[flow.index()];
        totals.packets.store(packets, Ordering::Release);
        totals.bytes.store(bytes, Ordering::Release);
    }
}

/// A worker's counters, by flow.
#[derive(Clone, Copy)]
pub struct FlowCounters<'a> {
    counters: &'a [Counters],
    all: &'a WorkerFlowCounters,
}

impl<'a> FlowCounters<'a> {
    /// Of a flow.
    #[inline(always)]
    pub fn of(self, flow: FlowRef) -> &'a Counters {
        debug_assert!(flow.index() < self.counters.len());
        // SAFETY: there are counters for as many flows as there can ever be.
        unsafe { self.counters.get_unchecked(flow.index()) }
    }

    /// BatchMeta the time, in each turn that has packets. The worker's alone.
    #[inline(always)]
    pub fn turn(self, now: Time) {
        self.all.latest.store(now.0 >> TICK, Ordering::Relaxed);
    }

    /// Counts packets for a flow, no more than a batch of the largest ones. The worker's alone.
    #[inline(always)]
    pub fn add(self, flow: FlowRef, packets: u16, bytes: u32, tcp_flags: u16, now: Time) {
        #[cfg(test)]
        WRITES.with(|work| work.added.set(work.added.get() + 1));
        let counters = self.of(flow);
        let was = counters.count_and_flags.load(Ordering::Relaxed);
        let count = was.wrapping_add(packed(packets.into(), bytes.into()) << FLAGS_BITS);
        // Before the count: a reader who sees the flow's first packet sees when it was.
        counters.used.store((now.0 >> TICK) as u32, Ordering::Relaxed);
        counters.count_and_flags.store(count | u64::from(tcp_flags), Ordering::Release);
        if carry_is_due(was, count) {
            self.all.carry(flow);
        }
    }

    fn totals(self, flow: FlowRef) -> &'a Totals {
        &self.all.totals.slice()[flow.index()]
    }

    /// Packets, bytes, and TCP flags. The worker may be counting.
    fn whole(self, flow: FlowRef) -> (u64, u64, u16) {
        let (counters, totals) = (self.of(flow), self.totals(flow));
        let noted = || (totals.packets.load(Ordering::Acquire), totals.bytes.load(Ordering::Acquire));
        loop {
            let (packets, bytes) = noted();
            let word = counters.count_and_flags.load(Ordering::Acquire);
            // The worker counts before it notes the totals, and never counts as much as the lower bits hold without
            // that. So if a total is still the same, the lower bits are behind it by less; one that is newer than the
            // other is no matter.
            if noted() == (packets, bytes) {
                let count = word >> FLAGS_BITS;
                let packets = extended(packets, count, PACKETS_BITS);
                let bytes = extended(bytes, count.wrapping_sub(packets) >> PACKETS_BITS, BITS - PACKETS_BITS);
                return (packets, bytes, word as u16);
            }
        }
    }

    /// What was counted for a flow so far.
    pub(in crate::classify) fn stats(self, flow: FlowRef) -> FlowStats {
        let (packets, bytes, tcp_flags) = self.whole(flow);
        let latest = self.all.latest.load(Ordering::Relaxed);
        let age = (latest as u32).wrapping_sub(self.of(flow).used.load(Ordering::Relaxed));
        let used = match (packets, age.wrapping_neg()) {
            (0, _) => 0,
            // The worker was faster than the reader.
            (_, ahead @ ..AHEAD) => latest + u64::from(ahead),
            _ => latest.saturating_sub(age.into()),
        };
        FlowStats { packets, bytes, used: Time(used << TICK), tcp_flags }
    }

    /// Begins anew, for another flow of this number. The writer's, while the flow is dead.
    pub(in crate::classify) fn clear(self, flow: FlowRef) {
        let (counters, totals) = (self.of(flow), self.totals(flow));
        for total in [&totals.bytes, &totals.packets] {
            // Most were never written, and take no memory until they are.
            if total.load(Ordering::Relaxed) != 0 {
                total.store(0, Ordering::Relaxed);
            }
        }
        counters.count_and_flags.store(0, Ordering::Relaxed);
        counters.used.store(0, Ordering::Relaxed);
    }
}

/// How often a thread's tests have written to counters.
#[cfg(test)]
#[derive(Default)]
pub struct CounterWrites {
    /// By [`FlowCounters::add`].
    pub added: std::cell::Cell<usize>,
    /// By [`Counters::invalidate_caches`].
    pub epochs_raised: std::cell::Cell<usize>,
}

#[cfg(test)]
thread_local! {
    /// Of this thread.
    pub static WRITES: CounterWrites = CounterWrites::default();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOW: usize = 3;

    fn flow() -> FlowRef {
        FlowRef::at(FLOW)
    }

    /// Largest batch.
    const PACKETS: u16 = packet::BATCH_SIZE as u16;
    const BYTES: u32 = PACKETS as u32 * 65_549;
    /// Batches in a row.
    const MOST: usize = if cfg!(miri) { 5 } else { 3000 };

    proptest! {
        /// As if all bits were counted, also where many batches overflow the lower ones; and other flows have nothing.
        #[test]
        fn is_exact(
            start in 0u64..1 << 54,
            adds in prop::collection::vec((1..=PACKETS, 0..=BYTES, 0..0x1000u16, 0..1u64 << 50), 1..40),
            each in 1..MOST,
        ) {
            let all_counters = WorkerFlowCounters::new(FLOW + 2);
            let flow_counters = all_counters.flow_counters();
            let (mut expected, mut now) = (FlowStats::default(), start);
            for (packets, bytes, tcp_flags, later) in adds {
                now += later;
                expected.add(&FlowStats {
                    packets: u64::from(packets) * each as u64,
                    bytes: u64::from(bytes) * each as u64,
                    used: Time(now >> TICK << TICK),
                    tcp_flags,
                });
                flow_counters.turn(Time(now));
                for _ in 0..each {
                    flow_counters.add(flow(), packets, bytes, tcp_flags, Time(now));
                }
                prop_assert_eq!(flow_counters.stats(flow()), expected);
            }
            prop_assert_eq!(flow_counters.stats(FlowRef::at(FLOW - 1)), FlowStats::default());
            prop_assert_eq!(flow_counters.stats(FlowRef::at(FLOW + 1)), FlowStats::default());
            flow_counters.clear(flow());
            prop_assert_eq!(flow_counters.stats(flow()), FlowStats::default());
        }
    }

    /// A reader sees each number rise only, and never more than was counted.
    #[test]
    fn is_read_while_it_counts() {
        const BATCHES: u64 = if cfg!(miri) { 300 } else { 3_000_000 };
        let all_counters = WorkerFlowCounters::new(FLOW + 1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                for n in 1..=BATCHES {
                    let now = Time((n / 1000) << TICK);
                    all_counters.flow_counters().turn(now);
                    all_counters.flow_counters().add(flow(), PACKETS, BYTES, 0, now);
                }
            });
            let mut last = FlowStats::default();
            while !worker.is_finished() {
                let stats = all_counters.flow_counters().stats(flow());
                let (packets, bytes) = (BATCHES * u64::from(PACKETS), BATCHES * u64::from(BYTES));
                assert!(
                    last.packets <= stats.packets && stats.packets <= packets,
                    "{} {}",
                    last.packets,
                    stats.packets
                );
                assert!(last.bytes <= stats.bytes && stats.bytes <= bytes, "{} {}", last.bytes, stats.bytes);
                assert!(last.used <= stats.used && stats.used.0 >> TICK <= BATCHES, "{:?} {:?}", last.used, stats.used);
                last = stats;
            }
        });
        let packets = BATCHES * u64::from(PACKETS);
        assert_eq!(all_counters.flow_counters().stats(flow()).packets, packets);
    }

    /// The time of the last packet does not depend on how long the machine runs, how long the worker has been idle
    /// since or before, and whether it noted its time first.
    #[test]
    fn long_times() {
        const TIMES: u64 = if cfg!(miri) { 10 } else { 1000 };
        let day = 24 * 3600 * 1_000_000_000u64;
        let all_counters = WorkerFlowCounters::new(FLOW + 1);
        let flow_counters = all_counters.flow_counters();
        for n in 0..TIMES {
            let at = |days: u64| Time((n * 120 + days) * day);
            flow_counters.turn(at(0));
            flow_counters.add(flow(), 1, 60, 0, at(0));
            for idle in [0, 25, 27, 51] {
                flow_counters.turn(at(idle));
                assert_eq!(flow_counters.stats(flow()).used.0 >> TICK, at(0).0 >> TICK, "after {idle} days");
            }
            let soon = Time(at(51).0 + 30_000_000_000);
            flow_counters.add(flow(), 1, 60, 0, soon);
            assert_eq!(flow_counters.stats(flow()).used.0 >> TICK, soon.0 >> TICK);
        }
    }
}
