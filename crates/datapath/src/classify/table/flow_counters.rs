//! Flow counters: what each worker counts for each flow.
//!
//! Where every packet belongs to another flow, each one costs a cache line of counters, which is in no cache and has
//! to be written back. So only the lower bits are where packets are counted: 16 bytes for each flow, four flows to a
//! cache line. Whenever the highest of these bits changes, the worker stores the whole numbers in a second array,
//! which few packets touch. Nothing is reset. So a reader combines the whole numbers as they were not long ago with
//! the lower bits of now, and the result is exact, even if either changes meanwhile. The time of the last packet is
//! derived from its lower bits in the same way: it is near the worker's time.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use packet::Time;

use super::flow_ref::FlowRef;
use crate::classify::mem::region::{Region, Zero};
use crate::upcall::FlowStats;

/// Bytes for each flow and worker: the lower bits, and the whole numbers, whose memory is only touched by flows with
/// many packets.
pub const COUNTERS_BYTES: usize = size_of::<Counters>() + size_of::<Totals>();

/// The lower bits of a worker's counters of a flow. Written by this worker alone, except for the epoch.
#[repr(C, align(16))]
pub struct Counters {
    /// [`packed`], lower 48 bits, above the TCP flags.
    count_and_flags: AtomicU64,
    /// Time of the last packet, in [`TICK`]s.
    used: AtomicU32,
    /// The flow's epoch for this worker. Incremented by the writer whenever the flow dies or gets other actions. A
    /// cache entry of the flow holds as long as the epoch is the one that the entry has.
    epoch: AtomicU32,
}

const _: () = assert!(size_of::<Counters>() == 16);

// SAFETY: all-zero bytes are a valid value, since all members are atomic integers, which need not be dropped.
unsafe impl Zero for Counters {}

/// Bits of a [`Time`] that are left out: a tick is about 1 ms, and 32 bits of ticks last for 52 days.
const TICK: u32 = 20;

/// How many ticks a flow's time may be later than the worker's time that was read before it: about a minute.
const MAX_AHEAD: u32 = 1 << 16;

/// The whole counters of a flow, as of the last time that [`carry_is_due`] was true.
#[repr(C, align(16))]
struct Totals {
    bytes: AtomicU64,
    packets: AtomicU64,
}

const _: () = assert!(size_of::<Totals>() == 16);

// SAFETY: all-zero bytes are a valid value, since all members are atomic integers, which need not be dropped.
unsafe impl Zero for Totals {}

/// Bits of packets in a number with packets and bytes.
const PACKETS_BITS: u32 = 16;
/// Bits of packets and bytes in such a number.
const BITS: u32 = 48;
const FLAGS_BITS: u32 = 64 - BITS;

/// The smallest number, not below `total`, whose lower `bits` bits are those of `low`.
#[inline(always)]
fn extended(total: u64, low: u64, bits: u32) -> u64 {
    total + (low.wrapping_sub(total) & ((1 << bits) - 1))
}

/// Packets and bytes in one number, so that one addition counts both: bytes times 65 536, plus packets.
#[inline(always)]
const fn packed(packets: u64, bytes: u64) -> u64 {
    packets.wrapping_add(bytes << PACKETS_BITS)
}

/// Whether the totals have to be stored when such a number, above TCP flags, changes from `was` to `is`: whenever the
/// highest bit of its packets or of the whole number changes.
#[inline(always)]
const fn carry_is_due(was: u64, is: u64) -> bool {
    (was ^ is) & (1 << 63 | 1 << (FLAGS_BITS + PACKETS_BITS - 1)) != 0
}

