//! Flows that are the switch's own. They stand above all flows of table 0, and OpenFlow neither shows nor counts them.
//!
//! - Of *in-band control*: what a bridge needs to reach its controllers through itself, which is ARP, DHCP and the
//!   connections, is forwarded as NORMAL does, whatever controllers have made of the tables. They could cut themselves
//!   off otherwise.
//! - Of *fail-open*: a standalone bridge whose controllers are gone forwards everything as NORMAL does.
//!
//! `bridge/dump-flows` shows them with the priorities that they have in OVS.

use std::cmp::Reverse;
use std::net::SocketAddrV4;
use std::sync::Arc;

use openflow::{Action, Instructions, Match, OfPort, TableId};
use packet::wire::{ethertype, ip_proto};
use packet::{Field, Key, Mask, Time};

use crate::table::{Classifier, Rule, Search};

const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;

/// What is to be reached through a bridge itself, whatever its flows say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InBand {
    /// The Ethernet address of the LOCAL port, if it is known.
    pub local: Option<[u8; 6]>,
    /// The controllers.
    pub remotes: Vec<Remote>,
    /// The queue for their packets.
    pub queue: Option<u32>,
}

/// A controller that is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address and TCP port.
    pub address: SocketAddrV4,
    /// The Ethernet address of the next hop on the way, if it is known.
    pub next_hop: Option<[u8; 6]>,
}

/// What a hidden flow is for. The order is that of their priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    DhcpFromLocal,
    ArpToLocal,
    ArpFromLocal,
    ArpToNextHop,
    ArpFromNextHop,
    ArpToRemote,
    ArpFromRemote,
    TcpToRemote,
    TcpFromRemote,
    FailOpen,
}

/// The lowest priority that OVS gives to a flow of in-band control.
const IN_BAND_PRIORITY: u32 = 180_000;
/// The priority of its flow of fail-open.
const FAIL_OPEN_PRIORITY: u32 = 0x00f0_f0f0;

/// The hidden flows of a bridge. See the [module](self).
#[derive(Default)]
pub(crate) struct HiddenFlows {
    /// By purpose instead of priority: a rule has 16 bits for that.
    rules: Classifier<Rule>,
    /// DHCP replies go to the LOCAL port, too.
    in_band: bool,
}

impl HiddenFlows {
    /// The flows for these settings. Those that stay keep their counters.
    pub fn renewed(&self, in_band: &InBand, fail_open: bool, now: Time) -> HiddenFlows {
        let mut rules = Classifier::default();
        let mut flows = flows_of(in_band);
        if fail_open {
            flows.push((Purpose::FailOpen, Match::any()));
        }
        for (purpose, matching) in flows {
            let pattern = rules.pattern(&matching.key, &matching.mask);
            let known = self.rules.find(&pattern, purpose as u16);
            let queue = in_band.queue.filter(|_| purpose != Purpose::FailOpen).map(Action::SetQueue);
            let actions = queue.into_iter().chain([Action::output(OfPort::NORMAL)]).collect();
            let instructions = Arc::new(Instructions::apply(actions).into());
            let mut rule = Rule::new(TableId(0), purpose as u16, pattern, instructions, now);
            if let Some(known) = known {
                (rule.created, rule.stats) = (known.created, known.stats.clone());
            }
            rules.insert(Arc::new(rule));
        }
        HiddenFlows { rules, in_band: !in_band.remotes.is_empty() }
    }

    /// Whether there are none, as in most bridges.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// They, if there are any: they are looked up before table 0.
    pub fn rules(&self) -> Option<&Classifier<Rule>> {
        (!self.is_empty()).then_some(&self.rules)
    }

    /// What would be found among them without a flow that was found.
    pub fn lookup_without<'a>(&'a self, key: &Key, rule: &'a Rule) -> Option<&'a Arc<Rule>> {
        Search::without(&self.rules, rule).lookup(key, &mut Mask::wildcard())
    }

