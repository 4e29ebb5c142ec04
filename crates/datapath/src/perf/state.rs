//! The control plane's end: whether workers measure, and where what they measure is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::metrics::PerfMetrics;
use super::supervision::{Supervision, Suspicious, SuspiciousReader, supervise};
use super::worker::WorkerPerf;
use crate::sync::tsc;

/// Whether and how workers measure.
#[derive(Default)]
pub struct PerfState {
    measures: bool,
    supervises: bool,
    supervision: Supervision,
    workers: BTreeMap<usize, OfWorker>,
}

/// The readers' ends of a worker.
struct OfWorker {
    metrics: Arc<PerfMetrics>,
    suspicious: Option<SuspiciousReader>,
}

impl PerfState {
    /// Switches measuring on or off. True where that is a change. Workers are to be told.
    pub fn set_measures(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.measures, on) != on
    }

    /// Whether workers measure.
    pub fn measures(&self) -> bool {
        self.measures
    }

    /// Has turns supervised while workers measure, or not, and says how. Workers are to be told.
    pub fn set_supervision(&mut self, on: bool, supervision: Supervision) {
        (self.supervises, self.supervision) = (on, supervision.bounded());
    }

    /// Whether turns are supervised, and how.
    pub fn supervision(&self) -> (bool, Supervision) {
        (self.supervises, self.supervision)
    }

    /// A worker's end; `None` where it is not to measure. What was known of its number before is forgotten, unless it is to be kept.
    pub fn for_worker(&mut self, number: usize, keep: bool) -> Option<Box<WorkerPerf>> {
        let before = self.workers.remove(&number);
        if !self.measures {
            return None;
        }
        let metrics = before.filter(|_| keep).map_or_else(Arc::default, |of| of.metrics);
        let (supervisor, suspicious) = self.supervises.then(|| supervise(self.supervision, tsc::frequency())).unzip();
        self.workers.insert(number, OfWorker { metrics: metrics.clone(), suspicious });
        Some(Box::new(WorkerPerf::new(metrics, supervisor)))
    }

    /// Forgets a worker.
    pub fn forget(&mut self, number: usize) {
        self.workers.remove(&number);
    }

    /// What workers measure, by their numbers.
    pub fn metrics(&self) -> BTreeMap<usize, Arc<PerfMetrics>> {
        self.workers.iter().map(|(number, of)| (*number, of.metrics.clone())).collect()
    }

    /// At most so many turns of each worker that were suspicious since the last call, by the workers' numbers.
    pub fn take_suspicious(&mut self, most: usize) -> Vec<(usize, Suspicious)> {
        let (mut found, mut data) = (Vec::new(), Vec::new());
        for (number, of) in &mut self.workers {
            let Some(reader) = &mut of.suspicious else { continue };
            found.extend(std::iter::from_fn(|| reader.next(&mut data)).take(most).map(|turn| (*number, turn)));
        }
        // As the workers have done by themselves.
        if found.iter().any(|(_, turn)| turn.has_many_around()) {
            self.supervision.fall_back();
        }
        found
    }
}
