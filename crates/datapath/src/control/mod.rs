//! Ports, workers and who receives from what: everything that changes while packets flow.

pub mod assignment;
pub mod balance;
pub(crate) mod pool;
pub(crate) mod queues;
pub(crate) mod usage;
