//! That rounds for changes look at few flows, and leave none behind that is out of date.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datapath::{FlowTag, Upcall, Verdict};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, Subfield, TableId};
use packet::flow::VlanLimit;
use packet::flow::field::FIELDS;
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Clock, Field, Key, Mask, Packet};
use proptest::prelude::*;
use proptest::sample::select;

use crate::reference::tests::{Bed, all_flows};
use crate::switch::SwitchSettings;
use crate::{BridgeConfig, TableSettings};

const ADDRESSES: [u32; 4] = [0x0a00_0001, 0x0a00_0002, 0x0a01_0001, 0x0b00_0001];
const PORTS: [u16; 2] = [53, 80];
const TTLS: [u8; 2] = [1, 64];
/// Priority code points tell the tags of the inner from the outer one.
const TAGS: [&[(u16, u16)]; 4] = [&[], &[(0x8100, 5)], &[(0x8100, 6)], &[(0x8100, 5), (0x8100, 6)]];
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// A packet, by its numbers in the lists above.
#[derive(Clone, Copy, Debug)]
struct Sent {
    in_port: u32,
    source: usize,
    target: usize,
    port: usize,
    ttl: usize,
    tags: usize,
    mac: usize,
}

impl Sent {
    fn frame(self) -> Vec<u8> {
        let (src, dst) = (ADDRESSES[self.source].into(), ADDRESSES[self.target].into());
        let header = build::Ipv4 { src, dst, proto: 17, ttl: TTLS[self.ttl], ..build::Ipv4::default() };
        let payload = header.packet(build::udp(1, PORTS[self.port], b""));
        build::ethernet(MACS[self.mac], [4; 6], TAGS[self.tags], 0x0800, &payload)
    }

    fn key(self, bed: &Bed) -> Key {
        let mut key = Key::new();
        packet::flow::extract(&self.frame(), &mut key, VlanLimit::default());
        let forwarding = bed.switch.forwarding.read();
        let port = forwarding.by_dp_port.iter().find(|(_, (_, port))| port.0 == self.in_port).unwrap();
        key.common_mut().in_port = port.0.0.into();
        key
    }

    fn any() -> impl Strategy<Value = Sent> {
        (1u32..4, 0usize..4, 0usize..4, 0usize..2, 0usize..2, 0usize..4, 0usize..2).prop_map(
            |(in_port, source, target, port, ttl, tags, mac)| Sent { in_port, source, target, port, ttl, tags, mac },
        )
    }

    fn all() -> Vec<Sent> {
        let mut all = Vec::new();
        for n in 0..3 * 4 * 4 * 2 * 2 * 4 * 2 {
            let (in_port, n) = (1 + n as u32 % 3, n / 3);
            let (source, target, n) = (n % 4, n / 4 % 4, n / 16);
            all.push(Sent { in_port, source, target, port: n % 2, ttl: n / 2 % 2, tags: n / 4 % 4, mac: n / 16 });
        }
        all
    }
}

/// What rules match, and what they do.
#[derive(Clone, Debug)]
struct RuleSpec {
    table: u8,
    priority: u16,
    matching: Match,
    actions: Vec<Action>,
}

fn matching() -> impl Strategy<Value = Match> {
    let prefix = select(vec![u32::MAX, 0xffff_ff00, 0xffff_0000, 0xff00_0000, 3]);
    let address = |field: Field| {
        proptest::option::weighted(
            0.4,
            (select(ADDRESSES.to_vec()), prefix.clone()).prop_map(move |(a, m)| (field, a & m, m)),
        )
    };
    let exact = |field: Field, values: Vec<u128>| {
        proptest::option::weighted(0.25, select(values).prop_map(move |value| (field, value)))
    };
    (
        address(Field::NwSrc),
        address(Field::NwDst),
        exact(Field::InPortOxm, vec![1, 2, 3, 4]),
        exact(Field::UdpDst, vec![53, 80, 99]),
        exact(Field::NwTtl, vec![1, 64, 63]),
        exact(Field::VlanTci, vec![0, 0x1005, 0x1006]),
        exact(Field::Reg0, vec![0, 7, 0x0a00_0001]),
        exact(Field::DlDst, vec![0x0200_0000_0001, 0x0200_0000_0002]),
    )
        .prop_map(|(source, target, in_port, port, ttl, vlan, reg, mac)| {
            let mut matching = Match::any();
            matching.set(Field::DlType, 0x0800);
            if port.is_some() {
                matching.set(Field::NwProto, 17);
            }
            for (field, value, mask) in [source, target].into_iter().flatten() {
                matching.set_masked(field, value.into(), mask.into());
            }
            for (field, value) in [in_port, port, ttl, vlan, reg, mac].into_iter().flatten() {
                matching.set(field, value);
            }
            matching
        })
}

