//! The bridges of a switch: adding, removing and finding them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openflow::OfPort;

use super::Bridge;
use crate::error::Error;
use crate::model::config::BridgeConfig;
use crate::model::forwarding::{BridgeId, BridgeState};
use crate::switch::Switch;

impl Switch {
    /// Adds a bridge without ports. In standalone mode and without controllers it gets one flow, of
    /// priority 0, with the action NORMAL.
    pub fn add_bridge(self: &Arc<Switch>, config: BridgeConfig) -> Result<Bridge, Error> {
        super::spanning_tree::log_problems(&config);
        let id = BridgeId(self.next_bridge.fetch_add(1, Ordering::Relaxed));
        let name: Arc<str> = config.name.as_str().into();
        let mut forwarding = self.forwarding.write();
        if forwarding.bridges.values().any(|bridge| bridge.config.name == config.name) {
            return Err(Error::BridgeExists(config.name));
        }
        let meter_numbers = forwarding.meter_numbers.clone();
        forwarding.bridges.insert(id, BridgeState::new(id, config, meter_numbers));
        forwarding.touch();
        drop(forwarding);
        let bridge = Bridge::new(self.clone(), id, name);
        bridge.flush_flows();
        Ok(bridge)
    }

    /// Removes a bridge and its ports.
    pub fn remove_bridge(self: &Arc<Switch>, name: &str) -> Result<(), Error> {
        let bridge = self.bridge(name).ok_or_else(|| Error::NoSuchBridge(name.to_owned()))?;
        let ports: Vec<OfPort> = bridge.ports().into_iter().map(|port| port.port).collect();
        bridge.remove_ports(&ports)?;
        self.forget_neighbours([name].into_iter());
        let mut forwarding = self.forwarding.write();
        let state = forwarding.bridges.remove(&bridge.id());
        forwarding.touch();
        drop(forwarding);
        // Freeing its flows takes time, in which packets of others do not wait.
        drop(state);
        self.subscribers.write().retain(|_, (id, _)| *id != bridge.id());
        self.revalidate();
        // The last packets are credited.
        bridge.forget_export();
        Ok(())
    }

    /// Forgets the neighbours that are known by ports or bridges that go.
    pub(crate) fn forget_neighbours<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut neighbours = self.underlay.netstate.neighbours.lock();
        let before = neighbours.generation();
        names.for_each(|name| neighbours.flush(Some(name)));
        let changed = neighbours.generation() != before;
        drop(neighbours);
        if changed {
            self.netstate_changed();
        }
    }

    /// The bridge with this name.
    pub fn bridge(self: &Arc<Switch>, name: &str) -> Option<Bridge> {
        let forwarding = self.forwarding.read();
        let found = forwarding.bridges.values().find(|bridge| bridge.config.name == name)?;
        Some(Bridge::new(self.clone(), found.id, name.into()))
    }

    /// Every bridge, in the order in which they were added.
    pub fn bridges(self: &Arc<Switch>) -> Vec<Bridge> {
        let forwarding = self.forwarding.read();
        let bridges = forwarding.bridges.values();
        bridges.map(|bridge| Bridge::new(self.clone(), bridge.id, bridge.config.name.as_str().into())).collect()
    }
}
