//! Detailed performance metrics of workers (`pmd-perf-metrics` of ovs-vswitchd.conf.db(5)): how long turns take, how many packets come and leave
//! together, how long upcalls take. OVS calls a turn an iteration.
//!
//! They are off by default. A worker looks then at a null pointer: once in a turn, for each batch received, for each burst sent and for each
//! answer of the slow path. Where they are on, it counts in memory of its own, which it alone writes and anybody reads:
//!
//! - histograms and sums, for each metric;
//! - a history of the latest turns, and one of the latest milliseconds;
//! - if supervised ([`supervision`]), turns that take too long are handed over with those around them, by a ring, to who logs them.
//!
//! Unlike in OVS, an upcall does not hold the worker up: handlers do the work. So its cycles are the time from its packet's going up to the
//! answer's being taken, and it counts in the turn in which it is taken.
//!
//! - [`histogram`]: a histogram, and where its bins end
//! - [`history`]: the latest turns or milliseconds
//! - [`metrics`]: what one worker measures
//! - [`supervision`]: which turns are suspicious, and how they are handed over
//! - [`worker`]: a worker's end
//! - [`state`]: the control plane's end

pub mod histogram;
pub mod history;
pub mod metrics;
pub mod state;
pub mod supervision;
pub mod worker;

pub use histogram::{BINS, Bins};
pub use history::Iteration;
pub use metrics::{Metric, PerfMetrics};
pub use supervision::{Reason, Supervision, Suspicious};
