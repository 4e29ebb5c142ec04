//! Tunnels: packets enter them through a tunnel port, and leave them where the underlay's bridge sends them to an address of its own.
//!
//! A packet that enters a tunnel gets its headers by one action, and goes on in the bridge of the underlay as if its device had sent
//! it; all that follows there is part of the same translation. These headers are constants: what a look-up sees of them does not make
//! the outcome depend on the packet.
//!
//! How the other end is reached is looked up once for many flows ([`Hop`](crate::model::underlay::Hop)). Where the address of a neighbour
//! is not known yet, the packet is sent up with the pipeline that goes on when it is ([`neighbours`](crate::slowpath::neighbours)).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use datapath::{Action as DpAction, Decapsulation, DropReason, Encapsulation, PortNo, Punt, SentTunnel};
use openflow::{Action, OfPort};
use packet::flow::{frag, tun_flags};
use packet::wire::{ethertype, icmpv6, ip_proto};
use packet::{Field, Key};
use tunnel::config::{Config, Kind};
use tunnel::ecn;
use tunnel::header::Payload;
use tunnel::matching::{Address, Key as TunnelKey, PacketType};
use tunnel::metadata::{Metadata, RawOptions};
use tunnel::outer::{Outer, Prepared};
use tunnel::send::{self, Inner, SourcePorts};

use super::commit::Pending;
use super::packet_type;
use super::trace::Event;
use super::{Ctx, Headers, Mask, Translation, headers, is_ip, tunnel_metadata};
use crate::model::forwarding::{BridgeState, Forwarding, PortState};
use crate::model::port::Device;
use crate::model::tunnels::{TunnelPort, kind_number};
use crate::model::underlay::{Hop, Question, Route, Towards};
use crate::slowpath::record::{FlowRecord, Through};

const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
/// Traffic class and addresses of IP that say that a packet has met congestion.
const CONGESTED: u8 = 3;
/// Tunnels inside each other.
const MAX_TUNNELS: u8 = 4;

/// The translation of a packet that has left a tunnel of which no port is.
pub(crate) fn unknown_port(forwarding: &Forwarding, key: &Key) -> Translation {
    let mut mask = super::initial_mask(key);
    match_received(&mut mask, key);
    super::finish_mask(&mut mask, key);
    Translation {
        mask,
        decided_by: None,
        actions: vec![DpAction::Drop(DropReason::TunnelPort)],
        record: FlowRecord { generation: forwarding.generation(), ..FlowRecord::default() },
        learnt: Vec::new(),
        heard: Vec::new(),
        flow: None,
        error: None,
        dropped: None,
        looked_at_vlan: false,
        slow: false,
        too_long: false,
        work: 0,
        is_ambiguous: false,
    }
}

/// Has a mask match what tells the port through which a packet has come, and what becomes of congestion marks.
fn match_received(wc: &mut Mask, key: &Key) {
    let is_v6 = key.tunnel().tun_ipv6_dst != [0; 16];
    let bits = wc.0.tunnel_mut();
    bits.tun_id = u64::MAX.into();
    if is_v6 {
        (bits.tun_ipv6_src, bits.tun_ipv6_dst) = ([0xff; 16], [0xff; 16]);
    } else {
        (bits.tun_src, bits.tun_dst) = (u32::MAX.into(), u32::MAX.into());
    }
    let flags = tun_flags::DF | tun_flags::CSUM | tun_flags::KEY | tun_flags::BARE;
    bits.tun_flags = (bits.tun_flags.get() | flags).into();
    bits.tun_tos = 0xff;
    if is_ip(key) && key.tunnel().tun_tos & ecn::MASK == CONGESTED {
        wc.set_exact(Field::NwEcn);
    }
}

/// The other end of a tunnel that a key has in its metadata.
fn tunnel_dst(key: &Key) -> Option<IpAddr> {
    let tunnel = key.tunnel();
    match (tunnel.tun_dst.get(), tunnel.tun_ipv6_dst) {
        (0, [0, ..]) if tunnel.tun_ipv6_dst == [0; 16] => None,
        (0, v6) => Some(IpAddr::from(v6)),
        (v4, _) => Some(IpAddr::V4(v4.into())),
    }
}

