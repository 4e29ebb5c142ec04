use super::*;
use proptest::prelude::*;
use std::time::Duration;

const GOOD: &str = r#"
[workers]
cores = [0, 1]
sleep-max-us = 100

[conntrack]
limit = 1000000
zone-limit = 5000
tcp-sequence-check = false
early-drop = true

[tls]
private-key = "/k"
certificate = "/c"
ca-cert = "/ca"
bootstrap-ca-cert = true
protocols = "TLSv1.3"

[[conntrack.zone]]
number = 5
limit = 0
timeouts = { tcp-established = 3600, icmp_first = 5 }

[[bridge]]
name = "br0"
local = false
datapath-id = "00000000000000a1"
fail_mode = "secure"
controllers = ["tcp:127.0.0.1:6653", { target = "ptcp:", max-backoff-ms = 2000, rate-limit = 100 }]
flows = [
  "priority=10,in_port=1,actions=output:2",
  "priority=0,actions=NORMAL",
]

[[bridge.port]]
name = "p1"
type = "dummy"
tag = 10
ofport = 7

[[bridge.port]]
name = "p2"
trunks = [1, 2]
mtu = 9000
options = { n_rxq = 2, "qdisc-bypass" = true }

[[bridge.port]]
name = "p3"
type = "tap"
vlan-mode = "native-untagged"
tag = 0x5
mac = "02:00:00:00:00:01"
"#;

fn load_text(text: &str) -> Result<Loaded, ConfigErrors> {
    parse(Path::new("test.toml"), text)
}

fn errors(text: &str) -> Vec<String> {
    load_text(text).expect_err(text).0.iter().map(ToString::to_string).collect()
}

#[test]
fn everything_is_read() {
    let loaded = load_text(GOOD).unwrap();
    let desired = loaded.desired;
    assert_eq!(desired.workers.cores, BTreeSet::from([0, 1]));
    assert_eq!(desired.workers.sleep_max, Duration::from_micros(100));
    let timeouts = BTreeMap::from([("tcp_established".into(), 3600), ("icmp_first".into(), 5)]);
    let conntrack = Conntrack {
        limit: 1_000_000,
        zone_limit: Some(5000),
        tcp_sequence_check: false,
        early_drop: true,
        zones: BTreeMap::from([(5, CtZone { limit: Some(0), timeouts })]),
    };
    assert_eq!(desired.conntrack, conntrack);
    let tls = desired.tls;
    assert_eq!((tls.private_key, tls.ca), (Some("/k".into()), Some(tls::Ca::Bootstrap("/ca".into()))));
    assert!(tls.versions.v1_3 && !tls.versions.v1_2);
    let bridge = &desired.bridges["br0"];
    assert!(!bridge.settings.local);
    assert_eq!(bridge.settings.datapath_id, Some(0xa1));
    assert_eq!(bridge.settings.fail_mode, FailMode::Secure);
    assert_eq!(bridge.flows.len(), 2);
    let listener = &bridge.controllers[&Target::PassiveTcp(6653, None)];
    assert_eq!(listener.max_backoff, Duration::from_secs(2));
    let limit = listener.packet_in_limit().unwrap();
    assert_eq!((limit.rate, limit.burst), (100, 25));
    assert_eq!(bridge.ports["p1"].vlans.effective_mode(), VlanMode::Access);
    assert_eq!(bridge.ports["p1"].interfaces["p1"].ofport_request, Some(7));
    assert_eq!(bridge.ports["p2"].interfaces["p2"].kind, "system");
    assert_eq!(bridge.ports["p2"].interfaces["p2"].options["n_rxq"], "2");
    assert_eq!(bridge.ports["p2"].vlans.trunks, BTreeSet::from([1, 2]));
    assert_eq!(bridge.ports["p3"].vlans.tag, Some(5));
    let error = loaded.origins.error(&port_key("br0", "p3"), "gone").to_string();
    assert_eq!(error, "test.toml:48: bridge.br0.port.p3: gone");
}

#[test]
fn of_very_many_mistakes_some_are_told_and_all_counted() {
    let file = |n| (0..n).map(|i| format!("[[bridge]]\nname = 'b{i}'\nnonsense = 1\n")).collect::<String>();
    assert_eq!(errors(&file(100)).len(), 100);
    let told = errors(&file(150));
    assert_eq!((told.len(), told[100].as_str()), (101, "test.toml: and 50 more mistakes"));
}

