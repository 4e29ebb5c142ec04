//! The slow path's side of the datapath: misses go up to a handler thread, which asks the layer above, and come back
//! with an answer.

pub mod channel;
pub mod flow_log;
pub mod handler;
pub mod new_flows;
pub mod queue;
pub mod reorder;
pub mod return_queue;
mod round_robin;
