//! A packet's way through a worker, stage by stage. [`forward`] tells it in order.

pub mod forward;
pub mod passes;
pub mod port;
pub mod tx;
