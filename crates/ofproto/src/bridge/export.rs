//! What a bridge exports to collectors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use export::Moment;
use export::exporter::Report;
use export::ipfix::exporter::Statistics;
use export::settings::BridgeExport;

use super::Bridge;
use crate::model::sampling::Sampling;
use crate::switch::Switch;

impl Bridge {
    /// Sets what the bridge exports. What stays as it was goes on.
    pub fn set_export(&self, wanted: &BridgeExport) {
        if self.read(|bridge| bridge.sampling.settings == *wanted) == Some(true) {
            return;
        }
        // Before the bridge is changed, without its lock: the exporter may be asking it for counters.
        let netflow = self.switch.exporter.set(self.id().0, wanted, self.switch.moment());
        let set = self.change(|bridge, _| bridge.sampling = Sampling::of(wanted, netflow));
        if set.is_none() {
            // It has gone meanwhile.
            self.forget_export();
        }
    }

    /// Ends all exports of a bridge that goes.
    pub(crate) fn forget_export(&self) {
        self.switch.exporter.set(self.id().0, &BridgeExport::default(), self.switch.moment());
    }

    /// What the bridge's exporter of IPFIX has done, samples that wait included; `None` where there is none.
    pub fn ipfix_bridge_statistics(&self) -> Option<Statistics> {
        self.switch.exporter.bridge_statistics(self.id().0, self.switch.moment(), &*self.switch)
    }

    /// Likewise for its exporters for collector sets, by number.
    pub fn ipfix_flow_statistics(&self) -> Vec<(u32, Statistics)> {
        self.switch.exporter.collector_set_statistics(self.id().0, self.switch.moment(), &*self.switch)
    }

    /// How it stands with what the bridge exports.
    pub fn export_reports(&self) -> Vec<Report> {
        let mut reports = self.switch.export_reports();
        reports.retain(|report| report.bridge == self.id().0);
        reports
    }
}

impl Switch {
    /// Sends samples and flow records to collectors.
    pub fn exporter(&self) -> &export::exporter::Exporter {
        &self.exporter
    }

    /// The present time.
    pub fn moment(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Moment { now: self.clock.now(), wall }
    }

    /// How it stands with what all bridges export, by number of the bridge.
    pub fn export_reports(&self) -> Vec<Report> {
        self.exporter.reports(self.moment(), self)
    }
}
