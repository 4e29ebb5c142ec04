use std::collections::BTreeMap;

use super::*;
use crate::report::activity::ZoneShow;
use crate::report::measurement::PortRates;
use crate::report::rates::WorkerRates;
use crate::report::{BridgeShow, ControllerShow};

/// A switch with a bridge and two ports that lacks nothing.
fn healthy() -> Switch {
    let port = |name: &str, ofport| PortShow {
        name: name.into(),
        bridge: "br0".into(),
        ofport: Some(ofport),
        mtu: Some(1500),
        link_up: true,
        admin_up: true,
        statistics: BTreeMap::from([("rx_packets".into(), 5000), ("tx_packets".into(), 5000)]),
        ..PortShow::default()
    };
    let controller = ControllerShow { target: "tcp:10.0.0.1:6653".into(), connections: 1, error: None };
    let bridge = BridgeShow {
        name: "br0".into(),
        fail_mode: "secure".into(),
        controllers: vec![controller],
        ..BridgeShow::default()
    };
    let ports = vec![port("eth1", 1), port("vm1", 2), port("br0", openflow::OfPort::LOCAL.0)];
    let worker =
        |number| WorkerRates { worker: Some(number), core: Some(number), busy_percent: 60.0, ..WorkerRates::default() };
    let rates = ports.iter().map(|port| PortRates { name: port.name.clone(), ..PortRates::default() });
    let mut measurement = Measurement { ports: rates.collect(), ..Measurement::default() };
    measurement.stats.workers = vec![worker(0), worker(1)];
    (measurement.upcalls.now.flow_limit, measurement.upcalls.now.misses) = (200_000, 10_000);
    (measurement.connections.limit, measurement.connections.connections) = (3_000_000, 1000);
    let show = Show { config: "/etc/weir.toml".into(), uptime_s: 3600, bridges: vec![bridge], ..Show::default() };
    Switch { show, before: ports.clone(), ports, measurement }
}

fn drop_at(switch: &mut Switch, port: usize, reason: &str, before: u64, now: u64) {
    switch.before[port].drops.insert(reason.into(), before);
    switch.ports[port].drops.insert(reason.into(), now);
}

/// What happens to a healthy switch.
type Change = fn(&mut Switch);

/// What makes a healthy switch have a condition, and what is then said.
type Case = (&'static str, Change, &'static str);

const CASES: &[Case] = &[
    ("not-in-force", |s| s.show.errors.push("no such core: 77".into()), "no such core: 77"),
    (
        "port-not-in-service",
        |s| s.ports[0].error = Some("No such device".into()),
        "eth1 is not in service: No such device",
    ),
    (
        "controller-unreachable",
        |s| s.show.bridges[0].controllers[0].connections = 0,
        "br0 has no connection to tcp:10.0.0.1:6653; what no flow matches is dropped meanwhile",
    ),
    ("upcalls-lost", |s| s.measurement.upcalls.lost = 3.0, "now 3 dropped by second"),
    ("upcalls-lost", |s| s.measurement.upcalls.now.lost = 100, "100 misses were dropped and 10000 answered"),
    ("connections-full", |s| s.measurement.connections.connections = 2_700_000, "2700000 of 3000000 connections"),
    (
        "connections-full",
        |s| s.measurement.connections.zones.push(ZoneShow { zone: 7, connections: 90, limit: Some(100) }),
        "zone 7 has 90 of 100 connections",
    ),
    (
        "connections-full",
        |s| _ = s.measurement.connections.counters.insert("conntrack_zone_full".into(), 4.0),
        "4 connections are refused by second",
    ),
    ("port-down", |s| s.ports[1].link_up = false, "vm1 is enabled and has no carrier"),
    (
        "busy-workers",
        |s| s.measurement.stats.workers[1].busy_percent = 97.0,
        "worker 1 on core 1 is busy 97 % of the time",
    ),
    ("device-drops", |s| s.measurement.ports[0].rx_dropped = 12.0, "the device of eth1 drops 12 frames by second"),
    (
        "transmit-full",
        |s| _ = s.ports[1].tx_drops.insert("ovs_tx_failure_drops".into(), 200),
        "200 packets were dropped at vm1: ovs_tx_failure_drops, 200 of them just now",
    ),
    (
        "mask-pressure",
        |s| s.measurement.upcalls.now.mask_pressure.push("eth1".into()),
        "flows of eth1 ask for more masks",
    ),
    ("flow-limit", |s| s.measurement.upcalls.now.flows = 180_000, "180000 of 200000 datapath flows"),
    ("flow-limit", |s| s.measurement.upcalls.evictions = 5.0, "5 evicted by second"),
    ("mtu-mismatch", |s| s.ports[0].mtu = Some(9000), "vm1 has MTU 1500, eth1 of the same bridge 9000"),
    (
        "packets-too-big",
        |s| drop_at(s, 1, "too_big", 0, 1),
        "1 packets were dropped at vm1: too_big, 1 of them just now",
    ),
    ("sent-to-port-down", |s| drop_at(s, 1, "port_down", 150, 150), "150 packets were dropped at vm1: port_down"),
    (
        "vlan-not-allowed",
        |s| drop_at(s, 0, "vlan_not_allowed", 7, 9),
        "9 packets were dropped at eth1: vlan_not_allowed",
    ),
    ("reserved-addresses", |s| drop_at(s, 0, "reserved_address", 0, 1), "reserved_address"),
    ("tunnel-settings", |s| drop_at(s, 0, "tunnel_route", 0, 1), "tunnel_route"),
    ("tables-too-deep", |s| drop_at(s, 0, "too_many_resubmits", 0, 1), "too_many_resubmits"),
    ("no-buffers", |s| drop_at(s, 0, "no_buffer", 0, 1), "no_buffer"),
    (
        "no-traffic",
        |s| _ = s.ports[1].statistics.insert("rx_packets".into(), 0),
        "vm1 is up and has received nothing; 5000",
    ),
];

