//! Actions and instructions.

use std::net::{Ipv4Addr, Ipv6Addr};

use ::packet::Field;
use proptest::prelude::*;
use proptest::sample::select;

use super::matching::tun_value;
use super::{out_port, port};
use crate::action::*;
use crate::*;

/// A part of a register.
fn subfield() -> impl Strategy<Value = Subfield> {
    let field = select(vec![Field::Reg0, Field::Reg7, Field::NwSrc, Field::DlDst, Field::Metadata, Field::TunId]);
    (field, 0u16..32, 1u16..33).prop_filter_map("within", |(f, ofs, n)| Subfield::new(f, ofs, n))
}

/// A part of a tun_metadata field whose length is known.
fn tun_part(n_bits: u16) -> impl Strategy<Value = Subfield> {
    (0..64u8, 0u8..32, 0u16..992).prop_map(move |(index, words, ofs)| {
        let field = TunField { index, len: words * 4 };
        Subfield { field: field.into(), ofs: ofs.min(992 - n_bits), n_bits }
    })
}

fn sixteen_bits() -> impl Strategy<Value = Subfield> {
    (select(vec![Field::Reg0, Field::Reg9]), 0u16..17).prop_map(|(f, ofs)| Subfield::new(f, ofs, 16).unwrap())
}

fn hash_fields() -> impl Strategy<Value = HashFields> {
    select(HashFields::NAMES).prop_map(|n| n.0)
}

/// An action that every version can say in some form, outside of a `ct`.
fn action() -> impl Strategy<Value = Action> {
    let leaf = prop_oneof![headers(), steering(), nicira(), ct().prop_map(|c| Action::Ct(Box::new(c)))];
    leaf.prop_recursive(
        3,
        12,
        3,
        |inner| prop_oneof![3 => inner.clone(), 1 => prop::collection::vec(inner, 0..3).prop_map(Action::Clone)],
    )
}

/// Actions that write headers.
fn headers() -> impl Strategy<Value = Action> {
    prop_oneof![
        any::<[u8; 6]>().prop_map(|m| Action::SetEthSrc(EthAddr(m))),
        any::<[u8; 6]>().prop_map(|m| Action::SetEthDst(EthAddr(m))),
        any::<u32>().prop_map(|a| Action::SetIpv4Src(a.into())),
        any::<u32>().prop_map(|a| Action::SetIpv4Dst(a.into())),
        any::<u8>().prop_map(|t| Action::SetIpDscp(t & 0xfc)),
        any::<u16>().prop_map(Action::SetL4SrcPort),
        any::<u16>().prop_map(Action::SetL4DstPort),
        (0u32..0x10_0000).prop_map(Action::SetMplsLabel),
        (0u8..8).prop_map(Action::SetMplsTc),
        any::<u8>().prop_map(Action::SetMplsTtl),
        select(vec![Action::DecMplsTtl, Action::DecTtl, Action::StripVlan, Action::PushMpls(0x8847)]),
        any::<u16>().prop_map(Action::PopMpls),
        any::<u64>().prop_map(Action::SetTunnel),
        prop::collection::vec(any::<u16>(), 0..6).prop_map(Action::DecTtlCntIds),
        (subfield(), any::<u64>()).prop_map(|(dst, v)| Action::RegLoad { dst, value: v & dst.max() as u64 }),
        (any::<u32>(), 1u32..).prop_map(|(v, mask)| {
            Action::SetField { field: Field::Reg3, value: (v & mask).into(), mask: mask.into() }
        }),
        tun_value().prop_map(|value| Action::SetTunMetadata(Box::new(value))),
        (any::<u128>(), 1u128..)
            .prop_map(|(v, mask)| { Action::SetField { field: Field::Ipv6Src, value: v & mask, mask } }),
        any::<u32>().prop_map(|v| Action::set_field(Field::ArpSpa, v.into())),
        any::<u32>().prop_map(|v| Action::set_field(Field::NshC1, v.into())),
        any::<u8>().prop_map(|v| Action::RegLoad { dst: Subfield::whole(Field::ArpOp), value: v.into() }),
        (0u64..64).prop_map(|v| Action::RegLoad { dst: Subfield::whole(Field::NwTos), value: v << 2 }),
    ]
}

