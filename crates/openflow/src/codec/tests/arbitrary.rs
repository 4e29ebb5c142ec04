//! Messages with everything that they can say, for round trips. What an encoding cannot say is not
//! generated for it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ::packet::Field;
use ::packet::flow::field::Maskable;
use proptest::prelude::*;
use proptest::sample::select;

use crate::action::*;
use crate::error::{ErrorCode, ErrorMsg};
use crate::port::*;
use crate::stats::*;
use crate::switch::*;
use crate::*;

const VERSIONS: [Version; 2] = [Version::V1_0, Version::V1_3];

pub fn version() -> impl Strategy<Value = Version> {
    select(&VERSIONS[..])
}

type Layer = (&'static [(Field, u128)], &'static [Field]);

/// Fields that a match can have after some prerequisites: `(prerequisites, fields)`.
const LAYERS: &[Layer] = &[
    (&[], &[Field::DlSrc, Field::DlDst, Field::TunId, Field::TunSrc, Field::Reg0, Field::Reg15, Field::Metadata]),
    (&[], &[Field::CtMark, Field::CtLabel, Field::CtZone, Field::PktMark, Field::ConjId, Field::TunIpv6Dst]),
    (
        &[(Field::DlType, 0x0800)],
        &[Field::NwSrc, Field::NwDst, Field::NwTos, Field::NwEcn, Field::NwTtl, Field::NwFrag],
    ),
    (&[(Field::DlType, 0x0800), (Field::NwProto, 6)], &[Field::TcpSrc, Field::TcpDst, Field::TcpFlags, Field::NwDst]),
    (
        &[(Field::DlType, 0x86dd), (Field::NwProto, 17)],
        &[Field::UdpSrc, Field::UdpDst, Field::Ipv6Src, Field::Ipv6Label],
    ),
    (&[(Field::DlType, 0x0800), (Field::NwProto, 1)], &[Field::IcmpType, Field::IcmpCode]),
    (
        &[(Field::DlType, 0x86dd), (Field::NwProto, 58), (Field::Icmpv6Type, 135), (Field::Icmpv6Code, 0)],
        &[Field::NdTarget, Field::NdSll],
    ),
    (&[(Field::DlType, 0x0806)], &[Field::ArpOp, Field::ArpSpa, Field::ArpTpa, Field::ArpSha, Field::ArpTha]),
    (&[(Field::DlType, 0x8847)], &[Field::MplsLabel, Field::MplsTc, Field::MplsBos, Field::MplsTtl]),
    (&[(Field::DlType, 0x894f)], &[Field::NshSpi, Field::NshSi, Field::NshC1, Field::NshTtl, Field::NshFlags]),
    (
        &[(Field::CtState, 0x20), (Field::DlType, 0x0800), (Field::CtNwProto, 6)],
        &[Field::CtNwSrc, Field::CtNwDst, Field::CtTpSrc, Field::CtTpDst],
    ),
];

/// A match that OXM and NXM can say.
pub fn matching() -> impl Strategy<Value = Match> {
    let value = (any::<u128>(), any::<u128>(), any::<bool>());
    let vlan = prop_oneof![
        Just((0u16, 0u16)),
        Just((0, 0x1fff)),
        (0u16..0x1000).prop_map(|vid| (0x1000 | vid, 0x1fff)),
        (any::<u16>(), Just(0x1fff)).prop_map(|(tci, mask)| (tci | 0x1000, mask | 0xe000)),
        (any::<u16>(), any::<u16>()).prop_filter("not the untagged match", |(tci, mask)| tci & mask & 0x1000 != 0),
    ];
    let layer = select(LAYERS);
    (layer, prop::collection::vec(value, 8), any::<u8>(), vlan, prop::option::of(port())).prop_map(
        |((prereqs, fields), values, pick, (tci, tci_mask), in_port)| {
            let mut m = Match::any();
            for &(field, value) in prereqs {
                let exact = if field == Field::CtState { 0x20 } else { u128::MAX };
                m.set_masked(field, value, exact);
            }
            for (i, (&field, (value, mask, whole))) in fields.iter().zip(values).enumerate() {
                let info = field.info();
                let mask = if whole || info.maskable == Maskable::No { u128::MAX } else { mask };
                let bits = if field == Field::NwFrag { 1 } else { info.max() };
                if pick >> i & 1 != 0 && mask & bits != 0 {
                    m.set_masked(field, value & bits, mask);
                }
            }
            if tci_mask != 0 {
                m.set_masked(Field::VlanTci, tci.into(), tci_mask.into());
            }
            if let Some(port) = in_port {
                m.set_in_port(port);
            }
            m
        },
    )
}