fn actions(table: u8) -> impl Strategy<Value = Vec<Action>> {
    let all = |field, bits| Subfield::new(field, 0, bits).unwrap();
    let moved = |from, to| Action::RegMove { src: all(from, 32), dst: all(to, 32) };
    let load = |field, bits, value| Action::RegLoad { dst: all(field, bits), value };
    let resubmit = move |in_port| Action::Resubmit { in_port, table: TableId(table + 1), with_ct: false };
    let mut choice = vec![
        Action::output(OfPort(2)),
        Action::output(OfPort(3)),
        Action::output(OfPort::IN_PORT),
        Action::DecTtl,
        Action::StripVlan,
        Action::PushVlan(0x8100),
        moved(Field::NwSrc, Field::NwDst),
        moved(Field::NwDst, Field::NwSrc),
        moved(Field::NwDst, Field::Reg0),
        moved(Field::Reg0, Field::NwSrc),
        load(Field::Reg0, 32, 7),
        load(Field::NwDst, 32, 0x0a00_0002),
        load(Field::NwSrc, 16, 1),
        load(Field::UdpDst, 16, 80),
        load(Field::DlDst, 48, 0x0200_0000_0002),
        load(Field::VlanTci, 12, 6),
    ];
    if table < 2 {
        let onwards = [OfPort::IN_PORT, OfPort::IN_PORT, OfPort::IN_PORT, OfPort(3)].map(resubmit);
        choice.extend(onwards.iter().cloned().cycle().take(12));
    }
    prop::collection::vec(select(choice), 1..5)
}

fn rule() -> impl Strategy<Value = RuleSpec> {
    let of_table = |table: u8| {
        (1u16..5, matching(), actions(table)).prop_map(move |(priority, matching, actions)| RuleSpec {
            table,
            priority,
            matching,
            actions,
        })
    };
    prop_oneof![of_table(0), of_table(1), of_table(2)]
}

#[derive(Clone, Debug)]
enum Event {
    Add(RuleSpec),
    /// Replaces the actions of a rule, or removes it: one of those so far, by number.
    Replace(usize, Vec<Action>),
    Remove(usize),
    Receive(Vec<Sent>),
    Barrier,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => rule().prop_map(Event::Add),
        2 => (any::<usize>(), actions(2)).prop_map(|(n, actions)| Event::Replace(n, actions)),
        2 => any::<usize>().prop_map(Event::Remove),
        4 => prop::collection::vec(Sent::any(), 1..20).prop_map(Event::Receive),
        3 => Just(Event::Barrier),
    ]
}

fn change(bed: &Bed, command: FlowModCommand, spec: &RuleSpec, actions: Vec<Action>) {
    let mut change = FlowMod::new(command, spec.matching.clone(), Instructions::apply(actions));
    (change.table, change.priority) = (Some(TableId(spec.table)), spec.priority);
    // Some actions don't fit the match.
    let _ = bed.bridge.flow_mod(&change);
}

/// Every flow is as a new translation of any of its packets would have it.
fn assert_up_to_date(bed: &Bed, probes: &[Key]) {
    let forwarding = bed.switch.forwarding.read();
    for flow in bed.datapath.flows() {
        for probe in probes.iter().filter(|probe| flow.key.matches(probe, &flow.mask)) {
            let now = bed.switch.translate_dp(&forwarding, probe, None, bed.clock.now()).unwrap();
            let [now, then] = [&now.actions[..], &flow.actions[..]].map(|actions| effects(actions, probe));
            assert_eq!(now, then, "a flow for {:?} is stale for {probe:?}", flow.key);
        }
    }
}

