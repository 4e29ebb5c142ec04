use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::datagram::IFINDEX;
use super::*;
use crate::tunnel::Kind;

fn settings() -> Sflow {
    Sflow { targets: Vec::new(), sampling: 64, polling: Duration::ZERO, header: 128, agent: None, sub_id: 0 }
}

fn agent(settings: Sflow) -> Agent {
    Agent::new(settings, Ipv4Addr::new(10, 0, 0, 1).into(), Time(0))
}

/// Does what a second asks for.
fn tick(agent: &mut Agent, is_global: bool, counters: &dyn Counters, at: Moment, sink: &mut dyn Sink) {
    if let Some(poll) = agent.poll(0, is_global, counters, at) {
        agent.polled(&poll.read(counters), at, sink);
    }
}

fn at(seconds: u64) -> Moment {
    Moment { now: Time(0) + Duration::from_secs(seconds), wall: Duration::ZERO }
}

/// Counters of `ports` interfaces, from 1 on.
struct Ports(u32);

impl Counters for Ports {
    fn ports(&self, _: u32) -> Vec<PolledPort> {
        (1..=self.0).map(|ifindex| PolledPort { ifindex, port: ifindex + 100 }).collect()
    }

    fn port(&self, _: u32, port: u32) -> Option<PortCounters> {
        Some(PortCounters { name: format!("p{port}"), ..PortCounters::default() })
    }

    fn address(&self, _: &str) -> Option<IpAddr> {
        None
    }

    fn lost_samples(&self) -> u64 {
        0
    }

