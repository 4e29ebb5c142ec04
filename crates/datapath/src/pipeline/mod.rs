//! A packet's way through a worker, stage by stage. [`forward`] tells it in order.

/// What is known of a batch.
pub mod batch;
/// The stages, in the order in which they happen.
pub(crate) mod forward;
/// Optional stages before anything is parsed.
pub mod ingress;
/// What travels beside packets that go round again.
pub mod metadata;
/// A port as the workers share it.
pub(crate) mod port;
/// Packets that go round again.
pub(crate) mod recirculation;
/// The end of packets that are not sent.
pub(crate) mod retire;
/// Packets that become many by recirculation.
pub(crate) mod storm;
/// Packets gathered for each port, and sent.
pub(crate) mod tx;
