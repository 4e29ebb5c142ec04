//! Matches.

use ::packet::Field;
use ::packet::flow::field::Maskable;
use proptest::prelude::*;
use proptest::sample::select;

use super::port;
use crate::tun_metadata::FIELDS;
use crate::{Dialect, Match, TunMatch, TunValue, Version};

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
        &[(Field::CtState, 0x21), (Field::DlType, 0x0800), (Field::CtNwProto, 6)],
        &[Field::CtNwSrc, Field::CtNwDst, Field::CtTpSrc, Field::CtTpDst],
    ),
];

/// A value of a tun_metadata field.
pub fn tun_value() -> impl Strategy<Value = TunValue> {
    let byte = (any::<u8>(), any::<u8>());
    (0..FIELDS, prop::collection::vec(byte, 0..=12), any::<bool>()).prop_map(|(index, bytes, masked)| {
        let value = bytes.iter().map(|&(value, mask)| if masked { value & mask } else { value }).collect();
        TunValue { index, value, mask: masked.then(|| bytes.iter().map(|&(_, mask)| mask).collect()) }
    })
}

/// A match that OXM and NXM can say.
pub fn matching() -> impl Strategy<Value = Match> {
    (in_key(), prop::collection::vec(tun_value(), 0..4)).prop_map(|(mut m, values)| {
        values.into_iter().for_each(|value| m.set_tun(TunMatch::Value(value)));
        m
    })
}

fn in_key() -> impl Strategy<Value = Match> {
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
                let exact = if field == Field::CtState { 0x21 } else { u128::MAX };
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

/// A match that struct ofp_match of OpenFlow 1.0 can say.
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

/// A match that struct ofp_match of OpenFlow 1.1 can say: that of 1.0, any masks, metadata.
fn matching11() -> impl Strategy<Value = Match> {
    (matching10(), any::<[u64; 4]>(), any::<u8>()).prop_map(|(mut m, [a, b, c, d], pick)| {
        let has = |bit: u8| pick >> bit & 1 != 0;
        if has(0) && b != 0 {
            m.set_masked(Field::Metadata, a.into(), b.into());
        }
        if has(1) && c as u32 != 0 && m.exact(Field::DlType) == Some(0x0800) {
            m.set_masked(Field::NwDst, (d as u32).into(), (c as u32).into());
        }
        if has(2) && d << 16 != 0 {
            m.set_masked(Field::DlDst, c.into(), d.into());
        }
        if has(3) && m.exact(Field::DlType).is_none() {
            m.set(Field::DlType, 0x8847);
            m.set(Field::MplsLabel, (a & 0xfffff).into());
            m.set(Field::MplsTc, (a >> 61).into());
        }
        if m.exact(Field::DlType) == Some(0x0806) {
            m.set(Field::ArpOp, (a & 0xff).into());
        }
        m
    })
}

/// A match that can be said in a version and dialect.
pub fn match_of(version: Version, dialect: Dialect) -> BoxedStrategy<Match> {
    match version {
        Version::V1_0 if dialect == Dialect::Standard => matching10().boxed(),
        Version::V1_1 => matching11().boxed(),
        _ => matching().boxed(),
    }
}
