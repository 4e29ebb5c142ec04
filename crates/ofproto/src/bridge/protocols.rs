//! What the protocols of links say of a port, in short: for who watches many.

use openflow::OfPort;
use protocols::bfd::State;

use super::Bridge;
use crate::model::forwarding::BridgeState;
use crate::model::port::PortProtocols;

impl Bridge {
    /// What bond, spanning tree, BFD and CFM say of a port.
    pub fn port_protocols(&self, port: OfPort) -> PortProtocols {
        let (bfd_up, cfm_fault) = {
            let sessions = self.switch.path_sessions.lock();
            let id = (self.id, port);
            let bfd = sessions.bfd_of(id).map(|session| session.state() == State::Up);
            (bfd, sessions.cfm_of(id).map(|point| !point.faults().is_empty()))
        };
        let of_port = |bridge: &BridgeState| {
            let state = bridge.ports.get(&port)?;
            let member = bridge.bond_of(state).and_then(|bond| bond.member(port));
            Some(PortProtocols {
                bond_enabled: member.map(|member| member.enabled),
                tree_forwards: state.spanning_tree.state.map(|state| state.forwards()),
                bfd_up,
                cfm_fault,
            })
        };
        self.read(of_port).flatten().unwrap_or_default()
    }
}
