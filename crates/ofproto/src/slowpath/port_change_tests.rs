//! That after a change of a port or a group few flows are translated again, and none is left that is out of date.

use openflow::group::{Bucket, GroupCommand, GroupMod, GroupSpec, GroupType, Selection, bucket_id};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, OfPort, PortConfig, PortFeatures, PortMod, PortReason};
use packet::flow::text::NoNames;
use packet::flow::{VlanLimit, extract};
use packet::wire::build;
use packet::{Clock, Key};
use ports::registry;
use proptest::prelude::*;
use proptest::sample::select;
use protocols::spanning_tree::State;

use super::change_tests::effects;
use crate::model::port::{Device, PortSpec};
use crate::model::vlan::{PortVlan, VlanMode};
use crate::reference::tests::{Bed, tree_states};

/// The last ones are not there at first.
const PORTS: u32 = 6;
const FIRST_PORTS: u32 = 4;
const GROUPS: u32 = 3;
const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xff; 6]];

/// What rules do. Each looks at ports or groups in a way of its own.
const ACTIONS: [&str; 16] = [
    "output:1",
    "output:2",
    "output:6,output:3",
    "NORMAL",
    "FLOOD",
    "ALL",
    "IN_PORT",
    "group:1",
    "group:2,output:4",
    "group:3",
    "bundle(eth_src,0,active_backup,ofport,members:5,2,3)",
    "bundle_load(eth_src,0,hrw,ofport,NXM_NX_REG0[0..15],members:1,2,5),output:NXM_NX_REG0[0..15]",
    "output(port=2,max_len=64)",
    "load:5->NXM_OF_IN_PORT[],NORMAL",
    "output:7",
    "output:1,output:2,output:3,output:4,output:5,output:6,output:7,output:8,output:9",
];

#[derive(Clone, Debug)]
enum Event {
    Rule(&'static str, usize, usize),
    Receive(u32, usize, usize, bool),
    Config(u32, PortConfig),
    Carrier(u32, bool),
    Vlan(u32, PortVlan),
    Tree(u32, Option<State>),
    /// Removes a port that is there, adds one that is not.
    Turn(u32),
    /// Another device takes the place of a port's.
    Replace(u32),
    /// Removes a group or puts another there, by which ports its buckets send and which they watch.
    Group(u32, Option<(GroupType, Vec<(u32, u32)>)>),
    Barrier,
}

fn event() -> impl Strategy<Value = Event> {
    let port = || 1..=PORTS;
    let flags = vec![
        PortConfig::empty(),
        PortConfig::NO_FWD,
        PortConfig::NO_FLOOD,
        PortConfig::NO_RECV,
        PortConfig::NO_PACKET_IN,
        PortConfig::PORT_DOWN,
    ];
    let vlan = |protected| {
        let access = PortVlan { mode: VlanMode::Access, tag: 5, protected, ..PortVlan::default() };
        let trunk = PortVlan { trunks: Some([5].into_iter().collect()), protected, ..PortVlan::default() };
        [PortVlan { protected, ..PortVlan::default() }, access, trunk]
    };
    let vlans = [vlan(false), vlan(true)].concat();
    let kind = select(vec![GroupType::All, GroupType::Select, GroupType::FastFailover, GroupType::Indirect]);
    let group = (kind, prop::collection::vec((port(), port()), 1..3));
    prop_oneof![
        3 => (select(ACTIONS.to_vec()), 0usize..3, 0usize..3).prop_map(|(does, to, port)| Event::Rule(does, to, port)),
        8 => (1..=FIRST_PORTS, 0usize..3, 0usize..3, any::<bool>())
            .prop_map(|(port, src, dst, tagged)| Event::Receive(port, src, dst, tagged)),
        2 => (port(), select(flags)).prop_map(|(port, config)| Event::Config(port, config)),
        2 => (port(), any::<bool>()).prop_map(|(port, up)| Event::Carrier(port, up)),
        1 => (port(), select(vlans)).prop_map(|(port, vlan)| Event::Vlan(port, vlan)),
        1 => (port(), select(tree_states())).prop_map(|(port, state)| Event::Tree(port, state)),
        2 => port().prop_map(Event::Turn),
        1 => port().prop_map(Event::Replace),
        3 => (1..=GROUPS, proptest::option::weighted(0.8, group)).prop_map(|(id, group)| Event::Group(id, group)),
        3 => Just(Event::Barrier),
    ]
}

/// The packets that there are: where they come in, from whom, to whom, with a tag or without.
fn frame(src: usize, dst: usize, tagged: bool) -> Vec<u8> {
    let tags: &[(u16, u16)] = if tagged { &[(0x8100, 5)] } else { &[] };
    build::ethernet(MACS[dst], MACS[src], tags, 0x1234, &[0; 46])
}

fn device(bed: &Bed, name: &str) -> std::sync::Arc<dyn ports::Port> {
    let device = registry::open(&registry::PortSpec::new(name, "dummy"), &bed.env).unwrap();
    device.set_admin_up(true).unwrap();
    device
}

fn add_rule(bed: &Bed, text: &str) {
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, text, &NoNames).unwrap()).unwrap();
}

