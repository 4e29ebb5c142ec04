//! What has the most traffic: datapath flows, OpenFlow rules, and places where packets are dropped.
//!
//! Only the first ones are listed; the text of each is cut where it is very long. Rates are those of the time between two walks over all of
//! them, [`Ranking::interval_s`].

use serde::{Deserialize, Serialize};

use super::drops::DropRow;

/// The answer of `weir/top`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranking<R> {
    /// How long was measured, in seconds. Longer than was asked for where there is so much to look at.
    pub interval_s: f64,
    /// How many there are of what was asked for.
    pub of: usize,
    /// The first ones, those with the highest rate first; with equal rates, those that have counted most.
    pub rows: Vec<R>,
}

/// What a row counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets by second.
    pub packets_per_s: f64,
    /// Bytes by second.
    pub bytes_per_s: f64,
    /// Packets in all.
    pub packets: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// A flow of the datapath.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopFlow {
    /// What it counts.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Its identity, as `dpctl/get-flow` takes it.
    pub ufid: String,
    /// The port that its packets come in at.
    pub port: String,
    /// The flow in the syntax of ovs-dpctl(8), with names of ports.
    pub text: String,
}

/// The answer of `weir/top pairs`: which ports send to which.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// How long was measured, in seconds.
    pub interval_s: f64,
    /// How many flows of the datapath were looked at: those with the most traffic, 1000 at most.
    pub flows: usize,
    /// How much of the packets of all flows they have had, in percent.
    pub percent: f64,
    /// How many pairs of ports they have.
    pub of: usize,
    /// The first ones, as in a [`Ranking`].
    pub rows: Vec<TopPair>,
}

/// Two ports, of which one sends to the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopPair {
    /// What the flows between them count.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Where packets come in.
    pub from: String,
    /// Where they leave. What is sent to several ports counts for each.
    pub to: String,
}

/// An OpenFlow rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopRule {
    /// What it counts. With more than 20 000 datapath flows, it is as of the last round of the revalidators.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Name of the bridge.
    pub bridge: String,
    /// Which one it is there, for `rule=BRIDGE/ID`.
    pub id: String,
    /// Table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// The flow in the syntax of ovs-ofctl(8), with names of ports.
    pub text: String,
}

/// A place where packets are dropped. Bytes are not counted everywhere, and are zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopDrop {
    /// Packets by second.
    pub packets_per_s: f64,
    /// The place, with the packets in all.
    #[serde(flatten)]
    pub row: DropRow,
}
