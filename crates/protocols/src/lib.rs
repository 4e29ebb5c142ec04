//! Protocols that watch links: state machines without a clock, a thread or a socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`bfd`] | Bidirectional forwarding detection of a hop |
//! | [`cfm`] | Connectivity fault management: continuity check messages |
//! | [`lacp`] | Link aggregation: which links of a bond lead to the same partner |
//! | [`lldp`] | Link layer discovery: who is at the other end of a link, with Auto Attach |
//! | [`stp`], [`rstp`] | Spanning trees: which ports of bridges forward, so that there is no loop |
//! | [`spanning_tree`] | A bridge of either of these, for whoever drives it |
//! | [`mcast`] | Multicast snooping: which ports want which groups |
//! | [`registry`] | Many sessions, and which of them are due |
//! | [`options`] | Options from the database |
//! | [`ethernet`] | A frame's addresses, tag and type |
//! | [`random`] | Numbers for jitter, from a seed |
//!
//! Each protocol has the same interface. `receive(now, …)` takes a frame, `run(now)` does what the time asks for and
//! says what is to be sent and what has changed, and `next_wakeup()` says when `run` has something to do again. A
//! call after that time is late, not wrong. A frame costs a constant amount of work, whatever it holds.

pub mod bfd;
pub mod cfm;
pub mod ethernet;
pub mod lacp;
pub mod lldp;
pub mod mcast;
#[cfg(test)]
mod network;
pub mod options;
pub mod random;
pub mod registry;
pub mod rstp;
pub mod spanning_tree;
pub mod stp;
