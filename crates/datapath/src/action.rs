//! What a flow does to its packets, in the datapath's own terms.
//!
//! These are never netlink attributes and never OpenFlow bytes. Their text form is that of OVS's datapath actions
//! (ovs-dpctl(8)). A flow's actions are compiled into a program when the flow is installed, see `actions/program.rs`.

use std::any::Any;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use packet::Key;
use packet::wire::nsh;
use packet::{Field, flow::Mask};

pub use crate::actions::tunnel::{Decapsulation, Encapsulation};
use crate::bond::{BondOutput, Bucket};
use crate::drop::DropReason;
use crate::meter::Meter;
pub use crate::port_no::PortNo;

/// How deeply actions may be nested, which bounds the stack of workers. Actions that are nested deeper drop their
/// copy of the packet.
pub const MAX_NESTING: usize = 32;

/// A datapath action.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send the packet as it is now. The packet goes on to the next action.
    Output(PortNo),
    /// Send the packet as it is now by a member of a bond. The packet goes on to the next action.
    Bond {
        /// The bond.
        bond: Arc<BondOutput>,
        /// Which member.
        bucket: Bucket,
    },
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
    /// Compute a hash of the headers into dp_hash. It is never zero, which stands for none.
    Hash {
        /// Which headers.
        algorithm: HashAlgorithm,
        /// Seed.
        basis: u32,
    },
    /// Track the packet's connection: see [`conntrack::Tracker::track`]. The packet gets the connection's metadata, and is
    /// translated.
    Ct(Arc<conntrack::Request>),
    /// Forget what connection tracking has found out about the packet.
    CtClear,
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
    /// Give a packet without Ethernet a header of it. Here, such packets have a made-up header (see `actions/encap.rs`), which gets
    /// these addresses.
    PushEthernet {
        /// Source.
        src: [u8; 6],
        /// Destination.
        dst: [u8; 6],
    },
    /// Make a frame without VLAN tags a packet without Ethernet.
    PopEthernet,
    /// Put a network service header before the whole packet.
    PushNsh(Arc<nsh::Repr>),
    /// Take away the network service header that a packet without Ethernet begins with.
    PopNsh,
    /// Put an MPLS label stack entry before the whole packet, its header of Ethernet included.
    AddMpls {
        /// Ethernet type: 0x8847 or 0x8848.
        ethertype: u16,
        /// The whole entry.
        lse: u32,
    },
    /// Put the headers of a tunnel before the packet.
    TunnelPush(Arc<Encapsulation>),
    /// Give the packet metadata by which the port of a tunnel puts the headers before it, as datapaths do that have such ports. Here
    /// none can be sent to, so it does nothing.
    TunnelSet(Arc<TunnelSet>),
    /// Take the headers of a tunnel away, and classify what it carried as received at the tunnel's port.
    TunnelPop(Decapsulation),
    /// Run actions on a copy of some packets; the packets go on unchanged.
    Sample {
        /// How many packets, of `u32::MAX`.
        probability: u32,
        /// What to do with them.
        actions: Vec<Action>,
    },
    /// Drop the packet if it exceeds the rate of the meter, or raise its drop precedence.
    Meter(Arc<Meter>),
    /// Drop the packet for this reason. An empty list drops with [`DropReason::Rule`].
    Drop(DropReason),
}

/// The headers of which [`Action::Hash`] makes a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// Addresses, protocol and ports; those of Ethernet where there is no IP.
    L4,
    /// The same, and equal for both directions of a connection. Of ports those of TCP and SCTP, so that fragments of
    /// a datagram stay together.
    SymmetricL4,
}

/// What [`Action::TunnelSet`] says.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelSet {
    /// The outer headers, and that of the tunnel.
    pub metadata: tunnel::metadata::Metadata,
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

