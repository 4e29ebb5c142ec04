//! Hello, errors, features, configuration, roles, asynchronous messages.

use super::wire::{Put, Reader};
use super::{port, prop};
use crate::error::OfError::{self, *};
use crate::error::{ErrorCode, ErrorMsg};
use crate::message::Dialect;
use crate::switch::*;
use crate::types::{Version, Versions};

/// Reads the elements of a hello. Unknown elements are skipped (OpenFlow 1.3.5 section 7.5.1); without
/// a version bitmap, the header's version stands for all up to it.
pub(super) fn pull_hello(r: &mut Reader, header_version: u8) -> Hello {
    let mut versions = Versions::up_to(header_version);
    while let Ok((kind, len)) = r.u16().and_then(|kind| Ok((kind, usize::from(r.u16()?)))) {
        let Some(Ok(mut element)) = len.checked_sub(4).map(|n| r.sub(n)) else { break };
        // Bitmaps come in words of 32 bits, the lowest versions first.
        if kind == 1
            && let Ok(bits) = element.u32()
            && bits != 0
        {
            versions = Versions(bits);
        }
        if r.skip(len.next_multiple_of(8) - len).is_err() {
            break;
        }
    }
    r.rest();
    Hello { versions }
}

/// Writes the elements of a hello whose header says `header_version`.
pub(super) fn put_hello(out: &mut Vec<u8>, hello: &Hello, header_version: u8) {
    if hello.versions != Versions::up_to(header_version) {
        out.u16(1);
        out.u16(8);
        out.u32(hello.versions.0);
    }
}

/// The version in the header of a hello: the latest of those that it offers.
pub(super) fn hello_version(hello: &Hello) -> u8 {
    (31 - (hello.versions.0 | 2).leading_zeros()) as u8
}

/// Experimenter errors are a type of their own: in OpenFlow 1.0 and 1.1 Nicira's, later the standard's.
const NXET_VENDOR: u16 = 0xb0c2;
const NXVC_VENDOR_ERROR: u16 = 0;
const OFPET_EXPERIMENTER: u16 = 0xffff;

/// Reads the body of an error.
pub(super) fn pull_error(r: &mut Reader, version: Version) -> Result<ErrorMsg, OfError> {
    let (kind, code) = (r.u16()?, r.u16()?);
    let (vendor, kind, code) = match kind {
        NXET_VENDOR if code == NXVC_VENDOR_ERROR => (pull_vendor(r)?, r.u16()?, r.u16()?),
        OFPET_EXPERIMENTER if version >= Version::V1_2 => (pull_vendor(r)?, code, 0),
        _ => (0, kind, code),
    };
    let error = match OfError::from_number(version, vendor, kind, code) {
        Some(known) => ErrorCode::Known(known),
        None => ErrorCode::Unknown { vendor, kind, code },
    };
    Ok(ErrorMsg { error, data: r.rest().to_vec() })
}

/// Zero is nobody's: it stands for an error of the specification itself.
fn pull_vendor(r: &mut Reader) -> Result<u32, OfError> {
    match r.u32()? {
        0 => Err(OFPBRC_BAD_VENDOR),
        vendor => Ok(vendor),
    }
}

/// Writes the body of an error. One that the version cannot express is sent as the nearest that it can:
/// NXBRC_UNENCODABLE_ERROR.
pub(super) fn put_error(out: &mut Vec<u8>, version: Version, e: &ErrorMsg) {
    let (vendor, kind, code) = match e.error {
        ErrorCode::Unknown { vendor, kind, code } => (vendor, kind, code),
        ErrorCode::Known(error) => error
            .number(version)
            .or_else(|| NXBRC_UNENCODABLE_ERROR.number(version))
            .map_or((0, 1, 0), |n| (n.vendor, n.kind, n.code)),
    };
    if vendor == 0 {
        out.u16(kind);
        out.u16(code);
    } else if version < Version::V1_2 {
        out.u16(NXET_VENDOR);
        out.u16(NXVC_VENDOR_ERROR);
        out.u32(vendor);
        out.u16(kind);
        out.u16(code);
    } else {
        out.u16(OFPET_EXPERIMENTER);
        out.u16(kind);
        out.u32(vendor);
    }
    out.put(&e.data);
}

/// Bit 3 is spanning tree in OpenFlow 1.0 and groups later.
const WIRE_STP_OR_GROUPS: u32 = 1 << 3;