impl<'a> Ctx<'a, '_> {
    /// Has the flows of later passes of a packet that has left a tunnel match what those of the first one do, as in OVS.
    pub(super) fn match_tunnel_again(&mut self) {
        if tunnel_dst(self.packet).is_some() {
            match_received(&mut self.wc, self.packet);
        }
    }

    /// Begins the translation of a packet that has left a tunnel. False where it is dropped.
    pub(super) fn receive_from_tunnel(&mut self, port: &'a PortState) -> bool {
        match_received(&mut self.wc, self.packet);
        self.record.tunnels.push((port.patch.clone(), Through::Received));
        if let Device::Tunnel(tunnel) = &port.device
            && tunnel.config.packet_type == PacketType::LegacyL3
        {
            // The tables of a bridge that knows no packet types see a frame.
            self.flow.common_mut().packet_type = 0.into();
        }
        let outer = self.packet.tunnel().tun_tos & ecn::MASK;
        if outer != CONGESTED || !is_ip(&self.flow) {
            return true;
        }
        match self.flow.common().nw_tos & ecn::MASK {
            0 => {
                self.not_sent(DropReason::Congestion);
                self.event(|| Event::Warning("dropping tunnel packet marked ECN CE but is not ECN capable"));
                false
            }
            _ => {
                // The datapath has marked it already.
                self.flow.common_mut().nw_tos |= CONGESTED;
                true
            }
        }
    }

    /// Sends the packet as it is now through a tunnel port.
    pub(super) fn send_through_tunnel(&mut self, state: &'a PortState, tunnel: &Arc<TunnelPort>) {
        if !tunnel.is_enabled() {
            return self.not_sent(DropReason::PortDown);
        }
        self.keep_copies();
        let (tags, mark) = (self.flow.tags(), self.flow.common().pkt_mark);
        if tunnel.config.packet_type == PacketType::LegacyL3 && !tags.is_empty() {
            // They are part of the header of Ethernet, which is not carried.
            headers::vlan_count_wc(&self.flow, &mut self.wc);
            self.flow.set_tags([]);
        }
        let kind = self.flow.common().packet_type;
        if tunnel.config.packet_type == PacketType::LegacyL3 && packet_type::of(&self.base) != packet_type::ETHERNET {
            // A header that the packet has not got yet, it need not get.
            self.pending = Pending::Nothing;
            self.flow.common_mut().packet_type = self.base.common().packet_type;
        }
        self.enter_tunnel(state, tunnel);
        (self.flow.common_mut().pkt_mark, self.flow.common_mut().packet_type) = (mark, kind);
        self.flow.set_tags(tags);
    }

    /// Puts the packet into the tunnel of a port.
    fn enter_tunnel(&mut self, state: &'a PortState, tunnel: &Arc<TunnelPort>) {
        let config = &tunnel.config;
        let Some(metadata) = self.metadata_for(config) else {
            self.not_sent(DropReason::TunnelBuild);
            return self.event(|| Event::Warning("native tunnel header build failed"));
        };
        let Some(dst) = metadata.dst else {
            self.not_sent(DropReason::TunnelRoute);
            return self.event(|| Event::Warning("Tunneling decided against output"));
        };
        if tunnel_dst(self.packet) == Some(dst) {
            self.not_sent(DropReason::Reflection);
            return self.event(|| Event::Warning("Not tunneling to our own address"));
        }
        let Some(carrier) = self.forwarding.tunnels.carrier_of(config) else {
            return self.not_sent(DropReason::NoSuchPort);
        };
        self.record.tunnels.push((state.patch.clone(), Through::Sent));
        if let Some(mark) = config.egress_mark {
            self.flow.common_mut().pkt_mark = mark.into();
            self.wc.set_exact(Field::PktMark);
        }
        if self.forwarding.without_push_pop {
            self.detail(|| "output to kernel tunnel".into());
            self.set_tunnel(only_of(config, &metadata));
            self.commit();
            let to_bare =
                config.packet_type == PacketType::LegacyL3 && packet_type::of(&self.flow) == packet_type::ETHERNET;
            if to_bare {
                self.out.push(DpAction::PopEthernet);
            }
            let tunnel = sent_tunnel(config, &metadata, metadata.src);
            self.note_tunnel(tunnel.clone());
            self.sample_sent(carrier, tunnel);
            self.truncate_for_mirror();
            self.out.push(DpAction::Output(carrier));
        } else {
            self.detail(|| "output to native tunnel".into());
            self.commit();
            self.truncate_for_mirror();
            self.encapsulate(state, tunnel, carrier, &metadata, dst);
        }
        self.mirror_sent(state);
    }

    /// What the port and the flow say of the outer headers. Has the mask match what of the packet that depends on.
    /// `None` where there is no room for the options.
    pub(super) fn metadata_for(&mut self, config: &Config) -> Option<Metadata> {
        let common = self.flow.common();
        let inner = is_ip(&self.flow).then_some(Inner { tos: common.nw_tos, ttl: common.nw_ttl });
        if inner.is_some() {
            if config.ttl_inherit {
                self.wc.set_exact(Field::NwTtl);
            }
            if config.tos_inherit {
                self.wc.set_exact(Field::NwTos);
            }
            self.wc.set_exact(Field::NwEcn);
        }
        // What a packet has brought along from a tunnel is part of it.
        if config.out_key == Some(TunnelKey::Flow) {
            self.wc.set_exact(Field::TunId);
        }
        if config.local == Address::Flow {
            self.wc.set_exact(Field::TunSrc);
            self.wc.set_exact(Field::TunIpv6Src);
        }
        if config.remote == Address::Flow {
            self.wc.set_exact(Field::TunDst);
            self.wc.set_exact(Field::TunIpv6Dst);
        }
        if tunnel_dst(self.packet).is_some() {
            let fields: &[Field] = match config.kind {
                Kind::Vxlan if config.group_policy => &[Field::TunGbpId, Field::TunGbpFlags],
                Kind::Geneve => &[Field::TunFlags],
                Kind::Erspan | Kind::Ip6erspan => {
                    &[Field::TunErspanVer, Field::TunErspanIdx, Field::TunErspanDir, Field::TunErspanHwid]
                }
                Kind::Gtpu => &[Field::TunGtpuFlags, Field::TunGtpuMsgtype],
                _ => &[],
            };
            fields.iter().for_each(|&field| self.wc.set_exact(field));
        }
        let mut metadata = Metadata::load(&self.flow);
        if config.kind == Kind::Geneve {
            self.look_at_tun_fields();
            metadata.options = tunnel_metadata::options_of(&self.bridge.tlv, &self.flow)?;
        }
        Some(send::fill(config, &metadata, inner))
    }

    /// Puts the headers of a tunnel before the packet, and sends it on in the bridge of the underlay.
    fn encapsulate(
        &mut self,
        state: &'a PortState,
        tunnel: &Arc<TunnelPort>,
        carrier: PortNo,
        metadata: &Metadata,
        dst: IpAddr,
    ) {
        let towards = Towards { mark: self.flow.common().pkt_mark.get(), from: metadata.src, to: dst };
        // Ports give packets no mark.
        if self.packet.common().pkt_mark.get() != 0 {
            self.wc.set_exact(Field::PktMark);
        }
        let forwarding = self.forwarding;
        let device_of = |name: &str| {
            let (bridge, port) = forwarding.by_name.get(name)?;
            let bridge = forwarding.bridges.get(bridge)?;
            Some((bridge, bridge.ports.get(port)?))
        };
        let bridge_of = |name: &str| device_of(name).map(|(bridge, _)| bridge.config.name.clone());
        let hop = forwarding.underlay.hop(&towards, bridge_of, self.now);
        self.depend_on_hop(&hop);
        let found = hop.route.as_ref().and_then(|route| Some((route, device_of(&route.device)?)));
        match &found {
            Some((_, (bridge, device))) => self.record.depends_on_port(bridge.id, device.port),
            None => self.record.looks_for_ports = true,
        }
        let Some((route, (bridge, device))) = found else {
            self.not_sent(DropReason::TunnelRoute);
            return self.event(|| Event::Warning("native tunnel routing failed"));
        };
        self.detail(|| format!("tunneling to {} via {}", route.neighbour, route.device));
        let (Some(port), Some(dp_port)) = (device.device.port(), device.dp_port) else {
            self.not_sent(DropReason::TunnelRoute);
            return self.event(|| Event::Warning("tunnel output device lacks Ethernet address"));
        };
        let own = port.mac();
        let Some(mac) = route.mac else { return self.await_neighbour(state, bridge, device, own, route) };
        self.detail(|| {
            let source = route.source;
            format!("tunneling from {} {source} to {} {}", show(own), show(mac), route.neighbour)
        });
        let Some(outer) = send::outer(&tunnel.config, metadata, Some(route.source)) else {
            self.not_sent(DropReason::TunnelBuild);
            return self.event(|| Event::Warning("native tunnel header build failed"));
        };
        let ethernet = ethernet(mac, own, outer.dst);
        let payload = match (packet_type::of(&self.flow), tunnel.config.packet_type) {
            (packet_type::ETHERNET, PacketType::LegacyL2 | PacketType::Aware) => Payload::Ethernet,
            (packet_type::ETHERNET, PacketType::LegacyL3) => Payload::Packet(self.flow.common().dl_type.get()),
            (kind, _) => Payload::Packet(kind as u16),
        };
        let has_ethernet = packet_type::of(&self.flow) == packet_type::ETHERNET && payload != Payload::Ethernet;
        let headers = send::header(&tunnel.config, metadata, payload).and_then(|header| {
            let protocol = send::protocol(&tunnel.config).ok_or(tunnel::header::Unwritable::Payload)?;
            Prepared::new(&ethernet, &outer, protocol, &header)
        });
        let Ok(headers) = headers else {
            self.not_sent(DropReason::TunnelBuild);
            return self.event(|| Event::Warning("native tunnel header build failed"));
        };
        let (min, max) = route.source_ports;
        let (kind, ports) = (kind_number(tunnel.config.kind, outer.dst.is_ipv6()), SourcePorts::new(min, max));
        let sequence = tunnel.is_numbered().then(|| tunnel.sequence.clone());
        let told = sent_tunnel(&tunnel.config, metadata, Some(outer.src));
        self.note_tunnel(told.clone());
        self.sample_sent(carrier, told);
        let push = Encapsulation::new(carrier, dp_port, kind, headers, ports, sequence);
        let pop = has_ethernet.then_some(DpAction::PopEthernet);
        self.enter_underlay((pop, push), bridge, device, mac, own, &outer);
    }

    fn depend_on_hop(&mut self, hop: &Arc<Hop>) {
        if !self.record.hops.iter().any(|known| Arc::ptr_eq(known, hop)) {
            self.record.hops.push(hop.clone());
        }
    }

    /// Translates the packet in the bridge of the underlay, with its new headers.
    fn enter_underlay(
        &mut self,
        (pop, push): (Option<DpAction>, Encapsulation),
        bridge: &'a BridgeState,
        device: &'a PortState,
        dst: ports::Mac,
        src: ports::Mac,
        outer: &Outer,
    ) {
        if self.usage.tunnels >= MAX_TUNNELS {
            return self.fail(super::XlateError::TooDeep, &format!("over {MAX_TUNNELS} tunnels inside each other"));
        }
        self.usage.tunnels += 1;
        // What is looked at of the new headers is not part of the packet, but for what they leave as it was.
        let wc = std::mem::replace(&mut self.wc, Mask::wildcard());
        let copies = std::mem::replace(&mut self.copies, super::copies::Copies::new(false));
        let length = self.length;
        let mirrored_len = std::mem::replace(&mut self.mirror_max_len, super::mirror::WHOLE);
        let truncate = self.out.pop_if(|action| matches!(action, DpAction::Truncate { .. }));
        self.length = super::known_length::KnownLength::UNKNOWN;
        let frame = outer_key(&self.flow, dst, src, outer, push.headers.bytes());
        // The bytes of a packet without Ethernet are counted without a header of it.
        let lost = if pop.is_some() { push.headers.skipped() } else { 0 };
        let (longer, passed) = (push.headers.len() - lost, self.record.passed());
        self.in_bridge(bridge, device, |ctx| {
            ctx.flow = Headers::new(frame);
            ctx.flow.common_mut().in_port = device.port.0.into();
            ctx.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
            ctx.was_mpls = false;
            ctx.on_copy(|ctx| {
                ctx.base = ctx.flow.clone();
                let before = ctx.out.len();
                ctx.out.extend(truncate.into_iter().chain(pop));
                ctx.out.push(DpAction::TunnelPush(Arc::new(push)));
                let pushed = ctx.out.len();
                ctx.undoable = false;
                ctx.enter_bridge(device);
                if ctx.out.len() == pushed {
                    ctx.out.truncate(before);
                    ctx.undoable = true;
                }
            });
        });
        self.record.pass_below(longer as u16, passed);
        let kept = self.wc.0.common();
        let (mark, priority) = (kept.pkt_mark.get(), kept.skb_priority.get());
        (self.wc, self.copies, self.length) = (wc, copies, length);
        self.mirror_max_len = mirrored_len;
        self.wc.add(Field::PktMark, mark.into());
        self.wc.add(Field::SkbPriority, priority.into());
        self.usage.tunnels -= 1;
    }

    /// Sends the packet up to wait for the address of a neighbour.
    fn await_neighbour(
        &mut self,
        state: &'a PortState,
        bridge: &'a BridgeState,
        device: &'a PortState,
        mac: ports::Mac,
        route: &Route,
    ) {
        let (name, neighbour) = (&bridge.config.name, route.neighbour);
        let kind = if neighbour.is_ipv4() { "ARP" } else { "ND" };
        self.detail(|| format!("neighbor cache miss for {neighbour} on bridge {name}, sending {kind} request"));
        let near = self.forwarding.underlay.netstate.routes.read().source_for(&route.device, neighbour);
        let question = Question {
            bridge: bridge.id,
            name: name.as_str().into(),
            device: route.device.clone(),
            port: device.port,
            mac,
            source: near.unwrap_or(route.source),
            neighbour,
        };
        let (question, held) = self.interners.questions.intern(question);
        self.hold(held);
        let port = if state.port == self.in_port() { OfPort::IN_PORT } else { state.port };
        let output = match self.out.pop_if(|action| matches!(action, DpAction::Truncate { .. })) {
            Some(DpAction::Truncate { max_len }) => Action::OutputTrunc { port, max_len },
            _ => Action::output(port),
        };
        let continuation = self.keep_output(output);
        self.out.push(DpAction::Punt(Arc::new(Punt::Unresolved { question, continuation })));
    }

    /// Whether the packet, which is about to be sent to a port, is for a tunnel that ends there. Then it has left it. If it may tell a
    /// neighbour's address, it is listened to, and sent all the same.
    pub(super) fn ends_tunnel_at(&mut self, state: &'a PortState) -> bool {
        let tunnels = &self.forwarding.tunnels;
        if tunnels.is_empty() || self.forwarding.without_push_pop {
            return false;
        }
        // Who has no address ends no tunnel.
        let routes = self.forwarding.underlay.netstate.routes.read();
        let addresses = routes.addresses(&state.name);
        if addresses.is_empty() {
            return false;
        }
        if self.flow.common().dl_type.get() == ethertype::ARP || self.is_advertisement() {
            let tells = self.tells_neighbour(&routes);
            if tells {
                self.out.push(DpAction::Punt(Arc::new(Punt::Neighbour { bridge: self.bridge.id.0 })));
            }
            return false;
        }
        let common = self.flow.common();
        let is_v6 = match common.dl_type.get() {
            ethertype::IPV4 => false,
            ethertype::IPV6 => true,
            _ => return false,
        };
        self.wc.set_exact(Field::NwProto);
        let proto = self.flow.common().nw_proto;
        if !tunnels.listens_to(proto) {
            return false;
        }
        let dst = match is_v6 {
            false => IpAddr::V4(self.flow.common().nw_dst.get().into()),
            true => IpAddr::from(self.flow.l3().ipv6_dst),
        };
        self.wc.set_exact(if is_v6 { Field::Ipv6Dst } else { Field::NwDst });
        if !addresses.iter().any(|(own, _)| *own == dst) {
            return false;
        }
        self.wc.set_exact(Field::DlDst);
        let is_own = state.device.port().is_some_and(|port| port.mac() == self.flow.common().dl_dst);
        let has_tag = self.flow.common().vlan[0].tci.get() & packet::flow::VLAN_PRESENT != 0;
        // Of the later fragments, no port is known.
        let is_later = proto == ip_proto::UDP && self.flow.common().nw_frag & frag::LATER != 0;
        if !is_own || has_tag || is_later {
            return false;
        }
        if proto == ip_proto::UDP {
            self.wc.set_exact(Field::UdpDst);
        }
        let udp_port = self.flow.common().tp_dst.get();
        let Some(carrier) = tunnels.listener(proto, udp_port, is_v6) else { return false };
        if let Some(batch) = self.learning {
            let src = match is_v6 {
                false => IpAddr::V4(self.flow.common().nw_src.get().into()),
                true => IpAddr::from(self.flow.l3().ipv6_src),
            };
            batch.see_neighbour(self.bridge.id, src, self.flow.common().dl_src);
        }
        let erspan = tunnels.erspan(is_v6).map(|erspan| erspan.dp_port);
        let pop = Decapsulation { port: carrier.dp_port, protocol: carrier.protocol, erspan };
        self.out.push(DpAction::TunnelPop(pop));
        true
    }

    fn is_advertisement(&mut self) -> bool {
        let common = self.flow.common();
        if common.dl_type.get() != ethertype::IPV6 || common.nw_proto != ip_proto::ICMPV6 {
            return false;
        }
        let is_advertisement = common.tp_src.get() == u16::from(icmpv6::NEIGHBOR_ADVERT);
        self.wc.set_exact(Field::NwProto);
        self.wc.set_exact(Field::Icmpv6Type);
        is_advertisement
    }

    /// Whether it is an ARP reply or an advertisement for an address of the bridge, or one that somebody sends unasked.
    fn tells_neighbour(&mut self, routes: &netstate::routes::Routes) -> bool {
        let bridge = self.bridge;
        self.record.depends_on_all_ports(bridge.id);
        let is_own = |ip: IpAddr| {
            bridge.ports.values().any(|port| routes.addresses(&port.name).iter().any(|(own, _)| *own == ip))
        };
        if self.flow.common().dl_type.get() == ethertype::IPV6 {
            // Sent to all, or to this host.
            self.wc.set_exact(Field::Ipv6Dst);
            let dst = std::net::Ipv6Addr::from(self.flow.l3().ipv6_dst);
            return dst.is_multicast() || is_own(dst.into());
        }
        self.wc.set_exact(Field::ArpOp);
        let common = self.flow.common();
        let (op, from, to) = (common.nw_proto, common.nw_src.get(), common.nw_dst.get());
        match op {
            ARP_REPLY | ARP_REQUEST => {
                self.wc.set_exact(Field::ArpTpa);
                self.wc.set_exact(Field::ArpSpa);
                from == to || op == ARP_REPLY && is_own(IpAddr::V4(to.into()))
            }
            _ => false,
        }
    }
}

