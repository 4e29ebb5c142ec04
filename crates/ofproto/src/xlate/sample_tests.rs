//! What is sampled where, what samples say, and whom NetFlow's flows are credited to.

use std::time::Duration;

use datapath::{Action as DpAction, Config, IpfixPunt, Punt};
use export::exporter::What;
use export::settings::{BridgeExport, BridgeIpfix, FlowIpfix, Netflow, Sflow};
use export::{Moment, netflow};
use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::text::parse_flow_mod;
use openflow::{FlowModCommand, GroupId, OfPort};
use packet::Clock;
use packet::flow::text::NoNames;
use packet::wire::build;
use ports::registry;

use crate::model::port::PortSpec;
use crate::reference::tests::Bed;
use crate::xlate::tunnel_tests::Host;

const ME: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Ports, from 1 on, have these numbers as interfaces, from 1001 on.
const IFINDEX: u32 = 1000;

fn frame() -> Vec<u8> {
    udp(53)
}

/// A datagram for this port.
fn udp(port: u16) -> Vec<u8> {
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, ..Default::default() };
    build::ethernet(OTHER, ME, &[], 0x0800, &header.packet(build::udp(1000, port, b"question")))
}

/// A switch with ports 1 to 3 and these flows.
fn bed(flows: &[&str]) -> Bed {
    let mut bed = Bed::with(0, Config::default());
    for n in 1..=3 {
        let mut spec = registry::PortSpec::new(&format!("p{n}"), "dummy");
        spec.options.insert("ifindex".into(), (IFINDEX + n).to_string());
        let port = registry::open(&spec, &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(&spec.name).unwrap());
        assert_eq!(bed.bridge.add_port(PortSpec::new(port)).unwrap(), OfPort(n));
    }
    add_flows(&bed, flows);
    bed
}

fn add_flows(bed: &Bed, flows: &[&str]) {
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
}

fn sflow(sampling: u32) -> BridgeExport {
    let polling = Duration::ZERO;
    let sflow = Sflow { targets: Vec::new(), sampling, polling, header: 64, agent: Some("10.0.0.9".into()), sub_id: 0 };
    BridgeExport { sflow: Some(sflow), ..BridgeExport::default() }
}

fn ipfix(input: bool, output: bool) -> BridgeExport {
    let exporter = FlowIpfix { tunnels: true, ..FlowIpfix::default() };
    let ipfix = BridgeIpfix { exporter, sampling: 1, obs_domain: 7, obs_point: 8, input, output };
    BridgeExport { ipfix: Some(ipfix), ..BridgeExport::default() }
}

/// A collector set with number 5.
fn collector_set() -> BridgeExport {
    let set = FlowIpfix { tunnels: true, ..FlowIpfix::default() };
    BridgeExport { collector_sets: [(5, set)].into(), ..BridgeExport::default() }
}

fn netflow() -> BridgeExport {
    let netflow = Netflow {
        targets: Vec::new(),
        engine_type: 0,
        engine_id: 0,
        active_timeout: Duration::ZERO,
        add_id_to_interface: false,
    };
    BridgeExport { netflow: Some(netflow), ..BridgeExport::default() }
}

