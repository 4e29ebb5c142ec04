//! The control plane: which ports, workers and handlers there are, and which worker polls and transmits by which
//! queue.
//!
//! Each part knows the ones above it in this list, and none below:
//! - `resources`: the clock, the flows and the slow path, which all other parts use;
//! - `load_history`: what a counter has counted in the last minute;
//! - `scheduler`: which worker is to poll which receive queue, and `balance`: when a change is worth it; both only
//!   compute;
//! - `ports`: the ports and which workers have their queues; knows nothing of threads;
//! - `schedule_log`: what the log says of that;
//! - `pool`: the workers; knows nothing of ports;
//! - `handlers`: the threads of the slow path and whose channels they serve;
//! - `maintenance`: periodic work;
//! - `runtime`: what drives workers and handlers: threads, or the callers of the datapath;
//! - `queues`: how queues change hands between workers;
//! - `plane`: the changes themselves, one at a time.
//!
//! # The order of locks
//!
//! A thread that needs several takes them in this order:
//! 1. [`ControlPlane`](plane::ControlPlane), for the whole of a change. Its holder may wait for workers, and in some changes
//!    for handlers, which may be in an upcall. So an upcall must not take it, and a caller that takes it must not hold a
//!    lock that upcalls take.
//! 2. [`PortTable`](ports::PortTable). Its holder may wait for workers, which never take it, but not for handlers, whose
//!    upcalls may take it.
//! 3. [`WorkerPool`](pool::WorkerPool), in the same way.
//! 4. The locks of a single part, inside its methods: a mailbox, a handler's list of channels, times of the maintenance,
//!    the flow table's own. Nothing is waited for with one of these.

pub mod balance;
pub mod handlers;
pub mod load_history;
pub mod maintenance;
pub mod plane;
pub mod pool;
pub mod ports;
pub mod queues;
pub mod resources;
pub mod runtime;
pub mod schedule_log;
pub mod scheduler;

#[cfg(test)]
mod tests;
