//! Samples on their way to the exporter, and what it asks of the switch.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::{DropReason, IpfixPunt, MADE_UP, PortNo, SentTunnel, SflowPunt};
use export::ipfix::element::Direction;
use export::queue::Sample;
use export::sflow::{Counters, PolledPort, PortCounters, SwitchCounters};
use export::tunnel::{Kind, Tunnel};
use export::{ipfix, sflow};
use openflow::OfPort;
use packet::{Key, Packet};

use crate::model::forwarding::{BridgeId, Forwarding, PortState};
use crate::model::port::Device;
use crate::model::tunnels::Located;
use crate::switch::Switch;

impl Switch {
    /// Hands a sample for sFlow to the exporter.
    pub(crate) fn sample_sflow(&self, packet: &Packet, key: &Key, punt: &SflowPunt) {
        let forwarding = self.forwarding.read();
        let Some(settings) = forwarding.bridges.get(&BridgeId(punt.bridge)).and_then(|bridge| bridge.sampling.sflow)
        else {
            return;
        };
        let port = came_in_at(&forwarding, key);
        let kind = port.map_or(Kind::Other, kind_of);
        let kind_of_packet = key.common().packet_type.get();
        let data = if kind_of_packet == 0 { packet.data() } else { packet.data().get(MADE_UP..).unwrap_or_default() };
        let sample = sflow::Sample {
            bridge: punt.bridge,
            protocol: sflow::datagram::header_protocol(kind_of_packet),
            header: data[..data.len().min(settings.header)].to_vec(),
            frame_len: data.len() as u32,
            input: port.map_or(0, ifindex),
            output: punt.output,
            src_tci: key.common().vlan[0].tci.get(),
            dst_tci: punt.vlan_tci,
            ingress: Tunnel::received(key, kind),
            egress: punt.tunnel.as_ref().map(sent),
            mpls: punt.mpls.clone(),
        };
        drop(forwarding);
        // What finds no room is lost, and counted.
        self.exporter.submit(Sample::Sflow(Box::new(sample)));
    }

    /// Hands a sample for IPFIX to the exporter.
    pub(crate) fn sample_ipfix(&self, packet: &Packet, key: &Key, punt: &IpfixPunt) {
        // Frames by which switches watch their links are not traffic (RFC 5881).
        const BFD_PORTS: [u16; 2] = [3784, 3785];
        let common = key.common();
        let is_ip = matches!(common.dl_type.get(), 0x0800 | 0x86dd);
        if punt.flow.is_none() && is_ip && common.nw_proto == 17 && BFD_PORTS.contains(&common.tp_dst.get()) {
            return;
        }
        let forwarding = self.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&BridgeId(punt.bridge)) else { return };
        let (tells_tunnels, weight) = match &punt.flow {
            None => match bridge.sampling.ipfix {
                Some(ipfix) => (ipfix.tunnels, ipfix::weight(ipfix.packets, 1)),
                None => return,
            },
            Some(flow) => match bridge.sampling.collector_sets.get(&flow.collector_set) {
                Some(&tunnels) => (tunnels, ipfix::weight(u16::MAX.into(), flow.probability.into())),
                None => return,
            },
        };
        let port = came_in_at(&forwarding, key);
        let tunnel = match (punt.output, &punt.tunnel) {
            (None, _) => Tunnel::received(key, port.map_or(Kind::Other, kind_of)),
            (Some(_), tunnel) => tunnel.as_ref().map(sent),
        };
        let is_egress = punt.flow.and_then(|flow| flow.is_egress).unwrap_or(punt.output.is_some());
        let direction = if is_egress { Direction::Egress } else { Direction::Ingress };
        let mut flow = ipfix::FlowKey::of(key, direction, tunnel.filter(|_| tells_tunnels));
        flow.ingress = port.map(interface).unwrap_or_default();
        if is_egress {
            flow.egress = punt.output.and_then(|port| port_of(&forwarding, port)).map(interface).unwrap_or_default();
        }
        if let Some(sampled) = &punt.flow {
            (flow.obs_domain, flow.obs_point) = (sampled.obs_domain, sampled.obs_point);
        }
        drop(forwarding);
        let made_up = if common.packet_type.get() == 0 { 0 } else { MADE_UP };
        let sample = ipfix::Sample {
            bridge: punt.bridge,
            collector_set: punt.flow.map(|flow| flow.collector_set),
            weight,
            frame_len: packet.len().saturating_sub(made_up) as u32,
            is_forwarded: punt.is_forwarded,
            tcp_flags: common.tcp_flags.get(),
            flow,
        };
        self.exporter.submit(Sample::Ipfix(Box::new(sample)));
    }
}

