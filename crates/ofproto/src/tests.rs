//! Behaviour of a bridge as a controller and its neighbours see it.

use std::sync::Arc;
use std::time::Duration;

use datapath::{Action as Dp, DropReason, Upcall};
use openflow::action::{Learn, LearnDst, LearnSpec, LearnSrc};
use openflow::{
    Action, Cookie, FlowMod, FlowModCommand, FlowModFlags, FlowRemoved, FlowRemovedReason, Instructions, Match,
    OfError, OfPort, PacketInReason, PacketOut, PortState, PortStatus, Subfield, TableId,
};
use packet::wire::build;
use packet::wire::tcp::flags;
use packet::{Clock, Field, Key, Packet};
use parking_lot::Mutex;
use protocols::spanning_tree::Protocol;

use crate::events::{Audience, PacketInEvent, Subscriber};
use crate::model::config::{BridgeConfig, Controllers, FailMode};
use crate::model::mac::MacKey;
use crate::model::mac_batch::MacBatch;
use crate::model::port::{Device, PortSpec};
use crate::model::spanning_tree::SpanningTreeConfig;
use crate::reference::tests::{Bed, all_flows};
use crate::table::TableSettings;
use crate::xlate::trace::{Event, Sink};

#[derive(Default)]
struct Recorder {
    packets: Mutex<Vec<PacketInEvent>>,
    removed: Mutex<Vec<FlowRemoved>>,
    ports: Mutex<Vec<PortStatus>>,
}

impl Subscriber for Recorder {
    fn packet_in(&self, event: &PacketInEvent) {
        self.packets.lock().push(event.clone());
    }
    fn flow_removed(&self, removed: &FlowRemoved) {
        self.removed.lock().push(removed.clone());
    }
    fn port_status(&self, status: &PortStatus, _: Audience) {
        self.ports.lock().push(status.clone());
    }
}

fn bed(ports: u32) -> (Bed, Arc<Recorder>) {
    let (bed, recorder) = (Bed::new(ports), Arc::new(Recorder::default()));
    bed.bridge.subscribe(recorder.clone());
    (bed, recorder)
}

#[test]
fn controllers_are_told_when_a_spanning_tree_has_a_port_learn_and_forward() {
    let (bed, recorder) = bed(1);
    let spanning_tree = SpanningTreeConfig { protocol: Protocol::Stp, ..SpanningTreeConfig::default() };
    bed.bridge.set_config(BridgeConfig { spanning_tree, ..bed.bridge.config() });
    for _ in 0..3 {
        bed.switch.run_due_spanning_trees();
        bed.clock.advance(Duration::from_secs(15));
    }
    let told: Vec<_> = recorder.ports.lock().iter().map(|status| status.desc.state).collect();
    let live = PortState::LIVE;
    assert_eq!(told, [PortState::STP_LEARN | live, PortState::STP_FORWARD | live]);
}

fn ip(payload: &[u8]) -> Vec<u8> {
    let header =
        build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, ttl: 64, ..Default::default() };
    header.packet(build::udp(1000, 53, payload))
}

fn udp() -> Vec<u8> {
    build::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], 0x0800, &ip(b"question"))
}

fn to(port: u32) -> Vec<Action> {
    vec![Action::output(OfPort(port))]
}

fn port(n: u128) -> Match {
    let mut matching = Match::any();
    matching.set(Field::InPortOxm, n);
    matching
}

fn add(matching: Match, actions: Vec<Action>) -> FlowMod {
    FlowMod::new(FlowModCommand::Add, matching, Instructions::apply(actions))
}

#[test]
fn a_controller_gets_packets_with_their_metadata() {
    let (bed, recorder) = bed(2);
    let reg = Action::set_field(Field::Reg3, 0x77);
    bed.add_flow(0, 10, port(1), vec![reg, Action::output(OfPort::CONTROLLER)]);
    for _ in 0..3 {
        assert!(bed.receive(OfPort(1), &udp()).is_empty());
    }
    let packets = recorder.packets.lock();
    assert_eq!(packets.len(), 3, "the first packet and those of the cached flow, once each");
    let first = &packets[0].packet_in;
    assert_eq!((first.in_port(), first.reason, first.table), (OfPort(1), PacketInReason::Action, TableId(0)));
    assert_eq!(first.metadata.exact(Field::Reg3), Some(0x77));
    assert_eq!((first.data.as_slice(), packets[0].max_len), (&udp()[..], Some(0xffff)));
}

