//! Ports of a bridge.

use std::sync::Arc;

use openflow::{EthAddr, OfPort, PortConfig, PortDesc, PortFeatures, PortState};
use packet::Time;
use ports::Port;
use protocols::mcast;

use crate::model::path_check::PathCheckConfig;
use crate::model::spanning_tree::SpanningTreePort;
use crate::model::tunnels::TunnelPort;
use crate::model::vlan::PortVlan;

/// A port to be added to a bridge.
#[derive(Clone)]
pub struct PortSpec {
    /// Name, unique in the switch.
    pub name: String,
    /// What frames go through.
    pub device: Device,
    /// Wanted OpenFlow port number. It is given if it is free; the port named as the bridge always is
    /// LOCAL.
    pub request: Option<OfPort>,
    /// The port of the configuration that it is an interface of, where that has another name: a bond, for instance
    /// ([`Bridge::set_bond`](crate::Bridge::set_bond)).
    pub logical: Option<String>,
    /// It is no port of the configuration: NORMAL, mirrors, bonds and protocols know nothing of it. Flows and the host see it as any other.
    pub unbundled: bool,
    /// What of LACP is configured for the interface: options that begin with `lacp-`.
    pub lacp: std::collections::BTreeMap<String, String>,
    /// How the path behind the interface is checked.
    pub path_checks: PathCheckConfig,
    /// LLDP is spoken by the interface.
    pub lldp: bool,
    /// Its part in the spanning tree of its bridge.
    pub spanning_tree: SpanningTreePort,
    /// What it gets of multicast whoever is a member.
    pub mcast_snooping: mcast::PortSettings,
    /// VLANs.
    pub vlan: PortVlan,
    /// Initial OpenFlow configuration.
    pub config: PortConfig,
}

impl PortSpec {
    /// A trunk port on a device, with the next free number.
    pub fn new(port: Arc<dyn Port>) -> PortSpec {
        PortSpec::of(port.name(), Device::Datapath(port.clone()))
    }

    /// A trunk port through which frames go as `device` says, with the next free number.
    pub fn of(name: &str, device: Device) -> PortSpec {
        PortSpec {
            name: name.to_owned(),
            device,
            request: None,
            logical: None,
            unbundled: false,
            lacp: Default::default(),
            path_checks: PathCheckConfig::default(),
            lldp: false,
            spanning_tree: SpanningTreePort::default(),
            mcast_snooping: mcast::PortSettings::default(),
            vlan: PortVlan::default(),
            config: PortConfig::empty(),
        }
    }
}

/// What frames of a port go through.
#[derive(Clone)]
pub enum Device {
    /// A port of the datapath.
    Datapath(Arc<dyn Port>),
    /// A patch to another bridge (or this one): what is sent here is received at the port with the name
    /// `peer`.
    Patch {
        /// Name of the other end.
        peer: String,
        /// Ethernet address to show.
        mac: ports::Mac,
    },
    /// A tunnel to other hosts.
    Tunnel(Arc<TunnelPort>),
}

impl Device {
    /// The Ethernet address.
    pub(crate) fn mac(&self) -> ports::Mac {
        match self {
            Device::Datapath(device) => device.mac(),
            Device::Tunnel(tunnel) => tunnel.mac(),
            Device::Patch { mac, .. } => *mac,
        }
    }

    /// The device, but for a patch port's, which has none.
    pub(crate) fn port(&self) -> Option<Arc<dyn Port>> {
        match self {
            Device::Datapath(device) => Some(device.clone()),
            Device::Tunnel(tunnel) => Some(tunnel.clone()),
            Device::Patch { .. } => None,
        }
    }
}

