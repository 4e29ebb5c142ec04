//! Properties of rules with MPLS labels, a stack of values and copies between fields, by the reference.

use datapath::Config;
use openflow::{Action, Instructions, Match, OfPort, Subfield, TableId};
use packet::Field;
use packet::wire::build;
use packet::wire::mpls::LabelStackEntry;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{Change, PORTS, Pair, RuleSpec, all_flows};
use crate::model::vlan::PortVlan;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const LABELLED: u16 = 0x8847;

/// A packet behind up to two labels, of few values.
pub(super) fn packet() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let label = (1u32..4, 0u8..3, select(vec![1u8, 2, 64]));
    let tags = proptest::collection::vec(select(vec![(0x8100u16, 5u16), (0x8100, 6)]), 0..2);
    let v6 = proptest::bool::weighted(0.3);
    (1u32..3, proptest::collection::vec(label, 0..3), tags, v6, select(vec![1u8, 64]), select(vec![0u8, 0x28]))
        .prop_map(|(port, labels, tags, v6, ttl, tos)| {
            let payload = build::udp(1, 2, b"data");
            let inner = match v6 {
                true => build::Ipv6 { proto: 17, hop_limit: ttl, ..build::Ipv6::default() }.packet(payload),
                false => {
                    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
                    build::Ipv4 { src, dst, proto: 17, ttl, tos, ..build::Ipv4::default() }.packet(payload)
                }
            };
            let of = |n: usize, (label, tc, ttl)| LabelStackEntry::new(label, tc, n + 1 == labels.len(), ttl);
            let stack: Vec<_> = labels.iter().enumerate().map(|(n, &label)| of(n, label)).collect();
            let ethertype = match (stack.is_empty(), v6) {
                (false, _) => LABELLED,
                (true, true) => IPV6,
                (true, false) => IPV4,
            };
            (port, build::ethernet([2; 6], [4; 6], &tags, ethertype, &build::mpls(&stack, &inner)))
        })
}

fn part(field: Field, ofs: u16, n_bits: u16) -> Subfield {
    Subfield::new(field, ofs, n_bits).unwrap()
}

fn output() -> impl Strategy<Value = Action> {
    (1..=PORTS).prop_map(|n| Action::output(OfPort(n)))
}

fn parts() -> impl Strategy<Value = Subfield> {
    select(vec![
        part(Field::Reg0, 0, 3),
        part(Field::Reg0, 8, 8),
        part(Field::Reg1, 0, 16),
        part(Field::DlSrc, 0, 16),
        part(Field::MplsLabel, 0, 2),
        part(Field::MplsTc, 0, 3),
        part(Field::NwTtl, 0, 8),
        part(Field::NwDst, 8, 8),
    ])
}

/// Any action; which of them a rule may have, [`consistent`] says.
fn action(table: u8) -> impl Strategy<Value = Action> {
    let set =
        |field: Field, values: Vec<u128>| select(values).prop_map(move |value| Action::set_field(field, value)).boxed();
    let mut list = vec![
        (5, output().boxed()),
        (3, select(vec![LABELLED, 0x8848]).prop_map(Action::PushMpls).boxed()),
        (4, select(vec![IPV4, IPV4, IPV4, IPV6, LABELLED]).prop_map(Action::PopMpls).boxed()),
        (1, Just(Action::DecMplsTtl).boxed()),
        (2, Just(Action::DecTtl).boxed()),
        (1, Just(Action::DecTtlCntIds(vec![1, 2])).boxed()),
        (1, set(Field::MplsLabel, vec![1, 7])),
        (1, set(Field::MplsTc, vec![2, 5])),
        (1, set(Field::MplsTtl, vec![1, 9])),
        (1, set(Field::NwTtl, vec![1, 9])),
        (1, set(Field::NwSrc, vec![1, 0x0a00_0007])),
        (1, set(Field::DlDst, vec![3])),
        (1, set(Field::Reg0, vec![1, 2])),
        (
            2,
            (parts(), parts())
                .prop_map(|(src, dst)| Action::RegMove { src: sized(src, dst), dst: sized(dst, src) })
                .boxed(),
        ),
        (2, parts().prop_map(Action::StackPush).boxed()),
        (2, parts().prop_map(Action::StackPop).boxed()),
        (1, Just(Action::OutputReg { src: part(Field::Reg0, 0, 3), max_len: u16::MAX }).boxed()),
        (1, Just(Action::StripVlan).boxed()),
        (1, Just(Action::DebugRecirc).boxed()),
    ];
    if table == 0 {
        let next = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(1), with_ct: false };
        list.push((5, Just(next).boxed()));
    }
    proptest::strategy::Union::new_weighted(list)
}

/// As many bits as the other has.
fn sized(this: Subfield, other: Subfield) -> Subfield {
    Subfield { n_bits: this.n_bits.min(other.n_bits), ..this }
}

/// What a rule knows of its packet: the Ethernet type, and whether the topmost label is the last one.
#[derive(Clone, Copy)]
struct Known {
    ethertype: Option<u16>,
    bottom: Option<bool>,
}

impl Known {
    fn has(self, field: Field) -> bool {
        match field {
            Field::MplsLabel | Field::MplsTc | Field::MplsTtl => self.is_labelled(),
            Field::NwTtl => matches!(self.ethertype, Some(IPV4 | IPV6)),
            Field::NwSrc | Field::NwDst => self.ethertype == Some(IPV4),
            _ => true,
        }
    }