fn set_group(bed: &Bed, id: u32, group: Option<(GroupType, &[(u32, u32)])>) {
    let command = if group.is_some() { GroupCommand::AddOrModify } else { GroupCommand::Delete };
    let (kind, buckets) = group.unwrap_or((GroupType::All, &[]));
    let buckets = if kind == GroupType::Indirect { &buckets[..1] } else { buckets };
    let bucket = |(id, &(port, watch)): (u32, &(u32, u32))| Bucket {
        id,
        weight: u16::from(kind == GroupType::Select),
        watch_port: if matches!(kind, GroupType::Select | GroupType::FastFailover) {
            OfPort(watch)
        } else {
            OfPort::ANY
        },
        watch_group: GroupId::ANY,
        actions: vec![Action::output(OfPort(port))],
    };
    let buckets = (0..).zip(buckets).map(bucket).collect();
    let spec = GroupSpec { kind, buckets, selection: Selection::default() };
    let change = GroupMod { command, group: GroupId(id), command_bucket: bucket_id::ALL, spec };
    bed.bridge.group_mod(&change).unwrap();
}

fn set_config(bed: &Bed, port: u32, config: PortConfig) {
    let [desc] = &bed.bridge.port_descs(OfPort(port))[..] else { return };
    let all = PortConfig::all() - PortConfig::NO_RECV_STP;
    let advertise = PortFeatures::empty();
    let change = PortMod { port: OfPort(port), hw_addr: desc.hw_addr, config, mask: all, advertise };
    bed.bridge.port_mod(&change).unwrap();
}

fn set_carrier(bed: &Bed, port: u32, up: bool) {
    if let Some(device) = bed.env.dummies.find(&format!("p{port}")) {
        device.set_carrier(up);
        bed.bridge.port_changed(OfPort(port), PortReason::Modify);
    }
}

fn turn(bed: &mut Bed, port: u32) {
    if bed.bridge.port(OfPort(port)).is_some() {
        return bed.bridge.remove_port(OfPort(port)).unwrap();
    }
    let name = format!("p{port}");
    let spec = PortSpec { request: Some(OfPort(port)), ..PortSpec::new(device(bed, &name)) };
    assert_eq!(bed.bridge.add_port(spec).unwrap(), OfPort(port));
    let (dummy, place) = (bed.env.dummies.find(&name).unwrap(), port as usize - 1);
    match bed.devices.get_mut(place) {
        Some(device) => *device = dummy,
        // There may be none yet of those before it.
        None => bed.devices.resize(place + 1, dummy),
    }
}

fn replace(bed: &mut Bed, port: u32) {
    let Some(info) = bed.bridge.port(OfPort(port)) else { return };
    bed.bridge.close_device(OfPort(port)).unwrap();
    drop(info);
    let name = format!("p{port}");
    bed.bridge.replace_device(OfPort(port), device(bed, &name), None).unwrap();
    bed.devices[port as usize - 1] = bed.env.dummies.find(&name).unwrap();
}

