//! Multicast snooping: which ports want which groups, by what hosts and routers tell each other (RFC 4541).
//!
//! | module | what it is |
//! |---|---|
//! | [`message`] | messages of IGMP and MLD, from packets and to packets |
//! | [`table`] | which ports are members of which groups, bounded |
//! | [`snooping`] | what a bridge learns, where multicast goes, `mdb/show` |
//! | [`settings`] | options of bridges and ports |

pub mod message;
pub mod settings;
pub mod snooping;
pub mod table;

pub use settings::{PortSettings, Settings};
pub use snooping::{Changes, Destination, Entry, HEADING, Learned, Router, Snooping, Stats, Why};
pub use table::{Group, Member, Port};
