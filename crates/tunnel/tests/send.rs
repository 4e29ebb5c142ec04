//! From a port and metadata to a packet, and from the packet to the same metadata.

use std::net::IpAddr;

use packet::flow::{Key as FlowKey, tun_flags};
use packet::wire::ethertype;
use proptest::prelude::*;
use tunnel::config::{Config, Kind};
use tunnel::header::{GTPU_PACKET, Payload, Unwritable};
use tunnel::metadata::{Metadata, RawOptions};
use tunnel::outer::{Each, Prepared, Verify, decapsulate};
use tunnel::send::{Inner, SourcePorts, fill, header, outer, protocol};

const ALL: Verify = Verify { ip: true, transport: true };
const SRC: [u8; 4] = [192, 0, 2, 1];
const DST: [u8; 4] = [192, 0, 2, 2];

fn config(kind: Kind, text: &str) -> Config {
    Config::parse(kind, text.split_whitespace().map(|option| option.split_once('=').unwrap())).unwrap().0
}

/// A packet from its outer IP header on.
fn send(
    config: &Config,
    metadata: &Metadata,
    payload: Payload,
    each: &Each,
    data: &[u8],
) -> Result<Vec<u8>, Unwritable> {
    let outer = outer(config, metadata, Some(SRC.into())).ok_or(Unwritable::Range)?;
    let prepared = Prepared::new(&[], &outer, protocol(config).unwrap(), &header(config, metadata, payload)?)?;
    let mut packet = vec![0; prepared.len()];
    packet.extend(data);
    assert!(prepared.write(&mut packet, each));
    Ok(packet)
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let ends = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|[src, dst]| (IpAddr::from(src), IpAddr::from(dst))),
        any::<[[u8; 16]; 2]>().prop_map(|[src, dst]| (IpAddr::from(src), IpAddr::from(dst))),
    ]
    .prop_filter("none", |(src, dst)| !src.is_unspecified() && !dst.is_unspecified());
    let gbp = (any::<u16>(), prop::sample::select(vec![0u8, 0x40, 0x08, 0x48]));
    let erspan = (1u8..3, 0u32..1 << 20, 0u8..2, 0u8..64);
    let gtpu = (prop::sample::select(vec![0x30u8, 0x32, 0x33]), prop::sample::select(vec![1u8, 254, GTPU_PACKET]));
    let options = prop::collection::vec((any::<u16>(), any::<u8>(), any::<[u8; 8]>()), 0..8).prop_map(|options| {
        let bytes: Vec<u8> = options
            .iter()
            .flat_map(|(class, kind, value)| [&class.to_be_bytes()[..], &[*kind, 2], value].concat())
            .collect();
        RawOptions::new(&bytes).unwrap()
    });
    (any::<u64>(), ends, gbp, erspan, gtpu, options, any::<bool>()).prop_map(
        |(tun_id, (src, dst), gbp, erspan, gtpu, options, oam)| Metadata {
            tun_id,
            src: Some(src),
            dst: Some(dst),
            flags: if oam { tun_flags::OAM } else { 0 },
            gbp_id: gbp.0,
            gbp_flags: gbp.1,
            erspan_ver: erspan.0,
            erspan_idx: erspan.1,
            erspan_dir: erspan.2,
            erspan_hwid: erspan.3,
            gtpu_flags: gtpu.0,
            gtpu_msgtype: gtpu.1,
            options,
            ..Metadata::EMPTY
        },
    )
}

