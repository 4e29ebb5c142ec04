//! What the daemon tells about itself, as data: the JSON of `--json`, from which the text for people is made, too. Keys
//! are only ever added.
//!
//! - [`activity`]: receive queues, the slow path, tracked connections
//! - [`drops`]: which packets were dropped where, and why
//! - [`measurement`]: what happened in an interval
//! - [`ranking`]: what has the most traffic
//! - [`rates`]: counters by second
//! - [`table`]: plain tables
//! - [`text`]: the reports as tables for people
//! - [`trace`]: `weir trace`

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub mod activity;
pub mod drops;
pub mod measurement;
pub mod ranking;
pub mod rates;
pub mod table;
pub mod text;
pub mod trace;

/// The answer of `weir/show`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Show {
    /// Version of the daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The configuration file.
    pub config: String,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Bridges by name.
    pub bridges: Vec<BridgeShow>,
    /// What of the configuration is not in force, and why, other than ports.
    pub errors: Vec<String>,
}

/// A bridge in [`Show`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BridgeShow {
    /// Name.
    pub name: String,
    /// Datapath id, 16 hexadecimal digits.
    pub datapath_id: String,
    /// "standalone" or "secure".
    pub fail_mode: String,
    /// Controllers.
    pub controllers: Vec<ControllerShow>,
    /// Ports, by OpenFlow number; those that could not be opened last.
    pub ports: Vec<PortShow>,
    /// OpenFlow flows.
    pub flows: u64,
    /// Learnt addresses.
    pub macs: usize,
}

/// The answer of `weir/ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressReport {
    /// Ports that have a filter, by name.
    pub ports: Vec<IngressPort>,
}

/// A port in [`IngressReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressPort {
    /// Name.
    pub name: String,
    /// Rules, in their order.
    pub rules: Vec<IngressRule>,
    /// Why the port does not drop by itself what other rules drop, where it could do so at all.
    pub not_offloaded: Option<String>,
    /// The XDP program behind them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<IngressProgram>,
}

/// The program in [`IngressPort`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressProgram {
    /// The file that it is from.
    pub path: String,
    /// Its function.
    pub name: String,
    /// How many instructions it has.
    pub instructions: usize,
    /// The most instructions that it executes for a frame.
    pub longest: u32,
    /// `native` code, or why it is interpreted.
    pub code: String,
    /// Frames that it passed.
    pub passed: u64,
    /// Frames that it dropped.
    pub dropped: u64,
    /// Frames that were dropped as it was aborted.
    pub aborted: u64,
    /// Frames that were dropped as what it wants does not exist here.
    pub unsupported: u64,
    /// Frames that were dropped as it was stopped.
    pub faults: u64,
    /// Its maps.
    pub maps: Vec<IngressMap>,
}

/// A map in [`IngressProgram`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressMap {
    /// Its name.
    pub name: String,
    /// Its type.
    pub r#type: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many elements it can have.
    pub max_entries: u32,
}

/// The answer of `weir/ingress-map`: keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressElements {
    /// Each a key and its value, as text.
    pub elements: Vec<(String, String)>,
}

/// A rule in [`IngressPort`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressRule {
    /// Its text.
    pub rule: String,
    /// Frames whose first match it was.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them were dropped.
    pub dropped: u64,
    /// The port has the rule, too, and drops by itself what it drops.
    pub offloaded: bool,
}

/// A controller in [`BridgeShow`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerShow {
    /// Address.
    pub target: String,
    /// Connections that speak OpenFlow now.
    pub connections: usize,
    /// What went wrong last.
    pub error: Option<String>,
}

/// A port in [`BridgeShow`] and [`Ports`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortShow {
    /// Name.
    pub name: String,
    /// Bridge.
    pub bridge: String,
    /// OpenFlow port number.
    pub ofport: Option<u32>,
    /// Datapath port number.
    pub dp_port: Option<u32>,
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// "access", "trunk", ...
    pub vlan_mode: String,
    /// Access or native VLAN.
    pub tag: Option<u16>,
    /// VLANs of a trunk; empty is all.
    pub trunks: Vec<u16>,
    /// Ethernet address.
    pub mac: Option<String>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// The link has a carrier.
    pub link_up: bool,
    /// The administrator has enabled the port.
    pub admin_up: bool,
    /// Kernel interface index.
    pub ifindex: Option<u32>,
    /// Facts about the device.
    pub status: BTreeMap<String, String>,
    /// Counters, named as in the Open_vSwitch schema.
    pub statistics: BTreeMap<String, u64>,
    /// Why packets were not sent: what makes `tx_dropped` and `tx_errors`, but for what a device counts in them itself.
    pub tx_drops: BTreeMap<String, u64>,
    /// Drops in the datapath, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Why the port is not in service.
    pub error: Option<String>,
}