/// Actions that choose where a packet goes.
fn steering() -> impl Strategy<Value = Action> {
    prop_oneof![
        (out_port(), any::<u16>()).prop_map(|(port, max_len)| Action::Output { port, max_len }),
        (sixteen_bits(), any::<u16>()).prop_map(|(src, max_len)| Action::OutputReg { src, max_len }),
        (port(), 14u32..).prop_map(|(port, max_len)| Action::OutputTrunc { port, max_len }),
        (0u32..0xffff_ff00).prop_map(|id| Action::Group(GroupId(id))),
        any::<u32>().prop_map(Action::SetQueue),
        (out_port(), any::<u8>(), any::<bool>())
            .prop_map(|(in_port, t, ct)| { Action::Resubmit { in_port, table: TableId(t), with_ct: ct } }),
        controller().prop_map(|c| Action::Controller(Box::new(c))),
        bundle().prop_map(|b| Action::Bundle(Box::new(b))),
        select(vec![Action::PopQueue, Action::Exit, Action::CtClear]),
    ]
}

fn nicira() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0u16..17, 0u16..17, 1u16..16).prop_map(|(a, b, n)| Action::RegMove {
            src: Subfield::new(Field::Reg1, a, n).unwrap(),
            dst: Subfield::new(Field::NwDst, b, n).unwrap(),
        }),
        (tun_part(300), tun_part(300)).prop_map(|(src, dst)| Action::RegMove { src, dst }),
        tun_part(900).prop_map(Action::StackPush),
        tun_part(7).prop_map(Action::StackPop),
        tun_part(16).prop_map(|src| Action::OutputReg { src, max_len: 7 }),
        tun_part(1).prop_map(|dst| Action::CheckPktLarger { pkt_len: 9, dst }),
        (tun_part(200), tun_part(200)).prop_map(|(src, dst)| {
            let specs = [LearnDst::Match(dst), LearnDst::Load(dst)];
            let spec = |dst| LearnSpec { n_bits: 200, src: LearnSrc::Field(src), dst };
            Action::Learn(Box::new(plain_learn(specs.into_iter().map(spec).collect())))
        }),
        subfield().prop_map(Action::StackPush),
        subfield().prop_map(Action::StackPop),
        (any::<u16>(), any::<u16>()).prop_map(|(idle, hard)| Action::FinTimeout { idle, hard }),
        learn().prop_map(|l| Action::Learn(Box::new(l))),
        (hash_fields(), any::<u16>(), 0u16..256, any::<u32>()).prop_map(|(fields, basis, max_link, arg)| {
            let dst = Subfield::new(Field::Reg2, 3, 8).unwrap();
            Action::Multipath(Box::new(Multipath {
                fields,
                basis,
                algorithm: MultipathAlgorithm::Hrw,
                max_link,
                arg,
                dst,
            }))
        }),
        // The length on the wire is a multiple of 8, so notes are.
        (0usize..3).prop_map(|n| Action::Note(vec![7; 6 + 8 * n])),
        sample().prop_map(|s| Action::Sample(Box::new(s))),
        (any::<u16>(), 0u16..32).prop_map(|(pkt_len, ofs)| Action::CheckPktLarger {
            pkt_len,
            dst: Subfield::new(Field::Reg0, ofs, 1).unwrap(),
        }),
        (0u8..64).prop_map(Action::DeleteField),
    ]
}

fn controller() -> impl Strategy<Value = Controller> {
    use PacketInReason as R;
    (
        any::<u16>(),
        select(vec![R::NoMatch, R::Action, R::InvalidTtl, R::Group]),
        any::<u16>(),
        prop::collection::vec(any::<u8>(), 0..20),
        any::<bool>(),
        prop::option::of(any::<u32>()),
    )
        .prop_map(|(max_len, reason, id, userdata, pause, meter)| Controller {
            max_len,
            reason,
            id,
            userdata,
            pause,
            meter,
        })
}

