//! Datagrams of sFlow version 5, and the samples in them. Everything is made of words of 32 bits (XDR, RFC 4506).

use std::net::IpAddr;

use super::{LacpCounters, PolledPort, PortCounters, Sample, SwitchCounters};
use crate::bytes::{Put, set_u32};
use crate::tunnel::Tunnel;

const VERSION: u32 = 5;
const ADDRESS_IPV4: u32 = 1;
const ADDRESS_IPV6: u32 = 2;

const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;

const RAW_PACKET_HEADER: u32 = 1;
const EXTENDED_SWITCH: u32 = 1001;
const EXTENDED_MPLS: u32 = 1006;
// "sFlow Tunnel Structures", November 2012.
const TUNNEL_EGRESS: u32 = 1023;
const TUNNEL_INGRESS: u32 = 1024;
const VNI_EGRESS: u32 = 1029;
const VNI_INGRESS: u32 = 1030;

const IF_COUNTERS: u32 = 1;
const ETHERNET_COUNTERS: u32 = 2;
// "sFlow LAG Port Statistics Structure", September 2012.
const LAG_PORT: u32 = 7;
const OPENFLOW_PORT: u32 = 1004;
const PORT_NAME: u32 = 1005;
// "sFlow Host Structures" and its application structures.
const APP_RESOURCES: u32 = 2203;
const OVS_DATAPATH: u32 = 2207;

const HEADER_ETHERNET: u32 = 1;
const IF_TYPE_ETHERNET: u32 = 6;
const UNKNOWN: u32 = u32::MAX;
/// Bytes of the check sequence, which no packet has here.
const FCS: u32 = 4;
const BOTTOM_OF_STACK: u32 = 0x100;

/// A source whose index is the number of an interface.
pub const IFINDEX: u8 = 0;
/// A source that is a part of the host.
pub const PHYSICAL_ENTITY: u8 = 2;

/// What a packet of this type begins with, by sFlow's numbers. The type is OpenFlow's: zero is Ethernet.
pub fn header_protocol(packet_type: u32) -> u32 {
    match packet_type as u16 {
        _ if packet_type == 0 => HEADER_ETHERNET,
        0x0800 => 11,
        0x86dd => 12,
        0x8847 | 0x8848 => 13,
        // There is no number for others.
        _ => HEADER_ETHERNET,
    }
}

/// What was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Kind.
    pub class: u8,
    /// Which one, 24 bits.
    pub index: u32,
}

impl Source {
    fn word(self) -> u32 {
        u32::from(self.class) << 24 | self.index & 0xff_ffff
    }
}

/// A datagram that is being filled.
pub struct Datagram {
    bytes: Vec<u8>,
    header_len: usize,
    agent: IpAddr,
    sub_id: u32,
    sequence: u32,
    samples: u32,
}

impl Datagram {
    /// An empty one from an agent.
    pub fn new(agent: IpAddr, sub_id: u32) -> Datagram {
        let mut bytes = Vec::with_capacity(crate::MAX_DATAGRAM);
        put_header(&mut bytes, agent, sub_id);
        Datagram { header_len: bytes.len(), bytes, agent, sub_id, sequence: 0, samples: 0 }
    }

    /// Sets the address of the agent; samples stay.
    pub fn set_agent(&mut self, agent: IpAddr) {
        if agent != self.agent {
            let mut header = Vec::new();
            put_header(&mut header, agent, self.sub_id);
            let len = header.len();
            self.bytes.splice(..self.header_len, header);
            (self.agent, self.header_len) = (agent, len);
        }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no sample.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &[u8]) {
        self.bytes.put(sample);
        self.samples += 1;
    }

    /// The bytes, if there is a sample in it. The next datagram begins.
    pub fn take(&mut self, uptime: u32) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let at = self.header_len - 12;
        set_u32(&mut self.bytes, at, self.sequence);
        set_u32(&mut self.bytes, at + 4, uptime);
        set_u32(&mut self.bytes, at + 8, self.samples);
        let bytes = self.bytes.clone();
        self.bytes.truncate(self.header_len);
        self.samples = 0;
        Some(bytes)
    }
}

