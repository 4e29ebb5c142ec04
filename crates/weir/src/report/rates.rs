//! Rates: what the counters of two reports say of the time between them.
//!
//! A counter that is lower than before has started from zero meanwhile (`dpif-netdev/pmd-stats-clear`, a port or daemon that is new): then
//! all of it is of the interval.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Stats, WorkerStats};

/// What happened in an interval. Counts are by second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatsRates {
    /// Length of the interval in seconds.
    pub interval_s: f64,
    /// All workers together, those that have ended meanwhile too. `cycles_per_packet` is the average, `busy_percent` of one worker.
    pub total: WorkerRates,
    /// Each worker.
    pub workers: Vec<WorkerRates>,
    /// Flows in the datapath at the end of the interval.
    pub flows: usize,
    /// Different masks of these flows.
    pub masks: usize,
    /// Flows that had to make room for others, or for wider masks, by second.
    pub evictions: f64,
}

/// What a worker did in an interval. Counts are by second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRates {
    /// Its number; `None` for all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// Core that it is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Packets received.
    pub packets: f64,
    /// Packets sent to ports.
    pub sent: f64,
    /// Packets dropped, for whatever reason.
    pub dropped: f64,
    /// The same by reason; those that occur.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, f64>,
    /// Packets that ports did not take.
    pub refused: f64,
    /// Passes because of recirculation.
    pub recirculated: f64,
    /// Hits in tier 0, the simple match table.
    pub simple_hits: f64,
    /// Hits in tier 1, the exact-match cache.
    pub exact_hits: f64,
    /// Hits in tier 2, the megaflow table.
    pub megaflow_hits: f64,
    /// Misses that the slow path answered.
    pub misses: f64,
    /// Misses that were dropped.
    pub lost: f64,
    /// Packets that an action gave to the slow path.
    pub punted: f64,
    /// Busy cycles for each pass of a packet; zero without packets.
    pub cycles_per_packet: f64,
    /// The part of the time in which it handled packets, in percent.
    pub busy_percent: f64,
}

/// How much a counter has risen.
pub fn risen(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// How much a counter has risen by second.
pub fn per_second(now: u64, before: u64, time: Duration) -> f64 {
    ratio(risen(now, before) as f64, time.as_secs_f64())
}

fn ratio(n: f64, of: f64) -> f64 {
    if of > 0.0 { n / of } else { 0.0 }
}

impl Stats {
    /// What happened since `before`, which was `time` ago.
    #[must_use]
    pub fn rates(&self, before: &Stats, time: Duration) -> StatsRates {
        let known: BTreeMap<_, _> = before.workers.iter().map(|w| (w.worker, w)).collect();
        let new = WorkerStats::default();
        let since = |now: &WorkerStats| now.since(known.get(&now.worker).unwrap_or(&&new));
        let workers = self.workers.iter().map(|now| WorkerRates {
            worker: Some(now.worker),
            core: now.core,
            ..since(now).by_second(time, self.cycles_per_second)
        });
        StatsRates {
            interval_s: time.as_secs_f64(),
            workers: workers.collect(),
            total: self.sum().since(&before.sum()).by_second(time, self.cycles_per_second),
            flows: self.flows,
            masks: self.masks,
            evictions: per_second(self.evictions, before.evictions, time),
        }
        .with_average_load()
    }

    /// The counters of all workers. What one has counted moves to those of the ended ones when it ends, so only the sum never falls.
    fn sum(&self) -> WorkerStats {
        let mut sum = WorkerStats::default();
        for w in self.workers.iter().chain(&self.ended) {
            sum.packets += w.packets;
            sum.sent += w.sent;
            sum.refused += w.refused;
            sum.recirculated += w.recirculated;
            sum.simple_hits += w.simple_hits;
            sum.exact_hits += w.exact_hits;
            sum.megaflow_hits += w.megaflow_hits;
            sum.misses += w.misses;
            sum.lost += w.lost;
            sum.punted += w.punted;
            sum.busy_cycles += w.busy_cycles;
            w.drops.iter().for_each(|(reason, n)| *sum.drops.entry(reason.clone()).or_default() += n);
        }
        sum
    }
}

impl StatsRates {
    fn with_average_load(mut self) -> StatsRates {
        let busy: f64 = self.workers.iter().map(|w| w.busy_percent).sum();
        self.total.busy_percent = ratio(busy, self.workers.len() as f64);
        self
    }
}

impl WorkerStats {
    /// How much the counters have risen that rates are made of.
    fn since(&self, before: &WorkerStats) -> WorkerStats {
        let drops = self
            .drops
            .iter()
            .map(|(reason, &n)| (reason.clone(), risen(n, before.drops.get(reason).copied().unwrap_or(0))));
        WorkerStats {
            packets: risen(self.packets, before.packets),
            sent: risen(self.sent, before.sent),
            refused: risen(self.refused, before.refused),
            recirculated: risen(self.recirculated, before.recirculated),
            simple_hits: risen(self.simple_hits, before.simple_hits),
            exact_hits: risen(self.exact_hits, before.exact_hits),
            megaflow_hits: risen(self.megaflow_hits, before.megaflow_hits),
            misses: risen(self.misses, before.misses),
            lost: risen(self.lost, before.lost),
            punted: risen(self.punted, before.punted),
            busy_cycles: risen(self.busy_cycles, before.busy_cycles),
            drops: drops.collect(),
            ..WorkerStats::default()
        }
    }

    /// These counts by second, if they are of this time.
    fn by_second(&self, time: Duration, cycles_per_second: u64) -> WorkerRates {
        let seconds = time.as_secs_f64();
        let rate = |n: u64| ratio(n as f64, seconds);
        let (busy, passes) = (self.busy_cycles as f64, self.packets + self.recirculated);
        WorkerRates {
            worker: None,
            core: None,
            packets: rate(self.packets),
            sent: rate(self.sent),
            dropped: rate(self.drops.values().sum()),
            drops: self.drops.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| (reason.clone(), rate(*n))).collect(),
            refused: rate(self.refused),
            recirculated: rate(self.recirculated),
            simple_hits: rate(self.simple_hits),
            exact_hits: rate(self.exact_hits),
            megaflow_hits: rate(self.megaflow_hits),
            misses: rate(self.misses),
            lost: rate(self.lost),
            punted: rate(self.punted),
            cycles_per_packet: ratio(busy, passes as f64),
            busy_percent: (100.0 * ratio(busy, seconds * cycles_per_second as f64)).min(100.0),
        }
    }
}