/// A packet that waited for its turn longer than numbers of packet-ins live without a flow.
#[test]
fn a_controller_gets_a_packet_also_when_its_flow_has_gone_long_ago() {
    let (bed, recorder) = bed(2);
    bed.add_flow(0, 10, port(1), vec![Action::output(OfPort::CONTROLLER)]);
    let mut key = Key::new();
    key.set(Field::InPortOxm, 1);
    let actions = {
        let traced = crate::switch::Traced { bridge: "br0", key: &key, actions: None, shadow: None };
        bed.switch.trace(&traced, &mut Quiet).unwrap().actions
    };
    let [Dp::Punt(punt)] = &actions[..] else { panic!("{actions:?}") };
    bed.bridge.flow_mod(&FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default())).unwrap();
    for _ in 0..4 {
        bed.clock.advance(Duration::from_secs(10));
        bed.switch.run(bed.clock.now());
    }
    bed.switch.punt(&Packet::from_slice(&udp()), &key, punt, bed.clock.now());
    assert_eq!(recorder.packets.lock().len(), 1);

    // One that no flow of this switch has sent is a counted drop.
    let datapath::Punt::PacketIn(known) = &**punt else { panic!("{punt:?}") };
    let unknown = datapath::PacketInPunt { context: 0xffff_0000, ..known.clone() };
    let drops = || bed.datapath.stats().workers.iter().map(|w| w.drops.get(DropReason::UpcallError)).sum::<u64>();
    let before = drops();
    bed.switch.punt(&Packet::from_slice(&udp()), &key, &datapath::Punt::PacketIn(unknown), bed.clock.now());
    bed.poll();
    assert_eq!((recorder.packets.lock().len(), drops() - before), (1, 1));
}

#[test]
fn a_miss_is_dropped_unless_an_old_controller_wants_it() {
    let (bed, recorder) = bed(2);
    bed.receive(OfPort(1), &udp());
    assert!(recorder.packets.lock().is_empty());
    bed.bridge.set_controllers(Controllers { want_misses: true, ..Controllers::default() });
    bed.bridge.barrier();
    bed.receive(OfPort(1), &udp());
    let packets = recorder.packets.lock();
    assert_eq!(packets.len(), 1);
    assert!(packets[0].implicit_miss && packets[0].packet_in.reason == PacketInReason::NoMatch);
    assert_eq!(packets[0].packet_in.cookie, Some(openflow::Cookie(0)), "as of OVS's hidden rule");
}

#[test]
fn standalone_forwards_without_being_told() {
    let (bed, _) = bed(0);
    let standalone = bed.switch.add_bridge(BridgeConfig::new("br1", 2)).unwrap();
    let flows = standalone.flow_stats(&all_flows()).unwrap();
    assert_eq!(flows.len(), 1);
    assert_eq!((flows[0].priority, &flows[0].instructions.apply[0]), (0, &Action::output(OfPort::NORMAL)));
    standalone.set_controllers(Controllers { configured: true, ..Controllers::default() });
    assert!(standalone.flow_stats(&all_flows()).unwrap().is_empty());
    standalone.set_config(BridgeConfig { fail_mode: FailMode::Secure, ..standalone.config() });
    standalone.set_controllers(Controllers::default());
    assert!(standalone.flow_stats(&all_flows()).unwrap().is_empty());
}

#[test]
fn an_idle_flow_goes_with_its_last_counters() {
    let (bed, recorder) = bed(2);
    let mut change = add(port(1), to(2));
    (change.idle_timeout, change.flags) = (5, FlowModFlags::SEND_FLOW_REM);
    bed.bridge.flow_mod(&change).unwrap();
    for _ in 0..4 {
        bed.clock.advance(Duration::from_secs(3));
        assert_eq!(bed.receive(OfPort(1), &udp()).len(), 1);
        bed.switch.run(bed.clock.now());
    }
    assert!(recorder.removed.lock().is_empty(), "traffic through the cache counts as use");
    bed.clock.advance(Duration::from_secs(6));
    bed.switch.run(bed.clock.now());
    let removed = recorder.removed.lock();
    assert_eq!(removed.len(), 1);
    assert_eq!((removed[0].reason, removed[0].packet_count), (FlowRemovedReason::IdleTimeout, 4));
    assert_eq!(removed[0].byte_count, 4 * udp().len() as u64);
    drop(removed);
    assert!(bed.receive(OfPort(1), &udp()).is_empty());
}

