//! Samples for collectors: of sFlow and IPFIX where packets come in, of IPFIX where they go out or where an action says so.
//! And what NetFlow is told.
//!
//! What becomes of a packet is known at the end of its translation: then its samples are completed.

use std::sync::Arc;

use datapath::{Action as DpAction, FlowSample, IpfixPunt, PortNo, Punt, SentTunnel, SflowPunt, TunnelSet};
use export::netflow::{self, FlowKey};
use openflow::OfPort;
use openflow::action::{Sample, SampleDirection};
use packet::{Field, Key};
use tunnel::config::Config;
use tunnel::metadata::Metadata;

use super::trace::Event;
use super::tunnel::{only_of, sent_tunnel};
use super::{Ctx, headers, meter};
use crate::model::forwarding::PortState;
use crate::model::port::Device;
use crate::slowpath::record::NetflowCredit;

/// Where a packet goes, for its samples.
#[derive(Clone, Default)]
pub(super) struct Destinations<'a> {
    /// Ports that it was sent to.
    count: u32,
    /// The last one, where it is known.
    last: Option<&'a PortState>,
    /// The tunnel that it was sent into last.
    tunnel: Option<SentTunnel>,
    /// Tunnels that it was sent into.
    tunnels: u32,
    /// The port that NetFlow is told; `None` for none.
    netflow: Option<u16>,
    /// There are samples to complete.
    has_samples: bool,
}

