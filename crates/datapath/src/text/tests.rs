//! Lines that OVS 3.1's own tests (tests/odp.at) accept and print unchanged, and random lines.

use std::sync::Arc;

use packet::Field;
use packet::flow::text::{NoNames, PortNames};
use packet::flow::{Key, Mask, tun_flags};
use packet::wire::nsh::{Metadata, Repr};
use proptest::prelude::*;

use super::*;
use crate::action::{HashAlgorithm, Kept, PacketInPunt, PortNo, Punt, Rewrite};
use crate::drop::DropReason;

fn round_key(text: &str) -> String {
    let (key, mask) = parse_key(text, &NoNames).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut out = String::new();
    format_key(&mut out, &key, &mask, &Context::default());
    out
}

fn round_actions(text: &str, flow: &Key) -> String {
    let actions = parse_actions(text, &NoNames).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut out = String::new();
    format_actions(&mut out, &actions, flow, &Context::default());
    out
}

/// The key that a flow's text says.
fn flow(text: &str) -> Key {
    parse_key(text, &NoNames).unwrap().0
}

fn push_nsh() -> impl Strategy<Value = Action> {
    let words = prop::collection::vec(any::<[u8; 4]>(), 0..=61).prop_map(|words| Metadata::Options(words.concat()));
    let metadata = prop_oneof![any::<[u32; 4]>().prop_map(Metadata::Fixed), words];
    (0..4u8, 0..64u8, any::<u8>(), any::<u32>(), metadata).prop_map(|(flags, ttl, next, path, metadata)| {
        Action::PushNsh(Arc::new(Repr { flags, ttl, next, path, metadata }))
    })
}

