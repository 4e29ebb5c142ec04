//! Properties of packets that begin with another header than that of Ethernet, by the reference.

use datapath::Config;
use openflow::action::{Encap, EncapProp};
use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::{Action, AnyField, GroupId, Instructions, Match, OfPort, Subfield, TableId};
use packet::Field;
use packet::wire::build;
use packet::wire::mpls::LabelStackEntry;
use packet::wire::nsh;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{Change, PORTS, Pair, RuleSpec};
use crate::model::vlan::PortVlan;

const TABLES: u8 = 3;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const MPLS: u16 = 0x8847;
const NSH: u16 = 0x894f;

/// A packet of IP, perhaps behind some headers, in a frame.
pub(super) fn packet() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let tags = select(vec![vec![], vec![], vec![(0x8100u16, 5u16)]]);
    let whats = proptest::collection::vec(select(vec!["nsh", "options", "ethernet", "label"]), 0..4);
    (1u32..3, any::<bool>(), select(vec![1u8, 64]), whats, tags, 1u32..3, select(vec![1u8, 9, 63])).prop_map(
        |(port, v6, ttl, whats, tags, number, nsh_ttl)| {
            let udp = build::udp(1, 2, b"data of the packet");
            let (mut ethertype, mut bytes) = match v6 {
                true => (IPV6, build::Ipv6 { proto: 17, hop_limit: ttl, ..build::Ipv6::default() }.packet(udp)),
                false => {
                    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
                    (IPV4, build::Ipv4 { src, dst, proto: 17, ttl, ..build::Ipv4::default() }.packet(udp))
                }
            };
            // From the inside.
            for what in whats {
                let next = match Option::<u16>::from(ethertype).filter(|&ethertype| ethertype != 0) {
                    None => nsh::next::ETHERNET,
                    Some(IPV4) => nsh::next::IPV4,
                    Some(IPV6) => nsh::next::IPV6,
                    Some(NSH) => nsh::next::NSH,
                    Some(_) => nsh::next::MPLS,
                };
                let metadata = match what {
                    "nsh" => nsh::Metadata::Fixed([number, 0, 7, 0]),
                    _ => nsh::Metadata::Options(vec![0x10, 0, 5, 4, 1, 2, 3, 4]),
                };
                (ethertype, bytes) = match what {
                    "ethernet" if ethertype != 0 => (0, build::ethernet([2; 6], [4; 6], &[], ethertype, &bytes)),
                    "label" if ethertype != NSH => {
                        let label = LabelStackEntry::new(number, 0, ethertype != MPLS, nsh_ttl);
                        (MPLS, build::mpls(&[label], &bytes))
                    }
                    "nsh" | "options" => {
                        let header = nsh::Repr { flags: 0, ttl: nsh_ttl, next, path: number << 8 | 255, metadata };
                        (NSH, [header.to_bytes(), bytes].concat())
                    }
                    _ => (ethertype, bytes),
                };
            }
            let frame = if ethertype == 0 { bytes } else { build::ethernet([2; 6], [4; 6], &tags, ethertype, &bytes) };
            (port, frame)
        },
    )
}

fn part(field: Field, ofs: u16, n_bits: u16) -> Subfield {
    Subfield::new(field, ofs, n_bits).unwrap()
}

fn encap() -> impl Strategy<Value = Action> {
    let make = |packet_type, props| Action::Encap(Box::new(Encap { packet_type, header_size: 0, props }));
    let option = EncapProp::NshTlv { class: 0x1000, kind: 10, data: vec![1, 2, 3, 4, 5] };
    select(vec![
        make(0, vec![]),
        make(0, vec![]),
        make(0, vec![]),
        make(0x1_894f, vec![]),
        make(0x1_894f, vec![EncapProp::NshMdType(1)]),
        make(0x1_894f, vec![EncapProp::NshMdType(2), option]),
        make(0x1_8847, vec![]),
        make(0x1_8848, vec![]),
    ])
}

