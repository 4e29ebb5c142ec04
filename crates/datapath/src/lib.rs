//! Workers, classification and actions.
//!
//! The datapath knows nothing of OpenFlow: it defines [`Upcall`], which the layer above implements.
//! [`Datapath`] is the door for everybody else.

pub mod action;
pub mod clock;
pub mod config;
pub mod datapath;
pub mod drop;
pub mod error;
pub mod stats;
pub mod upcall;

pub use action::{Action, PortNo, Punt, Rewrite};
pub use config::Config;
pub use datapath::Datapath;
pub use drop::DropReason;
pub use error::Error;
pub use stats::{Drops, RemovedFlow, RxAssignment, Stats, WorkerStats};
pub use upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Miss, Upcall, Verdict};