#[test]
fn keys_print_as_they_are_read() {
    let eth = "in_port(1),eth(src=00:01:02:03:04:05,dst=10:11:12:13:14:15)";
    let bodies = [
        "",
        ",eth_type(0x1234/0xfff0)",
        ",eth_type(0x0800),ipv4(src=35.8.2.41/255.255.255.0,dst=172.16.0.20/255.255.255.0,proto=5/0xf0,tos=0x80/0xf0,\
         ttl=128/0xf0,frag=no)",
        ",eth_type(0x0800),ipv4(src=35.8.2.41,dst=172.16.0.20,proto=6,tos=0,ttl=128,frag=no),tcp(src=80/0xff00,\
         dst=8080/0xff)",
        ",eth_type(0x0800),ipv4(src=35.8.2.41,dst=172.16.0.20,proto=6,tos=0,ttl=128,frag=first),tcp(src=80),\
         tcp_flags(+syn-ack)",
        ",eth_type(0x0800),ipv4(proto=6,frag=no),tcp_flags(syn|ack)",
        ",eth_type(0x0800),ipv4(src=35.8.2.41,dst=172.16.0.20,proto=17,tos=0,ttl=128,frag=no),udp(src=81/0xff00,\
         dst=6632/0xff)",
        ",eth_type(0x0800),ipv4(src=35.8.2.41,proto=132,frag=later)",
        ",eth_type(0x0800),ipv4(proto=1,frag=no),icmp(type=1/0xf0,code=2)",
        ",eth_type(0x86dd),ipv6(src=::1/::255,dst=::2/::255,label=0/0xf0,proto=10/0xf0,tclass=0x70/0xf0,\
         hlimit=128/0xf0,frag=no)",
        ",eth_type(0x86dd),ipv6(src=::1,dst=::2,label=0,proto=58,tclass=0,hlimit=128,frag=no),icmpv6(type=136,code=0),\
         nd(target=::3/::250,sll=00:05:06:07:08:09/ff:ff:ff:ff:ff:00,tll=00:0a:0b:0c:0d:0e/ff:ff:ff:ff:ff:00)",
        ",eth_type(0x86dd),ipv6(proto=58,frag=no),icmpv6(type=136,code=0),nd(target=::3),nd_ext(nd_reserved=0x0,\
         nd_options_type=2)",
        ",eth_type(0x0806),arp(sip=1.2.3.4/255.255.255.250,tip=5.6.7.8/255.255.255.250,op=1/0xf0,\
         sha=00:0f:10:11:12:13/ff:ff:ff:ff:ff:00,tha=00:14:15:16:17:18/ff:ff:ff:ff:ff:00)",
        ",eth_type(0x8847),mpls(label=100/0xff,tc=7/7,ttl=64/0xff,bos=1/1)",
        ",eth_type(0x8848),mpls(label=1000,tc=4,ttl=200,bos=0,label=5,tc=0,ttl=1,bos=1)",
    ];
    let headers = [
        "",
        "skb_priority(0x1234/0xff),",
        "skb_mark(0x1234/0xfff0),",
        "skb_priority(0x1234),tunnel(tun_id=0xfedcba9876543210,src=10.0.0.1,dst=10.0.0.2,tos=0x8,ttl=128,flags(key)),",
        "tunnel(tun_id=0x7f10354/0xff,src=10.10.10.10/255.255.255.0,dst=20.20.20.20/255.255.255.0,ttl=64,\
         vxlan(gbp(id=10/0xff,flags=0xb)),flags(oam|csum|key)),",
        "tunnel(tun_id=0x7f10354/0xff,src=10.10.10.10/255.255.255.0,dst=20.20.20.20/255.255.255.0,ttl=64,\
         geneve({class=0,type=0,len=4,0xa/0xff}{class=0xffff,type=0x1,len=4,0xffffffff}),flags(csum|key)),",
        "tunnel(tun_id=0x7b,src=1.1.2.92,dst=1.1.2.88,geneve(),flags(-df-csum+key)),",
        "tunnel(tun_id=0x1,src=10.0.0.1,dst=10.0.0.2,ttl=128,gtpu(flags=0x30,msgtype=255),flags(df|key)),",
        "tunnel(tun_id=0x0,ipv6_src=fe80::1,ipv6_dst=fe80::2,ttl=64,flags(-df+csum+key)),",
        "tunnel(tun_id=0x1,src=10.0.0.1,dst=10.0.0.2,ttl=128,erspan(ver=2,dir=1,hwid=0x7/0xf),flags(df|key)),",
        "ct_state(-new+est+trk),ct_zone(0x5/0xff),ct_mark(0x10305070/0xf0f0f0f0),\
         ct_label(0x1234567890abcdef1234567890abcdef/0x102030405060708090a0b0c0d0e0f0),",
        "recirc_id(0x12),dp_hash(0x5/0xf),",
    ];
    for head in headers {
        for body in bodies {
            // The masks of these hide parts of some values, which a key does not keep.
            let text = format!("{head}{eth}{body}");
            let text = round_key(&text);
            assert_eq!(round_key(&text), text);
        }
    }
    for exact in [0, 2, 4, 5, 12, 13, 14] {
        let text = format!("{}{eth}{}", headers[3], bodies[exact]);
        let masked = ["/255.255.255.250", "/0xf0", "label=100/0xff"].iter().any(|part| text.contains(part));
        if !masked {
            assert_eq!(round_key(&text), text);
        }
    }
}

/// As in OVS, a key shows of a tunnel what the packet has.
#[test]
fn tunnels_show_what_they_have() {
    let text = |given: &str| {
        let (key, mask) = super::parse_given(given, &NoNames).unwrap();
        let mut out = String::new();
        super::format_key(&mut out, &key, &mask, &Context::default());
        out
    };
    let eth = ",in_port(1),eth(),eth_type(0x0800)";
    let given = format!("tunnel(src=3.3.3.200/255.255.255.0,dst=1.1.1.1,ttl=64,tp_src=1,tp_dst=123){eth}");
    assert_eq!(text(&given), given);
    assert_eq!(
        text(&format!("tunnel(tun_id=0,src=1.1.1.1,tos=0,tp_dst=0,flags(-df)){eth}")),
        format!("tunnel(src=1.1.1.1,flags(-df)){eth}")
    );
    assert_eq!(
        text(&format!("tunnel(tun_id=0,src=1.1.1.1,flags(key)){eth}")),
        format!("tunnel(tun_id=0x0,src=1.1.1.1,flags(key)){eth}")
    );
    // That it had no Ethernet is its type, and no flag.
    let (mut key, mask) = super::parse_key("tunnel(src=1.1.1.1,flags(key)),in_port(1)", &NoNames).unwrap();
    key.tunnel_mut().tun_flags = (tun_flags::KEY | tun_flags::BARE).into();
    let mut out = String::new();
    super::format_key(&mut out, &key, &mask, &Context::default());
    assert!(out.contains("flags(key)"), "{out}");
    let (key, mask) = super::parse_key("tunnel(src=1.1.1.1,flags()),in_port(1)", &NoNames).unwrap();
    assert_eq!((key.tunnel().tun_flags.get(), mask.0.tunnel().tun_flags.get()), (0, 0xf));
}