#[test]
fn names_with_control_characters_are_refused() {
    for name in ["a\\nb", "a\\u0000", "a\\u001b"] {
        let bridge = format!("[[bridge]]\nname = \"{name}\"\nlocal = false\n");
        let port = format!("[[bridge]]\nname = 'b'\n[[bridge.port]]\nname = \"{name}\"\n");
        for text in [bridge, port] {
            assert!(errors(&text).iter().any(|error| error.contains("control character")), "{:?}", errors(&text));
        }
    }
}

#[test]
fn text_that_is_not_utf_8_is_refused_with_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"# one\n# two\n\xff\n").unwrap();
    let error = load(file.path()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}:3: the configuration is not UTF-8", file.path().display())), "{error}");
}

#[test]
fn tunnels_are_read_and_their_options_checked() {
    let file = |kind: &str, options: &str| {
        format!("[[bridge]]\nname = 'b'\n[[bridge.port]]\nname = 't'\ntype = '{kind}'\noptions = {{ {options} }}\n")
    };
    let read = load_text(&file("geneve", "remote_ip = '192.0.2.1', key = 7, csum = true")).unwrap().desired;
    let port = &read.bridges["b"].ports["t"].interfaces["t"];
    assert_eq!(
        (port.kind.as_str(), port.options["key"].as_str(), port.options["csum"].as_str()),
        ("geneve", "7", "true")
    );
    for (kind, options, expected) in
        [("vxlan", "key = 7", "remote_ip"), ("vxlan", "remote_ip = '192.0.2.1', tunnel = 1", "tunnel")]
    {
        let errors = errors(&file(kind, options));
        assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
    }
    let filtered = file("vxlan", "remote_ip = '192.0.2.1'") + "ingress-filter = 'drop udp'\n";
    assert!(errors(&filtered).iter().any(|error| error.contains("ingress-filter")), "{:?}", errors(&filtered));
}

#[test]
fn an_empty_file_is_a_configuration() {
    assert_eq!(load_text("").unwrap().desired, Desired::default());
}

