//! The answer of `weir/explain`: the JSON of `weir --json explain`. Keys are only ever added.

use ofproto::explain::Step;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use crate::report::drops::DropRule;

/// What decides what becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The bridge that the packet is in.
    pub bridge: String,
    /// The port that it comes in at; nothing for a packet from nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<InputPort>,
    /// Its passes: the first one, and one for each time that it comes back from connection tracking.
    pub passes: Vec<Pass>,
}

/// The port in [`Explanation`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InputPort {
    /// Name.
    pub name: String,
    /// OpenFlow port number.
    pub ofport: u32,
    /// Datapath port number.
    pub dp_port: Option<u32>,
    /// Its VLAN mode: "access", "trunk", ...
    pub vlan_mode: String,
    /// What the mode means here, in words.
    pub mode: String,
    /// The port is enabled and its link is up.
    pub is_up: bool,
}

/// One pass of the packet through the tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// As what the packet has come back from connection tracking, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heading: Option<String>,
    /// The packet, in the syntax of ovs-ofctl(8).
    pub packet: String,
    /// The decisions, in order.
    pub steps: Vec<Step>,
    /// How many steps are left out, since there are too many.
    pub steps_left_out: usize,
    /// What becomes of the packet.
    pub outcome: Outcome,
    /// The table and rule that drop it, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_by: Option<DropRule>,
    /// Why the translation gave up, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Each such packet is translated anew, in the slow path, without a datapath flow.
    pub slow: bool,
    /// All packets that are treated like this one, in the syntax of ovs-ofctl(8).
    pub megaflow: String,
    /// What the datapath does with them, in the syntax of ovs-dpctl(8).
    pub datapath_actions: String,
    /// The datapath flow that serves such packets now, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<ServingFlow>,
    /// In which tier each worker would find that flow for this packet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<WorkerTier>,
}

/// A datapath flow in [`Pass`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServingFlow {
    /// Its identity.
    pub ufid: String,
    /// Its match, in the syntax of ovs-dpctl(8).
    pub r#match: String,
    /// Its actions, likewise.
    pub actions: String,
    /// Whether it does what the tables say now; it is brought up to date soon where it does not.
    pub is_current: bool,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Seconds since it was installed.
    pub age_s: f64,
    /// Seconds since its last packet; nothing where there was none.
    pub idle_s: Option<f64>,
}

/// A worker in [`Pass`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTier {
    /// Its number.
    pub worker: usize,
    /// The tier, as `weir stats` has it.
    pub tier: String,
}
