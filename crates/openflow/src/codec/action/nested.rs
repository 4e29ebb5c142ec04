//! Nicira's actions with an inner structure: ct, nat, learn, clone, encap.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::wire::Reader;
use super::{Context, MAX_DEPTH, Within, pull_list, subfield};
use crate::action::*;
use crate::error::OfError::{self, *};
use crate::matching::Subfield;
use crate::types::{Cookie, FlowModFlags, TableId};

/// The rest of `r` as the actions of an outer one.
pub(super) fn pull_inner(r: &mut Reader, ctx: Context, within: Within) -> Result<Vec<Action>, OfError> {
    if ctx.depth == MAX_DEPTH {
        return Err(OFPBAC_TOO_MANY);
    }
    let inner = r.sub(r.len())?;
    match pull_list(inner, Context { within, depth: ctx.depth + 1, ..ctx })? {
        (actions, None) => Ok(actions),
        (_, Some(_)) => Err(OFPBIC_UNSUP_INST),
    }
}

/// NX_CT_F_*.
pub(super) mod ct_flags {
    pub const COMMIT: u16 = 1;
    pub const FORCE: u16 = 1 << 1;
}

pub(super) fn pull_ct(r: &mut Reader, ctx: Context) -> Result<Action, OfError> {
    let flags = r.u16()?;
    let (commit, force) = (flags & ct_flags::COMMIT != 0, flags & ct_flags::FORCE != 0);
    if flags & !(ct_flags::COMMIT | ct_flags::FORCE) != 0 || force && !commit {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let mut zone_src = r.sub(4)?;
    let zone = r.u16()?;
    let zone = if zone_src.is_zero() {
        CtZone::Immediate(zone)
    } else {
        let (ofs, n_bits) = subfield::unpack(zone);
        let src = subfield::part(subfield::pull_short_field(&mut zone_src)?, ofs, n_bits)?;
        if src.n_bits != 16 {
            return Err(OFPBAC_BAD_SET_LEN);
        }
        CtZone::Field(src)
    };
    let table = TableId(r.u8()?);
    r.skip(3)?;
    let alg = r.u16()?;
    let actions = pull_inner(r, ctx, Within::Ct)?;
    if !commit && actions.iter().any(|a| *a != Action::Nat(Box::default())) {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let table = (table != TableId::ALL).then_some(table);
    Ok(Action::Ct(Box::new(Ct { commit, force, zone, table, alg, actions })))
}

/// NX_NAT_F_* and NX_NAT_RANGE_*.
pub(super) mod nat_flags {
    pub const SRC: u16 = 1;
    pub const DST: u16 = 1 << 1;
    pub const PERSISTENT: u16 = 1 << 2;
    pub const HASH: u16 = 1 << 3;
    pub const RANDOM: u16 = 1 << 4;
    pub const IPV4_MIN: u16 = 1;
    pub const IPV4_MAX: u16 = 1 << 1;
    pub const IPV6_MIN: u16 = 1 << 2;
    pub const IPV6_MAX: u16 = 1 << 3;
    pub const PROTO_MIN: u16 = 1 << 4;
    pub const PROTO_MAX: u16 = 1 << 5;
}

pub(super) fn pull_nat(r: &mut Reader) -> Result<Action, OfError> {
    use nat_flags::*;
    *r = r.with(OFPBAC_BAD_ARGUMENT);
    r.skip(2)?;
    let (flags, range) = (r.u16()?, r.u16()?);
    let kind = match flags & (SRC | DST) {
        0 => None,
        SRC => Some(NatKind::Src),
        DST => Some(NatKind::Dst),
        _ => return Err(OFPBAC_BAD_ARGUMENT),
    };
    if flags & !(SRC | DST | PERSISTENT | HASH | RANDOM) != 0 || flags & HASH != 0 && flags & RANDOM != 0 {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let addrs = pull_nat_addrs(r, range)?;
    let ports = match (range & PROTO_MIN != 0, range & PROTO_MAX != 0) {
        (false, false) => None,
        (true, has_last) if addrs != NatAddrs::None => {
            let first = r.u16()?;
            let last = if has_last { r.u16()? } else { 0 };
            if first == 0 || has_last && last < first {
                return Err(OFPBAC_BAD_ARGUMENT);
            }
            Some((first, last))
        }
        _ => return Err(OFPBAC_BAD_ARGUMENT),
    };
    r.rest();
    Ok(Action::Nat(Box::new(Nat {
        kind,
        persistent: flags & PERSISTENT != 0,
        hash: flags & HASH != 0,
        random: flags & RANDOM != 0,
        addrs,
        ports,
    })))
}

fn pull_nat_addrs(r: &mut Reader, range: u16) -> Result<NatAddrs, OfError> {
    use nat_flags::*;
    let ordered = |first: u128, last: Option<u128>| first != 0 && last.is_none_or(|last| last >= first);
    match range & (IPV4_MIN | IPV4_MAX | IPV6_MIN | IPV6_MAX) {
        0 => Ok(NatAddrs::None),
        present @ (IPV4_MIN | 0b11) => {
            let first = r.u32()?;
            let last = if present & IPV4_MAX != 0 { Some(r.u32()?) } else { None };
            if !ordered(first.into(), last.map(u128::from)) {
                return Err(OFPBAC_BAD_ARGUMENT);
            }
            Ok(NatAddrs::V4(Ipv4Addr::from(first), last.map(Ipv4Addr::from)))
        }
        present @ (IPV6_MIN | 0b1100) => {
            let first = r.u128()?;
            let last = if present & IPV6_MAX != 0 { Some(r.u128()?) } else { None };
            if !ordered(first, last) {
                return Err(OFPBAC_BAD_ARGUMENT);
            }
            Ok(NatAddrs::V6(Ipv6Addr::from(first), last.map(Ipv6Addr::from)))
        }
        _ => Err(OFPBAC_BAD_ARGUMENT),
    }
}

/// NX_LEARN_F_* and the header of a flow_mod_spec.
pub(super) mod learn_bits {
    pub const SEND_FLOW_REM: u16 = 1;
    pub const DELETE_LEARNED: u16 = 1 << 1;
    pub const WRITE_RESULT: u16 = 1 << 2;
    pub const N_BITS: u16 = 0x3ff;
    pub const SRC_IMMEDIATE: u16 = 1 << 13;
    pub const DST_SHIFT: u16 = 11;
}

/// NXAST_LEARN, and NXAST_LEARN2 with a limit and a place for the result.
pub(super) fn pull_learn(r: &mut Reader, second: bool) -> Result<Action, OfError> {
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (cookie, flags, table) = (Cookie(r.u64()?), r.u16()?, TableId(r.u8()?));
    r.zeros(1, OFPBAC_BAD_ARGUMENT)?;
    let (fin_idle_timeout, fin_hard_timeout) = (r.u16()?, r.u16()?);
    let known =
        learn_bits::SEND_FLOW_REM | learn_bits::DELETE_LEARNED | if second { learn_bits::WRITE_RESULT } else { 0 };
    if flags & !known != 0 || table == TableId::ALL {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let (mut limit, mut result_dst) = (0, None);
    if second {
        limit = r.u32()?;
        let ofs = r.u16()?;
        r.zeros(2, OFPBAC_BAD_ARGUMENT)?;
        if flags & learn_bits::WRITE_RESULT != 0 {
            let dst = subfield::part(subfield::pull_field(r)?, ofs, 1)?;
            result_dst = Some(subfield::writable(dst)?);
        }
    }
    let specs = pull_learn_specs(r)?;
    let send_rem = flags & learn_bits::SEND_FLOW_REM != 0;
    Ok(Action::Learn(Box::new(Learn {
        idle_timeout,
        hard_timeout,
        priority,
        cookie,
        flags: if send_rem { FlowModFlags::SEND_FLOW_REM } else { FlowModFlags::empty() },
        delete_learned: flags & learn_bits::DELETE_LEARNED != 0,
        table,
        fin_idle_timeout,
        fin_hard_timeout,
        limit,
        result_dst,
        specs,
    })))
}

/// Specs until the end or until a zero header, after which all is padding.
fn pull_learn_specs(r: &mut Reader) -> Result<Vec<LearnSpec>, OfError> {
    let mut specs = Vec::new();
    while !r.is_empty() {
        let header = r.u16()?;
        if header == 0 {
            break;
        }
        specs.push(pull_learn_spec(r, header)?);
    }
    r.rest_zeros(OFPBAC_BAD_ARGUMENT)?;
    Ok(specs)
}

fn pull_learn_spec(r: &mut Reader, header: u16) -> Result<LearnSpec, OfError> {
    let n_bits = header & learn_bits::N_BITS;
    let immediate = header & learn_bits::SRC_IMMEDIATE != 0;
    if n_bits == 0 || immediate && n_bits > 128 || header & 0xc400 != 0 {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let range = |r: &mut Reader| -> Result<Subfield, OfError> {
        let field = subfield::pull_short_field(r)?;
        subfield::part(field, r.u16()?, n_bits)
    };
    let mut value = 0;
    let src = if immediate {
        value = r.uint(2 * usize::from(n_bits.div_ceil(16)))?;
        None
    } else {
        Some(range(r)?)
    };
    let dst = match header >> learn_bits::DST_SHIFT & 3 {
        0 => LearnDst::Match(range(r)?),
        1 => LearnDst::Load(subfield::writable(range(r)?)?),
        2 if !immediate => LearnDst::Output,
        _ => return Err(OFPBAC_BAD_ARGUMENT),
    };
    let (LearnDst::Match(sf) | LearnDst::Load(sf)) = &dst else {
        let src = src.ok_or(OFPBAC_BAD_ARGUMENT)?;
        return Ok(LearnSpec { n_bits, src: LearnSrc::Field(src), dst });
    };
    let src = match src {
        Some(src) => LearnSrc::Field(src),
        None if value > sf.max() => return Err(OFPBAC_BAD_ARGUMENT),
        None => LearnSrc::Immediate(value),
    };
    Ok(LearnSpec { n_bits, src, dst })
}

/// Property classes and types of encap (`enum ofp_ed_prop_class`).
pub(super) mod ed {
    pub const MPLS: u16 = 1;
    pub const NSH: u16 = 4;
    pub const MPLS_ETHERTYPE: u8 = 1;
    pub const NSH_MDTYPE: u8 = 1;
    pub const NSH_TLV: u8 = 2;
}

pub(super) fn pull_encap(r: &mut Reader) -> Result<Action, OfError> {
    let (header_size, packet_type) = (r.u16()?, r.u32()?);
    if !matches!(packet_type, 0 | 0x1_894f | 0x1_8847 | 0x1_8848) {
        return Err(NXBAC_BAD_HEADER_TYPE);
    }
    let mut props = Vec::new();
    *r = r.with(NXBAC_BAD_ED_PROP);
    while !r.is_empty() {
        props.push(pull_encap_prop(r)?);
    }
    Ok(Action::Encap(Box::new(Encap { packet_type, header_size, props })))
}

/// Class, type, length with header but without padding, value; padded to a multiple of 8 bytes.
fn pull_encap_prop(r: &mut Reader) -> Result<EncapProp, OfError> {
    let (class, kind, len) = (r.u16()?, r.u8()?, usize::from(r.u8()?));
    let mut value = r.sub(len.checked_sub(4).ok_or(NXBAC_BAD_ED_PROP)?)?;
    r.skip(len.next_multiple_of(8) - len)?;
    match (class, kind) {
        (ed::NSH, ed::NSH_MDTYPE) => match value.u8()? {
            md_type @ 1..=2 => Ok(EncapProp::NshMdType(md_type)),
            _ => Err(NXBAC_BAD_ED_PROP),
        },
        (ed::NSH, ed::NSH_TLV) => {
            let (class, kind, len) = (value.u16()?, value.u8()?, value.u8()?);
            Ok(EncapProp::NshTlv { class, kind, data: value.bytes(len.into())?.to_vec() })
        }
        (ed::MPLS, ed::MPLS_ETHERTYPE) => Ok(EncapProp::MplsEtherType(value.u16()?)),
        _ => Err(NXBAC_UNKNOWN_ED_PROP),
    }
}

/// Packet type (0, 0xfffe): what the header says that follows.
pub(super) const NEXT_PROTO: u32 = 0xfffe;

pub(super) fn pull_decap(r: &mut Reader) -> Result<Action, OfError> {
    r.skip(2)?;
    let packet_type = r.u32()?;
    if !r.is_empty() {
        return Err(NXBAC_UNKNOWN_ED_PROP);
    }
    Ok(Action::Decap((packet_type != NEXT_PROTO).then_some(packet_type)))
}
