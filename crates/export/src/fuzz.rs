//! Entry for fuzzing: frames of any kind, from which samples and flows are made as a datapath makes them. No datagram is too long, and
//! what its lengths and counts say is what it has.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use packet::flow::VlanLimit;
use packet::flow::extract::extract;
use packet::{Field, Key, Time};

use crate::ipfix::element::Direction;
use crate::ipfix::exporter::Exporter as IpfixExporter;
use crate::ipfix::{self, Interface};
use crate::netflow::{Credit, NetFlow};
use crate::settings::{FlowIpfix, Netflow, Sflow};
use crate::sflow::{self, Agent, Counters, PolledPort, PortCounters, SwitchCounters, datagram};
use crate::tunnel::{Kind, Tunnel};
use crate::{MAX_DATAGRAM, Moment, netflow, target};

const KINDS: [&str; 6] = ["vxlan", "gre", "lisp", "geneve", "ip6gre", "unknown"];

struct Ports(u8);

impl Counters for Ports {
    fn ports(&self, _: u32) -> Vec<PolledPort> {
        (1..=u32::from(self.0)).map(|ifindex| PolledPort { ifindex, port: ifindex }).collect()
    }

    fn port(&self, _: u32, port: u32) -> Option<PortCounters> {
        (!port.is_multiple_of(7)).then(|| PortCounters { name: "p".repeat(port as usize), ..PortCounters::default() })
    }

    fn address(&self, _: &str) -> Option<IpAddr> {
        None
    }

    fn lost_samples(&self) -> u64 {
        self.0.into()
    }

    fn switch(&self) -> SwitchCounters {
        SwitchCounters::default()
    }
}

