//! A bridge: what controllers and the configuration can ask of it.

use std::sync::Arc;

use openflow::stats::{AggregateStats, TableStats};
use openflow::{
    FlowMod, FlowStats, FlowStatsRequest, OfError, OfPort, PacketOut, PortDesc, PortMod, PortStats, SwitchConfig,
};

use crate::error::Error;
use crate::events::{Subscriber, SubscriptionId};
use crate::mac::{MacEntry, MacKey, MacSettings, MacStats};
use crate::port::{PortInfo, PortSpec};
use crate::switch::Switch;
use crate::vlan::PortVlan;

/// Number of tables that a features reply announces. Table 254 exists but is not announced, as in OVS,
/// which keeps it for itself.
pub const N_TABLES: u8 = 254;

/// What a bridge does without a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailMode {
    /// Forwards as a learning switch.
    #[default]
    Standalone,
    /// Goes on with the flows it has.
    Secure,
}

/// A bridge to be added.
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// Without a controller.
    pub fail_mode: FailMode,
    /// MAC learning.
    pub mac: MacSettings,
    /// NORMAL forwards frames to reserved addresses 01:80:c2:00:00:0x.
    pub forward_bpdu: bool,
    /// Most flows of a table; `None` for no limit.
    pub max_flows: Option<u32>,
}

impl BridgeConfig {
    /// A bridge with everything else at its default.
    pub fn new(name: &str, datapath_id: u64) -> BridgeConfig {
        BridgeConfig {
            name: name.to_owned(),
            datapath_id,
            fail_mode: FailMode::default(),
            mac: MacSettings::default(),
            forward_bpdu: false,
            max_flows: None,
        }
    }
}

/// What the connections to a bridge's controllers mean for its forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Controllers {
    /// At least one controller is configured.
    pub configured: bool,
    /// Some connection (controller or management) of OpenFlow 1.0 to 1.2 wants packets that miss in a
    /// table without a table-miss flow.
    pub want_misses: bool,
    /// No controller has been there for long enough that standalone mode takes over.
    pub fail_open: bool,
}

/// A handle to a bridge. Cheap to clone; a call on a bridge that has been removed does nothing and
/// answers as an empty bridge would, or with an error.
#[derive(Clone)]
pub struct Bridge {
    #[allow(dead_code)]
    switch: Arc<Switch>,
}

impl Bridge {
    /// Name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// Configuration in force.
    pub fn config(&self) -> BridgeConfig {
        todo!()
    }

    /// Changes the configuration, all but the name.
    pub fn set_config(&self, config: BridgeConfig) {
        let _ = config;
        todo!()
    }

    /// Tells about the controllers. When the first is configured or the last goes, all flows are
    /// removed, and a standalone bridge without controllers gets its NORMAL flow.
    pub fn set_controllers(&self, controllers: Controllers) {
        let _ = controllers;
        todo!()
    }

    /// Sends the bridge's events to `subscriber` from now on.
    pub fn subscribe(&self, subscriber: Arc<dyn Subscriber>) -> SubscriptionId {
        let _ = subscriber;
        todo!()
    }

    /// Ends a subscription. Events that are on their way may still arrive.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        let _ = id;
        todo!()
    }

    /// Adds a port.
    pub fn add_port(&self, spec: PortSpec) -> Result<OfPort, Error> {
        let _ = spec;
        todo!()
    }

    /// Removes a port, and what was learnt there.
    pub fn remove_port(&self, port: OfPort) -> Result<(), Error> {
        let _ = port;
        todo!()
    }

    /// Changes the VLAN configuration of a port.
    pub fn set_port_vlan(&self, port: OfPort, vlan: PortVlan) -> Result<(), Error> {
        let _ = (port, vlan);
        todo!()
    }

    /// The port with this name.
    pub fn port_by_name(&self, name: &str) -> Option<OfPort> {
        let _ = name;
        todo!()
    }

    /// Every port, by number.
    pub fn ports(&self) -> Vec<PortInfo> {
        todo!()
    }

    /// Descriptions of a port, or of all for ANY, by number.
    pub fn port_descs(&self, port: OfPort) -> Result<Vec<PortDesc>, OfError> {
        let _ = port;
        todo!()
    }

    /// Counters of a port, or of all for ANY, by number.
    pub fn port_stats(&self, port: OfPort) -> Result<Vec<PortStats>, OfError> {
        let _ = port;
        todo!()
    }

    /// Changes the OpenFlow configuration of a port.
    pub fn port_mod(&self, change: &PortMod) -> Result<(), OfError> {
        let _ = change;
        todo!()
    }

    /// Changes the flow tables. Packets may see the old flows until a [`barrier`](Bridge::barrier).
    /// A buffer id is ignored: Weir buffers no packets.
    pub fn flow_mod(&self, change: &FlowMod) -> Result<(), OfError> {
        let _ = change;
        todo!()
    }

    /// Removes all flows, without flow-removed messages, and adds the NORMAL flow of a standalone
    /// bridge without controllers.
    pub fn flush_flows(&self) {
        todo!()
    }

    /// Flows with counters that include every packet forwarded before the call.
    pub fn flow_stats(&self, request: &FlowStatsRequest) -> Result<Vec<FlowStats>, OfError> {
        let _ = request;
        todo!()
    }

    /// Sums over flows, up to date as [`flow_stats`](Bridge::flow_stats).
    pub fn aggregate_stats(&self, request: &FlowStatsRequest) -> Result<AggregateStats, OfError> {
        let _ = request;
        todo!()
    }

    /// Counters of the announced tables.
    pub fn table_stats(&self) -> Vec<TableStats> {
        todo!()
    }

    /// Sends a packet. Its data must be present: Weir buffers no packets.
    pub fn packet_out(&self, message: &PacketOut) -> Result<(), OfError> {
        let _ = message;
        todo!()
    }

    /// Returns when all changes so far are in force. Not to be called from an upcall.
    pub fn barrier(&self) {
        todo!()
    }

    /// Fragment handling and miss_send_len.
    pub fn switch_config(&self) -> SwitchConfig {
        todo!()
    }

    /// Changes fragment handling and miss_send_len. Reassembly is refused.
    pub fn set_switch_config(&self, config: SwitchConfig) -> Result<(), OfError> {
        let _ = config;
        todo!()
    }

    /// The MAC table, in no particular order.
    pub fn macs(&self) -> Vec<MacEntry> {
        todo!()
    }

    /// Counters of the MAC table.
    pub fn mac_stats(&self) -> MacStats {
        todo!()
    }

    /// Sets the counters of the MAC table to zero.
    pub fn clear_mac_stats(&self) {
        todo!()
    }

    /// Forgets every learnt address.
    pub fn flush_macs(&self) {
        todo!()
    }

    /// Adds a static entry.
    pub fn add_static_mac(&self, key: MacKey, port: OfPort) -> Result<(), Error> {
        let _ = (key, port);
        todo!()
    }

    /// Removes an entry of either kind; false where there was none.
    pub fn remove_mac(&self, key: MacKey) -> bool {
        let _ = key;
        todo!()
    }
}