/// A match that struct ofp10_match can say.
fn matching10() -> impl Strategy<Value = Match> {
    let vlan = prop_oneof![
        Just((0u16, 0u16)),
        Just((0, 0xffff)),
        (0u16..0x1000).prop_map(|vid| (0x1000 | vid, 0x1fff)),
        (0u16..8).prop_map(|pcp| (0x1000 | pcp << 13, 0xf000)),
        any::<u16>().prop_map(|tci| (tci | 0x1000, 0xffff)),
    ];
    (any::<u128>(), 0u32..33, any::<u16>(), vlan, any::<u8>(), prop::option::of(port())).prop_map(
        |(eth, prefix, tp, (tci, tci_mask), pick, in_port)| {
            let mut m = Match::any();
            let has = |bit: u8| pick >> bit & 1 != 0;
            if has(0) {
                m.set(Field::DlSrc, eth & Field::DlSrc.info().max());
            }
            if tci_mask != 0 {
                m.set_masked(Field::VlanTci, tci.into(), tci_mask.into());
            }
            if let Some(port) = in_port {
                m.set_in_port(port);
            }
            if has(1) {
                m.set(Field::DlType, 0x0800);
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                m.set_masked(Field::NwSrc, eth, mask.into());
                m.set(Field::NwTos, eth & 0x3f);
            }
            if has(1) && has(2) {
                m.set(Field::NwProto, if has(3) { 6 } else { 1 });
                m.set(
                    if has(3) { Field::TcpSrc } else { Field::IcmpType },
                    u128::from(tp) & if has(3) { 0xffff } else { 0xff },
                );
            }
            if !has(1) && has(4) {
                m.set(Field::DlType, 0x0806);
                m.set(Field::ArpOp, 2);
            }
            m
        },
    )
}

pub fn port() -> impl Strategy<Value = OfPort> {
    prop_oneof![(0u32..0xff00).prop_map(OfPort), Just(OfPort::LOCAL)]
}

fn out_port() -> impl Strategy<Value = OfPort> {
    prop_oneof![port(), select(vec![OfPort::IN_PORT, OfPort::NORMAL, OfPort::FLOOD, OfPort::ALL, OfPort::CONTROLLER])]
}

/// A part of a register.
fn subfield() -> impl Strategy<Value = Subfield> {
    let field = select(vec![Field::Reg0, Field::Reg7, Field::NwSrc, Field::DlDst, Field::Metadata, Field::TunId]);
    (field, 0u16..32, 1u16..33).prop_filter_map("within", |(f, ofs, n)| Subfield::new(f, ofs, n))
}

fn sixteen_bits() -> impl Strategy<Value = Subfield> {
    (select(vec![Field::Reg0, Field::Reg9]), 0u16..17).prop_map(|(f, ofs)| Subfield::new(f, ofs, 16).unwrap())
}

fn hash_fields() -> impl Strategy<Value = HashFields> {
    select(HashFields::NAMES).prop_map(|n| n.0)
}

