//! Detailed performance metrics of workers: see [`crate::perf`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::control::plane::ControlPlane;
use crate::datapath::Datapath;
use crate::perf::{PerfMetrics, Supervision, Suspicious};
use crate::worker::mailbox::Command;

impl Datapath {
    /// Has workers measure, or no longer. What they have measured is forgotten. Not to be called from an upcall.
    pub fn set_perf_metrics(&self, on: bool) {
        let mut control = self.control.lock();
        if control.perf.set_measures(on) {
            self.tell_perf(&mut control, false);
        }
    }

    /// Has turns supervised like that while workers measure, or no longer. Not to be called from an upcall.
    pub fn set_supervision(&self, on: bool, supervision: Supervision) {
        let mut control = self.control.lock();
        control.perf.set_supervision(on, supervision);
        self.tell_perf(&mut control, true);
    }

    /// Whether turns are supervised, and how.
    pub fn supervision(&self) -> (bool, Supervision) {
        self.control.lock().perf.supervision()
    }

    /// What workers measure, by their numbers; nothing where they do not.
    pub fn perf_metrics(&self) -> BTreeMap<usize, Arc<PerfMetrics>> {
        self.control.lock().perf.metrics()
    }

    /// At most so many turns of each worker that were suspicious since the last call, by the workers' numbers.
    pub fn take_suspicious(&self, most: usize) -> Vec<(usize, Suspicious)> {
        self.control.lock().perf.take_suspicious(most)
    }

    /// Has workers begin to measure anew, if they measure.
    pub(super) fn restart_perf(&self) {
        let mut control = self.control.lock();
        if control.perf.measures() {
            self.tell_perf(&mut control, false);
        }
    }

    /// Tells workers what to measure. `keep`: they add to what they have measured.
    fn tell_perf(&self, control: &mut ControlPlane, keep: bool) {
        {
            let pool = self.pool.read();
            for (number, mailbox) in pool.mailboxes() {
                mailbox.post(Command::SetPerf(control.perf.for_worker(number, keep)));
            }
        }
        control.serve();
    }
}
