//! Flow text against what ovs-ofctl says, and random flows and texts.

use std::net::Ipv4Addr;
use std::time::Duration;

use packet::Field;
use packet::flow::VLAN_PRESENT;
use packet::flow::field::{FIELDS, Format, Maskable, Prereq};
use packet::flow::text::NoNames;
use proptest::prelude::*;

use super::flow::format_bridge_flow;
use super::*;
use crate::action::*;
use crate::flow_mod::FlowModCommand;
use crate::instruction::{Instructions, WriteMetadata};
use crate::matching::{AnyField, Match, Subfield};
use crate::stats::FlowStats;
use crate::tun_metadata::{Bits, TunField, TunValue};
use crate::types::{Cookie, CookieFilter, EthAddr, FlowModFlags, GroupId, OfPort, PacketInReason, TableId};

#[path = "verified.rs"]
mod verified;

fn match_text(m: &Match, priority: u16) -> String {
    let mut out = String::new();
    format_match(&mut out, m, priority, &NoNames);
    out
}

fn instructions_text(instructions: &Instructions) -> String {
    let mut out = String::new();
    format_instructions(&mut out, instructions, &NoNames);
    out
}

#[test]
fn matches_as_ovs_ofctl_reads_and_prints_them() {
    for (text, expected) in verified::MATCHES {
        let flow = parse_flow_mod(FlowModCommand::Add, &format!("{text},actions=drop"), &NoNames);
        let flow = flow.unwrap_or_else(|e| panic!("{text}: {e}"));
        let out = match_text(&flow.matching, flow.priority);
        assert_eq!(out, *expected, "{text}");
        let again = parse_flow_mod(FlowModCommand::Add, &format!("{out} actions=drop"), &NoNames).unwrap();
        assert_eq!(again.matching, flow.matching, "{text}");
    }
}

#[test]
fn actions_as_ovs_ofctl_reads_and_prints_them() {
    for (text, expected) in verified::ACTIONS {
        let instructions = parse_instructions(text, &NoNames).unwrap_or_else(|e| panic!("{text}: {e}"));
        let out = instructions_text(&instructions);
        assert_eq!(out, *expected, "{text}");
        assert_eq!(parse_instructions(&out, &NoNames).unwrap(), instructions, "{text}");
    }
}

/// Forms that ovs-ofctl's parse-flow cannot show, from ovs-actions(7).
#[test]
fn actions_that_keep_their_form() {
    let texts = [
        "set_vlan_vid:5,set_vlan_pcp:3",
        "dec_nsh_ttl",
        "resubmit(,3,ct)",
        "resubmit(1,255,ct)",
        "note:01.02.ff",
        "delete_field:tun_metadata5",
        "set_tunnel64:0x123456789",
        "clone(meter:5,exit)",
        "encap(mpls(ether_type=0x8847))",
    ];
    for text in texts {
        let instructions = parse_instructions(text, &NoNames).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(instructions_text(&instructions), text.replace("255,", ","));
    }
}

#[test]
fn every_action_of_the_table_is_known() {
    for info in ACTIONS {
        // Without or with a wrong argument it may be refused, but not as unknown.
        let result = parse_instructions(&format!("{}:?", info.name), &NoNames);
        assert!(!matches!(result, Err(Error::Action { name, .. }) if name == info.name), "{}", info.name);
        assert!(info.syntax.contains(info.name), "{}", info.name);
    }
}

#[test]
fn a_whole_flow() {
    let text = "table=3,priority=10,cookie=0x5,idle_timeout=10,hard_timeout=20,importance=7,send_flow_rem check_overlap, \
                reset_counts no_packet_counts,no_byte_counts,n_packets=5,in_port=1,tcp,tp_dst=80,actions=output:2,\
                goto_table:5";
    let flow = parse_flow_mod_line(text, &NoNames).unwrap();
    assert_eq!(flow.command, FlowModCommand::Add);
    assert_eq!((flow.table, flow.priority), (Some(TableId(3)), 10));
    assert_eq!((flow.idle_timeout, flow.hard_timeout, flow.importance), (10, 20, 7));
    assert_eq!(flow.new_cookie, Some(Cookie(5)));
    assert_eq!(flow.flags, FlowModFlags::all());
    assert_eq!(flow.matching.in_port(), Some(OfPort(1)));
    assert_eq!(flow.matching.exact(Field::TcpDst), Some(80));
    assert_eq!(flow.instructions.apply, [Action::output(OfPort(2))]);
    assert_eq!(flow.instructions.goto, Some(TableId(5)));
}