/// Runs a program: four bytes of settings, then packets, each of six bytes about it, its length, and its bytes.
pub fn run(data: &[u8]) {
    let [seconds, header, flows, ports, rest @ ..] = data else { return };
    let mut rest = rest;
    let at = |n: u64| Moment { now: Time(n * 1_000_000_000), wall: Duration::from_secs(1_700_000_000 + n) };
    let (mut now, mut sent) = (at(1), [Vec::new(), Vec::new(), Vec::new()]);
    let address = if ports & 1 == 0 { IpAddr::from([10, 0, 0, 1]) } else { IpAddr::from([7; 16]) };
    let settings = Sflow {
        targets: Vec::new(),
        sampling: (*seconds).into(),
        polling: Duration::from_secs((*seconds).into()),
        header: u16::from(*header) * 8,
        agent: None,
        sub_id: 1,
    };
    let mut agent = Agent::new(settings, address, now.now);
    let active_timeout = Duration::from_secs((*seconds).into());
    let settings = Netflow {
        targets: Vec::new(),
        engine_type: 1,
        engine_id: 2,
        active_timeout,
        add_id_to_interface: ports & 2 != 0,
    };
    let netflow = NetFlow::new(settings, now.now);
    let virtual_obs_id = (ports & 4 != 0).then(|| "x".repeat(usize::from(*header)));
    let settings = FlowIpfix {
        targets: Vec::new(),
        active_timeout,
        max_flows: (*flows).into(),
        tunnels: ports & 8 != 0,
        virtual_obs_id,
    };
    let mut exporter = IpfixExporter::new(settings, 3);
    while let [about @ .., len] = rest.get(..7).unwrap_or_default() {
        let [pause, port, kind, tci, labels, flags] = *about else { break };
        let (frame, after) = rest[7..].split_at(usize::from(*len).min(rest.len() - 7));
        rest = after;
        now = at(now.now.0 / 1_000_000_000 + u64::from(pause));
        let mut key = Key::new();
        // A port without Ethernet gives packets without it.
        if frame.len() >= 14 {
            extract(frame, &mut key, VlanLimit::default());
        }
        key.set(Field::TunSrc, u128::from(kind & 3));
        key.set(Field::TunIpv6Dst, u128::from(kind & 4));
        key.set(Field::TunDst, u128::from(labels));
        key.set(Field::TunId, u128::from(tci) << 20);
        let tunnel = Tunnel::received(&key, Kind::of_name(KINDS[usize::from(kind) % KINDS.len()]));
        let sample = sflow::Sample {
            bridge: 1,
            protocol: datagram::header_protocol(if frame.len() >= 14 { 0 } else { 0x1_0800 }),
            header: frame.to_vec(),
            frame_len: u32::from(*len) * u32::from(pause),
            input: port.into(),
            output: sflow::output(kind.into(), port.into()),
            src_tci: tci.into(),
            dst_tci: u16::from(tci) << 8,
            ingress: tunnel.clone(),
            egress: tunnel.clone().filter(|_| flags & 1 != 0),
            // As many as a key has.
            mpls: (0..u32::from(labels % 4)).collect(),
        };
        agent.sample(&sample, now, &mut sent[0]);
        if let Some(poll) = agent.poll(1, flags & 2 != 0, &Ports(*ports), now) {
            agent.polled(&poll.read(&Ports(*ports)), now, &mut sent[0]);
        }
        if flags & 32 != 0 {
            agent.flush(now, &mut sent[0]);
        }
        if let Some(flow) = netflow::FlowKey::of(&key, port.into()) {
            let (packets, bytes) = (u64::from(kind), u64::from(pause) << (flags & 63));
            let credit = Credit { output: tci.into(), packets, bytes, used: now.now, tcp_flags: flags.into() };
            netflow.credit(&flow, &credit);
            if flags & 4 != 0 {
                netflow.end(&flow);
            }
        }
        netflow.run(now, &mut sent[1]);
        let direction = if flags & 8 != 0 { Direction::Ingress } else { Direction::Egress };
        let name: Arc<str> = "p".repeat(usize::from(port)).into();
        let interface = Interface { index: port.into(), kind: 6, name: name.clone(), description: name };
        let mut flow = ipfix::FlowKey::of(&key, direction, tunnel);
        (flow.ingress, flow.egress) = (interface.clone(), interface);
        let sample = ipfix::Sample {
            bridge: 1,
            collector_set: None,
            weight: ipfix::weight(kind.into(), u32::from(labels)),
            frame_len: u32::from(*len),
            is_forwarded: flags & 16 != 0,
            tcp_flags: flags.into(),
            flow,
        };
        exporter.sample(sample, now, &mut sent[2]);
        exporter.run(now, &mut sent[2]);
    }
    netflow.end_all(now, &mut sent[1]);
    exporter.end(now, &mut sent[2]);
    for (datagrams, check) in sent.iter().zip([check_sflow as fn(&[u8]), check_netflow, check_ipfix]) {
        for datagram in datagrams {
            assert!(datagram.len() <= MAX_DATAGRAM, "{} bytes: {datagram:02x?}", datagram.len());
            check(datagram);
        }
    }
    let _ = std::str::from_utf8(data).map(|text| target::parse(text, Some(1)));
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn half(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes")).into()
}

/// As many samples as the header says, each as long as it says, made of records that are as long as they say.
fn check_sflow(bytes: &[u8]) {
    assert_eq!(word(bytes, 0), 5);
    let head = 8 + if word(bytes, 4) == 1 { 4 } else { 16 };
    let (samples, mut at) = (word(bytes, head + 12), head + 16);
    assert!(samples > 0);
    for _ in 0..samples {
        let (format, len) = (word(bytes, at), word(bytes, at + 4));
        let sample = &bytes[at + 8..at + 8 + len];
        // A flow sample has eight words before its records, one of counters three.
        let mut record = if format == 1 { 32 } else { 12 };
        for _ in 0..word(sample, record - 4) {
            record += 8 + word(sample, record + 4).next_multiple_of(4);
        }
        assert_eq!(record, len);
        at += 8 + len;
    }
    assert_eq!(at, bytes.len());
}

fn check_netflow(bytes: &[u8]) {
    assert_eq!((half(bytes, 0), bytes.len()), (5, 24 + 48 * half(bytes, 2)));
    assert!((1..=30).contains(&half(bytes, 2)));
}

/// Sets that are as long as they say.
fn check_ipfix(bytes: &[u8]) {
    assert_eq!((half(bytes, 0), half(bytes, 2)), (10, bytes.len()));
    let mut at = 16;
    while at < bytes.len() {
        let (id, len) = (half(bytes, at), half(bytes, at + 2));
        assert!(len >= 4 && (id == 2 || id == 3 || id >= 256), "set {id} of {len} bytes");
        at += len;
    }
    assert_eq!(at, bytes.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_packets_make_datagrams_that_are_what_they_say(
            settings in any::<[u8; 4]>(),
            packets in prop::collection::vec((any::<[u8; 6]>(), prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..60),
        ) {
            let mut data = settings.to_vec();
            for (about, mut frame, is_ip) in packets {
                if is_ip && frame.len() > 14 {
                    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                }
                data.extend(about);
                data.push(frame.len() as u8);
                data.extend(frame);
            }
            super::run(&data);
        }
    }
}
