//! What no flow matches goes up to a handler thread, which asks the layer above, and comes back with an answer.

pub mod flow_log;
pub mod queue;
pub mod reorder;
mod round_robin;