/// Why a copy of a packet goes to the slow path, and what its receiver gets with it.
///
/// There is a variant for each kind of receiver, and the layer above tells them apart by an exhaustive `match`
/// ([`Upcall::punt`](crate::Upcall::punt)): the compiler leads from a new variant to all places that handle, print
/// and parse it. A frame of a protocol that the switch itself takes part in (LACP, BFD, CFM, LLDP, STP) becomes one
/// with the protocol. In OVS's text these are the arguments `controller(...)`, `sFlow(...)`, `flow_sample(...)`,
/// `ipfix(...)` and `slow_path(...)` of `userspace`.
#[derive(Clone, Debug, PartialEq)]
pub enum Punt {
    /// A packet-in, for controllers.
    PacketIn(PacketInPunt),
    /// A packet that can go on when the address of a neighbour is known.
    Unresolved {
        /// The upper layer's number for the neighbour.
        question: u32,
        /// The recirculation id of the pipeline that goes on.
        continuation: u32,
    },
    /// A packet that is to be translated by itself, as each of its flow is.
    Slow,
    /// A frame that may tell the address of a neighbour.
    Neighbour {
        /// The upper layer's number of the bridge that it was for.
        bridge: u32,
    },
    /// A frame of LACP, or of another slow protocol (IEEE 802.3 annex 57A), for a port that speaks LACP.
    Lacp {
        /// The upper layer's number of the bridge that it has come in to.
        bridge: u32,
        /// That of the port.
        port: u32,
    },
    /// A control packet of BFD, for a port that speaks BFD.
    Bfd {
        /// The upper layer's number of the bridge that it has come in to.
        bridge: u32,
        /// That of the port.
        port: u32,
    },
    /// A frame of CFM, for a port that speaks CFM.
    Cfm {
        /// The upper layer's number of the bridge that it has come in to.
        bridge: u32,
        /// That of the port.
        port: u32,
    },
    /// A BPDU, for a port that takes part in a spanning tree.
    Bpdu {
        /// The upper layer's number of the bridge that it has come in to.
        bridge: u32,
        /// That of the port.
        port: u32,
    },
    /// A frame of LLDP, for a port that takes part in it.
    Lldp {
        /// The upper layer's number of the bridge that it has come in to.
        bridge: u32,
        /// That of the port.
        port: u32,
    },
    /// A sample for sFlow.
    Sflow(SflowPunt),
    /// A sample for IPFIX.
    Ipfix(IpfixPunt),
}

impl Punt {
    /// Whether it is a sample, which changes nothing of what becomes of the packet.
    pub fn is_sample(&self) -> bool {
        matches!(self, Punt::Sflow(_) | Punt::Ipfix(_))
    }
}

/// A sample for sFlow. In text it is `sFlow(...)`, as in OVS.
#[derive(Clone, Debug, PartialEq)]
pub struct SflowPunt {
    /// The upper layer's number of the bridge.
    pub bridge: u32,
    /// The VLAN tag that the packet leaves with.
    pub vlan_tci: u16,
    /// Where it goes, in sFlow's form.
    pub output: u32,
    /// The tunnel that it goes into, if it goes nowhere else.
    pub tunnel: Option<SentTunnel>,
    /// The MPLS labels that it leaves with, outermost first, if it goes to one port.
    pub mpls: Vec<u32>,
}

/// The outer headers of a tunnel over IPv4 that a packet goes into.
#[derive(Clone, Debug, PartialEq)]
pub struct SentTunnel {
    /// Kind.
    pub kind: tunnel::config::Kind,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// UDP ports; zero where there are none, and for a source that each packet has of its own.
    pub ports: (u16, u16),
    /// Key of the tunnel.
    pub id: u64,
}

/// A sample for IPFIX. In text it is `ipfix(...)` or `flow_sample(...)`, as in OVS.
#[derive(Clone, Debug, PartialEq)]
pub struct IpfixPunt {
    /// The upper layer's number of the bridge.
    pub bridge: u32,
    /// What an action of the tables has asked for; `None` for the bridge as a whole.
    pub flow: Option<FlowSample>,
    /// The port that the packet goes to, where it is sampled on its way out.
    pub output: Option<PortNo>,
    /// The tunnel port that it goes to, if its tunnel is told.
    pub tunnel_port: Option<PortNo>,
    /// Its tunnel.
    pub tunnel: Option<SentTunnel>,
    /// Whether the packet goes somewhere.
    pub is_forwarded: bool,
}

/// What an action of the tables asks for that samples packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSample {
    /// How many packets, of 65535.
    pub probability: u16,
    /// The collector set.
    pub collector_set: u32,
    /// Observation domain.
    pub obs_domain: u32,
    /// Observation point.
    pub obs_point: u32,
    /// Whether they count as coming in or as going out; `None`: as their port says.
    pub is_egress: Option<bool>,
}

/// A packet-in, without what only OpenFlow knows. In text it is `controller(...)`, as in OVS.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketInPunt {
    /// The upper layer's number for the rest of the packet-in: bridge, table, metadata. Shown as `recirc_id` where no
    /// pipeline is paused.
    pub context: u32,
    /// The recirculation id of the pipeline that pauses until the controller answers, if it does.
    pub continuation: Option<u32>,
    /// Why, by OpenFlow's number.
    pub reason: u8,
    /// Cookie of the rule that asks for it; all ones outside of any.
    pub rule_cookie: u64,
    /// The controllers that get it: those with this id.
    pub controller_id: u16,
    /// Most bytes of frame that are asked for; `None` for what is set for each connection. Shown as 65535.
    pub max_len: Option<u16>,
    /// What `context` and `continuation` stand for; nothing where the punt comes from text.
    pub kept: Kept,
}

/// Values of the upper layer that live at least as long as the punt with their numbers: its packet may wait longer than its
/// flow lives. Punts are compared by the numbers.
#[derive(Clone, Default)]
pub struct Kept(pub Vec<Arc<dyn Any + Send + Sync>>);

impl PartialEq for Kept {
    fn eq(&self, _: &Kept) -> bool {
        true
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}