#[test]
fn commands_take_their_own_attributes() {
    let line = |text| parse_flow_mod_line(text, &NoNames);
    let delete = line("delete_strict table=2,priority=5,ip,out_port=3,out_group=4,cookie=0x15/0xf").unwrap();
    assert_eq!(delete.command, FlowModCommand::DeleteStrict);
    assert_eq!((delete.table, delete.priority), (Some(TableId(2)), 5));
    assert_eq!((delete.out_port, delete.out_group), (OfPort(3), GroupId(4)));
    assert_eq!(delete.cookie, CookieFilter { value: 5, mask: 0xf });
    assert_eq!(delete.new_cookie, None);

    let modify = line("modify cookie=1/-1,cookie=7,ip,actions=2").unwrap();
    assert_eq!(modify.command, FlowModCommand::Modify);
    assert_eq!(modify.cookie, CookieFilter { value: 1, mask: u64::MAX });
    assert_eq!(modify.new_cookie, Some(Cookie(7)));
    assert_eq!(line("modify_strict,actions=2").unwrap().new_cookie, None);
    assert_eq!(line("add,actions=2").unwrap().new_cookie, Some(Cookie(0)));
    assert_eq!(line("delete").unwrap().table, None);

    for (text, expected) in [
        ("delete priority=5", "unknown keyword \"priority\""),
        ("delete actions=5", "unknown keyword \"actions\""),
        ("add out_port=1,actions=2", "unknown keyword \"out_port\""),
        ("add cookie=1/2,actions=2", "cookie: a flow that is added takes a cookie without a mask"),
        ("delete cookie=1", "cookie: to select flows by their cookie, give a mask: cookie=1/-1"),
        ("in_port=1", "must specify an action"),
        ("modify ip", "must specify an action"),
    ] {
        let error = line(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn a_filter_of_dump_flows() {
    let request = parse_flow_stats_request("table=1,ip,cookie=0x5/-1,out_port=LOCAL", &NoNames).unwrap();
    assert_eq!((request.table, request.out_port, request.out_group), (TableId(1), OfPort::LOCAL, GroupId::ANY));
    assert_eq!(request.matching.exact(Field::DlType), Some(0x800));
    assert_eq!(parse_flow_stats_request("", &NoNames).unwrap().table, TableId::ALL);
}

fn entry(text: &str) -> FlowStats {
    let flow = parse_flow_mod_line(text, &NoNames).unwrap();
    FlowStats {
        matching: flow.matching,
        cookie: flow.new_cookie.unwrap(),
        table: flow.table.unwrap_or(TableId(0)),
        priority: flow.priority,
        idle_timeout: flow.idle_timeout,
        hard_timeout: flow.hard_timeout,
        duration: Duration::from_millis(1234),
        idle_age: Some(1),
        hard_age: Some(1),
        packet_count: 5,
        byte_count: 490,
        flags: flow.flags,
        importance: flow.importance,
        instructions: flow.instructions,
    }
}

/// The lines of `ovs-ofctl dump-flows`, with and without `--no-stats`, and of `bridge/dump-flows`.
#[test]
fn dump_lines() {
    let cases = [
        (
            "priority=100,in_port=1,actions=2",
            " cookie=0x0, duration=1.234s, table=0, n_packets=5, n_bytes=490, idle_age=1, priority=100,in_port=1 \
             actions=output:2",
            " priority=100,in_port=1 actions=output:2",
            "duration=1s, n_packets=5, n_bytes=490, priority=100,in_port=1,actions=output:2",
        ),
        (
            "table=4,cookie=0x1f,idle_timeout=10,hard_timeout=20,send_flow_rem,reset_counts,importance=3,actions=drop",
            " cookie=0x1f, duration=1.234s, table=4, n_packets=5, n_bytes=490, idle_timeout=10, hard_timeout=20, \
             send_flow_rem reset_counts importance=3, idle_age=1, actions=drop",
            " cookie=0x1f, table=4, idle_timeout=10, hard_timeout=20, send_flow_rem reset_counts importance=3, \
             actions=drop",
            "table_id=4, duration=1s, n_packets=5, n_bytes=490, ,actions=drop",
        ),
    ];
    for (text, full, short, bridge) in cases {
        let flow = entry(text);
        let mut out = String::new();
        format_flow_stats(&mut out, &flow, &NoNames);
        assert_eq!(out, full);
        // What was printed can be fed back.
        let back = parse_flow_mod_line(&out, &NoNames).unwrap();
        assert_eq!((&back.matching, &back.instructions), (&flow.matching, &flow.instructions));
        out.clear();
        format_flow_entry(&mut out, &flow, &NoNames);
        assert_eq!(out, short);
        out.clear();
        format_bridge_flow(&mut out, &flow, &NoNames);
        assert_eq!(out, bridge);
    }
}

#[test]
fn unknown_counters_and_ages() {
    let flow = FlowStats {
        idle_age: None,
        hard_age: Some(7),
        packet_count: u64::MAX,
        duration: Duration::new(5, 120_500_000),
        ..entry("actions=drop")
    };
    let mut out = String::new();
    format_flow_stats(&mut out, &flow, &NoNames);
    assert_eq!(out, " cookie=0x0, duration=5.1205s, table=0, n_packets=?, n_bytes=490, hard_age=7, actions=drop");
}

#[test]
fn ports_by_name() {
    struct Eth;
    impl PortNames for Eth {
        fn name(&self, port: u32) -> Option<String> {
            (port == 7).then(|| "eth7".into())
        }
        fn number(&self, name: &str) -> Option<u32> {
            (name == "eth7").then_some(7)
        }
    }
    let flow =
        parse_flow_mod_line("in_port=eth7,actions=eth7,output:eth7,enqueue:eth7:3,resubmit(eth7,1),8", &Eth).unwrap();
    let mut out = String::new();
    format_match(&mut out, &flow.matching, flow.priority, &Eth);
    out.push(' ');
    format_instructions(&mut out, &flow.instructions, &Eth);
    assert_eq!(out, "in_port=eth7 output:eth7,output:eth7,enqueue:eth7:3,resubmit(eth7,1),output:8");
}

#[test]
fn prerequisites_are_checked_whatever_the_order() {
    let parse = |text| parse_match(text, &NoNames);
    assert_eq!(parse("nw_src=10.0.0.1,ip").unwrap(), parse("ip,nw_src=10.0.0.1").unwrap());
    for (text, needs) in [
        ("nw_src=10.0.0.1", "nw_src: can only be matched together with ip, arp or rarp"),
        ("ip_src=10.0.0.1,arp", "ip_src: can only be matched together with ip (dl_type=0x0800)"),
        ("ip,tp_dst=80", "tp_dst: can only be matched together with tcp, udp, sctp or their IPv6 forms"),
        ("udp,tcp_dst=80", "tcp_dst: can only be matched together with tcp or tcp6"),
        ("tcp,nw_frag=later,tcp_dst=80", "tcp_dst: can only be matched together with tcp or tcp6"),
        (
            "icmp6,icmp_type=135,nd_tll=00:00:00:00:00:01",
            "nd_tll: can only be matched together with icmp6,icmp_type=136",
        ),
        ("vlan_pcp=3,vlan_tci=0", "vlan_pcp: can only be matched together with a VLAN (vlan_vid or dl_vlan)"),
        ("ip,arp_op=1", "arp_op: can only be matched together with arp or rarp"),
        ("mpls_label=5", "mpls_label: can only be matched together with mpls or mplsm"),
        (
            "packet_type=(1,0x800),dl_src=00:00:00:00:00:01",
            "dl_src: can only be matched together with an Ethernet packet type",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), needs, "{text}");
    }
}

#[test]
fn errors_say_what_would_be_right() {
    let cases = [
        ("frobnicate=1,actions=1", "unknown keyword \"frobnicate\"; expected a field of ovs-fields(7)"),
        ("ip,nw_src=10.0.0,actions=1", "ip_src: \"10.0.0\" is not an IPv4 address as 10.0.0.0 or 10.0.0.0/8"),
        ("reg0[30..40]=5,actions=1", "\"reg0[30..40]\": bit 40 is beyond the field, which has 32 bits"),
        ("reg0[0..3]=16,actions=1", "reg0[0..3]: \"16\" is not a number of at most 4 bits"),
        ("actions=bogus", "unknown action \"bogus\"; expected a port or one of output, group,"),
        ("actions=output:bogus", "output: unknown port \"bogus\"; give a number, the name of a port"),
        ("actions=set_field:1->nw_proto", "set_field: field nw_proto is read-only"),
        ("actions=set_field:256->nw_ttl", "nw_ttl: 256 is too large, the largest value is 0xff"),
        ("actions=load:5", "load: \"5\" is not of the form SOURCE->TARGET"),
        ("actions=load:16->reg0[0..3]", "load: 16 does not fit into 4 bits"),
        ("actions=move:reg0->reg1[0..3]", "move: source is 32 bits wide, target is 4"),
        ("actions=drop,1", "drop: must not be accompanied by any other action or instruction"),
        ("actions=clone(drop,1)", "drop: must not be accompanied by any other action or instruction"),
        ("actions=goto_table:3,write_metadata:5", "write_metadata: out of order; the order is meter, actions,"),
        ("actions=1,meter:5", "meter: out of order; the order is meter, actions,"),
        ("actions=clone(goto_table:1)", "goto_table: an instruction cannot stand within actions"),
        ("actions=resubmit(,)", "resubmit: at least one of port and table must be given"),
        ("actions=conjunction(1,3/2)", "conjunction: clause 3 of 2 is not one of 2 to 64 clauses"),
        ("actions=ct(force)", "ct: force needs commit"),
        ("actions=ct(nat(src=1.2.3.4,dst=1.2.3.4))", "nat: only one of src and dst may be given"),
        ("actions=push_vlan:0x1234", "push_vlan: 0x1234 is not a valid Ethernet type here, 0x8100 or 0x88a8 is"),
        ("actions=note:0", "note: \"0\" is not pairs of hexadecimal digits, as 01.02.ff"),
        ("actions=multipath(eth_src,1,foo,1,1,reg0)", "multipath: unknown algorithm \"foo\", valid are modulo_n,"),
        ("actions=clone(1", "\"clone(1\": missing ')'"),
        ("priority=65536,actions=1", "priority: 65536 is too large, the largest value is 0xffff"),
    ];
    for (text, expected) in cases {
        let error = parse_flow_mod_line(text, &NoNames).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    let nested = |open: &str, depth: usize| format!("{}1{}", open.repeat(depth), ")".repeat(depth));
    assert!(parse_actions(&nested("clone(", MAX_DEPTH), &NoNames).is_ok());
    assert_eq!(parse_actions(&nested("clone(", MAX_DEPTH + 1), &NoNames), Err(Error::TooDeep));
    for open in ["clone(", "ct(exec(", "write_actions("] {
        let text = format!("{}1{}", open.repeat(5_000), ")".repeat(10_000));
        parse_instructions(&text, &NoNames).unwrap_err();
    }
    assert_eq!(parse_actions(&nested("clone(", 10_000), &NoNames), Err(Error::TooDeep));
}

fn subfield() -> impl Strategy<Value = Subfield> {
    let fields: Vec<_> =
        FIELDS.iter().filter(|info| info.writable && info.field != Field::DlVlan).map(|info| info.field).collect();
    let in_key = prop::sample::select(fields).prop_map(AnyField::Key);
    let tun = (0u8..64).prop_map(|n| TunField::new(n).unwrap().into());
    (prop_oneof![9 => in_key, 1 => tun], any::<u16>(), any::<u16>()).prop_map(|(field, a, b)| {
        let bits = field.bits();
        let (a, b) = (a % bits, b % bits);
        Subfield::new(field, a.min(b), a.abs_diff(b) + 1).unwrap()
    })
}

fn register() -> impl Strategy<Value = Subfield> {
    (0u16..16, 0u16..32, 0u16..32).prop_map(|(reg, a, b)| {
        let field = FIELDS[Field::Reg0 as usize + reg as usize].field;
        Subfield::new(field, a.min(b), a.abs_diff(b) + 1).unwrap()
    })
}

fn port() -> impl Strategy<Value = OfPort> {
    prop_oneof![(0u32..0xff00).prop_map(OfPort), Just(OfPort::LOCAL), Just(OfPort::IN_PORT), Just(OfPort::CONTROLLER)]
}

fn set_field() -> impl Strategy<Value = Action> {
    let fields: Vec<_> = FIELDS.iter().filter(|info| info.writable && info.format != Format::OfPort).collect();
    (prop::sample::select(fields), any::<u128>(), any::<u128>()).prop_map(|(info, value, mask)| {
        let whole = info.maskable == Maskable::No || mask & info.max() == 0;
        let mask = if whole { info.max() } else { mask & info.max() };
        Action::SetField { field: info.field, value: value & mask, mask }
    })
}

fn simple_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        port().prop_map(Action::output),
        any::<u16>().prop_map(|max_len| Action::Output { port: OfPort::CONTROLLER, max_len }),
        subfield().prop_map(|src| Action::OutputReg { src, max_len: 0xffff }),
        (0u32..0xff00, 14u32..).prop_map(|(port, max_len)| Action::OutputTrunc { port: OfPort(port), max_len }),
        (any::<u16>(), any::<u32>())
            .prop_map(|(port, queue)| Action::Enqueue { port: OfPort(port as u32 % 0xff00), queue }),
        set_field(),
        (0u8..64, any::<u128>(), any::<u128>(), 0u16..800).prop_map(|(index, value, mask, ofs)| {
            let (value, mask) =
                (TunValue::part(index, ofs, 128, &value.into()), TunValue::part(index, ofs, 128, &mask.into()));
            let value = TunValue::masked(index, &Bits::from_bytes(&value.value), &Bits::from_bytes(&mask.value));
            Action::SetTunMetadata(Box::new(value))
        }),
        (subfield(), any::<u64>())
            .prop_map(|(dst, value)| { Action::load(dst, value & u64::try_from(dst.max()).unwrap_or(u64::MAX)) }),
        (register(), 0u16..16).prop_map(|(dst, reg)| {
            let src = FIELDS[Field::Reg0 as usize + reg as usize].field;
            Action::RegMove { src: Subfield::new(src, 0, dst.n_bits).unwrap(), dst }
        }),
        subfield().prop_map(Action::StackPush),
        subfield().prop_map(Action::StackPop),
        (0u16..4096, any::<bool>()).prop_map(|(vid, push)| Action::SetVlanVid { vid, push }),
        (0u8..8, any::<bool>()).prop_map(|(pcp, push)| Action::SetVlanPcp { pcp, push }),
        any::<[u8; 6]>().prop_map(|mac| Action::SetEthDst(EthAddr(mac))),
        any::<u32>().prop_map(|ip| Action::SetIpv4Src(Ipv4Addr::from(ip))),
        any::<u8>().prop_map(|tos| Action::SetIpDscp(tos & 0xfc)),
        any::<u16>().prop_map(Action::SetL4DstPort),
        any::<u64>().prop_map(Action::SetTunnel),
        prop::collection::vec(any::<u16>(), 1..4).prop_map(Action::DecTtlCntIds),
        (0u32..0x10_0000).prop_map(Action::SetMplsLabel),
        any::<u16>().prop_map(Action::PopMpls),
        prop::sample::select(vec![
            Action::StripVlan,
            Action::DecTtl,
            Action::Exit,
            Action::CtClear,
            Action::PopQueue,
            Action::PushVlan(0x88a8),
            Action::PushMpls(0x8848),
            Action::Decap(None)
        ]),
        any::<u32>().prop_map(Action::SetQueue),
        (any::<u16>(), any::<u16>()).prop_map(|(idle, hard)| Action::FinTimeout { idle, hard }),
        (port(), 0u8..255, any::<bool>()).prop_map(|(in_port, table, with_ct)| Action::Resubmit {
            in_port,
            table: TableId(table),
            with_ct
        }),
        (any::<u32>(), 2u8..=64)
            .prop_flat_map(|(id, n)| (Just(id), 0..n, Just(n)))
            .prop_map(|(id, clause, n_clauses)| Action::Conjunction { id, clause, n_clauses }),
        prop::collection::vec(any::<u8>(), 1..9).prop_map(Action::Note),
    ]
}

fn complex_action() -> impl Strategy<Value = Action> {
    let controller = (
        any::<u16>(),
        0usize..7,
        1u16..,
        prop::collection::vec(any::<u8>(), 0..5),
        any::<bool>(),
        any::<Option<u32>>(),
    )
        .prop_map(|(max_len, reason, id, userdata, pause, meter)| {
            let reason = PacketInReason::NAMES[reason].0;
            Action::Controller(Box::new(Controller { max_len, reason, id, userdata, pause, meter }))
        });
    let spec = prop_oneof![
        (register(), any::<u32>()).prop_map(|(dst, value)| LearnSpec {
            n_bits: dst.n_bits,
            src: LearnSrc::Immediate(u128::from(value) & dst.max()),
            dst: LearnDst::Load(dst),
        }),
        (register(), any::<u32>()).prop_map(|(dst, value)| LearnSpec {
            n_bits: dst.n_bits,
            src: LearnSrc::Immediate(u128::from(value) & dst.max()),
            dst: LearnDst::Match(dst),
        }),
        subfield().prop_map(|f| LearnSpec { n_bits: f.n_bits, src: LearnSrc::Field(f), dst: LearnDst::Match(f) }),
        subfield().prop_map(|f| LearnSpec { n_bits: f.n_bits, src: LearnSrc::Field(f), dst: LearnDst::Output }),
    ];
    let learn = (
        any::<[u16; 5]>(),
        any::<u64>(),
        any::<bool>(),
        any::<bool>(),
        0u8..255,
        any::<u32>(),
        prop::collection::vec(spec, 0..4),
    )
        .prop_map(|(n, cookie, rem, delete_learned, table, limit, specs)| {
            Action::Learn(Box::new(Learn {
                idle_timeout: n[0],
                hard_timeout: n[1],
                priority: n[2],
                cookie: Cookie(cookie),
                flags: if rem { FlowModFlags::SEND_FLOW_REM } else { FlowModFlags::empty() },
                delete_learned,
                table: TableId(table),
                fin_idle_timeout: n[3],
                fin_hard_timeout: n[4],
                limit,
                result_dst: Subfield::new(Field::Reg3, 5, 1),
                specs,
            }))
        });
    let bundle = (0usize..7, any::<u16>(), prop::collection::vec(0u32..0xff00, 0..4), prop::option::of(register()))
        .prop_map(|(fields, basis, members, dst)| {
            Action::Bundle(Box::new(Bundle {
                fields: HashFields::NAMES[fields].0,
                basis,
                algorithm: BundleAlgorithm::Hrw,
                members: members.into_iter().map(OfPort).collect(),
                dst,
            }))
        });
    let nat = (any::<u32>(), any::<Option<u32>>(), any::<bool>(), 1u16..0xffff, any::<bool>()).prop_map(
        |(a, b, random, port, v6)| {
            let v6_of = |n: u32| std::net::Ipv6Addr::from(0xfe80u128 << 112 | u128::from(n));
            let b = b.map(|b| b.max(a)).filter(|&b| b != a);
            let addrs =
                if v6 { NatAddrs::V6(v6_of(a), b.map(v6_of)) } else { NatAddrs::V4(a.into(), b.map(Into::into)) };
            let nat = Nat { kind: Some(NatKind::Src), random, addrs, ports: Some((port, port + 1)), ..Nat::default() };
            Action::Nat(Box::new(nat))
        },
    );
    let zone = prop_oneof![
        any::<u16>().prop_map(CtZone::Immediate),
        Just(CtZone::Field(Subfield::new(Field::Reg1, 3, 16).unwrap())),
    ];
    let ct = (
        any::<bool>(),
        any::<bool>(),
        zone,
        prop::option::of(0u8..255),
        prop::option::of(nat),
        prop::collection::vec(set_field(), 0..3),
    )
        .prop_map(|(commit, force, zone, table, nat, exec)| {
            let actions = nat.into_iter().chain(exec).collect();
            let table = table.map(TableId);
            Action::Ct(Box::new(Ct { commit, force: commit && force, zone, table, alg: 21, actions }))
        });
    prop_oneof![controller, learn, bundle, ct]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let leaf = prop_oneof![4 => simple_action(), 1 => complex_action()];
    let action = leaf.prop_recursive(3, 12, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Action::Clone));
    prop::collection::vec(action, 0..5)
}

