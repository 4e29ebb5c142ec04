//! Actions of the OpenFlow specification, and ONF's copy-field.

use std::net::Ipv4Addr;

use packet::Field;

use super::super::oxm::{self, FieldUse};
use super::super::wire::Reader;
use super::{Context, Within, check_output, pull_port16, pull_port32, subfield};
use crate::action::Action;
use crate::error::OfError::{self, *};
use crate::tun_metadata::TunField;
use crate::types::{EthAddr, GroupId, Version};

/// Reads the argument of a standard action.
pub(super) fn pull(kind: u16, mut r: Reader, ctx: Context) -> Result<Action, OfError> {
    let action = if ctx.version == Version::V1_0 { pull10(kind, &mut r)? } else { pull11(kind, &mut r, ctx)? };
    r.done()?;
    Ok(action)
}

/// OpenFlow 1.0 section 5.2.4.
fn pull10(kind: u16, r: &mut Reader) -> Result<Action, OfError> {
    Ok(match kind {
        0 => {
            let port = check_output(pull_port16(r)?)?;
            Action::Output { port, max_len: r.u16()? }
        }
        1 => Action::SetVlanVid { vid: limited(padded_u16(r)?, 0xfff)?, push: true },
        2 => Action::SetVlanPcp { pcp: limited(padded_u8(r)?, 7)?, push: true },
        3 => void(r, Action::StripVlan)?,
        4 => Action::SetEthSrc(pull_eth(r)?),
        5 => Action::SetEthDst(pull_eth(r)?),
        6 => Action::SetIpv4Src(Ipv4Addr::from(r.u32()?)),
        7 => Action::SetIpv4Dst(Ipv4Addr::from(r.u32()?)),
        8 => Action::SetIpDscp(dscp(padded_u8(r)?)?),
        9 => Action::SetL4SrcPort(padded_u16(r)?),
        10 => Action::SetL4DstPort(padded_u16(r)?),
        11 => {
            let port = pull_port16(r)?;
            r.skip(6)?;
            pull_enqueue(port, r)?
        }
        _ => return Err(OFPBAC_BAD_TYPE),
    })
}

/// OpenFlow 1.1 and later: section 7.2.4 of 1.3.
fn pull11(kind: u16, r: &mut Reader, ctx: Context) -> Result<Action, OfError> {
    Ok(match kind {
        0 => {
            let port = check_output(pull_port32(r)?)?;
            let max_len = r.u16()?;
            r.skip(6)?;
            Action::Output { port, max_len }
        }
        // From OpenFlow 1.2 on, set-field has taken the place of those up to 15, which clients still send.
        1 => Action::SetVlanVid { vid: limited(padded_u16(r)?, 0xfff)?, push: false },
        2 => Action::SetVlanPcp { pcp: limited(padded_u8(r)?, 7)?, push: false },
        3 => Action::SetEthSrc(pull_eth(r)?),
        4 => Action::SetEthDst(pull_eth(r)?),
        5 => Action::SetIpv4Src(Ipv4Addr::from(r.u32()?)),
        6 => Action::SetIpv4Dst(Ipv4Addr::from(r.u32()?)),
        7 => Action::SetIpDscp(dscp(padded_u8(r)?)?),
        8 => Action::SetIpEcn(limited(padded_u8(r)?, 3)?),
        9 => Action::SetL4SrcPort(padded_u16(r)?),
        10 => Action::SetL4DstPort(padded_u16(r)?),
        13 => Action::SetMplsLabel(limited(r.u32()?, 0xf_ffff)?),
        14 => Action::SetMplsTc(limited(padded_u8(r)?, 7)?),
        15 => Action::SetMplsTtl(padded_u8(r)?),
        16 => void(r, Action::DecMplsTtl)?,
        17 => push_vlan(padded_u16(r)?)?,
        18 => void(r, Action::StripVlan)?,
        19 => push_mpls(padded_u16(r)?)?,
        20 => Action::PopMpls(padded_u16(r)?),
        21 => Action::SetQueue(r.u32()?),
        22 => group(r.u32()?)?,
        23 => Action::SetIpTtl(padded_u8(r)?),
        24 => void(r, Action::DecTtl)?,
        25 if ctx.version >= Version::V1_2 => pull_set_field(r, ctx)?,
        28 if ctx.version >= Version::V1_5 => pull_copy_field(r)?,
        29 if ctx.version >= Version::V1_5 && ctx.within == Within::List => Action::Meter(r.u32()?),
        _ => return Err(OFPBAC_BAD_TYPE),
    })
}

/// ONF's extensions for OpenFlow 1.3 and 1.4.
pub(super) fn pull_onf(subtype: u16, mut r: Reader) -> Result<Action, OfError> {
    match subtype {
        3200 => {
            r.skip(2)?;
            let action = pull_copy_field(&mut r)?;
            r.done()?;
            Ok(action)
        }
        _ => Err(OFPBAC_BAD_VENDOR_TYPE),
    }
}

