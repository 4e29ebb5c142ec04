//! LLDP in a switch: which frames it takes, which it sends, and what it says of a port's VLANs.

use std::sync::Arc;
use std::time::Duration;

use openflow::text::parse_flow_mod;
use openflow::{FlowModCommand, OfPort};
use packet::Clock as _;
use packet::flow::text::NoNames;
use protocols::lldp::agent::Agent;
use protocols::lldp::pdu::{ETHERTYPE, GROUP, Lldpdu};
use protocols::lldp::{AutoAttach, pdu};

use crate::model::bond::BondSettings;
use crate::model::config::BridgeConfig;
use crate::model::port::PortSpec;
use crate::reference::tests::Bed;
use crate::slowpath::lldp::LldpReport;

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xee];

/// A switch whose ports 1 and 2 are wired by NORMAL-like flows.
fn bed() -> Bed {
    let bed = Bed::new(2);
    for flow in ["in_port=1,actions=2", "in_port=2,actions=1"] {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

fn attach(bed: &Bed, mappings: &[(u32, u16)]) {
    let mappings = mappings.iter().copied().collect();
    let auto_attach = Arc::new(AutoAttach { system_name: "br".into(), system_description: "test".into(), mappings });
    bed.bridge.set_config(BridgeConfig { auto_attach, ..bed.bridge.config() });
}

/// What is sent when all that is due has run, and when it is due again in milliseconds.
fn turn(bed: &Bed) -> (Vec<(u32, Lldpdu)>, Option<u64>) {
    let mut next = bed.switch.run_due_path_checks(Duration::ZERO);
    while next.is_some_and(|next| next <= bed.clock.now()) {
        next = bed.switch.run_due_path_checks(Duration::ZERO);
    }
    bed.poll();
    let sent = bed.sent();
    let pdus = sent.iter().map(|(port, frame)| (port.0, Lldpdu::new_checked(frame).unwrap())).collect();
    (pdus, next.map(|next| next.since(bed.clock.now()).as_millis() as u64))
}

fn peer(bed: &Bed) -> Vec<u8> {
    Agent::new(bed.clock.now(), "eth7", PEER, Arc::default()).run(bed.clock.now()).unwrap()
}

#[test]
fn a_port_that_speaks_takes_frames_and_sends_them() {
    let bed = bed();
    // A port that does not speak passes them on.
    assert_eq!(bed.receive(OfPort(1), &peer(&bed)).len(), 1);
    assert_eq!(turn(&bed), (vec![], None));
    attach(&bed, &[(100, 7)]);
    bed.bridge.set_lldp(OfPort(1), true);
    bed.switch.run(bed.clock.now());
    let (sent, next) = turn(&bed);
    assert_eq!((sent.len(), next), (1, Some(5_000)));
    let (port, said) = &sent[0];
    assert_eq!((*port, said.port.value.as_slice(), said.system_name.as_slice()), (1, &b"p1"[..], &b"br"[..]));
    assert_eq!(said.assignments, [pdu::Assignment { status: 0, vlan: 7, isid: 100 }]);
    // The flow that passed frames on has gone; those of the other port still pass.
    assert_eq!(bed.receive(OfPort(1), &peer(&bed)), []);
    assert_eq!(bed.receive(OfPort(2), &peer(&bed)).len(), 1);
    let show = bed.switch.show_lldp_neighbours(Some("p1")).unwrap();
    assert!(show.contains("Chassis ID: 02:00:00:00:00:ee\n  Port ID: eth7\n"), "{show}");
    assert_eq!(bed.switch.show_lldp_neighbours(Some("p2")), None);
    // Malformed frames end there, too.
    let mut broken = peer(&bed);
    broken.truncate(30);
    assert_eq!(bed.receive(OfPort(1), &broken), []);
    let counted = bed.switch.show_lldp(LldpReport::Statistics, Some(&bed.bridge));
    assert!(counted.contains("rx cnt: 2\n  rx discarded cnt: 1\n"), "{counted}");
    // As in OVS, whatever the address.
    let elsewhere = packet::wire::build::ethernet(PEER, PEER, &[], ETHERTYPE, &peer(&bed)[14..]);
    assert_ne!(elsewhere[..6], GROUP);
    assert_eq!(bed.receive(OfPort(1), &elsewhere), []);
    // The neighbour is silent, and is forgotten when it said so.
    bed.clock.advance(Duration::from_secs(121));
    turn(&bed);
    assert_eq!(bed.switch.show_lldp_neighbours(Some("p1")).unwrap(), "---- p1 ----\n");
    bed.bridge.set_lldp(OfPort(1), false);
    bed.switch.run(bed.clock.now());
    bed.clock.advance(Duration::from_secs(10));
    assert_eq!(turn(&bed), (vec![], None));
    assert_eq!(bed.receive(OfPort(1), &peer(&bed)).len(), 1);
    assert_eq!(bed.switch.show_lldp(LldpReport::Status, None), "");
}

#[test]
fn many_agents_run_a_few_at_a_time() {
    let bed = Bed::new(40);
    (1..=40).for_each(|port| bed.bridge.set_lldp(OfPort(port), true));
    let now = bed.clock.now();
    // What checks paths comes in between.
    assert!(bed.switch.run_due_path_checks(Duration::ZERO).is_some_and(|next| next <= now));
    bed.poll();
    let first = bed.sent().len();
    assert!(first < 40, "{first}");
    assert_eq!(turn(&bed).0.len(), 40 - first);
}

#[test]
fn mappings_say_which_vlans_a_port_is_to_carry() {
    let mut bed = bed();
    let changes = |bed: &Bed, port: &str| bed.switch.trunk_changes(port);
    attach(&bed, &[(100, 7), (200, 8)]);
    assert_eq!(changes(&bed, "p1"), []);
    bed.bridge.set_lldp(OfPort(1), true);
    assert_eq!(changes(&bed, "p1"), [(7, true), (8, true)]);
    assert_eq!(changes(&bed, "p2"), []);
    bed.switch.trunk_changed("p1", 7, true);
    // What was asked for meanwhile is not taken for done.
    attach(&bed, &[(100, 7), (300, 7)]);
    bed.switch.trunk_changed("p1", 8, true);
    assert_eq!(changes(&bed, "p1"), [(8, false)]);
    // Another mapping of a VLAN that the port carries, or fewer, is no change of it.
    attach(&bed, &[(300, 7)]);
    assert_eq!(changes(&bed, "p1"), [(8, false)]);
    // A port that is silent asks for nothing any more.
    bed.bridge.set_lldp(OfPort(1), false);
    assert_eq!(changes(&bed, "p1"), []);
    // Nor does a member of a bond.
    bed.bridge.set_bond("bond0", BondSettings::default(), [0; 6]).unwrap();
    let port = ports::registry::open(&ports::registry::PortSpec::new("p3", "dummy"), &bed.env).unwrap();
    let spec = PortSpec { logical: Some("bond0".into()), lldp: true, ..PortSpec::new(port) };
    bed.devices.push(bed.env.dummies.find("p3").unwrap());
    bed.bridge.add_port(spec).unwrap();
    assert_eq!((changes(&bed, "p3"), changes(&bed, "bond0")), (vec![], vec![]));
    assert!(turn(&bed).0.iter().any(|(port, _)| *port == 3));
    // What goes takes its agent with it.
    bed.bridge.remove_port(OfPort(3)).unwrap();
    assert_eq!(bed.switch.show_lldp(LldpReport::Isids, None), "");
}