/// Each mistake names the line, the key, and what would be right.
#[test]
fn mistakes_are_explained() {
    for (text, expected) in [
        ("[[bridges]]", "test.toml:1: bridges: unknown key; did you mean \"bridge\"?"),
        ("{p}tpye = 'tap'", "test.toml:5: bridge.b.port.p.tpye: unknown key; did you mean \"type\"?"),
        (
            "[workers]\nfoobarbaz = 1",
            "unknown key (keys here: cores, sleep-max-us, tx-flush-interval-us, rx-assign, rx-isolate, \
             perf-metrics, auto-balance, auto-balance-load, auto-balance-improvement, auto-balance-minutes)",
        ),
        ("bridge = 5", "test.toml:1: bridge: expected an array, bridge = [...] or [[bridge]], got 5"),
        ("[[bridge]]\nlocal = false", "test.toml:1: bridge: a bridge needs a name: name = \"...\""),
        ("{p}tag = 1\ntag = 2", "test.toml:6: duplicate key"),
        (
            "{p}[[bridge.port]]\nname = 'p'",
            "test.toml:6: bridge.b.port.p: the name \"p\" is used twice: line 4 has it already",
        ),
        (
            "{p}[[bridge]]\nname = 'c'\n[[bridge.port]]\nname = 'p'",
            "test.toml:8: bridge.c.port.p: the name \"p\" is used twice: bridge.b.port.p, line 4 has it already",
        ),
        (
            "{p}[[bridge.port]]\nname = 'b'",
            "test.toml:6: bridge.b.port.b: the name \"b\" is used twice: bridge.b, line 2",
        ),
        (
            "{p}tag = 5000",
            "test.toml:5: bridge.b.port.p.tag: 5000 is not the number of a VLAN (4095 is reserved); it is a whole number from 1 to 4094",
        ),
        ("{p}trunks = [1, 4095]", "4095 is not the number of a VLAN"),
        ("{p}tag = 1\ntrunks = [1]", "an access port carries one VLAN"),
        ("{p}vlan-mode = 'access'", "needs a tag"),
        ("{p}vlan-mode = 'trunk'\ntag = 3", "a trunk port has no tag"),
        ("{p}vlan-mode = 'acess'", "\"acess\" is not one of \"access\", "),
        ("{p}type = 'dumy'", "did you mean \"dummy\"?"),
        (
            "{p}ofport = 1\n[[bridge.port]]\nname = 'q'\nofport = 1",
            "test.toml:8: bridge.b.port.q.ofport: OpenFlow port 1 is taken by port p",
        ),
        ("{p}mac = '01:00:00:00:00:01'", "not the address of a station"),
        ("{p}options = 3", "expected a table, got 3"),
        ("{b}[[bridge.port]]\nname = 'aninterfacenamethatistoolong'", "1 to 15 bytes"),
        ("[[bridge]]\nname = 'a/b'", "no '/'"),
        ("{b}flows = ['ip']", "test.toml:3: bridge.b.flows: flow \"ip\": "),
        (
            "{b}flows = [\n'ip,actions=drop',\n'ip,actions=output:1']",
            "test.toml:5: bridge.b.flows: flow \"ip,actions=output:1\" has the same match as the flow in line 4",
        ),
        ("{b}datapath-id = '12'", "16 hexadecimal digits"),
        ("{b}fail_mode = 'secure'\nfail-mode = 'secure'", "the key stands here twice"),
        ("{b}local = 1", "expected true or false, got 1"),
        ("{b}controllers = ['tpc:1.2.3.4']", "is not an address of a controller"),
        ("{b}controllers = [{ max-backoff-ms = 1000 }]", "a controller needs a target"),
        ("{b}controllers = ['tcp:a', 'tcp:a:6653']", "is listed twice"),
        ("[[conntrack.zone]]\nlimit = 3", "a zone needs a number"),
        ("[[conntrack.zone]]\nnumber = 65536", "65536 is not the number of a zone"),
        ("[[conntrack.zone]]\nnumber = 1\n[[conntrack.zone]]\nnumber = 1", "zone 1 is listed twice"),
        ("[[conntrack.zone]]\nnumber = 1\ntimeouts = { tcp_sin_sent = 3 }", "did you mean \"tcp_syn_sent\""),
        ("[[conntrack.zone]]\nnumber = 1\ntimeouts = { udp_first = -3 }", "-3 is not a number of seconds"),
        ("{p}[bridge.port.qos]\noptions = {}", "a QoS needs a type"),
        ("{p}[bridge.port.qos]\ntype = 'linux-htp'", "known types: linux-htb"),
        (
            "{p}[bridge.port.qos]\ntype = 'egress-policer'",
            "egress-policer-cir and egress-policer-cbs of the port are for this",
        ),
        ("{p}[bridge.port.qos]\ntype = 'linux-htb'\noptions = { max_rat = 1 }", "did you mean \"max-rate\"?"),
        ("{p}[bridge.port.qos]\ntype = 'linux-htb'\noptions = { max-rate = -1 }", "-1 is not a number"),
        ("{p}[bridge.port.qos]\ntype = 'linux-sfq'\n[[bridge.port.qos.queue]]\nnumber = 1", "has no queues"),
        ("{p}[bridge.port.qos]\ntype = 'linux-htb'\n[[bridge.port.qos.queue]]\ndscp = 1", "a queue needs a number"),
        ("{p}[bridge.port.qos]\ntype = 'linux-htb'\n[[bridge.port.qos.queue]]\nnumber = 61440", "below 61440"),
        (
            "{p}[bridge.port.qos]\ntype = 'linux-htb'\nqueue = [{ number = 1 }, { number = 1 }]",
            "queue 1 is listed twice",
        ),
        (
            "{p}[bridge.port.qos]\ntype = 'linux-htb'\nqueue = [{ number = 1, options = { cir = 1 } }]",
            "settings here: burst, max-rate, min-rate, priority",
        ),
        ("{p}[bridge.port.qos]\ntype = 'trtcm-policer'\noptions = { cir = 1 }", "cir needs cbs"),
        (
            "{p}egress-policer-cir = 1\negress-policer-cbs = 1\n[bridge.port.qos]\ntype = 'linux-htb'",
            "a port has a QoS, or egress-policer-cir",
        ),
        (
            "{p}type = 'patch'\noptions = { peer = 'x' }\nqos = { type = 'linux-htb' }",
            "bridge.b.port.p.qos: patch ports and tunnels send nothing",
        ),
        (
            "{p}qos = { type = 'linux-htb' }\ninterface = [{ name = 'i', egress-policer-cir = 1, egress-policer-cbs = 1 }]",
            "bridge.b.port.p.interface.i.egress-policer-cir: a port has a QoS, or egress-policer-cir",
        ),
        ("[conntrack]\nlimits = 3", "did you mean \"limit\""),
        ("[workers]\ncores = [1, 1]", "core 1 is listed twice"),
        ("[workers]\ncores = 2", "expected an array, cores = [...] or [[workers.cores]], got 2"),
        ("[workers\n", "test.toml:1:"),
    ] {
        let bridge = "[[bridge]]\nname = 'b'\n";
        let text = &text.replace("{p}", "{b}[[bridge.port]]\nname = 'p'\n").replace("{b}", bridge);
        let got = errors(text);
        assert!(got.iter().any(|e| e.contains(expected)), "{text}\nexpected: {expected}\ngot: {got:#?}");
    }
}

