//! Ports: description, changes, statistics.

use std::time::Duration;

use crate::types::{EthAddr, OfPort};

bitflags::bitflags! {
    /// Configuration of a port (`enum ofp_port_config`). Bits as in OpenFlow 1.0; 1.1 and later have
    /// the same bits without the STP and flood ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PortConfig: u32 {
        /// Administratively down.
        const PORT_DOWN = 1;
        /// No spanning tree (OpenFlow 1.0).
        const NO_STP = 1 << 1;
        /// Drop what is received, except STP.
        const NO_RECV = 1 << 2;
        /// Drop received STP (OpenFlow 1.0).
        const NO_RECV_STP = 1 << 3;
        /// Not part of a flood (OpenFlow 1.0).
        const NO_FLOOD = 1 << 4;
        /// Drop what is sent.
        const NO_FWD = 1 << 5;
        /// No packet-in for packets from here.
        const NO_PACKET_IN = 1 << 6;
    }

    /// State of a port (`enum ofp_port_state`). Bits as in OpenFlow 1.1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PortState: u32 {
        /// No carrier.
        const LINK_DOWN = 1;
        /// Blocked, by spanning tree for instance.
        const BLOCKED = 1 << 1;
        /// Live for fast failover.
        const LIVE = 1 << 2;
        /// Spanning tree: listening. Not learning or relaying. (OpenFlow 1.0.)
        const STP_LEARN = 1 << 8;
        /// Spanning tree: forwarding (OpenFlow 1.0). With STP_LEARN: blocking.
        const STP_FORWARD = 1 << 9;
    }

    /// Features of a port (`enum ofp_port_features`). Bits as in OpenFlow 1.1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PortFeatures: u32 {
        /// 10 Mb/s half duplex.
        const F10MB_HD = 1;
        /// 10 Mb/s full duplex.
        const F10MB_FD = 1 << 1;
        /// 100 Mb/s half duplex.
        const F100MB_HD = 1 << 2;
        /// 100 Mb/s full duplex.
        const F100MB_FD = 1 << 3;
        /// 1 Gb/s half duplex.
        const F1GB_HD = 1 << 4;
        /// 1 Gb/s full duplex.
        const F1GB_FD = 1 << 5;
        /// 10 Gb/s full duplex.
        const F10GB_FD = 1 << 6;
        /// 40 Gb/s full duplex (OpenFlow 1.1).
        const F40GB_FD = 1 << 7;
        /// 100 Gb/s full duplex (OpenFlow 1.1).
        const F100GB_FD = 1 << 8;
        /// 1 Tb/s full duplex (OpenFlow 1.1).
        const F1TB_FD = 1 << 9;
        /// Another speed (OpenFlow 1.1).
        const OTHER = 1 << 10;
        /// Copper.
        const COPPER = 1 << 11;
        /// Fibre.
        const FIBER = 1 << 12;
        /// Autonegotiation.
        const AUTONEG = 1 << 13;
        /// Pause.
        const PAUSE = 1 << 14;
        /// Asymmetric pause.
        const PAUSE_ASYM = 1 << 15;
    }
}

/// Description of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDesc {
    /// Number.
    pub port: OfPort,
    /// Ethernet address.
    pub hw_addr: EthAddr,
    /// Name; the wire carries at most 15 bytes.
    pub name: String,
    /// Configuration.
    pub config: PortConfig,
    /// State.
    pub state: PortState,
    /// Present features.
    pub current: PortFeatures,
    /// Features that are advertised.
    pub advertised: PortFeatures,
    /// Features that the port could have.
    pub supported: PortFeatures,
    /// Features that the peer advertises.
    pub peer: PortFeatures,
    /// Present speed, kb/s; not in OpenFlow 1.0.
    pub current_speed: u32,
    /// Highest speed, kb/s; not in OpenFlow 1.0.
    pub max_speed: u32,
}

/// What happened to a port (`enum ofp_port_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortReason {
    /// Added.
    Add = 0,
    /// Removed.
    Delete = 1,
    /// Changed.
    Modify = 2,
}

/// Tells that a port changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// What happened.
    pub reason: PortReason,
    /// The port, as it is now or was last.
    pub desc: PortDesc,
}

/// A change to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMod {
    /// Port.
    pub port: OfPort,
    /// Must be the port's address.
    pub hw_addr: EthAddr,
    /// New values of the bits in `mask`.
    pub config: PortConfig,
    /// Bits to change.
    pub mask: PortConfig,
    /// Features to advertise; empty for no change.
    pub advertise: PortFeatures,
}

/// Counters of a port. [`u64::MAX`] stands for "not available".
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in struct ofp_port_stats")]
pub struct PortStats {
    pub port: OfPort,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_frame_err: u64,
    pub rx_over_err: u64,
    pub rx_crc_err: u64,
    pub collisions: u64,
    /// How long the port has existed; `None` in OpenFlow 1.0 to 1.2.
    pub duration: Option<Duration>,
    /// The device's own counters by name (OpenFlow 1.4 and later).
    pub custom: Vec<(String, u64)>,
}

/// Counters of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in struct ofp_queue_stats")]
pub struct QueueStats {
    pub port: OfPort,
    pub queue: u32,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    /// How long the queue has existed; `None` in OpenFlow 1.0 to 1.2.
    pub duration: Option<Duration>,
}