fn play(bed: &mut Bed, event: Event) {
    match event {
        Event::Rule(does, dst, port) => {
            let [a, b, c, d, e, f] = MACS[dst];
            let at = if port == 0 { String::new() } else { format!("in_port={port},") };
            let rule = format!("{at}dl_dst={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x},actions={does}");
            // Refused where the group has gone.
            let _ = bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, &rule, &NoNames).unwrap());
        }
        Event::Receive(port, src, dst, tagged) if bed.bridge.port(OfPort(port)).is_some() => {
            bed.receive(OfPort(port), &frame(src, dst, tagged));
        }
        Event::Receive(..) => {}
        Event::Config(port, config) => set_config(bed, port, config),
        Event::Carrier(port, up) => set_carrier(bed, port, up),
        Event::Vlan(port, vlan) => drop(bed.bridge.set_port_vlan(OfPort(port), vlan)),
        Event::Tree(port, state) => {
            drop(bed.bridge.with_port(OfPort(port), |port| port.spanning_tree.state = state));
        }
        Event::Turn(port) => turn(bed, port),
        Event::Replace(port) => replace(bed, port),
        Event::Group(id, group) => set_group(bed, id, group.as_ref().map(|(kind, buckets)| (*kind, &buckets[..]))),
        Event::Barrier => {
            bed.bridge.barrier();
            assert_up_to_date(bed);
        }
    }
}