impl WorkerRates {
    /// How much of the passes of packets some of them are, in percent.
    pub fn share(&self, part: f64) -> f64 {
        100.0 * ratio(part, self.packets + self.recirculated)
    }
}

/// A column of `weir stats --interval`: heading, and what it shows.
type Column = (&'static str, fn(&StatsRates) -> String);

/// Width of a column, without the blank before it.
const WIDTH: usize = 9;

const COLUMNS: &[Column] = &[
    ("rx/s", |r| whole(r.total.packets)),
    ("tx/s", |r| whole(r.total.sent)),
    ("drop/s", |r| whole(r.total.dropped)),
    ("refused/s", |r| whole(r.total.refused)),
    ("recirc/s", |r| whole(r.total.recirculated)),
    ("tier0 %", |r| tenths(r.total.share(r.total.simple_hits))),
    ("tier1 %", |r| tenths(r.total.share(r.total.exact_hits))),
    ("tier2 %", |r| tenths(r.total.share(r.total.megaflow_hits))),
    ("miss/s", |r| whole(r.total.misses)),
    ("lost/s", |r| whole(r.total.lost)),
    ("busy %", |r| tenths(r.total.busy_percent)),
    ("cyc/pkt", |r| whole(r.total.cycles_per_packet)),
    ("flows", |r| r.flows.to_string()),
    ("masks", |r| r.masks.to_string()),
];

fn whole(n: f64) -> String {
    format!("{n:.0}")
}

fn tenths(n: f64) -> String {
    format!("{n:.1}")
}

/// The headings of [`line`].
pub fn headings() -> String {
    joined(COLUMNS.iter().map(|(heading, _)| (*heading).to_owned()))
}

/// An interval in one line, as vmstat(8) has it.
pub fn line(rates: &StatsRates) -> String {
    joined(COLUMNS.iter().map(|(_, value)| value(rates)))
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<_> = cells.map(|cell| format!("{cell:>WIDTH$}")).collect();
    cells.join(" ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn stats(workers: &[(usize, u64)], ended: u64) -> Stats {
        let worker = |worker, packets| WorkerStats {
            worker,
            packets,
            exact_hits: packets / 2,
            busy_cycles: packets * 100,
            drops: BTreeMap::from([("rule".to_owned(), packets / 10)]),
            ..WorkerStats::default()
        };
        Stats {
            workers: workers.iter().map(|&(number, packets)| worker(number, packets)).collect(),
            ended: (ended > 0).then(|| worker(0, ended)),
            cycles_per_second: SECOND,
            ..Stats::default()
        }
    }

    #[test]
    fn rates_are_of_the_interval_alone() {
        let (before, now) = (stats(&[(0, 1000), (1, 500)], 0), stats(&[(0, 11_000), (1, 500)], 0));
        let rates = now.rates(&before, Duration::from_secs(2));
        let [busy, idle] = &rates.workers[..] else { panic!("{rates:?}") };
        assert_eq!((busy.packets, busy.exact_hits, busy.dropped), (5000.0, 2500.0, 500.0));
        assert_eq!((busy.busy_percent, busy.cycles_per_packet), (50.0, 100.0));
        assert_eq!((idle.packets, idle.busy_percent, idle.cycles_per_packet), (0.0, 0.0, 0.0));
        assert_eq!((rates.total.packets, rates.total.busy_percent), (5000.0, 25.0));
        assert_eq!(rates.total.share(rates.total.exact_hits), 50.0);
    }

    #[test]
    fn a_worker_that_ends_takes_nothing_from_the_total() {
        let (before, now) = (stats(&[(0, 1000), (1, 500)], 0), stats(&[(0, 1200)], 600));
        let rates = now.rates(&before, Duration::from_secs(1));
        assert_eq!((rates.workers[0].packets, rates.total.packets), (200.0, 300.0));
    }

    #[test]
    fn counters_that_start_again_are_not_negative() {
        let (before, now) = (stats(&[(0, 1000)], 0), stats(&[(0, 30)], 0));
        assert_eq!(now.rates(&before, Duration::from_secs(1)).total.packets, 30.0);
        assert_eq!(now.rates(&before, Duration::ZERO).total.packets, 0.0, "nor infinite");
    }

    #[test]
    fn a_line_is_as_wide_as_its_headings() {
        let rates = stats(&[(0, 123_456)], 0).rates(&stats(&[(0, 0)], 0), Duration::from_secs(1));
        assert_eq!((line(&rates).len(), headings().len()), (140, 140));
        assert!(line(&rates).starts_with("   123456 "), "{}", line(&rates));
    }
}