impl<'a> Ctx<'a, '_> {
    /// Samples a packet that has come in.
    pub(super) fn sample_received(&mut self) {
        let sampling = &self.bridge.sampling;
        if self.in_port() == OfPort::ANY {
            return;
        }
        if let Some(sflow) = sampling.sflow {
            let bridge = self.bridge.id.0;
            let punt = SflowPunt { bridge, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
            self.compose_sample(sflow.probability, Punt::Sflow(punt));
        }
        if let Some(ipfix) = sampling.ipfix.filter(|ipfix| ipfix.input) {
            let punt = self.ipfix_punt(None);
            self.compose_sample(ipfix.probability, Punt::Ipfix(punt));
        }
    }

    /// Samples a packet that goes out by a port of the datapath; through a tunnel there, if it is one.
    pub(super) fn sample_sent(&mut self, port: PortNo, tunnel: Option<SentTunnel>) {
        let Some(ipfix) = self.bridge.sampling.ipfix.filter(|ipfix| ipfix.output) else { return };
        let tunnel = tunnel.filter(|_| ipfix.tunnels);
        let tunnel_port = tunnel.is_some().then_some(port);
        let punt = IpfixPunt { output: Some(port), tunnel_port, tunnel, ..self.ipfix_punt(None) };
        // Only what is sent is cut off.
        let truncate = self.out.pop_if(|action| matches!(action, DpAction::Truncate { .. }));
        self.compose_sample(ipfix.probability, Punt::Ipfix(punt));
        self.out.extend(truncate);
    }

    /// The action `sample`.
    pub(super) fn sample_action(&mut self, sample: &Sample) {
        let bridge = self.bridge;
        if !bridge.sampling.has_ipfix() {
            return;
        }
        let (mut output, mut through) = (None, None);
        if sample.sampling_port != OfPort::ANY && sample.sampling_port != self.in_port() {
            let state = self.port(sample.sampling_port);
            let port = state.and_then(|state| self.dp_port_of(state));
            let (Some(state), Some(port)) = (state, port) else {
                let text = format!("can't use unknown port {} in flow sample action", sample.sampling_port);
                return self.event(|| Event::Error(&text));
            };
            output = Some(port);
            let tells = bridge.sampling.collector_sets.get(&sample.collector_set) == Some(&true);
            if let Device::Tunnel(tunnel) = &state.device
                && tells
            {
                through = Some(&tunnel.config);
            }
        }
        self.keep_copies();
        self.commit();
        let tunnel = through.and_then(|config| self.sample_tunnel(config));
        let flow = FlowSample {
            probability: sample.probability,
            collector_set: sample.collector_set,
            obs_domain: sample.obs_domain,
            obs_point: sample.obs_point,
            is_egress: match sample.direction {
                SampleDirection::Default => None,
                SampleDirection::Ingress => Some(false),
                SampleDirection::Egress => Some(true),
            },
        };
        let tunnel_port = output.filter(|_| through.is_some());
        let punt = IpfixPunt { output, tunnel_port, tunnel, ..self.ipfix_punt(Some(flow)) };
        // The same part of 32 bits as of 16.
        let probability = u32::from(sample.probability) << 16 | u32::from(sample.probability);
        self.compose_sample(probability, Punt::Ipfix(punt));
    }

    /// What a packet's tunnel would be. Where datapaths send through ports of tunnels, the packet gets its metadata first.
    fn sample_tunnel(&mut self, config: &Config) -> Option<SentTunnel> {
        let metadata = self.metadata_for(config)?;
        if self.forwarding.without_push_pop {
            self.set_tunnel(only_of(config, &metadata));
        }
        sent_tunnel(config, &metadata, metadata.src)
    }

    /// Gives the packet the metadata of a tunnel, unless it has it.
    pub(super) fn set_tunnel(&mut self, metadata: Metadata) {
        let set = TunnelSet { metadata };
        let last = self.out.iter().rev().find_map(|action| match action {
            DpAction::TunnelSet(set) => Some(set),
            _ => None,
        });
        if last.is_none_or(|last| **last != set) {
            self.out.push(DpAction::TunnelSet(Arc::new(set)));
        }
    }

    /// The datapath's number of a port.
    fn dp_port_of(&self, state: &PortState) -> Option<PortNo> {
        match &state.device {
            Device::Tunnel(tunnel) => self.forwarding.tunnels.carrier_of(&tunnel.config),
            _ => state.dp_port,
        }
    }

    fn ipfix_punt(&self, flow: Option<FlowSample>) -> IpfixPunt {
        let bridge = self.bridge.id.0;
        IpfixPunt { bridge, flow, output: None, tunnel_port: None, tunnel: None, is_forwarded: false }
    }

    /// Sends some packets up, as far as the slow path's meter lets them.
    fn compose_sample(&mut self, probability: u32, punt: Punt) {
        let punt = DpAction::Punt(Arc::new(punt));
        let action = match probability {
            0 => return,
            u32::MAX => meter::to_slow_path(self.bridge, punt),
            _ => {
                let actions = match meter::to_slow_path(self.bridge, punt) {
                    DpAction::Clone(actions) => actions,
                    punt => vec![punt],
                };
                DpAction::Sample { probability, actions }
            }
        };
        self.destinations.has_samples = true;
        self.out.push(action);
    }

    /// Notes that the packet was sent to a port.
    pub(super) fn note_sent(&mut self, to: &'a PortState) {
        let destinations = &mut self.destinations;
        (destinations.count, destinations.last) = (destinations.count + 1, Some(to));
        destinations.netflow = Some(openflow_number(to.port));
    }

    /// Notes that it is sent to a port which a later pass chooses.
    pub(super) fn note_sent_later(&mut self) {
        (self.destinations.count, self.destinations.last) = (self.destinations.count + 1, None);
    }

    /// Notes that it was sent into a tunnel. What has been noted since `before`, below the tunnel, does not count.
    pub(super) fn note_sent_through(&mut self, to: &'a PortState, before: Destinations<'a>) {
        let (tunnel, tunnels) = (self.destinations.tunnel.take(), self.destinations.tunnels);
        let has_samples = self.destinations.has_samples;
        self.destinations = Destinations { tunnel: tunnel.or(before.tunnel.clone()), tunnels, has_samples, ..before };
        self.note_sent(to);
    }

    /// Notes the headers of a tunnel that the packet gets.
    pub(super) fn note_tunnel(&mut self, tunnel: Option<SentTunnel>) {
        self.destinations.tunnels += 1;
        self.destinations.tunnel = tunnel;
    }

    /// Notes that it was flooded.
    pub(super) fn note_flood(&mut self) {
        self.destinations.netflow = Some(netflow::OUT_FLOOD);
    }

    /// Executes an output. What NetFlow is told of it is put together with what it was told before.
    pub(super) fn with_netflow_output(&mut self, output: impl FnOnce(&mut Self)) {
        let before = self.destinations.netflow.take();
        output(self);
        let after = self.destinations.netflow;
        self.destinations.netflow = match (before, after) {
            (Some(netflow::OUT_FLOOD), _) => before,
            (_, None) => before,
            (Some(_), Some(other)) if other != netflow::OUT_FLOOD => Some(netflow::OUT_MULTIPLE),
            _ => after,
        };
    }

    /// Has the mask match what NetFlow tells apart.
    pub(super) fn match_netflow(&mut self) {
        if self.packet.common().dl_type.get() != 0x0800 {
            return;
        }
        for field in [Field::NwProto, Field::NwSrc, Field::NwDst, Field::IpDscp] {
            self.wc.set_exact(field);
        }
        let protocol = self.packet.common().nw_proto;
        if matches!(protocol, 1 | 6 | 17 | 132) {
            let bits = self.wc.0.common_mut();
            (bits.tp_src, bits.tp_dst) = (u16::MAX.into(), u16::MAX.into());
        }
    }

    /// Notes whom of NetFlow's flows the packets of this one are credited to.
    pub(super) fn credit_netflow(&mut self, flows: &Arc<export::netflow::NetFlow>) {
        let in_port = openflow_number(OfPort(self.packet.common().in_port.get()));
        if let Some(key) = FlowKey::of(self.packet, in_port) {
            let comes_again = self.out.iter().any(recirculates);
            let nowhere = if comes_again { netflow::OUT_UNKNOWN } else { netflow::OUT_DROP };
            let output = self.destinations.netflow.unwrap_or(nowhere);
            self.record.netflow = Some(Box::new(NetflowCredit { flows: flows.clone(), key, output }));
        }
    }

    /// Completes samples with what has become of the packet.
    pub(super) fn complete_samples(&mut self) {
        if !self.destinations.has_samples {
            return;
        }
        let destinations = self.destinations.clone();
        let one = destinations.count == 1;
        // A device may have to ask the kernel.
        let ifindex = destinations.last.and_then(|to| to.device.port()?.ifindex()).unwrap_or(0);
        let ending = Ending {
            vlan_tci: self.base.common().vlan[0].tci.get(),
            output: export::sflow::output(destinations.count, ifindex),
            tunnel: destinations.tunnel.filter(|_| one && destinations.tunnels == 1),
            mpls: if one { labels(&self.base) } else { Vec::new() },
            is_forwarded: is_forwarded(&self.out),
        };
        self.out.iter_mut().for_each(|action| ending.complete(action));
    }
}

