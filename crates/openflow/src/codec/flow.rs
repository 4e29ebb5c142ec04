//! Flow-mod and flow-removed: the standard forms and Nicira's for OpenFlow 1.0.

use super::oxs::{self, Oxs};
use super::wire::{Put, Reader, pull_duration, put_duration};
use super::{DecodeOptions, instruction, match10, match11, oxm};
use crate::error::OfError::{self, *};
use crate::flow_mod::*;
use crate::matching::Match;
use crate::message::Dialect;
use crate::types::{Cookie, CookieFilter, FlowModFlags, GroupId, OfPort, TableId, Version};

/// A buffer id: all ones for none.
pub(super) fn pull_buffer(r: &mut Reader) -> Result<Option<u32>, OfError> {
    Ok(Some(r.u32()?).filter(|&id| id != u32::MAX))
}

/// A filter by port of OpenFlow 1.1 and later.
pub(super) fn pull_port32(r: &mut Reader) -> Result<OfPort, OfError> {
    let port = OfPort(r.u32()?);
    if port.to_u16().is_some() { Ok(port) } else { Err(OFPBRC_BAD_PORT) }
}

pub(super) fn pull_port16(r: &mut Reader) -> Result<OfPort, OfError> {
    Ok(OfPort::from_u16(r.u16()?))
}

pub(super) fn port16(port: OfPort) -> u16 {
    port.to_u16().unwrap_or(0xffff)
}

/// Reads the match of a version after OpenFlow 1.0.
pub(super) fn pull_match(r: &mut Reader, version: Version, loose: bool) -> Result<Match, OfError> {
    if version == Version::V1_1 { match11::pull(r) } else { oxm::pull_oxm_match(r, loose) }
}

/// Writes the match of a version after OpenFlow 1.0.
pub(super) fn put_match(out: &mut Vec<u8>, version: Version, m: &Match) {
    if version == Version::V1_1 { match11::put(out, m) } else { oxm::put_oxm_match(out, version, m) }
}

fn command(n: u16) -> Result<FlowModCommand, OfError> {
    use FlowModCommand::*;
    [Add, Modify, ModifyStrict, Delete, DeleteStrict].into_iter().find(|&c| c as u16 == n).ok_or(OFPFMFC_BAD_COMMAND)
}

fn is_delete(command: FlowModCommand) -> bool {
    matches!(command, FlowModCommand::Delete | FlowModCommand::DeleteStrict)
}

/// Flags that a version knows.
fn pull_flags(r: &mut Reader, version: Version, command: FlowModCommand) -> Result<FlowModFlags, OfError> {
    let bits = r.u16()?;
    let known = match version {
        Version::V1_0 | Version::V1_1 => FlowModFlags::SEND_FLOW_REM | FlowModFlags::CHECK_OVERLAP,
        Version::V1_2 => FlowModFlags::SEND_FLOW_REM | FlowModFlags::CHECK_OVERLAP | FlowModFlags::RESET_COUNTS,
        _ => FlowModFlags::all(),
    };
    // The emergency flow cache of OpenFlow 1.0.
    if version == Version::V1_0 && bits & 4 != 0 {
        return Err(OFPFMFC_TABLE_FULL);
    }
    let mut flags = FlowModFlags::from_bits(bits).filter(|&f| known.contains(f)).ok_or(OFPFMFC_BAD_FLAGS)?;
    if version < Version::V1_2 && command == FlowModCommand::Add {
        flags |= FlowModFlags::RESET_COUNTS;
    }
    Ok(flags)
}

fn flags_of(version: Version, flags: FlowModFlags) -> u16 {
    let mask = match version {
        Version::V1_0 | Version::V1_1 => 3,
        Version::V1_2 => 7,
        _ => 0x1f,
    };
    flags.bits() & mask
}