#[test]
fn headers_of_ethernet_that_are_given() {
    let mut out = String::new();
    let push = Action::PushEthernet { src: [0; 6], dst: [2, 0, 0, 0, 0, 0x1f] };
    super::format_actions(&mut out, &[push, Action::Output(PortNo(1))], &Key::new(), &Context::default());
    assert_eq!(out, "push_eth(src=00:00:00:00:00:00,dst=02:00:00:00:00:1f),1");
}

#[test]
fn sections_that_the_mask_hides() {
    let cases = [
        // A dump of an L2 flow.
        (
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth(src=50:54:00:00:00:09),eth_type(0x0800),ipv4(frag=no)",
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth(src=50:54:00:00:00:09),eth_type(0x0800),ipv4(frag=no)",
        ),
        // Without a packet type, an Ethernet section says what the packet is.
        ("in_port(1),eth(),eth_type(0x1234)", "in_port(1),eth(),eth_type(0x1234)"),
        (
            "in_port(1),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=99,pcp=7),encap(eth_type(0x0806),arp(op=1/0xff))",
            "in_port(1),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=99,pcp=7),encap(eth_type(0x0806),arp(op=1/0xff))",
        ),
        // The opcode's mask covers the eight bits that a key holds.
        ("eth(),eth_type(0x0806),arp(op=2)", "eth(),eth_type(0x0806),arp(op=2/0xff)"),
        (
            "packet_type(ns=0,id=0),eth_type(0x88a8),vlan(vid=1),encap(eth_type(0x8100),vlan(vid=2/0xff0),\
             encap(eth_type(0x0800),ipv4(tos=0/0x3,frag=no)))",
            "packet_type(ns=0,id=0),eth_type(0x88a8),vlan(vid=1,pcp=0/0x0),encap(eth_type(0x8100),\
             vlan(vid=0/0xff0,pcp=0/0x0),encap(eth_type(0x0800),ipv4(tos=0/0x3,frag=no)))",
        ),
        ("packet_type(ns=0,id=0),eth_type(0/0xffff)", "packet_type(ns=0,id=0),eth_type(0/0xffff)"),
        (
            "packet_type(ns=1,id=0x800),eth_type(0x0800),ipv4(frag=no)",
            "packet_type(ns=1,id=0x800),eth_type(0x0800),ipv4(frag=no)",
        ),
        (
            "eth_type(0x0800),ct_tuple4(src=10.10.10.10,dst=20.20.20.20,proto=17,tp_src=1,tp_dst=2),eth()",
            "ct_tuple4(src=10.10.10.10,dst=20.20.20.20,proto=17,tp_src=1,tp_dst=2),eth(),eth_type(0x0800)",
        ),
    ];
    for (text, expected) in cases {
        let expected = expected.replace(",pcp=0/0x0", "");
        assert_eq!(round_key(text), expected);
    }
}

