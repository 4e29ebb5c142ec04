//! Options of tunnel ports, from text and to text.

use std::net::IpAddr;

use proptest::prelude::*;
use tunnel::config::{Config, Kind, Problem, Setting, text_of};
use tunnel::matching::{Address, Key, PacketType};

const KINDS: [Kind; 10] = [
    Kind::Vxlan,
    Kind::Geneve,
    Kind::Gre,
    Kind::Ip6gre,
    Kind::Erspan,
    Kind::Ip6erspan,
    Kind::Gtpu,
    Kind::Lisp,
    Kind::Bareudp,
    Kind::Srv6,
];

/// Options in the form of `ovs-vsctl`: "name=value name=value".
fn parse(kind: Kind, text: &str) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
    Config::parse(kind, text.split_whitespace().map(|option| option.split_once('=').unwrap()))
}

fn print(config: &Config) -> String {
    let options = config.options();
    options.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

/// What Open vSwitch prints in `dpif/show` for the ports of its own tests (tests/tunnel.at).
#[test]
fn options_are_printed_as_in_ovs() {
    for (kind, options, printed) in [
        (Kind::Gre, "remote_ip=1.1.1.1", "remote_ip=1.1.1.1"),
        (
            Kind::Gre,
            "local_ip=2.2.2.3 remote_ip=1.1.1.1 df_default=false ttl=1 csum=true",
            "csum=true, df_default=false, local_ip=2.2.2.3, remote_ip=1.1.1.1, ttl=1",
        ),
        (Kind::Gre, "in_key=2 out_key=3 remote_ip=1.1.1.1", "in_key=2, out_key=3, remote_ip=1.1.1.1"),
        (Kind::Gre, "out_key=5 remote_ip=1.1.1.1", "out_key=5, remote_ip=1.1.1.1"),
        (Kind::Gre, "key=1 out_key=flow remote_ip=flow", "in_key=1, out_key=flow, remote_ip=flow"),
        (Kind::Gre, "tos=inherit ttl=inherit remote_ip=::1", "remote_ip=::1, tos=inherit, ttl=inherit"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 dst_port=4789", "remote_ip=1.1.1.1"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 dst_port=5000 tos=0x10", "dst_port=5000, remote_ip=1.1.1.1, tos=0x10"),
        (Kind::Bareudp, "remote_ip=1.1.1.1 dst_port=6635 payload_type=mpls", "dst_port=6635, remote_ip=1.1.1.1"),
        (Kind::Gtpu, "remote_ip=flow key=flow packet_type=legacy_l3", "key=flow, remote_ip=flow"),
        (Kind::Gre, "remote_ip=1.1.1.1 packet_type=ptap", "packet_type=ptap, remote_ip=1.1.1.1"),
        (Kind::Geneve, "remote_ip=1.1.1.1 egress_pkt_mark=1234", "egress_pkt_mark=1234, remote_ip=1.1.1.1"),
        (
            Kind::Erspan,
            "remote_ip=1.1.1.1 key=1 erspan_ver=1 erspan_idx=0x0",
            "erspan_idx=0x0, erspan_ver=1, key=1, remote_ip=1.1.1.1",
        ),
        (
            Kind::Erspan,
            "remote_ip=1.1.1.1 key=10 erspan_ver=2 erspan_dir=flow erspan_hwid=flow",
            "erspan_dir=flow, erspan_hwid=flow, erspan_ver=2, key=10, remote_ip=1.1.1.1",
        ),
        (
            Kind::Erspan,
            "remote_ip=1.2.3.4 key=flow erspan_ver=flow",
            "erspan_dir=flow, erspan_hwid=flow, erspan_idx=flow, erspan_ver=flow, key=flow, remote_ip=1.2.3.4",
        ),
        (
            Kind::Ip6erspan,
            "remote_ip=::2 key=1 erspan_ver=2 erspan_dir=1 erspan_hwid=f",
            "erspan_dir=1, erspan_hwid=0xf, erspan_ver=2, key=1, remote_ip=::2",
        ),
    ] {
        let (config, warnings) = parse(kind, options).unwrap_or_else(|why| panic!("{options}: {why:?}"));
        assert_eq!((print(&config).as_str(), warnings), (printed, vec![]), "{options}");
    }
}

/// What is passed over with a warning, and what is refused; the texts are those of Open vSwitch 3.1.
#[test]
fn problems_are_told_as_in_ovs() {
    for (kind, options, is_taken, text) in [
        (Kind::Gre, "remote_ip=1.1.1.1 dst_port=7", true, "t: unknown gre argument 'dst_port'"),
        (Kind::Erspan, "remote_ip=1.1.1.1 csum=true", true, "t: unknown erspan argument 'csum'"),
        (Kind::Geneve, "remote_ip=1.1.1.1 seq=true", true, "t: unknown geneve argument 'seq'"),
        (Kind::Geneve, "remote_ip=1.1.1.1 exts=gbp", true, "t: unknown geneve argument 'exts'"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 exts=gbp,foo", true, "t: unknown extension 'foo'"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 tos=3", true, "t: invalid TOS 3"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 tos=4x", true, "t: invalid TOS 4x"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 local_ip=1.2.3", true, "t: bad vxlan 'local_ip'"),
        (Kind::Vxlan, "remote_ip=1.1.1.1 psk=swordfish", true, ""),
        (Kind::Srv6, "remote_ip=fc00::1 srv6_segs=fc00::1,x", true, "t: bad fc00::1,x 'srv6_segs'"),
        (Kind::Vxlan, "", false, "t: vxlan type requires valid 'remote_ip' argument"),
        (
            Kind::Vxlan,
            "remote_ip=1.1.1",
            false,
            "t: bad vxlan 'remote_ip'\nt: vxlan type requires valid 'remote_ip' argument",
        ),
        (Kind::Vxlan, "remote_ip=::", false, "t: vxlan type requires valid 'remote_ip' argument"),
        (Kind::Vxlan, "remote_ip=224.1.1.1", false, "t: multicast remote_ip=224.1.1.1 not allowed"),
        (Kind::Vxlan, "remote_ip=ff02::1", false, "t: multicast remote_ip=ff02::1 not allowed"),
        (
            Kind::Gre,
            "remote_ip=1.1.1.1 local_ip=flow",
            false,
            "t: gre type requires 'remote_ip=flow' with 'local_ip=flow'",
        ),
        (
            Kind::Gre,
            "remote_ip=1.1.1.1 local_ip=::1",
            false,
            "t: 'remote_ip' and 'local_ip' has to be of the same address family",
        ),
        (Kind::Gre, "remote_ip=1.1.1.1 packet_type=l2", false, "t: unknown packet_type 'l2'"),
        (
            Kind::Lisp,
            "remote_ip=1.1.1.1 packet_type=legacy_l2",
            false,
            "t: legacy_l2 configured on lisp tunnel that cannot carry L2 traffic",
        ),
        (
            Kind::Vxlan,
            "remote_ip=1.1.1.1 packet_type=legacy_l3",
            false,
            "t: legacy_l3 configured on VXLAN (without GPE) tunnel that cannot carry L3 traffic",
        ),
        (Kind::Vxlan, "remote_ip=1.1.1.1 exts=gpe packet_type=legacy_l3", true, ""),
        (Kind::Erspan, "erspan_ver=3", false, "t: invalid erspan version: 3"),
        (Kind::Erspan, "erspan_idx=100000", false, "t: invalid erspan index: 100000"),
        (Kind::Erspan, "erspan_dir=2", false, "t: invalid erspan direction: 2"),
        (Kind::Erspan, "erspan_hwid=40", false, "t: invalid erspan hardware ID: 40"),
    ] {
        let result = parse(kind, options);
        let (taken, problems) = match result {
            Ok((_, problems)) => (true, problems),
            Err(problems) => (false, problems),
        };
        assert_eq!((taken, text_of("t", &problems).as_str()), (is_taken, text), "{options}");
    }
    let stt = Kind::from_name("stt").unwrap_err().to_string();
    assert_eq!(stt, "stt tunnels are not supported: use geneve or vxlan");
    assert_eq!(Kind::from_name("wg").unwrap_err().to_string(), "unknown tunnel type 'wg'");
}

#[test]
fn tunnels_are_listed_as_in_ovs() {
    for (kind, options, line) in [
        (Kind::Gre, "remote_ip=1.1.1.1", "port 3: p (gre: ::->1.1.1.1, key=0, legacy_l2, dp port=3, ttl=64)"),
        (
            Kind::Vxlan,
            "remote_ip=1.1.1.1 local_ip=2.2.2.2 in_key=18 out_key=flow tos=8 ttl=inherit df_default=false csum=true",
            "port 3: p (vxlan: 2.2.2.2->1.1.1.1, key=0x12, legacy_l2, dp port=3, out_key=flow, ttl=inherit, tos=0x8, \
             df=false, csum=true)",
        ),
        (
            Kind::Geneve,
            "remote_ip=flow local_ip=flow in_key=flow",
            "port 3: p (geneve: flow->flow, key=flow, legacy_l2, dp port=3, out_key=none, ttl=64)",
        ),
        (
            Kind::Geneve,
            "remote_ip=flow key=flow",
            "port 3: p (geneve: ::->flow, key=flow, legacy_l2, dp port=3, ttl=64)",
        ),
    ] {
        assert_eq!(parse(kind, options).unwrap().0.list("p", 3), line);
    }
}

fn keys() -> impl Strategy<Value = Option<Key>> {
    prop::option::of(prop_oneof![Just(Key::Flow), any::<u64>().prop_map(Key::One)])
}

fn settings<T: std::fmt::Debug + Copy>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Setting<T>> {
    prop::option::of(value).prop_map(|value| value.map_or(Setting::Flow, Setting::One))
}

fn configs() -> impl Strategy<Value = Config> {
    let addresses = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|[one, other]| (IpAddr::from(one), IpAddr::from(other))),
        any::<[[u8; 16]; 2]>().prop_map(|[one, other]| (IpAddr::from(one), IpAddr::from(other))),
    ]
    .prop_filter("multicast", |(remote, local)| {
        let is_plain = |one: &IpAddr| one.to_canonical() == *one && !one.is_unspecified();
        !remote.is_multicast() && is_plain(remote) && is_plain(local)
    });
    let ends = (addresses, 0..5).prop_map(|((remote, local), which)| match which {
        0 => (Address::Flow, Address::Flow),
        1 => (Address::Flow, Address::Any),
        2 => (Address::Flow, Address::One(local)),
        3 => (Address::One(remote), Address::Any),
        _ => (Address::One(remote), Address::One(local)),
    });
    let outer = (prop_oneof![Just(None), (0u8..64).prop_map(|dscp| Some(dscp << 2))], any::<Option<u8>>());
    let flags = any::<[bool; 3]>();
    let erspan = (1u8..3, settings(0u32..1 << 20), settings(0u8..2), settings(0u8..64));
    let marks = (any::<Option<u32>>(), 1u16.., any::<bool>());
    (prop::sample::select(KINDS.to_vec()), ends, (keys(), keys()), outer, flags, erspan, marks).prop_map(
        |(kind, (remote, local), (in_key, out_key), (tos, ttl), flags, erspan, (egress_mark, port, is_aware))| {
            // Some option that makes the version known, and is overwritten.
            let start = if matches!(kind, Kind::Erspan | Kind::Ip6erspan) {
                "remote_ip=flow erspan_ver=1"
            } else {
                "remote_ip=flow"
            };
            let (mut config, _) = parse(kind, start).unwrap();
            (config.remote, config.local, config.in_key, config.out_key) = (remote, local, in_key, out_key);
            (config.tos, config.tos_inherit) = (tos.unwrap_or(0), tos.is_none());
            (config.ttl, config.ttl_inherit) = (ttl.unwrap_or(64).max(1), ttl.is_none());
            config.dont_fragment = flags[0];
            let (has_port, has_checksum) = match kind {
                Kind::Vxlan | Kind::Geneve => (true, true),
                Kind::Gtpu | Kind::Lisp | Kind::Bareudp => (true, false),
                Kind::Gre | Kind::Ip6gre => (false, true),
                _ => (false, false),
            };
            config.checksum = flags[1] && has_checksum;
            config.sequence = flags[2] && matches!(kind, Kind::Gre | Kind::Ip6gre);
            if has_port {
                config.dst_port = port;
            }
            config.egress_mark = egress_mark;
            if is_aware {
                config.packet_type = PacketType::Aware;
            }
            if matches!(kind, Kind::Erspan | Kind::Ip6erspan) {
                config.erspan.version = Setting::One(erspan.0);
                // Only what belongs to the version is printed.
                match erspan.0 {
                    1 => config.erspan.index = erspan.1,
                    _ => (config.erspan.direction, config.erspan.hardware) = (erspan.2, erspan.3),
                }
            }
            config
        },
    )
}

proptest! {
    #[test]
    fn what_is_printed_is_read_again(config in configs()) {
        let options = config.options();
        let again = Config::parse(config.kind, options.iter().map(|(name, value)| (*name, value.as_str())));
        prop_assert_eq!(again, Ok((config, vec![])), "{:?}", options);
    }

    #[test]
    fn any_text_is_read(
        kind in prop::sample::select(KINDS.to_vec()),
        options in prop::collection::vec((prop::sample::select(vec![
            "remote_ip", "local_ip", "key", "in_key", "out_key", "tos", "ttl", "dst_port", "csum", "seq", "exts", "df_default",
            "packet_type", "egress_pkt_mark", "erspan_ver", "erspan_idx", "erspan_dir", "erspan_hwid", "payload_type",
            "srv6_segs", "srv6_flowlabel", "else",
        ]), "\\PC*|-?(0x)?[0-9a-f]{0,40}|flow|[0-9:.,]{0,20}"), 0..8),
    ) {
        let options = options.iter().map(|(name, value)| (*name, value.as_str()));
        if let Ok((config, _)) = Config::parse(kind, options) {
            prop_assert!(!config.list("p", 1).is_empty() && !config.options().is_empty());
        }
    }
}
