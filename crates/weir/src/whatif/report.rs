//! The answer of `weir/diff`: the JSON of `weir --json diff`. Keys are only ever added.

use serde::{Deserialize, Serialize};

use crate::report::drops::DropRule;

/// What changes of flows would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// The bridge.
    pub bridge: String,
    /// The rules that the changes are about.
    pub rules: RuleCounts,
    /// Datapath flows that were looked at.
    pub flows: usize,
    /// How many of them would treat packets otherwise.
    pub changed: usize,
    /// Of how many of them it is not decided, since there are too many cases.
    pub undecided: usize,
    /// Packets per second of the changed flows together.
    pub changed_pps: f64,
    /// The changed flows, and then the undecided ones, those with most packets per second first.
    pub listed: Vec<FlowDiff>,
    /// How many of them are not listed.
    pub not_listed: usize,
    /// Flows, groups, ports or settings have changed while the flows were looked at: some may be told wrongly.
    pub tables_changed: bool,
    /// The changes were made.
    pub committed: bool,
    /// What became of the expectations, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expectations: Option<Expectations>,
}

/// Expectations in [`Diff`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectations {
    /// How many there are.
    pub total: usize,
    /// Those that would not be met.
    pub unmet: Vec<Surprise>,
}

/// An expectation that would not be met, in [`Expectations`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surprise {
    /// The number of its line, from 1.
    pub line: usize,
    /// The packet.
    pub packet: String,
    /// What is expected of it.
    pub expected: String,
    /// What would become of it.
    pub found: String,
    /// The rules that would decide, in their order.
    pub rules: Vec<String>,
}

/// How many rules changes are about, in [`Diff`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounts {
    /// Rules that come.
    pub added: usize,
    /// Rules that take the place of one with the same match and priority.
    pub modified: usize,
    /// Rules that go.
    pub removed: usize,
}

/// A datapath flow in [`Diff`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowDiff {
    /// Its identity.
    pub ufid: String,
    /// Its match, in the syntax of ovs-dpctl(8).
    pub r#match: String,
    /// Whether it is known that packets would be treated otherwise.
    pub is_decided: bool,
    /// Whether that is so for all of its packets.
    pub is_whole: bool,
    /// Those packets of which it is known, where they are not all: as the flow's match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_like: Option<String>,
    /// Packets that the flow has counted.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its packets per second, all of them.
    pub pps: f64,
    /// What becomes of the packets.
    pub before: Treatment,
    /// What would become of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Treatment>,
}

/// What becomes of packets, in [`FlowDiff`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Treatment {
    /// In a few words.
    pub outcome: String,
    /// The datapath actions, in the syntax of ovs-dpctl(8).
    pub actions: String,
    /// The table and rule that drop the packets, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_by: Option<DropRule>,
    /// Why the translation gives up, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Diff {
    /// Whether the exit status tells of a difference: from what is expected, or without expectations from what is.
    pub fn is_difference(&self) -> bool {
        match &self.expectations {
            Some(expectations) => !expectations.unmet.is_empty(),
            None => self.changed + self.undecided > 0,
        }
    }
}
