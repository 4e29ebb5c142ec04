//! LACP: frames that members receive.
//!
//! A frame comes up as a punt ([`Punt::Lacp`](datapath::Punt::Lacp)); a handler gives it to the session of its port, and has the thread of the bonds
//! look at what has come of it. That thread runs the sessions ([`LacpSessions::run`](super::lacp_sessions::LacpSessions::run)), tells the
//! bonds which members may be used, and sends frames.

use std::sync::Arc;

use openflow::OfPort;
use protocols::lacp::ReceiveError;

use crate::bridge::Bridge;
use crate::model::forwarding::BridgeId;
use crate::switch::Switch;

impl Switch {
    /// Tells controllers of the ports that LACP has let carry traffic, or does not any more, and has flows and groups that depend on that looked at.
    pub fn tell_lacp_changes(self: &Arc<Switch>) {
        let changed = std::mem::take(&mut self.lacp.lock().changed);
        for (id, port) in changed {
            let name = self.forwarding.read().bridges.get(&id).map(|bridge| bridge.config.name.as_str().into());
            if let Some(name) = name {
                Bridge::new(self.clone(), id, name).liveness_changed(port);
            }
        }
    }

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
