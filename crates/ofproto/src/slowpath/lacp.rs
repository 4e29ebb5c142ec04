//! LACP: frames that members receive.
//!
//! A frame comes up as a punt ([`Punt::Lacp`](datapath::Punt::Lacp)); a handler gives it to the session of its port, and has the thread of the bonds
//! look at what has come of it. That thread runs the sessions ([`LacpSessions::run`](super::lacp_sessions::LacpSessions::run)), tells the
//! bonds which members may be used, and sends frames.

use openflow::OfPort;
use protocols::lacp::ReceiveError;

use crate::model::forwarding::BridgeId;
use crate::switch::Switch;

impl Switch {
    /// Takes a frame of a slow protocol that a port has received.
    pub(crate) fn receive_lacp(&self, bridge: BridgeId, port: OfPort, frame: &[u8]) {
        let logical = {
            let forwarding = self.forwarding.read();
            let state = forwarding.bridges.get(&bridge).and_then(|bridge| bridge.ports.get(&port));
            state.map(|state| state.logical.clone())
        };
        // The port may have gone, or have just ceased to speak LACP.
        let Some(logical) = logical else { return };
        let outcome = self.lacp.lock().receive((bridge, logical), port, frame, self.clock.now());
        match outcome {
            Some(Err(ReceiveError::Malformed(error))) => tracing::debug!(target: "lacp", "{port}: {error}"),
            Some(_) => self.notify_bonds(),
            None => {}
        }
    }
}
