//! What a bridge exports, and to whom: the tables sFlow, NetFlow, IPFIX and Flow_Sample_Collector_Set of OVS's schema.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The port of a collector for sFlow, where its target has none.
pub const SFLOW_PORT: u16 = 6343;
/// The port of a collector for IPFIX, where its target has none.
pub const IPFIX_PORT: u16 = 4739;
/// How long an active flow of NetFlow may go without being exported, where nothing says otherwise.
pub const NETFLOW_TIMEOUT: Duration = Duration::from_secs(600);

/// What a bridge exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeExport {
    /// sFlow.
    pub sflow: Option<Sflow>,
    /// NetFlow.
    pub netflow: Option<Netflow>,
    /// IPFIX of all packets of the bridge.
    pub ipfix: Option<BridgeIpfix>,
    /// IPFIX of the packets that actions `sample` name, by number of the collector set.
    pub collector_sets: BTreeMap<u32, FlowIpfix>,
}

/// sFlow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sflow {
    /// Collectors.
    pub targets: Vec<SocketAddr>,
    /// One packet in so many.
    pub sampling: u32,
    /// The time between two samples of the counters of a port; zero: there are none.
    pub polling: Duration,
    /// Most bytes of a packet.
    pub header: u16,
    /// The address that the agent says it has, or the device that has it. `None`, or where that has none: the address by
    /// which it sends to the collectors.
    pub agent: Option<String>,
    /// Which of the host's agents it is.
    pub sub_id: u32,
}

/// NetFlow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netflow {
    /// Collectors.
    pub targets: Vec<SocketAddr>,
    /// Type of the engine.
    pub engine_type: u8,
    /// Its number.
    pub engine_id: u8,
    /// How long an active flow may go without being exported; zero: until it ends.
    pub active_timeout: Duration,
    /// The upper bits of port numbers are those of the engine's number.
    pub add_id_to_interface: bool,
}

/// IPFIX of all packets of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeIpfix {
    /// Collectors and cache.
    pub exporter: FlowIpfix,
    /// One packet in so many.
    pub sampling: u32,
    /// Observation domain.
    pub obs_domain: u32,
    /// Observation point.
    pub obs_point: u32,
    /// Packets are sampled where they come in.
    pub input: bool,
    /// Packets are sampled where they go out.
    pub output: bool,
}

/// Where flow records of IPFIX go, and how they are kept until then.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FlowIpfix {
    /// Collectors.
    pub targets: Vec<SocketAddr>,
    /// How long a flow may be kept; zero: it is not.
    pub active_timeout: Duration,
    /// How many flows may be kept; zero: none.
    pub max_flows: u32,
    /// Records say which tunnel a packet has come through, or goes into.
    pub tunnels: bool,
    /// A name for what is observed, which all records have (`virtual_obs_id`).
    pub virtual_obs_id: Option<String>,
}

/// The probability of one in `rate`, in parts of `u32::MAX`, which stands for all.
pub fn probability(rate: u32) -> u32 {
    u32::MAX.checked_div(rate).unwrap_or(0).max(u32::from(rate != 0))
}