    fn is_labelled(self) -> bool {
        self.ethertype.is_some_and(is_label_type)
    }
}

fn is_label_type(ethertype: u16) -> bool {
    matches!(ethertype, LABELLED | 0x8848)
}

/// Of `actions`, those that a switch accepts in a rule that knows so much, and that leave no packet behind whose type
/// says labels where it has none. No more labels come together than a switch looks at: one is pushed, in table 0.
fn consistent(actions: Vec<Action>, mut known: Known, table: u8) -> Vec<Action> {
    let (mut before, mut resubmitted) = (None, false);
    let keep = |action: &Action| {
        let ok = match action {
            Action::PushMpls(_) => table == 0 && before.is_none(),
            Action::PopMpls(kind) => known.is_labelled() && known.bottom == Some(!is_label_type(*kind)),
            Action::DecMplsTtl => known.is_labelled(),
            Action::DecTtl | Action::DecTtlCntIds(_) => known.has(Field::NwTtl),
            Action::SetField { field, .. } => known.has(*field),
            Action::RegMove { src, dst } => [src, dst].iter().all(|part| known.has(part.in_key().unwrap().field)),
            Action::StackPush(part) | Action::StackPop(part) => known.has(part.in_key().unwrap().field),
            Action::Resubmit { .. } => !std::mem::replace(&mut resubmitted, true),
            _ => true,
        };
        match action {
            Action::PushMpls(kind) if ok => {
                before = Some(known);
                let bottom = known.ethertype.map(|ethertype| !is_label_type(ethertype));
                known = Known { ethertype: Some(*kind), bottom };
            }
            Action::PopMpls(kind) if ok => {
                let bottom = before.and_then(|known| known.bottom);
                known = Known { ethertype: Some(*kind), bottom };
            }
            _ => {}
        }
        ok
    };
    let mut list: Vec<Action> = actions.into_iter().filter(keep).collect();
    // With nothing left to do, a packet that comes round again begins anew in table 0, as in OVS.
    if list.contains(&Action::DebugRecirc) {
        list.push(Action::set_field(Field::Reg1, u128::from(table)));
    }
    list
}

pub(super) fn rule() -> impl Strategy<Value = RuleSpec> {
    let kinds = vec![None, Some(IPV4), Some(IPV6), Some(LABELLED), Some(LABELLED), Some(0x8848)];
    (select(vec![0u8, 0, 1]), 0u16..8, select(kinds)).prop_flat_map(|(table, priority, kind)| {
        let more = match kind {
            Some(LABELLED | 0x8848) => {
                vec![(Field::MplsLabel, 1), (Field::MplsLabel, 2), (Field::MplsBos, 1), (Field::MplsTc, 1)]
            }
            Some(IPV4) => vec![(Field::NwTtl, 1), (Field::NwDst, 0x0a00_0002), (Field::IpDscp, 10)],
            Some(_) => vec![(Field::NwTtl, 64), (Field::NwProto, 17)],
            None => vec![(Field::Reg0, 1), (Field::InPortOxm, 1)],
        };
        let actions = proptest::collection::vec(action(table), 1..7);
        let cloned = proptest::option::weighted(0.2, proptest::collection::vec(action(1), 1..5));
        let bottom = proptest::option::weighted(0.8, any::<bool>());
        (proptest::option::of(select(more)), bottom, actions, cloned, any::<Index>()).prop_map(
            move |(more, bottom, actions, cloned, at)| {
                let mut matching = Match::any();
                kind.iter().for_each(|&kind| matching.set(Field::DlType, kind.into()));
                more.iter().for_each(|&(field, value)| matching.set(field, value));
                let known = Known { ethertype: kind, bottom: bottom.filter(|_| kind.is_some_and(is_label_type)) };
                known.bottom.iter().for_each(|&bottom| matching.set(Field::MplsBos, bottom.into()));
                let mut list = consistent(actions, known, table);
                if let Some(cloned) = cloned.filter(|_| table == 0) {
                    let copy = Action::Clone(consistent(cloned, Known { ethertype: None, bottom: None }, 1));
                    list.insert(at.index(list.len() + 1), copy);
                }
                RuleSpec { table, priority, matching, instructions: Instructions::apply(list) }
            },
        )
    })
}

impl Pair {
    /// Every rule has counted the packets that passed it, of whatever length.
    pub fn check_packets(&self) -> Result<(), TestCaseError> {
        let flows = self.bed.bridge.flow_stats(&all_flows()).unwrap();
        for rule in &self.reference.rules {
            let flow = flows.iter().find(|flow| flow.priority == rule.priority).unwrap();
            prop_assert!(flow.packet_count == rule.packets, "{} packets expected of {:?}", rule.packets, flow);
        }
        Ok(())
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![4 => rule().prop_map(Change::Add), 3 => any::<Index>().prop_map(Change::Delete)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn labels_equal_reference(
        rules in proptest::collection::vec(rule(), 2..16),
        packets in proptest::collection::vec(packet(), 2..8),
        rounds in proptest::collection::vec(
            (proptest::option::of(change()), proptest::collection::vec(any::<Index>(), 1..10)),
            1..8,
        ),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        rules.iter().for_each(|rule| pair.add(rule));
        pair.play(&rounds, &packets)?;
        pair.check_packets()?;
    }
}