impl PortShow {
    /// Whether it works, in a word.
    pub fn link_state(&self) -> &'static str {
        match (self.error.is_some(), self.admin_up, self.link_up) {
            (true, _, _) => "error",
            (_, false, _) => "disabled",
            (_, true, false) => "down",
            (_, true, true) => "up",
        }
    }
}

/// The answer of `weir/ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// All ports of all bridges.
    pub ports: Vec<PortShow>,
}

/// The answer of `weir/flows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// OpenFlow flows of each bridge.
    pub bridges: Vec<BridgeFlows>,
    /// Flows of the datapath.
    pub datapath: Vec<DatapathFlow>,
}

/// The OpenFlow flows of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BridgeFlows {
    /// Name.
    pub name: String,
    /// Flows, by table, the highest priority first.
    pub flows: Vec<OpenFlowFlow>,
}

/// An OpenFlow flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenFlowFlow {
    /// Table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Seconds since it was added.
    pub duration_s: f64,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// The whole flow in the syntax of ovs-ofctl(8).
    pub text: String,
}

/// A flow of the datapath.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatapathFlow {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// The whole flow in the syntax of ovs-dpctl(8).
    pub text: String,
}

/// The answer of `weir/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Each worker.
    pub workers: Vec<WorkerStats>,
    /// The sum of the workers that have ended, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<WorkerStats>,
    /// Flows in the datapath now.
    pub flows: usize,
    /// Different masks of these flows.
    pub masks: usize,
    /// Bytes that these flows take.
    pub flow_bytes: usize,
    /// Flows that had to make room for others, or for wider masks.
    pub evictions: u64,
    /// TSC cycles in a second.
    pub cycles_per_second: u64,
    /// What each drop reason that has occurred means.
    pub drop_reasons: BTreeMap<String, String>,
}

/// Counters of a worker in [`Stats`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Number.
    pub worker: usize,
    /// Core that it is pinned to.
    pub core: Option<usize>,
    /// Receive queues that it polls, as PORT/QUEUE.
    pub queues: Vec<String>,
    /// Packets received.
    pub packets: u64,
    /// Packets that came from the management, such as packet-outs.
    pub injected: u64,
    /// Packets made from others: copies, and segments beyond the first.
    pub copied: u64,
    /// Passes because of recirculation.
    pub recirculated: u64,
    /// Hits in tier 0, the simple match table.
    pub simple_hits: u64,
    /// Hits in tier 1, the exact-match cache.
    pub exact_hits: u64,
    /// Hits in tier 2, the megaflow table.
    pub megaflow_hits: u64,
    /// Misses that the slow path answered.
    pub misses: u64,
    /// Misses that were dropped.
    pub lost: u64,
    /// Subtables that a packet in tier 2 visited on average.
    pub subtables_per_lookup: f64,
    /// Busy cycles for each packet.
    pub cycles_per_packet: f64,
    /// Packets sent to ports.
    pub sent: u64,
    /// Packets that ports did not take.
    pub refused: u64,
    /// Packets that an action gave to the slow path.
    pub punted: u64,
    /// Packets that became part of another one: segments that have left a tunnel.
    #[serde(default)]
    pub joined: u64,
    /// Packets in the average burst sent.
    pub packets_per_batch: f64,
    /// Cycles of turns that handled packets.
    pub busy_cycles: u64,
    /// Cycles of turns that found nothing.
    pub idle_cycles: u64,
    /// Times that the worker went to sleep.
    pub sleeps: u64,
    /// Seconds spent sleeping.
    pub slept_s: f64,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// Most bytes of a text of a flow, or of one that is made of flows, where many are listed.
const MAX_TEXT: usize = 2048;

/// A text that is not very long.
pub fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
    }
    text
}

/// Counters of a port by the names that the column `statistics` has, those that it keeps.
pub fn statistics(stats: &ports::Stats) -> BTreeMap<String, u64> {
    let ports::Stats {
        rx_packets,
        rx_bytes,
        rx_dropped,
        rx_errors,
        rx_frame_err,
        rx_over_err,
        rx_crc_err,
        tx_packets,
        tx_bytes,
        tx_dropped,
        tx_errors,
        collisions,
    } = *stats;
    [
        ("rx_packets", rx_packets),
        ("rx_bytes", rx_bytes),
        ("rx_dropped", rx_dropped),
        ("rx_errors", rx_errors),
        ("rx_frame_err", rx_frame_err),
        ("rx_over_err", rx_over_err),
        ("rx_crc_err", rx_crc_err),
        ("tx_packets", tx_packets),
        ("tx_bytes", tx_bytes),
        ("tx_dropped", tx_dropped),
        ("tx_errors", tx_errors),
        ("collisions", collisions),
    ]
    .into_iter()
    .filter(|(_, n)| *n != ports::Stats::UNKNOWN)
    .map(|(name, n)| (name.to_owned(), n))
    .collect()
}
