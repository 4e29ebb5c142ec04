//! Packet buffers, wire formats and the flow key.
//!
//! This crate does no I/O and reads no clock.

pub mod buffer;
pub mod flow;
pub mod time;
pub mod wire;

pub use buffer::pool::{Pool, PoolConfig};
pub use buffer::{BATCH_SIZE, Batch, Memory, Offload, Packet};
pub use flow::{Field, Key, Mask};
pub use time::{Clock, Time};
