//! Samples for the verification of the caches: which packets workers copy, and what the caches said of them.
//!
//! A worker finds the flow of nearly every packet in a cache: in its header cache, its key cache or the megaflow table. Whoever verifies that
//! (the layer above, which knows the tables) gets some packets as they came in to a pass, with their metadata, the flow that was found, and
//! what was about to be done with them.
//!
//! - Which packets: each with the same probability, chosen by a worker's distance to its next sample, as the action `sample` does. That is one
//!   multiplication and one comparison for a batch, and no more where verification is off. What goes to the slow path is not chosen: the tables
//!   decide about it.
//! - The key of a sample is extracted anew from the frame, by the parser and not by the templates of the header cache.
//! - A sample goes to a ring of fixed size, as packets that taps show. Where the reader is too slow, samples are lost and counted; no worker waits.
//! - Of a fused connection, the flow of the first pass is sampled; the packet takes its short way all the same. Packets of the same connection
//!   that take the long way are sampled in each pass.
//!
//! - [`sample`]: what is known of a sampled packet
//! - [`worker`]: a worker's end
//! - [`state`]: what its reader and the workers share
//!
//! The reader's end is in `datapath/verify.rs`; what is compared with what is in `ofproto/src/verify/`.

pub mod sample;
pub mod state;
pub mod worker;

pub use sample::{Decided, VerifySample};
