//! What a flow does to its packets, in the datapath's own terms.
//!
//! These are never netlink attributes and never OpenFlow bytes. Their text form is that of OVS's
//! datapath actions (ovs-dpctl(8)). A flow's actions are compiled into a program when the flow is
//! installed, see `program.rs`.

use std::sync::Arc;

use packet::Key;
use packet::{Field, flow::Mask};

use crate::drop::DropReason;

/// How deeply actions may be nested. What is nested deeper drops its copy of the packet, so that workers need little stack.
pub const MAX_NESTING: usize = 32;

/// A datapath port number. Assigned by the datapath, never reused while the port exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNo(pub u32);

/// A datapath action.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send the packet as it is now. The packet goes on to the next action.
    Output(PortNo),
    /// Rewrite the header fields that `mask` covers with the values in `key`, and bring checksums up
    /// to date. Covers Ethernet, IPv4, IPv6, TCP, UDP, SCTP, ICMP, ARP, ND and MPLS fields, and the
    /// metadata (pkt_mark, skb_priority, tunnel) that travels beside the packet.
    Set(Arc<Rewrite>),
    /// Push an 802.1Q or 802.1ad tag.
    PushVlan {
        /// 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority and VLAN id; the CFI bit is ignored and sent as zero.
        tci: u16,
    },
    /// Remove the outermost VLAN tag.
    PopVlan,
    /// Push an MPLS label stack entry.
    PushMpls {
        /// Ethernet type: 0x8847 or 0x8848.
        ethertype: u16,
        /// The whole entry.
        lse: u32,
    },
    /// Remove the outermost MPLS label stack entry.
    PopMpls {
        /// Ethernet type of what is left.
        ethertype: u16,
    },
    /// Classify again, with this recirculation id.
    Recirc(u32),
    /// Compute a hash of the headers into dp_hash.
    Hash {
        /// Seed.
        basis: u32,
    },
    /// Hand a copy of the packet as it is now to [`Upcall::punt`](crate::Upcall::punt).
    Punt(Arc<Punt>),
    /// Send at most this many bytes with the next output.
    Truncate {
        /// Bytes.
        max_len: u32,
    },
    /// Run actions on a copy; the packet goes on unchanged.
    Clone(Vec<Action>),
    /// Run one of two lists of actions on a copy; the packet goes on unchanged.
    CheckLength {
        /// Bytes of frame.
        size: u16,
        /// For packets that are longer.
        longer: Vec<Action>,
        /// For the others.
        others: Vec<Action>,
    },
    /// Drop the packet for this reason. An empty list drops with [`DropReason::Rule`].
    Drop(DropReason),
}

/// The values and mask of [`Action::Set`].
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// New values.
    pub key: Key,
    /// The bits to be written.
    pub mask: Mask,
}

impl Rewrite {
    /// Writes all of one field.
    pub fn field(field: Field, value: u128) -> Rewrite {
        let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
        rewrite.key.set(field, value);
        rewrite.mask.set_exact(field);
        rewrite
    }
}

/// What goes up with a punted packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Punt {
    /// Most bytes of frame that the receiver wants.
    pub max_len: u16,
    /// The upper layer's own name for what to do (which controller, reason, table, cookie).
    pub cookie: u64,
}