/// What of the metadata a packet of this kind can tell, with what is payload.
fn expected(config: &Config, sent: &Metadata, source_port: u16) -> Metadata {
    let is_v6 = sent.dst.is_some_and(|dst| dst.is_ipv6());
    let mut all = Metadata { src: sent.src, dst: sent.dst, tos: sent.tos, ttl: sent.ttl, ..Metadata::EMPTY };
    let keep = |flags: u16| sent.flags & flags;
    // Whether routers may fragment the outer packet is of no interest to who receives it.
    let is_udp = protocol(config).unwrap().ip_proto() == 17;
    if is_udp {
        all.ports = (source_port, config.dst_port);
        all.flags |= keep(tun_flags::CSUM);
        if is_v6 || config.kind == Kind::Gtpu {
            all.flags |= tun_flags::CSUM;
        }
    }
    match config.kind {
        Kind::Vxlan => {
            all.flags |= tun_flags::KEY;
            all.tun_id = sent.tun_id & 0xff_ffff;
            if config.group_policy && !config.protocol_extension {
                (all.gbp_id, all.gbp_flags) = (sent.gbp_id, sent.gbp_flags);
            }
        }
        Kind::Geneve => {
            all.flags |= tun_flags::KEY | keep(tun_flags::OAM);
            all.tun_id = sent.tun_id & 0xff_ffff;
            all.options = sent.options;
        }
        Kind::Gre | Kind::Ip6gre => {
            all.flags |= keep(tun_flags::KEY | tun_flags::CSUM);
            all.tun_id = sent.tun_id & 0xffff_ffff;
        }
        Kind::Erspan | Kind::Ip6erspan => {
            all.flags |= tun_flags::KEY;
            all.tun_id = sent.tun_id;
            all.erspan_ver = sent.erspan_ver;
            match sent.erspan_ver {
                1 => all.erspan_idx = sent.erspan_idx,
                _ => (all.erspan_dir, all.erspan_hwid) = (sent.erspan_dir, sent.erspan_hwid),
            }
        }
        Kind::Lisp => {
            all.flags |= tun_flags::KEY;
            all.tun_id = sent.tun_id & 0xff_ffff;
        }
        Kind::Bareudp | Kind::Srv6 => {}
        Kind::Gtpu => {
            all.tun_id = sent.tun_id & 0xffff_ffff;
            (all.gtpu_flags, all.gtpu_msgtype) = (sent.gtpu_flags, sent.gtpu_msgtype);
        }
    }
    all
}

proptest! {
    #[test]
    fn what_is_sent_is_received(
        metadata in metadata(),
        (kind, more) in prop::sample::select(vec![
            (Kind::Vxlan, ""), (Kind::Vxlan, " exts=gbp"), (Kind::Vxlan, " exts=gpe"), (Kind::Geneve, " dst_port=99"),
            (Kind::Gre, ""), (Kind::Gre, " seq=true"), (Kind::Ip6gre, ""), (Kind::Gtpu, ""),
            (Kind::Erspan, " erspan_ver=flow"), (Kind::Ip6erspan, " erspan_ver=flow"), (Kind::Lisp, ""),
            (Kind::Bareudp, " dst_port=6635 payload_type=ip"), (Kind::Srv6, " srv6_flowlabel=compute"),
        ]),
        is_keyed: bool,
        checksum: bool,
        dont_fragment: bool,
        is_packet: bool,
        hash: u32,
        inner in prop::option::of((any::<u8>(), any::<u8>()).prop_map(|(tos, ttl)| Inner { tos, ttl })),
    ) {
        let is_erspan = matches!(kind, Kind::Erspan | Kind::Ip6erspan);
        let mut text = format!("remote_ip=flow local_ip=flow tos=inherit ttl=inherit df_default={dont_fragment}{more}");
        if is_keyed || kind != Kind::Gre && kind != Kind::Ip6gre {
            text += " key=flow";
        }
        if checksum && matches!(kind, Kind::Vxlan | Kind::Geneve | Kind::Gre | Kind::Ip6gre) {
            text += " csum=true";
        }
        let config = config(kind, &text);
        let mut metadata = metadata;
        if is_erspan {
            metadata.tun_id &= 0x3ff;
        }
        if kind == Kind::Srv6 {
            let v6 = |address: Option<IpAddr>| match address {
                Some(IpAddr::V4(address)) => Some(address.to_ipv6_mapped().into()),
                other => other,
            };
            (metadata.src, metadata.dst) = (v6(metadata.src), v6(metadata.dst));
        }
        let sent = fill(&config, &metadata, inner);
        let payload = match kind {
            Kind::Gtpu | Kind::Lisp | Kind::Bareudp | Kind::Srv6 => Payload::Packet(ethertype::IPV4),
            Kind::Gre if is_packet => Payload::Packet(ethertype::IPV6),
            Kind::Vxlan if is_packet && config.protocol_extension => Payload::Packet(ethertype::IPV4),
            _ => Payload::Ethernet,
        };
        let source_port = SourcePorts::default().of(hash);
        let each = Each { source_port, ..Each::default() };
        let data = [0x45; 30];
        let packet = send(&config, &sent, payload, &each, &data).unwrap();
        let received = decapsulate(&packet, protocol(&config).unwrap(), ALL).unwrap();
        let (seen, inside) = Metadata::of(&received);
        prop_assert_eq!(seen, expected(&config, &sent, source_port));
        let is_message = kind == Kind::Gtpu && metadata.gtpu_msgtype != GTPU_PACKET;
        prop_assert_eq!(inside, if is_message { Payload::Message } else { payload });
        prop_assert_eq!(&packet[received.start..received.end], &data[..]);
        // A flow key holds all but ports and options.
        let mut key = FlowKey::default();
        seen.store(&mut key);
        let stored = Metadata { ports: (0, 0), options: RawOptions::EMPTY, ..seen };
        prop_assert_eq!(Metadata::load(&key), stored);
    }

    #[test]
    fn source_ports_are_in_their_range(one in 1u16.., other in 1u16.., hash: u32) {
        let ports = SourcePorts::new(one, other);
        let (min, max) = ports.range();
        prop_assert_eq!((min, max), (one.min(other), one.max(other)));
        prop_assert!((min..=max).contains(&ports.of(hash)));
    }
}

