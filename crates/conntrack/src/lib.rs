//! Connection tracking and NAT: what the ct action of ovs-actions(7) does with a packet, without a datapath.
//!
//! Nothing here reads a clock, makes a thread or does I/O. A packet's [`Headers`] go into [`Tracker::track`], with what the
//! action asks for, and a [`Verdict`] comes out: ct_state and the other metadata, and what changes in the packet.
//! The tracker is shared by all threads.
//!
//! | module | what it is |
//! |---|---|
//! | [`filter`] | Which connections somebody asks for |
//! | [`fragments`] | Fragments, reassembled in thought |
//! | [`headers`] | What tracking reads of a packet |
//! | [`helpers`] | FTP and TFTP: connections that others announce |
//! | [`nat`] | Translated addresses and ports |
//! | [`protocol`] | State machines of TCP, UDP, SCTP, ICMP and others |
//! | [`quoted`] | The packet that an ICMP error quotes |
//! | [`saved`] | The serialised form |
//! | [`state`] | Bits of ct_state |
//! | [`table`] | The connections, shared by all threads |
//! | [`timeout`] | Timeouts by state |
//! | [`tracker`] | The ct action on one packet |
//! | [`tuple`] | What names a direction of a connection |

pub mod filter;
pub mod fragments;
pub mod headers;
pub mod helpers;
pub mod nat;
pub mod protocol;
pub mod quoted;
pub mod saved;
pub mod state;
mod sync;
pub mod table;
pub mod timeout;
pub mod tracker;
pub mod tuple;

pub use headers::Headers;
pub use state::CtState;
pub use tracker::{Metadata, Request, Tracker, Verdict};
pub use tuple::Tuple;