/// The datapath actions of the flows of first passes, as `dpctl/dump-flows` shows them.
fn shown(bed: &Bed) -> String {
    let flows = bed.datapath.flows().filter(|flow| flow.key.common().recirc_id.get() == 0);
    let texts = flows.map(|flow| {
        let mut text = String::new();
        datapath::text::format_actions(&mut text, &flow.actions, &flow.key, &datapath::text::Context::default());
        text.replace("pid=0,", "")
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// The actions of the flow of one frame that comes in by port 1.
fn actions_of(flows: &[&str], export: &BridgeExport) -> String {
    let bed = bed(flows);
    bed.bridge.set_export(export);
    bed.receive(OfPort(1), &frame());
    check_account(&bed);
    shown(&bed)
}

fn check_account(bed: &Bed) {
    let account = bed.datapath.account();
    assert_eq!(account.came(), account.went(), "{account}");
}

fn sampled(output: u32) -> String {
    format!("userspace(sFlow(vid=0,pcp=0,output={output}),actions)")
}

#[test]
fn sflow_tells_where_a_packet_goes() {
    const NOWHERE: u32 = 0x4000_0100;
    const SEVERAL: u32 = 0x8000_0000;
    let dp_ports = |text: &str| text.to_owned();
    for (actions, output, rest) in [
        ("drop", NOWHERE, ""),
        ("2", IFINDEX + 2, ",2"),
        ("2,3", SEVERAL + 2, ",2,3"),
        ("2,3,2", SEVERAL + 3, ",2,3,2"),
        ("flood", SEVERAL + 2, ",2,3"),
        // What a controller gets goes to no port.
        ("controller", NOWHERE, ""),
    ] {
        let shown = actions_of(&[&format!("actions={actions}")], &sflow(1));
        assert!(shown.starts_with(&sampled(output)), "{actions}: {shown}");
        assert!(shown.ends_with(&dp_ports(rest)), "{actions}: {shown}");
    }
    let tagged = actions_of(&["actions=mod_vlan_vid:9,mod_vlan_pcp:7,output:2"], &sflow(1));
    assert!(tagged.starts_with("userspace(sFlow(vid=9,pcp=7,output=1002),actions)"), "{tagged}");
}

#[test]
fn a_part_of_the_packets_is_sampled_below_a_step() {
    let shown = actions_of(&["actions=2"], &sflow(4));
    assert_eq!(shown, format!("sample(sample=25.0%,actions({})),2", sampled(IFINDEX + 2)));
    assert_eq!(actions_of(&["actions=2"], &sflow(0)), "2", "none is");
}

#[test]
fn a_flow_changes_with_what_is_exported() {
    let bed = bed(&["actions=2"]);
    let mut now = bed.clock.now();
    for (export, expected) in [
        (BridgeExport::default(), "2".to_owned()),
        (sflow(1), format!("{},2", sampled(IFINDEX + 2))),
        (ipfix(true, false), "userspace(ipfix(output_port=4294967295)),2".to_owned()),
        (BridgeExport::default(), "2".to_owned()),
    ] {
        bed.bridge.set_export(&export);
        bed.clock.advance(Duration::from_secs(1));
        now = now + Duration::from_secs(1);
        bed.switch.run(now);
        assert_eq!(bed.receive(OfPort(1), &frame()).len(), 1);
        assert_eq!(shown(&bed), expected);
    }
    check_account(&bed);
}

#[test]
fn ipfix_samples_what_comes_in_and_what_goes_out() {
    let came = "userspace(ipfix(output_port=4294967295))";
    let flows = ["actions=2,3"];
    assert_eq!(actions_of(&flows, &ipfix(true, false)), format!("{came},2,3"));
    let went = |port: u32| format!("userspace(ipfix(output_port={port})),{port}");
    assert_eq!(actions_of(&flows, &ipfix(false, true)), format!("{},{}", went(2), went(3)));
    assert_eq!(actions_of(&flows, &ipfix(true, true)), format!("{came},{},{}", went(2), went(3)));
    assert_eq!(actions_of(&flows, &ipfix(false, false)), "2,3");
    // A packet that goes nowhere is sampled where it comes in, and says so.
    let bed = bed(&["actions=drop"]);
    bed.bridge.set_export(&ipfix(true, true));
    bed.receive(OfPort(1), &frame());
    let flow = bed.datapath.flows().next().unwrap();
    assert!(matches!(punts(&flow.actions)[..], [IpfixPunt { is_forwarded: false, output: None, .. }]));
}

/// The samples for IPFIX among actions.
fn punts(actions: &[DpAction]) -> Vec<IpfixPunt> {
    let each = |action: &DpAction| match action {
        DpAction::Punt(punt) => match &**punt {
            Punt::Ipfix(punt) => vec![punt.clone()],
            _ => Vec::new(),
        },
        DpAction::Clone(actions) | DpAction::Sample { actions, .. } => punts(actions),
        _ => Vec::new(),
    };
    actions.iter().flat_map(each).collect()
}

#[test]
fn ipfix_tells_tunnels() {
    for tells in [true, false] {
        let host = Host::new(&["gre remote_ip=192.0.2.2 key=77"], &["actions=10"]);
        let mut export = ipfix(false, true);
        export.ipfix.as_mut().unwrap().exporter.tunnels = tells;
        host.bed.bridge.set_export(&export);
        assert_eq!(host.send(&frame()).len(), 1);
        let found: Vec<_> = host.bed.datapath.flows().flat_map(|flow| punts(&flow.actions)).collect();
        let [IpfixPunt { output: Some(output), tunnel_port, tunnel, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(*tunnel_port, tells.then_some(*output));
        let told = tunnel.as_ref().map(|tunnel| (tunnel.src.to_string(), tunnel.dst.to_string(), tunnel.id));
        assert_eq!(told, tells.then(|| ("192.0.2.1".into(), "192.0.2.2".into(), 77)));
    }
}

#[test]
fn the_action_samples_where_it_stands() {
    let sample = "sample(probability=65535,collector_set_id=5,obs_domain_id=1,obs_point_id=2)";
    let text = "userspace(flow_sample(probability=65535,collector_set_id=5,obs_domain_id=1,obs_point_id=2,\
                output_port=4294967295))";
    let shown = |actions: &str| actions_of(&[&format!("actions={actions}")], &collector_set());
    assert_eq!(shown(&format!("{sample},2")), format!("{text},2"));
    assert_eq!(shown(&format!("2,{sample}")), format!("2,{text}"));
    // In a clone, with what the clone has changed; what comes behind it has not changed.
    let inside = shown(&format!("clone(mod_dl_src:02:00:00:00:00:07,{sample}),2"));
    let (there, back) = ("set(eth(src=02:00:00:00:00:07))", "set(eth(src=02:00:00:00:00:01))");
    assert_eq!(inside, format!("{there},{text},{back},2"));
    // Without the collector set, the bridge's exporter makes no difference to the action, and nothing takes the samples.
    assert_eq!(actions_of(&[&format!("actions={sample},2")], &BridgeExport::default()), "2");
    let seldom = sample.replace("65535", "32768");
    let shown = shown(&format!("{seldom},2"));
    assert!(shown.starts_with("sample(sample=50.0%,actions(userspace(flow_sample(probability=32768"), "{shown}");
}

#[test]
fn tables_behind_groups_sample_and_buckets_do_not() {
    let bed = bed(&[]);
    bed.bridge.set_export(&collector_set());
    let sample = "sample(probability=65535,collector_set_id=5,obs_domain_id=1,obs_point_id=2)";
    let actions = |text: &str| {
        let flow = parse_flow_mod(FlowModCommand::Add, &format!("actions={text}"), &NoNames).unwrap();
        flow.instructions.apply
    };
    let bucket = |id, text: &str| Bucket {
        id,
        weight: 1,
        watch_port: OfPort::ANY,
        watch_group: GroupId::ANY,
        actions: actions(text),
    };
    // A bucket is an action set, in which there is no place for the action.
    let buckets = vec![bucket(0, "resubmit(,1)"), bucket(1, &format!("{sample},3"))];
    bed.put_group(1, &GroupSpec { kind: GroupType::All, buckets, selection: Default::default() });
    add_flows(&bed, &["table=0,actions=group:1", &format!("table=1,actions={sample},2")]);
    assert_eq!(bed.receive(OfPort(1), &frame()).len(), 2);
    let shown = shown(&bed);
    assert_eq!(shown.matches("flow_sample(").count(), 1, "{shown}");
    check_account(&bed);
    let What::CollectorSet(5, done) = bed.bridge.export_reports()[0].what else { panic!("no collector set") };
    assert_eq!((done.packets, done.flows, done.ipv4), (1, 1, 1));
}

#[test]
fn later_passes_sample_what_they_send() {
    let flows = ["table=0,ip,actions=ct(table=1)", "table=1,ct_state=+trk,actions=3"];
    let bed = bed(&flows);
    bed.bridge.set_export(&BridgeExport { sflow: sflow(1).sflow, ..ipfix(true, true) });
    assert_eq!(bed.receive(OfPort(1), &frame()).len(), 1);
    let reports = bed.bridge.export_reports();
    let (What::Sflow { samples }, What::Ipfix(ipfix)) = (&reports[0].what, &reports[1].what) else { panic!() };
    // Once where it comes in, and once where it goes out.
    assert_eq!((*samples, ipfix.packets), (1, 2));
    check_account(&bed);
}

#[test]
fn every_packet_is_sampled_once_whatever_its_run_is() {
    // Of so many, most runs have none that is sampled.
    for (sampling, rounds) in [(1, 30), (3, 30), (70, 300)] {
        let bed = bed(&["in_port=1,actions=2", "in_port=2,actions=mod_nw_tos:4,1,3"]);
        bed.bridge.set_export(&sflow(sampling));
        for _ in 0..rounds {
            for port in 0..2 {
                (0..32).for_each(|_| assert!(bed.devices[port].inject(&frame())));
            }
            bed.poll();
            bed.sent();
            // Takes them, so that there is room for others.
            bed.bridge.export_reports();
        }
        check_account(&bed);
        let What::Sflow { samples } = bed.bridge.export_reports()[0].what else { panic!("no agent") };
        let packets = f64::from(rounds) * 64.0;
        let p = 1.0 / f64::from(sampling);
        let deviation = (packets * p * (1.0 - p)).sqrt();
        assert!((f64::from(samples) - packets * p).abs() <= 5.0 * deviation, "{samples} of {packets}");
    }
}

/// Packets that are runs of their own leave together, whether they are sampled or not.
#[test]
fn what_is_sampled_is_still_gathered() {
    let bed = bed(&["in_port=1,udp,tp_dst=0/1,actions=2", "in_port=1,udp,tp_dst=1/1,actions=2"]);
    bed.bridge.set_export(&sflow(2));
    let batches = || bed.datapath.stats().workers.iter().map(|worker| worker.batches_sent).sum::<u64>();
    for round in 0..20 {
        let before = batches();
        (0..32).for_each(|port| assert!(bed.devices[0].inject(&udp(port))));
        bed.poll();
        assert_eq!(bed.sent().len(), 32);
        // The first ones wait for what translates them.
        assert!(round == 0 || batches() - before == 1, "{round}: {}", batches() - before);
        bed.bridge.export_reports();
    }
}

/// The records of NetFlow that there would be if all flows ended now: input, output, packets.
fn records(bed: &Bed) -> Vec<(u16, u16, u32)> {
    // Statistics come by a round.
    bed.clock.advance(Duration::from_secs(2));
    bed.switch.run(bed.clock.now());
    let flows = bed.switch.forwarding.read().bridges[&bed.bridge.id()].sampling.netflow.clone().unwrap();
    let mut sent = Vec::new();
    flows.end_all(Moment { now: bed.clock.now(), wall: Duration::ZERO }, &mut sent);
    let packets = sent.iter().flat_map(|packet| packet[24..].chunks(48));
    let half = |record: &[u8], at: usize| u16::from_be_bytes([record[at], record[at + 1]]);
    packets.map(|r| (half(r, 12), half(r, 14), u32::from_be_bytes(r[16..20].try_into().unwrap()))).collect()
}

#[test]
fn netflow_is_credited_with_where_packets_go() {
    for (actions, output) in [
        ("2", 2),
        ("2,3", netflow::OUT_MULTIPLE),
        ("2,2", netflow::OUT_MULTIPLE),
        ("flood", netflow::OUT_FLOOD),
        ("2,flood", netflow::OUT_FLOOD),
        ("drop", netflow::OUT_DROP),
        ("controller", netflow::OUT_DROP),
        // A later pass decides.
        ("ct(table=1)", netflow::OUT_UNKNOWN),
        ("2,ct(table=1)", 2),
    ] {
        let bed = bed(&[&format!("table=0,ip,actions={actions}"), "table=1,actions=3"]);
        bed.bridge.set_export(&netflow());
        for _ in 0..5 {
            bed.receive(OfPort(1), &frame());
        }
        // The first one made the flow, and is credited, too.
        assert_eq!(records(&bed), [(1, output, 5)], "{actions}");
        assert_eq!(records(&bed), [], "{actions}: nothing is credited twice");
    }
}

#[test]
fn netflow_tells_flows_apart_that_the_tables_do_not() {
    let bed = bed(&["actions=2"]);
    bed.bridge.set_export(&netflow());
    let arp = build::ethernet(OTHER, ME, &[], 0x0806, &[0; 46]);
    for port in [1, 2, 2, 3] {
        bed.receive(OfPort(1), &udp(port));
    }
    assert_eq!(bed.receive(OfPort(1), &arp).len(), 1);
    let mut found = records(&bed);
    found.sort();
    assert_eq!(found, [(1, 2, 1), (1, 2, 1), (1, 2, 2)], "there is no record of what is not IPv4");
}
