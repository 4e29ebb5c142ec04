//! Spanning trees of a bridge: its ports' part in them configured, and what they say of themselves.

use openflow::OfPort;
use protocols::options::OptionError;
use protocols::spanning_tree::{Bridge as Tree, PortSettings, Protocol, Settings};
use protocols::{rstp, stp};

use super::Bridge;
use crate::model::config::BridgeConfig;
use crate::model::forwarding::BridgeState;
use crate::model::spanning_tree::SpanningTreePort;

/// What a bridge says of its spanning tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeStatus {
    /// By STP.
    Stp(stp::Status),
    /// By RSTP.
    Rstp(rstp::Status),
}

/// What a port says of its part in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePortStatus {
    /// By STP.
    Stp(stp::PortStatus),
    /// By RSTP.
    Rstp(rstp::PortStatus),
}

impl Bridge {
    /// Changes what is configured for a port's part in the spanning tree. What is wrong in the options is in the log, and its
    /// default counts.
    pub fn set_spanning_tree(&self, port: OfPort, config: SpanningTreePort) {
        let name = |bridge: &BridgeState| {
            let state = bridge.ports.get(&port).filter(|state| state.spanning_tree.config != config)?;
            Some((state.name.clone(), bridge.config.spanning_tree.protocol))
        };
        let Some((name, protocol)) = self.read(name).flatten() else { return };
        log_port_problems(protocol, &name, &config);
        self.change(|bridge, _| {
            if let Some(state) = bridge.ports.get_mut(&port) {
                state.spanning_tree.config = config;
            }
            bridge.guard_against_loops();
        });
        self.switch.notify_spanning_trees();
    }

    /// What the bridge says of its spanning tree; `None` where it has none.
    pub fn tree_status(&self) -> Option<TreeStatus> {
        let trees = self.switch.spanning_trees.lock();
        Some(match &trees.get(self.id)?.bridge {
            Tree::Stp(tree) => TreeStatus::Stp(tree.status()),
            Tree::Rstp(tree) => TreeStatus::Rstp(tree.status()),
        })
    }

    /// What a port says of its part in the spanning tree; `None` where it takes none.
    pub fn tree_port_status(&self, port: OfPort) -> Option<TreePortStatus> {
        let now = self.now();
        let trees = self.switch.spanning_trees.lock();
        let tree = trees.get(self.id)?;
        let number = tree.number(port)?;
        Some(match &tree.bridge {
            Tree::Stp(tree) => TreePortStatus::Stp(tree.port_status(now, number)?),
            Tree::Rstp(tree) => TreePortStatus::Rstp(tree.port_status(number)?),
        })
    }
}

/// Logs what is wrong in the options of a bridge.
pub(super) fn log_problems(config: &BridgeConfig) {
    let tree = &config.spanning_tree;
    // Whose address it is does not matter.
    let (_, problems) = Settings::from_options(tree.protocol, [2, 0, 0, 0, 0, 0], &tree.options);
    log(&format!("bridge {}", config.name), &problems);
}

/// Logs what is wrong in the options of a port.
pub(super) fn log_port_problems(protocol: Protocol, name: &str, config: &SpanningTreePort) {
    let (_, problems) = PortSettings::from_options(protocol, name, [2, 0, 0, 0, 0, 0], &config.options);
    log(&format!("port {name}"), &problems);
}

fn log(whose: &str, problems: &[OptionError]) {
    for problem in problems {
        tracing::warn!(target: "bridge", "{whose}: {problem}");
    }
}