/// An action that every version can say, outside of a `ct`.
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
        prop::collection::vec(any::<u16>(), 1..6).prop_map(Action::DecTtlCntIds),
        (subfield(), any::<u64>()).prop_map(|(dst, v)| Action::RegLoad { dst, value: v & dst.max() as u64 }),
        (any::<u32>(), 1u32..).prop_map(|(v, mask)| {
            Action::SetField { field: Field::Reg3, value: (v & mask).into(), mask: mask.into() }
        }),
        (any::<u128>(), 1u128..)
            .prop_map(|(v, mask)| { Action::SetField { field: Field::Ipv6Src, value: v & mask, mask } }),
        any::<u32>().prop_map(|v| Action::set_field(Field::ArpSpa, v.into())),
        any::<u32>().prop_map(|v| Action::set_field(Field::NshC1, v.into())),
        any::<u8>().prop_map(|v| Action::RegLoad { dst: Subfield::whole(Field::ArpOp), value: v.into() }),
        (0u64..64).prop_map(|v| Action::RegLoad { dst: Subfield::whole(Field::NwTos), value: v }),
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

/// An action for a version.
fn action_of(version: Version) -> BoxedStrategy<Action> {
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
    prop_oneof![
        8 => action(),
        1 => (0u16..0x1000).prop_map(|vid| Action::SetVlanVid { vid, push: false }),
        1 => (0u8..8).prop_map(|pcp| Action::SetVlanPcp { pcp, push: false }),
        1 => select(vec![Action::PushVlan(0x8100), Action::PushVlan(0x88a8), Action::DecNshTtl]),
        1 => any::<u8>().prop_map(Action::SetIpTtl),
        1 => (0u8..4).prop_map(Action::SetIpEcn),
        1 => any::<u32>().prop_map(|v| Action::set_field(Field::NwSrc, v.into())),
        1 => (0u128..0x1000).prop_map(|v| Action::set_field(Field::VlanVid, v | 0x1000)),
        1 => (any::<u16>(), encap).prop_map(|(header_size, props)| {
            Action::Encap(Box::new(Encap { packet_type: 0x1_894f, header_size, props }))
        }),
        1 => prop::option::of(0u32..0xffff).prop_map(Action::Decap),
    ]
    .boxed()
}

fn actions(version: Version) -> impl Strategy<Value = Vec<Action>> {
    let conjunctions = prop::collection::vec((any::<u32>(), 0u8..4, 4u8..65), 1..4).prop_map(|all| {
        all.into_iter().map(|(id, clause, n_clauses)| Action::Conjunction { id, clause, n_clauses }).collect()
    });
    prop_oneof![9 => prop::collection::vec(action_of(version), 0..6), 1 => conjunctions]
}

fn instructions(version: Version) -> BoxedStrategy<Instructions> {
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
    let set = prop::collection::vec(headers(), 0..3);
    let goto = prop::option::of((200u8..255).prop_map(TableId));
    (prop::option::of(any::<u32>()), actions(version), any::<bool>(), set, metadata, goto)
        .prop_map(|(meter, apply, clear, write, metadata, goto)| Instructions {
            meter,
            apply,
            clear,
            write,
            metadata,
            goto,
        })
        .boxed()
}

fn dialect(version: Version) -> impl Strategy<Value = Dialect> {
    let nicira = if version == Version::V1_0 { Dialect::Nicira } else { Dialect::Standard };
    select(vec![Dialect::Standard, nicira])
}

fn match_of(version: Version, dialect: Dialect) -> BoxedStrategy<Match> {
    if version == Version::V1_0 && dialect == Dialect::Standard { matching10().boxed() } else { matching().boxed() }
}

/// A version and dialect, and what can be made of them.
fn with_dialect<T: std::fmt::Debug + 'static, S: Strategy<Value = T> + 'static>(
    f: impl Fn(Version, Dialect) -> S + Clone + 'static,
) -> impl Strategy<Value = (Version, Dialect, T)> {
    version().prop_flat_map(|v| (Just(v), dialect(v))).prop_flat_map(move |(v, d)| (Just(v), Just(d), f(v, d)))
}