/// The port that a packet has come in at.
fn came_in_at<'f>(forwarding: &'f Forwarding, key: &Key) -> Option<&'f PortState> {
    let location = match forwarding.tunnels.locate(key) {
        Located::Tunnel(location) => location,
        Located::Nowhere => return None,
        Located::Plain => forwarding.by_dp_port.get(&PortNo(key.common().in_port.get()))?,
    };
    let (bridge, port) = location;
    forwarding.bridges.get(bridge)?.ports.get(port)
}

fn port_of(forwarding: &Forwarding, port: PortNo) -> Option<&PortState> {
    let (bridge, port) = forwarding.by_dp_port.get(&port)?;
    forwarding.bridges.get(bridge)?.ports.get(port)
}

fn ifindex(port: &PortState) -> u32 {
    port.device.port().and_then(|device| device.ifindex()).unwrap_or(0)
}

fn kind_of(port: &PortState) -> Kind {
    match &port.device {
        Device::Tunnel(tunnel) => Kind::of_name(tunnel.config.kind.name()),
        _ => Kind::Other,
    }
}

fn interface(port: &PortState) -> ipfix::Interface {
    // ethernetCsmacd, of all that have a number.
    const ETHERNET: u32 = 6;
    let index = ifindex(port);
    let kind = if index == 0 { 0 } else { ETHERNET };
    ipfix::Interface { index, kind, name: port.name.as_str().into(), description: Arc::default() }
}

fn sent(tunnel: &SentTunnel) -> Tunnel {
    Tunnel {
        kind: Kind::of_name(tunnel.kind.name()),
        src: tunnel.src,
        dst: tunnel.dst,
        tos: tunnel.tos,
        src_port: tunnel.ports.0,
        dst_port: tunnel.ports.1,
        id: tunnel.id,
    }
}

impl Counters for Switch {
    fn ports(&self, bridge: u32) -> Vec<PolledPort> {
        let forwarding = self.forwarding.read();
        let ports = forwarding.bridges.get(&BridgeId(bridge)).into_iter().flat_map(|bridge| bridge.ports.values());
        ports
            .map(|port| PolledPort { ifindex: ifindex(port), port: u32::from(port.port.to_u16().unwrap_or(u16::MAX)) })
            .filter(|port| port.ifindex != 0)
            .collect()
    }

    fn port(&self, bridge: u32, port: u32) -> Option<PortCounters> {
        let forwarding = self.forwarding.read();
        let bridge = forwarding.bridges.get(&BridgeId(bridge))?;
        let state = bridge.ports.get(&OfPort::from_u16(port as u16))?;
        let (name, datapath_id) = (state.name.clone(), bridge.config.datapath_id);
        let device = state.device.port()?;
        let logical = (bridge.id, state.logical.clone());
        // The device may take its time.
        drop(forwarding);
        let (stats, features, link) = (device.stats(), device.features(), device.link());
        Some(PortCounters {
            name,
            datapath_id,
            speed: u64::from(features.speed_mbps) * 1_000_000,
            full_duplex: (features.speed_mbps != 0).then_some(features.full_duplex),
            admin_up: link.admin_up,
            up: link.up,
            rx: (stats.rx_bytes, stats.rx_packets),
            tx: (stats.tx_bytes, stats.tx_packets),
            rx_bad: (stats.rx_dropped, stats.rx_errors),
            tx_bad: (stats.tx_dropped, stats.tx_errors),
            frames_bad: (stats.rx_frame_err, stats.rx_crc_err, stats.rx_over_err),
            lacp: self.lacp.lock().counters(&logical, OfPort::from_u16(port as u16)),
        })
    }

    fn address(&self, device: &str) -> Option<IpAddr> {
        self.netstate().routes.read().addresses(device).first().map(|(address, _)| *address)
    }

    fn lost_samples(&self) -> u64 {
        let Some(datapath) = self.datapath.get() else { return 0 };
        let stats = datapath.stats();
        stats.workers.iter().chain([&stats.ended]).map(|worker| worker.drops.get(DropReason::SampleLost)).sum()
    }

    fn switch(&self) -> SwitchCounters {
        let Some(datapath) = self.datapath.get() else { return SwitchCounters::default() };
        let stats = datapath.stats();
        let workers = stats.workers.iter();
        let hits = workers.clone().map(|worker| worker.simple_hits + worker.exact_hits + worker.megaflow_hits).sum();
        let misses = workers.clone().map(|worker| worker.misses).sum();
        let lost = workers.clone().map(|worker| worker.lost).sum();
        let mask_hits = workers.map(|worker| worker.subtables_visited).sum();
        let (flows, masks) = (stats.flows as u32, stats.masks as u32);
        SwitchCounters { hits, misses, lost, mask_hits, flows, masks, ..SwitchCounters::default() }
    }
}