/// Every flow does with every packet what a new translation says.
fn assert_up_to_date(bed: &Bed) {
    // What addresses have moved, rounds see to later.
    bed.switch.run(bed.clock.now());
    let forwarding = bed.switch.forwarding.read();
    let all =
        (0..MACS.len()).flat_map(|src| (0..MACS.len()).flat_map(move |dst| [(src, dst, false), (src, dst, true)]));
    let keys: Vec<Key> = all
        .map(|(src, dst, tagged)| {
            let mut key = Key::new();
            extract(&frame(src, dst, tagged), &mut key, VlanLimit::default());
            key
        })
        .collect();
    let mut probes = Vec::new();
    for dp_port in forwarding.by_dp_port.keys() {
        probes.extend(keys.iter().cloned().map(|mut key| {
            key.common_mut().in_port = dp_port.0.into();
            key
        }));
    }
    for flow in bed.datapath.flows() {
        for probe in probes.iter().filter(|probe| flow.key.matches(probe, &flow.mask)) {
            let now = bed.switch.translate_dp(&forwarding, probe, None, bed.clock.now()).unwrap();
            let [now, then] = [&now.actions[..], &flow.actions[..]].map(|actions| effects(actions, probe));
            assert_eq!(now, then, "a flow for {:?} is stale", flow.key);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]
    #[test]
    fn no_flow_is_out_of_date_after_changes_of_ports_and_groups(
        rules in prop::collection::vec((select(ACTIONS.to_vec()), 0usize..3, 0usize..3), 2..5),
        events in prop::collection::vec(event(), 4..40),
    ) {
        let mut bed = Bed::new(FIRST_PORTS);
        (1..=GROUPS).for_each(|id| set_group(&bed, id, Some((GroupType::All, &[(id + 1, id)]))));
        for (does, dst, port) in rules {
            play(&mut bed, Event::Rule(does, dst, port));
        }
        for event in events.into_iter().chain([Event::Barrier]) {
            play(&mut bed, event);
        }
    }
}

/// A bed of eight ports: what comes in at port N is sent to port N + 1, by a flow for each of four sources.
fn bed_in_pairs() -> Bed {
    let bed = Bed::new(8);
    let mut flows = 0;
    for port in [1, 3, 5, 7] {
        add_rule(
            &bed,
            &format!("in_port={port},actions=move:NXM_OF_ETH_SRC[]->NXM_NX_XXREG0[0..47],output:{}", port + 1),
        );
        for source in 0..4 {
            let frame = build::ethernet([2; 6], [4, 0, 0, 0, 0, source], &[], 0x1234, &[0; 46]);
            assert_eq!(bed.receive(OfPort(port), &frame), [(OfPort(port + 1), frame.clone())]);
            flows += 1;
        }
    }
    bed.bridge.barrier();
    assert_eq!(bed.datapath.flow_count(), flows);
    bed
}

fn translated(bed: &mut Bed, change: impl FnOnce(&mut Bed)) -> u64 {
    let before = bed.switch.revalidation_stats().translated;
    change(bed);
    bed.bridge.barrier();
    bed.switch.revalidation_stats().translated - before
}

#[test]
fn a_change_of_a_port_translates_the_flows_again_that_have_looked_at_it() {
    let mut bed = bed_in_pairs();
    assert_eq!(translated(&mut bed, |bed| set_config(bed, 2, PortConfig::NO_FWD)), 4, "flows that send there");
    assert_eq!(translated(&mut bed, |bed| set_config(bed, 3, PortConfig::NO_RECV)), 4, "flows from there");
    assert_eq!(bed.datapath.flow_count(), 12, "which have to look whether BPDUs come");
    assert_eq!(translated(&mut bed, |bed| set_carrier(bed, 6, false)), 4);
    assert_eq!(translated(&mut bed, |bed| turn(bed, 9)), 0, "a new port that nobody has looked for");
    assert_eq!(translated(&mut bed, |bed| turn(bed, 8)), 4, "flows that sent there");
    assert_eq!(translated(&mut bed, |bed| turn(bed, 8)), 4, "and do again");
    assert_eq!(translated(&mut bed, |bed| replace(bed, 6)), 4);
    add_rule(&bed, "in_port=4,actions=FLOOD");
    let frame = frame(0, 1, false);
    bed.receive(OfPort(4), &frame);
    assert_eq!(translated(&mut bed, |bed| turn(bed, 10)), 1, "a flood");
    assert_eq!(bed.receive(OfPort(4), &frame).len(), 8, "all others but the one that is not sent to");
    let local = device(&bed, "br0");
    let add_local = |bed: &mut Bed| drop(bed.bridge.add_port(PortSpec::of("br0", Device::Datapath(local))));
    assert_eq!(translated(&mut bed, add_local), 13, "all may depend on LOCAL");
}

#[test]
fn a_change_of_a_group_translates_the_flows_again_that_have_looked_at_it() {
    let bed = &mut Bed::new(4);
    for id in 1..4 {
        set_group(bed, id, Some((GroupType::All, &[(4, 4)])));
        add_rule(bed, &format!("in_port={id},actions=group:{id}"));
        bed.receive(OfPort(id), &frame(0, 1, false));
    }
    set_group(bed, 7, Some((GroupType::All, &[])));
    add_rule(bed, "in_port=4,actions=group:7");
    bed.receive(OfPort(4), &frame(0, 1, false));
    bed.bridge.barrier();
    assert_eq!(translated(bed, |bed| set_group(bed, 2, Some((GroupType::All, &[(3, 3)])))), 1);
    assert_eq!(bed.receive(OfPort(2), &frame(0, 1, false))[0].0, OfPort(3));
    assert_eq!(
        translated(bed, |bed| set_group(bed, 9, Some((GroupType::All, &[(3, 3)])))),
        0,
        "nobody has looked for it"
    );
    assert_eq!(translated(bed, |bed| set_group(bed, 7, Some((GroupType::FastFailover, &[(1, 3)])))), 1);
    assert_eq!(bed.receive(OfPort(4), &frame(0, 1, false))[0].0, OfPort(1));
    assert_eq!(
        translated(bed, |bed| set_carrier(bed, 3, false)),
        3,
        "from there, sent there, and by a group that watches it"
    );
    assert_eq!(bed.receive(OfPort(4), &frame(0, 1, false)), []);
    assert_eq!(translated(bed, |bed| set_group(bed, 1, None)), 1);
}