fn message((version, dialect, body): (Version, Dialect, Body)) -> Message {
    Message { version, xid: 0x1234_5678, dialect, body }
}

pub fn flow_mod() -> impl Strategy<Value = Message> {
    use FlowModCommand::*;
    with_dialect(|v, d| {
        let head =
            (select(vec![Add, Modify, ModifyStrict, Delete, DeleteStrict]), 0u8..200, any::<u64>(), any::<[u16; 3]>());
        let tail = (0u16..32, port(), prop::option::of(0u32..1000), any::<[u64; 2]>());
        (head, tail, match_of(v, d), instructions(v)).prop_map(move |(head, tail, matching, instructions)| {
            let (command, table, cookie, [idle, hard, priority]) = head;
            let (flags, port, buffer_id, [filter, mask]) = tail;
            let v10 = v == Version::V1_0;
            let (add, delete) = (command == Add, matches!(command, Delete | DeleteStrict));
            let filtered = !add && (!v10 || d == Dialect::Nicira);
            let mut flags = FlowModFlags::from_bits_truncate(if v10 { flags & 3 } else { flags });
            flags.set(FlowModFlags::RESET_COUNTS, if v10 { add } else { flags.contains(FlowModFlags::RESET_COUNTS) });
            Body::FlowMod(Box::new(FlowMod {
                command,
                table: Some(TableId(table)),
                new_cookie: (add || v10 && !delete).then_some(Cookie(cookie & !1)),
                cookie: if filtered { CookieFilter { value: filter & mask, mask } } else { CookieFilter::default() },
                idle_timeout: idle,
                hard_timeout: hard,
                priority,
                importance: 0,
                flags,
                out_port: if delete { port } else { OfPort::ANY },
                out_group: if delete && !v10 { GroupId(7) } else { GroupId::ANY },
                buffer_id,
                matching,
                instructions,
            }))
        })
    })
    .prop_map(message)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

pub fn packet() -> impl Strategy<Value = Message> {
    prop_oneof![packet_in(), packet_out()]
}

fn packet_out() -> impl Strategy<Value = Message> {
    with_dialect(|v, _| {
        (prop::option::of(any::<u16>()), port(), actions(v), data()).prop_map(|(buffer, in_port, actions, data)| {
            let buffer_id = buffer.map(u32::from);
            let data = if buffer_id.is_some() { Vec::new() } else { data };
            Body::PacketOut(PacketOut { buffer_id, in_port, metadata: Match::any(), actions, data })
        })
    })
    .prop_map(|(v, _, body)| Message::new(v, 1, body))
}

fn packet_in() -> impl Strategy<Value = Message> {
    use PacketInFormat::*;
    let reason = select(vec![PacketInReason::NoMatch, PacketInReason::Action, PacketInReason::InvalidTtl]);
    let rest = (any::<u8>(), any::<u32>(), matching(), data(), prop::collection::vec(any::<u8>(), 1..9), port());
    (version(), select(vec![Standard, Nxt, Nxt2]), reason, rest).prop_map(|(v, format, reason, rest)| {
        let (table, cookie, mut metadata, data, userdata, port) = rest;
        let plain = v == Version::V1_0 && format == Standard;
        if plain {
            metadata = Match::any();
        }
        metadata.set_in_port(port);
        let two = |bytes: Vec<u8>| if format == Nxt2 { bytes } else { Vec::new() };
        Message::new(
            v,
            0,
            Body::PacketIn(Box::new(PacketIn {
                format,
                buffer_id: Some(cookie).filter(|c| c % 2 == 1 && *c != u32::MAX),
                total_len: data.len() as u32 + u32::from(table),
                reason,
                table: TableId(if plain { 0 } else { table }),
                cookie: (!plain).then_some(Cookie(cookie.into())),
                metadata,
                data,
                userdata: two(userdata.clone()),
                continuation: two(userdata),
            })),
        )
    })
}

fn desc(v: Version) -> impl Strategy<Value = PortDesc> {
    let v10 = v == Version::V1_0;
    (port(), any::<[u8; 6]>(), "[a-z0-9]{0,15}", any::<[u32; 8]>()).prop_map(move |(port, mac, name, n)| PortDesc {
        port,
        hw_addr: EthAddr(mac),
        name,
        config: PortConfig::from_bits_truncate(if v10 { n[0] } else { n[0] & 0x65 }),
        state: PortState::from_bits_truncate(if v10 { n[1] & 0x301 } else { n[1] & 7 }),
        current: features(v, n[2]),
        advertised: features(v, n[3]),
        supported: features(v, n[4]),
        peer: features(v, n[5]),
        current_speed: if v10 { 0 } else { n[6] },
        max_speed: if v10 { 0 } else { n[7] },
    })
}

fn features(v: Version, bits: u32) -> PortFeatures {
    PortFeatures::from_bits_truncate(if v == Version::V1_0 { bits & 0xf87f } else { bits & 0xffff })
}

fn config(v: Version) -> impl Strategy<Value = SwitchConfig> {
    use FragHandling::*;
    (select(vec![Normal, Drop, Reassemble, NxMatch]), any::<bool>(), any::<u16>()).prop_map(move |(frag, ttl, len)| {
        SwitchConfig { frag, invalid_ttl_to_controller: (v < Version::V1_3).then_some(ttl), miss_send_len: len }
    })
}

/// Messages without lists of flows or packets.
pub fn small() -> impl Strategy<Value = Message> {
    version()
        .prop_flat_map(|v| (Just(v), prop_oneof![connection(v), switch_body(v), extension(v)]))
        .prop_map(|(v, (d, body))| Message { version: v, xid: 5, dialect: d, body })
}

type Said = BoxedStrategy<(Dialect, Body)>;

fn standard(s: impl Strategy<Value = Body> + 'static) -> Said {
    s.prop_map(|b| (Dialect::Standard, b)).boxed()
}

fn connection(v: Version) -> Said {
    standard(prop_oneof![
        prop::sample::subsequence(&Version::ALL[..], 0..6).prop_map(move |versions| {
            // The message's version is the latest that the hello offers.
            Body::Hello(Hello { versions: Versions(Versions::of(&versions).0 & ((2 << v as u32) - 1) | 1 << v as u32) })
        }),
        data().prop_map(Body::EchoRequest),
        data().prop_map(Body::EchoReply),
        (any::<[u16; 2]>(), data()).prop_map(move |([kind, code], data)| {
            let error = match OfError::from_number(v, 0, kind, code) {
                Some(e) => ErrorCode::Known(e),
                None => ErrorCode::Unknown { vendor: 0, kind: kind & 0x7fff, code },
            };
            Body::Error(ErrorMsg { error, data })
        }),
        Just(Body::FeaturesRequest),
        Just(Body::GetConfigRequest),
        Just(Body::BarrierRequest),
        Just(Body::BarrierReply),
    ])
}

fn switch_body(v: Version) -> Said {
    let v10 = v == Version::V1_0;
    let ports = prop::collection::vec(desc(v), 0..4);
    let reason = select(vec![PortReason::Add, PortReason::Delete, PortReason::Modify]);
    let any_caps = Capabilities::FLOW_STATS
        | Capabilities::QUEUE_STATS
        | if v10 { Capabilities::STP } else { Capabilities::GROUP_STATS };
    standard(prop_oneof![
        (any::<u64>(), any::<u32>(), any::<[u8; 2]>(), ports).prop_map(
            move |(datapath_id, n, [tables, aux], ports)| {
                Body::FeaturesReply(SwitchFeatures {
                    datapath_id,
                    n_buffers: n,
                    n_tables: tables,
                    auxiliary_id: if v10 { 0 } else { aux },
                    capabilities: any_caps & Capabilities::from_bits_truncate(n),
                    actions: if v10 { n } else { 0 },
                    ports: if v10 { ports } else { Vec::new() },
                })
            }
        ),
        config(v).prop_map(Body::GetConfigReply),
        config(v).prop_map(Body::SetConfig),
        (reason, desc(v)).prop_map(|(reason, desc)| Body::PortStatus(PortStatus { reason, desc })),
        desc(v).prop_map(|d| Body::PortMod(PortMod {
            port: d.port,
            hw_addr: d.hw_addr,
            config: d.config & PortConfig::PORT_DOWN,
            mask: PortConfig::PORT_DOWN,
            advertise: d.current,
        })),
    ])
}

fn extension(v: Version) -> Said {
    let v10 = v == Version::V1_0;
    let dialect = select(vec![Dialect::Nicira, if v10 { Dialect::Nicira } else { Dialect::Standard }]);
    let role = select(vec![Role::Equal, Role::Primary, Role::Secondary]);
    let both = (dialect, role, 0u64..u64::MAX, any::<[[u32; 2]; 3]>(), any::<bool>()).prop_map(
        |(d, role, id, [p, q, r], reply)| {
            let generation_id = (d == Dialect::Standard).then_some(id);
            let config = AsyncConfig { packet_in: p, port_status: q, flow_removed: r, ..AsyncConfig::default() };
            let body = match (reply, id % 2) {
                (true, 0) => Body::RoleReply(RoleMsg { role, generation_id }),
                (false, 0) => Body::RoleRequest(RoleMsg { role, generation_id }),
                (true, _) if d == Dialect::Standard => Body::GetAsyncReply(config),
                _ => Body::SetAsync(config),
            };
            (d, body)
        },
    );
    let format = select(vec![PacketInFormat::Standard, PacketInFormat::Nxt, PacketInFormat::Nxt2]);
    let mut only = vec![Body::FlowModTableId(true), Body::FlowModTableId(false), Body::SetControllerId(7)];
    only.push(if v10 { Body::SetFlowFormat(FlowFormat::Nxm) } else { Body::GetAsyncRequest });
    prop_oneof![both, standard(format.prop_map(Body::SetPacketInFormat)), standard(select(only)), removed(v),].boxed()
}

fn duration() -> impl Strategy<Value = Duration> {
    (any::<u32>(), 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s.into(), n))
}

