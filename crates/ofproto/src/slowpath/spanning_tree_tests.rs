//! Spanning trees in a switch: wires between its ports, and bridges beyond them that are state machines alone.

use std::collections::BTreeMap;
use std::time::Duration;

use datapath::DropReason;
use openflow::text::parse_flow_mod;
use openflow::{
    Action, FlowModCommand, Match, OfPort, PacketOut, PortConfig, PortFeatures, PortMod, PortState as Bits,
};
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Clock as _, Time};
use ports::registry;
use protocols::options::Options;
use protocols::rstp::Link;
use protocols::spanning_tree::{Bridge as Tree, PortSettings, Protocol, Settings, State};
use protocols::{rstp, stp};

use crate::bridge::Bridge;
use crate::bridge::spanning_tree::{TreePortStatus, TreeStatus};
use crate::model::config::{BridgeConfig, FailMode};
use crate::model::mac::MacKey;
use crate::model::port::{Device, PortSpec};
use crate::model::spanning_tree::{SpanningTreeConfig, SpanningTreePort};
use crate::reference::tests::Bed;
use crate::xlate::spanning_tree::BRIDGES;

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x51];

fn options(pairs: &[(&str, &str)]) -> Options {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// A switch of NORMAL with ports 1 to 3, whose bridge speaks a protocol.
fn bed(protocol: Protocol, pairs: &[(&str, &str)]) -> Bed {
    let bed = Bed::new(3);
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, "actions=NORMAL", &NoNames).unwrap()).unwrap();
    configure(&bed, protocol, pairs);
    bed
}

fn configure(bed: &Bed, protocol: Protocol, pairs: &[(&str, &str)]) {
    let spanning_tree = SpanningTreeConfig { protocol, options: options(pairs) };
    bed.bridge.set_config(BridgeConfig { spanning_tree, ..bed.bridge.config() });
}

fn configure_port(bed: &Bed, port: u32, pairs: &[(&str, &str)]) {
    bed.bridge.set_spanning_tree(OfPort(port), SpanningTreePort { options: options(pairs), is_internal: false });
}

fn broadcast() -> Vec<u8> {
    build::ethernet([0xff; 6], STATION, &[], 0x88b5, &[0; 46])
}

fn is_bpdu(frame: &[u8]) -> bool {
    frame[..6] == BRIDGES
}

/// Runs what is due, and has frames go by wires between ports until none is left. Returns what came out of the others but BPDUs, and how many
/// frames went by wires.
fn settle(bed: &Bed, wires: &[(u32, u32)]) -> (Vec<(OfPort, Vec<u8>)>, usize) {
    let ends: BTreeMap<u32, u32> = wires.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
    let (mut out, mut by_wire) = (Vec::new(), 0);
    loop {
        bed.switch.run_due_spanning_trees();
        bed.poll();
        let sent = bed.sent();
        if sent.is_empty() {
            return (out, by_wire);
        }
        for (port, frame) in sent {
            match ends.get(&port.0) {
                Some(other) => {
                    by_wire += usize::from(!is_bpdu(&frame));
                    assert!(by_wire < 100, "a loop forwards");
                    assert!(bed.devices[*other as usize - 1].inject(&frame));
                }
                None if is_bpdu(&frame) => {}
                None => out.push((port, frame)),
            }
        }
    }
}

/// Lets seconds pass.
fn pass(bed: &Bed, seconds: u64, wires: &[(u32, u32)]) {
    for _ in 0..seconds {
        bed.clock.advance(Duration::from_secs(1));
        settle(bed, wires);
    }
}

fn state(bed: &Bed, port: u32) -> Option<State> {
    let forwarding = bed.switch.forwarding.read();
    forwarding.bridges[&bed.bridge.id()].ports[&OfPort(port)].spanning_tree.state
}

fn where_is(bed: &Bed, mac: [u8; 6]) -> Option<OfPort> {
    let key = MacKey { vlan: 0, mac };
    bed.bridge.macs().into_iter().find(|entry| entry.key == key).map(|entry| entry.port)
}

