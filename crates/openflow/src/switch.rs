//! The switch as a whole and its controllers: features, configuration, roles, asynchronous messages.

use crate::port::PortDesc;
use crate::types::Versions;

bitflags::bitflags! {
    /// What the switch can do (`enum ofp_capabilities`), independent of version.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Capabilities: u32 {
        /// Flow statistics.
        const FLOW_STATS = 1;
        /// Table statistics.
        const TABLE_STATS = 1 << 1;
        /// Port statistics.
        const PORT_STATS = 1 << 2;
        /// Group statistics (OpenFlow 1.1).
        const GROUP_STATS = 1 << 3;
        /// Reassembles IP fragments.
        const IP_REASM = 1 << 5;
        /// Queue statistics.
        const QUEUE_STATS = 1 << 6;
        /// Matches addresses in ARP (OpenFlow 1.0 and 1.1).
        const ARP_MATCH_IP = 1 << 7;
        /// Blocks looping ports (OpenFlow 1.2).
        const PORT_BLOCKED = 1 << 8;
        /// Bundles (OpenFlow 1.4).
        const BUNDLES = 1 << 9;
        /// Flow monitoring (OpenFlow 1.4).
        const FLOW_MONITORING = 1 << 10;
        /// Spanning tree (OpenFlow 1.0).
        const STP = 1 << 16;
    }
}

/// Answer to a features request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFeatures {
    /// Datapath id.
    pub datapath_id: u64,
    /// Packets that can be buffered.
    pub n_buffers: u32,
    /// Number of tables.
    pub n_tables: u8,
    /// Auxiliary connection (OpenFlow 1.3).
    pub auxiliary_id: u8,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// Supported actions, one bit for each OFPAT10_* (OpenFlow 1.0).
    pub actions: u32,
    /// Ports (OpenFlow 1.0 to 1.2).
    pub ports: Vec<PortDesc>,
}

/// What happens to IP fragments (`enum ofp_config_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum FragHandling {
    /// As any packet, with L4 ports zero.
    #[default]
    Normal = 0,
    /// Dropped.
    Drop = 1,
    /// Reassembled. Weir, as OVS, does not.
    Reassemble = 2,
    /// As normal, the first fragment with its L4 ports (Nicira extension).
    NxMatch = 3,
}

/// Configuration that a controller can read and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Fragments.
    pub frag: FragHandling,
    /// Send packets with invalid TTL to the controller: OpenFlow 1.1 and 1.2, and Nicira's extension of
    /// 1.0. `None` from OpenFlow 1.3.
    pub invalid_ttl_to_controller: Option<bool>,
    /// Bytes of packet in a packet-in that no `controller` action limits.
    pub miss_send_len: u16,
}

/// A controller's role (`enum ofp12_controller_role`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Only asks for the role.
    NoChange = 0,
    /// Full access, shared.
    Equal = 1,
    /// Full access; the others that were it become secondary.
    Primary = 2,
    /// Reads only.
    Secondary = 3,
}

/// A role request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMsg {
    /// Role.
    pub role: Role,
    /// Orders competing primaries; `None` where the encoding has none (Nicira), or in an answer when
    /// none was ever given.
    pub generation_id: Option<u64>,
}

/// Why a controller's role changed (`enum ofp14_controller_role_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RoleReason {
    /// Another controller asked to be primary.
    PrimaryRequest = 0,
    /// The switch's configuration.
    Config = 1,
    /// An experimenter's.
    Experimenter = 2,
}

/// Tells a controller that its role changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleStatus {
    /// The new role.
    pub role: Role,
    /// Why.
    pub reason: RoleReason,
    /// Generation id in force; `None` where none was ever given.
    pub generation_id: Option<u64>,
}

/// Which asynchronous messages a controller gets: one bit for each reason, index 0 for the roles
/// primary and equal, index 1 for secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AsyncConfig {
    /// By [`PacketInReason`](crate::PacketInReason).
    pub packet_in: [u32; 2],
    /// By [`PortReason`](crate::PortReason).
    pub port_status: [u32; 2],
    /// By [`FlowRemovedReason`](crate::FlowRemovedReason).
    pub flow_removed: [u32; 2],
    /// By reason of a role change (OpenFlow 1.4).
    pub role_status: [u32; 2],
    /// By reason of a table change (OpenFlow 1.4).
    pub table_status: [u32; 2],
    /// By kind of forwarded request (OpenFlow 1.4).
    pub requestforward: [u32; 2],
}

/// A change of an [`AsyncConfig`]; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the members of AsyncConfig")]
pub struct AsyncChange {
    pub packet_in: [Option<u32>; 2],
    pub port_status: [Option<u32>; 2],
    pub flow_removed: [Option<u32>; 2],
    pub role_status: [Option<u32>; 2],
    pub table_status: [Option<u32>; 2],
    pub requestforward: [Option<u32>; 2],
}

impl AsyncChange {
    /// The change that leads to `config` from any other.
    pub fn to(config: &AsyncConfig) -> AsyncChange {
        AsyncChange {
            packet_in: config.packet_in.map(Some),
            port_status: config.port_status.map(Some),
            flow_removed: config.flow_removed.map(Some),
            role_status: config.role_status.map(Some),
            table_status: config.table_status.map(Some),
            requestforward: config.requestforward.map(Some),
        }
    }

    /// `config` with the change made.
    pub fn applied(&self, config: &AsyncConfig) -> AsyncConfig {
        let pick = |change: [Option<u32>; 2], old: [u32; 2]| [0, 1].map(|i| change[i].unwrap_or(old[i]));
        AsyncConfig {
            packet_in: pick(self.packet_in, config.packet_in),
            port_status: pick(self.port_status, config.port_status),
            flow_removed: pick(self.flow_removed, config.flow_removed),
            role_status: pick(self.role_status, config.role_status),
            table_status: pick(self.table_status, config.table_status),
            requestforward: pick(self.requestforward, config.requestforward),
        }
    }
}

/// A hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Versions that the sender speaks, including ones unknown here.
    pub versions: Versions,
}

/// Match encoding on OpenFlow 1.0 (NXT_SET_FLOW_FORMAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum FlowFormat {
    /// struct ofp10_match.
    #[default]
    OpenFlow10 = 0,
    /// NXM.
    Nxm = 2,
}
