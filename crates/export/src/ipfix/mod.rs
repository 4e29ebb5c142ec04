//! IPFIX (RFC 7011): records of flows, made from samples of packets.
//!
//! | module | what it is |
//! |---|---|
//! | [`element`] | Information elements, and which of them a template has |
//! | [`message`] | Messages: headers, templates, data records |
//! | [`cache`] | Flows until they are exported |
//! | [`exporter`] | A cache with its messages and statistics |
//!
//! A sample stands for as many packets as its rate says: they are counted as alike.

pub mod cache;
pub mod element;
pub mod exporter;
pub mod message;

use std::sync::Arc;

use packet::Key;
use packet::flow::VLAN_PRESENT;

use crate::tunnel::Tunnel;
use element::{Direction, L2, L3, L4, Template};

/// A packet that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Which bridge.
    pub bridge: u32,
    /// Which of its exporters: a collector set's, or the bridge's.
    pub collector_set: Option<u32>,
    /// How many packets it stands for: see [`weight`].
    pub weight: u64,
    /// Bytes of the frame, without its check sequence.
    pub frame_len: u32,
    /// Whether the packet goes somewhere.
    pub is_forwarded: bool,
    /// TCP flags.
    pub tcp_flags: u16,
    /// The flow that it belongs to.
    pub flow: FlowKey,
}

/// Binary places of a [`weight`] behind the point.
const PLACES: u32 = 32;

/// How many packets a sample stands for that is one of `packets` in `samples`, with a fraction: otherwise one in four, which
/// the action `sample` calls 16384 of 65535, would count as one in three.
pub fn weight(packets: u32, samples: u32) -> u64 {
    (u64::from(packets) << PLACES) / u64::from(samples.max(1))
}

/// What makes packets one flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Observation domain; for a bridge's exporter its own takes the place of it.
    pub obs_domain: u32,
    /// Observation point; likewise.
    pub obs_point: u32,
    /// Which headers there are.
    pub template: Template,
    /// Ethernet addresses.
    pub mac: MacPair,
    /// Ethernet type.
    pub ethertype: u16,
    /// VLAN tag.
    pub tci: u16,
    /// Where packets come in.
    pub ingress: Interface,
    /// Where they go out.
    pub egress: Interface,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Source and destination.
    pub addresses: Addresses,
    /// Flow label.
    pub label: u32,
    /// Ports, or type and code of ICMP.
    pub ports: (u16, u16),
    /// Tunnel.
    pub tunnel: Option<Tunnel>,
}

/// Ethernet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MacPair {
    /// Source.
    pub src: [u8; 6],
    /// Destination.
    pub dst: [u8; 6],
}

/// IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Not IP.
    None,
    /// IPv4: source and destination.
    V4(u32, u32),
    /// IPv6: source and destination.
    V6([u8; 16], [u8; 16]),
}

/// A port, as an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Interface {
    /// Number; zero where there is none.
    pub index: u32,
    /// Type, by IANA's numbers; zero where it is not known.
    pub kind: u32,
    /// Name.
    pub name: Arc<str>,
    /// Description.
    pub description: Arc<str>,
}

impl FlowKey {
    /// The flow of a packet with this key.
    pub fn of(key: &Key, direction: Direction, tunnel: Option<Tunnel>) -> FlowKey {
        let common = key.common();
        let l3 = match common.dl_type.get() {
            0x0800 => L3::Ipv4,
            0x86dd => L3::Ipv6,
            _ => L3::Other,
        };
        let l4 = match (l3, common.nw_proto) {
            (L3::Other, _) => L4::Other,
            (_, 6) => L4::Tcp,
            (_, 17) => L4::Udp,
            (_, 132) => L4::Sctp,
            (L3::Ipv4, 1) | (L3::Ipv6, 58) => L4::Icmp,
            _ => L4::Other,
        };
        let tci = common.vlan[0].tci.get();
        let l2 = if tci & VLAN_PRESENT != 0 { L2::Vlan } else { L2::Ethernet };
        let (addresses, label) = match l3 {
            L3::Ipv4 => (Addresses::V4(common.nw_src.get(), common.nw_dst.get()), 0),
            L3::Ipv6 => {
                let l3 = key.l3();
                (Addresses::V6(l3.ipv6_src, l3.ipv6_dst), l3.ipv6_label.get())
            }
            L3::Other => (Addresses::None, 0),
        };
        let is_ip = l3 != L3::Other;
        let of_ip = |value: u8| if is_ip { value } else { 0 };
        let has_ports = l4 != L4::Other;
        FlowKey {
            obs_domain: 0,
            obs_point: 0,
            template: Template { l2, l3, l4, is_tunnelled: tunnel.is_some(), direction },
            mac: MacPair { src: common.dl_src, dst: common.dl_dst },
            ethertype: common.dl_type.get(),
            tci,
            ingress: Interface::default(),
            egress: Interface::default(),
            ttl: of_ip(common.nw_ttl),
            protocol: of_ip(common.nw_proto),
            tos: of_ip(common.nw_tos),
            addresses,
            label,
            ports: if has_ports { (common.tp_src.get(), common.tp_dst.get()) } else { (0, 0) },
            tunnel,
        }
    }
}

#[cfg(test)]
mod tests;