    /// Whether a packet is for the LOCAL port whatever becomes of it otherwise: it may bring that port its address.
    pub fn must_reach_local(&self, key: &Key, wc: &mut Mask) -> bool {
        if !self.in_band || key.common().dl_type.get() != ethertype::IPV4 {
            return false;
        }
        wc.set_exact(Field::NwProto);
        if key.common().nw_proto != ip_proto::UDP {
            return false;
        }
        wc.set_exact(Field::UdpSrc);
        wc.set_exact(Field::UdpDst);
        (key.common().tp_src.get(), key.common().tp_dst.get()) == (DHCP_SERVER, DHCP_CLIENT)
    }

    /// Every flow with its priority, the highest first.
    pub fn by_priority(&self) -> Vec<(u32, Arc<Rule>)> {
        let mut rules: Vec<_> = self.rules.iter().map(|rule| (shown_priority(rule), rule.clone())).collect();
        rules.sort_by_key(|(priority, _)| Reverse(*priority));
        rules
    }
}

/// The priority under which a hidden flow is shown.
pub(crate) fn shown_priority(rule: &Rule) -> u32 {
    match rule.priority {
        purpose if purpose == Purpose::FailOpen as u16 => FAIL_OPEN_PRIORITY,
        purpose => IN_BAND_PRIORITY + u32::from(purpose),
    }
}

/// The flows of in-band control.
fn flows_of(settings: &InBand) -> Vec<(Purpose, Match)> {
    let mut flows = Vec::new();
    if settings.remotes.is_empty() {
        return flows;
    }
    if let Some(local) = settings.local {
        let mut request = Match::any();
        request.set_in_port(OfPort::LOCAL);
        request.set(Field::DlType, ethertype::IPV4.into());
        request.set(Field::DlSrc, address(local));
        request.set(Field::NwProto, ip_proto::UDP.into());
        request.set(Field::UdpSrc, DHCP_CLIENT.into());
        request.set(Field::UdpDst, DHCP_SERVER.into());
        flows.push((Purpose::DhcpFromLocal, request));
        flows.push((Purpose::ArpToLocal, arp(ARP_REPLY, Field::DlDst, address(local))));
        flows.push((Purpose::ArpFromLocal, arp(ARP_REQUEST, Field::DlSrc, address(local))));
    }
    for remote in &settings.remotes {
        if let Some(next_hop) = remote.next_hop {
            flows.push((Purpose::ArpToNextHop, arp(ARP_REPLY, Field::DlDst, address(next_hop))));
            flows.push((Purpose::ArpFromNextHop, arp(ARP_REQUEST, Field::DlSrc, address(next_hop))));
        }
        let ip = u128::from(u32::from(*remote.address.ip()));
        flows.push((Purpose::ArpToRemote, arp(ARP_REPLY, Field::ArpTpa, ip)));
        flows.push((Purpose::ArpFromRemote, arp(ARP_REQUEST, Field::ArpSpa, ip)));
        let port = remote.address.port().into();
        flows.push((Purpose::TcpToRemote, tcp((Field::NwDst, ip), (Field::TcpDst, port))));
        flows.push((Purpose::TcpFromRemote, tcp((Field::NwSrc, ip), (Field::TcpSrc, port))));
    }
    flows
}

fn arp(operation: u16, field: Field, value: u128) -> Match {
    let mut matching = Match::any();
    matching.set(Field::DlType, ethertype::ARP.into());
    matching.set(Field::ArpOp, operation.into());
    matching.set(field, value);
    matching
}

fn tcp(ip: (Field, u128), port: (Field, u128)) -> Match {
    let mut matching = Match::any();
    matching.set(Field::DlType, ethertype::IPV4.into());
    matching.set(Field::NwProto, ip_proto::TCP.into());
    matching.set(ip.0, ip.1);
    matching.set(port.0, port.1);
    matching
}

fn address(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |value, &octet| value << 8 | u128::from(octet))
}

#[cfg(test)]
mod tests {
    use packet::wire::build;