/// What actions do to a packet: the headers after each rewriting, and the other actions. A flow that matches more than it has to may
/// rewrite more, with what is there.
pub(crate) fn effects(actions: &[datapath::Action], packet: &Key) -> Vec<Result<Key, datapath::Action>> {
    let mut key = packet.clone();
    let mut effect = |action: &datapath::Action| {
        let datapath::Action::Set(rewrite) = action else { return Err(action.clone()) };
        for field in FIELDS.iter().map(|info| info.field).filter(|field| !rewrite.mask.is_wild(*field)) {
            let mask = rewrite.mask.get(field);
            key.set(field, key.get(field) & !mask | rewrite.key.get(field) & mask);
        }
        Ok(key.clone())
    };
    actions.iter().map(&mut effect).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn flows_that_are_not_looked_at_are_right_for_all_their_packets(
        first in prop::collection::vec(rule(), 3..10),
        events in prop::collection::vec(event(), 1..24),
        indexed: bool,
    ) {
        let bed = Bed::new(4);
        // Half of the time, flows are found by an index, however few they are.
        bed.datapath.set_indexed_from(if indexed { 0 } else { usize::MAX });
        let mut rules = first;
        rules.iter().for_each(|rule| change(&bed, FlowModCommand::Add, rule, rule.actions.clone()));
        let probes: Vec<_> = Sent::all().into_iter().map(|sent| sent.key(&bed)).collect();
        for event in events.into_iter().chain([Event::Barrier]) {
            match event {
                Event::Add(rule) => {
                    change(&bed, FlowModCommand::Add, &rule, rule.actions.clone());
                    rules.push(rule);
                }
                Event::Replace(n, actions) => change(&bed, FlowModCommand::ModifyStrict, &rules[n % rules.len()], actions),
                Event::Remove(n) => change(&bed, FlowModCommand::DeleteStrict, &rules[n % rules.len()], Vec::new()),
                Event::Receive(packets) => packets.iter().for_each(|sent| {
                    bed.receive(OfPort(sent.in_port), &sent.frame());
                }),
                Event::Barrier => {
                    bed.bridge.barrier();
                    assert_up_to_date(&bed, &probes);
                }
            }
        }
    }
}

fn of_source(source: u32) -> Match {
    let mut matching = Match::any();
    matching.set(Field::DlType, 0x0800);
    matching.set(Field::NwSrc, source.into());
    matching
}

/// A bed with a flow for each of so many sources.
fn bed_with_flows(sources: u32) -> Bed {
    let bed = Bed::new(4);
    let copy = Action::RegMove {
        src: Subfield::new(Field::NwSrc, 0, 32).unwrap(),
        dst: Subfield::new(Field::Reg0, 0, 32).unwrap(),
    };
    let onwards = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(1), with_ct: false };
    let mut ip = Match::any();
    ip.set(Field::DlType, 0x0800);
    bed.add_flow(0, 1, ip, vec![copy, Action::DecTtl, onwards]);
    bed.add_flow(1, 1, Match::any(), vec![Action::output(OfPort(2))]);
    (1..=sources).for_each(|source| assert_eq!(bed.receive(OfPort(1), &of(source)).len(), 1));
    bed.bridge.barrier();
    assert_eq!(bed.datapath.flow_count(), sources as usize);
    bed
}

fn of(source: u32) -> Vec<u8> {
    let header = build::Ipv4 { src: source.into(), proto: 17, ..build::Ipv4::default() };
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"")))
}

#[test]
fn a_change_translates_those_flows_again_that_it_can_be_about() {
    let bed = bed_with_flows(100);
    let translated = |table, matching: Match| {
        let before = bed.switch.revalidation_stats().translated;
        bed.add_flow(table, 7, matching, vec![Action::output(OfPort(3))]);
        bed.bridge.barrier();
        bed.switch.revalidation_stats().translated - before
    };
    assert_eq!(translated(0, of_source(1000)), 0, "no flow has this source");
    assert_eq!(translated(0, of_source(5)), 1);
    assert_eq!(translated(1, of_source(6)), 1, "the TTL beside it has changed on the way there");
    let mut ttl = of_source(7);
    ttl.set(Field::NwTtl, 64);
    assert_eq!(translated(1, ttl), 1, "what was overwritten is not compared");
    let mut some = Match::any();
    some.set(Field::DlType, 0x0800);
    some.set_masked(Field::NwSrc, 16, 0xffff_fff8);
    assert_eq!(translated(0, some.clone()), 8);
    let mut elsewhere = some;
    elsewhere.set(Field::InPortOxm, 2);
    assert_eq!(translated(0, elsewhere), 0, "all came in at port 1");
    let mut elsewhere = of_source(20);
    elsewhere.set(Field::InPortOxm, 1);
    assert_eq!(translated(0, elsewhere), 1);
    for (source, port) in [(5, 3), (6, 3), (16, 3), (20, 3), (30, 2)] {
        assert_eq!(bed.receive(OfPort(1), &of(source))[0].0, OfPort(port), "{source}");
    }
    // More changes than are remembered.
    (0..5000).for_each(|n| bed.add_flow(0, 8, of_source(100_000 + n), vec![]));
    assert_eq!(translated(0, of_source(200_000)), 100, "all of the table");
}