#[test]
fn a_hard_timeout_does_not_ask_for_use() {
    let (bed, recorder) = bed(2);
    let mut change = add(port(1), to(2));
    (change.hard_timeout, change.flags) = (5, FlowModFlags::SEND_FLOW_REM);
    bed.bridge.flow_mod(&change).unwrap();
    bed.clock.advance(Duration::from_secs(4));
    bed.receive(OfPort(1), &udp());
    bed.switch.run(bed.clock.now());
    assert!(recorder.removed.lock().is_empty());
    bed.clock.advance(Duration::from_secs(1));
    bed.switch.run(bed.clock.now());
    assert!(recorder.removed.lock().is_empty(), "all of its time has passed, and no more");
    bed.clock.advance(Duration::from_millis(500));
    bed.switch.run(bed.clock.now());
    assert_eq!(recorder.removed.lock()[0].reason, FlowRemovedReason::HardTimeout);
}

#[test]
fn a_deleted_flow_reports_packets_that_were_not_yet_counted() {
    let (bed, recorder) = bed(2);
    let mut change = add(port(1), to(2));
    change.flags = FlowModFlags::SEND_FLOW_REM;
    bed.bridge.flow_mod(&change).unwrap();
    bed.receive(OfPort(1), &udp());
    bed.receive(OfPort(1), &udp());
    bed.bridge.flow_mod(&FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default())).unwrap();
    bed.bridge.barrier();
    let removed = recorder.removed.lock();
    assert_eq!((removed[0].reason, removed[0].packet_count), (FlowRemovedReason::Delete, 2));
}

#[test]
fn ports_that_are_removed_together_cost_one_walk_over_the_flows() {
    let (bed, _) = bed(20);
    let rounds = || bed.switch.revalidation_stats().count;
    let before = rounds();
    for n in 1..=19 {
        bed.bridge.remove_port(OfPort(n)).unwrap();
    }
    assert_eq!(rounds(), before);
    bed.bridge.barrier();
    assert_eq!(rounds(), before + 1);
}

#[test]
fn ports_are_removed_together_or_all_stay() {
    let (bed, _) = bed(4);
    let left = || bed.bridge.ports().len();
    let before = left();
    assert!(bed.bridge.remove_ports(&[OfPort(1), OfPort(99)]).is_err());
    assert_eq!(left(), before);
    bed.bridge.remove_ports(&[OfPort(1), OfPort(3)]).unwrap();
    assert_eq!(left(), before - 2);
    assert!(bed.bridge.port(OfPort(1)).is_none() && bed.bridge.port(OfPort(2)).is_some());
    bed.bridge.remove_ports(&[]).unwrap();
}

#[test]
fn patch_ports_join_bridges() {
    let (bed, _) = bed(2);
    let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 2) };
    let other = bed.switch.add_bridge(config).unwrap();
    let patch = |name: &str, peer: &str| PortSpec {
        request: Some(OfPort(9)),
        ..PortSpec::of(name, Device::Patch { peer: peer.into(), mac: [2, 0, 0, 0, 1, 0] })
    };
    assert_eq!(bed.bridge.add_port(patch("a", "b")).unwrap(), OfPort(9));
    other.add_port(patch("b", "a")).unwrap();
    bed.add_flow(0, 10, port(1), to(9));
    bed.add_flow(0, 10, port(9), to(2));
    let back = vec![Action::SetVlanVid { vid: 7, push: true }, Action::output(OfPort::IN_PORT)];
    other.flow_mod(&add(port(9), back)).unwrap();
    for _ in 0..2 {
        let sent = bed.receive(OfPort(1), &udp());
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].0, &sent[0].1[12..16]), (OfPort(2), &[0x81, 0, 0, 7][..]));
    }
    bed.switch.revalidate();
    let stats = &other.port_stats(OfPort(9))[0];
    assert_eq!((stats.rx_packets, stats.tx_packets), (2, 2));
}

#[test]
fn labels_come_and_go() {
    let (bed, _) = bed(3);
    let mut ipv4 = port(1);
    ipv4.set(Field::DlType, 0x0800);
    let push = vec![Action::PushMpls(0x8847), Action::set_field(Field::MplsLabel, 42), Action::output(OfPort(2))];
    bed.add_flow(0, 10, ipv4, push);
    let mut mpls = port(2);
    mpls.set(Field::DlType, 0x8847);
    let pop = vec![
        Action::PopMpls(0x0800),
        Action::DecTtl,
        Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(1), with_ct: false },
    ];
    bed.add_flow(0, 10, mpls, pop);
    let mut inner = Match::any();
    inner.set(Field::DlType, 0x0800);
    inner.set(Field::NwDst, 0x0a000002);
    bed.add_flow(1, 10, inner, to(3));
    for _ in 0..2 {
        let labelled = bed.receive(OfPort(1), &udp());
        let label = 42u32 << 12 | 0x100 | 64;
        let expected = build::ethernet(
            [2, 0, 0, 0, 0, 2],
            [2, 0, 0, 0, 0, 1],
            &[],
            0x8847,
            &[&label.to_be_bytes()[..], &ip(b"question")].concat(),
        );
        assert_eq!(labelled, [(OfPort(2), expected.clone())]);
        let plain = bed.receive(OfPort(2), &expected);
        assert_eq!(plain.len(), 1, "the packet is parsed again behind the label");
        assert_eq!((plain[0].0, plain[0].1[22]), (OfPort(3), 63));
    }
    assert_eq!(bed.bridge.flow_stats(&all_flows()).unwrap().iter().map(|flow| flow.packet_count).sum::<u64>(), 6);
}