    fn switch(&self) -> SwitchCounters {
        SwitchCounters { hits: 7, ..SwitchCounters::default() }
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    assert_eq!(bytes.len() % 4, 0, "XDR has whole words");
    bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

/// The samples of a datagram: tag, and words.
fn samples(datagram: &[u8]) -> Vec<(u32, Vec<u32>)> {
    let words = words(datagram);
    let mut rest = &words[7..];
    let mut found = Vec::new();
    while let [tag, len, after @ ..] = rest {
        let (sample, after) = after.split_at(*len as usize / 4);
        found.push((*tag, sample.to_vec()));
        rest = after;
    }
    assert_eq!(words[6] as usize, found.len());
    found
}

#[test]
fn a_datagram_as_the_specification_has_it() {
    let (mut agent, mut sent) = (agent(settings()), Vec::new());
    let sample = Sample {
        protocol: datagram::header_protocol(0),
        header: vec![0xaa; 14],
        frame_len: 60,
        input: 3,
        output: output(1, 4),
        src_tci: 0xa005,
        dst_tci: 0x1007,
        ..Sample::default()
    };
    agent.sample(&sample, at(0), &mut sent);
    tick(&mut agent, false, &Ports(0), at(1), &mut sent);
    let expected = [
        // Version, agent's address, sub-agent, sequence, uptime, samples.
        [5, 1, 0x0a00_0001, 0, 1, 1000, 1].as_slice(),
        // Flow sample, length, sequence, source, rate, pool, drops, input, output, records.
        &[1, 96, 1, 2 << 24 | 1000, 64, 64, 0, 3, 4, 2],
        // Raw header: length, protocol, frame with its check sequence, stripped, bytes, padded.
        &[1, 32, 1, 64, 4, 14, 0xaaaa_aaaa, 0xaaaa_aaaa, 0xaaaa_aaaa, 0xaaaa_0000],
        // Switch: VLAN and priority, in and out.
        &[1001, 16, 5, 5, 7, 0],
    ]
    .concat();
    assert_eq!(sent.len(), 1);
    assert_eq!(words(&sent[0]), expected);
}

#[test]
fn a_port_that_speaks_lacp_has_a_record_of_it() {
    let counters = PortCounters {
        lacp: Some(LacpCounters {
            actor: [2, 0, 0, 0, 0, 1],
            partner: [2, 0, 0, 0, 0, 2],
            aggregator: 3333,
            states: [7, 0xbf, 0, 2],
            rx: (5, 1),
            tx: 6,
        }),
        ..PortCounters::default()
    };
    let mut out = Vec::new();
    datagram::put_port_counters(
        &mut out,
        1,
        Source { class: IFINDEX, index: 3 },
        PolledPort { ifindex: 3, port: 9 },
        &counters,
    );
    let none = u32::MAX;
    let expected = [
        [7, 56, 0x0200_0000, 0x0001_0000, 0x0200_0000, 0x0002_0000, 3333, 0x07bf_0002].as_slice(),
        // Frames, markers, answers to markers, unknown ones, bad ones; sent: frames, markers, answers.
        &[5, none, none, none, 1, 6, none, none],
    ]
    .concat();
    assert_eq!(words(&out)[words(&out).len() - expected.len()..], expected);
}

#[test]
fn tunnels_and_labels() {
    let tunnel = Tunnel {
        kind: Kind::Vxlan,
        src: Ipv4Addr::new(1, 1, 1, 1),
        dst: Ipv4Addr::new(2, 2, 2, 2),
        tos: 4,
        src_port: 0,
        dst_port: 4789,
        id: 77,
    };
    let gre = Tunnel { kind: Kind::Gre, dst_port: 0, id: 0, ..tunnel.clone() };
    let sample =
        Sample { ingress: Some(gre), egress: Some(tunnel), mpls: vec![0x1234_5020, 0x20], ..Sample::default() };
    let (mut agent, mut sent) = (agent(settings()), Vec::new());
    agent.sample(&sample, at(0), &mut sent);
    tick(&mut agent, false, &Ports(0), at(1), &mut sent);
    let (_, sample) = samples(&sent[0]).remove(0);
    let expected = [
        [1024, 32, 0, 47, 0x0101_0101, 0x0202_0202, 0, 0, 0, 4].as_slice(),
        &[1023, 32, 0, 17, 0x0101_0101, 0x0202_0202, 0, 4789, 0, 4],
        &[1029, 4, 77],
        // The last label, and no other, is the bottom of the stack.
        &[1006, 24, 1, 0, 0, 2, 0x1234_5020, 0x120],
    ]
    .concat();
    assert_eq!(sample[7], 6, "records");
    assert_eq!(sample[8 + 6 + 6..], expected);
}

#[test]
fn where_a_packet_goes() {
    assert_eq!(output(0, 5), 0x4000_0100);
    assert_eq!(output(1, 5), 5);
    assert_eq!(output(1, 0), 0x8000_0001);
    assert_eq!(output(3, 5), 0x8000_0003);
    assert_eq!(output(1, u32::MAX), 0x8000_0001, "no number of an interface");
}

#[test]
fn no_datagram_is_too_long_and_no_sample_is_missing() {
    let (mut agent, mut sent) = (agent(Sflow { header: u16::MAX, ..settings() }), Vec::new());
    for n in 0..500 {
        let header = vec![0; n * 37 % 9000];
        agent.sample(
            &Sample { frame_len: header.len() as u32, header, mpls: vec![0; 3], ..Sample::default() },
            at(0),
            &mut sent,
        );
    }
    tick(&mut agent, false, &Ports(0), at(1), &mut sent);
    assert!(sent.iter().all(|datagram| datagram.len() <= MAX_DATAGRAM));
    let numbers: Vec<_> = sent.iter().flat_map(|datagram| samples(datagram)).map(|(_, sample)| sample[0]).collect();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
    let sequence: Vec<_> = sent.iter().map(|datagram| words(datagram)[4]).collect();
    assert_eq!(sequence, (1..=sent.len() as u32).collect::<Vec<_>>());
}

#[test]
fn lost_samples_are_told() {
    let (mut agent, mut sent) = (agent(settings()), Vec::new());
    agent.lose(9);
    agent.sample(&Sample::default(), at(0), &mut sent);
    tick(&mut agent, false, &Ports(0), at(1), &mut sent);
    assert_eq!(samples(&sent[0])[0].1[4], 9);
}

#[test]
fn the_counters_of_each_port_come_once_in_an_interval() {
    let mut agent = agent(Sflow { polling: Duration::from_secs(10), ..settings() });
    let mut seen = HashMap::new();
    for second in 1..=40 {
        let mut sent = Vec::new();
        tick(&mut agent, true, &Ports(100), at(second), &mut sent);
        let sources: Vec<_> = sent.iter().flat_map(|datagram| samples(datagram)).map(|(_, s)| (s[1], s[0])).collect();
        assert!(sources.len() <= 11, "they are spread: {}", sources.len());
        for (source, number) in sources {
            let count = seen.entry(source).or_insert(0);
            *count += 1;
            assert_eq!(number, *count, "samples of a source are numbered");
        }
    }
    assert_eq!(seen.len(), 101);
    assert!(seen.values().all(|&n| n == 4), "{seen:?}");
}

#[test]
fn the_first_counters_come_soon() {
    let mut agent = agent(Sflow { polling: Duration::from_secs(1), ..settings() });
    let first = agent.next();
    assert!(first < at(1).now);
    for n in 0..3 {
        let mut sent = Vec::new();
        let now = first + Duration::from_secs(n);
        assert_eq!(agent.next(), now);
        tick(&mut agent, false, &Ports(3), Moment { now, wall: Duration::ZERO }, &mut sent);
        assert_eq!(sent.iter().flat_map(|datagram| samples(datagram)).count(), 3);
    }
}

#[test]
fn a_long_pause_is_one_tick() {
    let mut agent = agent(Sflow { polling: Duration::from_secs(1), ..settings() });
    let mut sent = Vec::new();
    tick(&mut agent, false, &Ports(3), at(1000), &mut sent);
    assert_eq!(sent.iter().flat_map(|datagram| samples(datagram)).count(), 3);
    assert!(agent.next() > at(1000).now && agent.next() <= at(1001).now);
    tick(&mut agent, false, &Ports(3), at(1000), &mut sent);
    assert_eq!(sent.len(), 1);
}

fn any_tunnel() -> impl Strategy<Value = Option<Tunnel>> {
    let kinds = proptest::sample::select(vec![Kind::Other, Kind::Vxlan, Kind::Gre, Kind::Geneve]);
    let tunnel = (kinds, any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u8>(), any::<(u16, u16)>(), any::<u32>());
    proptest::option::of(tunnel.prop_map(|(kind, src, dst, tos, (src_port, dst_port), id)| Tunnel {
        kind,
        src: src.into(),
        dst: dst.into(),
        tos,
        src_port,
        dst_port,
        id: id.into(),
    }))
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let header = proptest::collection::vec(any::<u8>(), 0..1500);
    let mpls = proptest::collection::vec(any::<u32>(), 0..4);
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>());
    (header, mpls, numbers, any_tunnel(), any_tunnel()).prop_map(
        |(header, mpls, (frame_len, input, output, src_tci, dst_tci), ingress, egress)| Sample {
            bridge: 0,
            protocol: datagram::header_protocol(0),
            header,
            frame_len,
            input,
            output,
            src_tci,
            dst_tci,
            ingress,
            egress,
            mpls,
        },
    )
}

/// The records of a flow sample, by tag.
fn records(sample: &[u32]) -> HashMap<u32, Vec<u32>> {
    let mut found = HashMap::new();
    let mut rest = &sample[8..];
    while let [tag, len, after @ ..] = rest {
        let (record, after) = after.split_at(*len as usize / 4);
        assert!(found.insert(*tag, record.to_vec()).is_none(), "one of each");
        rest = after;
    }
    assert_eq!(found.len(), sample[7] as usize);
    found
}

fn of_tunnel(tunnel: &Tunnel) -> Vec<u32> {
    let (src, dst) = (u32::from(tunnel.src), u32::from(tunnel.dst));
    let ports = [tunnel.src_port.into(), tunnel.dst_port.into()];
    vec![0, tunnel.kind.ip_protocol().into(), src, dst, ports[0], ports[1], 0, tunnel.tos.into()]
}

proptest! {
    /// What a plain decoder reads is what was put: every word of every sample.
    #[test]
    fn datagrams_are_read_back(wanted in proptest::collection::vec(any_sample(), 1..30), header in 0..2000u16) {
        let (mut agent, mut sent) = (agent(Sflow { header, ..settings() }), Vec::new());
        for sample in &wanted {
            agent.sample(sample, at(0), &mut sent);
        }
        agent.flush(at(0), &mut sent);
        prop_assert!(sent.iter().all(|datagram| datagram.len() <= MAX_DATAGRAM));
        let found: Vec<_> = sent.iter().flat_map(|datagram| samples(datagram)).collect();
        prop_assert_eq!(found.len(), wanted.len());
        for (n, ((tag, found), sample)) in found.iter().zip(&wanted).enumerate() {
            let n = n as u32 + 1;
            prop_assert_eq!(*tag, 1);
            prop_assert_eq!(&found[..7], &[n, 2 << 24 | 1000, 64, 64 * n, 0, sample.input, sample.output]);
            let mut records = records(found);
            let raw = records.remove(&1).unwrap();
            let bytes: Vec<u8> = raw[4..].iter().flat_map(|word| word.to_be_bytes()).collect();
            let len = sample.header.len().min(header.into()).min(MAX_HEADER);
            prop_assert_eq!(&raw[..4], &[1, sample.frame_len.saturating_add(4), 4, len as u32]);
            prop_assert_eq!(&bytes[..len], &sample.header[..len]);
            prop_assert!(bytes.len() - len < 4 && bytes[len..].iter().all(|&byte| byte == 0));
            let tags = [sample.src_tci, sample.dst_tci].map(|tci| [u32::from(tci & 0xfff), u32::from(tci >> 13)]);
            prop_assert_eq!(records.remove(&1001).unwrap(), tags.concat());
            for (tunnel, tag, vni) in [(&sample.ingress, 1024, 1030), (&sample.egress, 1023, 1029)] {
                prop_assert_eq!(records.remove(&tag), tunnel.as_ref().map(of_tunnel));
                let id = tunnel.as_ref().filter(|tunnel| tunnel.id != 0).map(|tunnel| vec![tunnel.id as u32]);
                prop_assert_eq!(records.remove(&vni), id);
            }
            let mpls = records.remove(&1006).map(|mpls| mpls[4..].iter().map(|label| label & !0x100).collect::<Vec<_>>());
            let labels = sample.mpls.iter().map(|label| label & !0x100).collect::<Vec<_>>();
            prop_assert_eq!(mpls.unwrap_or_default(), labels);
            prop_assert!(records.is_empty());
        }
    }
}