#[test]
fn actions_print_as_they_are_read() {
    let tcp = flow("eth_type(0x0800),ipv4(proto=6)");
    let udp = flow("eth_type(0x0800),ipv4(proto=17)");
    let sctp = flow("eth_type(0x86dd),ipv6(proto=132)");
    let icmp = flow("eth_type(0x0800),ipv4(proto=1)");
    let icmpv6 = flow("eth_type(0x86dd),ipv6(proto=58)");
    let arp = flow("eth_type(0x0806)");
    let cases = [
        (&tcp, "1,2,3"),
        (&tcp, "drop"),
        (&tcp, "set(eth(src=00:01:02:03:04:05,dst=10:11:12:13:14:15))"),
        (&tcp, "set(eth(src=00:01:02:03:04:05,dst=10:11:12:00:00:00/ff:ff:ff:00:00:00)),1"),
        (&tcp, "set(ipv4(src=35.8.2.41,dst=172.16.0.20,proto=5,tos=0x80,ttl=128,frag=no))"),
        (&tcp, "set(ipv4(src=35.8.2.0/255.255.255.0,tos=0x80,ttl=128))"),
        (&tcp, "set(ipv4(tos=0/0x3))"),
        (&tcp, "set(ipv4(tos=0x80/0xfc))"),
        (&tcp, "set(tcp(src=80,dst=8080))"),
        (&udp, "set(udp(src=81,dst=6632))"),
        (&udp, "set(udp(dst=6633))"),
        (&sctp, "set(sctp(src=82))"),
        (&icmp, "set(icmp(type=1,code=2))"),
        (&icmpv6, "set(icmpv6(type=1,code=2))"),
        (&icmpv6, "set(ipv6(src=::1,dst=::2))"),
        (&icmpv6, "set(ipv6(label=0,proto=10,tclass=0x70,hlimit=128))"),
        (&icmpv6, "set(nd(target=::3,sll=00:05:06:07:08:09))"),
        (&arp, "set(arp(sip=1.2.3.4,op=2/0xff,tha=00:14:15:16:17:18))"),
        (&tcp, "set(vlan(vid=3,pcp=5)),3"),
        (&tcp, "push_vlan(vid=12,pcp=0)"),
        (&tcp, "push_vlan(tpid=0x9100,vid=13,pcp=5)"),
        (&tcp, "pop_vlan"),
        (&tcp, "push_mpls(label=200,tc=7,ttl=64,bos=1,eth_type=0x8847)"),
        (&tcp, "pop_mpls(eth_type=0x800)"),
        (&tcp, "set(skb_mark(0x5)),set(eth(src=00:01:02:03:04:05)),recirc(0x1)"),
        (&tcp, "set(tunnel(tun_id=0xabcdef1234567890,src=1.1.1.1,dst=2.2.2.2,ttl=64,flags(df|csum|key)))"),
        (&tcp, "hash(l4(5)),recirc(0x12)"),
        (&tcp, "trunc(100),3"),
        (&tcp, "clone(1)"),
        (&tcp, "clone(clone(push_vlan(vid=12,pcp=0),2),1)"),
        (&tcp, "clone(drop),4"),
        (&tcp, "set(nsh(flags=2,ttl=63,spi=0x123456,si=254,c1=0x44332211))"),
        (&tcp, "check_pkt_len(size=200,gt(2,set(tcp(dst=80)),4),le(drop))"),
        (
            &tcp,
            "userspace(pid=0,controller(reason=2,dont_send=0,continuation=1,recirc_id=7,rule_cookie=0xffffffffffffffff,\
             controller_id=3,max_len=65535))",
        ),
    ];
    for (flow, text) in cases {
        assert_eq!(round_actions(text, flow), text);
    }
}

#[test]
fn a_packet_in_is_read_as_it_is_shown() {
    let text = "userspace(pid=0,controller(reason=1,dont_send=0,continuation=0,recirc_id=4,rule_cookie=0x5555,\
                controller_id=9,max_len=128))";
    let actions = parse_actions(text, &NoNames).unwrap();
    let Action::Punt(punt) = &actions[0] else { panic!("{actions:?}") };
    let (continuation, max_len, kept) = (None, Some(128), Kept::default());
    let expected =
        PacketInPunt { context: 4, continuation, reason: 1, rule_cookie: 0x5555, controller_id: 9, max_len, kept };
    assert_eq!(**punt, Punt::PacketIn(expected));
    let mut out = String::new();
    format_actions(&mut out, &actions, &Key::new(), &Context::default());
    assert_eq!(out, text);
}

#[test]
fn a_punt_without_a_receiver_is_refused() {
    for text in ["userspace(pid=0)", "userspace()", "userspace(controller(reason=256))", "userspace(userdata(00))"] {
        assert!(parse_actions(text, &NoNames).is_err(), "{text}");
    }
}

struct Veth;

impl PortNames for Veth {
    fn name(&self, port: u32) -> Option<String> {
        (port < 10).then(|| format!("veth{port}"))
    }
    fn number(&self, name: &str) -> Option<u32> {
        name.strip_prefix("veth")?.parse().ok()
    }
}

#[test]
fn ports_by_name() {
    let flow = parse_flow("in_port(veth1),eth(), actions:veth2,12", &Veth).unwrap();
    assert_eq!(flow.key.common().in_port.get(), 1);
    assert_eq!(flow.actions, [Action::Output(PortNo(2)), Action::Output(PortNo(12))]);
    let mut out = String::new();
    let context = Context { ports: &Veth, ..Context::default() };
    format_key(&mut out, &flow.key, &flow.mask, &context);
    out.push(' ');
    format_actions(&mut out, &flow.actions, &flow.key, &context);
    assert_eq!(out, "in_port(veth1),eth() veth2,12");
}