#[test]
fn learning_makes_a_flow() {
    let (bed, _) = bed(2);
    let whole = Subfield::whole;
    let learn = Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority: 20,
        cookie: Default::default(),
        flags: FlowModFlags::empty(),
        delete_learned: false,
        table: TableId(1),
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 0,
        result_dst: None,
        specs: vec![
            LearnSpec {
                n_bits: 48,
                src: LearnSrc::Field(whole(Field::DlSrc)),
                dst: LearnDst::Match(whole(Field::DlDst)),
            },
            LearnSpec { n_bits: 16, src: LearnSrc::Field(whole(Field::InPort)), dst: LearnDst::Output },
        ],
    };
    bed.add_flow(0, 10, port(1), vec![Action::Learn(Box::new(learn))]);
    bed.receive(OfPort(1), &udp());
    bed.receive(OfPort(1), &udp());
    let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
    let learnt = flows.iter().find(|flow| flow.table == TableId(1)).expect("the flow was learnt");
    assert_eq!(learnt.matching.exact(Field::DlDst), Some(0x0200_0000_0001));
    assert_eq!(learnt.instructions.apply, [Action::output(OfPort(1))]);
}

/// What table 1 has learnt from a packet that came in at port 2, by `learn` with these matches.
fn learnt_matches(matches: &[(LearnSrc, Subfield)]) -> Vec<Match> {
    let (bed, _) = bed(3);
    let specs = matches.iter().map(|(src, dst)| {
        let n_bits = dst.n_bits;
        LearnSpec { n_bits, src: src.clone(), dst: LearnDst::Match(*dst) }
    });
    let Action::Learn(mut learn) = learn_three(false) else { panic!() };
    (learn.limit, learn.result_dst, learn.specs) = (0, None, specs.collect());
    bed.add_flow(0, 10, Match::any(), vec![Action::Learn(learn)]);
    bed.receive(OfPort(2), &udp());
    let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
    flows.into_iter().filter(|flow| flow.table == TableId(1)).map(|flow| flow.matching).collect()
}

/// The port of a learnt flow is matched as one of a flow that was added: clients see it, and find the flow by it.
#[test]
fn a_port_that_is_learnt_is_matched_whole() {
    let whole = Subfield::whole(Field::InPort);
    for (src, port) in [(LearnSrc::Field(whole), OfPort(2)), (LearnSrc::Immediate(0xfffe), OfPort::LOCAL)] {
        let mut wanted = Match::any();
        wanted.set_in_port(port);
        assert_eq!(learnt_matches(&[(src, whole)]), [wanted]);
    }
}

/// As in OVS: no message could tell of such a match.
#[test]
fn a_part_of_what_is_matched_as_a_whole_is_not_learnt() {
    let ip = (LearnSrc::Immediate(0x0800), Subfield::whole(Field::DlType));
    for field in [Field::NwTtl, Field::NwProto, Field::IpDscp, Field::NwEcn, Field::InPort] {
        let part = (LearnSrc::Immediate(1), Subfield::new(field, 0, 1).unwrap());
        let mut wanted = Match::any();
        wanted.set(Field::DlType, 0x0800);
        assert_eq!(learnt_matches(&[ip.clone(), part]), [wanted], "{field:?}");
    }
}

#[test]
fn bits_that_are_learnt_twice_are_what_the_later_one_says() {
    let part = |ofs, n_bits| Subfield::new(Field::Reg4, ofs, n_bits).unwrap();
    let [learnt] = &learnt_matches(&[(LearnSrc::Immediate(5), part(3, 7)), (LearnSrc::Immediate(2), part(0, 8))])[..]
    else {
        panic!()
    };
    assert_eq!(learnt.get(Field::Reg4), (2, 0x3ff));
}