/// What a port is and where.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// OpenFlow number.
    pub port: OfPort,
    /// Name.
    pub name: String,
    /// Number in the datapath, of a tunnel port that of its carrier; `None` for a patch port, and while one device replaces another.
    pub dp_port: Option<datapath::PortNo>,
    /// "afxdp", "tap", ..., or "patch".
    pub kind: &'static str,
    /// The other end of a patch port.
    pub peer: Option<String>,
    /// The options of a tunnel port that are not the default; what a device shows of its settings.
    pub options: Vec<(&'static str, String)>,
    /// VLANs.
    pub vlan: PortVlan,
    /// OpenFlow configuration.
    pub config: PortConfig,
    /// When it was added.
    pub created: Time,
    /// The device; `None` for a patch port.
    pub device: Option<Arc<dyn Port>>,
}

/// What protocols say of a port; `None` of what the port takes no part in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortProtocols {
    /// Whether it carries the traffic of the bond that it is a member of.
    pub bond_enabled: Option<bool>,
    /// Whether a spanning tree lets it forward.
    pub tree_forwards: Option<bool>,
    /// Whether the session of BFD is up.
    pub bfd_up: Option<bool>,
    /// Whether CFM has found a fault.
    pub cfm_fault: Option<bool>,
}

/// The OpenFlow description of a device. `path_up`: no path check has found the path behind it down.
pub(crate) fn describe(port: OfPort, name: &str, config: PortConfig, device: &Device, path_up: bool) -> PortDesc {
    let mut desc = PortDesc {
        port,
        hw_addr: EthAddr::default(),
        name: name.to_owned(),
        config,
        state: PortState::empty(),
        current: PortFeatures::empty(),
        advertised: PortFeatures::empty(),
        supported: PortFeatures::empty(),
        peer: PortFeatures::empty(),
        current_speed: 0,
        max_speed: 0,
    };
    match device {
        Device::Patch { mac, .. } => {
            desc.hw_addr = EthAddr(*mac);
            desc.state = PortState::LIVE;
        }
        Device::Tunnel(tunnel) => {
            desc.hw_addr = EthAddr(tunnel.mac());
            desc.config.set(PortConfig::PORT_DOWN, !tunnel.is_enabled());
            desc.state = PortState::LIVE;
        }
        Device::Datapath(device) => {
            let (link, features) = (device.link(), device.features());
            desc.hw_addr = EthAddr(device.mac());
            desc.config.set(PortConfig::PORT_DOWN, !link.admin_up);
            desc.state.set(PortState::LINK_DOWN, !link.up);
            desc.state.set(PortState::LIVE, link.up);
            desc.current = feature_bits(&features, features.speed_mbps);
            desc.current_speed = features.speed_mbps.saturating_mul(1000);
            desc.max_speed = features.max_speed_mbps.saturating_mul(1000);
        }
    }
    desc.state.set(PortState::LIVE, !desc.state.contains(PortState::LINK_DOWN) && path_up);
    desc
}

/// The speeds for which OpenFlow has a bit, Mb/s: full and half duplex.
const SPEEDS: &[(u32, PortFeatures, PortFeatures)] = &[
    (10, PortFeatures::F10MB_FD, PortFeatures::F10MB_HD),
    (100, PortFeatures::F100MB_FD, PortFeatures::F100MB_HD),
    (1_000, PortFeatures::F1GB_FD, PortFeatures::F1GB_HD),
    (10_000, PortFeatures::F10GB_FD, PortFeatures::F10GB_FD),
    (40_000, PortFeatures::F40GB_FD, PortFeatures::F40GB_FD),
    (100_000, PortFeatures::F100GB_FD, PortFeatures::F100GB_FD),
    (1_000_000, PortFeatures::F1TB_FD, PortFeatures::F1TB_FD),
];

fn feature_bits(features: &ports::Features, speed: u32) -> PortFeatures {
    let mut bits = match SPEEDS.iter().find(|(mbps, ..)| *mbps == speed) {
        Some(&(_, full, half)) => {
            if features.full_duplex {
                full
            } else {
                half
            }
        }
        None if speed != 0 => PortFeatures::OTHER,
        None => return PortFeatures::empty(),
    };
    bits.set(PortFeatures::COPPER, features.copper);
    bits.set(PortFeatures::FIBER, !features.copper);
    bits.set(PortFeatures::AUTONEG, features.autonegotiation);
    bits
}