/// Receives a frame by port 1. Returns by which ports it was sent.
fn flood(bed: &Bed) -> Vec<u32> {
    let sent = bed.receive(OfPort(1), &broadcast());
    sent.into_iter().filter(|(_, frame)| !is_bpdu(frame)).map(|(port, _)| port.0).collect()
}

#[test]
fn a_port_waits_then_learns_then_forwards() {
    let bed = bed(Protocol::Stp, &[]);
    settle(&bed, &[]);
    assert_eq!(state(&bed, 1), Some(State::Stp(stp::State::Listening)));
    assert_eq!((flood(&bed), where_is(&bed, STATION)), (vec![], None));
    let dropped = || bed.datapath.account().drops.get(DropReason::SpanningTree);
    assert_eq!(dropped(), 1);
    let bits = || bed.bridge.port_descs(OfPort(1))[0].state & (Bits::STP_LEARN | Bits::STP_FORWARD);
    assert_eq!(bits(), Bits::empty());

    pass(&bed, 15, &[]);
    assert_eq!((state(&bed, 1), bits()), (Some(State::Stp(stp::State::Learning)), Bits::STP_LEARN));
    bed.bridge.barrier();
    assert_eq!((flood(&bed), where_is(&bed, STATION)), (vec![], Some(OfPort(1))));
    assert_eq!(dropped(), 2);

    pass(&bed, 15, &[]);
    assert_eq!((state(&bed, 1), bits()), (Some(State::Stp(stp::State::Forwarding)), Bits::STP_FORWARD));
    bed.bridge.barrier();
    assert_eq!((flood(&bed), dropped()), (vec![2, 3], 2));

    // What is switched off has no say any more.
    configure(&bed, Protocol::Stp, &[("stp-forward-delay", "30")]);
    configure_port(&bed, 3, &[("stp-enable", "false")]);
    settle(&bed, &[]);
    assert_eq!((state(&bed, 3), state(&bed, 2)), (None, Some(State::Stp(stp::State::Forwarding))));
    configure(&bed, Protocol::Off, &[]);
    bed.bridge.barrier();
    assert_eq!(flood(&bed), [2, 3], "before anybody has looked");
    settle(&bed, &[]);
    assert_eq!((state(&bed, 1), bed.bridge.tree_status(), bits()), (None, None, Bits::empty()));
}

/// What a controller sends as if a port had received it is that port's, too.
#[test]
fn packet_outs_are_forwarded_as_their_input_port_is() {
    let bed = bed(Protocol::Stp, &[]);
    settle(&bed, &[]);
    let send = |in_port| {
        let (metadata, actions, data) = (Match::any(), vec![Action::output(OfPort::NORMAL)], broadcast());
        bed.bridge.packet_out(&PacketOut { buffer_id: None, in_port, metadata, actions, data }).unwrap();
        bed.poll();
        bed.sent().into_iter().filter(|(_, frame)| !is_bpdu(frame)).map(|(port, _)| port.0).collect::<Vec<_>>()
    };
    let dropped = || bed.datapath.account().drops.get(DropReason::SpanningTree);
    assert_eq!((send(OfPort(1)), where_is(&bed, STATION), dropped()), (vec![], None, 1));
    pass(&bed, 15, &[]);
    assert_eq!((send(OfPort(1)), where_is(&bed, STATION), dropped()), (vec![], Some(OfPort(1)), 2));
    pass(&bed, 15, &[]);
    assert_eq!(send(OfPort(1)), [2, 3]);
    set(&bed, 1, PortConfig::NO_RECV);
    assert_eq!((send(OfPort(1)), send(OfPort::CONTROLLER)), (vec![], vec![1, 2, 3]));
    assert_eq!(bed.datapath.account().drops.get(DropReason::InPortDown), 1);
}

