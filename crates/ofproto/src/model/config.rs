//! What the configuration says of a bridge, and what its controllers' connections mean for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openflow::{TableId, Versions};
use protocols::{lldp, mcast};

use super::mac::MacSettings;
use super::mirror::Mirror;
use super::spanning_tree::SpanningTreeConfig;
use crate::table::TableSettings;

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

/// The kind of datapath that a bridge says it is on. Weir has one datapath for all; OVS's commands
/// show bridges by kind, and name the datapath after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum DatapathType {
    /// For tests: ports that are not devices.
    Dummy,
    /// Forwarding in user space.
    #[default]
    Netdev,
}

impl DatapathType {
    /// Name of the datapath as OVS shows it, `TYPE@NAME`.
    pub fn datapath_name(self) -> &'static str {
        match self {
            DatapathType::Dummy => "dummy@ovs-dummy",
            DatapathType::Netdev => "netdev@ovs-netdev",
        }
    }
}

/// A bridge to be added.
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// Name.
    pub name: String,
    /// Datapath id.
    pub datapath_id: u64,
    /// The kind of datapath to show.
    pub datapath_type: DatapathType,
    /// Without a controller.
    pub fail_mode: FailMode,
    /// MAC learning.
    pub mac: MacSettings,
    /// Multicast snooping, where it is enabled.
    pub mcast_snooping: Option<mcast::Settings>,
    /// NORMAL forwards frames to reserved addresses 01:80:c2:00:00:0x.
    pub forward_bpdu: bool,
    /// VLANs in which no address is learnt, and NORMAL floods every packet.
    pub flood_vlans: BTreeSet<u16>,
    /// What its ports say of it by LLDP.
    pub auto_attach: Arc<lldp::AutoAttach>,
    /// What keeps loops from forwarding.
    pub spanning_tree: SpanningTreeConfig,
    /// Tables that are not as by default.
    pub tables: BTreeMap<TableId, TableSettings>,
    /// Copies of packets; the first [`MAX_MIRRORS`](crate::model::mirror::MAX_MIRRORS) are in force.
    pub mirrors: Vec<Mirror>,
    /// Versions of OpenFlow that controllers and clients may speak (`protocols`). Connections that are there
    /// stay as they are.
    pub protocols: Versions,
    /// Controllers are reached through the bridge itself, whatever its flows say, where they do not say otherwise.
    pub in_band: bool,
    /// The queue for what is sent to them and comes from them.
    pub in_band_queue: Option<u32>,
    /// What people call it, which peers are told instead of the name.
    pub description: Option<String>,
    /// Its serial number, which peers are told.
    pub serial: Option<String>,
}

impl BridgeConfig {
    /// A bridge with everything else at its default.
    pub fn new(name: &str, datapath_id: u64) -> BridgeConfig {
        BridgeConfig {
            name: name.to_owned(),
            datapath_id,
            datapath_type: DatapathType::default(),
            fail_mode: FailMode::default(),
            mac: MacSettings::default(),
            mcast_snooping: None,
            forward_bpdu: false,
            flood_vlans: BTreeSet::new(),
            auto_attach: Arc::default(),
            spanning_tree: SpanningTreeConfig::default(),
            tables: BTreeMap::new(),
            mirrors: Vec::new(),
            protocols: Versions::ALL,
            in_band: true,
            in_band_queue: None,
            description: None,
            serial: None,
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
