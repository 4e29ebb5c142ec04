//! Workers, classification and actions.
//!
//! The datapath knows nothing of OpenFlow: it defines [`Upcall`], which the layer above implements.

pub mod action;
pub mod drop;
pub mod upcall;

pub use action::{Action, PortNo, Punt, Rewrite};
pub use drop::DropReason;
pub use upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Miss, Upcall, Verdict};