#[test]
fn errors_say_what_would_be_right() {
    let key = |text| parse_key(text, &NoNames).unwrap_err().to_string();
    let actions = |text| parse_actions(text, &NoNames).unwrap_err().to_string();
    assert_eq!(
        key("ipv4(source=1.2.3.4)"),
        "ipv4: unknown argument \"source\"; arguments are src, dst, proto, tos, ttl, frag"
    );
    assert_eq!(
        key("ipv4(src=1.2.3)"),
        "ipv4(src): \"1.2.3\" is not an IPv4 address, as 10.0.0.1 or 10.0.0.0/255.0.0.0"
    );
    assert!(key("ipv5(src=1)").starts_with("unknown section \"ipv5\"; sections are skb_priority, tunnel,"));
    assert_eq!(key("ipv4(ttl=256)"), "ipv4(ttl): 256 is too large, the largest value is 0xff");
    assert_eq!(key("in_port(1"), "\"in_port(1\": missing ')'");
    assert!(actions("jump(1)").starts_with("unknown action \"jump\"; actions are a port and set, push_vlan,"));
    assert_eq!(actions("push_vlan(vid=4096)"), "push_vlan(vid): 4096 is too large, the largest value is 0xfff");
}

#[test]
fn deep_nesting_is_refused() {
    let nested = |depth: usize| format!("{}1{}", "clone(".repeat(depth), ")".repeat(depth));
    assert!(parse_actions(&nested(action::MAX_DEPTH), &NoNames).is_ok());
    let error = parse_actions(&nested(10_000), &NoNames).unwrap_err();
    assert!(matches!(error, Error::TooDeep { max: 16, .. }));
    let encap = |depth: usize| format!("{}{}", "encap(".repeat(depth), ")".repeat(depth));
    assert!(matches!(parse_key(&encap(10_000), &NoNames), Err(Error::TooDeep { .. })));
}

fn rewrite() -> impl Strategy<Value = Action> {
    let fields = prop::sample::select(vec![
        (Field::DlSrc, u128::MAX),
        (Field::DlDst, 0xff00),
        (Field::NwSrc, u128::MAX),
        (Field::NwDst, 0xffff_0000),
        (Field::NwTtl, u128::MAX),
        (Field::IpDscp, u128::MAX),
        (Field::TcpSrc, u128::MAX),
        (Field::TcpDst, 0xff),
        (Field::PktMark, u128::MAX),
        (Field::SkbPriority, u128::MAX),
    ]);
    prop::collection::vec((fields, any::<u64>()), 1..4).prop_map(|list| {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        for ((field, bits), value) in list {
            mask.clear(field);
            mask.add(field, bits & field.info().max());
            key.set(field, u128::from(value) & bits);
        }
        Action::Set(Arc::new(Rewrite { key, mask }))
    })
}

fn action() -> impl Strategy<Value = Action> {
    let leaf = prop_oneof![
        any::<u32>().prop_map(|port| Action::Output(PortNo(port))),
        rewrite(),
        (prop::sample::select(vec![0x8100u16, 0x88a8]), any::<u16>())
            .prop_map(|(tpid, tci)| Action::PushVlan { tpid, tci: tci & !0x1000 }),
        Just(Action::PopVlan),
        any::<u32>().prop_map(|lse| Action::PushMpls { ethertype: 0x8848, lse }),
        any::<u16>().prop_map(|ethertype| Action::PopMpls { ethertype }),
        any::<u32>().prop_map(|lse| Action::AddMpls { ethertype: 0x8847, lse }),
        any::<([u8; 6], [u8; 6])>().prop_map(|(src, dst)| Action::PushEthernet { src, dst }),
        Just(Action::PopEthernet),
        Just(Action::PopNsh),
        push_nsh(),
        any::<u32>().prop_map(Action::Recirc),
        (any::<bool>(), any::<u32>()).prop_map(|(symmetric, basis)| {
            let algorithm = if symmetric { HashAlgorithm::SymmetricL4 } else { HashAlgorithm::L4 };
            Action::Hash { algorithm, basis }
        }),
        packet_in_punt(),
        tracking(),
        Just(Action::CtClear),
        any::<u32>().prop_map(|max_len| Action::Truncate { max_len }),
        Just(Action::Drop(DropReason::Rule)),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        // `clone(drop)` reads as a clone of nothing.
        prop::collection::vec(inner, 2..4).prop_map(Action::Clone)
    })
}

