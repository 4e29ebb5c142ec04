//! Messages of IPFIX (RFC 7011, section 3): a header, and sets of templates or records.

use packet::Time;

use super::cache::{EndReason, Flow, Totals};
use super::element::{Direction, Element, L2, OPTIONS_TEMPLATE, Template};
use super::{Addresses, FlowKey};
use crate::bytes::{Put, set_u16, set_u32};
use crate::{MAX_DATAGRAM, Moment};

const VERSION: u16 = 10;
const SET_OF_TEMPLATES: u16 = 2;
const SET_OF_OPTIONS: u16 = 3;
const HEADER_LEN: usize = 16;

/// Most bytes of a name in a record.
const MAX_NAME: usize = 64;
/// Most bytes of a description.
const MAX_DESCRIPTION: usize = 128;
/// Most bytes of `virtual_obs_id`.
const MAX_OBS_ID: usize = 254;

/// A message that is being filled.
pub struct Message {
    bytes: Vec<u8>,
    /// Records in it, which are numbered.
    records: u32,
    /// Observation domain.
    domain: u32,
}

/// Appends a set to `out`: its number, its length, and what `write` appends.
fn with_set(out: &mut Vec<u8>, id: u16, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u16(id);
    out.put_u16(0);
    write(out);
    let len = out.len() - start;
    set_u16(out, start + 2, len as u16);
}

impl Message {
    /// An empty message about a domain.
    pub fn new(domain: u32) -> Message {
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM);
        bytes.put_u16(VERSION);
        bytes.put(&[0; HEADER_LEN - 2]);
        Message { bytes, records: 0, domain }
    }

    /// The domain that it is about.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// Records in it.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_LEN
    }

    /// Whether a set of `len` bytes fits.
    pub fn has_room(&self, len: usize) -> bool {
        self.bytes.len() + len <= MAX_DATAGRAM
    }

    /// Adds a set of templates.
    pub fn add_templates(&mut self, set: &[u8]) {
        self.bytes.put(set);
    }

    /// Adds a set with one record.
    pub fn add_record(&mut self, set: &[u8]) {
        self.bytes.put(set);
        self.records += 1;
    }

    /// The bytes. `sequence` is how many records of the domain came before.
    pub fn finish(mut self, export_time: u32, sequence: u32) -> Vec<u8> {
        let len = self.bytes.len() as u16;
        set_u16(&mut self.bytes, 2, len);
        set_u32(&mut self.bytes, 4, export_time);
        set_u32(&mut self.bytes, 8, sequence);
        set_u32(&mut self.bytes, 12, self.domain);
        self.bytes
    }
}

/// A set with one template.
pub fn template_set(template: Template, has_obs_id: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    with_set(&mut out, SET_OF_TEMPLATES, |out| {
        let elements = template.elements(has_obs_id);
        out.put_u16(template.id());
        out.put_u16(elements.len() as u16);
        elements.iter().for_each(|element| element.put_specifier(out));
    });
    out
}

/// A set with the template of what the exporter says about itself.
pub fn options_template_set() -> Vec<u8> {
    let mut out = Vec::new();
    with_set(&mut out, SET_OF_OPTIONS, |out| {
        out.put_u16(OPTIONS_TEMPLATE);
        // Fields, and how many of them say what the others are about.
        out.put_u16(2);
        out.put_u16(1);
        Element::ExportingProcess.put_specifier(out);
        Element::NotSentPacketsTotal.put_specifier(out);
    });
    out
}

/// A set with what the exporter says about itself: messages that were not sent.
pub fn options_set(exporter: u32, not_sent: u64) -> Vec<u8> {
    let mut out = Vec::new();
    with_set(&mut out, OPTIONS_TEMPLATE, |out| {
        out.put_u32(exporter);
        out.put_u64(not_sent);
    });
    out
}

/// A flow that is exported.
pub struct Record<'a> {
    /// Its key.
    pub key: &'a FlowKey,
    /// What was counted.
    pub flow: &'a Flow,
    /// Why it is exported.
    pub reason: EndReason,
    /// What is observed.
    pub obs_id: Option<&'a str>,
}