/// Reads the body of a flow-mod.
pub(super) fn pull_flow_mod(
    r: &mut Reader,
    version: Version,
    dialect: Dialect,
    options: DecodeOptions,
) -> Result<FlowMod, OfError> {
    if version == Version::V1_0 { pull10(r, dialect, options) } else { pull11(r, version) }
}

fn pull10(r: &mut Reader, dialect: Dialect, options: DecodeOptions) -> Result<FlowMod, OfError> {
    let standard = if dialect == Dialect::Standard { Some(match10::pull(r)?) } else { None };
    let cookie = r.u64()?;
    let word = r.u16()?;
    let (table, command) = if options.flow_mod_table_id {
        (Some(TableId((word >> 8) as u8)).filter(|&t| t != TableId::ALL), command(word & 0xff)?)
    } else {
        (None, command(word)?)
    };
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let buffer_id = pull_buffer(r)?;
    let out_port = pull_port16(r)?;
    let flags = pull_flags(r, Version::V1_0, command)?;
    let mut filter = CookieFilter::default();
    let matching = match standard {
        Some(m) => m,
        None => {
            let len = r.u16()?.into();
            r.skip(6)?;
            oxm::pull_nxm(r, len, false, Some(&mut filter))?
        }
    };
    if command == FlowModCommand::Add && filter.mask != 0 {
        return Err(NXBRC_NXM_INVALID);
    }
    let instructions = instruction::pull(r.sub(r.len())?, Version::V1_0)?;
    let new_cookie = match command {
        FlowModCommand::Add => Some(Cookie(cookie)),
        FlowModCommand::Modify | FlowModCommand::ModifyStrict => Some(Cookie(cookie)).filter(|c| c.0 != u64::MAX),
        FlowModCommand::Delete | FlowModCommand::DeleteStrict => None,
    };
    Ok(FlowMod {
        command,
        table,
        new_cookie,
        keep_cookie: false,
        cookie: filter,
        idle_timeout,
        hard_timeout,
        priority,
        importance: 0,
        flags,
        out_port: if is_delete(command) { out_port } else { OfPort::ANY },
        out_group: GroupId::ANY,
        buffer_id,
        matching,
        instructions,
        lenient: true,
    })
}

fn pull11(r: &mut Reader, version: Version) -> Result<FlowMod, OfError> {
    let (cookie, mask) = (r.u64()?, r.u64()?);
    let table = TableId(r.u8()?);
    let command = command(r.u8()?.into())?;
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let buffer_id = pull_buffer(r)?;
    let (out_port, out_group) = (OfPort(r.u32()?), GroupId(r.u32()?));
    let flags = pull_flags(r, version, command)?;
    let importance = r.u16()?;
    let matching = pull_match(r, version, false)?;
    let instructions = instruction::pull(r.sub(r.len())?, version)?;
    if table == TableId::ALL && !is_delete(command) {
        return Err(OFPFMFC_BAD_TABLE_ID);
    }
    if !is_delete(command) && instructions.goto.is_some_and(|next| next <= table) {
        return Err(OFPBIC_BAD_TABLE_ID);
    }
    let add = command == FlowModCommand::Add;
    // Only in OpenFlow 1.1 does a modify add, where it finds nothing and does not look at cookies (section 4.5).
    let adds = version == Version::V1_1 && !add && !is_delete(command) && mask == 0;
    if is_delete(command) && out_port.to_u16().is_none() {
        return Err(OFPBRC_BAD_PORT);
    }
    Ok(FlowMod {
        command,
        table: (table != TableId::ALL).then_some(table),
        new_cookie: (add || adds).then_some(Cookie(cookie)),
        keep_cookie: adds,
        cookie: if add || adds { CookieFilter::default() } else { CookieFilter { value: cookie & mask, mask } },
        idle_timeout,
        hard_timeout,
        priority,
        importance: if version >= Version::V1_4 { importance } else { 0 },
        flags,
        out_port: if is_delete(command) { out_port } else { OfPort::ANY },
        out_group: if is_delete(command) { out_group } else { GroupId::ANY },
        buffer_id,
        matching,
        instructions,
        lenient: false,
    })
}

