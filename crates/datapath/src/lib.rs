//! Workers, classification and actions.
//!
//! The datapath knows nothing of OpenFlow: it defines [`Upcall`], which the layer above implements.
//! [`Datapath`] is the door for everybody else.

pub mod account;
pub mod action;
mod actions;
pub mod classify;
pub mod config;
mod control;
pub mod datapath;
pub mod drop;
pub mod error;
pub mod pipeline;
mod slowpath;
pub mod stats;
pub mod sync;
pub mod text;
pub mod upcall;
mod worker;

pub use account::Account;
pub use action::{Action, MAX_NESTING, PacketInPunt, PortNo, Punt, Rewrite};
pub use config::Config;
pub use control::balance::AutoBalance;
pub use control::scheduler::RxPolicy;
pub use datapath::Datapath;
pub use drop::{DropReason, DropStage};
pub use error::Error;
pub use stats::{Drops, RxAssignment, Stats, Usage, WorkerStats};
pub use upcall::{FlowBrief, FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Miss, RemovedFlow, Upcall, Verdict};