/// Nothing is forwarded in the time between a port and the first look of its tree.
#[test]
fn a_new_port_forwards_nothing_before_its_tree_says_so() {
    let mut bed = bed(Protocol::Rstp, &[]);
    assert!(flood(&bed).is_empty(), "switched on just now");
    pass(&bed, 10, &[]);
    bed.bridge.barrier();
    assert_eq!(flood(&bed), [2, 3]);
    let new = bed.add_port("p4");
    bed.bridge.barrier();
    assert_eq!((flood(&bed), state(&bed, 4)), (vec![2, 3], Some(State::Rstp(rstp::State::Disabled))));
    assert_eq!(bed.receive(new, &broadcast()), []);
    // A port that takes the place of one that forwarded is a new one, whether or not anybody has looked.
    bed.bridge.remove_port(OfPort(2)).unwrap();
    let again = registry::open(&registry::PortSpec::new("p2", "dummy"), &bed.env).unwrap();
    let spec = PortSpec { request: Some(OfPort(2)), ..PortSpec::new(again) };
    bed.bridge.add_port(spec).unwrap();
    settle(&bed, &[]);
    assert!(state(&bed, 2).is_some_and(|state| !state.forwards()), "{:?}", state(&bed, 2));
}

/// A neighbour decides which state a port has, over and over if it likes.
#[test]
fn a_port_of_another_state_touches_only_the_flows_that_depend_on_it() {
    let mut bed = bed(Protocol::Rstp, &[]);
    (1..=3).for_each(|port| configure_port(&bed, port, &[("rstp-enable", "false")]));
    let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 2) };
    let other = bed.switch.add_bridge(config).unwrap();
    let patch = |name: &str, peer: &str| PortSpec {
        request: Some(OfPort(9)),
        ..PortSpec::of(name, Device::Patch { peer: peer.into(), mac: [2, 0, 0, 0, 1, 0] })
    };
    let first = std::mem::replace(&mut bed.bridge, other.clone());
    assert_eq!(bed.add_port("p4"), OfPort(1));
    bed.bridge = first;
    bed.bridge.add_port(patch("a", "b")).unwrap();
    other.add_port(patch("b", "a")).unwrap();
    let add = |bridge: &Bridge, text| {
        bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, text, &NoNames).unwrap()).unwrap();
    };
    add(&other, "in_port=1,actions=output:9");
    add(&bed.bridge, "priority=40000,in_port=9,actions=output:1");
    add(&bed.bridge, "priority=40000,in_port=2,actions=move:NXM_OF_ETH_SRC[]->NXM_NX_XXREG0[0..47],output:3");
    settle(&bed, &[]);
    for source in 0..8 {
        let frame = build::ethernet([2; 6], [4, 0, 0, 0, 0, source], &[], 0x1234, &[0; 46]);
        assert_eq!(bed.receive(OfPort(2), &frame).len(), 1);
    }
    let by_patch = || bed.receive(OfPort(4), &broadcast()).len();
    assert_eq!((by_patch(), state(&bed, 9)), (0, Some(State::Rstp(rstp::State::Discarding))));
    bed.bridge.barrier();
    let before = bed.switch.revalidation_stats().translated;
    pass(&bed, 10, &[]);
    bed.bridge.barrier();
    assert_eq!((by_patch(), state(&bed, 9)), (1, Some(State::Rstp(rstp::State::Forwarding))));
    assert!(bed.switch.revalidation_stats().translated - before <= 2, "only the flow by the patch");
}

#[test]
fn a_topology_that_changes_without_end_is_forgotten_now_and_then() {
    let bed = bed(Protocol::Stp, &[]);
    pass(&bed, 60, &[]);
    let change = || {
        flood(&bed);
        bed.switch.run(bed.clock.now());
        assert!(bed.switch.change_topology(Protocol::Stp, None));
        bed.switch.run(bed.clock.now());
        where_is(&bed, STATION).is_none()
    };
    assert_eq!((0..100).filter(|_| change()).count(), 10);
    pass(&bed, 1, &[]);
    assert_eq!(where_is(&bed, STATION), None, "what came last, too");
}