/// Writes the body of a flow-mod.
pub(super) fn put_flow_mod(out: &mut Vec<u8>, version: Version, dialect: Dialect, f: &FlowMod, options: DecodeOptions) {
    if version > Version::V1_0 {
        return put11(out, version, f);
    }
    if dialect == Dialect::Standard {
        match10::put(out, &f.matching);
    }
    out.u64(match f.new_cookie {
        Some(cookie) => cookie.0,
        None if is_delete(f.command) => 0,
        None => u64::MAX,
    });
    let table = if options.flow_mod_table_id { f.table.unwrap_or(TableId::ALL).0 } else { 0 };
    out.u16(u16::from(table) << 8 | f.command as u16);
    [f.idle_timeout, f.hard_timeout, f.priority].into_iter().for_each(|n| out.u16(n));
    out.u32(f.buffer_id.unwrap_or(u32::MAX));
    out.u16(port16(f.out_port));
    out.u16(flags_of(version, f.flags));
    if dialect == Dialect::Nicira {
        let len_at = out.here();
        out.zeros(8);
        oxm::put_nxm(out, version, &f.matching, f.cookie, len_at);
    }
    instruction::put(out, version, &f.instructions, &f.matching);
}

fn put11(out: &mut Vec<u8>, version: Version, f: &FlowMod) {
    let add = f.command == FlowModCommand::Add || f.keep_cookie;
    out.u64(if add { f.new_cookie.unwrap_or_default().0 } else { f.cookie.value });
    out.u64(if add { 0 } else { f.cookie.mask });
    let unspecified = if is_delete(f.command) { TableId::ALL } else { TableId(0) };
    out.put(&[f.table.unwrap_or(unspecified).0, f.command as u8]);
    [f.idle_timeout, f.hard_timeout, f.priority].into_iter().for_each(|n| out.u16(n));
    out.u32(f.buffer_id.unwrap_or(u32::MAX));
    out.u32(f.out_port.0);
    out.u32(f.out_group.0);
    out.u16(flags_of(version, f.flags));
    out.u16(if version >= Version::V1_4 { f.importance } else { 0 });
    put_match(out, version, &f.matching);
    instruction::put(out, version, &f.instructions, &f.matching);
}

fn reason(n: u8) -> Result<FlowRemovedReason, OfError> {
    use FlowRemovedReason::*;
    [IdleTimeout, HardTimeout, Delete, GroupDelete, MeterDelete, Eviction]
        .into_iter()
        .find(|&r| r as u8 == n)
        .ok_or(NXBRC_BAD_REASON)
}

/// The number of a reason, of those that the version knows.
fn reason_to_wire(version: Version, reason: FlowRemovedReason) -> u8 {
    match reason {
        FlowRemovedReason::GroupDelete if version < Version::V1_1 => FlowRemovedReason::Delete as u8,
        FlowRemovedReason::MeterDelete | FlowRemovedReason::Eviction if version < Version::V1_4 => {
            FlowRemovedReason::Delete as u8
        }
        other => other as u8,
    }
}

/// Reads the body of a flow-removed.
pub(super) fn pull_flow_removed(r: &mut Reader, version: Version, dialect: Dialect) -> Result<FlowRemoved, OfError> {
    if dialect == Dialect::Nicira {
        return pull_removed_nx(r);
    }
    if version >= Version::V1_5 {
        return pull_removed15(r, version);
    }
    let v10 = version == Version::V1_0;
    let early = if v10 { Some(match10::pull(r)?) } else { None };
    let (cookie, priority) = (Cookie(r.u64()?), r.u16()?);
    let (reason, table) = (reason(r.u8()?)?, TableId(r.u8()?));
    let duration = pull_duration(r)?;
    let (idle_timeout, hard_timeout) = (r.u16()?, r.u16()?);
    let (packet_count, byte_count) = (r.u64()?, r.u64()?);
    Ok(FlowRemoved {
        matching: early.map_or_else(|| pull_match(r, version, true), Ok)?,
        priority,
        cookie,
        reason,
        table: (!v10).then_some(table),
        duration,
        idle_timeout,
        hard_timeout: if version < Version::V1_2 { 0 } else { hard_timeout },
        packet_count,
        byte_count,
    })
}