fn tracking() -> impl Strategy<Value = Action> {
    use conntrack::Request;
    use conntrack::helpers::Helper;
    use prop::option::of;
    let commit = prop::sample::select(vec![(false, false), (true, false), (true, true)]);
    let helper = of(prop::sample::select(vec![Helper::Ftp, Helper::Tftp]));
    let masked = |(value, mask): (u128, u128)| (value & mask, mask);
    let label = of((any::<u128>(), prop_oneof![Just(u128::MAX), 1..u128::MAX]).prop_map(masked));
    let mark = of((any::<u32>(), 1..=u32::MAX).prop_map(|(value, mask)| (value & mask, mask)));
    (commit, any::<(u16, u16)>(), mark, label, helper, of(translation())).prop_map(
        |((commit, force), (zone, policy), mark, label, helper, nat)| {
            Action::Ct(Arc::new(Request { zone, commit, force, nat, mark, label, helper, policy }))
        },
    )
}

fn translation() -> impl Strategy<Value = conntrack::tracker::Translate> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use conntrack::nat::{Choice, Nat};
    use conntrack::tracker::Translate;
    use conntrack::tuple::Side;
    use prop::option::of;
    let v4 = any::<(u32, u32)>().prop_map(|(a, b)| [a.min(b), a.max(b)].map(|a| IpAddr::from(Ipv4Addr::from(a))));
    let v6 = any::<(u128, u128)>().prop_map(|(a, b)| [a.min(b), a.max(b)].map(|a| IpAddr::from(Ipv6Addr::from(a))));
    let addresses = prop_oneof![v4, v6].prop_map(|[min, max]| (min, max));
    let ports = (1..=u16::MAX, 1..=u16::MAX).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let range = of((addresses, of(ports))).prop_map(|range| range.map_or((None, None), |(a, ports)| (Some(a), ports)));
    let choice = prop::sample::select(vec![Choice::Unsaid, Choice::Hash, Choice::Random]);
    let side = prop::sample::select(vec![Side::Src, Side::Dst]);
    let new = (side, range, choice, any::<bool>()).prop_map(|(side, (addresses, ports), choice, persistent)| {
        Translate::New(Nat { side, addresses, ports, choice, persistent })
    });
    prop_oneof![Just(Translate::AsBefore), new]
}

fn packet_in_punt() -> impl Strategy<Value = Action> {
    any::<(u32, bool, u8, u64, u16, u16)>().prop_map(|(id, paused, reason, rule_cookie, controller_id, max_len)| {
        let (context, continuation) = if paused { (0, Some(id)) } else { (id, None) };
        let (max_len, kept) = (Some(max_len), Kept::default());
        let punt = PacketInPunt { context, continuation, reason, rule_cookie, controller_id, max_len, kept };
        Action::Punt(Arc::new(Punt::PacketIn(punt)))
    })
}

/// A key with the fields that fit each other, and any mask over them.
fn key_text() -> impl Strategy<Value = String> {
    let mac = "([0-9a-f]{2}:){5}[0-9a-f]{2}(/ff:ff:00:ff:ff:f0)?";
    let ip = || (any::<u32>(), 0u32..=32).prop_map(|(ip, len)| format!("{}/{len}", std::net::Ipv4Addr::from(ip)));
    let l4 = prop_oneof![
        any::<(u16, u16)>().prop_map(|(a, b)| (6, format!("tcp(src={a},dst={b}/0xff0),tcp_flags(+syn-fin)"))),
        any::<(u16, u16)>().prop_map(|(a, b)| (17, format!("udp(src={a}/0xff00,dst={b})"))),
        any::<(u8, u8)>().prop_map(|(a, b)| (1, format!("icmp(type={a},code={b})"))),
    ];
    (any::<u16>(), mac, ip(), ip(), l4, any::<u8>(), 0u16..4096).prop_map(
        |(port, mac, src, dst, (proto, l4), ttl, vid)| {
            format!(
                "recirc_id(0),in_port({port}),packet_type(ns=0,id=0),eth(src={mac}),eth_type(0x8100),vlan(vid={vid},\
                 pcp=3),encap(eth_type(0x0800),ipv4(src={src},dst={dst},proto={proto},ttl={ttl},frag=no),{l4})"
            )
        },
    )
}

