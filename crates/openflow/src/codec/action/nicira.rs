//! Nicira's actions (NXAST_*; ovs-actions(7)).
//!
//! The header is 10 bytes: type 0xffff, length, vendor, subtype. Arguments follow directly, so offsets
//! here are from byte 10.

use packet::Field;

use super::super::wire::Reader;
use super::super::{oxm, prop};
use super::standard::{self, limited};
use super::{Context, Item, Within, check_output, nested, pull_port16, subfield};
use crate::action::*;
use crate::error::OfError::{self, *};
use crate::instruction::WriteMetadata;
use crate::matching::Subfield;
use crate::tun_metadata::TunField;
use crate::types::{OfPort, PacketInReason, TableId, Version};

/// Reads the argument of a Nicira action.
pub(super) fn pull(subtype: u16, mut r: Reader, ctx: Context) -> Result<Item, OfError> {
    let v10 = ctx.version == Version::V1_0;
    let r = &mut r;
    let action = match subtype {
        1 => {
            let in_port = pull_port16(r)?;
            r.skip(4)?;
            Action::Resubmit { in_port, table: TableId::ALL, with_ct: false }
        }
        14 => pull_resubmit(r, false)?,
        44 => pull_resubmit(r, true)?,
        2 => Action::SetTunnel(padded(r, 2, |r| r.u32())?.into()),
        9 => {
            r.skip(6)?;
            Action::SetTunnel(r.u64()?)
        }
        4 if v10 => Action::SetQueue(padded(r, 2, |r| r.u32())?),
        5 => void(r, Action::PopQueue)?,
        6 if ctx.version < Version::V1_5 => pull_reg_move(r)?,
        7 if ctx.version < Version::V1_5 => pull_reg_load(r)?,
        8 => Action::Note(r.rest().to_vec()),
        10 => pull_multipath(r)?,
        12 => pull_bundle(r, false)?,
        13 => pull_bundle(r, true)?,
        15 => pull_output_reg(r)?,
        16 => nested::pull_learn(r, false)?,
        45 => nested::pull_learn(r, true)?,
        17 => void(r, Action::Exit)?,
        18 if v10 => void(r, Action::DecTtl)?,
        19 => {
            let action = Action::FinTimeout { idle: r.u16()?, hard: r.u16()? };
            r.zeros(2, NXBAC_MUST_BE_ZERO)?;
            action
        }
        20 => pull_controller(r)?,
        37 => pull_controller2(r)?,
        21 => pull_dec_ttl_ids(r)?,
        22 => return pull_write_metadata(r).map(Item::WriteMetadata),
        23 if v10 => standard::push_mpls(trailed_u16(r)?)?,
        24 if v10 => Action::PopMpls(trailed_u16(r)?),
        25 if v10 => Action::SetMplsTtl(trailed_u8(r)?),
        26 if v10 => void(r, Action::DecMplsTtl)?,
        27 => Action::StackPush(pull_stack(r)?),
        28 => Action::StackPop(subfield::writable(pull_stack(r)?)?),
        29 => pull_sample(r, 1)?,
        38 => pull_sample(r, 2)?,
        41 => pull_sample(r, 3)?,
        30 if v10 => Action::SetMplsLabel(limited(padded(r, 2, |r| r.u32())?, 0xf_ffff)?),
        31 if v10 => Action::SetMplsTc(limited(trailed_u8(r)?, 7)?),
        32 => pull_output_reg2(r)?,
        33 if ctx.version < Version::V1_5 => pull_reg_load2(r)?,
        34 => pull_conjunction(r)?,
        35 => nested::pull_ct(r, ctx)?,
        36 => nested::pull_nat(r)?,
        39 => {
            let port = check_output(pull_port16(r)?)?;
            Action::OutputTrunc { port, max_len: truncation(r.u32()?, port)? }
        }
        40 if v10 => standard::group(padded(r, 2, |r| r.u32())?)?,
        42 => {
            r.skip(6)?;
            Action::Clone(nested::pull_inner(r, ctx, Within::Clone)?)
        }
        43 => void(r, Action::CtClear)?,
        46 if ctx.version >= Version::V1_3 => nested::pull_encap(r)?,
        47 if ctx.version >= Version::V1_3 => nested::pull_decap(r)?,
        48 if ctx.version >= Version::V1_3 => void(r, Action::DecNshTtl)?,
        49 => pull_check_pkt_larger(r)?,
        50 => pull_delete_field(r)?,
        254 => void(r, Action::DebugSlow)?,
        255 => void(r, Action::DebugRecirc)?,
        _ => return Err(OFPBAC_BAD_VENDOR_TYPE),
    };
    r.done()?;
    Ok(action.into())
}