fn pull_removed15(r: &mut Reader, version: Version) -> Result<FlowRemoved, OfError> {
    let (table, reason) = (TableId(r.u8()?), reason(r.u8()?)?);
    let (priority, idle_timeout, hard_timeout) = (r.u16()?, r.u16()?, r.u16()?);
    let cookie = Cookie(r.u64()?);
    let matching = pull_match(r, version, true)?;
    let stats = oxs::pull(r)?;
    Ok(FlowRemoved {
        matching,
        priority,
        cookie,
        reason,
        table: Some(table),
        duration: stats.duration.unwrap_or_default(),
        idle_timeout,
        hard_timeout,
        packet_count: stats.packets.unwrap_or(u64::MAX),
        byte_count: stats.bytes.unwrap_or(u64::MAX),
    })
}

fn put_removed15(out: &mut Vec<u8>, version: Version, f: &FlowRemoved) {
    out.put(&[f.table.unwrap_or(TableId(0)).0, reason_to_wire(version, f.reason)]);
    [f.priority, f.idle_timeout, f.hard_timeout].into_iter().for_each(|n| out.u16(n));
    out.u64(f.cookie.0);
    put_match(out, version, &f.matching);
    let (packets, bytes) = (oxs::known(f.packet_count), oxs::known(f.byte_count));
    oxs::put(out, &Oxs { duration: Some(f.duration), packets, bytes, ..Oxs::default() });
}

fn pull_removed_nx(r: &mut Reader) -> Result<FlowRemoved, OfError> {
    let (cookie, priority) = (Cookie(r.u64()?), r.u16()?);
    let (reason, table) = (reason(r.u8()?)?, r.u8()?);
    let duration = pull_duration(r)?;
    let (idle_timeout, match_len) = (r.u16()?, r.u16()?);
    let (packet_count, byte_count) = (r.u64()?, r.u64()?);
    Ok(FlowRemoved {
        matching: oxm::pull_nxm(r, match_len.into(), true, None)?,
        priority,
        cookie,
        reason,
        table: table.checked_sub(1).map(TableId),
        duration,
        idle_timeout,
        hard_timeout: 0,
        packet_count,
        byte_count,
    })
}

/// Writes the body of a flow-removed.
pub(super) fn put_flow_removed(out: &mut Vec<u8>, version: Version, dialect: Dialect, f: &FlowRemoved) {
    let v10 = version == Version::V1_0;
    let nicira = dialect == Dialect::Nicira;
    if version >= Version::V1_5 && !nicira {
        return put_removed15(out, version, f);
    }
    if v10 && !nicira {
        match10::put(out, &f.matching);
    }
    out.u64(f.cookie.0);
    out.u16(f.priority);
    let table = match f.table {
        _ if v10 && !nicira => 0,
        // Nicira counts from one; zero is unknown.
        Some(table) if nicira => table.0.wrapping_add(1),
        Some(table) => table.0,
        None => 0,
    };
    out.put(&[reason_to_wire(version, f.reason), table]);
    put_duration(out, f.duration);
    out.u16(f.idle_timeout);
    let len_at = out.here();
    out.u16(if version < Version::V1_2 || nicira { 0 } else { f.hard_timeout });
    out.u64(f.packet_count);
    out.u64(f.byte_count);
    if nicira {
        oxm::put_nxm(out, version, &f.matching, CookieFilter::default(), len_at);
    } else if !v10 {
        put_match(out, version, &f.matching);
    }
}