/// What is near a condition and not one.
const SILENT: &[(&str, Change)] = &[
    ("not-in-force", |s| s.show.errors.clear()),
    ("port-not-in-service", |s| s.ports[0].status.clear()),
    ("controller-unreachable", |s| s.show.bridges[0].controllers[0].error = Some("it was lost before".into())),
    ("upcalls-lost", |s| s.measurement.upcalls.now.lost = 99),
    ("connections-full", |s| s.measurement.connections.connections = 2_699_999),
    ("port-down", |s| (s.ports[1].link_up, s.ports[1].admin_up) = (false, false)),
    ("busy-workers", |s| s.measurement.stats.workers[1].busy_percent = 89.0),
    ("device-drops", |s| _ = s.ports[0].statistics.insert("rx_dropped".into(), 5)),
    ("transmit-full", |s| {
        for ports in [&mut s.before, &mut s.ports] {
            ports[1].tx_drops.insert("ovs_tx_failure_drops".into(), 99);
        }
    }),
    ("mask-pressure", |s| s.measurement.upcalls.now.masks = 500),
    ("flow-limit", |s| s.measurement.upcalls.now.flows = 179_999),
    ("mtu-mismatch", |s| (s.ports[2].mtu, s.ports[0].mtu) = (Some(1400), Some(1500))),
    ("packets-too-big", |s| drop_at(s, 1, "too_big", 9, 9)),
    ("sent-to-port-down", |s| drop_at(s, 1, "port_down", 5, 5)),
    ("vlan-not-allowed", |s| drop_at(s, 0, "vlan_not_allowed", 9, 9)),
    ("reserved-addresses", |s| drop_at(s, 0, "reserved_address", 9, 9)),
    ("tunnel-settings", |s| drop_at(s, 0, "tunnel_header", 0, 500)),
    ("tables-too-deep", |s| drop_at(s, 0, "rule", 0, 5000)),
    ("no-buffers", |s| drop_at(s, 0, "no_buffer", 9, 9)),
    ("no-traffic", |s| {
        s.show.uptime_s = 59;
        s.ports[1].statistics.insert("rx_packets".into(), 0);
    }),
];

fn ids(switch: &Switch) -> Vec<&'static str> {
    examine(switch).iter().filter_map(|finding| finding.id).collect()
}

#[test]
fn each_condition_is_found_alone_and_says_what_to_do() {
    for (id, break_it, says) in CASES {
        for config in ["/etc/weir.toml", "unix:/run/db.sock"] {
            let mut switch = healthy();
            switch.show.config = config.into();
            break_it(&mut switch);
            let findings = examine(&switch);
            let [finding] = &findings[..] else { panic!("{id}: {findings:?}") };
            assert_eq!(finding.id, Some(*id));
            assert!(finding.found.contains(says), "{id}: {}", finding.found);
            assert_eq!(finding.see, Some(format!("docs/doctor.md#{id}")));
            assert!(!finding.commands.is_empty() && finding.commands.iter().all(|c| !c.contains("{}")), "{finding:?}");
        }
    }
}

#[test]
fn what_is_near_a_condition_is_not_one() {
    assert_eq!(ids(&healthy()), Vec::<&str>::new());
    assert!(examine(&healthy())[0].found.ends_with("nothing to mend"));
    for (id, change) in SILENT {
        let mut switch = healthy();
        change(&mut switch);
        assert_eq!(ids(&switch), Vec::<&str>::new(), "{id}");
    }
}

#[test]
fn each_condition_has_its_cases_and_its_place_in_the_documentation() {
    let page = include_str!("../../../../../docs/doctor.md");
    let mut seen = std::collections::BTreeSet::new();
    for Condition { id, looks_at, database, file, .. } in CONDITIONS {
        assert!(seen.insert(id), "{id} is declared twice");
        assert!(CASES.iter().any(|(case, ..)| case == id), "nothing raises {id}");
        assert!(SILENT.iter().any(|(case, _)| case == id), "nothing is silent about {id}");
        assert!(
            page.contains(&format!("### {id}\n\nLooks at {looks_at}.\n")),
            "docs/doctor.md lacks: ### {id}, Looks at {looks_at}."
        );
        assert!(!database.is_empty() && !file.is_empty(), "{id} has no advice");
    }
}

#[test]
fn reasons_of_conditions_are_those_that_are_counted() {
    let known: Vec<_> = (datapath::DropReason::ALL.iter().map(|r| r.name()))
        .chain(ports::drop::TxDrop::ALL.iter().map(|r| r.name()))
        .collect();
    for Condition { id, find, .. } in CONDITIONS {
        if let Finder::Drops(reasons) = find {
            assert!(reasons.iter().all(|reason| known.contains(reason)), "{id}: {reasons:?}");
        }
    }
}

#[test]
fn many_places_make_few_findings() {
    let mut switch = healthy();
    switch.ports = (0..1000)
        .map(|n| PortShow {
            name: format!("p{n}"),
            bridge: "br0".into(),
            error: Some("gone".into()),
            ..PortShow::default()
        })
        .collect();
    let findings = examine(&switch);
    assert_eq!(findings.len(), MOST);
    assert!(findings[MOST - 1].found.ends_with("; and 992 more like it"), "{:?}", findings[MOST - 1]);
}
