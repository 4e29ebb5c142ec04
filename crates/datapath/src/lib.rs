//! Workers, classification and actions.
//!
//! The datapath knows nothing of OpenFlow: it defines [`Upcall`], which the layer above implements.
//! [`Datapath`] is the door for everybody else.

pub mod account;
mod act;
pub mod action;
pub mod assign;
mod backlog;
pub mod balance;
pub mod classify;
pub mod clock;
pub mod config;
mod connections;
mod counters;
mod crew;
pub mod datapath;
pub mod drop;
pub mod error;
mod fair;
mod forward;
mod log;
mod miss;
mod output;
mod pace;
mod parking;
mod passes;
mod patience;
mod port;
pub mod program;
pub mod rcu;
mod rewrite;
mod runs;
mod sending;
mod sleep;
pub mod stats;
mod sync;
pub mod text;
pub mod tsc;
pub mod upcall;
mod usage;
mod worker;

pub use account::Account;
pub use action::{Action, MAX_NESTING, PortNo, Punt, Rewrite};
pub use balance::AutoBalance;
pub use config::Config;
pub use datapath::Datapath;
pub use drop::DropReason;
pub use error::Error;
pub use stats::{Drops, RemovedFlow, RxAssignment, Stats, Usage, WorkerStats};
pub use upcall::{FlowBrief, FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Miss, Upcall, Verdict};