fn instructions() -> impl Strategy<Value = Instructions> {
    let metadata = prop::option::of((any::<u64>(), any::<u64>()));
    (any::<Option<u32>>(), actions(), any::<bool>(), actions(), metadata, prop::option::of(0u8..255)).prop_map(
        |(meter, apply, clear, write, metadata, goto)| Instructions {
            meter,
            apply,
            clear,
            write,
            metadata: metadata.map(|(value, mask)| WriteMetadata { value: value & mask, mask }),
            goto: goto.map(TableId),
        },
    )
}

/// Sets what `field` needs to be matched.
fn add_prerequisites(m: &mut Match, prereq: Prereq) {
    let ip = |m: &mut Match, dl_type: u128, proto: u128| {
        m.set(Field::DlType, dl_type);
        m.set(Field::NwProto, proto);
    };
    match prereq {
        Prereq::None | Prereq::Ethernet => {}
        Prereq::VlanVid => m.set_masked(Field::VlanTci, VLAN_PRESENT.into(), VLAN_PRESENT.into()),
        Prereq::Mpls => m.set(Field::DlType, 0x8847),
        Prereq::Ipv4 | Prereq::Ip => m.set(Field::DlType, 0x0800),
        Prereq::Ipv6 => m.set(Field::DlType, 0x86dd),
        Prereq::Arp => m.set(Field::DlType, 0x0806),
        Prereq::Tcp => ip(m, 0x0800, 6),
        Prereq::Udp => ip(m, 0x86dd, 17),
        Prereq::Sctp => ip(m, 0x0800, 132),
        Prereq::Icmp => ip(m, 0x0800, 1),
        Prereq::Icmpv6 => ip(m, 0x86dd, 58),
        Prereq::Nd | Prereq::NdSolicit => {
            ip(m, 0x86dd, 58);
            m.set(Field::Icmpv6Type, 135);
        }
        Prereq::NdAdvert => {
            ip(m, 0x86dd, 58);
            m.set(Field::Icmpv6Type, 136);
        }
        Prereq::Nsh => m.set(Field::DlType, 0x894f),
        Prereq::Pbb => m.set(Field::DlType, 0x88e7),
        Prereq::Ct | Prereq::CtIpv4 | Prereq::CtPorts => {
            m.set(Field::DlType, 0x0800);
            m.set_masked(Field::CtState, 0x21, 0x21);
        }
        Prereq::CtIpv6 => {
            m.set(Field::DlType, 0x86dd);
            m.set_masked(Field::CtState, 0x21, 0x21);
        }
    }
}