fn bundle() -> impl Strategy<Value = Bundle> {
    (hash_fields(), any::<u16>(), prop::collection::vec(port(), 0..6), prop::option::of(sixteen_bits())).prop_map(
        |(fields, basis, mut members, dst)| {
            // Members fill the action up to a multiple of 8 bytes or are padded.
            members.truncate(4);
            Bundle { fields, basis, algorithm: BundleAlgorithm::Hrw, members, dst }
        },
    )
}

fn learn() -> impl Strategy<Value = Learn> {
    let spec = (0u8..4, any::<u32>(), 1u16..33).prop_map(|(kind, value, n_bits)| {
        let sf = |field| Subfield::new(field, 0, n_bits).unwrap();
        let src = LearnSrc::Field(sf(Field::NwSrc));
        let value = LearnSrc::Immediate(u128::from(value) & sf(Field::Reg0).max());
        match kind {
            0 => LearnSpec { n_bits, src, dst: LearnDst::Match(sf(Field::NwDst)) },
            1 => LearnSpec { n_bits, src: value, dst: LearnDst::Match(sf(Field::Reg5)) },
            2 => LearnSpec { n_bits, src: value, dst: LearnDst::Load(sf(Field::Reg6)) },
            _ => LearnSpec { n_bits, src, dst: LearnDst::Output },
        }
    });
    let result = prop::option::of((0u16..32).prop_map(|ofs| Subfield::new(Field::Reg8, ofs, 1).unwrap()));
    (
        any::<[u16; 5]>(),
        any::<u64>(),
        any::<[bool; 2]>(),
        0u8..255,
        any::<u32>(),
        result,
        prop::collection::vec(spec, 0..5),
    )
        .prop_map(
            |([idle, hard, priority, fin_idle, fin_hard], cookie, [rem, del], table, limit, result_dst, specs)| Learn {
                idle_timeout: idle,
                hard_timeout: hard,
                priority,
                cookie: Cookie(cookie),
                flags: if rem { FlowModFlags::SEND_FLOW_REM } else { FlowModFlags::empty() },
                delete_learned: del,
                table: TableId(table),
                fin_idle_timeout: fin_idle,
                fin_hard_timeout: fin_hard,
                limit,
                result_dst,
                specs,
            },
        )
}

fn plain_learn(specs: Vec<LearnSpec>) -> Learn {
    Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority: 5,
        cookie: Cookie(0),
        flags: FlowModFlags::empty(),
        delete_learned: false,
        table: TableId(1),
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 0,
        result_dst: None,
        specs,
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    use SampleDirection as D;
    (1u16.., any::<[u32; 3]>(), select(vec![D::Default, D::Ingress, D::Egress]), prop::option::of(port())).prop_map(
        |(probability, [collector_set, obs_domain, obs_point], direction, port)| Sample {
            probability,
            collector_set,
            obs_domain,
            obs_point,
            sampling_port: port.unwrap_or(OfPort::ANY),
            direction,
        },
    )
}

fn nat() -> impl Strategy<Value = Nat> {
    let v4 = (1u32.., prop::option::of(0u32..1000))
        .prop_map(|(a, span)| NatAddrs::V4(Ipv4Addr::from(a), span.map(|s| Ipv4Addr::from(a.saturating_add(s)))));
    let v6 = (1u128.., prop::option::of(0u128..1000))
        .prop_map(|(a, span)| NatAddrs::V6(Ipv6Addr::from(a), span.map(|s| Ipv6Addr::from(a.saturating_add(s)))));
    let ports = prop::option::of(
        (1u16.., prop::option::of(0u16..9)).prop_map(|(a, span)| (a, span.map_or(0, |s| a.saturating_add(s)))),
    );
    (select(vec![NatKind::Src, NatKind::Dst]), any::<[bool; 2]>(), 0..3, prop_oneof![v4, v6], ports).prop_map(
        |(kind, [persistent, hash], _, addrs, ports)| Nat {
            kind: Some(kind),
            persistent,
            hash,
            random: !hash,
            addrs,
            ports,
        },
    )
}