/// By the index, few flows are looked at; and it has flows that come and go after it was made.
#[test]
fn the_flows_of_a_change_are_found_by_an_index() {
    let bed = bed_with_flows(100);
    bed.datapath.set_indexed_from(0);
    let stats = || bed.switch.revalidation_stats();
    let indexed = |table, matching: Match| {
        let before = stats();
        bed.add_flow(table, 7, matching, vec![Action::output(OfPort(3))]);
        bed.bridge.barrier();
        let after = stats();
        assert_eq!(after.count, before.count + 1);
        (after.indexed - before.indexed == 1, after.translated - before.translated)
    };
    assert_eq!(indexed(0, of_source(1000)), (true, 0));
    assert_eq!(indexed(1, of_source(5)), (true, 1), "by what came as it was, although the TTL did not");
    (101..=200).for_each(|source| drop(bed.receive(OfPort(1), &of(source))));
    assert_eq!(indexed(0, of_source(150)), (true, 1));
    bed.switch.purge();
    assert_eq!(bed.datapath.flow_count(), 0);
    (1..=200).for_each(|source| drop(bed.receive(OfPort(1), &of(source))));
    assert_eq!(indexed(0, of_source(7)), (true, 1));
    let mut ttl = Match::any();
    ttl.set(Field::DlType, 0x0800);
    ttl.set(Field::NwTtl, 63);
    assert_eq!(indexed(1, ttl), (true, 198), "all that reach the table: the TTL is overwritten before");
    assert_eq!(indexed(0, Match::any()), (false, 200), "all flows: a walk");
    for (source, port) in [(5, 3), (7, 3), (30, 3)] {
        assert_eq!(bed.receive(OfPort(1), &of(source))[0].0, OfPort(port), "{source}");
    }
}

/// The translation of a miss, not yet installed.
fn decide(bed: &Bed, source: u32) -> (FlowTag, Box<Key>, Arc<Mask>) {
    let sent = of(source);
    let mut key = Key::new();
    let layers = packet::flow::extract(&sent, &mut key, VlanLimit::default());
    let forwarding = bed.switch.forwarding.read();
    key.common_mut().in_port = forwarding.by_dp_port.iter().find(|(_, (_, port))| port.0 == 1).unwrap().0.0.into();
    drop(forwarding);
    let packet = Packet::from_slice(&sent);
    let mut misses =
        [datapath::Miss { packet, key: Box::new(key), layers, hash: 0, counted: false, verdict: Verdict::Pending }];
    bed.switch.misses(&mut misses, bed.clock.now());
    match std::mem::take(&mut misses[0].verdict) {
        Verdict::Install { tag, mask, .. } => (tag, misses[0].key.clone(), mask),
        _ => panic!("no flow is asked for"),
    }
}

#[test]
fn what_was_translated_before_a_change_is_not_installed_after_it() {
    let bed = bed_with_flows(1);
    let (tag, key, mask) = decide(&bed, 2);
    let version = || bed.switch.version_of(&tag, &key, &mask);
    let first = version().unwrap();
    assert!(bed.switch.is_current(first));
    bed.add_flow(7, 1, Match::any(), vec![]);
    assert!(bed.switch.is_current(first), "nothing depends on table 7");
    bed.add_flow(1, 9, of_source(3), vec![Action::output(OfPort(3))]);
    assert!(!bed.switch.is_current(first), "that takes a closer look");
    let second = version().expect("it is about another source");
    assert!(bed.switch.is_current(second));
    bed.add_flow(1, 9, of_source(2), vec![Action::output(OfPort(3))]);
    assert!(!bed.switch.is_current(second) && version().is_none());
    bed.bridge.barrier();
    assert!(!bed.switch.is_current(second) && version().is_none(), "the round has not seen it");
    let (tag, key, mask) = decide(&bed, 2);
    assert!(bed.switch.version_of(&tag, &key, &mask).is_some());
}

#[test]
fn flows_that_share_a_record_are_told_apart() {
    let bed = bed_with_flows(1);
    let [a, b] = [2, 3].map(|source| decide(&bed, source));
    assert!(Arc::ptr_eq(&a.0, &b.0));
    bed.add_flow(1, 9, of_source(3), vec![Action::output(OfPort(3))]);
    let version = |(tag, key, mask): &(FlowTag, Box<Key>, Arc<Mask>)| bed.switch.version_of(tag, key, mask);
    assert!(version(&a).is_some());
    assert!(version(&b).is_none());
}