proptest! {
    #[test]
    fn any_field_of_a_match_reads_back(index in 0..FIELDS.len(), value: u128, mask: u128, exact: bool) {
        let info = &FIELDS[index];
        let exact = exact || info.maskable == Maskable::No || mask & info.max() == 0;
        let mask = if exact { info.max() } else { mask & info.max() };
        let mut m = Match::any();
        add_prerequisites(&mut m, info.prereq);
        let kept = m.get(Field::DlType).1 == 0 || info.field != Field::DlType;
        prop_assume!(kept);
        match info.field {
            Field::InPort | Field::InPortOxm => m.set_in_port(OfPort(value as u32 % 0xff00)),
            Field::ActsetOutput => m.set(info.field, value % 0xff00),
            Field::DlVlan | Field::VlanVid => m.set(Field::VlanVid, value | u128::from(VLAN_PRESENT)),
            Field::DlVlanPcp | Field::VlanPcp => {
                add_prerequisites(&mut m, Prereq::VlanVid);
                m.set(info.field, value);
            }
            Field::CtState => m.set_masked(info.field, value, mask & 0xff),
            Field::NwFrag => m.set(info.field, [0, 1, 3][(value % 3) as usize]),
            Field::NwProto if value & 0xff == 0 => m.set(info.field, 1),
            // A packet type other than Ethernet fixes the Ethernet type.
            Field::PacketType => m.set(info.field, 1 << 16 | value & 0xffff),
            _ => m.set_masked(info.field, value, mask),
        }
        let text = match_text(&m, 0x8000);
        let back = parse_match(&text, &NoNames).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(back, m, "{}", text);
    }

    #[test]
    fn any_instructions_read_back(instructions in instructions()) {
        let text = instructions_text(&instructions);
        let back = parse_instructions(&text, &NoNames).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(back, instructions, "{}", text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(table|ip|tcp|nw_src|tp_dst|reg0|=|,|actions=|clone|learn|ct|nat|output|load|->|set_field|bundle|encap|[\\[\\](),=:/+0-9a-fx.é -]){0,30}") {
        fuzz(&text);
        fuzz(&format!("actions={text}"));
    }

    #[test]
    fn any_characters_are_read_or_refused(text in ".{0,60}") {
        fuzz(&text);
    }
}