fn ct() -> impl Strategy<Value = Ct> {
    let zone = prop_oneof![any::<u16>().prop_map(CtZone::Immediate), sixteen_bits().prop_map(CtZone::Field)];
    let inner = prop_oneof![
        nat().prop_map(|n| Action::Nat(Box::new(n))),
        Just(Action::Nat(Box::default())),
        any::<u32>().prop_map(|v| Action::set_field(Field::CtMark, v.into())),
        any::<u128>().prop_map(|v| Action::set_field(Field::CtLabel, v)),
    ];
    (any::<bool>(), any::<bool>(), zone, prop::option::of(0u8..255), any::<u16>(), prop::collection::vec(inner, 0..3))
        .prop_map(|(commit, force, zone, table, alg, actions)| Ct {
            commit,
            force: commit && force,
            zone,
            table: table.map(TableId),
            alg,
            actions: if commit { actions } else { vec![Action::Nat(Box::default())] },
        })
}

/// The form in which a version has an action.
fn canonical(version: Version, action: Action) -> Action {
    let inner = |actions: Vec<Action>| actions.into_iter().map(|action| canonical(version, action)).collect();
    let experimenter = |field: Field| field.info().nxm.or(field.info().oxm).is_some_and(|oxm| oxm.class == 0xffff);
    match action {
        Action::Clone(actions) => Action::Clone(inner(actions)),
        Action::Ct(ct) => Action::Ct(Box::new(Ct { actions: inner(ct.actions), ..*ct })),
        Action::RegLoad { dst, value } if version >= Version::V1_5 => {
            let dst = dst.in_key().unwrap();
            Action::SetField { field: dst.field, value: dst.place(value.into()), mask: dst.mask() }
        }
        Action::SetField { field, value, mask } if version < Version::V1_5 && !experimenter(field) => {
            if version >= Version::V1_2 && mask == field.info().max() {
                return action;
            }
            let whole = Subfield::whole(field).in_key().filter(|_| mask == field.info().max());
            if let Some(all) = whole.filter(|all| all.n_bits <= 64) {
                return Action::RegLoad { dst: Subfield::whole(field), value: all.take(value) as u64 };
            }
            let ofs = mask.trailing_zeros() as u16;
            let n_bits = (mask >> ofs).trailing_ones().min(64) as u16;
            let dst = Subfield::new(field, ofs, n_bits).unwrap();
            Action::RegLoad { dst, value: (value >> ofs & dst.max()) as u64 }
        }
        Action::SetField { .. } => action,
        Action::SetTunnel(_) | Action::SetMplsLabel(_) | Action::SetMplsTc(_) if version >= Version::V1_2 => {
            written(&action)
        }
        Action::SetEthSrc(_)
        | Action::SetEthDst(_)
        | Action::SetIpv4Src(_)
        | Action::SetIpv4Dst(_)
        | Action::SetIpDscp(_)
            if version >= Version::V1_2 =>
        {
            written(&action)
        }
        // As which protocol's port it is written, the flow's match says.
        Action::SetL4SrcPort(port) if version >= Version::V1_2 => Action::set_field(Field::TcpSrc, port.into()),
        Action::SetL4DstPort(port) if version >= Version::V1_2 => Action::set_field(Field::TcpDst, port.into()),
        other => other,
    }
}

/// A Set-Field that does what the action does.
fn written(action: &Action) -> Action {
    let (field, value, mask) = action.field_write().unwrap();
    Action::SetField { field, value, mask }
}

/// An action for a version.
fn action_of(version: Version) -> BoxedStrategy<Action> {
    any_action(version).prop_map(move |action| canonical(version, action)).boxed()
}