#[test]
fn packets_of_one_batch_that_teach_flows_get_theirs() {
    let bed = Bed::new(3);
    let text = "table=0,actions=learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),resubmit(,1)";
    let rules = [text, "table=1,priority=0,actions=output:2"];
    for rule in rules {
        let change = parse_flow_mod(FlowModCommand::Add, rule, &NoNames).unwrap();
        bed.bridge.flow_mod(&change).unwrap();
    }
    let frame = |n: u8| build::ethernet([2, 0, 0, 0, 1, n], [2, 0, 0, 0, 0, n], &[], 0x1234, &[0; 46]);
    (0..20).for_each(|n| assert!(bed.devices[0].inject(&frame(n))));
    bed.poll();
    assert_eq!(bed.sent().len(), 20);
    assert_eq!(bed.datapath.flow_count(), 20);
    bed.bridge.barrier();
    assert_eq!(bed.datapath.flow_count(), 20, "they are up to date");
}

/// A host that is new is nothing to the flows of the others, however many there are.
#[test]
fn what_a_packet_teaches_is_about_its_own_flow() {
    let bed = Bed::new(3);
    let text = "table=0,actions=learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),resubmit(,1)";
    for rule in [text, "table=1,priority=0,actions=output:2"] {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, rule, &NoNames).unwrap()).unwrap();
    }
    let frame = |to: u8, n: u8| build::ethernet([2, 0, 0, 0, 2, to], [2, 0, 0, 0, 1, n], &[], 0x1234, &[0; 46]);
    let receive = |n: u8| assert_eq!(bed.receive(OfPort(1), &frame(0, n)).len(), 1);
    let translated = |work: &dyn Fn()| {
        bed.bridge.barrier();
        let before = bed.switch.revalidation_stats().translated;
        work();
        bed.bridge.barrier();
        bed.switch.revalidation_stats().translated - before
    };
    (0..100).for_each(receive);
    assert_eq!(bed.datapath.flow_count(), 100);
    assert!(translated(&|| receive(100)) <= 1, "that of the new host");
    assert_eq!(bed.datapath.flow_count(), 101);
    // What was learnt goes: the next packet of this host, and of no other, teaches it again.
    let learnt = |n: u8| {
        let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
        flows.iter().filter(|flow| flow.matching.exact(Field::DlDst) == Some(0x0200_0000_0100 + u128::from(n))).count()
    };
    let forget = format!("table=1,dl_dst=02:00:00:00:01:{:02x}", 7);
    let forget = parse_flow_mod(FlowModCommand::Delete, &forget, &NoNames).unwrap();
    assert_eq!(translated(&|| bed.bridge.flow_mod(&forget).unwrap()), 1);
    assert_eq!((learnt(7), bed.datapath.flow_count()), (0, 100));
    receive(8);
    receive(7);
    assert_eq!((learnt(7), bed.datapath.flow_count()), (1, 101));
    // A flow of other tables is looked at as before.
    let to_all =
        parse_flow_mod(FlowModCommand::Add, "table=0,priority=9,dl_src=02:00:00:00:01:08,actions=3", &NoNames).unwrap();
    assert_eq!(translated(&|| bed.bridge.flow_mod(&to_all).unwrap()), 1);
}