/// Appends what a datagram begins with. Sequence number, uptime and the number of samples are not known yet.
fn put_header(out: &mut Vec<u8>, agent: IpAddr, sub_id: u32) {
    out.put_u32(VERSION);
    match agent {
        IpAddr::V4(address) => {
            out.put_u32(ADDRESS_IPV4);
            out.put(&address.octets());
        }
        IpAddr::V6(address) => {
            out.put_u32(ADDRESS_IPV6);
            out.put(&address.octets());
        }
    }
    out.put_u32(sub_id);
    out.put(&[0; 12]);
}

/// A sample of a packet.
pub struct FlowSample<'a> {
    /// Its number.
    pub number: u32,
    /// Where it was taken.
    pub source: Source,
    /// One packet in so many is.
    pub rate: u32,
    /// Packets that could have been so far.
    pub pool: u32,
    /// Samples that were lost so far.
    pub drops: u32,
    /// The packet.
    pub sample: &'a Sample,
    /// Most bytes of it.
    pub header: usize,
}

/// Appends records with their tag and length, and counts them.
struct Records<'o> {
    out: &'o mut Vec<u8>,
    /// Where the number of records is.
    count_at: usize,
    count: u32,
}

impl<'o> Records<'o> {
    fn new(out: &'o mut Vec<u8>) -> Records<'o> {
        let count_at = out.len();
        out.put_u32(0);
        Records { out, count_at, count: 0 }
    }

    fn add(&mut self, tag: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.put_u32(tag);
        with_length(self.out, write);
        self.count += 1;
        set_u32(self.out, self.count_at, self.count);
    }
}

/// Appends a length, and then what it is the length of.
fn with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put_u32(0);
    write(out);
    let len = out.len() - at - 4;
    set_u32(out, at, len as u32);
}

/// Appends bytes with their length before them and zeros behind them, to a whole word.
fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put(bytes);
    out.put(&[0; 3][..bytes.len().wrapping_neg() % 4]);
}

/// Appends a sample of a packet.
pub fn put_flow_sample(out: &mut Vec<u8>, about: &FlowSample<'_>) {
    let sample = about.sample;
    out.put_u32(FLOW_SAMPLE);
    with_length(out, |out| {
        for word in [about.number, about.source.word(), about.rate, about.pool, about.drops, sample.input] {
            out.put_u32(word);
        }
        out.put_u32(sample.output);
        let mut records = Records::new(out);
        records.add(RAW_PACKET_HEADER, |out| {
            // Frames have come without their check sequence.
            let stripped = if sample.protocol == HEADER_ETHERNET { FCS } else { 0 };
            out.put_u32(sample.protocol);
            out.put_u32(sample.frame_len.saturating_add(stripped));
            out.put_u32(stripped);
            put_opaque(out, &sample.header[..sample.header.len().min(about.header)]);
        });
        records.add(EXTENDED_SWITCH, |out| {
            for tci in [sample.src_tci, sample.dst_tci] {
                out.put_u32((tci & 0xfff).into());
                out.put_u32((tci >> 13).into());
            }
        });
        if let Some(tunnel) = &sample.ingress {
            put_tunnel(&mut records, tunnel, TUNNEL_INGRESS, VNI_INGRESS);
        }
        if let Some(tunnel) = &sample.egress {
            put_tunnel(&mut records, tunnel, TUNNEL_EGRESS, VNI_EGRESS);
        }
        if !sample.mpls.is_empty() {
            records.add(EXTENDED_MPLS, |out| put_mpls(out, &sample.mpls));
        }
    });
}

fn put_tunnel(records: &mut Records<'_>, tunnel: &Tunnel, tag: u32, vni_tag: u32) {
    records.add(tag, |out| {
        // The length of the packet with these headers is not known.
        out.put_u32(0);
        out.put_u32(tunnel.kind.ip_protocol().into());
        out.put(&tunnel.src.octets());
        out.put(&tunnel.dst.octets());
        out.put_u32(tunnel.src_port.into());
        out.put_u32(tunnel.dst_port.into());
        // TCP flags.
        out.put_u32(0);
        out.put_u32(tunnel.tos.into());
    });
    if tunnel.id != 0 {
        records.add(vni_tag, |out| out.put_u32(tunnel.id as u32));
    }
}