/// Two ports of a bridge that are wired together are a loop, of which one port blocks.
#[test]
fn a_loop_forwards_at_no_time() {
    for protocol in [Protocol::Stp, Protocol::Rstp] {
        let bed = bed(protocol, &[]);
        let wires = [(1, 2)];
        for second in 0..60 {
            bed.clock.advance(Duration::from_secs(1));
            assert!(bed.devices[2].inject(&broadcast()));
            let (out, by_wire) = settle(&bed, &wires);
            assert!(by_wire <= 1, "{protocol:?} {second}: {by_wire}");
            assert_eq!(out, [], "nothing comes back");
        }
        let forwarding: Vec<_> = [1, 2].into_iter().filter(|port| state(&bed, *port).unwrap().forwards()).collect();
        assert_eq!(forwarding, [1], "{protocol:?}: the better number");
        let told = bed.bridge.port_descs(OfPort(2))[0].state & (Bits::STP_LEARN | Bits::STP_FORWARD);
        let blocking = if protocol == Protocol::Stp { Bits::STP_LEARN | Bits::STP_FORWARD } else { Bits::empty() };
        assert_eq!(told, blocking);
    }
}

/// Bridges beyond ports 1 and 2, which are one: a root that the switch is connected with twice.
struct Root {
    tree: Tree,
    /// Whether what it sends is lost, by each of its ports.
    cut: [bool; 2],
}

impl Root {
    fn new(now: Time, protocol: Protocol) -> Root {
        let first = options(&[("stp-priority", "0"), ("rstp-priority", "0")]);
        let mut tree = Tree::new(Settings::from_options(protocol, [2, 0, 0, 0, 0, 1], &first).0.unwrap(), now);
        for name in ["r1", "r2"] {
            let port = PortSettings::from_options(protocol, name, [2; 6], &Options::new()).0.unwrap();
            let number = tree.add_port(now, port).unwrap();
            tree.set_link(number, Link::up(10_000));
        }
        Root { tree, cut: [false; 2] }
    }

    /// Lets tenths of seconds pass. Returns what has come out of port 3.
    fn pass(&mut self, bed: &Bed, tenths: u64) {
        for _ in 0..tenths {
            bed.clock.advance(Duration::from_millis(100));
            loop {
                bed.switch.run_due_spanning_trees();
                bed.poll();
                let now = bed.clock.now();
                let to_root: Vec<_> = bed.sent().into_iter().filter(|(port, _)| port.0 < 3).collect();
                let to_root: Vec<_> = to_root.into_iter().filter(|(port, _)| !self.cut[port.0 as usize - 1]).collect();
                to_root.iter().for_each(|(port, frame)| self.tree.receive(now, port.0 as u16, frame));
                let output = self.tree.run(now);
                let frames = output.frames.iter().filter(|(port, _)| !self.cut[usize::from(*port) - 1]);
                let frames: Vec<_> = frames.collect();
                frames.iter().for_each(|(port, frame)| assert!(bed.devices[usize::from(*port) - 1].inject(frame)));
                if frames.is_empty() && to_root.is_empty() {
                    break;
                }
            }
        }
    }
}

#[test]
fn another_port_takes_over_when_the_root_is_not_heard() {
    let bed = bed(Protocol::Rstp, &[]);
    let mut root = Root::new(bed.clock.now(), Protocol::Rstp);
    root.pass(&bed, 50);
    let status = |port: u32| match bed.bridge.tree_port_status(OfPort(port)) {
        Some(TreePortStatus::Rstp(status)) => (status.role, status.state),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(1), (rstp::Role::Root, rstp::State::Forwarding));
    assert_eq!(status(2), (rstp::Role::Alternate, rstp::State::Discarding));
    let Some(TreeStatus::Rstp(of_bridge)) = bed.bridge.tree_status() else { panic!("no RSTP") };
    assert_eq!(of_bridge.root_id.mac(), [2, 0, 0, 0, 0, 1]);
    bed.bridge.barrier();
    assert_eq!(flood(&bed), [3], "not by the alternate port");
    assert_eq!(where_is(&bed, STATION), Some(OfPort(1)));

    root.cut[0] = true;
    root.pass(&bed, 90);
    assert_eq!(status(2), (rstp::Role::Root, rstp::State::Forwarding));
    assert_eq!(where_is(&bed, STATION), None, "it may be elsewhere now");
}

