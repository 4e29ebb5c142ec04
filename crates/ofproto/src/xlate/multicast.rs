//! NORMAL for multicast, where the bridge snoops (docs/multicast_snooping.md).
//!
//! Messages of membership go up one by one, since what is learnt from them is in their payload. The flow that sends them up is
//! the same for all kinds of a protocol where OVS has one for them. What other packets of groups depend on is noted as an answer
//! ([`MacDependencies::add_group`](crate::slowpath::mac_dependents::MacDependencies::add_group)).

use std::net::{IpAddr, Ipv6Addr};

use datapath::DropReason;
use openflow::OfPort;
use packet::Field;
use packet::wire::{ethertype, ip_proto};
use protocols::mcast::snooping::is_local;
use protocols::mcast::{Destination, Group, Port, Why};

use super::Ctx;
use super::trace::Event;
use crate::model::forwarding::{BridgeId, PortState};
use crate::model::mac::is_multicast;
use crate::model::vlan::Tags;

/// From so many places one packet is learnt: it has to come to bridges by patch ports for that, or to ports by resubmits.
const MOST_HEARD: usize = 64;

/// A message of membership has come in here, and is to be learnt from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub bridge: BridgeId,
    pub vlan: u16,
    pub port: Port,
}

/// Kinds of messages of membership, as their types tell.
enum Kind {
    Query,
    Report,
    /// Of the protocol, but not about membership.
    Other,
}

impl<'a> Ctx<'a, '_> {
    /// Forwards a packet to a group; false where it is none that the bridge snoops on. `source` is where it has come in, if that is a
    /// port.
    pub(super) fn is_snooped(&mut self, source: Option<&'a PortState>, in_port: OfPort, tags: &Tags) -> bool {
        let common = self.flow.common();
        let (dst, dl_type, nw_dst) = (common.dl_dst, common.dl_type.get(), common.nw_dst);
        let is_group = is_multicast(dst) && dst != [0xff; 6];
        if self.bridge.config.mcast_snooping.is_none() || !is_group {
            return false;
        }
        let address = match dl_type {
            ethertype::IPV4 => IpAddr::from(nw_dst.get().to_be_bytes()),
            ethertype::IPV6 => IpAddr::V6(Ipv6Addr::from(self.flow.get(Field::Ipv6Dst))),
            _ => return false,
        };
        match self.membership_message(dl_type) {
            Some(kind) => self.forward_message(kind, source, in_port, dl_type, tags),
            None => self.forward_to_group(address, in_port, tags),
        }
        true
    }

    /// What kind of message the packet is. Matches the bits that tell.
    fn membership_message(&mut self, dl_type: u16) -> Option<Kind> {
        self.wc.set_exact(Field::NwProto);
        let (proto, kind) = (self.flow.common().nw_proto, self.flow.common().tp_src.get());
        if dl_type == ethertype::IPV4 {
            // IGMP of all types goes up, so these are not matched.
            return (proto == ip_proto::IGMP).then_some(match kind {
                0x11 => Kind::Query,
                0x12 | 0x16 | 0x17 | 0x22 => Kind::Report,
                _ => Kind::Other,
            });
        }
        if proto != ip_proto::ICMPV6 {
            return None;
        }
        self.wc.0.common_mut().tp_src = u16::MAX.into();
        match kind {
            130 => Some(Kind::Query),
            131 | 132 | 143 => Some(Kind::Report),
            _ => None,
        }
    }

    /// Notes that a message is to be learnt from, and forwards it: reports to routers only, lest hosts that hear them keep silent (RFC
    /// 4541 section 2.1.1).
    fn forward_message(
        &mut self,
        kind: Kind,
        source: Option<&'a PortState>,
        in_port: OfPort,
        dl_type: u16,
        tags: &Tags,
    ) {
        let bridge = self.bridge;
        self.slow = true;
        let heard = Heard { bridge: bridge.id, vlan: tags.vid(), port: in_port.0 };
        let is_about_membership = !matches!(kind, Kind::Other);
        if is_about_membership && source.is_some() && self.heard.len() < MOST_HEARD && !self.heard.contains(&heard) {
            self.heard.push(heard);
        }
        if let Kind::Report = kind {
            let ports = bridge.multicast.report_ports(tags.vid());
            return self.send_to(ports, true, in_port, tags);
        }
        let text = if dl_type == ethertype::IPV4 { "multicast traffic, flooding" } else { "MLD query, flooding" };
        self.detail(|| text.into());
        self.flood_vlan(bridge, in_port, tags);
    }

    fn forward_to_group(&mut self, address: IpAddr, in_port: OfPort, tags: &Tags) {
        let bridge = self.bridge;
        self.wc.set_exact(if address.is_ipv4() { Field::NwDst } else { Field::Ipv6Dst });
        if is_local(address) {
            self.detail(|| "RFC4541: section 2.1.2, item 2, flooding".into());
            return self.flood_vlan(bridge, in_port, tags);
        }
        let group = Group { vlan: tags.vid(), address };
        let answer = bridge.multicast.destination(group.vlan, address);
        self.record.macs.add_group(bridge.id, group, &answer);
        match answer {
            Destination::Flood => {
                self.detail(|| "unregistered multicast, flooding".into());
                self.flood_vlan(bridge, in_port, tags);
            }
            Destination::Ports(ports) => self.send_to(ports, false, in_port, tags),
        }
    }

    /// Sends to these ports, of each bond once, but for ports that do not carry the VLAN.
    fn send_to(&mut self, ports: Vec<(Port, Why)>, is_report: bool, in_port: OfPort, tags: &Tags) {
        let bridge = self.bridge;
        // Ports of bonds stand for others.
        self.record.depends_on_all_ports(bridge.id);
        self.charge(ports.len() / 8);
        let mut ports: Vec<_> = ports.into_iter().map(|(port, why)| (bridge.logical(OfPort(port)), why)).collect();
        ports.sort_by_key(|(port, _)| *port);
        ports.dedup_by_key(|(port, _)| *port);
        for (port, why) in ports {
            let (name, forwarding) = match why {
                Why::Member => ("mcast group port", "forwarding to mcast group port"),
                Why::Router => ("mcast router port", "forwarding to mcast router port"),
                Why::Setting if is_report => ("mcast port", "forwarding report to mcast flagged port"),
                Why::Setting => ("mcast flood port", "forwarding to mcast flood port"),
            };
            match bridge.ports.get(&port) {
                None => self.warning(|| format!("{name} is unknown, dropping")),
                Some(_) if port == in_port => {
                    self.not_sent(DropReason::Reflection);
                    self.detail(|| format!("{name} is input port, dropping"));
                }
                Some(state) if bridge.is_mirror_port(state) => self.not_sent(DropReason::MirrorPort),
                Some(state) if !self.includes(state, tags) => self.not_sent(DropReason::VlanNotAllowed),
                Some(state) => {
                    self.event(|| Event::Detail(forwarding));
                    self.output_tagged(state, tags);
                }
            }
        }
        self.not_sent(DropReason::NoMulticastReceiver);
    }
}