fn put_mpls(out: &mut Vec<u8>, labels: &[u32]) {
    // The next hop is not known, nor are the labels that the packet came with.
    out.put_u32(ADDRESS_IPV4);
    out.put_u32(0);
    out.put_u32(0);
    out.put_u32(labels.len() as u32);
    for (at, label) in labels.iter().enumerate() {
        let is_last = at + 1 == labels.len();
        out.put_u32(label & !BOTTOM_OF_STACK | if is_last { BOTTOM_OF_STACK } else { 0 });
    }
}

/// Appends a sample of the counters of a port.
pub fn put_port_counters(out: &mut Vec<u8>, number: u32, source: Source, port: PolledPort, counters: &PortCounters) {
    out.put_u32(COUNTERS_SAMPLE);
    with_length(out, |out| {
        out.put_u32(number);
        out.put_u32(source.word());
        let mut records = Records::new(out);
        records.add(IF_COUNTERS, |out| put_interface(out, port.ifindex, counters));
        records.add(PORT_NAME, |out| put_opaque(out, &counters.name.as_bytes()[..counters.name.len().min(255)]));
        records.add(OPENFLOW_PORT, |out| {
            out.put_u64(counters.datapath_id);
            out.put_u32(port.port);
        });
        records.add(ETHERNET_COUNTERS, |out| {
            let (alignment, fcs, long) = counters.frames_bad;
            let mut words = [UNKNOWN; 13];
            (words[0], words[1], words[10]) = (alignment as u32, fcs as u32, long as u32);
            words.iter().for_each(|word| out.put_u32(*word));
        });
        if let Some(lacp) = &counters.lacp {
            records.add(LAG_PORT, |out| put_lacp(out, lacp));
        }
    });
}

/// What LACP knows of a port, and its counters. Markers are not counted.
fn put_lacp(out: &mut Vec<u8>, lacp: &LacpCounters) {
    for address in [lacp.actor, lacp.partner] {
        out.extend(address);
        // XDR has whole words.
        out.extend([0, 0]);
    }
    out.put_u32(lacp.aggregator);
    out.extend(lacp.states);
    let (rx, bad) = lacp.rx;
    for count in [rx as u32, UNKNOWN, UNKNOWN, UNKNOWN, bad as u32, lacp.tx as u32, UNKNOWN, UNKNOWN] {
        out.put_u32(count);
    }
}

/// The generic counters of an interface (RFC 2233).
fn put_interface(out: &mut Vec<u8>, ifindex: u32, counters: &PortCounters) {
    // What is told where the speed is not known, as in OVS.
    const USUAL_SPEED: u64 = 100_000_000;
    out.put_u32(ifindex);
    out.put_u32(IF_TYPE_ETHERNET);
    out.put_u64(if counters.speed == 0 { USUAL_SPEED } else { counters.speed });
    out.put_u32(match counters.full_duplex {
        None => 0,
        Some(true) => 1,
        Some(false) => 2,
    });
    out.put_u32(if counters.admin_up { 1 | u32::from(counters.up) << 1 } else { 0 });
    for ((octets, packets), (dropped, errors), unknown_protocols) in
        [(counters.rx, counters.rx_bad, true), (counters.tx, counters.tx_bad, false)]
    {
        out.put_u64(octets);
        out.put_u32(packets as u32);
        // Multicast and broadcast.
        out.put_u32(UNKNOWN);
        out.put_u32(UNKNOWN);
        out.put_u32(dropped as u32);
        out.put_u32(errors as u32);
        if unknown_protocols {
            out.put_u32(UNKNOWN);
        }
    }
    // Promiscuous mode.
    out.put_u32(0);
}

/// Appends a sample of what the switch has done and taken.
pub fn put_switch_counters(out: &mut Vec<u8>, number: u32, source: Source, counters: &SwitchCounters) {
    out.put_u32(COUNTERS_SAMPLE);
    with_length(out, |out| {
        out.put_u32(number);
        out.put_u32(source.word());
        let mut records = Records::new(out);
        records.add(OVS_DATAPATH, |out| {
            for count in [counters.hits, counters.misses, counters.lost, counters.mask_hits] {
                out.put_u32(count as u32);
            }
            out.put_u32(counters.flows);
            out.put_u32(counters.masks);
        });
        records.add(APP_RESOURCES, |out| {
            out.put_u32(counters.time.0);
            out.put_u32(counters.time.1);
            out.put_u64(counters.memory);
            // Most memory, and files and connections, open and at most: not known.
            out.put_u64(0);
            out.put(&[0; 16]);
        });
    });
}
