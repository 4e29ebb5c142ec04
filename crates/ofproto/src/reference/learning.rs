//! Properties of rules that learn others, which end by themselves, by the reference.

use datapath::Config;
use openflow::action::{Learn, LearnDst, LearnSpec, LearnSrc};
use openflow::group::{GroupSpec, Selection};
use openflow::{Action, Cookie, FlowModFlags, Subfield, TableId};
use packet::Field;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{Change, PORTS, Pair, RuleSpec, change, frame, groups, rule, tiny};
use crate::model::vlan::PortVlan;

/// Seconds that pass at once. When they have passed twice, a short timeout is over, unless a packet came between; a long one never is.
const AGE: u64 = 6;
const SHORT: u16 = 10;
const LONG: u16 = 10_000;

fn part(field: Field, ofs: u16, n_bits: u16) -> Subfield {
    Subfield::new(field, ofs, n_bits).unwrap()
}

fn whole(field: Field) -> Subfield {
    part(field, 0, field.info().bits.into())
}

fn spec(src: LearnSrc, dst: LearnDst, n_bits: u16) -> LearnSpec {
    LearnSpec { n_bits, src, dst }
}

fn copied(src: Field, dst: Field) -> LearnSpec {
    let n_bits: u16 = dst.info().bits.into();
    spec(LearnSrc::Field(part(src, 0, n_bits)), LearnDst::Match(whole(dst)), n_bits)
}

fn constant(value: u128, dst: Field) -> LearnSpec {
    spec(LearnSrc::Immediate(value), LearnDst::Match(whole(dst)), dst.info().bits.into())
}

/// What is matched of the packets to come. Those of one number match the same fields, so that no two are about one packet.
fn matches(number: u16, is_tcp: bool) -> Vec<LearnSpec> {
    let ip = [constant(0x0800, Field::DlType), constant(6, Field::NwProto)];
    match number {
        0 => vec![copied(Field::DlSrc, Field::DlDst)],
        1 if is_tcp => [&ip[..], &[copied(Field::TcpSrc, Field::TcpDst)]].concat(),
        2 if is_tcp => [&ip[..], &[copied(Field::NwSrc, Field::NwSrc), copied(Field::TcpDst, Field::TcpDst)]].concat(),
        3 => vec![spec(LearnSrc::Field(part(Field::DlSrc, 0, 8)), LearnDst::Match(part(Field::DlDst, 4, 8)), 8)],
        4 => vec![copied(Field::InPort, Field::InPort), copied(Field::Reg0, Field::Reg0)],
        _ => vec![],
    }
}

/// What they do.
fn actions(number: usize, is_tcp: bool) -> LearnSpec {
    let load = |src, dst, n_bits| spec(src, LearnDst::Load(dst), n_bits);
    match number {
        0 => spec(LearnSrc::Field(whole(Field::InPort)), LearnDst::Output, 16),
        1 => spec(LearnSrc::Immediate(2), LearnDst::Output, 16),
        2 => load(LearnSrc::Field(part(Field::DlSrc, 0, 16)), part(Field::Reg0, 0, 16), 16),
        3 if is_tcp => load(LearnSrc::Immediate(0x1234), whole(Field::TcpDst), 16),
        4 => load(LearnSrc::Field(whole(Field::DlDst)), whole(Field::DlSrc), 48),
        _ => load(LearnSrc::Immediate(1), part(Field::Reg0, 0, 2), 2),
    }
}

fn timeout() -> impl Strategy<Value = u16> {
    select(vec![0, 0, LONG, SHORT])
}

fn learn(table: u8, is_tcp: bool) -> impl Strategy<Value = Action> {
    let result = proptest::option::of(select(vec![part(Field::Reg0, 0, 1), part(Field::Reg1, 3, 1)]));
    let outcome = proptest::collection::vec((0usize..6).prop_map(move |number| actions(number, is_tcp)), 0..3);
    let fin = || select(vec![0, 0, SHORT]);
    let limits = (select(vec![0u32, 0, 1, 2]), any::<bool>(), 0u64..3);
    ((0u16..6), outcome, (timeout(), timeout()), (fin(), fin()), limits, result).prop_map(
        move |(number, outcome, (idle, hard), (fin_idle, fin_hard), (limit, delete_learned, cookie), result_dst)| {
            // What matches all has a number of its own.
            let number = if is_tcp || !matches!(number, 1 | 2) { number } else { 5 };
            Action::Learn(Box::new(Learn {
                idle_timeout: idle,
                hard_timeout: hard,
                // Above all others.
                priority: 60_000 + number,
                cookie: Cookie(cookie),
                flags: FlowModFlags::empty(),
                delete_learned,
                table: TableId(table),
                fin_idle_timeout: if is_tcp { fin_idle } else { 0 },
                fin_hard_timeout: if is_tcp { fin_hard } else { 0 },
                limit,
                result_dst,
                specs: [matches(number, is_tcp), outcome].concat(),
            }))
        },
    )
}