fn removed(v: Version) -> Said {
    use FlowRemovedReason::*;
    let v10 = v == Version::V1_0;
    dialect(v)
        .prop_flat_map(move |d| {
            let rest = (select(vec![IdleTimeout, HardTimeout, Delete]), any::<[u16; 3]>(), any::<[u64; 3]>(), 0u8..255);
            (Just(d), match_of(v, d), rest, duration())
        })
        .prop_map(move |(d, matching, (reason, [priority, idle, hard], [cookie, packets, bytes], table), duration)| {
            let body = Body::FlowRemoved(Box::new(FlowRemoved {
                matching,
                priority,
                cookie: Cookie(cookie),
                reason,
                table: (!v10 || d == Dialect::Nicira).then_some(TableId(table)),
                duration,
                idle_timeout: idle,
                hard_timeout: if v10 { 0 } else { hard },
                packet_count: packets,
                byte_count: bytes,
            }));
            (d, body)
        })
        .boxed()
}

pub fn request() -> impl Strategy<Value = Message> {
    use MultipartRequest::*;
    with_dialect(|v, d| {
        let v10 = v == Version::V1_0;
        let flow = (match_of(v, d), any::<u8>(), port(), any::<[u64; 2]>()).prop_map(
            move |(matching, table, out_port, [value, mask])| {
                let filtered = !v10 || d == Dialect::Nicira;
                FlowStatsRequest {
                    matching,
                    table: TableId(table),
                    out_port,
                    out_group: if v10 { GroupId::ANY } else { GroupId(3) },
                    cookie: if filtered { CookieFilter { value: value & mask, mask } } else { CookieFilter::default() },
                }
            },
        );
        let flow = (flow, any::<bool>()).prop_map(|(q, sums)| if sums { Aggregate(q) } else { Flow(q) });
        let mut plain = vec![
            Desc,
            Table,
            PortDesc(OfPort::ANY),
            Port(OfPort::ANY),
            Port(OfPort(3)),
            Queue { port: OfPort::ANY, queue: 9 },
        ];
        if !v10 {
            plain.extend([
                Group(GroupId::ALL),
                GroupDesc(GroupId::ALL),
                GroupFeatures,
                Meter(3),
                MeterConfig(4),
                MeterFeatures,
            ]);
            plain.push(TableFeatures(Vec::new()));
        }
        prop_oneof![
            1 => flow.prop_map(move |request| (d, request)),
            1 => select(plain).prop_map(|request| (Dialect::Standard, request)),
        ]
        .prop_map(|(d, request)| (d, Body::MultipartRequest { more: false, request }))
    })
    .prop_map(|(v, _, (d, body))| message((v, d, body)))
}

