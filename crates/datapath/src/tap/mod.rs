//! Taps: who looks at packets gets copies of them, with what has become of each.
//!
//! A [`Tap`](crate::Tap) stands for one reader. While it is there, each worker has a [`WorkerTap`] with a ring of fixed size ([`ring`]), to which it copies what
//! the tap is about; the reader empties the rings in a thread of its own ([`Tap::read`](crate::Tap::read)). A reader that is too slow loses samples, which are
//! counted, and never delays a worker.
//!
//! | what is shown | where | with |
//! |---|---|---|
//! | a packet that came in | when it was classified ([`Taps::show_classified`]), or came back from the slow path ([`Taps::show_answered`]) | its flow, and the reason if the flow drops it at once |
//! | a packet that is dropped | where it is counted (`pipeline/retire.rs`) | the reason, and the flow whose actions were being executed |
//! | a packet that goes out | when its burst is sent (`pipeline/tx.rs`) | – |
//!
//! Without a tap, workers have none of this but a null pointer, which is looked at once for each batch, burst and drop.
//!
//! - [`settings`]: what a tap is about
//! - [`record`]: what is shown of a packet
//! - [`ring`]: from a worker to a reader
//! - [`rings`]: the readers' ends of all workers' rings
//! - [`state`]: a tap, as its reader and the workers share it
//! - [`worker`]: a worker's end
//! - [`list`]: the taps that there are
//!
//! The reader's end is in `datapath/taps.rs`.

pub mod list;
pub mod record;
pub mod ring;
pub mod rings;
pub mod settings;
pub mod state;
pub mod worker;

pub use record::{Event, Record};
pub use settings::{Ports, TapFilter, TapSettings};
pub use state::TapCounts;
pub use worker::{Taps, WorkerTap};