    use super::*;
    use crate::Controllers;
    use crate::model::config::{BridgeConfig, FailMode};
    use crate::reference::tests::Bed;

    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const CONTROLLER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn segment(dst: [u8; 4], port: u16) -> Vec<u8> {
        let header =
            build::Ipv4 { src: [10, 0, 0, 1].into(), dst: dst.into(), proto: 6, ttl: 64, ..Default::default() };
        let mut tcp = [1234u16.to_be_bytes(), port.to_be_bytes()].concat();
        tcp.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        build::ethernet(CONTROLLER, HOST, &[], ethertype::IPV4, &header.packet(tcp))
    }

    fn in_band() -> InBand {
        let address = SocketAddrV4::new([10, 0, 0, 2].into(), 6653);
        let (local, next_hop) = (Some(HOST), Some(CONTROLLER));
        InBand { local, remotes: vec![Remote { address, next_hop }], queue: None }
    }

    #[test]
    fn a_controller_is_reached_whatever_the_flows_say() {
        let bed = Bed::new(2);
        let reached = |dst, port| {
            bed.bridge.barrier();
            !bed.receive(OfPort(1), &segment(dst, port)).is_empty()
        };
        assert!(!reached([10, 0, 0, 2], 6653), "the table is empty");
        bed.bridge.set_in_band(in_band());
        assert!(reached([10, 0, 0, 2], 6653));
        assert!(!reached([10, 0, 0, 2], 80) && !reached([10, 0, 0, 3], 6653), "nothing else");
        let shown = bed.bridge.hidden_flows();
        let priorities: Vec<_> = shown.iter().map(|(priority, _)| *priority).collect();
        assert_eq!(priorities, (180_000..=180_008).rev().collect::<Vec<_>>());
        assert_eq!(shown.iter().map(|(_, flow)| flow.packet_count).sum::<u64>(), 1);
        assert_eq!(bed.bridge.flow_count(), 0);
        bed.bridge.set_in_band(InBand { queue: Some(3), ..in_band() });
        assert_eq!(bed.bridge.hidden_flows()[1].1.packet_count, 1, "a flow that stays keeps its counters");
        bed.bridge.set_in_band(InBand::default());
        assert!(!reached([10, 0, 0, 2], 6653) && bed.bridge.hidden_flows().is_empty());
    }

    #[test]
    fn a_bridge_without_its_controller_dropped_everything() {
        let bed = Bed::new(2);
        let sent = || {
            bed.bridge.barrier();
            bed.receive(OfPort(1), &segment([10, 0, 0, 9], 80)).len()
        };
        let controllers = Controllers { configured: true, want_misses: false, fail_open: true };
        bed.bridge.set_controllers(controllers);
        assert_eq!(sent(), 0, "a secure bridge does what its flows say");
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort(2))]);
        assert_eq!(sent(), 1, "and goes on with them");
        bed.bridge.set_config(BridgeConfig { fail_mode: FailMode::Standalone, ..bed.bridge.config() });
        bed.add_flow(0, 1, Match::any(), vec![]);
        assert_eq!(sent(), 1, "a standalone one is a learning switch");
        assert_eq!(bed.bridge.hidden_flows()[0].0, FAIL_OPEN_PRIORITY);
        bed.bridge.set_controllers(Controllers { fail_open: false, ..controllers });
        assert_eq!(sent(), 0, "until the controller is back");
    }

    #[test]
    fn dhcp_replies_reach_the_local_port() {
        let mut wc = Mask::wildcard();
        let (mut hidden, mut reply) = (HiddenFlows::default(), Key::new());
        let common = reply.common_mut();
        (common.dl_type, common.nw_proto) = (ethertype::IPV4.into(), ip_proto::UDP);
        (common.tp_src, common.tp_dst) = (DHCP_SERVER.into(), DHCP_CLIENT.into());
        assert!(!hidden.must_reach_local(&reply, &mut wc) && wc == Mask::wildcard());
        hidden.in_band = true;
        assert!(hidden.must_reach_local(&reply, &mut wc) && wc.is_exact(Field::UdpDst));
        reply.common_mut().tp_dst = DHCP_SERVER.into();
        assert!(!hidden.must_reach_local(&reply, &mut wc));
    }
}