#[test]
fn a_tree_that_speaks_stp_hears_its_root() {
    let bed = bed(Protocol::Stp, &[]);
    let mut root = Root::new(bed.clock.now(), Protocol::Stp);
    root.pass(&bed, 400);
    let Some(TreePortStatus::Stp(status)) = bed.bridge.tree_port_status(OfPort(2)) else { panic!("no STP") };
    assert_eq!((status.role, status.state), (stp::Role::Alternate, stp::State::Blocking));
    assert!(status.counters.received > 10 && status.counters.errors == 0, "{status:?}");
    let shown = bed.switch.show_spanning_trees(Protocol::Stp, Some("br0")).unwrap();
    assert!(shown.contains("  root-port       p1\n"), "{shown}");
    assert_eq!(bed.switch.show_spanning_trees(Protocol::Rstp, Some("br0")), None);
    assert!(bed.switch.change_topology(Protocol::Stp, None) && !bed.switch.change_topology(Protocol::Stp, Some("br1")));
}

#[test]
fn bpdus_end_at_a_bridge_with_a_tree() {
    let bpdu = build::ethernet(BRIDGES, STATION, &[], 38, &[&[0x42, 0x42, 3][..], &[0; 43]].concat());
    let with_tree = bed(Protocol::Rstp, &[]);
    let forwards = |bed: &Bed| bed.bridge.set_config(BridgeConfig { forward_bpdu: true, ..bed.bridge.config() });
    forwards(&with_tree);
    configure_port(&with_tree, 2, &[("rstp-enable", "false")]);
    pass(&with_tree, 10, &[]);
    for port in 1..=2 {
        let sent = with_tree.receive(OfPort(port), &bpdu);
        assert!(sent.iter().all(|(_, frame)| frame[..] != bpdu[..]), "port {port}");
    }
    // The one that is no member's is dropped by its flow, and bothers nobody.
    assert_eq!(with_tree.datapath.account().drops.get(DropReason::ReservedAddress), 1);
    let Some(TreePortStatus::Rstp(status)) = with_tree.bridge.tree_port_status(OfPort(1)) else { panic!("no RSTP") };
    assert_eq!((status.counters.received, status.counters.errors), (0, 1), "it is none");

    let without = bed(Protocol::Off, &[]);
    assert_eq!(without.receive(OfPort(1), &bpdu), []);
    forwards(&without);
    without.bridge.barrier();
    assert_eq!(without.receive(OfPort(1), &bpdu).len(), 2);
}

#[test]
fn a_number_that_is_asked_for_is_taken_from_a_port_that_just_has_it() {
    let bed = bed(Protocol::Stp, &[]);
    settle(&bed, &[]);
    let numbers = || {
        let trees = bed.switch.spanning_trees.lock();
        [1, 2, 3].map(|port| trees.get(bed.bridge.id()).unwrap().number(OfPort(port)))
    };
    assert_eq!(numbers(), [Some(1), Some(2), Some(3)]);
    configure_port(&bed, 3, &[("stp-port-num", "1")]);
    settle(&bed, &[]);
    assert_eq!(numbers()[2], Some(1));
    assert!(numbers()[0].is_some_and(|number| number > 1), "{:?}", numbers());
    // Two that ask for one number cannot both have it.
    configure_port(&bed, 2, &[("stp-port-num", "1")]);
    settle(&bed, &[]);
    assert_eq!(numbers().iter().filter(|number| **number == Some(1)).count(), 1);
    assert_eq!(numbers().iter().filter(|number| number.is_none()).count(), 1);
}

