//! What one worker measures.

use std::sync::LazyLock;

use super::histogram::{Bins, Histogram, Walls, linear, logarithmic};
use super::history::{History, Iteration, SharedIteration};

/// Declares metrics: each with its histogram's walls, as OVS has them.
macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident $walls:expr;)*) => {
        /// A metric that has a histogram.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Metric {
            $($(#[$doc])* $variant,)*
        }

        impl Metric {
            const ALL: &[Metric] = &[$(Metric::$variant,)*];

            fn walls(self) -> &'static LazyLock<Walls> {
                match self {
                    $(Metric::$variant => {
                        static WALLS: LazyLock<Walls> = LazyLock::new(|| $walls);
                        &WALLS
                    })*
                }
            }
        }
    };
}

metrics! {
    /// Cycles of a turn.
    TurnCycles logarithmic(500, 24_000_000);
    /// Packets received in a turn.
    TurnPackets logarithmic(0, 1000);
    /// Cycles of a turn for each packet that it received.
    CyclesPerPacket linear(100, 30_000);
    /// Packets received together from a queue.
    ReceiveBatch linear(0, 32);
    /// Frames that the fullest queue of a guest had in a turn.
    TurnGuestQueue logarithmic(0, 512);
    /// Upcalls whose answers came back in a turn.
    TurnUpcalls linear(0, 30);
    /// Cycles from a packet's going up to its answer's being taken.
    UpcallCycles logarithmic(1000, 1_000_000);
    /// Packets sent together to a port.
    TransmitBatch linear(0, 32);
}

/// What one worker measures. It alone writes, anybody reads.
pub struct PerfMetrics {
    histograms: Vec<Histogram>,
    pub(super) totals: SharedIteration,
    pub(super) turns: History,
    pub(super) milliseconds: History,
}

impl Default for PerfMetrics {
    fn default() -> PerfMetrics {
        PerfMetrics {
            histograms: Metric::ALL.iter().map(|metric| Histogram::new(metric.walls())).collect(),
            totals: SharedIteration::default(),
            turns: History::default(),
            milliseconds: History::default(),
        }
    }
}

impl std::fmt::Debug for PerfMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PerfMetrics").field(&self.totals()).finish()
    }
}

impl PerfMetrics {
    /// Counts a value. Only for the worker.
    pub(crate) fn add(&self, metric: Metric, value: u64) {
        self.histograms[metric as usize].add(value);
    }

    /// The histogram of a metric.
    pub fn histogram(&self, metric: Metric) -> Bins {
        self.histograms[metric as usize].read()
    }

    /// The sums over all turns. Of the timestamp, it is none.
    pub fn totals(&self) -> Iteration {
        self.totals.read()
    }

    /// At most so many of the latest turns, the latest one first.
    pub fn latest_turns(&self, most: usize) -> Vec<Iteration> {
        self.turns.latest(most)
    }

    /// The same of whole milliseconds.
    pub fn latest_milliseconds(&self, most: usize) -> Vec<Iteration> {
        self.milliseconds.latest(most)
    }
}