fn decap() -> impl Strategy<Value = Action> {
    select(vec![None, None, Some(0), Some(0x1_0800), Some(0x1_894f)]).prop_map(Action::Decap)
}

fn write() -> impl Strategy<Value = Action> {
    let set =
        |field: Field, values: Vec<u128>| select(values).prop_map(move |value| Action::set_field(field, value)).boxed();
    let masked = |field, value, mask| Just(Action::SetField { field, value, mask }).boxed();
    let moved = |src, dst| Just(Action::RegMove { src, dst }).boxed();
    proptest::strategy::Union::new(vec![
        set(Field::NshSpi, vec![1, 0xabcdef]),
        set(Field::NshSi, vec![1, 254]),
        set(Field::NshTtl, vec![1, 2, 40]),
        masked(Field::NshFlags, 2, 2),
        set(Field::NshC1, vec![1, 0x11223344]),
        masked(Field::NshC3, 0x0500, 0xff00),
        set(Field::MplsLabel, vec![1, 0xfffff]),
        set(Field::MplsTtl, vec![1, 9]),
        set(Field::NwTtl, vec![1, 9]),
        set(Field::NwDst, vec![0x0a00_0002, 0x0a00_0009]),
        set(Field::DlDst, vec![3, 0x0600_0000_0001]),
        set(Field::Reg0, vec![0, 1, 2]),
        moved(part(Field::NshSpi, 0, 16), part(Field::Reg0, 0, 16)),
        moved(part(Field::Reg0, 0, 8), part(Field::NshSi, 0, 8)),
        moved(part(Field::NshC1, 0, 8), part(Field::NshC2, 8, 8)),
        moved(part(Field::DlDst, 0, 4), part(Field::Reg0, 0, 4)),
        Just(Action::DecNshTtl).boxed(),
        Just(Action::DecTtl).boxed(),
        Just(Action::DecMplsTtl).boxed(),
    ])
}

fn output() -> impl Strategy<Value = Action> {
    prop_oneof![5 => (1..=PORTS).prop_map(OfPort), 1 => select(vec![OfPort::FLOOD, OfPort::NORMAL])]
        .prop_map(Action::output)
}

fn action(table: u8) -> impl Strategy<Value = Action> {
    let simple = prop_oneof![3 => output(), 2 => encap(), 2 => decap(), 3 => write()];
    let mut list = vec![
        (5, output().boxed()),
        (4, encap().boxed()),
        (4, decap().boxed()),
        (5, write().boxed()),
        (1, (0u32..2).prop_map(|id| Action::Group(GroupId(id))).boxed()),
        (1, Just(Action::DebugRecirc).boxed()),
        (2, proptest::collection::vec(simple, 1..4).prop_map(Action::Clone).boxed()),
    ];
    if table + 1 < TABLES {
        let next = |table| Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(table), with_ct: false };
        list.push((5, (table + 1..TABLES).prop_map(next).boxed()));
    }
    proptest::strategy::Union::new_weighted(list)
}