/// Who sends packets decides how many flows they teach, and not how much memory there is.
#[test]
fn a_table_learns_no_more_than_it_says_that_it_takes() {
    let bed = Bed::new(3);
    let text =
        "table=0,actions=learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],result_dst=NXM_NX_REG0[0]),resubmit(,2)";
    for rule in [text, "table=2,reg0=1,actions=2", "table=2,reg0=0,actions=3"] {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, rule, &NoNames).unwrap()).unwrap();
    }
    let of = |n: u32| {
        let mut matching = Match::any();
        matching.set(Field::DlDst, 0x0200_0001_0000 + u128::from(n));
        matching
    };
    (0..19_999).for_each(|n| bed.add_flow(1, 1, of(n), vec![]));
    let receive = |n: u8| {
        let frame = build::ethernet([2; 6], [2, 0, 0, 0, 1, n], &[], 0x1234, &[0; 46]);
        bed.receive(OfPort(1), &frame)[0].0
    };
    let flows = || bed.bridge.flow_stats(&all_flows()).unwrap().len() - 3;
    assert_eq!((receive(1), receive(2), receive(2), flows()), (OfPort(2), OfPort(3), OfPort(3), 20_000));
    // A controller may add more; what is learnt already stays so.
    bed.add_flow(1, 1, of(20_000), vec![]);
    bed.bridge.barrier();
    assert_eq!((receive(1), receive(2), flows()), (OfPort(2), OfPort(3), 20_001));
    for n in [1, 20_000] {
        let command = FlowModCommand::DeleteStrict;
        let change =
            FlowMod { table: Some(TableId(1)), priority: 1, ..FlowMod::new(command, of(n), Instructions::default()) };
        bed.bridge.flow_mod(&change).unwrap();
    }
    bed.bridge.barrier();
    assert_eq!((receive(2), receive(3), flows()), (OfPort(2), OfPort(3), 20_000), "there was room for one");
    // An operator's limit is another one.
    let settings = TableSettings { max_flows: Some(20_001), ..TableSettings::default() };
    bed.bridge.set_config(BridgeConfig { tables: [(TableId(1), settings)].into(), ..bed.bridge.config() });
    bed.bridge.barrier();
    assert_eq!((receive(3), flows()), (OfPort(2), 20_001));
}

#[test]
fn a_flow_that_one_packet_learns_twice_counts_once_for_a_limit() {
    let bed = Bed::new(2);
    let rule = "actions=learn(table=1,priority=9),learn(table=1,priority=9,load:1->NXM_NX_REG0[]),learn(table=1,limit=2,NXM_OF_ETH_SRC[])";
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, rule, &NoNames).unwrap()).unwrap();
    for source in 1..4 {
        assert!(bed.devices[0].inject(&build::ethernet([2; 6], [2, 0, 0, 0, 0, source], &[], 0x1234, &[0; 46])));
        bed.poll();
    }
    let flows = bed.bridge.flow_stats(&all_flows()).unwrap();
    let mut learnt: Vec<u128> = flows.iter().map(|flow| flow.matching.get(Field::DlSrc).0).collect();
    learnt.sort_unstable();
    assert_eq!(learnt, [0, 0, 0x0200_0000_0001], "the rule, what matches all, and the first of those with a limit");
}

#[test]
fn who_waits_for_a_change_is_woken_and_interrupts_statistics() {
    let bed = bed_with_flows(3000);
    let woken = Arc::new(AtomicUsize::new(0));
    let waker = || {
        let woken = woken.clone();
        Arc::new(move || {
            woken.fetch_add(1, Ordering::SeqCst);
        }) as crate::events::Waker
    };
    let latest = || bed.bridge.latest_change();
    assert!(bed.bridge.begin_barrier(latest(), Some(waker())), "without a revalidator, the asking thread does it");
    bed.switch.set_revalidator(true);
    assert!(bed.bridge.begin_barrier(latest(), Some(waker())), "nothing has changed");
    bed.add_flow(0, 9, of_source(5), vec![]);
    let first = latest();
    assert!(!bed.bridge.begin_barrier(first, Some(waker())));
    bed.add_flow(9, 9, of_source(5), vec![]);
    assert_eq!(latest(), first, "no flow depends on table 9");
    assert!(bed.bridge.begin_barrier(0, Some(waker())), "a change of another connection is not waited for");
    bed.add_flow(0, 9, of_source(6), vec![]);
    assert!(!bed.bridge.begin_barrier(latest(), Some(waker())));
    // Rounds for statistics are due all the time; the changes come first, and both in one round.
    bed.clock.advance(Duration::from_secs(1));
    let before = bed.switch.revalidation_stats().count;
    bed.switch.run(bed.clock.now());
    assert_eq!(woken.load(Ordering::SeqCst), 2);
    assert_eq!(bed.switch.revalidation_stats().count - before, 2, "one for the changes, one for statistics");
    assert!(bed.bridge.has_passed(latest()));
    assert!(bed.receive(OfPort(1), &of(5)).is_empty() && bed.receive(OfPort(1), &of(6)).is_empty());
}

#[test]
fn very_many_flows_are_not_counted_for_each_request() {
    let bed = bed_with_flows(10);
    bed.switch.set_settings(SwitchSettings { revalidators: 2, ..SwitchSettings::default() });
    let packets = || bed.bridge.table_stats()[0].matched_count;
    assert_eq!(packets(), 10);
    bed.receive(OfPort(1), &of(1));
    assert_eq!(packets(), 11, "few are");
}