fn void(r: &mut Reader, action: Action) -> Result<Action, OfError> {
    r.skip(6)?;
    Ok(action)
}

/// An argument after `n` bytes of padding.
fn padded<'a, T>(
    r: &mut Reader<'a>,
    n: usize,
    get: impl Fn(&mut Reader<'a>) -> Result<T, OfError>,
) -> Result<T, OfError> {
    r.skip(n)?;
    get(r)
}

fn trailed_u16(r: &mut Reader) -> Result<u16, OfError> {
    let value = r.u16()?;
    r.skip(4)?;
    Ok(value)
}

fn trailed_u8(r: &mut Reader) -> Result<u8, OfError> {
    let value = r.u8()?;
    r.skip(5)?;
    Ok(value)
}

fn pull_resubmit(r: &mut Reader, with_ct: bool) -> Result<Action, OfError> {
    let action = Action::Resubmit { in_port: pull_port16(r)?, table: TableId(r.u8()?), with_ct };
    r.zeros(3, OFPBAC_BAD_ARGUMENT)?;
    Ok(action)
}

fn pull_reg_move(r: &mut Reader) -> Result<Action, OfError> {
    let (n_bits, src_ofs, dst_ofs) = (r.u16()?, r.u16()?, r.u16()?);
    let action = standard::pull_move(r, n_bits, src_ofs, dst_ofs)?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    Ok(action)
}