/// Learns the source address into table 1, three of them at most, and says in reg0 whether it has.
fn learn_three(delete_learned: bool) -> Action {
    Action::Learn(Box::new(Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority: 20,
        cookie: Cookie(7),
        flags: FlowModFlags::empty(),
        delete_learned,
        table: TableId(1),
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 3,
        result_dst: Subfield::new(Field::Reg0, 4, 1),
        specs: vec![LearnSpec {
            n_bits: 48,
            src: LearnSrc::Field(Subfield::whole(Field::DlSrc)),
            dst: LearnDst::Match(Subfield::whole(Field::DlDst)),
        }],
    }))
}

fn from_source(n: u8) -> Vec<u8> {
    build::ethernet([2; 6], [2, 0, 0, 0, 1, n], &[], 0x1234, b"learn")
}

/// Addresses that were learnt, by their last byte.
fn learnt(bed: &Bed) -> Vec<u8> {
    let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
    let flows = flows.iter().filter(|flow| flow.table == TableId(1) && flow.cookie == Cookie(7));
    let mut learnt: Vec<u8> = flows.map(|flow| flow.matching.exact(Field::DlDst).unwrap() as u8).collect();
    learnt.sort_unstable();
    learnt
}

#[test]
fn learn_keeps_to_its_limit_and_tells_whether_it_has_learnt() {
    let (bed, _) = bed(3);
    let table = |n| Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(n), with_ct: false };
    bed.add_flow(0, 10, port(1), vec![learn_three(true), table(2)]);
    let told = |bit: u128| {
        let mut m = Match::any();
        m.set_masked(Field::Reg0, bit << 4, 1 << 4);
        m
    };
    bed.add_flow(2, 10, told(1), to(2));
    bed.add_flow(2, 10, told(0), to(3));
    // A flow of another cookie does not count.
    bed.add_flow(1, 9, port(9), vec![]);
    let receive = |n| bed.receive(OfPort(1), &from_source(n)).iter().map(|(port, _)| port.0).collect::<Vec<_>>();
    let ports: Vec<_> = (1..=6).map(receive).collect();
    assert_eq!(ports, [[2], [2], [2], [3], [3], [3]]);
    assert_eq!(learnt(&bed), [1, 2, 3]);
    // Those that are learnt stay so, also after the datapath's flows have been looked at again.
    bed.bridge.barrier();
    assert_eq!([receive(1), receive(5)], [[2], [3]]);
    // Who is refused has a datapath flow like everybody else, until there is room.
    assert!(bed.datapath.flows().any(|flow| flow.key.get(Field::DlSrc) == 0x0200_0000_0105));
    let mut second = Match::any();
    second.set(Field::DlDst, 0x0200_0000_0102);
    bed.bridge
        .flow_mod(&FlowMod {
            table: Some(TableId(1)),
            ..FlowMod::new(FlowModCommand::Delete, second, Instructions::default())
        })
        .unwrap();
    bed.bridge.barrier();
    assert_eq!([receive(5), receive(2)], [[2], [3]]);
    assert_eq!(learnt(&bed), [1, 3, 5]);
    // All go with the flow that learns.
    bed.bridge.flow_mod(&FlowMod::new(FlowModCommand::Delete, port(1), Instructions::default())).unwrap();
    assert!(learnt(&bed).is_empty());
}

/// A controller may have given the flow another cookie, or more to do: the next packet learns it again, though a datapath flow forwards it.
#[test]
fn a_flow_that_was_replaced_is_learnt_again() {
    let (bed, _) = bed(2);
    bed.add_flow(0, 10, port(1), vec![learn_three(true)]);
    bed.receive(OfPort(1), &from_source(1));
    bed.receive(OfPort(1), &from_source(1));
    assert_eq!(learnt(&bed), [1]);
    let mut matching = Match::any();
    matching.set(Field::DlDst, 0x0200_0000_0101);
    let goto = Instructions { goto: Some(TableId(2)), ..Instructions::default() };
    for (instructions, cookie) in [(Instructions::default(), Some(Cookie(8))), (goto, Some(Cookie(7)))] {
        let mut change = FlowMod::new(FlowModCommand::Add, matching.clone(), instructions);
        (change.table, change.priority, change.new_cookie) = (Some(TableId(1)), 20, cookie);
        bed.bridge.flow_mod(&change).unwrap();
        bed.bridge.barrier();
        bed.receive(OfPort(1), &from_source(1));
        assert_eq!(learnt(&bed), [1]);
        let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
        assert!(flows.iter().all(|flow| flow.table == TableId(0) || flow.instructions == Instructions::default()));
    }
    // So it goes with the flow that learns it.
    bed.bridge.flow_mod(&FlowMod::new(FlowModCommand::Delete, port(1), Instructions::default())).unwrap();
    assert_eq!(bed.bridge.flow_count(), 0);
}