fn flow_stats(v: Version, d: Dialect) -> impl Strategy<Value = FlowStats> {
    let nicira = v == Version::V1_0 && d == Dialect::Nicira;
    let ages = (prop::option::of(0u16..0xffff), prop::option::of(0u16..0xffff));
    let rest = (any::<u8>(), any::<[u16; 3]>(), any::<[u64; 3]>(), duration(), ages, 0u16..32);
    (match_of(v, d), rest, instructions(v)).prop_map(move |(matching, rest, instructions)| {
        let (table, [priority, idle, hard], [cookie, packets, bytes], duration, (idle_age, hard_age), flags) = rest;
        FlowStats {
            matching,
            cookie: Cookie(cookie),
            table: TableId(table),
            priority,
            idle_timeout: idle,
            hard_timeout: hard,
            duration,
            idle_age: idle_age.filter(|_| nicira),
            hard_age: hard_age.filter(|_| nicira),
            packet_count: packets,
            byte_count: bytes,
            flags: if v == Version::V1_0 { FlowModFlags::empty() } else { FlowModFlags::from_bits_truncate(flags) },
            importance: 0,
            instructions,
        }
    })
}

fn port_stats(v: Version) -> impl Strategy<Value = PortStats> {
    (port(), any::<[u64; 12]>(), duration()).prop_map(move |(port, n, duration)| PortStats {
        port,
        rx_packets: n[0],
        tx_packets: n[1],
        rx_bytes: n[2],
        tx_bytes: n[3],
        rx_dropped: n[4],
        tx_dropped: n[5],
        rx_errors: n[6],
        tx_errors: n[7],
        rx_frame_err: n[8],
        rx_over_err: n[9],
        rx_crc_err: n[10],
        collisions: n[11],
        duration: (v >= Version::V1_3 && duration.as_secs() < u32::MAX.into()).then_some(duration),
    })
}

