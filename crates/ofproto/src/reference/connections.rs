//! Rules with connection tracking: whatever they do, and however they change, packets of connections fare as by the
//! reference.

use datapath::Config;
use openflow::action::{Ct, CtZone};
use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::{Action, GroupId, Instructions, Match, OfPort, Subfield, TableId};
use packet::Field;
use packet::wire::build;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{Change, PORTS, Pair, RuleSpec};
use crate::model::vlan::PortVlan;

/// Tables of these rules. The first one begins, the others see what comes back.
const TABLES: u8 = 4;

const NEW: u128 = 1;
const EST: u128 = 1 << 1;
const RPL: u128 = 1 << 3;
const INV: u128 = 1 << 4;
const TRK: u128 = 1 << 5;

/// What a rule asks of the packet's connection, with what that needs.
fn state() -> impl Strategy<Value = Vec<(Field, u128, u128)>> {
    let states = vec![
        (TRK, TRK),
        (0, TRK),
        (TRK | NEW, TRK | NEW),
        (TRK | EST, TRK | EST),
        (TRK | EST | RPL, TRK | EST | RPL),
        (TRK, TRK | INV),
        (TRK | EST, TRK | EST | RPL),
    ];
    let whole = u128::MAX;
    let others = prop_oneof![
        3 => Just(None),
        1 => (1u128..3).prop_map(move |zone| Some((Field::CtZone, zone, whole))),
        1 => (0u128..4, select(vec![1u128, 3, whole])).prop_map(|(mark, mask)| Some((Field::CtMark, mark, mask))),
        1 => (0u128..2).prop_map(|label| Some((Field::CtLabel, label << 64, 1 << 64))),
        1 => (1u8..4).prop_map(move |host| Some((Field::CtNwSrc, address(host).into(), whole))),
        1 => (1u16..4).prop_map(move |port| Some((Field::CtTpDst, port.into(), whole))),
    ];
    (select(states), others).prop_map(|((value, mask), other)| {
        std::iter::once((Field::CtState, value, mask)).chain(other).collect::<Vec<_>>()
    })
}

fn matching() -> impl Strategy<Value = Match> {
    let whole = u128::MAX;
    let field = prop_oneof![
        4 => state(),
        1 => (1..=u128::from(PORTS)).prop_map(move |port| vec![(Field::InPortOxm, port, whole)]),
        1 => (1u8..4).prop_map(move |host| vec![(Field::NwSrc, address(host).into(), whole)]),
        1 => (1u128..4).prop_map(move |port| vec![(Field::UdpDst, port, whole)]),
        1 => (0u128..3).prop_map(move |value| vec![(Field::Reg0, value, whole)]),
    ];
    proptest::collection::vec(field, 0..3).prop_map(|fields| {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        matching.set(Field::NwProto, 17);
        fields.into_iter().flatten().for_each(|(field, value, mask)| matching.set_masked(field, value, mask));
        matching
    })
}

/// The action in a table. What is recirculated comes to a later one, so that there is an end.
fn ct(from: u8) -> impl Strategy<Value = Action> {
    let part = |field| Subfield::new(field, 0, 16).unwrap();
    let zone = prop_oneof![
        3 => (0u16..3).prop_map(CtZone::Immediate),
        1 => Just(CtZone::Field(part(Field::Reg0))),
        1 => Just(CtZone::Field(part(Field::CtZone))),
    ];
    let exec = prop_oneof![
        (0u128..4, select(vec![1u128, 3, u128::MAX])).prop_map(|(value, mask)| Action::SetField {
            field: Field::CtMark,
            value: value & mask,
            mask
        }),
        (0u128..2).prop_map(|bit| Action::SetField { field: Field::CtLabel, value: bit << 64, mask: 1 << 64 }),
        Just(Action::RegMove { src: part(Field::Reg0), dst: part(Field::CtMark) }),
        Just(Action::RegMove { src: part(Field::CtMark), dst: part(Field::CtLabel) }),
    ];
    let exec = proptest::collection::vec(exec, 0..3);
    let mut tables = vec![None; 2];
    tables.extend((from + 1..TABLES).map(|table| Some(TableId(table))));
    let table = select(tables);
    (any::<bool>(), proptest::bool::weighted(0.2), zone, table, exec).prop_map(|(commit, force, zone, table, exec)| {
        let (force, actions) = (force && commit, if commit { exec } else { Vec::new() });
        Action::Ct(Box::new(Ct { commit, force, zone, table, alg: 0, actions }))
    })
}

fn output() -> impl Strategy<Value = Action> {
    (1..=PORTS).prop_map(|port| Action::output(OfPort(port)))
}

