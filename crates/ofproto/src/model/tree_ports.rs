//! Which ports of a bridge take part in its spanning tree.

use openflow::OfPort;
use protocols::spanning_tree::{PortSettings, Protocol, State};

use super::forwarding::{BridgeState, PortState};

impl BridgeState {
    /// The settings of a port that takes part in the spanning tree; `None` for one that does not: as in OVS, no member of a bond, no port of
    /// this machine's own, none that is reserved for copies, and none that is not to. What is wrong in its options counts as
    /// the default.
    pub fn tree_port(&self, port: &PortState) -> Option<PortSettings> {
        let protocol = self.config.spanning_tree.protocol;
        let may_be = protocol != Protocol::Off
            && port.port != OfPort::LOCAL
            && !port.spanning_tree.config.is_internal
            && !port.is_unbundled()
            && self.bond_of(port).is_none()
            && !self.is_mirror_port(port);
        let config = &port.spanning_tree.config;
        may_be.then(|| PortSettings::from_options(protocol, &port.name, port.device.mac(), &config.options).0).flatten()
    }

    /// Has no port forward that is new to the spanning tree, and every port that takes no part any more. To be called before the tables see a
    /// frame of a port that was added, and with each change of settings. Returns the ports that have another state now.
    pub fn guard_against_loops(&mut self) -> Vec<OfPort> {
        let protocol = self.config.spanning_tree.protocol;
        let is_off = protocol == Protocol::Off;
        // Without a spanning tree no port has a state, and there may be thousands of them.
        if is_off && !self.has_tree_states {
            return Vec::new();
        }
        self.has_tree_states = !is_off;
        let of_other = |port: &PortState| port.spanning_tree.state.map(State::protocol) != Some(protocol);
        let stale: Vec<_> = self.ports.values().filter(|port| of_other(port)).map(|port| port.port).collect();
        let mut changed = Vec::new();
        for number in stale {
            let state = match self.ports.get(&number) {
                Some(port) if !is_off && self.tree_port(port).is_some() => State::disabled(protocol),
                _ => None,
            };
            if let Some(port) = self.ports.get_mut(&number)
                && std::mem::replace(&mut port.spanning_tree.state, state) != state
            {
                changed.push(number);
            }
        }
        changed
    }
}