fn table_features() -> impl Strategy<Value = TableFeatures> {
    let set =
        (any::<[u32; 3]>(), prop::collection::vec(0u8..255, 0..5)).prop_map(|([i, w, a], next)| TableFeaturesSet {
            instructions: i,
            next_tables: next.into_iter().map(TableId).collect(),
            write_actions: w,
            apply_actions: a,
            write_setfield: vec![Field::NwSrc.info().oxm.unwrap()],
            apply_setfield: vec![Field::NshSpi.info().oxm.unwrap(), Field::Reg0.info().nxm.unwrap()],
        });
    (0u8..255, "[a-z]{0,31}", any::<[u64; 2]>(), set.clone(), prop::option::of(set)).prop_map(
        |(table, name, n, normal, miss)| TableFeatures {
            table: TableId(table),
            name,
            metadata_match: n[0],
            metadata_write: n[1],
            config: 3,
            max_entries: n[0] as u32,
            miss: miss.filter(|m| *m != normal),
            normal,
            matches: vec![(Field::NwSrc.info().oxm.unwrap(), true), (Field::DlType.info().oxm.unwrap(), false)],
            wildcards: vec![Field::DlSrc.info().oxm.unwrap()],
        },
    )
}

pub fn reply() -> impl Strategy<Value = Message> {
    use MultipartReply::*;
    with_dialect(|v, d| {
        let v10 = v == Version::V1_0;
        let said = |r: BoxedStrategy<MultipartReply>| r.prop_map(|r| (Dialect::Standard, r)).boxed();
        let own = |r: BoxedStrategy<MultipartReply>| r.prop_map(move |r| (d, r)).boxed();
        let sums = any::<[u64; 2]>().prop_map(|[packet_count, byte_count]| {
            Aggregate(AggregateStats { packet_count, byte_count, flow_count: 7 })
        });
        let table =
            (any::<u8>(), "[a-z]{0,31}", any::<[u32; 3]>(), any::<[u64; 2]>()).prop_map(move |(table, name, n, m)| {
                TableStats {
                    table: TableId(table),
                    name: if v10 { name } else { String::new() },
                    wildcards: if v10 { n[0] } else { 0 },
                    max_entries: if v10 { n[1] } else { 0 },
                    active_count: n[2],
                    lookup_count: m[0],
                    matched_count: m[1],
                }
            });
        let queue =
            (port(), any::<u32>(), any::<[u64; 3]>(), duration()).prop_map(move |(port, queue, n, age)| QueueStats {
                port,
                queue,
                tx_bytes: n[0],
                tx_packets: n[1],
                tx_errors: n[2],
                duration: (!v10 && age.as_secs() < u32::MAX.into()).then_some(age),
            });
        let mut all = vec![
            own(prop::collection::vec(flow_stats(v, d), 0..4).prop_map(Flow).boxed()),
            own(sums.boxed()),
            said(prop::collection::vec(table, 0..4).prop_map(Table).boxed()),
            said(prop::collection::vec(queue, 0..4).prop_map(Queue).boxed()),
            said(prop::collection::vec(port_stats(v), 0..4).prop_map(Port).boxed()),
            said(prop::collection::vec(desc(v), 0..4).prop_map(PortDesc).boxed()),
            said(
                "[ -~]{0,31}"
                    .prop_map(|s| {
                        let [manufacturer, hardware, software, serial, datapath] = std::array::from_fn(|_| s.clone());
                        Desc(Box::new(SwitchDesc { manufacturer, hardware, software, serial, datapath }))
                    })
                    .boxed(),
            ),
        ];
        if !v10 {
            all.push(said(prop::collection::vec(table_features(), 0..3).prop_map(TableFeatures).boxed()));
            all.push(said(
                any::<[u32; 3]>()
                    .prop_map(|[a, b, c]| {
                        MeterFeatures(crate::stats::MeterFeatures {
                            max_meters: a,
                            band_types: b,
                            capabilities: c,
                            max_bands: 1,
                            max_color: 2,
                        })
                    })
                    .boxed(),
            ));
            all.push(said(
                any::<([u32; 2], [u32; 4], [u32; 4])>()
                    .prop_map(|([types, capabilities], max_groups, actions)| {
                        GroupFeatures(crate::stats::GroupFeatures { types, capabilities, max_groups, actions })
                    })
                    .boxed(),
            ));
            let empty = vec![EmptyReply::Group, EmptyReply::GroupDesc, EmptyReply::Meter, EmptyReply::MeterConfig];
            all.push(said(select(empty).prop_map(Empty).boxed()));
        }
        proptest::strategy::Union::new(all).prop_map(|(d, reply)| (d, Body::MultipartReply { more: false, reply }))
    })
    .prop_map(|(v, _, (d, body))| message((v, d, body)))
}

pub fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![flow_mod(), packet(), small(), request(), reply()]
}
