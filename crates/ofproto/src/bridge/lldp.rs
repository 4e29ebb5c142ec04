//! LLDP of a bridge's ports: configured.

use openflow::OfPort;

use super::Bridge;

impl Bridge {
    /// Has a port speak LLDP, or be silent.
    pub fn set_lldp(&self, port: OfPort, speaks: bool) {
        if self.read(|bridge| bridge.ports.get(&port).map(|state| state.lldp == speaks)).flatten() != Some(false) {
            return;
        }
        self.change(|bridge, _| {
            if let Some(state) = bridge.ports.get_mut(&port) {
                state.lldp = speaks;
            }
        });
        self.switch.follow_lldp(self.id, port);
    }
}
