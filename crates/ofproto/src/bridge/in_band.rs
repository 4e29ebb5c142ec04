//! In-band control: what is reached through the bridge itself, and the flows for it, which OpenFlow does not show.

use std::net::IpAddr;

use openflow::FlowStats;
use packet::Time;

use super::Bridge;
use crate::model::config::FailMode;
use crate::model::forwarding::BridgeState;
use crate::model::hidden::InBand;

impl Bridge {
    /// Sets what is to be reached through the bridge itself, whatever its flows say.
    pub fn set_in_band(&self, settings: InBand) {
        if self.read(|bridge| bridge.in_band == settings) != Some(false) {
            return;
        }
        let now = self.now();
        self.change(|bridge, _| {
            bridge.in_band = settings;
            bridge.update_hidden(now);
        });
    }

    /// What is reached through the bridge itself.
    pub fn in_band(&self) -> InBand {
        self.read(|bridge| bridge.in_band.clone()).unwrap_or_default()
    }

    /// Whether the configuration allows for in-band control, and the queue for its packets.
    pub fn in_band_settings(&self) -> (bool, Option<u32>) {
        self.read(|bridge| (bridge.config.in_band, bridge.config.in_band_queue)).unwrap_or_default()
    }

    /// The Ethernet address of the next hop on the way to an address, by the kernel's routes and neighbours.
    pub fn next_hop(&self, to: IpAddr) -> Option<[u8; 6]> {
        let netstate = self.switch.netstate();
        let routes = netstate.routes.read();
        let route = routes.find(0, to)?;
        netstate.neighbours.lock().look(&route.device, route.gateway.unwrap_or(to), self.now())
    }

    /// The flows that OpenFlow does not show, with their priorities, the highest first. Their counters are as up to date
    /// as [`macs`](Bridge::macs).
    pub fn hidden_flows(&self) -> Vec<(u32, FlowStats)> {
        if self.read(|bridge| bridge.hidden.is_empty()) != Some(false) {
            return Vec::new();
        }
        self.switch.refresh_statistics();
        let now = self.now();
        let shown = |bridge: &BridgeState| {
            let flows = bridge.hidden.by_priority().into_iter();
            flows.map(|(priority, rule)| (priority, rule.describe(now, &bridge.tlv))).collect()
        };
        self.read(shown).unwrap_or_default()
    }
}

impl BridgeState {
    /// Makes the hidden flows anew.
    pub(super) fn update_hidden(&mut self, now: Time) {
        let fail_open = self.controllers.fail_open && self.config.fail_mode == FailMode::Standalone;
        self.hidden = self.hidden.renewed(&self.in_band, fail_open, now);
    }
}