/// What samples tell of a tunnel with these headers; nothing of one over IPv6.
pub(super) fn sent_tunnel(config: &Config, metadata: &Metadata, src: Option<IpAddr>) -> Option<SentTunnel> {
    let Some(IpAddr::V4(dst)) = metadata.dst else { return None };
    let src = match src {
        Some(IpAddr::V4(src)) => src,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let outer = send::outer(config, metadata, Some(src.into()));
    let dst_port = outer.map_or(0, |outer| outer.ports.1);
    Some(SentTunnel { kind: config.kind, src, dst, tos: metadata.tos, ports: (0, dst_port), id: metadata.tun_id })
}

/// What of the metadata a tunnel of this kind has a place for.
pub(super) fn only_of(config: &Config, metadata: &Metadata) -> Metadata {
    let mut all = *metadata;
    if config.kind != Kind::Vxlan {
        (all.gbp_id, all.gbp_flags) = (0, 0);
    }
    if config.kind != Kind::Geneve {
        all.options = RawOptions::EMPTY;
    }
    if !config.kind.is_erspan() {
        all.erspan_ver = 0;
    }
    if config.kind != Kind::Gtpu {
        all.gtpu_flags = 0;
    }
    all
}

fn show(mac: ports::Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A header of Ethernet for what goes to this address.
fn ethernet(dst: ports::Mac, src: ports::Mac, to: IpAddr) -> [u8; 14] {
    let number = if to.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
    let mut header = [0; 14];
    header[..6].copy_from_slice(&dst);
    header[6..12].copy_from_slice(&src);
    header[12..].copy_from_slice(&number.to_be_bytes());
    header
}

/// The key of a packet with these headers before it. Mark and priority are those of the packet.
fn outer_key(inner: &Key, dst: ports::Mac, src: ports::Mac, outer: &Outer, headers: &[u8]) -> Key {
    let mut key = Key::new();
    let common = key.common_mut();
    (common.pkt_mark, common.skb_priority) = (inner.common().pkt_mark, inner.common().skb_priority);
    (common.dl_dst, common.dl_src) = (dst, src);
    (common.nw_tos, common.nw_ttl) = (outer.tos, outer.ttl);
    match (outer.src, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            common.dl_type = ethertype::IPV4.into();
            (common.nw_src, common.nw_dst) = (u32::from(src).into(), u32::from(dst).into());
            common.nw_proto = headers.get(14 + 9).copied().unwrap_or(0);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            common.dl_type = ethertype::IPV6.into();
            // A flow sees what is behind the routing header.
            let next = |at: usize| headers.get(at).copied().unwrap_or(0);
            common.nw_proto = if next(14 + 6) == ip_proto::ROUTING { next(14 + 40) } else { next(14 + 6) };
            let l3 = key.l3_mut();
            (l3.ipv6_src, l3.ipv6_dst) = (src.octets(), dst.octets());
        }
        // Never: both are of one family.
        _ => {}
    }
    if outer.ports.1 != 0 {
        key.common_mut().tp_dst = outer.ports.1.into();
    }
    key
}
