//! The Spanning Tree Protocol (IEEE 802.1D-1998 clause 8), and what RSTP shares with it.
//!
//! | module | what it is |
//! |---|---|
//! | [`bpdu`] | BPDUs of both protocols, from frames and to frames |
//! | [`identifier`] | identifiers of bridges and ports, priority vectors |
//! | [`output`] | what a bridge of either protocol hands to whoever drives it |
//! | [`settings`] | options of bridges and ports of STP |
//! | [`bridge`] | a bridge: its ports, selection of root and states, timers |
//! | `port` | what a port has heard, its state and timers |
//! | [`timing`] | times that a bridge announces |
//! | [`report`] | status, statistics, `stp/show` |

pub mod bpdu;
pub mod bridge;
pub mod identifier;
pub mod output;
mod port;
pub mod report;
pub mod settings;
pub mod timing;

pub use bridge::Bridge;
pub use output::Output;
pub use port::{Role, State};
pub use report::{PortStatus, Status};
pub use settings::{PortSettings, Settings};