/// When a message is exported: the wall's time in whole seconds, rounded up, so that no record began after it.
pub fn export_time(at: Moment) -> u32 {
    (at.wall.as_secs() + u64::from(at.wall.subsec_nanos() > 0)) as u32
}

/// A set with one record.
pub fn record_set(record: &Record<'_>, at: Moment) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    with_set(&mut out, record.key.template.id(), |out| {
        for element in record.key.template.elements(record.obs_id.is_some()) {
            record.put(element, out, at);
        }
    });
    out
}

/// A value of variable length, which has its length before it (section 7).
fn put_variable(out: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let bytes = &bytes[..bytes.len().min(most)];
    out.put_u8(bytes.len() as u8);
    out.put(bytes);
}

impl Record<'_> {
    /// Appends the value of an element.
    fn put(&self, element: Element, out: &mut Vec<u8>, at: Moment) {
        use Element::*;
        let (key, flow) = (self.key, self.flow);
        // A flow that has been exported begins anew, and what is counted of it in all is what its only record has.
        let (counts, Totals { ingress, egress }) = (&flow.counts, &flow.totals);
        let (total, tcp) = (counts, &counts.tcp);
        match element {
            ObservationPoint => out.put_u32(key.obs_point),
            FlowDirection => out.put_u8(match key.template.direction {
                Direction::Ingress => 0,
                Direction::Egress => 1,
            }),
            SourceMac => out.put(&key.mac.src),
            DestinationMac => out.put(&key.mac.dst),
            EthernetType => out.put_u16(key.ethertype),
            EthernetHeaderLength => out.put_u8(key.template.ethernet_header_len()),
            IngressInterface => out.put_u32(key.ingress.index),
            IngressInterfaceType => out.put_u32(key.ingress.kind),
            IngressName => put_variable(out, key.ingress.name.as_bytes(), MAX_NAME),
            IngressDescription => put_variable(out, key.ingress.description.as_bytes(), MAX_DESCRIPTION),
            EgressInterface => out.put_u32(key.egress.index),
            EgressInterfaceType => out.put_u32(key.egress.kind),
            EgressName => put_variable(out, key.egress.name.as_bytes(), MAX_NAME),
            EgressDescription => put_variable(out, key.egress.description.as_bytes(), MAX_DESCRIPTION),
            VlanId | Dot1qVlanId => out.put_u16(key.tci & 0xfff),
            Dot1qPriority => out.put_u8((key.tci >> 13) as u8),
            IpVersion => out.put_u8(if matches!(key.addresses, Addresses::V6(..)) { 6 } else { 4 }),
            IpTtl => out.put_u8(key.ttl),
            Protocol => out.put_u8(key.protocol),
            Dscp => out.put_u8(key.tos >> 2),
            IpPrecedence => out.put_u8(key.tos >> 5),
            ClassOfService => out.put_u8(key.tos),
            SourceIpv4 | DestinationIpv4 | SourceIpv6 | DestinationIpv6 => self.put_address(element, out),
            FlowLabel => out.put_u32(key.label),
            SourcePort => out.put_u16(key.ports.0),
            DestinationPort => out.put_u16(key.ports.1),
            IcmpTypeIpv4 | IcmpTypeIpv6 => out.put_u8(key.ports.0 as u8),
            IcmpCodeIpv4 | IcmpCodeIpv6 => out.put_u8(key.ports.1 as u8),
            TunnelSource
            | TunnelDestination
            | TunnelProtocol
            | TunnelSourcePort
            | TunnelDestinationPort
            | TunnelType
            | TunnelKey => self.put_tunnel(element, out),
            VirtualObsId => put_variable(out, self.obs_id.unwrap_or_default().as_bytes(), MAX_OBS_ID),
            FlowStart => out.put_u32(before_export(flow.start, at)),
            FlowEnd => out.put_u32(before_export(flow.end, at)),
            DroppedPackets => out.put_u64(counts.dropped),
            DroppedPacketsTotal => out.put_u64(total.dropped),
            Packets => out.put_u64(counts.packets),
            PacketsTotal => out.put_u64(total.packets),
            IngressUnicastTotal => out.put_u64(ingress[0]),
            IngressMulticastTotal => out.put_u64(ingress[1]),
            IngressBroadcastTotal => out.put_u64(ingress[2]),
            EgressUnicastTotal => out.put_u64(egress[0]),
            EgressBroadcastTotal => out.put_u64(egress[2]),
            PostMulticastPackets => out.put_u64(counts.post_multicast),
            PostMulticastPacketsTotal => out.put_u64(total.post_multicast),
            Layer2Octets => out.put_u64(counts.layer2),
            Layer2OctetsTotal => out.put_u64(total.layer2),
            EndReason => out.put_u8(self.reason as u8),
            DroppedOctets => out.put_u64(counts.dropped_octets),
            DroppedOctetsTotal => out.put_u64(total.dropped_octets),
            Octets => out.put_u64(counts.octets),
            OctetsTotal => out.put_u64(total.octets),
            OctetSquares => out.put_u64(counts.squares),
            OctetSquaresTotal => out.put_u64(total.squares),
            MinimumLength => out.put_u64(counts.shortest.into()),
            MaximumLength => out.put_u64(counts.longest.into()),
            PostMulticastOctets => out.put_u64(counts.post_multicast_octets),
            PostMulticastOctetsTotal => out.put_u64(total.post_multicast_octets),
            TcpFinTotal => out.put_u64(tcp[0]),
            TcpSynTotal => out.put_u64(tcp[1]),
            TcpRstTotal => out.put_u64(tcp[2]),
            TcpPshTotal => out.put_u64(tcp[3]),
            TcpAckTotal => out.put_u64(tcp[4]),
            TcpUrgTotal => out.put_u64(tcp[5]),
            // These are not of flows.
            ExportingProcess => out.put_u32(0),
            NotSentPacketsTotal => out.put_u64(0),
        }
    }

    fn put_address(&self, element: Element, out: &mut Vec<u8>) {
        match (element, self.key.addresses) {
            (Element::SourceIpv4, Addresses::V4(src, _)) => out.put_u32(src),
            (Element::DestinationIpv4, Addresses::V4(_, dst)) => out.put_u32(dst),
            (Element::SourceIpv6, Addresses::V6(src, _)) => out.put(&src),
            (Element::DestinationIpv6, Addresses::V6(_, dst)) => out.put(&dst),
            // No template has it; the length is right all the same.
            (element, _) => out.put(&[0; 16][..usize::from(element.specifier().1)]),
        }
    }

    fn put_tunnel(&self, element: Element, out: &mut Vec<u8>) {
        let Some(tunnel) = &self.key.tunnel else {
            let (_, len, _) = element.specifier();
            return out.put(&[0; 4][..usize::from(len).clamp(1, 4)]);
        };
        match element {
            Element::TunnelSource => out.put(&tunnel.src.octets()),
            Element::TunnelDestination => out.put(&tunnel.dst.octets()),
            Element::TunnelProtocol => out.put_u8(tunnel.kind.ip_protocol()),
            Element::TunnelSourcePort => out.put_u16(tunnel.src_port),
            Element::TunnelDestinationPort => out.put_u16(tunnel.dst_port),
            Element::TunnelType => out.put_u8(tunnel.kind.number()),
            _ => put_variable(out, &tunnel.id.to_be_bytes()[8 - tunnel.kind.key_len()..], 8),
        }
    }
}

/// By how many microseconds a time lies before the export time.
fn before_export(time: Time, at: Moment) -> u32 {
    let rest = 1_000_000_000 - u64::from(at.wall.subsec_nanos());
    let nanos = at.now.since(time).as_nanos().min(u64::MAX.into()) as u64 + rest % 1_000_000_000;
    (nanos / 1000).min(u32::MAX.into()) as u32
}

impl Template {
    /// Bytes of the header of Ethernet.
    pub fn ethernet_header_len(self) -> u8 {
        if self.l2 == L2::Vlan { 18 } else { 14 }
    }
}