fn capabilities_known(version: Version) -> Capabilities {
    use Capabilities as C;
    let common = C::FLOW_STATS | C::TABLE_STATS | C::PORT_STATS | C::IP_REASM | C::QUEUE_STATS;
    match version {
        Version::V1_0 => common | C::ARP_MATCH_IP | C::STP,
        Version::V1_1 => common | C::ARP_MATCH_IP | C::GROUP_STATS,
        Version::V1_2 | Version::V1_3 => common | C::GROUP_STATS | C::PORT_BLOCKED,
        _ => common | C::GROUP_STATS | C::PORT_BLOCKED | C::BUNDLES | C::FLOW_MONITORING,
    }
}

/// Reads the body of a features reply.
pub(super) fn pull_features(r: &mut Reader, version: Version) -> Result<SwitchFeatures, OfError> {
    let (datapath_id, n_buffers) = (r.u64()?, r.u32()?);
    let (n_tables, auxiliary_id) = (r.u8()?, r.u8()?);
    r.skip(2)?;
    let mut bits = r.u32()?;
    if version == Version::V1_0 && bits & WIRE_STP_OR_GROUPS != 0 {
        bits = bits & !WIRE_STP_OR_GROUPS | Capabilities::STP.bits();
    }
    let actions = r.u32()?;
    let mut ports = Vec::new();
    if version < Version::V1_3 {
        while !r.is_empty() {
            ports.push(port::pull_desc(r, version)?);
        }
    }
    Ok(SwitchFeatures {
        datapath_id,
        n_buffers,
        n_tables,
        auxiliary_id: if version >= Version::V1_3 { auxiliary_id } else { 0 },
        capabilities: Capabilities::from_bits_truncate(bits) & capabilities_known(version),
        actions: if version == Version::V1_0 { actions } else { 0 },
        ports,
    })
}

/// Writes the body of a features reply. Ports that would make it longer than a message can be are left
/// out: a port-desc request tells them all.
pub(super) fn put_features(out: &mut Vec<u8>, version: Version, f: &SwitchFeatures) {
    out.u64(f.datapath_id);
    out.u32(f.n_buffers);
    out.put(&[f.n_tables, if version >= Version::V1_3 { f.auxiliary_id } else { 0 }, 0, 0]);
    let capabilities = f.capabilities & capabilities_known(version);
    let stp = if capabilities.contains(Capabilities::STP) { WIRE_STP_OR_GROUPS } else { 0 };
    out.u32((capabilities - Capabilities::STP).bits() | stp);
    out.u32(if version == Version::V1_0 { f.actions } else { 0 });
    if version < Version::V1_3 {
        let room = (super::MAX_LEN - 32) / port::desc_len(version);
        f.ports.iter().take(room).for_each(|p| port::put_desc(out, version, p));
    }
}

/// OFPC_INVALID_TTL_TO_CONTROLLER.
const INVALID_TTL: u16 = 1 << 2;

/// Reads the body of a get-config reply or set-config.
pub(super) fn pull_config(r: &mut Reader, version: Version) -> Result<SwitchConfig, OfError> {
    let (flags, miss_send_len) = (r.u16()?, r.u16()?);
    let has_ttl = version < Version::V1_3;
    if flags & !3 & !if has_ttl { INVALID_TTL } else { 0 } != 0 {
        return Err(OFPSCFC_BAD_FLAGS);
    }
    let frag = match flags & 3 {
        0 => FragHandling::Normal,
        1 => FragHandling::Drop,
        2 => FragHandling::Reassemble,
        _ => FragHandling::NxMatch,
    };
    Ok(SwitchConfig { frag, invalid_ttl_to_controller: has_ttl.then_some(flags & INVALID_TTL != 0), miss_send_len })
}

/// Writes the body of a get-config reply or set-config.
pub(super) fn put_config(out: &mut Vec<u8>, c: &SwitchConfig) {
    let ttl = if c.invalid_ttl_to_controller == Some(true) { INVALID_TTL } else { 0 };
    out.u16(c.frag as u16 | ttl);
    out.u16(c.miss_send_len);
}