fn any_action(version: Version) -> BoxedStrategy<Action> {
    if version == Version::V1_0 {
        return prop_oneof![
            8 => action(),
            1 => (0u16..0x1000).prop_map(|vid| Action::SetVlanVid { vid, push: true }),
            1 => (0u8..8).prop_map(|pcp| Action::SetVlanPcp { pcp, push: true }),
            1 => (port(), any::<u32>()).prop_map(|(port, queue)| Action::Enqueue { port, queue }),
        ]
        .boxed();
    }
    let encap = prop_oneof![
        Just(vec![]),
        Just(vec![EncapProp::NshMdType(1)]),
        prop::collection::vec(any::<u8>(), 0..30)
            .prop_map(|data| { vec![EncapProp::NshMdType(2), EncapProp::NshTlv { class: 3, kind: 4, data }] }),
    ];
    let common = prop_oneof![
        8 => action(),
        1 => select(vec![Action::PushVlan(0x8100), Action::PushVlan(0x88a8)]),
        1 => any::<u8>().prop_map(Action::SetIpTtl),
    ];
    if version == Version::V1_1 {
        return prop_oneof![
            8 => common,
            1 => (0u16..0x1000).prop_map(|vid| Action::SetVlanVid { vid, push: false }),
            1 => (0u8..8).prop_map(|pcp| Action::SetVlanPcp { pcp, push: false }),
            1 => (0u8..4).prop_map(Action::SetIpEcn),
        ]
        .boxed();
    }
    if version == Version::V1_2 {
        return common.boxed();
    }
    prop_oneof![
        8 => common,
        1 => Just(Action::DecNshTtl),
        1 => any::<u32>().prop_map(|v| Action::set_field(Field::NwSrc, v.into())),
        1 => (0u128..0x1000).prop_map(|v| Action::set_field(Field::VlanVid, v | 0x1000)),
        1 => (any::<u16>(), encap).prop_map(|(header_size, props)| {
            Action::Encap(Box::new(Encap { packet_type: 0x1_894f, header_size, props }))
        }),
        1 => prop::option::of(0u32..0xffff).prop_map(Action::Decap),
    ]
    .boxed()
}

/// An action for an action set.
pub fn action_set(version: Version) -> impl Strategy<Value = Action> {
    headers().prop_map(move |action| canonical(version, action))
}

pub fn actions(version: Version) -> impl Strategy<Value = Vec<Action>> {
    let conjunctions = prop::collection::vec((any::<u32>(), 0u8..4, 4u8..65), 1..4).prop_map(|all| {
        all.into_iter().map(|(id, clause, n_clauses)| Action::Conjunction { id, clause, n_clauses }).collect()
    });
    prop_oneof![9 => prop::collection::vec(action_of(version), 0..6), 1 => conjunctions]
}

pub fn instructions(version: Version) -> BoxedStrategy<Instructions> {
    let metadata =
        prop::option::of((any::<u64>(), any::<u64>()).prop_map(|(v, mask)| WriteMetadata { value: v & mask, mask }));
    if version == Version::V1_0 {
        let plain = |a: &Vec<Action>| !a.iter().any(|a| matches!(a, Action::Conjunction { .. }));
        return (actions(version), metadata)
            .prop_map(move |(apply, metadata)| Instructions {
                metadata: metadata.filter(|_| plain(&apply)),
                ..Instructions::apply(apply)
            })
            .boxed();
    }
    let set = prop::collection::vec(action_set(version), 0..3);
    let goto = prop::option::of((200u8..255).prop_map(TableId));
    (prop::option::of(any::<u32>()), actions(version), any::<bool>(), set, metadata, goto)
        .prop_map(move |(meter, apply, clear, write, metadata, goto)| Instructions {
            meter: meter.filter(|_| version >= Version::V1_3),
            apply,
            clear,
            write,
            metadata,
            goto,
        })
        .boxed()
}