/// What has become of a packet.
struct Ending {
    vlan_tci: u16,
    output: u32,
    tunnel: Option<SentTunnel>,
    mpls: Vec<u32>,
    is_forwarded: bool,
}

impl Ending {
    fn complete(&self, action: &mut DpAction) {
        match action {
            DpAction::Punt(punt) => match &**punt {
                Punt::Sflow(sample) => {
                    let (tunnel, mpls) = (self.tunnel.clone(), self.mpls.clone());
                    let bridge = sample.bridge;
                    let completed = SflowPunt { bridge, vlan_tci: self.vlan_tci, output: self.output, tunnel, mpls };
                    *punt = Arc::new(Punt::Sflow(completed));
                }
                Punt::Ipfix(sample) => {
                    *punt = Arc::new(Punt::Ipfix(IpfixPunt { is_forwarded: self.is_forwarded, ..sample.clone() }));
                }
                _ => {}
            },
            DpAction::Clone(actions) | DpAction::Sample { actions, .. } => {
                actions.iter_mut().for_each(|action| self.complete(action));
            }
            DpAction::CheckLength { longer, others, .. } => {
                longer.iter_mut().chain(others).for_each(|action| self.complete(action));
            }
            _ => {}
        }
    }
}

/// Whether a packet with these actions goes somewhere.
fn is_forwarded(actions: &[DpAction]) -> bool {
    actions.iter().any(|action| match action {
        DpAction::Output(_) | DpAction::Bond { .. } | DpAction::Recirc(_) | DpAction::TunnelPop(_) => true,
        DpAction::Clone(actions) => is_forwarded(actions),
        DpAction::CheckLength { longer, others, .. } => is_forwarded(longer) || is_forwarded(others),
        _ => false,
    })
}

/// Whether a later pass decides on what becomes of the packet.
fn recirculates(action: &DpAction) -> bool {
    match action {
        DpAction::Recirc(_) | DpAction::TunnelPop(_) => true,
        DpAction::Clone(actions) => actions.iter().any(recirculates),
        DpAction::CheckLength { longer, others, .. } => longer.iter().chain(others).any(recirculates),
        _ => false,
    }
}

/// Whether an action only samples packets.
pub(super) fn only_samples(action: &DpAction) -> bool {
    match action {
        DpAction::Punt(punt) => punt.is_sample(),
        DpAction::Sample { .. } => true,
        DpAction::Clone(actions) => match &actions[..] {
            [DpAction::Meter(_), DpAction::Punt(punt)] => punt.is_sample(),
            _ => false,
        },
        _ => false,
    }
}

/// The MPLS labels of a packet, outermost first.
fn labels(key: &Key) -> Vec<u32> {
    if !headers::is_mpls(key) {
        return Vec::new();
    }
    const BOTTOM_OF_STACK: u32 = 0x100;
    let all = key.encap().mpls_lse.map(|label| label.get());
    let len = all.iter().position(|label| label & BOTTOM_OF_STACK != 0).map_or(all.len(), |last| last + 1);
    all[..len].to_vec()
}

/// The number of a port as OpenFlow 1.0 has it.
fn openflow_number(port: OfPort) -> u16 {
    port.to_u16().unwrap_or(u16::MAX)
}