/// A rule, most often one that learns, or whose time a packet ends.
fn learning() -> impl Strategy<Value = RuleSpec> {
    rule().prop_flat_map(|rule| {
        let is_tcp = rule.matching.get(Field::NwProto) == (6, 0xff);
        let fin = (Just(SHORT), select(vec![0, SHORT])).prop_map(|(idle, hard)| Action::FinTimeout { idle, hard });
        let more = prop_oneof![6 => learn(2, is_tcp), 1 => learn(1, is_tcp), 1 => fin];
        (Just(rule), proptest::collection::vec((more, any::<Index>()), 0..3)).prop_map(|(mut rule, more)| {
            let apply = &mut rule.instructions.apply;
            for (action, at) in more {
                let at = at.index(apply.len() + 1);
                // A clone can learn, too.
                match apply.get_mut(at) {
                    Some(Action::Clone(inner)) => inner.push(action),
                    _ => apply.insert(at, action),
                }
            }
            rule
        })
    })
}

/// Frames, of which some end a connection.
fn last_frame() -> impl Strategy<Value = Vec<u8>> {
    (frame(), select(vec![0x10u8, 0x11, 0x14])).prop_map(|(mut frame, flags)| {
        let l3 = 14 + 4 * (0..2).take_while(|n| frame[12 + 4 * n] == 0x81).count();
        if frame.len() > l3 + 33 && frame[l3 - 2..l3] == [8, 0] && frame[l3 + 9] == 6 {
            frame[l3 + 33] = flags;
        }
        frame
    })
}

fn changes() -> impl Strategy<Value = Change> {
    let change = prop_oneof![
        3 => change().prop_filter("time passes otherwise", |change| !matches!(change, Change::Wait(_))),
        1 => learning().prop_map(Change::Add),
        1 => any::<Index>().prop_map(Change::Delete),
        2 => Just(Change::Age(AGE)),
    ];
    change.prop_map(|change| match change {
        Change::Add(rule) => Change::Add(in_one_pass(rule)),
        Change::Groups(groups) => Change::Groups(chosen_in_one_pass(groups)),
        other => other,
    })
}

/// Leaves out what has packets come round again. The datapath's flow that such a packet finds then may be older than what it has taught
/// a moment before: as in OVS, a change by a packet is in force when the flows have been revalidated.
fn in_one_pass(mut rule: RuleSpec) -> RuleSpec {
    fn leave_out(list: &mut Vec<Action>) {
        list.retain(|action| *action != Action::DebugRecirc);
        list.iter_mut().for_each(|action| {
            if let Action::Clone(inner) = action {
                leave_out(inner);
            }
        });
    }
    leave_out(&mut rule.instructions.apply);
    rule
}

/// The same for groups whose buckets are chosen by a hash of the datapath.
fn chosen_in_one_pass(mut groups: Vec<GroupSpec>) -> Vec<GroupSpec> {
    groups.iter_mut().filter(|group| group.selection.method == "dp_hash").for_each(|group| {
        group.selection = Selection::default();
    });
    groups
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

    /// Rules are learnt, do what they were learnt for and end as by the reference.
    #[test]
    fn learnt_rules_equal_reference(
        groups in groups().prop_map(chosen_in_one_pass),
        rules in proptest::collection::vec(learning().prop_map(in_one_pass), 1..12),
        frames in proptest::collection::vec((1..=PORTS, last_frame()), 2..8),
        rounds in proptest::collection::vec(
            (proptest::option::of(changes()), proptest::collection::vec(any::<Index>(), 1..8)),
            1..10,
        ),
        limited in any::<bool>(),
    ) {
        let config = if limited { tiny() } else { Config::default() };
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], config);
        pair.groups(&groups);
        rules.iter().for_each(|rule| pair.add(rule));
        pair.play(&rounds, &frames)?;
        pair.check_counters()?;
    }
}
