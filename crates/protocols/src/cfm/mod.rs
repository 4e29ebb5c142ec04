//! Connectivity fault management: continuity check messages (IEEE 802.1ag clause 20), as Open vSwitch has them, with
//! its extended mode.
//!
//! | module | what it is |
//! |---|---|
//! | [`point`] | A maintenance point: whom it hears, when it sends, and its faults |
//! | [`settings`] | Settings from columns `cfm_mpid` and `other_config` |
//! | [`ccm`] | Continuity check messages, from frames and to frames |
//! | [`show`] | Text of `cfm/show`, and the columns `cfm_*` |
//!
//! # Contract
//!
//! A [`MaintenancePoint`] is a session of a [`Registry`](crate::registry::Registry). Its owner
//!
//! 1. gives it each frame that [`Settings::accepts`] says is its own;
//! 2. when [`next_wakeup`](crate::registry::Session::next_wakeup) has come, calls [`MaintenancePoint::run`] with the
//!    packets that the interface has received so far, sends its frame, and tells what has changed.
//!
//! A frame costs constant work: a point knows no more than [`point::MAX_REMOTES`] others. They are looked over once
//! in each fault interval, of 3.5 intervals between messages. A point that is not heard any longer is missed at the
//! end of the first fault interval without it: after 3.5 to 7 intervals.
//!
//! As in OVS, no list of the others is configured. A point has a fault where it hears nobody, or hears what shows that
//! something is wrong; all points have the same maintenance association.

pub mod ccm;
pub mod point;
pub mod settings;
pub mod show;
#[cfg(test)]
mod tests;

pub use ccm::Ccm;
pub use point::{Faults, MaintenancePoint, Outcome, ReceiveError};
pub use settings::{Settings, Vlan};
