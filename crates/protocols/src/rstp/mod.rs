//! The Rapid Spanning Tree Protocol (IEEE 802.1D-2004 clause 17), which falls back to STP on ports whose neighbours speak that.
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | options of bridges and ports |
//! | [`bridge`] | a bridge: ports, time, selection of roles, order of work |
//! | `agreements` | which agreements of a neighbour count |
//! | `port` | a port's variables, and the machines that concern it alone |
//! | `transitions` | the machines that move a port between roles and states |
//! | [`report`] | status, statistics, `rstp/show` |
//!
//! [`Bridge::receive`] costs a constant amount of work for each frame, [`Bridge::run`] a few visits of each port where the tree
//! changes or a second has passed, otherwise of those ports that have received something.

mod agreements;
pub mod bridge;
mod port;
pub mod report;
pub mod settings;
mod transitions;

pub use crate::stp::output::Output;
pub use bridge::Bridge;
pub use port::{Role, State};
pub use report::{PortStatus, Status};
pub use settings::{Link, PointToPoint, PortSettings, Settings};