#[test]
fn packets_at_once_do_not_exceed_the_limit_of_learn() {
    let (bed, _) = bed(2);
    bed.add_flow(0, 10, port(1), vec![learn_three(false), learn_three(false)]);
    let dp_port = bed.bridge.ports().iter().find(|port| port.port == OfPort(1)).unwrap().dp_port.unwrap();
    // As many translations as there are packets, before any of them has learnt.
    let translations: Vec<_> = (1..=5)
        .map(|n| {
            let mut key = Key::new();
            packet::flow::extract(&from_source(n), &mut key, Default::default());
            key.common_mut().in_port = dp_port.0.into();
            let now = bed.bridge.now();
            bed.switch.translate_dp(&bed.switch.forwarding.read(), &key, Some(&MacBatch::default()), now).unwrap()
        })
        .collect();
    translations.iter().for_each(|translation| bed.switch.learn_flows(&translation.learnt, bed.bridge.now()));
    assert_eq!(learnt(&bed), [1, 2, 3]);
}

#[test]
fn the_end_of_a_connection_lowers_the_timeouts_of_its_flow() {
    let (bed, recorder) = bed(2);
    let fin_timeout = Action::FinTimeout { idle: 5, hard: 40 };
    let mut flow = add(port(1), vec![fin_timeout.clone(), Action::output(OfPort(2))]);
    (flow.idle_timeout, flow.flags) = (60, FlowModFlags::SEND_FLOW_REM);
    bed.bridge.flow_mod(&flow).unwrap();
    // One that never expired before, in another table.
    let mut lasting = add(port(2), vec![Action::Clone(vec![fin_timeout])]);
    lasting.flags = FlowModFlags::SEND_FLOW_REM;
    bed.bridge.flow_mod(&lasting).unwrap();
    let segment = |flags| {
        let header =
            build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 6, ..Default::default() };
        build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::tcp(1, 2, flags, b"")))
    };
    let timeouts = || {
        bed.bridge.barrier();
        let mut flows = bed.bridge.flow_stats(&all_flows()).unwrap();
        flows.sort_by_key(|flow| flow.matching.in_port());
        flows.iter().map(|flow| (flow.idle_timeout, flow.hard_timeout)).collect::<Vec<_>>()
    };
    bed.receive(OfPort(1), &segment(flags::SYN));
    bed.receive(OfPort(1), &segment(flags::ACK));
    bed.receive(OfPort(2), &segment(flags::ACK));
    assert_eq!(timeouts(), [(60, 0), (0, 0)]);
    // A packet that a datapath flow forwards counts as one that comes up.
    bed.receive(OfPort(1), &segment(flags::FIN | flags::ACK));
    bed.receive(OfPort(2), &segment(flags::RST));
    assert_eq!(timeouts(), [(5, 40), (5, 40)]);
    // A modification leaves the timeouts as they are.
    let change = FlowMod::new(FlowModCommand::Modify, port(1), Instructions::apply(to(2)));
    bed.bridge.flow_mod(&change).unwrap();
    assert_eq!(timeouts(), [(5, 40), (5, 40)]);
    bed.clock.advance(Duration::from_secs(6));
    bed.switch.run(bed.clock.now());
    let removed = recorder.removed.lock();
    let told: Vec<_> = removed.iter().map(|flow| (flow.reason, flow.idle_timeout, flow.hard_timeout)).collect();
    assert_eq!(told, [(FlowRemovedReason::IdleTimeout, 5, 40); 2]);
}

#[test]
fn packet_out_is_sent_and_counted() {
    let (bed, _) = bed(2);
    bed.add_flow(0, 10, Match::any(), to(2));
    let message =
        |actions, in_port| PacketOut { buffer_id: None, in_port, metadata: Match::any(), actions, data: udp() };
    bed.bridge.packet_out(&message(to(1), OfPort::CONTROLLER)).unwrap();
    bed.bridge.packet_out(&message(vec![Action::output(OfPort::TABLE)], OfPort(1))).unwrap();
    bed.poll();
    assert_eq!(bed.sent(), [(OfPort(1), udp()), (OfPort(2), udp())]);
    assert_eq!(bed.bridge.flow_stats(&all_flows()).unwrap()[0].packet_count, 1);
    assert_eq!(bed.bridge.packet_out(&message(to(1), OfPort::FLOOD)), Err(OfError::OFPBRC_BAD_PORT));
}