proptest! {
    #[test]
    fn formatted_actions_read_back(actions in prop::collection::vec(action(), 1..6)) {
        let mut out = String::new();
        let tcp = flow("eth_type(0x0800),ipv4(proto=6)");
        format_actions(&mut out, &actions, &tcp, &Context::default());
        let back = parse_actions(&out, &NoNames).map_err(|e| TestCaseError::fail(format!("{out}: {e}")))?;
        // One rewrite of several headers prints as one for each header.
        let mut again = String::new();
        format_actions(&mut again, &back, &tcp, &Context::default());
        prop_assert_eq!(&again, &out);
        if !out.contains("set(") {
            prop_assert_eq!(back, actions);
        }
    }

    #[test]
    fn formatted_keys_read_back(text in key_text()) {
        let (key, mask) = parse_key(&text, &NoNames).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        for verbose in [false, true] {
            let mut out = String::new();
            format_key(&mut out, &key, &mask, &Context { verbose, ..Context::default() });
            let (key_back, mask_back) = parse_key(&out, &NoNames).map_err(|e| TestCaseError::fail(format!("{out}: {e}")))?;
            prop_assert_eq!(&key_back, &key, "{}", out);
            prop_assert_eq!(&mask_back, &mask, "{}", out);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "(in_port|eth|ipv4|tcp_flags|vlan|encap|mpls|set|clone|tunnel|flags|userspace|src|vid|[(),=:/+0-9a-fx.é -]){0,30}"
    ) {
        fuzz(&text);
        fuzz(&format!("{text} actions:{text}"));
    }
}

#[test]
fn white_space_before_values() {
    let (spaced, _) = parse_key("eth_type(0x0800),ipv4(proto=\n1,tos= 4)", &NoNames).unwrap();
    assert_eq!((spaced.common().nw_proto, spaced.common().nw_tos), (1, 4));
}

#[test]
fn a_network_header_implies_its_ethernet_type() {
    for (text, whole) in [
        ("eth(),ipv4(proto=1),icmp(type=8)", "eth(),eth_type(0x0800),ipv4(proto=1),icmp(type=8)"),
        ("eth(),ipv6(proto=6)", "eth(),eth_type(0x86dd),ipv6(proto=6)"),
        ("eth(),arp(op=1)", "eth(),eth_type(0x0806),arp(op=1)"),
    ] {
        assert_eq!(parse_key(text, &NoNames), parse_key(whole, &NoNames), "{text}");
    }
    // What is given counts.
    let (key, _) = parse_key("eth_type(0x1234),ipv4(proto=1)", &NoNames).unwrap();
    assert_eq!(key.common().dl_type.get(), 0x1234);
}

/// A mask of ct_state is of 32 bits, of which eight have names: it never looks exact. Wildcarded bits of a tag have a mask.
#[test]
fn masks_that_look_exact_and_do_not() {
    let text = "ct_state(-new+est-rel-rpl-inv+trk-snat-dnat),recirc_id(0),in_port(1),eth()";
    assert_eq!(round_key(text), text);
    assert_eq!(round_key(&text.replace("-new+est-rel-rpl-inv+trk-snat-dnat", "est|trk")), text);
    let (mut key, mut mask) =
        parse_key("eth(),eth_type(0x8100),vlan(vid=5,pcp=3),encap(eth_type(0x1234))", &NoNames).unwrap();
    mask.0.common_mut().vlan[0].tci.set(0x1fff);
    key.common_mut().vlan[0].tci.set(0x7005);
    let mut out = String::new();
    format_key(&mut out, &key, &mask, &Context::default());
    assert!(out.contains("vlan(vid=5,pcp=3/0x0)"), "{out}");
}

#[test]
fn the_type_of_a_packet_without_ethernet_is_its_own() {
    for (text, dl_type) in [
        ("packet_type(ns=1,id=0),ipv4(frag=no)", 0),
        ("packet_type(ns=1,id=0x86dd),ipv6(frag=no)", 0x86dd),
        ("ipv4(frag=no)", 0x0800),
    ] {
        let (key, _) = parse_key(text, &NoNames).unwrap();
        assert_eq!(key.common().dl_type.get(), dl_type, "{text}");
    }
}