/// What a rule asks for.
fn matching() -> impl Strategy<Value = Match> {
    let bare = |ethertype: u16| (Field::PacketType, 0x1_0000 | u128::from(ethertype));
    let framed = |ethertype: u16| (Field::DlType, u128::from(ethertype));
    let nsh = vec![(Field::NshSpi, 1), (Field::NshSi, 255), (Field::NshTtl, 63), (Field::NshNp, 1), (Field::NshC1, 1)];
    let kinds = vec![
        (None, vec![(Field::Reg0, 1), (Field::InPortOxm, 1)]),
        (None, vec![]),
        (Some(bare(IPV4)), vec![(Field::NwTtl, 64), (Field::NwDst, 0x0a00_0009)]),
        (Some(framed(IPV4)), vec![(Field::NwTtl, 1), (Field::UdpDst, 2), (Field::DlDst, 3)]),
        (Some(bare(IPV6)), vec![(Field::NwTtl, 64)]),
        (Some(bare(NSH)), nsh.clone()),
        (Some(bare(NSH)), nsh.clone()),
        (Some(framed(NSH)), nsh.clone()),
        (Some(framed(NSH)), nsh),
        (Some(bare(MPLS)), vec![(Field::MplsLabel, 1), (Field::MplsBos, 1)]),
        (Some(framed(MPLS)), vec![(Field::MplsLabel, 2), (Field::MplsTtl, 63)]),
        (Some((Field::PacketType, 0)), vec![(Field::DlSrc, 0), (Field::DlDst, 0x0202_0202_0202)]),
    ];
    (select(kinds), any::<Index>(), proptest::bool::weighted(0.4)).prop_map(|((kind, more), at, narrow)| {
        let mut matching = Match::any();
        kind.iter().for_each(|&(field, value)| matching.set(field, value));
        if matches!(kind, Some((_, 0x894f | 0x1_894f))) {
            // Options of type 2 are no context headers.
            matching.set(Field::NshMdtype, 1);
        }
        if narrow && !more.is_empty() {
            let (field, value) = *at.get(&more);
            if field == Field::UdpDst {
                matching.set(Field::NwProto, 17);
            }
            matching.set(field, value);
        }
        matching
    })
}

/// Without what writes to the context headers of metadata that has none.
fn consistent(actions: Vec<Action>) -> Vec<Action> {
    let mut has_options = false;
    let keep = |action: &Action| match action {
        Action::Encap(encap) => {
            has_options = encap.props.contains(&EncapProp::NshMdType(2));
            true
        }
        Action::Decap(_) => {
            has_options = true;
            true
        }
        Action::SetField { field: Field::NshC1 | Field::NshC3, .. } => !has_options,
        Action::RegMove { dst, .. } if matches!(dst.field, AnyField::Key(Field::NshC2)) => !has_options,
        _ => true,
    };
    let mut list: Vec<Action> = actions.into_iter().filter(keep).collect();
    if list.contains(&Action::DebugRecirc) {
        list.push(Action::set_field(Field::Reg1, 0));
    }
    list
}

pub(super) fn rule() -> impl Strategy<Value = RuleSpec> {
    (select(vec![0u8, 0, 1, 2]), 0u16..8, matching()).prop_flat_map(|(table, priority, matching)| {
        let written = prop_oneof![output(), encap(), decap(), write()];
        let written = proptest::option::weighted(0.2, proptest::collection::vec(written, 1..5));
        (Just(matching), proptest::collection::vec(action(table), 1..7), written).prop_map(
            move |(matching, apply, written)| {
                let write = consistent(written.unwrap_or_default());
                let instructions = Instructions { write, ..Instructions::apply(consistent(apply)) };
                RuleSpec { table, priority, matching, instructions }
            },
        )
    })
}

pub(super) fn group() -> impl Strategy<Value = GroupSpec> {
    let bucket = proptest::collection::vec(prop_oneof![2 => output(), 1 => encap(), 1 => decap(), 1 => write()], 1..5);
    proptest::collection::vec(bucket, 1..3).prop_map(|buckets| {
        let bucket = |(id, actions)| {
            let actions = consistent(actions);
            Bucket { id, weight: 0, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions }
        };
        let buckets = (0..).zip(buckets).map(bucket).collect();
        GroupSpec { kind: GroupType::All, buckets, selection: Selection::default() }
    })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![4 => rule().prop_map(Change::Add), 3 => any::<Index>().prop_map(Change::Delete)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn packet_types_equal_reference(
        groups in proptest::collection::vec(group(), 2),
        rules in proptest::collection::vec(rule(), 4..24),
        packets in proptest::collection::vec(packet(), 2..8),
        rounds in proptest::collection::vec(
            (proptest::option::of(change()), proptest::collection::vec(any::<Index>(), 1..10)),
            1..8,
        ),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        pair.is_ordered = false;
        pair.groups(&groups);
        rules.iter().for_each(|rule| pair.add(rule));
        pair.play(&rounds, &packets)?;
        pair.check_counters()?;
    }
}