/// POX sends them where it has nothing to send.
#[test]
fn a_packet_out_without_an_ethernet_header_is_dropped() {
    let (bed, _) = bed(2);
    for data in [vec![], vec![1; 13], vec![1; 14]] {
        let actions = vec![Action::output(OfPort(1)), Action::output(OfPort(2))];
        let message = PacketOut { buffer_id: None, in_port: OfPort::CONTROLLER, metadata: Match::any(), actions, data };
        bed.bridge.packet_out(&message).unwrap();
    }
    bed.poll();
    assert_eq!(bed.sent(), [(OfPort(1), vec![1; 14]), (OfPort(2), vec![1; 14])]);
    let drops = bed.datapath.stats().workers.iter().map(|w| w.drops.get(DropReason::Malformed)).sum::<u64>();
    assert_eq!(drops, 2);
}

#[test]
fn refusals_have_the_errors_of_the_specification() {
    let (bed, _) = bed(1);
    let refuse = |change: &FlowMod| bed.bridge.flow_mod(change).unwrap_err();
    let mut overlap = add(port(1), vec![]);
    bed.bridge.flow_mod(&overlap).unwrap();
    overlap.matching.clear(Field::InPortOxm);
    overlap.flags = FlowModFlags::CHECK_OVERLAP;
    assert_eq!(refuse(&overlap), OfError::OFPFMFC_OVERLAP);
    let mut goto = add(port(1), vec![]);
    (goto.table, goto.instructions.goto) = (Some(TableId(3)), Some(TableId(3)));
    assert_eq!(refuse(&goto), OfError::OFPBIC_BAD_TABLE_ID);
    let mut table = add(port(1), vec![]);
    table.table = Some(TableId::ALL);
    assert_eq!(refuse(&table), OfError::OFPFMFC_BAD_TABLE_ID);
    assert_eq!(refuse(&add(port(1), to(0xff00))), OfError::OFPBAC_BAD_OUT_PORT);
    assert_eq!(refuse(&add(port(1), vec![Action::Group(openflow::GroupId(1))])), OfError::OFPBAC_BAD_OUT_GROUP);
    let inconsistent = add(port(1), vec![Action::set_field(Field::NwTtl, 3)]);
    assert_eq!(refuse(&inconsistent), OfError::OFPBAC_MATCH_INCONSISTENT);
    let limited = TableSettings { max_flows: Some(1), ..TableSettings::default() };
    bed.bridge.set_config(BridgeConfig { tables: [(TableId(0), limited)].into(), ..bed.bridge.config() });
    assert_eq!(refuse(&add(port(2), vec![])), OfError::OFPFMFC_TABLE_FULL);
    bed.bridge.flow_mod(&add(port(1), to(1))).expect("replacing needs no room");
}

#[test]
fn modify_and_delete_choose_by_cookie_and_port() {
    let (bed, _) = bed(3);
    for (n, cookie) in [(1, 0x11), (2, 0x12), (3, 0x21)] {
        let mut change = add(port(n), to(n as u32 % 3 + 1));
        change.new_cookie = Some(openflow::Cookie(cookie));
        bed.bridge.flow_mod(&change).unwrap();
    }
    let mut modify = FlowMod::new(FlowModCommand::Modify, Match::any(), Instructions::apply(to(9)));
    modify.cookie = openflow::CookieFilter { value: 0x10, mask: 0xf0 };
    bed.bridge.flow_mod(&modify).unwrap();
    let outputs =
        |n| bed.bridge.flow_stats(&all_flows()).unwrap().iter().filter(|f| f.instructions.apply == to(n)).count();
    assert_eq!((outputs(9), outputs(1)), (2, 1));
    let mut delete = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
    delete.out_port = OfPort(9);
    bed.bridge.flow_mod(&delete).unwrap();
    assert_eq!((outputs(9), outputs(1)), (0, 1));
    // OpenFlow 1.0: a modify that finds nothing adds.
    let mut absent = FlowMod::new(FlowModCommand::ModifyStrict, port(2), Instructions::apply(to(3)));
    bed.bridge.flow_mod(&absent).unwrap();
    assert_eq!(outputs(3), 0);
    absent.new_cookie = Some(openflow::Cookie(5));
    bed.bridge.flow_mod(&absent).unwrap();
    assert_eq!(outputs(3), 1);
}