#[test]
fn what_is_removed_leaves_no_tree() {
    let bed = bed(Protocol::Stp, &[]);
    settle(&bed, &[]);
    bed.bridge.remove_port(OfPort(2)).unwrap();
    settle(&bed, &[]);
    assert_eq!(bed.bridge.tree_port_status(OfPort(2)), None);
    bed.switch.remove_bridge("br0").unwrap();
    bed.switch.run_due_spanning_trees();
    assert!(bed.switch.spanning_trees.lock().is_empty());
    assert_eq!(bed.switch.run_due_spanning_trees(), None);
}

#[test]
fn members_of_bonds_and_ports_of_this_machine_take_no_part() {
    let bed = bed(Protocol::Rstp, &[]);
    let internal = SpanningTreePort { options: Options::new(), is_internal: true };
    bed.bridge.set_spanning_tree(OfPort(1), internal);
    let mirror = crate::Mirror {
        name: "m".into(),
        sources: crate::PortSelection::All,
        destinations: crate::PortSelection::All,
        vlans: None,
        output: crate::MirrorOutput::Port("p2".into()),
        max_len: None,
    };
    bed.bridge.set_config(BridgeConfig { mirrors: vec![mirror], ..bed.bridge.config() });
    settle(&bed, &[]);
    assert_eq!((state(&bed, 1), state(&bed, 2)), (None, None));
    assert!(state(&bed, 3).is_some());
    bed.bridge.set_bond("p3", Default::default(), [0; 6]).unwrap();
    settle(&bed, &[]);
    assert_eq!(state(&bed, 3), None);
}

/// Frames of LLC have one type, whatever they are: their flows tell them by their addresses.
#[test]
fn what_a_port_does_not_receive_for_one_address_it_may_receive_for_others() {
    let frame = |dst| build::ethernet(dst, STATION, &[], 38, &[&[0x42, 0x42, 3][..], &[0; 43]].concat());
    let others = [[1, 0, 0x0c, 0xcc, 0xcc, 0xcc], [2, 0, 0, 0, 0, 9], [1, 0x80, 0xc2, 0, 0, 1]];
    for (config, are_bpdus_received) in [(PortConfig::NO_RECV, true), (PortConfig::NO_RECV_STP, false)] {
        for other in others {
            for order in [[BRIDGES, other], [other, BRIDGES]] {
                let bed = Bed::new(2);
                let rule = parse_flow_mod(FlowModCommand::Add, "actions=output:2", &NoNames).unwrap();
                bed.bridge.flow_mod(&rule).unwrap();
                set(&bed, 1, config);
                for dst in order.into_iter().chain(order) {
                    let is_received = (dst == BRIDGES) == are_bpdus_received;
                    assert_eq!(
                        bed.receive(OfPort(1), &frame(dst)).len(),
                        usize::from(is_received),
                        "{dst:?} {order:?}"
                    );
                }
            }
        }
    }
    // A tree hears of its neighbours also where the port forwards nothing.
    let bed = bed(Protocol::Stp, &[]);
    settle(&bed, &[]);
    set(&bed, 1, PortConfig::NO_RECV);
    for dst in [others[0], BRIDGES, others[0], BRIDGES] {
        bed.receive(OfPort(1), &frame(dst));
    }
    assert_eq!(bed.datapath.account().drops.get(DropReason::InPortDown), 2);
}

fn set(bed: &Bed, port: u32, config: PortConfig) {
    let hw_addr = bed.bridge.port_descs(OfPort(port))[0].hw_addr;
    let change = PortMod { port: OfPort(port), hw_addr, config, mask: config, advertise: PortFeatures::empty() };
    bed.bridge.port_mod(&change).unwrap();
}