#[test]
fn every_mistake_is_reported_in_the_order_of_the_file() {
    let got = errors("[workers]\ncore = []\nsleep-max-us = -1\n[[bridge]]\nname = 'b'\nflow = []\nlocal = 0");
    let lines: Vec<_> = got.iter().map(|e| e.split(':').nth(1).unwrap().to_owned()).collect();
    assert_eq!(lines, ["2", "3", "6", "7"], "{got:#?}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/x.toml: cannot read the configuration"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_taken(text in "([\\[\\]{}=.,\"#\n a-z0-9-]|bridge|port|name|flows|workers|actions=){0,60}") {
        fuzz(text.as_bytes());
    }

    /// A good file with one piece cut out or doubled never panics.
    #[test]
    fn damaged_files_are_taken(at in 0usize..700, len in 0usize..30, twice in any::<bool>()) {
        let mut text = GOOD.to_string();
        let (at, end) = (at.min(text.len()), (at + len).min(text.len()));
        let piece = text[at..end].to_string();
        text.replace_range(at..end, &if twice { piece.repeat(2) } else { String::new() });
        fuzz(text.as_bytes());
    }
}

#[test]
fn a_file_is_read_again_when_somebody_asks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    write("[[bridge]]\nname = 'br0'");
    let mut source = TomlSource::open(path.clone()).unwrap();
    assert_eq!(source.location(), path.to_str().unwrap());
    let bridges = |loaded: Loaded| loaded.desired.bridges.into_keys().collect::<Vec<_>>();
    assert_eq!(bridges(runtime.block_on(source.first())), ["br0"]);
    write("[[bridge]]\nname = 'br1'");
    assert_eq!(bridges(runtime.block_on(source.reread()).unwrap()), ["br1"]);
    for (text, says) in [
        ("[[bridge]]\nname = 'br1'\nlocl = true", "weir.toml:3:"),
        ("[workers]\ncores = [4095]", "core 4095 does not exist"),
    ] {
        write(text);
        let problem = runtime.block_on(source.reread()).unwrap_err();
        assert!(problem.contains(says), "{problem}");
    }
}

const EXPORT: &str = r#"
[[bridge]]
name = "br0"

[bridge.sflow]
targets = ["192.0.2.9", "[2001:db8::9]:1"]
sampling = 1000
polling-s = 10
header = 64
agent = "eth0"

[bridge.netflow]
targets = ["192.0.2.9:2055"]
engine-type = 1
engine-id = 2
active-timeout-s = 60
add-id-to-interface = true

[bridge.ipfix]
targets = ["192.0.2.9"]
output-sampling = false
obs-domain-id = 3

[[bridge.collector-set]]
id = 5
targets = ["192.0.2.9:1"]
cache-active-timeout-s = 60
cache-max-flows = 100
tunnel-sampling = false
virtual-obs-id = "here"

[[bridge]]
name = "br1"
[bridge.sflow]
targets = ["192.0.2.9"]
"#;