#[test]
fn addresses_age_unless_the_cache_sees_them() {
    let (bed, _) = bed(2);
    let mut config = bed.bridge.config();
    config.mac.ageing = Duration::from_secs(20);
    bed.bridge.set_config(config);
    bed.add_flow(0, 0, Match::any(), vec![Action::output(OfPort::NORMAL)]);
    for _ in 0..5 {
        bed.receive(OfPort(1), &udp());
        bed.clock.advance(Duration::from_secs(9));
        bed.switch.run(bed.clock.now());
    }
    let key = MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, 1] };
    assert_eq!(bed.bridge.macs().iter().map(|entry| (entry.key, entry.port)).collect::<Vec<_>>(), [(key, OfPort(1))]);
    bed.clock.advance(Duration::from_secs(20));
    bed.switch.run(bed.clock.now());
    assert!(bed.bridge.macs().is_empty());
}

struct Quiet;
impl Sink for Quiet {
    fn event(&mut self, _: Event<'_>) {}
    fn leave(&mut self) {}
}

/// A few megaflows and datapath actions as OVS 3.1 has them for the same tables.
#[test]
fn megaflows_and_actions_are_those_of_ovs() {
    let (bed, _) = bed(3);
    let mut tcp = Match::any();
    for (field, value) in [(Field::DlType, 0x800), (Field::NwProto, 6), (Field::TcpDst, 80)] {
        tcp.set(field, value);
    }
    bed.add_flow(0, 10, tcp, vec![Action::set_field(Field::DlDst, 5), Action::DecTtl, Action::output(OfPort(2))]);
    bed.add_flow(0, 5, Match::any(), to(3));
    let trace = |fields: &[(Field, u128)]| {
        let mut key = Key::new();
        fields.iter().for_each(|&(field, value)| key.set(field, value));
        bed.switch
            .trace(&crate::switch::Traced { bridge: "br0", key: &key, actions: None, shadow: None }, &mut Quiet)
            .unwrap()
    };
    let web =
        [(Field::InPortOxm, 1), (Field::DlType, 0x800), (Field::NwProto, 6), (Field::TcpDst, 80), (Field::NwTtl, 64)];
    let out = trace(&web);
    for field in [Field::DlDst, Field::NwTtl, Field::TcpDst, Field::NwProto, Field::NwFrag] {
        assert!(out.mask.is_exact(field), "{field:?}");
    }
    assert!(out.mask.is_wild(Field::NwSrc) && out.mask.is_wild(Field::TcpSrc) && out.mask.is_wild(Field::DlSrc));
    assert_eq!(out.actions.len(), 3);
    let Dp::Set(set) = &out.actions[0] else { panic!("{:?}", out.actions) };
    assert_eq!((set.key.get(Field::DlDst), set.mask.is_wild(Field::DlSrc)), (5, true));
    let Dp::Set(set) = &out.actions[1] else { panic!("{:?}", out.actions) };
    assert_eq!((set.key.get(Field::NwTtl), set.mask.is_wild(Field::NwTos)), (63, true));
    // ARP differs in the L2 stage already: nothing of L3 and L4 is matched.
    let out = trace(&[(Field::InPortOxm, 1), (Field::DlType, 0x806)]);
    assert!(out.mask.is_wild(Field::NwProto) && out.mask.is_wild(Field::TcpDst));
    // Another port differs in its first bits.
    let out = trace(&[(Field::InPortOxm, 1), (Field::DlType, 0x800), (Field::NwProto, 6), (Field::TcpDst, 0x8000)]);
    assert_eq!(out.mask.get(Field::TcpDst), 0x8000);
}

#[test]
fn a_port_whose_device_was_made_again_stays_dead() {
    let (bed, recorder) = bed(2);
    bed.add_flow(0, 1, port(1), to(2));
    assert_eq!(bed.receive(OfPort(1), &udp()).len(), 1);
    // Another device of the same name.
    let env = ports::Env::default();
    let device = ports::registry::open(&ports::PortSpec::new("p2", "dummy"), &env).unwrap();
    device.set_admin_up(true).unwrap();
    bed.bridge.replace_device(OfPort(2), device.clone(), None).unwrap();
    assert_eq!(bed.receive(OfPort(1), &udp()), [], "the old one gets nothing");
    let new = env.dummies.find("p2").unwrap();
    assert_eq!(new.take_sent(), [udp()]);
    let told = recorder.ports.lock();
    let last = told.last().unwrap();
    assert_eq!((last.desc.port, last.reason), (OfPort(2), openflow::PortReason::Modify));
    assert!(bed.bridge.replace_device(OfPort(9), device, None).is_err());
}
