//! The stages of a packet's way through a worker. `forward` runs them in order.

/// Batch metadata.
pub mod batch;
/// The stages, in the order in which they happen.
pub(crate) mod forward;
/// Optional stages between reception and classification.
pub mod ingress;
/// When it pays to join segments.
pub mod join_policy;
/// Joining of segments that are sent to a port.
mod joining;
/// Metadata of recirculated packets.
pub mod metadata;
/// A datapath port, shared by the workers.
pub(crate) mod port;
/// Recirculated packets, in batches of one stage.
pub(crate) mod recirculation;
/// The one place where packets are dropped and counted.
pub(crate) mod retire;
/// Transmit queues that a connection's hash selects.
pub(crate) mod steering;
/// Recirculation storms: a bounded slice of work in each turn.
pub(crate) mod storm;
/// Packets gathered for each output port, and transmitted.
pub(crate) mod tx;
