//! Packet buffers, wire formats and the flow key.
//!
//! This crate does no I/O and reads no clock.
//!
//! | module | what it is |
//! |---|---|
//! | [`buffer`] | Packets: frames and the memories that they lie in |
//! | [`flow`] | The flow key: extraction, fields, masks, hashes, text |
//! | [`wire`] | Headers of protocols, one file each |

pub mod buffer;
pub mod flow;
pub mod wire;

pub use buffer::pool::{Pool, PoolConfig};
pub use buffer::split::Split;
pub use buffer::{BATCH_SIZE, Batch, Memory, Offload, Packet};
pub use flow::{Field, Key, Mask};
pub use weir_time::{Clock, Time};