/// Set-Field of OpenFlow 1.2 to 1.5 (section 7.2.5 of 1.3): only 1.5 knows masks.
fn pull_set_field(r: &mut Reader, ctx: Context) -> Result<Action, OfError> {
    let (action, masked) = pull_set(r)?;
    if masked && ctx.version < Version::V1_5 {
        return Err(OFPBAC_BAD_SET_MASK);
    }
    let present = u128::from(packet::flow::VLAN_PRESENT);
    match action {
        Action::SetField { field: Field::InPortOxm, .. } => Err(OFPBAC_BAD_SET_ARGUMENT),
        Action::SetField { field: Field::VlanVid, value, mask } if value & mask & present == 0 => {
            Err(OFPBAC_BAD_SET_ARGUMENT)
        }
        action => Ok(action),
    }
}

/// An OXM entry and padding, as set-field and NXAST_REG_LOAD2 have them: the action, and whether the entry has a mask.
pub(super) fn pull_set(r: &mut Reader) -> Result<(Action, bool), OfError> {
    let short = |e| if matches!(e, OFPBAC_BAD_LEN | OFPBMC_BAD_LEN) { OFPBAC_BAD_SET_LEN } else { e };
    let header = oxm::pull_header(r).map_err(short)?;
    if let Some(tun) = TunField::from_oxm(header.oxm) {
        let value = oxm::pull_tun(r, header, tun.index, FieldUse::Action).map_err(short)?;
        r.rest_zeros(OFPBAC_BAD_SET_ARGUMENT)?;
        return Ok((Action::SetTunMetadata(Box::new(value)), header.masked));
    }
    let field = oxm::header_field(header, FieldUse::Action)?;
    let entry = oxm::pull_payload(r, header, field, FieldUse::Action).map_err(short)?;
    r.rest_zeros(OFPBAC_BAD_SET_ARGUMENT)?;
    if !field.info().writable || entry.mask == 0 {
        return Err(OFPBAC_BAD_SET_ARGUMENT);
    }
    Ok((Action::SetField { field: entry.field, value: entry.value, mask: entry.mask }, entry.masked))
}

/// Copy-Field (OpenFlow 1.5 section 7.2.4): widths and offsets, then two OXM ids.
fn pull_copy_field(r: &mut Reader) -> Result<Action, OfError> {
    let (n_bits, src_ofs, dst_ofs) = (r.u16()?, r.u16()?, r.u16()?);
    r.skip(2)?;
    let action = pull_move(r, n_bits, src_ofs, dst_ofs)?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    Ok(action)
}

/// The two headers of copy-field and NXAST_REG_MOVE.
pub(super) fn pull_move(r: &mut Reader, n_bits: u16, src_ofs: u16, dst_ofs: u16) -> Result<Action, OfError> {
    let src = subfield::part(subfield::pull_field(r)?, src_ofs, n_bits)?;
    let dst = subfield::part(subfield::pull_field(r)?, dst_ofs, n_bits)?;
    Ok(Action::RegMove { src, dst: subfield::writable(dst)? })
}

pub(super) fn pull_enqueue(port: crate::OfPort, r: &mut Reader) -> Result<Action, OfError> {
    use crate::OfPort;
    let queue = r.u32()?;
    if port.is_reserved() && port != OfPort::IN_PORT && port != OfPort::LOCAL {
        return Err(OFPBAC_BAD_OUT_PORT);
    }
    Ok(Action::Enqueue { port, queue })
}

pub(super) fn push_vlan(ethertype: u16) -> Result<Action, OfError> {
    match ethertype {
        0x8100 | 0x88a8 => Ok(Action::PushVlan(ethertype)),
        _ => Err(OFPBAC_BAD_ARGUMENT),
    }
}

pub(super) fn push_mpls(ethertype: u16) -> Result<Action, OfError> {
    match ethertype {
        0x8847 | 0x8848 => Ok(Action::PushMpls(ethertype)),
        _ => Err(OFPBAC_BAD_ARGUMENT),
    }
}

pub(super) fn group(id: u32) -> Result<Action, OfError> {
    if GroupId(id) <= GroupId::MAX { Ok(Action::Group(GroupId(id))) } else { Err(OFPBAC_BAD_OUT_GROUP) }
}

/// A value of an argument that has more bits than the value may.
pub(super) fn limited<T: PartialOrd>(value: T, max: T) -> Result<T, OfError> {
    if value <= max { Ok(value) } else { Err(OFPBAC_BAD_ARGUMENT) }
}

/// A TOS byte with ECN zero.
fn dscp(tos: u8) -> Result<u8, OfError> {
    if tos & 3 == 0 { Ok(tos) } else { Err(OFPBAC_BAD_ARGUMENT) }
}

fn padded_u8(r: &mut Reader) -> Result<u8, OfError> {
    let value = r.u8()?;
    r.skip(3)?;
    Ok(value)
}

fn padded_u16(r: &mut Reader) -> Result<u16, OfError> {
    let value = r.u16()?;
    r.skip(2)?;
    Ok(value)
}

fn void(r: &mut Reader, action: Action) -> Result<Action, OfError> {
    r.skip(4)?;
    Ok(action)
}

fn pull_eth(r: &mut Reader) -> Result<EthAddr, OfError> {
    let address = EthAddr(r.array()?);
    r.skip(6)?;
    Ok(address)
}