impl Counters {
    /// The epoch, which changes when the flow dies or gets other actions. To be read before the flow is.
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Increments the epoch, which invalidates the worker's cache entries of the flow. For the writer alone.
    pub(in crate::classify) fn invalidate_caches(&self) {
        #[cfg(test)]
        WRITES.with(|work| work.epochs_raised.set(work.epochs_raised.get() + 1));
        self.epoch.store(self.epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A worker's counters of all flows, in one array on huge pages, so that they are found without another cache line.
/// No two workers share a cache line, nor a pair of lines that the processor prefetches together, since each worker
/// writes with every batch.
#[repr(align(128))]
pub(in crate::classify) struct WorkerFlowCounters {
    counters: Region<Counters>,
    totals: Region<Totals>,
    /// The worker's time at its last batch, in ticks. A flow's time is exact while it is less than 52 days before
    /// this.
    latest: AtomicU64,
}

impl WorkerFlowCounters {
    /// Counters for this many flows.
    pub fn new(flows: usize) -> WorkerFlowCounters {
        WorkerFlowCounters { counters: Region::new(flows), totals: Region::new(flows), latest: AtomicU64::new(0) }
    }

    /// The counters, for access.
    #[inline(always)]
    pub fn flow_counters(&self) -> FlowCounters<'_> {
        FlowCounters { counters: self.counters.slice(), all: self }
    }

    /// Stores the whole counters of a flow. For the worker alone.
    #[cold]
    #[inline(never)]
    fn carry(&self, flow: FlowRef) {
        let (packets, bytes, _) = self.flow_counters().read(flow);
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
    /// The counters of a flow.
    #[inline(always)]
    pub fn of(self, flow: FlowRef) -> &'a Counters {
        debug_assert!(flow.index() < self.counters.len());
        // SAFETY: the array has an element for every number that the arena can hand out, so the index is in bounds.
        unsafe { self.counters.get_unchecked(flow.index()) }
    }

    /// Stores the time of a batch. For the worker alone.
    #[inline(always)]
    pub fn set_latest(self, now: Time) {
        self.all.latest.store(now.0 >> TICK, Ordering::Relaxed);
    }

    /// Counts packets for a flow, at most a batch of the largest packets. For the worker alone.
    #[inline(always)]
    pub fn add(self, flow: FlowRef, packets: u16, bytes: u32, tcp_flags: u16, now: Time) {
        #[cfg(test)]
        WRITES.with(|work| work.added.set(work.added.get() + 1));
        let counters = self.of(flow);
        let was = counters.count_and_flags.load(Ordering::Relaxed);
        let count = was.wrapping_add(packed(packets.into(), bytes.into()) << FLAGS_BITS);
        // Stored before the count: a reader that sees the flow's first packet must see its time.
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
    fn read(self, flow: FlowRef) -> (u64, u64, u16) {
        let (counters, totals) = (self.of(flow), self.totals(flow));
        let read_totals = || (totals.packets.load(Ordering::Acquire), totals.bytes.load(Ordering::Acquire));
        loop {
            let (packets, bytes) = read_totals();
            let word = counters.count_and_flags.load(Ordering::Acquire);
            // The worker counts before it stores the totals, and it stores them before the lower bits can overflow.
            // So if the totals are still the same, they are behind the lower bits by less than these can hold. It
            // does not matter if one total is newer than the other.
            if read_totals() == (packets, bytes) {
                let count = word >> FLAGS_BITS;
                let packets = extended(packets, count, PACKETS_BITS);
                let bytes = extended(bytes, count.wrapping_sub(packets) >> PACKETS_BITS, BITS - PACKETS_BITS);
                return (packets, bytes, word as u16);
            }
        }
    }

    /// The statistics of a flow so far.
    pub(in crate::classify) fn stats(self, flow: FlowRef) -> FlowStats {
        let (packets, bytes, tcp_flags) = self.read(flow);
        let latest = self.all.latest.load(Ordering::Relaxed);
        let age = (latest as u32).wrapping_sub(self.of(flow).used.load(Ordering::Relaxed));
        let used = match (packets, age.wrapping_neg()) {
            (0, _) => 0,
            // The worker has counted a packet after the reader has read its time.
            (_, ahead @ ..MAX_AHEAD) => latest + u64::from(ahead),
            _ => latest.saturating_sub(age.into()),
        };
        FlowStats { packets, bytes, used: Time(used << TICK), tcp_flags }
    }

    /// Resets the counters, for another flow with this number. For the writer alone, while the flow is dead.
    pub(in crate::classify) fn clear(self, flow: FlowRef) {
        let (counters, totals) = (self.of(flow), self.totals(flow));
        for total in [&totals.bytes, &totals.packets] {
            // Most totals were never written, and take no memory until they are.
            if total.load(Ordering::Relaxed) != 0 {
                total.store(0, Ordering::Relaxed);
            }
        }
        counters.count_and_flags.store(0, Ordering::Relaxed);
        counters.used.store(0, Ordering::Relaxed);
    }
}

/// How often the tests of a thread have written to counters.
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
    /// The writes of this thread.
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
        /// The result is as if all bits were counted, also where many batches overflow the lower ones. Other flows
        /// are not affected.
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
                flow_counters.set_latest(Time(now));
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
                    all_counters.flow_counters().set_latest(now);
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
            flow_counters.set_latest(at(0));
            flow_counters.add(flow(), 1, 60, 0, at(0));
            for idle in [0, 25, 27, 51] {
                flow_counters.set_latest(at(idle));
                assert_eq!(flow_counters.stats(flow()).used.0 >> TICK, at(0).0 >> TICK, "after {idle} days");
            }
            let soon = Time(at(51).0 + 30_000_000_000);
            flow_counters.add(flow(), 1, 60, 0, soon);
            assert_eq!(flow_counters.stats(flow()).used.0 >> TICK, soon.0 >> TICK);
        }
    }
}
