//! Protocols that switches speak with each other, without a datapath.
//!
//! | module | what it is |
//! |---|---|
//! | [`stp`] | the Spanning Tree Protocol (IEEE 802.1D-1998), and what both spanning tree protocols share: identifiers and BPDUs |
//! | [`rstp`] | the Rapid Spanning Tree Protocol (IEEE 802.1D-2004 clause 17) |
//! | [`options`] | options of a database's columns, from text |
//!
//! Every protocol is a state machine that does no I/O, starts no thread and reads no clock: whoever drives it passes frames and
//! times in (`receive`, `run`), takes out what is to be sent and what has changed, and calls again at `next_wakeup` at the latest.

#[cfg(test)]
pub mod mcast;
pub mod options;
pub mod rstp;
pub mod stp;