#[test]
fn the_port_completes_what_the_flow_has_set() {
    let flow = Metadata {
        tun_id: 7,
        src: Some([9, 9, 9, 9].into()),
        dst: Some([8, 8, 8, 8].into()),
        tos: 0xff,
        ttl: 3,
        flags: tun_flags::OAM | tun_flags::CSUM | tun_flags::KEY,
        erspan_ver: 2,
        erspan_idx: 5,
        ..Metadata::EMPTY
    };
    let inner = Some(Inner { tos: 0x2a | 1, ttl: 17 });
    let with = |kind, text: &str, inner| fill(&config(kind, text), &flow, inner);
    let plain = with(Kind::Gre, "remote_ip=1.1.1.1", inner);
    assert_eq!((plain.src, plain.dst, plain.tun_id), (None, Some([1, 1, 1, 1].into()), 0));
    // The mark of congestion is always that of the inner packet.
    assert_eq!((plain.tos, plain.ttl, plain.flags), (3, 64, tun_flags::OAM | tun_flags::DF));
    assert_eq!(with(Kind::Gre, "remote_ip=1.1.1.1", None).tos, 0);
    let inherits = "remote_ip=flow local_ip=2.2.2.2 key=5 tos=inherit ttl=inherit csum=true df_default=false";
    let inherited = with(Kind::Gre, inherits, inner);
    assert_eq!((inherited.src, inherited.dst), (Some([2, 2, 2, 2].into()), flow.dst));
    assert_eq!((inherited.tos, inherited.ttl, inherited.tun_id), (0x2b, 17, 5));
    assert_eq!(inherited.flags, tun_flags::OAM | tun_flags::CSUM | tun_flags::KEY);
    let without = with(Kind::Gre, inherits, None);
    assert_eq!((without.tos, without.ttl), (0, 64));
    let fixed = with(Kind::Vxlan, "remote_ip=1.1.1.1 tos=0x10 ttl=5 out_key=flow dst_port=9", inner);
    assert_eq!((fixed.tos, fixed.ttl, fixed.tun_id, fixed.ports), (0x13, 5, 7, (0, 9)));
    let erspan = with(Kind::Erspan, "remote_ip=1.1.1.1 erspan_ver=1 erspan_idx=flow", None);
    assert_eq!((erspan.erspan_ver, erspan.erspan_idx), (1, 5));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let to = |text: &str| format!("remote_ip=192.0.2.2 {text}");
    let metadata = Metadata { tun_id: 0x400, dst: Some(DST.into()), ..Metadata::EMPTY };
    let refused = |kind, text: &str, payload| {
        let config = config(kind, &to(text));
        header(&config, &fill(&config, &metadata, None), payload).map(|_| ())
    };
    let packet = Payload::Packet(ethertype::IPV4);
    assert_eq!(refused(Kind::Vxlan, "", packet), Err(Unwritable::Payload));
    assert_eq!(refused(Kind::Erspan, "erspan_ver=1", packet), Err(Unwritable::Payload));
    assert_eq!(refused(Kind::Erspan, "", Payload::Ethernet), Err(Unwritable::Range));
    let sent = |kind, text: &str, payload| {
        let config = config(kind, text);
        let metadata = fill(&config, &metadata, None);
        let outer =
            outer(&config, &metadata, Some(if config.kind == Kind::Srv6 { [1; 16].into() } else { SRC.into() }));
        Prepared::new(&[], &outer.unwrap(), protocol(&config).unwrap(), &header(&config, &metadata, payload)?)
            .map(|prepared| prepared.len())
    };
    let (frame, mpls) = (Payload::Ethernet, Payload::Packet(ethertype::MPLS));
    assert_eq!(sent(Kind::Lisp, &to(""), packet), Ok(36));
    assert_eq!(sent(Kind::Lisp, &to(""), frame), Err(Unwritable::Payload));
    assert_eq!(sent(Kind::Bareudp, &to("payload_type=mpls"), mpls), Ok(28));
    assert_eq!(sent(Kind::Bareudp, &to("payload_type=mpls"), packet), Err(Unwritable::Payload));
    assert_eq!(protocol(&config(Kind::Bareudp, &to(""))), None, "nothing says what it carries");
    let path = "remote_ip=fd00::2 srv6_segs=fd00::2,fd00::3";
    assert_eq!(sent(Kind::Srv6, path, packet), Ok(40 + 8 + 2 * 16));
    assert_eq!(sent(Kind::Srv6, "remote_ip=fd00::2", packet), Ok(40 + 8 + 16));
    assert_eq!(sent(Kind::Srv6, path, mpls), Err(Unwritable::Payload));
    // The path begins elsewhere.
    assert_eq!(sent(Kind::Srv6, "remote_ip=fd00::1 srv6_segs=fd00::2", packet), Err(Unwritable::Range));
    // A session of more than 10 bits: noticed when the header is written.
    let erspan = config(Kind::Erspan, &to("key=flow erspan_ver=1"));
    let sent = fill(&erspan, &metadata, None);
    assert_eq!(send(&erspan, &sent, Payload::Ethernet, &Each::default(), &[0; 20]), Err(Unwritable::Range));
    let v6 = Some([1u8; 16].into());
    assert_eq!(outer(&erspan, &sent, v6), None);
    assert_eq!(outer(&erspan, &sent, None), None);
    assert_eq!(outer(&erspan, &Metadata { dst: None, ..sent }, Some(SRC.into())), None);
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// What scapy 2.5 has made of the same settings, byte for byte.
#[test]
fn packets_are_as_others_make_them() {
    let data = from_hex("02000000000202000000000188b5abababababababababababababababababababab");
    let options = RawOptions::new(&[1, 2, 0x80, 1, 1, 2, 3, 4]).unwrap();
    let flow = Metadata { gbp_id: 0x1234, gbp_flags: 0x48, options, ..Metadata::EMPTY };
    for (kind, text, hex) in [
        (
            Kind::Vxlan,
            "key=0x123456 csum=true",
            "45000046000100004011f6a2c0000201c0000202c35012b50032f3de0800000012345600",
        ),
        (Kind::Vxlan, "key=7 exts=gbp", "45000046000100004011f6a2c0000201c0000202c35012b5003200008848123400000700"),
        (
            Kind::Geneve,
            "key=0x123456 csum=true",
            "4500004e000100004011f69ac0000201c0000202c35017c1003a0a2102406558123456000102800101020304",
        ),
        (
            Kind::Gre,
            "key=0x1020304 csum=true seq=true",
            "4500004600010000402ff684c0000201c0000202b0006558a52a00000102030400000009",
        ),
        (
            Kind::Erspan,
            "key=5 erspan_ver=1 erspan_idx=4d",
            "4500004600010000402ff684c0000201c0000202100088be00000009100000050000004d",
        ),
        (
            Kind::Erspan,
            "key=5 erspan_ver=2 erspan_dir=1 erspan_hwid=9",
            "4500004a00010000402ff680c0000201c0000202100022eb00000009200000050102030400000098",
        ),
    ] {
        let config = config(kind, &format!("remote_ip=192.0.2.2 df_default=false {text}"));
        let each = Each { id: 1, source_port: 50_000, sequence: 9, timestamp: 0x0102_0304, ..Each::default() };
        let sent = fill(&config, &flow, None);
        let packet = send(&config, &sent, Payload::Ethernet, &each, &data).unwrap();
        assert_eq!(packet, [from_hex(hex), data.clone()].concat(), "{kind:?} {text}");
    }
}