pub(super) fn rule() -> impl Strategy<Value = RuleSpec> {
    (select(vec![0u8, 0, 1, 1, 2, 3]), 0u16..8, matching()).prop_flat_map(|(table, priority, matching)| {
        let set =
            |field: Field, values: Vec<u128>| select(values).prop_map(move |value| Action::set_field(field, value));
        let mut actions = vec![
            (4, ct(table).boxed()),
            (4, output().boxed()),
            (1, Just(Action::CtClear).boxed()),
            (1, set(Field::Reg0, vec![0, 1, 2]).boxed()),
            (1, set(Field::UdpDst, vec![1, 2]).boxed()),
            (1, set(Field::NwDst, vec![address(1).into(), address(2).into()]).boxed()),
            (1, Just(Action::Group(GroupId(0))).boxed()),
            (2, proptest::collection::vec(prop_oneof![ct(table), output()], 1..3).prop_map(Action::Clone).boxed()),
        ];
        if table + 1 < TABLES {
            let resubmit = (table + 1..TABLES, any::<bool>()).prop_map(|(table, with_ct)| Action::Resubmit {
                in_port: OfPort::IN_PORT,
                table: TableId(table),
                with_ct,
            });
            actions.push((4, resubmit.boxed()));
        }
        let action = proptest::strategy::Union::new_weighted(actions);
        let written = proptest::option::weighted(0.2, proptest::collection::vec(output(), 1..2));
        (Just(matching), proptest::collection::vec(action, 0..4), written).prop_map(
            move |(matching, apply, written)| {
                let instructions = Instructions { write: written.unwrap_or_default(), ..Instructions::apply(apply) };
                RuleSpec { table, priority, matching, instructions }
            },
        )
    })
}

/// One bucket with ct alone, one that sends.
fn group() -> impl Strategy<Value = GroupSpec> {
    (ct(TABLES - 1), output()).prop_map(|(ct, output)| {
        let bucket = |actions| Bucket { id: 0, weight: 0, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions };
        let buckets = vec![bucket(vec![ct]), bucket(vec![Action::set_field(Field::NwTtl, 9), output])];
        GroupSpec { kind: GroupType::All, buckets, selection: Selection::default() }
    })
}

fn address(host: u8) -> u32 {
    0x0a00_0000 + u32::from(host)
}

/// A packet of one of few connections, in either direction.
pub(super) fn packet() -> impl Strategy<Value = (u32, Vec<u8>)> {
    (1u32..3, 1u8..4, 1u8..4, 1u16..3, 1u16..4, any::<bool>()).prop_map(|(port, a, b, x, y, answer)| {
        let (src, dst, from, to) = if answer { (b, a, y, x) } else { (a, b, x, y) };
        let header =
            build::Ipv4 { src: address(src).into(), dst: address(dst).into(), proto: 17, ..build::Ipv4::default() };
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(from, to, b"data")));
        (port, frame)
    })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => rule().prop_map(Change::Add),
        2 => (any::<Index>(), ct(TABLES - 1), output()).prop_map(|(i, a, b)| Change::Replace(i, Instructions::apply(vec![a, b]))),
        3 => any::<Index>().prop_map(Change::Delete),
        1 => (1u64..70).prop_map(Change::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn connections_equal_reference(
        rules in proptest::collection::vec(rule(), 2..16),
        group in group(),
        packets in proptest::collection::vec(packet(), 2..8),
        rounds in proptest::collection::vec(
            (proptest::option::of(change()), proptest::collection::vec(any::<Index>(), 1..10)),
            1..8,
        ),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        pair.groups(&[group]);
        rules.iter().for_each(|rule| pair.add(rule));
        pair.play(&rounds, &packets)?;
        pair.check_counters()?;
    }
}

/// The flow of the second pass had nothing of the connection's original direction in its key, as no rule had asked for that.
#[test]
fn a_new_rule_may_look_at_the_original_direction_of_packets_that_have_a_flow() {
    let udp = || {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        matching.set(Field::NwProto, 17);
        matching
    };
    let header = build::Ipv4 { src: address(1).into(), dst: address(2).into(), proto: 17, ..build::Ipv4::default() };
    let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"data")));
    let (commit, force, zone, table) = (false, false, CtZone::Immediate(0), Some(TableId(1)));
    let ct = Action::Ct(Box::new(Ct { commit, force, zone, table, alg: 0, actions: Vec::new() }));
    let again = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(2), with_ct: true };
    let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
    pair.put(0, 1, &udp(), &Instructions::apply(vec![ct]));
    pair.put(1, 1, &udp(), &Instructions::apply(Vec::new()));
    pair.put(2, 1, &udp(), &Instructions::apply(vec![Action::output(OfPort(2))]));
    pair.packet(1, &frame).unwrap();
    pair.put(1, 2, &udp(), &Instructions::apply(vec![Action::output(OfPort(3)), again]));
    pair.bed.bridge.barrier();
    pair.packet(1, &frame).unwrap();
    pair.check_counters().unwrap();
}
