use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use packet::Time;
use proptest::prelude::*;

use super::element::{Element, OPTIONS_TEMPLATE};
use super::exporter::{Exporter, TEMPLATE_INTERVAL};
use super::*;
use crate::settings::FlowIpfix;
use crate::tunnel::Kind;
use crate::{MAX_DATAGRAM, Moment, Sent, Sink};

fn at(seconds: u64) -> Moment {
    Moment { now: Time(0) + Duration::from_secs(seconds), wall: Duration::from_secs(1_000_000 + seconds) }
}

fn flow(n: u32) -> FlowKey {
    let mut key = Key::new();
    let common = key.common_mut();
    (common.dl_type, common.nw_proto, common.nw_ttl, common.nw_tos) = (0x0800.into(), 6, 64, 0x28);
    (common.nw_src, common.nw_dst) = (n.into(), 0x0a00_0002.into());
    (common.tp_src, common.tp_dst) = (1234.into(), 80.into());
    (common.dl_src, common.dl_dst) = ([2; 6], [4; 6]);
    FlowKey::of(&key, Direction::Ingress, None)
}

fn sample(flow: FlowKey) -> Sample {
    Sample {
        bridge: 0,
        collector_set: None,
        weight: weight(10, 1),
        frame_len: 114,
        is_forwarded: true,
        tcp_flags: 0x12,
        flow,
    }
}

fn exporter(seconds: u64, max_flows: u32) -> Exporter {
    let active_timeout = Duration::from_secs(seconds);
    Exporter::new(FlowIpfix { active_timeout, max_flows, ..FlowIpfix::default() }, 1)
}

/// What a collector makes of messages: values by the number of their element, for each record with its domain.
#[derive(Default)]
struct Collector {
    templates: HashMap<(u32, u16), Vec<(u16, u16)>>,
    sequences: HashMap<u32, u32>,
    templates_seen: usize,
    /// It has not seen all messages.
    lenient: bool,
}

type Values = Vec<(u16, Vec<u8>)>;

impl Collector {
    fn read(&mut self, message: &[u8]) -> Vec<(u32, u16, Values)> {
        let half = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
        assert!(message.len() <= MAX_DATAGRAM);
        assert_eq!((half(0), usize::from(half(2))), (10, message.len()));
        let domain = word(12);
        let before = self.sequences.entry(domain).or_default();
        assert!(self.lenient || *before == word(8), "records of domain {domain} before");
        let (mut at, mut records) = (16, Vec::new());
        while at < message.len() {
            let (id, len) = (half(at), usize::from(half(at + 2)));
            let set = &message[at + 4..at + len];
            match id {
                2 => self.template(domain, set, 4),
                3 => self.template(domain, set, 6),
                id if self.lenient && !self.templates.contains_key(&(domain, id)) => {}
                id => records.push((domain, id, self.record(domain, id, set))),
            }
            at += len;
        }
        *self.sequences.get_mut(&domain).unwrap() += records.len() as u32;
        records
    }

    fn template(&mut self, domain: u32, set: &[u8], header: usize) {
        self.templates_seen += 1;
        let half = |at: usize| u16::from_be_bytes([set[at], set[at + 1]]);
        let (mut at, mut fields) = (header, Vec::new());
        for _ in 0..half(2) {
            fields.push((half(at), half(at + 2)));
            at += if half(at) & 0x8000 != 0 { 8 } else { 4 };
        }
        assert_eq!(at, set.len());
        self.templates.insert((domain, half(0)), fields);
    }

