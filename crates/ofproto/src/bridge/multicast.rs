//! Multicast groups of a bridge: configured, shown, forgotten.

use openflow::OfPort;
use protocols::mcast::{Entry, PortSettings, Snooping, Stats};

use super::Bridge;
use crate::error::Error;

impl Bridge {
    /// Changes what a port gets of multicast whoever is a member.
    pub fn set_port_multicast(&self, port: OfPort, settings: PortSettings) -> Result<(), Error> {
        let have = self.read(|bridge| bridge.ports.get(&port).map(|state| state.mcast_snooping)).flatten();
        match have {
            None => Err(self.no_such_port(port)),
            Some(have) if have == settings => Ok(()),
            Some(_) => {
                self.change(|bridge, _| {
                    if let Some(state) = bridge.ports.get_mut(&port) {
                        state.mcast_snooping = settings;
                    }
                    bridge.configure_multicast();
                });
                Ok(())
            }
        }
    }

    /// What was learnt, in the order of `mdb/show`; none where the bridge does not snoop on multicast.
    pub fn multicast_entries(&self) -> Option<Vec<Entry>> {
        self.read(|bridge| bridge.multicast.read(Snooping::entries)).flatten()
    }

    /// How many groups have members; none where the bridge does not snoop on multicast.
    pub fn multicast_group_count(&self) -> Option<usize> {
        self.read(|bridge| bridge.multicast.read(Snooping::groups)).flatten()
    }

    /// Counters of what was learnt.
    pub fn multicast_stats(&self) -> Stats {
        self.read(|bridge| bridge.multicast.stats()).unwrap_or_default()
    }

    /// Forgets all that was learnt of groups and routers; false where the bridge does not snoop on multicast.
    pub fn flush_multicast(&self) -> bool {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return false };
        self.switch.change_groups(bridge, Snooping::flush);
        bridge.config.mcast_snooping.is_some()
    }

    /// Forgets what was learnt of groups and routers behind a port, as where the topology of the network has changed there.
    pub fn forget_groups_behind(&self, port: OfPort) {
        self.forget_groups_of(&[port]);
    }

    /// The same for several ports.
    pub(super) fn forget_groups_of(&self, ports: &[OfPort]) {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return };
        self.switch.change_groups(bridge, |snooping| {
            ports.iter().for_each(|port| snooping.forget_port(bridge.logical(*port).0, |_| true));
        });
    }
}
