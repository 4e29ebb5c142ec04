//! Bidirectional forwarding detection (RFC 5880) over one hop of IPv4 (RFC 5881), with the options and texts of Open
//! vSwitch.
//!
//! | module | what it is |
//! |---|---|
//! | [`session`] | A session: its state, when it sends, and whether its interface forwards |
//! | [`settings`] | Settings from column `bfd` |
//! | [`control`] | Control packets, from frames and to frames |
//! | [`show`] | Texts of `bfd/show`, and column `bfd_status` |
//!
//! # Contract
//!
//! A [`Session`] is kept in a [`Registry`](crate::registry::Registry). Its owner
//!
//! 1. gives it each frame that [`Settings::accepts`] says is the session's;
//! 2. after that, and when [`next_wakeup`](crate::registry::Session::next_wakeup) has come, calls [`Session::run`] with
//!    the packets that the interface has received so far, sends its frame, and tells what has changed;
//! 3. calls [`Session::account_rx`] when data came by the interface, where
//!    [`Settings::forwarding_if_rx`] asks for that.
//!
//! Frames and runs cost constant work. A session sends no more than one packet in [`session::SHORTEST_GAP`], whatever
//! its peer sends.
//!
//! Asynchronous mode only, as in OVS: a peer's demand bit has no effect, packets with authentication are refused,
//! there is no echo function. An interface has one session, so the discriminator of a packet is checked and never
//! used to find a session (RFC 5881 section 3).

pub mod control;
pub mod session;
pub mod settings;
pub mod show;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use control::{Diagnostic, State};
pub use session::{Outcome, ReceiveError, Session, new_discriminator, source_port};
pub use settings::Settings;
