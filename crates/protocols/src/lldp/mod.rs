//! Link layer discovery (IEEE 802.1AB): who is at the other end of a link, with Auto Attach's extensions
//! (draft-unbehagen-lldp-spb), as Open vSwitch has them.
//!
//! | module | what it is |
//! |---|---|
//! | [`agent`] | The agent of an interface: what it says, and which neighbours it knows |
//! | [`pdu`] | LLDPDUs, from frames and to frames |
//! | [`show`] | Texts of `autoattach/...` and `lldp/show` |
//!
//! # Contract
//!
//! An [`Agent`] is a session of a [`Registry`](crate::registry::Registry). Its owner
//!
//! 1. gives it each frame of type 0x88cc that its interface receives;
//! 2. when [`next_wakeup`](crate::registry::Session::next_wakeup) has come, calls [`Agent::run`] and sends its frame.
//!
//! A frame costs work linear in its length and [`agent::MAX_NEIGHBOURS`] comparisons. What is kept of a neighbour has a
//! limit for each part of it ([`pdu`]), and goes when the neighbour has not been heard for as long as it said (its TTL).
//!
//! # Auto Attach
//!
//! A bridge has mappings from service identifiers (I-SID) to VLANs ([`AutoAttach`]). Its agents tell their neighbours,
//! one of which may be a switch at the edge of a network with shortest path bridging; that says of each mapping whether
//! it carries it. Digests are zero, and are not checked, as in OVS.

pub mod agent;
pub mod pdu;
pub mod show;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use agent::Agent;
pub use pdu::{Error, Lldpdu};

/// What the agents of a bridge say of it (table AutoAttach of ovs-vswitchd.conf.db(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoAttach {
    /// Name of the bridge in the network; none where empty. No more than 255 bytes of it are sent.
    pub system_name: String,
    /// What the bridge is; a text of the owner's where empty. No more than 255 bytes of it are sent.
    pub system_description: String,
    /// VLAN by I-SID. No more than [`pdu::MAX_ASSIGNMENTS`] are sent, those with the least I-SIDs.
    pub mappings: BTreeMap<u32, u16>,
}