    fn record(&self, domain: u32, id: u16, mut rest: &[u8]) -> Values {
        let fields = self.templates.get(&(domain, id)).expect("a template comes before its records");
        let mut values = Vec::new();
        for (element, len) in fields {
            let mut len = usize::from(*len);
            if len == 0xffff {
                len = rest[0].into();
                rest = &rest[1..];
            }
            let (value, after) = rest.split_at(len);
            values.push((*element, value.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty(), "{} bytes behind the record", rest.len());
        values
    }

    fn read_all(&mut self, messages: &[Vec<u8>]) -> Vec<Values> {
        let all = messages.iter().flat_map(|message| self.read(message)).collect::<Vec<_>>();
        all.into_iter().filter(|(_, id, _)| *id != OPTIONS_TEMPLATE).map(|(.., values)| values).collect()
    }
}

fn number(values: &Values, element: Element) -> u64 {
    let (id, ..) = element.specifier();
    let (_, bytes) = values.iter().find(|(of, _)| of & 0x7fff == id).expect("the record has it");
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[test]
fn a_flow_is_exported_when_it_was_kept_long_enough() {
    let (mut exporter, mut sent) = (exporter(60, 100), Vec::new());
    for second in 0..30 {
        exporter.sample(sample(flow(1)), at(second), &mut sent);
    }
    assert_eq!(exporter.run(at(59), &mut sent), Some(at(60).now));
    assert!(sent.is_empty());
    assert_eq!(exporter.run(at(60), &mut sent), None);
    let records = Collector::default().read_all(&sent);
    assert_eq!(records.len(), 1);
    let value = |element| number(&records[0], element);
    assert_eq!((value(Element::Packets), value(Element::Octets)), (300, 300 * 100));
    assert_eq!((value(Element::Layer2Octets), value(Element::DroppedPackets)), (300 * 114, 0));
    assert_eq!((value(Element::FlowStart), value(Element::FlowEnd)), (60_000_000, 31_000_000));
    assert_eq!((value(Element::SourceIpv4), value(Element::DestinationPort)), (1, 80));
    assert_eq!((value(Element::EndReason), value(Element::Protocol), value(Element::IpTtl)), (2, 6, 64));
    assert_eq!((value(Element::Dscp), value(Element::IpPrecedence), value(Element::ClassOfService)), (10, 1, 0x28));
    assert_eq!((value(Element::TcpSynTotal), value(Element::TcpAckTotal), value(Element::TcpFinTotal)), (300, 300, 0));
    assert_eq!((value(Element::IngressUnicastTotal), value(Element::OctetSquares)), (300, 300 * 100 * 100));
    let statistics = exporter.statistics();
    assert_eq!((statistics.flows, statistics.current_flows, statistics.packets, statistics.ipv4), (1, 0, 30, 30));
}

#[test]
fn samples_stand_for_fractions_of_packets_too() {
    for (packets, samples, n) in [(65535, 16384, 100_000), (65535, 65534, 100_000), (65535, 40_000, 99), (3, 1, 7)] {
        let (mut exporter, mut sent) = (exporter(60, 10), Vec::new());
        (0..n).for_each(|_| {
            exporter.sample(Sample { weight: weight(packets, samples), ..sample(flow(1)) }, at(0), &mut sent)
        });
        exporter.end(at(1), &mut sent);
        let records = Collector::default().read_all(&sent);
        let exact = u64::from(packets) * n / u64::from(samples);
        assert!(exact - number(&records[0], Element::Packets) <= 1, "{packets} / {samples}");
    }
    assert_eq!(weight(u32::MAX, 0) >> PLACES, u64::from(u32::MAX));
}

#[test]
fn a_template_as_the_rfc_has_it() {
    let template =
        Template { l2: L2::Ethernet, l3: L3::Other, l4: L4::Other, is_tunnelled: false, direction: Direction::Ingress };
    let set = message::template_set(template, true);
    let beginning = [0, 2, 0, 120, 1, 0, 0, 27, 0, 138, 0, 4, 0, 61, 0, 1, 0, 56, 0, 6, 0, 80, 0, 6, 1, 0, 0, 2];
    assert_eq!(set[..beginning.len()], beginning);
    // A name of variable length, and VMware's element with its enterprise.
    assert!(set.windows(4).any(|four| four == [0, 82, 0xff, 0xff]));
    assert!(set.windows(8).any(|eight| eight == [0x83, 0x82, 0xff, 0xff, 0, 0, 0x1a, 0xdc]));
    assert_eq!(message::options_template_set(), [0, 3, 0, 18, 1, 120, 0, 2, 0, 1, 0, 144, 0, 4, 0, 167, 0, 8]);
    assert_eq!(message::options_set(7, 9), [1, 120, 0, 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
}

#[test]
fn without_a_cache_each_sample_is_a_record() {
    let (mut exporter, mut sent) = (exporter(0, 0), Vec::new());
    for n in 0..20 {
        exporter.sample(sample(flow(n)), at(0), &mut sent);
    }
    exporter.run(at(0), &mut sent);
    assert_eq!(Collector::default().read_all(&sent).len(), 20);
    assert_eq!((exporter.statistics().flows, exporter.statistics().current_flows), (20, 0));
    assert!(sent.len() < 10, "records share messages: {}", sent.len());
}

#[test]
fn a_full_cache_exports_the_oldest() {
    let (mut exporter, mut sent) = (exporter(60, 16), Vec::new());
    for n in 0..100 {
        exporter.sample(sample(flow(n)), at(0), &mut sent);
        assert!(exporter.statistics().current_flows <= 16);
    }
    exporter.run(at(1), &mut sent);
    let records = Collector::default().read_all(&sent);
    let sources: Vec<_> = records.iter().map(|values| number(values, Element::SourceIpv4)).collect();
    assert_eq!(sources, (0..84).collect::<Vec<_>>());
    assert!(records.iter().all(|values| number(values, Element::EndReason) == 5));
    sent.clear();
    exporter.end(at(2), &mut sent);
    assert_eq!(exporter.statistics().current_flows, 0);
}

#[test]
fn templates_come_again() {
    let (mut exporter, mut collector) = (exporter(0, 0), Collector::default());
    let mut round = |seconds: u64| {
        let mut sent = Vec::new();
        exporter.sample(sample(flow(1)), at(seconds), &mut sent);
        exporter.run(at(seconds), &mut sent);
        let before = collector.templates_seen;
        assert_eq!(collector.read_all(&sent).len(), 1);
        collector.templates_seen - before
    };
    assert_eq!((round(1), round(2), round(500)), (2, 0, 0));
    let later = 1 + TEMPLATE_INTERVAL.as_secs();
    assert_eq!((round(later), round(later + 1)), (2, 0));
}

#[test]
fn very_many_flows_that_are_due_at_once_are_exported_in_rounds() {
    let (mut exporter, mut sent) = (exporter(60, 10_000), Vec::new());
    (0..5000).for_each(|n| exporter.sample(sample(flow(n)), at(1), &mut sent));
    assert!(sent.is_empty());
    let mut rounds = 0;
    while exporter.run(at(61), &mut sent).is_some_and(|next| next <= at(61).now) {
        rounds += 1;
        assert!(exporter.statistics().current_flows >= 5000 - rounds * 512);
    }
    assert_eq!(rounds, 9);
    assert_eq!(Collector::default().read_all(&sent).len(), 5000);
    // A sample in between makes no more room than it needs.
    (0..100).for_each(|n| exporter.sample(sample(flow(n)), at(70), &mut sent));
    exporter.sample(sample(flow(1000)), at(140), &mut sent);
    assert_eq!(exporter.statistics().current_flows, 101 - 2);
}

/// A sink whose collector is away at times.
struct Away(Vec<Vec<u8>>, Sent);

impl Sink for Away {
    fn send(&mut self, datagram: &[u8]) -> Sent {
        self.0.push(datagram.to_vec());
        self.1
    }
}

#[test]
fn a_collector_that_comes_back_gets_templates() {
    let (mut exporter, mut sink) = (exporter(0, 0), Away(Vec::new(), Sent { taken: 1, failed: 1, refused: 0 }));
    let mut templates = |second: u64, outcome: Sent, exporter: &mut Exporter| {
        sink.0.clear();
        sink.1 = outcome;
        exporter.sample(sample(flow(1)), at(second), &mut sink);
        exporter.run(at(second), &mut sink);
        let mut collector = Collector { lenient: true, ..Collector::default() };
        collector.read_all(&sink.0);
        collector.templates_seen
    };
    let good = Sent { taken: 2, ..Sent::default() };
    let refused = Sent { refused: 1, ..good };
    let failed = Sent { taken: 1, failed: 1, refused: 0 };
    let seen = [failed, failed, good, good, good, refused, refused, good, good, good].map(|outcome| {
        let second = exporter.statistics().packets + 1;
        templates(second, outcome, &mut exporter)
    });
    // The first one about the exporter itself, too. Then once when the collector has come, and has come back.
    assert_eq!(seen, [2, 0, 0, 1, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn domains_have_their_own_templates_and_numbers() {
    let (mut exporter, mut sent) = (exporter(0, 0), Vec::new());
    for n in 0..10_000 {
        let flow = FlowKey { obs_domain: n % 5000, ..flow(n) };
        exporter.sample(sample(flow), at(1), &mut sent);
    }
    exporter.run(at(1), &mut sent);
    // There are more domains than are remembered; those that begin anew do so with sequence zero.
    let mut records = 0;
    for message in &sent {
        let mut collector = Collector::default();
        let domain = u32::from_be_bytes(message[12..16].try_into().unwrap());
        collector.sequences.insert(domain, u32::from_be_bytes(message[8..12].try_into().unwrap()));
        records += collector.read(message).iter().filter(|(_, id, _)| *id != OPTIONS_TEMPLATE).count();
    }
    assert_eq!(records, 10_000);
}

#[test]
fn what_is_dropped_and_what_goes_to_many() {
    let (mut exporter, mut sent) = (exporter(0, 0), Vec::new());
    let mut multicast = FlowKey { mac: MacPair { dst: [1, 0, 0x5e, 0, 0, 1], ..flow(1).mac }, ..flow(1) };
    multicast.template.direction = Direction::Egress;
    exporter.sample(sample(multicast), at(0), &mut sent);
    exporter.sample(Sample { is_forwarded: false, ..sample(flow(2)) }, at(0), &mut sent);
    exporter.run(at(0), &mut sent);
    let records = Collector::default().read_all(&sent);
    assert_eq!(number(&records[0], Element::PostMulticastPackets), 10);
    assert_eq!(number(&records[0], Element::PostMulticastOctets), 1000);
    assert_eq!(number(&records[1], Element::DroppedPackets), 10);
    assert_eq!(number(&records[1], Element::DroppedOctetsTotal), 1000);
    // Of the flow, and not of all.
    assert_eq!(number(&records[1], Element::PacketsTotal), 10);
    assert_eq!(number(&records[1], Element::IngressUnicastTotal), 10);
}

fn any_flow() -> impl Strategy<Value = FlowKey> {
    let kinds = [Kind::Vxlan, Kind::Gre, Kind::Geneve, Kind::Stt, Kind::Lisp, Kind::Other];
    let tunnel = proptest::option::of(proptest::sample::select(kinds.to_vec()));
    let types = proptest::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8847]);
    let protocols = proptest::sample::select(vec![1u8, 6, 17, 58, 132, 47]);
    (types, protocols, any::<bool>(), any::<bool>(), tunnel, any::<u32>(), "[a-z]{0,200}").prop_map(
        |(dl_type, protocol, has_tag, egress, tunnel, id, name)| {
            let mut key = Key::new();
            let common = key.common_mut();
            (common.dl_type, common.nw_proto) = (dl_type.into(), protocol);
            if has_tag {
                common.vlan[0].tci = (packet::flow::VLAN_PRESENT | 0xa005).into();
            }
            let address = Ipv4Addr::new(1, 2, 3, 4);
            let tunnel = tunnel.map(|kind| Tunnel {
                kind,
                src: address,
                dst: address,
                tos: 0,
                src_port: 1,
                dst_port: 2,
                id: id.into(),
            });
            let direction = if egress { Direction::Egress } else { Direction::Ingress };
            let interface =
                Interface { index: 1, kind: 6, name: name.as_str().into(), description: name.as_str().into() };
            FlowKey { ingress: interface.clone(), egress: interface, ..FlowKey::of(&key, direction, tunnel) }
        },
    )
}

proptest! {
    /// Each record has the length that its template says, and no template or message is too long.
    #[test]
    fn every_record_agrees_with_its_template(flows in proptest::collection::vec(any_flow(), 1..60), has_id: bool) {
        let settings = FlowIpfix { virtual_obs_id: has_id.then(|| "x".repeat(300)), ..FlowIpfix::default() };
        let (mut exporter, mut sent) = (Exporter::new(settings, 1), Vec::new());
        let n = flows.len();
        for flow in flows {
            exporter.sample(sample(flow), at(1), &mut sent);
        }
        exporter.run(at(1), &mut sent);
        prop_assert_eq!(Collector::default().read_all(&sent).len(), n);
    }
}