fn pull_reg_load(r: &mut Reader) -> Result<Action, OfError> {
    let (ofs, n_bits) = subfield::unpack(r.u16()?);
    let field = subfield::pull_short_field(r)?;
    let dst = subfield::writable(subfield::part(field, ofs, n_bits)?)?;
    let value = r.u64()?;
    if u128::from(value) > dst.max() {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    Ok(Action::load(dst, value))
}

/// The entry follows the subtype without padding.
fn pull_reg_load2(r: &mut Reader) -> Result<Action, OfError> {
    standard::pull_set(r).map(|(action, _)| action)
}

fn pull_stack(r: &mut Reader) -> Result<Subfield, OfError> {
    let ofs = r.u16()?;
    let field = subfield::pull_field(r)?;
    let n_bits = r.u16()?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    subfield::part(field, ofs, n_bits)
}

fn pull_output_reg(r: &mut Reader) -> Result<Action, OfError> {
    let (ofs, n_bits) = subfield::unpack(r.u16()?);
    let field = subfield::pull_short_field(r)?;
    let action = Action::OutputReg { src: subfield::part(field, ofs, n_bits)?, max_len: r.u16()? };
    r.zeros(6, OFPBAC_BAD_ARGUMENT)?;
    Ok(action)
}

fn pull_output_reg2(r: &mut Reader) -> Result<Action, OfError> {
    let (ofs, n_bits) = subfield::unpack(r.u16()?);
    let max_len = r.u16()?;
    let field = subfield::pull_field(r)?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    Ok(Action::OutputReg { src: subfield::part(field, ofs, n_bits)?, max_len })
}

fn hash_fields(n: u16) -> Result<HashFields, OfError> {
    HashFields::NAMES.iter().map(|f| f.0).find(|&f| f as u16 == n).ok_or(OFPBAC_BAD_ARGUMENT)
}

fn pull_multipath(r: &mut Reader) -> Result<Action, OfError> {
    let (fields, basis) = (hash_fields(r.u16()?)?, r.u16()?);
    r.skip(2)?;
    let algorithm = match r.u16()? {
        0 => MultipathAlgorithm::ModuloN,
        1 => MultipathAlgorithm::HashThreshold,
        2 => MultipathAlgorithm::Hrw,
        3 => MultipathAlgorithm::IterHash,
        _ => return Err(OFPBAC_BAD_ARGUMENT),
    };
    let (max_link, arg) = (r.u16()?, r.u32()?);
    r.skip(2)?;
    let (ofs, n_bits) = subfield::unpack(r.u16()?);
    let dst = subfield::writable(subfield::part(subfield::pull_short_field(r)?, ofs, n_bits)?)?;
    if dst.n_bits < 16 && u32::from(max_link) + 1 > 1 << dst.n_bits {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    Ok(Action::Multipath(Box::new(Multipath { fields, basis, algorithm, max_link, arg, dst })))
}

fn pull_bundle(r: &mut Reader, load: bool) -> Result<Action, OfError> {
    /// More members would be a mistake (`BUNDLE_MAX_MEMBERS`).
    const MAX_MEMBERS: usize = 2048;
    let algorithm = match r.u16()? {
        0 => BundleAlgorithm::ActiveBackup,
        1 => BundleAlgorithm::Hrw,
        _ => return Err(OFPBAC_BAD_ARGUMENT),
    };
    let (fields, basis) = (hash_fields(r.u16()?)?, r.u16()?);
    if subfield::pull_field(&mut r.sub(4)?)? != Field::InPort {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    let n_members = usize::from(r.u16()?);
    let ofs_nbits = r.u16()?;
    let mut dst_header = r.sub(4)?;
    r.zeros(4, OFPBAC_BAD_ARGUMENT)?;
    let dst = if load {
        let (ofs, n_bits) = subfield::unpack(ofs_nbits);
        let dst = subfield::part(subfield::pull_short_field(&mut dst_header)?, ofs, n_bits)?;
        // A port has to fit.
        if dst.n_bits < 16 {
            return Err(OFPBAC_BAD_ARGUMENT);
        }
        Some(subfield::writable(dst)?)
    } else {
        dst_header.rest_zeros(OFPBAC_BAD_ARGUMENT)?;
        if ofs_nbits != 0 {
            return Err(OFPBAC_BAD_ARGUMENT);
        }
        None
    };
    if n_members > MAX_MEMBERS || r.len() < 2 * n_members {
        return Err(if n_members > MAX_MEMBERS { OFPBAC_BAD_ARGUMENT } else { OFPBAC_BAD_LEN });
    }
    let members = (0..n_members).map(|_| pull_port16(r)).collect::<Result<Vec<OfPort>, _>>()?;
    r.rest();
    Ok(Action::Bundle(Box::new(Bundle { fields, basis, algorithm, members, dst })))
}

fn reason(n: u8) -> PacketInReason {
    super::super::packet::reason_from_wire(n)
}

fn pull_controller(r: &mut Reader) -> Result<Action, OfError> {
    let (max_len, id) = (r.u16()?, r.u16()?);
    let reason = reason(r.u8()?);
    r.zeros(1, OFPBAC_BAD_ARGUMENT)?;
    Ok(Action::Controller(Box::new(Controller { max_len, id, reason, ..Controller::default() })))
}

/// NXAST_CONTROLLER2: properties of NXAC2PT_*.
fn pull_controller2(r: &mut Reader) -> Result<Action, OfError> {
    r.zeros(6, NXBRC_MUST_BE_ZERO)?;
    let mut c = Controller::default();
    while !r.is_empty() {
        let (kind, mut p) = prop::pull(r)?;
        match kind {
            0 => c.max_len = prop::short(&mut p)?,
            1 => c.id = prop::short(&mut p)?,
            2 => c.reason = reason(prop::byte(&mut p)?),
            3 => c.userdata = p.rest().to_vec(),
            4 => c.pause = true,
            5 => c.meter = Some(p.u32()?),
            _ => return Err(OFPBPC_BAD_TYPE),
        }
        p.done()?;
    }
    Ok(Action::Controller(Box::new(c)))
}

/// OVN names no controller at all: nobody is to be told that the TTL is used up.
fn pull_dec_ttl_ids(r: &mut Reader) -> Result<Action, OfError> {
    let n = usize::from(r.u16()?);
    r.zeros(4, NXBRC_MUST_BE_ZERO)?;
    if r.len() < 2 * n {
        return Err(OFPBAC_BAD_LEN);
    }
    let ids = (0..n).map(|_| r.u16()).collect::<Result<_, _>>()?;
    r.rest();
    Ok(Action::DecTtlCntIds(ids))
}

fn pull_write_metadata(r: &mut Reader) -> Result<WriteMetadata, OfError> {
    r.zeros(6, NXBRC_MUST_BE_ZERO)?;
    let (value, mask) = (r.u64()?, r.u64()?);
    r.done()?;
    Ok(WriteMetadata { value: value & mask, mask })
}

/// Three generations: 24 bytes; with the port, 32 bytes; with the direction.
fn pull_sample(r: &mut Reader, generation: u8) -> Result<Action, OfError> {
    let mut s = Sample {
        probability: r.u16()?,
        collector_set: r.u32()?,
        obs_domain: r.u32()?,
        obs_point: r.u32()?,
        sampling_port: OfPort::ANY,
        direction: SampleDirection::Default,
    };
    if generation >= 2 {
        s.sampling_port = pull_port16(r)?;
        let direction = r.u8()?;
        r.zeros(5, NXBRC_MUST_BE_ZERO)?;
        s.direction = match direction {
            0 => SampleDirection::Default,
            1 if generation == 3 => SampleDirection::Ingress,
            2 if generation == 3 => SampleDirection::Egress,
            _ => return Err(OFPBAC_BAD_ARGUMENT),
        };
    }
    if s.probability == 0 {
        return Err(OFPBAC_BAD_ARGUMENT);
    }
    Ok(Action::Sample(Box::new(s)))
}

fn pull_conjunction(r: &mut Reader) -> Result<Action, OfError> {
    let (clause, n_clauses, id) = (r.u8()?, r.u8()?, r.u32()?);
    if !(2..=64).contains(&n_clauses) || clause >= n_clauses {
        return Err(NXBAC_BAD_CONJUNCTION);
    }
    Ok(Action::Conjunction { id, clause, n_clauses })
}

/// A truncated packet keeps its Ethernet header, and goes to a port that exists.
fn truncation(max_len: u32, port: OfPort) -> Result<u32, OfError> {
    if port.is_reserved() && port != OfPort::LOCAL && port != OfPort::IN_PORT {
        return Err(OFPBAC_BAD_OUT_PORT);
    }
    if max_len < 14 { Err(OFPBAC_BAD_ARGUMENT) } else { Ok(max_len) }
}

fn pull_check_pkt_larger(r: &mut Reader) -> Result<Action, OfError> {
    let (pkt_len, ofs) = (r.u16()?, r.u16()?);
    let field = subfield::pull_field(r)?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    let dst = subfield::writable(subfield::part(field, ofs, 1)?)?;
    Ok(Action::CheckPktLarger { pkt_len, dst })
}

/// No other fields but tun_metadata can be deleted.
fn pull_delete_field(r: &mut Reader) -> Result<Action, OfError> {
    let header = oxm::pull_header(r)?;
    r.rest_zeros(NXBAC_MUST_BE_ZERO)?;
    let field = TunField::from_oxm(header.oxm).ok_or(OFPBAC_BAD_ARGUMENT)?;
    Ok(Action::DeleteField(field.index))
}
