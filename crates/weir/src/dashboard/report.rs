//! The shapes of the dashboard's JSON, where a command's report has none. docs/dashboard.md explains them. Keys are only ever added.

use serde::Serialize;

use crate::report::ControllerShow;
use crate::report::rates::StatsRates;

/// The answer of `/api/now`, but for its ports.
#[derive(Debug, Default, Serialize)]
pub struct Now {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since 1970 at its start, which tells one daemon from the next.
    pub started: f64,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Configurations that have changed something: another number, and the topology is another one.
    pub changes: u64,
    /// What of the configuration is not in force, and why; ports excepted.
    pub errors: Vec<String>,
    /// The number of the last sample; zero before the first one.
    pub sample: u64,
    /// When it was taken, in seconds since 1970.
    pub time: f64,
    /// What the workers did in it.
    pub stats: StatsRates,
    /// Drops of the datapath by reason; those that occur.
    pub drops: Vec<DropNow>,
}

/// A reason for drops in [`Now`].
#[derive(Debug, Default, Serialize)]
pub struct DropNow {
    /// Its name.
    pub reason: &'static str,
    /// The stage whose reason it is.
    pub stage: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Packets by second.
    pub packets_per_s: f64,
}

/// A port in `/api/now`.
#[derive(Debug, Serialize)]
pub struct PortNow<'a> {
    /// Bridge.
    pub bridge: &'a str,
    /// Name.
    pub name: &'a str,
    /// "up", "down", "disabled", or "error".
    pub link: &'a str,
    /// Packets received, by second.
    pub rx_packets: f64,
    /// Packets sent, by second.
    pub tx_packets: f64,
    /// Bytes received, by second.
    pub rx_bytes: f64,
    /// Bytes sent, by second.
    pub tx_bytes: f64,
    /// Packets that were dropped by whoever, by second.
    pub dropped: f64,
}

/// A bridge in `/api/topology`.
#[derive(Debug, Serialize)]
pub struct BridgeNode {
    /// Name.
    pub name: String,
    /// 16 hexadecimal digits.
    pub datapath_id: String,
    /// "standalone" or "secure".
    pub fail_mode: String,
    /// OpenFlow flows.
    pub flows: u64,
    /// Learnt addresses.
    pub macs: usize,
    /// Controllers.
    pub controllers: Vec<ControllerShow>,
    /// Mirrors.
    pub mirrors: Vec<MirrorEdge>,
}

/// A mirror in `/api/topology`.
#[derive(Debug, Serialize)]
pub struct MirrorEdge {
    /// Name.
    pub name: String,
    /// Ports whose received packets are copied; nothing for all.
    pub sources: Option<Vec<String>>,
    /// Ports to which packets are sent whose copies are sent, too; nothing for all.
    pub destinations: Option<Vec<String>>,
    /// The port that copies go to.
    pub output_port: Option<String>,
    /// Or the VLAN.
    pub output_vlan: Option<u16>,
}

/// A port in `/api/topology`.
#[derive(Debug, Default, Serialize)]
pub struct PortNode {
    /// Bridge.
    pub bridge: String,
    /// Name.
    pub name: String,
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// OpenFlow port number.
    pub ofport: Option<u32>,
    /// "up", "down", "disabled", or "error".
    pub link: String,
    /// "access", "trunk", ...
    pub vlan_mode: String,
    /// Access or native VLAN.
    pub tag: Option<u16>,
    /// The other end of a patch port.
    pub peer: Option<String>,
    /// The other end of a tunnel, as its options have it.
    pub remote: Option<String>,
    /// Why it is not in service.
    pub error: Option<String>,
}

/// A table in `/api/tables`.
#[derive(Clone, Debug, Serialize)]
pub struct TableRates {
    /// Bridge.
    pub bridge: String,
    /// Number.
    pub table: u8,
    /// OpenFlow flows.
    pub flows: u32,
    /// Packets for which it was looked in, since the start.
    pub lookups: u64,
    /// Of these, those that a flow matched.
    pub matched: u64,
    /// Lookups by second.
    pub lookups_per_s: f64,
    /// Matches by second.
    pub matched_per_s: f64,
}

/// The answer of `/api/flows`.
#[derive(Debug, Default, Serialize)]
pub struct FoundFlows {
    /// The flows that were found.
    pub rows: Vec<FoundFlow>,
    /// How many were looked at.
    pub looked_at: usize,
    /// Where to go on, as `from`; nothing at the end.
    pub next: Option<String>,
}

/// A flow in [`FoundFlows`].
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct FoundFlow {
    /// Bridge of an OpenFlow flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// The flow in the syntax of ovs-ofctl(8) or ovs-dpctl(8), with names of ports.
    pub text: String,
}
