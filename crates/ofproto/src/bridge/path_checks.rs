//! Path checks of a bridge's ports: BFD and CFM, configured and shown.

use openflow::OfPort;
use protocols::bfd::show::status;
use protocols::cfm::show::Columns;

use super::Bridge;
use crate::model::path_check::{PathCheckConfig, PathChecks};

impl Bridge {
    /// Changes how the path behind a port is checked. What is wrong in the options is in the log, and its default counts.
    pub fn set_path_checks(&self, port: OfPort, config: PathCheckConfig) {
        let has = |same: bool| {
            self.read(|bridge| bridge.ports.get(&port).map(|state| (state.path_checks.config == config) == same))
        };
        if has(false).flatten() != Some(true) {
            return;
        }
        let checks = path_checks(&format!("port {port}"), config);
        self.change(|bridge, _| {
            if let Some(state) = bridge.ports.get_mut(&port) {
                let down = state.path_checks.down;
                // Whether it is down is told by who runs the sessions.
                state.path_checks = PathChecks { down, ..checks };
            }
        });
        self.switch.follow_path_checks(self.id, port);
        self.switch.apply_path_checks();
    }

    /// The pairs of column `bfd_status` of a port; `None` where BFD is not enabled.
    pub fn bfd_status(&self, port: OfPort) -> Option<[(&'static str, String); 6]> {
        let now = self.now();
        self.switch.path_sessions.lock().bfd_of((self.id, port)).map(|session| status(session, now))
    }

    /// The columns `cfm_*` of a port; `None` without a maintenance point.
    pub fn cfm_columns(&self, port: OfPort) -> Option<Columns> {
        self.switch.path_sessions.lock().cfm_columns((self.id, port))
    }
}

/// The checks of a configuration; what is wrong in it is logged.
pub(super) fn path_checks(whose: &str, config: PathCheckConfig) -> PathChecks {
    let (checks, problems) = PathChecks::new(config);
    for problem in problems {
        // As with OVS, nothing that asks for attention: the default counts.
        tracing::info!(target: "bfd", "{whose}: {problem}");
    }
    checks
}