/// Reads the body of a role request or reply. Nicira's roles are counted from zero and have no "no change".
pub(super) fn pull_role(r: &mut Reader, dialect: Dialect) -> Result<RoleMsg, OfError> {
    let number = r.u32()?;
    let number = if dialect == Dialect::Nicira { number.saturating_add(1) } else { number };
    let role = match number {
        0 => Role::NoChange,
        1 => Role::Equal,
        2 => Role::Primary,
        3 => Role::Secondary,
        _ => return Err(OFPRRFC_BAD_ROLE),
    };
    let mut generation_id = None;
    if dialect == Dialect::Standard {
        r.skip(4)?;
        let id = r.u64()?;
        // In an answer all ones says that there is none.
        generation_id = (id != u64::MAX).then_some(id);
    }
    Ok(RoleMsg { role, generation_id })
}

/// Writes the body of a role request or reply.
pub(super) fn put_role(out: &mut Vec<u8>, dialect: Dialect, m: &RoleMsg) {
    if dialect == Dialect::Nicira {
        out.u32((m.role as u32).saturating_sub(1));
    } else {
        out.u32(m.role as u32);
        out.zeros(4);
        out.u64(m.generation_id.unwrap_or(u64::MAX));
    }
}

/// Reads the body of a role status.
pub(super) fn pull_role_status(r: &mut Reader) -> Result<RoleStatus, OfError> {
    let role = match r.u32()? {
        1 => Role::Equal,
        2 => Role::Primary,
        3 => Role::Secondary,
        _ => return Err(OFPRRFC_BAD_ROLE),
    };
    let reason = match r.u8()? {
        0 => RoleReason::PrimaryRequest,
        1 => RoleReason::Config,
        2 => RoleReason::Experimenter,
        _ => return Err(NXBRC_BAD_REASON),
    };
    r.skip(3)?;
    let id = r.u64()?;
    // Properties can only be experimenters'.
    r.rest();
    Ok(RoleStatus { role, reason, generation_id: (id != u64::MAX).then_some(id) })
}

/// Writes the body of a role status.
pub(super) fn put_role_status(out: &mut Vec<u8>, s: &RoleStatus) {
    out.u32(s.role as u32);
    out.put(&[s.reason as u8, 0, 0, 0]);
    out.u64(s.generation_id.unwrap_or(u64::MAX));
}

/// Reads the masks of OFPT_GET_ASYNC_REPLY, OFPT_SET_ASYNC, NXT_SET_ASYNC_CONFIG and NXT_SET_ASYNC_CONFIG2:
/// six numbers, or `properties` (OpenFlow 1.4 section 7.3.10), of which any can be absent.
pub(super) fn pull_async(r: &mut Reader, properties: bool) -> Result<AsyncChange, OfError> {
    let mut out = AsyncChange::default();
    if !properties {
        for masks in [&mut out.packet_in, &mut out.port_status, &mut out.flow_removed] {
            *masks = [Some(r.u32()?), Some(r.u32()?)];
        }
        return Ok(out);
    }
    while !r.is_empty() {
        let (kind, v) = prop::pull(r)?;
        // Even numbers are for secondary controllers, odd ones for the others.
        let side = 1 - usize::from(kind % 2);
        let (masks, known) = match kind / 2 {
            0 => (&mut out.packet_in, 0x3f),
            1 => (&mut out.port_status, 0x7),
            2 => (&mut out.flow_removed, 0x3f),
            3 => (&mut out.role_status, 0x7),
            4 => (&mut out.table_status, 0x18),
            5 => (&mut out.requestforward, 0x3),
            0x7fff => return Err(OFPBPC_BAD_EXPERIMENTER),
            _ => return Err(OFPBPC_BAD_TYPE),
        };
        let mask = v.with(OFPBPC_BAD_LEN).u32()?;
        if mask & !known != 0 {
            return Err(OFPACFC_INVALID);
        }
        masks[side] = Some(mask);
    }
    Ok(out)
}

/// Writes the masks, as six numbers or as properties.
pub(super) fn put_async(out: &mut Vec<u8>, a: &AsyncChange, properties: bool) {
    if !properties {
        let six = [a.packet_in, a.port_status, a.flow_removed];
        return six.into_iter().flatten().for_each(|n| out.u32(n.unwrap_or(0)));
    }
    let all = [a.packet_in, a.port_status, a.flow_removed, a.role_status, a.table_status, a.requestforward];
    for (kind, [others, secondary]) in (0..).step_by(2).zip(all) {
        for (kind, mask) in [(kind, secondary), (kind + 1, others)] {
            if let Some(mask) = mask {
                prop::put(out, kind, &mask.to_be_bytes());
            }
        }
    }
}
