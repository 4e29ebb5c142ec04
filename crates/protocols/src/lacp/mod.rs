//! Link aggregation control protocol (IEEE 802.1AX-2008 clause 5), with the options and texts of Open vSwitch.
//!
//! | module | what it is |
//! |---|---|
//! | [`aggregator`] | A bond: its members, when they send, and which of them may carry traffic |
//! | [`aggregator::selection`] | Which members of a bond are attached |
//! | [`options`] | Settings from the database's columns |
//! | [`pdu`] | LACPDUs, from frames and to frames |
//! | [`show`] | Texts of `lacp/show` and `lacp/show-stats` |
//!
//! # Contract
//!
//! An [`Aggregator`] is a session of a [`Registry`](crate::registry::Registry). Its owner
//!
//! 1. tells it of settings, members and carriers, and gives it each frame of type 0x8809 that a member receives;
//! 2. after that, and when [`next_wakeup`](crate::registry::Session::next_wakeup) has come, calls [`Aggregator::run`],
//!    sends its frames and looks at [`Aggregator::may_enable`] of the members that its events name.
//!
//! A frame costs constant work, and a `run` work linear in the members of the bond, however many frames came before it.
//!
//! The state machines of the standard are here:
//!
//! - *receive* (5.4.12): [`Status`]; carrier takes the part of port_enabled;
//! - *periodic transmission* (5.4.13) and *transmit* (5.4.16): a member sends a second or thirty after it sent last, as
//!   its partner wishes, and at once when what the partner believes of it is wrong; but no more than three PDUs in a
//!   second;
//! - *selection* (5.4.14) and *mux* (5.4.15): [`aggregator::selection`], in one step, since OVS has one aggregator for
//!   each bond and no wait_while_timer. A member is attached and synchronized at once, collects and distributes while
//!   attached, and carries traffic when its partner is synchronized, too.

pub mod aggregator;
pub mod options;
pub mod pdu;
pub mod show;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use aggregator::{Aggregator, Counters, Event, MemberId, MemberSettings, Outcome, ReceiveError, Settings, Status};