#[test]
fn ports_have_queues() {
    let text = "[[bridge]]\nname = 'b'\n[[bridge.port]]\nname = 'p'\n[bridge.port.qos]\ntype = 'linux-htb'\noptions = { max-rate = 9_000_000 }\n\
                [[bridge.port.qos.queue]]\nnumber = 0\noptions = { priority = 3 }\n[[bridge.port.qos.queue]]\nnumber = 7\ndscp = 46\n\
                options = { min-rate = 1000, max-rate = 2000 }\n\
                [[bridge.port]]\nname = 'bond'\ninterface = [{ name = 'a' }, { name = 'b2' }]\n\
                qos = { type = 'trtcm-policer', options = { cir = 1000, cbs = 2000 }, queue = [{ number = 1, options = { eir = 5, ebs = 6 } }] }";
    let desired = load_text(text).unwrap().desired;
    let ports = &desired.bridges["b"].ports;
    let interface = &ports["p"].interfaces["p"];
    let mut wanted = ports::Qos::new("linux-htb", [("max-rate", "9000000")]).unwrap();
    wanted.add_queue(0, [("priority", "3")]).unwrap();
    wanted.add_queue(7, [("min-rate", "1000"), ("max-rate", "2000")]).unwrap();
    assert_eq!((interface.qos.as_ref(), &interface.queue_dscp), (Some(&wanted), &[(7, 46)].into()));
    assert_eq!(interface.policing.egress, None);
    for interface in ports["bond"].interfaces.values() {
        let Some(Egress::TwoRates(limits)) = &interface.policing.egress else { panic!("{interface:?}") };
        assert_eq!((limits.port.cir, limits.queues[&0].cbs, limits.queues[&1].eir), (1000, 2000, 5));
        assert_eq!(interface.qos, None);
    }
}

#[test]
fn what_bridges_export() {
    use ::export::settings::{BridgeExport, BridgeIpfix, FlowIpfix, Netflow, Sflow};
    let target = |text: &str| vec![text.parse().unwrap()];
    let loaded = load_text(EXPORT).unwrap();
    let exports = |name: &str| loaded.desired.bridges[name].settings.export.clone();
    let targets = vec!["192.0.2.9:6343".parse().unwrap(), "[2001:db8::9]:1".parse().unwrap()];
    let polling = Duration::from_secs(10);
    let sflow = Sflow { targets, sampling: 1000, polling, header: 64, agent: Some("eth0".into()), sub_id: 0 };
    let netflow = Netflow {
        targets: target("192.0.2.9:2055"),
        engine_type: 1,
        engine_id: 2,
        active_timeout: Duration::from_secs(60),
        add_id_to_interface: true,
    };
    let exporter = FlowIpfix { targets: target("192.0.2.9:4739"), tunnels: true, ..FlowIpfix::default() };
    let ipfix = BridgeIpfix { exporter, sampling: 400, obs_domain: 3, obs_point: 0, input: true, output: false };
    let set = FlowIpfix {
        targets: target("192.0.2.9:1"),
        active_timeout: Duration::from_secs(60),
        max_flows: 100,
        tunnels: false,
        virtual_obs_id: Some("here".into()),
    };
    let collector_sets = [(5, set)].into();
    let expected = BridgeExport { sflow: Some(sflow), netflow: Some(netflow), ipfix: Some(ipfix), collector_sets };
    assert_eq!(exports("br0"), expected);
    // Each agent of a host has a number of its own, and the rest is as in OVS without anything said.
    let second = exports("br1").sflow.unwrap();
    assert_eq!((second.sub_id, second.sampling, second.header, second.polling.as_secs()), (1, 400, 128, 30));
}

#[test]
fn what_cannot_be_exported_is_told() {
    for (from, to, expected) in [
        ("192.0.2.9:2055", "192.0.2.9", "has no port"),
        ("192.0.2.9:2055", "collector.example:2055", "is no collector"),
        ("sampling = 1000", "sampling = 0", "sampling"),
        ("engine-id = 2", "engine-id = 128", "seven bits"),
        ("id = 5\n", "", "needs a number"),
        ("header = 64", "headers = 64", "headers"),
        ("targets = [\"192.0.2.9\", \"[2001:db8::9]:1\"]", "targets = []", "no collectors"),
    ] {
        let text = EXPORT.replacen(from, to, 1);
        assert_ne!(text, EXPORT);
        let errors = errors(&text).join("\n");
        assert!(errors.contains(expected), "{to}: {errors}");
    }
}
